//! What is worth a line in the log and a metric.

use crate::act::{ActNumber, Verb};
use crate::destination::DestinationIndex;
use crate::message::{Epoch, Position, Seq, ShardId};
use crate::receipt::Reason;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A shard was acquired.
    Acquired {
        /// Shard.
        shard: ShardId,
        /// Epoch.
        epoch: Epoch,
    },
    /// A shard was recovered and its lanes run.
    Running {
        /// Shard.
        shard: ShardId,
        /// Epoch.
        epoch: Epoch,
        /// End of the log.
        log_end: Position,
    },
    /// A shard is being handed over.
    HandingOver {
        /// Shard.
        shard: ShardId,
    },
    /// A shard was released.
    Released {
        /// Shard.
        shard: ShardId,
    },
    /// The lease is somebody else's: all that was held of the shard is forgotten (`OUT-4006`).
    Fenced {
        /// Shard.
        shard: ShardId,
        /// Epoch that is over.
        epoch: Epoch,
    },
    /// The database is not as this owner left it: rows gone from the outbox, or another log end. The shard is recovered
    /// anew; what was sent and not yet stored is sent again (`OUT-4007`).
    Mismatch {
        /// Shard.
        shard: ShardId,
    },
    /// The log is shorter than this process has seen it: a backup was restored, or a fail-over lost commits.
    LogWentBack {
        /// Shard.
        shard: ShardId,
        /// End before.
        from: Position,
        /// End now.
        to: Position,
    },
    /// Positions of a lane that the log does not have.
    LogGap {
        /// Shard.
        shard: ShardId,
        /// Lane.
        destination: DestinationIndex,
        /// First position that is missing.
        from: Position,
        /// First position that is there.
        to: Position,
    },
    /// A message whose topic no route names: parked under `-` (`OUT-4001`).
    NoRoute {
        /// Shard.
        shard: ShardId,
        /// Position.
        position: Position,
        /// Topic.
        topic: String,
    },
    /// An id was written twice by the application. Both rows are delivered.
    RepeatedId {
        /// The id.
        id: String,
        /// `seq` of the second row.
        seq: Seq,
    },
    /// A message is dead: an operator must decide.
    Dead {
        /// Shard.
        shard: ShardId,
        /// Lane.
        destination: DestinationIndex,
        /// Position.
        position: Position,
        /// Why.
        reason: Reason,
    },
    /// A destination could not be started; tried again by itself.
    NotStarted {
        /// Destination.
        destination: DestinationIndex,
        /// Why.
        reason: Reason,
    },
    /// A destination was started after it could not be before.
    Started {
        /// Destination.
        destination: DestinationIndex,
    },
    /// What the destination still has of what it acknowledged could not be found out; tried again by itself. Until then
    /// the lane does not send.
    NotVerified {
        /// Shard.
        shard: ShardId,
        /// Lane.
        destination: DestinationIndex,
        /// Why.
        reason: Reason,
    },
    /// The destination does not have any more what it acknowledged: it is sent again (`OUT-4015`).
    Forgotten {
        /// Shard.
        shard: ShardId,
        /// Lane.
        destination: DestinationIndex,
        /// Messages.
        count: u64,
        /// Position of the first of them.
        first: Position,
        /// Position of the last of them.
        last: Position,
    },
    /// So much of what it acknowledged is gone that the lane waits for an operator (`OUT-4016`).
    ForgottenTooMany {
        /// Shard.
        shard: ShardId,
        /// Lane.
        destination: DestinationIndex,
        /// The limit.
        limit: u64,
    },
    /// The first of a lane's slots has met a destination that is down, as a whole or in part.
    DestinationDown {
        /// Shard.
        shard: ShardId,
        /// Lane.
        destination: DestinationIndex,
        /// Why.
        reason: Reason,
    },
    /// The destination answers in all slots of a lane again.
    DestinationUp {
        /// Shard.
        shard: ShardId,
        /// Lane.
        destination: DestinationIndex,
    },
    /// An act was carried out in a shard, or cannot be.
    Acted {
        /// Shard.
        shard: ShardId,
        /// Number of the act.
        number: ActNumber,
        /// What was done.
        verb: Verb,
        /// Where. None: in all lanes of the shard.
        destination: Option<String>,
        /// Messages that it has changed.
        done: u64,
        /// Messages that it left as they were.
        left: u64,
        /// Why it cannot be carried out (`OUT-4018`).
        refused: Option<String>,
    },
    /// Other instances have other routes or destinations; told again and again while it is so. Empty: no more.
    OtherConfiguration {
        /// Their owner names.
        owners: Vec<String>,
    },
    /// A COMMIT was not answered; the database is asked whether it was applied.
    CommitUnknown,
    /// What was found out about it.
    CommitKnown {
        /// Whether it was applied.
        applied: bool,
    },
}
