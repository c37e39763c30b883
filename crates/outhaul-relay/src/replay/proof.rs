//! What a destination has acknowledged to a replay, as far as it may still forget it.

use std::collections::{BTreeMap, VecDeque};

use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::receipt::{AckLevel, Receipt};
use outhaul_sink::Acknowledged;

/// Acknowledgements that are compared after a start, besides those that are not proven.
const MOST_RECENT: usize = 4_096;
/// Acknowledgements that are asked for at one time.
const MOST_ASKED: usize = 4_096;

/// The acknowledgements of a shard.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// Acknowledged at less than the level that it reaches later.
    unproven: BTreeMap<Position, (String, Receipt)>,
    /// The newest of the others.
    recent: VecDeque<(Position, String, Receipt)>,
}

impl Proof {
    /// A message was acknowledged. `later`: the level that acknowledgements reach some time after they were given.
    pub(super) fn acknowledged(&mut self, message: &Message, receipt: Receipt, later: Option<AckLevel>) {
        if later.is_some_and(|level| receipt.level < level) {
            self.unproven.insert(message.position, (message.id.clone(), receipt));
        } else {
            self.settled(message.position, message.id.clone(), receipt);
        }
    }

    fn settled(&mut self, position: Position, id: String, receipt: Receipt) {
        if self.recent.len() >= MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back((position, id, receipt));
    }

    pub(super) fn first_unproven(&self) -> Option<Position> {
        self.unproven.keys().next().copied()
    }

    pub(super) fn unproven(&self) -> usize {
        self.unproven.len()
    }

    /// What to ask for: the oldest.
    pub(super) fn asked(&self) -> (Vec<Position>, Vec<Receipt>) {
        self.unproven.iter().take(MOST_ASKED).map(|(position, (_, receipt))| (*position, receipt.clone())).unzip()
    }

    /// Which of those that were asked for are proven.
    pub(super) fn proven(&mut self, asked: &[Position], proven: &[bool]) {
        for position in asked.iter().zip(proven).filter(|(_, proven)| **proven).map(|(position, _)| position) {
            if let Some((id, receipt)) = self.unproven.remove(position) {
                self.settled(*position, id, receipt);
            }
        }
    }

    /// What is compared with what the destination has, by rising position.
    pub(super) fn shown(&self, comparison: u64, shard: ShardId) -> Vec<Acknowledged> {
        let one = |position: Position, id: &String, receipt: &Receipt| Acknowledged {
            comparison,
            shard,
            position,
            id: id.clone(),
            receipt: receipt.clone(),
        };
        let recent = self.recent.iter().map(|(position, id, receipt)| one(*position, id, receipt));
        let unproven = self.unproven.iter().map(|(position, (id, receipt))| one(*position, id, receipt));
        let mut shown: Vec<Acknowledged> = recent.chain(unproven).collect();
        shown.sort_by_key(|a| a.position);
        shown
    }

    /// Everything from a position on is sent again: how many acknowledgements that takes back.
    pub(super) fn take_back(&mut self, from: Position) -> u64 {
        let before = self.recent.len() + self.unproven.len();
        self.recent.retain(|(position, ..)| *position < from);
        self.unproven.split_off(&from);
        (before - self.recent.len() - self.unproven.len()) as u64
    }
}
