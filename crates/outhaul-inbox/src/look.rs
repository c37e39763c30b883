//! What `outhaul validate` says of an inbox: nobody joins, nothing is stored, nobody's queues move.

use std::time::Duration;

use outhaul_store::StoreError;
use rocketmq_remoting::client::{Client, Consumer, PullOptions, TopicRoute};
use rocketmq_remoting::connection::describe;
use rocketmq_remoting::{Error, ResponseCode};

use crate::error::InboxError;
use crate::options::{InboxOptions, Topic};

/// An age that no row has: pruning by it deletes nothing, and needs the right to.
const NO_ROW_IS_SO_OLD: Duration = Duration::from_secs(3_155_760_000);

/// What was found about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicFinding {
    /// Its name.
    pub topic: String,
    /// What was found.
    pub text: String,
    /// It is not read as things are.
    pub attention: bool,
}

/// Whether the tables are as the daemon needs them, and its user may do what it does.
///
/// # Errors
/// The database's; `NotInitialised` also for tables of an earlier version.
pub async fn look_at_tables(options: &InboxOptions) -> Result<(), InboxError> {
    options.check()?;
    let inbox = outhaul_store::inbox::open(options.database.clone(), 1).await?;
    let looked = async {
        inbox.inspect_places().await?;
        if options.retention.is_some() {
            inbox.prune(&options.consumer, NO_ROW_IS_SO_OLD, None).await?;
        }
        Ok::<_, StoreError>(())
    };
    let looked = looked.await;
    inbox.close().await;
    Ok(looked?)
}

/// Whether brokers let the group read its topics. Each topic is asked of every broker that has it: a pull at the end of a
/// queue, as any reader sends it. A broker that makes groups by itself makes this one, as it would for the daemon.
///
/// # Errors
/// [`InboxError::Join`]: no name server answers, or a broker refuses the group, or what it asks.
pub async fn look_at_topics(options: &InboxOptions) -> Result<Vec<TopicFinding>, InboxError> {
    options.check()?;
    let refused = |e: &Error| InboxError::Join { group: options.group.clone(), why: describe(e) };
    let mut brokers = options.brokers.clone();
    brokers.client_id = None;
    let client = Client::new(brokers);
    let consumer = Consumer::new(&client, &options.group).map_err(|e| refused(&e))?;
    let mut findings = Vec::with_capacity(options.topics.len());
    for topic in &options.topics {
        let found = |text: String, attention| TopicFinding { topic: topic.name.clone(), text, attention };
        findings.push(match client.refresh_route(&topic.name).await {
            Ok(route) => match readable(&consumer, &route, topic).await.map_err(|e| refused(&e))? {
                Ok(text) => found(text, false),
                Err(text) => found(text, true),
            },
            Err(e) if is_missing(&e) => found("there is no such topic yet; it is read once there is".into(), true),
            Err(e) => return Err(refused(&e)),
        });
    }
    Ok(findings)
}

const fn is_missing(e: &Error) -> bool {
    matches!(e, Error::Route { .. } | Error::Refused { code: ResponseCode::TopicNotExist, .. })
}

/// What can be said of the topic; the inner error: it cannot be read from one of its brokers. The outer one is about the
/// group.
async fn readable(consumer: &Consumer, route: &TopicRoute, topic: &Topic) -> Result<Result<String, String>, Error> {
    let options = PullOptions { subscription: topic.tags.clone(), max_messages: 1, suspend: Duration::ZERO };
    for name in route.brokers() {
        let Some(queue) = route.read_queues().iter().find(|queue| queue.broker_name == name) else { continue };
        let asked = async {
            let end = consumer.client().max_offset(queue).await?;
            consumer.pull_from_master(queue, end, &options).await
        };
        match asked.await {
            Ok(_) => {}
            // Its group or its account, above all: the daemon would be told the same.
            Err(e @ Error::Refused { .. }) => return Err(e),
            Err(e) => return Ok(Err(format!("it cannot be read from broker {name} now: {}", describe(&e)))),
        }
    }
    let queues = route.read_queues().len();
    if queues == 0 {
        return Ok(Err("it has no queue that may be read".into()));
    }
    Ok(Ok(format!("{queues} queues can be read")))
}
