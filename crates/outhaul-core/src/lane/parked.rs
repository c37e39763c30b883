//! Messages that are set aside, and what waits behind them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::block::{Block, BlockEntry};
use super::slot::{Item, Slot};
use super::{Lane, OrderKey};
use crate::config::{Jitter, Now};
use crate::instance::Event;
use crate::message::{Message, Position};
use crate::parked::{ParkedEntry, ParkedState, ParkedWrite};
use crate::receipt::{LaneReceipt, Reason, Receipt};

/// Parked messages whose content is read at once.
const PARKED_READ: usize = 32;

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
            error_text: reason.text.clone(),
            first_failed_at_us: now.wall_us,
            last_failed_at_us: now.wall_us,
        };
        self.count(state, 1);
        self.settle(message.position, now);
        if state != ParkedState::Dead || self.config.limits.block_key {
            let block = self.blocks.entry(OrderKey::of(&message)).or_default();
            let entry = BlockEntry { entry: entry.clone(), message: Some(message.clone()), stored: false };
            // A defective message is parked at once, so older ones of its key may come after it.
            let at = block.entries.partition_point(|e| e.entry.position < message.position);
            block.entries.insert(at, entry);
        } else {
            self.given_up.insert(message.position.0);
        }
        self.parked.push(ParkedWrite::Insert { entry, message });
    }

    /// The first message of a block has a new state: tell the next checkpoint.
    pub(super) fn update_first(&mut self, key: &OrderKey, now: Now, change: impl FnOnce(&mut ParkedEntry)) {
        let Some(first) = self.blocks.get_mut(key).and_then(|b| b.entries.front_mut()) else { return };
        let before = first.entry.state;
        change(&mut first.entry);
        first.entry.last_failed_at_us = now.wall_us;
        if first.entry.first_failed_at_us == 0 {
            first.entry.first_failed_at_us = now.wall_us;
        }
        let entry = first.entry.clone();
        self.count(before, -1);
        self.count(entry.state, 1);
        self.parked.push(ParkedWrite::Update(entry.clone()));
        self.changed_at_us.get_or_insert(now.mono_us);
        if entry.state == ParkedState::Dead && !self.config.limits.block_key {
            self.given_up.insert(entry.position.0);
            self.drop_first(key);
        }
    }

    pub(super) fn drop_first(&mut self, key: &OrderKey) {
        if let Some(block) = self.blocks.get_mut(key) {
            block.entries.pop_front();
            block.sending = false;
            if block.entries.is_empty() {
                self.blocks.remove(key);
            }
        }
    }

    /// The first message of a block was delivered after all.
    pub(super) fn release_first(&mut self, key: &OrderKey, receipt: Receipt, now: Now) {
        let Some(first) = self.blocks.get(key).and_then(|b| b.entries.front()) else { return };
        let (position, state, attempts) = (first.entry.position, first.entry.state, first.entry.attempts);
        self.count(state, -1);
        let destination = self.config.name.clone();
        self.parked.push(ParkedWrite::Remove { destination, shard: self.shard, position });
        let receipt = Receipt { attempts: attempts.saturating_add(1), ..receipt };
        self.acknowledged(position, &receipt);
        self.receipts.push(LaneReceipt { position, receipt });
        self.changed_at_us.get_or_insert(now.mono_us);
        self.drop_first(key);
    }

    /// The first message of a block failed: due again, or dead.
    pub(super) fn fail_first(
        &mut self,
        key: &OrderKey,
        attempts: u32,
        reason: &Reason,
        due_at_us: Option<i64>,
        now: Now,
    ) {
        if let Some(block) = self.blocks.get_mut(key) {
            block.sending = false;
        }
        self.update_first(key, now, |entry| {
            entry.attempts = attempts;
            entry.state = if due_at_us.is_some() { ParkedState::Retrying } else { ParkedState::Dead };
            entry.due_at_us = due_at_us.unwrap_or(0);
            entry.error_code = reason.code.to_owned();
            entry.error_text.clone_from(&reason.text);
        });
    }

    /// The first message of a block was not sent after all, for no fault of its own: later, without counting.
    pub(super) fn postpone_first(&mut self, key: &OrderKey, now: Now, jitter: &mut Jitter) {
        let wait_ms = jitter.backoff_ms(1, self.config.limits.retry_backoff_ms);
        let Some(block) = self.blocks.get_mut(key) else { return };
        block.sending = false;
        let Some(first) = block.entries.front_mut() else { return };
        // One that only waited for its turn has a time of its own from here on.
        let before = std::mem::replace(&mut first.entry.state, ParkedState::Retrying);
        first.entry.due_at_us = now.wall_us.saturating_add_unsigned(wait_ms.saturating_mul(1_000));
        self.count(before, -1);
        self.count(ParkedState::Retrying, 1);
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
                slot.queue.drain(..).partition(|i| i.parked || !blocked.contains(&OrderKey::of(&i.message)));
            slot.queue.extend(rest);
            items.extend(stop);
        }
        items.sort_by_key(|i| i.message.position);
        let reason = Reason::new("OUT-4009", "waits behind a parked message of its key");
        for item in items {
            self.release_room(slot_id, &item);
            self.park(item.message, ParkedState::Waiting, item.attempts, &reason, 0, now);
        }
    }

    /// Puts parked messages that are due into their slots, once the lane may send after this start of its destination.
    /// Returns positions whose content must be read first.
    pub(crate) fn begin_parked(&mut self, now: Now, start: Option<u64>) -> Vec<Position> {
        let Some(start) = start.filter(|_| !self.blocks.is_empty() && self.is_verified(start)) else {
            return Vec::new();
        };
        // Where the breaker is open, a parked message may be all there is to probe with.
        let mut due: Vec<(Position, OrderKey)> = self
            .blocks
            .iter()
            .filter(|(_, b)| b.due_at_us().is_some_and(|at| at <= now.wall_us))
            .filter(|(_, b)| match self.slot_of(b) {
                Some(slot) => slot.allows(now, start, &self.config.limits).is_some(),
                None => true,
            })
            .filter_map(|(k, b)| Some((b.entries.front()?.entry.position, k.clone())))
            .filter(|(position, _)| !self.is_behind_forgotten(*position))
            .collect();
        due.sort_by_key(|(position, _)| *position);
        let mut missing = Vec::new();
        for (_, key) in due {
            let Some(block) = self.blocks.get_mut(&key) else { continue };
            let Some(first) = block.entries.front() else { continue };
            if let Some(message) = &first.message {
                let slot = self.config.slotting.slot(message);
                let item = Item::new(message.clone(), true, first.entry.attempts);
                block.sending = true;
                self.slots.entry(slot).or_default().queue.push_back(item);
            } else if first.stored && missing.len() < PARKED_READ {
                block.reading = true;
                missing.push(first.entry.position);
            }
        }
        missing
    }

    /// When parked messages are to be sent, microseconds of the monotonic clock.
    pub(super) fn parked_deadline_us(&self, now: Now, start: u64) -> Option<u64> {
        let due = |b: &Block| {
            let at = b.due_at_us()?.saturating_sub(now.wall_us).max(0);
            let at = now.mono_us.saturating_add_signed(at);
            let first = b.entries.front()?.entry.position;
            let at = self.slot_of(b).map_or(Some(at), |slot| slot.not_before(at, start))?;
            (!self.is_behind_forgotten(first)).then_some(at)
        };
        self.blocks.values().filter_map(due).min()
    }

    /// The slot in which a block's first message is sent, if there is anything in it yet.
    fn slot_of(&self, block: &Block) -> Option<&Slot> {
        let first = &block.entries.front()?.entry;
        self.slots.get(&self.config.slotting.slot_of(first.key.as_deref(), first.position))
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
        let of_asked = |b: &Block| b.entries.iter().map(|e| e.entry.position).find(|p| asked.contains(p));
        let reading = self.blocks.iter().filter(|(_, b)| b.reading);
        let mut keys: Vec<(Position, OrderKey)> =
            reading.filter_map(|(k, b)| Some((of_asked(b)?, k.clone()))).collect();
        // By position, so that a run from a seed does not depend on the order of a hash map.
        keys.sort_by_key(|(position, _)| *position);
        for (position, key) in keys {
            let Some(block) = self.blocks.get_mut(&key) else { continue };
            block.reading = false;
            // An older one may have been parked before it meanwhile.
            let Some(first) = block.entries.front_mut().filter(|e| e.entry.position == position) else { continue };
            match by_position.remove(&position) {
                Some(message) => first.message = Some(message),
                None if read => {
                    let state = first.entry.state;
                    self.count(state, -1);
                    self.drop_first(&key);
                }
                None => self.postpone_first(&key, now, jitter),
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
