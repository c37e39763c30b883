//! Replays: what the log still holds is delivered once more, by a lane of its own that lasts as long as the command.
//!
//! ```text
//! log ──▶ pages (range, filters, routes, edits, what is parked) ──▶ slots ──▶ sink
//!                                          │                                   │ outcomes
//!                                          └── how far it has got ──▶ act ◀────┘
//! ```
//!
//! [`Replaying`] is one state machine for all shards of a replay, which it delivers one after the other. Invariants, checked
//! by the simulator:
//! - what lies below the stored position was delivered, and proven where that comes later, or is left out;
//! - of a key nothing is sent before what comes earlier in the log and is neither delivered nor left out: a message that is
//!   to be tried again holds its key, not its slot, however long that takes;
//! - after each start of the destination, unless nothing has changed since one that was compared, it is found out what it
//!   has forgotten; that, and everything behind it, is sent again. Nothing is under way meanwhile;
//! - once it is told that another process carries the replay out, nothing is stored any more.

mod exchange;
mod proof;
mod rate;
mod select;
mod slots;

use std::collections::{HashMap, HashSet, VecDeque};

pub use exchange::{Command, Ending, Event, Input, Progress, StoreFailure};
pub use proof::Acknowledgement;
use proof::Proof;
use rate::{Rate, slower};
pub use select::{LeftOut, Page, Selection};
use slots::Slots;

use crate::act::PositionRange;
use crate::config::{DestinationConfig, Jitter, Now};
use crate::faults::{Fault, Faults};
use crate::instance::Ready;
use crate::lane::slot::Item;
use crate::lane::{OrderKey, SendBatch};
use crate::message::{Position, ShardId};
use crate::receipt::{AckLevel, Outcome, Reason};

/// Tries to store the last of it.
const LAST_KEEPS: u32 = 5;

/// All that a replay is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to, and within which limits.
    pub destination: DestinationConfig,
    /// At most so many messages in a thousand seconds. 0: as fast as it goes.
    pub rate_milli: u64,
    /// Where it stands in each shard.
    pub shards: Vec<ReplayShard>,
    /// It ends when nothing has got on for so long since the destination or the database failed, milliseconds.
    pub give_up_after_ms: Option<u64>,
    /// Wait between storing how far it has got, milliseconds.
    pub keep_ms: u64,
    /// Wait between two questions for what was not proven when it was acknowledged, milliseconds.
    pub prove_ms: u64,
    /// First and longest wait after a failed call of the database, milliseconds.
    pub store_backoff_ms: (u64, u64),
    /// Seed of the jitter of waits.
    pub seed: u64,
    /// Faults built in on purpose: empty but in tests.
    #[doc(hidden)]
    pub faults: Faults,
}

impl Config {
    /// A configuration: what may be set otherwise is as the command has it.
    pub const fn new(destination: DestinationConfig, rate_milli: u64, shards: Vec<ReplayShard>, seed: u64) -> Self {
        Self {
            destination,
            rate_milli,
            shards,
            give_up_after_ms: None,
            keep_ms: 1_000,
            prove_ms: 150,
            store_backoff_ms: (100, 5_000),
            seed,
            faults: Faults::NONE,
        }
    }
}

/// Where a replay stands in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayShard {
    /// Shard.
    pub shard: ShardId,
    /// All that is asked for.
    pub range: PositionRange,
    /// What lies below was dealt with.
    pub next: Position,
    /// Messages delivered.
    pub done: u64,
    /// Messages left out.
    pub left: u64,
}

/// How far a replay has got, over all shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayStand {
    /// Positions asked for.
    pub positions: u64,
    /// Of these, those that were dealt with.
    pub positions_done: u64,
    /// Of these, those that the log held no more, as far as this process has met them.
    pub pruned: u64,
    /// Messages delivered, by earlier processes too.
    pub delivered: u64,
    /// Messages left out, by earlier processes too.
    pub left: u64,
    /// What it waits for, where the destination or the database has failed.
    pub waits_for: Option<Reason>,
}

/// Where the destination stands: a start of it must have succeeded before anything is sent.
#[derive(Debug, Default)]
struct Start {
    /// Number of the newest.
    number: u64,
    /// It succeeded, and no other one is due.
    ready: bool,
    /// It, or the comparison after it, is under way.
    under_way: bool,
    /// When the next one is due. None: nothing asks for one.
    at_us: Option<u64>,
    /// Starts in a row that failed or did not last, and the number of the last of them.
    failures: u32,
    failed: u64,
    /// What it has was compared with what it acknowledged, and only starts that changed nothing have come since.
    compared: bool,
    /// The level that acknowledgements reach some time after they were given.
    proves_later: Option<AckLevel>,
}

/// A call of the database.
#[derive(Debug, Default)]
struct Calls {
    under_way: bool,
    failures: u32,
    at_us: u64,
}

/// The shard that is being replayed.
#[derive(Debug)]
struct Walk {
    slots: Slots,
    proof: Proof,
    read_at: Position,
    read: Calls,
    /// The read that is under way is of no use: it has gone back since.
    stale_read: bool,
    /// Positions that are being asked about.
    proving: Option<Vec<Position>>,
    prove_at_us: u64,
    /// Something is not stored yet.
    changed: bool,
    /// Its end is being stored, or was tried to be.
    ending: bool,
}

/// A replay while it is carried out.
#[derive(Debug)]
pub struct Replaying {
    config: Config,
    jitter: Jitter,
    rate: Rate,
    start: Start,
    /// The place of the shard that is being replayed.
    at: usize,
    walk: Walk,
    keep: Calls,
    last_batch: u64,
    pruned: u64,
    /// Why the newest message was left out.
    note: String,
    /// When something was last settled or read.
    got_on_at_us: u64,
    waits_for: Option<Reason>,
    /// Nothing new is begun; it ends with this once nothing is under way.
    ends: Option<Ending>,
    last_keeps: u32,
    over: bool,
    now: Now,
    commands: VecDeque<Command>,
}

impl Walk {
    fn new(config: &Config, at: usize) -> Self {
        Self {
            slots: Slots::new(config.destination.slotting),
            proof: Proof::default(),
            read_at: config.shards.get(at).map_or(Position(0), |s| s.next),
            read: Calls::default(),
            stale_read: false,
            proving: None,
            prove_at_us: 0,
            changed: false,
            ending: false,
        }
    }
}

impl Replaying {
    /// One that begins now. It does nothing before its first input.
    pub fn new(config: Config, now: Now) -> Self {
        let keep = Calls { at_us: now.after_ms(config.keep_ms), ..Calls::default() };
        Self {
            jitter: Jitter::new(config.seed),
            rate: Rate::new(slower(config.rate_milli, config.destination.limits.rate_milli), now),
            start: Start { at_us: Some(0), ..Start::default() },
            at: 0,
            walk: Walk::new(&config, 0),
            keep,
            last_batch: 0,
            pruned: 0,
            note: String::new(),
            got_on_at_us: now.mono_us,
            waits_for: None,
            ends: None,
            last_keeps: 0,
            over: false,
            now,
            commands: VecDeque::new(),
            config,
        }
    }

    /// Takes an input. What has to be done then is to be asked for ([`Replaying::next_command`]).
    pub fn handle(&mut self, now: Now, input: Input) {
        self.now = now;
        if self.over {
            return;
        }
        match input {
            Input::Tick => {}
            Input::Stop => self.end(Ending::Stopped),
            Input::Started(result) => self.on_started(result),
            Input::Verified(result) => self.on_verified(result),
            Input::Proven(result) => self.on_proven(result),
            Input::Answer { slot, batch, outcomes } => self.on_answer(slot, batch, outcomes),
            Input::NotSent { slot, batch } => self.on_not_sent(slot, batch),
            Input::Page(result) => self.on_page(result),
            Input::Kept(result) => self.on_kept(result),
        }
        self.move_on();
        self.drive();
    }

    /// What has to be done next. None: nothing, until the next input.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// How far it has got.
    pub fn stand(&self) -> ReplayStand {
        let sum = |of: fn(&ReplayShard) -> u64| self.config.shards.iter().map(of).sum();
        ReplayStand {
            positions: sum(|s| s.range.len()),
            positions_done: sum(|s| s.next.0.min(s.range.to.0).saturating_sub(s.range.from.0)),
            pruned: self.pruned,
            delivered: sum(|s| s.done),
            left: sum(|s| s.left),
            waits_for: self.waits_for.clone(),
        }
    }

    /// When it wants to be given the time, microseconds of the monotonic clock: after its last input. None: only an answer
    /// decides.
    pub fn deadline_us(&self) -> Option<u64> {
        if self.over {
            return None;
        }
        let waits = |call: &Calls| (!call.under_way).then_some(call.at_us);
        if self.ends.is_some() {
            return waits(&self.keep).filter(|_| self.walk.slots.under_way() == 0);
        }
        let give_up = self.config.give_up_after_ms.filter(|_| self.waits_for.is_some());
        let sends = self.walk.slots.ready_at_us(self.start.number).filter(|_| self.start.ready && !self.is_full());
        let due = [
            give_up.map(|ms| self.got_on_at_us.saturating_add(ms.saturating_mul(1_000))),
            self.start.at_us.filter(|_| !self.start.under_way),
            waits(&self.walk.read).filter(|_| self.wants_more()),
            sends.map(|at| at.max(self.rate.wakes_at_us(self.now))),
            self.wants_proof().then_some(self.walk.prove_at_us),
            waits(&self.keep).filter(|_| self.walk.changed || self.is_at_end()),
        ];
        // What is due already was begun, or waits for an answer.
        due.into_iter().flatten().filter(|at| *at > self.now.mono_us).min()
    }

    // ---- what is begun -----------------------------------------------------------------------------------------------

    fn end(&mut self, ending: Ending) {
        if self.ends.is_none() {
            self.ends = Some(ending);
            // How far it has got is stored at once.
            self.keep.at_us = self.now.mono_us;
        }
    }

    fn drive(&mut self) {
        if self.over {
            return;
        }
        if self.at >= self.config.shards.len() {
            return self.is_over(Ending::Done);
        }
        self.give_up();
        if self.ends.is_some() {
            return self.keep_last();
        }
        self.begin_start();
        if self.wants_more() && !self.walk.read.under_way && self.walk.read.at_us <= self.now.mono_us {
            self.walk.read.under_way = true;
            let (shard, from) = (self.shard(), self.walk.read_at);
            self.commands.push_back(Command::Read { shard, from });
        }
        self.begin_sends();
        if self.wants_proof() && self.walk.prove_at_us <= self.now.mono_us {
            let (positions, receipts) = self.walk.proof.asked();
            self.walk.proving = Some(positions);
            self.commands.push_back(Command::Prove { start: self.start.number, receipts });
        }
        let ended = self.is_at_end();
        let due = self.keep.at_us <= self.now.mono_us || (ended && !self.walk.ending);
        if !self.keep.under_way && due && (ended || self.walk.changed) {
            self.walk.ending |= ended;
            self.store_progress(ended);
        }
    }

    fn shard(&self) -> ShardId {
        self.config.shards.get(self.at).map_or(ShardId(0), |s| s.shard)
    }

    fn give_up(&mut self) {
        let (Some(limit_ms), Some(reason)) = (self.config.give_up_after_ms, &self.waits_for) else { return };
        if self.now.mono_us.saturating_sub(self.got_on_at_us) >= limit_ms.saturating_mul(1_000) {
            let reason = reason.clone();
            self.end(Ending::GivenUp(reason));
        }
    }

    /// A start begins when nothing is under way, so that what was forgotten is all that was acknowledged and is gone.
    fn begin_start(&mut self) {
        if self.start.at_us.is_none_or(|at| at > self.now.mono_us) || self.walk.ending {
            return;
        }
        self.start.ready = false;
        if self.start.under_way || self.walk.slots.under_way() > 0 || self.walk.proving.is_some() {
            return;
        }
        self.start.number += 1;
        (self.start.under_way, self.start.at_us) = (true, None);
        let limit_ms = self.config.destination.limits.send_limit_ms;
        self.commands.push_back(Command::Start { start: self.start.number, limit_ms });
    }

    fn wants_more(&self) -> bool {
        let Some(shard) = self.config.shards.get(self.at) else { return false };
        let limits = &self.config.destination.limits;
        self.walk.read_at < shard.range.to
            && self.walk.slots.has_room(limits)
            && self.walk.proof.unproven() < limits.max_unproven
            && self.walk.read_at.0.saturating_sub(shard.next.0) < limits.max_span
    }

    fn begin_sends(&mut self) {
        let limits = &self.config.destination.limits;
        while self.start.ready {
            let available = self.rate.available(self.now);
            if available == 0 || self.is_full() {
                return;
            }
            let (batch, start) = (self.last_batch + 1, self.start.number);
            let Some((slot, messages)) = self.walk.slots.begin(batch, start, available, limits, self.now) else {
                return;
            };
            self.last_batch = batch;
            self.rate.take(messages.len(), self.now);
            let limit_ms = limits.send_limit_ms;
            let taken_at_us = Vec::new();
            self.commands.push_back(Command::Send(SendBatch { slot, batch, messages, limit_ms, start, taken_at_us }));
        }
    }

    /// As many batches are under way as the destination takes.
    fn is_full(&self) -> bool {
        self.config.destination.limits.concurrency.is_some_and(|most| self.walk.slots.under_way() >= most)
    }

    fn wants_proof(&self) -> bool {
        self.start.ready && self.walk.proving.is_none() && self.walk.proof.unproven() > 0
    }

    fn is_at_end(&self) -> bool {
        let end = self.config.shards.get(self.at).map(|s| s.range.to);
        let read = end.is_some_and(|end| self.walk.read_at >= end) && !self.walk.read.under_way;
        read && !self.start.under_way && self.walk.slots.is_empty() && self.walk.proof.unproven() == 0
    }

    fn store_progress(&mut self, ended: bool) {
        let Some(shard) = self.config.shards.get(self.at) else { return };
        (self.keep.under_way, self.walk.changed) = (true, false);
        let note = if shard.left > 0 { self.note.clone() } else { String::new() };
        let ReplayShard { shard, next, done, left, .. } = *shard;
        self.commands.push_back(Command::Keep(Progress { shard, ended, next, done, left, note }));
    }

    /// It ends before its end: how far it has got is stored once more.
    fn keep_last(&mut self) {
        if self.walk.slots.under_way() > 0 || self.keep.under_way {
            return;
        }
        let Some(ending) = self.ends.clone() else { return };
        if ending == Ending::Taken || self.last_keeps >= LAST_KEEPS {
            return self.is_over(ending);
        }
        if self.keep.at_us <= self.now.mono_us {
            self.last_keeps += 1;
            self.store_progress(false);
        }
    }

    fn is_over(&mut self, ending: Ending) {
        self.over = true;
        self.commands.push_back(Command::Ended(ending));
    }

    // ---- answers -----------------------------------------------------------------------------------------------------

    fn got_on(&mut self) {
        self.got_on_at_us = self.now.mono_us;
        self.waits_for = None;
    }

    /// What lies below the first message that is not settled and proven was dealt with.
    fn move_on(&mut self) {
        let walk = &self.walk;
        let first = walk.slots.first_open().into_iter().chain(walk.proof.first_unproven()).min();
        let next = first.filter(|_| !self.config.faults.has(Fault::ReplayPastUnacknowledged)).unwrap_or(walk.read_at);
        if let Some(shard) = self.config.shards.get_mut(self.at) {
            shard.next = next;
        }
    }

    /// The destination is to be started anew, after a wait. One that did not last counts once.
    fn start_again(&mut self, reason: Reason) {
        if self.start.failed != self.start.number {
            self.start.failed = self.start.number;
            self.start.failures = self.start.failures.saturating_add(1);
        }
        let wait =
            self.jitter.backoff_ms(self.start.failures.max(1), self.config.destination.limits.breaker_backoff_ms);
        let at = self.now.after_ms(wait);
        self.start.at_us = Some(self.start.at_us.map_or(at, |due| due.min(at)));
        self.waits_for = Some(reason);
    }

    fn on_started(&mut self, result: Result<Ready, Reason>) {
        self.start.under_way = false;
        let ready = match result {
            Ok(ready) => ready,
            Err(reason) => return self.start_again(reason),
        };
        self.start.proves_later = ready.proves_later;
        self.start.compared &= ready.unchanged;
        let shown = self.walk.proof.shown();
        if self.start.compared || shown.is_empty() {
            return self.is_ready();
        }
        // What it has acknowledged and forgotten is found out first.
        self.start.under_way = true;
        let limit_ms = self.config.destination.limits.send_limit_ms;
        self.commands.push_back(Command::Verify { shard: self.shard(), shown, limit_ms });
    }

    fn is_ready(&mut self) {
        (self.start.ready, self.start.compared) = (true, true);
        self.walk.slots.try_aside(self.now);
    }

    fn on_verified(&mut self, result: Result<Vec<Position>, Reason>) {
        self.start.under_way = false;
        match result {
            Ok(forgotten) => {
                if let Some(first) = forgotten.iter().min()
                    && !self.config.faults.has(Fault::ReplayForgottenIgnored)
                {
                    self.go_back(*first, forgotten.len() as u64);
                }
                self.is_ready();
            }
            Err(reason) => self.start_again(reason),
        }
    }

    /// Everything from a position on, and from the first message on that is not delivered, is read and sent again. Nothing
    /// is under way.
    fn go_back(&mut self, first: Position, messages: u64) {
        self.commands.push_back(Command::Event(Event::Forgotten { shard: self.shard(), first, messages }));
        let to = self.walk.slots.first_open().map_or(first, |open| open.min(first));
        let taken_back = self.walk.proof.take_back(to);
        self.walk.slots = Slots::new(self.config.destination.slotting);
        self.walk.read_at = to;
        self.walk.stale_read = self.walk.read.under_way;
        self.walk.changed = true;
        if let Some(shard) = self.config.shards.get_mut(self.at) {
            shard.done = shard.done.saturating_sub(taken_back);
        }
    }

    fn on_proven(&mut self, result: Result<Vec<bool>, Reason>) {
        let Some(asked) = self.walk.proving.take() else { return };
        self.walk.prove_at_us = self.now.after_ms(self.config.prove_ms);
        match result {
            Ok(proven) => {
                self.walk.proof.proven(&asked, &proven);
                self.walk.changed = true;
            }
            Err(reason) => self.start_again(reason),
        }
    }

    fn on_not_sent(&mut self, slot: u32, batch: u64) {
        let Some(items) = self.walk.slots.finish(slot, batch) else { return };
        let slot = self.walk.slots.slot(slot);
        slot.breaker.not_begun(self.now);
        slot.put_back(items, Vec::new(), &HashSet::new(), self.now);
    }

    fn on_answer(&mut self, slot_id: u32, batch: u64, outcomes: Vec<Outcome>) {
        let Some(items) = self.walk.slots.finish(slot_id, batch) else { return };
        let no_answer = || Outcome::Unknown(Reason::new("OUT-4003", "no answer for it"));
        let answered: Vec<(Item, Outcome)> =
            items.into_iter().zip(outcomes.into_iter().chain(std::iter::repeat_with(no_answer))).collect();
        let silent = answered.iter().all(|(_, o)| matches!(o, Outcome::Unknown(_) | Outcome::DestinationDown(_)));
        let mut back = Back { silent, ..Back::default() };
        let mut settled = false;
        for (item, outcome) in answered {
            match outcome {
                Outcome::Delivered(receipt) => {
                    self.walk.proof.acknowledged(&item.message, receipt, self.start.proves_later);
                    self.walk.slots.settle(&item.message);
                    if let Some(shard) = self.config.shards.get_mut(self.at) {
                        shard.done += 1;
                    }
                    settled = true;
                }
                Outcome::Rejected(reason) if !back.keeps(&item) => {
                    self.walk.slots.settle(&item.message);
                    let (shard, position, id) = (item.message.shard, item.message.position, item.message.id.clone());
                    self.leave(LeftOut { shard, position, id, reason });
                    settled = true;
                }
                outcome => self.comes_back(item, outcome, &mut back),
            }
        }
        if settled {
            self.got_on();
            self.walk.changed = true;
        }
        let limits = &self.config.destination.limits;
        let slot = self.walk.slots.slot(slot_id);
        if silent {
            slot.breaker.fail(self.now, limits, &mut self.jitter);
        } else {
            slot.breaker.succeed();
        }
        if back.down.is_some() {
            slot.down_since_start = Some(self.start.number);
        }
        slot.put_back(back.front, back.held, &back.aside, self.now);
        match (back.down.or(back.part_down), back.why) {
            // Other slots go on until it begins.
            (Some(reason), _) => self.start_again(reason),
            (None, Some(reason)) => _ = self.waits_for.get_or_insert(reason),
            (None, None) if !self.walk.slots.is_down_since(self.start.number) => self.start.failures = 0,
            (None, None) => {}
        }
    }

    /// A message was not delivered: it is sent again, before whatever else there is of its key.
    fn comes_back(&mut self, mut item: Item, outcome: Outcome, back: &mut Back) {
        let mut key = OrderKey::of(&item.message);
        let stopped = back.stopped.get(&key).copied();
        let longest_ms = self.config.destination.limits.breaker_backoff_ms.1;
        let (place, reason) = match outcome {
            Outcome::DestinationDown(reason) => {
                back.down.get_or_insert(reason.clone());
                (Place::Front, reason)
            }
            Outcome::Held { reason, after_ms } => {
                if after_ms.is_none() {
                    back.part_down.get_or_insert(reason.clone());
                    back.aside.insert(key.clone());
                }
                // A start brings it back before that.
                (Place::Held(self.now.after_ms(after_ms.unwrap_or(longest_ms).min(longest_ms))), reason)
            }
            Outcome::Unknown(reason) if back.silent => (Place::Front, reason),
            Outcome::Delivered(_) => return,
            // Behind one that comes back it was not tried.
            Outcome::Retry { reason, after_ms } => (stopped.unwrap_or_else(|| self.tried(&mut item, after_ms)), reason),
            Outcome::Rejected(reason) | Outcome::Unknown(reason) => {
                (stopped.unwrap_or_else(|| self.tried(&mut item, None)), reason)
            }
        };
        back.why.get_or_insert(reason);
        if self.config.faults.has(Fault::ReplayRetryOvertaken) {
            key = OrderKey::Alone(item.message.position);
        }
        match *back.stopped.entry(key.clone()).or_insert(place) {
            Place::Front => back.front.push(item),
            Place::Held(at_us) => back.held.push((key, item, at_us)),
        }
    }

    /// A message is tried again after a wait, which grows to the longest of the lane's breakers.
    fn tried(&mut self, item: &mut Item, after_ms: Option<u64>) -> Place {
        let limits = &self.config.destination.limits;
        item.tries = item.tries.saturating_add(1);
        let waits = (limits.quick_backoff_ms.0, limits.breaker_backoff_ms.1);
        let wait = self.jitter.backoff_ms(item.tries, waits);
        Place::Held(self.now.after_ms(wait.max(after_ms.unwrap_or(0))))
    }

    fn leave(&mut self, left: LeftOut) {
        self.note = format!("{} {}", left.reason.code, left.reason.text);
        self.commands.push_back(Command::Event(Event::LeftOut(left)));
        if let Some(shard) = self.config.shards.get_mut(self.at) {
            shard.left += 1;
        }
    }

    fn on_page(&mut self, result: Result<Page, StoreFailure>) {
        self.walk.read.under_way = false;
        if std::mem::take(&mut self.walk.stale_read) {
            return;
        }
        let page = match result {
            Ok(page) => page,
            Err(failure) => {
                self.walk.read.failures = self.walk.read.failures.saturating_add(1);
                let wait = self.jitter.backoff_ms(self.walk.read.failures, self.config.store_backoff_ms);
                self.walk.read.at_us = self.now.after_ms(wait);
                return self.store_failed(failure);
            }
        };
        self.walk.read.failures = 0;
        self.got_on_if_database();
        if page.pruned > 0 {
            let (shard, from, positions) = (self.shard(), self.walk.read_at, page.pruned);
            self.commands.push_back(Command::Event(Event::Pruned { shard, from, positions }));
        }
        self.pruned += page.pruned;
        self.walk.read_at = page.next;
        self.walk.changed = true;
        page.left.into_iter().for_each(|left| self.leave(left));
        page.messages.into_iter().for_each(|message| self.walk.slots.add(message));
    }

    /// A call of the database has succeeded: if it was what it waited for, it does not any more.
    fn got_on_if_database(&mut self) {
        if self.waits_for.as_ref().is_some_and(|reason| reason.code.starts_with("OUT-1")) {
            self.got_on();
        }
    }

    fn store_failed(&mut self, failure: StoreFailure) {
        if failure.passes {
            self.waits_for = Some(failure.reason);
        } else {
            self.end(Ending::Store(failure.reason));
        }
    }

    fn on_kept(&mut self, result: Result<bool, StoreFailure>) {
        self.keep.under_way = false;
        match result {
            Ok(_) if self.last_keeps > 0 => self.is_over_at_last(),
            Ok(true) => {
                (self.keep.failures, self.keep.at_us) = (0, self.now.after_ms(self.config.keep_ms));
                self.got_on_if_database();
                if self.walk.ending {
                    self.at += 1;
                    self.walk = Walk::new(&self.config, self.at);
                }
            }
            Ok(false) if self.config.faults.has(Fault::ReplayTakenIgnored) => {
                self.keep.at_us = self.now.after_ms(self.config.keep_ms);
                self.walk.changed = true;
            }
            // Whatever else it was to end with.
            Ok(false) => self.ends = Some(Ending::Taken),
            Err(failure) => {
                self.keep.failures = self.keep.failures.saturating_add(1);
                let wait = self.jitter.backoff_ms(self.keep.failures, self.config.store_backoff_ms);
                self.keep.at_us = self.now.after_ms(wait);
                self.walk.changed = true;
                self.store_failed(failure);
            }
        }
    }

    fn is_over_at_last(&mut self) {
        if let Some(ending) = self.ends.clone() {
            self.is_over(ending);
        }
    }
}

/// Where the rest of a key goes when one of its messages was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Front,
    /// It waits until then, microseconds of the monotonic clock.
    Held(u64),
}

/// What comes back of a batch.
#[derive(Debug, Default)]
struct Back {
    /// The destination said nothing of any of its messages.
    silent: bool,
    front: Vec<Item>,
    held: Vec<(OrderKey, Item, u64)>,
    aside: HashSet<OrderKey>,
    stopped: HashMap<OrderKey, Place>,
    down: Option<Reason>,
    part_down: Option<Reason>,
    why: Option<Reason>,
}

impl Back {
    /// Whether an earlier message of its key comes back: then it was not tried.
    fn keeps(&self, item: &Item) -> bool {
        self.stopped.contains_key(&OrderKey::of(&item.message))
    }
}
