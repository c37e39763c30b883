//! GET_MAX_OFFSET. Source: `GetMaxOffsetRequestHeader`, `GetMaxOffsetResponseHeader` of RocketMQ 4.9.4.

use super::{OffsetAnswer, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::check_topic;

/// The offset that the next message of a queue will have. With ACL 2.0 it needs more rights than sending and reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetMaxOffset {
    /// The topic.
    pub topic: String,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

impl Request for GetMaxOffset {
    type Answer = OffsetAnswer;
    const CODE: RequestCode = RequestCode::GetMaxOffset;

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
