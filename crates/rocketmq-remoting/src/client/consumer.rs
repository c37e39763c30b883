//! Reading: queues that the caller assigns. [`super::GroupMember`] tells which are whose.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Access, Client, TopicRoute};
use crate::connection::{Address, Backoff, Connection, describe};
use crate::error::Error;
use crate::message::{MessageQueue, StoredMessage, check_group};
use crate::request::{
    GetMaxOffset, GetMinOffset, Pull, PullAnswer, PullStatus, QueryConsumerOffset, SearchOffset, Subscription,
    UpdateConsumerOffset,
};

/// How often a broker looks whether the time of a pull that it holds is over. Source: `PullRequestHoldService.run` of
/// RocketMQ 4.9.4 and 5.3.3.
const HELD_LOOK: Duration = Duration::from_secs(5);

/// Reads queues for a group and keeps the group's offsets. Which member reads which queue is the caller's business: it
/// does not register with brokers, and they know of no members. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Consumer {
    client: Client,
    group: Arc<str>,
}

/// How to pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullOptions {
    /// Which messages. Default all.
    pub subscription: Subscription,
    /// The most messages of one answer. Default 32. Brokers have limits of their own.
    pub max_messages: u16,
    /// How long the broker holds an answer back while there is nothing new. Default 15 s, as Java has it; zero asks for
    /// what is there. The limit of the whole request is this plus [`super::ClientOptions::request_limit`] and 5 s, since
    /// that is how often brokers look at what they hold (`PullRequestHoldService`).
    pub suspend: Duration,
}

impl Default for PullOptions {
    fn default() -> Self {
        Self { subscription: Subscription::all(), max_messages: 32, suspend: Duration::from_secs(15) }
    }
}

/// The answer to a pull, and who gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    /// What was found.
    pub answer: PullAnswer,
    /// The broker.
    pub address: Address,
    /// The number of the connection.
    pub generation: u64,
}

/// Where to begin in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Start {
    /// Where the group stands; at the oldest message if the broker does not know the group.
    CommittedOrFirst,
    /// Where the group stands; after the newest message if the broker does not know the group.
    CommittedOrLast,
    /// At the oldest message.
    First,
    /// After the newest message.
    Last,
    /// At the message stored at this time, in ms since 1970 by the broker's clock; see [`Client::offset_at`].
    AtMs(i64),
    /// At this offset.
    Offset(i64),
}

impl Consumer {
    /// A consumer of this group.
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

    /// Where the topic's queues are; [`TopicRoute::read_queues`] lists those that can be read.
    ///
    /// # Errors
    /// As [`Client::route`].
    pub async fn route(&self, topic: &str) -> Result<Arc<TopicRoute>, Error> {
        self.client.route(topic).await
    }

    /// Reads messages from an offset on. Nothing new is an answer too: look at [`PullAnswer::status`].
    ///
    /// # Errors
    /// As [`super::Producer::send`]; [`Error::Stored`] if a message cannot be read.
    pub async fn pull(&self, queue: &MessageQueue, offset: i64, options: &PullOptions) -> Result<Pulled, Error> {
        self.pull_with(Access::Read, queue, offset, options).await
    }

    /// As [`Self::pull`], never from a slave: one that is behind takes an offset that it does not have yet for one that
    /// is outside of the queue.
    ///
    /// # Errors
    /// As [`Self::pull`]; [`Error::Route`] while there is no master.
    pub async fn pull_from_master(
        &self,
        queue: &MessageQueue,
        offset: i64,
        options: &PullOptions,
    ) -> Result<Pulled, Error> {
        self.pull_with(Access::Write, queue, offset, options).await
    }

    async fn pull_with(
        &self,
        access: Access,
        queue: &MessageQueue,
        offset: i64,
        options: &PullOptions,
    ) -> Result<Pulled, Error> {
        let held = if options.suspend.is_zero() { Duration::ZERO } else { options.suspend + HELD_LOOK };
        let limit = held + self.client.options().request_limit;
        let make = |connection: &Connection| Pull {
            group: self.group.to_string(),
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            offset,
            max_messages: options.max_messages.into(),
            subscription: options.subscription.clone(),
            suspend: options.suspend,
            commit_offset: None,
            max_bytes: None,
            broker_name: Client::broker_name_for(connection, queue),
        };
        let (answer, connection) = self.client.ask_queue(queue, access, limit, None, make).await?;
        Ok(Pulled { answer, address: connection.address().clone(), generation: connection.generation() })
    }

    /// Where the group stands in a queue; `None` if the broker does not know it there. While a queue is still whole and
    /// in memory, brokers say 0 instead.
    ///
    /// # Errors
    /// As [`super::Producer::send`].
    pub async fn committed(&self, queue: &MessageQueue) -> Result<Option<i64>, Error> {
        let make = |connection: &Connection| QueryConsumerOffset {
            group: self.group.to_string(),
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            broker_name: Client::broker_name_for(connection, queue),
        };
        let limit = self.client.options().request_limit;
        let (answer, _) = self.client.ask_queue(queue, Access::Read, limit, None, make).await?;
        Ok(answer.offset)
    }

    /// Moves the group: `offset` is the first one that it has not consumed. The broker writes it to its disk within 5 s.
    ///
    /// # Errors
    /// As [`super::Producer::send`].
    pub async fn commit(&self, queue: &MessageQueue, offset: i64) -> Result<(), Error> {
        let make = |connection: &Connection| UpdateConsumerOffset {
            group: self.group.to_string(),
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            offset,
            broker_name: Client::broker_name_for(connection, queue),
        };
        let limit = self.client.options().request_limit;
        self.client.ask_queue(queue, Access::Write, limit, None, make).await.map(drop)
    }

    /// The offset at which to begin.
    ///
    /// # Errors
    /// As [`super::Producer::send`].
    pub async fn offset_of(&self, queue: &MessageQueue, start: Start) -> Result<i64, Error> {
        match start {
            Start::Offset(offset) => Ok(offset),
            Start::First => self.client.min_offset(queue).await,
            Start::Last => self.client.max_offset(queue).await,
            Start::AtMs(at_ms) => self.client.offset_at(queue, at_ms).await,
            Start::CommittedOrFirst => match self.committed(queue).await? {
                Some(offset) => Ok(offset),
                None => self.client.min_offset(queue).await,
            },
            Start::CommittedOrLast => match self.committed(queue).await? {
                Some(offset) => Ok(offset),
                None => self.client.max_offset(queue).await,
            },
        }
    }

    /// Reads a queue from a place on, one pull at a time.
    ///
    /// # Errors
    /// As [`Self::offset_of`].
    pub async fn read(&self, queue: &MessageQueue, start: Start, options: PullOptions) -> Result<QueueReader, Error> {
        let offset = self.offset_of(queue, start).await?;
        Ok(QueueReader { consumer: self.clone(), queue: queue.clone(), offset, options })
    }

    /// Reads several queues at once, each from its place on. What was read waits in a queue of `waiting` pulls at most;
    /// failed pulls are tried again for ever, with growing pauses of up to 5 s. Dropping the result ends it.
    ///
    /// # Errors
    /// As [`Self::offset_of`], for any of them.
    pub async fn assign(
        &self,
        queues: &[MessageQueue],
        start: Start,
        options: PullOptions,
        waiting: usize,
    ) -> Result<Assignment, Error> {
        let (sender, receiver) = mpsc::channel(waiting.max(1));
        let mut readers = JoinSet::new();
        for queue in queues {
            let reader = self.read(queue, start, options.clone()).await?;
            readers.spawn(read_for_ever(reader, sender.clone()));
        }
        Ok(Assignment { receiver, _readers: readers })
    }
}

/// A place in a queue, which moves on with what is read.
#[derive(Debug)]
pub struct QueueReader {
    consumer: Consumer,
    queue: MessageQueue,
    offset: i64,
    options: PullOptions,
}

/// What one pull read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The queue.
    pub queue: MessageQueue,
    /// Messages in their order; empty if there was nothing new that is wanted.
    pub messages: Vec<StoredMessage>,
    /// The offset after them: what to commit when they are consumed.
    pub next_offset: i64,
    /// The offset that was asked for, if the queue does not have it: it was deleted, or never was. Reading went on at
    /// [`Self::next_offset`], and messages may be missing in between.
    pub moved_from: Option<i64>,
}

impl QueueReader {
    /// One pull: messages, or nothing after [`PullOptions::suspend`]. After an error the place is the same, so that it
    /// can be called again.
    ///
    /// # Errors
    /// As [`Consumer::pull`].
    pub async fn next(&mut self) -> Result<Read, Error> {
        let from = self.offset;
        let Pulled { answer, .. } = self.consumer.pull(&self.queue, from, &self.options).await?;
        self.offset = answer.next_offset;
        let moved_from = (answer.status == PullStatus::OffsetMoved && answer.next_offset != from).then_some(from);
        if let Some(from) = moved_from {
            tracing::warn!(queue = %self.queue, from, to = self.offset, "the queue does not have the offset");
        }
        Ok(Read { queue: self.queue.clone(), messages: answer.messages, next_offset: self.offset, moved_from })
    }

    /// Where the next pull starts.
    #[must_use]
    pub const fn offset(&self) -> i64 {
        self.offset
    }

    /// Goes on somewhere else.
    ///
    /// # Errors
    /// As [`Consumer::offset_of`].
    pub async fn seek(&mut self, start: Start) -> Result<(), Error> {
        self.offset = self.consumer.offset_of(&self.queue, start).await?;
        Ok(())
    }

    /// Moves the group to where this reader is.
    ///
    /// # Errors
    /// As [`Consumer::commit`].
    pub async fn commit(&self) -> Result<(), Error> {
        self.consumer.commit(&self.queue, self.offset).await
    }
}

/// Several queues that are read at once.
#[derive(Debug)]
pub struct Assignment {
    receiver: mpsc::Receiver<Read>,
    _readers: JoinSet<()>,
}

impl Assignment {
    /// The next messages of any queue, in order for each queue. Never `None` while queues are assigned.
    pub async fn next(&mut self) -> Option<Read> {
        self.receiver.recv().await
    }
}

async fn read_for_ever(mut reader: QueueReader, sender: mpsc::Sender<Read>) {
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        match reader.next().await {
            Ok(read) => {
                backoff.reset();
                let nothing = read.messages.is_empty() && read.moved_from.is_none();
                // Without a long poll, or after an answer to try at once, nothing else would slow this down.
                if nothing && reader.options.suspend.is_zero() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                if !nothing && sender.send(read).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(queue = %reader.queue, error = describe(&error), "pull failed, will be tried again");
                tokio::time::sleep(backoff.pause()).await;
            }
        }
    }
}

impl Client {
    /// The offset that the next message of a queue will have, as far as the broker has indexed what it stored: **it can
    /// lag behind the answers to sends** by some milliseconds (seen on 5.3.3: 96 of 400). Before a broker takes requests
    /// after a start, it has caught up.
    ///
    /// # Errors
    /// As [`super::Producer::send`]. ACL 2.0 asks for more rights than sending and reading.
    pub async fn max_offset(&self, queue: &MessageQueue) -> Result<i64, Error> {
        let make = |connection: &Connection| GetMaxOffset {
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            broker_name: Self::broker_name_for(connection, queue),
        };
        let limit = self.options().request_limit;
        Ok(self.ask_queue(queue, Access::Write, limit, None, make).await?.0.offset)
    }

    /// The offset of the oldest message that a queue still has.
    ///
    /// # Errors
    /// As [`super::Producer::send`].
    pub async fn min_offset(&self, queue: &MessageQueue) -> Result<i64, Error> {
        let make = |connection: &Connection| GetMinOffset {
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            broker_name: Self::broker_name_for(connection, queue),
        };
        let limit = self.options().request_limit;
        Ok(self.ask_queue(queue, Access::Read, limit, None, make).await?.0.offset)
    }

    /// The offset of a message stored at about this time (ms since 1970, by the broker's clock). Without one of that very
    /// millisecond 4.9 gives the nearest, which can be the one before; after the newest it gives the newest
    /// (`ConsumeQueue.getOffsetInQueueByTime`). Who must not miss a message begins a little earlier.
    ///
    /// # Errors
    /// As [`super::Producer::send`].
    pub async fn offset_at(&self, queue: &MessageQueue, at_ms: i64) -> Result<i64, Error> {
        let make = |connection: &Connection| SearchOffset {
            topic: queue.topic.clone(),
            queue_id: queue.queue_id,
            at_ms,
            broker_name: Self::broker_name_for(connection, queue),
        };
        let limit = self.options().request_limit;
        Ok(self.ask_queue(queue, Access::Read, limit, None, make).await?.0.offset)
    }
}
