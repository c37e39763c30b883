//! SEARCH_OFFSET_BY_TIMESTAMP. Source: `SearchOffsetRequestHeader`, `SearchOffsetResponseHeader` of RocketMQ 4.9.4.

use super::{OffsetAnswer, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::check_topic;

/// The first offset that was stored at or after a time; the end of the queue if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchOffset {
    /// The topic.
    pub topic: String,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The time, in ms since 1970, by the clock of the broker.
    pub at_ms: i64,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

impl Request for SearchOffset {
    type Answer = OffsetAnswer;
    const CODE: RequestCode = RequestCode::SearchOffsetByTimestamp;

    /// # Errors
    /// [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        check_topic(&self.topic)?;
        Ok(Command::request(Self::CODE)
            .with("topic", &self.topic)
            .with("queueId", self.queue_id)
            .with("timestamp", self.at_ms)
            .with_optional("bname", self.broker_name.as_ref()))
    }

    fn answer(&self, answer: Command) -> Result<OffsetAnswer, Error> {
        answer::offset(Self::CODE, answer)
    }
}
