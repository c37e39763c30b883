//! Replays: ordered at random moments beside live traffic, carried out by processes that are killed, paused, stopped and
//! taken over, and what must be true of them.
//!
//! A destination holds a replay's copies beside those of its lanes, under numbers of their own ([`copy_of`]): what a lane
//! has delivered, and what it forgot, is judged as if there were no replay.

mod database;
mod destination;
mod orders;
mod rules;
mod runner;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use outhaul_core::act::{ActNumber, PositionRange, Selector};
use outhaul_core::config::Now;
use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::SendBatch;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::receipt::{Reason, Receipt};
use outhaul_core::replay::{Acknowledgement, Input, Progress, ReplayShard, Replaying, StoreFailure};

use super::ledger::MessageNumber;
use super::process::Life;
use super::scenario::{MS, SECOND};

/// Numbers at or above are copies of a replay.
const COPIES: MessageNumber = 1 << 32;
/// Ticks in a second of simulated time that bring nothing: more means that the process spins.
const IDLE_TICKS: u32 = 100;
/// A question about what is proven is given up after this long.
const PROVE_LIMIT: u64 = 500 * MS;

/// The number under which a destination holds what the replay at this place has sent of a message.
const fn copy_of(place: usize, number: MessageNumber) -> MessageNumber {
    (place + 1) * COPIES + number
}

/// Whether a destination holds it for a replay.
pub(super) const fn is_copy(number: MessageNumber) -> bool {
    number >= COPIES
}

/// All replays of a run, and who carries them out.
#[derive(Default)]
pub(super) struct Replays {
    ordered: Vec<Ordered>,
    runners: Vec<Runner>,
    commands: u64,
}

/// A replay, and what has become of it.
struct Ordered {
    number: ActNumber,
    destination: DestinationIndex,
    selector: Selector,
    ranges: BTreeMap<ShardId, PositionRange>,
    /// Who has taken it.
    runner: Option<String>,
    /// What has arrived at the destination since.
    arrived: BTreeSet<MessageNumber>,
    /// What was met and left out by a rule.
    left: BTreeSet<MessageNumber>,
    /// The newest that has arrived of each key.
    newest: BTreeMap<String, Position>,
}

/// What is under way, in as far as only one of it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnderWay {
    Start,
    Verify,
    Prove,
    Read,
    Keep,
    Send(u32),
}

/// A process that carries a replay out.
struct Runner {
    name: String,
    /// The place of its replay.
    place: usize,
    machine: Replaying,
    life: Life,
    mono_at_start_us: u64,
    tick: u64,
    /// Answers that came while it was paused.
    inbox: VecDeque<(u64, Input)>,
    tickets: BTreeMap<u64, UnderWay>,
    /// Its newest start, and after how many crashes of the destination its connection was made.
    connection: (u64, u64),
    /// The same of the last start, if it succeeded.
    started_after: Option<u64>,
    idle_ticks: (u64, u32),
    began_at: u64,
    sent: u64,
    /// It was told that another one carries its replay out.
    is_told: bool,
}

/// What happens to a replay next.
pub(super) enum Step {
    /// Somebody takes it who has read that it stands so.
    Take {
        place: usize,
        stands: Vec<ReplayShard>,
    },
    Tick {
        runner: usize,
        tick: u64,
    },
    Answer {
        runner: usize,
        ticket: u64,
        input: Input,
    },
    Call {
        runner: usize,
        ticket: u64,
        call: Call,
    },
    /// The server carries out what its client has given up.
    Late {
        runner: usize,
        progress: Progress,
    },
    Asked {
        runner: usize,
        ticket: u64,
        question: Question,
        crashes: u64,
        back_us: u64,
    },
    Arrive {
        runner: usize,
        ticket: u64,
        batch: SendBatch,
        crashes: u64,
        back_us: u64,
    },
}

/// A call of the database.
pub(super) enum Call {
    Read(ShardId, Position),
    Keep(Progress),
}

/// A question to the destination.
pub(super) enum Question {
    /// With the crashes that there had been at the start before, if that has succeeded.
    Start(u64, Option<u64>),
    Verify(Vec<Acknowledgement>),
    Prove(Vec<Receipt>),
}

fn no(text: &'static str) -> Reason {
    Reason::new("OUT-9002", text)
}

fn failed() -> StoreFailure {
    StoreFailure { reason: Reason::new("OUT-1001", "the call has failed"), passes: true }
}

impl Call {
    fn failed(&self) -> Input {
        match self {
            Self::Read(..) => Input::Page(Err(failed())),
            Self::Keep(_) => Input::Kept(Err(failed())),
        }
    }
}

impl Question {
    fn unanswered(&self) -> Input {
        match self {
            Self::Start(..) => Input::Started(Err(no("no answer"))),
            Self::Verify(_) => Input::Verified(Err(no("no answer"))),
            Self::Prove(_) => Input::Proven(Err(no("no answer"))),
        }
    }
}

impl Runner {
    const fn clock(&self, now: u64) -> Now {
        Now { mono_us: now + self.mono_at_start_us, wall_us: now as i64 }
    }

    const fn is_alive(&self) -> bool {
        matches!(self.life, Life::Running | Life::Paused)
    }

    fn idles(&mut self, now: u64) -> Result<(), String> {
        let second = now / SECOND;
        if self.idle_ticks.0 != second {
            self.idle_ticks = (second, 0);
        }
        self.idle_ticks.1 += 1;
        if self.idle_ticks.1 > IDLE_TICKS {
            return Err(format!("{} spins: {} ticks within a second had nothing to do", self.name, self.idle_ticks.1));
        }
        Ok(())
    }
}
