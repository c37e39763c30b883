//! Limits and settings of connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{Counters, Pushes};
use crate::acl::Credentials;
use crate::codec::Serialization;
use crate::command::Command;
use crate::error::Error;
use crate::tls::Tls;

/// Makes the request that opens a connection and keeps it alive: HEART_BEAT for brokers. It is called again for each
/// use, so that it can name the producer groups of the moment.
pub type Greeting = Arc<dyn Fn() -> Result<Command, Error> + Send + Sync>;

/// Limits and settings of [`super::Connection`] and [`super::Channel`]. Cheap to clone; clones share the counters and
/// the queue of pushes.
#[derive(Clone)]
pub struct ConnectionOptions {
    /// Limit of looking up the host, connecting and shaking hands, and of the answer to the greeting. Default 3 s.
    pub connect_limit: Duration,
    /// Requests in flight on one connection; more wait for a place, within their own time limit. Default 256: a broker
    /// refuses from 10,000 queued sends on, and sheds load when one waits for more than 200 ms (`sendThreadPoolQueueCapacity`,
    /// `waitTimeMillsInSendQueue`, 4.9.4).
    pub window: usize,
    /// Longest frame that is taken from a peer; a longer one closes the connection. Default 16 MiB, as the Java side
    /// has it (`NettyDecoder`, 4.9.4).
    pub max_frame_bytes: usize,
    /// Form of the headers that are sent. Answers are read in either form. Default JSON.
    pub serialization: Serialization,
    /// Signs every request.
    pub credentials: Option<Credentials>,
    /// TLS for every connection; `None` is plain TCP.
    pub tls: Option<Tls>,
    /// First request on each connection, which is usable only when it has been answered with success, and repeated
    /// every [`Self::heartbeat_every`]. Default none.
    pub greeting: Option<Greeting>,
    /// Pause between heartbeats. Default 30 s: a peer closes a connection after 120 s of silence.
    pub heartbeat_every: Duration,
    /// Limit of a heartbeat's answer. When it passes and nothing else came from the peer either, the connection is
    /// given up. A request that ran into its own limit without a byte from the peer brings a heartbeat forward, so
    /// that a peer that hangs is found within about twice this. Default 3 s.
    pub heartbeat_limit: Duration,
    /// First pause after a failed attempt to connect; doubles, with jitter. Default 50 ms.
    pub backoff_first: Duration,
    /// Longest pause between attempts. Default 5 s.
    pub backoff_longest: Duration,
    /// A connection that was lost is opened again by itself if it was asked for within this time; later only when it is
    /// asked for again. Default 60 s.
    pub reconnect_within: Duration,
    /// Where pushes of brokers go.
    pub pushes: Pushes,
    /// What happened, in numbers.
    pub counters: Arc<Counters>,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            connect_limit: Duration::from_secs(3),
            window: 256,
            max_frame_bytes: 16 * 1024 * 1024,
            serialization: Serialization::Json,
            credentials: None,
            tls: None,
            greeting: None,
            heartbeat_every: Duration::from_secs(30),
            heartbeat_limit: Duration::from_secs(3),
            backoff_first: Duration::from_millis(50),
            backoff_longest: Duration::from_secs(5),
            reconnect_within: Duration::from_secs(60),
            pushes: Pushes::default(),
            counters: Arc::default(),
        }
    }
}

impl fmt::Debug for ConnectionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionOptions")
            .field("connect_limit", &self.connect_limit)
            .field("window", &self.window)
            .field("max_frame_bytes", &self.max_frame_bytes)
            .field("serialization", &self.serialization)
            .field("signed", &self.credentials.is_some())
            .field("tls", &self.tls.is_some())
            .field("heartbeat_every", &self.heartbeat_every)
            .finish_non_exhaustive()
    }
}
