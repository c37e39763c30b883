//! The one transaction that moves rows into the log and writes where the lanes stand.

use std::sync::Arc;

use crate::act::ActWrite;
use crate::chunk::{self, EncodedChunk};
use crate::message::{Epoch, Message, Position, ShardId};
use crate::parked::ParkedWrite;
use crate::receipt::ReceiptRow;
use crate::runs::Run;

/// What one checkpoint does for one shard.
///
/// In one transaction, in this order: lock the lease row and prove owner and epoch; see that the newest receipt row has
/// `number - 1` and log end `base` (none: `number` is 0 and `base` is 0); write acts and what is paused; insert parked
/// rows; delete exactly `moved`; insert the chunks; insert the receipt row.
#[derive(Clone, Debug)]
pub struct ShardCheckpoint {
    /// Shard.
    pub shard: ShardId,
    /// Epoch under which the shard is owned.
    pub epoch: Epoch,
    /// Number of the receipt row that this checkpoint writes: one more than the newest.
    pub number: u64,
    /// End of the log before: the position of the first of `moved`.
    pub base: Position,
    /// Rows to move, by rising position, consecutive from `base`. May be empty.
    pub moved: Vec<Arc<Message>>,
    /// Runs of `seq` that were read without a gap, whichever shard each belongs to; they cover every `seq` of `moved`
    /// that may be deleted by a range. Rising. A `seq` outside must be named by itself.
    pub runs: Vec<Run>,
    /// Lanes and their new receipts.
    pub receipts: ReceiptRow,
    /// Changes to parked rows, in order.
    pub parked: Vec<ParkedWrite>,
    /// How far acts have got; one for each act.
    pub acts: Vec<ActWrite>,
}

impl ShardCheckpoint {
    /// End of the log after this checkpoint.
    pub fn log_end(&self) -> Position {
        Position(self.base.0 + self.moved.len() as u64)
    }

    /// Packs the moved rows into chunks, each of at most `max_bytes` before compression, or of a single message.
    pub fn chunks(&self, destinations: &[String], max_bytes: usize) -> Vec<EncodedChunk> {
        let mut chunks = Vec::new();
        let mut rest = self.moved.as_slice();
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = rest
                .iter()
                .take_while(|m| {
                    bytes += m.weight();
                    bytes <= max_bytes
                })
                .count()
                .max(1);
            let (head, tail) = rest.split_at(fits);
            chunks.push(chunk::encode(head.iter().map(AsRef::as_ref), destinations));
            rest = tail;
        }
        chunks
    }
}

/// A checkpoint of all shards that have something to write, in one transaction.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The owner's name: of this process alone, not of the instance, so that a restarted process is another owner.
    pub owner: String,
    /// Names of the destinations, by index: chunks name them.
    pub destinations: Arc<[String]>,
    /// The shards.
    pub shards: Vec<ShardCheckpoint>,
}

/// What became of one shard in a checkpoint that committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShardOutcome {
    /// Written.
    Written,
    /// The lease is somebody else's by now: nothing was written for this shard.
    Fenced,
    /// The database is not as this owner left it (rows gone from the outbox, log end or receipt number other than
    /// expected: TRUNCATE, a restored backup): nothing was written for this shard; it must be recovered anew.
    Mismatch,
}
