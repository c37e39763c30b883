//! The pure core of Outhaul.
//!
//! Nothing here does I/O, reads a clock, draws a random number of its own or awaits anything: rows, answers and the
//! time come in as [`instance::Input`], and what has to be done comes out as [`instance::Command`]. The engine
//! (`outhaul-relay`) drives it with real databases and brokers, the simulator (`outhaul-testkit`) with model ones.
//!
//! Data flows one way: rows are taken in ([`intake`]), get a position in their shard ([`pipeline`]), are handed to
//! the [`lane`]s that their [`route`] names, and what the sinks answer returns as [`receipt`]s into a [`checkpoint`]. A
//! [`replay`] delivers what the log holds once more, beside all that.

pub mod act;
pub mod adopted;
mod allowance;
pub mod checkpoint;
pub mod chunk;
pub mod comparison;
pub mod config;
pub mod destination;
#[doc(hidden)]
pub mod faults;
pub mod filter;
pub mod instance;
pub mod intake;
pub mod lane;
pub mod lease;
pub mod message;
pub mod outbox;
pub mod parked;
pub mod pipeline;
pub mod receipt;
pub mod replay;
pub mod route;
pub mod runs;
pub mod schedule;
pub mod transaction;
pub mod trouble;
mod wire;
