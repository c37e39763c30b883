//! Rows that are to be delivered later.
//!
//! A row whose `available_at` lies behind its `created_at` is *scheduled*: polls and rescans pass over it. Looks find the
//! scheduled rows that are due soonest, and the core remembers them, [`SCHEDULED_MAX`] at most. When the first are due, a
//! read of their exact `seq` lets the database make ordinary rows of those that are due by its clock, in a transaction of
//! its own, and hands them over. From that commit on nobody can cancel them, and up to it everybody can: which of the two
//! wins is up to the lock of the row, and no row that somebody still holds is waited for.
//!
//! Invariants:
//! - every scheduled row of a shard that runs, committed below `looked_to`, is remembered, or lies behind the horizon, or
//!   a look at everything is wanted;
//! - a row is asked for once everything without a time of its own that had committed when it became due is moved;
//! - rows of a read are taken by (due, `seq`), and none before an earlier one that a limit has cut off;
//! - a read that failed is repeated for the same rows: they may be ordinary by now, and no look would show them.

use std::collections::{BTreeMap, BTreeSet};

use crate::config::{Jitter, Now};
use crate::message::{Row, Seq, ShardId};
use crate::runs::{Run, Runs};

/// Scheduled rows that are remembered, those that are due soonest. A look brings no more.
pub const SCHEDULED_MAX: usize = 10_000;
/// Rows that one read makes ordinary, at most.
const DUE_MAX: usize = 500;
/// Rows that were asked for and not given, and are looked at one by one, at most.
const DOUBTFUL_MAX: usize = 200;
/// A look at everything is repeated after so many times as long as it took.
const ALL_RARER: u64 = 100;
/// And at the latest after this, milliseconds.
const ALL_MAX_MS: u64 = 600_000;
/// How far the database's clock is ahead is learnt from looks that were as fast, microseconds, or the fastest for a while.
const CLOCK_ERROR_US: u64 = 20_000;

/// A scheduled row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// Shard.
    pub shard: ShardId,
    /// `seq` of the row.
    pub seq: Seq,
    /// When it is due, microseconds since 1970-01-01 UTC.
    pub due_at_us: i64,
}

/// What a look has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upcoming {
    /// The database's clock, microseconds since 1970-01-01 UTC.
    pub now_us: i64,
    /// The rows that are due soonest, by due time and `seq`.
    pub rows: Vec<Scheduled>,
    /// Whether the limit has left some out.
    pub cut: bool,
}

/// By when a row is due, then by `seq`.
type Place = (i64, Seq);

#[derive(Debug)]
struct Look {
    all: bool,
    /// Everything at or below had committed before it began.
    to: Seq,
    began_at_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    /// The database's clock less the monotonic one of this process.
    ahead_us: i64,
    error_us: u64,
    learnt_at_us: u64,
}

/// What an instance knows of scheduled rows.
#[derive(Debug)]
pub(crate) struct Schedule {
    rows: BTreeMap<Place, ShardId>,
    /// Up to here nothing is missing in `rows`. None: nothing is at all.
    horizon: Option<Place>,
    /// Rows that the last look at everything brought, where it was cut.
    brought: usize,
    looked_to: Seq,
    wants_all: bool,
    look: Option<Look>,
    next_look_us: u64,
    next_all_us: u64,
    failures: u32,
    clock: Option<Clock>,
    reading: BTreeMap<Place, ShardId>,
    read_not_before_us: u64,
    read_failures: u32,
    batch: usize,
    /// Asked for and not given: deleted, put off, or held by an open transaction.
    doubtful: BTreeSet<Seq>,
    /// Rows that were asked for and neither came nor stayed away for certain, by `seq` with their due times: in `reading`,
    /// or in `rows` again after a read that failed or was cut off. They may be ordinary by now: no look shows them, and a
    /// poll that shows them passes over them, since they have their turn here.
    asked: BTreeMap<Seq, i64>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            rows: BTreeMap::new(),
            horizon: None,
            brought: 0,
            looked_to: Seq(0),
            wants_all: true,
            look: None,
            next_look_us: 0,
            next_all_us: 0,
            failures: 0,
            clock: None,
            reading: BTreeMap::new(),
            read_not_before_us: 0,
            read_failures: 0,
            batch: DUE_MAX,
            doubtful: BTreeSet::new(),
            asked: BTreeMap::new(),
        }
    }
}

impl Schedule {
    /// Everything must be looked at, by a look that begins from now on.
    pub(crate) fn want_all(&mut self) {
        self.wants_all = true;
        if let Some(look) = &mut self.look {
            look.all = false; // It may have begun too early.
        }
        self.next_look_us = 0;
    }

    /// A deliberate fault.
    pub(crate) const fn look_at_all_no_more(&mut self) {
        self.next_all_us = u64::MAX;
    }

    /// A shard is not this instance's any more.
    pub(crate) fn forget(&mut self, shard: ShardId) {
        self.rows.retain(|_, s| *s != shard);
        self.reading.retain(|_, s| *s != shard);
        self.asked.retain(|seq, due| self.rows.contains_key(&(*due, *seq)) || self.reading.contains_key(&(*due, *seq)));
    }

    /// Whether everything was looked at, and nothing waits that was due at a time of the monotonic clock.
    pub(crate) fn is_clear(&self, mono_us: u64) -> bool {
        let due = |place: &Place| self.is_due(*place, mono_us);
        !self.wants_all
            && self.reading.is_empty()
            && self.doubtful.is_empty()
            && !self.rows.keys().next().is_some_and(due)
    }

    /// Whether a row that a poll shows has its turn here.
    pub(crate) fn has_asked(&self, seq: Seq) -> bool {
        self.asked.contains_key(&seq)
    }

    /// Whether rows of a shard were asked for that have not had their turn.
    pub(crate) fn has_asked_of(&self, shard: ShardId) -> bool {
        let asked = |(place, of): (&Place, &ShardId)| *of == shard && self.asked.get(&place.1) == Some(&place.0);
        !self.asked.is_empty() && self.reading.iter().chain(&self.rows).any(asked)
    }

    // ---- looks -----------------------------------------------------------------------------------------------------

    fn runs_low(&self) -> bool {
        self.horizon.is_some() && self.rows.len() < self.brought.div_ceil(2).max(1)
    }

    /// When the next look is due, microseconds of the monotonic clock. None: one is under way.
    pub(crate) fn look_due_us(&self) -> Option<u64> {
        self.look.is_none().then_some(self.next_look_us)
    }

    /// Begins a look: the ranges of `seq`. `resolved`: no open transaction holds a `seq` at or below it.
    pub(crate) fn begin_look(&mut self, now: Now, resolved: Seq) -> Vec<Run> {
        let all = self.wants_all || self.runs_low() || now.mono_us >= self.next_all_us;
        self.look = Some(Look { all, to: resolved, began_at_us: now.mono_us });
        if all {
            self.wants_all = true; // Until it is answered.
            self.doubtful.clear();
            return vec![Run { first: 0, last: u64::MAX }];
        }
        self.looked_to = self.looked_to.min(resolved);
        let mut runs = Runs::new();
        runs.insert_run(Run { first: self.looked_to.0.saturating_add(1), last: u64::MAX });
        std::mem::take(&mut self.doubtful)
            .into_iter()
            .for_each(|seq| runs.insert_run(Run { first: seq.0, last: seq.0 }));
        runs.iter().collect()
    }

    /// A look has ended. `runs`: whether this instance runs a shard. Returns the largest `seq` that was seen.
    pub(crate) fn end_look(
        &mut self,
        now: Now,
        found: Option<Upcoming>,
        (every_ms, backoff_ms): (u64, (u64, u64)),
        jitter: &mut Jitter,
        runs: impl Fn(ShardId) -> bool,
    ) -> Option<Seq> {
        let look = self.look.take()?;
        let Some(found) = found else {
            // What it was to find out about single rows is not known either.
            self.wants_all = true;
            self.failures += 1;
            self.next_look_us = now.after_ms(jitter.backoff_ms(self.failures, backoff_ms));
            return None;
        };
        self.failures = 0;
        let took_us = now.mono_us.saturating_sub(look.began_at_us);
        self.learn_clock(now, &found, took_us);
        if look.all {
            self.brought = found.rows.len();
            self.rows.retain(|(due_at_us, seq), _| self.asked.get(seq) == Some(due_at_us));
            self.horizon = None;
            self.wants_all = false;
            let rarer_ms = (took_us / 1_000).saturating_mul(ALL_RARER);
            self.next_all_us = now.after_ms(rarer_ms.clamp(every_ms.saturating_mul(2), ALL_MAX_MS));
        }
        self.looked_to = look.to;
        if found.cut {
            let last = found.rows.last().map(|r| (r.due_at_us, r.seq));
            self.horizon = last.into_iter().chain(self.horizon).min();
            // Between it and those that are known from before, some may be missing.
            let (horizon, asked) = (self.horizon, &self.asked);
            self.rows.retain(|place, _| horizon.is_none_or(|h| *place <= h) || asked.get(&place.1) == Some(&place.0));
        }
        for row in found.rows.iter().filter(|r| runs(r.shard)) {
            let place = (row.due_at_us, row.seq);
            if self.horizon.is_none_or(|h| place <= h) && !self.reading.contains_key(&place) {
                self.rows.insert(place, row.shard);
            }
        }
        while self.rows.len() > SCHEDULED_MAX {
            if let Some(((_, seq), _)) = self.rows.pop_last() {
                self.asked.remove(&seq);
            }
            self.horizon = self.rows.keys().next_back().copied();
        }
        let again = self.wants_all || (self.runs_low() && self.reading.is_empty());
        self.next_look_us = if again { 0 } else { now.after_ms(every_ms) };
        found.rows.iter().map(|r| r.seq).max()
    }

    fn learn_clock(&mut self, now: Now, found: &Upcoming, took_us: u64) {
        const BEST_FOR_US: u64 = 60_000_000;
        let better = self.clock.is_none_or(|c| {
            took_us <= c.error_us.max(CLOCK_ERROR_US) || now.mono_us >= c.learnt_at_us.saturating_add(BEST_FOR_US)
        });
        if better && found.now_us != 0 {
            let ahead_us = found.now_us.saturating_sub(i64::try_from(now.mono_us).unwrap_or(i64::MAX));
            self.clock = Some(Clock { ahead_us, error_us: took_us, learnt_at_us: now.mono_us });
        }
    }

    // ---- what is due -----------------------------------------------------------------------------------------------

    /// When a place is due, microseconds of the monotonic clock.
    fn due_us(&self, (due_at_us, _): Place) -> u64 {
        let ahead_us = self.clock.map_or(0, |c| c.ahead_us);
        u64::try_from(due_at_us.saturating_sub(ahead_us)).unwrap_or(0)
    }

    fn is_due(&self, place: Place, mono_us: u64) -> bool {
        self.due_us(place) <= mono_us
    }

    /// When the next row is due, and what else has to be waited for. None: nothing but an answer helps.
    pub(crate) fn deadline_us(&self, now: Now) -> Option<u64> {
        if !self.reading.is_empty() {
            return None;
        }
        if self.read_not_before_us > now.mono_us {
            return self.rows.keys().next().map(|place| self.due_us(*place).max(self.read_not_before_us));
        }
        self.rows.keys().map(|place| self.due_us(*place)).find(|at| *at > now.mono_us)
    }

    /// Shards with a row that is due, and since when the first of each is, by both clocks.
    pub(crate) fn due_shards(&self, now: Now) -> BTreeMap<ShardId, (u64, i64)> {
        let mut shards = BTreeMap::new();
        if !self.reading.is_empty() || self.read_not_before_us > now.mono_us {
            return shards;
        }
        for (place, shard) in self.rows.iter().take_while(|(p, _)| self.is_due(**p, now.mono_us)) {
            shards.entry(*shard).or_insert((self.due_us(*place), place.0));
        }
        shards
    }

    /// Begins to read what is due and may be read: the shards and the ranges of `seq`.
    pub(crate) fn begin_due(
        &mut self,
        now: Now,
        may: impl Fn(ShardId, u64, i64) -> bool,
    ) -> Option<(Vec<ShardId>, Vec<Run>)> {
        if !self.reading.is_empty() || self.read_not_before_us > now.mono_us {
            return None;
        }
        // Those of a shard behind one that must wait wait too: the first that may not tells for all later ones.
        let mut waiting = BTreeSet::new();
        let due = self.rows.iter().take_while(|(p, _)| self.is_due(**p, now.mono_us));
        let chosen: Vec<(Place, ShardId)> = due
            .filter(|(place, shard)| {
                // What was asked for before had its turn: polls may show nothing else until it is taken.
                let goes = self.asked.contains_key(&place.1)
                    || (!waiting.contains(*shard) && may(**shard, self.due_us(**place), place.0));
                if !goes {
                    waiting.insert(**shard);
                }
                goes
            })
            .take(self.batch)
            .map(|(place, shard)| (*place, *shard))
            .collect();
        let mut runs = Runs::new();
        let shards: BTreeSet<ShardId> = chosen.iter().map(|(_, shard)| *shard).collect();
        for (place, shard) in chosen {
            self.rows.remove(&place);
            self.asked.insert(place.1, place.0);
            self.reading.insert(place, shard);
            runs.insert(place.1.0);
        }
        (!shards.is_empty()).then(|| (shards.into_iter().collect(), runs.iter().collect()))
    }

    /// The read has ended: puts its rows in the order in which they are to be taken.
    pub(crate) fn end_due(
        &mut self,
        now: Now,
        found: Option<(Vec<Row>, bool)>,
        backoff_ms: (u64, u64),
        jitter: &mut Jitter,
    ) -> Vec<Row> {
        let reading = std::mem::take(&mut self.reading);
        let Some((rows, cut)) = found else {
            self.read_failures += 1;
            self.read_not_before_us = now.after_ms(jitter.backoff_ms(self.read_failures, backoff_ms));
            self.rows.extend(reading);
            return Vec::new();
        };
        self.read_failures = 0;
        let read_to = if cut { rows.last().map_or(Seq(0), |r| r.seq) } else { Seq(u64::MAX) };
        let mut by_seq: BTreeMap<Seq, Row> = rows.into_iter().map(|r| (r.seq, r)).collect();
        let mut taken = Vec::with_capacity(by_seq.len());
        let mut behind = false;
        for ((due_at_us, seq), shard) in reading {
            behind |= seq > read_to;
            if behind {
                self.rows.insert((due_at_us, seq), shard);
                continue;
            }
            self.asked.remove(&seq);
            if let Some(row) = by_seq.remove(&seq) {
                taken.push(row);
            } else {
                self.doubtful.insert(seq);
            }
        }
        let fits = !behind || !taken.is_empty();
        self.batch = if fits { (self.batch * 2).min(DUE_MAX) } else { (self.batch / 2).max(1) };
        if self.doubtful.len() > DOUBTFUL_MAX {
            self.doubtful.clear();
            self.wants_all = true;
        }
        if self.runs_low() {
            self.next_look_us = 0;
        }
        taken
    }
}
