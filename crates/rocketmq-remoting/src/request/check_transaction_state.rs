//! CHECK_TRANSACTION_STATE, which a broker sends. Source: `CheckTransactionStateRequestHeader`,
//! `AbstractTransactionalMessageCheckListener` of RocketMQ 4.9.4 and 5.3.3.

use super::{EndTransaction, Resolution, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::{StoredMessage, name};

/// A broker asks what became of a half message. It is asked of any one member of the message's producer group, one-way:
/// answer with [`Self::end`] on the same connection, or not at all, and it is asked again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTransactionState {
    /// Where the half is in the queue of halfs by now.
    pub half_queue_offset: i64,
    /// Where the half is in the commit log by now.
    pub commit_log_offset: i64,
    /// The message's unique key.
    pub unique_key: String,
    /// What the broker calls the transaction.
    pub transaction_id: Option<String>,
    /// The message's producer group.
    pub producer_group: String,
    /// The broker's name; 5.x.
    pub broker_name: Option<String>,
    /// The message, with the topic that it is for.
    pub message: StoredMessage,
}

impl CheckTransactionState {
    /// What is asked.
    pub const CODE: RequestCode = RequestCode::CheckTransactionState;

    /// Reads the broker's command.
    ///
    /// # Errors
    /// [`Error::Stored`] if the message cannot be read; [`Error::Answer`] if it has no unique key or no group, or an
    /// offset is missing.
    pub fn read(command: &Command) -> Result<Self, Error> {
        let message = StoredMessage::read(&mut command.body.clone())
            .map_err(|source| Error::Stored { request: Self::CODE, source })?;
        let missing = |what| Error::Answer { request: Self::CODE, what };
        let unique_key = message.unique_key().or_else(|| command.ext.get("msgId"));
        Ok(Self {
            half_queue_offset: answer::number(Self::CODE, command, "tranStateTableOffset")?,
            commit_log_offset: answer::number(Self::CODE, command, "commitLogOffset")?,
            unique_key: unique_key.ok_or_else(|| missing("UNIQ_KEY"))?.to_owned(),
            transaction_id: command.ext.get("transactionId").map(str::to_owned),
            producer_group: message.producer_group().ok_or_else(|| missing("PGROUP"))?.to_owned(),
            broker_name: command.ext.get("bname").map(str::to_owned),
            message,
        })
    }

    /// The topic that the message is for. 5.x names the half topic in its header; the message itself has the real one.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.message.properties.get(name::REAL_TOPIC).unwrap_or(&self.message.topic)
    }

    /// How often it was asked before, if the broker says so.
    #[must_use]
    pub fn check_times(&self) -> Option<u32> {
        self.message.properties.get(name::TRANSACTION_CHECK_TIMES)?.parse().ok()
    }

    /// The answer to it.
    #[must_use]
    pub fn end(&self, resolution: Resolution) -> EndTransaction {
        EndTransaction {
            producer_group: self.producer_group.clone(),
            half_queue_offset: self.half_queue_offset,
            commit_log_offset: self.commit_log_offset,
            resolution,
            unique_key: self.unique_key.clone(),
            transaction_id: self.transaction_id.clone(),
            from_check: true,
            topic: Some(self.topic().to_owned()),
            broker_name: self.broker_name.clone(),
        }
    }
}
