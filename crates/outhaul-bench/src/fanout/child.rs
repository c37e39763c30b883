//! Outhaul or its rival in a process of its own, so that its memory can be told from the bench's.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, Stop};
use outhaul_sink::Sink;
use outhaul_store::StoreOptions;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use super::destinations::{Part, made};
use super::troubled::Troubled;
use super::{Design, SEND_LIMIT, rival};

/// A line that turns the bad destinations bad, and one that ends it.
const TROUBLE: &str = "trouble";
const WELL: &str = "well";

/// What the child is told. It ends when its standard input closes.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    design: Design,
    /// The destinations, as JSON.
    #[arg(long)]
    parts: String,
    /// Where the acknowledgements of each destination are noted: this and its number.
    #[arg(long)]
    acks: PathBuf,
}

/// Starts one.
pub fn start(url: &str, design: Design, parts: &[Part], acks: &Path) -> Child {
    let parts: Vec<Value> = parts.iter().map(Part::to_json).collect();
    let design = clap::ValueEnum::to_possible_value(&design).expect("a design has a name");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["fanout-child", "--url", url, "--design", design.get_name(), "--acks"]).arg(acks);
    command.args(["--parts", &Value::from(parts).to_string()]);
    command.stdin(Stdio::piped()).kill_on_drop(true).spawn().expect("a relay process")
}

/// Turns the bad destinations bad, or well again.
pub async fn tell(child: &mut Child, trouble: bool) {
    let line = format!("{}\n", if trouble { TROUBLE } else { WELL });
    child.stdin.as_mut().expect("its input").write_all(line.as_bytes()).await.expect("it listens");
}

/// Where the acknowledgements of a destination are noted.
pub fn acks_of(acks: &Path, destination: usize) -> PathBuf {
    acks.with_extension(destination.to_string())
}

/// Runs it until standard input closes.
pub async fn run(arguments: Arguments) {
    let trouble = Arc::new(AtomicBool::new(false));
    let (ending, ends) = watch::channel(false);
    let heard = trouble.clone();
    tokio::spawn(async move {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            heard.store(line == TROUBLE, Ordering::Relaxed);
        }
        ending.send_replace(true);
    });
    let parts: Vec<Value> = serde_json::from_str(&arguments.parts).expect("a list of destinations");
    let sinks = parts.iter().enumerate().map(|(n, part)| {
        let (name, sink, bad) = made(part);
        let sink = Troubled::new(sink, bad, trouble.clone(), &acks_of(&arguments.acks, n));
        (name, Arc::new(sink) as Arc<dyn Sink>)
    });
    let sinks: Vec<_> = sinks.collect();
    match arguments.design {
        Design::Outhaul => outhaul(arguments.url, sinks, ends).await,
        Design::InTurn => rival::run(&arguments.url, sinks, false, ends).await,
        Design::Joined => rival::run(&arguments.url, sinks, true, ends).await,
    }
}

async fn outhaul(url: String, sinks: Vec<(String, Arc<dyn Sink>)>, mut ends: watch::Receiver<bool>) {
    let stop = Stop::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        _ = ends.wait_for(|ends| *ends).await;
        stopping.drain();
    });
    let to = (0..sinks.len() as u8).map(DestinationIndex).collect();
    let limits = LaneLimits { send_limit_ms: SEND_LIMIT.as_millis() as u64, ..LaneLimits::default() };
    let destination = |(name, sink)| Destination { name, sink, limits: limits.clone(), require_ack: None };
    let outbox = Outbox {
        name: "bench".into(),
        store: outhaul_store::open(StoreOptions::new(url)).await.expect("a store"),
        destinations: sinks.into_iter().map(destination).collect(),
        routes: Routes::new(vec![Route { pattern: "*".into(), to }]),
        settings: Settings::default(),
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
