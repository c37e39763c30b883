//! Who orders a replay, who carries it out, and what is done to whoever does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outhaul_core::act::{Act, ActNumber, ActState, PositionRange, Selector, Verb};
use outhaul_core::config::Now;
use outhaul_core::destination::DestinationIndex;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::replay::{Config, Input, ReplayShard, Replaying};

use super::{Ordered, Runner, Step};
use crate::simulator::database::ActRow;
use crate::simulator::process::Life;
use crate::simulator::scenario::{MS, SECOND, TOPICS};
use crate::simulator::trouble::Trouble;
use crate::simulator::world::{Event, World};

impl World {
    /// An operator orders a replay, at random.
    pub(in crate::simulator) fn order_replay(&mut self) {
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
    pub(in crate::simulator) fn runner_starts(&mut self, place: usize) {
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

    pub(super) fn take(&mut self, place: usize, stands: Vec<ReplayShard>) -> Result<(), String> {
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
    pub(in crate::simulator) fn runner_is_disturbed(&mut self) -> Result<(), String> {
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

    pub(in crate::simulator) fn runner_resumes(&mut self, runner: usize) -> Result<(), String> {
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
    pub(in crate::simulator) fn replays_heal(&mut self) -> Result<(), String> {
        for runner in 0..self.replays.runners.len() {
            self.runner_resumes(runner)?;
        }
        for place in 0..self.replays.ordered.len() {
            self.go_on(place, 0);
        }
        Ok(())
    }

    /// Goes on with a replay that nobody carries out.
    pub(super) fn go_on(&mut self, place: usize, delay_us: u64) {
        if !self.replays.runners.iter().any(|r| r.place == place && r.is_alive()) {
            self.trouble_after(delay_us, Trouble::RunnerStart(place));
        }
    }

    #[cfg(feature = "faults")]
    const fn build_into_replay(&self, config: &mut Config) {
        if let Some(crate::simulator::Deliberate::Core(fault)) = self.deliberate {
            config.faults = outhaul_core::faults::Faults::only(fault);
        }
    }

    #[cfg(not(feature = "faults"))]
    const fn build_into_replay(&self, _: &mut Config) {}
}
