//! What must be true of a replay.

use std::collections::BTreeSet;
use std::sync::Arc;

use outhaul_core::lane::SendBatch;
use outhaul_core::message::{Message, Position};
use outhaul_core::replay::Progress;

use super::{UnderWay, copy_of};
use crate::simulator::ledger::{MessageNumber, number_of};
use crate::simulator::scenario::SECOND;
use crate::simulator::sink::Memory;
use crate::simulator::world::World;

impl World {
    /// A batch begins: it must be of messages of the log that are meant, in their slot, and no faster than was asked for.
    pub(super) fn check_copies(&mut self, runner: usize, batch: &SendBatch) -> Result<(), String> {
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
    pub(super) fn copy_is_stored(&mut self, place: usize, number: MessageNumber) -> Result<(), String> {
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
    pub(super) fn check_kept(&self, place: usize, progress: &Progress) -> Result<(), String> {
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
}
