//! A slot: messages that must wait for each other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::block::OrderKey;
use super::breaker::Breaker;
use crate::config::{LaneLimits, Now};
use crate::message::{Message, Position};

/// Which messages of a lane must wait for each other: those of one slot are sent one batch after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slotting {
    /// One slot: everything in order.
    Single,
    /// This many slots by hash of the key; messages without a key go round robin by position.
    ByKey(u32),
    /// This many slots by the hash that Java's `String.hashCode` gives for the key, its absolute value modulo the
    /// number of slots; messages without a key go round robin by position. A destination whose partitions are chosen by
    /// that hash (RocketMQ's `SelectMessageQueueByHash`) sees one partition in each slot if its number of partitions
    /// divides the number of slots.
    ByJavaHash(u32),
}

impl Slotting {
    /// The slot of a message.
    pub fn slot(self, message: &Message) -> u32 {
        self.slot_of(message.key.as_deref(), message.position)
    }

    /// The slot of a message with this key at this position.
    pub fn slot_of(self, key: Option<&str>, position: Position) -> u32 {
        match self {
            Self::Single => 0,
            Self::ByKey(slots) => {
                let n = key.map_or(position.0, |key| xxhash_rust::xxh3::xxh3_64(key.as_bytes()));
                (n % u64::from(slots.max(1))) as u32
            }
            Self::ByJavaHash(slots) => match key {
                Some(key) => java_hash(key).unsigned_abs() % slots.max(1),
                None => (position.0 % u64::from(slots.max(1))) as u32,
            },
        }
    }
}

/// `String.hashCode` of Java: over the UTF-16 code units, in wrapping 32-bit arithmetic.
fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// A message in a slot.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) message: Arc<Message>,
    /// Sends that counted as failed.
    pub(crate) attempts: u32,
    /// Sends in place so far.
    pub(crate) tries: u32,
    /// Deliveries of the slot when it was last sent: an Unknown counts only if there were others since.
    pub(crate) deliveries_then: u64,
    /// It is the first of a block of parked messages.
    pub(crate) parked: bool,
}

impl Item {
    pub(crate) const fn new(message: Arc<Message>, parked: bool, attempts: u32) -> Self {
        Self { message, attempts, tries: 0, deliveries_then: 0, parked }
    }
}

/// Messages of one key that wait for a try in place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    pub(crate) items: VecDeque<Item>,
    pub(crate) retry_at_us: u64,
    /// They wait for a part of the destination that is down.
    pub(crate) aside: bool,
}

/// What a batch is made of.
#[derive(Debug)]
struct UnderWay {
    batch: u64,
    /// The start of the destination after which it was begun.
    start: u64,
    items: Vec<Item>,
}

/// A slot.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) queue: VecDeque<Item>,
    pub(crate) held: HashMap<OrderKey, Held>,
    under_way: Option<UnderWay>,
    /// Messages delivered so far.
    pub(crate) deliveries: u64,
    pub(crate) breaker: Breaker,
    /// The destination said that it is down: nothing is sent before a later start than this one.
    pub(crate) down_since_start: Option<u64>,
    /// Batches in a row about which the destination said nothing.
    pub(crate) silent_batches: u32,
    /// Messages that wait for a part of the destination that is down, and their bytes.
    pub(crate) aside: (usize, usize),
    /// A batch of one message was not one of those: the next one may be.
    aside_next: bool,
    /// Messages here, those under way included, and their bytes. Parked ones are not counted.
    pub(crate) queued: usize,
    pub(crate) queued_bytes: usize,
}

impl Slot {
    /// Whether a parked message is under way.
    pub(crate) fn tries_parked(&self) -> bool {
        self.under_way.as_ref().is_some_and(|u| u.items.iter().any(|i| i.parked))
    }

    /// Takes the next batch: first keys whose wait is over, then the queue; messages of held keys join those held. Of what
    /// waits for a part that is down it takes no more than half a batch, or every other batch where that is one message,
    /// so that the others get on.
    pub(crate) fn begin(
        &mut self,
        batch: u64,
        start: u64,
        now_us: u64,
        max: usize,
        limits: &LaneLimits,
    ) -> Option<Vec<Arc<Message>>> {
        if self.under_way.is_some() {
            return None;
        }
        let mut items: Vec<Item> = Vec::new();
        let mut bytes = 0;
        let fits = |items: &[Item], bytes: &mut usize, item: &Item| {
            *bytes += item.message.weight();
            items.is_empty() || (items.len() < max && *bytes <= limits.max_batch_bytes)
        };
        let mut due: Vec<OrderKey> =
            self.held.iter().filter(|(_, h)| h.retry_at_us <= now_us).map(|(k, _)| k.clone()).collect();
        // By position, so that a run from a seed does not depend on the order of a hash map.
        due.sort_by_key(|k| {
            let held = self.held.get(k);
            let first = held.and_then(|h| h.items.front()).map(|i| i.message.position);
            (held.is_some_and(|h| h.aside), first)
        });
        let mut aside_left = match max {
            _ if self.queue.is_empty() => max,
            1 => {
                self.aside_next = !self.aside_next;
                usize::from(!self.aside_next)
            }
            _ => max.div_ceil(2),
        };
        'due: for key in due {
            let Some(held) = self.held.get_mut(&key) else { continue };
            while let Some(item) = held.items.front() {
                if (held.aside && aside_left == 0) || !fits(&items, &mut bytes, item) {
                    break 'due;
                }
                aside_left -= usize::from(held.aside);
                items.extend(held.items.pop_front());
            }
            self.held.remove(&key);
        }
        while let Some(item) = self.queue.front() {
            if let Some(held) = self.held.get_mut(&OrderKey::of(&item.message)) {
                held.items.extend(self.queue.pop_front());
                continue;
            }
            if !fits(&items, &mut bytes, item) {
                break;
            }
            items.extend(self.queue.pop_front());
        }
        self.count_aside();
        if items.is_empty() {
            return None;
        }
        for item in &mut items {
            item.deliveries_then = self.deliveries;
        }
        let messages = items.iter().map(|i| i.message.clone()).collect();
        self.under_way = Some(UnderWay { batch, start, items });
        Some(messages)
    }

    /// The batch was answered: the start after which it was begun and its items, if it is the one that is under way.
    pub(crate) fn finish(&mut self, batch: u64) -> Option<(u64, Vec<Item>)> {
        self.under_way.take_if(|u| u.batch == batch).map(|u| (u.start, u.items))
    }

    /// What comes back of a batch, in its order: it goes before whatever else there is of its key. `held` waits, each with
    /// its key, until a time on the monotonic clock; the keys `aside` also until the destination was started anew.
    pub(crate) fn put_back(
        &mut self,
        front: Vec<Item>,
        held: Vec<(OrderKey, Item, u64)>,
        aside: &HashSet<OrderKey>,
        now: Now,
    ) {
        for item in front.into_iter().rev() {
            // A batch may have taken only some of a key's held messages: those left are younger.
            match self.held.get_mut(&OrderKey::of(&item.message)) {
                Some(younger) => younger.items.push_front(item),
                None => self.queue.push_front(item),
            }
        }
        // What is held already of a key is younger than what comes back of it.
        let mut returned: HashMap<OrderKey, Held> = HashMap::new();
        for (key, item, retry_at_us) in held {
            let h = returned.entry(key).or_default();
            h.retry_at_us = h.retry_at_us.max(retry_at_us).max(now.mono_us);
            h.items.push_back(item);
        }
        for (key, mut h) in returned {
            if let Some(younger) = self.held.remove(&key) {
                h.items.extend(younger.items);
            }
            h.aside = aside.contains(&key);
            self.held.insert(key, h);
        }
        self.count_aside();
    }

    /// Positions of the batch under way, parked ones left out.
    pub(crate) fn under_way_positions(&self) -> impl Iterator<Item = Position> + '_ {
        let items = self.under_way.iter().flat_map(|u| &u.items);
        items.filter(|i| !i.parked).map(|i| i.message.position)
    }

    /// Whether the batch under way has messages that were tried before.
    pub(crate) fn is_tried_again(&self) -> bool {
        self.under_way.iter().flat_map(|u| &u.items).any(|i| i.attempts > 0)
    }

    /// Takes a parked message out of the queue. False: it is not there, perhaps under way.
    pub(crate) fn take_back_parked(&mut self, position: Position) -> bool {
        let at = self.queue.iter().position(|i| i.parked && i.message.position == position);
        at.and_then(|at| self.queue.remove(at)).is_some()
    }

    /// Counts anew what waits for a part that is down.
    pub(crate) fn count_aside(&mut self) {
        let items = self.held.values().filter(|h| h.aside).flat_map(|h| &h.items).filter(|i| !i.parked);
        self.aside = items.fold((0, 0), |(n, bytes), i| (n + 1, bytes + i.message.weight()));
    }

    /// What waits for a part that is down is tried now: it may be up again.
    pub(crate) fn try_aside(&mut self, now_us: u64) {
        if self.aside.0 > 0 {
            self.held.values_mut().filter(|h| h.aside).for_each(|h| h.retry_at_us = now_us);
        }
    }

    /// Everything that is not under way.
    pub(crate) fn withdraw(&mut self) -> Vec<Item> {
        self.aside = (0, 0);
        let held = self.held.drain().flat_map(|(_, h)| h.items);
        let mut items: Vec<Item> = held.collect();
        items.extend(self.queue.drain(..));
        items
    }

    /// How many messages a batch may have that begins now, after this start of the destination. None: none may begin.
    pub(crate) fn allows(&self, now: Now, start: u64, limits: &LaneLimits) -> Option<usize> {
        self.breaker.allows(now, limits).filter(|_| self.has_restarted(start))
    }

    /// The earliest moment at which something may be sent that is ready at `at_us`. None: something else decides.
    pub(crate) fn not_before(&self, at_us: u64, start: u64) -> Option<u64> {
        self.breaker.not_before(at_us).filter(|_| self.has_restarted(start))
    }

    fn has_restarted(&self, start: u64) -> bool {
        self.down_since_start.is_none_or(|since| since < start)
    }

    pub(crate) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// When the slot has something to send, microseconds of the monotonic clock. None: nothing, or only an answer or
    /// somebody else decides. What is in the queue while the breaker is closed was sent, or waits for something else:
    /// perhaps for what the destination may be sent.
    pub(crate) fn deadline_us(&self, start: u64, is_held_back: bool) -> Option<u64> {
        if self.is_under_way() {
            return None;
        }
        let retry = self.held.values().map(|h| h.retry_at_us).min();
        let queued = ((is_held_back || !self.breaker.is_closed()) && !self.queue.is_empty()).then_some(0);
        self.not_before(retry.into_iter().chain(queued).min()?, start)
    }
}
