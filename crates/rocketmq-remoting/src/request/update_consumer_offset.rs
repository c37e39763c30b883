//! UPDATE_CONSUMER_OFFSET. Source: `UpdateConsumerOffsetRequestHeader` of RocketMQ 4.9.4.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::{check_group, check_topic};

/// Moves a consumer group in a queue. Brokers keep it in memory and write it every 5 s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateConsumerOffset {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The first offset that is not consumed.
    pub offset: i64,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

impl Request for UpdateConsumerOffset {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::UpdateConsumerOffset;

    /// # Errors
    /// [`crate::message::MessageError::Group`], [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.group)?;
        check_topic(&self.topic)?;
        Ok(Command::request(Self::CODE)
            .with("consumerGroup", &self.group)
            .with("topic", &self.topic)
            .with("queueId", self.queue_id)
            .with("commitOffset", self.offset)
            .with_optional("bname", self.broker_name.as_ref()))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}
