//! Keys that are held back because a message of theirs is parked.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::message::{Message, Position};
use crate::parked::{ParkedEntry, ParkedState};

/// What order is kept by: a key, or for a message without one the message itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
}

/// A parked message as its lane knows it.
#[derive(Clone, Debug)]
pub(crate) struct BlockEntry {
    pub(crate) entry: ParkedEntry,
    /// The content, while it is in memory: until the checkpoint that stores it has committed, and when it is due.
    pub(crate) message: Option<Arc<Message>>,
    /// Whether the row is in the database.
    pub(crate) stored: bool,
}

/// The parked messages of one key, by rising position. The first one decides when the key goes on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    pub(crate) entries: VecDeque<BlockEntry>,
    /// The first one is queued or under way.
    pub(crate) sending: bool,
    /// Its content is being read.
    pub(crate) reading: bool,
}

impl Block {
    /// Where the entry of a position is. A key with a hundred thousand messages behind a dead one is not searched through
    /// for each of them.
    pub(crate) fn place_of(&self, position: Position) -> Option<usize> {
        self.entries.binary_search_by_key(&position, |e| e.entry.position).ok()
    }

    /// When the first one is due, microseconds of the wall clock. None: never by itself.
    pub(crate) fn due_at_us(&self) -> Option<i64> {
        if self.sending || self.reading {
            return None;
        }
        match self.entries.front()?.entry.state {
            ParkedState::Dead => None,
            ParkedState::Retrying => Some(self.entries.front()?.entry.due_at_us),
            ParkedState::Waiting => Some(i64::MIN),
        }
    }
}
