//! Lanes: (shard, destination).

use crate::message::Message;

/// Which messages of a lane must wait for each other: those of one slot are sent one batch after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slotting {
    /// One slot: everything in order.
    Single,
    /// This many slots by hash of the key; messages without a key go round robin by position.
    ByKey(u32),
}

impl Slotting {
    /// The slot of a message.
    pub fn slot(self, message: &Message) -> u32 {
        match self {
            Self::Single => 0,
            Self::ByKey(slots) => {
                let n =
                    message.key.as_deref().map_or(message.position.0, |key| xxhash_rust::xxh3::xxh3_64(key.as_bytes()));
                (n % u64::from(slots.max(1))) as u32
            }
        }
    }
}
