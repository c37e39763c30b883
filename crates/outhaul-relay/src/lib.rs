//! Outhaul's engine.
//!
//! [`run`] drives one [`outhaul_core::instance::Instance`] for each outbox: every command becomes a task that calls the
//! store or a sink, and every task ends in exactly one input, whether it answered, failed, ran into its limit or
//! panicked. So no lost answer can leave the core waiting.

mod acts;
mod backlog;
mod clock;
mod destination;
mod engine;
mod error;
mod export;
#[cfg(feature = "failpoints")]
pub mod failpoint;
mod healing;
mod log;
mod maintenance;
mod prune;
mod reconciled;
mod repeats;
pub mod replay;
mod stop;
mod tending;
mod transactions;
pub mod watch;

pub use destination::{Delivered, Destination};
pub use engine::{Outbox, Report, run};
pub use error::RelayError;
pub use export::{ExportError, check_folder};
pub use maintenance::Maintenance;
pub use prune::{PruneStep, Pruner};
pub use reconciled::ReconcileReport;
pub use stop::Stop;
pub use transactions::Transactions;
