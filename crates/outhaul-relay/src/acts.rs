//! Operators' acts: the parked rows that they select, and edits of what the log has otherwise.

use std::collections::HashMap;
use std::sync::Arc;

use outhaul_core::act::{Edit, FoundParked, Selector};
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_store::{ParkedQuery, Store, StoreResult};

/// A look for the parked rows that an act selects.
pub(crate) struct Find {
    pub(crate) shard: ShardId,
    pub(crate) destination: String,
    pub(crate) selector: Selector,
    pub(crate) from: Position,
    pub(crate) limit: usize,
    pub(crate) content: bool,
}

impl Find {
    /// The rows, rising. One that goes while its content is read has none.
    pub(crate) async fn read(self, store: &dyn Store, names: &[String]) -> StoreResult<Vec<FoundParked>> {
        let Self { shard, destination, selector, from, limit, content } = self;
        let query = ParkedQuery {
            destination: Some(destination.clone()),
            shard: Some(shard),
            key: selector.key,
            code: selector.code,
            position: selector.position,
            after: from.0.checked_sub(1).map(|before| (destination.clone(), shard, Position(before))),
            ..ParkedQuery::default()
        };
        let rows = store.list_parked(&query, u32::try_from(limit).unwrap_or(u32::MAX)).await?;
        let mut messages: HashMap<Position, Arc<Message>> = HashMap::new();
        if content && !rows.is_empty() {
            let positions: Vec<Position> = rows.iter().map(|row| row.entry.position).collect();
            for parked in store.read_parked(shard, &destination, &positions, names).await? {
                messages.insert(parked.entry.position, Arc::new(parked.message));
            }
        }
        let found = rows.into_iter().map(|row| {
            let message = messages.remove(&row.entry.position);
            FoundParked { entry: row.entry, message }
        });
        Ok(found.collect())
    }
}

/// Gives messages of the log the content that they have since they were edited.
pub(crate) fn apply_edits(messages: &mut [Arc<Message>], edits: &[(Position, Arc<Edit>)]) {
    for (position, edit) in edits {
        if let Ok(at) = messages.binary_search_by_key(position, |m| m.position)
            && let Some(message) = messages.get_mut(at)
        {
            *message = Arc::new(edit.apply(message));
        }
    }
}
