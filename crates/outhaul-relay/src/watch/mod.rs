//! What can be seen of a running relay: its numbers, and whether it moves what it should move.
//!
//! The engine says once a second how everything stands ([`tracker`]); whoever asks reads that, and never the database.
//! That the engine itself says nothing any more is seen by the age of what it said last.

mod beside;
mod counts;
pub mod families;
mod page;
mod sample;
mod tracker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outhaul_core::instance::{ShardView, WorkView};
use tokio::time::Instant;

pub(crate) use beside::{Beside, Pulse};
pub(crate) use counts::{Counts, DestinationCounts};
pub(crate) use sample::{Sample, sampling};
pub(crate) use tracker::{Overdue, Part, Tracker};

/// The engine says how everything stands so often.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// How long what should move may stand still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchLimits {
    /// From then on it is named, and the relay is not ready. Default 6 s: with the engine's own pace it is seen within
    /// 10 s.
    pub stall: Duration,
    /// A call without an answer for this long is given up and made again. Default 30 s; longer than a statement may take.
    /// What reads very much may take longer.
    pub answer: Duration,
}

impl Default for WatchLimits {
    fn default() -> Self {
        Self { stall: Duration::from_secs(6), answer: Duration::from_secs(30) }
    }
}

/// What should move and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// What: `poll`, `checkpoint`, `pruning`, `shard 3`, `lane points of shard 3`.
    pub part: String,
    /// For how long.
    pub age: Duration,
    /// `OUT-nnnn`.
    pub code: &'static str,
    /// Why, as a sentence without payload, key values or secrets.
    pub why: String,
}

/// How a relay's outbox stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Name of the outbox.
    pub outbox: String,
    /// Shards that this process owns.
    pub shards: usize,
    /// What should move and does not. Empty: it is ready.
    pub stalls: Vec<Stall>,
    /// Destinations that are down and to which nothing waits to be delivered, or that are down in part: told, and no
    /// reason not to be ready.
    pub troubles: Vec<String>,
}

/// Shows one outbox of a relay. Clones show the same one.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    outbox: String,
    destinations: Arc<[String]>,
    limits: WatchLimits,
    counts: Counts,
    /// Turns of the engine: whoever counts them sees whether it lives.
    beats: AtomicU64,
    told: Mutex<Told>,
    sample: Mutex<Option<Sample>>,
}

/// What the engine said last.
#[derive(Debug)]
struct Told {
    at: Instant,
    phase: Phase,
    stalls: Vec<Stall>,
    troubles: Vec<String>,
    shards: Vec<ShardView>,
    work: WorkView,
    mono_us: u64,
    wall_us: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The database has not been reached yet.
    Starting(String),
    Running,
    Ended,
}

impl Watch {
    /// Shows nothing before the relay runs that it is given to. `destinations`: names, in the order in which that relay is
    /// given them.
    pub fn new(outbox: &str, destinations: Vec<String>) -> Self {
        Self::with_limits(outbox, destinations, WatchLimits::default())
    }

    /// The same with other limits.
    pub fn with_limits(outbox: &str, destinations: Vec<String>, limits: WatchLimits) -> Self {
        let told = Told {
            at: Instant::now(),
            phase: Phase::Starting("it has not reached its database yet".into()),
            stalls: vec![],
            troubles: vec![],
            shards: vec![],
            work: WorkView::default(),
            mono_us: 0,
            wall_us: 0,
        };
        Self(Arc::new(Shared {
            outbox: outbox.to_owned(),
            counts: Counts::new(destinations.len()),
            destinations: destinations.into(),
            limits,
            beats: AtomicU64::new(0),
            told: Mutex::new(told),
            sample: Mutex::new(None),
        }))
    }

    /// How many times the engine has turned. While it runs this rises at least once a second.
    pub fn beats(&self) -> u64 {
        self.0.beats.load(Ordering::Relaxed)
    }

    /// Whether the engine runs: it does not before its database was reached, nor after its end.
    pub fn runs(&self) -> bool {
        self.told().phase == Phase::Running
    }

    /// Whether the engine lives, as far as that can be seen: only a restart helps where it does not.
    pub fn is_alive(&self) -> bool {
        let told = self.told();
        told.phase != Phase::Running || told.at.elapsed() < self.0.limits.answer
    }

    /// How everything stands.
    pub fn standing(&self) -> Standing {
        let told = self.told();
        let age = told.at.elapsed();
        let of = |part: &str, why: String| Stall { part: part.into(), age, code: tracker::NOT_MOVING, why };
        let mut stalls = told.stalls.clone();
        match &told.phase {
            Phase::Starting(why) => stalls.insert(0, of("start", why.clone())),
            Phase::Ended => stalls.insert(0, of("relay", "the relay has ended".into())),
            Phase::Running if age >= self.0.limits.stall => {
                stalls.insert(0, of("engine", "the engine does not turn any more".into()));
            }
            Phase::Running => {}
        }
        let (outbox, shards, troubles) = (self.0.outbox.clone(), told.shards.len(), told.troubles.clone());
        Standing { outbox, shards, stalls, troubles }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.0.counts
    }

    pub(crate) fn limits(&self) -> WatchLimits {
        self.0.limits
    }

    pub(crate) fn starting(&self, why: String) {
        let mut told = self.told();
        told.phase = Phase::Starting(why);
    }

    pub(crate) fn ended(&self) {
        let mut told = self.told();
        (told.phase, told.at) = (Phase::Ended, Instant::now());
    }

    /// The engine lives.
    pub(crate) fn beat(&self) {
        self.0.beats.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn tell(
        &self,
        shards: Vec<ShardView>,
        work: WorkView,
        (mono_us, wall_us): (u64, i64),
        (stalls, troubles): (Vec<Stall>, Vec<String>),
    ) {
        let at = Instant::now();
        *self.told() = Told { at, phase: Phase::Running, stalls, troubles, shards, work, mono_us, wall_us };
    }

    pub(crate) fn keep_sample(&self, sample: Sample) {
        *self.0.sample.lock().unwrap_or_else(PoisonError::into_inner) = Some(sample);
    }
}

/// Whether each of these turns, looked at by one who counts: by the clock alone a process that was stopped for a while
/// (SIGSTOP, a suspended machine) would seem to hang.
#[derive(Debug, Default)]
pub struct Turning {
    seen: Vec<(u64, u32)>,
}

impl Turning {
    /// A look; to be taken once a second. The outbox whose engine has not turned for `looks` looks, if there is one.
    pub fn look(&mut self, watches: &[Watch], looks: u32) -> Option<String> {
        self.seen.resize(watches.len(), (0, 0));
        let mut hung = None;
        for (watch, (beats, unchanged)) in watches.iter().zip(&mut self.seen) {
            let now = watch.beats();
            *unchanged = if watch.runs() && now == *beats { unchanged.saturating_add(1) } else { 0 };
            *beats = now;
            if *unchanged >= looks {
                hung.get_or_insert_with(|| watch.0.outbox.clone());
            }
        }
        hung
    }
}
