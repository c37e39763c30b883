//! Where the message of an id is: in the outbox table, or in the log.

use std::sync::Arc;

use outhaul_core::chunk;
use outhaul_core::message::{Message, Row};
use outhaul_store::{Found, Store, StoreError, StoreErrorKind, StoredChunk};

/// A message of an id.
#[derive(Debug)]
pub enum Place {
    /// In the outbox table, not moved yet.
    Hot(Box<Row>),
    /// In the log.
    Logged {
        /// The message; its set of destinations goes by the place in `destinations`.
        message: Box<Message>,
        /// Names of the destinations that its chunk names.
        destinations: Vec<String>,
        /// When it was moved, microseconds since 1970-01-01 UTC, database clock.
        moved_at_us: i64,
    },
}

/// How far the clock of whoever made an id may be off, and how long its transaction may have been open.
const HINT_WIDTH_US: i64 = 3_600_000_000;

/// Every message of an id: near the hint first, everywhere if it is not there.
///
/// # Errors
/// The database's; a chunk that cannot be read is `Corrupt`.
pub async fn locate(store: &Arc<dyn Store>, id: &str, around_us: Option<i64>) -> Result<Vec<Place>, StoreError> {
    if let Some(at) = around_us.or_else(|| made_at_us(id)) {
        let places =
            within(store, id, Some((at.saturating_sub(HINT_WIDTH_US), at.saturating_add(HINT_WIDTH_US)))).await?;
        if !places.is_empty() {
            return Ok(places);
        }
    }
    within(store, id, None).await
}

async fn within(store: &Arc<dyn Store>, id: &str, window_us: Option<(i64, i64)>) -> Result<Vec<Place>, StoreError> {
    let mut places = vec![];
    for found in store.find(id, window_us).await? {
        match found {
            Found::Hot(row) => places.push(Place::Hot(row)),
            // The filter of a chunk says "perhaps": only its content knows.
            Found::Logged { chunk } => places.extend(unpack(&chunk, id)?),
        }
    }
    Ok(places)
}

fn unpack(stored: &StoredChunk, id: &str) -> Result<Vec<Place>, StoreError> {
    let damaged = |e: chunk::DecodeError| {
        let what = format!("chunk {} of shard {}: {e}", stored.base, stored.shard);
        StoreError::new(StoreErrorKind::Corrupt, what)
    };
    let destinations = chunk::destination_names(stored.codec, &stored.bytes).map_err(damaged)?;
    let messages =
        chunk::decode(stored.codec, &stored.bytes, stored.shard, stored.base, &destinations).map_err(damaged)?;
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
