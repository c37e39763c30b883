//! Healing: what a broker acknowledged and no longer has.
//!
//! A broker writes one commit log for all of its queues, and what it can lose is the end of it: a power cut before a
//! flush, a store that was put back, a slave that became master. So the receipts of a broker, by their place in its log,
//! are there up to some point and forgotten from there on. Beyond the log's end they are forgotten for certain;
//! within it the message at the place has to be ours, since others may have written there since. Below the log's
//! beginning they have expired, which is no forgetting.
//!
//! The end of a queue's index (GET_MAX_OFFSET) is not asked: it lags behind acknowledgements on 5.x.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outhaul_core::message::Position;
use outhaul_core::receipt::Reason;
use rocketmq_remoting::connection::Connection;
use rocketmq_remoting::message::StoredMessage;
use rocketmq_remoting::request::{GetRuntimeInfo, Pull, PullStatus, Subscription, ViewMessage};
use rocketmq_remoting::{Error, ResponseCode};
use tokio::time::{Instant, timeout_at};

use super::broker::Broker;
use super::cluster::Cluster;
use super::config::RocketMqConfig;
use super::envelope::unique_key;
use super::outcome::{describe, start_error};
use super::place::Place;
use crate::codes::SinkCode;
use crate::sink::{Acknowledged, SinkError, Verified};

/// The group that reads single messages; it keeps no offsets.
const GROUP: &str = "outhaul-verify";
/// How often a message that a queue's index does not have yet is looked for.
const INDEX_TRIES: u32 = 20;
const INDEX_PAUSE: Duration = Duration::from_millis(50);
/// How long the first answer of a broker may take: what it says to this it has in memory.
const FIRST_ANSWER: Duration = Duration::from_millis(1_200);
/// Receipts whose topics are looked at, and topics, for the brokers that are concerned.
const MOST_SHOWN: usize = 100_000;
const MOST_TOPICS: usize = 64;
/// How long their routes are asked for, all together, and how old an answer may be.
const ROUTES_LIMIT: Duration = Duration::from_secs(1);
const ROUTE_AGE: Duration = Duration::from_millis(300);
/// Receipts that are looked through for a broker that no known topic leads to.
const MOST_UNSEEN: usize = 20_000;
/// Comparisons whose state is kept: those that were cut off leave theirs behind.
const MOST_COMPARISONS: usize = 1_024;

/// What is known of one message.
#[derive(Debug, PartialEq, Eq)]
enum Held {
    Yes,
    No,
    /// Nobody may look: why.
    Untold(String),
}

struct Shown<'a> {
    acknowledged: &'a Acknowledged,
    place: Place,
}

/// Compares a lane's receipts with what the brokers have. Brokers that cannot be used are left out: nothing is sent to
/// them before the next start, after which this is asked again.
pub(super) async fn verify(
    cluster: &Cluster,
    config: &RocketMqConfig,
    acknowledged: &[Acknowledged],
) -> Result<Verified, SinkError> {
    let mut brokers: BTreeMap<String, Vec<Shown<'_>>> = BTreeMap::new();
    for one in acknowledged {
        let Ok(place) = one.receipt.detail.parse::<Place>() else { continue };
        cluster.remember(&place.topic, &place.broker, place.queue_id, config.on_missing_broker);
        brokers.entry(place.broker.clone()).or_default().push(Shown { acknowledged: one, place });
    }
    let Some(comparison) = acknowledged.first().map(|one| one.comparison) else { return Ok(Verified::default()) };
    let is_first = !cluster.comparisons().contains_key(&comparison);
    let concerned = concerned(cluster, config, &brokers, is_first).await;
    let mut forgotten: Vec<Position> = Vec::new();
    let mut looked: Vec<(String, bool)> = Vec::new();
    for (name, mut shown) in brokers {
        let Ok(broker) = cluster.broker(&name) else { continue };
        shown.sort_by_key(|s| s.place.id.commit_log_offset);
        let from = match first_forgotten(&broker, config, &shown).await {
            Ok(from) => from,
            Err(error) => {
                // It died since the start, or does not answer: that must not hold up the queues of others.
                let SinkError { code, message, .. } = start_error(&format!("broker {name}: what it still has"), &error);
                tracing::warn!(code, "nothing is sent to it before the next start: {message}");
                cluster.lose(&broker, Reason::new(code, message));
                continue;
            }
        };
        forgotten.extend(shown.iter().skip(from).map(|s| s.acknowledged.position));
        looked.push((name, from == shown.len()));
    }
    forgotten.sort_unstable();
    forgotten.dedup();
    let usable = cluster.snapshot();
    let mut comparisons = cluster.comparisons();
    let compared = comparisons.entry(comparison).or_default();
    compared.shown += acknowledged.len();
    compared.all_there.extend(looked);
    for name in concerned {
        compared.all_there.entry(name).or_insert(false);
    }
    // Older ones are needed as long as some were forgotten among the last ones of a broker that were shown, or none of a
    // broker was: one that was down for long has only old ones. One that no known topic leads to may have some all the
    // same, of a topic that is seldom sent to; that has its limit.
    let (shown, all_there) = (compared.shown, &compared.all_there);
    let older = usable.usable().any(|name| all_there.get(name).map_or(shown < MOST_UNSEEN, |all_there| !all_there));
    if !older {
        comparisons.remove(&comparison);
    }
    while comparisons.len() > MOST_COMPARISONS {
        comparisons.pop_first();
    }
    Ok(Verified { forgotten, older })
}

/// The brokers that can be used and have a queue of a topic that receipts name or that was delivered to.
async fn concerned(
    cluster: &Cluster,
    config: &RocketMqConfig,
    brokers: &BTreeMap<String, Vec<Shown<'_>>>,
    is_first: bool,
) -> BTreeSet<String> {
    let mut topics: BTreeSet<String> =
        brokers.values().flatten().map(|s| s.place.topic.clone()).take(MOST_SHOWN).collect();
    topics.extend(cluster.known_topics(MOST_TOPICS));
    let looking = RocketMqConfig { create_topics: false, ..config.clone() };
    let mut concerned = BTreeSet::new();
    // What was remembered may be older than a broker that is back. Where no name server answers, it has to do.
    let mut ask_until = is_first.then(|| Instant::now() + ROUTES_LIMIT);
    for topic in topics.into_iter().take(MOST_TOPICS) {
        if let Some(until) = ask_until {
            let asked = timeout_at(until, cluster.client.recent_route(&topic, ROUTE_AGE)).await;
            ask_until = asked.is_ok().then_some(until);
        }
        // A topic without a route has no broker to ask.
        if let Ok(queues) = cluster.queues(&topic, &looking).await {
            concerned.extend(queues.iter().map(|q| q.broker_name.clone()));
        }
    }
    concerned.retain(|name| cluster.broker(name).is_ok());
    concerned
}

/// The place, in receipts by rising log offset, of the first that the broker has forgotten; their number if none.
async fn first_forgotten(broker: &Broker, config: &RocketMqConfig, shown: &[Shown<'_>]) -> Result<usize, Error> {
    let limit = config.request_limit();
    let connection = broker.connection(limit).await?;
    // One that does not answer holds up the lane for this long, once.
    let log = LogEnds::ask(&connection, broker, limit.min(FIRST_ANSWER)).await?;
    let offset = |s: &Shown<'_>| s.place.id.commit_log_offset;
    // What is beyond the end needs no question, nor what has expired.
    let mut end = shown.partition_point(|s| log.end.is_none_or(|end| offset(s) < end));
    let mut begin = shown.partition_point(|s| log.begin.is_some_and(|begin| offset(s) < begin));
    // The newest first: mostly it is there, and with it all.
    let mut look_at = end.checked_sub(1);
    while let Some(at) = look_at.filter(|at| (begin..end).contains(at)) {
        let Some(one) = shown.get(at) else { break };
        match held(&connection, one, limit).await? {
            Held::Yes => begin = at + 1,
            Held::No => end = at,
            Held::Untold(why) => {
                tracing::warn!(
                    code = SinkCode::RocketMqUnverified.code(),
                    broker = broker.facts.name,
                    "it cannot be looked at whether messages that were acknowledged are still there: {why}"
                );
                return Ok(end);
            }
        }
        look_at = (begin < end).then(|| begin + (end - begin) / 2);
    }
    // The answers are of the connection that sends go over.
    broker.connection(limit).await?;
    Ok(end)
}

/// Begin and end of a commit log, as far as the broker tells.
struct LogEnds {
    begin: Option<i64>,
    end: Option<i64>,
}

impl LogEnds {
    async fn ask(connection: &Connection, broker: &Broker, limit: Duration) -> Result<Self, Error> {
        match connection.request(&GetRuntimeInfo, limit).await {
            Ok(info) => Ok(Self {
                begin: info.get("commitLogMinOffset").and_then(|text| text.parse().ok()),
                end: info.commit_log_max_offset(),
            }),
            // A proxy. A broker that tells its settings tells this too, if not in its first second.
            Err(Error::Refused { .. }) if broker.facts.durability.is_none() => Ok(Self { begin: None, end: None }),
            Err(error) => Err(error),
        }
    }
}

/// Whether the broker has this message at its place.
async fn held(connection: &Connection, one: &Shown<'_>, limit: Duration) -> Result<Held, Error> {
    let key = unique_key(&one.acknowledged.id);
    let view = ViewMessage { commit_log_offset: one.place.id.commit_log_offset };
    let by_log = match connection.request(&view, limit).await {
        Ok(message) if is(&message, &key) => return Ok(Held::Yes),
        // Another message, no message, or bytes that are none.
        Ok(_) | Err(Error::Stored { .. } | Error::Answer { .. }) => Held::No,
        Err(Error::Refused { code: ResponseCode::SystemError, remark, .. })
            if !remark.as_deref().is_some_and(|r| r.contains("AclException")) =>
        {
            Held::No
        }
        Err(error @ Error::Refused { .. }) if !passes(&error) => Held::Untold(describe(&error)),
        Err(error) => return Err(error),
    };
    match (by_queue(connection, one, &key, limit).await?, by_log) {
        (Held::Untold(_), by_log) => Ok(by_log),
        (by_queue, _) => Ok(by_queue),
    }
}

/// Whether a refusal is of the moment: a broker that is busy or ends says nothing of what it has.
fn passes(error: &Error) -> bool {
    use ResponseCode as R;
    matches!(error, Error::Refused { code: R::SystemBusy | R::FlowControl | R::ServiceNotAvailable | R::GoAway, .. })
}

/// The same by the queue's index, which may lag a little.
async fn by_queue(connection: &Connection, one: &Shown<'_>, key: &str, limit: Duration) -> Result<Held, Error> {
    let Some(offset) = one.place.queue_offset else { return Ok(Held::Untold("it is delayed".into())) };
    let is_5 = connection.peer_version().is_some_and(|version| version.is_5());
    let pull = Pull {
        group: GROUP.into(),
        topic: one.place.topic.clone(),
        queue_id: one.place.queue_id,
        offset,
        max_messages: 1,
        subscription: Subscription::all(),
        suspend: Duration::ZERO,
        commit_offset: None,
        max_bytes: None,
        broker_name: is_5.then(|| one.place.broker.clone()),
    };
    for _ in 0..INDEX_TRIES {
        let answer = match connection.request(&pull, limit).await {
            Ok(answer) => answer,
            Err(Error::Stored { .. }) => return Ok(Held::No),
            Err(error @ Error::Refused { .. }) if !passes(&error) => return Ok(Held::Untold(describe(&error))),
            Err(error) => return Err(error),
        };
        if answer.status == PullStatus::Found {
            return Ok(if answer.messages.iter().any(|m| is(m, key)) { Held::Yes } else { Held::No });
        }
        if offset < answer.min_offset {
            return Ok(Held::Yes); // expired
        }
        if offset > answer.max_offset {
            return Ok(Held::No);
        }
        tokio::time::sleep(INDEX_PAUSE).await;
    }
    Ok(Held::No)
}

/// Whether this is the message with that key, or holds it.
fn is(message: &StoredMessage, key: &str) -> bool {
    if message.unique_key() == Some(key) {
        return true;
    }
    let inner = message.unwrap_batch().ok().flatten().unwrap_or_default();
    inner.iter().any(|m| m.properties.get("UNIQ_KEY") == Some(key))
}
