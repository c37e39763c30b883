//! A client of a cluster: name servers, routes, and what is done with brokers.
//!
//! A [`Client`] holds what all parts share: one [`Channel`] for each address, routes, heartbeats. From it come a
//! [`Producer`], a [`TransactionalProducer`], a [`Consumer`], a [`GroupMember`] and an [`Admin`].
//!
//! No call tries again by itself: it ends with a result or with a typed error, and [`Error::may_have_been_done`] tells
//! whether a second try can do it twice. What a client does by itself is to connect again, to keep connections alive,
//! and to look at the route again after a failure that another route may cure.

mod admin;
mod consumer;
mod identity;
mod member;
mod name_servers;
mod options;
mod producer;
mod registry;
mod route;
mod routes;
mod transaction;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

pub use admin::{Admin, Master, Where};
pub use consumer::{Assignment, Consumer, PullOptions, Pulled, QueueReader, Read, Start};
pub use member::{GroupMember, Told, allocate};
pub use options::ClientOptions;
pub use producer::{Producer, SendOptions, Sent};
pub use route::TopicRoute;
pub use transaction::{CheckBack, CheckBacks, Half, TransactionalProducer};

use crate::code::ResponseCode;
use crate::command::Version;
use crate::connection::{Address, Channel, Connection, ConnectionOptions, Counters, Greeting, Pushes};
use crate::error::Error;
use crate::message::MessageQueue;
use crate::request::{ConsumerData, Heartbeat, Request};
use name_servers::NameServers;
use routes::{RouteLimits, Routes};

/// Channels that are remembered; above it those that are not in use are forgotten.
const MAX_IDLE_CHANNELS: usize = 256;

/// What all parts of a client share. Cheap to clone; the last clone that is dropped ends all connections.
#[derive(Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

struct Inner {
    options: ClientOptions,
    client_id: Arc<str>,
    groups: Arc<Groups>,
    name_servers: Arc<NameServers>,
    broker_options: ConnectionOptions,
    channels: Mutex<HashMap<Address, Channel>>,
    routes: Routes,
}

/// Whether a request needs the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Groups that heartbeats name.
#[derive(Debug, Default)]
struct Groups {
    producers: Mutex<BTreeSet<String>>,
    consumer: Mutex<Option<ConsumerData>>,
}

impl Groups {
    fn add(&self, group: &str) -> bool {
        self.producers.lock().unwrap_or_else(PoisonError::into_inner).insert(group.to_owned())
    }

    fn remove(&self, group: &str) {
        self.producers.lock().unwrap_or_else(PoisonError::into_inner).remove(group);
    }

    fn all(&self) -> Vec<String> {
        self.producers.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn consumers(&self) -> Vec<ConsumerData> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Client {
    /// A client with these settings. Nothing is connected yet; tasks of the current runtime will do that when something
    /// is asked for.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        let client_id = options.make_client_id();
        let groups = Arc::new(Groups::default());
        let greeting: Greeting = {
            let (client_id, groups) = (client_id.clone(), groups.clone());
            Arc::new(move || {
                let (client_id, producer_groups) = (client_id.to_string(), groups.all());
                Heartbeat { client_id, producer_groups, consumers: groups.consumers() }.command()
            })
        };
        // Settings may be cloned for several clients; pushes and counts are each client's own.
        let mut options = options;
        options.connection.pushes = Pushes::default();
        options.connection.counters = Arc::default();
        let broker_options = ConnectionOptions { greeting: Some(greeting), ..options.connection.clone() };
        let name_server_options = ConnectionOptions { greeting: None, ..options.connection.clone() };
        let channels =
            options.name_servers.iter().map(|a| Channel::new(a.clone(), name_server_options.clone())).collect();
        let routes = Routes::new(RouteLimits {
            limit: options.route_limit,
            refresh: options.route_refresh,
            pause: options.route_pause,
            max_topics: options.max_topics.max(1),
        });
        let name_servers = Arc::new(NameServers::new(channels));
        let channels = Mutex::default();
        Self { inner: Arc::new(Inner { options, client_id, groups, name_servers, broker_options, channels, routes }) }
    }

    /// What brokers know this client by.
    #[must_use]
    pub fn client_id(&self) -> &str {
        &self.inner.client_id
    }

    /// The settings it was made with.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.inner.options
    }

    /// What happened on all of its connections, in numbers.
    #[must_use]
    pub fn counters(&self) -> &Arc<Counters> {
        &self.inner.options.connection.counters
    }

    /// What brokers send by themselves. [`TransactionalProducer`] takes the check-backs.
    #[must_use]
    pub fn pushes(&self) -> &Pushes {
        &self.inner.options.connection.pushes
    }

    /// The channels to the name servers, in the order of the settings.
    #[must_use]
    pub fn name_servers(&self) -> &[Channel] {
        self.inner.name_servers.channels()
    }

    /// The channel to a broker's address; all parts of the client share it.
    #[must_use]
    pub fn channel(&self, address: &Address) -> Channel {
        let mut channels = self.inner.channels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(address) {
            return channel.clone();
        }
        if channels.len() >= MAX_IDLE_CHANNELS {
            channels.retain(|_, channel| !channel.is_idle());
        }
        let channel = Channel::new(address.clone(), self.inner.broker_options.clone());
        channels.insert(address.clone(), channel.clone());
        channel
    }

    /// Where the queues of a topic are. An answer from memory is at most a little older than
    /// [`ClientOptions::route_refresh`], unless no name server gives a newer one: then it is the last known.
    ///
    /// # Errors
    /// [`Error::Refused`] with `TOPIC_NOT_EXIST` for a topic that was never known; why no name server could be asked.
    pub async fn route(&self, topic: &str) -> Result<Arc<TopicRoute>, Error> {
        self.inner.routes.get(topic, &self.inner.name_servers).await
    }

    /// As [`Self::route`], asked within `age` from now back, or now.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub async fn recent_route(&self, topic: &str, age: Duration) -> Result<Arc<TopicRoute>, Error> {
        self.inner.routes.recent(topic, &self.inner.name_servers, age).await
    }

    /// As [`Self::route`], asked now.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub async fn refresh_route(&self, topic: &str) -> Result<Arc<TopicRoute>, Error> {
        self.inner.routes.refresh(topic, &self.inner.name_servers).await
    }

    /// The channel to the master of a queue's broker.
    ///
    /// # Errors
    /// As [`Self::route`]; [`Error::Route`] if the route has no master of that name.
    pub async fn master_of(&self, queue: &MessageQueue) -> Result<Channel, Error> {
        let route = self.route(&queue.topic).await?;
        self.in_route(queue, route.master(&queue.broker_name))
    }

    /// As [`Self::master_of`], or a slave while there is no master.
    async fn reader_of(&self, queue: &MessageQueue) -> Result<Channel, Error> {
        let route = self.route(&queue.topic).await?;
        self.in_route(queue, route.readable(&queue.broker_name))
    }

    fn in_route(&self, queue: &MessageQueue, address: Option<&Address>) -> Result<Channel, Error> {
        if let Some(address) = address {
            return Ok(self.channel(address));
        }
        self.inner.routes.suspect(&queue.topic, &self.inner.name_servers);
        Err(Error::Route { topic: queue.topic.clone(), problem: "its route has no broker of this name now" })
    }

    fn forget_route(&self, topic: &str) {
        self.inner.routes.forget(topic);
    }

    /// Sends a request to the master of a queue's broker, or a reading one to a slave while there is no master. `limit` covers route, connection and answer.
    ///
    /// # Errors
    /// As [`Self::master_of`], [`Channel::connection`] and [`Connection::request`]; [`Error::Reconnected`] if
    /// `generation` is demanded and gone.
    pub(crate) async fn ask_queue<R: Request>(
        &self,
        queue: &MessageQueue,
        access: Access,
        limit: Duration,
        generation: Option<u64>,
        make: impl FnOnce(&Connection) -> R,
    ) -> Result<(R::Answer, Connection), Error> {
        let deadline = Instant::now() + limit;
        let result = async {
            let located = tokio::time::timeout_at(deadline, async {
                match access {
                    Access::Read => self.reader_of(queue).await,
                    Access::Write => self.master_of(queue).await,
                }
            })
            .await;
            let channel = located.map_err(|_| Error::TimedOut { request: R::CODE, after: limit, sent: false })??;
            let connection = channel.connection(left(deadline)).await?;
            if let Some(expected) = generation
                && expected != connection.generation()
            {
                return Err(Error::Reconnected { expected, now: connection.generation() });
            }
            let answer = connection.request(&make(&connection), left(deadline)).await?;
            Ok((answer, connection))
        }
        .await;
        if let Err(error) = &result
            && may_be_cured_by_another_route(error)
        {
            self.inner.routes.suspect(&queue.topic, &self.inner.name_servers);
        }
        result
    }

    pub(crate) async fn ask_name_servers<R: Request>(&self, request: &R) -> Result<R::Answer, Error> {
        self.inner.name_servers.request(request, self.inner.options.route_limit).await
    }

    /// What a request's field `bname` or `n` should hold: only 5.x knows it, and only its proxies need it.
    pub(crate) fn broker_name_for(connection: &Connection, queue: &MessageQueue) -> Option<String> {
        connection.peer_version().filter(|v: &Version| v.is_5()).map(|_| queue.broker_name.clone())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("client_id", &self.inner.client_id)
            .field("name_servers", &self.inner.options.name_servers)
            .finish_non_exhaustive()
    }
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Failures after which the queue may be somewhere else (rocketmq.md B.7, F.4): a slave that was a master, a topic that
/// was deleted and made again, a broker that is gone.
fn may_be_cured_by_another_route(error: &Error) -> bool {
    match error {
        Error::Connect { .. } | Error::ConnectionLost { .. } | Error::TimedOut { .. } | Error::Route { .. } => true,
        Error::Refused { code, .. } => matches!(
            code,
            ResponseCode::TopicNotExist
                | ResponseCode::NoPermission
                | ResponseCode::ServiceNotAvailable
                | ResponseCode::SystemBusy
                | ResponseCode::SlaveNotAvailable
                | ResponseCode::NotLeaderForQueue
                | ResponseCode::GoAway
        ),
        _ => false,
    }
}
