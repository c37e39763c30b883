//! What a destination has acknowledged to a replay, as far as it may still forget it.

use std::collections::{BTreeMap, VecDeque};

use crate::message::{Message, Position};
use crate::receipt::{AckLevel, Receipt};

/// Acknowledgements that are compared after a start, besides those that are not proven.
const MOST_RECENT: usize = 4_096;
/// Acknowledgements that are asked for at one time.
const MOST_ASKED: usize = 4_096;

/// A message that was acknowledged, by its receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// Position.
    pub position: Position,
    /// Outbox id.
    pub id: String,
    /// What the destination answered.
    pub receipt: Receipt,
}

/// The acknowledgements of a shard.
#[derive(Debug, Default)]
pub(super) struct Proof {
    /// Acknowledged at less than the level that it reaches later.
    unproven: BTreeMap<Position, Acknowledgement>,
    /// The newest of the others.
    recent: VecDeque<Acknowledgement>,
}

impl Proof {
    /// A message was acknowledged. `later`: the level that acknowledgements reach some time after they were given.
    pub(super) fn acknowledged(&mut self, message: &Message, receipt: Receipt, later: Option<AckLevel>) {
        let unproven = later.is_some_and(|level| receipt.level < level);
        let position = message.position;
        let acknowledgement = Acknowledgement { position, id: message.id.clone(), receipt };
        if unproven {
            self.unproven.insert(position, acknowledgement);
        } else {
            self.settled(acknowledgement);
        }
    }

    fn settled(&mut self, acknowledgement: Acknowledgement) {
        if self.recent.len() >= MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(acknowledgement);
    }

    pub(super) fn first_unproven(&self) -> Option<Position> {
        self.unproven.keys().next().copied()
    }

    pub(super) fn unproven(&self) -> usize {
        self.unproven.len()
    }

    /// What to ask for: the oldest.
    pub(super) fn asked(&self) -> (Vec<Position>, Vec<Receipt>) {
        self.unproven.values().take(MOST_ASKED).map(|a| (a.position, a.receipt.clone())).unzip()
    }

    /// Which of those that were asked for are proven.
    pub(super) fn proven(&mut self, asked: &[Position], proven: &[bool]) {
        for position in asked.iter().zip(proven).filter(|(_, proven)| **proven).map(|(position, _)| position) {
            if let Some(acknowledgement) = self.unproven.remove(position) {
                self.settled(acknowledgement);
            }
        }
    }

    /// What is compared with what the destination has, by rising position.
    pub(super) fn shown(&self) -> Vec<Acknowledgement> {
        let mut shown: Vec<Acknowledgement> = self.recent.iter().chain(self.unproven.values()).cloned().collect();
        shown.sort_by_key(|a| a.position);
        shown
    }

    /// Everything from a position on is sent again: how many acknowledgements that takes back.
    pub(super) fn take_back(&mut self, from: Position) -> u64 {
        let before = self.recent.len() + self.unproven.len();
        self.recent.retain(|a| a.position < from);
        self.unproven.split_off(&from);
        (before - self.recent.len() - self.unproven.len()) as u64
    }
}
