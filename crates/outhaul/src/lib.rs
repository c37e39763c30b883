//! The application's side of Outhaul.
//!
//! [`Outbox`] puts events into the outbox table inside the caller's own transaction: the event is there if and only if
//! that transaction commits. [`Inbox`] is the other end: it lets the effect of a message happen once however often it is
//! delivered.
//!
//! ```no_run
//! # #[cfg(feature = "sqlx-postgres")]
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use outhaul::{Event, Outbox};
//!
//! let outbox = Outbox::new();
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders (id, user_id) VALUES (1, 7)").execute(&mut *tx).await?;
//! outbox.enqueue(&mut tx, Event::json("order-created", &serde_json::json!({ "order": 1 }))?.key("user-7")).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! Drivers are features, none of them on by default: `sqlx-mysql`, `sqlx-postgres`, `sqlx-sqlite`, `tokio-postgres`,
//! `mysql_async`, `rusqlite` (synchronous: the methods that end in `_blocking`). Another one is a [`Transaction`] away.
//! With `relay` the application delivers by itself, without a daemon.
//! Nothing here opens, commits or rolls back a transaction.
//!
//! The tables are made by `outhaul init`, those of a consumer by `outhaul init --inbox`.

#[cfg(feature = "rusqlite")]
mod blocking;
mod driver;
mod error;
mod event;
mod inbox;
mod outbox;
#[cfg(feature = "relay")]
pub mod relay;
mod statement;
#[cfg(feature = "rocketmq")]
pub mod transaction;

/// The code of docs/application.md compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/application.md")]
mod application_page {}

/// And that of docs/transactions.md.
#[cfg(all(doctest, feature = "rocketmq"))]
#[doc = include_str!("../../../docs/transactions.md")]
mod transactions_page {}

pub use driver::{Dialect, Refusal, RefusalKind, Transaction};
pub use error::Error;
pub use event::Event;
pub use inbox::{Inbox, Once, PruneStep};
pub use outbox::Outbox;
pub use outhaul_core::outbox::{ColumnNames, PayloadType};
pub use statement::{Statement, Value};
