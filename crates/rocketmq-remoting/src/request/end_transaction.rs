//! END_TRANSACTION. Source: `EndTransactionRequestHeader`, `EndTransactionProcessor` of RocketMQ 4.9.4 and 5.3.3.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::check_group;

/// What becomes of a half message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// Deliver it. Every commit stores the message once more, also a repeated or late one.
    Commit,
    /// Drop it.
    Rollback,
    /// Not known yet: ask again later. The broker never answers this, so the command is one-way.
    Unknown,
}

impl Resolution {
    const fn number(self) -> i32 {
        match self {
            Self::Commit => crate::message::sys_flag::TRANSACTION_COMMIT,
            Self::Rollback => crate::message::sys_flag::TRANSACTION_ROLLBACK,
            Self::Unknown => 0,
        }
    }
}

/// Commits a half message or rolls it back, on the broker that holds it. After the broker has checked, both offsets are
/// those of its check, not those of the send: it moves the half each time.
///
/// The answer SUCCESS to a commit means that the message is appended; whether it was flushed and replicated as its half
/// was is not told (rocketmq.md B.9.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndTransaction {
    /// The group of the half message.
    pub producer_group: String,
    /// Where the half is in the queue of halfs: `queue_offset` of its send, or what the check says.
    pub half_queue_offset: i64,
    /// Where the half is in the commit log: the offset of its id, or what the check says.
    pub commit_log_offset: i64,
    /// What becomes of it.
    pub resolution: Resolution,
    /// The message's unique key. Brokers do not compare it.
    pub unique_key: String,
    /// What the send's answer or the check called the transaction.
    pub transaction_id: Option<String>,
    /// True for the answer to a check. Since 5.1.1 only that is accepted once the message's check immunity has passed.
    pub from_check: bool,
    /// The message's own topic, never the half topic: 5.x with ACL 2.0 then checks the right to publish to it.
    pub topic: Option<String>,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

impl Request for EndTransaction {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::EndTransaction;

    /// # Errors
    /// [`crate::message::MessageError::Group`].
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.producer_group)?;
        let command = Command::request(Self::CODE)
            .with("producerGroup", &self.producer_group)
            .with("tranStateTableOffset", self.half_queue_offset)
            .with("commitLogOffset", self.commit_log_offset)
            .with("commitOrRollback", self.resolution.number())
            .with("fromTransactionCheck", self.from_check)
            .with("msgId", &self.unique_key)
            .with_optional("transactionId", self.transaction_id.as_ref())
            .with_optional("topic", self.topic.as_ref())
            .with_optional("bname", self.broker_name.as_ref());
        Ok(if self.resolution == Resolution::Unknown { command.one_way() } else { command })
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::ResponseCode;

    #[test]
    fn fields_are_those_of_the_header() {
        let request = EndTransaction {
            producer_group: "group".into(),
            half_queue_offset: 3,
            commit_log_offset: 1_000,
            resolution: Resolution::Commit,
            unique_key: "u".into(),
            transaction_id: None,
            from_check: false,
            topic: Some("Orders".into()),
            broker_name: None,
        };
        let command = request.command().unwrap();
        let fields: Vec<(&str, &str)> = command.ext.iter().collect();
        assert_eq!(
            fields,
            [
                ("producerGroup", "group"),
                ("tranStateTableOffset", "3"),
                ("commitLogOffset", "1000"),
                ("commitOrRollback", "8"),
                ("fromTransactionCheck", "false"),
                ("msgId", "u"),
                ("topic", "Orders"),
            ]
        );
        assert!(!command.is_one_way());
        let rollback = EndTransaction { resolution: Resolution::Rollback, ..request.clone() }.command().unwrap();
        assert_eq!(rollback.ext.get("commitOrRollback"), Some("12"));
        let unknown = EndTransaction { resolution: Resolution::Unknown, ..request.clone() }.command().unwrap();
        assert_eq!((unknown.ext.get("commitOrRollback"), unknown.is_one_way()), (Some("0"), true));
        // To a slave: refused, and certainly not done.
        let slave = request.answer(Command::answer_to(&command, ResponseCode::SlaveNotAvailable, None)).unwrap_err();
        assert!(!slave.may_have_been_done());
    }
}
