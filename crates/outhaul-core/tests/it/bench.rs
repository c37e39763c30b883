//! One instance with one shard and one destination, answered by hand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use outhaul_core::act::{Act, ActNumber, ActState, ActWrite, Edit, FoundParked, Selector, Verb};
use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::config::{Config, DestinationConfig, LaneLimits, Now, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::instance::{CheckpointAnswer, Command, Event, Input, Instance, ReadKind, Ready, Recovered};
use outhaul_core::lane::{SendBatch, Slotting, Verification};
use outhaul_core::lease::{InstanceRow, LeaseReport, LeaseRow};
use outhaul_core::message::{Epoch, Message, Position, Row, Seq, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedWrite};
use outhaul_core::receipt::{AckLevel, LaneReceipt, Outcome, Reason, Receipt};
use outhaul_core::route::{Route, Routes};
use outhaul_core::schedule::Upcoming;

pub const SHARD: ShardId = ShardId(0);
pub const LANE: DestinationIndex = DestinationIndex(0);

/// A row of the topic that is routed.
pub fn row(seq: u64, key: &str) -> Row {
    Row {
        seq: Seq(seq),
        shard: SHARD,
        id: format!("m{seq}"),
        topic: "t".into(),
        key: Some(key.into()),
        headers: None,
        payload: Bytes::new(),
        created_at_us: 0,
        defect: None,
    }
}

pub fn delivered() -> Outcome {
    Outcome::Delivered(Receipt::default())
}

pub fn retry() -> Outcome {
    Outcome::Retry { reason: Reason::new("OUT-9001", "not now"), after_ms: None }
}

pub fn down() -> Outcome {
    Outcome::DestinationDown(Reason::new("OUT-9001", "down"))
}

pub fn rejected() -> Outcome {
    Outcome::Rejected(Reason::new("OUT-9001", "never"))
}

/// The database answers everything at once, but for what a test holds back; sends are answered by the test.
pub struct Bench {
    pub instance: Instance,
    pub now: Now,
    /// Committed rows of the outbox.
    pub table: Vec<Row>,
    /// Sends without an answer.
    pub sends: VecDeque<(Epoch, SendBatch)>,
    pub events: Vec<Event>,
    pub checkpoints: Vec<Arc<Checkpoint>>,
    /// Owner, epoch and whether it has expired, as the next lease round shows them.
    pub lease: (Option<String>, u64, bool),
    /// Other instances that lease rounds show.
    pub others: Vec<InstanceRow>,
    /// Whether lease rounds are left without an answer.
    pub leases_held: bool,
    /// Whether polls are answered by the test, and the answer to the one that is under way.
    pub polls_held: bool,
    pub poll: Option<Input>,
    /// Whether rescans read now and are answered later; what they read.
    pub rescans_held: bool,
    pub rescan: Option<Input>,
    /// Whether starts of the destination fail.
    pub start_fails: bool,
    /// Whether starts and verifications are left without an answer; those without one, oldest first.
    pub starts_held: bool,
    pub held: VecDeque<Command>,
    /// What the destination is found to have forgotten, next time.
    pub forgotten: Vec<Position>,
    /// Starts so far, and what was asked of the destination's memory: positions of the receipts that came along.
    pub starts: u64,
    /// Messages that a read of the log brings.
    pub log_read: usize,
    pub verified: Vec<Vec<u64>>,
    /// The level that acknowledgements reach later; which ones have, by their time; how many were asked for.
    pub proves_later: Option<AckLevel>,
    /// Whether starts find everything as the start before.
    pub unchanged: bool,
    pub proven_below: Result<i64, Reason>,
    pub asked: Vec<usize>,
    pub proofs_held: bool,
    /// Receipts that recovery finds, of those that are not proven.
    pub unproven: Vec<LaneReceipt>,
    /// What becomes of the next checkpoint.
    pub outcome: ShardOutcome,
    /// Whether checkpoints fail, and nothing of them is written.
    pub checkpoints_fail: bool,
    /// The most parked messages whose content was asked for at one time.
    pub parked_reads: usize,
    /// Parked rows, by destination and position.
    pub parked: BTreeMap<(String, Position), (ParkedEntry, Arc<Message>)>,
    /// Acts that are open, what checkpoints have written of them, and what recovery finds paused.
    pub acts: Vec<Act>,
    pub written: Vec<ActWrite>,
    pub paused: Vec<Option<String>>,
    pub log_end: u64,
    pub number: u64,
    pub ticks: u32,
    pub stopped: bool,
}

impl Bench {
    pub fn new(limits: LaneLimits, slotting: Slotting) -> Self {
        let settings = Settings { lease_ttl_ms: 10_000, lease_interval_ms: 1_000, ..Settings::default() };
        let destinations = vec![DestinationConfig { name: "d".into(), slotting, limits }];
        let routes = Routes::new(vec![Route { pattern: "t".into(), to: vec![LANE] }]);
        Self {
            instance: Instance::new(Config::new("me".into(), settings, destinations.into(), routes, 1)),
            now: Now { mono_us: 1_000_000, wall_us: 1_700_000_000_000_000 },
            table: Vec::new(),
            sends: VecDeque::new(),
            events: Vec::new(),
            checkpoints: Vec::new(),
            lease: (Some("me".into()), 1, false),
            leases_held: false,
            others: Vec::new(),
            rescans_held: false,
            polls_held: false,
            poll: None,
            rescan: None,
            start_fails: false,
            starts_held: false,
            held: VecDeque::new(),
            forgotten: Vec::new(),
            starts: 0,
            log_read: 1_000,
            verified: Vec::new(),
            proves_later: None,
            unchanged: false,
            proven_below: Ok(0),
            asked: Vec::new(),
            proofs_held: false,
            unproven: Vec::new(),
            outcome: ShardOutcome::Written,
            checkpoints_fail: false,
            parked_reads: 0,
            parked: BTreeMap::new(),
            acts: Vec::new(),
            written: Vec::new(),
            paused: Vec::new(),
            log_end: 0,
            number: 0,
            ticks: 0,
            stopped: false,
        }
    }

    /// One that runs its shard.
    pub fn running(limits: LaneLimits, slotting: Slotting) -> Self {
        let mut bench = Self::new(limits, slotting);
        bench.give(Input::Tick);
        bench.pass_ms(100);
        assert!(bench.instance.view().iter().any(|s| s.running));
        bench
    }

    pub fn give(&mut self, input: Input) {
        self.instance.handle(self.now, input);
        while let Some(command) = self.instance.next_command() {
            if let Some(answer) = self.answer(command) {
                self.instance.handle(self.now, answer);
            }
        }
    }

    /// An operator orders something for the destination.
    pub fn order(&mut self, verb: Verb, selector: Selector, edit: Option<Edit>) {
        let number = ActNumber(self.acts.len() as u64 + self.written.len() as u64 + 1);
        let (destination, selector, edit) = (Some("d".to_owned()), Some(selector), edit.map(Arc::new));
        let (next, done, left) = (Position(0), 0, 0);
        self.acts.push(Act { number, shard: SHARD, verb, destination, selector, edit, next, done, left });
    }

    /// Lets time pass, with a tick whenever one is due.
    pub fn pass_ms(&mut self, ms: u64) {
        let end = self.now.mono_us + ms * 1_000;
        while let Some(at) = self.instance.deadline_us(self.now).filter(|at| *at <= end) {
            self.to(at);
            self.ticks += 1;
            self.give(Input::Tick);
        }
        self.to(end);
    }

    fn to(&mut self, mono_us: u64) {
        self.now.wall_us += (mono_us - self.now.mono_us) as i64;
        self.now.mono_us = mono_us;
    }

    /// Answers the oldest send.
    pub fn answer_send(&mut self, outcomes: Vec<Outcome>) {
        let (_, batch) = self.sends.front().expect("nothing is sent");
        assert_eq!(batch.messages.len(), outcomes.len(), "{batch:?}");
        self.answer_nth(0, outcomes);
    }

    /// Answers every send of a slot that is or will be under way within so many milliseconds, each message alike.
    /// Returns the ids that were answered.
    pub fn answer_slots(&mut self, ms: u64, slots: &[u32], outcome: &Outcome) -> Vec<String> {
        let (end, mut answered) = (self.now.mono_us + ms * 1_000, Vec::new());
        loop {
            while let Some(n) = self.sends.iter().position(|(_, b)| slots.contains(&b.slot)) {
                let ids: Vec<String> = self.sends[n].1.messages.iter().map(|m| m.id.clone()).collect();
                self.answer_nth(n, vec![outcome.clone(); ids.len()]);
                answered.extend(ids);
            }
            let left_us = end.saturating_sub(self.now.mono_us);
            if left_us == 0 {
                return answered;
            }
            self.pass_ms(left_us.div_ceil(1_000).min(5));
        }
    }

    /// Answers every send that is or will be under way within so many milliseconds, each message by what `of` says.
    pub fn answer_each(&mut self, ms: u64, of: impl Fn(&Message) -> Outcome) {
        let end = self.now.mono_us + ms * 1_000;
        loop {
            while let Some((_, batch)) = self.sends.front() {
                let outcomes = batch.messages.iter().map(|m| of(m)).collect();
                self.answer_nth(0, outcomes);
            }
            let left_us = end.saturating_sub(self.now.mono_us);
            if left_us == 0 {
                return;
            }
            self.pass_ms(left_us.div_ceil(1_000).min(5));
        }
    }

    fn answer_nth(&mut self, n: usize, outcomes: Vec<Outcome>) {
        let (epoch, batch) = self.sends.remove(n).expect("nothing is sent");
        let (slot, batch) = (batch.slot, batch.batch);
        self.give(Input::Answer { shard: SHARD, epoch, destination: LANE, slot, batch, outcomes });
    }

    /// The ids of each send without an answer.
    pub fn sent(&self) -> Vec<Vec<&str>> {
        self.sends.iter().map(|(_, b)| b.messages.iter().map(|m| m.id.as_str()).collect()).collect()
    }

    /// Answers the oldest start or verification that was held.
    pub fn answer_held(&mut self) {
        let command = self.held.pop_front().expect("nothing is held");
        let held = std::mem::replace(&mut self.starts_held, false);
        let answer = self.answer(command).expect("an answer");
        self.starts_held = held;
        self.give(answer);
    }

    /// The destination is down for what is sent next, and is started anew; it is found to have forgotten these.
    pub fn restart(&mut self, forgotten: &[u64]) {
        self.forgotten = forgotten.iter().map(|p| Position(*p)).collect();
        let outcomes = vec![down(); self.sends.front().expect("nothing is sent").1.messages.len()];
        self.answer_send(outcomes);
    }

    pub fn report(&self) -> LeaseReport {
        let (owner, epoch, expired) = self.lease.clone();
        LeaseReport {
            leases: vec![LeaseRow { shard: SHARD, owner, epoch: Epoch(epoch), expired }],
            instances: std::iter::once(InstanceRow { owner: "me".into(), draining: false, config: String::new() })
                .chain(self.others.iter().cloned())
                .collect(),
        }
    }

    fn answer(&mut self, command: Command) -> Option<Input> {
        Some(match command {
            Command::LeaseRound { .. } if self.leases_held => return None,
            Command::LeaseRound { release, acquire, .. } => {
                if release.contains(&(SHARD, Epoch(self.lease.1))) {
                    self.lease.0 = None;
                } else if acquire.contains(&SHARD) && (self.lease.0.is_none() || self.lease.2) {
                    self.lease = (Some("me".into()), self.lease.1 + 1, false);
                }
                Input::Leases(Some(self.report()))
            }
            Command::Recover { shard, epoch } => {
                let (log_end, next_number) = (Position(self.log_end), self.number);
                let lanes = self.checkpoints.last().map(|c| c.shards[0].receipts.clone()).unwrap_or_default();
                let found =
                    Recovered { log_end, next_number, lanes, paused: self.paused.clone(), ..Recovered::default() };
                Input::Recovered { shard, epoch, found: Some(Box::new(found)) }
            }
            Command::Read { token, kind, ranges, .. } => {
                let inside = |r: &&Row| ranges.iter().any(|run| run.first <= r.seq.0 && r.seq.0 <= run.last);
                let input =
                    Input::Rows { token, rows: Some((self.table.iter().filter(inside).cloned().collect(), false)) };
                if kind == ReadKind::Poll && self.polls_held {
                    self.poll = Some(input);
                    return None;
                }
                if kind == ReadKind::Rescan && self.rescans_held {
                    self.rescan = Some(input);
                    return None;
                }
                input
            }
            Command::Start { .. } | Command::Verify { .. } if self.starts_held => {
                self.held.push_back(command);
                return None;
            }
            Command::Start { destination, start, .. } => {
                self.starts = start;
                let ready = Ready { proves_later: self.proves_later, unchanged: self.unchanged };
                let result = if self.start_fails { Err(Reason::new("OUT-9001", "down")) } else { Ok(ready) };
                Input::Started { destination, start, result }
            }
            Command::Verify { shard, epoch, destination, start, recent, unproven_from, .. } => {
                let from = |r: &&LaneReceipt| unproven_from.is_some_and(|from| r.position >= from);
                let unproven = self.unproven.iter().filter(from).cloned().collect();
                self.verified.push(recent.iter().map(|r| r.position.0).collect());
                let forgotten = std::mem::take(&mut self.forgotten);
                let found = Ok(Verification { forgotten, unproven });
                Input::Verified { shard, epoch, destination, start, found }
            }
            Command::Prove { .. } if self.proofs_held => {
                self.held.push_back(command);
                return None;
            }
            Command::Prove { destination, start, receipts } => {
                self.asked.push(receipts.len());
                let proven = match &self.proven_below {
                    Ok(below) => Ok(receipts.iter().map(|r| r.sent_at_us < *below).collect()),
                    Err(reason) => Err(reason.clone()),
                };
                Input::Proven { destination, start, proven }
            }
            Command::ReadLog { shard, epoch, destination, from, .. } => {
                let moved = self.checkpoints.iter().flat_map(|c| &c.shards[0].moved);
                let messages = moved.filter(|m| m.position >= from).take(self.log_read).cloned().collect();
                Input::Log { shard, epoch, destination, messages: Some(messages) }
            }
            Command::LookAhead { .. } => Input::Ahead(Some(Upcoming::default())),
            Command::Resolve { .. } => Input::Resolved(self.table.iter().map(|r| r.seq).max()),
            Command::Checkpoint(_) if self.checkpoints_fail => Input::Checkpointed(CheckpointAnswer::NotWritten),
            Command::Checkpoint(checkpoint) => {
                if self.outcome == ShardOutcome::Written {
                    let moved = &checkpoint.shards[0].moved;
                    self.table.retain(|r| moved.iter().all(|m| m.seq != r.seq));
                    self.log_end += moved.len() as u64;
                    self.number += 1;
                    for write in &checkpoint.shards[0].acts {
                        self.acts.retain(|a| a.number != write.number || write.state == ActState::Open);
                        self.written.push(write.clone());
                    }
                    checkpoint.shards[0].parked.iter().for_each(|write| park(&mut self.parked, write));
                }
                self.checkpoints.push(checkpoint);
                let outcome = std::mem::replace(&mut self.outcome, ShardOutcome::Written);
                Input::Checkpointed(CheckpointAnswer::Committed(vec![outcome]))
            }
            Command::Send { epoch, batch, .. } => {
                self.sends.push_back((epoch, batch));
                return None;
            }
            Command::Event(event) => {
                self.events.push(event);
                return None;
            }
            Command::Stopped => {
                self.stopped = true;
                return None;
            }
            Command::ReadParked { shard, epoch, destination, positions } => {
                self.parked_reads = self.parked_reads.max(positions.len());
                let of = |p: &Position| self.parked.get(&("d".to_owned(), *p)).map(|(_, message)| message.clone());
                let messages = Some(positions.iter().filter_map(of).collect());
                Input::Parked { shard, epoch, destination, messages, positions }
            }
            Command::ReadActs { shards } => Input::Acts { shards, acts: Some(self.acts.clone()) },
            Command::FindParked { shard, epoch, act, destination, selector, from, limit, .. } => {
                let fits = |e: &ParkedEntry| {
                    e.destination == destination
                        && e.position >= from
                        && selector.position.is_none_or(|p| p == e.position)
                        && selector.key.as_ref().is_none_or(|key| e.key.as_ref() == Some(key))
                        && selector.code.as_ref().is_none_or(|code| e.error_code == *code)
                };
                let found = self.parked.values().filter(|(e, _)| fits(e)).take(limit);
                let found = found.map(|(e, m)| FoundParked { entry: e.clone(), message: Some(m.clone()) }).collect();
                Input::FoundParked { shard, epoch, act, found: Some(found) }
            }
            // A test that gets here wants more of a database than this is.
            other => panic!("not answered: {other:?}"),
        })
    }
}

fn park(parked: &mut BTreeMap<(String, Position), (ParkedEntry, Arc<Message>)>, write: &ParkedWrite) {
    match write {
        ParkedWrite::Insert { entry, message } => {
            parked.insert((entry.destination.clone(), entry.position), (entry.clone(), message.clone()));
        }
        ParkedWrite::Update(entry) | ParkedWrite::Replace { entry, .. } => {
            let row = parked.get_mut(&(entry.destination.clone(), entry.position)).expect("a row to update");
            let before = std::mem::replace(&mut row.0, entry.clone());
            if entry.error_code.is_empty() {
                (row.0.error_code, row.0.error_text) = (before.error_code, before.error_text);
            }
            if let ParkedWrite::Replace { message, .. } = write {
                row.1 = message.clone();
            }
        }
        ParkedWrite::Remove { destination, position, .. } => {
            parked.remove(&(destination.clone(), *position)).expect("a row to remove");
        }
    }
}
