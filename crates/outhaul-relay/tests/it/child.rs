//! A relay as a process of its own: this very test binary, started again for one test.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, Stop};
use outhaul_sink::Sink;
use outhaul_sink::rocketmq::{RocketMqConfig, RocketMqSink};
use outhaul_store::StoreOptions;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStdin, Command};

use crate::collector::{CollectorSink, Notes};
use crate::rocketmq::NotedSink;

pub const LEASE_TTL_MS: u64 = 1_000;
pub const DESTINATION: &str = "collector";

const URL: &str = "OUTHAUL_CHILD_URL";
const TARGET: &str = "OUTHAUL_CHILD_TARGET";
const UNKNOWN: &str = "OUTHAUL_CHILD_UNKNOWN";
const FENCES: &str = "OUTHAUL_CHILD_FENCES";
const OWNER: &str = "OUTHAUL_CHILD_OWNER";

/// Where a relay process delivers to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Target {
    /// The test's own collector. Answers at once, so that all limits are short.
    Collector(SocketAddr),
    /// RocketMQ, with a longer limit of its own.
    RocketMq(Box<RocketMqConfig>),
}

impl Target {
    fn sink(&self, notes: Arc<Notes>) -> Arc<dyn Sink> {
        match self {
            Self::Collector(address) => Arc::new(CollectorSink::new(*address, notes)),
            Self::RocketMq(config) => Arc::new(NotedSink::new(RocketMqSink::new((**config).clone(), None), notes)),
        }
    }

    fn limits(&self) -> LaneLimits {
        match self {
            Self::Collector(_) => LaneLimits { send_limit_ms: 300, max_batch: 100, ..LaneLimits::default() },
            Self::RocketMq(config) => LaneLimits {
                send_limit_ms: config.request_limit_ms * 5 / 4,
                breaker_backoff_ms: (50, 1_000), // a start now and then is cheap here, and tests are short
                ..LaneLimits::default()
            },
        }
    }

    fn settings(&self) -> Settings {
        let (lease_ttl_ms, lease_interval_ms) = match self {
            Self::Collector(_) => (LEASE_TTL_MS, 250),
            Self::RocketMq(config) => (config.request_limit_ms * 2, 400),
        };
        Settings { lease_ttl_ms, lease_interval_ms, ..Settings::default() }
    }
}

/// A running relay process.
pub struct RelayProcess {
    pub child: Child,
    /// Closed when this process ends: then the child ends too.
    _stdin: Option<ChildStdin>,
}

impl RelayProcess {
    /// `unknown`: a file for ids that may arrive once more, because their send was not answered in time or, with
    /// `fences`, because the relay lost its shard.
    pub fn start(url: &str, target: &Target, owner: &str, unknown: &Path, fences: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::relay_process", "--nocapture"])
            .env(UNKNOWN, unknown)
            .env(FENCES, fences.to_string())
            .envs([(URL, url), (OWNER, owner), (TARGET, &serde_json::to_string(target).unwrap())])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let _stdin = child.stdin.take(); // Waiting for the child would close it.
        Self { child, _stdin }
    }

    /// SIGKILL, and waits until the process is gone.
    pub async fn kill9(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub async fn signal(&self, signal: &str) {
        let pid = self.child.id().expect("a running process").to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
    }

    /// A process that has only just begun would die of SIGTERM as of any other signal.
    async fn handles_sigterm(&self) {
        const SIGTERM: u64 = 1 << 14;
        let status = format!("/proc/{}/status", self.child.id().expect("a running process"));
        let handled = async {
            loop {
                let text = std::fs::read_to_string(&status).unwrap_or_default();
                let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
                if mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|m| m & SIGTERM != 0) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await; // There is no signal for it.
            }
        };
        tokio::time::timeout(Duration::from_secs(30), handled).await.expect("the relay comes to handle SIGTERM");
    }

    /// SIGTERM; the process must end by itself, with success.
    pub async fn terminate(&mut self) {
        self.handles_sigterm().await;
        self.signal("-TERM").await;
        let status = tokio::time::timeout(Duration::from_secs(30), self.child.wait()).await;
        let status = status.expect("the relay must drain within its limit").unwrap();
        assert!(status.success(), "a clean stop ends with success: {status}");
    }
}

/// The log of the process, in which a lost shard is noticed.
#[derive(Clone)]
struct Log {
    notes: Arc<Notes>,
    fences: bool,
}

impl std::io::Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        if ["WARN", "ERROR", "OUT-"].iter().any(|word| text.contains(word)) {
            self.notes.logged(line);
        }
        if self.fences && ["OUT-4006", "OUT-4007"].iter().any(|code| text.contains(code)) {
            self.notes.fenced();
        }
        if std::env::var_os("OUTHAUL_TEST_LOG").is_some() || text.contains("ERROR") {
            std::io::stderr().write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Not a test: the process that [`RelayProcess::start`] starts.
#[test]
fn relay_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let notes = Notes::new(std::env::var_os(UNKNOWN).unwrap().into());
    let log = Log { notes: Arc::clone(&notes), fences: std::env::var(FENCES).unwrap() == "true" };
    let level = std::env::var("OUTHAUL_TEST_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(level).with_ansi(false).with_writer(move || log.clone()).init();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        let stop = Stop::new();
        let stopping = stop.clone();
        tokio::spawn(async move {
            let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
            let mut end = [0];
            let mut stdin = tokio::io::stdin();
            tokio::select! {
                _ = terminate.recv() => stopping.drain(),
                _ = stdin.read(&mut end) => std::process::exit(1),
            }
        });
        let target: Target = serde_json::from_str(&std::env::var(TARGET).unwrap()).unwrap();
        let outbox = Outbox {
            name: "test".into(),
            store: outhaul_store::open(StoreOptions::new(url)).await.unwrap(),
            destinations: vec![Destination {
                name: DESTINATION.into(),
                sink: target.sink(notes),
                limits: target.limits(),
                require_ack: None,
            }],
            routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
            settings: target.settings(),
            owner: std::env::var(OWNER).unwrap(),
            until_empty: false,
            shutdown_limit_ms: 20_000,
            maintenance: None,
            transactions: None,
            watch: None,
        };
        if let Err(e) = outhaul_relay::run(vec![outbox], stop).await {
            eprintln!("relay: {e}");
            std::process::exit(3);
        }
        // The thread that waits on the standard input would keep the runtime from ending.
        std::process::exit(0);
    });
}
