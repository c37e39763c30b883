//! What brokers of RocketMQ hold.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::route::matches;
use outhaul_reconcile::{Expectation, Place, Record, Side};
use outhaul_sink::rocketmq::{Received, RocketMqConfig};
use rocketmq_remoting::client::{Client, Consumer, PullOptions, Start, TopicRoute};
use rocketmq_remoting::code::ResponseCode;
use rocketmq_remoting::connection::describe;
use rocketmq_remoting::message::{MessageQueue, StoredMessage};
use rocketmq_remoting::request::{PullStatus, Subscription};
use rocketmq_remoting::{Error, message};

use super::destination::log_place;
use super::known::{Reach, TOPICS_MAX};
use super::window::CLOCK_MARGIN_MS;
use super::{Asked, earliest, pushed};
use crate::codes;
use crate::config::{Destination, RouteKeys};
use crate::failure::Failure;

/// The group under which it reads. It keeps no offsets, so that brokers need not know it.
const GROUP: &str = "outhaul-reconcile";
/// The most messages of one pull; brokers have limits of their own, 32 by default.
const PULL_MESSAGES: u16 = 256;
/// How often a pull that failed is tried again, and how long apart.
const TRIES: u32 = 5;
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// A client for reading.
pub(super) fn consumer(d: &Destination) -> Result<Consumer, Failure> {
    let config = RocketMqConfig::read(&d.name, &d.settings)?;
    let client = Client::new(config.client_options()?);
    Consumer::new(&client, GROUP).map_err(|e| failure(&e))
}

pub(super) fn failure(e: &Error) -> Failure {
    Failure::new(&codes::BROKER_NOT_READ, describe(e))
}

/// Where a topic's queues are. None: no broker has the topic.
pub(super) async fn route(consumer: &Consumer, topic: &str) -> Result<Option<Arc<TopicRoute>>, Failure> {
    match consumer.route(topic).await {
        Ok(route) => Ok(Some(route)),
        Err(Error::Refused { code: ResponseCode::TopicNotExist, .. }) => Ok(None),
        Err(e) => Err(failure(&e).while_doing(format_args!("topic {topic}"))),
    }
}

/// Reads every queue of the topics that messages are delivered under.
pub(super) async fn read(
    asked: &Asked<'_>,
    d: &Destination,
    topics: &BTreeSet<String>,
    side: &mut Side,
) -> Result<Reach, Failure> {
    let config = RocketMqConfig::read(&d.name, &d.settings)?;
    let consumer = consumer(d)?;
    if topics.len() >= TOPICS_MAX {
        let what = format!("more than {TOPICS_MAX} topics go to it: name some with --topic PATTERN");
        return Err(Failure::new(&codes::NOTHING_TO_COMPARE, what));
    }
    let mut all: BTreeSet<String> = topics.iter().cloned().chain(asked.config.topics_of(&d.name)).collect();
    all.retain(|topic| asked.a.topic.as_deref().is_none_or(|pattern| matches(pattern, topic)));
    let delivered: BTreeSet<String> =
        all.iter().map(|topic| format!("{}{}", config.topic_prefix, renamed(asked, d, topic))).collect();
    let mut reach = Reach::default();
    let (mut number, mut foreign) = (0u32, 0u64);
    for topic in &delivered {
        let Some(route) = route(&consumer, topic).await? else {
            asked.tell(format_args!("destination {}: no broker has topic {topic}", d.name));
            continue;
        };
        for queue in route.read_queues() {
            let from = asked.window.read_from_ms();
            walk(&consumer, queue, from, |read| {
                match read {
                    Walked::Begins(ms) => earliest(&mut reach, ms),
                    Walked::Message(m) => match record(asked, m, number) {
                        Some(record) => pushed(asked, side, &record)?,
                        None => foreign += 1,
                    },
                }
                Ok(())
            })
            .await?;
            number += 1;
        }
    }
    if foreign > 0 {
        asked.tell(format_args!("destination {}: {foreign} messages of other producers were passed over", d.name));
    }
    Ok(reach)
}

/// What routes make of a topic.
fn renamed(asked: &Asked<'_>, d: &Destination, topic: &str) -> String {
    let routes = asked.config.routes.iter().filter(|r| r.goes_to(&d.name) && matches(&r.topic, topic));
    let mut rewrites = routes.filter_map(RouteKeys::rewrite);
    rewrites.find_map(|rewrite| rewrite.topic_for(topic)).unwrap_or_else(|| topic.to_owned())
}

/// A message of a relay or of the library. None: somebody else's.
fn record(asked: &Asked<'_>, m: &StoredMessage, queue: u32) -> Option<Record> {
    let received = Received::read(&m.properties);
    let ours = received.position.is_some() || m.properties.get("outhaul-id").is_some();
    let id = received.id.filter(|id| ours && !id.is_empty())?;
    let at_ms = Some(m.stored_at_ms);
    let asked_for = asked.window.contains(at_ms);
    Some(Record {
        place: Place::Queue(queue, u64::try_from(m.queue_offset).unwrap_or_default()),
        log: received.position.as_deref().and_then(log_place),
        expectation: if asked_for { Expectation::Must } else { Expectation::Known },
        ..Record::new(id, at_ms)
    })
}

/// What is met on the way through a queue.
pub(super) enum Walked<'a> {
    /// What was stored before is not there any more, milliseconds since 1970-01-01 UTC.
    Begins(i64),
    /// A message.
    Message(&'a StoredMessage),
}

/// Reads a queue from a time on up to its end as it is when it begins.
pub(super) async fn walk(
    consumer: &Consumer,
    queue: &MessageQueue,
    from_ms: Option<i64>,
    mut each: impl FnMut(Walked<'_>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let named = |e: Error| failure(&e).while_doing(format_args!("queue {queue}"));
    let first = consumer.client().min_offset(queue).await.map_err(named)?;
    let end = consumer.client().max_offset(queue).await.map_err(named)?;
    let mut at = match from_ms {
        Some(ms) => {
            let start = Start::AtMs(ms.saturating_sub(CLOCK_MARGIN_MS));
            consumer.offset_of(queue, start).await.map_err(named)?.max(first)
        }
        None => first,
    };
    // What stood before the first one was deleted by its age.
    let mut begins = first > 0 && at == first;
    let options =
        PullOptions { subscription: Subscription::all(), max_messages: PULL_MESSAGES, suspend: Duration::ZERO };
    let mut tries = 0;
    while at < end {
        let answer = match consumer.pull_from_master(queue, at, &options).await {
            Ok(pulled) => pulled.answer,
            Err(e) if tries < TRIES => {
                tries += 1;
                tracing::debug!("queue {queue} at {at}: {}", describe(&e));
                tokio::time::sleep(TRY_AGAIN).await;
                continue;
            }
            Err(e) => return Err(named(e)),
        };
        for m in answer.messages.iter().filter(|m| m.queue_offset < end) {
            if std::mem::take(&mut begins) {
                each(Walked::Begins(m.stored_at_ms))?;
            }
            each(Walked::Message(m))?;
        }
        if answer.next_offset > at {
            (at, tries) = (answer.next_offset, 0);
        } else if answer.status == PullStatus::NotFound {
            // The index may lag behind its own end for a moment.
            if tries >= TRIES {
                return Ok(());
            }
            tries += 1;
            tokio::time::sleep(TRY_AGAIN).await;
        } else if tries >= TRIES {
            let what = format!("queue {queue} does not go on at offset {at} of {end}");
            return Err(Failure::new(&codes::BROKER_NOT_READ, what));
        } else {
            tries += 1;
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }
    Ok(())
}

/// The unique key of a message, if it has one.
pub(super) fn unique_key(m: &StoredMessage) -> Option<&str> {
    m.properties.get(message::name::UNIQUE_KEY)
}
