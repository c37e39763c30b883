//! The simulator's runs: every scenario with many seeds, and the faults that it must find.
//!
//! `OUTHAUL_SEED=n` runs that seed alone, `OUTHAUL_SOAK=1` fifty times as many, `OUTHAUL_TRACE=n` shows that many events
//! before a failure.

mod deliberate;
mod scenarios;
