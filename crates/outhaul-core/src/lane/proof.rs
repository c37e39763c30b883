//! Late proof: acknowledgements that reach the demanded level some time after they were given.
//!
//! Where a destination proves what is demanded at once, nothing here costs anything.

use std::collections::BTreeMap;

use super::Lane;
use crate::config::Now;
use crate::faults::Fault;
use crate::message::Position;
use crate::receipt::{AckLevel, LaneReceipt, LaneState, Proof, Receipt};

/// An acknowledgement that has not reached the demanded level yet.
#[derive(Debug)]
struct Unproven {
    /// Tells this acknowledgement of the position from an earlier one.
    serial: u64,
    receipt: Receipt,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Known {
    /// Acknowledgements prove what they prove at once.
    #[default]
    AtOnce,
    /// Which ones of an earlier owner are not proven is not known: none at or above this position counts.
    From(Position, Proof),
    /// Those that are not proven are known.
    All(Proof),
}

/// What a lane knows of acknowledgements that are to be proven.
#[derive(Debug, Default)]
pub(super) struct LateProof {
    known: Known,
    unproven: BTreeMap<Position, Unproven>,
    /// Where the next question begins: those that stay unproven for long must not keep others from being asked about.
    ask_from: Position,
    last_serial: u64,
}

impl LateProof {
    pub(super) fn stored(state: Option<&LaneState>) -> Self {
        let from = |s: &LaneState| Some(Known::From(s.proven, s.proof?));
        Self { known: state.and_then(from).unwrap_or_default(), ..Self::default() }
    }
}

impl Lane {
    /// Every position below it is settled, and its acknowledgement has reached the demanded level.
    pub(crate) fn proven(&self) -> Position {
        let p = &self.late_proof;
        if p.known == Known::AtOnce || self.faults.has(Fault::ProvenFollowsCursor) {
            return self.cursor;
        }
        let unknown = if let Known::From(from, _) = p.known { from } else { self.cursor };
        let first = p.unproven.first_key_value().map_or(self.cursor, |(position, _)| *position);
        self.cursor.min(unknown).min(first)
    }

    /// What is proven later, as it is stored.
    pub(super) const fn proof(&self) -> Option<Proof> {
        match self.late_proof.known {
            Known::AtOnce => None,
            Known::From(_, proof) | Known::All(proof) => Some(proof),
        }
    }

    /// Acknowledgements without proof that are in memory.
    pub(super) fn unproven_count(&self) -> usize {
        self.late_proof.unproven.len()
    }

    /// From which position on it is not known which stored receipts are proven.
    pub(crate) const fn unproven_from(&self) -> Option<Position> {
        if let Known::From(from, _) = self.late_proof.known { Some(from) } else { None }
    }

    /// The destination was started, and says what level its acknowledgements reach later, if any.
    pub(super) fn proves_later(&mut self, level: Option<AckLevel>, now: Now) {
        let before = self.proven();
        let from = Position(self.ahead.last().map_or(self.cursor.0, |last| self.cursor.0.max(last.saturating_add(1))));
        let p = &mut self.late_proof;
        match (level, &mut p.known) {
            (None, _) => {
                p.known = Known::AtOnce;
                p.unproven.clear();
            }
            (Some(level), Known::AtOnce) => p.known = Known::All(Proof { level, from }),
            (Some(level), Known::From(_, proof) | Known::All(proof)) if proof.level < level => {
                *proof = Proof { level, from }; // What was proven before was proven for less.
            }
            (Some(level), Known::From(_, proof) | Known::All(proof)) => proof.level = level,
        }
        self.proof_moved(before, now);
    }

    /// Receipts of an earlier owner were read: those of positions that are settled by them are not proven.
    pub(super) fn recover_unproven(&mut self, receipts: Vec<LaneReceipt>, now: Now) {
        let Known::From(_, proof) = self.late_proof.known else { return };
        let before = self.proven();
        let parked: std::collections::HashSet<Position> = self.blocks.positions().collect();
        for LaneReceipt { position, receipt } in receipts {
            let aside = parked.contains(&position) || self.given_up.contains(position.0);
            if self.is_settled(position) && !aside && !self.late_proof.unproven.contains_key(&position) {
                self.acknowledged(position, &receipt);
            }
        }
        self.late_proof.known = Known::All(proof);
        self.proof_moved(before, now);
    }

    /// A message was acknowledged.
    pub(super) fn acknowledged(&mut self, position: Position, receipt: &Receipt) {
        let p = &mut self.late_proof;
        if p.known != Known::AtOnce {
            p.last_serial += 1;
            p.unproven.insert(position, Unproven { serial: p.last_serial, receipt: receipt.clone() });
        }
    }

    /// A message was acknowledged, and is not there any more.
    pub(super) fn not_acknowledged(&mut self, position: Position) {
        self.late_proof.unproven.remove(&position);
    }

    /// Whether there are acknowledgements to ask about. Only once it is known what the destination remembers: what it may
    /// have forgotten must not count as proven.
    pub(crate) fn has_unproven(&self, start: u64) -> bool {
        self.is_verified(Some(start)) && !self.late_proof.unproven.is_empty()
    }

    /// Acknowledgements that are not proven, at most `most`, beginning behind those that were asked about last: position,
    /// number and receipt.
    pub(crate) fn ask_unproven(&mut self, start: u64, most: usize) -> Vec<(Position, u64, Receipt)> {
        if !self.has_unproven(start) {
            return Vec::new();
        }
        let p = &mut self.late_proof;
        let rest = p.unproven.range(p.ask_from..).chain(p.unproven.range(..p.ask_from));
        let asked: Vec<_> = rest.take(most).map(|(position, u)| (*position, u.serial, u.receipt.clone())).collect();
        p.ask_from = asked.last().map_or(Position(0), |(last, ..)| Position(last.0.saturating_add(1)));
        asked
    }

    /// An acknowledgement has reached the demanded level.
    pub(crate) fn on_proven(&mut self, position: Position, serial: u64, now: Now) {
        let before = self.proven();
        if self.late_proof.unproven.get(&position).is_some_and(|u| u.serial == serial) {
            self.late_proof.unproven.remove(&position);
            self.proof_moved(before, now);
        }
    }

    fn proof_moved(&mut self, before: Position, now: Now) {
        if self.proven() != before {
            self.changed_at_us.get_or_insert(now.mono_us);
        }
    }
}
