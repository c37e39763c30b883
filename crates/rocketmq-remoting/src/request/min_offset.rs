//! GET_MIN_OFFSET. Source: `GetMinOffsetRequestHeader`, `GetMinOffsetResponseHeader` of RocketMQ 4.9.4.

use super::{OffsetAnswer, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::check_topic;

/// The offset of the oldest message that a queue still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetMinOffset {
    /// The topic.
    pub topic: String,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

impl Request for GetMinOffset {
    type Answer = OffsetAnswer;
    const CODE: RequestCode = RequestCode::GetMinOffset;

    /// # Errors
    /// [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        check_topic(&self.topic)?;
        Ok(Command::request(Self::CODE)
            .with("topic", &self.topic)
            .with("queueId", self.queue_id)
            .with_optional("bname", self.broker_name.as_ref()))
    }

    fn answer(&self, answer: Command) -> Result<OffsetAnswer, Error> {
        answer::offset(Self::CODE, answer)
    }
}
