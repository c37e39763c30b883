//! Which rows to read, and which of those read are new.
//!
//! One [`Intake`] serves all shards that an instance owns. It knows every `seq` that it has taken and that is not yet
//! gone from the table for certain, and a mark ([`Intake::resolved`]) at or below which no open transaction holds a
//! `seq`. A poll reads what lies above the mark and is not known, in one statement. So a row that commits late is found
//! by the next poll, in one snapshot with everything that depends on it, and no timer decides about order or delivery.

use std::collections::{HashMap, VecDeque};

use xxhash_rust::xxh3::xxh3_64;

use crate::message::{Row, Seq};
use crate::runs::{Run, Runs};

/// Ranges a read names at most: beyond that, neighbours are joined and known rows read again (and dropped).
const MAX_RANGES: usize = 32;
/// Ids remembered to notice that an application wrote one twice.
const RECENT_IDS: usize = 32_768;

/// Number of a read: they are given in the order in which reads begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadToken(pub u64);

/// The `seq` side of an instance.
#[derive(Debug, Default)]
pub struct Intake {
    resolved: Seq,
    /// The largest `seq` that was seen and left.
    seen: Seq,
    /// Taken, and possibly still in the table or in the answer of a read that is under way.
    known: Runs,
    /// Of `known`: gone from the table, and no read is under way that could still show them.
    gone: Runs,
    /// Moved by checkpoints, with the newest read that had begun by then.
    retiring: VecDeque<(ReadToken, Vec<Run>)>,
    held_rows: u64,
    last_token: ReadToken,
    under_way: Vec<ReadToken>,
    /// An answer to "what is resolved", and the newest read that had begun by then.
    candidate: Option<(Seq, ReadToken)>,
    recent_ids: HashMap<u64, Seq>,
    recent_order: VecDeque<u64>,
}

/// What became of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// New.
    New {
        /// Another row with this id was taken a short while ago.
        repeated_id: bool,
    },
    /// Known already: in memory, or moved while the read was under way.
    Known,
}

impl Intake {
    /// The mark: no `seq` at or below it is held by an open transaction, and all that were visible were taken.
    pub const fn resolved(&self) -> Seq {
        self.resolved
    }

    /// The largest `seq` taken that is still known.
    pub fn newest(&self) -> Seq {
        Seq(self.known.last().unwrap_or(0).max(self.seen.0).max(self.resolved.0))
    }

    /// A row with this `seq` was seen and is not to be taken yet: the mark can rise past it.
    pub fn see(&mut self, seq: Seq) {
        self.seen = self.seen.max(seq);
    }

    /// Whether asking for the resolved mark can help: something known or a gap lies above it.
    pub fn wants_resolve(&self) -> bool {
        self.candidate.is_none() && self.newest() > self.resolved
    }

    /// Begins a read: gives its number, the ranges of a poll, and by how much the limit must be raised because of known
    /// rows that lie within the ranges.
    pub fn begin_poll(&mut self) -> (ReadToken, Vec<Run>, u64) {
        let everything = Run { first: self.resolved.0.saturating_add(1), last: u64::MAX };
        let ranges = self.known.gaps(everything);
        self.begin_read(ranges)
    }

    /// Begins a read of the whole table, but for rows that are held and for those that were moved a moment ago.
    pub fn begin_rescan(&mut self) -> (ReadToken, Vec<Run>, u64) {
        let mut known = self.known.clone();
        self.gone.iter().for_each(|run| known.remove_run(run)); // Such a number may be in use again.
        let ranges = known.gaps(Run { first: 0, last: u64::MAX });
        self.begin_read(ranges)
    }

    fn begin_read(&mut self, mut ranges: Vec<Run>) -> (ReadToken, Vec<Run>, u64) {
        while ranges.len() > MAX_RANGES {
            // Join the neighbours with the fewest numbers between them, all pairs below the median at once.
            let mut between: Vec<u64> = ranges.windows(2).map(|w| w[1].first - w[0].last).collect();
            let excess = ranges.len() - MAX_RANGES;
            let (_, cut, _) = between.select_nth_unstable(excess - 1);
            let cut = *cut;
            let mut joined: Vec<Run> = Vec::with_capacity(ranges.len());
            for range in ranges {
                match joined.last_mut() {
                    Some(before) if range.first - before.last <= cut => before.last = range.last,
                    _ => joined.push(range),
                }
            }
            ranges = joined;
        }
        let known_inside: u64 = ranges.iter().map(|r| self.known.count_within(*r)).sum();
        (self.begin(), ranges, known_inside.min(self.held_rows))
    }

    fn begin(&mut self) -> ReadToken {
        self.last_token.0 += 1;
        self.under_way.push(self.last_token);
        self.last_token
    }

    /// Begins a read of these very rows.
    pub fn begin_exact(&mut self, ranges: Vec<Run>) -> (ReadToken, Vec<Run>) {
        (self.begin(), ranges)
    }

    /// Takes a scheduled row that is due: that it lies below the mark says nothing about the mark.
    pub fn take_due(&mut self, row: &Row) -> Taken {
        self.insert(row)
    }

    /// Takes a row of a read that is under way.
    pub fn take(&mut self, row: &Row) -> Taken {
        if row.seq <= self.resolved && !self.known.contains(row.seq.0) {
            // The mark was too high for this one: the sequence has started again, or the database's word was not good.
            // From here on polls begin below it.
            self.lower(Seq(row.seq.0.saturating_sub(1)));
        }
        self.insert(row)
    }

    fn insert(&mut self, row: &Row) -> Taken {
        if self.gone.contains(row.seq.0) {
            self.gone.remove(row.seq.0); // The number is in use again.
        } else if !self.known.insert(row.seq.0) {
            return Taken::Known;
        }
        self.held_rows += 1;
        Taken::New { repeated_id: self.is_repeated(&row.id, row.seq) }
    }

    fn is_repeated(&mut self, id: &str, seq: Seq) -> bool {
        let hash = xxh3_64(id.as_bytes());
        if let Some(before) = self.recent_ids.insert(hash, seq) {
            return before != seq;
        }
        self.recent_order.push_back(hash);
        if self.recent_order.len() > RECENT_IDS
            && let Some(old) = self.recent_order.pop_front()
        {
            self.recent_ids.remove(&old);
        }
        false
    }

    fn lower(&mut self, to: Seq) {
        self.resolved = to;
        self.seen = Seq(0);
        self.candidate = None;
        // Numbers that are gone may be given again.
        for run in self.gone.within(Run { first: to.0.saturating_add(1), last: u64::MAX }).collect::<Vec<_>>() {
            self.known.remove_run(run);
            self.gone.remove_run(run);
        }
    }

    /// A read has ended, with its rows taken or without any. `covered` says up to which `seq` a poll of all owned
    /// shards showed everything; None for every other read and for one that failed.
    pub fn end(&mut self, token: ReadToken, covered: Option<Seq>) {
        self.under_way.retain(|t| *t != token);
        let oldest = self.under_way.iter().min().copied().unwrap_or(ReadToken(u64::MAX));
        while self.retiring.front().is_some_and(|(newest_then, _)| *newest_then < oldest) {
            if let Some((_, runs)) = self.retiring.pop_front() {
                self.retire(runs);
            }
        }
        if let Some((seq, newest_then)) = self.candidate
            && token > newest_then
            && covered.is_some_and(|c| c >= seq)
        {
            self.candidate = None;
            self.resolved = self.resolved.max(seq);
        }
        let through = Run { first: 0, last: self.resolved.0 };
        for run in self.gone.within(through).collect::<Vec<_>>() {
            self.known.remove_run(run);
        }
        self.gone.remove_run(through);
    }

    fn retire(&mut self, runs: Vec<Run>) {
        for run in runs {
            self.gone.insert_run(run);
        }
    }

    /// The database answered what is resolved.
    pub fn on_resolved(&mut self, seq: Seq) {
        if seq < self.resolved {
            self.lower(seq);
        } else {
            self.candidate = Some((seq, self.last_token));
        }
    }

    /// A checkpoint has moved these rows.
    pub fn moved(&mut self, seqs: impl Iterator<Item = Seq>) {
        let mut runs = Runs::new();
        for seq in seqs {
            runs.insert(seq.0);
            self.held_rows = self.held_rows.saturating_sub(1);
        }
        let runs: Vec<Run> = runs.iter().collect();
        if self.under_way.is_empty() {
            self.retire(runs);
        } else {
            self.retiring.push_back((self.last_token, runs));
        }
    }

    /// Rows that were taken are given up (their shard went to another owner, or is recovered anew): if they are still
    /// in the table they are new again.
    pub fn forget(&mut self, seqs: impl Iterator<Item = Seq>) {
        for seq in seqs {
            self.known.remove(seq.0);
            self.held_rows = self.held_rows.saturating_sub(1);
        }
    }

    /// A shard was gained: everything of it must be looked at, from the start of the table.
    pub fn shard_gained(&mut self) {
        self.lower(Seq(0));
    }

    /// Runs of `seq` that were all taken, around these: a range inside one names only rows that were read, of whichever
    /// shard. Rows taken and given up are in none.
    pub fn runs_around(&self, seqs: impl Iterator<Item = Seq>) -> Vec<Run> {
        let mut wanted = Runs::new();
        seqs.for_each(|s| {
            wanted.insert(s.0);
        });
        let Some(span) = wanted.first().zip(wanted.last()).map(|(first, last)| Run { first, last }) else {
            return Vec::new();
        };
        self.known.within(span).filter(|r| wanted.count_within(*r) > 0).collect()
    }

    /// The newest read that has begun: rows of reads up to it may be older than what happens now.
    pub const fn last_token(&self) -> ReadToken {
        self.last_token
    }

    /// Runs kept in memory, as a measure of it.
    pub fn run_count(&self) -> usize {
        self.known.run_count() + self.gone.run_count() + self.retiring.iter().map(|(_, r)| r.len()).sum::<usize>()
    }
}
