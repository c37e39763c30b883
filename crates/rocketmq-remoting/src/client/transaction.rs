//! Half messages, their ends, and the broker's questions about them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::registry::{Registry, UNREGISTER_LIMIT};
use super::{Access, Client, Producer, SendOptions, Sent};
use crate::code::RequestCode;
use crate::connection::{Address, Push, PushQueue, describe};
use crate::error::Error;
use crate::message::{Message, MessageError, MessageQueue};
use crate::request::{CheckTransactionState, Delivery, EndTransaction, Request, Resolution, UnregisterClient};

/// Sends half messages and ends them; brokers ask it about those that were not ended.
///
/// **Every member of a producer group must be able to answer for every message of the group**: the broker asks any one
/// of them. From [`Self::start`] on this one is registered with every master of the cluster, over the connections that
/// it sends on, and again after each reconnect; so it is asked also about messages that others sent, or that it sent
/// before it was restarted.
///
/// A broker stores a message again for each commit of its half. So nothing here commits twice by itself; who tries
/// again accepts a duplicate with the same unique key.
#[derive(Debug)]
pub struct TransactionalProducer {
    producer: Producer,
    registry: Arc<Registry>,
    keeper: JoinHandle<()>,
}

/// A half message that the broker has stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// The answer to its sending. Its status tells how safe the half is, as for any message.
    pub sent: Sent,
    end: EndTransaction,
}

/// Questions of brokers about half messages. Read it all the time: what finds it full is dropped (and counted), and
/// comes again in the broker's next round.
#[derive(Debug)]
pub struct CheckBacks {
    pushes: PushQueue,
}

/// A broker's question what became of a half message.
#[derive(Debug)]
pub struct CheckBack {
    /// The question, with the message.
    pub check: CheckTransactionState,
    push: Push,
}

impl TransactionalProducer {
    /// Registers the group with every master of the cluster, and waits until each has accepted it or failed, within
    /// `limit`; one that accepted is enough. Masters that fail, or come later, are registered as soon as they can be.
    ///
    /// A client can have one of these at a time.
    ///
    /// # Errors
    /// Why no master accepted; [`Error::Route`] if the name servers know of none; [`Error::Closed`] if the client has
    /// another one already.
    pub async fn start(client: &Client, group: &str, limit: Duration) -> Result<(Self, CheckBacks), Error> {
        let deadline = Instant::now() + limit;
        let producer = Producer::new(client, group)?;
        let options = client.options();
        let pushes = client
            .pushes()
            .subscribe(RequestCode::CheckTransactionState, options.max_check_backs, options.max_check_back_bytes)
            .ok_or(Error::Closed)?;
        client.inner.groups.add(group);
        let registry = Arc::new(Registry::new(client));
        // From here on dropping it takes the group back.
        let keeper = tokio::spawn(registry.clone().keep(options.connection.heartbeat_every));
        let this = Self { producer, registry, keeper };
        this.registry.first_round(deadline).await?;
        Ok((this, CheckBacks { pushes }))
    }

    /// The producer that it sends with.
    #[must_use]
    pub const fn producer(&self) -> &Producer {
        &self.producer
    }

    /// The masters that it is registered with at the moment.
    #[must_use]
    pub fn registered_with(&self) -> Vec<Address> {
        self.registry.connected()
    }

    /// Sends a half message: stored, and delivered only when it is committed. All halfs of a broker go through one of
    /// its queues, whatever `queue` is.
    ///
    /// # Errors
    /// As [`Producer::send`]; [`Error::Message`] also without a unique key, and for a delayed message.
    pub async fn half(&self, queue: &MessageQueue, message: &Message, options: &SendOptions) -> Result<Half, Error> {
        let unique_key = message.unique_key().ok_or(MessageError::NoUniqueKey)?.to_owned();
        let sent = self.producer.send_as(queue, message, options, Delivery::Half).await?;
        let Some(id) = sent.answer.offset_ids.first() else {
            return Err(Error::Answer { request: RequestCode::SendMessageV2, what: "msgId" });
        };
        let end = EndTransaction {
            producer_group: self.producer.group().to_owned(),
            half_queue_offset: sent.answer.queue_offset,
            commit_log_offset: id.commit_log_offset,
            resolution: Resolution::Unknown,
            unique_key,
            transaction_id: sent.answer.transaction_id.clone(),
            from_check: false,
            topic: Some(queue.topic.clone()),
            broker_name: None,
        };
        Ok(Half { sent, end })
    }

    /// Commits or rolls back, and waits for the broker's yes. To a commit that means: appended on the master. For
    /// [`Resolution::Unknown`], which brokers never answer, it means that the request was queued.
    ///
    /// `limit` covers all of it; default [`super::ClientOptions::request_limit`].
    ///
    /// # Errors
    /// As [`Producer::send`]. With `ILLEGAL_OPERATION` (5.1.1 and later) the broker waits for the answer to its check
    /// instead; with `SLAVE_NOT_AVAILABLE` the master is gone. After an error that [`Error::may_have_been_done`] a
    /// second commit can deliver the message twice; the broker will ask by itself.
    pub async fn end(&self, half: &Half, resolution: Resolution, limit: Option<Duration>) -> Result<(), Error> {
        let queue = &half.sent.queue;
        let limit = limit.unwrap_or(self.producer.client().options().request_limit);
        let mut end = half.end.clone();
        end.resolution = resolution;
        if resolution == Resolution::Unknown {
            let channel = self.producer.client().master_of(queue).await?;
            return channel.connection(limit).await?.tell(end.command()?);
        }
        let make = |connection: &_| EndTransaction { broker_name: Client::broker_name_for(connection, queue), ..end };
        self.producer.client().ask_queue(queue, Access::Write, limit, None, make).await.map(drop)
    }

    /// Tells all brokers that this member leaves the group, so that they ask others at once. Do it when nothing is
    /// pending any more. Brokers that do not answer within a second find out by themselves.
    pub async fn stop(self) {
        self.leave().await;
    }

    /// As [`Self::stop`], for one that others still use: what they began they can end, and it is asked no more.
    pub async fn leave(&self) {
        self.keeper.abort();
        self.producer.client().inner.groups.remove(self.producer.group());
        let mut leaving = JoinSet::new();
        for channel in self.registry.channels().into_iter().filter(|c| c.status().connected) {
            let leave = UnregisterClient {
                client_id: self.producer.client().client_id().to_owned(),
                producer_group: Some(self.producer.group().to_owned()),
                consumer_group: None,
            };
            leaving.spawn(async move {
                if let Err(error) = channel.request(&leave, UNREGISTER_LIMIT).await {
                    tracing::debug!(address = %channel.address(), error = describe(&error), "not unregistered");
                }
            });
        }
        leaving.join_all().await;
    }
}

impl Drop for TransactionalProducer {
    fn drop(&mut self) {
        self.keeper.abort();
        self.producer.client().inner.groups.remove(self.producer.group());
        self.registry.release();
    }
}

impl Half {
    /// The half's unique key.
    #[must_use]
    pub fn unique_key(&self) -> &str {
        &self.end.unique_key
    }
}

impl CheckBacks {
    /// The next question. One that cannot be read is logged and left out. `None` when the client is gone.
    pub async fn next(&mut self) -> Option<CheckBack> {
        loop {
            let push = self.pushes.next().await?;
            match CheckTransactionState::read(&push.command) {
                Ok(check) => return Some(CheckBack { check, push }),
                Err(error) => {
                    let address = push.connection.address();
                    tracing::warn!(%address, error = describe(&error), "a check-back that cannot be read");
                }
            }
        }
    }
}

impl CheckBack {
    /// Answers on the connection that the question came on, and waits for the broker's yes. [`Resolution::Unknown`] is
    /// one-way: the broker asks again in its next round, as it does without any answer.
    ///
    /// # Errors
    /// As [`crate::connection::Connection::request`]. The broker asks again.
    pub async fn answer(&self, resolution: Resolution, limit: Duration) -> Result<(), Error> {
        let end = self.check.end(resolution);
        if resolution == Resolution::Unknown {
            return self.push.connection.tell(end.command()?);
        }
        self.push.connection.request(&end, limit).await.map(drop)
    }

    /// The master that asks.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.push.connection.address()
    }
}
