//! A relay in a process of its own, so that its CPU and memory can be told from the bench's.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, Stop};
use outhaul_sink::{AckLevel, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo};
use outhaul_store::StoreOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

const SLOTS: u32 = 4;

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
}

/// Starts a child; it ends when its standard input closes.
pub fn start(url: &str, collector: Option<SocketAddr>, lanes: u8) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["child", "--url", url, "--lanes", &lanes.to_string()]).stdin(Stdio::piped()).kill_on_drop(true);
    if let Some(address) = collector {
        command.args(["--collector", &address.to_string()]);
    }
    command.spawn().expect("a relay process")
}

/// Lets a child drain and end.
pub async fn stop(mut child: Child) {
    drop(child.stdin.take());
    child.wait().await.expect("the relay process ends");
}

/// Reports the ids of each batch and waits for one byte.
struct Reporting {
    to: Option<SocketAddr>,
    connections: Vec<Mutex<Option<TcpStream>>>,
}

impl Reporting {
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

/// Runs the relay until standard input closes.
pub async fn run(arguments: Arguments) {
    let stop = Stop::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let mut rest = Vec::new();
        let _ = tokio::io::stdin().read_to_end(&mut rest).await;
        stopping.drain();
    });
    let destinations: Vec<Destination> = (0..arguments.lanes)
        .map(|n| Destination {
            name: format!("sink-{n}"),
            sink: Arc::new(Reporting {
                to: arguments.collector.filter(|_| n == 0),
                connections: (0..SLOTS).map(|_| Mutex::default()).collect(),
            }),
            limits: LaneLimits::default(),
            require_ack: None,
        })
        .collect();
    let outbox = Outbox {
        name: "bench".into(),
        store: outhaul_store::open(StoreOptions::new(arguments.url)).await.expect("a store"),
        routes: Routes::new(vec![Route {
            pattern: "*".into(),
            to: (0..arguments.lanes).map(DestinationIndex).collect(),
        }]),
        destinations,
        settings: Settings::default(),
        owner: format!("bench-{}", std::process::id()),
        until_empty: false,
        shutdown_limit_ms: 30_000,
        maintenance: None,
    };
    if let Err(e) = outhaul_relay::run(vec![outbox], stop).await {
        eprintln!("relay: {e}");
        std::process::exit(1);
    }
}
