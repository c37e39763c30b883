//! The `inbox_message` table of another database.
//!
//! A message is there once however often it is sent: `(consumer, id)` is the primary key, and a copy is answered as
//! delivered with the detail `duplicate`. The consumer reads the table in its own transactions, so that the effect and
//! the mark "done" cannot be torn apart.

pub mod config;
mod outcome;
mod parts;
mod sink;

pub use config::InboxConfig;
pub use sink::InboxSink;
