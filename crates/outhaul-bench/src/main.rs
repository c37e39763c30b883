//! `outhaul-bench`: every figure beside its floor or rival, in one run on one machine, as a ratio.
//!
//! Absolute times say little on a shared machine; the ratios are what documentation quotes.

mod audit;
mod child;
mod drain;
mod enqueue;
mod fanout;
mod footprint;
mod idle;
mod inbox;
mod latency;
mod measure;
mod parked;
mod raw;
mod reconcile;
mod rocketmq;
mod scale;
mod status_table;
mod transactional;

use clap::{Parser, Subcommand, ValueEnum};

/// As in the `outhaul` binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A database to measure on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Db {
    /// MariaDB at OUTHAUL_TEST_MARIADB_URL.
    Mariadb,
    /// MySQL 8 at OUTHAUL_TEST_MYSQL_URL.
    Mysql,
    /// PostgreSQL at OUTHAUL_TEST_POSTGRES_URL.
    Postgres,
    /// A SQLite file in a temporary folder.
    Sqlite,
}

/// Outhaul side by side with its floors and rivals. Servers: `eval "$(./dev servers env)"` after `./dev servers start`.
#[derive(Debug, Parser)]
#[command(name = "outhaul-bench")]
struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Empty a full outbox: floor, Outhaul to a counting sink and to a file, and the way of a hand-made relay.
    Drain(drain::Arguments),
    /// Commit to sink at a steady rate: P50, P99, max; CPU and memory of the relay.
    Latency(latency::Arguments),
    /// What the INSERT adds to an order transaction.
    Enqueue(enqueue::Arguments),
    /// What the inbox adds to the transaction of an effect.
    Inbox(inbox::Arguments),
    /// An idle relay: CPU of the relay and of the database, queries per second.
    Idle(idle::Arguments),
    /// Rows and bytes written per message, with 1 and 10 lanes, at several rates.
    Footprint(footprint::Arguments),
    /// Ten destinations, of which three turn bad: what the other seven feel, beside a loop that awaits all ten.
    Fanout(fanout::Arguments),
    /// A destination that takes 50 ms: throughput with more instances and shards, by key and by topic.
    Scale(scale::Arguments),
    /// A million refused messages: memory, lists, and how soon a redrive takes effect.
    Parked(parked::Arguments),
    /// Polls of a table with a status column: with each index and with none; a backlog beside a hand-made relay; what
    /// writers feel of the archiver.
    StatusTable(status_table::Arguments),
    /// Looking for a message by its id in a large log, with its time and without; bytes of the log for a message.
    Audit(audit::Arguments),
    /// What a transactional message costs beside an outbox row, and beside a send after the commit.
    Transactional(transactional::Arguments),
    /// The difference of two sides of ten million ids in 64 MiB, beside a `HashSet`.
    Reconcile(reconcile::Arguments),
    /// A relay in a process of its own, for the other commands.
    #[command(hide = true)]
    Child(child::Arguments),
    /// Batch sends in a process of its own, for `drain --sink`.
    #[command(hide = true)]
    Sends(rocketmq::sends::Arguments),
    /// A hand-made relay in a process of its own, for `latency --sink`.
    #[command(hide = true)]
    HandMade(rocketmq::hand_made::Arguments),
    /// Outhaul or its rival in a process of its own, for `fanout`.
    #[command(hide = true)]
    FanoutChild(fanout::child::Arguments),
}

#[tokio::main(flavor = "multi_thread")]
async fn main() {
    run(Arguments::parse()).await;
}

async fn run(arguments: Arguments) {
    match arguments.what {
        What::Drain(a) => drain::run(a).await,
        What::Latency(a) => latency::run(a).await,
        What::Enqueue(a) => enqueue::run(a).await,
        What::Inbox(a) => inbox::run(a).await,
        What::Idle(a) => idle::run(a).await,
        What::Footprint(a) => footprint::run(a).await,
        What::Fanout(a) => fanout::run(a).await,
        What::Scale(a) => scale::run(a).await,
        What::Parked(a) => parked::run(a).await,
        What::StatusTable(a) => status_table::run(a).await,
        What::Audit(a) => audit::run(a).await,
        What::Transactional(a) => transactional::run(a).await,
        What::Reconcile(a) => reconcile::run(&a),
        What::Child(a) => child::run(a).await,
        What::Sends(a) => rocketmq::sends::run(a).await,
        What::HandMade(a) => rocketmq::hand_made::run(a).await,
        What::FanoutChild(a) => fanout::child::run(a).await,
    }
}
