//! The sinks, each against the real thing: the conformance suite, and what is special about it.

// Clippy knows tests by their attribute; here everything is one.
#![allow(clippy::expect_used, clippy::unwrap_used)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[cfg(feature = "file")]
mod file;
#[cfg(feature = "inbox")]
mod inbox;
#[cfg(feature = "file")]
mod sandbox;
