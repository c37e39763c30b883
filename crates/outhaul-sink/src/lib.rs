//! Outhaul's destinations.
//!
//! [`Sink`] is the contract. Each kind is a folder with the same file names: `config` (its keys in the configuration),
//! `sink` (the implementation), `outcome` (from what the other side said to an [`Outcome`]). All pass the one
//! conformance suite in `outhaul-testkit`. [`registry`] makes a sink from its `kind` and its keys; [`codes`] lists what
//! can go wrong.

#[cfg(any(feature = "file", feature = "inbox", feature = "rocketmq"))]
mod clock;
pub mod codes;
pub mod registry;
mod rewrite;
pub mod settings;
mod sink;

#[cfg(feature = "file")]
pub mod file;
#[cfg(feature = "inbox")]
pub mod inbox;
#[cfg(feature = "rocketmq")]
pub mod rocketmq;

pub use codes::SinkCode;
pub use outhaul_core::receipt::{AckLevel, Outcome, Reason, Receipt};
pub use registry::make;
pub use rewrite::{Rewrite, rewriting};
pub use sink::*;
