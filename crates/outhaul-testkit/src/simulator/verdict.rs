//! The verdict: after all troubles everything that was committed must be settled, and nothing may be left behind.

use outhaul_core::act::ActState;
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::instance::Input;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState};

use super::database::Shard;
use super::ledger::Written;
use super::process::Life;
use super::scenario::SECOND;
use super::sink::Memory;
use super::world::World;

/// A drain in a world without troubles takes at most this long.
const DRAIN_LIMIT: u64 = 60 * SECOND;
/// What the tables say is known to every instance after this long.
const REST: u64 = 4 * SECOND;
/// Runs of numbers that an instance may know of when nothing is left to do.
const RUNS_AT_REST: usize = 2;

impl World {
    /// What still waits, by the tables. None: everything is settled.
    pub(super) fn unsettled(&self) -> Option<String> {
        if self.db.hot_rows() > 0 {
            return Some(format!("{} rows in the outbox", self.db.hot_rows()));
        }
        if let Some(row) = self.db.acts.iter().find(|row| row.state == ActState::Open) {
            return Some(format!("act {:?}", row.act));
        }
        if let Some(row) = self.db.acts.iter().find(|row| row.state == ActState::Unfinished) {
            return Some(format!("replay {:?}", row.act));
        }
        if let Some(paused) = self.db.paused.first() {
            return Some(format!("{paused:?} is paused"));
        }
        for (n, shard) in self.db.shards.iter().enumerate() {
            let end = Position(shard.log.len() as u64);
            let cursors = shard.settled_to();
            if let Some((name, cursor)) = cursors.iter().find(|(_, cursor)| *cursor != end) {
                return Some(format!("shard {n}: lane {name} at {cursor} of {end}"));
            }
            if end > Position(0) && cursors.len() != self.limits.destinations.len() {
                return Some(format!("shard {n} has no lanes"));
            }
            if let Some((entry, _)) = shard.parked.values().find(|(entry, _)| !self.may_stay(shard, entry)) {
                return Some(format!("shard {n}: {entry:?}"));
            }
        }
        None
    }

    /// Whether a parked row may stay for ever: dead, or behind a dead one of its key.
    fn may_stay(&self, shard: &Shard, entry: &ParkedEntry) -> bool {
        let before = || {
            let of_lane = shard.parked.values().filter(|(e, _)| e.destination == entry.destination);
            of_lane
                .map(|(e, _)| e)
                .any(|e| e.key == entry.key && e.position < entry.position && e.state == ParkedState::Dead)
        };
        match entry.state {
            ParkedState::Dead => true,
            ParkedState::Waiting | ParkedState::Retrying => {
                let config = self.limits.destinations.iter().find(|d| d.name == entry.destination);
                config.is_some_and(|d| d.limits.block_key) && entry.key.is_some() && before()
            }
        }
    }

    /// Judges what the run came to, stops everything, and judges again.
    pub(super) fn end_cleanly(&mut self) -> Result<(), String> {
        self.check_messages()?;
        let rested_at = self.now + REST;
        while self.now < rested_at {
            self.turn()?;
        }
        self.check_at_rest()?;
        for process in 0..self.processes.len() {
            if self.processes[process].life == Life::Running {
                self.processes[process].drains = true;
                self.give(process, Input::Drain)?;
            }
        }
        let give_up_at = self.now + DRAIN_LIMIT;
        while self.processes.iter().any(super::process::Process::is_alive) {
            self.turn()?;
            if self.now > give_up_at {
                return Err("a drain does not come to an end".into());
            }
        }
        if let Some(what) = self.unsettled() {
            return Err(format!("a drain has unsettled something: {what}"));
        }
        if let Some(n) = self.db.leases.iter().position(|l| l.owner.is_some() && l.expires_at > self.now) {
            return Err(format!("shard {n} is held by {:?} after all have stopped", self.db.leases[n].owner));
        }
        let (count, first) = self.ledger.duplicates();
        if self.scenario.forbids_duplicates() && !self.has_been_fenced && count > 0 {
            return Err(format!("{count} duplicates though nothing failed, the first: {}", first.unwrap_or_default()));
        }
        self.check_messages()
    }

    /// A process has stopped because it found nothing left of what was committed before its start.
    pub(super) fn check_emptied(&self, since: u64) -> Result<(), String> {
        for (number, entry) in self.ledger.entries.iter().enumerate() {
            if entry.written != Written::Committed || entry.committed_at >= since {
                continue;
            }
            // Whether it was due at the start is known as well as the database's clock.
            if entry.due.is_some_and(|due| due + SECOND >= since) {
                continue;
            }
            let Some((shard, position)) = self.db.place(number) else {
                return Err(format!("a process has stopped as if all were settled, m{number} is not moved"));
            };
            for destination in entry.destinations.iter() {
                let name = &self.limits.destinations[usize::from(destination.0)].name;
                let sink = &self.sinks[usize::from(destination.0)];
                let flushed = || sink.held.get(..sink.flushed).is_some_and(|held| held.contains(&number));
                let settled = self.db.is_receipted(number, usize::from(destination.0))
                    && (sink.memory != Memory::FlushedLater || flushed());
                let skipped = entry.at[usize::from(destination.0)].skipped;
                if !settled && !skipped && self.parked(shard, name, position).is_none() {
                    return Err(format!("a process has stopped as if all were settled, m{number} is not at {name}"));
                }
            }
        }
        Ok(())
    }

    fn check_messages(&self) -> Result<(), String> {
        if !self.has_been_restored {
            self.check_order_held()?;
        }
        for number in 0..self.ledger.entries.len() {
            self.check_message(number)?;
        }
        Ok(())
    }

    /// A committed message is delivered, or parked with its reason, at every destination that its topic names.
    fn check_message(&self, number: usize) -> Result<(), String> {
        let entry = &self.ledger.entries[number];
        match entry.written {
            Written::Open => return Err(format!("m{number} is still in an open transaction")),
            Written::RolledBack if self.db.place(number).is_some() => {
                return Err(format!("m{number} was rolled back, and is in the log"));
            }
            Written::Cancelled if self.db.place(number).is_some() => {
                return Err(format!("m{number} was cancelled, and is in the log"));
            }
            Written::Cancelled if entry.at.iter().any(|at| at.stored > 0) => {
                return Err(format!("m{number} was cancelled, and is delivered"));
            }
            Written::RolledBack | Written::Lost | Written::Cancelled => return Ok(()),
            Written::Committed => {}
        }
        let Some((shard, position)) = self.db.place(number) else { return Err(format!("m{number} is not in the log")) };
        let message = self.db.read_log(shard, position, 1);
        if message
            .first()
            .is_none_or(|m| m.seq != entry.row.seq || m.payload != entry.row.payload || m.key != entry.row.key)
        {
            return Err(format!("m{number} is in the log otherwise than it was written"));
        }
        if entry.destinations.is_empty() {
            return match self.parked(shard, NO_ROUTE, position) {
                Some(p) if p.state == ParkedState::Dead && !p.error_code.is_empty() && !entry.skipped_unrouted => {
                    Ok(())
                }
                None if entry.skipped_unrouted => Ok(()),
                other => Err(format!("m{number} has no route, and is parked as {other:?}")),
            };
        }
        for destination in entry.destinations.iter() {
            let d = usize::from(destination.0);
            let name = &self.limits.destinations[d].name;
            let parked = self.parked(shard, name, position);
            // What was acknowledged and forgotten is sent again; it may be parked then, like anything else.
            let sent_again = parked.is_some() && entry.at[d].forgotten > 0;
            let receipt = self.db.is_receipted(number, d) && !sent_again;
            if entry.at[d].skipped {
                match parked {
                    None => continue,
                    Some(p) => return Err(format!("m{number} at {name} was skipped, and is parked: {p:?}")),
                }
            }
            if let Some(p) = parked.filter(|p| p.state == ParkedState::Dead)
                && self.ledger.is_untried(number, d)
            {
                return Err(format!("m{number} at {name} was redriven, and is dead without a try: {p:?}"));
            }
            match (&parked, receipt) {
                (None, true) if entry.at[d].stored > 0 => {}
                (Some(p), false) if p.error_code.is_empty() => {
                    return Err(format!("m{number} is parked at {name} without a reason"));
                }
                (Some(p), false) if p.state == ParkedState::Dead && self.ledger.may_be_dead(number, destination) => {}
                (Some(p), false) if p.state == ParkedState::Waiting => {}
                (Some(p), false) if p.state == ParkedState::Retrying && self.may_stay(self.db.shard(shard), p) => {}
                _ => {
                    let stored = entry.at[d].stored;
                    return Err(format!(
                        "m{number} at {name}: stored {stored} times, receipt {receipt}, parked {parked:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn parked(&self, shard: ShardId, destination: &str, position: Position) -> Option<&ParkedEntry> {
        self.db.shard(shard).parked.get(&(destination.to_owned(), position)).map(|(entry, _)| entry)
    }

    /// Instances with nothing to do hold nothing, and what they show is what the tables say.
    fn check_at_rest(&self) -> Result<(), String> {
        for p in self.processes.iter().filter(|p| p.life == Life::Running) {
            for shard in p.view().into_iter().filter(|s| s.running) {
                let tables = self.db.shard(shard.shard);
                if shard.unmoved_rows > 0 || shard.log_end.0 != tables.log.len() as u64 {
                    return Err(format!("{} shows {shard:?} at rest", p.owner));
                }
                for lane in &shard.lanes {
                    let name = &self.limits.destinations[usize::from(lane.destination.0)].name;
                    let of = |state| {
                        let of_lane =
                            tables.parked.values().filter(|(e, _)| e.destination == *name && e.state == state);
                        of_lane.count() as u64
                    };
                    let shown = (lane.parked.retrying, lane.parked.waiting, lane.parked.dead);
                    let stored = (of(ParkedState::Retrying), of(ParkedState::Waiting), of(ParkedState::Dead));
                    if lane.queued > 0 || lane.in_flight > 0 || shown != stored {
                        return Err(format!("{} shows {lane:?} at rest, parked in the tables: {stored:?}", p.owner));
                    }
                }
            }
            let runs = p.instance.intake_runs();
            // One that owns nothing reads nothing, and so learns nothing that lets it forget. Numbers that a sequence left
            // behind when it started again are kept until it has passed them.
            if runs > RUNS_AT_REST && !self.db.restarted && p.instance.view().iter().any(|s| s.running) {
                return Err(format!("{} knows {runs} runs of numbers at rest", p.owner));
            }
        }
        Ok(())
    }
}
