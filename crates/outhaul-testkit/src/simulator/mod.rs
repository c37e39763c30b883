//! The seeded simulator: the core against a model database, model destinations and model applications.
//!
//! One `u64` decides everything that happens in a run: when transactions commit or roll back, which call fails, which
//! answer is lost or late, who is killed, paused, stopped or started. There is no clock and no thread in it, so a seed
//! that fails does so every time. The rules are checked while a run goes on, at every send, checkpoint and answer
//! ([`judge`](self), [`database`](self)), and once more when all troubles are over and everything had time to settle.

mod acts;
mod application;
mod call;
mod database;
mod dice;
mod judge;
mod known;
mod ledger;
mod limits;
mod memory;
mod process;
mod replay;
mod reshard;
mod scenario;
mod sink;
mod trouble;
mod verdict;
mod world;

use std::fmt;

#[cfg(feature = "faults")]
use outhaul_core::faults::Fault;
pub use scenario::{ApplicationChances, DatabaseChances, Scenario, SinkChances};
use world::World;

/// A fault that is built in on purpose, to see that the rules notice it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deliberate {
    /// In the core.
    #[cfg(feature = "faults")]
    Core(Fault),
    /// The database does not look at the epoch of a checkpoint.
    EpochNotChecked,
    /// The database does not look at who stores how far a replay has got.
    RunnerNotChecked,
    /// Open gaps and the tail are read by two statements.
    GapsAndTailApart,
    /// The database hands out scheduled rows like any other.
    DueNotAwaited,
    /// The database hands out scheduled rows that are due, and does not make ordinary ones of them.
    DueNotClaimed,
    /// A change of the number of shards does not wait for transactions that have inserted.
    ReshardNotAwaited,
    /// It does not look whether all is settled.
    ReshardUnsettled,
    /// It takes for settled what is acknowledged and not proven.
    ReshardUnproven,
    /// It takes no leases, and does not look for relays.
    ReshardUnowned,
    /// It takes a change of the expression that was not answered for one that was not made.
    ReshardTakenBack,
    /// A relay that was there before it takes shards in its middle.
    ReshardNotSeen,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Messages that applications wrote.
    pub messages: u64,
    /// Messages that a destination stored more than once.
    pub duplicates: u64,
    /// Commands that processes gave.
    pub commands: u64,
    /// Length of the run, simulated milliseconds.
    pub simulated_ms: u64,
}

/// A rule that was broken.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed: the same one fails again.
    pub seed: u64,
    /// Name of the scenario.
    pub scenario: &'static str,
    /// Which rule, and by what.
    pub what: String,
    /// The last events before it.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.trace {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "scenario {:?}, seed {}: {}", self.scenario, self.seed, self.what)?;
        write!(f, "replay: OUTHAUL_SEED={} with the test of this scenario", self.seed)
    }
}

/// Runs one seed.
///
/// # Errors
/// The rule that was broken, with the last events before it.
pub fn run(scenario: &Scenario, seed: u64, deliberate: Option<Deliberate>) -> Result<Summary, Box<Failure>> {
    // The trace costs more than the run: it is written only for a seed that is known to fail.
    match World::new(scenario, seed, deliberate, 0).run(seed) {
        Ok(summary) => Ok(summary),
        Err(failure) => match World::new(scenario, seed, deliberate, trace_lines()).run(seed) {
            Err(traced) if traced.what == failure.what => Err(Box::new(traced)),
            other => {
                let what =
                    format!("{} (and not the same way when repeated: {:?})", failure.what, other.map_err(|f| f.what));
                Err(Box::new(Failure { what, ..failure }))
            }
        },
    }
}

/// Events that a failure shows: `OUTHAUL_TRACE`, or a few.
fn trace_lines() -> usize {
    std::env::var("OUTHAUL_TRACE").ok().and_then(|n| n.parse().ok()).unwrap_or(60)
}

/// Runs seeds from `first` on until one fails, at most `count`.
///
/// # Errors
/// The first failure.
pub fn search(
    scenario: &Scenario,
    first: u64,
    count: u64,
    deliberate: Option<Deliberate>,
) -> Result<Summary, Box<Failure>> {
    let mut sum = Summary::default();
    for seed in first..first + count {
        let one = run(scenario, seed, deliberate)?;
        sum.messages += one.messages;
        sum.duplicates += one.duplicates;
        sum.commands += one.commands;
        sum.simulated_ms += one.simulated_ms;
    }
    Ok(sum)
}
