//! What a replay has read and not delivered yet, by slot.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use outhaul_core::config::LaneLimits;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Message, Position};
use tokio::time::Instant;

/// A slot: one batch is under way in it.
#[derive(Debug, Default)]
struct Slot {
    queue: VecDeque<Arc<Message>>,
    under_way: bool,
    /// Batches in a row of which nothing was settled.
    failures: u32,
    /// Not before.
    again_at: Option<Instant>,
}

/// The slots of a shard that is replayed.
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
    pub(super) fn new(slotting: Slotting) -> Self {
        Self { slotting, slots: BTreeMap::new(), open: BTreeSet::new(), bytes: 0, under_way: 0, last: 0 }
    }

    pub(super) fn add(&mut self, message: Arc<Message>) {
        let slot = self.slotting.slot_of(message.key.as_deref(), message.position);
        self.open.insert(message.position);
        self.bytes += message.weight();
        self.slots.entry(slot).or_default().queue.push_back(message);
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

    pub(super) const fn under_way(&self) -> usize {
        self.under_way
    }

    /// A batch of a slot that has something to send now, of at most so many messages. After a failure it is one message.
    pub(super) fn batch(&mut self, most: usize, limits: &LaneLimits, now: Instant) -> Option<(u32, Vec<Arc<Message>>)> {
        let ready = |slot: &Slot| !slot.under_way && !slot.queue.is_empty() && slot.again_at.is_none_or(|at| at <= now);
        let behind = self.slots.range(self.last.saturating_add(1)..);
        let number = *behind.chain(self.slots.range(..=self.last)).find(|(_, slot)| ready(slot))?.0;
        let slot = self.slots.get_mut(&number)?;
        let most = if slot.failures > 0 { 1 } else { most.min(limits.max_batch) };
        let mut batch: Vec<Arc<Message>> = Vec::new();
        let mut bytes = 0usize;
        while batch.len() < most.max(1) {
            let Some(message) = slot.queue.front() else { break };
            bytes = bytes.saturating_add(message.weight());
            if !batch.is_empty() && bytes > limits.max_batch_bytes {
                break;
            }
            batch.extend(slot.queue.pop_front());
        }
        slot.under_way = true;
        self.under_way += 1;
        self.last = number;
        Some((number, batch))
    }

    /// When a slot goes on that waits.
    pub(super) fn wakes_at(&self) -> Option<Instant> {
        let waiting = |slot: &&Slot| !slot.under_way && !slot.queue.is_empty();
        self.slots.values().filter(waiting).filter_map(|slot| slot.again_at).min()
    }

    /// A message is settled: it was delivered, or is left out.
    pub(super) fn settle(&mut self, message: &Message) {
        if self.open.remove(&message.position) {
            self.bytes = self.bytes.saturating_sub(message.weight());
        }
    }

    /// A batch was answered: what was not settled is sent again, in its order, before all else of the slot. Returns how
    /// often in a row nothing of it was.
    pub(super) fn answered(&mut self, slot: u32, back: Vec<Arc<Message>>, failed: bool) -> u32 {
        self.under_way = self.under_way.saturating_sub(1);
        let slot = self.slots.entry(slot).or_default();
        slot.under_way = false;
        slot.again_at = None;
        slot.failures = if failed { slot.failures.saturating_add(1) } else { 0 };
        back.into_iter().rev().for_each(|message| slot.queue.push_front(message));
        slot.failures
    }

    /// The slot begins nothing before.
    pub(super) fn wait(&mut self, slot: u32, until: Instant) {
        self.slots.entry(slot).or_default().again_at = Some(until);
    }

    /// Waits are over: the destination was started anew.
    pub(super) fn try_all(&mut self) {
        self.slots.values_mut().for_each(|slot| slot.again_at = None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use outhaul_core::destination::DestinationSet;
    use outhaul_core::message::{Row, Seq, ShardId};

    use super::*;

    fn message(n: u64, key: &str) -> Arc<Message> {
        let row = Row {
            seq: Seq(n),
            shard: ShardId(0),
            id: format!("m{n}"),
            topic: "t".into(),
            key: Some(key.into()),
            headers: None,
            payload: vec![0; 100].into(),
            created_at_us: 0,
            defect: None,
        };
        Arc::new(Message::from_row(row, Position(n), DestinationSet::EMPTY))
    }

    fn numbers(batch: &[Arc<Message>]) -> Vec<u64> {
        batch.iter().map(|m| m.position.0).collect()
    }

    #[test]
    fn what_was_not_settled_comes_first_and_alone() {
        let (limits, now) = (LaneLimits::default(), Instant::now());
        let mut slots = Slots::new(Slotting::Single);
        (0..6).for_each(|n| slots.add(message(n, "k")));
        let (slot, batch) = slots.batch(4, &limits, now).unwrap();
        assert_eq!((numbers(&batch), slots.under_way()), (vec![0, 1, 2, 3], 1));
        assert!(slots.batch(4, &limits, now).is_none(), "one batch at a time");
        slots.settle(&batch[0]);
        slots.settle(&batch[2]);
        assert_eq!(slots.answered(slot, vec![batch[1].clone(), batch[3].clone()], true), 1);
        assert_eq!(slots.first_open(), Some(Position(1)));
        let later = now + Duration::from_secs(1);
        slots.wait(slot, later);
        assert!(slots.batch(4, &limits, now).is_none() && slots.wakes_at() == Some(later));
        let (_, again) = slots.batch(4, &limits, later).unwrap();
        assert_eq!(numbers(&again), [1], "a small probe");
        slots.settle(&again[0]);
        assert_eq!(slots.answered(slot, vec![], false), 0);
        assert_eq!(numbers(&slots.batch(4, &limits, later).unwrap().1), [3, 4, 5]);
    }

    #[test]
    fn slots_take_turns_and_batches_keep_to_bytes() {
        let (limits, now) = (LaneLimits { max_batch_bytes: 700, ..LaneLimits::default() }, Instant::now());
        let mut slots = Slots::new(Slotting::ByKey(4));
        (0..40).for_each(|n| slots.add(message(n, &format!("k{}", n % 8))));
        let mut seen = BTreeSet::new();
        while let Some((slot, batch)) = slots.batch(10, &limits, now) {
            assert!(batch.len() == 2 && seen.insert(slot), "{batch:?}");
        }
        assert!(seen.len() > 1 && slots.under_way() == seen.len());
        assert!(!slots.has_room(&LaneLimits { max_queued: 40, ..LaneLimits::default() }));
        assert!(!slots.has_room(&LaneLimits { max_queued_bytes: 40 * 300, ..LaneLimits::default() }));
        assert!(slots.has_room(&LaneLimits::default()));
    }
}
