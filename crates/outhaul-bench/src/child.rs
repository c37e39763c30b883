//! A relay in a process of its own, so that its CPU and memory can be told from the bench's.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, Stop};
use outhaul_sink::{AckLevel, Acknowledged, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo, Verified};
use outhaul_store::StoreOptions;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::measure::now_us;
use crate::{parked, rocketmq};

/// Connections to a collector.
pub const SLOTS: u32 = 4;

/// What the child is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long)]
    url: String,
    /// Where ids are reported to, a line each; none: they are only counted.
    #[arg(long)]
    collector: Option<SocketAddr>,
    #[arg(long, default_value_t = 1)]
    lanes: u8,
    /// A RocketMQ name server that everything is delivered to instead.
    #[arg(long, requires = "topic_prefix")]
    namesrv: Option<String>,
    #[arg(long)]
    topic_prefix: Option<String>,
    /// Where ids and the times of their acknowledgements are written at the end, microseconds since 1970.
    #[arg(long)]
    acks: Option<PathBuf>,
    /// Wait between two polls while rows come, microseconds; none: the default.
    #[arg(long)]
    poll_busy_us: Option<u64>,
    /// Every message is refused.
    #[arg(long)]
    refuse: bool,
}

/// Starts a child; it ends when its standard input closes.
pub fn start(url: &str, collector: Option<SocketAddr>, lanes: u8, poll_busy_us: Option<u64>) -> Child {
    let mut command = command(url, poll_busy_us);
    command.args(["--lanes", &lanes.to_string()]);
    if let Some(address) = collector {
        command.args(["--collector", &address.to_string()]);
    }
    command.spawn().expect("a relay process")
}

/// Starts a child that refuses everything.
pub fn start_refusing(url: &str) -> Child {
    command(url, None).arg("--refuse").spawn().expect("a relay process")
}

/// The same with a RocketMQ destination.
pub fn start_to_rocketmq(
    url: &str,
    (namesrv, topic_prefix): (&str, &str),
    acks: &Path,
    poll_busy_us: Option<u64>,
) -> Child {
    let mut command = command(url, poll_busy_us);
    command.args(["--namesrv", namesrv, "--topic-prefix", topic_prefix, "--acks"]).arg(acks);
    command.spawn().expect("a relay process")
}

/// A hand-made relay that polls so often.
pub fn start_hand_made(url: &str, (namesrv, topic): (&str, &str), wait_us: u64) -> Child {
    let mut command = of_kind("hand-made", url);
    command.args(["--namesrv", namesrv, "--topic", topic, "--wait-us", &wait_us.to_string()]);
    command.spawn().expect("a relay process")
}

fn of_kind(kind: &str, url: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([kind, "--url", url]).stdin(Stdio::piped()).kill_on_drop(true);
    command
}

fn command(url: &str, poll_busy_us: Option<u64>) -> Command {
    let mut command = of_kind("child", url);
    if let Some(wait) = poll_busy_us {
        command.args(["--poll-busy-us", &wait.to_string()]);
    }
    command
}

/// Lets a child drain and end.
pub async fn stop(mut child: Child) {
    drop(child.stdin.take());
    child.wait().await.expect("the relay process ends");
}

/// Reports the ids of each batch and waits for one byte.
pub struct Reporting {
    to: Option<SocketAddr>,
    connections: Vec<Mutex<Option<TcpStream>>>,
}

impl Reporting {
    /// To a collector; None: they are only counted.
    pub fn new(to: Option<SocketAddr>) -> Self {
        Self { to, connections: (0..SLOTS).map(|_| Mutex::default()).collect() }
    }

    async fn report(&self, to: SocketAddr, slot: u32, messages: &[Arc<Message>]) -> std::io::Result<()> {
        let place = &self.connections[slot as usize];
        let kept = place.lock().expect("a connection").take();
        let mut stream = match kept {
            Some(s) => s,
            None => {
                let s = TcpStream::connect(to).await?;
                s.set_nodelay(true)?;
                s
            }
        };
        let mut body: String = messages.iter().map(|m| format!("{}\n", m.id)).collect();
        body.push('\n');
        stream.write_all(body.as_bytes()).await?;
        stream.read_u8().await?;
        *place.lock().expect("a connection") = Some(stream);
        Ok(())
    }
}

#[async_trait]
impl Sink for Reporting {
    fn slotting(&self) -> Slotting {
        Slotting::ByKey(SLOTS)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        Ok(SinkInfo { level: AckLevel::Flushed, warnings: Vec::new(), ..SinkInfo::default() })
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let outcome = match self.to {
            None => Outcome::Delivered(Receipt { level: AckLevel::Flushed, ..Receipt::default() }),
            Some(to) => match self.report(to, slot, messages).await {
                Ok(()) => Outcome::Delivered(Receipt { level: AckLevel::Flushed, ..Receipt::default() }),
                Err(e) => Outcome::Unknown(Reason::new("OUT-2000", e.to_string())),
            },
        };
        vec![outcome; messages.len()]
    }

    async fn close(&self) {}
}

/// The other end of [`Reporting`]: hands over each id, and answers each batch.
pub async fn collect(stream: TcpStream, mut hand_over: impl AsyncFnMut(String)) {
    let _ = stream.set_nodelay(true);
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if !line.is_empty() {
            hand_over(line).await;
        } else if lines.get_mut().write_u8(1).await.is_err() {
            return;
        }
    }
}

/// Refuses every message, each for one of a few reasons.
struct Refusing;

#[async_trait]
impl Sink for Refusing {
    fn slotting(&self) -> Slotting {
        Slotting::ByKey(SLOTS)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        Ok(SinkInfo { level: AckLevel::Flushed, warnings: Vec::new(), ..SinkInfo::default() })
    }

    async fn send(&self, _slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let refused = |m: &Arc<Message>| {
            let code = parked::reason_of(&m.id);
            Outcome::Rejected(Reason::new(code, format!("{}: the field total must not be negative", m.id)))
        };
        messages.iter().map(refused).collect()
    }

    async fn close(&self) {}
}

/// Notes when each message was acknowledged.
struct Noting {
    inner: Arc<dyn Sink>,
    to: PathBuf,
    acks: Mutex<Vec<(Arc<str>, u64)>>,
}

#[async_trait]
impl Sink for Noting {
    fn slotting(&self) -> Slotting {
        self.inner.slotting()
    }

    fn recall(&self, memory: &str) {
        self.inner.recall(memory);
    }

    fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        self.inner.memory(kept)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        self.inner.start().await
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let outcomes = self.inner.send(slot, messages).await;
        let at = now_us();
        let mut acks = self.acks.lock().expect("the times");
        for (message, _) in messages.iter().zip(&outcomes).filter(|(_, o)| matches!(o, Outcome::Delivered(_))) {
            acks.push((message.id.as_str().into(), at));
        }
        outcomes
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        self.inner.verify(acknowledged).await
    }

    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        self.inner.prove(receipts).await
    }

    async fn close(&self) {
        self.inner.close().await;
        let acks = std::mem::take(&mut *self.acks.lock().expect("the times"));
        let lines: String = acks.iter().map(|(id, at)| format!("{id} {at}\n")).collect();
        std::fs::write(&self.to, lines).expect("the file of times");
    }
}

/// Waits until standard input closes.
pub async fn input_closes() {
    let mut rest = Vec::new();
    let _ = tokio::io::stdin().read_to_end(&mut rest).await;
}

/// Runs the relay until standard input closes.
pub async fn run(arguments: Arguments) {
    let stop = Stop::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        input_closes().await;
        stopping.drain();
    });
    let mut destinations: Vec<Destination> = (0..arguments.lanes)
        .map(|n| Destination {
            name: format!("sink-{n}"),
            sink: if arguments.refuse {
                Arc::new(Refusing)
            } else {
                Arc::new(Reporting::new(arguments.collector.filter(|_| n == 0)))
            },
            limits: LaneLimits::default(),
            require_ack: None,
        })
        .collect();
    if let (Some(namesrv), Some(prefix), [first, ..]) =
        (&arguments.namesrv, &arguments.topic_prefix, destinations.as_mut_slice())
    {
        first.sink = rocketmq::sink(namesrv, prefix);
        if let Some(to) = arguments.acks {
            first.sink = Arc::new(Noting { inner: first.sink.clone(), to, acks: Mutex::default() });
        }
    }
    let mut settings = Settings::default();
    settings.poll_busy_us = arguments.poll_busy_us.unwrap_or(settings.poll_busy_us);
    let outbox = Outbox {
        name: "bench".into(),
        store: outhaul_store::open(StoreOptions::new(arguments.url)).await.expect("a store"),
        routes: Routes::new(vec![Route {
            pattern: "*".into(),
            to: (0..arguments.lanes).map(DestinationIndex).collect(),
        }]),
        destinations,
        settings,
        owner: format!("bench-{}", std::process::id()),
        until_empty: false,
        shutdown_limit_ms: 30_000,
        maintenance: None,
        transactions: None,
        watch: None,
    };
    if let Err(e) = outhaul_relay::run(vec![outbox], stop).await {
        eprintln!("relay: {e}");
        std::process::exit(1);
    }
}
