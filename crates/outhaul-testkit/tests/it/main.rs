//! The simulator's runs: every scenario with many seeds, and the faults that it must find.
//!
//! `OUTHAUL_SEED=n` runs that seed alone, `OUTHAUL_SOAK=1` fifty times as many, `OUTHAUL_TRACE=n` shows that many events
//! before a failure.

// Clippy knows tests by their attribute; here everything is one.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod deliberate;
mod scenarios;
mod transactions;
