//! The tables of acts and of what is paused, and what selects parked rows.

use std::sync::Arc;

use outhaul_core::act::{Act, ActNumber, ActState, ActWrite, FoundParked, PauseWrite, Selector, Verb};
use outhaul_core::checkpoint::{Checkpoint, ShardCheckpoint};
use outhaul_core::message::{Epoch, Message, Position, ShardId};
use outhaul_core::replay::Progress;
use outhaul_core::runs::Runs;

use super::Database;

/// A row of the table of acts.
#[derive(Clone, Debug)]
pub(in crate::simulator) struct ActRow {
    pub(in crate::simulator) act: Act,
    pub(in crate::simulator) state: ActState,
    /// When it was ordered.
    pub(in crate::simulator) at: u64,
    /// Who carries it out, where that is a command.
    pub(in crate::simulator) note: String,
}

impl Database {
    pub(in crate::simulator) fn open_acts(&self, shards: &[(ShardId, Epoch)]) -> Vec<Act> {
        let wanted = |row: &&ActRow| row.state == ActState::Open && shards.iter().any(|(s, _)| *s == row.act.shard);
        self.acts.iter().filter(wanted).map(|row| row.act.clone()).collect()
    }

    pub(in crate::simulator) fn take_replay(&mut self, number: ActNumber, runner: &str) -> bool {
        let of_replay = |row: &&mut ActRow| row.act.number == number && row.state == ActState::Unfinished;
        self.acts.iter_mut().filter(of_replay).map(|row| runner.clone_into(&mut row.note)).count() > 0
    }

    /// Stores how far a replay has got, if it is still this process that carries it out. The same end may be stored twice.
    pub(in crate::simulator) fn keep_replay(&mut self, number: ActNumber, runner: &str, p: &Progress) -> bool {
        let Some(row) = self.acts.iter_mut().find(|r| r.act.number == number && r.act.shard == p.shard) else {
            return false;
        };
        let is_runner = row.note == runner || self.runner_unchecked;
        let same = p.ended && (p.next, p.done, p.left) == (row.act.next, row.act.done, row.act.left);
        let may = if row.state == ActState::Unfinished { is_runner } else { row.state == ActState::Done && same };
        if may {
            row.state = if p.ended { ActState::Done } else { ActState::Unfinished };
            (row.act.next, row.act.done, row.act.left) = (p.next, p.done, p.left);
        }
        may
    }

    pub(in crate::simulator) fn find_parked(
        &self,
        shard: ShardId,
        destination: &str,
        selector: &Selector,
        from: Position,
        limit: usize,
    ) -> Vec<FoundParked> {
        let fits = |((name, position), (entry, _)): &(&(String, Position), &(_, Arc<Message>))| {
            let entry: &outhaul_core::parked::ParkedEntry = entry;
            name == destination
                && *position >= from
                && selector.position.is_none_or(|p| p == *position)
                && selector.key.as_ref().is_none_or(|key| entry.key.as_ref() == Some(key))
                && selector.code.as_ref().is_none_or(|code| entry.error_code == *code)
        };
        let found = self.shard(shard).parked.iter().filter(fits).take(limit);
        found.map(|(_, (entry, m))| FoundParked { entry: entry.clone(), message: Some(m.clone()) }).collect()
    }

    /// Edits that were carried out in a shard, by number.
    fn edits(&self, shard: ShardId) -> impl Iterator<Item = &Act> {
        let done = move |row: &&ActRow| row.act.shard == shard && row.act.verb == Verb::Edit && row.act.done > 0;
        self.acts.iter().filter(done).map(|row| &row.act)
    }

    pub(super) fn edited(&self, shard: ShardId) -> Vec<(String, Position, ActNumber)> {
        let of = |act: &Act| Some((act.destination.clone()?, act.selector.as_ref()?.position?, act.number));
        self.edits(shard).filter_map(of).collect()
    }

    /// Gives messages of the log the content that they have for a destination since they were edited.
    pub(in crate::simulator) fn apply_edits(&self, shard: ShardId, destination: &str, messages: &mut [Arc<Message>]) {
        for act in self.edits(shard).filter(|act| act.destination.as_deref() == Some(destination)) {
            let position = act.selector.as_ref().and_then(|s| s.position);
            for m in messages.iter_mut().filter(|m| Some(m.position) == position) {
                if let Some(edit) = &act.edit {
                    *m = Arc::new(edit.apply(m));
                }
            }
        }
    }

    /// The destinations that a checkpoint drops.
    pub(super) fn dropped_by(&self, s: &ShardCheckpoint) -> Vec<String> {
        let done = s.acts.iter().filter(|write| write.state == ActState::Done);
        let act = |write: &ActWrite| self.acts.iter().find(|row| row.act.number == write.number);
        let drops = done.filter_map(act).filter(|row| row.act.verb == Verb::Drop);
        drops.filter_map(|row| row.act.destination.clone()).collect()
    }

    /// Nothing is known any more of what a checkpoint drops, and what is in the log is not owed to it.
    pub(super) fn drop_lanes(&mut self, s: &ShardCheckpoint) {
        for name in self.dropped_by(s) {
            let Some(d) = self.names.iter().position(|n| *n == name) else { continue };
            let tables = &mut self.shards[usize::from(s.shard.0)];
            tables.settled[d] = Runs::new();
            tables.dropped_below.insert(d, tables.log.len() as u64);
        }
    }

    /// What is dropped is gone with the checkpoint that says so.
    pub(super) fn check_dropped(&self, c: &Checkpoint, s: &ShardCheckpoint) -> Result<(), String> {
        for name in self.dropped_by(s) {
            let wrong = |what: &str| Err(format!("{name} is dropped, and {what}"));
            if c.destinations.contains(&name) {
                return wrong("its owner delivers to it");
            }
            if s.receipts.lanes.iter().any(|(state, _)| state.destination == name) {
                return wrong("its lane stays");
            }
            if self.shard(s.shard).parked.keys().any(|(destination, _)| *destination == name) {
                return wrong("something stays parked for it");
            }
            let paused = PauseWrite::Pause(Some(name.clone()));
            let since = s.acts.iter().any(|write| write.pause.as_ref() == Some(&paused));
            if !since && self.paused.contains(&(s.shard, Some(name.clone()))) {
                return wrong("it stays paused");
            }
        }
        Ok(())
    }

    /// A checkpoint says how far acts have got.
    pub(super) fn write_acts(&mut self, s: &ShardCheckpoint) -> Result<(), String> {
        for write in &s.acts {
            let row = self.acts.iter_mut().find(|r| r.act.number == write.number && r.act.shard == s.shard);
            let row = row.ok_or("an act that nobody has ordered is written")?;
            if row.state != ActState::Open {
                return Err(format!("act {} is over, and written again", write.number));
            }
            if write.next < row.act.next || write.done < row.act.done {
                return Err(format!("act {} goes back", write.number));
            }
            row.state = write.state;
            (row.act.next, row.act.done, row.act.left) = (write.next, write.done, write.left);
            match &write.pause {
                Some(PauseWrite::Pause(destination)) => _ = self.paused.insert((s.shard, destination.clone())),
                Some(PauseWrite::Resume(destination)) => _ = self.paused.remove(&(s.shard, destination.clone())),
                None => {}
            }
        }
        Ok(())
    }
}
