//! A relay inside the test's own process, with destinations that the test scripts.

use std::sync::Arc;
use std::time::Duration;

use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::watch::Watch;
use outhaul_relay::{Destination, Maintenance, Outbox, RelayError, Report, Stop, Transactions};
use outhaul_sink::Sink;
use outhaul_store::{InitPlan, ShardStatus, Store, StoreOptions};
use outhaul_testkit::scripted::ScriptedSink;
use outhaul_testkit::servers::{self, Flavour, TestDatabase};
use tokio::task::JoinHandle;

/// How long a test waits for what must happen.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A database with tables, and what a relay on it is made of.
pub struct Bench {
    pub database: TestDatabase,
    pub options: StoreOptions,
    /// A store of the test's own.
    pub store: Arc<dyn Store>,
    pub settings: Settings,
    pub limits: LaneLimits,
    /// Whether relays end by themselves once all is settled.
    pub until_empty: bool,
    pub maintenance: Option<Maintenance>,
    pub transactions: Option<Transactions>,
    pub watch: Option<Watch>,
    /// Name of the outbox.
    pub name: String,
    owners: usize,
}

/// A relay that runs.
pub struct Running {
    pub stop: Stop,
    pub task: JoinHandle<Result<Report, RelayError>>,
}

impl Bench {
    pub async fn new(flavour: Flavour) -> Self {
        Self::with(flavour, |_| {}).await
    }

    pub async fn with(flavour: Flavour, change: impl FnOnce(&mut StoreOptions)) -> Self {
        if let Ok(level) = std::env::var("OUTHAUL_TEST_LOG") {
            let _ = tracing_subscriber::fmt().with_env_filter(level).with_test_writer().try_init();
        }
        let database = servers::create(flavour).await;
        let mut options = StoreOptions::new(database.url.clone());
        change(&mut options);
        let store = outhaul_store::open(options.clone()).await.unwrap();
        let shards = if flavour == Flavour::Sqlite { 1 } else { 2 };
        store.init(&InitPlan { shards, ..InitPlan::default() }).await.unwrap();
        let settings =
            Settings { lease_ttl_ms: 2_000, lease_interval_ms: 300, checkpoint_quiet_ms: 100, ..Settings::default() };
        let limits = LaneLimits {
            send_limit_ms: 500,
            quick_backoff_ms: (5, 20),
            retry_backoff_ms: (50, 200),
            breaker_backoff_ms: (20, 200),
            ..LaneLimits::default()
        };
        Self {
            database,
            options,
            store,
            settings,
            limits,
            until_empty: false,
            maintenance: None,
            transactions: None,
            watch: None,
            name: "test".into(),
            owners: 0,
        }
    }

    /// Starts a relay that sends everything to all these destinations, named `d0`, `d1`, …
    pub async fn relay(&mut self, sinks: &[&ScriptedSink]) -> Running {
        self.relay_with(sinks, "*").await
    }

    pub async fn relay_with(&mut self, sinks: &[&ScriptedSink], pattern: &str) -> Running {
        self.relay_into(sinks.iter().map(|s| s.sink()).collect(), pattern).await
    }

    pub async fn relay_into(&mut self, sinks: Vec<Arc<dyn Sink>>, pattern: &str) -> Running {
        let destination = |(n, sink): (usize, Arc<dyn Sink>)| Destination {
            name: format!("d{n}"),
            sink,
            limits: self.limits.clone(),
            require_ack: None,
        };
        let destinations = sinks.into_iter().enumerate().map(destination).collect();
        self.relay_of(destinations, pattern).await
    }

    pub async fn relay_of(&mut self, destinations: Vec<Destination>, pattern: &str) -> Running {
        self.owners += 1;
        let to = (0..destinations.len() as u8).map(DestinationIndex).collect();
        let outbox = Outbox {
            name: self.name.clone(),
            store: outhaul_store::open(self.options.clone()).await.unwrap(),
            destinations,
            routes: Routes::new(vec![Route { pattern: pattern.into(), to }]),
            settings: self.settings.clone(),
            owner: format!("owner-{}", self.owners),
            until_empty: self.until_empty,
            shutdown_limit_ms: 20_000,
            maintenance: self.maintenance.clone(),
            transactions: self.transactions.clone(),
            watch: self.watch.clone(),
        };
        let stop = Stop::new();
        Running { task: tokio::spawn(outhaul_relay::run(vec![outbox], stop.clone())), stop }
    }

    pub async fn insert(&self, id: &str, key: &str) {
        self.database.execute(&insert(id, key)).await;
    }

    /// Many rows in one transaction, ids `FROM…`, keys by turns out of five.
    pub async fn insert_many(&self, numbers: std::ops::Range<usize>) {
        let values: Vec<String> =
            numbers.map(|n| format!("('m{n}', 'order-created', 'k{}', '{{\"n\":{n}}}')", n % 5)).collect();
        self.database
            .execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {}", values.join(",")))
            .await;
    }

    pub async fn status(&self) -> Vec<ShardStatus> {
        self.store.status().await.unwrap()
    }

    /// Waits until the database shows something: a process of its own writes it, so there is no signal for it.
    pub async fn wait(&self, what: &str, until: impl Fn(&[ShardStatus]) -> bool) {
        let waiting = async {
            while !until(&self.status().await) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(LIMIT, waiting).await.is_err() {
            panic!("not within {LIMIT:?}: {what}; {:#?}", self.status().await);
        }
    }

    /// Waits until nothing is hot and every lane has reached the end of the log.
    pub async fn wait_settled(&self) {
        self.wait("all settled", |shards| {
            shards.iter().all(|s| s.hot_rows == 0 && s.lanes.lanes.iter().all(|(l, _)| l.cursor == s.log_end))
        })
        .await;
    }

    /// Parked messages of a destination: retrying, waiting, dead.
    pub async fn parked(&self, destination: &str) -> (u64, u64, u64) {
        self.status()
            .await
            .iter()
            .flat_map(|s| &s.parked)
            .filter(|(d, ..)| d == destination)
            .fold((0, 0, 0), |(r, w, d), (_, r2, w2, d2)| (r + r2, w + w2, d + d2))
    }
}

impl Running {
    /// Drains; it must end well.
    pub async fn drain(self) -> Report {
        self.stop.drain();
        tokio::time::timeout(LIMIT, self.task).await.expect("the relay drains").unwrap().expect("a clean end")
    }

    /// Stops at once, as if killed.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

pub fn insert(id: &str, key: &str) -> String {
    format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('{id}', 'order-created', '{key}', '{{\"x\":1}}')")
}

/// Begins a transaction that writes.
pub fn begin(flavour: Flavour) -> &'static str {
    if flavour == Flavour::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }
}
