//! Replays: ordered at random moments beside live traffic, carried out by processes that are killed, paused, stopped and
//! taken over, and what must be true of them.
//!
//! A destination holds a replay's copies beside those of its lanes, under numbers of their own ([`copy_of`]): what a lane
//! has delivered, and what it forgot, is judged as if there were no replay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use outhaul_core::act::{Act, ActNumber, ActState, PositionRange, Selector, Verb};
use outhaul_core::config::Now;
use outhaul_core::destination::{DestinationIndex, NO_ROUTE};
use outhaul_core::instance::Ready;
use outhaul_core::lane::SendBatch;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::receipt::{AckLevel, LaneReceipt, Outcome, Reason, Receipt};
use outhaul_core::replay::{
    Acknowledgement, Command, Config, Ending, Event as Told, Input, Page, Progress, ReplayShard, Replaying, Selection,
    StoreFailure,
};
use outhaul_core::route::Routes;

use super::database::ActRow;
use super::ledger::{MessageNumber, number_of};
use super::process::Life;
use super::scenario::{MS, SECOND, TOPICS};
use super::sink::Memory;
use super::trouble::Trouble;
use super::world::{Event, World};

/// Numbers at or above are copies of a replay.
const COPIES: MessageNumber = 1 << 32;
/// Ticks in a second of simulated time that bring nothing: more means that the process spins.
const IDLE_TICKS: u32 = 100;
/// A question about what is proven is given up after this long.
const PROVE_LIMIT: u64 = 500 * MS;

/// The number under which a destination holds what the replay at this place has sent of a message.
const fn copy_of(place: usize, number: MessageNumber) -> MessageNumber {
    (place + 1) * COPIES + number
}

/// Whether a destination holds it for a replay.
pub(super) const fn is_copy(number: MessageNumber) -> bool {
    number >= COPIES
}

/// All replays of a run, and who carries them out.
#[derive(Default)]
pub(super) struct Replays {
    ordered: Vec<Ordered>,
    runners: Vec<Runner>,
    commands: u64,
}

/// A replay, and what has become of it.
struct Ordered {
    number: ActNumber,
    destination: DestinationIndex,
    selector: Selector,
    ranges: BTreeMap<ShardId, PositionRange>,
    /// Who has taken it.
    runner: Option<String>,
    /// What has arrived at the destination since.
    arrived: BTreeSet<MessageNumber>,
    /// What was met and left out by a rule.
    left: BTreeSet<MessageNumber>,
    /// The newest that has arrived of each key.
    newest: BTreeMap<String, Position>,
}

/// What is under way, in as far as only one of it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnderWay {
    Start,
    Verify,
    Prove,
    Read,
    Keep,
    Send(u32),
}

/// A process that carries a replay out.
struct Runner {
    name: String,
    /// The place of its replay.
    place: usize,
    machine: Replaying,
    life: Life,
    mono_at_start_us: u64,
    tick: u64,
    /// Answers that came while it was paused.
    inbox: VecDeque<(u64, Input)>,
    tickets: BTreeMap<u64, UnderWay>,
    /// Its newest start, and after how many crashes of the destination its connection was made.
    connection: (u64, u64),
    /// The same of the last start, if it succeeded.
    started_after: Option<u64>,
    idle_ticks: (u64, u32),
    began_at: u64,
    sent: u64,
    /// It was told that another one carries its replay out.
    is_told: bool,
}

/// What happens to a replay next.
pub(super) enum Step {
    /// Somebody takes it who has read that it stands so.
    Take {
        place: usize,
        stands: Vec<ReplayShard>,
    },
    Tick {
        runner: usize,
        tick: u64,
    },
    Answer {
        runner: usize,
        ticket: u64,
        input: Input,
    },
    Call {
        runner: usize,
        ticket: u64,
        call: Call,
    },
    /// The server carries out what its client has given up.
    Late {
        runner: usize,
        progress: Progress,
    },
    Asked {
        runner: usize,
        ticket: u64,
        question: Question,
        crashes: u64,
        back_us: u64,
    },
    Arrive {
        runner: usize,
        ticket: u64,
        batch: SendBatch,
        crashes: u64,
        back_us: u64,
    },
}

/// A call of the database.
pub(super) enum Call {
    Read(ShardId, Position),
    Keep(Progress),
}

/// A question to the destination.
pub(super) enum Question {
    /// With the crashes that there had been at the start before, if that has succeeded.
    Start(u64, Option<u64>),
    Verify(Vec<Acknowledgement>),
    Prove(Vec<Receipt>),
}

fn no(text: &'static str) -> Reason {
    Reason::new("OUT-9002", text)
}

fn failed() -> StoreFailure {
    StoreFailure { reason: Reason::new("OUT-1001", "the call has failed"), passes: true }
}

impl Call {
    fn failed(&self) -> Input {
        match self {
            Self::Read(..) => Input::Page(Err(failed())),
            Self::Keep(_) => Input::Kept(Err(failed())),
        }
    }
}

impl Question {
    fn unanswered(&self) -> Input {
        match self {
            Self::Start(..) => Input::Started(Err(no("no answer"))),
            Self::Verify(_) => Input::Verified(Err(no("no answer"))),
            Self::Prove(_) => Input::Proven(Err(no("no answer"))),
        }
    }
}

impl Runner {
    const fn clock(&self, now: u64) -> Now {
        Now { mono_us: now + self.mono_at_start_us, wall_us: now as i64 }
    }

    const fn is_alive(&self) -> bool {
        matches!(self.life, Life::Running | Life::Paused)
    }

    fn idles(&mut self, now: u64) -> Result<(), String> {
        let second = now / SECOND;
        if self.idle_ticks.0 != second {
            self.idle_ticks = (second, 0);
        }
        self.idle_ticks.1 += 1;
        if self.idle_ticks.1 > IDLE_TICKS {
            return Err(format!("{} spins: {} ticks within a second had nothing to do", self.name, self.idle_ticks.1));
        }
        Ok(())
    }
}

impl World {
    // ---- orders, and who carries them out --------------------------------------------------------------------------

    /// An operator orders a replay, at random.
    pub(super) fn order_replay(&mut self) {
        if self.db_is_away() {
            return;
        }
        let d = self.dice.place(self.limits.destinations.len());
        let mut selector = Selector { fill: self.dice.chance(250), ..Selector::default() };
        if self.dice.chance(300) {
            selector.rate_milli = self.dice.between((20_000, 2_000_000));
        }
        match self.dice.between((0, 5)) {
            0 => selector.key = Some(format!("k{}", self.dice.place(self.limits.keys))),
            1 => selector.topic = Some(TOPICS[self.dice.place(3)].to_owned()),
            2 => selector.topic = Some("order-*".to_owned()),
            _ => {}
        }
        let mut ranges = BTreeMap::new();
        for shard in (0..self.limits.shards).map(ShardId) {
            let end = self.db.shard(shard).log.len() as u64;
            let from = if self.dice.chance(700) { 0 } else { self.dice.between((0, end)) };
            let to = if self.dice.chance(700) { end } else { self.dice.between((from, end)) };
            if from < to {
                ranges.insert(shard, PositionRange { from: Position(from), to: Position(to) });
            }
        }
        if ranges.is_empty() {
            return;
        }
        let number = ActNumber(self.next_number());
        let destination = self.limits.destinations[d].name.clone();
        self.note(|| format!("an operator orders {number}: a replay to {destination} of {ranges:?}, {selector:?}"));
        for (shard, range) in &ranges {
            let act = Act {
                number,
                shard: *shard,
                verb: Verb::Replay,
                destination: Some(self.limits.destinations[d].name.clone()),
                selector: Some(Selector { range: Some(*range), ..selector.clone() }),
                edit: None,
                next: range.from,
                done: 0,
                left: 0,
            };
            self.db.acts.push(ActRow { act, state: ActState::Unfinished, at: self.now, note: String::new() });
        }
        self.replays.ordered.push(Ordered {
            number,
            destination: DestinationIndex(d as u8),
            selector,
            ranges,
            runner: None,
            arrived: BTreeSet::new(),
            left: BTreeSet::new(),
            newest: BTreeMap::new(),
        });
        let place = self.replays.ordered.len() - 1;
        self.trouble_after(1, Trouble::RunnerStart(place));
    }

    /// Somebody reads where a replay stands, to go on with it.
    pub(super) fn runner_starts(&mut self, place: usize) {
        if self.db_is_away() {
            return self.trouble_after(50 * MS, Trouble::RunnerStart(place));
        }
        let number = self.replays.ordered[place].number;
        let open = self.db.acts.iter().filter(|r| r.act.number == number && r.state == ActState::Unfinished);
        let stands: Vec<ReplayShard> = open
            .filter_map(|r| {
                let range = r.act.selector.as_ref()?.range?;
                Some(ReplayShard { shard: r.act.shard, range, next: r.act.next, done: r.act.done, left: r.act.left })
            })
            .collect();
        let delay = self.way_us();
        if !stands.is_empty() {
            self.after(delay, Event::Replay(Step::Take { place, stands }));
        }
    }

    fn take(&mut self, place: usize, stands: Vec<ReplayShard>) -> Result<(), String> {
        if self.db_is_away() {
            self.trouble_after(50 * MS, Trouble::RunnerStart(place));
            return Ok(());
        }
        let runner = self.replays.runners.len();
        let name = format!("r{runner}");
        let ordered = &mut self.replays.ordered[place];
        if !self.db.take_replay(ordered.number, &name) {
            return Ok(());
        }
        ordered.runner = Some(name.clone());
        let destination = self.limits.destinations[usize::from(ordered.destination.0)].clone();
        let (number, rate_milli) = (ordered.number, ordered.selector.rate_milli);
        self.note(|| format!("{name} carries replay {number} out, from {stands:?}"));
        let mut config = Config::new(destination, rate_milli, stands, self.dice.next());
        config.keep_ms = self.dice.between((20, 400));
        config.prove_ms = self.limits.settings.prove_ms;
        config.store_backoff_ms = self.limits.settings.store_backoff_ms;
        config.give_up_after_ms = self.dice.chance(200).then(|| self.dice.between((200, 2_000)));
        self.build_into_replay(&mut config);
        let mono_at_start_us = self.dice.between((0, 1_000 * SECOND));
        let now = Now { mono_us: self.now + mono_at_start_us, wall_us: self.now as i64 };
        self.replays.runners.push(Runner {
            name,
            place,
            machine: Replaying::new(config, now),
            life: Life::Running,
            mono_at_start_us,
            tick: 0,
            inbox: VecDeque::new(),
            tickets: BTreeMap::new(),
            connection: (0, 0),
            started_after: None,
            idle_ticks: (0, 0),
            began_at: self.now,
            sent: 0,
            is_told: false,
        });
        self.give_runner(runner, Input::Tick)
    }

    /// One that carries a replay out is killed, paused, stopped or taken over.
    pub(super) fn runner_is_disturbed(&mut self) -> Result<(), String> {
        let alive = |r: &Runner| r.life == Life::Running;
        let alive: Vec<usize> = (0..self.replays.runners.len()).filter(|n| alive(&self.replays.runners[*n])).collect();
        if alive.is_empty() {
            return Ok(());
        }
        let runner = alive[self.dice.place(alive.len())];
        let place = self.replays.runners[runner].place;
        let next = self.dice.between((0, 600 * MS));
        match self.dice.between((0, 3)) {
            0 => {
                self.replays.runners[runner].life = Life::Killed;
                self.trouble_after(next, Trouble::RunnerStart(place));
            }
            1 => {
                self.replays.runners[runner].life = Life::Paused;
                let pause = self.dice.between((50 * MS, 2 * SECOND));
                self.trouble_after(pause, Trouble::RunnerResume(runner));
                if self.dice.chance(600) {
                    self.trouble_after(next, Trouble::RunnerStart(place));
                }
            }
            2 => return self.give_runner(runner, Input::Stop),
            _ => self.trouble_after(0, Trouble::RunnerStart(place)),
        }
        let name = &self.replays.runners[runner].name;
        let line = format!("{name} is disturbed: {:?}", self.replays.runners[runner].life);
        self.note(|| line);
        Ok(())
    }

    pub(super) fn runner_resumes(&mut self, runner: usize) -> Result<(), String> {
        if self.replays.runners[runner].life != Life::Paused {
            return Ok(());
        }
        self.replays.runners[runner].life = Life::Running;
        while let Some((ticket, input)) = self.replays.runners[runner].inbox.pop_front() {
            self.runner_is_answered(runner, ticket, input)?;
        }
        self.give_runner(runner, Input::Tick)
    }

    /// All troubles are over: what nobody carries out any more is gone on with.
    pub(super) fn replays_heal(&mut self) -> Result<(), String> {
        for runner in 0..self.replays.runners.len() {
            self.runner_resumes(runner)?;
        }
        for place in 0..self.replays.ordered.len() {
            self.go_on(place, 0);
        }
        Ok(())
    }

    /// Goes on with a replay that nobody carries out.
    fn go_on(&mut self, place: usize, delay_us: u64) {
        if !self.replays.runners.iter().any(|r| r.place == place && r.is_alive()) {
            self.trouble_after(delay_us, Trouble::RunnerStart(place));
        }
    }

    // ---- steps -----------------------------------------------------------------------------------------------------

    pub(super) fn replay_step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Take { place, stands } => self.take(place, stands),
            Step::Tick { runner, tick } => {
                let r = &self.replays.runners[runner];
                if r.tick != tick || r.life != Life::Running {
                    return Ok(());
                }
                let before = self.replays.commands;
                self.give_runner(runner, Input::Tick)?;
                if self.replays.commands == before { self.replays.runners[runner].idles(self.now) } else { Ok(()) }
            }
            Step::Answer { runner, ticket, input } => self.runner_is_answered(runner, ticket, input),
            Step::Call { runner, ticket, call } => self.runner_calls(runner, ticket, call),
            Step::Late { runner, progress } => {
                if self.db_is_away() {
                    Ok(())
                } else {
                    self.keep(runner, &progress).map(drop)
                }
            }
            Step::Asked { runner, ticket, question, crashes, back_us } => {
                self.runner_asks(runner, ticket, question, crashes, back_us);
                Ok(())
            }
            Step::Arrive { runner, ticket, batch, crashes, back_us } => {
                self.copies_arrive(runner, ticket, &batch, crashes, back_us)
            }
        }
    }

    fn runner_is_answered(&mut self, runner: usize, ticket: u64, input: Input) -> Result<(), String> {
        let r = &mut self.replays.runners[runner];
        match r.life {
            Life::Running if r.tickets.remove(&ticket).is_some() => {}
            Life::Paused => {
                r.inbox.push_back((ticket, input));
                return Ok(());
            }
            _ => return Ok(()),
        }
        if let Input::Started(Ok(_)) = &input {
            r.started_after = Some(r.connection.1);
        }
        r.is_told |= matches!(input, Input::Kept(Ok(false)));
        let line = format!("{} is told {}", r.name, said(&input));
        self.note(|| line);
        self.give_runner(runner, input)
    }

    fn give_runner(&mut self, runner: usize, input: Input) -> Result<(), String> {
        let now = self.now;
        let r = &mut self.replays.runners[runner];
        if r.life != Life::Running {
            return Ok(());
        }
        r.machine.handle(r.clock(now), input);
        while let Some(command) = self.replays.runners[runner].machine.next_command() {
            self.runner_begins(runner, command)?;
        }
        let tick = self.next_number();
        let r = &mut self.replays.runners[runner];
        r.tick = tick;
        let deadline = r.machine.deadline_us().map(|at| at.saturating_sub(r.mono_at_start_us).max(now));
        if let Some(at) = deadline.filter(|_| r.life == Life::Running) {
            self.after(at - now, Event::Replay(Step::Tick { runner, tick }));
        }
        Ok(())
    }

    fn runner_begins(&mut self, runner: usize, command: Command) -> Result<(), String> {
        let ticket = self.next_number();
        self.replays.commands += 1;
        let asked = match &command {
            Command::Start { .. } => UnderWay::Start,
            Command::Verify { .. } => UnderWay::Verify,
            Command::Prove { .. } => UnderWay::Prove,
            Command::Read { .. } => UnderWay::Read,
            Command::Keep(_) => UnderWay::Keep,
            Command::Send(batch) => UnderWay::Send(batch.slot),
            Command::Event(told) => {
                let name = &self.replays.runners[runner].name;
                let line = format!("{name} says {told:?}");
                self.note(|| line);
                self.hear_of_replay(runner, told);
                return Ok(());
            }
            Command::Ended(ending) => {
                self.runner_ends(runner, ending.clone());
                return Ok(());
            }
        };
        let r = &mut self.replays.runners[runner];
        if r.tickets.values().any(|t| *t == asked) {
            return Err(format!("{} asks for {asked:?} while another is under way", r.name));
        }
        if asked == UnderWay::Keep && r.is_told {
            let number = self.replays.ordered[r.place].number;
            return Err(format!("{} stores on, though it was told that another carries replay {number} out", r.name));
        }
        r.tickets.insert(ticket, asked);
        match command {
            Command::Start { start, limit_ms } => {
                r.connection.0 = start; // What was begun after an earlier one is not sent from now on.
                let before = r.started_after.take();
                self.ask(runner, ticket, Question::Start(start, before), limit_ms * MS);
            }
            Command::Verify { shown, limit_ms, .. } => {
                self.ask(runner, ticket, Question::Verify(shown), limit_ms * MS);
            }
            Command::Prove { receipts, .. } => self.ask(runner, ticket, Question::Prove(receipts), PROVE_LIMIT),
            Command::Read { shard, from } => self.runner_call_goes(runner, ticket, Call::Read(shard, from)),
            Command::Keep(progress) => self.runner_call_goes(runner, ticket, Call::Keep(progress)),
            Command::Send(batch) => return self.copies_go(runner, ticket, batch),
            _ => {}
        }
        Ok(())
    }

    fn runner_call_goes(&mut self, runner: usize, ticket: u64, call: Call) {
        let way = self.way_us();
        self.after(way, Event::Replay(Step::Call { runner, ticket, call }));
    }

    fn runner_ends(&mut self, runner: usize, ending: Ending) {
        let r = &mut self.replays.runners[runner];
        r.life = Life::Stopped;
        let (place, line) = (r.place, format!("{} has ended: {ending:?}", r.name));
        self.note(|| line);
        if ending != Ending::Done {
            let delay = self.dice.between((0, 300 * MS));
            self.go_on(place, delay);
        }
    }

    fn hear_of_replay(&mut self, runner: usize, told: &Told) {
        if let Told::LeftOut(left) = told
            && let Some(number) = number_of(&left.id)
        {
            let place = self.replays.runners[runner].place;
            self.replays.ordered[place].left.insert(number);
        }
    }

    fn runner_answer_after(&mut self, delay_us: u64, runner: usize, ticket: u64, input: Input) {
        self.after(delay_us, Event::Replay(Step::Answer { runner, ticket, input }));
    }

    // ---- the database ----------------------------------------------------------------------------------------------

    fn selection(&self, place: usize, shard: ShardId) -> Selection {
        let ordered = &self.replays.ordered[place];
        let range = ordered.ranges.get(&shard).copied().unwrap_or_default();
        let routes = Arc::new(Routes::new(self.limits.routes.clone()));
        Selection::new(range, &ordered.selector, ordered.destination, routes)
    }

    fn runner_calls(&mut self, runner: usize, ticket: u64, call: Call) -> Result<(), String> {
        let outlives = matches!(call, Call::Keep(_)) && self.dice.chance(500);
        if self.replays.runners[runner].life == Life::Killed && !outlives {
            return Ok(());
        }
        let mut delay = self.way_us();
        if self.db_is_away() {
            self.runner_answer_after(delay, runner, ticket, call.failed());
            return Ok(());
        }
        if self.dice.chance(self.scenario.database.failure) {
            self.runner_answer_after(delay, runner, ticket, call.failed());
            let Call::Keep(progress) = call else { return Ok(()) };
            match self.dice.between((0, 2)) {
                0 => drop(self.keep(runner, &progress)?),
                1 => {
                    let late = self.dice.between((MS, 800 * MS));
                    self.after(late, Event::Replay(Step::Late { runner, progress }));
                }
                _ => {}
            }
            return Ok(());
        }
        if self.dice.chance(self.scenario.database.slow) {
            delay = self.dice.between((20 * MS, 700 * MS));
        }
        let input = match call {
            Call::Read(shard, from) => Input::Page(Ok(self.page(runner, shard, from))),
            Call::Keep(progress) => Input::Kept(Ok(self.keep(runner, &progress)?)),
        };
        self.runner_answer_after(delay, runner, ticket, input);
        Ok(())
    }

    fn page(&mut self, runner: usize, shard: ShardId, from: Position) -> Page {
        let place = self.replays.runners[runner].place;
        let selection = self.selection(place, shard);
        let name = self.limits.destinations[usize::from(self.replays.ordered[place].destination.0)].name.clone();
        let most = self.dice.between((1, 20)) as usize;
        let to = selection.range().to;
        let mut messages = self.db.read_log(shard, from, most);
        messages.retain(|m| m.position < to);
        let next = messages.last().map_or(to, |m| Position(m.position.0 + 1));
        let mut page = Page { next, ..Page::default() };
        self.db.apply_edits(shard, &name, &mut messages);
        messages.retain(|m| selection.is_meant(m, Position(0)));
        let parked = |of: &str| {
            let rows = self.db.shard(shard).parked.keys().filter(|(destination, _)| destination == of);
            rows.map(|(_, position)| *position).collect::<BTreeSet<_>>()
        };
        Selection::set_aside(messages, &parked(&name), &parked(NO_ROUTE), &mut page);
        // Whoever has read it may be killed before it says so.
        self.replays.ordered[place].left.extend(page.left.iter().filter_map(|l| number_of(&l.id)));
        page
    }

    /// Stores how far a replay has got.
    fn keep(&mut self, runner: usize, progress: &Progress) -> Result<bool, String> {
        let r = &self.replays.runners[runner];
        let (place, name) = (r.place, r.name.clone());
        let number = self.replays.ordered[place].number;
        let is_its_own = self.replays.ordered[place].runner.as_ref() == Some(&name);
        let is_row = |r: &&ActRow| r.act.number == number && r.act.shard == progress.shard;
        let was_over = self.db.acts.iter().find(is_row).is_some_and(|r| r.state == ActState::Done);
        let kept = self.db.keep_replay(number, &name, progress);
        self.note(|| format!("{name} stores {progress:?} of replay {number}: {kept}"));
        // The same end may be stored twice.
        if kept && !is_its_own && !was_over {
            return Err(format!("{name} stores how far replay {number} has got, which another has taken over"));
        }
        if kept {
            self.check_kept(place, progress)?;
        }
        Ok(kept)
    }

    // ---- the destination -------------------------------------------------------------------------------------------

    fn sink_of(&self, runner: usize) -> usize {
        usize::from(self.replays.ordered[self.replays.runners[runner].place].destination.0)
    }

    fn ask(&mut self, runner: usize, ticket: u64, question: Question, limit_us: u64) {
        let d = self.sink_of(runner);
        let (there_us, back_us) = self.sinks[d].latency_us(&mut self.dice, limit_us);
        self.runner_answer_after(limit_us, runner, ticket, question.unanswered());
        let crashes = self.replays.runners[runner].connection.1;
        self.after(there_us, Event::Replay(Step::Asked { runner, ticket, question, crashes, back_us }));
    }

    fn runner_asks(&mut self, runner: usize, ticket: u64, question: Question, crashes: u64, back_us: u64) {
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

    fn copies_go(&mut self, runner: usize, ticket: u64, batch: SendBatch) -> Result<(), String> {
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

    fn copies_arrive(
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

    // ---- rules -----------------------------------------------------------------------------------------------------

    /// A batch begins: it must be of messages of the log that are meant, in their slot, and no faster than was asked for.
    fn check_copies(&mut self, runner: usize, batch: &SendBatch) -> Result<(), String> {
        let now = self.now;
        let r = &mut self.replays.runners[runner];
        let (place, name) = (r.place, r.name.clone());
        r.sent += batch.messages.len() as u64;
        let (sent, elapsed_us) = (r.sent, now - r.began_at);
        if r.connection.0 != batch.start || r.tickets.values().any(|t| matches!(t, UnderWay::Start | UnderWay::Verify))
        {
            return Err(format!("{name} sends while the destination is being started"));
        }
        let milli = self.replays.ordered[place].selector.rate_milli;
        let limits = &self.limits.destinations[usize::from(self.replays.ordered[place].destination.0)].limits;
        let milli = limits.rate_milli.filter(|most| milli == 0 || *most < milli).unwrap_or(milli);
        let under_way =
            self.replays.runners[runner].tickets.values().filter(|t| matches!(t, UnderWay::Send(_))).count();
        if limits.concurrency.is_some_and(|most| under_way > most) {
            return Err(format!("{name} has {under_way} batches under way"));
        }
        // What was due, and what may be made up for.
        if milli > 0 && sent > milli * elapsed_us / (1_000 * SECOND) + milli / 20_000 + 2 {
            return Err(format!("{name} has sent {sent} in {elapsed_us} us, at {milli} a thousand seconds"));
        }
        let d = self.replays.ordered[place].destination;
        let config = &self.limits.destinations[usize::from(d.0)];
        if batch.messages.is_empty() || batch.messages.len() > config.limits.max_batch {
            return Err(format!("{name} sends a batch of {}", batch.messages.len()));
        }
        for m in &batch.messages {
            let number = number_of(&m.id).ok_or("a message that nobody wrote is replayed")?;
            let entry = &self.ledger.entries[number];
            let edited = entry.edited.contains_key(&usize::from(d.0));
            let same = entry.row.payload == m.payload && entry.row.key == m.key && entry.row.headers == m.headers;
            if m.defect.is_some() || !(same || edited) || entry.row.topic != m.topic {
                return Err(format!("{name} sends {} other than it was written", m.id));
            }
            if self.db.place(number) != Some((m.shard, m.position)) {
                return Err(format!("{name} sends {} as {} of shard {}", m.id, m.position, m.shard));
            }
            if config.slotting.slot(m) != batch.slot {
                return Err(format!("{name} sends {} in slot {}, which is not its own", m.id, batch.slot));
            }
            if !self.selection(place, m.shard).is_meant(m, Position(0)) {
                return Err(format!("{name} sends {}, which is not asked for", m.id));
            }
        }
        Ok(())
    }

    /// A replay's copy has arrived: for a consumer that knows what the replay has brought, the order of its key must hold.
    fn copy_is_stored(&mut self, place: usize, number: MessageNumber) -> Result<(), String> {
        let Some((_, position)) = self.db.place(number) else { return Ok(()) };
        let ordered = &mut self.replays.ordered[place];
        let entry = &self.ledger.entries[number];
        if !ordered.arrived.insert(number) || entry.at[usize::from(ordered.destination.0)].rekeyed {
            return Ok(());
        }
        let Some(key) = entry.row.key.clone() else { return Ok(()) };
        let newest = ordered.newest.get(&key).copied();
        // What was parked when it was met may come when the replay meets it again.
        if newest.is_some_and(|newest| position < newest) && !ordered.left.contains(&number) {
            return Err(format!(
                "order of key {key} within replay {}: m{number} comes after later ones",
                ordered.number
            ));
        }
        ordered.newest.insert(key, newest.map_or(position, |n| n.max(position)));
        Ok(())
    }

    /// What lies below the stored position has arrived, and is flushed where that comes later, or is left out.
    fn check_kept(&self, place: usize, progress: &Progress) -> Result<(), String> {
        let ordered = &self.replays.ordered[place];
        let d = usize::from(ordered.destination.0);
        let selection = self.selection(place, progress.shard);
        let sink = &self.sinks[d];
        let below = progress.next.min(selection.range().to);
        if progress.ended && progress.next < selection.range().to {
            return Err(format!("replay {} is over at {}", ordered.number, progress.next));
        }
        let mut log = self.db.read_log(progress.shard, selection.range().from, usize::MAX);
        log.retain(|m| m.position < below);
        self.db.apply_edits(progress.shard, &self.limits.destinations[d].name, &mut log);
        let is_late = sink.memory == Memory::FlushedLater;
        let held = if is_late { sink.held.get(..sink.flushed) } else { None };
        let flushed: BTreeSet<MessageNumber> = held.unwrap_or_default().iter().copied().collect();
        let (mut delivered, mut left) = (0, 0);
        for m in log.iter().filter(|m: &&Arc<Message>| selection.is_meant(m, Position(0))) {
            let number = number_of(&m.id).unwrap_or_default();
            let entry = &self.ledger.entries[number];
            let may_be_left = ordered.left.contains(&number) || entry.rejected_by == Some(ordered.destination);
            let arrived = ordered.arrived.contains(&number);
            if may_be_left || entry.at[d].rekeyed {
                left += u64::from(!arrived && !entry.at[d].rekeyed);
                continue;
            }
            delivered += 1;
            let stored =
                format!("replay {} is stored up to {} of shard {}", ordered.number, progress.next, progress.shard);
            if !arrived {
                return Err(format!("{stored}, but {} has not arrived", m.id));
            }
            if is_late && !flushed.contains(&copy_of(place, number)) {
                return Err(format!("{stored}, but {} of it is not flushed", m.id));
            }
        }
        if progress.done < delivered || progress.left < left {
            return Err(format!(
                "replay {}: {delivered} have arrived and {left} were left, but {progress:?}",
                ordered.number
            ));
        }
        Ok(())
    }

    #[cfg(feature = "faults")]
    const fn build_into_replay(&self, config: &mut Config) {
        if let Some(super::Deliberate::Core(fault)) = self.deliberate {
            config.faults = outhaul_core::faults::Faults::only(fault);
        }
    }

    #[cfg(not(feature = "faults"))]
    const fn build_into_replay(&self, _: &mut Config) {}
}

fn said(input: &Input) -> String {
    match input {
        Input::Answer { batch, outcomes, .. } => {
            let delivered = outcomes.iter().filter(|o| matches!(o, Outcome::Delivered(_))).count();
            format!("of batch {batch}: {delivered} of {} are delivered", outcomes.len())
        }
        Input::Page(Ok(page)) => format!("of {} messages, up to {}", page.messages.len(), page.next),
        other => format!("{other:?}"),
    }
}
