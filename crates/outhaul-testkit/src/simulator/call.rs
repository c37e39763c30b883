//! Calls of the database: on their way, executed, failed, and answered.

use std::sync::Arc;

use outhaul_core::act::{ActNumber, Selector};
use outhaul_core::checkpoint::Checkpoint;
use outhaul_core::destination::DestinationIndex;
use outhaul_core::instance::{CheckpointAnswer, Command, Input, ReadKind};
use outhaul_core::intake::ReadToken;
use outhaul_core::message::{Epoch, Position, Row, Seq, ShardId};
use outhaul_core::runs::Run;

use super::Deliberate;
use super::database::Round;
use super::process::Life;
use super::scenario::MS;
use super::world::{Event, World};

/// A call that waits for a lock, or for a database that does not answer, fails after this long, microseconds.
const CALL_LIMIT: u64 = 1_500 * MS;
/// Most messages that a read of the log brings.
const LOG_READ: usize = 20;

/// A call.
#[derive(Clone, Debug)]
pub(super) enum Call {
    Round(Round),
    Recover(ShardId, Epoch),
    Read(Box<Read>),
    Ahead(Vec<ShardId>, Vec<Run>, usize),
    Resolve,
    Checkpoint(Arc<Checkpoint>),
    Confirm(Arc<Checkpoint>),
    Log(ShardId, Epoch, DestinationIndex, Position, bool),
    Parked(ShardId, Epoch, DestinationIndex, Vec<Position>),
    Acts(Vec<(ShardId, Epoch)>),
    Find(Box<Find>),
}

/// A look for the parked rows that an act selects.
#[derive(Clone, Debug)]
pub(super) struct Find {
    shard: ShardId,
    epoch: Epoch,
    act: ActNumber,
    destination: String,
    selector: Selector,
    from: Position,
    limit: usize,
    content: bool,
}

/// A read of the outbox.
#[derive(Clone, Debug)]
pub(super) struct Read {
    token: ReadToken,
    kind: ReadKind,
    shards: Vec<ShardId>,
    ranges: Vec<Run>,
    limit: u32,
    max_bytes: usize,
    /// What an earlier statement of this read has found: only with the fault of that name.
    found: Vec<Row>,
}

/// A checkpoint whose transaction is open.
#[derive(Clone, Debug)]
pub(super) struct OpenCheckpoint {
    process: usize,
    ticket: u64,
    checkpoint: Arc<Checkpoint>,
    ends_at: u64,
    commits: bool,
    /// How long the answer takes after the end. None: it is lost.
    answer_us: Option<u64>,
}

impl Call {
    /// The call that a command asks for, if it is one.
    pub(super) fn of(command: &Command, owner: &str) -> Option<Self> {
        Some(match command {
            Command::LeaseRound { renew, release, acquire, draining, leave, .. } => Self::Round(Round {
                owner: owner.to_owned(),
                draining: *draining,
                renew: renew.clone(),
                release: release.clone(),
                acquire: acquire.clone(),
                leave: *leave,
            }),
            Command::Recover { shard, epoch } => Self::Recover(*shard, *epoch),
            Command::Read { token, kind, shards, ranges, limit, max_bytes } => Self::Read(Box::new(Read {
                token: *token,
                kind: *kind,
                shards: shards.clone(),
                ranges: ranges.clone(),
                limit: *limit,
                max_bytes: *max_bytes,
                found: Vec::new(),
            })),
            Command::LookAhead { shards, ranges, limit } => Self::Ahead(shards.clone(), ranges.clone(), *limit),
            Command::Resolve { .. } => Self::Resolve,
            Command::Checkpoint(c) => Self::Checkpoint(c.clone()),
            Command::Confirm(c) => Self::Confirm(c.clone()),
            Command::ReadLog { shard, epoch, destination, from, edited } => {
                Self::Log(*shard, *epoch, *destination, *from, *edited)
            }
            Command::ReadParked { shard, epoch, destination, positions } => {
                Self::Parked(*shard, *epoch, *destination, positions.clone())
            }
            Command::ReadActs { shards } => Self::Acts(shards.clone()),
            Command::FindParked { shard, epoch, act, destination, selector, from, limit, content } => {
                Self::Find(Box::new(Find {
                    shard: *shard,
                    epoch: *epoch,
                    act: *act,
                    destination: destination.clone(),
                    selector: selector.clone(),
                    from: *from,
                    limit: *limit,
                    content: *content,
                }))
            }
            Command::Start { .. }
            | Command::Verify { .. }
            | Command::Prove { .. }
            | Command::Send { .. }
            | Command::Event(_)
            | Command::Stopped => return None,
        })
    }

    /// The input for a call that failed.
    fn failed(&self) -> Input {
        match self {
            Self::Round(_) => Input::Leases(None),
            Self::Recover(shard, epoch) => Input::Recovered { shard: *shard, epoch: *epoch, found: None },
            Self::Read(read) => Input::Rows { token: read.token, rows: None },
            Self::Ahead(..) => Input::Ahead(None),
            Self::Resolve => Input::Resolved(None),
            Self::Checkpoint(_) => Input::Checkpointed(CheckpointAnswer::NotWritten),
            Self::Confirm(_) => Input::Confirmed(None),
            Self::Log(shard, epoch, destination, ..) => {
                Input::Log { shard: *shard, epoch: *epoch, destination: *destination, messages: None }
            }
            Self::Parked(shard, epoch, destination, positions) => Input::Parked {
                shard: *shard,
                epoch: *epoch,
                destination: *destination,
                positions: positions.clone(),
                messages: None,
            },
            Self::Acts(shards) => Input::Acts { shards: shards.clone(), acts: None },
            Self::Find(f) => Input::FoundParked { shard: f.shard, epoch: f.epoch, act: f.act, found: None },
        }
    }

    /// Whether it is one statement, which the server may carry out though its client is gone.
    const fn outlives_client(&self) -> bool {
        matches!(self, Self::Round(_))
    }
}

impl World {
    fn answer_after(&mut self, delay_us: u64, process: usize, ticket: u64, input: Input) {
        self.after(delay_us, Event::Answer { process, ticket, input });
    }

    /// How long a message to the database or back takes.
    pub(super) fn way_us(&mut self) -> u64 {
        self.dice.between((50, 1_500))
    }

    /// A call has reached the database.
    pub(super) fn call(&mut self, process: usize, ticket: u64, began: u64, call: Call) -> Result<(), String> {
        let client = self.processes[process].life;
        if client == Life::Killed && !(call.outlives_client() && self.dice.chance(500)) {
            return Ok(());
        }
        if self.db_is_away() || self.now < self.processes[process].cut_off_until {
            let refused = self.dice.chance(700);
            let delay = if refused { self.way_us() } else { CALL_LIMIT.saturating_sub(self.now - began) };
            self.answer_after(delay, process, ticket, call.failed());
            return Ok(());
        }
        if self.waits_for_lock(&call) {
            if self.now - began > CALL_LIMIT {
                self.answer_after(1, process, ticket, call.failed());
            } else {
                self.after(4 * MS, Event::Call { process, ticket, began, call });
            }
            return Ok(());
        }
        if self.dice.chance(self.scenario.database.failure) {
            return self.call_fails(process, ticket, call);
        }
        if let Call::Checkpoint(c) = call {
            self.checkpoint_begins(process, ticket, c);
            return Ok(());
        }
        self.execute(process, ticket, began, call)
    }

    fn waits_for_lock(&self, call: &Call) -> bool {
        match call {
            Call::Round(round) => self.db.round_waits(round),
            Call::Checkpoint(c) | Call::Confirm(c) => c.shards.iter().any(|s| self.db.is_locked(s.shard)),
            _ => false,
        }
    }

    /// Not done, done in part, or done late; in any case the caller learns nothing.
    fn call_fails(&mut self, process: usize, ticket: u64, call: Call) -> Result<(), String> {
        let mut delay = self.way_us();
        if let Call::Round(round) = &call {
            match self.dice.between((0, 2)) {
                0 => {
                    // What is done and what not is up to where the connection broke.
                    let mut left = self.dice.between((0, 6));
                    let does = || {
                        left = left.saturating_sub(1);
                        left > 0
                    };
                    self.db.lease_round(self.now, round, does);
                }
                1 => {
                    // The caller has given up, the server has not.
                    let late = self.dice.between((CALL_LIMIT / 4, CALL_LIMIT));
                    let round = round.clone();
                    self.after(late, Event::Late { round });
                    delay = late / 2;
                }
                _ => {}
            }
        }
        if let Call::Read(read) = &call
            && read.kind == ReadKind::Due
            && self.dice.chance(500)
        {
            self.db.make_ordinary(self.now, &read.shards, &read.ranges); // And nobody is told.
        }
        self.note(|| format!("a call fails: {call:?}"));
        self.answer_after(delay, process, ticket, call.failed());
        Ok(())
    }

    fn execute(&mut self, process: usize, ticket: u64, began: u64, call: Call) -> Result<(), String> {
        let slow = self.dice.chance(self.scenario.database.slow);
        let mut delay = if slow { self.dice.between((20 * MS, CALL_LIMIT / 2)) } else { self.way_us() };
        let input = match call {
            Call::Round(round) => {
                let (report, refused) = (self.db.lease_round(self.now, &round, || true), self.db.refuses(&round));
                if refused && self.processes[process].life == Life::Running {
                    self.ends_by_itself(process);
                    return Ok(());
                }
                Input::Leases(Some(report))
            }
            Call::Recover(shard, epoch) => {
                Input::Recovered { shard, epoch, found: Some(Box::new(self.db.recover(shard))) }
            }
            Call::Read(read) => match self.read(process, ticket, began, *read) {
                None => return Ok(()),
                Some((input, rescan)) => {
                    if rescan && self.dice.chance(self.scenario.database.slow) {
                        delay = self.dice.between((100 * MS, 2 * CALL_LIMIT));
                    }
                    input
                }
            },
            Call::Ahead(shards, ranges, limit) => {
                let found = self.db.ahead(self.now, &shards, &ranges, limit.min(self.limits.ahead));
                let owner = &self.processes[process].owner;
                if !found.rows.is_empty() {
                    let rows: Vec<_> = found.rows.iter().map(|r| (r.seq.0, r.due_at_us / 1_000)).collect();
                    let line =
                        format!("{owner} looks ahead and finds {rows:?}{}", if found.cut { ", cut" } else { "" });
                    self.note(|| line);
                }
                Input::Ahead(Some(found))
            }
            Call::Resolve => {
                // Some databases only know a weaker bound.
                let weaker = if self.dice.chance(200) { self.dice.between((0, 20)) } else { 0 };
                Input::Resolved(Some(Seq(self.db.resolved().0.saturating_sub(weaker))))
            }
            Call::Checkpoint(_) => return Ok(()),
            Call::Confirm(c) => {
                let answer = self.db.applied(&c);
                self.note(|| format!("a checkpoint was applied: {answer:?}"));
                Input::Confirmed(Some(answer))
            }
            Call::Log(shard, epoch, destination, from, edited) => {
                let mut messages = self.db.read_log(shard, from, LOG_READ);
                if edited {
                    let name = &self.limits.destinations[usize::from(destination.0)].name;
                    self.db.apply_edits(shard, name, &mut messages);
                }
                Input::Log { shard, epoch, destination, messages: Some(messages) }
            }
            Call::Parked(shard, epoch, destination, positions) => {
                let name = &self.limits.destinations[usize::from(destination.0)].name;
                let messages = Some(self.db.read_parked(shard, name, &positions));
                Input::Parked { shard, epoch, destination, positions, messages }
            }
            Call::Acts(shards) => {
                let acts = Some(self.db.open_acts(&shards));
                Input::Acts { shards, acts }
            }
            Call::Find(f) => {
                let mut found = self.db.find_parked(f.shard, &f.destination, &f.selector, f.from, f.limit);
                if !f.content {
                    found.iter_mut().for_each(|p| p.message = None);
                }
                let owner = self.processes[process].owner.clone();
                let positions: Vec<u64> = found.iter().map(|p| p.entry.position.0).collect();
                self.note(|| format!("{owner} finds {positions:?} of shard {} for act {}", f.shard, f.act));
                Input::FoundParked { shard: f.shard, epoch: f.epoch, act: f.act, found: Some(found) }
            }
        };
        self.answer_after(delay, process, ticket, input);
        Ok(())
    }

    /// One snapshot of the rows. None: with the fault of two statements, the second one is still to come.
    fn read(&mut self, process: usize, ticket: u64, began: u64, mut read: Read) -> Option<(Input, bool)> {
        let due = read.kind == ReadKind::Due;
        let unclaimed = self.deliberate == Some(Deliberate::DueNotClaimed);
        if due && !unclaimed {
            self.db.make_ordinary(self.now, &read.shards, &read.ranges);
        }
        let all = (due && unclaimed) || self.deliberate == Some(Deliberate::DueNotAwaited);
        let apart = self.deliberate == Some(Deliberate::GapsAndTailApart) && read.ranges.len() > 1;
        if apart && let Some(tail) = read.ranges.pop() {
            read.found = self.db.read(&read.shards, &read.ranges, read.limit, read.max_bytes, all).0;
            read.ranges = vec![tail];
            let delay = self.dice.between((MS, 20 * MS));
            self.after(delay, Event::Call { process, ticket, began, call: Call::Read(Box::new(read)) });
            return None;
        }
        let (rows, cut) = self.db.read(&read.shards, &read.ranges, read.limit, read.max_bytes, all);
        read.found.extend(rows);
        let owner = &self.processes[process].owner;
        if !read.found.is_empty() {
            let line = format!(
                "{owner} reads ({:?} {}) {:?}{}",
                read.kind,
                read.token.0,
                read.found.iter().map(|r| (r.seq.0, r.id.as_str())).collect::<Vec<_>>(),
                if cut { ", cut" } else { "" }
            );
            self.note(|| line);
        }
        let rescan = read.kind == ReadKind::Rescan;
        Some((Input::Rows { token: read.token, rows: Some((read.found, cut)) }, rescan))
    }

    // ---- checkpoints -----------------------------------------------------------------------------------------------

    /// The transaction has its locks. What becomes of it is decided here.
    fn checkpoint_begins(&mut self, process: usize, ticket: u64, checkpoint: Arc<Checkpoint>) {
        let transaction = self.next_number();
        let shards: Vec<ShardId> = checkpoint.shards.iter().map(|s| s.shard).collect();
        self.db.lock(transaction, &shards);
        let chances = self.scenario.database.clone();
        let takes = if self.dice.chance(chances.slow) { self.dice.between((10 * MS, 400 * MS)) } else { self.way_us() };
        let mut open = OpenCheckpoint {
            process,
            ticket,
            checkpoint,
            ends_at: self.now + takes,
            commits: true,
            answer_us: Some(self.way_us()),
        };
        if self.dice.chance(chances.not_written) {
            open.commits = false;
        } else if self.dice.chance(chances.unknown) {
            open.answer_us = None;
            open.commits = self.dice.chance(600);
            let given_up_after = if self.dice.chance(400) {
                open.ends_at += self.dice.between((10 * MS, CALL_LIMIT)); // It commits after its client has given up.
                takes
            } else {
                takes + self.way_us()
            };
            self.answer_after(given_up_after, process, ticket, Input::Checkpointed(CheckpointAnswer::Unknown));
        }
        let ends_in = open.ends_at - self.now;
        self.checkpoints.insert(transaction, open);
        self.after(ends_in, Event::CheckpointEnds { transaction });
    }

    /// COMMIT or ROLLBACK.
    pub(super) fn checkpoint_ends(&mut self, transaction: u64) -> Result<(), String> {
        let Some(open) = self.checkpoints.get(&transaction) else { return Ok(()) };
        if open.ends_at > self.now {
            let wait = open.ends_at - self.now;
            self.after(wait, Event::CheckpointEnds { transaction });
            return Ok(());
        }
        let Some(open) = self.checkpoints.remove(&transaction) else { return Ok(()) };
        self.db.unlock(transaction);
        let answer = if open.commits {
            let applied = self.db.apply(&open.checkpoint, &self.ledger)?;
            for (number, destinations) in &applied.moved {
                self.ledger.entries[*number].destinations = *destinations;
            }
            self.acts_are_written(&open.checkpoint, &applied)?;
            self.check_proven(&open.checkpoint, &applied.outcomes)?;
            let owner = &open.checkpoint.owner;
            let parts = open.checkpoint.shards.iter().zip(&applied.outcomes);
            let line = parts
                .map(|(s, o)| {
                    format!(" [shard {} epoch {} #{} {}..{} {o:?}]", s.shard, s.epoch, s.number, s.base, s.log_end())
                })
                .collect::<String>();
            let line = format!("{owner} commits a checkpoint:{line}");
            self.note(|| line);
            CheckpointAnswer::Committed(applied.outcomes)
        } else {
            self.note(|| format!("a checkpoint of {} rolls back", open.checkpoint.owner));
            CheckpointAnswer::NotWritten
        };
        if let Some(delay) = open.answer_us {
            self.answer_after(delay, open.process, open.ticket, Input::Checkpointed(answer));
        }
        Ok(())
    }

    /// All connections are cut: what was not committed is rolled back, what was is not answered.
    pub(super) fn checkpoints_are_cut(&mut self) -> Result<(), String> {
        let open: Vec<u64> = self.checkpoints.keys().copied().collect();
        for transaction in open {
            let commits = self.dice.chance(400);
            let now = self.now;
            if let Some(open) = self.checkpoints.get_mut(&transaction) {
                open.commits &= commits;
                open.ends_at = now;
                open.answer_us = None;
                let (process, ticket) = (open.process, open.ticket);
                self.answer_after(1, process, ticket, Input::Checkpointed(CheckpointAnswer::Unknown));
            }
            self.checkpoint_ends(transaction)?;
        }
        Ok(())
    }

    /// The connection of a process is cut: its transaction goes on or not, and it is not told.
    pub(super) fn checkpoint_is_not_answered(&mut self, process: usize) {
        let commits = self.dice.chance(500);
        let open = self.checkpoints.values_mut().find(|o| o.process == process);
        let ticket = open.and_then(|open| {
            open.commits &= commits;
            open.answer_us.take().map(|_| open.ticket)
        });
        if let Some(ticket) = ticket {
            self.answer_after(CALL_LIMIT, process, ticket, Input::Checkpointed(CheckpointAnswer::Unknown));
        }
    }

    /// What becomes of a process's transaction when it is killed (perhaps rolled back) or paused (perhaps held open).
    pub(super) fn checkpoint_loses_client(&mut self, process: usize, paused_until: Option<u64>) {
        let disturbed = self.dice.chance(400);
        for open in self.checkpoints.values_mut().filter(|o| o.process == process && disturbed) {
            match paused_until {
                Some(at) => open.ends_at = at,
                None => open.commits = false,
            }
        }
    }
}
