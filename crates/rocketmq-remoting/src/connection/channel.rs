//! An address to which there is a connection whenever one is needed.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Address, Backoff, Connection, ConnectionOptions, Counters, Shared, describe};
use crate::command::{Command, Version};
use crate::error::Error;
use crate::request::Request;

/// An address with at most one connection, which is opened when it is first needed and opened again when it is lost.
/// Cheap to clone; the last clone that is dropped ends the connection.
///
/// While an attempt to connect runs, or is waited for, requests wait too, within their limits; they fail with
/// [`Error::Connect`] when it fails. So a caller that tries again at once makes no more attempts than the back-off
/// allows.
#[derive(Clone)]
pub struct Channel {
    shared: Arc<ChannelShared>,
    _task: Arc<Task>,
}

#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct ChannelShared {
    address: Address,
    options: ConnectionOptions,
    state: watch::Sender<State>,
    wanted: Notify,
    last_wanted: Mutex<Instant>,
    kept: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct State {
    connection: Option<Connection>,
    generation: u64,
    peer_version: Option<Version>,
    /// Attempts that failed, ever, and why the last one did.
    failed: u64,
    problem: Option<Arc<Error>>,
    heartbeats: u64,
}

impl State {
    fn usable(&self) -> Option<&Connection> {
        self.connection.as_ref().filter(|c| c.takes_requests())
    }
}

/// How a channel is at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChannelStatus {
    /// True while there is a connection that takes requests.
    pub connected: bool,
    /// The number of the current or last connection, as [`Connection::generation`]; 0 before the first.
    pub generation: u64,
    /// The peer's version, as the last heartbeat's answer told it.
    pub peer_version: Option<Version>,
    /// Heartbeats that the peer accepted, on all connections.
    pub heartbeats: u64,
    /// Attempts to connect that failed, since the channel was made.
    pub failed_attempts: u64,
    /// Why the last attempt failed; `None` while connected.
    pub problem: Option<String>,
}

impl From<&State> for ChannelStatus {
    fn from(state: &State) -> Self {
        let connected = state.usable().is_some();
        Self {
            connected,
            generation: state.generation,
            peer_version: state.peer_version,
            heartbeats: state.heartbeats,
            failed_attempts: state.failed,
            problem: state.problem.as_deref().filter(|_| !connected).map(describe),
        }
    }
}

/// Follows a channel: connections that come and go.
#[derive(Debug)]
pub struct ChannelWatch {
    state: watch::Receiver<State>,
}

impl ChannelWatch {
    /// How it is now.
    #[must_use]
    pub fn status(&self) -> ChannelStatus {
        ChannelStatus::from(&*self.state.borrow())
    }

    /// Waits until something changed (a connection, a loss, a failed attempt, a heartbeat). Changes between two calls
    /// come as one. `None` when the channel is gone.
    pub async fn changed(&mut self) -> Option<ChannelStatus> {
        self.state.changed().await.ok()?;
        Some(ChannelStatus::from(&*self.state.borrow_and_update()))
    }

    /// Waits until there is a connection later than `generation`. `None` when the channel is gone.
    pub async fn connected_after(&mut self, generation: u64) -> Option<ChannelStatus> {
        let state = self.state.wait_for(|s| s.generation > generation && s.usable().is_some()).await.ok()?;
        Some(ChannelStatus::from(&*state))
    }
}

impl Channel {
    /// A channel to this address. Nothing is connected yet; a task of the current runtime will do that.
    #[must_use]
    pub fn new(address: Address, options: ConnectionOptions) -> Self {
        let shared = Arc::new(ChannelShared {
            address,
            options,
            state: watch::Sender::new(State::default()),
            wanted: Notify::new(),
            last_wanted: Mutex::new(Instant::now()),
            kept: AtomicBool::new(false),
        });
        let task = tokio::spawn(supervise(shared.clone()));
        Self { shared, _task: Arc::new(Task(task)) }
    }

    /// Whom it connects to.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.shared.address
    }

    /// Connects now, and again whenever the connection is lost, whether or not there are requests.
    pub fn keep_connected(&self) {
        self.shared.kept.store(true, Ordering::Relaxed);
        self.shared.want();
    }

    /// Ends what [`Self::keep_connected`] began. The connection stays until it is lost.
    pub fn release(&self) {
        self.shared.kept.store(false, Ordering::Relaxed);
    }

    /// The number of the current or last connection, as [`Connection::generation`]; 0 before the first. It changes before
    /// the first request of a new connection can be sent.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.shared.state.borrow().generation
    }

    /// How it is now.
    #[must_use]
    pub fn status(&self) -> ChannelStatus {
        ChannelStatus::from(&*self.shared.state.borrow())
    }

    /// Follows what happens from now on.
    #[must_use]
    pub fn watch(&self) -> ChannelWatch {
        ChannelWatch { state: self.shared.state.subscribe() }
    }

    /// The current connection, or the next one.
    ///
    /// # Errors
    /// [`Error::Connect`] or [`Error::Tls`], or why the greeting was refused, if the next attempt fails or none ended
    /// within `limit`.
    pub async fn connection(&self, limit: Duration) -> Result<Connection, Error> {
        let shared = &*self.shared;
        shared.touch();
        let failed_before = {
            let state = shared.state.borrow();
            if let Some(connection) = state.usable() {
                return Ok(connection.clone());
            }
            state.failed
        };
        let mut state = shared.state.subscribe();
        shared.want();
        let deadline = Instant::now() + limit;
        let waited = timeout_at(deadline, state.wait_for(|s| s.usable().is_some() || s.failed > failed_before)).await;
        match waited {
            Ok(Ok(state)) => match (state.usable(), &state.problem) {
                (Some(connection), _) => Ok(connection.clone()),
                (None, Some(problem)) => Err(shared.unreachable(problem)),
                (None, None) => Err(Error::Closed),
            },
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => {
                let problem = shared.state.borrow().problem.clone();
                Err(problem.map_or_else(|| shared.no_connection_within(limit), |p| shared.unreachable(&p)))
            }
        }
    }

    /// Sends a typed request on the current or next connection and waits for its typed answer; `limit` covers all of
    /// it.
    ///
    /// # Errors
    /// As [`Self::connection`] and [`Connection::request`].
    pub async fn request<R: Request>(&self, request: &R, limit: Duration) -> Result<R::Answer, Error> {
        let deadline = Instant::now() + limit;
        let connection = self.connection(limit).await?;
        connection.request(request, deadline.saturating_duration_since(Instant::now())).await
    }

    /// Sends a request on the current or next connection and waits for its answer, whatever that says.
    ///
    /// # Errors
    /// As [`Self::connection`] and [`Connection::call`].
    pub async fn call(&self, command: Command, limit: Duration) -> Result<Command, Error> {
        let deadline = Instant::now() + limit;
        let connection = self.connection(limit).await?;
        connection.call(command, deadline.saturating_duration_since(Instant::now())).await
    }

    /// Sends the greeting again now instead of at the next turn: the groups in it have changed. Waits until a
    /// heartbeat made after this call was accepted.
    ///
    /// # Errors
    /// As [`Self::connection`]; [`Error::Closed`] when there is no greeting.
    pub async fn heartbeat(&self, limit: Duration) -> Result<ChannelStatus, Error> {
        let deadline = Instant::now() + limit;
        let connection = self.connection(limit).await?;
        let greeting = self.shared.options.greeting.clone().ok_or(Error::Closed)?;
        let left = deadline.saturating_duration_since(Instant::now());
        connection.greet(greeting()?, left).await?;
        self.shared.beaten(&connection);
        Ok(self.status())
    }

    /// True if nothing is connected and nothing tries to: the channel costs a map entry only.
    pub(crate) fn is_idle(&self) -> bool {
        !self.shared.kept.load(Ordering::Relaxed)
            && self.shared.state.borrow().usable().is_none()
            && !self.shared.wanted_lately()
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("address", &self.shared.address).field("status", &self.status()).finish()
    }
}

impl ChannelShared {
    fn touch(&self) {
        *self.last_wanted.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn want(&self) {
        self.touch();
        self.wanted.notify_one();
    }

    fn wanted_lately(&self) -> bool {
        let last = *self.last_wanted.lock().unwrap_or_else(PoisonError::into_inner);
        self.kept.load(Ordering::Relaxed) || last.elapsed() < self.options.reconnect_within
    }

    fn no_connection_within(&self, limit: Duration) -> Error {
        let source =
            std::io::Error::new(std::io::ErrorKind::TimedOut, format!("no connection within {} ms", limit.as_millis()));
        Error::Connect { address: self.address.to_string(), source }
    }

    /// The failure of one attempt, for each of those who waited for it.
    fn unreachable(&self, problem: &Arc<Error>) -> Error {
        match &**problem {
            Error::Refused { request, code, remark } => {
                Error::Refused { request: *request, code: *code, remark: remark.clone() }
            }
            Error::Tls { address, problem } => Error::Tls { address: address.clone(), problem: problem.clone() },
            Error::Connect { address, source } => Error::Connect {
                address: address.clone(),
                source: std::io::Error::new(source.kind(), source.to_string()),
            },
            other => Error::Connect {
                address: self.address.to_string(),
                source: std::io::Error::other(format!("the greeting was not answered: {}", describe(other))),
            },
        }
    }

    fn beaten(&self, connection: &Connection) {
        self.state.send_modify(|s| {
            s.heartbeats += 1;
            s.peer_version = connection.peer_version().or(s.peer_version);
        });
    }

    fn failed(&self, error: Error) {
        Counters::add(&self.options.counters.connect_failures, 1);
        self.state.send_modify(|s| {
            s.connection = None;
            s.failed += 1;
            // The first of a row is worth a line; the rest repeats it.
            if s.problem.is_none() {
                tracing::warn!(address = %self.address, error = describe(&error), "cannot connect, will keep trying");
            }
            s.problem = Some(Arc::new(error));
        });
    }
}

/// Connects, keeps alive, connects again. One task for each channel; aborted when the channel is dropped.
async fn supervise(shared: Arc<ChannelShared>) {
    let mut backoff = Backoff::new(shared.options.backoff_first, shared.options.backoff_longest);
    shared.wanted.notified().await;
    loop {
        match Box::pin(session(&shared)).await {
            Ok(lived) => {
                // A peer that accepts and hangs up at once must not make a busy loop.
                if lived >= shared.options.backoff_longest {
                    backoff.reset();
                }
            }
            Err(error) => shared.failed(error),
        }
        sleep(backoff.pause()).await;
        if !shared.wanted_lately() {
            shared.wanted.notified().await;
            backoff.reset();
        }
    }
}

/// One connection from its beginning to its end. Returns how long it lived, or why it did not begin.
async fn session(shared: &Arc<ChannelShared>) -> Result<Duration, Error> {
    let options = shared.options.clone();
    let (connection, driver) = Connection::prepare(shared.address.clone(), options).await?;
    let generation = connection.generation();
    let mut driver = pin!(driver.run());
    if let Some(greeting) = &shared.options.greeting {
        let greeting = greeting()?;
        let request = greeting.request_code();
        let mut greeted = pin!(connection.greet(greeting, shared.options.connect_limit));
        tokio::select! {
            greeted = &mut greeted => greeted?,
            () = &mut driver => {
                // Everything on the connection has an answer or an error by now.
                greeted.await?;
                return Err(Error::ConnectionLost { request, sent: true });
            }
        }
    }
    let began = Instant::now();
    connection.shared.became_usable();
    let beats = u64::from(shared.options.greeting.is_some());
    shared.state.send_modify(|s| {
        s.connection = Some(connection.clone());
        s.generation = generation;
        s.peer_version = connection.peer_version().or(s.peer_version);
        s.heartbeats += beats;
        s.problem = None;
    });
    tracing::info!(address = %shared.address, generation, version = ?connection.peer_version(), "connected");
    tokio::select! {
        () = &mut driver => {}
        () = keep_alive(shared, &connection) => {
            connection.close_for("the peer does not answer");
            driver.await;
        }
    }
    let why = connection.ended().await;
    shared.state.send_modify(|s| s.connection = None);
    tracing::info!(address = %shared.address, generation, %why, "connection ended");
    Ok(began.elapsed())
}

/// Sends heartbeats in their turn, and when the peer is suspected. Ends when the peer is silent; without a greeting a
/// request that timed out in silence is enough.
async fn keep_alive(shared: &ChannelShared, connection: &Connection) {
    let line: &Shared = &connection.shared;
    let Some(greeting) = &shared.options.greeting else {
        return line.suspect.notified().await;
    };
    loop {
        tokio::select! {
            () = sleep(shared.options.heartbeat_every) => {}
            () = line.suspect.notified() => {}
        }
        let reads_before = line.reads.load(Ordering::Relaxed);
        let beat = async { connection.greet(greeting()?, shared.options.heartbeat_limit).await };
        match beat.await {
            Ok(()) => shared.beaten(connection),
            Err(Error::TimedOut { .. }) if line.reads.load(Ordering::Relaxed) == reads_before => return,
            Err(error) => {
                // The peer lives, whatever it thinks of us; the next turn tries again.
                tracing::warn!(address = %shared.address, error = describe(&error), "heartbeat not accepted");
            }
        }
    }
}
