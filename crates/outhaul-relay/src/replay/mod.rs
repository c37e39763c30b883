//! Replays: what the log still holds is delivered once more, by a lane of its own that lasts as long as the command.
//!
//! What is read, sent and stored, and when, is decided by [`outhaul_core::replay`]; here it is done.
//!
//! It holds no lease and touches neither cursors, receipts nor parked rows: the relay's lanes know nothing of it. Shards
//! are replayed one after the other, slots at the same time. Order per key holds within the replay. A message that is
//! refused is left out; everything else that is not delivered is sent again before whatever comes behind it of its key,
//! however long that takes. How far it has got is stored once a second, so that another process can go on from there:
//! what was sent since is sent again.

mod carry;
mod source;

use std::sync::Arc;
use std::time::Duration;

use outhaul_core::act::{ActNumber, PositionRange, Selector};
use outhaul_core::chunk::DestinationNames;
use outhaul_core::destination::DestinationIndex;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::receipt::Reason;
use outhaul_core::replay::Selection;
pub use outhaul_core::replay::{LeftOut, ReplayShard, ReplayStand};
use outhaul_core::route::Routes;
use outhaul_store::{Store, StoreError};

use self::source::Source;
use crate::destination::Destination;
pub use carry::replay;

/// A replay of one outbox into one destination.
#[derive(Clone)]
pub struct Replay {
    /// The outbox.
    pub store: Arc<dyn Store>,
    /// Where to.
    pub destination: Destination,
    /// Names of all destinations of the configuration, in its order; one of them is this one's.
    pub names: Vec<String>,
    /// The routes of the configuration: what they lead to the destination is delivered.
    pub routes: Routes,
    /// Number of the act. It was taken ([`Store::take_replay`]).
    pub number: ActNumber,
    /// Who has taken it.
    pub runner: String,
    /// Which messages, and how fast. Its range is of no account.
    pub selector: Selector,
    /// Where it stands in each shard.
    pub shards: Vec<ReplayShard>,
    /// Ends when the destination or the database has failed for so long without anything getting on.
    pub give_up_after: Option<Duration>,
}

/// Why a replay did not get to its end. What it has got to is stored, except where the database is what failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The database cannot be used as it is.
    #[error("{0}")]
    Store(StoreError),
    /// Told to stop.
    #[error("told to stop before its end")]
    Stopped,
    /// Another process carries it out by now.
    #[error("OUT-4032 another process carries it out by now, or it is over")]
    Taken,
    /// Nothing has got on for too long.
    #[error("OUT-4031 nothing has got on for {0:?}: {code} {text}", code = .1.code, text = .1.text)]
    GivenUp(Duration, Reason),
}

/// What a replay would deliver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Messages to be delivered.
    pub messages: u64,
    /// Their payload, bytes.
    pub bytes: u64,
    /// Messages that would be left out.
    pub left: u64,
    /// Positions that the log holds no more.
    pub pruned: u64,
    /// When the oldest and the newest of them were created, microseconds since 1970-01-01 UTC.
    pub created_us: Option<(i64, i64)>,
}

/// How far the database's clock may have been set back.
const CLOCK_MARGIN_US: i64 = 3_600_000_000;

/// Where to begin in a part of a shard's log if only messages are meant that were created at this time or later,
/// microseconds since 1970-01-01 UTC: none of them lies before, since none is moved before it is created.
///
/// # Errors
/// The database's.
pub async fn begin_of(
    store: &Arc<dyn Store>,
    shard: ShardId,
    range: PositionRange,
    created_from_us: i64,
) -> Result<Position, StoreError> {
    let since_us = created_from_us.saturating_sub(CLOCK_MARGIN_US);
    let (mut low, mut high) = (range.from.0, range.to.0);
    while low < high {
        let middle = low + (high - low) / 2;
        match store.read_log(shard, Position(middle), 1).await?.first() {
            Some(chunk) if chunk.moved_at_us < since_us => {
                low = (chunk.base.0 + u64::from(chunk.count)).max(middle + 1);
            }
            Some(chunk) => high = chunk.base.0.clamp(low, middle),
            None => high = middle,
        }
    }
    Ok(Position(low.min(range.to.0)))
}

impl Replay {
    fn source(&self, shard: &ReplayShard) -> Source {
        let names: Arc<[String]> = self.names.as_slice().into();
        // Nothing is routed to a name that is not among them.
        let destination = names.index(&self.destination.name).unwrap_or(DestinationIndex(u8::MAX));
        let routes = Arc::new(self.routes.clone());
        let selection = Selection::new(shard.range, &self.selector, destination, routes);
        Source { store: self.store.clone(), shard: shard.shard, selection, names, name: self.destination.name.clone() }
    }

    /// Where the log begins in each shard, at or behind what is asked for, and when the oldest message there was created.
    /// What is not in the log any more, or is not written yet, is not among them.
    ///
    /// # Errors
    /// The database's.
    pub async fn begins(&self) -> Result<Vec<(ShardId, Position, i64)>, StoreError> {
        let mut begins = Vec::new();
        for shard in &self.shards {
            let chunks = self.store.read_log(shard.shard, shard.next, 1).await?;
            let first = chunks.first().filter(|chunk| chunk.base < shard.range.to);
            begins.extend(first.map(|chunk| (shard.shard, chunk.base.max(shard.next), chunk.created_at_us.0)));
        }
        Ok(begins)
    }

    /// Counts what it would deliver, without sending anything.
    ///
    /// # Errors
    /// The database's.
    pub async fn count(&self, left_out: &(dyn Fn(&LeftOut) + Send + Sync)) -> Result<Counted, StoreError> {
        let mut counted = Counted::default();
        for shard in &self.shards {
            let source = self.source(shard);
            let mut next = shard.next;
            while next < shard.range.to {
                let page = source.page(next).await?;
                next = page.next;
                page.left.iter().for_each(left_out);
                counted.left += page.left.len() as u64;
                counted.pruned += page.pruned;
                counted.messages += page.messages.len() as u64;
                for m in &page.messages {
                    counted.bytes += m.payload.len() as u64;
                    let (first, last) = counted.created_us.unwrap_or((m.created_at_us, m.created_at_us));
                    counted.created_us = Some((first.min(m.created_at_us), last.max(m.created_at_us)));
                }
            }
        }
        Ok(counted)
    }
}
