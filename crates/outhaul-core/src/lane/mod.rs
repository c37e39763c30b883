//! Lanes: (shard, destination). Each delivers the shard's messages to one destination in order per key.
//!
//! A message goes: taken from the window or the log → a slot's queue → under way → settled, with a receipt. One that
//! fails is held in place with its key for a few quick tries, then parked; later ones of its key are parked behind it.
//! The cursor follows the settled positions without a gap.

mod acts;
mod block;
mod breaker;
mod healing;
pub(crate) mod parked;
mod proof;
mod queue;
pub(crate) mod slot;

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::Arc;

pub(crate) use acts::Changed;
pub(crate) use block::OrderKey;
use block::{BlockEntry, Blocks};
pub use breaker::Breaker;
use healing::Healing;
pub use healing::{RecentReceipt, Verification};
use proof::LateProof;
pub use slot::Slotting;
use slot::{Item, Slot};

use crate::act::ActNumber;
use crate::config::{DestinationConfig, Jitter, Now};
use crate::destination::DestinationIndex;
use crate::faults::{Fault, Faults};
use crate::instance::Event;
use crate::message::{Message, Position, ShardId};
use crate::parked::{ParkedEntry, ParkedState, ParkedWrite};
use crate::receipt::{LaneReceipt, LaneState, Outcome, Reason, Receipt};
use crate::runs::{Run, Runs};

/// A batch to send: one at a time in each slot.
#[derive(Clone, Debug)]
pub struct SendBatch {
    /// Slot.
    pub slot: u32,
    /// Number of the batch within its lane.
    pub batch: u64,
    /// Messages, in order.
    pub messages: Vec<Arc<Message>>,
    /// Limit, milliseconds. No answer by then is Unknown for every message.
    pub limit_ms: u64,
    /// The start of the destination after which it was begun. It must not be sent once another start has begun: the
    /// answer is [`crate::instance::Input::NotSent`] then.
    pub start: u64,
    /// When each message was taken from the table, microseconds of the wall clock. 0: it was scheduled, or came from the
    /// log. Only for measuring.
    pub taken_at_us: Vec<i64>,
}

/// A lane.
#[derive(Debug)]
pub struct Lane {
    shard: ShardId,
    index: DestinationIndex,
    config: DestinationConfig,
    cursor: Position,
    ahead: Runs,
    /// Next position to take.
    next: Position,
    /// Messages read from the log, from `next` on.
    fetched: VecDeque<Arc<Message>>,
    reading_log: bool,
    log_retry_at_us: u64,
    slots: BTreeMap<u32, Slot>,
    queued: usize,
    queued_bytes: usize,
    in_flight: usize,
    /// Slots whose breaker is not closed.
    slots_down: usize,
    last_batch: u64,
    blocks: Blocks,
    /// No parked message is tried: all else is settled, and the process is to end.
    leaves_parked: bool,
    /// Keys whose first parked message is being read, by its position.
    reading_parked: BTreeMap<Position, OrderKey>,
    /// Positions that are dead and do not block their key.
    given_up: Runs,
    /// Parked messages that an act changes with the next checkpoint, and what order is kept by of them until then.
    held: BTreeMap<Position, OrderKey>,
    /// Positions that were skipped since the lane began, and all that were ever edited.
    skipped: Runs,
    edited: Runs,
    /// The newest act that has edited a message, stored or not yet.
    newest_edit: BTreeMap<Position, ActNumber>,
    edits_stored: u64,
    /// Keys of blocks that an act has set going.
    redriven: BTreeSet<OrderKey>,
    healing: Healing,
    late_proof: LateProof,
    /// The newest start of the destination.
    newest_start: u64,
    /// Receipts and parked rows that no checkpoint has stored yet, and since when.
    receipts: Vec<LaneReceipt>,
    parked: Vec<ParkedWrite>,
    changed_at_us: Option<u64>,
    /// Cursor as the last committed checkpoint stored it. None: the lane is new, and nothing may be sent before it is.
    stored_cursor: Option<Position>,
    last_error: Option<Reason>,
    /// Since when a slot is down, microseconds of the wall clock.
    down_since_us: i64,
    /// A part of the destination is down, and messages wait for it: since when, microseconds of the wall clock, and why.
    part_down: Option<(i64, Reason)>,
    counts: ParkedCounts,
    /// Positions that were settled since the lane began here.
    settled: u64,
    faults: Faults,
}

/// Parked messages of a lane, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParkedCounts {
    /// To be tried again by themselves.
    pub retrying: u64,
    /// Behind another of their key.
    pub waiting: u64,
    /// Not tried again.
    pub dead: u64,
}

/// A lane as others may see it.
#[derive(Clone, Debug)]
pub struct LaneView {
    /// Destination.
    pub destination: DestinationIndex,
    /// Every position below it is settled.
    pub cursor: Position,
    /// Every position below it is settled, and its acknowledgement has reached the demanded level.
    pub proven: Position,
    /// Acknowledgements that have not.
    pub unproven: usize,
    /// Next position that the lane will take.
    pub next: Position,
    /// Slots that were used so far, and those of them whose part of the destination is down.
    pub slots: usize,
    /// See `slots`: the lane is down as far as these slots go.
    pub slots_down: usize,
    /// Batches under way.
    pub in_flight: usize,
    /// Messages in slots, those under way included.
    pub queued: usize,
    /// Messages that were under way when the lane last went back, and that it has not come to again: they are queued, but
    /// `next` may be below them.
    pub taken: usize,
    /// Parked messages by state.
    pub parked: ParkedCounts,
    /// Whether it was found out, after the newest start of the destination that the lane knows, what it remembers: then
    /// the lane may send.
    pub verified: bool,
    /// Last failure.
    pub last_error: Option<Reason>,
    /// Positions that were settled since the lane began here: it grows as long as the lane moves.
    pub settled: u64,
    /// Positions that it may take or has taken, and that are not settled.
    pub unsettled: u64,
    /// `created_at` of the first of them, if it is in memory: microseconds since 1970-01-01 UTC, database clock.
    pub oldest_at_us: Option<i64>,
    /// Messages that the destination has forgotten, and that are not settled again.
    pub forgotten: u64,
    /// Whether nothing is begun because an operator has paused it.
    pub paused: bool,
    /// Since when it does not get on with its destination, in whole or in part: microseconds of the wall clock, and why.
    pub trouble: Option<(i64, Reason)>,
}

/// What a checkpoint takes of a lane; given back if it does not commit.
#[derive(Clone, Debug)]
pub(crate) struct LaneShare {
    pub(crate) state: LaneState,
    pub(crate) receipts: Vec<LaneReceipt>,
    pub(crate) parked: Vec<ParkedWrite>,
}

impl Lane {
    /// A lane that goes on from a stored state, or (None) begins at `log_end`.
    pub(crate) fn new(
        shard: ShardId,
        index: DestinationIndex,
        config: DestinationConfig,
        stored: Option<&LaneState>,
        log_end: Position,
        faults: Faults,
    ) -> Self {
        let cursor = stored.map_or(log_end, |s| s.cursor.min(log_end));
        Self {
            shard,
            index,
            cursor,
            ahead: stored.map(|s| s.ahead.clone()).unwrap_or_default(),
            next: cursor,
            fetched: VecDeque::new(),
            reading_log: false,
            log_retry_at_us: 0,
            slots: BTreeMap::new(),
            queued: 0,
            queued_bytes: 0,
            in_flight: 0,
            leaves_parked: false,
            slots_down: 0,
            last_batch: 0,
            blocks: Blocks::new(config.slotting),
            reading_parked: BTreeMap::new(),
            given_up: Runs::new(),
            held: BTreeMap::new(),
            skipped: Runs::new(),
            edited: Runs::new(),
            newest_edit: BTreeMap::new(),
            edits_stored: 0,
            redriven: BTreeSet::new(),
            healing: Healing::default(),
            late_proof: LateProof::stored(stored),
            newest_start: 0,
            receipts: Vec::new(),
            parked: Vec::new(),
            changed_at_us: None,
            stored_cursor: stored.map(|s| s.cursor),
            last_error: None,
            down_since_us: 0,
            part_down: None,
            counts: ParkedCounts::default(),
            settled: 0,
            faults,
            config,
        }
    }

    /// Learns which messages are parked, before the first one is taken. They come by rising position.
    pub(crate) fn recover_parked(&mut self, parked: &[ParkedEntry]) {
        let name = self.config.name.clone();
        let mut last = None;
        for entry in parked.iter().filter(|p| p.destination == name) {
            last = Some(entry.position);
            self.count(entry.state, 1);
            if entry.state != ParkedState::Dead || self.config.limits.block_key {
                let key = OrderKey::new(entry.key.as_deref(), entry.position);
                self.blocks.insert(key, BlockEntry::new(entry, None));
            } else {
                self.given_up.insert(entry.position.0);
            }
        }
        if let Some(last) = last {
            self.settle_first(last);
        }
    }

    /// As others may see it.
    pub fn view(&self) -> LaneView {
        LaneView {
            destination: self.index,
            cursor: self.cursor,
            proven: self.proven(),
            unproven: self.unproven_count(),
            next: self.next,
            slots: self.slots.len(),
            slots_down: self.slots_down,
            in_flight: self.in_flight,
            queued: self.queued,
            taken: self.taken(),
            parked: self.counts,
            verified: self.is_verified(Some(self.newest_start)),
            last_error: self.last_error.clone(),
            settled: self.settled,
            unsettled: 0,
            oldest_at_us: None,
            forgotten: self.forgotten_count(),
            paused: false,
            trouble: self.trouble().map(|(since_us, reason)| (since_us, reason.clone())),
        }
    }

    /// The first position that is not settled.
    pub(crate) const fn first_unsettled(&self) -> Position {
        self.cursor
    }

    /// Positions below `released` that are not settled.
    pub(crate) fn unsettled(&self, released: Position) -> u64 {
        let Some(last) = released.0.checked_sub(1).filter(|last| *last >= self.cursor.0) else { return 0 };
        let ahead = self.ahead.count_within(Run { first: self.cursor.0, last });
        (released.0 - self.cursor.0).saturating_sub(ahead)
    }

    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    pub(crate) const fn next(&self) -> Position {
        self.next
    }

    pub(crate) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Results that no checkpoint has taken yet, against how many there may be before the lane takes no new messages:
    /// twice as many is the most that a crash sends again, however long checkpoints fail.
    pub(crate) fn unstored(&self) -> (usize, usize) {
        (self.receipts.len() + self.parked.len(), self.config.limits.max_queued)
    }

    pub(crate) const fn is_new(&self) -> bool {
        self.stored_cursor.is_none()
    }

    fn count(&mut self, state: ParkedState, by: i64) {
        let n = match state {
            ParkedState::Retrying => &mut self.counts.retrying,
            ParkedState::Waiting => &mut self.counts.waiting,
            ParkedState::Dead => &mut self.counts.dead,
        };
        *n = n.saturating_add_signed(by);
    }

    fn settle(&mut self, position: Position, now: Now) {
        self.settled = self.settled.saturating_add(1);
        self.ahead.insert(position.0);
        self.heal(Run { first: position.0, last: position.0 });
        self.follow();
        self.changed_at_us.get_or_insert(now.mono_us);
    }

    fn follow(&mut self) {
        let reached = self.ahead.iter().next().filter(|r| r.first <= self.cursor.0).map(|r| r.last);
        if let Some(last) = reached {
            self.cursor = Position(self.cursor.0.max(last.saturating_add(1)));
            self.ahead.remove_through(last);
            // What was settled before it was taken is not taken any more.
            self.next = self.next.max(self.cursor);
        }
    }

    /// Since when a change waits for a checkpoint, microseconds of the monotonic clock. Moving the cursor over
    /// messages that are not routed here is no reason for one.
    pub(crate) const fn changed_at_us(&self) -> Option<u64> {
        self.changed_at_us
    }

    /// What a checkpoint stores of the lane: nothing at or above the log end that it commits.
    pub(crate) fn share(&mut self, log_end: Position) -> LaneShare {
        let faults = self.faults;
        let below = |p: Position| p < log_end || faults.has(Fault::ReceiptsAboveLogEnd);
        let reached = if faults.has(Fault::CursorPastUnacknowledged) { self.next } else { self.cursor };
        let cursor = reached.min(log_end);
        let mut ahead = Runs::new();
        if let Some(last) = log_end.0.checked_sub(1) {
            self.ahead.within(Run { first: cursor.0, last }).for_each(|r| ahead.insert_run(r));
        }
        let (receipts, later) = std::mem::take(&mut self.receipts).into_iter().partition(|r| below(r.position));
        self.receipts = later;
        let (parked, later) = std::mem::take(&mut self.parked).into_iter().partition(|w| below(w.position()));
        self.parked = later;
        let parked = if faults.has(Fault::ParkedRowNotWritten) { Vec::new() } else { parked };
        if self.receipts.is_empty() && self.parked.is_empty() {
            self.changed_at_us = None;
        }
        let mut receipts: Vec<LaneReceipt> = receipts;
        receipts.sort_by_key(|r| r.position);
        let (proven, proof) = (self.proven().min(cursor), self.proof());
        let state = LaneState { destination: self.config.name.clone(), cursor, proven, proof, ahead };
        LaneShare { state, receipts, parked }
    }

    /// The checkpoint did not commit: its share waits for the next one.
    pub(crate) fn give_back(&mut self, share: LaneShare, now: Now) {
        self.changed_at_us.get_or_insert(now.mono_us);
        self.receipts.splice(0..0, share.receipts);
        self.parked.splice(0..0, share.parked);
    }

    /// The checkpoint has committed.
    pub(crate) fn stored(&mut self, share: &LaneShare) {
        self.stored_cursor = Some(share.state.cursor);
        for write in &share.parked {
            match write {
                ParkedWrite::Insert { entry, .. } => {
                    let key = OrderKey::new(entry.key.as_deref(), entry.position);
                    self.blocks.change(&key, |block| {
                        if let Some(e) = block.place_of(entry.position).and_then(|at| block.entries.get_mut(at)) {
                            (e.stored, e.held) = (true, false);
                            e.message = None;
                        }
                    });
                }
                ParkedWrite::Replace { entry, .. } => self.is_replaced(entry),
                ParkedWrite::Remove { position, .. } => self.is_removed(*position),
                ParkedWrite::Update(_) => {}
            }
        }
    }

    fn deliver(&mut self, position: Position, mut receipt: Receipt, attempts: u32, now: Now) {
        receipt.attempts = attempts;
        self.acknowledged(position, &receipt);
        self.receipts.push(LaneReceipt { position, receipt });
        self.settle(position, now);
    }

    /// Since when it does not get on with its destination, in whole or in part, and why: wall clock, microseconds.
    pub(crate) fn trouble(&self) -> Option<(i64, &Reason)> {
        let down = (self.slots_down > 0).then_some(self.down_since_us);
        let since = down.into_iter().chain(self.unverified_since_us()).min();
        let whole = since.and_then(|since| Some((since, self.last_error.as_ref()?)));
        whole.or(self.part_down.as_ref().map(|(since, reason)| (*since, reason)))
    }

    /// The destination was started.
    pub(crate) fn on_started(&mut self, start: u64, unchanged: bool, now: Now) {
        let before = std::mem::replace(&mut self.newest_start, start);
        if unchanged {
            self.still_verified(before, start);
        }
        if self.is_verified(Some(start)) {
            self.try_aside(now);
        }
        if self.slots_down == 0 {
            self.last_error = None;
        }
    }

    /// The destination could not be started.
    pub(crate) fn on_not_started(&mut self, reason: &Reason) {
        self.last_error = Some(reason.clone());
    }

    /// A batch was not sent after all: the destination was being started anew.
    pub(crate) fn on_not_sent(&mut self, slot_id: u32, batch: u64, now: Now) {
        let Some(slot) = self.slots.get_mut(&slot_id) else { return };
        let Some((_, items)) = slot.finish(batch) else { return };
        self.in_flight -= 1;
        slot.breaker.not_begun(now);
        let (parked, items): (Vec<Item>, Vec<Item>) = items.into_iter().partition(|i| i.parked);
        for item in parked {
            self.not_sending(&OrderKey::of(&item.message));
        }
        self.put_back(slot_id, batch, items, (Vec::new(), &HashSet::new()), now);
    }

    /// A whole batch was answered. Returns the start of the destination after which it is down, if it said so.
    pub(crate) fn on_answer(
        &mut self,
        slot_id: u32,
        batch: u64,
        outcomes: Vec<Outcome>,
        now: Now,
        jitter: &mut Jitter,
        events: &mut Vec<Event>,
    ) -> Option<u64> {
        let slot = self.slots.get_mut(&slot_id)?;
        let (start, items) = slot.finish(batch)?;
        self.in_flight -= 1;
        let delivered = outcomes.iter().filter(|o| matches!(o, Outcome::Delivered(_))).count();
        // Any answer about a single message shows that the destination lives; only silence about all of them does not.
        let answered = outcomes.iter().any(|o| !matches!(o, Outcome::DestinationDown(_) | Outcome::Unknown(_)));
        let part_down = outcomes.iter().find_map(|o| match o {
            Outcome::Held { reason, after_ms: None } => Some(reason.clone()),
            _ => None,
        });
        let down = outcomes.iter().find_map(|o| match o {
            Outcome::DestinationDown(reason) => Some(reason.clone()),
            _ => None,
        });
        let failed = outcomes.iter().find_map(|o| match o {
            Outcome::Retry { reason, .. } | Outcome::Unknown(reason) | Outcome::Held { reason, .. } => {
                Some(reason.clone())
            }
            _ => None,
        });
        if let Some(reason) = down.as_ref().or(failed.as_ref()) {
            self.last_error = Some(reason.clone());
        }
        if answered {
            slot.silent_batches = 0;
        } else if down.is_none() {
            slot.silent_batches = slot.silent_batches.saturating_add(1);
        }
        let only_failures = slot.silent_batches >= self.config.limits.breaker_failures;
        let unknown_probe = matches!(slot.breaker, Breaker::Probing { .. }) && !answered;
        let down_after = down.as_ref().map(|_| start);
        if down_after.is_some() {
            slot.down_since_start = down_after;
        }
        if down.is_some() || only_failures || unknown_probe {
            let reason = down.or(failed).unwrap_or_else(|| Reason::new("OUT-4003", "no answer"));
            if slot.breaker.fail(now, &self.config.limits, jitter) {
                self.slots_down += 1;
                if self.slots_down == 1 {
                    self.down_since_us = now.wall_us;
                    events.push(Event::DestinationDown { shard: self.shard, destination: self.index, reason });
                }
            }
        } else if answered && slot.breaker.succeed() {
            slot.down_since_start = None;
            self.slots_down -= 1;
            if self.slots_down == 0 {
                self.last_error = None;
                events.push(Event::DestinationUp { shard: self.shard, destination: self.index });
            }
        }
        if delivered > 0 {
            self.acknowledged_after(start);
        }
        self.sort_outcomes(slot_id, batch, items, outcomes, now, jitter, events);
        if let Some(slot) = self.slots.get_mut(&slot_id) {
            slot.deliveries = slot.deliveries.saturating_add(delivered as u64);
        }
        let restart = part_down.is_some().then_some(start);
        self.note_part(part_down, now, events);
        down_after.or(restart)
    }
}

impl ParkedWrite {
    /// Position that the write is about.
    pub fn position(&self) -> Position {
        match self {
            Self::Insert { entry, .. } | Self::Update(entry) | Self::Replace { entry, .. } => entry.position,
            Self::Remove { position, .. } => *position,
        }
    }
}
