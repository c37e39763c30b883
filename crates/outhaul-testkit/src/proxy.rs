//! A TCP proxy that fails on command, between a client under test and a real server.
//!
//! It listens on a loopback port of its own and forwards to one target. While it runs, a test can cut connections,
//! refuse new ones, hold back either direction, cut after an exact number of bytes, and set a [`Trap`] on the bytes of
//! a request, so that for instance a COMMIT never arrives, arrives late, or is carried out while its answer is lost.
//!
//! Everything is a signal that can be awaited: no test has to sleep. At most 512 connections are open at once (more
//! wait in the kernel's backlog), each holds two buffers of 16 KiB, and a direction that is held back pushes back on
//! its sender.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::proxy::rules::{Rules, Verdict};

mod rules;
#[cfg(test)]
mod tests;

const BUFFER_BYTES: usize = 16 * 1024;
const CONNECTIONS_MAX: usize = 512;
/// How long any wait of a test for a signal of the proxy may take before it counts as a failure.
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// The way that bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

impl Direction {
    const fn index(self) -> usize {
        match self {
            Self::ToServer => 0,
            Self::ToClient => 1,
        }
    }
}

/// What happens to a request whose bytes a [`Trap`] was set on. The client's connection ends in every case, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server never sees the request. Its connection ends at the same moment.
    RequestLost,
    /// The server carries the request out; its answer goes nowhere.
    AnswerLost,
    /// The server sees the request only after [`Trap::release`], when its client may have connected anew.
    RequestLate,
}

/// How far a trap has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrapState {
    /// Nothing has met it yet.
    Armed,
    /// It was met: the client's connection is gone, or goes this moment.
    Sprung,
    /// The server has ended the connection too: a request that it got is carried out and answered by now.
    Finished,
}

/// A rule that works once, and tells when. Dropping it disarms nothing.
#[derive(Clone, Debug)]
pub struct Trap {
    state: watch::Receiver<TrapState>,
    released: Arc<watch::Sender<bool>>,
}

impl Trap {
    /// How far it has come.
    pub fn state(&self) -> TrapState {
        *self.state.borrow()
    }

    /// Waits until a connection has met the trap.
    ///
    /// # Panics
    /// Not within 30 seconds.
    pub async fn sprung(&self) {
        self.reached(TrapState::Sprung).await;
    }

    /// Waits until the server has ended the connection that met the trap.
    ///
    /// # Panics
    /// Not within 30 seconds.
    pub async fn finished(&self) {
        self.reached(TrapState::Finished).await;
    }

    /// Lets a [`Fate::RequestLate`] reach the server.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    async fn reached(&self, wanted: TrapState) {
        let mut state = self.state.clone();
        within(&format!("the trap to be {wanted:?}"), async { state.wait_for(|state| *state >= wanted).await.is_ok() })
            .await;
    }
}

/// The proxy's own end of a [`Trap`].
#[derive(Debug)]
struct TrapEnd {
    state: watch::Sender<TrapState>,
    released: watch::Receiver<bool>,
}

fn trap() -> (Trap, TrapEnd) {
    let (state, seen) = watch::channel(TrapState::Armed);
    let (release, released) = watch::channel(false);
    (Trap { state: seen, released: Arc::new(release) }, TrapEnd { state, released })
}

/// What has gone through a proxy so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted. They are numbered from 1 in this order.
    pub accepted: u64,
    /// Numbers of the connections that are open now.
    pub open: BTreeSet<u64>,
    /// Connections that this proxy ended on command: cut, or caught in a trap.
    pub cut: u64,
    /// Connections accepted whose target could not be reached.
    pub unreachable: u64,
    /// Bytes forwarded to the server.
    pub to_server_bytes: u64,
    /// Bytes forwarded to the client.
    pub to_client_bytes: u64,
}

/// What the test wants at the moment.
#[derive(Clone, Copy, Debug, Default)]
struct Control {
    refusing: bool,
    held: [bool; 2],
    /// Connections up to this number are to end.
    cut_up_to: u64,
}

struct Shared {
    target: SocketAddr,
    control: watch::Sender<Control>,
    counts: watch::Sender<Counts>,
    listening: watch::Sender<bool>,
    rules: Mutex<Rules>,
}

impl Shared {
    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy in front of one server. Dropping it ends every connection and frees the port.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
    /// Keeps the port while the proxy refuses: bound, never listening.
    _reserved: TcpSocket,
}

impl Proxy {
    /// Starts a proxy in front of `target` on a free loopback port. The target need not be up.
    ///
    /// # Panics
    /// No port can be had.
    pub async fn start(target: SocketAddr) -> Self {
        let reserved = bound_socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let address = reserved.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared {
            target,
            control: watch::channel(Control::default()).0,
            counts: watch::channel(Counts::default()).0,
            listening: watch::channel(true).0,
            rules: Mutex::default(),
        });
        let task = tokio::spawn(serve(Arc::clone(&shared), address, listen(address)));
        Self { address, shared, task, _reserved: reserved }
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What went through so far.
    pub fn counts(&self) -> Counts {
        self.shared.counts.borrow().clone()
    }

    /// Waits until the counts are as wanted, and returns them.
    ///
    /// # Panics
    /// Not within 30 seconds.
    pub async fn wait_until(&self, wanted: impl FnMut(&Counts) -> bool) -> Counts {
        let mut counts = self.shared.counts.subscribe();
        within("the proxy's counts", async { counts.wait_for(wanted).await.is_ok() }).await;
        self.counts()
    }

    /// Ends every connection that is open, on both sides, and waits until it is done. New ones are still accepted.
    pub async fn cut_all(&self) {
        let last = self.counts().accepted;
        self.shared.control.send_modify(|control| control.cut_up_to = last);
        self.wait_until(|counts| counts.open.first().is_none_or(|first| *first > last)).await;
    }

    /// Refuses new connections, as a port without a server does (ECONNREFUSED), and waits until it is so. What is open
    /// stays open.
    pub async fn refuse(&self) {
        self.set_refusing(true).await;
    }

    /// Accepts connections again, on the same port.
    pub async fn accept(&self) {
        self.set_refusing(false).await;
    }

    async fn set_refusing(&self, refusing: bool) {
        self.shared.control.send_modify(|control| control.refusing = refusing);
        let mut listening = self.shared.listening.subscribe();
        within("the listener", async { listening.wait_for(|on| *on != refusing).await.is_ok() }).await;
    }

    /// Holds back one direction of all connections, new ones too: nothing arrives any more, and nobody is told. Bytes
    /// that were read before may still arrive.
    pub fn hold(&self, direction: Direction) {
        self.shared.control.send_modify(|control| control.held[direction.index()] = true);
    }

    /// Lets a direction flow again. Nothing was lost meanwhile.
    pub fn flow(&self, direction: Direction) {
        self.shared.control.send_modify(|control| control.held[direction.index()] = false);
    }

    /// Ends, once, the connection that carries the byte after the next `bytes` bytes of a direction, counted over all
    /// connections. Exactly these bytes are forwarded. A second call for the same direction replaces the first.
    pub fn cut_after(&self, direction: Direction, bytes: u64) -> Trap {
        let (trap, end) = trap();
        self.shared.rules().set_budget(direction, bytes, end);
        trap
    }

    /// Sets a trap on the bytes of a request, on whichever connection they come first. It works once.
    ///
    /// `request_end` has to be the request's last bytes: what follows them belongs to the next request. A COMMIT as
    /// text ends in `b"\x03COMMIT"` in MySQL's protocol and in `b"COMMIT\0"` in PostgreSQL's. It is found across reads,
    /// not within TLS.
    ///
    /// # Panics
    /// `request_end` is empty or longer than 1 KiB.
    pub fn trap(&self, request_end: &[u8], fate: Fate) -> Trap {
        assert!((1..=1024).contains(&request_end.len()), "a trap needs 1 to 1024 bytes");
        let (trap, end) = trap();
        self.shared.rules().set_trap(request_end, fate, end);
        trap
    }

    /// Forgets every trap and every limit in bytes that nothing has met yet.
    pub fn disarm(&self) {
        *self.shared.rules() = Rules::default();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn within(what: &str, signal: impl Future<Output = bool>) {
    match tokio::time::timeout(WAIT_LIMIT, signal).await {
        Ok(true) => {}
        Ok(false) => panic!("{what}: it can never come any more"),
        Err(_) => panic!("{what}: not within {} s", WAIT_LIMIT.as_secs()),
    }
}

/// SO_REUSEPORT lets the proxy listen, stop and listen again beside the socket that keeps the port.
fn bound_socket(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseport(true).expect("SO_REUSEPORT");
    socket.bind(address).expect("a loopback port");
    socket
}

fn listen(address: SocketAddr) -> TcpListener {
    bound_socket(address).listen(128).expect("a listener")
}

async fn serve(shared: Arc<Shared>, address: SocketAddr, first: TcpListener) {
    let mut listener = Some(first);
    let mut control = shared.control.subscribe();
    let mut connections = JoinSet::new();
    loop {
        let refusing = control.borrow_and_update().refusing;
        if refusing {
            listener = None;
        } else if listener.is_none() {
            listener = Some(listen(address));
        }
        shared.listening.send_if_modified(|on| std::mem::replace(on, !refusing) == refusing);
        tokio::select! {
            _ = control.changed() => {}
            Some(_) = connections.join_next() => {}
            Some(Ok((client, _))) = next_client(listener.as_ref()), if connections.len() < CONNECTIONS_MAX => {
                let shared = Arc::clone(&shared);
                let number = shared.counts.borrow().accepted + 1;
                shared.counts.send_modify(|counts| {
                    counts.accepted = number;
                    counts.open.insert(number);
                });
                connections.spawn(async move {
                    let _open = Open { shared: &shared, number };
                    connection(client, &shared, number).await;
                });
            }
        }
    }
}

async fn next_client(listener: Option<&TcpListener>) -> Option<std::io::Result<(TcpStream, SocketAddr)>> {
    Some(listener?.accept().await)
}

/// Takes the connection's number out of the open ones, however it ends.
struct Open<'a> {
    shared: &'a Shared,
    number: u64,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.shared.counts.send_modify(|counts| {
            counts.open.remove(&self.number);
        });
    }
}

/// Why a direction stopped.
enum End {
    /// The sender closed it; the receiver was told.
    Closed,
    /// Either side is gone without a word.
    Broken,
    /// A limit in bytes was reached.
    Cut(TrapEnd),
    /// A trap was met; these bytes have not been forwarded.
    Trapped { fate: Fate, end: TrapEnd, request: Vec<u8> },
}

async fn connection(client: TcpStream, shared: &Shared, number: u64) {
    let mut control = shared.control.subscribe();
    let cut = async { _ = control.wait_for(|control| control.cut_up_to >= number).await };
    tokio::pin!(cut);
    let server = tokio::select! {
        () = &mut cut => return count_cut(shared),
        server = TcpStream::connect(shared.target) => server,
    };
    let Ok(server) = server else {
        shared.counts.send_modify(|counts| counts.unreachable += 1);
        return;
    };
    _ = client.set_nodelay(true);
    _ = server.set_nodelay(true);
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let end = {
        let up = pump(shared, Direction::ToServer, &mut from_client, &mut to_server);
        let down = pump(shared, Direction::ToClient, &mut from_server, &mut to_client);
        tokio::pin!(up, down);
        let (mut up_open, mut down_open) = (true, true);
        loop {
            let end = tokio::select! {
                () = &mut cut => return count_cut(shared),
                end = &mut up, if up_open => { up_open = false; end }
                end = &mut down, if down_open => { down_open = false; end }
            };
            match end {
                End::Closed if up_open || down_open => {}
                End::Closed | End::Broken => return,
                end => break end,
            }
        }
    };
    count_cut(shared);
    match end {
        End::Trapped { fate, end, request } => {
            end.state.send_replace(TrapState::Sprung);
            drop((from_client, to_client));
            tokio::select! {
                () = &mut cut => {}
                () = serve_trapped(fate, end.released, &request, from_server, to_server) => {}
            }
            end.state.send_replace(TrapState::Finished);
        }
        End::Cut(end) => {
            drop((from_client, to_client, from_server, to_server));
            end.state.send_replace(TrapState::Finished);
        }
        End::Closed | End::Broken => {}
    }
}

fn count_cut(shared: &Shared) {
    shared.counts.send_modify(|counts| counts.cut += 1);
}

/// The server's side of a connection whose client is gone. The request is followed by the end of the stream, so that
/// the server carries it out, answers, and leaves; its end of the stream is the proof that it did.
async fn serve_trapped(
    fate: Fate,
    mut released: watch::Receiver<bool>,
    request: &[u8],
    mut from_server: OwnedReadHalf,
    mut to_server: OwnedWriteHalf,
) {
    match fate {
        Fate::RequestLost => return,
        Fate::AnswerLost => {}
        // When every handle of the trap is gone, nobody can release it any more.
        Fate::RequestLate => {
            if released.wait_for(|released| *released).await.is_err() {
                return;
            }
        }
    }
    if to_server.write_all(request).await.is_err() || to_server.shutdown().await.is_err() {
        return;
    }
    let mut answer = [0; 4096];
    while matches!(from_server.read(&mut answer).await, Ok(1..)) {}
}

async fn pump(shared: &Shared, direction: Direction, from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf) -> End {
    let mut control = shared.control.subscribe();
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut matcher = rules::Matcher::default();
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) => return if to.shutdown().await.is_ok() { End::Closed } else { End::Broken },
            Ok(read) => read,
            Err(_) => return End::Broken,
        };
        if control.wait_for(|control| !control.held[direction.index()]).await.is_err() {
            return End::Broken;
        }
        let bytes = &buffer[..read];
        let verdict = shared.rules().judge(direction, &mut matcher, bytes);
        let (forward, end) = match verdict {
            Verdict::Forward => (bytes, None),
            Verdict::Cut { after, end } => (&bytes[..after], Some(End::Cut(end))),
            Verdict::Trap { at, fate, end } => {
                let (before, request) = bytes.split_at(at);
                (before, Some(End::Trapped { fate, end, request: request.to_vec() }))
            }
        };
        if to.write_all(forward).await.is_err() {
            return End::Broken;
        }
        shared.counts.send_modify(|counts| match direction {
            Direction::ToServer => counts.to_server_bytes += forward.len() as u64,
            Direction::ToClient => counts.to_client_bytes += forward.len() as u64,
        });
        if let Some(end) = end {
            return end;
        }
    }
}
