//! A process: an instance of the core, its clocks, and what it waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outhaul_core::act::ActNumber;
use outhaul_core::config::{Config, Now};
use outhaul_core::instance::{Command, Input, Instance, ReadKind, ShardView};
use outhaul_core::message::{Epoch, ShardId};

use super::known::Known;
use super::ledger::MessageNumber;
use super::scenario::SECOND;

/// 2023-11-14, microseconds.
const WALL_AT_START_US: i64 = 1_700_000_000_000_000;
/// Ticks in a second of simulated time that bring nothing: more means that the process spins.
const IDLE_TICKS: u32 = 150;

/// What a process is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    /// It handles nothing.
    Paused,
    /// It has stopped cleanly.
    Stopped,
    Killed,
}

/// What is under way, in as far as only one of it may be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum UnderWay {
    Leases,
    Poll,
    Rescan,
    Due,
    Ahead,
    Resolve,
    Checkpoint,
    Recovery(ShardId, Epoch),
    Log(ShardId, Epoch, u8),
    Parked(ShardId, Epoch, u8, u64),
    Acts,
    Find(ShardId, Epoch, ActNumber),
    Start(u8),
    Verification(ShardId, Epoch, u8),
    Proof(u8),
    Send(ShardId, Epoch, u8, u32, u64),
}

impl UnderWay {
    fn of(command: &Command, ticket: u64) -> Option<Self> {
        Some(match command {
            Command::LeaseRound { .. } => Self::Leases,
            Command::Read { kind: ReadKind::Poll, .. } => Self::Poll,
            Command::Read { kind: ReadKind::Rescan, .. } => Self::Rescan,
            Command::Read { kind: ReadKind::Due, .. } => Self::Due,
            Command::LookAhead { .. } => Self::Ahead,
            Command::Resolve { .. } => Self::Resolve,
            Command::Checkpoint(_) | Command::Confirm(_) => Self::Checkpoint,
            Command::Recover { shard, epoch } => Self::Recovery(*shard, *epoch),
            Command::ReadLog { shard, epoch, destination, .. } => Self::Log(*shard, *epoch, destination.0),
            Command::ReadParked { shard, epoch, destination, .. } => {
                Self::Parked(*shard, *epoch, destination.0, ticket)
            }
            Command::ReadActs { .. } => Self::Acts,
            Command::FindParked { shard, epoch, act, .. } => Self::Find(*shard, *epoch, *act),
            Command::Start { destination, .. } => Self::Start(destination.0),
            Command::Prove { destination, .. } => Self::Proof(destination.0),
            Command::Verify { shard, epoch, destination, .. } => Self::Verification(*shard, *epoch, destination.0),
            Command::Send { shard, epoch, destination, batch } => {
                Self::Send(*shard, *epoch, destination.0, batch.slot, batch.batch)
            }
            Command::Event(_) | Command::Stopped => return None,
        })
    }

    fn excludes(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Send(s, e, d, slot, _), Self::Send(s2, e2, d2, slot2, _)) => (s, e, d, slot) == (s2, e2, d2, slot2),
            _ => self == other,
        }
    }
}

/// A process.
pub(super) struct Process {
    pub(super) owner: String,
    pub(super) instance: Instance,
    pub(super) known: Known,
    pub(super) life: Life,
    /// How many leases there were when it started.
    pub(super) leases: usize,
    mono_at_start_us: u64,
    wall_skew_us: i64,
    /// Commands without an answer.
    pub(super) tickets: BTreeMap<u64, UnderWay>,
    /// Answers that came during a pause.
    pub(super) inbox: VecDeque<(u64, Input)>,
    /// Only the newest tick counts.
    pub(super) tick: u64,
    idle_ticks: (u64, u32),
    /// Deliveries that it was told of, by shard and epoch, since the shard was last recovered.
    pub(super) acknowledged: BTreeMap<(ShardId, Epoch), BTreeSet<(u8, MessageNumber)>>,
    /// Until then it does not reach the database.
    pub(super) cut_off_until: u64,
    /// Shards that it says are its own, and under which epoch.
    pub(super) owned: BTreeMap<ShardId, Epoch>,
    /// It is to stop once all that was committed before this moment is settled.
    pub(super) empties_since: Option<u64>,
    /// It was told to stop.
    pub(super) drains: bool,
    /// Its connection to each destination: the newest start that began, and after how many crashes it was made.
    pub(super) connections: BTreeMap<u8, (u64, u64)>,
    /// After how many crashes the connection was made with which the last start, if it was answered, found a destination.
    pub(super) started_after: BTreeMap<u8, u64>,
}

impl Process {
    pub(super) fn new(
        config: Config,
        known: Known,
        (mono_at_start_us, wall_skew_us): (u64, i64),
        leases: usize,
    ) -> Self {
        Self {
            owner: config.owner.clone(),
            instance: Instance::new(config),
            known,
            life: Life::Running,
            leases,
            mono_at_start_us,
            wall_skew_us,
            tickets: BTreeMap::new(),
            inbox: VecDeque::new(),
            tick: 0,
            idle_ticks: (0, 0),
            acknowledged: BTreeMap::new(),
            cut_off_until: 0,
            owned: BTreeMap::new(),
            empties_since: None,
            drains: false,
            connections: BTreeMap::new(),
            started_after: BTreeMap::new(),
        }
    }

    pub(super) const fn is_alive(&self) -> bool {
        matches!(self.life, Life::Running | Life::Paused)
    }

    /// The moment by the clocks of the process.
    pub(super) const fn clock(&self, now: u64) -> Now {
        Now { mono_us: now + self.mono_at_start_us, wall_us: WALL_AT_START_US + now as i64 + self.wall_skew_us }
    }

    /// When it wants to be woken, in simulated time.
    pub(super) fn deadline(&self, now: u64) -> Option<u64> {
        self.instance.deadline_us(self.clock(now)).map(|at| at.saturating_sub(self.mono_at_start_us).max(now))
    }

    /// What it shows of its shards.
    pub(super) fn view(&self) -> Vec<ShardView> {
        self.known.view(self.instance.view())
    }

    /// Notes a command. The error is a rule that was broken.
    pub(super) fn asks(&mut self, ticket: u64, command: &Command) -> Result<(), String> {
        let Some(asked) = UnderWay::of(command, ticket) else { return Ok(()) };
        if let Some(twice) = self.tickets.values().find(|t| t.excludes(&asked)) {
            return Err(format!("{} asks for {asked:?} while {twice:?} is under way", self.owner));
        }
        self.tickets.insert(ticket, asked);
        Ok(())
    }

    /// A tick has brought nothing. The error says that this happens too often.
    pub(super) fn idles(&mut self, now: u64) -> Result<(), String> {
        let second = now / SECOND;
        if self.idle_ticks.0 != second {
            self.idle_ticks = (second, 0);
        }
        self.idle_ticks.1 += 1;
        if self.idle_ticks.1 > IDLE_TICKS {
            return Err(format!("{} spins: {} ticks within a second had nothing to do", self.owner, self.idle_ticks.1));
        }
        Ok(())
    }

    /// Batches under way to a destination.
    pub(super) fn batches(&self, destination: u8) -> usize {
        self.tickets.values().filter(|t| matches!(t, UnderWay::Send(_, _, d, ..) if *d == destination)).count()
    }

    /// Whether a batch of the shard is under way.
    pub(super) fn sends(&self, shard: ShardId, epoch: Epoch) -> bool {
        self.tickets.values().any(|t| matches!(t, UnderWay::Send(s, e, ..) if (*s, *e) == (shard, epoch)))
    }
}
