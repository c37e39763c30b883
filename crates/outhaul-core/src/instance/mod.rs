//! An instance: all shards of one outbox that this process owns, and what it does about them.
//!
//! ```text
//!            free ──acquired──▶ recovering ──recovered──▶ running ──hand-over or stop──▶ draining ──▶ released
//!             ▲                                              │ │                             │
//!             └────────── let go ◀──────────── mismatch ───────┘ └──────── fenced ─────────────┴──▶ forgotten
//! ```
//!
//! Invariants, checked by the simulator after every run:
//! - a row is known ([`crate::intake`]) from the moment it is taken until it is gone from the table for certain;
//! - positions are given in the order in which rows are taken, which within one read is that of `seq`, and only become
//!   true with the checkpoint that moves them;
//! - a lane sends nothing before a checkpoint of this epoch has committed, nothing whose answer could come after the
//!   lease, and nothing that is settled;
//! - a lease counts from the beginning of a round that renewed it, never from one that found it acquired: that may have
//!   been done by an earlier round whose answer was lost;
//! - a checkpoint that is not answered is asked about until it is known; what it took comes back if it did not commit;
//! - an owner that is fenced forgets all it held.

mod destinations;
mod drive;
mod event;
mod leases;

use std::collections::BTreeMap;
use std::sync::Arc;

use destinations::Target;
pub use event::Event;

use crate::checkpoint::{Checkpoint, ShardOutcome};
use crate::config::{Config, Jitter, Now};
use crate::destination::DestinationIndex;
use crate::intake::{Intake, ReadToken};
use crate::lane::{LaneView, RecentReceipt, SendBatch, Verification};
use crate::lease::LeaseReport;
use crate::message::{Epoch, Message, Position, Row, Seq, ShardId};
use crate::parked::ParkedEntry;
use crate::pipeline::{Pipeline, PipelineShare};
use crate::receipt::{AckLevel, Outcome, Reason, Receipt, ReceiptRow};
use crate::runs::Run;

/// What an owner needs to go on where the last one stopped.
#[derive(Clone, Debug, Default)]
pub struct Recovered {
    /// End of the log.
    pub log_end: Position,
    /// Number for the next receipt row.
    pub next_number: u64,
    /// The newest receipt row.
    pub lanes: ReceiptRow,
    /// Parked rows without content, by destination and rising position.
    pub parked: Vec<ParkedEntry>,
}

/// What comes in.
#[derive(Debug)]
pub enum Input {
    /// Nothing but the time.
    Tick,
    /// Answer to [`Command::LeaseRound`]. None: it failed; any part of it may have been done.
    Leases(Option<LeaseReport>),
    /// Answer to [`Command::Recover`]. None: it failed.
    Recovered {
        /// Shard.
        shard: ShardId,
        /// Epoch of the command.
        epoch: Epoch,
        /// What was found.
        found: Option<Box<Recovered>>,
    },
    /// Answer to [`Command::Read`]. None: it failed.
    Rows {
        /// Number of the read.
        token: ReadToken,
        /// The rows by rising `seq`, and whether a limit cut the answer.
        rows: Option<(Vec<Row>, bool)>,
    },
    /// Answer to [`Command::Resolve`]. None: it failed.
    Resolved(Option<Seq>),
    /// Answer to [`Command::Checkpoint`].
    Checkpointed(CheckpointAnswer),
    /// Answer to [`Command::Confirm`]: for each shard of the checkpoint Written, Fenced, or None for not applied. None
    /// as a whole: not known yet.
    Confirmed(Option<Vec<Option<ShardOutcome>>>),
    /// Answer to [`Command::ReadLog`], without messages below the position that was asked for. None: it failed.
    Log {
        /// Shard.
        shard: ShardId,
        /// Epoch of the command.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// Messages by rising position. Empty: the log ends there.
        messages: Option<Vec<Arc<Message>>>,
    },
    /// Answer to [`Command::ReadParked`]. None: it failed.
    Parked {
        /// Shard.
        shard: ShardId,
        /// Epoch of the command.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// What was asked for.
        positions: Vec<Position>,
        /// Those that exist.
        messages: Option<Vec<Arc<Message>>>,
    },
    /// Answer to [`Command::Start`]. The error: it cannot be sent to now.
    Started {
        /// Destination.
        destination: DestinationIndex,
        /// Number of the start.
        start: u64,
        /// What was found.
        result: Result<Ready, Reason>,
    },
    /// Answer to [`Command::Verify`]. The error: it could not be found out.
    Verified {
        /// Shard.
        shard: ShardId,
        /// Epoch of the command.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// Number of the start.
        start: u64,
        /// What was found.
        found: Result<Verification, Reason>,
    },
    /// Answer to [`Command::Prove`]. The error: it could not be found out, and the destination is started anew, since what
    /// is not proven may be gone.
    Proven {
        /// Destination.
        destination: DestinationIndex,
        /// Number of the start.
        start: u64,
        /// Which have reached the demanded level: one answer for each receipt, in their order.
        proven: Result<Vec<bool>, Reason>,
    },
    /// Answer to [`Command::Send`] that came too late: a start of the destination had begun, nothing was sent.
    NotSent {
        /// Shard.
        shard: ShardId,
        /// Epoch of the command.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// Slot.
        slot: u32,
        /// Number of the batch.
        batch: u64,
    },
    /// Answer to [`Command::Send`].
    Answer {
        /// Shard.
        shard: ShardId,
        /// Epoch of the command.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// Slot.
        slot: u32,
        /// Number of the batch.
        batch: u64,
        /// One outcome a message. What is missing counts as Unknown.
        outcomes: Vec<Outcome>,
    },
    /// Drain, checkpoint, release, stop.
    Drain,
    /// The same, as soon as all that was committed before now is settled.
    DrainWhenEmpty,
}

/// What a destination said when it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// The level that its acknowledgements reach some time after they were given. None: what they prove they prove at
    /// once.
    pub proves_later: Option<AckLevel>,
    /// Nothing has changed since the start before, which succeeded: no connection was made anew, so nothing was forgotten.
    pub unchanged: bool,
}

/// How a checkpoint ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckpointAnswer {
    /// It committed; one outcome a shard.
    Committed(Vec<ShardOutcome>),
    /// Nothing was written.
    NotWritten,
    /// The answer to COMMIT was lost.
    Unknown,
}

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadKind {
    /// New rows and open gaps.
    Poll,
    /// The whole table.
    Rescan,
}

/// What has to be done. Every command but [`Command::Event`] and [`Command::Stopped`] is answered by one input; at most
/// one lease round, poll, rescan, resolve and checkpoint are under way at a time, and one recovery a shard.
#[derive(Debug)]
pub enum Command {
    /// Heartbeat, renew, release, acquire, and show the result.
    LeaseRound {
        /// Shards to renew.
        renew: Vec<(ShardId, Epoch)>,
        /// Shards to release.
        release: Vec<(ShardId, Epoch)>,
        /// Shards to acquire.
        acquire: Vec<ShardId>,
        /// Whether this instance takes no more shards.
        draining: bool,
        /// The last round: leave the list of instances.
        leave: bool,
    },
    /// Read what a shard's owner needs.
    Recover {
        /// Shard.
        shard: ShardId,
        /// Epoch, for the answer.
        epoch: Epoch,
    },
    /// Read rows.
    Read {
        /// Number of the read, for the answer.
        token: ReadToken,
        /// What for.
        kind: ReadKind,
        /// Shards.
        shards: Vec<ShardId>,
        /// Ranges of `seq`.
        ranges: Vec<Run>,
        /// Most rows.
        limit: u32,
        /// Most payload bytes.
        max_bytes: usize,
    },
    /// Ask what is resolved.
    Resolve {
        /// The largest `seq` taken.
        seen: Seq,
    },
    /// Write a checkpoint.
    Checkpoint(Arc<Checkpoint>),
    /// Ask whether a checkpoint was applied.
    Confirm(Arc<Checkpoint>),
    /// Read from the log.
    ReadLog {
        /// Shard.
        shard: ShardId,
        /// Epoch, for the answer.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// From here.
        from: Position,
    },
    /// Read the content of parked messages.
    ReadParked {
        /// Shard.
        shard: ShardId,
        /// Epoch, for the answer.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// Which.
        positions: Vec<Position>,
    },
    /// Make a destination ready: before the first batch, and again after it was down. No batch begins until it is.
    Start {
        /// Destination.
        destination: DestinationIndex,
        /// Number of the start, rising.
        start: u64,
        /// Limit, milliseconds.
        limit_ms: u64,
    },
    /// Find out what a destination still has of what it acknowledged to a lane: from `recent` (oldest first) and then
    /// from the stored receipts, newest first, as far as the destination asks for them.
    Verify {
        /// Shard.
        shard: ShardId,
        /// Epoch, for the answer.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// Number of the start.
        start: u64,
        /// Acknowledgements that may not be stored yet.
        recent: Vec<RecentReceipt>,
        /// Bring all receipts at or above this position along.
        unproven_from: Option<Position>,
        /// Beyond this many forgotten messages it need not be looked any further.
        max_forgotten: u64,
    },
    /// Find out which acknowledgements, of all shards, have reached the demanded level by now; with none: whether the
    /// destination is still the one that was started.
    Prove {
        /// Destination.
        destination: DestinationIndex,
        /// Number of the start.
        start: u64,
        /// The receipts.
        receipts: Vec<Receipt>,
    },
    /// Send a batch.
    Send {
        /// Shard.
        shard: ShardId,
        /// Epoch, for the answer.
        epoch: Epoch,
        /// Lane.
        destination: DestinationIndex,
        /// Batch.
        batch: SendBatch,
    },
    /// Something to log and count.
    Event(Event),
    /// All is drained and released: nothing more will come.
    Stopped,
}

/// A shard that is owned.
#[derive(Debug)]
struct Owned {
    epoch: Epoch,
    /// Until when the lease holds for certain, microseconds of the monotonic clock.
    lease_until_us: u64,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Recovering {
        under_way: bool,
        retry_at_us: u64,
        failures: u32,
    },
    /// The database is not as this owner left it, or its epoch was used before. It lets go: whoever acquires the shard
    /// recovers it under a new epoch, so that no answer to an older command can be taken for one of its own.
    LetGo,
    Running(Box<Pipeline>),
}

/// When a repeated call is next due, and whether it is under way.
#[derive(Debug, Default)]
struct Cadence {
    under_way: bool,
    next_at_us: u64,
    began_at_us: u64,
    failures: u32,
}

#[derive(Debug)]
enum Writing {
    /// COMMIT was not answered yet.
    Begun,
    /// It is not known whether it was applied.
    Unknown { asking: bool, ask_at_us: u64, failures: u32 },
}

#[derive(Debug)]
struct InCheckpoint {
    checkpoint: Arc<Checkpoint>,
    shares: Vec<PipelineShare>,
    writing: Writing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Running,
    Draining,
    /// The last lease round is under way.
    Leaving,
    Stopped,
}

#[derive(Debug, Default)]
enum UntilEmpty {
    #[default]
    Off,
    /// Waits for a complete poll of all shards that began after this read.
    Looking(Option<ReadToken>),
    /// All that was committed lies below these positions.
    Below(BTreeMap<ShardId, Position>),
}

/// The state machine of an instance.
#[derive(Debug)]
pub struct Instance {
    config: Config,
    names: Arc<[String]>,
    intake: Intake,
    shards: BTreeMap<ShardId, Owned>,
    jitter: Jitter,
    leases: Cadence,
    report: LeaseReport,
    /// When the round of the report began, and the first round that was answered, microseconds of the monotonic clock.
    report_at_us: u64,
    first_report_at_us: Option<u64>,
    /// What the newest lease round was to release.
    releasing: Vec<(ShardId, Epoch)>,
    /// The newest epoch and log end of each shard that this process has had: a restored backup can show older ones.
    had: BTreeMap<ShardId, (Epoch, Position)>,
    poll: Cadence,
    poll_read: Option<(ReadToken, Vec<ShardId>)>,
    poll_wait_us: u64,
    /// When a read brought a new row last.
    newest_row_at_us: u64,
    rescan: Cadence,
    rescan_read: Option<(ReadToken, Vec<ShardId>)>,
    resolve: Cadence,
    checkpoint: Option<InCheckpoint>,
    checkpoint_not_before_us: u64,
    checkpoint_failures: u32,
    targets: Vec<Target>,
    mode: Mode,
    until_empty: UntilEmpty,
    commands: std::collections::VecDeque<Command>,
}

/// A shard as others may see it.
#[derive(Clone, Debug)]
pub struct ShardView {
    /// Shard.
    pub shard: ShardId,
    /// Epoch.
    pub epoch: Epoch,
    /// Whether it is running, that is recovered.
    pub running: bool,
    /// End of the log.
    pub log_end: Position,
    /// Rows read and not moved yet.
    pub unmoved_rows: usize,
    /// Bytes of messages in memory.
    pub memory_bytes: usize,
    /// Lanes.
    pub lanes: Vec<LaneView>,
}

impl Instance {
    /// An instance that owns nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            targets: config.indexes().map(|_| Target::default()).collect(),
            names: config.names(),
            jitter: Jitter::new(config.seed),
            poll_wait_us: config.settings.poll_busy_us,
            newest_row_at_us: 0,
            config,
            intake: Intake::default(),
            shards: BTreeMap::new(),
            leases: Cadence::default(),
            report: LeaseReport::default(),
            report_at_us: 0,
            first_report_at_us: None,
            releasing: Vec::new(),
            had: BTreeMap::new(),
            poll: Cadence::default(),
            poll_read: None,
            rescan: Cadence::default(),
            rescan_read: None,
            resolve: Cadence::default(),
            checkpoint: None,
            checkpoint_not_before_us: 0,
            checkpoint_failures: 0,
            mode: Mode::Running,
            until_empty: UntilEmpty::Off,
            commands: std::collections::VecDeque::new(),
        }
    }

    /// The next command, in the order in which they must begin.
    pub fn next_command(&mut self) -> Option<Command> {
        self.commands.pop_front()
    }

    /// Names of the destinations, by index.
    pub fn destinations(&self) -> Arc<[String]> {
        self.names.clone()
    }

    /// The shards as others may see them.
    pub fn view(&self) -> Vec<ShardView> {
        self.shards
            .iter()
            .map(|(shard, owned)| match &owned.phase {
                Phase::Running(p) => ShardView {
                    shard: *shard,
                    epoch: owned.epoch,
                    running: true,
                    log_end: p.log_end(),
                    unmoved_rows: p.unmoved().0,
                    memory_bytes: p.memory(),
                    lanes: p.lanes().iter().map(crate::lane::Lane::view).collect(),
                },
                Phase::Recovering { .. } | Phase::LetGo => ShardView {
                    shard: *shard,
                    epoch: owned.epoch,
                    running: false,
                    log_end: Position(0),
                    unmoved_rows: 0,
                    memory_bytes: 0,
                    lanes: Vec::new(),
                },
            })
            .collect()
    }

    /// Runs of `seq` in memory, as a measure of what the intake holds.
    pub fn intake_runs(&self) -> usize {
        self.intake.run_count()
    }

    /// Handles one input and works out what has to be done now.
    pub fn handle(&mut self, now: Now, input: Input) {
        match input {
            Input::Tick => {}
            Input::Leases(report) => self.on_leases(now, report),
            Input::Recovered { shard, epoch, found } => self.on_recovered(now, shard, epoch, found),
            Input::Rows { token, rows } => self.on_rows(now, token, rows),
            Input::Resolved(seq) => self.on_resolved(now, seq),
            Input::Checkpointed(answer) => self.on_checkpointed(now, answer),
            Input::Confirmed(answer) => self.on_confirmed(now, answer),
            Input::Log { shard, epoch, destination, messages } => {
                if let Some(lane) = self.lane(shard, epoch, destination) {
                    lane.on_log(messages, now);
                }
            }
            Input::Parked { shard, epoch, destination, positions, messages } => {
                let mut jitter = self.jitter.clone();
                if let Some(lane) = self.lane(shard, epoch, destination) {
                    lane.on_parked(&positions, messages, now, &mut jitter);
                }
                self.jitter = jitter;
            }
            Input::Answer { shard, epoch, destination, slot, batch, outcomes } => {
                let mut jitter = self.jitter.clone();
                let mut events = Vec::new();
                let lane = self.lane(shard, epoch, destination);
                let down = lane.and_then(|lane| lane.on_answer(slot, batch, outcomes, now, &mut jitter, &mut events));
                self.jitter = jitter;
                self.tell(events);
                if let Some(start) = down {
                    self.restart(now, destination, start);
                }
            }
            Input::NotSent { shard, epoch, destination, slot, batch } => {
                if let Some(lane) = self.lane(shard, epoch, destination) {
                    lane.on_not_sent(slot, batch, now);
                }
            }
            Input::Started { destination, start, result } => self.on_started(now, destination, start, result),
            Input::Verified { shard, epoch, destination, start, found } => {
                let mut jitter = self.jitter.clone();
                let mut events = Vec::new();
                if let Some(lane) = self.lane(shard, epoch, destination) {
                    lane.on_verified(start, found, now, &mut jitter, &mut events);
                }
                self.jitter = jitter;
                self.tell(events);
            }
            Input::Proven { destination, start, proven } => self.on_proven(now, destination, start, proven),
            Input::Drain => self.drain(),
            Input::DrainWhenEmpty => {
                if matches!(self.until_empty, UntilEmpty::Off) {
                    self.until_empty = UntilEmpty::Looking(None);
                }
            }
        }
        self.drive(now);
    }

    fn lane(&mut self, shard: ShardId, epoch: Epoch, destination: DestinationIndex) -> Option<&mut crate::lane::Lane> {
        self.pipeline(shard, epoch)?.lane_mut(destination)
    }

    fn pipeline(&mut self, shard: ShardId, epoch: Epoch) -> Option<&mut Pipeline> {
        match &mut self.shards.get_mut(&shard).filter(|o| o.epoch == epoch)?.phase {
            Phase::Running(p) => Some(p),
            Phase::Recovering { .. } | Phase::LetGo => None,
        }
    }

    fn pipelines(&self) -> impl Iterator<Item = (ShardId, &Pipeline)> {
        self.shards.iter().filter_map(|(s, o)| match &o.phase {
            Phase::Running(p) => Some((*s, p.as_ref())),
            Phase::Recovering { .. } | Phase::LetGo => None,
        })
    }

    fn tell(&mut self, events: Vec<Event>) {
        self.commands.extend(events.into_iter().map(Command::Event));
    }
}
