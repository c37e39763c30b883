//! UPDATE_AND_CREATE_SUBSCRIPTIONGROUP. Source: `SubscriptionGroupConfig` of RocketMQ 4.9.4.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::check_group;

/// Creates a consumer group on a broker, or changes it. Send it to every master. With ACL it needs an administrator's
/// account. By default brokers create groups by themselves (`autoCreateSubscriptionGroup`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateSubscriptionGroup {
    /// The group.
    pub group: String,
    /// How often a message is tried again.
    pub retry_max_times: i32,
    /// Every member gets every message, if it asks for that.
    pub consume_broadcast: bool,
}

impl CreateSubscriptionGroup {
    /// A group with Java's defaults: 16 retries.
    #[must_use]
    pub fn new(group: impl Into<String>) -> Self {
        Self { group: group.into(), retry_max_times: 16, consume_broadcast: true }
    }
}

impl Request for CreateSubscriptionGroup {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::UpdateAndCreateSubscriptionGroup;

    /// # Errors
    /// [`crate::message::MessageError::Group`].
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.group)?;
        let body = serde_json::json!({
            "groupName": self.group,
            "consumeEnable": true,
            "consumeFromMinEnable": true,
            "consumeBroadcastEnable": self.consume_broadcast,
            "retryQueueNums": 1,
            "retryMaxTimes": self.retry_max_times,
            "brokerId": 0,
            "whichBrokerWhenConsumeSlowly": 1,
            "notifyConsumerIdsChangedEnable": true,
        });
        Ok(Command::request(Self::CODE).with_body(body.to_string()))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}
