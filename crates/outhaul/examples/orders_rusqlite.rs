//! An order service on SQLite, with the relay in the same process: no server, no daemon.
//!
//! `cargo run -p outhaul --example orders_rusqlite -- shop.db events.jsonl`

use std::error::Error;

use outhaul::relay::{Relay, StoreOptions, make_tables};
use outhaul::{Event, Outbox};
use rusqlite::{Connection, TransactionBehavior};
use serde_json::json;

/// The event is there if and only if the order is.
fn create_order(connection: &mut Connection, outbox: &Outbox, user: &str) -> Result<i64, Box<dyn Error>> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute("INSERT INTO orders (buyer) VALUES (?)", [user])?;
    let order = tx.last_insert_rowid();
    outbox.enqueue_blocking(&tx, Event::json("order-created", &json!({ "order": order, "user": user }))?.key(user))?;
    tx.commit()?;
    Ok(order)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(events)) = (arguments.next(), arguments.next()) else {
        return Err("give the file of the database and the file for the events".into());
    };
    let url = format!("sqlite:{file}");
    make_tables(StoreOptions::new(&url)).await?;
    let relay = Relay::new(url)
        .destination("events", "file", json!({ "path": events }))
        .route("order-*", ["events"])
        .start()
        .await?;
    let mut connection = Connection::open(&file)?;
    connection.execute_batch("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, buyer TEXT NOT NULL)")?;
    let outbox = Outbox::new();
    for user in ["user-7", "user-8", "user-7"] {
        println!("order {} is stored", create_order(&mut connection, &outbox, user)?);
    }
    // A service would wait for its end here. What is not sent by then is sent after the next start.
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    relay.stop().await?;
    Ok(())
}
