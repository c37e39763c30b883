//! Messages that are set aside, and what waits behind them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::block::{BlockEntry, Due};
use super::slot::{Item, Slot};
use super::{Lane, OrderKey};
use crate::config::{Jitter, Now};
use crate::faults::Fault;
use crate::instance::Event;
use crate::message::{Message, Position};
use crate::parked::{ParkedEntry, ParkedState, ParkedWrite};
use crate::receipt::{LaneReceipt, Reason, Receipt};

/// Parked messages whose content is read at once.
const PARKED_READ: usize = 32;
/// Characters of a reason that are kept: a broken row's own text may be part of it.
const TOLD: usize = 1_000;

/// As much of a reason's text as is kept.
pub(crate) fn told(text: &str) -> String {
    text.char_indices().nth(TOLD).map_or_else(|| text.to_owned(), |(end, _)| format!("{}…", &text[..end]))
}

impl Lane {
    /// Sets a message aside. It is settled for the cursor: the parked row is written with the checkpoint that passes it.
    pub(super) fn park(
        &mut self,
        message: Arc<Message>,
        state: ParkedState,
        attempts: u32,
        reason: &Reason,
        due_at_us: i64,
        now: Now,
    ) {
        let entry = ParkedEntry {
            destination: self.config.name.clone(),
            shard: self.shard,
            position: message.position,
            key: message.key.clone(),
            state,
            attempts,
            due_at_us,
            error_code: reason.code.to_owned(),
            error_text: told(&reason.text),
            first_failed_at_us: now.wall_us,
            last_failed_at_us: now.wall_us,
        };
        self.count(state, 1);
        self.settle(message.position, now);
        if state != ParkedState::Dead || self.config.limits.block_key {
            self.blocks.insert(OrderKey::of(&message), BlockEntry::new(&entry, Some(message.clone())));
        } else {
            self.given_up.insert(message.position.0);
        }
        self.parked.push(ParkedWrite::Insert { entry, message });
    }

    /// The row of a parked message. Without a reason its code and text are empty: those of the table stay.
    pub(super) fn row(&self, key: &OrderKey, kept: &BlockEntry, reason: Option<&Reason>) -> ParkedEntry {
        ParkedEntry {
            destination: self.config.name.clone(),
            shard: self.shard,
            position: kept.position,
            key: key.text().map(str::to_owned),
            state: kept.state,
            attempts: kept.attempts,
            due_at_us: kept.due_at_us,
            error_code: reason.map_or_else(String::new, |r| r.code.to_owned()),
            error_text: reason.map_or_else(String::new, |r| told(&r.text)),
            first_failed_at_us: kept.first_failed_at_us,
            last_failed_at_us: kept.last_failed_at_us,
        }
    }

    /// A message of a block is not parked any more.
    pub(super) fn drop_parked(&mut self, key: &OrderKey, position: Position) {
        self.blocks.change(key, |block| {
            if let Some(at) = block.place_of(position) {
                block.entries.remove(at);
            }
            block.set_sending(None);
        });
        if !self.redriven.is_empty() && !self.blocks.contains_key(key) {
            self.redriven.remove(key);
        }
    }

    /// A parked message was delivered after all.
    pub(super) fn release_parked(&mut self, key: &OrderKey, position: Position, receipt: Receipt, now: Now) {
        let block = self.blocks.get(key);
        let Some(first) = block.and_then(|b| b.entries.get(b.place_of(position)?)) else { return };
        let (state, attempts) = (first.state, first.attempts);
        self.count(state, -1);
        let destination = self.config.name.clone();
        self.parked.push(ParkedWrite::Remove { destination, shard: self.shard, position });
        let receipt = Receipt { attempts: attempts.saturating_add(1), ..receipt };
        self.acknowledged(position, &receipt);
        self.receipts.push(LaneReceipt { position, receipt });
        self.changed_at_us.get_or_insert(now.mono_us);
        self.drop_parked(key, position);
    }

    /// A parked message failed: due again, or dead.
    pub(super) fn fail_parked(
        &mut self,
        key: &OrderKey,
        (position, attempts): (Position, u32),
        reason: &Reason,
        due_at_us: Option<i64>,
        now: Now,
    ) {
        let changed = self.blocks.change(key, |block| {
            block.set_sending(None);
            let first = block.place_of(position).and_then(|at| block.entries.get_mut(at))?;
            let before = first.state;
            first.attempts = attempts;
            first.state = if due_at_us.is_some() { ParkedState::Retrying } else { ParkedState::Dead };
            first.due_at_us = due_at_us.unwrap_or(0);
            first.last_failed_at_us = now.wall_us;
            if first.first_failed_at_us == 0 {
                first.first_failed_at_us = now.wall_us;
            }
            first.forget_content();
            Some((before, first.clone()))
        });
        let Some((before, kept)) = changed.flatten() else { return };
        self.count(before, -1);
        self.count(kept.state, 1);
        self.write(ParkedWrite::Update(self.row(key, &kept, Some(reason))), now);
        if kept.state == ParkedState::Dead && !self.config.limits.block_key {
            self.given_up.insert(position.0);
            self.drop_parked(key, position);
        }
    }

    /// A parked message was not sent after all, for no fault of its own: later, without counting.
    pub(super) fn postpone_parked(&mut self, key: &OrderKey, position: Position, now: Now, jitter: &mut Jitter) {
        let wait_ms = jitter.backoff_ms(1, self.config.limits.retry_backoff_ms);
        let before = self.blocks.change(key, |block| {
            block.set_sending(None);
            let first = block.place_of(position).and_then(|at| block.entries.get_mut(at))?;
            first.due_at_us = now.wall_us.saturating_add_unsigned(wait_ms.saturating_mul(1_000));
            first.forget_content();
            // One that only waited for its turn has a time of its own from here on.
            let before = std::mem::replace(&mut first.state, ParkedState::Retrying);
            Some((before, first.clone()))
        });
        if let Some((before, kept)) = before.flatten() {
            self.count(before, -1);
            self.count(ParkedState::Retrying, 1);
            if before != ParkedState::Retrying {
                self.write(ParkedWrite::Update(self.row(key, &kept, None)), now);
            }
        }
    }

    /// A parked message is not queued or under way any more, and was not sent.
    pub(super) fn not_sending(&mut self, key: &OrderKey) {
        self.blocks.change(key, |block| block.set_sending(None));
    }

    /// Keys that are blocked from now on: what else the slot has of them is parked behind, in order.
    pub(super) fn park_behind(&mut self, slot_id: u32, blocked: &HashSet<OrderKey>, behind: Vec<Item>, now: Now) {
        if blocked.is_empty() {
            return;
        }
        let mut items = behind;
        if let Some(slot) = self.slots.get_mut(&slot_id) {
            for key in blocked {
                items.extend(slot.held.remove(key).into_iter().flat_map(|h| h.items));
            }
            let (rest, stop): (Vec<_>, Vec<_>) =
                slot.queue.drain(..).partition(|i| !blocked.contains(&OrderKey::of(&i.message)));
            slot.queue.extend(rest);
            slot.count_aside();
            items.extend(stop);
        }
        items.sort_by_key(|i| i.message.position);
        let reason = Reason::new("OUT-4009", "waits behind a parked message of its key");
        for item in items {
            if item.parked {
                self.not_sending(&OrderKey::of(&item.message)); // It has its place in the block.
                continue;
            }
            self.release_room(slot_id, &item);
            self.park(item.message, ParkedState::Waiting, item.attempts, &reason, 0, now);
        }
    }

    /// From now on parked messages are tried when they are due, or left alone.
    pub(crate) const fn leave_parked(&mut self, leave: bool) {
        self.leaves_parked = leave;
    }

    /// Whether a parked message is under way.
    pub(crate) fn tries_parked(&self) -> bool {
        !self.blocks.is_empty() && self.slots.values().any(Slot::tries_parked)
    }

    /// Puts parked messages that are due into their slots, once the lane may send after this start of its destination.
    /// Returns positions whose content must be read first.
    pub(crate) fn begin_parked(&mut self, now: Now, start: Option<u64>) -> Vec<Position> {
        let may = !self.blocks.is_empty() && !self.leaves_parked && self.is_verified(start);
        let Some(start) = start.filter(|_| may) else {
            return Vec::new();
        };
        // Where the breaker is open, a parked message may be all there is to probe with.
        let mut due: Vec<(Position, OrderKey)> = Vec::new();
        for (slot_id, times) in self.blocks.due() {
            let slot = self.slots.get(&slot_id);
            if slot.is_some_and(|slot| slot.allows(now, start, &self.config.limits).is_none()) {
                continue;
            }
            let by_now = times.range(..=(now.wall_us, Position(u64::MAX)));
            let may = by_now.filter(|((_, position), _)| self.has_its_turn(*position));
            due.extend(may.take(self.blocks.room(slot_id)).map(|((_, position), key)| (*position, key.clone())));
        }
        due.sort_by_key(|(position, _)| *position);
        let mut missing = Vec::new();
        for (position, key) in due {
            let Some(first) = self.blocks.get(&key).and_then(|b| b.entries.front()) else { continue };
            let slot = self.config.slotting.slot_of(key.text(), position);
            if self.blocks.room(slot) == 0 {
                continue;
            }
            if let Some(message) = &first.message {
                let item = Item::new(message.clone(), true, first.attempts);
                self.slots.entry(slot).or_default().queue.push_back(item);
                self.blocks.change(&key, |block| block.set_sending(Some(position)));
            } else if first.stored && missing.len() < PARKED_READ {
                self.blocks.change(&key, |block| block.set_reading(Some(position)));
                self.reading_parked.insert(position, key);
                missing.push(position);
            }
        }
        missing
    }

    /// Whether a parked message may go into its slot: what is older, perhaps of its key, is settled, or in the slots before
    /// it.
    fn has_its_turn(&self, position: Position) -> bool {
        let passed = position < self.next || self.faults.has(Fault::RedriveOvertakes);
        passed && !self.is_behind_forgotten(position)
    }

    /// When parked messages are to be sent, microseconds of the monotonic clock. Where as many are under way as may be,
    /// an answer comes first.
    pub(super) fn parked_deadline_us(&self, now: Now, start: u64) -> Option<u64> {
        let due = |(slot_id, times): (u32, &BTreeMap<Due, OrderKey>)| {
            if self.blocks.room(slot_id) == 0 {
                return None;
            }
            let (at, _) = times.keys().find(|(_, position)| self.has_its_turn(*position))?;
            let at = now.mono_us.saturating_add_signed(at.saturating_sub(now.wall_us).max(0));
            self.slots.get(&slot_id).map_or(Some(at), |slot| slot.not_before(at, start))
        };
        if self.leaves_parked { None } else { self.blocks.due().filter_map(due).min() }
    }

    /// The content of parked messages was read. Those that are not there any more were settled by somebody else.
    pub(crate) fn on_parked(
        &mut self,
        asked: &[Position],
        messages: Option<Vec<Arc<Message>>>,
        now: Now,
        jitter: &mut Jitter,
    ) {
        let read = messages.is_some();
        let mut by_position: HashMap<Position, Arc<Message>> =
            messages.into_iter().flatten().map(|m| (m.position, m)).collect();
        for position in asked {
            let Some(key) = self.reading_parked.remove(position) else { continue };
            self.blocks.change(&key, |block| block.set_reading(None));
            // An older one may have been parked before it meanwhile.
            let first = self.blocks.get(&key).and_then(|b| b.entries.front());
            let Some(state) = first.filter(|e| e.position == *position).map(|e| e.state) else { continue };
            match by_position.remove(position) {
                Some(message) if message.defect.is_some() => {
                    let what = message.defect.as_ref().map(ToString::to_string).unwrap_or_default();
                    let reason = Reason::new("OUT-4002", what);
                    self.fail_parked(&key, (*position, 0), &reason, None, now);
                }
                Some(message) => {
                    self.blocks
                        .change(&key, |block| block.entries.front_mut().map(|first| first.message = Some(message)));
                }
                None if read => {
                    self.count(state, -1);
                    self.drop_parked(&key, *position);
                }
                None => self.postpone_parked(&key, *position, now, jitter),
            }
        }
    }

    /// Parks a message that cannot be sent as it is. Messages of its key that are in a slot or not taken yet are older:
    /// they go first, and what follows waits for this one.
    pub(crate) fn park_defective(&mut self, message: &Arc<Message>, what: &str, now: Now, events: &mut Vec<Event>) {
        let reason = Reason::new("OUT-4002", what);
        let (shard, destination, position) = (self.shard, self.index, message.position);
        events.push(Event::Dead { shard, destination, position, reason: reason.clone() });
        self.park(message.clone(), ParkedState::Dead, 0, &reason, 0, now);
    }
}
