//! Connections to name servers and brokers.
//!
//! A [`Connection`] is one TCP or TLS connection: requests are pipelined and matched to their answers by number, each
//! has a limit of its own, and a bounded number is in flight; more wait. A [`Channel`] is an address to which there is
//! a connection whenever one is needed: it reconnects, with growing pauses, and counts its connections
//! ([`Channel::generation`]), so that whoever must look again after a reconnect can.
//!
//! # Order
//! A broker handles the requests of one connection with several threads (`sendMessageThreadPoolNums`, 4.9.1 and
//! later). **Two sends in flight to one queue may be stored in either order**, whatever the order in which they were
//! written; and a refusal of the first does not stop the second. Where order matters, wait for each answer before the
//! next send to that queue, and get throughput from batches and from several queues.

mod address;
mod backoff;
mod channel;
mod counters;
mod driver;
mod lines;
mod options;
mod push;
mod stream;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

pub use address::{Address, AddressError};
pub use backoff::Backoff;
pub use channel::{Channel, ChannelStatus, ChannelWatch};
pub use counters::{CounterValues, Counters};
pub use options::{ConnectionOptions, Greeting};
pub use push::{Push, PushQueue, Pushes};

use crate::acl;
use crate::codec::{self, CodecError, Serialization};
use crate::command::{Command, Version};
use crate::error::Error;
use crate::request::Request;
use lines::{Lines, Lost};

/// Frames without a waiting request that may be queued: refusals of pushes and one-way requests.
const MAX_UNASKED_FRAMES: usize = 64;

static NEXT_GENERATION: AtomicU64 = AtomicU64::new(1);

#[derive(Debug)]
struct Shared {
    address: Address,
    generation: u64,
    options: ConnectionOptions,
    window: Arc<Semaphore>,
    next_opaque: AtomicI32,
    lines: Mutex<Lines>,
    to_write: Notify,
    /// Becomes true once, when the connection has ended.
    ended: watch::Sender<bool>,
    /// Somebody wants the driver to stop.
    stop: Notify,
    /// The peer said GO_AWAY.
    leaving: Notify,
    /// A request ran into its limit while the peer was silent.
    suspect: Notify,
    usable: AtomicBool,
    peer_version: AtomicI32,
    /// Reads that brought something. A peer is silent while this does not move.
    reads: AtomicU64,
}

impl Shared {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The greeting, if there is one, was accepted.
    fn became_usable(&self) {
        self.usable.store(true, Ordering::Relaxed);
        Counters::add(&self.options.counters.connections_opened, 1);
    }

    /// Ends all that waits. Returns whether this was the first call.
    fn close(&self, why: &str) -> bool {
        let first = self.lines().close(why);
        if first {
            if self.usable.load(Ordering::Relaxed) {
                Counters::add(&self.options.counters.connections_ended, 1);
            }
            self.window.close();
            self.stop.notify_one();
            self.ended.send_replace(true);
        }
        first
    }
}

/// One TCP or TLS connection. Cheap to clone.
///
/// Nothing here tries twice: a request has one answer or one error, and [`Error::may_have_been_done`] tells if the peer
/// may have executed it. Dropping a request's future is safe at any time; an answer that comes later is counted and
/// dropped.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<Shared>,
    /// The task that drives a connection which was opened by itself; `None` if a channel drives it.
    _task: Option<Arc<OwnTask>>,
}

#[derive(Debug)]
struct OwnTask(JoinHandle<()>);

impl Drop for OwnTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Takes a request out of the lines when nobody waits for it any more.
struct Ticket<'a> {
    shared: &'a Shared,
    opaque: i32,
    sequence: u64,
    answered: bool,
}

impl Ticket<'_> {
    /// Whether the request may have reached the peer.
    fn give_up(mut self) -> bool {
        self.answered = true;
        self.shared.lines().forget(self.opaque, self.sequence)
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.shared.lines().forget(self.opaque, self.sequence);
        }
    }
}

impl Connection {
    /// Connects, and sends the greeting of the options if there is one. A task of the current runtime drives the
    /// connection until the last clone is dropped.
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Tls`], or why the greeting was not accepted.
    pub async fn open(address: Address, options: ConnectionOptions) -> Result<Self, Error> {
        let limit = options.connect_limit;
        let greeting = options.greeting.clone();
        let (mut connection, driver) = Self::prepare(address, options).await?;
        connection._task = Some(Arc::new(OwnTask(tokio::spawn(driver.run()))));
        if let Some(greeting) = greeting {
            connection.greet(greeting()?, limit).await?;
        }
        connection.shared.became_usable();
        Ok(connection)
    }

    /// Connects. The driver must be run for anything to happen.
    async fn prepare(address: Address, options: ConnectionOptions) -> Result<(Self, driver::Driver), Error> {
        let limit = options.connect_limit;
        let opening = stream::Stream::open(&address, options.tls.as_ref());
        let stream = match tokio::time::timeout(limit, opening).await {
            Ok(opened) => opened?,
            Err(_) => {
                let source = std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    format!("no connection within {} ms", limit.as_millis()),
                );
                return Err(Error::Connect { address: address.to_string(), source });
            }
        };
        let shared = Arc::new(Shared {
            address,
            generation: NEXT_GENERATION.fetch_add(1, Ordering::Relaxed),
            window: Arc::new(Semaphore::new(options.window.clamp(1, Semaphore::MAX_PERMITS))),
            next_opaque: AtomicI32::new(1),
            lines: Mutex::new(Lines::new(MAX_UNASKED_FRAMES)),
            to_write: Notify::new(),
            ended: watch::Sender::new(false),
            stop: Notify::new(),
            leaving: Notify::new(),
            suspect: Notify::new(),
            usable: AtomicBool::new(false),
            peer_version: AtomicI32::new(0),
            reads: AtomicU64::new(0),
            options,
        });
        let driver = driver::Driver::new(shared.clone(), stream);
        Ok((Self { shared, _task: None }, driver))
    }

    /// Sends a heartbeat and learns the peer's version from its answer.
    async fn greet(&self, greeting: Command, limit: Duration) -> Result<(), Error> {
        let request = greeting.request_code();
        let answer = self.call(greeting, limit).await?;
        let code = answer.response_code();
        if code != crate::code::ResponseCode::Success {
            return Err(Error::Refused { request, code, remark: answer.remark });
        }
        self.shared.peer_version.store(answer.version, Ordering::Relaxed);
        Ok(())
    }

    /// Sends a typed request and waits for its typed answer.
    ///
    /// `limit` covers all of it: the wait for a place in the window, the writing, and the answer.
    ///
    /// # Errors
    /// As [`Self::call`]; [`Error::Refused`] when the peer says no; [`Error::Answer`] when its yes cannot be read.
    pub async fn request<R: Request>(&self, request: &R, limit: Duration) -> Result<R::Answer, Error> {
        let answer = self.call(request.command()?, limit).await?;
        request.answer(answer)
    }

    /// Sends a request and waits for its answer, whatever that says. The number of the request is set here, and the
    /// signature if there are credentials.
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::ConnectionLost`], [`Error::Unsendable`].
    pub async fn call(&self, command: Command, limit: Duration) -> Result<Command, Error> {
        let deadline = Instant::now() + limit;
        let request = command.request_code();
        let timed_out = |sent| Error::TimedOut { request, after: limit, sent };
        let lost = |Lost { sent }| Error::ConnectionLost { request, sent };
        let shared = &*self.shared;
        let counters = &shared.options.counters;

        let _place = self.place(deadline).await.map_err(|refused| match refused {
            NoPlace::TimedOut => timed_out(false),
            NoPlace::Closed => lost(Lost { sent: false }),
        })?;
        let (opaque, head, command) = self.encode(command)?;
        let reads_before = shared.reads.load(Ordering::Relaxed);
        let (sequence, mut answer) = shared.lines().ask(opaque, head, command.body).map_err(lost)?;
        let mut ticket = Ticket { shared, opaque, sequence, answered: false };
        shared.to_write.notify_one();
        Counters::add(&counters.requests, 1);

        match timeout_at(deadline, &mut answer).await {
            Ok(answer) => {
                ticket.answered = true;
                // A dropped sender cannot be: the lines end with a word to each.
                answer.unwrap_or(Err(Lost { sent: true })).map_err(lost)
            }
            Err(_) => {
                let sent = ticket.give_up();
                // It may have come between the alarm and the lock.
                if let Ok(answer) = answer.try_recv() {
                    return answer.map_err(lost);
                }
                Counters::add(&counters.requests_timed_out, 1);
                if shared.reads.load(Ordering::Relaxed) == reads_before {
                    shared.suspect.notify_one();
                }
                Err(timed_out(sent))
            }
        }
    }

    /// Sends a one-way request: success means that it was queued, no more.
    ///
    /// # Errors
    /// [`Error::ConnectionLost`] when closed or when too many are queued already, [`Error::Unsendable`].
    pub fn tell(&self, command: Command) -> Result<(), Error> {
        let request = command.request_code();
        let (_, head, command) = self.encode(command.one_way())?;
        if !self.shared.lines().tell(head, command.body) {
            return Err(Error::ConnectionLost { request, sent: false });
        }
        self.shared.to_write.notify_one();
        Ok(())
    }

    async fn place(&self, deadline: Instant) -> Result<OwnedSemaphorePermit, NoPlace> {
        if let Ok(place) = self.shared.window.clone().try_acquire_owned() {
            return Ok(place);
        }
        match timeout_at(deadline, self.shared.window.clone().acquire_owned()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(NoPlace::Closed),
            Err(_) => Err(NoPlace::TimedOut),
        }
    }

    fn encode(&self, mut command: Command) -> Result<(i32, bytes::Bytes, Command), Error> {
        let options = &self.shared.options;
        command.opaque = self.shared.next_opaque.fetch_add(1, Ordering::Relaxed);
        if let Some(credentials) = &options.credentials {
            acl::sign(&mut command, credentials);
        }
        let mut head = BytesMut::with_capacity(512);
        let mut encoded = codec::encode_head(&command, options.serialization, &mut head);
        if let (Err(CodecError::DoesNotFit(_)), Serialization::Binary) = (&encoded, options.serialization) {
            // Codes above 32,767 and texts above 64 KiB have room in JSON only; peers read both.
            encoded = codec::encode_head(&command, Serialization::Json, &mut head);
        }
        encoded.map_err(Error::Unsendable)?;
        Ok((command.opaque, head.freeze(), command))
    }

    /// Whom it is connected to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// The number of this connection. Connections are numbered from 1 as they are made, through the whole process: no
    /// two have the same, a later one has a higher one.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.generation
    }

    /// The peer's version, as the answer to the greeting told it; `None` without a greeting.
    #[must_use]
    pub fn peer_version(&self) -> Option<Version> {
        Some(Version(self.shared.peer_version.load(Ordering::Relaxed))).filter(|v| v.0 != 0)
    }

    /// False when it has ended, or will when what is in flight has ended.
    #[must_use]
    pub fn takes_requests(&self) -> bool {
        self.shared.lines().takes_requests()
    }

    /// Requests without an answer yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.lines().in_flight()
    }

    /// Waits for the end, and tells why it came.
    pub async fn ended(&self) -> Arc<str> {
        let mut ended = self.shared.ended.subscribe();
        // The sender lives in what this handle shares.
        let _never_fails = ended.wait_for(|ended| *ended).await;
        self.shared.lines().closed().unwrap_or_else(|| "closed".into())
    }

    /// As [`Self::close`], with a reason for the log.
    fn close_for(&self, why: &str) {
        self.shared.close(why);
    }

    /// Ends it now. Requests in flight fail with [`Error::ConnectionLost`].
    pub fn close(&self) {
        self.shared.close("closed by this side");
    }
}

enum NoPlace {
    TimedOut,
    Closed,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("address", &self.shared.address)
            .field("generation", &self.shared.generation)
            .finish_non_exhaustive()
    }
}

/// An error with its sources, in one line.
pub fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}
