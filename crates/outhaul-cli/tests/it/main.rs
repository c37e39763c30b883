//! The real `outhaul` binary, against SQLite and real servers.

// Clippy knows tests by their attribute; here everything is one.
#![allow(clippy::expect_used, clippy::unwrap_used)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod command_line;
mod enqueue;
mod journey;
mod program;
mod relay;
mod validate;
