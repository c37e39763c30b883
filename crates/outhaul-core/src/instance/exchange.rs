//! What comes in and what goes out.

use std::sync::Arc;

use crate::act::{Act, ActNumber, FoundParked, Selector};
use crate::checkpoint::{Checkpoint, ShardOutcome};
use crate::destination::DestinationIndex;
use crate::instance::Event;
use crate::intake::ReadToken;
use crate::lane::{RecentReceipt, SendBatch, Verification};
use crate::lease::LeaseReport;
use crate::message::{Epoch, Message, Position, Row, Seq, ShardId};
use crate::parked::ParkedEntry;
use crate::receipt::{AckLevel, Outcome, Reason, Receipt, ReceiptRow};
use crate::runs::Run;
use crate::schedule::Upcoming;
use crate::trouble::Trouble;

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
    /// Acts of the shard that are open, by number.
    pub acts: Vec<Act>,
    /// Paused destinations of the shard; None: all of it.
    pub paused: Vec<Option<String>>,
    /// Destinations and positions of messages that were edited, and by which act: the log has them as they were.
    pub edited: Vec<(String, Position, ActNumber)>,
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
    /// Answer to [`Command::LookAhead`]. None: it failed.
    Ahead(Option<Upcoming>),
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
    /// Answer to [`Command::ReadActs`]. None: it failed.
    Acts {
        /// Shards and epochs of the command.
        shards: Vec<(ShardId, Epoch)>,
        /// The acts of these shards that are open, by number; perhaps not all.
        acts: Option<Vec<Act>>,
    },
    /// Answer to [`Command::FindParked`]. None: it failed.
    FoundParked {
        /// Shard.
        shard: ShardId,
        /// Epoch of the command.
        epoch: Epoch,
        /// The act.
        act: ActNumber,
        /// The rows by rising position. Fewer than were asked for: there are no more.
        found: Option<Vec<FoundParked>>,
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
    /// Scheduled rows that are due, by their exact `seq`: those that are by the database's clock, and are held by nobody,
    /// become ordinary rows before they are read.
    Due,
}

/// What has to be done. Every command but [`Command::Event`] and [`Command::Stopped`] is answered by one input; at most
/// one lease round, read of each kind, look ahead, resolve and checkpoint are under way at a time, and one recovery a shard.
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
        /// What keeps this instance from delivering, for the heartbeat to tell.
        troubles: Vec<Trouble>,
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
    /// Look for the scheduled rows that are due soonest. At most one look is under way.
    LookAhead {
        /// Shards.
        shards: Vec<ShardId>,
        /// Ranges of `seq`.
        ranges: Vec<Run>,
        /// Most rows.
        limit: usize,
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
        /// Messages of the lane were edited: they are wanted as they are since.
        edited: bool,
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
    /// Look for open acts of these shards. At most one look is under way.
    ReadActs {
        /// Shards, with their epochs for the answer.
        shards: Vec<(ShardId, Epoch)>,
    },
    /// Read parked rows that an act selects. At most one such read is under way for an act.
    FindParked {
        /// Shard.
        shard: ShardId,
        /// Epoch, for the answer.
        epoch: Epoch,
        /// The act, for the answer.
        act: ActNumber,
        /// Destination by name: one of the relay's, or `-`, or one that it does not have.
        destination: String,
        /// Which rows.
        selector: Selector,
        /// At or above this position.
        from: Position,
        /// At most so many.
        limit: usize,
        /// Whether their content is wanted too.
        content: bool,
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
