//! `idle`: what a relay with nothing to do costs.

use std::time::{Duration, Instant};

use outhaul_core::config::QUIET_AFTER_MS;
use outhaul_store::{InitPlan, StoreOptions};

use crate::measure::{used, used_by_server};
use crate::{Db, child, raw};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long)]
    db: Db,
    /// Seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Shards.
    #[arg(long, default_value_t = 8)]
    shards: u16,
}

fn queries(db: Db) -> Option<&'static str> {
    match db {
        Db::Sqlite => None,
        Db::Postgres => Some("SELECT sum(xact_commit) FROM pg_stat_database"),
        Db::Mariadb => {
            Some("SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'QUESTIONS'")
        }
        Db::Mysql => {
            Some("SELECT VARIABLE_VALUE FROM performance_schema.global_status WHERE VARIABLE_NAME = 'Questions'")
        }
    }
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let mut place = raw::place(arguments.db).await;
    let shards = if arguments.db == Db::Sqlite { 1 } else { arguments.shards };
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan { shards, ..InitPlan::default() }).await.expect("tables");
    store.close().await;
    let port = raw::port(&place.url);
    let sample = async |seconds: u64, pid: Option<u32>| {
        let (relay, server, start) = (pid.map(used).unwrap_or_default(), used_by_server(port), Instant::now());
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        let span = start.elapsed().as_secs_f64();
        let relay_cpu = pid.map(used).unwrap_or_default().cpu.saturating_sub(relay.cpu).as_secs_f64() / span * 100.0;
        let server_cpu = used_by_server(port).cpu.saturating_sub(server.cpu).as_secs_f64() / span * 100.0;
        (relay_cpu, server_cpu, span)
    };
    let (_, server_alone, _) = sample(arguments.seconds.min(10), None).await;
    let relay = child::start(&place.url, None, 1);
    // Past the time after which an outbox counts as quiet.
    tokio::time::sleep(Duration::from_millis(QUIET_AFTER_MS + 2_000)).await;
    let before = match queries(arguments.db) {
        Some(q) => Some(place.raw.number(q).await),
        None => None,
    };
    let (relay_cpu, server_cpu, span) = sample(arguments.seconds, relay.id()).await;
    let rate = match (queries(arguments.db), before) {
        (Some(q), Some(before)) => format!("{:.0} queries/s", (place.raw.number(q).await - before) as f64 / span),
        _ => "no server".into(),
    };
    let rss = relay.id().map(used).unwrap_or_default().rss_kib as f64 / 1024.0;
    child::stop(relay).await;
    println!(
        "{:?}, {shards} shard(s), idle for {} s: relay {relay_cpu:.2} % of a core, RSS {rss:.1} MiB; database server {server_cpu:.2} % (without a relay {server_alone:.2} %), {rate}",
        arguments.db, arguments.seconds
    );
    raw::remove(arguments.db, place).await;
}
