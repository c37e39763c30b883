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
//! - an owner that is fenced forgets all it held;
//! - a lane that is paused begins no batch, and what was skipped or edited is not sent as it was, from the commit of the
//!   checkpoint on that says so.

mod acts;
mod destinations;
mod drive;
mod event;
mod exchange;
mod leases;
mod refusals;
mod schedule;

use std::collections::BTreeMap;
use std::sync::Arc;

use destinations::Target;
pub use event::Event;
pub use exchange::{CheckpointAnswer, Command, Input, ReadKind, Ready, Recovered};
use refusals::Refusals;

use crate::checkpoint::Checkpoint;
use crate::config::{Config, Jitter, Now};
use crate::destination::DestinationIndex;
use crate::intake::{Intake, ReadToken};
use crate::lane::LaneView;
use crate::lease::LeaseReport;
use crate::message::{Epoch, Position, ShardId};
use crate::pipeline::{Pipeline, PipelineShare};
use crate::schedule::Schedule;

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
    /// Waits for a complete poll of all shards that began after this read, and for all that was due at that moment.
    Looking(Option<(ReadToken, u64)>),
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
    /// This configuration's digest; who has another one, and when that was told.
    digest: String,
    other_configurations: Vec<String>,
    others_told_at_us: u64,
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
    schedule: Schedule,
    due_read: Option<ReadToken>,
    resolve: Cadence,
    acts: Cadence,
    checkpoint: Option<InCheckpoint>,
    checkpoint_not_before_us: u64,
    checkpoint_failures: u32,
    refusals: Refusals,
    targets: Vec<Target>,
    mode: Mode,
    until_empty: UntilEmpty,
    /// How long the rows that were taken lately had been there, microseconds; None: nobody wants to know.
    waits_us: Option<Vec<i64>>,
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
    /// Whether it is being handed over or left.
    pub draining: bool,
    /// Whether a checkpoint of this epoch has committed. Before, nothing is sent.
    pub proven_owner: bool,
    /// Until when the lease holds for certain, microseconds of the monotonic clock.
    pub lease_until_us: u64,
    /// Since when something waits to be stored, microseconds of the monotonic clock.
    pub unstored_since_us: Option<u64>,
}

/// What an instance wants to get done, as its watch sees it.
#[derive(Clone, Debug, Default)]
pub struct WorkView {
    /// It polls: shards run that can take rows.
    pub polls: bool,
    /// It takes part in lease rounds.
    pub leases: bool,
    /// It ends.
    pub draining: bool,
    /// Shards that nobody owned when the newest lease round was answered.
    pub unowned: Vec<ShardId>,
    /// Destinations by index: since when starts of them fail, microseconds of the wall clock, and why.
    pub down: Vec<Option<(i64, crate::receipt::Reason)>>,
    /// Destinations by index: whether they have a rate or a limit of batches, so that a lane may have to wait.
    pub limited: Vec<bool>,
}

impl Instance {
    /// An instance that owns nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            targets: config.destinations.iter().map(|d| Target::new(&d.limits)).collect(),
            names: config.names(),
            digest: config.digest(),
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
            other_configurations: Vec::new(),
            others_told_at_us: 0,
            releasing: Vec::new(),
            had: BTreeMap::new(),
            poll: Cadence::default(),
            poll_read: None,
            rescan: Cadence::default(),
            rescan_read: None,
            schedule: Schedule::default(),
            due_read: None,
            resolve: Cadence::default(),
            acts: Cadence::default(),
            checkpoint: None,
            checkpoint_not_before_us: 0,
            checkpoint_failures: 0,
            refusals: Refusals::default(),
            mode: Mode::Running,
            until_empty: UntilEmpty::Off,
            waits_us: None,
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
                    lanes: p.lane_views(&self.config),
                    draining: p.draining,
                    proven_owner: p.is_proven(),
                    lease_until_us: owned.lease_until_us,
                    unstored_since_us: p.unstored_since_us(),
                },
                Phase::Recovering { .. } | Phase::LetGo => ShardView {
                    shard: *shard,
                    epoch: owned.epoch,
                    running: false,
                    log_end: Position(0),
                    unmoved_rows: 0,
                    memory_bytes: 0,
                    lanes: Vec::new(),
                    draining: false,
                    proven_owner: false,
                    lease_until_us: owned.lease_until_us,
                    unstored_since_us: None,
                },
            })
            .collect()
    }

    /// What it wants to get done.
    pub fn work(&self) -> WorkView {
        let running = self.mode == Mode::Running;
        let free = |l: &&crate::lease::LeaseRow| l.owner.is_none() || l.expired;
        WorkView {
            polls: running && !self.readable_shards(true).is_empty(),
            leases: self.mode != Mode::Stopped,
            draining: !running,
            unowned: self.report.leases.iter().filter(free).map(|l| l.shard).collect(),
            down: self.targets.iter().map(Target::trouble).collect(),
            limited: self.targets.iter().map(|t| t.allowance.is_limited()).collect(),
        }
    }

    /// From here on it measures how long rows had been there when they were taken: [`Instance::waits_us`].
    pub fn measure(&mut self) {
        self.waits_us.get_or_insert_default();
    }

    /// How long each row that was taken since the last call had been there, microseconds, by the clocks of the database and
    /// of this process. Scheduled rows are left out.
    pub fn waits_us(&mut self) -> impl Iterator<Item = i64> + '_ {
        self.waits_us.iter_mut().flat_map(|waits| waits.drain(..))
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
            Input::Ahead(found) => self.on_ahead(now, found),
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
            Input::Acts { shards, acts } => self.on_acts(now, &shards, acts),
            Input::FoundParked { shard, epoch, act, found } => {
                let (mut jitter, backoff_ms) = (self.jitter.clone(), self.config.settings.store_backoff_ms);
                if let Some(p) = self.pipeline(shard, epoch) {
                    p.on_found(act, found, backoff_ms, now, &mut jitter);
                }
                self.jitter = jitter;
            }
            Input::Answer { shard, epoch, destination, slot, batch, outcomes } => {
                let mut jitter = self.jitter.clone();
                let mut events = Vec::new();
                self.batch_ended(destination);
                let lane = self.lane(shard, epoch, destination);
                let down = lane.and_then(|lane| lane.on_answer(slot, batch, outcomes, now, &mut jitter, &mut events));
                self.jitter = jitter;
                self.tell(events);
                if let Some(start) = down {
                    self.restart(now, destination, start);
                }
            }
            Input::NotSent { shard, epoch, destination, slot, batch } => {
                self.batch_ended(destination);
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

    /// Also of a shard that was given up meanwhile.
    fn batch_ended(&mut self, destination: DestinationIndex) {
        if let Some(target) = self.target(destination) {
            target.allowance.ended();
        }
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
