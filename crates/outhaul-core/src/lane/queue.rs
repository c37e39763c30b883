//! From the log into slots, and from answers back: how messages of a lane move.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use super::slot::{Item, Slot};
use super::{Lane, OrderKey, SendBatch};
use crate::allowance::{Allowance, Gate};
use crate::config::{Jitter, Now};
use crate::faults::Fault;
use crate::instance::Event;
use crate::message::{Message, Position};
use crate::parked::ParkedState;
use crate::pipeline::Window;
use crate::receipt::{Outcome, Reason};
use crate::runs::Run;

/// A `Retry` that asks for more than this many times the longest quick wait is parked at once.
const PATIENCE: u64 = 4;

/// Where the rest of a key goes when one of its messages was not delivered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Held,
    Front,
}

impl Lane {
    /// Takes messages below `released` into the slots as far as the limits allow. Returns the position from which the
    /// log must be read, if the lane is behind what memory holds.
    pub(crate) fn advance(
        &mut self,
        window: &Window,
        released: Position,
        now: Now,
        events: &mut Vec<Event>,
    ) -> Option<Position> {
        let down = self.queued_where_down();
        while self.next < released && self.has_room(down) {
            let position = self.next;
            if let Some(run) = self.ahead.within(Run { first: position.0, last: position.0 }).next() {
                self.next = Position(run.last + 1);
                continue;
            }
            if self.is_taken(position) {
                self.next = Position(position.0 + 1);
                continue;
            }
            let message = if position < window.base() || self.is_edited(position) {
                while self.fetched.front().is_some_and(|m| m.position < position) {
                    self.fetched.pop_front();
                }
                match self.fetched.front() {
                    Some(m) if m.position == position => self.fetched.pop_front(),
                    Some(m) => {
                        self.skip_gap(position, m.position, now, events);
                        continue;
                    }
                    None if self.reading_log || now.mono_us < self.log_retry_at_us => return None,
                    None => {
                        self.reading_log = true;
                        return Some(position);
                    }
                }
            } else {
                self.fetched.clear();
                window.get(position)
            };
            let Some(message) = message else { break };
            self.next = Position(position.0 + 1);
            self.admit(message, now, events);
        }
        None
    }

    /// Whether the lane may take one more. What waits in slots that are down must not stop the others: it has the span
    /// and as many bytes again to itself.
    fn has_room(&self, (down, down_bytes): (usize, usize)) -> bool {
        let l = &self.config.limits;
        self.queued.saturating_sub(down) < l.max_queued
            && self.queued_bytes.saturating_sub(down_bytes) < l.max_queued_bytes
            && down_bytes < l.max_queued_bytes
            && self.receipts.len() + self.parked.len() < l.max_queued
            && self.unproven_count() < l.max_unproven
            && self.next.0 - self.cursor.0 < l.max_span
    }

    /// Messages that wait in slots that are down, or for a part of the destination that is, and their bytes.
    fn queued_where_down(&self) -> (usize, usize) {
        if self.slots_down == 0 && self.part_down.is_none() {
            return (0, 0);
        }
        let of = |s: &Slot| if s.breaker.is_closed() { s.aside } else { (s.queued, s.queued_bytes) };
        self.slots.values().map(of).fold((0, 0), |(n, bytes), (more, more_bytes)| (n + more, bytes + more_bytes))
    }

    /// The log has no messages here: they were removed by hand, or a backup was restored. There is nothing to send.
    fn skip_gap(&mut self, from: Position, to: Position, now: Now, events: &mut Vec<Event>) {
        events.push(Event::LogGap { shard: self.shard, destination: self.index, from, to });
        let gap = Run { first: from.0, last: to.0 - 1 };
        self.ahead.insert_run(gap);
        self.heal(gap);
        self.follow();
        self.changed_at_us.get_or_insert(now.mono_us);
        self.next = to;
    }

    fn admit(&mut self, message: Arc<Message>, now: Now, events: &mut Vec<Event>) {
        // One that no route named when it came may have been delivered, and forgotten, all the same.
        if !message.destinations.contains(self.index) && !self.is_forgotten(message.position) {
            return self.settle(message.position, now);
        }
        let block = self.blocks.get(&OrderKey::of(&message));
        if block.is_some_and(|b| b.place_of(message.position).is_some()) {
            return self.settle(message.position, now);
        }
        let blocked = block.and_then(|b| b.entries.front()).is_some_and(|e| e.position < message.position);
        // Before all else: it must not be sent either when what blocks its key is gone.
        if let Some(defect) = &message.defect {
            return self.park_defective(&message, &defect.to_string(), now, events);
        }
        if blocked {
            let reason = Reason::new("OUT-4009", "waits behind a parked message of its key");
            return self.park(message, ParkedState::Waiting, 0, &reason, 0, now);
        }
        let (attempts, tries) = self.tried(message.position);
        let weight = message.weight();
        self.queued += 1;
        self.queued_bytes += weight;
        let slot = self.slots.entry(self.config.slotting.slot(&message)).or_default();
        slot.queued += 1;
        slot.queued_bytes += weight;
        slot.queue.push_back(Item { attempts, tries, ..Item::new(message, false, 0) });
    }

    /// Begins a batch in every slot that has something to send and none under way.
    /// `start` is the start of the destination after which it may be sent to; None: none may begin now. `slots` are those
    /// that have their turn, `allowance` is what the destination may be sent.
    pub(crate) fn begin_sends(
        &mut self,
        now: Now,
        lease_until_us: u64,
        start: Option<u64>,
        slots: (Bound<u32>, Bound<u32>),
        allowance: &mut Allowance,
    ) -> Vec<SendBatch> {
        if !self.is_covered(now, lease_until_us) {
            return Vec::new(); // The answer could come when the shard is somebody else's.
        }
        let Some(start) = start.filter(|_| self.is_verified(start)) else { return Vec::new() };
        let limit_ms = self.config.limits.send_limit_ms;
        let mut batches = Vec::new();
        for (id, slot) in self.slots.range_mut(slots) {
            let Some(max) = slot.allows(now, start, &self.config.limits) else { continue };
            let Some(most) = allowance.most() else { break };
            let batch = self.last_batch + 1;
            let max = max.min(most);
            let Some(messages) = slot.begin(batch, start, now.mono_us, max, &self.config.limits) else { continue };
            slot.breaker.begin();
            allowance.begun(messages.len(), (self.shard, *id));
            if self.faults.has(Fault::RetryNotCounted) && slot.is_tried_again() {
                allowance.ended();
            }
            self.last_batch = batch;
            self.in_flight += 1;
            batches.push(SendBatch { slot: *id, batch, messages, limit_ms, start, taken_at_us: Vec::new() });
        }
        batches
    }

    pub(super) fn release_room(&mut self, slot_id: u32, item: &Item) {
        if !item.parked {
            let weight = item.message.weight();
            self.queued = self.queued.saturating_sub(1);
            self.queued_bytes = self.queued_bytes.saturating_sub(weight);
            if let Some(slot) = self.slots.get_mut(&slot_id) {
                slot.queued = slot.queued.saturating_sub(1);
                slot.queued_bytes = slot.queued_bytes.saturating_sub(weight);
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(super) fn sort_outcomes(
        &mut self,
        slot_id: u32,
        batch: u64,
        items: Vec<Item>,
        outcomes: Vec<Outcome>,
        now: Now,
        jitter: &mut Jitter,
        events: &mut Vec<Event>,
    ) {
        let delivered_here = outcomes.iter().any(|o| matches!(o, Outcome::Delivered(_)));
        let slot_deliveries = self.slots.get(&slot_id).map_or(0, |s| s.deliveries);
        let missing = std::iter::repeat_with(|| Outcome::Unknown(Reason::new("OUT-4003", "the sink gave no answer")));
        let mut stopped: HashMap<OrderKey, Place> = HashMap::new();
        let mut front: Vec<Item> = Vec::new();
        let mut held: Vec<(OrderKey, Item, u64)> = Vec::new();
        let mut blocked: HashSet<OrderKey> = HashSet::new();
        let mut aside: HashSet<OrderKey> = HashSet::new();
        let mut behind: Vec<Item> = Vec::new();
        for (mut item, outcome) in items.into_iter().zip(outcomes.into_iter().chain(missing)) {
            let key = OrderKey::of(&item.message);
            if !matches!(outcome, Outcome::Delivered(_)) {
                // A failed message before it: this one was not sent.
                if blocked.contains(&key) {
                    behind.push(item);
                    continue;
                }
                match stopped.get(&key) {
                    Some(Place::Held) => {
                        held.push((key, item, 0));
                        continue;
                    }
                    Some(Place::Front) => {
                        front.push(item);
                        continue;
                    }
                    None => {}
                }
            }
            match outcome {
                Outcome::Delivered(receipt) => {
                    self.release_room(slot_id, &item);
                    if item.parked {
                        self.release_parked(&key, item.message.position, receipt, now);
                    } else {
                        let attempts = item.attempts.saturating_add(1);
                        self.deliver(item.message.position, receipt, attempts, now);
                    }
                }
                Outcome::DestinationDown(_) => {
                    if item.parked {
                        self.postpone_parked(&key, item.message.position, now, jitter);
                    } else {
                        stopped.insert(key, Place::Front);
                        front.push(item);
                    }
                }
                Outcome::Held { after_ms, .. } => {
                    if item.parked {
                        self.postpone_parked(&key, item.message.position, now, jitter);
                        continue;
                    }
                    // A start brings it back before that.
                    let longest_ms = self.config.limits.breaker_backoff_ms.1;
                    let at = now.after_ms(after_ms.unwrap_or(longest_ms).min(longest_ms));
                    if after_ms.is_none() {
                        aside.insert(key.clone());
                    }
                    stopped.insert(key.clone(), Place::Held);
                    held.push((key, item, at));
                }
                Outcome::Rejected(reason) => {
                    item.attempts = item.attempts.saturating_add(1);
                    self.release_room(slot_id, &item);
                    let (shard, destination, position) = (self.shard, self.index, item.message.position);
                    events.push(Event::Dead { shard, destination, position, reason: reason.clone() });
                    if item.parked {
                        self.fail_parked(&key, (position, item.attempts), &reason, None, now);
                    } else {
                        self.park(item.message, ParkedState::Dead, item.attempts, &reason, 0, now);
                        if self.blocks.contains_key(&key) {
                            blocked.insert(key);
                        }
                    }
                }
                Outcome::Retry { reason, after_ms } => {
                    self.failed(
                        slot_id,
                        item,
                        key,
                        &reason,
                        true,
                        after_ms,
                        now,
                        jitter,
                        events,
                        &mut Sorted { stopped: &mut stopped, held: &mut held, blocked: &mut blocked },
                    );
                }
                Outcome::Unknown(reason) => {
                    let counts = delivered_here || item.deliveries_then < slot_deliveries;
                    self.failed(
                        slot_id,
                        item,
                        key,
                        &reason,
                        counts,
                        None,
                        now,
                        jitter,
                        events,
                        &mut Sorted { stopped: &mut stopped, held: &mut held, blocked: &mut blocked },
                    );
                }
            }
        }
        self.put_back(slot_id, batch, front, (held, &aside), now);
        self.park_behind(slot_id, &blocked, behind, now);
    }

    #[allow(clippy::too_many_arguments)]
    fn failed(
        &mut self,
        slot_id: u32,
        mut item: Item,
        key: OrderKey,
        reason: &Reason,
        counts: bool,
        after_ms: Option<u64>,
        now: Now,
        jitter: &mut Jitter,
        events: &mut Vec<Event>,
        sorted: &mut Sorted<'_>,
    ) {
        let limits = self.config.limits.clone();
        if counts {
            item.attempts = item.attempts.saturating_add(1);
            item.tries = item.tries.saturating_add(1);
        }
        let dead = counts && item.attempts >= limits.max_attempts;
        if dead {
            let (shard, destination, position) = (self.shard, self.index, item.message.position);
            let reason =
                Reason::new("OUT-4004", format!("{} attempts, last: {} {}", item.attempts, reason.code, reason.text));
            events.push(Event::Dead { shard, destination, position, reason });
        }
        let wait_ms = jitter.backoff_ms(item.attempts.max(1), limits.retry_backoff_ms).max(after_ms.unwrap_or(0));
        let due_at_us = now.wall_us.saturating_add_unsigned(wait_ms.saturating_mul(1_000));
        if item.parked {
            let due_at_us = (!dead).then_some(due_at_us);
            self.fail_parked(&key, (item.message.position, item.attempts), reason, due_at_us, now);
            return;
        }
        let quick_ms = jitter.backoff_ms(item.tries.max(1), limits.quick_backoff_ms).max(after_ms.unwrap_or(0));
        let park_now = dead || item.tries >= limits.quick_tries || quick_ms > limits.quick_backoff_ms.1 * PATIENCE;
        if park_now {
            self.release_room(slot_id, &item);
            let state = if dead { ParkedState::Dead } else { ParkedState::Retrying };
            self.park(item.message, state, item.attempts, reason, if dead { 0 } else { due_at_us }, now);
            if self.blocks.contains_key(&key) {
                sorted.blocked.insert(key);
            }
        } else {
            if self.faults.has(Fault::RetryOvertaken) {
                let alone = OrderKey::Alone(item.message.position);
                return sorted.held.push((alone, item, now.after_ms(quick_ms)));
            }
            sorted.stopped.insert(key.clone(), Place::Held);
            sorted.held.push((key, item, now.after_ms(quick_ms)));
        }
    }

    pub(super) fn put_back(
        &mut self,
        slot_id: u32,
        batch: u64,
        front: Vec<Item>,
        (held, aside): (Vec<(OrderKey, Item, u64)>, &HashSet<OrderKey>),
        now: Now,
    ) {
        let front: Vec<Item> = front.into_iter().filter_map(|i| self.put_back_rewound(slot_id, batch, i)).collect();
        let held: Vec<(OrderKey, Item, u64)> = held
            .into_iter()
            .filter_map(|(key, item, at)| Some((key, self.put_back_rewound(slot_id, batch, item)?, at)))
            .collect();
        if let Some(slot) = self.slots.get_mut(&slot_id) {
            slot.put_back(front, held, aside, now);
        }
    }

    /// The destination was started, and may be sent to: what waits for a part of it is tried.
    pub(super) fn try_aside(&mut self, now: Now) {
        if self.part_down.is_some() {
            self.slots.values_mut().for_each(|slot| slot.try_aside(now.mono_us));
        }
    }

    /// A batch was answered: whether a part of the destination is down, by what waits for it.
    pub(super) fn note_part(&mut self, down: Option<Reason>, now: Now, events: &mut Vec<Event>) {
        let (shard, destination) = (self.shard, self.index);
        match (down, &mut self.part_down) {
            (Some(reason), Some((_, last))) => *last = reason,
            (Some(reason), none) => {
                *none = Some((now.wall_us, reason.clone()));
                if self.slots_down == 0 {
                    events.push(Event::DestinationDown { shard, destination, reason });
                }
            }
            (None, Some(_)) if self.slots.values().all(|slot| slot.aside.0 == 0) => {
                self.part_down = None;
                if self.slots_down == 0 {
                    self.last_error = None;
                    events.push(Event::DestinationUp { shard, destination });
                }
            }
            (None, _) => {}
        }
    }

    /// Messages were read from the log, or (None) could not be.
    pub(crate) fn on_log(&mut self, messages: Option<Vec<Arc<Message>>>, now: Now) {
        const LOG_RETRY_MS: u64 = 1_000;
        self.reading_log = false;
        if std::mem::take(&mut self.healing.stale_read) {
            return; // The lane has gone back since.
        }
        match messages {
            Some(messages) if !messages.is_empty() => {
                self.fetched = messages.into_iter().filter(|m| m.position >= self.next).collect();
            }
            _ => self.log_retry_at_us = now.after_ms(LOG_RETRY_MS),
        }
    }

    /// When the lane has something to do by itself, microseconds of the monotonic clock. What waits for an answer, or
    /// for the lease to be renewed, is left out: both come as an input. `gate` is when the destination may be sent to.
    pub(crate) fn deadline_us(&self, now: Now, lease_until_us: u64, start: Option<u64>, gate: Gate) -> Option<u64> {
        let log = (self.log_retry_at_us > now.mono_us).then_some(self.log_retry_at_us);
        let verify = start.and_then(|start| self.verify_at_us(start));
        let sends =
            start.filter(|_| self.is_verified(start) && self.is_covered(now, lease_until_us)).and_then(|start| {
                let is_held_back = gate != Gate::Open;
                let slots = self.slots.values().filter_map(|slot| slot.deadline_us(start, is_held_back)).min();
                let slots = match gate {
                    Gate::Open => slots,
                    Gate::At(at) => slots.map(|ready| ready.max(at)),
                    Gate::Shut => None,
                };
                slots.into_iter().chain(self.parked_deadline_us(now, start)).min()
            });
        sends.into_iter().chain(verify).chain(log).min()
    }

    /// Whether an answer to a send that begins now comes while the shard is still owned.
    fn is_covered(&self, now: Now, lease_until_us: u64) -> bool {
        now.after_ms(self.config.limits.send_limit_ms) < lease_until_us || self.faults.has(Fault::LeaseNotChecked)
    }
}

/// Where [`Lane::failed`] files what it decides.
struct Sorted<'a> {
    stopped: &'a mut HashMap<OrderKey, Place>,
    held: &'a mut Vec<(OrderKey, Item, u64)>,
    blocked: &'a mut HashSet<OrderKey>,
}
