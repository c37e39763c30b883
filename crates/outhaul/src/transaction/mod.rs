//! Transactional messages of RocketMQ that no check-back can misjudge.
//!
//! [`TransactionalSender`] sends a half message, puts a row into `outbox_transaction` as the first statement of the
//! application's transaction, and after COMMIT tells the broker to deliver. Whatever of that gets lost, the row says what
//! the outcome is: to the broker, which asks any process of the producer group, and to the relay, which delivers the
//! message through the outbox if the broker does not. `docs/transactions.md` has the states, the promises and what can
//! fail.
//!
//! ```no_run
//! # #[cfg(all(feature = "sqlx-postgres", feature = "rocketmq-postgres"))]
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use outhaul::Event;
//! use outhaul::transaction::{TransactionOptions, TransactionalSender};
//!
//! let options = TransactionOptions::new("10.0.0.1:9876", "orders-service", "postgres://shop@127.0.0.1/shop")?;
//! let sender = TransactionalSender::start(options).await?;
//!
//! let prepared = sender.prepare(Event::json("order-created", &serde_json::json!({ "order": 1 }))?).await?;
//! prepared
//!     .within(pool.begin().await?, |mut tx| async move {
//!         sqlx::query("INSERT INTO orders (id, user_id) VALUES (1, 7)").execute(&mut *tx).await?;
//!         tx.commit().await?;
//!         Ok::<_, Box<dyn std::error::Error>>(())
//!     })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! A message that was prepared and whose transaction did not commit is never delivered, whatever happens to the process.
//! If COMMIT itself fails, nobody knows whether it happened, and nothing needs to be done about that: the row decides.

mod answers;
mod brokers;
mod ended;
mod error;
mod options;
mod sender;

pub use answers::{CheckBackAnswers, Counts, Health, Judged};
pub use brokers::Warning;
pub use error::TransactionError;
pub use options::TransactionOptions;
pub use sender::{Ending, Prepared, TransactionalSender};

pub use outhaul_core::transaction::{Answer, Finding, TransactionState};
pub use outhaul_sink::rocketmq::RocketMqConfig;
pub use outhaul_store::StoreOptions;
