//! What a replay has read and not delivered yet, by slot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::config::{LaneLimits, Now};
use crate::lane::Slotting;
use crate::lane::slot::{Item, Slot};
use crate::message::{Message, Position};

/// The slots of a shard that is replayed: those of a lane, where nothing is ever parked.
#[derive(Debug)]
pub(super) struct Slots {
    slotting: Slotting,
    slots: BTreeMap<u32, Slot>,
    /// Read and not settled.
    open: BTreeSet<Position>,
    bytes: usize,
    under_way: usize,
    /// The slot that was served last: the others are looked at first.
    last: u32,
}

impl Slots {
    pub(super) const fn new(slotting: Slotting) -> Self {
        Self { slotting, slots: BTreeMap::new(), open: BTreeSet::new(), bytes: 0, under_way: 0, last: 0 }
    }

    pub(super) fn add(&mut self, message: Arc<Message>) {
        let slot = self.slotting.slot(&message);
        self.open.insert(message.position);
        self.bytes += message.weight();
        self.slots.entry(slot).or_default().queue.push_back(Item::new(message, false, 0));
    }

    /// Whether there is room for more.
    pub(super) fn has_room(&self, limits: &LaneLimits) -> bool {
        self.bytes < limits.max_queued_bytes && self.open.len() < limits.max_queued
    }

    pub(super) fn first_open(&self) -> Option<Position> {
        self.open.first().copied()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Batches that are under way.
    pub(super) const fn under_way(&self) -> usize {
        self.under_way
    }

    pub(super) fn slot(&mut self, slot: u32) -> &mut Slot {
        self.slots.entry(slot).or_default()
    }

    /// A batch of a slot that has something to send now, of at most so many messages. Slots take turns.
    pub(super) fn begin(
        &mut self,
        batch: u64,
        start: u64,
        most: usize,
        limits: &LaneLimits,
        now: Now,
    ) -> Option<(u32, Vec<Arc<Message>>)> {
        let behind = self.slots.range(self.last.saturating_add(1)..).map(|(slot, _)| *slot);
        let turns: Vec<u32> = behind.chain(self.slots.range(..=self.last).map(|(slot, _)| *slot)).collect();
        for number in turns {
            let slot = self.slots.entry(number).or_default();
            let Some(max) = slot.allows(now, start, limits) else { continue };
            let Some(messages) = slot.begin(batch, start, now.mono_us, max.min(most), limits) else { continue };
            slot.breaker.begin();
            self.under_way += 1;
            self.last = number;
            return Some((number, messages));
        }
        None
    }

    /// A batch was answered: its messages. None: it is not the one that is under way.
    pub(super) fn finish(&mut self, slot: u32, batch: u64) -> Option<Vec<Item>> {
        let (_, items) = self.slots.get_mut(&slot)?.finish(batch)?;
        self.under_way = self.under_way.saturating_sub(1);
        Some(items)
    }

    /// A message is settled: it was delivered, or is left out.
    pub(super) fn settle(&mut self, message: &Message) {
        if self.open.remove(&message.position) {
            self.bytes = self.bytes.saturating_sub(message.weight());
        }
    }

    /// When the next batch may begin, microseconds of the monotonic clock, as far as the slots go: 0 for at once. None:
    /// only an answer decides.
    pub(super) fn ready_at_us(&self, start: u64) -> Option<u64> {
        let ready_at = |slot: &Slot| {
            let held = slot.held.values().map(|h| h.retry_at_us).min();
            let ready = if slot.queue.is_empty() { held } else { Some(0) };
            ready.filter(|_| !slot.is_under_way()).and_then(|at| slot.not_before(at, start))
        };
        self.slots.values().filter_map(ready_at).min()
    }

    /// The destination was started: what waits for a part of it is tried.
    pub(super) fn try_aside(&mut self, now: Now) {
        self.slots.values_mut().for_each(|slot| slot.try_aside(now.mono_us));
    }

    /// Whether a slot was told after this start that the destination is down, or that a part of it is.
    pub(super) fn is_down_since(&self, start: u64) -> bool {
        self.slots.values().any(|slot| slot.down_since_start == Some(start) || slot.aside.0 > 0)
    }
}
