//! Halfs that brokers have given up, and what the database says of each.

use std::sync::Arc;

use outhaul_core::transaction::TransactionState;
use outhaul_sink::rocketmq::{ORIGIN, Received, TRANSACTION};
use outhaul_store::Store;
use rocketmq_remoting::message::StoredMessage;
use serde_json::json;

use super::Asked;
use super::queues::{self, Walked};
use crate::config::Destination;
use crate::failure::{Exit, Failure};
use crate::{codes, output, timestamp};

/// Where brokers put a half that they have asked about often enough. Source: `TopicValidator` of RocketMQ 4.9.4.
const GIVEN_UP: &str = "TRANS_CHECK_MAX_TIME_TOPIC";
/// The topic that a message was meant for (`MessageConst.PROPERTY_REAL_TOPIC`).
const REAL_TOPIC: &str = "REAL_TOPIC";
/// Halfs that are looked up, at most.
const HALFS_MAX: usize = 100_000;

/// A half.
struct Half {
    transaction: String,
    id: String,
    topic: String,
    origin: Option<String>,
    stored_at_ms: i64,
    broker: String,
}

/// Lists them. Exit code 3 if one committed and has not gone out by another way.
pub(super) async fn list(asked: &Asked<'_>) -> Result<Exit, Failure> {
    let wanted =
        |d: &&Destination| d.kind == "rocketmq" && asked.a.destination.as_ref().is_none_or(|name| *name == d.name);
    let destinations: Vec<&Destination> = asked.config.destinations.iter().filter(wanted).collect();
    if destinations.is_empty() {
        let none = Failure::new(&codes::NOTHING_TO_COMPARE, "no destination of kind rocketmq is configured");
        return Err(none);
    }
    let origin = asked.store.origin().await?;
    let mut exit = Exit::Fine;
    for d in destinations {
        let consumer = queues::consumer(d)?;
        let mut halfs = vec![];
        // The topic is made with the first half that is given up.
        if let Some(route) = queues::route(&consumer, GIVEN_UP).await? {
            for queue in route.read_queues() {
                let broker = &queue.broker_name;
                queues::walk(&consumer, queue, asked.window.read_from_ms(), |read| {
                    if let Walked::Message(m) = read
                        && asked.window.contains(Some(m.stored_at_ms))
                    {
                        if halfs.len() >= HALFS_MAX {
                            let what = format!("more than {HALFS_MAX} halfs: name a shorter time with --from and --to");
                            return Err(Failure::new(&codes::NOTHING_TO_COMPARE, what));
                        }
                        halfs.push(half(m, broker));
                    }
                    Ok(())
                })
                .await?;
            }
        }
        let (mut open, count) = (0u64, halfs.len());
        for half in &halfs {
            let (said, text) = said(asked.store, half, &origin).await?;
            open += u64::from(said == "committed");
            let at = timestamp::format_us(half.stored_at_ms.saturating_mul(1_000));
            if asked.json {
                output::json(&json!({
                    "destination": d.name, "transaction": half.transaction, "id": half.id, "topic": half.topic,
                    "given_up_at": at, "broker": half.broker, "state": said,
                }))?;
            } else {
                output::line(format_args!(
                    "{} for {} (given up {at} by {}): {text}",
                    half.id, half.topic, half.broker
                ))?;
            }
        }
        if !asked.json {
            output::line(format_args!(
                "{}: {count} halfs were given up, {open} of them committed and not gone out yet",
                d.name
            ))?;
        }
        exit = exit.or_attention(open > 0);
    }
    Ok(exit)
}

fn half(m: &StoredMessage, broker: &str) -> Half {
    let property = |name: &str| m.properties.get(name).map(str::to_owned);
    let unique = queues::unique_key(m).map(str::to_owned).unwrap_or_default();
    Half {
        transaction: property(TRANSACTION).unwrap_or_else(|| unique.clone()),
        id: Received::read(&m.properties).id.unwrap_or(unique),
        topic: property(REAL_TOPIC).unwrap_or_default(),
        origin: property(ORIGIN),
        stored_at_ms: m.stored_at_ms,
        broker: broker.to_owned(),
    }
}

/// What the database says of a half: its state, and a sentence.
async fn said(store: &Arc<dyn Store>, half: &Half, origin: &str) -> Result<(&'static str, String), Failure> {
    if half.origin.as_deref().is_some_and(|other| other != origin) {
        return Ok(("other", "it is of another outbox".into()));
    }
    let found = store.find_transactions(&half.transaction).await?;
    let Some(record) = found.into_iter().find(|r| r.transaction == half.transaction) else {
        let text = "no row: its transaction did not commit, or was pruned since; it was never delivered";
        return Ok(("absent", text.into()));
    };
    let text = match record.state {
        TransactionState::Committed => {
            "committed, and no broker has confirmed it: a relay with `transactions.fallback` sends it by the outbox"
        }
        TransactionState::Ended => "committed, and a broker has confirmed it: what was given up is a second copy",
        TransactionState::Sent => "committed, and it went out by the outbox",
        TransactionState::RolledBack => "its transaction can never commit: nothing is missing",
    };
    Ok((record.state.name(), text.into()))
}
