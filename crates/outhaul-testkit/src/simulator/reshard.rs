//! Changes of the number of shards: an operator who wants one, and the command that carries it out, step by step.
//!
//! The operator stops the relays, lets what is left be delivered, and runs the command; again and again until it has come
//! to its end, or until it has refused too often. The command may be killed and paused between any two steps, and so may
//! relays begin that somebody else has started.

use outhaul_core::act::{ActState, Selector, Verb};
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::instance::Input;
use outhaul_core::message::{Epoch, ShardId};

use super::Deliberate;
use super::database::Round;
use super::process::Life;
use super::scenario::MS;
use super::trouble::Trouble;
use super::world::{Event, World};

/// What the command's processes are called.
const NAME: &str = "reshard@";
/// Shards that an operator may want.
const SHARDS: (u64, u64) = (1, 8);
/// So often the operator tries, unless the change has begun.
const TRIES: u32 = 12;
/// How long a change of the expression stands in the queue, and applications behind it. Less than any lease.
const QUEUES: (u64, u64) = (20 * MS, 400 * MS);
/// Until the next try those go first who waited behind the last one.
const RESTS: (u64, u64) = (50 * MS, 400 * MS);
/// So often the expression is tried before the command gives up.
const ALTERS: u32 = 5;
/// How long the operator lets relays end by themselves, in looks.
const PATIENCE: u32 = 150;

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// The command's next statement.
    Next(usize),
    /// Its leases are renewed.
    Renew(usize),
    /// A change of the expression in the queue, and until when.
    Alter(usize, u64),
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Reshards {
    change: Option<Change>,
    runs: Vec<Run>,
}

/// A change that an operator wants.
#[derive(Debug)]
struct Change {
    to: u16,
    tries: u32,
    errand: Errand,
    looks: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Errand {
    /// Relays are to end.
    Stop,
    /// What is left is to be delivered.
    Settle,
    /// The command is to run.
    Run,
}

/// A process that carries one out.
#[derive(Debug)]
struct Run {
    owner: String,
    to: u16,
    life: Life,
    stage: Stage,
    /// It was to take its next step while it was paused.
    waits: bool,
    /// Until then it waits for another run's leases.
    until: u64,
    of: Vec<(ShardId, Epoch)>,
    /// Shards before, where no earlier run has begun.
    fresh: Option<u16>,
    alters: u32,
    /// An answer was lost: the expression may have been changed.
    in_doubt: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Take,
    Settled,
    Announce,
    /// It waits in the queue for its answer, too.
    Alter,
    Move,
    /// With so many shards.
    Finish(u16),
}

impl Reshards {
    /// Whether somebody is about to change something.
    pub(super) fn is_busy(&self) -> bool {
        self.change.is_some() || self.runs.iter().any(Run::is_alive)
    }
}

impl Run {
    const fn is_alive(&self) -> bool {
        matches!(self.life, Life::Running | Life::Paused)
    }

    fn round(&self) -> Round {
        Round {
            owner: self.owner.clone(),
            draining: true,
            renew: Vec::new(),
            release: Vec::new(),
            acquire: Vec::new(),
            leave: false,
        }
    }
}

// ---- the operator --------------------------------------------------------------------------------------------------

impl World {
    /// An operator wants another number of shards.
    pub(super) fn operator_reshards(&mut self) {
        if self.reshards.is_busy() {
            self.trouble_after(300 * MS, Trouble::Reshard); // One after the other.
            return;
        }
        let to = self.dice.between(SHARDS) as u16;
        self.note(|| format!("an operator wants {to} shards"));
        self.reshards.change = Some(Change { to, tries: 0, errand: Errand::Stop, looks: 0 });
        self.trouble_after(0, Trouble::ReshardGoesOn);
    }

    /// Whether a relay is not started now: it would refuse, or the operator keeps it from being.
    pub(super) fn start_is_put_off(&mut self) -> bool {
        if self.reshards.change.is_some() && !self.dice.chance(25) {
            return true;
        }
        self.db.resharding.is_some()
    }

    pub(super) fn operator_goes_on(&mut self) -> Result<(), String> {
        let wait = self.operator_looks()?;
        if self.reshards.change.is_some() {
            self.trouble_after(wait, Trouble::ReshardGoesOn);
            return Ok(());
        }
        for _ in 0..self.dice.between(self.scenario.processes).max(1) {
            let delay = self.dice.between((0, 30 * MS));
            self.trouble_after(delay, Trouble::Start);
        }
        Ok(())
    }

    /// Returns when to look again.
    fn operator_looks(&mut self) -> Result<u64, String> {
        const SOON: u64 = 30 * MS;
        let run = self.reshards.runs.last().map(|r| r.life);
        if run == Some(Life::Running) || (run == Some(Life::Paused) && !self.dice.chance(50)) {
            return Ok(SOON);
        }
        let begun = self.db.resharding.is_some();
        let relays: Vec<usize> =
            (0..self.processes.len()).filter(|n| self.processes[*n].life == Life::Running).collect();
        let careless = self.dice.chance(20);
        let is_there = self.db.said_shards;
        let Some(change) = &mut self.reshards.change else { return Ok(SOON) };
        change.looks += 1;
        if !begun && (is_there == change.to || change.tries > TRIES) {
            self.reshards.change = None;
            return Ok(SOON);
        }
        if change.tries > 10 * TRIES {
            return Err(format!("a change to {} shards does not come to its end", change.to));
        }
        if begun || careless {
            change.errand = Errand::Run; // Relays refuse, so there is nothing to stop.
        }
        let overdue = change.looks > PATIENCE;
        match change.errand {
            Errand::Stop if relays.is_empty() => change.errand = Errand::Settle,
            Errand::Run if relays.is_empty() || begun || careless => {
                (change.tries, change.errand, change.looks) = (change.tries + 1, Errand::Stop, 0);
                let to = change.to;
                self.run_begins(to);
                if begun {
                    return Ok(5 * SOON); // Whatever has ended just now counts as alive for a while.
                }
            }
            Errand::Run if !overdue => {}
            Errand::Stop | Errand::Run => {
                for process in relays {
                    if !self.processes[process].drains {
                        self.processes[process].drains = true;
                        self.give(process, Input::Drain)?;
                    }
                }
            }
            Errand::Settle => {
                (change.errand, change.looks) = (Errand::Run, 0);
                self.applications_go_on(500 * MS);
                if !self.db_is_away() && !begun {
                    self.operator_clears_the_way();
                }
                if self.dice.chance(900) {
                    self.start_as(true)?;
                }
            }
        }
        Ok(SOON)
    }

    /// What is paused is resumed, what is parked is redriven or skipped.
    fn operator_clears_the_way(&mut self) {
        self.operator_resumes_all();
        let rows = self.db.shards.iter().flat_map(|s| s.parked.values());
        let mut parked: Vec<_> = rows.map(|(entry, _)| (entry.shard, entry.destination.clone())).collect();
        parked.dedup();
        for (shard, destination) in parked {
            let verb = if destination != NO_ROUTE && self.dice.chance(500) { Verb::Redrive } else { Verb::Skip };
            self.order(&[shard], verb, Some(destination), Selector::default(), None);
        }
    }

    /// Whatever happens, applications insert.
    fn applications_go_on(&mut self, within_us: u64) {
        for (delay, step) in self.applications.goes_on(&mut self.dice, within_us) {
            self.after(delay, Event::Application(step));
        }
    }

    // ---- the command -----------------------------------------------------------------------------------------------

    fn run_begins(&mut self, to: u16) {
        let run = self.reshards.runs.len();
        let ttl = self.limits.settings.lease_ttl_ms * MS;
        self.reshards.runs.push(Run {
            owner: format!("{NAME}{run}"),
            to,
            life: Life::Running,
            stage: Stage::Take,
            waits: false,
            until: self.now + ttl * 5 / 4,
            of: Vec::new(),
            fresh: None,
            alters: 0,
            in_doubt: false,
        });
        self.note(|| format!("{NAME}{run} begins, to {to} shards"));
        self.next_step(run);
        self.after(ttl / 5, Event::Reshard(Step::Renew(run)));
        if self.dice.chance(350) {
            let longest = if self.dice.chance(600) { 25 * MS } else { 400 * MS };
            let delay = self.dice.between((0, longest));
            self.trouble_after(delay, Trouble::ReshardDisturbed(run));
        }
    }

    pub(super) fn reshard_is_disturbed(&mut self, run: usize) {
        if self.reshards.runs[run].life != Life::Running {
            return;
        }
        if self.dice.chance(600) {
            self.reshards.runs[run].life = Life::Killed;
            return;
        }
        let ttl = self.limits.settings.lease_ttl_ms * MS;
        let pause = self.dice.between((ttl / 4, 2 * ttl));
        self.reshards.runs[run].life = Life::Paused;
        self.trouble_after(pause, Trouble::ReshardResume(run));
    }

    pub(super) fn reshard_resumes(&mut self, run: usize) {
        let r = &mut self.reshards.runs[run];
        if r.life == Life::Paused {
            r.life = Life::Running;
            if std::mem::take(&mut r.waits) {
                self.next_step(run);
            }
        }
    }

    fn next_step(&mut self, run: usize) {
        let slow = self.dice.chance(self.scenario.database.slow);
        let delay = if slow { self.dice.between((10 * MS, 200 * MS)) } else { 2 * self.way_us() };
        self.after(delay, Event::Reshard(Step::Next(run)));
    }

    fn goes_to(&mut self, run: usize, stage: Stage) {
        self.reshards.runs[run].stage = stage;
        self.next_step(run);
    }

    pub(super) fn reshard_step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Next(run) => return self.statement(run),
            Step::Renew(run) => self.renews(run),
            Step::Alter(run, until) => self.alter_in_queue(run, until),
        }
        Ok(())
    }

    fn renews(&mut self, run: usize) {
        let r = &self.reshards.runs[run];
        if !r.is_alive() {
            return;
        }
        let round = Round { renew: r.of.clone(), ..r.round() };
        if r.life == Life::Running && !self.db_is_away() && !self.db.round_waits(&round) {
            self.db.lease_round(self.now, &round, || true);
        }
        self.after(self.limits.settings.lease_ttl_ms * MS / 5, Event::Reshard(Step::Renew(run)));
    }

    fn statement(&mut self, run: usize) -> Result<(), String> {
        let r = &mut self.reshards.runs[run];
        let stage = r.stage;
        match r.life {
            Life::Running => {}
            Life::Paused => {
                r.waits = true;
                return Ok(());
            }
            Life::Killed | Life::Stopped => return Ok(()),
        }
        if self.db_is_away() {
            self.run_ends(run, "no database");
            return Ok(());
        }
        let fails = self.dice.chance(self.scenario.database.failure);
        if fails && self.dice.chance(500) {
            self.run_ends(run, "a statement fails");
            return Ok(());
        }
        match stage {
            Stage::Take => self.takes(run),
            Stage::Settled => match self.in_the_way() {
                None => {
                    if self.db.resharding.is_none() && self.dice.chance(150) {
                        self.trouble_after(0, Trouble::StartUnasked);
                    }
                    self.goes_to(run, Stage::Announce);
                }
                Some(what) => self.run_ends(run, &what),
            },
            // All others are transactions that lock the leases.
            _ if self.db.any_lock() => self.next_step(run),
            _ if !self.owns_all(run) => self.run_ends(run, "its leases are another's"),
            Stage::Announce => {
                let r = &mut self.reshards.runs[run];
                r.fresh = self.db.resharding.is_none().then_some(self.db.said_shards);
                self.db.resharding = Some(r.to);
                self.check_flushed()?;
                self.applications_go_on(200 * MS);
                self.goes_to(run, Stage::Alter);
            }
            Stage::Alter => {
                self.db.queue_alter(true);
                let until = self.now + self.dice.between(QUEUES);
                self.after(0, Event::Reshard(Step::Alter(run, until)));
            }
            Stage::Move => {
                let (to, most) = (self.reshards.runs[run].to, self.dice.between((1, 6)) as usize);
                let (moved, all) = self.db.move_rows(to, most);
                self.note(|| format!("rows have another shard: {moved:?}"));
                for (number, shard) in moved {
                    self.ledger.entries[number].row.shard = shard;
                }
                self.goes_to(run, if all { Stage::Finish(to) } else { Stage::Move });
            }
            Stage::Finish(shards) => {
                self.db.end_reshard(shards)?;
                self.note(|| format!("there are {shards} shards"));
                self.run_ends(run, "done");
            }
        }
        if fails && self.reshards.runs[run].life == Life::Running {
            self.run_ends(run, "an answer is lost");
        }
        Ok(())
    }

    fn owns_all(&self, run: usize) -> bool {
        self.db.owns_all(&self.reshards.runs[run].owner, self.now)
            || self.deliberate == Some(Deliberate::ReshardUnowned)
    }

    /// Takes all leases, and looks whether there are relays.
    fn takes(&mut self, run: usize) {
        if self.deliberate == Some(Deliberate::ReshardUnowned) {
            self.goes_to(run, Stage::Settled);
            return;
        }
        let r = &self.reshards.runs[run];
        let (me, until) = (r.owner.clone(), r.until);
        let round = Round { acquire: self.all_shards(), ..r.round() };
        if self.db.round_waits(&round) {
            self.next_step(run);
            return;
        }
        let report = self.db.lease_round(self.now, &round, || true);
        let mine = report.leases.iter().filter(|l| l.owner.as_ref() == Some(&me)).map(|l| (l.shard, l.epoch));
        self.reshards.runs[run].of = mine.collect();
        let other = report.leases.iter().filter(|l| !l.expired).find_map(|l| l.owner.clone().filter(|o| *o != me));
        let alive = self.limits.settings.lease_ttl_ms * MS * 3 / 2;
        let relays = self.db.hears_a_relay(self.now.saturating_sub(alive));
        match other {
            None if !relays && self.reshards.runs[run].of.len() == report.leases.len() => {
                self.goes_to(run, Stage::Settled);
            }
            Some(owner) if owner.starts_with(NAME) && self.now < until => {
                self.releases(run);
                self.next_step(run);
            }
            other => self.run_ends(run, &format!("{other:?} owns a shard, relays run: {relays}")),
        }
    }

    /// Why the number of shards may not be changed.
    fn in_the_way(&self) -> Option<String> {
        if self.deliberate == Some(Deliberate::ReshardUnsettled) {
            return None;
        }
        let proven = self.deliberate != Some(Deliberate::ReshardUnproven);
        if let Some(n) = self.db.shards.iter().position(|s| !s.is_settled(proven) || !s.parked.is_empty()) {
            return Some(format!("shard {n} is not settled"));
        }
        if self.db.resharding.is_some() {
            return None; // Nobody could carry an act out before this has come to its end.
        }
        let open = self.db.acts.iter().any(|row| row.state == ActState::Open);
        (open || !self.db.paused.is_empty()).then(|| "an act is open, or something is paused".to_owned())
    }

    /// The expression is changed as soon as no transaction stands in the way; that does not need the client to live.
    fn alter_in_queue(&mut self, run: usize, until: u64) {
        let r = &self.reshards.runs[run];
        let (to, gone) = (r.to, !r.is_alive() && self.dice.chance(30));
        let awaits = self.deliberate != Some(Deliberate::ReshardNotAwaited);
        let done = !self.db_is_away() && !gone && self.db.alter(to, awaits);
        if !done && !gone && !self.db_is_away() && self.now < until {
            self.after(2 * MS, Event::Reshard(Step::Alter(run, until)));
            return;
        }
        self.db.queue_alter(false);
        let lost = self.dice.chance(2 * self.scenario.database.unknown);
        self.note(|| format!("the expression for {to} shards: changed {done}, answer lost {lost}"));
        let rest = self.dice.between(RESTS);
        let r = &mut self.reshards.runs[run];
        r.alters += 1;
        if done && !lost {
            self.goes_to(run, Stage::Move);
            return;
        }
        r.in_doubt |= lost;
        // The same statement fails where it would take away once more what the first one has.
        let fails = r.alters >= ALTERS || (r.in_doubt && done && self.dice.chance(700));
        if !fails {
            self.after(rest, Event::Reshard(Step::Next(run)));
            return;
        }
        let r = &self.reshards.runs[run];
        let unchanged = !r.in_doubt || self.deliberate == Some(Deliberate::ReshardTakenBack);
        match r.fresh.filter(|_| unchanged) {
            Some(before) => self.goes_to(run, Stage::Finish(before)), // Nothing has changed: relays may start again.
            None if r.life == Life::Running => self.run_ends(run, "the expression was not changed for certain"),
            // It would end as soon as it goes on; until they run out, nobody gets its leases.
            None => self.reshards.runs[run].life = Life::Killed,
        }
    }

    fn releases(&mut self, run: usize) {
        let r = &mut self.reshards.runs[run];
        let round = Round { release: std::mem::take(&mut r.of), leave: true, ..r.round() };
        if !self.db_is_away() && !self.db.round_waits(&round) {
            self.db.lease_round(self.now, &round, || true);
        }
    }

    fn run_ends(&mut self, run: usize, why: &str) {
        let owner = self.reshards.runs[run].owner.clone();
        self.note(|| format!("{owner} ends: {why}"));
        self.reshards.runs[run].life = Life::Stopped;
        self.releases(run);
    }
}
