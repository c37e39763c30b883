//! `footprint`: what is written per message, and what stays of it.

use std::time::{Duration, Instant};

use outhaul_store::{InitPlan, PruneRequest, Store, StoreOptions};

use crate::{Db, child, raw};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long)]
    db: Db,
    /// Seconds a rate.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Messages a second, one figure each.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10, 1_400])]
    rates: Vec<u64>,
    /// Messages a second of the simulated days.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 10])]
    day_rates: Vec<u64>,
}

/// Rows of the log and of the receipts, and their bytes with 60 a row for what is not content.
pub async fn kept(raw: &mut dyn raw::Raw) -> (u64, u64, u64) {
    let log_rows = raw.number("SELECT count(*) FROM outbox_log").await;
    let receipt_rows = raw.number("SELECT count(*) FROM outbox_receipt").await;
    let log = raw.number("SELECT sum(length(chunk) + length(id_filter) + 60) FROM outbox_log").await;
    let receipts = raw.number("SELECT sum(length(lanes) + 60) FROM outbox_receipt").await;
    (log_rows, receipt_rows, log + receipts)
}

async fn merge(store: &dyn Store) {
    let request = PruneRequest {
        owner: "bench".into(),
        retention_ms: 7 * DAY_S * 1_000,
        merge_after_ms: Some(0),
        step: 100_000,
        exported: None,
    };
    while store.prune(&request).await.expect("a merge").more {}
}

/// Spreads what was moved over the day before yesterday, by position.
fn spread(db: Db, messages: u64) -> String {
    let ago = |position: &str| {
        let seconds = format!("({} - {position} * {DAY_S}.0 / {messages})", 2 * DAY_S);
        match db {
            Db::Sqlite => format!("- CAST({seconds} * 1000000 AS INTEGER)"),
            Db::Postgres => format!("- {seconds} * interval '1 second'"),
            Db::Mariadb | Db::Mysql => format!("- INTERVAL {seconds} SECOND"),
        }
    };
    format!(
        "UPDATE outbox_log SET moved_at = moved_at {}; UPDATE outbox_receipt SET created_at = created_at {}",
        ago("base_position"),
        ago("log_end")
    )
}

fn size(db: Db) -> &'static str {
    match db {
        Db::Sqlite => "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
        Db::Postgres => {
            "SELECT pg_total_relation_size('outbox_log') + pg_total_relation_size('outbox_receipt') + pg_total_relation_size('outbox')"
        }
        Db::Mariadb | Db::Mysql => {
            "SELECT sum(DATA_LENGTH + INDEX_LENGTH) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN ('outbox', 'outbox_log', 'outbox_receipt')"
        }
    }
}

/// A day's messages, inserted at once and drained, as if they had been moved over a day; then the day's hours are merged.
async fn day(db: Db, rate: u64) {
    let messages = rate * DAY_S;
    let mut place = raw::place(db).await;
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan::default()).await.expect("tables");
    raw::fill(place.raw.as_mut(), "outbox", "outhaul", messages as usize, 300).await;
    let relay = child::start(&place.url, None, 1, None);
    while place.raw.number("SELECT count(*) FROM outbox").await > 0 {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    tokio::time::sleep(Duration::from_millis(2_500)).await; // Receipts alone wait a second.
    child::stop(relay).await;
    place.raw.execute(&spread(db, messages)).await;
    let before = kept(place.raw.as_mut()).await;
    merge(store.as_ref()).await;
    let after = kept(place.raw.as_mut()).await;
    if matches!(db, Db::Mariadb | Db::Mysql) {
        place.raw.execute("ANALYZE TABLE outbox, outbox_log, outbox_receipt").await;
    }
    let disk = place.raw.number(size(db)).await;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "a day at {rate}/s, {messages} messages: {} rows, {:.1} MiB; merged {} rows, {:.1} MiB = {:.1} bytes a message; outbox, log and receipts on disk {:.1} MiB",
        before.0 + before.1,
        mib(before.2),
        after.0 + after.1,
        mib(after.2),
        after.2 as f64 / messages as f64,
        mib(disk)
    );
    store.close().await;
    raw::remove(db, place).await;
}

const DAY_S: u64 = 86_400;

fn age_a_day(db: Db) -> &'static str {
    match db {
        Db::Sqlite => {
            "UPDATE outbox_log SET moved_at = moved_at - 86400000000; UPDATE outbox_receipt SET created_at = created_at - 86400000000"
        }
        Db::Postgres => {
            "UPDATE outbox_log SET moved_at = moved_at - interval '1 day'; UPDATE outbox_receipt SET created_at = created_at - interval '1 day'"
        }
        Db::Mariadb | Db::Mysql => {
            "UPDATE outbox_log SET moved_at = moved_at - INTERVAL 1 DAY; UPDATE outbox_receipt SET created_at = created_at - INTERVAL 1 DAY"
        }
    }
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    println!(
        "{:?}: rows and bytes that stay per message, as written and once the hour is closed and merged",
        arguments.db
    );
    println!(
        "{:>6} {:>5} {:>9} {:>10} {:>10} {:>12} {:>12} {:>12}",
        "rate", "lanes", "messages", "log rows", "rcpt rows", "bytes", "merged rows", "merged bytes"
    );
    for lanes in [1u8, 10] {
        for rate in &arguments.rates {
            let mut place = raw::place(arguments.db).await;
            let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
            store.init(&InitPlan::default()).await.expect("tables");
            let relay = child::start(&place.url, None, lanes, None);
            let start = Instant::now();
            let count = (rate * arguments.seconds) as usize;
            for n in 0..count {
                tokio::time::sleep_until((start + Duration::from_micros(n as u64 * 1_000_000 / rate)).into()).await;
                let payload = raw::payload(n, 300);
                place.raw.execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('b-{n}', 'order-created', 'user-{}', '{payload}')", n % 5_000)).await;
            }
            tokio::time::sleep(Duration::from_millis(2_500)).await; // Receipts alone wait a second.
            child::stop(relay).await;
            let mut figures = Vec::new();
            for _ in 0..2 {
                figures.push(kept(place.raw.as_mut()).await);
                if figures.len() == 1 {
                    if arguments.db == Db::Postgres {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        let dead = place
                            .raw
                            .number("SELECT coalesce(n_dead_tup, 0) FROM pg_stat_user_tables WHERE relname = 'outbox'")
                            .await;
                        eprintln!("dead rows of outbox now: {dead}");
                    }
                    place.raw.execute(age_a_day(arguments.db)).await;
                    merge(store.as_ref()).await;
                }
            }
            let per = |n: u64| n as f64 / count as f64;
            println!(
                "{rate:>6} {lanes:>5} {count:>9} {:>10.3} {:>10.3} {:>12.1} {:>12.3} {:>12.1}",
                per(figures[0].0),
                per(figures[0].1),
                per(figures[0].2),
                per(figures[1].0 + figures[1].1),
                per(figures[1].2)
            );
            store.close().await;
            raw::remove(arguments.db, place).await;
        }
    }
    for rate in arguments.day_rates {
        day(arguments.db, rate).await;
    }
}
