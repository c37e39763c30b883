//! The flush barrier: which acknowledgements of an ASYNC_FLUSH broker are on its disk by now.
//!
//! A broker tells the end of its commit log and how much of it may not be flushed yet, from which a bound follows below
//! which everything is flushed (rocketmq.md F.2). One question serves all messages of a broker. It proves what
//! SYNC_FLUSH proves: that the broker has called msync.

use std::collections::HashMap;
use std::time::Duration;

use outhaul_core::receipt::{AckLevel, Receipt};
use rocketmq_remoting::Error;
use rocketmq_remoting::request::SendStatus;

use super::cluster::Cluster;
use super::config::RocketMqConfig;
use super::outcome::{describe, is_below, start_error};
use super::place::Place;
use crate::sink::SinkError;

/// How long an answer may take that others wait for too.
const ANSWER: Duration = Duration::from_millis(600);

/// One answer a receipt. Brokers that do not answer now prove nothing, and hold up nobody else's.
pub(super) async fn prove(
    cluster: &Cluster,
    config: &RocketMqConfig,
    demanded: Option<AckLevel>,
    receipts: &[Receipt],
) -> Result<Vec<bool>, SinkError> {
    let mut bounds: HashMap<String, Option<i64>> = HashMap::new();
    let mut proven = Vec::with_capacity(receipts.len());
    for receipt in receipts {
        // A receipt of another kind of destination that had this name: nobody can say more of it.
        let Ok(place) = receipt.detail.parse::<Place>() else {
            proven.push(true);
            continue;
        };
        // Two nodes that have it prove no flush, unless each flushes before it answers.
        let flushed_at_once = || {
            let broker = cluster.broker(&place.broker);
            place.status == SendStatus::Ok && broker.is_ok_and(|b| b.facts.meets(AckLevel::Flushed))
        };
        let at_once = match (receipt.level, demanded) {
            (AckLevel::Replicated, Some(AckLevel::Flushed)) => flushed_at_once(),
            (level, demanded) => !is_below(level, demanded),
        };
        if at_once {
            proven.push(true);
            continue;
        }
        let bound = match bounds.get(&place.broker) {
            Some(bound) => *bound,
            None => {
                let bound = bound(cluster, config, &place.broker).await?;
                bounds.insert(place.broker, bound);
                bound
            }
        };
        proven.push(bound.is_some_and(|flushed| place.id.commit_log_offset < flushed));
    }
    Ok(proven)
}

/// Below what everything is flushed. None: not known now.
///
/// # Errors
/// The connection was renewed: what the broker has must be verified first.
async fn bound(cluster: &Cluster, config: &RocketMqConfig, name: &str) -> Result<Option<i64>, SinkError> {
    let Ok(broker) = cluster.broker(name) else { return Ok(None) };
    match broker.flushed(config.request_limit().min(ANSWER)).await {
        Ok(flushed) => Ok(flushed.map(|flushed| flushed.at_least)),
        Err(error @ Error::Reconnected { .. }) => Err(start_error(&format!("broker {name}"), &error)),
        Err(error) => {
            tracing::debug!(broker = name, error = describe(&error), "no word on what is flushed");
            Ok(None)
        }
    }
}
