//! The configuration: one TOML file, or a few arguments, with every key open to an override from the environment.
//!
//! ```text
//! file or arguments → tree → overrides → ${…} → sections → Config
//! ```
//!
//! Nothing stops at the first mistake: all of them are told together, each with its place, code and remedy.

mod build;
pub mod interpolate;
pub mod keys;
pub mod overrides;
mod problems;
pub mod reference;
mod section;
mod tree;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::receipt::AckLevel;
use outhaul_core::route::{Route, Routes};
use outhaul_inbox::Begin;
use outhaul_relay::Transactions;
use outhaul_sink::rocketmq::RocketMqConfig;
use outhaul_sink::{Rewrite, Sink, SinkError};
use outhaul_store::StoreOptions;

use self::interpolate::Surroundings;
use self::problems::Problems;
use self::value::{Node, Origin, Value};
use crate::codes;
use crate::failure::{Failure, Failures};

/// Name of the file that is read when none is named.
pub const DEFAULT_FILE: &str = "outhaul.toml";

/// Name of the outbox that `--db` stands for.
pub const DB_NAME: &str = "main";

/// All that was configured.
#[derive(Clone, Debug)]
pub struct Config {
    /// `[relay]`.
    pub relay: Relay,
    /// `[admin]`.
    pub admin: Admin,
    /// `[[outbox]]`: at least one.
    pub outboxes: Vec<Outbox>,
    /// `[[destination]]`, at most 64.
    pub destinations: Vec<Destination>,
    /// `[[route]]`.
    pub routes: Vec<RouteKeys>,
    /// `[[inbox]]`.
    pub inboxes: Vec<Inbox>,
    /// `[[reconcile]]`.
    pub reconciles: Vec<Reconcile>,
}

/// `[admin]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Admin {
    /// Where the admin server listens; None: nowhere.
    pub listen: Option<std::net::SocketAddr>,
}

/// `[[reconcile]]`.
#[derive(Clone, Debug)]
pub struct Reconcile {
    /// Name.
    pub name: String,
    /// Outbox; None: the only one.
    pub outbox: Option<String>,
    /// Destination; None: a query.
    pub destination: Option<String>,
    /// Query.
    pub query: Option<String>,
    /// Its database.
    pub query_db: Option<String>,
    /// Topics.
    pub topic: Option<String>,
    /// From one to the next, milliseconds.
    pub every_ms: u64,
    /// How far back, milliseconds.
    pub from_ms: u64,
    /// What is younger is not missing, milliseconds.
    pub settle_ms: u64,
    /// Whether what is missing is mended.
    pub fix: bool,
    /// Ids a second, thousandths.
    pub rate_milli: u64,
    /// Memory, bytes.
    pub memory: u64,
    /// Folder of temporary files.
    pub temp: Option<PathBuf>,
    /// What they hold at most, bytes.
    pub temp_limit: u64,
    /// Limit of reading, milliseconds.
    pub limit_ms: u64,
}

impl Reconcile {
    /// Whether it is one of this outbox. That there is only one where none is named was checked.
    pub fn is_of(&self, outbox: &Outbox) -> bool {
        self.outbox.as_ref().is_none_or(|name| *name == outbox.name)
    }
}

/// `[[inbox]]`.
#[derive(Clone, Debug)]
pub struct Inbox {
    /// Name.
    pub name: String,
    /// The brokers.
    pub broker: RocketMqConfig,
    /// How the database is opened.
    pub store: StoreOptions,
    /// Whether tables are made.
    pub create_tables: bool,
    /// Connections.
    pub connections: usize,
    /// Name under which messages are stored.
    pub consumer: String,
    /// Consumer group.
    pub group: String,
    /// Topics, with their tags.
    pub topics: Vec<String>,
    /// Where they begin.
    pub begin: Begin,
    /// Whether a dead message keeps later ones of its key waiting.
    pub block_key: bool,
    /// Most messages of a transaction.
    pub max_batch: usize,
    /// Most bytes of a transaction.
    pub max_batch_bytes: usize,
    /// Most bytes that are not stored yet.
    pub memory_limit: usize,
    /// How long done messages are kept; None: for ever.
    pub retention: Option<Duration>,
}

/// `[[route]]`.
#[derive(Clone, Debug, Default)]
pub struct RouteKeys {
    /// Topic pattern.
    pub topic: String,
    /// Names of destinations.
    pub to: Vec<String>,
    /// The topic of delivery, if it is another.
    pub rename: Option<String>,
    /// Tag of messages without one.
    pub tag: Option<String>,
}

impl RouteKeys {
    /// Whether it goes to a destination.
    pub fn goes_to(&self, destination: &str) -> bool {
        self.to.iter().any(|name| name == destination)
    }

    /// What it changes, if anything.
    pub fn rewrite(&self) -> Option<Rewrite> {
        let rewrite = Rewrite { pattern: self.topic.clone(), topic: self.rename.clone(), tag: self.tag.clone() };
        (rewrite.topic.is_some() || rewrite.tag.is_some()).then_some(rewrite)
    }
}

/// `[relay]`.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Name of the instance, if one was given.
    pub instance: Option<String>,
    /// What the engine goes by.
    pub settings: Settings,
    /// Limit of draining, milliseconds.
    pub shutdown_limit_ms: u64,
    /// Whether the relay prunes by itself.
    pub prune: bool,
    /// Age at which settled messages leave the log, milliseconds.
    pub retention_ms: u64,
    /// Folder for what leaves the log.
    pub export: Option<PathBuf>,
    /// Age at which closed hours are merged, milliseconds.
    pub merge_after_ms: u64,
}

/// `[[outbox]]`.
#[derive(Clone, Debug)]
pub struct Outbox {
    /// Name.
    pub name: String,
    /// How it is opened.
    pub store: StoreOptions,
    /// What becomes of transactional messages that the broker does not deliver. None: nothing.
    pub transactions: Option<Transactions>,
}

/// `[[destination]]`.
#[derive(Clone)]
pub struct Destination {
    /// Name.
    pub name: String,
    /// Kind: one that this build has.
    pub kind: String,
    /// The keys of its kind. May hold secrets.
    pub settings: serde_json::Value,
    /// Limits of its lanes.
    pub limits: LaneLimits,
    /// The least that an acknowledgement must prove.
    pub require_ack: Option<AckLevel>,
}

impl Destination {
    /// Whether what it has can be read, to be compared.
    pub fn can_be_read(&self) -> bool {
        match self.kind.as_str() {
            "inbox" | "rocketmq" => true,
            "file" => self.settings.get("path").and_then(|p| p.as_str()).is_some_and(|path| path != "-"),
            _ => false,
        }
    }
}

impl std::fmt::Debug for Destination {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Destination").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Config {
    /// The routes by index of destination. Names were checked when the configuration was read.
    pub fn routes(&self) -> Routes {
        let index = |name: &String| {
            let at = self.destinations.iter().position(|d| d.name == *name)?;
            u8::try_from(at).ok().map(DestinationIndex)
        };
        Routes::new(
            self.routes
                .iter()
                .map(|r| Route { pattern: r.topic.clone(), to: r.to.iter().filter_map(index).collect() })
                .collect(),
        )
    }

    /// Makes the sink of a destination, with what its routes change.
    ///
    /// # Errors
    /// As [`outhaul_sink::make`].
    pub fn sink(&self, d: &Destination) -> Result<Arc<dyn Sink>, SinkError> {
        let sink = outhaul_sink::make(&d.kind, &d.name, d.settings.clone(), d.require_ack)?;
        let routes = self.routes.iter().filter(|route| route.goes_to(&d.name));
        Ok(outhaul_sink::rewriting(sink, routes.filter_map(RouteKeys::rewrite).collect()))
    }

    /// The topics that routes name in full and deliver to a destination.
    pub fn topics_of(&self, destination: &str) -> Vec<String> {
        let routes = self.routes.iter().filter(|route| route.goes_to(destination));
        let mut topics: Vec<String> =
            routes.map(|route| route.topic.clone()).filter(|topic| !topic.contains('*')).collect();
        topics.sort();
        topics.dedup();
        topics
    }

    /// The inbox that a command is about: the only one, or the one that `--inbox` names.
    ///
    /// # Errors
    /// There is none of this name, or there are several and none was named.
    pub fn inbox(&self, name: Option<&str>) -> Result<&Inbox, Failure> {
        let names = self.inboxes.iter().map(|i| i.name.as_str()).collect::<Vec<_>>().join(", ");
        let no = |what: String| Err(Failure::new(&codes::WHICH_INBOX, what));
        match (name, self.inboxes.as_slice()) {
            (None, [only]) => Ok(only),
            (None, []) => no("no [[inbox]] is configured".into()),
            (None, _) => no(format!("there are several: {names}")),
            (Some(name), all) => match all.iter().find(|i| i.name == name) {
                Some(inbox) => Ok(inbox),
                None => no(format!("no [[inbox]] is named {name}; there are: {names}")),
            },
        }
    }

    /// The outbox that a command is about: the only one, or the one that `--outbox` names.
    ///
    /// # Errors
    /// There is none of this name, or there are several and none was named.
    pub fn outbox(&self, name: Option<&str>) -> Result<&Outbox, Failure> {
        let names = || self.outboxes.iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", ");
        match (name, self.outboxes.as_slice()) {
            (None, [only]) => Ok(only),
            (None, []) => Err(Failure::new(&codes::NO_DATABASE, "no outbox is configured")),
            (None, _) => Err(Failure::new(&codes::WHICH_OUTBOX, format!("there are several outboxes: {}", names()))),
            (Some(name), all) => all.iter().find(|o| o.name == name).ok_or_else(|| {
                Failure::new(&codes::WHICH_OUTBOX, format!("no outbox is named {name}; there are: {}", names()))
            }),
        }
    }
}

/// Where the configuration comes from.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sources<'a> {
    /// `-c FILE`.
    pub file: Option<&'a Path>,
    /// `--db URL`.
    pub db: Option<&'a str>,
    /// `--to TARGET`.
    pub to: &'a [String],
    /// The command can do without an outbox: it is about an inbox.
    pub inbox: bool,
}

/// Reads the configuration, with the process's own environment.
///
/// # Errors
/// All that is wrong with it.
pub fn load(sources: Sources<'_>) -> Result<Config, Failures> {
    let variables = std::env::vars_os()
        .filter_map(|(name, text)| Some((name.into_string().ok()?, text.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(overrides::PREFIX))
        .collect();
    let around = Surroundings { variable: &|name| std::env::var(name).ok(), file: &read_secret };
    load_with(sources, variables, &around)
}

fn load_with(
    sources: Sources<'_>,
    variables: Vec<(String, String)>,
    around: &Surroundings<'_>,
) -> Result<Config, Failures> {
    let path = sources.file.unwrap_or(Path::new(DEFAULT_FILE));
    let mut problems = Problems::new(path.display().to_string());
    let mut tree = match sources.db {
        Some(url) => from_arguments(url, sources.to, &mut problems),
        None => from_file(path, sources.file.is_some(), !variables.is_empty(), &mut problems)?,
    };
    for stray in overrides::apply(&mut tree, variables) {
        problems.at(&Origin::Variable(stray.variable), &codes::STRAY_OVERRIDE, stray.message);
    }
    for (_, node) in &mut tree {
        interpolate::interpolate(node, around, &mut |node, why| problems.at(&node.origin, &codes::UNRESOLVED, why));
    }
    build::build(&tree, sources.inbox, problems)
}

fn from_file(
    path: &Path,
    named: bool,
    variables: bool,
    problems: &mut Problems,
) -> Result<Vec<(String, Node)>, Failures> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // Variables alone can be the whole configuration.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !named && variables => return Ok(vec![]),
        Err(e) => return Err(Failure::new(&codes::NO_FILE, format!("{}: {e}", path.display())).into()),
    };
    tree::parse(&text).map_err(|errors| {
        let mut found = Problems::new(problems.file());
        for e in errors {
            found.at(&Origin::Line(e.line), &codes::NOT_TOML, e.message);
        }
        found.into_result(()).err().unwrap_or(Failures(vec![]))
    })
}

/// The tree that `--db` and `--to` stand for.
fn from_arguments(url: &str, to: &[String], problems: &mut Problems) -> Vec<(String, Node)> {
    let table = |entries: Vec<(&str, String)>, argument| {
        let origin = || Origin::Argument(argument);
        let entries = entries.into_iter().map(|(k, v)| (k.to_owned(), Node::new(Value::Text(v), origin()))).collect();
        Node::new(Value::Table(entries), origin())
    };
    let list = |items| Node::new(Value::List(items), Origin::Argument("--db"));
    let outbox = table(vec![("name", DB_NAME.into()), ("url", url.into())], "--db");
    let mut tree = vec![("outbox".to_owned(), list(vec![outbox]))];
    let mut destinations = vec![];
    let mut routes = vec![];
    for target in to {
        let (kind, rest) = match target.split_once(':') {
            Some((kind, rest)) if outhaul_sink::registry::KINDS.contains(&kind) => (kind, rest),
            _ => {
                problems.at(
                    &Origin::Argument("--to"),
                    &codes::BAD_TARGET,
                    "it must be file:PATH, stdout:, inbox:URL or rocketmq://HOST:PORT",
                );
                continue;
            }
        };
        let same = destinations.len() + 1;
        let name = if destinations.is_empty() { kind.to_owned() } else { format!("{kind}-{same}") };
        let mut entries = vec![("name", name.clone()), ("kind", kind.to_owned())];
        match kind {
            "file" => entries.push(("path", rest.to_owned())),
            "inbox" => entries.push(("url", rest.to_owned())),
            "rocketmq" => entries.push(("namesrv", rest.trim_start_matches('/').trim_end_matches('/').to_owned())),
            _ => {}
        }
        destinations.push(table(entries, "--to"));
        routes.push(table(vec![("topic", "*".into()), ("to", name)], "--to"));
    }
    if !destinations.is_empty() {
        tree.push(("destination".into(), list(destinations)));
        tree.push(("route".into(), list(routes)));
    }
    tree
}

fn read_secret(path: &str) -> Result<String, String> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let mut text = String::new();
    file.take(interpolate::MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > interpolate::MAX_FILE_BYTES {
        return Err(format!("it has more than {} bytes", interpolate::MAX_FILE_BYTES));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
