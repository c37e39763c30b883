//! The numbers that the engine counts: atomics, added to once a batch where that can be.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outhaul_core::checkpoint::Checkpoint;
use outhaul_core::instance::{Event, ReadKind};
use outhaul_core::lane::SendBatch;
use outhaul_metrics::{Buckets, Counter, Histogram};
use outhaul_sink::{AckLevel, Outcome};

/// Names of outcomes, in the order in which they are counted.
pub(super) const OUTCOMES: [&str; 6] = ["delivered", "retry", "rejected", "unknown", "down", "held"];
/// Names of reads, in the order in which they are counted.
pub(super) const READS: [&str; 3] = ["poll", "rescan", "due"];

/// A few numbers by words that the program has: only failures and rare events are counted so.
pub(super) type ByWord<K> = Mutex<BTreeMap<K, u64>>;

/// Of an outbox.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(super) read_wait: Histogram,
    pub(super) reads: [Counter; 3],
    pub(super) rows_read: Counter,
    pub(super) moved: Counter,
    pub(super) moved_bytes: Counter,
    pub(super) checkpoint_seconds: Histogram,
    pub(super) checkpoint_messages: Histogram,
    pub(super) no_route: Counter,
    pub(super) repeated: Counter,
    pub(super) pruned: Counter,
    pub(super) events: ByWord<&'static str>,
    pub(super) errors: ByWord<(&'static str, &'static str)>,
    pub(super) lost: ByWord<&'static str>,
    pub(super) destinations: Vec<DestinationCounts>,
}

/// Of one of its destinations.
#[derive(Debug)]
pub(crate) struct DestinationCounts {
    pub(super) outcomes: [Counter; 6],
    pub(super) forgotten: Counter,
    pub(super) dead: Counter,
    pub(super) send: Histogram,
    pub(super) read_to_ack: Histogram,
    pub(super) commit_to_ack: Histogram,
    /// What it said of its acknowledgements: 0 is nothing yet.
    level: AtomicU8,
}

const LEVELS: [AckLevel; 5] =
    [AckLevel::Unknown, AckLevel::Received, AckLevel::Flushed, AckLevel::Replicated, AckLevel::Quorum];

impl Counts {
    pub(super) fn new(destinations: usize) -> Self {
        Self {
            read_wait: Histogram::new(Buckets::SECONDS),
            reads: Default::default(),
            rows_read: Counter::default(),
            moved: Counter::default(),
            moved_bytes: Counter::default(),
            checkpoint_seconds: Histogram::new(Buckets::SECONDS),
            checkpoint_messages: Histogram::new(Buckets::MESSAGES),
            no_route: Counter::default(),
            repeated: Counter::default(),
            pruned: Counter::default(),
            events: ByWord::default(),
            errors: ByWord::default(),
            lost: ByWord::default(),
            destinations: (0..destinations).map(|_| DestinationCounts::new()).collect(),
        }
    }

    /// Rows were taken that had been there for so long, microseconds.
    pub(crate) fn taken(&self, waits_us: impl Iterator<Item = i64>) {
        let mut waits_us = waits_us.peekable();
        if waits_us.peek().is_some() {
            let mut tally = self.read_wait.tally();
            waits_us.for_each(|wait| tally.observe(wait));
            self.read_wait.add(&tally);
        }
    }

    pub(crate) fn read(&self, kind: ReadKind, rows: usize) {
        let at = match kind {
            ReadKind::Poll => 0,
            ReadKind::Rescan => 1,
            ReadKind::Due => 2,
        };
        if let Some(counter) = self.reads.get(at) {
            counter.add(1);
        }
        self.rows_read.add(rows as u64);
    }

    /// A checkpoint was written, after so long.
    pub(crate) fn checkpoint(&self, checkpoint: &Checkpoint, took: Duration) {
        let moved = || checkpoint.shards.iter().flat_map(|s| &s.moved);
        let messages = moved().count();
        self.moved.add(messages as u64);
        self.moved_bytes.add(moved().map(|m| m.weight() as u64).sum());
        self.checkpoint_seconds.observe(micros(took));
        self.checkpoint_messages.observe(i64::try_from(messages).unwrap_or(i64::MAX));
    }

    pub(crate) fn failed(&self, call: &'static str, code: &'static str) {
        *self.errors.lock().unwrap_or_else(PoisonError::into_inner).entry((call, code)).or_default() += 1;
    }

    pub(crate) fn lost(&self, task: &'static str) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner).entry(task).or_default() += 1;
    }

    pub(crate) fn pruned(&self, messages: u64) {
        self.pruned.add(messages);
    }

    pub(crate) fn destination(&self, at: usize) -> Option<&DestinationCounts> {
        self.destinations.get(at)
    }

    /// What is logged is counted.
    pub(crate) fn event(&self, event: &Event) {
        let of = |d: &outhaul_core::destination::DestinationIndex| self.destinations.get(usize::from(d.0));
        let word = match event {
            Event::NoRoute { .. } => return self.no_route.add(1),
            Event::RepeatedId { .. } => return self.repeated.add(1),
            Event::Dead { destination, .. } => {
                if let Some(counts) = of(destination) {
                    counts.dead.add(1);
                }
                return;
            }
            Event::Forgotten { destination, count, .. } => {
                if let Some(counts) = of(destination) {
                    counts.forgotten.add(*count);
                }
                "forgotten"
            }
            Event::Acquired { .. } => "acquired",
            Event::Running { .. } => "running",
            Event::HandingOver { .. } => "handing_over",
            Event::Released { .. } => "released",
            Event::Fenced { .. } => "fenced",
            Event::Mismatch { .. } => "mismatch",
            Event::LogWentBack { .. } => "log_went_back",
            Event::LogGap { .. } => "log_gap",
            Event::NotStarted { .. } => "not_started",
            Event::Started { .. } => "started",
            Event::NotVerified { .. } => "not_verified",
            Event::ForgottenTooMany { .. } => "forgotten_too_many",
            Event::DestinationDown { .. } => "destination_down",
            Event::DestinationUp { .. } => "destination_up",
            Event::Acted { refused: None, .. } => "acted",
            Event::Acted { .. } => "act_refused",
            Event::OtherConfiguration { owners } if owners.is_empty() => "same_configuration",
            Event::OtherConfiguration { .. } => "other_configuration",
            Event::CommitUnknown => "commit_unknown",
            Event::CommitKnown { .. } => "commit_known",
            _ => "other",
        };
        *self.events.lock().unwrap_or_else(PoisonError::into_inner).entry(word).or_default() += 1;
    }
}

impl DestinationCounts {
    fn new() -> Self {
        Self {
            outcomes: Default::default(),
            forgotten: Counter::default(),
            dead: Counter::default(),
            send: Histogram::new(Buckets::SECONDS),
            read_to_ack: Histogram::new(Buckets::SECONDS),
            commit_to_ack: Histogram::new(Buckets::SECONDS),
            level: AtomicU8::new(0),
        }
    }

    /// A batch was answered after so long, at this time (microseconds of the wall clock).
    pub(crate) fn sent(&self, batch: &SendBatch, outcomes: &[Outcome], took: Duration, at_us: i64) {
        self.send.observe(micros(took));
        let mut counts = [0u64; OUTCOMES.len()];
        let (mut read, mut commit) = (self.read_to_ack.tally(), self.commit_to_ack.tally());
        let taken = batch.taken_at_us.iter().copied().chain(std::iter::repeat(0));
        for ((message, outcome), taken_at_us) in batch.messages.iter().zip(outcomes).zip(taken) {
            let at = match outcome {
                Outcome::Delivered(_) => 0,
                Outcome::Retry { .. } => 1,
                Outcome::Rejected(_) => 2,
                Outcome::Unknown(_) => 3,
                Outcome::DestinationDown(_) => 4,
                Outcome::Held { .. } => 5,
            };
            if let Some(count) = counts.get_mut(at) {
                *count += 1;
            }
            if at == 0 && taken_at_us > 0 {
                read.observe(at_us.saturating_sub(taken_at_us));
                commit.observe(at_us.saturating_sub(message.created_at_us));
            }
        }
        for (counter, n) in self.outcomes.iter().zip(counts).filter(|(_, n)| *n > 0) {
            counter.add(n);
        }
        self.read_to_ack.add(&read);
        self.commit_to_ack.add(&commit);
    }

    /// It was started, and said what its acknowledgements prove.
    pub(crate) fn proves(&self, level: AckLevel) {
        let at = LEVELS.iter().position(|l| *l == level).map_or(0, |at| at + 1);
        self.level.store(u8::try_from(at).unwrap_or(0), Ordering::Relaxed);
    }

    pub(super) fn level(&self) -> Option<AckLevel> {
        let at = usize::from(self.level.load(Ordering::Relaxed)).checked_sub(1)?;
        LEVELS.get(at).copied()
    }
}

fn micros(d: Duration) -> i64 {
    i64::try_from(d.as_micros()).unwrap_or(i64::MAX)
}
