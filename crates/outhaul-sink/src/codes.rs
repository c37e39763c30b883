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
}

impl SinkCode {
    /// All codes, by rising number.
    pub const ALL: [Self; 16] = [
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
