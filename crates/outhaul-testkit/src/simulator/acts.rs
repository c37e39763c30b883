//! Operators: what they want done, and what it changes of what must be true.

use std::sync::Arc;

use bytes::Bytes;
use outhaul_core::act::{Act, ActNumber, ActState, Edit, Selector, Touched, Verb};
use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::chunk::DestinationNames as _;
use outhaul_core::destination::{DestinationIndex, NO_ROUTE};
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedWrite};

use super::database::{ActRow, Applied};
use super::ledger::number_of;
use super::world::World;

impl World {
    /// An operator wants something done, at random.
    pub(super) fn operator_acts(&mut self) {
        if self.db_is_away() {
            return;
        }
        if self.scenario.drops > 0 && self.dice.chance(self.scenario.drops) {
            return self.order_drop();
        }
        match self.dice.between((0, 99)) {
            0..=39 => self.order_selected(Verb::Redrive),
            40..=54 => self.order_selected(Verb::Skip),
            55..=74 => self.order_edit(),
            75..=87 => self.order_pause(Verb::Pause),
            _ => self.order_pause(Verb::Resume),
        }
    }

    /// Whatever was paused or is to be, is to be no more.
    pub(super) fn operator_resumes_all(&mut self) {
        let of = |row: &ActRow| (row.act.shard, row.act.destination.clone());
        let mut paused: Vec<_> = self.db.acts.iter().filter(|r| r.act.verb == Verb::Pause).map(of).collect();
        paused.sort();
        paused.dedup();
        for (shard, destination) in paused {
            self.order(&[shard], Verb::Resume, destination, Selector::default(), None);
        }
    }

    /// Whether a pause is stored, and nobody has asked for its end since.
    pub(super) fn is_paused(&self, shard: ShardId, destination: &str) -> bool {
        let of =
            |name: Option<&str>| {
                let about = |r: &&ActRow| r.act.shard == shard && r.act.destination.as_deref() == name;
                let stored = self.db.paused.contains(&(shard, name.map(str::to_owned)));
                let newest =
                    self.db.acts.iter().filter(about).rfind(|r| {
                        r.act.verb == Verb::Resume || (r.act.verb == Verb::Pause && r.state == ActState::Done)
                    });
                stored && newest.is_some_and(|r| r.act.verb == Verb::Pause)
            };
        of(None) || of(Some(destination))
    }

    pub(super) fn order(
        &mut self,
        shards: &[ShardId],
        verb: Verb,
        destination: Option<String>,
        selector: Selector,
        edit: Option<Edit>,
    ) {
        let number = ActNumber(self.next_number());
        let edit = edit.map(Arc::new);
        let what = format!("an operator orders {number}: {verb:?} {destination:?} {shards:?} {selector:?} {edit:?}");
        self.note(|| what);
        for shard in shards {
            let act = Act {
                number,
                shard: *shard,
                verb,
                destination: destination.clone(),
                selector: Some(selector.clone()),
                edit: edit.clone(),
                next: Position(0),
                done: 0,
                left: 0,
            };
            self.db.acts.push(ActRow { act, state: ActState::Open, at: self.now, note: String::new() });
        }
    }

    pub(super) fn all_shards(&self) -> Vec<ShardId> {
        (0..self.db.leases.len() as u16).map(ShardId).collect()
    }

    /// A parked row, at random.
    fn some_parked(&mut self, of_a_lane: bool) -> Option<(ParkedEntry, Arc<Message>)> {
        let rows = self.db.shards.iter().flat_map(|s| s.parked.values());
        let rows: Vec<_> = rows.filter(|(e, _)| !of_a_lane || e.destination != NO_ROUTE).cloned().collect();
        if rows.is_empty() { None } else { Some(rows[self.dice.place(rows.len())].clone()) }
    }

    fn order_selected(&mut self, verb: Verb) {
        let Some((entry, _)) = self.some_parked(false) else { return };
        let rate_milli = if self.dice.chance(300) { self.dice.between((20_000, 2_000_000)) } else { 0 };
        let mut selector = Selector { rate_milli, ..Selector::default() };
        let mut shards = self.all_shards();
        match self.dice.between((0, 3)) {
            0 => {}
            1 => selector.key.clone_from(&entry.key),
            2 => selector.code = Some(entry.error_code.clone()),
            _ => {
                selector.position = Some(entry.position);
                shards = vec![entry.shard];
            }
        }
        self.order(&shards, verb, Some(entry.destination), selector, None);
    }

    fn order_edit(&mut self) {
        let of_a_lane = !self.dice.chance(50);
        let Some((entry, _)) = self.some_parked(of_a_lane) else { return };
        let mut edit = Edit::default();
        if self.dice.chance(700) {
            edit.payload = Some(Bytes::from(vec![7; self.dice.between((0, 90)) as usize]));
        }
        if self.dice.chance(500) {
            edit.headers = Some(self.dice.chance(500).then(|| r#"{"edited":"1"}"#.to_owned()));
        }
        if self.dice.chance(250) {
            let key = self.dice.place(self.limits.keys);
            edit.key = Some(self.dice.chance(800).then(|| format!("k{key}")));
        }
        let selector = Selector { position: Some(entry.position), ..Selector::default() };
        self.order(&[entry.shard], Verb::Edit, Some(entry.destination), selector, Some(edit));
    }

    /// A destination is given up. Owners that have it refuse.
    fn order_drop(&mut self) {
        let d = self.dice.place(self.limits.destinations.len());
        let name = self.limits.destinations[d].name.clone();
        self.order(&self.all_shards(), Verb::Drop, Some(name), Selector::default(), None);
    }

    fn order_pause(&mut self, verb: Verb) {
        let d = self.dice.place(self.limits.destinations.len());
        let mut destination = self.dice.chance(700).then(|| self.limits.destinations[d].name.clone());
        let mut shards = self.all_shards();
        if self.dice.chance(500) {
            shards = vec![shards[self.dice.place(shards.len())]];
        }
        if verb == Verb::Resume
            && let Some((shard, paused)) = self.db.paused.first().cloned()
        {
            (shards, destination) = (vec![shard], paused);
        }
        self.order(&shards, verb, destination, Selector::default(), None);
    }

    /// A checkpoint has committed: what acts have changed is true from now on.
    pub(super) fn acts_are_written(&mut self, c: &Checkpoint, applied: &Applied) -> Result<(), String> {
        let written = c.shards.iter().zip(&applied.outcomes).filter(|(_, o)| **o == ShardOutcome::Written);
        for (s, _) in written {
            for touched in &s.receipts.acts {
                let row = self.db.acts.iter().find(|r| r.act.number == touched.number && r.act.shard == s.shard);
                let row = row.cloned().ok_or_else(|| format!("act {} is not there", touched.number))?;
                self.is_touched(s.shard, touched, &row)?;
            }
            // What had no route belongs to a destination from now on.
            for write in &s.parked {
                let ParkedWrite::Insert { entry, message } = write else { continue };
                let Some(d) = self.destination_names().index(&entry.destination) else { continue };
                let Some(number) = number_of(&message.id) else { continue };
                let of_ledger = &mut self.ledger.entries[number];
                if !of_ledger.destinations.contains(d) {
                    of_ledger.destinations.insert(d);
                    of_ledger.at[usize::from(d.0)].rerouted = true;
                }
            }
        }
        Ok(())
    }

    fn destination_names(&self) -> Vec<String> {
        self.limits.destinations.iter().map(|d| d.name.clone()).collect()
    }

    fn is_touched(&mut self, shard: ShardId, touched: &Touched, row: &ActRow) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("act {} {what}: {touched:?}", touched.number));
        if row.act.verb != touched.verb || row.act.destination.as_ref() != Some(&touched.destination) {
            return wrong("changes something else than was ordered");
        }
        let d = self.destination_names().index(&touched.destination).map(|d| usize::from(d.0));
        for position in touched.positions.iter().flat_map(|r| r.first..=r.last) {
            let message = self.db.read_log(shard, Position(position), 1).into_iter().next();
            let Some(number) = message.as_ref().and_then(|m| number_of(&m.id)) else {
                return wrong("changes what is not in the log");
            };
            let entry = &mut self.ledger.entries[number];
            match (touched.verb, d) {
                (Verb::Skip, Some(d)) => entry.at[d].skipped = true,
                // What no route named may be routed there later.
                (Verb::Drop, Some(d)) => entry.at[d].skipped |= entry.destinations.contains(DestinationIndex(d as u8)),
                (Verb::Skip, None) => entry.skipped_unrouted = true,
                (Verb::Redrive, Some(d)) => entry.at[d].redriven_at = entry.at[d].redriven_at.max(row.at),
                (Verb::Redrive, None) => {}
                (Verb::Edit, Some(d)) => {
                    let (Some(edit), Some(message)) = (&row.act.edit, message) else { continue };
                    let before = entry.edited.remove(&d).unwrap_or_else(|| message.as_ref().clone());
                    entry.at[d].rekeyed |= edit.key.is_some();
                    entry.edited.insert(d, edit.apply(&before));
                }
                _ => return wrong("changes messages"),
            }
        }
        Ok(())
    }
}
