//! Sending.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Access, Client, TopicRoute};
use crate::connection::{Address, Connection};
use crate::error::Error;
use crate::message::{Batch, Compression, Message, MessageQueue, check_group, queue_by_hash};
use crate::request::{Delivery, SendAnswer, SendBatch, SendMessage};

/// Sends messages and batches, each once: a result or a typed error, and the caller decides what then. Cheap to clone.
///
/// The group is not registered with brokers: it need not be, and a registered one would be asked about half messages.
///
/// # Order
/// A queue keeps the order in which the broker stores, and a broker handles one connection's requests with several
/// threads. **More than one send in flight to one queue reorders** (165 inversions in 4,000 at two in flight, 4.9.4; see
/// rocketmq.md F.1). For order: wait for each answer before the next send to that queue, and put many messages into a
/// batch, which keeps its inner order. Different queues do not disturb each other.
#[derive(Clone, Debug)]
pub struct Producer {
    client: Client,
    group: Arc<str>,
}

/// How to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOptions {
    /// Limit of all of it: route, connection, place in the window, answer. Default
    /// [`super::ClientOptions::request_limit`].
    pub limit: Option<Duration>,
    /// Only on the connection with this number ([`Sent::generation`]); with another one it fails, unsent, with
    /// [`Error::Reconnected`]. So nothing is sent over a reconnect before the caller has looked at what the broker
    /// still has.
    pub generation: Option<u64>,
    /// Compresses a single message's body if that makes it smaller. Batches are never compressed.
    pub compression: Option<Compression>,
}

/// What was stored, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The broker's words: status, ids, offsets. **Each status means that the message is stored**; look at
    /// [`SendAnswer::status`] for how safe it is.
    pub answer: SendAnswer,
    /// The queue.
    pub queue: MessageQueue,
    /// The master that answered.
    pub address: Address,
    /// The number of the connection that it was sent on.
    pub generation: u64,
}

impl Producer {
    /// A producer of this group.
    ///
    /// # Errors
    /// [`Error::Message`] if that is no name of a group.
    pub fn new(client: &Client, group: &str) -> Result<Self, Error> {
        check_group(group)?;
        Ok(Self { client: client.clone(), group: group.into() })
    }

    /// Its client.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Its group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Where the topic's queues are; [`TopicRoute::queues`] lists those that can be written to.
    ///
    /// # Errors
    /// As [`Client::route`].
    pub async fn route(&self, topic: &str) -> Result<Arc<TopicRoute>, Error> {
        self.client.route(topic).await
    }

    /// The queue that Java's `SelectMessageQueueByHash` chooses for a key that is a `String`, among the queues that the
    /// route has now. When a broker goes, the list shrinks and keys move: whoever needs order over that pins the list.
    ///
    /// # Errors
    /// As [`Client::route`]; [`Error::Route`] if no queue can be written to.
    pub async fn queue_for(&self, topic: &str, key: &str) -> Result<MessageQueue, Error> {
        let route = self.client.route(topic).await?;
        let queues = route.queues();
        let queue = queue_by_hash(key, queues.len()).and_then(|at| queues.get(at));
        queue.cloned().ok_or_else(|| Error::Route { topic: topic.to_owned(), problem: "no queue can be written to" })
    }

    /// Sends one message to a queue.
    ///
    /// # Errors
    /// [`Error::Message`], [`Error::Route`], [`Error::Connect`], [`Error::TimedOut`], [`Error::ConnectionLost`],
    /// [`Error::Refused`], [`Error::Reconnected`]; [`Error::may_have_been_done`] tells if it may have been stored.
    pub async fn send(&self, queue: &MessageQueue, message: &Message, options: &SendOptions) -> Result<Sent, Error> {
        self.send_as(queue, message, options, Delivery::Plain).await
    }

    pub(super) async fn send_as(
        &self,
        queue: &MessageQueue,
        message: &Message,
        options: &SendOptions,
        delivery: Delivery,
    ) -> Result<Sent, Error> {
        same_topic(queue, message.topic())?;
        let make = |connection: &Connection| SendMessage {
            producer_group: self.group.to_string(),
            message: message.clone(),
            queue_id: queue.queue_id,
            born_at_ms: now_ms(),
            delivery,
            compression: options.compression,
            broker_name: Client::broker_name_for(connection, queue),
        };
        let (limit, generation) = (self.limit(options), options.generation);
        let (answer, connection) = self.client.ask_queue(queue, Access::Write, limit, generation, make).await?;
        Ok(Sent::new(answer, queue, &connection))
    }

    /// Sends a batch to a queue. It is stored in one piece or not at all.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub async fn send_batch(&self, queue: &MessageQueue, batch: &Batch, options: &SendOptions) -> Result<Sent, Error> {
        same_topic(queue, batch.topic())?;
        let make = |connection: &Connection| SendBatch {
            producer_group: self.group.to_string(),
            batch: batch.clone(),
            queue_id: queue.queue_id,
            born_at_ms: now_ms(),
            broker_name: Client::broker_name_for(connection, queue),
        };
        let (limit, generation) = (self.limit(options), options.generation);
        let (answer, connection) = self.client.ask_queue(queue, Access::Write, limit, generation, make).await?;
        Ok(Sent::new(answer, queue, &connection))
    }

    pub(super) fn limit(&self, options: &SendOptions) -> Duration {
        options.limit.unwrap_or(self.client.options().request_limit)
    }
}

impl Sent {
    fn new(answer: SendAnswer, queue: &MessageQueue, connection: &Connection) -> Self {
        Self {
            answer,
            queue: queue.clone(),
            address: connection.address().clone(),
            generation: connection.generation(),
        }
    }
}

fn same_topic(queue: &MessageQueue, topic: &str) -> Result<(), Error> {
    if queue.topic == topic {
        return Ok(());
    }
    Err(Error::Route { topic: topic.to_owned(), problem: "the queue belongs to another topic" })
}

pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
