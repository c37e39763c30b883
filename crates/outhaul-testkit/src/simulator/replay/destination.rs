//! What the destination does for a replay.

use outhaul_core::instance::Ready;
use outhaul_core::lane::SendBatch;
use outhaul_core::receipt::{AckLevel, LaneReceipt, Outcome, Reason};
use outhaul_core::replay::{Acknowledgement, Input};

use super::{Question, Step, copy_of, no};
use crate::simulator::ledger::number_of;
use crate::simulator::scenario::MS;
use crate::simulator::sink::Memory;
use crate::simulator::world::{Event, World};

impl World {
    fn sink_of(&self, runner: usize) -> usize {
        usize::from(self.replays.ordered[self.replays.runners[runner].place].destination.0)
    }

    pub(super) fn ask(&mut self, runner: usize, ticket: u64, question: Question, limit_us: u64) {
        let d = self.sink_of(runner);
        let (there_us, back_us) = self.sinks[d].latency_us(&mut self.dice, limit_us);
        self.runner_answer_after(limit_us, runner, ticket, question.unanswered());
        let crashes = self.replays.runners[runner].connection.1;
        self.after(there_us, Event::Replay(Step::Asked { runner, ticket, question, crashes, back_us }));
    }

    pub(super) fn runner_asks(&mut self, runner: usize, ticket: u64, question: Question, crashes: u64, back_us: u64) {
        let d = self.sink_of(runner);
        let made_after = self.sinks[d].crashes;
        let input = match question {
            Question::Start(..) if self.sinks[d].is_away(self.now, made_after) => question.unanswered(),
            // Given up long ago, and another one has succeeded since.
            Question::Start(start, _) if self.replays.runners[runner].connection.0 > start => question.unanswered(),
            Question::Start(start, before) => {
                self.replays.runners[runner].connection = (start, made_after);
                let later = self.sinks[d].memory == Memory::FlushedLater;
                let unchanged = before == Some(made_after);
                Input::Started(Ok(Ready { proves_later: later.then_some(AckLevel::Flushed), unchanged }))
            }
            _ if self.sinks[d].is_away(self.now, crashes) => question.unanswered(),
            Question::Prove(receipts) => Input::Proven(Ok(self.sinks[d].prove(&receipts))),
            Question::Verify(shown) => {
                let place = self.replays.runners[runner].place;
                let one = |a: Acknowledgement| {
                    let receipt = LaneReceipt { position: a.position, receipt: a.receipt };
                    Some((copy_of(place, number_of(&a.id)?), receipt))
                };
                let shown: Vec<_> = shown.into_iter().filter_map(one).collect();
                let gone = self.sinks[d].compare(&shown, &mut self.dice);
                let gone = gone.map(|(gone, _)| gone.into_iter().map(|n| shown[n].1.position).collect());
                Input::Verified(gone.ok_or_else(|| no("not known")))
            }
        };
        self.runner_answer_after(back_us, runner, ticket, input);
    }

    pub(super) fn copies_go(&mut self, runner: usize, ticket: u64, batch: SendBatch) -> Result<(), String> {
        self.check_copies(runner, &batch)?;
        let what = batch.messages.iter().map(|m| format!(" {}@{}", m.id, m.position)).collect::<String>();
        let line =
            format!("{} sends batch {} slot {}:{what}", self.replays.runners[runner].name, batch.batch, batch.slot);
        self.note(|| line);
        let limit_us = batch.limit_ms * MS;
        let d = self.sink_of(runner);
        let (there_us, back_us) = self.sinks[d].latency_us(&mut self.dice, limit_us);
        let outcomes = vec![Outcome::Unknown(Reason::new("OUT-4003", "no answer")); batch.messages.len()];
        let input = Input::Answer { slot: batch.slot, batch: batch.batch, outcomes };
        self.runner_answer_after(limit_us, runner, ticket, input);
        let crashes = self.replays.runners[runner].connection.1;
        self.after(there_us, Event::Replay(Step::Arrive { runner, ticket, batch, crashes, back_us }));
        Ok(())
    }

    pub(super) fn copies_arrive(
        &mut self,
        runner: usize,
        ticket: u64,
        batch: &SendBatch,
        crashes: u64,
        back_us: u64,
    ) -> Result<(), String> {
        let (slot, number) = (batch.slot, batch.batch);
        if self.replays.runners[runner].connection.0 != batch.start && self.dice.chance(500) {
            // All this time it has waited to be sent; now it sees that another start has begun.
            self.runner_answer_after(1, runner, ticket, Input::NotSent { slot, batch: number });
            return Ok(());
        }
        let (place, d) = (self.replays.runners[runner].place, self.sink_of(runner));
        let copies = Some(copy_of(place, 0));
        let answered = self.sinks[d].take(batch, copies, crashes, self.now, &mut self.dice, &mut self.ledger);
        for stored in answered.stored {
            self.note(|| format!("destination {d} stores m{stored} for a replay"));
            self.copy_is_stored(place, stored)?;
        }
        if let Some(outcomes) = answered.outcomes {
            self.runner_answer_after(back_us, runner, ticket, Input::Answer { slot, batch: number, outcomes });
        }
        Ok(())
    }
}
