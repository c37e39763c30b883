//! Where the message of an id is: in the outbox table, in the log, or parked with its log pruned.

use std::collections::BTreeSet;
use std::sync::Arc;

use outhaul_core::chunk;
use outhaul_core::message::{Message, Position, Row, ShardId};
use outhaul_store::{Found, Store, StoreError, StoreErrorKind, StoredChunk};

/// A message of an id.
#[derive(Debug)]
pub enum Place {
    /// In the outbox table, not moved yet.
    Hot {
        /// The row.
        row: Box<Row>,
        /// When it is due, if it is scheduled, microseconds since 1970-01-01 UTC.
        due_at_us: Option<i64>,
    },
    /// In a status table, marked, and not in the log.
    Status {
        /// The row.
        row: Box<Row>,
        /// Its status, as it stands there.
        status: String,
        /// When it was marked as sent, microseconds since 1970-01-01 UTC.
        sent_at_us: Option<i64>,
    },
    /// In the log.
    Logged {
        /// The message; its set of destinations goes by the place in `destinations`.
        message: Box<Message>,
        /// Names of the destinations that its chunk names.
        destinations: Vec<String>,
        /// When it was moved, microseconds since 1970-01-01 UTC, database clock.
        moved_at_us: i64,
    },
    /// Parked; what the log had of it has been pruned.
    Parked {
        /// The message, as `Logged` has it. When it was moved is not known any more.
        message: Box<Message>,
        /// Names of the destinations that are known.
        destinations: Vec<String>,
    },
}

/// How far the clock of whoever made an id may be off, and how long its transaction may have been open.
const HINT_WIDTH_US: i64 = 3_600_000_000;

/// Every message of an id: near the hint first, everywhere if it is not there, at last among what is parked, which
/// outlives its log.
///
/// # Errors
/// The database's; a chunk that cannot be read is `Corrupt`.
pub async fn locate(store: &Arc<dyn Store>, id: &str, around_us: Option<i64>) -> Result<Vec<Place>, StoreError> {
    if let Some(at) = around_us.or_else(|| made_at_us(id)) {
        let places =
            within(store, id, Some((at.saturating_sub(HINT_WIDTH_US), at.saturating_add(HINT_WIDTH_US)))).await?;
        if places.iter().any(|place| matches!(place, Place::Hot { .. } | Place::Logged { .. })) {
            return Ok(places);
        }
    }
    let mut places = within(store, id, None).await?;
    if places.iter().all(|place| matches!(place, Place::Status { .. })) {
        let parked = parked(store, id).await?;
        places = if parked.is_empty() { places } else { parked };
    }
    Ok(places)
}

/// Parked messages that are unpacked at a time: at first, and at most. Payloads come with them.
const PAGE: (usize, usize) = (16, 512);
/// A page with less content than this is followed by a larger one, one with more by a smaller one.
const PAGE_BYTES: usize = 1 << 20;

/// Looks through everything that is parked. There is no index by id: rows are few, or somebody has to look at them anyway.
async fn parked(store: &Arc<dyn Store>, id: &str) -> Result<Vec<Place>, StoreError> {
    let mut places = vec![];
    let shards = store.status().await?;
    for shard in shards.iter().filter(|s| !s.parked.is_empty()) {
        let mut names: Vec<String> = shard.lanes.lanes.iter().map(|(lane, _)| lane.destination.clone()).collect();
        names.extend(shard.parked.iter().map(|(name, ..)| name.clone()));
        let mut seen = BTreeSet::new();
        names.retain(|name| seen.insert(name.clone()));
        // A message that several destinations have is read under the first.
        let mut read: BTreeSet<Position> = BTreeSet::new();
        for (destination, ..) in &shard.parked {
            let mut from = Some(Position(0));
            while let Some(first) = from {
                let page: Vec<Position> =
                    store.parked(shard.shard, destination, first).await?.into_iter().map(|e| e.position).collect();
                from = page.last().map(|last| Position(last.0 + 1));
                let new: Vec<Position> = page.into_iter().filter(|p| read.insert(*p)).collect();
                for message in with_id(store, id, (shard.shard, destination), &new, &names).await? {
                    places.push(Place::Parked { message: Box::new(message), destinations: names.clone() });
                }
            }
        }
    }
    Ok(places)
}

async fn with_id(
    store: &Arc<dyn Store>,
    id: &str,
    (shard, destination): (ShardId, &str),
    mut positions: &[Position],
    names: &[String],
) -> Result<Vec<Message>, StoreError> {
    let mut messages = vec![];
    let mut page = PAGE.0;
    while !positions.is_empty() {
        let (now, rest) = positions.split_at(page.min(positions.len()));
        let read = store.read_parked(shard, destination, now, names).await?;
        let bytes: usize = read.iter().map(|p| p.message.payload.len()).sum();
        page = if bytes < PAGE_BYTES { (page * 2).min(PAGE.1) } else { (page / 2).max(1) };
        messages.extend(read.into_iter().map(|p| p.message).filter(|m| m.id == id));
        positions = rest;
    }
    Ok(messages)
}

async fn within(store: &Arc<dyn Store>, id: &str, window_us: Option<(i64, i64)>) -> Result<Vec<Place>, StoreError> {
    let mut places = vec![];
    for found in store.find(id, window_us).await? {
        match found {
            Found::Hot { row, due_at_us } => places.push(Place::Hot { row, due_at_us }),
            // What the log has of it says more.
            Found::Status { .. } if !places.is_empty() => {}
            Found::Status { row, waits: true, .. } => places.push(Place::Hot { row, due_at_us: None }),
            Found::Status { row, status, sent_at_us, .. } => places.push(Place::Status { row, status, sent_at_us }),
            // The filter of a chunk says "perhaps": only its content knows.
            Found::Logged { chunk } => places.extend(unpack(&chunk, id)?),
        }
    }
    Ok(places)
}

impl Place {
    /// The message, where it is one and not a row.
    pub fn message(&self) -> Option<&Message> {
        match self {
            Self::Logged { message, .. } | Self::Parked { message, .. } => Some(message),
            Self::Hot { .. } | Self::Status { .. } => None,
        }
    }
}

fn unpack(stored: &StoredChunk, id: &str) -> Result<Vec<Place>, StoreError> {
    let (messages, destinations) = unpacked(stored)?;
    Ok(messages
        .into_iter()
        .filter(|m| m.id == id)
        .map(|m| Place::Logged {
            message: Box::new(m),
            destinations: destinations.clone(),
            moved_at_us: stored.moved_at_us,
        })
        .collect())
}

/// The messages of a chunk, and the names of the destinations that their sets mean.
///
/// # Errors
/// `Corrupt`: it cannot be read.
pub fn unpacked(stored: &StoredChunk) -> Result<(Vec<Message>, Vec<String>), StoreError> {
    let damaged = |e: chunk::DecodeError| {
        let what = format!("chunk {} of shard {}: {e}", stored.base, stored.shard);
        StoreError::new(StoreErrorKind::Corrupt, what)
    };
    let destinations = chunk::destination_names(stored.codec, &stored.bytes).map_err(damaged)?;
    let messages =
        chunk::decode(stored.codec, &stored.bytes, stored.shard, stored.base, &destinations).map_err(damaged)?;
    Ok((messages, destinations))
}

/// The moment that a UUIDv7 holds, microseconds since 1970-01-01 UTC.
fn made_at_us(id: &str) -> Option<i64> {
    let uuid = uuid::Uuid::parse_str(id).ok().filter(|u| u.get_version_num() == 7)?;
    let (seconds, nanos) = uuid.get_timestamp()?.to_unix();
    i64::try_from(seconds).ok()?.checked_mul(1_000_000)?.checked_add(i64::from(nanos / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_v7_says_when() {
        assert_eq!(made_at_us("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), Some(1_645_557_742_000_000));
        assert_eq!(made_at_us("c232ab00-9414-11ec-b3c8-9f6bdeced846"), None);
        assert_eq!(made_at_us("order-1"), None);
    }
}
