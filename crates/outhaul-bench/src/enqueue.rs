//! `enqueue`: what the INSERT of the event adds to an order transaction.

use std::time::Instant;

use outhaul_store::{InitPlan, StoreOptions};

use crate::Db;
use crate::measure::percentile;
use crate::raw;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long)]
    db: Db,
    /// Transactions of each kind.
    #[arg(long, default_value_t = 3_000)]
    transactions: usize,
    /// Shards.
    #[arg(long, default_value_t = 1)]
    shards: u16,
}

fn tables(db: Db) -> &'static str {
    match db {
        Db::Sqlite => {
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, user_id INTEGER, status TEXT); CREATE TABLE order_items (id INTEGER PRIMARY KEY, order_id INTEGER, sku TEXT, quantity INTEGER)"
        }
        Db::Postgres => {
            "CREATE TABLE orders (id bigint PRIMARY KEY, user_id bigint, status text); CREATE TABLE order_items (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, order_id bigint, sku text, quantity int)"
        }
        Db::Mariadb | Db::Mysql => {
            "CREATE TABLE orders (id BIGINT PRIMARY KEY, user_id BIGINT, status VARCHAR(16)); CREATE TABLE order_items (id BIGINT AUTO_INCREMENT PRIMARY KEY, order_id BIGINT, sku VARCHAR(32), quantity INT)"
        }
    }
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let mut place = raw::place(arguments.db).await;
    let shards = if arguments.db == Db::Sqlite { 1 } else { arguments.shards };
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan { shards, ..InitPlan::default() }).await.expect("tables");
    place.raw.execute(tables(arguments.db)).await;
    let begin = if arguments.db == Db::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for n in 0..arguments.transactions * 2 {
        let start = Instant::now();
        place.raw.execute(begin).await;
        place
            .raw
            .execute(&format!("INSERT INTO orders (id, user_id, status) VALUES ({n}, {}, 'CREATED')", n % 5_000))
            .await;
        for i in 0..2 {
            place
                .raw
                .execute(&format!("INSERT INTO order_items (order_id, sku, quantity) VALUES ({n}, 'SKU-{i}', 1)"))
                .await;
        }
        let event = n % 2 == 1;
        if event {
            let payload = raw::payload(n, 300);
            place.raw.execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('b-{n}', 'order-created', 'user-{}', '{payload}')", n % 5_000)).await;
        }
        place.raw.execute("COMMIT").await;
        let took = start.elapsed().as_micros() as u64;
        if event { with.push(took) } else { without.push(took) }
    }
    without.sort_unstable();
    with.sort_unstable();
    println!(
        "{:?}: order and two items, each statement a round trip, {} transactions of each kind, in turn",
        arguments.db, arguments.transactions
    );
    for (name, v) in [("without event", &without), ("with event", &with)] {
        println!(
            "{name:<16} P50 {:>7.3} ms  P99 {:>7.3} ms",
            percentile(v, 50.0) as f64 / 1e3,
            percentile(v, 99.0) as f64 / 1e3
        );
    }
    println!("ratio of the medians {:.2}", percentile(&with, 50.0) as f64 / percentile(&without, 50.0) as f64);
    store.close().await;
    raw::remove(arguments.db, place).await;
}
