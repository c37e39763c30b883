//! DELETE_TOPIC_IN_BROKER and DELETE_TOPIC_IN_NAMESRV. Source: `DeleteTopicRequestHeader`,
//! `DeleteTopicFromNamesrvRequestHeader` of RocketMQ 4.9.4.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::check_topic_for_sending;

/// Deletes a topic and its queues on a broker. Send it to every master, then [`DeleteTopicInNameServer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopicInBroker {
    /// The topic.
    pub topic: String,
}

impl Request for DeleteTopicInBroker {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::DeleteTopicInBroker;

    /// # Errors
    /// [`crate::message::MessageError::Topic`], [`crate::message::MessageError::SystemTopic`].
    fn command(&self) -> Result<Command, Error> {
        check_topic_for_sending(&self.topic)?;
        Ok(Command::request(Self::CODE).with("topic", &self.topic))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}

/// Deletes a topic's route on a name server. Brokers that still have the topic register it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopicInNameServer {
    /// The topic.
    pub topic: String,
}

impl Request for DeleteTopicInNameServer {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::DeleteTopicInNameServer;

    /// # Errors
    /// [`crate::message::MessageError::Topic`], [`crate::message::MessageError::SystemTopic`].
    fn command(&self) -> Result<Command, Error> {
        check_topic_for_sending(&self.topic)?;
        Ok(Command::request(Self::CODE).with("topic", &self.topic))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}
