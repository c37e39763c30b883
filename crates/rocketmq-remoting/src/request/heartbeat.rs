//! HEART_BEAT. Source: `HeartbeatData`, `ProducerData`, `ConsumerData`, `SubscriptionData` of RocketMQ 4.9.4.

use serde_json::{Value, json};

use super::pull::Subscription;
use super::{Request, answer};
use crate::code::RequestCode;
use crate::command::{Command, Version};
use crate::error::Error;
use crate::message::{check_group, check_topic, java_hash};

/// Tells a broker who is at the other end of this connection. Send it on the very connection on which the broker shall
/// ask about half messages, every 30 s: after 120 s of silence the broker closes the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// Unique among all clients of the groups: host, process and a random part.
    pub client_id: String,
    /// Groups as whose member it sends.
    pub producer_groups: Vec<String>,
    /// Groups as whose member it consumes.
    pub consumers: Vec<ConsumerData>,
}

/// A client's part in a consumer group, which pulls and decides itself where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerData {
    /// The group.
    pub group: String,
    /// Topics, and what it wants of each.
    pub subscriptions: Vec<(String, Subscription)>,
    /// A number that grows when the subscription changes: ms since 1970.
    pub sub_version: i64,
}

impl ConsumerData {
    fn json(&self) -> Result<Value, Error> {
        check_group(&self.group)?;
        let subscriptions = self
            .subscriptions
            .iter()
            .map(|(topic, subscription)| {
                check_topic(topic)?;
                Ok(json!({
                    "topic": topic,
                    "subString": subscription.expression(),
                    "tagsSet": subscription.tags(),
                    "codeSet": subscription.tags().iter().map(|tag| java_hash(tag)).collect::<Vec<i32>>(),
                    "subVersion": self.sub_version,
                    "expressionType": "TAG",
                    "classFilterMode": false,
                }))
            })
            .collect::<Result<Vec<Value>, Error>>()?;
        Ok(json!({
            "groupName": self.group,
            "consumeType": "CONSUME_ACTIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
            "unitMode": false,
        }))
    }
}

/// What a broker says to a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// The broker's version: 4.9 and 5.x differ in what they can and mean.
    pub broker_version: Version,
    /// The broker's explanation, if it gave one.
    pub remark: Option<String>,
}

impl Request for Heartbeat {
    type Answer = HeartbeatAnswer;
    const CODE: RequestCode = RequestCode::HeartBeat;

    /// # Errors
    /// [`crate::message::MessageError::Group`], [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        for group in &self.producer_groups {
            check_group(group)?;
        }
        let producers: Vec<Value> = self.producer_groups.iter().map(|group| json!({ "groupName": group })).collect();
        let consumers = self.consumers.iter().map(ConsumerData::json).collect::<Result<Vec<Value>, Error>>()?;
        let body = json!({
            "clientID": self.client_id,
            "producerDataSet": producers,
            "consumerDataSet": consumers,
        });
        Ok(Command::request(Self::CODE).with_body(body.to_string()))
    }

    fn answer(&self, answer: Command) -> Result<HeartbeatAnswer, Error> {
        answer::success(Self::CODE, &answer)?;
        Ok(HeartbeatAnswer { broker_version: answer.version(), remark: answer.remark })
    }
}
