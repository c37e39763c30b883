//! UNREGISTER_CLIENT. Source: `UnregisterClientRequestHeader` of RocketMQ 4.9.4.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;

/// Takes a client out of a producer or consumer group, or one of each. A closed connection does the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnregisterClient {
    /// As in the heartbeat.
    pub client_id: String,
    /// A group as whose member it sent.
    pub producer_group: Option<String>,
    /// A group as whose member it consumed.
    pub consumer_group: Option<String>,
}

impl Request for UnregisterClient {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::UnregisterClient;

    fn command(&self) -> Result<Command, Error> {
        Ok(Command::request(Self::CODE)
            .with("clientID", &self.client_id)
            .with_optional("producerGroup", self.producer_group.as_ref())
            .with_optional("consumerGroup", self.consumer_group.as_ref()))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}
