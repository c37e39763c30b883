//! The rules that a process must keep while it runs.

use std::sync::Arc;

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Event as Told;
use outhaul_core::lane::SendBatch;
use outhaul_core::message::Message;
use outhaul_core::receipt::Outcome;

use super::ledger::number_of;
use super::process::Process;
use super::scenario::MS;
use super::world::{Lane, World};

impl World {
    /// A batch begins: it must be of committed messages that are routed there and not settled, under a lease that
    /// outlasts the limit, in an epoch that has proven itself.
    pub(super) fn check_send(&self, process: usize, lane: Lane, batch: &SendBatch) -> Result<(), String> {
        let p = &self.processes[process];
        let (d, owner) = (usize::from(lane.destination.0), &p.owner);
        let config = &self.limits.destinations[d];
        if batch.messages.is_empty() || batch.messages.len() > config.limits.max_batch {
            return Err(format!("{owner} sends a batch of {}", batch.messages.len()));
        }
        if self.now >= self.leases_shaken_until {
            let until = self.db.holds_until(owner, lane.shard, lane.epoch);
            if until.is_none_or(|until| self.now + batch.limit_ms * MS >= until) {
                return Err(format!(
                    "{owner} sends for shard {} in epoch {} with a limit of {} ms, but holds it until {until:?}",
                    lane.shard, lane.epoch, batch.limit_ms
                ));
            }
            if !self.db.is_proven(lane.shard, lane.epoch) && !self.has_been_restored {
                return Err(format!("{owner} sends before a checkpoint of epoch {} has committed", lane.epoch));
            }
            if self.is_paused(lane.shard, &config.name) {
                return Err(format!("{owner} sends to {} for shard {}, which is paused", config.name, lane.shard));
            }
        }
        let acknowledged = p.acknowledged.get(&(lane.shard, lane.epoch));
        for (n, m) in batch.messages.iter().enumerate() {
            let number = self.ledger.check_sent(m, lane.destination, self.now)?;
            if self.has_been_restored {
                continue; // What the database has forgotten is sent again, under the positions that it gives now.
            }
            // What the destination has lost of it is sent again, whatever was said of it before.
            let forgotten = self.ledger.entries[number].at[d].forgotten > 0;
            if self.db.is_receipted(number, d) && !forgotten {
                return Err(format!("{owner} sends {} to {}, whose receipt is stored", m.id, config.name));
            }
            if acknowledged.is_some_and(|a| a.contains(&(lane.destination.0, number))) && !forgotten {
                return Err(format!("{owner} sends {} to {} again, after it was acknowledged", m.id, config.name));
            }
            if config.slotting.slot(m) != batch.slot {
                return Err(format!("{} is sent in slot {}, which is not its own", m.id, batch.slot));
            }
            // Where a dead message gives up the order of its key, a redriven one comes after later ones; and one that was
            // given another key, or had no route, finds its place among what is parked only.
            let in_order = (self.ledger.blocks_key(lane.destination) || self.scenario.acts == (0, 0))
                && !self.ledger.entries[number].at[d].rekeyed
                && !self.ledger.entries[number].at[d].rerouted;
            if in_order
                && m.key.is_some()
                && batch.messages[..n].iter().any(|b| b.key == m.key && b.position >= m.position)
            {
                return Err(format!("{} stands behind a later message of its key in one batch", m.id));
            }
            let moved_as = self.db.place(number);
            if !self.limits.settings.send_ahead && moved_as.is_none() {
                return Err(format!("{} is sent before it was moved", m.id));
            }
            if moved_as.is_some_and(|at| at != (lane.shard, m.position)) {
                return Err(format!("{} is sent as position {}, but moved to {moved_as:?}", m.id, m.position));
            }
        }
        Ok(())
    }

    /// A process is told what became of a batch.
    pub(super) fn note_outcomes(
        &mut self,
        process: usize,
        lane: Lane,
        began: u64,
        messages: &[Arc<Message>],
        outcomes: &[Outcome],
    ) {
        let d = usize::from(lane.destination.0);
        if outcomes.iter().any(|o| matches!(o, Outcome::Delivered(_))) {
            self.sinks[d].acknowledged_at = Some(self.now);
        }
        let took_others = self.sinks[d].acknowledged_at.is_some_and(|at| at >= began);
        for (n, m) in messages.iter().enumerate() {
            let Some(number) = number_of(&m.id) else { continue };
            match outcomes.get(n) {
                Some(Outcome::Delivered(_)) => {
                    let p = &mut self.processes[process];
                    if p.owned.get(&lane.shard) == Some(&lane.epoch) {
                        p.acknowledged
                            .entry((lane.shard, lane.epoch))
                            .or_default()
                            .insert((lane.destination.0, number));
                    }
                }
                Some(Outcome::DestinationDown(_) | Outcome::Held { .. } | Outcome::Rejected(_)) => {}
                // Silence says something about a message only if the destination took others meanwhile.
                Some(Outcome::Unknown(_)) | None if !took_others => {}
                Some(Outcome::Retry { .. } | Outcome::Unknown(_)) | None => {
                    self.ledger.entries[number].at[d].failures += 1;
                }
            }
        }
    }

    /// A process says what happened.
    pub(super) fn hear(&mut self, process: usize, told: &Told) -> Result<(), String> {
        let p = &mut self.processes[process];
        match told {
            Told::Acquired { shard, epoch } => {
                // After a restore the number may have been used before.
                p.owned.insert(*shard, *epoch);
                p.acknowledged.remove(&(*shard, *epoch));
            }
            Told::Released { shard } => {
                let Some(epoch) = p.owned.remove(shard) else { return Ok(()) }; // It had let go of it.
                if p.sends(*shard, epoch) && !self.has_been_restored {
                    return Err(format!("{} has released shard {shard} with sends under way", p.owner));
                }
                let given_up: Vec<_> = p.acknowledged.keys().filter(|(s, _)| s == shard).copied().collect();
                for (d, number) in given_up.into_iter().filter_map(|k| p.acknowledged.remove(&k)).flatten() {
                    // Only the newest epoch is released; older ones were fenced and removed.
                    let forgotten = self.ledger.entries[number].at[usize::from(d)].forgotten > 0;
                    if !self.db.is_receipted(number, usize::from(d))
                        && !forgotten
                        && self.now >= self.leases_shaken_until
                    {
                        return Err(format!("shard {shard} is released, but the receipt of m{number} is not stored"));
                    }
                }
            }
            Told::Mismatch { shard } if !self.has_been_truncated && !self.has_been_restored => {
                return Err(format!("{} finds shard {shard} other than it left it", p.owner));
            }
            Told::Fenced { shard, .. } | Told::Mismatch { shard } => {
                p.owned.remove(shard);
                self.has_been_fenced = true;
                let given_up: Vec<_> = p.acknowledged.keys().filter(|(s, _)| s == shard).copied().collect();
                given_up.iter().for_each(|k| drop(p.acknowledged.remove(k)));
            }
            Told::LogWentBack { shard, .. } if !self.has_been_restored => {
                return Err(format!("the log of shard {shard} has gone back"));
            }
            Told::LogGap { from, to, destination, .. } if !self.has_been_restored => {
                return Err(format!("destination {destination} finds a gap in the log, {from} to {to}"));
            }
            _ => {}
        }
        Ok(())
    }

    /// Memory and queues stay within their limits.
    pub(super) fn check_bounds(&self, process: &Process) -> Result<(), String> {
        let s = &self.limits.settings;
        // A read may be under way when the limit is reached, and a rescan with it; a row's own weight is above 200.
        const ROW: usize = 2_000;
        let most = 4 * (s.unmoved_bytes + s.poll_bytes + s.poll_rows as usize * 300 + s.window_bytes + ROW);
        for shard in process.view() {
            if shard.memory_bytes > most {
                return Err(format!("{} holds {} bytes of shard {}", process.owner, shard.memory_bytes, shard.shard));
            }
            for lane in &shard.lanes {
                let limits: &LaneLimits = &self.limits.destinations[usize::from(lane.destination.0)].limits;
                // What waits where a slot is down, or was just now, is limited by the span alone.
                let span = lane.next.0.saturating_sub(lane.cursor.0);
                let queued = lane.queued.saturating_sub(lane.taken);
                if (queued > limits.max_queued && queued as u64 > span) || span > limits.max_span {
                    return Err(format!("{} has a lane beyond its limits: {lane:?}", process.owner));
                }
            }
        }
        Ok(())
    }
}
