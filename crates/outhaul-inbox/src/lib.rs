//! From RocketMQ topics into the `inbox_message` table of a consumer's database.
//!
//! | file | holds |
//! |---|---|
//! | `options` | what is read, and where to |
//! | `arrival` | a stored message as a row |
//! | `place` | what the answer to a pull means for the place in a queue: pure |
//! | `reader` | one queue: pulls ahead, stores, goes back where the table is elsewhere |
//! | `daemon` | membership of the group, shares of queues, health |
//! | `prune` | what was done long ago goes |
//! | `look` | what can be said without joining the group |
//!
//! **The place of a queue is a row of `inbox_queue`**, moved by the transaction that stores what was read: from the
//! offset that the reader believes in, or not at all. So it does not matter who owns a queue: of two members that both
//! read it one finds the place moved, stores nothing, and goes on from where it is. The table has every message of a queue once
//! and in the queue's order, also without ids, and also when the broker forgets offsets. Brokers are told the place for
//! their statistics; it is never read from them once the queue was begun.

mod arrival;
mod daemon;
mod error;
mod look;
mod options;
mod place;
mod prune;
mod reader;
mod shared;

pub use daemon::InboxDaemon;
pub use error::InboxError;
pub use look::{TopicFinding, look_at_tables, look_at_topics};
pub use options::{Begin, InboxOptions, Topic};
pub use shared::{Counts, Health};
