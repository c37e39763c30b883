//! The model destinations: what becomes of a batch that arrives.

use std::collections::HashSet;

use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::SendBatch;
use outhaul_core::receipt::{AckLevel, Outcome, Reason, Receipt};

use super::dice::Dice;
use super::ledger::{Ledger, number_of};
use super::scenario::{MS, SinkChances};

/// A destination.
#[derive(Clone, Debug)]
pub(super) struct ModelSink {
    pub(super) index: DestinationIndex,
    chances: SinkChances,
    latency_us: (u64, u64),
    pub(super) down_until: u64,
    pub(super) hangs_until: u64,
    /// When anybody was last told that it took something.
    pub(super) acknowledged_at: Option<u64>,
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
        Self {
            index: DestinationIndex(index),
            chances,
            latency_us,
            down_until: 0,
            hangs_until: 0,
            acknowledged_at: None,
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
        let SinkChances { retry, lost_ack, twice, cut, late, .. } = &mut self.chances;
        (*retry, *lost_ack, *twice, *cut, *late) = (0, 0, 0, 0, 0);
        (self.down_until, self.hangs_until) = (0, 0);
    }

    /// A batch has arrived. Of one key nothing is attempted after a message that was not delivered.
    pub(super) fn take(&self, batch: &SendBatch, now: u64, dice: &mut Dice, ledger: &mut Ledger) -> Answered {
        let n = batch.messages.len();
        if now < self.down_until {
            return Answered { outcomes: Some(vec![Outcome::DestinationDown(no("down")); n]), stored: Vec::new() };
        }
        let hangs = now < self.hangs_until;
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
                (false, false) => {
                    self.attempt(number_of(&m.id).unwrap_or_default(), now, dice, ledger, &mut answered.stored)
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

    fn attempt(
        &self,
        number: usize,
        now: u64,
        dice: &mut Dice,
        ledger: &mut Ledger,
        stored: &mut Vec<usize>,
    ) -> Outcome {
        let entry = &mut ledger.entries[number];
        let at = &mut entry.at[usize::from(self.index.0)];
        if entry.rejected_by == Some(self.index) {
            at.refused = true;
            return Outcome::Rejected(no("refused"));
        }
        if entry.stubborn_at == Some(self.index) || dice.chance(self.chances.retry) {
            let after_ms = dice.chance(200).then(|| dice.between((1, 400)));
            return Outcome::Retry { reason: no("not now"), after_ms };
        }
        stored.push(number);
        if dice.chance(self.chances.twice) {
            stored.push(number);
        }
        if dice.chance(self.chances.lost_ack) {
            return Outcome::Unknown(no("no acknowledgement"));
        }
        let detail = format!("{}", stored.len());
        Outcome::Delivered(Receipt { sent_at_us: now as i64, level: AckLevel::Flushed, attempts: 1, detail })
    }
}
