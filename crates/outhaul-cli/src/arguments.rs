//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::config::Sources;

/// Delivers every row that an application commits to its outbox table: in order per key, at least once, with proof.
///
/// Exit codes: 0 done, 1 failed, 2 wrong call or configuration, 3 found something that needs attention.
/// Data goes to standard output, everything else to standard error.
#[derive(Debug, Parser)]
#[command(name = "outhaul", version, long_version = crate::version::long(), max_term_width = 100, propagate_version = false)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// For every command.
    #[command(flatten)]
    pub global: Global,
}

/// Options of every command.
#[derive(Debug, Args)]
pub struct Global {
    /// Print data, and errors, as JSON.
    #[arg(long, global = true)]
    pub json: bool,
    /// Form of the log on standard error.
    #[arg(long, global = true, value_name = "FORM", default_value = "text")]
    pub log_format: LogFormat,
    /// Least level of the log: error, warn, info, debug, trace, or `crate=level` pairs. Default: info for `relay`, `checkback` and
    /// `inbox`, warn for everything else.
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    Text,
    /// A JSON object a line.
    Json,
}

/// Where the database is named.
#[derive(Clone, Debug, Args)]
pub struct Source {
    /// Configuration file. Default: outhaul.toml in the current folder.
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Do without a file: the outbox of this database (sqlite:PATH, mysql://…, mariadb://…, postgres://…). `${ENV}` and
    /// `${file:PATH}` work here too.
    #[arg(long, value_name = "URL", conflicts_with = "config")]
    pub db: Option<String>,
}

impl Source {
    /// The sources of the configuration.
    pub fn sources(&self) -> Sources<'_> {
        Sources { file: self.config.as_deref(), db: self.db.as_deref(), to: &[], inbox: false }
    }
}

/// Which outbox.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// Name of the outbox, where the configuration has several.
    #[arg(long, value_name = "NAME")]
    pub outbox: Option<String>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make the tables that are missing, or print their DDL.
    Init(Init),
    /// Deliver, until SIGTERM or SIGINT. A second signal stops at once and loses nothing.
    Relay(Relay),
    /// Look at the configuration, the databases and the destinations without delivering anything.
    Validate(Validate),
    /// Show where every shard and lane stands.
    Status(Status),
    /// Ask a running relay whether everything moves that should: exit code 0, or 3 with what does not and why.
    Health(Health),
    /// Store messages from JSON Lines: {"id"?, "topic", "key"?, "headers"?, "payload", "available_at"?}.
    Enqueue(Enqueue),
    /// Tell what became of one message.
    Audit(Audit),
    /// Messages that could not be delivered: list them, deliver them again, skip or edit them.
    #[command(subcommand)]
    Parked(Parked),
    /// Begin nothing new: in the lanes of a destination, or in shards. What is under way ends; rows still leave the table.
    Pause(Pause),
    /// End a pause.
    Resume(Pause),
    /// Destinations that are not configured any more.
    #[command(subcommand)]
    Destination(Destination),
    /// Take a scheduled message back before it is due.
    Cancel(Cancel),
    /// Answer RocketMQ's check-backs of a producer group from the database, until SIGTERM or SIGINT; in any number of copies.
    Checkback(CheckBack),
    /// Read topics of RocketMQ into the table `inbox_message`, until SIGTERM or SIGINT; in any number of copies.
    Inbox(Inbox),
    /// Deliver again what the log still holds, into a destination that had it or a new one, beside the relay.
    Replay(Replay),
    /// Compare what was committed with what destinations have, or a business table with the outbox, id by id; --fix mends.
    Reconcile(Box<Reconcile>),
    /// Show what operators ordered lately, and how far it has got.
    Acts(Acts),
    /// Delete what is settled and older than the retention, and merge small chunks.
    Prune(Prune),
    /// Change the number of shards. Relays are stopped and everything is settled; applications go on inserting.
    Reshard(Reshard),
    /// Show how far an existing table with a status column is on its way into the outbox, end it, or undo it.
    Migrate(Migrate),
    /// Print what the consumers of a destination must know: where id and key are, what is promised, SQL to dedupe with.
    Contract(Contract),
    /// Show what it is for: an order service that is killed again and again, with and without Outhaul. Needs nothing.
    #[cfg(feature = "sqlite")]
    Demo(outhaul_demo::Options),
    /// Explain an error code, or list all.
    Explain(Explain),
    /// Print completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print docs/configuration.md, or docs/metrics.md.
    #[command(hide = true)]
    Reference {
        /// The page of metrics.
        #[arg(long)]
        metrics: bool,
    },
}

/// `checkback`.
#[derive(Debug, Args)]
pub struct CheckBack {
    #[command(flatten)]
    pub source: Source,
    /// Do without a configuration file: the name servers, rocketmq://HOST:PORT. Goes with --db.
    #[arg(long, value_name = "TARGET", requires = "db")]
    pub to: Vec<String>,
    #[command(flatten)]
    pub which: Which,
    /// The destination of kind rocketmq whose brokers ask. Default: the only one.
    #[arg(long, value_name = "NAME")]
    pub destination: Option<String>,
    /// Producer group of the application. Default: `producer_group` of the destination.
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// Judge only messages that name this outbox, as those of Outhaul's own library do. Others are answered UNKNOWN.
    #[arg(long)]
    pub named_only: bool,
    /// File that is written anew every second, as one JSON object, with whether check-backs can be answered. It is removed
    /// at the end.
    #[arg(long, value_name = "PATH")]
    pub health_file: Option<PathBuf>,
}

/// `inbox`.
#[derive(Debug, Args)]
pub struct Inbox {
    #[command(flatten)]
    pub source: Source,
    /// Do without a configuration file: the name servers, rocketmq://HOST:PORT. Goes with --db, which is the database with
    /// the inbox here.
    #[arg(long, value_name = "TARGET", requires_all = ["db", "topic", "group"])]
    pub to: Option<String>,
    /// The same: a topic, with the tags that are wanted if not all: Orders, Orders:paid||refunded.
    #[arg(long, value_name = "TOPIC", requires = "to")]
    pub topic: Vec<String>,
    /// The same: the consumer group.
    #[arg(long, value_name = "GROUP", requires = "to")]
    pub group: Option<String>,
    /// The same: the name under which messages are stored. Default: the group.
    #[arg(long, value_name = "NAME", requires = "to")]
    pub consumer: Option<String>,
    /// The same: where a topic begins that was never read.
    #[arg(long, value_name = "PLACE", requires = "to")]
    pub from: Option<From>,
    /// Name of the [[inbox]], where the configuration has several.
    #[arg(long, value_name = "NAME", conflicts_with = "to")]
    pub inbox: Option<String>,
    /// Read nothing: show what waits, what is dead, and where every queue is. Exit code 3 if something is dead.
    #[arg(long, conflicts_with = "health_file")]
    pub status: bool,
    /// File that is written anew every second, as one JSON object, with whether messages come in. It is removed at the end.
    #[arg(long, value_name = "PATH")]
    pub health_file: Option<PathBuf>,
}

/// Where a topic begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// At what the broker still has.
    Beginning,
    /// Behind what is there.
    End,
    /// Where the group stands at the broker.
    Group,
}

/// `init`.
#[derive(Debug, Args)]
pub struct Init {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Print the DDL and the GRANTs instead of running anything.
    #[arg(long)]
    pub print: bool,
    /// Bring the tables of the previous version to this one, while its relays go on. With --print: what is missing.
    #[arg(long, conflicts_with_all = ["shards", "payload", "shard_by"])]
    pub upgrade: bool,
    /// The tables of a consumer instead: `inbox`, `inbox_message` and `inbox_queue`, in the databases of [[inbox]], or of [[outbox]] where
    /// there is none. An `inbox_message` of an earlier version gets what it lacks.
    #[arg(long, conflicts_with_all = ["upgrade", "shards", "payload", "shard_by"])]
    pub inbox: bool,
    /// Number of shards: how many lanes of work several relays can share. 16 to 64 suits most; `reshard` changes it, while
    /// relays are stopped. SQLite has one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub shards: u16,
    /// Type of the payload column.
    #[arg(long, value_name = "TYPE", default_value = "bytes")]
    pub payload: Payload,
    /// What decides the shard of a row.
    #[arg(long, value_name = "COLUMN", default_value = "key")]
    pub shard_by: ShardBy,
}

/// Type of the payload column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Payload {
    /// Any bytes.
    Bytes,
    /// Text.
    Text,
    /// JSON.
    Json,
}

/// What decides the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShardBy {
    /// msg_key, or id where it is NULL.
    Key,
    /// topic.
    Topic,
}

/// `relay`.
#[derive(Debug, Args)]
pub struct Relay {
    #[command(flatten)]
    pub source: Source,
    /// With --db: where everything is delivered to: file:PATH, stdout:, inbox:URL,
    /// rocketmq://HOST:PORT. May be repeated.
    #[arg(long, value_name = "TARGET", requires = "db")]
    pub to: Vec<String>,
    /// End with exit code 0 once everything that was committed before the start is settled.
    #[arg(long)]
    pub until_empty: bool,
    /// Answer /live, /ready and /metrics at this address and port: 127.0.0.1:7070. Default: `listen` of `[admin]`, if it is
    /// set.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<std::net::SocketAddr>,
}

/// `health`.
#[derive(Debug, Args)]
pub struct Health {
    #[command(flatten)]
    pub source: Source,
    /// Address and port of its admin server. Default: `listen` of `[admin]`.
    #[arg(long, value_name = "ADDRESS")]
    pub admin: Option<std::net::SocketAddr>,
    /// Ask only whether it lives: whether a restart would help.
    #[arg(long)]
    pub live: bool,
}

/// `validate`.
#[derive(Debug, Args)]
pub struct Validate {
    #[command(flatten)]
    pub source: Source,
    /// With --db: destinations to look at, as for `relay`.
    #[arg(long, value_name = "TARGET", requires = "db")]
    pub to: Vec<String>,
}

/// `status`.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
}

/// `enqueue`.
#[derive(Debug, Args)]
pub struct Enqueue {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Read from this file instead of standard input.
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Most messages in one transaction.
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
}

/// `audit`.
#[derive(Debug, Args)]
pub struct Audit {
    /// Id of the message.
    #[arg(required_unless_present_any = ["key", "topic", "from", "to", "unsent"], conflicts_with_all = ["key", "topic", "from", "to", "unsent", "limit"])]
    pub id: Option<String>,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// When it was written, about: 2026-03-01T12:30:00Z. Makes the search quick in a large log. A UUIDv7 says it itself.
    #[arg(long, value_name = "TIME", value_parser = moment, requires = "id")]
    pub around: Option<i64>,
    /// Messages with this key instead of one.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// Messages of these topics, in which `*` stands for any run of characters.
    #[arg(long, value_name = "TOPIC")]
    pub topic: Option<String>,
    /// Messages that were written at this time or later.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub from: Option<i64>,
    /// Messages that were written before this time.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    pub to: Option<i64>,
    /// Messages that some destination does not have: in the table, on their way, or parked. Exit code 3 if there are any.
    #[arg(long)]
    pub unsent: bool,
    /// Most messages to tell of.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

/// `parked`.
#[derive(Debug, Subcommand)]
pub enum Parked {
    /// List what is parked, and count it by reason.
    List(ParkedList),
    /// Try again now, with attempts counted anew. What waits behind a message follows it in order. Under `-`: deliver to
    /// where the routes lead now.
    Redrive(Redrive),
    /// Give messages up: they are never sent, and what waits behind them goes on.
    Skip(Redrive),
    /// Give one message other content and try again. The original is kept.
    Edit(Edit),
}

/// Which parked messages.
#[derive(Clone, Debug, Args)]
pub struct Selection {
    /// Those of this destination; `-` for what no route names. Default: all destinations.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub destination: Option<String>,
    /// Those with this key.
    #[arg(long, value_name = "KEY")]
    pub key: Option<String>,
    /// The one with this id.
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Those whose last failure has this code.
    #[arg(long, value_name = "CODE")]
    pub reason: Option<String>,
}

/// `parked list`.
#[derive(Debug, Args)]
pub struct ParkedList {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub selection: Selection,
    /// Those in this shard.
    #[arg(long, value_name = "N")]
    pub shard: Option<u16>,
    /// Those in this state.
    #[arg(long, value_name = "STATE")]
    pub state: Option<State>,
    /// Most messages to list.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub limit: u32,
}

/// State of a parked message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum State {
    /// To be tried again by itself.
    Retrying,
    /// Behind another of its key.
    Waiting,
    /// Not tried again.
    Dead,
}

/// Who, why, and how long to wait for it.
#[derive(Clone, Debug, Args)]
pub struct Ordering {
    /// Why: it is recorded with the act.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub why: String,
    /// Who: it is recorded with the act. Default: the name of the user.
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// How long to wait until it is carried out. It is carried out all the same.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span)]
    pub wait: u64,
}

/// `parked redrive` and `parked skip`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("what").args(["key", "id", "reason", "all"]).required(true).multiple(true)))]
pub struct Redrive {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub selection: Selection,
    /// All of them.
    #[arg(long, conflicts_with_all = ["key", "id", "reason"])]
    pub all: bool,
    /// At most so many messages a second: 500/s.
    #[arg(long, value_name = "N/s", value_parser = rate)]
    pub rate: Option<u64>,
    #[command(flatten)]
    pub ordering: Ordering,
}

/// `parked edit`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("content")
    .args(["payload", "payload_file", "headers", "no_headers", "new_key", "no_key"]).required(true).multiple(true)))]
pub struct Edit {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Id of the message.
    #[arg(long, value_name = "ID")]
    pub id: String,
    /// Where it is parked. Default: all destinations where it is.
    #[arg(long, value_name = "NAME", allow_hyphen_values = true)]
    pub destination: Option<String>,
    /// The payload from now on.
    #[arg(long, value_name = "TEXT", conflicts_with = "payload_file")]
    pub payload: Option<String>,
    /// The payload from now on, from a file.
    #[arg(long, value_name = "FILE")]
    pub payload_file: Option<PathBuf>,
    /// The headers from now on: a JSON object of strings.
    #[arg(long, value_name = "JSON", conflicts_with = "no_headers")]
    pub headers: Option<String>,
    /// No headers from now on.
    #[arg(long)]
    pub no_headers: bool,
    /// The key from now on. The message stays in its shard: order is kept among its key's messages there.
    #[arg(long, value_name = "KEY", conflicts_with = "no_key")]
    pub new_key: Option<String>,
    /// No key from now on.
    #[arg(long)]
    pub no_key: bool,
    #[command(flatten)]
    pub ordering: Ordering,
}

/// `pause` and `resume`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("where").args(["destination", "shard"]).required(true).multiple(true)))]
pub struct Pause {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// The lanes of this destination. Without it: all lanes of the shards.
    #[arg(long, value_name = "NAME")]
    pub destination: Option<String>,
    /// In this shard; may be repeated. Without it: in all shards.
    #[arg(long, value_name = "N")]
    pub shard: Vec<u16>,
    #[command(flatten)]
    pub ordering: Ordering,
}

/// `destination`.
#[derive(Debug, Subcommand)]
pub enum Destination {
    /// Give up a destination that is not configured any more: what it has not got it never gets, what is parked for it goes,
    /// and the log is kept for it no longer. If it comes back, it begins at the end, like any new one.
    Drop(DestinationDrop),
}

/// `destination drop`.
#[derive(Debug, Args)]
pub struct DestinationDrop {
    /// Name of the destination.
    pub name: String,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    #[command(flatten)]
    pub ordering: Ordering,
}

/// `cancel`.
#[derive(Debug, Args)]
pub struct Cancel {
    /// Id of the message.
    pub id: String,
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Why: it is recorded.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub why: String,
    /// Who: it is recorded. Default: the name of the user.
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
}

/// `contract`.
#[derive(Debug, Args)]
pub struct Contract {
    #[command(flatten)]
    pub source: Source,
    /// Name of the destination.
    #[arg(long, value_name = "NAME", required_unless_present = "inbox")]
    pub destination: Option<String>,
    /// Name of an [[inbox]] instead: what handlers of the table that `outhaul inbox` fills must know.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["destination", "consumer"])]
    pub inbox: Option<String>,
    /// Name of the consumer in the statements. Default: the destination's.
    #[arg(long, value_name = "NAME")]
    pub consumer: Option<String>,
}

/// `replay`.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("begin").args(["from", "resume"]).required(true)))]
pub struct Replay {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Where to: a destination of the configuration. Its routes, as they are configured now, say which topics it gets.
    #[arg(long, value_name = "NAME", required_unless_present = "resume")]
    pub destination: Option<String>,
    /// From where: `beginning` (what the log still holds), a moment such as 2026-03-01T12:30:00Z (messages created then or
    /// later: `created_at`, by the database's clock), or a position of a shard's log.
    #[arg(long, value_name = "TIME|POSITION|beginning", value_parser = point, requires = "destination")]
    pub from: Option<Point>,
    /// Up to where: `now` (the end of the log when it begins), a moment (messages created before), or a position that is not
    /// meant any more.
    #[arg(long, value_name = "TIME|POSITION|now", default_value = "now", value_parser = point, conflicts_with = "resume")]
    pub to: Point,
    /// In this shard; may be repeated. Default: in all. A position needs one.
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    pub shard: Vec<u16>,
    /// Those whose topic matches; `*` stands for any run of characters.
    #[arg(long, value_name = "PATTERN", conflicts_with = "resume")]
    pub topic: Option<String>,
    /// Those with this key.
    #[arg(long, value_name = "KEY", conflicts_with = "resume")]
    pub key: Option<String>,
    /// Only what was not routed to the destination when it was moved into the log: what a new destination lacks. What its
    /// lane delivers is left to it, so nothing is sent twice.
    #[arg(long, conflicts_with = "resume")]
    pub fill: bool,
    /// At most so many messages a second, in all: 500/s.
    #[arg(long, value_name = "N/s", value_parser = rate, conflicts_with = "resume")]
    pub rate: Option<u64>,
    /// Go on with a replay that was stopped or killed, by the number of its act. Not while it still runs elsewhere.
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["destination", "dry_run"])]
    pub resume: Option<u64>,
    /// End if the destination, or the database, has failed for so long and nothing has got on. Default: wait.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub give_up_after: Option<u64>,
    /// Only count what would be sent.
    #[arg(long)]
    pub dry_run: bool,
    /// Why: it is recorded with the act.
    #[arg(long, value_name = "TEXT", value_parser = reason, required_unless_present_any = ["resume", "dry_run"], conflicts_with = "resume")]
    pub why: Option<String>,
    /// Who: it is recorded with the act. Default: the name of the user.
    #[arg(long, value_name = "NAME", conflicts_with = "resume")]
    pub actor: Option<String>,
}

/// `reconcile`.
#[derive(Debug, Args)]
pub struct Reconcile {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// With --db: destinations to compare with, as for `relay`.
    #[arg(id = "to_target", long = "with", value_name = "TARGET", requires = "db")]
    pub to_target: Vec<String>,
    /// What was created then or later: a moment such as 2026-03-01T12:30:00Z, or `beginning`.
    #[arg(long, value_name = "TIME|beginning", value_parser = point, required = true)]
    pub from: Option<Point>,
    /// What was created before: a moment, or `now`.
    #[arg(long, value_name = "TIME|now", value_parser = point, default_value = "now")]
    pub to: Point,
    /// This destination. Default: all that can be read (kinds file, inbox, rocketmq).
    #[arg(long, value_name = "NAME", conflicts_with = "query")]
    pub destination: Option<String>,
    /// Compare what this SELECT gives with the outbox instead: columns id, created_at, and for --fix topic, key, payload.
    #[arg(long, value_name = "SQL")]
    pub query: Option<String>,
    /// Database of the query. Default: that of the outbox.
    #[arg(long, value_name = "URL", requires = "query")]
    pub query_db: Option<String>,
    /// Only messages whose topic matches; `*` stands for any run of characters.
    #[arg(long, value_name = "PATTERN")]
    pub topic: Option<String>,
    /// What is younger may be under way yet: it is not missing.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = span)]
    pub settle: u64,
    /// Examples of each kind to show. Default: 10; with --json 1,000.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    pub examples: Option<u32>,
    /// Write all of them into files in this folder: EXPECTED-ACTUAL.missing.jsonl and so on.
    #[arg(long, value_name = "FOLDER")]
    pub out: Option<PathBuf>,
    /// Say what would be mended; with --yes, do it: missing orders are enqueued, missing messages delivered again.
    #[arg(long, conflicts_with = "transactions")]
    pub fix: bool,
    /// Mend.
    #[arg(long, requires = "fix")]
    pub yes: bool,
    /// Why: it is recorded with what is delivered again.
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub why: Option<String>,
    /// Who: it is recorded with what is delivered again. Default: the name of the user.
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// List transactional messages that brokers have given up, and what the database says of each.
    #[arg(long, conflicts_with_all = ["query", "fix"])]
    pub transactions: bool,
    /// Memory for what is compared: 64MiB.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = size)]
    pub memory: u64,
    /// Folder for temporary files. Default: that of the system.
    #[arg(long, value_name = "FOLDER")]
    pub temp: Option<PathBuf>,
    /// Longest time that reading a table or a query may take.
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = span)]
    pub limit: u64,
}

/// A place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// Where the log begins.
    Beginning,
    /// Where it ends now.
    Now,
    /// Microseconds since 1970-01-01 UTC.
    Time(i64),
    /// A position of a shard.
    Position(u64),
}

/// `acts`.
#[derive(Debug, Args)]
pub struct Acts {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Most acts to show: the newest.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// `prune`.
#[derive(Debug, Args)]
pub struct Prune {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Age from which settled messages go: 7d, 12h, 0s. Default: `retention` of the configuration.
    #[arg(long, value_name = "TIME", value_parser = span)]
    pub retention: Option<u64>,
    /// Write what goes into zstd-compressed JSON Lines in this folder before. Default: `export` of the configuration.
    #[arg(long, value_name = "FOLDER")]
    pub export: Option<PathBuf>,
    /// Do one step (one transaction) only. Default: steps until nothing is left to do.
    #[arg(long)]
    pub once: bool,
}

/// `reshard`.
#[derive(Debug, Args)]
pub struct Reshard {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// Number of shards from now on.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1024))]
    pub shards: u16,
}

/// `migrate`.
#[derive(Debug, Args)]
pub struct Migrate {
    #[command(flatten)]
    pub source: Source,
    #[command(flatten)]
    pub which: Which,
    /// End it: nothing waits in the table, and nothing inserts there any more.
    #[arg(long, conflicts_with = "back")]
    pub finish: bool,
    /// Undo it: relays are stopped, and nothing waits in the outbox table.
    #[arg(long)]
    pub back: bool,
}

/// `explain`.
#[derive(Debug, Args)]
pub struct Explain {
    /// The code: OUT-1007, or 1007. Without one: a list.
    pub code: Option<String>,
}

fn span(text: &str) -> Result<u64, String> {
    crate::measure::parse_span(text)
        .ok_or_else(|| "a length of time with its unit is needed, such as 7d, 12h or 0s".into())
}

fn size(text: &str) -> Result<u64, String> {
    let size = crate::measure::parse_size(text).filter(|n| (1 << 20..=2 << 30).contains(n));
    size.ok_or_else(|| "a size from 1MiB to 2GiB is needed, such as 64MiB".into())
}

fn reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() { Err("a reason is needed: it is what the next one reads".into()) } else { Ok(text.to_owned()) }
}

fn rate(text: &str) -> Result<u64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).trim().parse::<u64>().ok();
    number.filter(|n| (1..=1_000_000).contains(n)).ok_or_else(|| "a number a second is needed, such as 500/s".into())
}

fn point(text: &str) -> Result<Point, String> {
    match text {
        "beginning" => Ok(Point::Beginning),
        "now" => Ok(Point::Now),
        _ => text.parse().map(Point::Position).or_else(|_| moment(text).map(Point::Time)).map_err(|_| {
            "a position, `beginning`, `now`, or a moment with its offset is needed, such as 2026-03-01T12:30:00Z".into()
        }),
    }
}

fn moment(text: &str) -> Result<i64, String> {
    crate::timestamp::parse(text)
        .ok_or_else(|| "a moment with its offset is needed, such as 2026-03-01T12:30:00Z".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }
}
