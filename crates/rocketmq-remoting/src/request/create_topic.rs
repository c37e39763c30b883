//! UPDATE_AND_CREATE_TOPIC. Source: `CreateTopicRequestHeader`, `PermName` of RocketMQ 4.9.4 and 5.3.3.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::check_topic_for_sending;

/// Bit of a permission: messages can be read.
pub const PERM_READ: i32 = 4;
/// Bit of a permission: messages can be written.
pub const PERM_WRITE: i32 = 2;

/// Creates a topic on a broker, or changes it. Send it to every master that shall have it; name servers know it some
/// milliseconds after the answer. With ACL it needs an administrator's account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopic {
    /// The topic.
    pub topic: String,
    /// Queues that can be read.
    pub read_queues: u16,
    /// Queues that can be written.
    pub write_queues: u16,
    /// What is allowed: [`PERM_READ`] and [`PERM_WRITE`].
    pub perm: i32,
    /// Marks an ordered topic.
    pub order: bool,
    /// Attributes of 5.x, as `+message.type=FIFO`; empty for none.
    pub attributes: String,
}

impl CreateTopic {
    /// A topic that can be read and written.
    #[must_use]
    pub fn new(topic: impl Into<String>, queues: u16) -> Self {
        Self {
            topic: topic.into(),
            read_queues: queues,
            write_queues: queues,
            perm: PERM_READ | PERM_WRITE,
            order: false,
            attributes: String::new(),
        }
    }
}

impl Request for CreateTopic {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::UpdateAndCreateTopic;

    /// # Errors
    /// [`crate::message::MessageError::Topic`], [`crate::message::MessageError::SystemTopic`].
    fn command(&self) -> Result<Command, Error> {
        check_topic_for_sending(&self.topic)?;
        Ok(Command::request(Self::CODE)
            .with("topic", &self.topic)
            .with("defaultTopic", "TBW102") // mandatory, not looked at
            .with("readQueueNums", self.read_queues)
            .with("writeQueueNums", self.write_queues)
            .with("perm", self.perm)
            .with("topicFilterType", "SINGLE_TAG")
            .with("topicSysFlag", 0)
            .with("order", self.order)
            .with("attributes", &self.attributes))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}
