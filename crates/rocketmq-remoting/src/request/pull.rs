//! PULL_MESSAGE. Source: `PullMessageRequestHeader`, `PullMessageResponseHeader`, `PullAPIWrapper` of RocketMQ 4.9.4 and
//! 5.3.3.

use std::time::Duration;

use super::{Request, answer};
use crate::code::{RequestCode, ResponseCode};
use crate::command::Command;
use crate::error::Error;
use crate::message::{StoredMessage, check_group, check_topic, sys_flag};

/// Which messages of a topic are wanted: all, or those with one of some tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subscription(Vec<String>);

impl Subscription {
    /// All messages.
    #[must_use]
    pub const fn all() -> Self {
        Self(Vec::new())
    }

    /// Those with one of these tags; all if there is none.
    pub fn of_tags<T: Into<String>>(tags: impl IntoIterator<Item = T>) -> Self {
        Self(tags.into_iter().map(Into::into).filter(|tag: &String| !tag.is_empty()).collect())
    }

    /// The wanted tags; empty for all.
    #[must_use]
    pub fn tags(&self) -> &[String] {
        &self.0
    }

    /// `*`, or `TagA || TagB`.
    #[must_use]
    pub fn expression(&self) -> String {
        if self.0.is_empty() { "*".to_owned() } else { self.0.join(" || ") }
    }

    /// True for a message that is wanted. Brokers compare only hashes of tags, so their choice has to be checked.
    #[must_use]
    pub fn wants(&self, message: &StoredMessage) -> bool {
        self.0.is_empty() || message.tag().is_some_and(|tag| self.0.iter().any(|wanted| wanted == tag))
    }
}

/// Reads messages of one queue from an offset on. The subscription travels with it, so that the group need not be
/// registered by a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// The consumer's group.
    pub group: String,
    /// The topic.
    pub topic: String,
    /// The queue, from 0.
    pub queue_id: i32,
    /// The first offset that is wanted.
    pub offset: i64,
    /// The most messages, of those that are wanted. Brokers have lower limits of their own (32 by default from disk).
    pub max_messages: i32,
    /// Which messages are wanted.
    pub subscription: Subscription,
    /// How long the broker holds the answer back while there is nothing new; zero: not at all. The request's own limit
    /// has to be longer.
    pub suspend: Duration,
    /// Also moves the group to this offset. Brokers that are slaves ignore it.
    pub commit_offset: Option<i64>,
    /// The most bytes; 5.x.
    pub max_bytes: Option<i32>,
    /// The broker's name, for proxies of 5.x.
    pub broker_name: Option<String>,
}

impl Request for Pull {
    type Answer = PullAnswer;
    const CODE: RequestCode = RequestCode::PullMessage;

    /// # Errors
    /// [`crate::message::MessageError::Group`], [`crate::message::MessageError::Topic`].
    fn command(&self) -> Result<Command, Error> {
        check_group(&self.group)?;
        check_topic(&self.topic)?;
        let mut flags = sys_flag::PULL_SUBSCRIPTION;
        if !self.suspend.is_zero() {
            flags |= sys_flag::PULL_SUSPEND;
        }
        if self.commit_offset.is_some() {
            flags |= sys_flag::PULL_COMMIT_OFFSET;
        }
        Ok(Command::request(Self::CODE)
            .with("consumerGroup", &self.group)
            .with("topic", &self.topic)
            .with("queueId", self.queue_id)
            .with("queueOffset", self.offset)
            .with("maxMsgNums", self.max_messages)
            .with("sysFlag", flags)
            .with("commitOffset", self.commit_offset.unwrap_or(0))
            .with("suspendTimeoutMillis", self.suspend.as_millis())
            .with("subscription", self.subscription.expression())
            .with("subVersion", 0)
            .with("expressionType", "TAG")
            .with_optional("maxMsgBytes", self.max_bytes)
            .with_optional("bname", self.broker_name.as_ref()))
    }

    fn answer(&self, answer: Command) -> Result<PullAnswer, Error> {
        let status = match answer.response_code() {
            ResponseCode::Success => PullStatus::Found,
            ResponseCode::PullNotFound => PullStatus::NotFound,
            ResponseCode::PullRetryImmediately => PullStatus::RetryImmediately,
            ResponseCode::PullOffsetMoved => PullStatus::OffsetMoved,
            _ => return Err(answer::refused(Self::CODE, &answer)),
        };
        let mut messages = Vec::new();
        if status == PullStatus::Found {
            messages = StoredMessage::read_all(answer.body.clone())
                .map_err(|source| Error::Stored { request: Self::CODE, source })?;
            messages.retain(|message| self.subscription.wants(message));
        }
        Ok(PullAnswer {
            status,
            next_offset: answer::number(Self::CODE, &answer, "nextBeginOffset")?,
            min_offset: answer::number(Self::CODE, &answer, "minOffset")?,
            max_offset: answer::number(Self::CODE, &answer, "maxOffset")?,
            suggested_broker_id: answer::number(Self::CODE, &answer, "suggestWhichBrokerId")?,
            messages,
            remark: answer.remark,
        })
    }
}

/// What a pull met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PullStatus {
    /// Messages, though perhaps none with a wanted tag.
    Found,
    /// Nothing new within the time.
    NotFound,
    /// Nothing that matches so far: go on from the next offset.
    RetryImmediately,
    /// The offset is not in the queue: go on from the next offset, and know that something may be missing.
    OffsetMoved,
}

/// The answer to a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullAnswer {
    /// What it met.
    pub status: PullStatus,
    /// Where the next pull starts.
    pub next_offset: i64,
    /// The oldest message that the queue still has.
    pub min_offset: i64,
    /// The offset that the queue's next message will have.
    pub max_offset: i64,
    /// The id of the broker (master or slave) that should be asked next.
    pub suggested_broker_id: i64,
    /// The messages. Their bodies are not looked at yet, so one that is damaged does not hide the others.
    pub messages: Vec<StoredMessage>,
    /// The broker's explanation, if it gave one.
    pub remark: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Pull {
        Pull {
            group: "group".into(),
            topic: "Orders".into(),
            queue_id: 1,
            offset: 7,
            max_messages: 32,
            subscription: Subscription::of_tags(["a", "b"]),
            suspend: Duration::from_secs(15),
            commit_offset: None,
            max_bytes: None,
            broker_name: None,
        }
    }

    #[test]
    fn flags_say_what_the_request_carries() {
        let command = request().command().unwrap();
        assert_eq!(command.ext.get("sysFlag"), Some("6"));
        assert_eq!(command.ext.get("subscription"), Some("a || b"));
        assert_eq!(command.ext.get("suspendTimeoutMillis"), Some("15000"));
        let at_once =
            Pull { suspend: Duration::ZERO, commit_offset: Some(3), subscription: Subscription::all(), ..request() };
        let command = at_once.command().unwrap();
        assert_eq!((command.ext.get("sysFlag"), command.ext.get("commitOffset")), (Some("5"), Some("3")));
        assert_eq!(command.ext.get("subscription"), Some("*"));
    }

    #[test]
    fn only_four_codes_are_results() {
        let answer = |code| {
            Command::answer_to(&request().command().unwrap(), code, Some("why".into()))
                .with("nextBeginOffset", 9)
                .with("minOffset", 2)
                .with("maxOffset", 10)
                .with("suggestWhichBrokerId", 1)
        };
        let moved = request().answer(answer(ResponseCode::PullOffsetMoved)).unwrap();
        assert_eq!((moved.status, moved.next_offset, moved.min_offset), (PullStatus::OffsetMoved, 9, 2));
        assert_eq!((moved.max_offset, moved.suggested_broker_id), (10, 1));
        let refused = request().answer(answer(ResponseCode::SubscriptionNotExist)).unwrap_err();
        assert_eq!(refused.refused_with(), Some(ResponseCode::SubscriptionNotExist));
        let broken = answer(ResponseCode::Success).with_body("xyz");
        assert!(matches!(request().answer(broken), Err(Error::Stored { .. })));
    }
}
