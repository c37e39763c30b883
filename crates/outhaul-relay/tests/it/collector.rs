//! A destination that outlives the relay: it writes down every message that arrives, in order, and acknowledges it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_sink::{AckLevel, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo};
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
pub struct Collector {
    pub address: SocketAddr,
    pub arrivals: Arc<Mutex<Arrivals>>,
    distinct: watch::Sender<usize>,
}

impl Collector {
    pub async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            arrivals: Arc::default(),
            distinct: watch::Sender::new(0),
        });
        let serving = Arc::clone(&collector);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(Arc::clone(&serving), stream));
            }
        });
        collector
    }

    /// Waits until this many different ids have arrived.
    pub async fn wait_for(&self, distinct: usize, limit: Duration) -> bool {
        let mut watched = self.distinct.subscribe();
        tokio::time::timeout(limit, watched.wait_for(|n| *n >= distinct)).await.is_ok()
    }

    pub fn distinct(&self) -> usize {
        *self.distinct.borrow()
    }

    fn note(&self, lines: &str) {
        let mut arrivals = self.arrivals.lock().unwrap();
        for line in lines.lines() {
            let (id, key) = line.split_once(SEPARATOR).unwrap();
            let arrival = Arrival { id: id.to_owned(), key: key.to_owned() };
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
        let mut file = std::fs::File::options().create(true).append(true).open(&self.file).unwrap();
        file.write_all(lines.as_bytes()).unwrap();
    }
}

/// A batch under way. If it is dropped before it was answered, its ids are written down: they may arrive once more.
struct UnderWay<'a> {
    ids: Vec<&'a str>,
    notes: &'a Notes,
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
        self.notes.sent(messages.iter().map(|m| m.id.clone()));
        let mut under_way = UnderWay { ids: messages.iter().map(|m| m.id.as_str()).collect(), notes: &self.notes };
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
