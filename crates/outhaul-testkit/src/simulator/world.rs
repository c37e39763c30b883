//! One run: the clock, what is to happen, and who does it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use outhaul_core::destination::DestinationIndex;
use outhaul_core::instance::{Command, Input};
use outhaul_core::lane::SendBatch;
use outhaul_core::message::{Epoch, Message, ShardId};
use outhaul_core::receipt::{Outcome, Reason};

use super::application::{Applications, Step};
use super::call::{Call, OpenCheckpoint};
use super::database::{Database, Round};
use super::dice::Dice;
use super::ledger::{Ledger, number_of};
use super::limits::{Meter, Waiting};
use super::memory::Question;
use super::process::{Life, Process};
use super::replay;
use super::reshard;
use super::scenario::{Limits, MS, SECOND, Scenario};
use super::sink::{Memory, ModelSink};
use super::trouble::Trouble;
use super::{Deliberate, Failure, Summary};

/// A run ends at the latest so long after everything that disturbs it has ended.
const SETTLE_LIMIT: u64 = 60 * SECOND;
/// From the moment at which a process asks a destination until the tables show what it has forgotten.
const NOTICE_LIMIT: u64 = 8 * SECOND;
/// Events of one run: a loop in the simulator itself must not hang a test.
const MOST_EVENTS: u64 = 3_000_000;

/// What is to happen.
pub(super) enum Event {
    Tick {
        process: usize,
        tick: u64,
    },
    Answer {
        process: usize,
        ticket: u64,
        input: Input,
    },
    Call {
        process: usize,
        ticket: u64,
        began: u64,
        call: Call,
    },
    CheckpointEnds {
        transaction: u64,
    },
    Arrive {
        process: usize,
        ticket: u64,
        lane: Lane,
        batch: SendBatch,
        /// After how many crashes of the destination its connection was made.
        crashes: u64,
        back_us: u64,
    },
    /// A question to a destination.
    Asked {
        process: usize,
        ticket: u64,
        question: Question,
        crashes: u64,
        back_us: u64,
    },
    /// A destination has written to its disk.
    Flush {
        sink: usize,
    },
    Application(Step),
    Trouble(Trouble),
    /// A replay, and who carries it out.
    Replay(replay::Step),
    /// A change of the number of shards.
    Reshard(reshard::Step),
    /// A lease round that its caller has given up.
    Late {
        round: Round,
    },
    Look,
}

/// Whose batch it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) shard: ShardId,
    pub(super) epoch: Epoch,
    pub(super) destination: DestinationIndex,
}

/// A run.
pub(super) struct World {
    pub(super) now: u64,
    pub(super) dice: Dice,
    pub(super) scenario: Scenario,
    pub(super) limits: Limits,
    pub(super) deliberate: Option<Deliberate>,
    pub(super) db: Database,
    pub(super) db_away_until: u64,
    /// A backup was restored: until then leases are not what their owners think.
    pub(super) leases_shaken_until: u64,
    pub(super) has_been_restored: bool,
    /// A lease was lost: with calls that take long and short leases that needs no failure.
    pub(super) has_been_fenced: bool,
    pub(super) has_been_truncated: bool,
    pub(super) backup: Option<Box<Database>>,
    pub(super) checkpoints: BTreeMap<u64, OpenCheckpoint>,
    /// Sends without an answer: when they began, and their messages.
    sent: BTreeMap<u64, (u64, Vec<Arc<Message>>)>,
    pub(super) ledger: Ledger,
    /// What each destination was sent, by each process and by all of them.
    pub(super) meters: BTreeMap<(Option<usize>, u8), Meter>,
    /// Lanes of destinations with limits that have something to send: by process, destination and shard.
    pub(super) waiting: BTreeMap<(usize, u8, ShardId), Waiting>,
    pub(super) sinks: Vec<ModelSink>,
    pub(super) processes: Vec<Process>,
    pub(super) applications: Applications,
    pub(super) replays: replay::Replays,
    pub(super) reshards: reshard::Reshards,
    /// Nothing is disturbed any more.
    pub(super) healed: bool,
    /// Troubles that are still to come.
    pub(super) troubles: u32,
    looked_settled: bool,
    queue: BTreeMap<(u64, u64), Event>,
    last: u64,
    events: u64,
    commands: u64,
    trace: Option<VecDeque<String>>,
    trace_lines: usize,
}

impl World {
    pub(super) fn new(scenario: &Scenario, seed: u64, deliberate: Option<Deliberate>, trace_lines: usize) -> Self {
        let mut dice = Dice::new(seed);
        let mut limits = Limits::draw(&mut dice);
        if scenario.limited {
            limits.limit(&mut dice);
        }
        let count = limits.destinations.len();
        let active_us = dice.between((SECOND, 4 * SECOND));
        let size = (limits.keys, count as u8);
        let applications =
            Applications::new(&mut dice, scenario.application.clone(), scenario.sinks.clone(), size, active_us);
        let sinks = (0..count as u8).map(|n| ModelSink::new(n, scenario.sinks.clone(), &mut dice)).collect();
        let names = limits.destinations.iter().map(|d| d.name.clone()).collect();
        let mut db = Database::new(limits.shards, names, limits.settings.lease_ttl_ms, limits.encoded);
        db.epoch_unchecked = deliberate == Some(Deliberate::EpochNotChecked);
        db.reshard_unchecked = deliberate == Some(Deliberate::ReshardNotSeen);
        db.runner_unchecked = deliberate == Some(Deliberate::RunnerNotChecked);
        let mut world = Self {
            now: 0,
            ledger: Ledger::new(limits.keys, limits.destinations.clone(), limits.routes.clone()),
            scenario: scenario.clone(),
            limits,
            deliberate,
            db,
            db_away_until: 0,
            leases_shaken_until: 0,
            has_been_restored: false,
            has_been_fenced: false,
            has_been_truncated: false,
            backup: None,
            checkpoints: BTreeMap::new(),
            sent: BTreeMap::new(),
            meters: BTreeMap::new(),
            waiting: BTreeMap::new(),
            sinks,
            processes: Vec::new(),
            applications,
            replays: replay::Replays::default(),
            reshards: reshard::Reshards::default(),
            healed: false,
            troubles: 0,
            looked_settled: false,
            queue: BTreeMap::new(),
            last: 0,
            events: 0,
            commands: 0,
            trace: (trace_lines > 0).then(VecDeque::new),
            trace_lines,
            dice,
        };
        if scenario.keeps_due_order() {
            world.ledger.due_order_seen_within = Some(world.limits.settings.schedule_ms * MS + 100 * MS);
        }
        for sink in 0..count {
            let wait = world.sinks[sink].flush_every_us;
            world.after(wait, Event::Flush { sink });
        }
        world.plan_troubles(active_us);
        world.after(0, Event::Application(Step::Begin));
        world
    }

    // ---- what other parts use --------------------------------------------------------------------------------------

    pub(super) fn after(&mut self, delay_us: u64, event: Event) {
        self.last += 1;
        self.queue.insert((self.now + delay_us, self.last), event);
    }

    pub(super) const fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            let line = line();
            if !line.is_empty() {
                if trace.len() == self.trace_lines {
                    trace.pop_front();
                }
                trace.push_back(format!("{:>10.3} ms  {line}", now as f64 / 1_000.0));
            }
        }
    }

    pub(super) const fn db_is_away(&self) -> bool {
        self.now < self.db_away_until
    }

    // ---- the run ---------------------------------------------------------------------------------------------------

    /// Runs to the end and judges it.
    pub(super) fn run(mut self, seed: u64) -> Result<Summary, Failure> {
        let what = match self.turn_until_settled().and_then(|()| self.end_cleanly()) {
            Ok(()) => return Ok(self.summary()),
            Err(what) => what,
        };
        let trace = self.trace.unwrap_or_default().into();
        Err(Failure { seed, scenario: self.scenario.name, what, trace })
    }

    fn summary(&self) -> Summary {
        Summary {
            messages: self.ledger.entries.len() as u64,
            duplicates: self.ledger.duplicates().0,
            commands: self.commands,
            simulated_ms: self.now / MS,
        }
    }

    fn turn_until_settled(&mut self) -> Result<(), String> {
        let mut give_up_at = u64::MAX;
        loop {
            self.turn()?;
            if !self.healed && self.applications.is_done() && !self.troubles_left() {
                self.heal()?;
                give_up_at = self.now + SETTLE_LIMIT;
                // The tables do not say what nobody has noticed yet: that a destination has forgotten something.
                let forgets = self.sinks.iter().any(|s| s.crashes > 0 && s.memory != Memory::Durable);
                let noticed = if forgets { self.limits.settings.look_ms * MS + NOTICE_LIMIT } else { 0 };
                self.after(noticed, Event::Look);
            }
            if self.healed && self.now >= give_up_at {
                return Err(format!(
                    "not settled after {} s: {}",
                    SETTLE_LIMIT / SECOND,
                    self.unsettled().unwrap_or_default()
                ));
            }
            if self.healed && self.looked_settled {
                return Ok(());
            }
        }
    }

    /// One event.
    pub(super) fn turn(&mut self) -> Result<(), String> {
        let Some(((at, _), event)) = self.queue.pop_first() else { return Err("nothing is left to happen".into()) };
        self.now = at;
        self.events += 1;
        if self.events > MOST_EVENTS {
            return Err("the run does not come to an end".into());
        }
        match event {
            Event::Tick { process, tick } => self.tick(process, tick),
            Event::Answer { process, ticket, input } => self.answer(process, ticket, input),
            Event::Call { process, ticket, began, call } => self.call(process, ticket, began, call),
            Event::CheckpointEnds { transaction } => self.checkpoint_ends(transaction),
            Event::Arrive { process, ticket, lane, batch, crashes, back_us } => {
                self.arrive(process, ticket, lane, &batch, crashes, back_us)
            }
            Event::Asked { process, ticket, question, crashes, back_us } => {
                self.sink_is_asked(process, ticket, question, crashes, back_us);
                Ok(())
            }
            Event::Flush { sink } => {
                self.sinks[sink].flush();
                let wait = self.sinks[sink].flush_every_us;
                self.after(wait, Event::Flush { sink });
                Ok(())
            }
            Event::Application(step) => {
                self.application(step);
                Ok(())
            }
            Event::Trouble(trouble) => self.trouble(trouble),
            Event::Replay(step) => self.replay_step(step),
            Event::Reshard(step) => self.reshard_step(step),
            Event::Late { round } => {
                if !self.db_is_away() && !self.db.round_waits(&round) {
                    self.db.lease_round(self.now, &round, || true);
                }
                Ok(())
            }
            Event::Look => {
                self.looked_settled = self.unsettled().is_none();
                if !self.looked_settled {
                    self.after(40 * MS, Event::Look);
                }
                Ok(())
            }
        }
    }

    // ---- processes -------------------------------------------------------------------------------------------------

    fn tick(&mut self, process: usize, tick: u64) -> Result<(), String> {
        let p = &self.processes[process];
        if p.tick != tick || p.life != Life::Running {
            return Ok(());
        }
        let before = self.commands;
        self.give(process, Input::Tick)?;
        if self.commands == before { self.processes[process].idles(self.now) } else { Ok(()) }
    }

    /// The answer to a command: the first one counts.
    pub(super) fn answer(&mut self, process: usize, ticket: u64, input: Input) -> Result<(), String> {
        let p = &mut self.processes[process];
        match p.life {
            Life::Running if p.tickets.remove(&ticket).is_some() => {}
            Life::Paused => {
                p.inbox.push_back((ticket, input));
                return Ok(());
            }
            _ => return Ok(()),
        }
        if let Input::Leases(Some(report)) = &input
            && report.leases.len() != p.leases
        {
            self.ends_by_itself(process);
            return Ok(());
        }
        if let Input::Started { destination, result: Ok(_), .. } = &input {
            let made_after = self.connection(process, *destination).1;
            self.processes[process].started_after.insert(destination.0, made_after);
        }
        if let Input::Answer { shard, epoch, destination, outcomes, batch, .. } = &input {
            let lane = Lane { shard: *shard, epoch: *epoch, destination: *destination };
            let (began, messages) = self.sent.remove(&ticket).unwrap_or_default();
            self.note_outcomes(process, lane, began, &messages, outcomes);
            let owner = self.processes[process].owner.clone();
            let said = |o: &Outcome| match o {
                Outcome::Delivered(_) => "delivered",
                Outcome::Retry { .. } => "retry",
                Outcome::Rejected(_) => "rejected",
                Outcome::DestinationDown(_) => "down",
                Outcome::Held { .. } => "held",
                Outcome::Unknown(_) => "unknown",
            };
            let line =
                outcomes.iter().zip(&messages).map(|(o, m)| format!(" {}:{}", m.id, said(o))).collect::<String>();
            self.note(|| format!("{owner} is told of batch {batch} of {lane}:{line}"));
        }
        self.give(process, input)
    }

    /// Hands an input to a process, and carries out what it asks for.
    pub(super) fn give(&mut self, process: usize, input: Input) -> Result<(), String> {
        let now = self.processes[process].clock(self.now);
        let input = self.processes[process].known.inward(input);
        self.processes[process].instance.handle(now, input);
        while let Some(command) = self.processes[process].instance.next_command() {
            self.begin(process, command)?;
        }
        self.last += 1;
        let (tick, now) = (self.last, self.now);
        let p = &mut self.processes[process];
        if p.life == Life::Running {
            p.tick = tick;
            if let Some(at) = p.deadline(now) {
                self.after(at - now, Event::Tick { process, tick });
            }
        }
        // A look at everything costs more than a turn.
        if self.last.is_multiple_of(8) { self.check_bounds(&self.processes[process]) } else { Ok(()) }
    }

    fn begin(&mut self, process: usize, command: Command) -> Result<(), String> {
        let ticket = self.next_number();
        let p = &mut self.processes[process];
        let command = p.known.outward(command);
        p.asks(ticket, &command)?;
        if let Some(call) = Call::of(&command, &p.owner) {
            self.commands += 1;
            let (way, began) = (self.way_us(), self.now);
            self.after(way, Event::Call { process, ticket, began, call });
            return Ok(());
        }
        match command {
            Command::Event(told) => {
                let owner = p.owner.clone();
                self.note(|| format!("{owner} says {told:?}"));
                self.hear(process, &told)
            }
            Command::Stopped => {
                p.life = Life::Stopped;
                let (owner, empties) = (p.owner.clone(), p.empties_since.filter(|_| !p.drains));
                self.note(|| format!("{owner} has stopped"));
                // Shards that another one holds are the other one's business.
                let in_company = self.processes.iter().any(Process::is_alive) || self.reshards.is_busy();
                empties.filter(|_| !in_company).map_or(Ok(()), |since| self.check_emptied(since))
            }
            Command::Start { .. } | Command::Verify { .. } | Command::Prove { .. } => {
                self.commands += 1;
                self.ask_sink(process, ticket, command);
                Ok(())
            }
            Command::Send { shard, epoch, destination, batch } => {
                self.commands += 1;
                self.send(process, ticket, Lane { shard, epoch, destination }, batch)
            }
            _ => Ok(()),
        }
    }

    fn send(&mut self, process: usize, ticket: u64, lane: Lane, batch: SendBatch) -> Result<(), String> {
        let owner = &self.processes[process].owner;
        let what = batch.messages.iter().map(|m| format!(" {}@{}", m.id, m.position)).collect::<String>();
        let line = format!("{owner} sends batch {} of {lane} slot {}:{what}", batch.batch, batch.slot);
        self.note(|| line);
        self.check_send(process, lane, &batch)?;
        self.check_limits(process, lane, &batch)?;
        for number in batch.messages.iter().filter_map(|m| number_of(&m.id)) {
            self.ledger.entries[number].at[usize::from(lane.destination.0)].sent_at = self.now;
        }
        let Lane { shard, epoch, destination } = lane;
        let limit_us = batch.limit_ms * MS;
        let (there_us, back_us) = self.sinks[usize::from(destination.0)].latency_us(&mut self.dice, limit_us);
        // The engine's limit: no answer by then is Unknown for every message.
        let outcomes = vec![Outcome::Unknown(Reason::new("OUT-4003", "no answer")); batch.messages.len()];
        let input = Input::Answer { shard, epoch, destination, slot: batch.slot, batch: batch.batch, outcomes };
        self.after(limit_us, Event::Answer { process, ticket, input });
        self.sent.insert(ticket, (self.now, batch.messages.clone()));
        let crashes = self.connection(process, destination).1;
        self.after(there_us, Event::Arrive { process, ticket, lane, batch, crashes, back_us });
        Ok(())
    }

    fn arrive(
        &mut self,
        process: usize,
        ticket: u64,
        lane: Lane,
        batch: &SendBatch,
        crashes: u64,
        back_us: u64,
    ) -> Result<(), String> {
        let Lane { shard, epoch, destination } = lane;
        if self.connection(process, destination).0 != batch.start && self.dice.chance(500) {
            // All this time it has waited to be sent; now it sees that another start has begun.
            let input = Input::NotSent { shard, epoch, destination, slot: batch.slot, batch: batch.batch };
            self.after(1, Event::Answer { process, ticket, input });
            return Ok(());
        }
        let sink = &mut self.sinks[usize::from(destination.0)];
        let answered = sink.take(batch, None, crashes, self.now, &mut self.dice, &mut self.ledger);
        for number in answered.stored {
            self.note(|| format!("destination {destination} stores m{number}"));
            self.ledger.stored(number, destination)?;
        }
        if let Some(outcomes) = answered.outcomes {
            let input = Input::Answer { shard, epoch, destination, slot: batch.slot, batch: batch.batch, outcomes };
            self.after(back_us, Event::Answer { process, ticket, input });
        }
        Ok(())
    }

    fn application(&mut self, step: Step) {
        if self.db_is_away() {
            self.after(20 * MS, Event::Application(step));
            return;
        }
        let (next, said) = self.applications.step(step, self.now, &mut self.dice, &mut self.db, &mut self.ledger);
        self.note(|| said);
        for (delay, step) in next {
            self.after(delay, Event::Application(step));
        }
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "shard {} epoch {} destination {}", self.shard, self.epoch, self.destination)
    }
}
