//! A process that carries a replay out: what it is given, and what it wants done.

use outhaul_core::receipt::Outcome;
use outhaul_core::replay::{Command, Ending, Event as Told, Input};

use super::{Call, PROVE_LIMIT, Question, Step, UnderWay};
use crate::simulator::ledger::number_of;
use crate::simulator::process::Life;
use crate::simulator::scenario::MS;
use crate::simulator::world::{Event, World};

impl World {
    pub(in crate::simulator) fn replay_step(&mut self, step: Step) -> Result<(), String> {
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

    pub(super) fn runner_is_answered(&mut self, runner: usize, ticket: u64, input: Input) -> Result<(), String> {
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

    pub(super) fn give_runner(&mut self, runner: usize, input: Input) -> Result<(), String> {
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

    pub(super) fn runner_answer_after(&mut self, delay_us: u64, runner: usize, ticket: u64, input: Input) {
        self.after(delay_us, Event::Replay(Step::Answer { runner, ticket, input }));
    }
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
