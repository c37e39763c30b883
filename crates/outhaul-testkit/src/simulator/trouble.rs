//! What goes wrong, and when.

use outhaul_core::config::Config;
use outhaul_core::instance::Input;

use super::database::Database;
use super::known::Known;
use super::ledger::Written;
use super::process::{Life, Process};
use super::scenario::{MS, SECOND};
use super::world::{Event, World};

/// Something that disturbs a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum Trouble {
    Start,
    Kill,
    Pause,
    Resume(usize),
    Cut,
    Drain,
    Outage,
    Down,
    Hang,
    SinkCrash,
    Truncate,
    Backup,
    Restore,
    /// An operator wants something done.
    Act,
    /// An operator orders a replay.
    Replay,
    /// Somebody is to carry out the replay at this place.
    RunnerStart(usize),
    /// One that carries a replay out is killed, paused, stopped or taken over.
    Takeover,
    RunnerResume(usize),
    /// An operator wants another number of shards.
    Reshard,
    /// Somebody else starts a relay, just as the change begins.
    StartUnasked,
    /// The operator goes on with it.
    ReshardGoesOn,
    /// The change is killed or paused.
    ReshardDisturbed(usize),
    ReshardResume(usize),
}

impl World {
    pub(super) fn plan_troubles(&mut self, active_us: u64) {
        let s = self.scenario.clone();
        for _ in 0..self.dice.between(s.processes).max(1) {
            let delay = self.dice.between((0, 30 * MS));
            self.trouble_after(delay, Trouble::Start);
        }
        let some = [
            (s.joins, Trouble::Start),
            (s.crashes, Trouble::Kill),
            (s.pauses, Trouble::Pause),
            (s.cuts, Trouble::Cut),
            (s.drains, Trouble::Drain),
            (s.database.outages, Trouble::Outage),
            (s.database.truncates, Trouble::Truncate),
            (s.database.restores, Trouble::Backup),
            (s.sinks.downs, Trouble::Down),
            (s.sinks.hangs, Trouble::Hang),
            (s.sinks.crashes, Trouble::SinkCrash),
            (s.acts, Trouble::Act),
            (s.replays, Trouble::Replay),
            (s.takeovers, Trouble::Takeover),
            (s.reshards, Trouble::Reshard),
        ];
        for (count, trouble) in some {
            for _ in 0..self.dice.between(count) {
                let delay = self.dice.between((20 * MS, active_us));
                self.trouble_after(delay, trouble);
            }
        }
    }

    pub(super) fn troubles_left(&self) -> bool {
        self.troubles > 0 || self.reshards.is_busy()
    }

    pub(super) fn trouble_after(&mut self, delay_us: u64, trouble: Trouble) {
        self.troubles += 1;
        self.after(delay_us, Event::Trouble(trouble));
    }

    /// A process that is alive, at random.
    fn victim(&mut self) -> Option<usize> {
        let alive = |p: &Process| p.life == Life::Running && !p.drains;
        let alive: Vec<usize> = (0..self.processes.len()).filter(|n| alive(&self.processes[*n])).collect();
        (!alive.is_empty()).then(|| alive[self.dice.place(alive.len())])
    }

    pub(super) fn trouble(&mut self, trouble: Trouble) -> Result<(), String> {
        self.troubles -= 1;
        self.note(|| format!("trouble: {trouble:?}"));
        match trouble {
            Trouble::Start if self.start_is_put_off() => {
                self.trouble_after(150 * MS, Trouble::Start);
                Ok(())
            }
            Trouble::Start | Trouble::StartUnasked => self.start(),
            Trouble::Kill => {
                let Some(victim) = self.victim() else { return Ok(()) };
                self.processes[victim].life = Life::Killed;
                self.checkpoint_loses_client(victim, None);
                let delay = self.dice.between((0, SECOND));
                self.trouble_after(delay, Trouble::Start);
                Ok(())
            }
            Trouble::Pause => {
                let Some(victim) = self.victim() else { return Ok(()) };
                let ttl = self.limits.settings.lease_ttl_ms * MS;
                let pause = self.dice.between((ttl / 4, 2 * ttl));
                self.processes[victim].life = Life::Paused;
                self.checkpoint_loses_client(victim, Some(self.now + pause));
                self.trouble_after(pause, Trouble::Resume(victim));
                Ok(())
            }
            Trouble::Resume(process) => self.resume(process),
            Trouble::Cut => {
                let Some(victim) = self.victim() else { return Ok(()) };
                let ttl = self.limits.settings.lease_ttl_ms * MS;
                let cut = self.dice.between((ttl / 4, 2 * ttl));
                self.processes[victim].cut_off_until = self.now + cut;
                self.checkpoint_is_not_answered(victim);
                Ok(())
            }
            Trouble::Drain => {
                let Some(victim) = self.victim() else { return Ok(()) };
                self.processes[victim].drains = true;
                let delay = self.dice.between((0, SECOND));
                self.trouble_after(delay, Trouble::Start);
                self.give(victim, Input::Drain)
            }
            Trouble::Outage => {
                let outage = self.dice.between((20 * MS, 3 * SECOND));
                self.database_goes(outage)
            }
            Trouble::Down | Trouble::Hang => {
                let (sink, until) =
                    (self.dice.place(self.sinks.len()), self.now + self.dice.between((20 * MS, 3 * SECOND)));
                // All of it, or one of two queues, or one of two parts that every queue has.
                self.sinks[sink].trouble_in = self.dice.chance(400).then(|| self.dice.between((0, 1)) as u32);
                self.sinks[sink].part_in_trouble = None;
                match trouble {
                    Trouble::Down => {
                        if self.sinks[sink].trouble_in.is_none() && self.dice.chance(400) {
                            self.sinks[sink].part_in_trouble = Some(self.dice.between((0, 1)));
                        }
                        self.sinks[sink].down_until = until;
                    }
                    _ => self.sinks[sink].hangs_until = until,
                }
                Ok(())
            }
            Trouble::SinkCrash => {
                self.sink_crashes();
                Ok(())
            }
            Trouble::Act => {
                self.operator_acts();
                Ok(())
            }
            Trouble::Replay => {
                self.order_replay();
                Ok(())
            }
            Trouble::RunnerStart(place) => {
                self.runner_starts(place);
                Ok(())
            }
            Trouble::Takeover => self.runner_is_disturbed(),
            Trouble::RunnerResume(runner) => self.runner_resumes(runner),
            Trouble::Reshard => {
                self.operator_reshards();
                Ok(())
            }
            Trouble::ReshardGoesOn => self.operator_goes_on(),
            Trouble::ReshardDisturbed(run) => {
                self.reshard_is_disturbed(run);
                Ok(())
            }
            Trouble::ReshardResume(run) => {
                self.reshard_resumes(run);
                Ok(())
            }
            Trouble::Truncate => {
                if self.db.any_lock() || self.db_is_away() {
                    self.trouble_after(3 * MS, Trouble::Truncate); // It needs the table for itself.
                    return Ok(());
                }
                self.everything_rolls_back();
                let lost = self.db.truncate();
                self.note(|| format!("lost by TRUNCATE: {lost:?}"));
                self.ledger.ended_as(&lost, Written::Lost);
                self.has_been_truncated = true;
                let next = self.ledger.next_number();
                self.ledger.order_ends_at = self.ledger.order_ends_at.min(next);
                Ok(())
            }
            Trouble::Backup => {
                self.backup = Some(Box::new(self.db.backup()));
                let delay = self.dice.between((50 * MS, 2 * SECOND));
                self.trouble_after(delay, Trouble::Restore);
                Ok(())
            }
            Trouble::Restore => {
                let outage = self.dice.between((10 * MS, SECOND));
                self.database_goes(outage)?;
                if let Some(backup) = self.backup.take() {
                    self.restore(*backup);
                }
                Ok(())
            }
        }
    }

    fn everything_rolls_back(&mut self) {
        let rolled_back = self.db.roll_back_all();
        self.ledger.ended_as(&rolled_back, Written::RolledBack);
        self.applications.thrown_out();
    }

    fn database_goes(&mut self, outage_us: u64) -> Result<(), String> {
        self.everything_rolls_back();
        self.checkpoints_are_cut()?;
        self.db_away_until = self.db_away_until.max(self.now + outage_us);
        Ok(())
    }

    fn restore(&mut self, backup: Database) {
        self.db = backup;
        let lost: Vec<usize> = (0..self.ledger.entries.len())
            .filter(|n| self.ledger.entries[*n].written == Written::Committed && !self.db.has(*n))
            .collect();
        self.note(|| format!("lost by the restore: {lost:?}"));
        self.ledger.ended_as(&lost, Written::Lost);
        self.has_been_restored = true;
        self.ledger.order_ends_at = 0; // Rows are back that later ones of their keys had left behind.
        self.leases_shaken_until = self.db_away_until + self.limits.settings.lease_ttl_ms * MS;
        self.processes.iter_mut().for_each(|p| p.acknowledged.clear());
    }

    pub(super) fn start(&mut self) -> Result<(), String> {
        let one_at_a_time = self.scenario.until_empty && !self.healed;
        if one_at_a_time && self.processes.iter().any(Process::is_alive) {
            return Ok(());
        }
        self.start_as(one_at_a_time)
    }

    /// `empties`: it stops by itself once all that was committed before is settled.
    pub(super) fn start_as(&mut self, empties: bool) -> Result<(), String> {
        let n = self.processes.len();
        let known = match self.scenario.reconfigured {
            true => Known::draw(&mut self.dice, &self.limits, self.healed),
            false => Known::all(&self.limits),
        };
        let (destinations, routes) = known.config(&self.limits);
        let settings = self.limits.settings.clone();
        let mut config = Config::new(format!("p{n}"), settings, destinations, routes, self.dice.next());
        self.build_in(&mut config);
        let mono_at_start_us = self.dice.between((0, 1_000 * SECOND));
        let wall_skew_us = self.dice.between((0, 2_000 * MS)) as i64 - 1_000_000;
        let clocks = (mono_at_start_us, wall_skew_us);
        self.processes.push(Process::new(config, known, clocks, self.db.leases.len()));
        self.processes[n].empties_since = empties.then_some(self.now);
        self.give(n, if empties { Input::DrainWhenEmpty } else { Input::Tick })
    }

    /// It has found that it can not go on as it is, and is started again.
    pub(super) fn ends_by_itself(&mut self, process: usize) {
        let owner = self.processes[process].owner.clone();
        self.note(|| format!("{owner} ends: the number of shards is another one, or being changed"));
        self.processes[process].life = Life::Killed;
        self.checkpoint_loses_client(process, None);
        let delay = self.dice.between((0, SECOND));
        self.trouble_after(delay, Trouble::Start);
    }

    fn resume(&mut self, process: usize) -> Result<(), String> {
        if self.processes[process].life != Life::Paused {
            return Ok(());
        }
        self.processes[process].life = Life::Running;
        while let Some((ticket, input)) = self.processes[process].inbox.pop_front() {
            self.answer(process, ticket, input)?;
        }
        self.give(process, Input::Tick)
    }

    /// From here on nothing is disturbed: what is committed must be settled.
    pub(super) fn heal(&mut self) -> Result<(), String> {
        self.healed = true;
        self.note(|| "all troubles are over".to_owned());
        self.sinks.iter_mut().for_each(super::sink::ModelSink::heal);
        let database = &mut self.scenario.database;
        (database.failure, database.not_written, database.unknown, database.slow) = (0, 0, 0, 0);
        self.db_away_until = self.db_away_until.min(self.now);
        self.processes.iter_mut().for_each(|p| p.cut_off_until = 0);
        self.operator_resumes_all();
        self.replays_heal()?;
        for process in 0..self.processes.len() {
            self.resume(process)?;
        }
        // What is not configured anywhere is not settled.
        let count = self.limits.destinations.len();
        for process in 0..self.processes.len() {
            let p = &mut self.processes[process];
            if p.life == Life::Running && p.known.len() < count && !p.drains {
                p.drains = true;
                self.give(process, Input::Drain)?;
            }
        }
        // One that stops when it finds nothing to do may do so at any moment.
        if !self.processes.iter().any(|p| p.life == Life::Running && !p.drains && p.empties_since.is_none()) {
            self.start()?;
        }
        if self.has_been_restored {
            // An owner notices a restore by its next checkpoint: every shard gets something to write.
            self.applications.write_everywhere(self.now, &mut self.dice, &mut self.db, &mut self.ledger);
        }
        Ok(())
    }

    #[cfg(feature = "faults")]
    const fn build_in(&self, config: &mut Config) {
        if let Some(super::Deliberate::Core(fault)) = self.deliberate {
            config.faults = outhaul_core::faults::Faults::only(fault);
        }
    }

    #[cfg(not(feature = "faults"))]
    const fn build_in(&self, _: &mut Config) {}
}
