//! `outhaul destination drop`: a destination that is not configured any more is given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outhaul_core::act::{Selector, Verb};
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::ShardId;
use outhaul_store::{InstanceStatus, NewAct, Store, StoreErrorKind};

use super::{act, of_outbox, open};
use crate::arguments::{Destination, DestinationDrop};
use crate::failure::{Failure, Outcome};
use crate::{codes, config, measure, output};

/// Runs what `destination` is asked for.
///
/// # Errors
/// It is still configured, or unknown; the database's, or the configuration's.
pub async fn run(a: &Destination, json: bool) -> Outcome {
    let Destination::Drop(a) = a;
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    if config.destinations.iter().any(|d| d.name == a.name) {
        let what = format!("destination {} is in the configuration", a.name);
        return Err(Failure::new(&codes::STILL_CONFIGURED, what).into());
    }
    let store = open(outbox).await?;
    let result = async {
        let left = left_of(&store, a, &outbox.name).await?;
        refuse_beside_differing_relays(&store).await?;
        if !json && left.unsettled + left.parked > 0 {
            eprintln!(
                "{} never gets up to {} messages that it had not got, and {} that are parked for it",
                a.name, left.unsettled, left.parked
            );
        }
        let new = NewAct {
            verb: Verb::Drop,
            destination: Some(a.name.clone()),
            shards: left.shards,
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

/// What there is of a destination.
struct Left {
    shards: Vec<ShardId>,
    /// Positions above its cursors that are not settled, whether routed to it or not.
    unsettled: u64,
    parked: u64,
}

async fn left_of(store: &Arc<dyn Store>, a: &DestinationDrop, outbox: &str) -> Result<Left, Failure> {
    let mut left = Left { shards: vec![], unsettled: 0, parked: 0 };
    for s in store.status().await? {
        let lane = s.lanes.lanes.iter().map(|(lane, _)| lane).find(|lane| lane.destination == a.name);
        let counts = s.parked.iter().filter(|(name, ..)| *name == a.name);
        let parked: u64 = counts.map(|(_, retrying, waiting, dead)| retrying + waiting + dead).sum();
        left.unsettled +=
            lane.map_or(0, |lane| (s.log_end.0.saturating_sub(lane.cursor.0)).saturating_sub(lane.ahead.len()));
        left.parked += parked;
        if lane.is_some() || parked > 0 {
            left.shards.push(s.shard);
        }
    }
    if a.name == NO_ROUTE || left.shards.is_empty() {
        let what = format!("outbox {outbox} has no destination {}", a.name);
        return Err(Failure::new(&codes::NOTHING_THERE, what));
    }
    Ok(left)
}

/// With some relays that have the destination and some that do not, it would be dropped in some shards, and begin at the
/// end in those that change their owner.
async fn refuse_beside_differing_relays(store: &Arc<dyn Store>) -> Result<(), Failure> {
    const ALIVE_MS: u64 = 60_000;
    let all = match store.instances().await {
        Ok(all) => all,
        Err(e) if e.kind == StoreErrorKind::Permission => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    let live = || all.iter().filter(|i: &&InstanceStatus| i.heartbeat_ms < ALIVE_MS && !i.draining);
    let digests: BTreeSet<&str> = live().map(|i| i.config.as_str()).collect();
    if digests.len() < 2 {
        return Ok(());
    }
    let names: Vec<String> =
        live().map(|i| format!("{} (heard of {} ago)", i.owner, measure::span_text(i.heartbeat_ms))).collect();
    let what = format!(
        "relays have different destinations or routes: {}; one that was killed counts for a minute",
        output::plain(names.join(", "))
    );
    Err(Failure::new(&codes::RELAYS_DIFFER, what))
}
