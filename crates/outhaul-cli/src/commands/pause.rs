//! `outhaul pause` and `outhaul resume`: lanes of a destination, or shards.

use std::collections::BTreeMap;
use std::sync::Arc;

use outhaul_core::act::{Selector, Verb};
use outhaul_core::message::ShardId;
use outhaul_store::{NewAct, Store};

use super::{act, of_outbox, open};
use crate::arguments::Pause;
use crate::codes;
use crate::config::{self, Config, Outbox};
use crate::failure::{Failure, Outcome};

/// Orders it, and waits until the owners of the shards have done it.
///
/// # Errors
/// There is no such destination or shard; the database's, or the configuration's.
pub async fn run(a: &Pause, verb: Verb, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let result = async {
        let shards = shards(a, &config, outbox, &store).await?;
        let new = NewAct {
            verb,
            destination: a.destination.clone(),
            shards,
            selector: Selector::default(),
            ranges: BTreeMap::new(),
            message_id: None,
            edit: None,
            actor: act::actor(a.ordering.actor.as_deref()),
            why: a.ordering.why.clone(),
        };
        act::order(&store, &[new], &a.ordering, json).await
    }
    .await;
    store.close().await;
    Ok(result.map_err(|f| of_outbox(f, outbox))?)
}

/// The shards that it is about. A name or number that nothing has is refused: a pause that pauses nothing would not be
/// noticed.
async fn shards(a: &Pause, config: &Config, outbox: &Outbox, store: &Arc<dyn Store>) -> Result<Vec<ShardId>, Failure> {
    let status = store.status().await?;
    if let Some(name) = &a.destination {
        let configured = config.destinations.iter().any(|d| d.name == *name);
        let stored = status.iter().flat_map(|s| &s.lanes.lanes).any(|(lane, _)| lane.destination == *name);
        if !configured && !stored {
            let what = format!("outbox {} has no destination {name}", outbox.name);
            return Err(Failure::new(&codes::NOTHING_THERE, what));
        }
    }
    let all: Vec<ShardId> = status.iter().map(|s| s.shard).collect();
    if a.shard.is_empty() {
        return Ok(all);
    }
    let mut wanted: Vec<ShardId> = a.shard.iter().copied().map(ShardId).collect();
    wanted.sort_unstable();
    wanted.dedup();
    match wanted.iter().find(|shard| !all.contains(shard)) {
        Some(shard) => {
            let what = format!("outbox {} has no shard {shard}: it has {}", outbox.name, all.len());
            Err(Failure::new(&codes::NOTHING_THERE, what))
        }
        None => Ok(wanted),
    }
}
