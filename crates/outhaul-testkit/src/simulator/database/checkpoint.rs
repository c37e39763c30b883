//! The transaction that moves rows, and what must be true of it.

use std::sync::Arc;

use outhaul_core::act::Verb;
use outhaul_core::checkpoint::{Checkpoint, ShardCheckpoint, ShardOutcome};
use outhaul_core::chunk::{self, DestinationNames as _};
use outhaul_core::destination::{DestinationSet, NO_ROUTE};
use outhaul_core::message::{Defect, Message, Position, ShardId};
use outhaul_core::parked::ParkedWrite;
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::{Run, Runs};

use super::{Database, ReceiptRecord};
use crate::simulator::known::renamed;
use crate::simulator::ledger::{Ledger, MessageNumber, number_of};

/// A checkpoint that committed: its outcomes, and the messages with new receipts by destination.
#[derive(Debug)]
pub(in crate::simulator) struct Applied {
    /// Messages that were moved, and where their mover's routes named.
    pub(in crate::simulator) moved: Vec<(MessageNumber, DestinationSet)>,
    pub(in crate::simulator) outcomes: Vec<ShardOutcome>,
    pub(in crate::simulator) receipts: Vec<(usize, MessageNumber)>,
}

impl Database {
    /// Commits a checkpoint. The error is a rule that was broken.
    pub(in crate::simulator) fn apply(&mut self, c: &Checkpoint, ledger: &Ledger) -> Result<Applied, String> {
        let mut applied = Applied { moved: Vec::new(), outcomes: Vec::new(), receipts: Vec::new() };
        for s in &c.shards {
            let outcome = self.judge(c, s)?;
            if outcome == ShardOutcome::Written {
                self.write(c, s, ledger, &mut applied)
                    .map_err(|why| format!("checkpoint of shard {}: {why}", s.shard))?;
            }
            applied.outcomes.push(outcome);
        }
        Ok(applied)
    }

    fn judge(&self, c: &Checkpoint, s: &ShardCheckpoint) -> Result<ShardOutcome, String> {
        let fenced = self.holds_until(&c.owner, s.shard, s.epoch).is_none();
        if fenced && !self.epoch_unchecked {
            return Ok(ShardOutcome::Fenced);
        }
        let tables = self.shard(s.shard);
        let log_end = tables.receipts.last().map_or(Position(0), |r| r.log_end);
        let mut as_left = tables.receipts.len() as u64 == s.number && log_end == s.base;
        // Rows are deleted by `seq` and id, and the count must be right.
        as_left &= s.moved.iter().all(|m| self.outbox.get(&m.seq).is_some_and(|r| r.id == m.id && r.shard == s.shard));
        if !as_left {
            return Ok(ShardOutcome::Mismatch);
        }
        if fenced {
            return Err(format!("{} is fenced, and its checkpoint of shard {} is written", c.owner, s.shard));
        }
        if let Some(to) = self.resharding {
            return Err(format!("{} writes to shard {} while all is changed to {to} shards", c.owner, s.shard));
        }
        Ok(ShardOutcome::Written)
    }

    /// What a run names must have been read: no open row, and no row of this shard that is not moved with it.
    fn check_runs(&self, s: &ShardCheckpoint) -> Result<(), String> {
        if self.restarted {
            return Ok(()); // A number that was read may be another row's by now: stores compare the ids as well.
        }
        let inside = |seq: u64| s.runs.iter().any(|r| r.first <= seq && seq <= r.last);
        if let Some(row) = self.open.values().flatten().find(|r| inside(r.seq.0)) {
            return Err(format!("a range to delete covers {} of an open transaction", row.seq));
        }
        let stays = |r: &&outhaul_core::message::Row| {
            r.shard == s.shard && inside(r.seq.0) && s.moved.iter().all(|m| m.seq != r.seq)
        };
        if let Some(row) = self.outbox.values().find(stays) {
            return Err(format!("a range to delete covers {}, which is not moved", row.seq));
        }
        if s.runs.windows(2).any(|w| w[0].last >= w[1].first) {
            return Err("ranges to delete are not rising".into());
        }
        Ok(())
    }

    fn write(
        &mut self,
        c: &Checkpoint,
        s: &ShardCheckpoint,
        ledger: &Ledger,
        applied: &mut Applied,
    ) -> Result<(), String> {
        self.check_runs(s)?;
        if s.moved.iter().enumerate().any(|(n, m)| m.position.0 != s.base.0 + n as u64 || m.shard != s.shard) {
            return Err("positions are not consecutive".into());
        }
        for m in &s.moved {
            self.outbox.remove(&m.seq);
            let number = number_of(&m.id).ok_or("a row that nobody wrote is moved")?;
            if self.places.insert(number, (s.shard, m.position)).is_some() {
                return Err(format!("{} is moved a second time", m.id));
            }
        }
        let moved = self.packed(c, s)?;
        applied.moved.extend(moved.iter().filter_map(|m| Some((number_of(&m.id)?, m.destinations))));
        let receipts = self.receipts_stored(s)?;
        self.write_acts(s)?;
        self.drop_lanes(s);
        let tables = &mut self.shards[usize::from(s.shard.0)];
        tables.log.extend(moved);
        for write in &s.parked {
            tables.park(write, s.log_end())?;
        }
        tables.receipts.push(ReceiptRecord { epoch: s.epoch, log_end: s.log_end(), row: receipts });
        tables.proven.insert(s.epoch);
        self.check_dropped(c, s)?;
        self.check_lanes(c, s.shard, ledger, applied)?;
        self.check_parked(s)
    }

    /// A parked row goes only for a receipt, or since an operator says so. A message without its content is parked before its row is deleted: nobody
    /// could park it afterwards.
    fn check_parked(&self, s: &ShardCheckpoint) -> Result<(), String> {
        let tables = self.shard(s.shard);
        // The destination may have lost it again meanwhile: then its receipt is in the row, and does not count.
        let answered = |destination: &str, position: Position| {
            let of_lane = s.receipts.lanes.iter().filter(|(state, _)| state.destination == destination);
            of_lane.flat_map(|(_, receipts)| receipts).any(|r| r.position == position)
        };
        let told = |destination: &str, position: Position| {
            let of_lane = s.receipts.acts.iter().filter(|t| t.destination == destination);
            of_lane
                .filter(|t| matches!(t.verb, Verb::Skip | Verb::Drop) || destination == NO_ROUTE)
                .any(|t| t.positions.contains(position.0))
        };
        for write in &s.parked {
            if let ParkedWrite::Remove { destination, position, .. } = write
                && !told(destination, *position)
                && !answered(destination, *position)
                && !self.names.iter().zip(&tables.receipted).any(|(n, r)| n == destination && r.contains(position.0))
            {
                return Err(format!("a parked row at {position} of {destination} is removed without a receipt"));
            }
        }
        let content_is_lost = |m: &&Arc<Message>| matches!(m.defect, Some(Defect::TooLarge { .. }));
        for m in tables.log.iter().skip(s.base.0 as usize).filter(content_is_lost) {
            let routed = m.destinations.iter().map(|d| self.names[usize::from(d.0)].as_str());
            let unrouted = m.destinations.is_empty().then_some(NO_ROUTE);
            if let Some(name) =
                routed.chain(unrouted).find(|n| !tables.parked.contains_key(&((*n).to_owned(), m.position)))
            {
                return Err(format!("{} is moved without its content, and is not parked at {name}", m.id));
            }
        }
        Ok(())
    }

    /// What the log holds afterwards: the rows themselves, or what is left of them after the codec.
    fn packed(&self, c: &Checkpoint, s: &ShardCheckpoint) -> Result<Vec<Arc<Message>>, String> {
        let number = |d| self.names.index(c.destinations.name(d));
        let moved: Vec<Arc<Message>> = s.moved.iter().map(|m| renamed(m, number)).collect();
        if !self.encoded {
            return Ok(moved);
        }
        let mut messages = Vec::new();
        for chunk in s.chunks(&c.destinations, 2_000) {
            let unpacked = chunk::decode(chunk.codec, &chunk.bytes, s.shard, chunk.base, &self.names);
            messages.extend(unpacked.map_err(|e| format!("a chunk cannot be read: {e}"))?.into_iter().map(Arc::new));
        }
        (messages == moved).then_some(messages).ok_or_else(|| "a chunk reads otherwise than it was written".into())
    }

    fn receipts_stored(&self, s: &ShardCheckpoint) -> Result<ReceiptRow, String> {
        if !self.encoded {
            return Ok(s.receipts.clone());
        }
        let row = ReceiptRow::decode(&s.receipts.encode()).map_err(|e| format!("receipts cannot be read: {e}"))?;
        (row == s.receipts).then_some(row).ok_or_else(|| "receipts read otherwise than they were written".into())
    }

    /// Every position that a lane calls settled must be delivered, parked or not routed to it, and stay settled.
    fn check_lanes(
        &mut self,
        c: &Checkpoint,
        shard: ShardId,
        ledger: &Ledger,
        applied: &mut Applied,
    ) -> Result<(), String> {
        let dropped = c.shards.iter().find(|s| s.shard == shard).map(|s| self.dropped_by(s)).unwrap_or_default();
        let tables = &mut self.shards[usize::from(shard.0)];
        let Some((newest, older)) = tables.receipts.split_last() else { return Ok(()) };
        let before = older.last().into_iter().flat_map(|r| r.row.lanes.iter().map(|(s, _)| &s.destination));
        if let Some(name) = before
            .chain(c.destinations.iter())
            .find(|n| newest.row.lanes.iter().all(|(s, _)| s.destination != **n) && !dropped.contains(n))
        {
            return Err(format!("lane {name} is not in the receipt row"));
        }
        for (state, receipts) in &newest.row.lanes {
            let name = &state.destination;
            let d =
                self.names.index(name).map(|d| usize::from(d.0)).ok_or("a lane that nobody configured is stored")?;
            let at = |p: u64| usize::try_from(p).ok().and_then(|p| tables.log.get(p));
            for receipt in receipts {
                let p = receipt.position.0;
                let message =
                    at(p).ok_or_else(|| format!("a receipt of {name} at {p}, where the log has not got to"))?;
                let number = number_of(&message.id).unwrap_or(usize::MAX);
                if ledger.entries.get(number).is_none_or(|e| e.at[d].stored + e.at[d].forgotten == 0) {
                    return Err(format!("a receipt of {name} for {}, which it does not have", message.id));
                }
                tables.receipted[d].insert(p);
                applied.receipts.push((d, number));
            }
            let mut settled = state.ahead.clone();
            if let Some(last) = state.cursor.0.checked_sub(1) {
                settled.insert_run(Run { first: 0, last });
            }
            if settled.last().is_some_and(|last| last >= newest.log_end.0) {
                return Err(format!("lane {name} calls positions settled where the log has not got to"));
            }
            let mut open_again = tables.settled[d].clone();
            settled.iter().for_each(|r| open_again.remove_run(r));
            for p in open_again.iter().flat_map(|r| r.first..=r.last) {
                let number = at(p).and_then(|m| number_of(&m.id)).unwrap_or(usize::MAX);
                if ledger.entries.get(number).is_none_or(|e| e.at[d].forgotten == 0) {
                    return Err(format!("lane {name} forgets positions that it had settled"));
                }
            }
            // A receipt of something that is not settled does not count: it is delivered again, with another.
            let void = receipts.iter().map(|r| r.position.0).filter(|p| !settled.contains(*p));
            for p in void.chain(open_again.iter().flat_map(|r| r.first..=r.last)) {
                tables.receipted[d].remove(p);
            }
            let mut new: Runs = settled.clone();
            tables.settled[d].iter().for_each(|r| new.remove_run(r));
            for p in new.iter().flat_map(|r| r.first..=r.last) {
                let message = at(p).ok_or("a settled position is not in the log")?;
                let routed = message.destinations.iter().any(|i| usize::from(i.0) == d);
                let parked = tables.parked.contains_key(&(name.clone(), Position(p)));
                let given_up = p < tables.dropped_below.get(&d).copied().unwrap_or_default();
                if routed && !parked && !given_up && !tables.receipted[d].contains(p) {
                    return Err(format!(
                        "lane {name} calls {} settled, which is neither delivered nor parked",
                        message.id
                    ));
                }
            }
            tables.settled[d] = settled;
        }
        Ok(())
    }

    /// Whether a checkpoint was applied, by number and epoch of its receipt rows.
    pub(in crate::simulator) fn applied(&self, c: &Checkpoint) -> Vec<Option<ShardOutcome>> {
        let answer = |s: &ShardCheckpoint| {
            let receipts = &self.shard(s.shard).receipts;
            let row = usize::try_from(s.number).ok().and_then(|n| receipts.get(n));
            if row.is_some_and(|r| r.epoch == s.epoch) {
                return Some(ShardOutcome::Written);
            }
            self.holds_until(&c.owner, s.shard, s.epoch).is_none().then_some(ShardOutcome::Fenced)
        };
        c.shards.iter().map(answer).collect()
    }
}

impl super::Shard {
    fn park(&mut self, write: &ParkedWrite, log_end: Position) -> Result<(), String> {
        if write.position() >= log_end {
            return Err(format!("a parked row at {}, where the log has not got to", write.position()));
        }
        match write {
            ParkedWrite::Insert { entry, message } => {
                let key = (entry.destination.clone(), entry.position);
                if self.log.get(entry.position.0 as usize).is_none_or(|m| m.id != message.id) {
                    return Err(format!("a parked row for {} does not belong to its position", message.id));
                }
                if self.parked.insert(key, (entry.clone(), message.clone())).is_some() {
                    return Err(format!("{} is parked a second time: {entry:?}", message.id));
                }
            }
            ParkedWrite::Update(entry) | ParkedWrite::Replace { entry, .. } => {
                let key = (entry.destination.clone(), entry.position);
                let row = self.parked.get_mut(&key).ok_or("a parked row that is not there is changed")?;
                let before = std::mem::replace(&mut row.0, entry.clone());
                if entry.error_code.is_empty() {
                    (row.0.error_code, row.0.error_text) = (before.error_code, before.error_text);
                }
                if let ParkedWrite::Replace { message, .. } = write {
                    row.1 = message.clone();
                }
            }
            ParkedWrite::Remove { destination, position, .. } => {
                let key = (destination.clone(), *position);
                self.parked.remove(&key).ok_or("a parked row that is not there is removed")?;
            }
        }
        Ok(())
    }
}
