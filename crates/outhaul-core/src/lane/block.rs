//! Keys that are held back because a message of theirs is parked.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::slot::Slotting;
use crate::message::{Message, Position};
use crate::parked::{ParkedEntry, ParkedState};

/// What order is kept by: a key, or for a message without one the message itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OrderKey {
    Key(String),
    Alone(Position),
}

impl OrderKey {
    pub(crate) fn of(message: &Message) -> Self {
        Self::new(message.key.as_deref(), message.position)
    }

    pub(crate) fn new(key: Option<&str>, position: Position) -> Self {
        key.map_or(Self::Alone(position), |k| Self::Key(k.to_owned()))
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Key(key) => Some(key),
            Self::Alone(_) => None,
        }
    }

    const fn position(&self) -> Position {
        match self {
            Self::Key(_) => Position(0),
            Self::Alone(position) => *position,
        }
    }
}

/// A parked message as its lane keeps it: a million of them have to fit. Its key stands once in [`Blocks`], and what went
/// wrong only in the table.
#[derive(Clone, Debug)]
pub(crate) struct BlockEntry {
    pub(crate) position: Position,
    pub(crate) due_at_us: i64,
    pub(crate) first_failed_at_us: i64,
    pub(crate) last_failed_at_us: i64,
    /// The content, while it is in memory: until the checkpoint that stores it has committed, and when it is due.
    pub(crate) message: Option<Arc<Message>>,
    pub(crate) attempts: u32,
    pub(crate) state: ParkedState,
    /// Whether the row is in the database.
    pub(crate) stored: bool,
    /// An act changes it with the next checkpoint: until then it is left alone.
    pub(crate) held: bool,
}

impl BlockEntry {
    /// One that is not in the database yet (with its content), or is.
    pub(crate) const fn new(row: &ParkedEntry, message: Option<Arc<Message>>) -> Self {
        let stored = message.is_none();
        let ParkedEntry { position, state, attempts, due_at_us, first_failed_at_us, last_failed_at_us, .. } = *row;
        Self {
            position,
            due_at_us,
            first_failed_at_us,
            last_failed_at_us,
            message,
            attempts,
            state,
            stored,
            held: false,
        }
    }

    /// Drops the content where it can be read again.
    pub(crate) fn forget_content(&mut self) {
        if self.stored {
            self.message = None;
        }
    }
}

/// The parked messages of one key, by rising position. The first one decides when the key goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) entries: VecDeque<BlockEntry>,
    /// None where nothing happens to it, which is most of the time.
    going_on: Option<Box<GoingOn>>,
}

/// What happens to a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GoingOn {
    sending: Option<Position>,
    reading: Option<Position>,
    indexed: Option<(u32, Due)>,
}

/// When, and which position.
pub(crate) type Due = (i64, Position);

/// All blocks of a lane, and an index of those that are due by themselves: a hundred thousand dead or waiting messages
/// cost nothing until something happens to one of them.
#[derive(Clone, Debug)]
pub(crate) struct Blocks {
    slotting: Slotting,
    by_key: HashMap<OrderKey, Block>,
    due: BTreeMap<u32, BTreeMap<Due, OrderKey>>,
    /// Blocks that are queued, under way or being read, by slot.
    active: BTreeMap<u32, usize>,
}

impl Blocks {
    pub(crate) fn new(slotting: Slotting) -> Self {
        Self { slotting, by_key: HashMap::new(), due: BTreeMap::new(), active: BTreeMap::new() }
    }

    pub(crate) fn get(&self, key: &OrderKey) -> Option<&Block> {
        self.by_key.get(key)
    }

    pub(crate) fn contains_key(&self, key: &OrderKey) -> bool {
        self.by_key.contains_key(key)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Positions of all entries, in no order.
    pub(crate) fn positions(&self) -> impl Iterator<Item = Position> {
        self.by_key.values().flat_map(|b| &b.entries).map(|e| e.position)
    }

    /// Adds an entry in its place.
    pub(crate) fn insert(&mut self, key: OrderKey, entry: BlockEntry) {
        let block = self.by_key.entry(key.clone()).or_default();
        let was_active = block.is_active();
        // Most keys have one or two, and room for four would be made for the first.
        if block.entries.len() == block.entries.capacity() && block.entries.len() < 4 {
            block.entries.reserve_exact(block.entries.len().max(1));
        }
        // A defective message is parked at once, so older ones of its key may come after it.
        let at = block.entries.partition_point(|e| e.position < entry.position);
        block.entries.insert(at, entry);
        self.reindex(&key, was_active);
    }

    /// Changes a block, if there is one. An empty one goes.
    pub(crate) fn change<T>(&mut self, key: &OrderKey, change: impl FnOnce(&mut Block) -> T) -> Option<T> {
        let block = self.by_key.get_mut(key)?;
        let was_active = block.is_active();
        let result = change(block);
        self.reindex(key, was_active);
        Some(result)
    }

    fn reindex(&mut self, key: &OrderKey, was_active: bool) {
        let Some(block) = self.by_key.get_mut(key) else { return };
        let first = block.entries.front();
        let slot = self.slotting.slot_of(key.text(), key.position());
        let due = block.due_at_us().zip(first.map(|f| f.position)).map(|due| (slot, due));
        let is_active = block.is_active() && first.is_some();
        let indexed = block.going_on().indexed;
        if due != indexed {
            if let Some((slot, due)) = indexed
                && let Some(times) = self.due.get_mut(&slot)
            {
                times.remove(&due);
                if times.is_empty() {
                    self.due.remove(&slot);
                }
            }
            if let Some((slot, due)) = due {
                self.due.entry(slot).or_default().insert(due, key.clone());
            }
            block.change_going_on(|g| g.indexed = due);
        }
        if is_active != was_active {
            let active = self.active.entry(slot).or_default();
            *active = if is_active { *active + 1 } else { active.saturating_sub(1) };
        }
        if block.entries.is_empty() {
            self.by_key.remove(key);
        }
    }

    /// The blocks that become due by themselves, by slot.
    pub(crate) fn due(&self) -> impl Iterator<Item = (u32, &BTreeMap<Due, OrderKey>)> {
        self.due.iter().map(|(slot, times)| (*slot, times))
    }

    /// How many more blocks of a slot may be queued, under way or being read.
    pub(crate) fn room(&self, slot: u32) -> usize {
        let all: usize = self.active.values().sum();
        let here = self.active.get(&slot).copied().unwrap_or_default();
        ACTIVE_OF_SLOT.saturating_sub(here).min(ACTIVE.saturating_sub(all))
    }
}

/// Parked messages whose content may be in memory again at one time, of a lane and of one of its slots.
const ACTIVE: usize = 256;
const ACTIVE_OF_SLOT: usize = 32;

impl Block {
    /// Where the entry of a position is. A key with a hundred thousand messages behind a dead one is not searched through
    /// for each of them.
    pub(crate) fn place_of(&self, position: Position) -> Option<usize> {
        self.entries.binary_search_by_key(&position, |e| e.position).ok()
    }

    fn going_on(&self) -> GoingOn {
        self.going_on.as_deref().copied().unwrap_or_default()
    }

    fn change_going_on(&mut self, change: impl FnOnce(&mut GoingOn)) {
        let mut changed = self.going_on();
        change(&mut changed);
        if changed == GoingOn::default() {
            self.going_on = None;
        } else {
            self.going_on = Some(Box::new(changed));
        }
    }

    /// The one that is queued or under way. Others may have been put before it since.
    pub(crate) fn sending(&self) -> Option<Position> {
        self.going_on().sending
    }

    pub(crate) fn set_sending(&mut self, position: Option<Position>) {
        self.change_going_on(|g| g.sending = position);
    }

    /// The one whose content is being read.
    pub(crate) fn reading(&self) -> Option<Position> {
        self.going_on().reading
    }

    pub(crate) fn set_reading(&mut self, position: Option<Position>) {
        self.change_going_on(|g| g.reading = position);
    }

    fn is_active(&self) -> bool {
        self.sending().is_some() || self.reading().is_some()
    }

    /// When the first one is due, microseconds of the wall clock. None: never by itself.
    pub(crate) fn due_at_us(&self) -> Option<i64> {
        let first = self.entries.front()?;
        if self.is_active() || first.held {
            return None;
        }
        match first.state {
            ParkedState::Dead => None,
            ParkedState::Retrying => Some(first.due_at_us),
            ParkedState::Waiting => Some(i64::MIN),
        }
    }
}
