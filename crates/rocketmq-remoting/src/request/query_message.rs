//! QUERY_MESSAGE. Source: `QueryMessageRequestHeader`, `QueryMessageProcessor`, `MQAdminImpl` of RocketMQ 4.9.4.

use std::collections::HashSet;

use super::{Request, answer};
use crate::code::{RequestCode, ResponseCode};
use crate::command::Command;
use crate::error::Error;
use crate::message::{StoredMessage, check_topic};

/// Searches a topic's messages on one broker by one of their keys, or by their unique key. A message can be found a
/// moment after it was stored, not at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryMessage {
    /// The topic.
    pub topic: String,
    /// The key.
    pub key: String,
    /// The most messages. The broker's own limit is 64.
    pub max_messages: i32,
    /// Stored at this time or later, in ms since 1970.
    pub from_ms: i64,
    /// Stored at this time or earlier, in ms since 1970.
    pub to_ms: i64,
}

impl Request for QueryMessage {
    /// The messages, each once, in no particular order.
    type Answer = Vec<StoredMessage>;
    const CODE: RequestCode = RequestCode::QueryMessage;

    /// # Errors
    /// [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        check_topic(&self.topic)?;
        Ok(Command::request(Self::CODE)
            .with("topic", &self.topic)
            .with("key", &self.key)
            .with("maxNum", self.max_messages)
            .with("beginTimestamp", self.from_ms)
            .with("endTimestamp", self.to_ms))
    }

    fn answer(&self, answer: Command) -> Result<Vec<StoredMessage>, Error> {
        if answer.response_code() == ResponseCode::QueryNotFound {
            return Ok(Vec::new());
        }
        answer::success(Self::CODE, &answer)?;
        let mut messages = StoredMessage::read_all(answer.body.clone())
            .map_err(|source| Error::Stored { request: Self::CODE, source })?;
        // The broker's index knows hashes only, and has a message twice whose unique key is also one of its keys.
        let mut seen = HashSet::new();
        messages.retain(|message| {
            message.topic == self.topic
                && (message.unique_key() == Some(&self.key) || message.keys().any(|key| key == self.key))
                && seen.insert(message.offset_id())
        });
        Ok(messages)
    }
}
