//! Healing: a destination may forget what it has acknowledged. After each start it is compared with the receipts; what it
//! does not have any more is taken out of what is settled and sent again.
//!
//! The lane goes back to its cursor and takes everything anew from there that is not settled, so that a message which is
//! sent again goes before later ones of its key that were not delivered yet. What was delivered above it and is still
//! there stays settled. Batches under way are left alone: what they bring is settled, or put in its place by position.

use std::collections::{BTreeMap, BTreeSet};

use super::slot::Item;
use super::{Lane, OrderKey};
use crate::config::{Jitter, Now};
use crate::faults::Fault;
use crate::instance::Event;
use crate::message::Position;
use crate::receipt::{AckLevel, LaneReceipt, Reason, Receipt};
use crate::runs::{Run, Runs};

/// An acknowledgement that is in memory, and perhaps not in the database yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecentReceipt {
    /// Position.
    pub position: Position,
    /// The outbox id, if the message is in memory too; otherwise the log has it.
    pub id: Option<String>,
    /// What was answered.
    pub receipt: Receipt,
}

/// What was found out about a lane's acknowledgements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verification {
    /// Positions that the destination does not have any more. More than the limit: it was not looked any further.
    pub forgotten: Vec<Position>,
    /// Receipts at or above the position that was asked for, one for each message: its newest.
    pub unproven: Vec<LaneReceipt>,
}

/// What a lane knows of its destination's memory.
#[derive(Debug, Default)]
pub(super) struct Healing {
    /// The start of the destination after which its memory was found to be right, and the newest start since which
    /// nothing has changed.
    compared: u64,
    verified: u64,
    /// The start for which it is being found out.
    under_way: Option<u64>,
    /// A batch from before that start has brought acknowledgements meanwhile: they were not compared.
    late: bool,
    failures: u32,
    /// Since when it cannot be found out or is refused, microseconds of the wall clock.
    failing_since_us: i64,
    retry_at_us: u64,
    /// The start after which it had forgotten more than is repaired without being asked.
    refused: Option<u64>,
    /// Positions that were forgotten and are not settled again.
    forgotten: Runs,
    /// Positions below a parked message of an earlier owner that were not settled when this one began: the earlier owner
    /// may have gone back.
    older: Runs,
    /// Positions that were under way at the last rewind: they are not taken a second time.
    taken: BTreeSet<u64>,
    /// Attempts and tries in place of messages that are taken again.
    tried: BTreeMap<Position, (u32, u32)>,
    /// The newest batch at the last rewind.
    last_batch: u64,
    /// A read of the log that began before the last rewind has no answer yet.
    pub(super) stale_read: bool,
}

impl Lane {
    /// Whether the lane may send after this start of its destination.
    pub(crate) fn is_verified(&self, start: Option<u64>) -> bool {
        start.is_some_and(|n| n == self.healing.verified || (n > 0 && self.faults.has(Fault::SentUnverified)))
    }

    /// Since when it cannot be found out what the destination remembers, or is more than is repaired without being asked:
    /// microseconds of the wall clock.
    pub(super) fn unverified_since_us(&self) -> Option<i64> {
        let h = &self.healing;
        let failing = h.failures > 0 || h.refused.is_some_and(|start| start == self.newest_start);
        failing.then_some(h.failing_since_us)
    }

    /// Whether it has to be found out now what the destination remembers.
    pub(crate) fn wants_verification(&self, start: u64, now: Now) -> bool {
        self.verify_at_us(start).is_some_and(|at| now.mono_us >= at)
    }

    /// When it has to be found out what the destination remembers.
    pub(super) fn verify_at_us(&self, start: u64) -> Option<u64> {
        let h = &self.healing;
        let wanted = h.verified != start && h.under_way.is_none() && h.refused != Some(start) && !self.is_new();
        wanted.then_some(h.retry_at_us)
    }

    /// The destination was started, and nothing has changed since the start before.
    pub(super) const fn still_verified(&mut self, before: u64, start: u64) {
        if self.healing.verified == before && before > 0 {
            self.healing.verified = start;
        }
    }

    /// It is being found out, after this start; `proves_later` is what the destination said of its acknowledgements.
    pub(crate) fn begin_verification(&mut self, start: u64, proves_later: Option<AckLevel>, now: Now) {
        self.newest_start = start;
        self.proves_later(proves_later, now);
        self.healing.under_way = Some(start);
        self.healing.late = false;
    }

    /// Receipts that no checkpoint has taken yet.
    pub(crate) fn receipts(&self) -> &[LaneReceipt] {
        &self.receipts
    }

    /// Acknowledgements of a batch have come that was begun after this start. The ones that a comparison has not seen
    /// want another.
    pub(super) const fn acknowledged_after(&mut self, start: u64) {
        let h = &mut self.healing;
        match h.under_way {
            Some(under_way) if start < under_way => h.late = true,
            None if start < h.compared => h.verified = 0,
            _ => {}
        }
    }

    /// It was found out what the destination remembers, or (Err) could not be.
    pub(crate) fn on_verified(
        &mut self,
        start: u64,
        found: Result<Verification, Reason>,
        now: Now,
        jitter: &mut Jitter,
        events: &mut Vec<Event>,
    ) {
        if self.healing.under_way != Some(start) {
            return;
        }
        self.healing.under_way = None;
        let (shard, destination) = (self.shard, self.index);
        let found = match found {
            Ok(found) => found,
            Err(reason) => {
                self.healing.failures += 1;
                if self.healing.failures == 1 {
                    self.healing.failing_since_us = now.wall_us;
                    events.push(Event::NotVerified { shard, destination, reason: reason.clone() });
                }
                let wait = jitter.backoff_ms(self.healing.failures, self.config.limits.breaker_backoff_ms);
                self.healing.retry_at_us = now.after_ms(wait);
                self.last_error = Some(reason);
                return;
            }
        };
        self.healing.failures = 0;
        let limit = self.config.limits.max_forgotten;
        if found.forgotten.len() as u64 > limit {
            self.healing.refused = Some(start);
            self.healing.failing_since_us = now.wall_us;
            let text = format!("the destination does not have more than {limit} of the messages that it acknowledged");
            self.last_error = Some(Reason::new("OUT-4016", text));
            events.push(Event::ForgottenTooMany { shard, destination, limit });
            return;
        }
        if !self.faults.has(Fault::ForgottenIgnored) {
            self.rewind(&found.forgotten, now, events);
        }
        self.recover_unproven(found.unproven, now);
        self.healing.compared = start;
        self.healing.verified = if std::mem::take(&mut self.healing.late) { 0 } else { start };
        if self.slots_down == 0 {
            self.last_error = None;
        }
        if self.healing.verified == start {
            self.try_aside(now);
        }
    }

    /// Takes positions out of what is settled: they are sent again.
    fn rewind(&mut self, forgotten: &[Position], now: Now, events: &mut Vec<Event>) {
        for p in forgotten {
            if !self.is_settled(*p) {
                self.healing.forgotten.insert(p.0); // An earlier owner has gone back already.
            }
        }
        let again = self.settled_of(forgotten);
        let (Some(first), Some(last)) = (again.first(), again.last()) else { return };
        let count = again.count_within(Run { first, last });
        let (shard, destination) = (self.shard, self.index);
        events.push(Event::Forgotten { shard, destination, count, first: Position(first), last: Position(last) });
        if let Some(below) = self.cursor.0.checked_sub(1) {
            self.ahead.insert_run(Run { first, last: below });
        }
        again.iter().for_each(|run| {
            self.ahead.remove_run(run);
            self.healing.forgotten.insert_run(run);
        });
        forgotten.iter().filter(|p| again.contains(p.0)).for_each(|p| self.not_acknowledged(*p));
        self.cursor = self.cursor.min(Position(first));
        self.changed_at_us.get_or_insert(now.mono_us);
        if self.faults.has(Fault::RewindKeepsAhead) {
            self.ahead.insert_run(Run { first: first + 1, last });
        }
        self.take_anew();
    }

    /// Of these positions, those that are settled by having been delivered.
    fn settled_of(&self, positions: &[Position]) -> Runs {
        let parked: BTreeSet<Position> =
            if positions.is_empty() { BTreeSet::new() } else { self.blocks.positions().collect() };
        let mut settled = Runs::new();
        let is_parked = |p: &Position| parked.contains(p) || self.given_up.contains(p.0) || self.skipped.contains(p.0);
        for p in positions.iter().filter(|p| self.is_settled(**p) && !is_parked(p)) {
            settled.insert(p.0);
        }
        settled
    }

    pub(super) fn is_settled(&self, position: Position) -> bool {
        position < self.cursor || self.ahead.contains(position.0)
    }

    /// Empties the slots of what is not under way, and goes back to the cursor.
    fn take_anew(&mut self) {
        self.healing.taken.clear();
        let ids: Vec<u32> = self.slots.keys().copied().collect();
        for id in ids {
            let Some(slot) = self.slots.get_mut(&id) else { continue };
            let under_way = slot.under_way_positions().map(|p| p.0);
            self.healing.taken.extend(under_way);
            for item in slot.withdraw() {
                if item.parked {
                    self.not_sending(&OrderKey::of(&item.message));
                } else {
                    self.take_back(id, &item);
                }
            }
        }
        self.fetched.clear();
        self.healing.stale_read |= self.reading_log;
        self.log_retry_at_us = 0;
        self.healing.last_batch = self.last_batch;
        self.next = self.cursor;
    }

    fn take_back(&mut self, slot_id: u32, item: &Item) {
        self.release_room(slot_id, item);
        self.healing.taken.remove(&item.message.position.0);
        if item.attempts > 0 || item.tries > 0 {
            self.healing.tried.insert(item.message.position, (item.attempts, item.tries));
        }
    }

    /// A message of a batch from before the last rewind was not delivered. None: it has been put where it belongs.
    pub(super) fn put_back_rewound(&mut self, slot_id: u32, batch: u64, item: Item) -> Option<Item> {
        if batch > self.healing.last_batch || item.parked {
            return Some(item);
        }
        if item.message.position >= self.next {
            self.take_back(slot_id, &item); // The lane comes to it again.
        } else if let Some(slot) = self.slots.get_mut(&slot_id) {
            // What the lane has taken again goes before it, as far as it is older.
            let key = OrderKey::of(&item.message);
            let younger =
                |i: &Item| i.message.position > item.message.position && (!i.parked || OrderKey::of(&i.message) == key);
            let at = slot.queue.iter().position(younger).unwrap_or(slot.queue.len());
            slot.queue.insert(at, item);
        }
        None
    }

    /// Whether the position is in a slot already, though the lane comes to it again.
    pub(super) fn is_taken(&mut self, position: Position) -> bool {
        !self.healing.taken.is_empty() && self.healing.taken.remove(&position.0)
    }

    /// See [`super::LaneView::forgotten`].
    pub(super) fn forgotten_count(&self) -> u64 {
        self.healing.forgotten.len()
    }

    /// See [`super::LaneView::taken`].
    pub(super) fn taken(&self) -> usize {
        self.healing.taken.len()
    }

    /// Attempts and tries so far of a message that is taken.
    pub(super) fn tried(&mut self, position: Position) -> (u32, u32) {
        if self.healing.tried.is_empty() { (0, 0) } else { self.healing.tried.remove(&position).unwrap_or_default() }
    }

    pub(super) fn heal(&mut self, run: Run) {
        for waiting in [&mut self.healing.forgotten, &mut self.healing.older] {
            if waiting.first().is_some() {
                waiting.remove_run(run);
            }
        }
    }

    /// Messages were parked up to here by an earlier owner: what is below and not settled goes first.
    pub(super) fn settle_first(&mut self, parked: Position) {
        if let Some(last) = parked.0.checked_sub(1).filter(|last| *last >= self.cursor.0) {
            let unsettled = self.ahead.gaps(Run { first: self.cursor.0, last });
            unsettled.into_iter().for_each(|run| self.healing.older.insert_run(run));
        }
    }

    /// Whether the destination has forgotten it, and it is not settled again.
    pub(super) fn is_forgotten(&self, position: Position) -> bool {
        self.healing.forgotten.contains(position.0)
    }

    /// Whether something older waits to be sent, again or at last: then what is parked behind it, perhaps of its key, waits
    /// too.
    pub(super) fn is_behind_forgotten(&self, position: Position) -> bool {
        [&self.healing.forgotten, &self.healing.older].iter().any(|w| w.first().is_some_and(|first| first < position.0))
    }
}
