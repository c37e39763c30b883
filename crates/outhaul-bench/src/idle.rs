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
        (Some(q), Some(before)) => Some((place.raw.number(q).await - before) as f64 / span),
        _ => None,
    };
    let rss = relay.id().map(used).unwrap_or_default().rss_kib as f64 / 1024.0;
    child::stop(relay).await;
    let said = rate.map_or_else(|| "no server".into(), |rate| format!("{rate:.0} queries/s"));
    println!(
        "{:?}, {shards} shard(s), idle for {} s: relay {relay_cpu:.2} % of a core, RSS {rss:.1} MiB; database server {server_cpu:.2} % (without a relay {server_alone:.2} %), {said}",
        arguments.db, arguments.seconds
    );
    if let Some(rate) = rate {
        let raw = &mut place.raw;
        let asks = async {
            let mut every = tokio::time::interval(Duration::from_secs_f64(1.0 / rate.max(1.0)));
            loop {
                every.tick().await;
                raw.execute("SELECT 1").await;
            }
        };
        let (client_cpu, server_cpu, _) = tokio::select! {
            biased;
            used = sample(arguments.seconds, Some(std::process::id())) => used,
            () = asks => unreachable!("it asks for ever"),
        };
        println!(
            "floor, SELECT 1 as often on one connection: client {client_cpu:.2} % of a core; database server {server_cpu:.2} %"
        );
    }
    raw::remove(arguments.db, place).await;
}
