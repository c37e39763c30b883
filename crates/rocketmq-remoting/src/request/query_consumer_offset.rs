//! QUERY_CONSUMER_OFFSET. Source: `QueryConsumerOffsetRequestHeader`, `QueryConsumerOffsetResponseHeader` of RocketMQ
//! 4.9.4.

use super::{Request, answer};
use crate::code::{RequestCode, ResponseCode};
use crate::command::Command;
use crate::error::Error;
use crate::message::{check_group, check_topic};

/// Asks where a consumer group stands in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryConsumerOffset {
    /// The group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

/// Where a consumer group stands in a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerOffset {
    /// The first offset that is not consumed; `None` if the broker does not know the group there. While a queue is still
    /// whole and in memory, brokers say 0 instead.
    pub offset: Option<i64>,
    /// The broker's explanation, if it gave one.
    pub remark: Option<String>,
}

impl Request for QueryConsumerOffset {
    type Answer = ConsumerOffset;
    const CODE: RequestCode = RequestCode::QueryConsumerOffset;

    /// # Errors
    /// [`crate::message::MessageError::Group`], [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.group)?;
        check_topic(&self.topic)?;
        Ok(Command::request(Self::CODE)
            .with("consumerGroup", &self.group)
            .with("topic", &self.topic)
            .with("queueId", self.queue_id)
            .with_optional("bname", self.broker_name.as_ref()))
    }

    fn answer(&self, answer: Command) -> Result<ConsumerOffset, Error> {
        if answer.response_code() == ResponseCode::QueryNotFound {
            return Ok(ConsumerOffset { offset: None, remark: answer.remark });
        }
        let found = answer::offset(Self::CODE, answer)?;
        Ok(ConsumerOffset { offset: Some(found.offset), remark: found.remark })
    }
}
