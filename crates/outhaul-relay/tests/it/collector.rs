//! A destination that outlives the relay: it writes down every message that arrives, in order, and acknowledges it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_sink::{AckLevel, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo};
use rocketmq_remoting::message::MessageQueue;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub const SLOTS: u32 = 8;
const SEPARATOR: char = '\u{1f}';

/// One message that arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub id: String,
    pub key: String,
    /// Where it stands, if it is a broker's message.
    pub place: Option<Place>,
}

/// A message's place at a broker.
#[derive(Clone, Debug)]
pub struct Place {
    pub queue: Arc<MessageQueue>,
    pub offset: i64,
    /// When the relay sent it, in ms since 1970.
    pub sent_at_ms: i64,
}

/// All that arrived.
#[derive(Debug, Default)]
pub struct Arrivals {
    pub all: Vec<Arrival>,
    pub ids: HashSet<String>,
    /// Further copies by id.
    pub repeats: HashMap<String, usize>,
}

/// The destination's side.
#[derive(Default)]
pub struct Collector {
    pub arrivals: Arc<Mutex<Arrivals>>,
    distinct: watch::Sender<usize>,
}

impl Collector {
    /// Listens for relays.
    pub async fn listen(self: &Arc<Self>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = Arc::clone(self);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(Arc::clone(&serving), stream));
            }
        });
        address
    }

    /// Waits until this many different ids have arrived.
    pub async fn wait_for(&self, distinct: usize, limit: Duration) -> bool {
        let mut watched = self.distinct.subscribe();
        tokio::time::timeout(limit, watched.wait_for(|n| *n >= distinct)).await.is_ok()
    }

    /// Waits until all of these have arrived.
    pub async fn wait_for_all(&self, ids: &[String], limit: Duration) -> bool {
        let all = |_: &usize| {
            let arrived = self.arrivals.lock().unwrap();
            ids.iter().all(|id| arrived.ids.contains(id))
        };
        tokio::time::timeout(limit, self.distinct.subscribe().wait_for(all)).await.is_ok()
    }

    pub fn distinct(&self) -> usize {
        *self.distinct.borrow()
    }

    fn note(&self, lines: &str) {
        self.arrived(lines.lines().map(|line| {
            let (id, key) = line.split_once(SEPARATOR).unwrap();
            Arrival { id: id.to_owned(), key: key.to_owned(), place: None }
        }));
    }

    /// Notes what has arrived, in order.
    pub fn arrived(&self, all: impl Iterator<Item = Arrival>) {
        let mut arrivals = self.arrivals.lock().unwrap();
        for arrival in all {
            if !arrivals.ids.insert(arrival.id.clone()) {
                *arrivals.repeats.entry(arrival.id.clone()).or_default() += 1;
            }
            arrivals.all.push(arrival);
        }
        let distinct = arrivals.ids.len();
        drop(arrivals);
        self.distinct.send_replace(distinct);
    }
}

async fn serve(collector: Arc<Collector>, stream: TcpStream) {
    let mut stream = BufReader::new(stream);
    loop {
        let Ok(length) = stream.read_u32().await else { return };
        let mut body = vec![0; length as usize];
        if stream.read_exact(&mut body).await.is_err() {
            return; // Cut in the middle of a batch: it was never stored.
        }
        collector.note(std::str::from_utf8(&body).unwrap());
        if stream.write_u8(1).await.is_err() {
            return;
        }
    }
}

/// The relay's side.
pub struct CollectorSink {
    address: SocketAddr,
    connections: Vec<Mutex<Option<TcpStream>>>,
    notes: Arc<Notes>,
}

/// What a relay process notes for the test: ids that may rightly arrive once more.
#[derive(Debug)]
pub struct Notes {
    file: PathBuf,
    /// What was sent lately, oldest first.
    sent: Mutex<VecDeque<(Instant, String)>>,
}

impl Notes {
    /// Longer than any lease, checkpoint and restart of a database in these tests.
    const KEPT: Duration = Duration::from_secs(10);

    pub fn new(file: PathBuf) -> Arc<Self> {
        Arc::new(Self { file, sent: Mutex::default() })
    }

    fn sent(&self, ids: impl Iterator<Item = String>) {
        let now = Instant::now();
        let mut sent = self.sent.lock().unwrap();
        sent.extend(ids.map(|id| (now, id)));
        while sent.front().is_some_and(|(at, _)| now.duration_since(*at) > Self::KEPT) {
            sent.pop_front();
        }
    }

    /// This relay has lost a shard without a fault of the test's making (a lease round was late on a busy machine): the
    /// next owner sends again what was not stored yet.
    pub fn fenced(&self) {
        let sent = std::mem::take(&mut *self.sent.lock().unwrap());
        self.write(sent.iter().map(|(_, id)| id.as_str()));
    }

    fn write<'a>(&self, ids: impl Iterator<Item = &'a str>) {
        let lines: String = ids.map(|id| format!("{id}\n")).collect();
        self.append(&self.file, lines.as_bytes());
    }

    /// A line of the relay's log, kept for [`Scene::log`](crate::scene::Scene::log).
    pub fn logged(&self, line: &[u8]) {
        self.append(&log_beside(&self.file), line);
    }

    fn append(&self, path: &Path, bytes: &[u8]) {
        std::fs::File::options().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
    }
}

/// Where the log of a relay with these notes is.
pub fn log_beside(notes: &Path) -> PathBuf {
    notes.with_extension("log")
}

/// A batch under way. If it is dropped before it was answered, its ids are written down: they may arrive once more.
pub struct UnderWay<'a> {
    pub ids: Vec<&'a str>,
    notes: &'a Notes,
}

impl<'a> UnderWay<'a> {
    pub fn new(messages: &'a [Arc<Message>], notes: &'a Notes) -> Self {
        notes.sent(messages.iter().map(|m| m.id.clone()));
        Self { ids: messages.iter().map(|m| m.id.as_str()).collect(), notes }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        self.notes.write(self.ids.iter().copied());
    }
}

impl CollectorSink {
    pub fn new(address: SocketAddr, notes: Arc<Notes>) -> Self {
        Self { address, connections: (0..SLOTS).map(|_| Mutex::default()).collect(), notes }
    }

    async fn exchange(&self, slot: u32, body: &str) -> std::io::Result<()> {
        let place = &self.connections[slot as usize];
        let kept = place.lock().unwrap().take(); // A dropped call leaves none behind.
        let mut stream = match kept {
            Some(stream) => stream,
            None => TcpStream::connect(self.address).await?,
        };
        stream.set_nodelay(true)?;
        let mut frame = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
        frame.extend_from_slice(body.as_bytes());
        stream.write_all(&frame).await?;
        stream.read_u8().await?;
        *place.lock().unwrap() = Some(stream);
        Ok(())
    }
}

#[async_trait]
impl Sink for CollectorSink {
    fn slotting(&self) -> Slotting {
        Slotting::ByKey(SLOTS)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        Ok(SinkInfo { level: AckLevel::Flushed, warnings: Vec::new(), ..SinkInfo::default() })
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let body: String =
            messages.iter().map(|m| format!("{}{SEPARATOR}{}\n", m.id, m.key.as_deref().unwrap_or(""))).collect();
        let mut under_way = UnderWay::new(messages, &self.notes);
        let outcome = match self.exchange(slot, &body).await {
            Ok(()) => {
                under_way.ids.clear();
                Outcome::Delivered(Receipt { level: AckLevel::Flushed, ..Receipt::default() })
            }
            Err(e) => Outcome::Unknown(Reason::new("OUT-2000", e.to_string())),
        };
        vec![outcome; messages.len()]
    }

    async fn close(&self) {}
}
