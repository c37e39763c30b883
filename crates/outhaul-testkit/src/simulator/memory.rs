//! What destinations remember: questions about it, crashes, and the rules for what is called proven.

use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::chunk::DestinationNames as _;
use outhaul_core::comparison::{Comparison, Step};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::instance::{Command, Input, Ready};
use outhaul_core::lane::Verification;
use outhaul_core::message::{Epoch, Position, ShardId};
use outhaul_core::receipt::{AckLevel, LaneReceipt, Reason, Receipt};

use super::ledger::{MessageNumber, number_of};
use super::replay::is_copy;
use super::scenario::MS;
use super::sink::Memory;
use super::world::{Event, World};

/// A question to a destination.
#[derive(Debug)]
pub(super) enum Question {
    /// With the crashes that there had been at the start before, if that has succeeded.
    Start(DestinationIndex, u64, Option<u64>),
    Verify(ShardId, Epoch, DestinationIndex, u64, Box<Comparison>),
    Prove(DestinationIndex, u64, Vec<Receipt>),
}

fn no(text: &'static str) -> Reason {
    Reason::new("OUT-9002", text)
}

impl Question {
    fn destination(&self) -> DestinationIndex {
        match self {
            Self::Start(d, ..) | Self::Verify(_, _, d, ..) | Self::Prove(d, ..) => *d,
        }
    }

    /// The input of a question that is not answered.
    fn unanswered(&self) -> Input {
        match self {
            Self::Start(destination, start, _) => {
                Input::Started { destination: *destination, start: *start, result: Err(no("no answer")) }
            }
            Self::Verify(shard, epoch, destination, start, _) => Input::Verified {
                shard: *shard,
                epoch: *epoch,
                destination: *destination,
                start: *start,
                found: Err(no("no answer")),
            },
            Self::Prove(destination, start, _) => {
                Input::Proven { destination: *destination, start: *start, proven: Err(no("no answer")) }
            }
        }
    }
}

impl World {
    /// The newest start of a process, and after how many crashes of the destination its connection was made.
    pub(super) fn connection(&self, process: usize, destination: DestinationIndex) -> (u64, u64) {
        self.processes[process].connections.get(&destination.0).copied().unwrap_or_default()
    }

    /// A process asks a destination.
    pub(super) fn ask_sink(&mut self, process: usize, ticket: u64, command: Command) {
        let (question, limit_us) = match command {
            Command::Start { destination, start, limit_ms } => {
                let connection = self.processes[process].connections.entry(destination.0).or_default();
                connection.0 = start; // What was begun after an earlier one is not sent from now on.
                let before = self.processes[process].started_after.remove(&destination.0);
                (Question::Start(destination, start, before), limit_ms * MS)
            }
            Command::Verify { shard, epoch, destination, start, recent, unproven_from, max_forgotten } => {
                let config = &self.limits.destinations[usize::from(destination.0)];
                let margin_ms = config.limits.send_limit_ms * 2;
                let name = config.name.clone();
                let comparison = Comparison::new(name, recent, unproven_from, max_forgotten, margin_ms)
                    .with_page(self.limits.receipts_shown);
                (Question::Verify(shard, epoch, destination, start, Box::new(comparison)), 2_000 * MS)
            }
            Command::Prove { destination, start, receipts } => {
                (Question::Prove(destination, start, receipts), 500 * MS)
            }
            _ => return,
        };
        let destination = question.destination();
        let (there_us, back_us) = self.sinks[usize::from(destination.0)].latency_us(&mut self.dice, limit_us);
        let input = question.unanswered();
        self.after(limit_us, Event::Answer { process, ticket, input });
        let crashes = self.connection(process, destination).1;
        self.after(there_us, Event::Asked { process, ticket, question, crashes, back_us });
    }

    /// A question has arrived.
    pub(super) fn sink_is_asked(
        &mut self,
        process: usize,
        ticket: u64,
        question: Question,
        crashes: u64,
        back_us: u64,
    ) {
        let destination = question.destination();
        let d = usize::from(destination.0);
        let input = match question {
            Question::Start(..) if self.sinks[d].is_away(self.now, self.sinks[d].crashes) => question.unanswered(),
            // Given up long ago, and another one has succeeded since.
            Question::Start(_, start, _)
                if self.processes[process].connections.get(&destination.0).is_some_and(|(newer, _)| *newer > start) =>
            {
                question.unanswered()
            }
            Question::Start(_, start, before) => {
                // Connected anew; what is sent from here on goes over this connection.
                let made_after = self.sinks[d].crashes;
                self.processes[process].connections.insert(destination.0, (start, made_after));
                let later = self.sinks[d].memory == Memory::FlushedLater;
                let unchanged = before == Some(made_after);
                let ready = Ready { proves_later: later.then_some(AckLevel::Flushed), unchanged };
                Input::Started { destination, start, result: Ok(ready) }
            }
            _ if self.sinks[d].is_away(self.now, crashes) => question.unanswered(),
            Question::Prove(_, start, receipts) => {
                Input::Proven { destination, start, proven: Ok(self.sinks[d].prove(&receipts)) }
            }
            Question::Verify(..) if self.db_is_away() => question.unanswered(),
            Question::Verify(shard, epoch, _, start, comparison) => {
                let found = self.compare(shard, d, *comparison).ok_or_else(|| no("not known"));
                let owner = self.processes[process].owner.clone();
                self.note(|| format!("{owner} finds out of destination {destination}, shard {shard}: {found:?}"));
                Input::Verified { shard, epoch, destination, start, found }
            }
        };
        self.after(back_us, Event::Answer { process, ticket, input });
    }

    fn compare(&mut self, shard: ShardId, d: usize, mut comparison: Comparison) -> Option<Verification> {
        loop {
            match comparison.step() {
                Step::Done(found) => return Some(found),
                Step::Read(below) => {
                    comparison.on_rows(self.db.receipts_below(shard, below, self.limits.receipt_rows_read));
                }
                Step::Show(page) => {
                    let number = |r: &LaneReceipt| {
                        let id = comparison.id(r.position).map(str::to_owned);
                        let of_log = || Some(self.db.read_log(shard, r.position, 1).first()?.id.clone());
                        id.or_else(of_log).and_then(|id| number_of(&id))
                    };
                    let shown: Vec<(MessageNumber, LaneReceipt)> =
                        page.into_iter().filter_map(|r| Some((number(&r)?, r))).collect();
                    let (gone, older) = self.sinks[d].compare(&shown, &mut self.dice)?;
                    let gone: Vec<Position> = gone.into_iter().map(|n| shown[n].1.position).collect();
                    comparison.on_compared(&gone, older);
                }
            }
        }
    }

    /// A destination crashes: its connections are gone, and with them perhaps what it had not flushed.
    pub(super) fn sink_crashes(&mut self) {
        let d = self.dice.place(self.sinks.len());
        let lost = self.sinks[d].crash(&mut self.dice);
        let away = self.dice.between((0, 600 * MS));
        self.sinks[d].down_until = self.sinks[d].down_until.max(self.now + away);
        self.sinks[d].trouble_in = None;
        self.note(|| format!("destination {d} crashes and forgets {lost:?}"));
        for number in lost.into_iter().filter(|n| !is_copy(*n)) {
            self.ledger.forgotten(number, d);
        }
    }

    /// What a lane calls proven must survive every crash of its destination from now on.
    pub(super) fn check_proven(&self, c: &Checkpoint, outcomes: &[ShardOutcome]) -> Result<(), String> {
        let names: Vec<String> = self.limits.destinations.iter().map(|d| d.name.clone()).collect();
        let written = c.shards.iter().zip(outcomes).filter(|(_, o)| **o == ShardOutcome::Written);
        for (shard, (state, _)) in written.flat_map(|(s, _)| s.receipts.lanes.iter().map(move |l| (s.shard, l))) {
            let Some(destination) = names.index(&state.destination) else { continue };
            if state.proven > state.cursor {
                return Err(format!("lane {} of shard {shard} is proven beyond its cursor", state.destination));
            }
            if let Some(id) = self.unflushed(shard, destination, state.proven) {
                return Err(format!(
                    "lane {} of shard {shard} is proven up to {}, but {id} is not flushed",
                    state.destination, state.proven
                ));
            }
        }
        Ok(())
    }

    /// The number of shards may be changed only where nothing that is in the log can be forgotten any more: it would be
    /// sent again beside what comes later of its key, by another shard.
    pub(super) fn check_flushed(&self) -> Result<(), String> {
        for shard in self.all_shards() {
            for d in 0..self.sinks.len() {
                if let Some(id) = self.unflushed(shard, DestinationIndex(d as u8), Position(u64::MAX)) {
                    return Err(format!("{id} is not flushed by {d} when its key may change its shard"));
                }
            }
        }
        Ok(())
    }

    /// A message of a shard's log below a position that the destination has to have, and would forget in a crash, though
    /// it tells what it would.
    fn unflushed(&self, shard: ShardId, destination: DestinationIndex, below: Position) -> Option<&str> {
        let d = usize::from(destination.0);
        let sink = &self.sinks[d];
        if sink.memory != Memory::FlushedLater || self.has_been_restored {
            return None;
        }
        let flushed = sink.held.get(..sink.flushed).unwrap_or_default();
        let tables = self.db.shard(shard);
        let name = &self.limits.destinations[d].name;
        let below = usize::try_from(below.0).unwrap_or(usize::MAX);
        let missing = tables.log.iter().take(below).find(|m| {
            let routed = m.destinations.contains(destination);
            let parked = tables.parked.contains_key(&(name.clone(), m.position));
            let number = number_of(&m.id).unwrap_or(usize::MAX);
            let skipped = self.ledger.entries.get(number).is_some_and(|e| e.at[d].skipped);
            routed && !parked && !skipped && !flushed.contains(&number)
        });
        missing.map(|m| m.id.as_str())
    }

    /// What each destination holds in the end, without copies, must stand in order per key.
    pub(super) fn check_order_held(&self) -> Result<(), String> {
        for sink in self.sinks.iter().filter(|s| s.memory != Memory::Durable) {
            self.ledger.check_order(&sink.held, sink.index)?;
        }
        Ok(())
    }
}
