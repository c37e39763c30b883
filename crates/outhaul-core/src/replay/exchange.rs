//! What a replay asks for, and what it is told.

use super::proof::Acknowledgement;
use super::select::{LeftOut, Page};
use crate::instance::Ready;
use crate::lane::SendBatch;
use crate::message::{Position, ShardId};
use crate::receipt::{Outcome, Reason, Receipt};

/// What has to be done. Every command but [`Command::Event`] and [`Command::Ended`] is answered by one input. At most one
/// of each kind is under way, and one batch a slot.
#[derive(Clone, Debug)]
pub enum Command {
    /// Make the destination ready.
    Start {
        /// Number of the start, rising.
        start: u64,
        /// Limit, milliseconds.
        limit_ms: u64,
    },
    /// Find out which of these the destination has not any more, though it acknowledged them.
    Verify {
        /// Shard.
        shard: ShardId,
        /// By rising position.
        shown: Vec<Acknowledgement>,
        /// Limit, milliseconds.
        limit_ms: u64,
    },
    /// Find out which acknowledgements have reached the demanded level by now.
    Prove {
        /// Number of the start.
        start: u64,
        /// The receipts.
        receipts: Vec<Receipt>,
    },
    /// Send a batch.
    Send(SendBatch),
    /// Read the log.
    Read {
        /// Shard.
        shard: ShardId,
        /// From here.
        from: Position,
    },
    /// Store how far it has got, if it is still this process that carries it out.
    Keep(Progress),
    /// Something to log, count or tell.
    Event(Event),
    /// It is over: nothing more will come.
    Ended(Ending),
}

/// Answers, and the time.
#[derive(Clone, Debug)]
pub enum Input {
    /// Time has passed.
    Tick,
    /// It is to stop: what is under way is waited for, and how far it has got is stored.
    Stop,
    /// Answer to [`Command::Start`].
    Started(Result<Ready, Reason>),
    /// Answer to [`Command::Verify`]: the positions that were forgotten.
    Verified(Result<Vec<Position>, Reason>),
    /// Answer to [`Command::Prove`]: one a receipt. What is missing is not proven.
    Proven(Result<Vec<bool>, Reason>),
    /// Answer to [`Command::Send`]: one outcome a message. What is missing counts as Unknown.
    Answer {
        /// Slot.
        slot: u32,
        /// Number of the batch.
        batch: u64,
        /// Outcomes.
        outcomes: Vec<Outcome>,
    },
    /// Answer to [`Command::Send`]: nothing was sent.
    NotSent {
        /// Slot.
        slot: u32,
        /// Number of the batch.
        batch: u64,
    },
    /// Answer to [`Command::Read`].
    Page(Result<Page, StoreFailure>),
    /// Answer to [`Command::Keep`]. False: another process carries it out by now, or it is over.
    Kept(Result<bool, StoreFailure>),
}

/// A call of the database that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFailure {
    /// Why.
    pub reason: Reason,
    /// Whether it may succeed when it is tried again.
    pub passes: bool,
}

/// How far a replay has got in a shard, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Shard.
    pub shard: ShardId,
    /// Whether it is at the shard's end.
    pub ended: bool,
    /// What lies below was dealt with.
    pub next: Position,
    /// Messages delivered so far.
    pub done: u64,
    /// Messages left out so far.
    pub left: u64,
    /// Code and text of why the newest of them was, or empty.
    pub note: String,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message is left out.
    LeftOut(LeftOut),
    /// The log does not hold these positions any more (`OUT-4033`).
    Pruned {
        /// Shard.
        shard: ShardId,
        /// Where they were looked for.
        from: Position,
        /// How many.
        positions: u64,
    },
    /// The destination does not have what it acknowledged: it is sent again (`OUT-4015`).
    Forgotten {
        /// Shard.
        shard: ShardId,
        /// The first.
        first: Position,
        /// How many.
        messages: u64,
    },
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// All of it is dealt with, and that is stored.
    Done,
    /// It was told to stop.
    Stopped,
    /// Another process carries it out by now, or it is over (`OUT-4032`).
    Taken,
    /// Nothing has got on for as long as it was to wait (`OUT-4031`).
    GivenUp(Reason),
    /// The database cannot be used as it is.
    Store(Reason),
}
