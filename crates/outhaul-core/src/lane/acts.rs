//! What operators' acts change of a lane's parked messages.
//!
//! A redriven message goes on at once: if that is not stored, it is dead again, and redriven again. What is skipped,
//! edited, or taken from what had no route is held until the checkpoint that says so has committed; only then the next of
//! its key goes on, or it is sent. Else a crash in between could bring it back behind later ones, or as it was before.

use std::sync::Arc;

use super::block::BlockEntry;
use super::{Lane, OrderKey};
use crate::act::ActNumber;
use crate::config::Now;
use crate::faults::Fault;
use crate::message::{Message, Position};
use crate::parked::{ParkedEntry, ParkedState, ParkedWrite};
use crate::receipt::Reason;

/// What became of a selected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// It was changed.
    Yes,
    /// There is nothing to change: it is not parked any more, or goes on by itself behind another one.
    No,
    /// It is under way, or another act changes it: once that has ended.
    Later,
}

/// Where a parked message is.
enum Place {
    Block(OrderKey),
    /// Dead, and its key goes on.
    GivenUp(OrderKey),
    Nowhere,
    Busy,
}

impl Lane {
    fn place(&mut self, entry: &ParkedEntry) -> Place {
        let position = entry.position;
        if self.held.contains_key(&position) {
            return Place::Busy;
        }
        let key = OrderKey::new(entry.key.as_deref(), position);
        if self.given_up.contains(position.0) {
            return Place::GivenUp(key);
        }
        let Some(block) = self.blocks.get(&key) else { return Place::Nowhere };
        let Some(at) = block.place_of(position) else { return Place::Nowhere };
        let stored = block.entries.get(at).is_some_and(|e| e.stored);
        if !stored || block.reading() == Some(position) {
            return Place::Busy;
        }
        if block.sending() == Some(position) {
            let slot = self.config.slotting.slot_of(key.text(), position);
            if !self.slots.get_mut(&slot).is_some_and(|slot| slot.take_back_parked(position)) {
                return Place::Busy;
            }
            self.not_sending(&key);
        }
        Place::Block(key)
    }

    /// The message is due now, its attempts count anew. One that waits behind another one of its key follows by itself.
    pub(crate) fn redrive(&mut self, found: &ParkedEntry, now: Now) -> Changed {
        let again = |kept: &mut BlockEntry| {
            (kept.state, kept.attempts, kept.due_at_us) = (ParkedState::Retrying, 0, now.wall_us)
        };
        let (before, key, kept) = match self.place(found) {
            Place::Busy => return Changed::Later,
            Place::Nowhere => return Changed::No,
            _ if self.faults.has(Fault::RedriveIgnored) => return Changed::Yes,
            Place::Block(key) => {
                let changed = self.blocks.change(&key, |block| {
                    let e = block.place_of(found.position).and_then(|at| block.entries.get_mut(at))?;
                    let before = e.state;
                    (before != ParkedState::Waiting).then(|| {
                        again(e);
                        (before, e.clone())
                    })
                });
                let Some((before, kept)) = changed.flatten() else { return Changed::No };
                (before, key, kept)
            }
            Place::GivenUp(key) => {
                self.given_up.remove(found.position.0);
                let mut kept = BlockEntry::new(found, None);
                again(&mut kept);
                self.blocks.insert(key.clone(), kept.clone());
                (ParkedState::Dead, key, kept)
            }
        };
        self.count(before, -1);
        self.count(ParkedState::Retrying, 1);
        self.write(ParkedWrite::Update(self.row(&key, &kept, None)), now);
        self.redriven.insert(key);
        Changed::Yes
    }

    /// The message is settled without being delivered.
    pub(crate) fn skip(&mut self, found: &ParkedEntry, now: Now) -> Changed {
        let (key, state) = match self.place(found) {
            Place::Busy => return Changed::Later,
            Place::Nowhere => return Changed::No,
            _ if self.faults.has(Fault::SkipForgotten) => return Changed::Yes,
            Place::Block(key) => {
                let Some(state) = self.hold(&key, found.position) else { return Changed::No };
                (key, state)
            }
            Place::GivenUp(key) => (key, ParkedState::Dead),
        };
        if self.faults.has(Fault::SkipNotAwaited) {
            self.drop_parked(&key, found.position);
        }
        self.count(state, -1);
        self.held.insert(found.position, key);
        let destination = self.config.name.clone();
        self.write(ParkedWrite::Remove { destination, shard: self.shard, position: found.position }, now);
        Changed::Yes
    }

    /// The message gets other content, and is due.
    pub(crate) fn edit(&mut self, act: ActNumber, found: &ParkedEntry, edited: Arc<Message>, now: Now) -> Changed {
        let (key, state) = match self.place(found) {
            Place::Busy => return Changed::Later,
            Place::Nowhere => return Changed::No,
            Place::Block(key) => {
                let Some(state) = self.hold(&key, found.position) else { return Changed::No };
                (key, state)
            }
            Place::GivenUp(key) => (key, ParkedState::Dead),
        };
        self.count(state, -1);
        self.count(ParkedState::Retrying, 1);
        self.held.insert(found.position, key);
        self.newest_edit.insert(found.position, act);
        let entry = ParkedEntry {
            key: edited.key.clone(),
            state: ParkedState::Retrying,
            attempts: 0,
            due_at_us: now.wall_us,
            // What went wrong stays as the table has it, whole.
            error_code: String::new(),
            error_text: String::new(),
            ..found.clone()
        };
        self.write(ParkedWrite::Replace { entry, message: edited }, now);
        Changed::Yes
    }

    /// A message that no route named belongs here by now: parked, and due.
    pub(crate) fn adopt(&mut self, message: Arc<Message>, now: Now) {
        let (key, position) = (OrderKey::of(&message), message.position);
        let known = self.blocks.get(&key).is_some_and(|b| b.place_of(position).is_some());
        if known || self.given_up.contains(position.0) {
            return;
        }
        let reason = Reason::new("OUT-4001", "no route named a destination for its topic when it came");
        let entry = ParkedEntry {
            destination: self.config.name.clone(),
            shard: self.shard,
            position,
            key: message.key.clone(),
            state: ParkedState::Retrying,
            attempts: 0,
            due_at_us: now.wall_us,
            error_code: reason.code.to_owned(),
            error_text: reason.text,
            first_failed_at_us: now.wall_us,
            last_failed_at_us: now.wall_us,
        };
        self.count(ParkedState::Retrying, 1);
        self.settle(position, now);
        self.bring(key, BlockEntry { held: true, ..BlockEntry::new(&entry, Some(message.clone())) });
        self.write(ParkedWrite::Insert { entry, message }, now);
    }

    /// Holds a message of a block until the next checkpoint. Returns its state.
    fn hold(&mut self, key: &OrderKey, position: Position) -> Option<ParkedState> {
        let held = self.blocks.change(key, |block| {
            let e = block.place_of(position).and_then(|at| block.entries.get_mut(at))?;
            e.held = true;
            Some(e.state)
        });
        held.flatten()
    }

    pub(super) fn write(&mut self, write: ParkedWrite, now: Now) {
        self.parked.push(write);
        self.changed_at_us.get_or_insert(now.mono_us);
    }

    /// Parks a message, perhaps before others of its key that are in the slots: it goes behind them.
    fn bring(&mut self, key: OrderKey, entry: BlockEntry) {
        self.blocks.insert(key.clone(), entry);
        self.redriven.insert(key);
    }

    /// The checkpoint that removes a parked row has committed.
    pub(super) fn is_removed(&mut self, position: Position) {
        let Some(key) = self.held.remove(&position) else { return };
        self.given_up.remove(position.0);
        self.skipped.insert(position.0);
        self.drop_held(&key, position);
    }

    /// The checkpoint that stores an edit has committed.
    pub(super) fn is_replaced(&mut self, entry: &ParkedEntry) {
        let Some(key) = self.held.remove(&entry.position) else { return };
        self.given_up.remove(entry.position.0);
        self.edited.insert(entry.position.0);
        self.edits_stored += 1;
        self.drop_held(&key, entry.position);
        self.bring(OrderKey::new(entry.key.as_deref(), entry.position), BlockEntry::new(entry, None));
    }

    /// As [`Lane::drop_parked`], of one that was not under way: another one of its key may be. What waited behind it goes
    /// on.
    fn drop_held(&mut self, key: &OrderKey, position: Position) {
        self.blocks.change(key, |block| {
            if let Some(at) = block.place_of(position) {
                block.entries.remove(at);
            }
        });
        if self.blocks.contains_key(key) {
            self.redriven.insert(key.clone());
        } else {
            self.redriven.remove(key);
        }
    }

    /// Learns which messages were edited: the log has them as they were.
    pub(crate) fn recover_edited(&mut self, edited: &[(String, Position, ActNumber)]) {
        for (_, position, act) in edited.iter().filter(|(destination, ..)| *destination == self.config.name) {
            self.edited.insert(position.0);
            let newest = self.newest_edit.entry(*position).or_default();
            *newest = (*newest).max(*act);
        }
    }

    /// Whether a newer act has edited the message: content is made of edits by rising number, wherever it is read.
    pub(crate) fn is_edited_since(&self, act: ActNumber, position: Position) -> bool {
        self.newest_edit.get(&position).is_some_and(|newest| *newest > act)
    }

    /// Whether a message was edited: what is in memory, and in the log, is not what is to be sent.
    pub(super) fn is_edited(&self, position: Position) -> bool {
        self.edited.contains(position.0) && !self.faults.has(Fault::EditForgotten)
    }

    /// Edits that were stored since the lane began.
    pub(crate) const fn edits_stored(&self) -> u64 {
        self.edits_stored
    }

    /// Whether reads of the log must bring edits along.
    pub(crate) fn has_edited(&self) -> bool {
        !self.edited.is_empty() && !self.faults.has(Fault::EditForgotten)
    }

    /// Whether everything that acts have made due was tried since, and what stood behind it.
    pub(crate) fn is_redriven(&self) -> bool {
        let waits = |key: &OrderKey| {
            let block = self.blocks.get(key)?;
            let first = block.entries.front()?;
            let untried = first.state == ParkedState::Waiting || first.attempts == 0;
            Some(
                first.state != ParkedState::Dead && (untried || block.sending().is_some() || block.reading().is_some()),
            )
        };
        self.held.is_empty() && !self.redriven.iter().any(|key| waits(key) == Some(true))
    }
}
