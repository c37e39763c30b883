//! `footprint`: what is written per message, and what stays of it.

use std::time::{Duration, Instant};

use outhaul_store::{InitPlan, PruneRequest, StoreOptions};

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
}

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
            let relay = child::start(&place.url, None, lanes);
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
                let log_rows = place.raw.number("SELECT count(*) FROM outbox_log").await;
                let receipt_rows = place.raw.number("SELECT count(*) FROM outbox_receipt").await;
                let log = place.raw.number("SELECT sum(length(chunk) + length(id_filter) + 60) FROM outbox_log").await;
                let receipts = place.raw.number("SELECT sum(length(lanes) + 60) FROM outbox_receipt").await;
                figures.push((log_rows, receipt_rows, log + receipts));
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
                    let request = PruneRequest {
                        owner: "bench".into(),
                        retention_ms: 7 * 86_400_000,
                        merge_after_ms: Some(0),
                        step: 100_000,
                    };
                    while store.prune(&request).await.expect("a merge").more {}
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
}
