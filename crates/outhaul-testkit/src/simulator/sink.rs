//! The model destinations: what becomes of a batch that arrives.

use std::collections::HashSet;

use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::SendBatch;
use outhaul_core::message::Message;
use outhaul_core::receipt::{AckLevel, LaneReceipt, Outcome, Reason, Receipt};

use super::dice::Dice;
use super::ledger::{Ledger, MessageNumber, number_of};
use super::scenario::{MS, SinkChances};

/// What a destination promises of what it has acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// It is there.
    Durable,
    /// It may be gone after a crash.
    Volatile,
    /// It may be gone after a crash until it was flushed; whether it was can be asked.
    FlushedLater,
}

/// A destination.
#[derive(Clone, Debug)]
pub(super) struct ModelSink {
    pub(super) index: DestinationIndex,
    chances: SinkChances,
    latency_us: (u64, u64),
    pub(super) memory: Memory,
    /// What it holds, in the order in which it was stored; a receipt names the place.
    pub(super) held: Vec<MessageNumber>,
    /// Places below this one survive a crash.
    pub(super) flushed: usize,
    pub(super) flush_every_us: u64,
    /// It has crashed so often. Connections from before are gone.
    pub(super) crashes: u64,
    pub(super) down_until: u64,
    pub(super) hangs_until: u64,
    /// Only these slots are down or hang, where it is not all: even or odd ones.
    pub(super) trouble_in: Option<u32>,
    /// Only messages of this part are refused, where it is not all: even or odd ones by their key, across all slots.
    pub(super) part_in_trouble: Option<u64>,
    /// When anybody was last told that it took something.
    pub(super) acknowledged_at: Option<u64>,
    is_healed: bool,
}

/// What a destination did with a batch.
pub(super) struct Answered {
    /// One outcome a message. None: it never answers.
    pub(super) outcomes: Option<Vec<Outcome>>,
    /// What was stored, in order.
    pub(super) stored: Vec<usize>,
}

fn no(text: &'static str) -> Reason {
    Reason::new("OUT-9002", text)
}

impl ModelSink {
    pub(super) fn new(index: u8, chances: SinkChances, dice: &mut Dice) -> Self {
        let slow = dice.chance(250);
        let latency_us = if slow { (10 * MS, 80 * MS) } else { (300, 6 * MS) };
        let memory = match dice.chance(chances.forgets) {
            true if dice.chance(chances.tells) => Memory::FlushedLater,
            true => Memory::Volatile,
            false => Memory::Durable,
        };
        Self {
            memory,
            held: Vec::new(),
            flushed: 0,
            flush_every_us: dice.between((5 * MS, 800 * MS)),
            crashes: 0,
            trouble_in: None,
            part_in_trouble: None,
            index: DestinationIndex(index),
            chances,
            latency_us,
            down_until: 0,
            hangs_until: 0,
            acknowledged_at: None,
            is_healed: false,
        }
    }

    /// How long a batch is on its way, and its answer back, microseconds.
    pub(super) fn latency_us(&self, dice: &mut Dice, limit_us: u64) -> (u64, u64) {
        if dice.chance(self.chances.late) {
            return (dice.between((limit_us / 2, 3 * limit_us)), 1);
        }
        (dice.between(self.latency_us), dice.between(self.latency_us))
    }

    /// From now on everything is taken that can be taken.
    pub(super) fn heal(&mut self) {
        let SinkChances { retry, lost_ack, twice, cut, late, unsure, .. } = &mut self.chances;
        (*retry, *lost_ack, *twice, *cut, *late, *unsure) = (0, 0, 0, 0, 0, 0);
        (self.down_until, self.hangs_until) = (0, 0);
        self.is_healed = true;
    }

    /// Everything is on stable storage by now.
    pub(super) const fn flush(&mut self) {
        self.flushed = self.held.len();
    }

    /// It loses its unflushed tail, or more where it never promised that flushing helps. Returns what is gone.
    pub(super) fn crash(&mut self, dice: &mut Dice) -> Vec<MessageNumber> {
        self.crashes += 1;
        let kept = match self.memory {
            Memory::Durable => self.held.len(),
            Memory::Volatile if dice.chance(300) => dice.place(self.held.len() + 1),
            Memory::Volatile | Memory::FlushedLater => self.flushed,
        };
        self.flushed = self.flushed.min(kept);
        self.held.split_off(kept)
    }

    /// Whether it does not answer, for a connection that was made after so many crashes.
    pub(super) const fn is_away(&self, now: u64, crashes: u64) -> bool {
        let whole = self.trouble_in.is_none() && self.part_in_trouble.is_none();
        now < self.down_until && whole || crashes != self.crashes
    }

    /// Of messages with their receipts, those whose acknowledged copy is gone, and whether it wants to see older ones.
    /// None: it cannot be found out now.
    pub(super) fn compare(
        &self,
        shown: &[(MessageNumber, LaneReceipt)],
        dice: &mut Dice,
    ) -> Option<(Vec<usize>, bool)> {
        if dice.chance(self.chances.unsure) {
            return None;
        }
        let place = |r: &LaneReceipt| r.receipt.detail.parse::<usize>().unwrap_or(usize::MAX);
        let is_gone = |(number, r): &(MessageNumber, LaneReceipt)| self.held.get(place(r)) != Some(number);
        let gone: Vec<usize> = shown.iter().enumerate().filter(|(_, s)| is_gone(s)).map(|(n, _)| n).collect();
        // It forgets from the end.
        let older = shown.iter().min_by_key(|(_, r)| place(r)).is_some_and(is_gone);
        Some((gone, older))
    }

    /// Which acknowledgements are flushed.
    pub(super) fn prove(&self, receipts: &[Receipt]) -> Vec<bool> {
        receipts.iter().map(|r| r.detail.parse::<usize>().is_ok_and(|place| place < self.flushed)).collect()
    }

    /// A batch has arrived, on a connection that was made after so many crashes. Of one key nothing is attempted after a
    /// message that was not delivered. `copies`: it is a replay's, whose copies have numbers from this one on.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn take(
        &mut self,
        batch: &SendBatch,
        copies: Option<MessageNumber>,
        crashes: u64,
        now: u64,
        dice: &mut Dice,
        ledger: &mut Ledger,
    ) -> Answered {
        let n = batch.messages.len();
        let affected = self.trouble_in.is_none_or(|rest| batch.slot % 2 == rest);
        if crashes != self.crashes || (affected && self.part_in_trouble.is_none() && now < self.down_until) {
            return Answered { outcomes: Some(vec![Outcome::DestinationDown(no("down")); n]), stored: Vec::new() };
        }
        let hangs = affected && now < self.hangs_until;
        let cut_at = if hangs || dice.chance(self.chances.cut) { dice.place(n + 1) } else { usize::MAX };
        let mut answered = Answered { outcomes: None, stored: Vec::new() };
        let mut outcomes = Vec::new();
        let mut failed: HashSet<&str> = HashSet::new();
        for (place, m) in batch.messages.iter().enumerate() {
            let key = m.key.as_deref();
            let after_failed = key.is_some_and(|k| failed.contains(k));
            let outcome = match (place >= cut_at, after_failed) {
                (true, _) => Outcome::Unknown(no("connection lost")),
                (false, true) => Outcome::Retry { reason: no("not attempted"), after_ms: None },
                (false, false) if self.is_part_down(m, now) => {
                    let after_ms = dice.chance(200).then(|| dice.between((1, 400)));
                    Outcome::Held { reason: no("that part is down"), after_ms }
                }
                (false, false) => {
                    let number = number_of(&m.id).unwrap_or_default();
                    self.attempt(number, copies, now, dice, ledger, &mut answered.stored)
                }
            };
            if !matches!(outcome, Outcome::Delivered(_)) {
                failed.extend(key);
            }
            outcomes.push(outcome);
        }
        answered.outcomes = (!hangs).then_some(outcomes);
        answered
    }

    fn is_part_down(&self, m: &Message, now: u64) -> bool {
        let part = m.key.as_ref().map_or(m.position.0, |key| key.bytes().map(u64::from).sum());
        now < self.down_until && self.part_in_trouble.is_some_and(|down| part % 2 == down)
    }

    fn attempt(
        &mut self,
        number: usize,
        copies: Option<MessageNumber>,
        now: u64,
        dice: &mut Dice,
        ledger: &mut Ledger,
        stored: &mut Vec<usize>,
    ) -> Outcome {
        let entry = &mut ledger.entries[number];
        let at = &mut entry.at[usize::from(self.index.0)];
        if entry.rejected_by == Some(self.index) {
            at.refused |= copies.is_none();
            return Outcome::Rejected(no("refused"));
        }
        // Nothing lets a replay go on without it.
        let stubborn = entry.stubborn_at == Some(self.index) && !(self.is_healed && copies.is_some());
        if stubborn || dice.chance(self.chances.retry) {
            let after_ms = dice.chance(200).then(|| dice.between((1, 400)));
            return Outcome::Retry { reason: no("not now"), after_ms };
        }
        for _ in 0..1 + usize::from(dice.chance(self.chances.twice)) {
            stored.push(number);
            self.held.push(copies.map_or(number, |first| first + number));
        }
        if dice.chance(self.chances.lost_ack) {
            return Outcome::Unknown(no("no acknowledgement"));
        }
        let detail = (self.held.len() - 1).to_string();
        let level = if self.memory == Memory::Durable { AckLevel::Flushed } else { AckLevel::Received };
        Outcome::Delivered(Receipt { sent_at_us: now as i64, level, attempts: 1, detail })
    }
}
