//! The codes of destinations: one table, from which `outhaul explain` and the pages under `docs/errors` are made.

use std::fmt;

/// What can go wrong with a destination. A number is never used again for something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SinkCode {
    /// The `kind` of a destination is one of Outhaul's, and this build does not have it.
    KindNotBuilt,
    /// The `kind` of a destination is no word that Outhaul knows.
    UnknownKind,
    /// A key of a destination is missing, unknown, or has a value that does not fit.
    Settings,
    /// The folder of the file is not there.
    FolderMissing,
    /// The file or its folder may not be written.
    NotPermitted,
    /// No space is left, or a size or quota limit is reached.
    DiskFull,
    /// The file system failed in another way.
    FileFailed,
    /// Another process holds the file's lock and does not let go.
    FileBusy,
    /// The path is a folder, a pipe or a socket.
    NotAFile,
    /// The message cannot be written as it is.
    MessageDefect,
    /// The part of the relay that writes has stopped; it is started again.
    WriterStopped,
    /// An earlier message of the same key was not delivered; this one was not tried.
    BehindEarlier,
    /// The reader of standard output is gone.
    ReaderGone,
    /// The inbox's database refuses this message.
    InboxRefused,
    /// The inbox's tables are not there, or not as they must be.
    InboxTables,
    /// The inbox's database took part of a batch and answered for fewer messages than it was given.
    InboxAnswer,
    /// A name server or broker of RocketMQ cannot be reached.
    RocketMqUnreachable,
    /// RocketMQ does not accept the account.
    RocketMqAccount,
    /// TLS with RocketMQ cannot be used.
    RocketMqTls,
    /// The topic does not exist, or its queue does not.
    RocketMqTopic,
    /// The message is above a limit of RocketMQ.
    RocketMqTooLarge,
    /// The delay that a header asks for would not be kept.
    RocketMqDelay,
    /// The account may not do this, or the topic forbids it.
    RocketMqRights,
    /// A broker sheds load.
    RocketMqBusy,
    /// A broker takes no messages now.
    RocketMqRefused,
    /// A broker refuses the message.
    RocketMqIllegal,
    /// A broker failed while it handled the message.
    RocketMqFailed,
    /// A broker did not answer, or its answer cannot be read.
    RocketMqUnanswered,
    /// The connection to a broker was renewed, so that what it has must be looked at first.
    RocketMqRenewed,
    /// A message is stored less safely than the broker is configured for.
    RocketMqWeakAck,
    /// An acknowledgement proves less than `require_ack` demands.
    AckTooWeak,
    /// It cannot be found out whether a broker still has what it acknowledged.
    RocketMqUnverified,
}

impl SinkCode {
    /// All codes, by rising number.
    pub const ALL: [Self; 32] = [
        Self::KindNotBuilt,
        Self::UnknownKind,
        Self::Settings,
        Self::FolderMissing,
        Self::NotPermitted,
        Self::DiskFull,
        Self::FileFailed,
        Self::FileBusy,
        Self::NotAFile,
        Self::MessageDefect,
        Self::WriterStopped,
        Self::BehindEarlier,
        Self::ReaderGone,
        Self::InboxRefused,
        Self::InboxTables,
        Self::InboxAnswer,
        Self::RocketMqUnreachable,
        Self::RocketMqAccount,
        Self::RocketMqTls,
        Self::RocketMqTopic,
        Self::RocketMqTooLarge,
        Self::RocketMqDelay,
        Self::RocketMqRights,
        Self::RocketMqBusy,
        Self::RocketMqRefused,
        Self::RocketMqIllegal,
        Self::RocketMqFailed,
        Self::RocketMqUnanswered,
        Self::RocketMqRenewed,
        Self::RocketMqWeakAck,
        Self::AckTooWeak,
        Self::RocketMqUnverified,
    ];

    /// The code: `outhaul explain CODE` prints its page.
    pub const fn code(self) -> &'static str {
        match self {
            Self::KindNotBuilt => "OUT-2001",
            Self::UnknownKind => "OUT-2002",
            Self::Settings => "OUT-2003",
            Self::FolderMissing => "OUT-2004",
            Self::NotPermitted => "OUT-2005",
            Self::DiskFull => "OUT-2006",
            Self::FileFailed => "OUT-2007",
            Self::FileBusy => "OUT-2008",
            Self::NotAFile => "OUT-2009",
            Self::MessageDefect => "OUT-2010",
            Self::WriterStopped => "OUT-2011",
            Self::BehindEarlier => "OUT-2012",
            Self::ReaderGone => "OUT-2013",
            Self::InboxRefused => "OUT-2020",
            Self::InboxTables => "OUT-2021",
            Self::InboxAnswer => "OUT-2022",
            Self::RocketMqUnreachable => "OUT-2030",
            Self::RocketMqAccount => "OUT-2031",
            Self::RocketMqTls => "OUT-2032",
            Self::RocketMqTopic => "OUT-2033",
            Self::RocketMqTooLarge => "OUT-2034",
            Self::RocketMqDelay => "OUT-2035",
            Self::RocketMqRights => "OUT-2036",
            Self::RocketMqBusy => "OUT-2037",
            Self::RocketMqRefused => "OUT-2038",
            Self::RocketMqIllegal => "OUT-2039",
            Self::RocketMqFailed => "OUT-2040",
            Self::RocketMqUnanswered => "OUT-2041",
            Self::RocketMqRenewed => "OUT-2042",
            Self::RocketMqWeakAck => "OUT-2043",
            Self::AckTooWeak => "OUT-2044",
            Self::RocketMqUnverified => "OUT-2045",
        }
    }

    /// One line on what happened.
    pub const fn what(self) -> &'static str {
        match self {
            Self::KindNotBuilt => "the kind of destination is not in this build",
            Self::UnknownKind => "there is no such kind of destination",
            Self::Settings => "a key of the destination is missing, unknown or does not fit",
            Self::FolderMissing => "the folder of the file does not exist",
            Self::NotPermitted => "the file or its folder may not be written",
            Self::DiskFull => "no space is left for the file",
            Self::FileFailed => "the file system failed",
            Self::FileBusy => "another process holds the lock of the file",
            Self::NotAFile => "the path is not a file that lines can be appended to",
            Self::MessageDefect => "the message cannot be delivered as it is",
            Self::WriterStopped => "the thread that writes the file has stopped",
            Self::BehindEarlier => "an earlier message of the same key was not delivered",
            Self::ReaderGone => "nobody reads standard output any more",
            Self::InboxRefused => "the inbox's database refuses the message",
            Self::InboxTables => "the inbox's tables are missing or differ",
            Self::InboxAnswer => "the inbox's database answered for another number of messages than it was given",
            Self::RocketMqUnreachable => "no name server or broker of RocketMQ can be reached",
            Self::RocketMqAccount => "RocketMQ does not accept the account",
            Self::RocketMqTls => "TLS with RocketMQ cannot be used",
            Self::RocketMqTopic => "RocketMQ does not have the topic",
            Self::RocketMqTooLarge => "the message is above a limit of RocketMQ",
            Self::RocketMqDelay => "the broker would not keep the delay that a header asks for",
            Self::RocketMqRights => "RocketMQ forbids it",
            Self::RocketMqBusy => "a broker of RocketMQ is busy",
            Self::RocketMqRefused => "a broker of RocketMQ takes no messages now",
            Self::RocketMqIllegal => "RocketMQ refuses the message",
            Self::RocketMqFailed => "a broker of RocketMQ failed",
            Self::RocketMqUnanswered => "a broker of RocketMQ did not answer in time",
            Self::RocketMqRenewed => "the connection to a broker of RocketMQ was renewed",
            Self::RocketMqWeakAck => "RocketMQ stored it less safely than configured",
            Self::AckTooWeak => "an acknowledgement proves less than require_ack demands",
            Self::RocketMqUnverified => "it cannot be found out whether RocketMQ still has what it acknowledged",
        }
    }

    /// One line on what to do.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::KindNotBuilt => {
                "use a build that has the kind (`outhaul --version` lists them), or one of the kinds named"
            }
            Self::UnknownKind => "correct `kind` of the destination",
            Self::Settings => "correct the key that the message names; the configuration reference lists all keys",
            Self::FolderMissing => "make the folder, or correct `path`",
            Self::NotPermitted => "give the relay's user the right to write the file and its folder",
            Self::DiskFull => "free space, or raise the limit; nothing is lost, and the relay goes on by itself",
            Self::FileFailed => "look at the disk and the system's log; the relay tries again by itself",
            Self::FileBusy => "find the stopped process that holds the file, or give each relay a path of its own",
            Self::NotAFile => "name a regular file in `path`; for a pipe use `-` and the shell",
            Self::MessageDefect => "correct what writes such rows; `outhaul audit ID` shows the reason",
            Self::WriterStopped => "nothing to do: it is started again; if it persists, report it with the log",
            Self::BehindEarlier => "nothing to do: it is sent after the earlier one",
            Self::ReaderGone => "start the reader again together with the relay",
            Self::InboxRefused => "shorten or correct the value that the message names, or skip the message",
            Self::InboxTables => "set `create_table = true`, or apply the DDL of `inbox_message` by hand",
            Self::InboxAnswer => "nothing to do: the batch is sent again; if it persists, report it with the log",
            Self::RocketMqUnreachable => "look at the hosts, ports and the network; the relay goes on by itself",
            Self::RocketMqAccount => "correct `access_key` and `secret_key`, or create the account on every broker",
            Self::RocketMqTls => {
                "correct the keys that begin with `tls_`, or the certificates of name servers and brokers"
            }
            Self::RocketMqTopic => "create the topic, correct its name, or set `create_topics = true`",
            Self::RocketMqTooLarge => {
                "raise the limit that the message names, or send less; skip the message if it is of no use"
            }
            Self::RocketMqDelay => "correct the header, or deliver to a broker that can",
            Self::RocketMqRights => {
                "give the account the right that the message names (PUB on the topic), or the topic its permission"
            }
            Self::RocketMqBusy => "look at the broker's disk and load; the relay sends less and goes on by itself",
            Self::RocketMqRefused => {
                "look at the broker: it is closing, a slave, short of replicas, or its disk is full"
            }
            Self::RocketMqIllegal => "correct what the broker's words name, or skip the message",
            Self::RocketMqFailed => "look at the broker's log; the message is sent again",
            Self::RocketMqUnanswered => "look at the broker's load and the network; the message is sent again",
            Self::RocketMqRenewed => {
                "nothing to do: it is looked at whether the broker has all that it acknowledged, then the relay goes on"
            }
            Self::RocketMqWeakAck => {
                "look at the broker's slave and disk; `on_weak_ack` says whether such messages are sent again"
            }
            Self::AckTooWeak => "change the setting that the message names, or lower require_ack",
            Self::RocketMqUnverified => {
                "give the account the right to read (SUB) the topics, so that forgotten messages are found"
            }
        }
    }

    /// Whether trying again later can help without anybody doing anything.
    pub const fn passes(self) -> bool {
        matches!(
            self,
            Self::DiskFull
                | Self::FileFailed
                | Self::FileBusy
                | Self::WriterStopped
                | Self::BehindEarlier
                | Self::InboxAnswer
                | Self::RocketMqUnreachable
                | Self::RocketMqTopic
                | Self::RocketMqRights
                | Self::RocketMqBusy
                | Self::RocketMqRefused
                | Self::RocketMqFailed
                | Self::RocketMqUnanswered
                | Self::RocketMqRenewed
                | Self::RocketMqWeakAck
        )
    }
}

impl fmt::Display for SinkCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_rise_and_none_is_used_twice() {
        assert!(SinkCode::ALL.windows(2).all(|w| w[0].code() < w[1].code()));
        assert!(SinkCode::ALL.iter().all(|c| !c.what().is_empty() && !c.remedy().is_empty()));
    }
}
