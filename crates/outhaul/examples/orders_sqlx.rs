//! An order service on PostgreSQL with sqlx: it stores an order and its event in one transaction, and applies what
//! others have sent once.
//!
//! `cargo run -p outhaul --example orders_sqlx -- postgres://user:password@host/shop` after `outhaul init` and
//! `outhaul init --inbox`.

use std::error::Error;

use outhaul::{Event, Inbox, Once, Outbox};
use serde::Serialize;
use sqlx::PgPool;

#[derive(Serialize)]
struct OrderCreated<'a> {
    order: i64,
    user: &'a str,
}

/// The event is there if and only if the order is.
async fn create_order(pool: &PgPool, outbox: &Outbox, order: i64, user: &str) -> Result<String, Box<dyn Error>> {
    let mut tx = pool.begin().await?;
    sqlx::query("INSERT INTO orders (id, buyer) VALUES ($1, $2)").bind(order).bind(user).execute(&mut *tx).await?;
    let event = Event::json("order-created", &OrderCreated { order, user })?.key(user).header("source", "orders");
    let id = outbox.enqueue(&mut tx, event).await?;
    tx.commit().await?;
    Ok(id)
}

/// Applies a payment, however often the message comes. What may pass is run again.
async fn apply_payment(pool: &PgPool, inbox: &Inbox, id: &str, order: i64) -> Result<Once<()>, Box<dyn Error>> {
    for _ in 0..5 {
        let mut tx = pool.begin().await?;
        let applied = inbox
            .once(&mut *tx, "orders", id, async |tx| {
                sqlx::query("UPDATE orders SET paid = true WHERE id = $1").bind(order).execute(tx).await?;
                Ok::<_, Box<dyn Error>>(())
            })
            .await;
        match applied {
            Ok(once) => {
                tx.commit().await?;
                return Ok(once);
            }
            Err(error) if error.downcast_ref::<outhaul::Error>().is_some_and(outhaul::Error::is_retryable) => {
                tx.rollback().await?;
            }
            Err(error) => return Err(error),
        }
    }
    Err("the database is too busy".into())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).ok_or("give the URL of a database")?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS orders (id BIGINT PRIMARY KEY, buyer TEXT NOT NULL, paid BOOLEAN)")
        .execute(&pool)
        .await?;
    let (outbox, inbox) = (Outbox::new(), Inbox::new());
    let order = i64::from(std::process::id());
    let id = create_order(&pool, &outbox, order, "user-7").await?;
    println!("order {order} is stored, and {id} is in the outbox");
    for _ in 0..2 {
        println!("payment: {:?}", apply_payment(&pool, &inbox, &format!("payment-{order}"), order).await?);
    }
    Ok(())
}
