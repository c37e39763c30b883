//! The sinks, each against the real thing: the conformance suite, and what is special about it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "file")]
mod file;
#[cfg(feature = "inbox")]
mod inbox;
#[cfg(feature = "rocketmq")]
mod rocketmq;
#[cfg(feature = "file")]
mod sandbox;
