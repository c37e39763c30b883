//! The relay inside of the application's own process, for those that do not want a daemon.
//!
//! It is the same engine as `outhaul relay`. Several processes may run one, beside each other and beside the daemon: they
//! share the shards by leases in the database. What the daemon has besides is its configuration file and its commands,
//! which work on the same tables.

use std::sync::Arc;
use std::time::Duration;

pub use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::{DestinationIndex, MAX_DESTINATIONS};
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Maintenance, RelayError, Report, Stop};
pub use outhaul_sink::Sink;
use outhaul_sink::SinkError;
use outhaul_store::StoreError;
pub use outhaul_store::StoreOptions;
use tokio::task::JoinHandle;

/// The drain of a relay is cut off after this time.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(60);

/// Why a relay does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayFailure {
    /// The database cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The keys of a destination cannot be used.
    #[error("{} {}", .0.code, .0.message)]
    Sink(SinkError),
    /// A route names a destination that there is not, or there are too many, or two of one name.
    #[error("OUT-5011 {0}")]
    Destinations(String),
    /// It ended before it was told to, or its drain was cut off.
    #[error(transparent)]
    Ended(#[from] RelayError),
    /// An internal task of it panicked.
    #[error("OUT-5012 the relay's task ended unexpectedly: {0}")]
    Lost(String),
}

impl RelayFailure {
    /// `OUT-nnnn`: `outhaul explain CODE` prints its page.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Store(error) => error.kind.code(),
            Self::Sink(error) => error.code,
            Self::Destinations(_) => "OUT-5011",
            Self::Ended(error) => error.code(),
            Self::Lost(_) => "OUT-5012",
        }
    }
}

/// What a relay is made of.
pub struct Relay {
    options: StoreOptions,
    destinations: Vec<Destination>,
    routes: Vec<(String, Vec<String>)>,
    settings: Settings,
    retention: Option<Duration>,
    instance: String,
    failure: Option<SinkError>,
}

/// A relay that runs. Dropped, it drains in the background, which nobody waits for: prefer [`stop`](Self::stop).
pub struct RunningRelay {
    stop: Stop,
    task: JoinHandle<Result<Report, RelayError>>,
}

impl Relay {
    /// A relay for the outbox of the database that a URL names: `sqlite:PATH`, `mysql://…`, `postgres://…`. A database is
    /// in the build if one of its drivers is among this crate's features.
    pub fn new(url: impl Into<String>) -> Self {
        Self::with(StoreOptions::new(url))
    }

    /// The same with more to say of the database: prefix, names of tables and columns, TLS, limits.
    pub fn with(options: StoreOptions) -> Self {
        Self {
            options,
            destinations: Vec::new(),
            routes: Vec::new(),
            settings: Settings::default(),
            retention: Some(Maintenance::default().retention),
            instance: format!("application-{}", std::process::id()),
            failure: None,
        }
    }

    /// Adds a destination by its kind and keys, those of a `[[destination]]` in docs/configuration.md: `file` and `inbox`,
    /// with the feature `relay-rocketmq` also `rocketmq`.
    #[must_use]
    pub fn destination(mut self, name: &str, kind: &str, keys: serde_json::Value) -> Self {
        match outhaul_sink::make(kind, name, keys, None) {
            Ok(sink) => self.sink(name, sink, LaneLimits::default()),
            Err(error) => {
                self.failure.get_or_insert(error);
                self
            }
        }
    }

    /// Adds a destination of the application's own, with the limits of its lanes.
    #[must_use]
    pub fn sink(mut self, name: &str, sink: Arc<dyn Sink>, limits: LaneLimits) -> Self {
        self.destinations.push(Destination { name: name.into(), sink, limits, require_ack: None });
        self
    }

    /// Delivers the topics of a pattern (`*` stands for any run of characters) to these destinations. A topic that no
    /// route names is parked.
    #[must_use]
    pub fn route<'a>(mut self, topic: &str, to: impl IntoIterator<Item = &'a str>) -> Self {
        self.routes.push((topic.into(), to.into_iter().map(str::to_owned).collect()));
        self
    }

    /// Limits of the engine: leases, checkpoints, memory.
    #[must_use]
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// How long the log keeps what every destination has settled. None: somebody else prunes. Default 7 days.
    #[must_use]
    pub fn retention(mut self, retention: Option<Duration>) -> Self {
        self.retention = retention;
        self
    }

    /// What this instance is called in `outhaul status`. Default: `application-` and the process's number.
    #[must_use]
    pub fn instance(mut self, name: &str) -> Self {
        self.instance = name.into();
        self
    }

    /// Starts it as a task of the current tokio runtime. A destination that is down does not keep it from starting.
    ///
    /// # Errors
    /// Keys or routes that cannot be used; a database that does not answer.
    pub async fn start(self) -> Result<RunningRelay, RelayFailure> {
        if let Some(error) = self.failure {
            return Err(RelayFailure::Sink(error));
        }
        let routes = routes(&self.routes, &self.destinations)?;
        let is_native = self.options.status.is_none();
        let store = outhaul_store::open(self.options).await?;
        if is_native && let Err(e) = outhaul_store::refuse_unfinished_migration(&*store).await {
            store.close().await;
            return Err(e.into());
        }
        let outbox = outhaul_relay::Outbox {
            name: "main".into(),
            store,
            destinations: self.destinations,
            routes,
            transactions: Some(outhaul_relay::Transactions::default()),
            watch: None,
            settings: self.settings,
            // Not that of any other process, nor of an earlier one.
            owner: format!("{}#{}", self.instance, uuid::Uuid::now_v7().simple()),
            until_empty: false,
            shutdown_limit_ms: SHUTDOWN_LIMIT.as_secs() * 1_000,
            maintenance: self.retention.map(|retention| Maintenance { retention, ..Maintenance::default() }),
        };
        let stop = Stop::new();
        let task = tokio::spawn(outhaul_relay::run(vec![outbox], stop.clone()));
        Ok(RunningRelay { stop, task })
    }
}

fn routes(routes: &[(String, Vec<String>)], destinations: &[Destination]) -> Result<Routes, RelayFailure> {
    if destinations.len() > MAX_DESTINATIONS {
        return Err(RelayFailure::Destinations(format!("a relay serves up to {MAX_DESTINATIONS} destinations")));
    }
    for (n, d) in destinations.iter().enumerate() {
        if destinations.iter().skip(n + 1).any(|other| other.name == d.name) {
            return Err(RelayFailure::Destinations(format!("two destinations are named {:?}", d.name)));
        }
    }
    let index = |name: &String| {
        let at = destinations.iter().position(|d| d.name == *name).and_then(|at| u8::try_from(at).ok());
        let at =
            at.ok_or_else(|| RelayFailure::Destinations(format!("a route names {name:?}, which is no destination")));
        at.map(DestinationIndex)
    };
    let route = |(pattern, to): &(String, Vec<String>)| -> Result<Route, RelayFailure> {
        Ok(Route { pattern: pattern.clone(), to: to.iter().map(index).collect::<Result<_, _>>()? })
    };
    let routes: Result<Vec<Route>, RelayFailure> = routes.iter().map(route).collect();
    Ok(Routes::new(routes?))
}

impl RunningRelay {
    /// Whether it has ended by itself: then [`stop`](Self::stop) says why. A database that is away does not end it.
    pub fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Begins no more sends, waits for those under way, writes the last checkpoint and gives the shards to others. Nothing
    /// is sent twice because of it.
    ///
    /// # Errors
    /// It had ended before, or the drain was cut off after a minute. Nothing is lost; what was delivered since the last
    /// checkpoint is delivered again.
    pub async fn stop(mut self) -> Result<(), RelayFailure> {
        self.stop.drain();
        match (&mut self.task).await {
            Ok(ended) => ended.map(|_| ()).map_err(RelayFailure::from),
            Err(lost) => Err(RelayFailure::Lost(lost.to_string())),
        }
    }
}

impl Drop for RunningRelay {
    fn drop(&mut self) {
        self.stop.drain();
    }
}

/// Makes the tables of an outbox that are missing, as `outhaul init` does: for tests and embedded databases. One shard.
///
/// # Errors
/// The database's.
pub async fn make_tables(options: StoreOptions) -> Result<(), StoreError> {
    let store = outhaul_store::open(options).await?;
    let made = store.init(&outhaul_store::InitPlan::default()).await;
    store.close().await;
    made
}
