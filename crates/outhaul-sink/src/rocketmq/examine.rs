//! What `outhaul validate` prints: brokers, topics, rights, and what to change.

use std::time::Duration;

use outhaul_core::receipt::AckLevel;
use rocketmq_remoting::client::SendOptions;
use rocketmq_remoting::message::{Message, MessageQueue, check_topic_for_sending};
use rocketmq_remoting::request::{Pull, Subscription};
use rocketmq_remoting::{Error, ResponseCode};

use super::broker::Broker;
use super::cluster::{Cluster, NoQueues};
use super::config::RocketMqConfig;
use super::outcome::describe;
use crate::sink::Finding;

/// A queue that no topic has: a broker checks the account's right to send before it refuses the number.
const NO_SUCH_QUEUE: i32 = 1 << 20;

/// Looks at the brokers that a start found, and at these topics.
pub(super) async fn examine(
    cluster: &Cluster,
    config: &RocketMqConfig,
    demanded: Option<AckLevel>,
    topics: &[String],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, broker) in cluster.all() {
        let subject = format!("broker {name}");
        match broker {
            Ok(broker) => {
                findings.push(Finding::fine(&subject, limits(&broker)));
                findings.push(level(&subject, &broker, config, demanded));
            }
            Err(reason) => findings.push(Finding::attention(&subject, format!("{} {}", reason.code, reason.text))),
        }
    }
    for topic in topics {
        examine_topic(cluster, config, &format!("{}{topic}", config.topic_prefix), &mut findings).await;
    }
    findings
}

fn limits(broker: &Broker) -> String {
    let facts = &broker.facts;
    let words = facts.durability.as_ref().map_or_else(
        || format!("settings not told ({})", facts.untold.as_deref().unwrap_or("none that are known")),
        super::ack::Durability::words,
    );
    let timer = match facts.version {
        Some(version) if version.is_5() && !facts.timer_off => {
            format!(", timer up to {} s", facts.timer_max_delay_seconds)
        }
        _ => ", no timer".to_owned(),
    };
    format!(
        "{} at {}, {words}, maxMessageSize {}, {} delay levels{timer}",
        facts.version_words(),
        broker.address,
        facts.max_message_bytes,
        facts.delay_levels
    )
}

fn level(subject: &str, broker: &Broker, config: &RocketMqConfig, demanded: Option<AckLevel>) -> Finding {
    let facts = &broker.facts;
    let proves = format!("an acknowledgement proves `{}`", facts.level().as_str());
    let Some(durability) = &facts.durability else { return Finding::attention(subject, proves) };
    if let Some(least) = demanded.filter(|least| !facts.meets(*least)) {
        if config.is_proven_later(durability, least) {
            return Finding::fine(subject, format!("{proves}; `flushed` is reached later, by the flush barrier"));
        }
        let remedy = durability.remedy(least);
        return Finding::attention(subject, format!("{proves}, `{}` is demanded: {remedy}", least.as_str()));
    }
    match durability.risk() {
        Some(risk) if demanded.is_none() => Finding::fine(
            subject,
            format!(
                "{proves}: {risk}; for `flushed` {} or demand it (flush barrier)",
                durability.remedy(AckLevel::Flushed)
            ),
        ),
        _ => Finding::fine(subject, proves),
    }
}

async fn examine_topic(cluster: &Cluster, config: &RocketMqConfig, topic: &str, findings: &mut Vec<Finding>) {
    let subject = format!("topic {topic}");
    if let Err(error) = check_topic_for_sending(topic) {
        findings.push(Finding::attention(subject, error.to_string()));
        return;
    }
    // Looks, and creates nothing.
    let looking = RocketMqConfig { create_topics: false, ..config.clone() };
    let queues = match cluster.queues(topic, &looking).await {
        Ok(queues) => queues,
        Err(NoQueues::Topic(_)) if config.create_topics => {
            let text = format!("does not exist; it will be created with {} queues on each broker", config.queues);
            findings.push(Finding::fine(subject, text));
            return;
        }
        Err(NoQueues::Topic(reason) | NoQueues::Down(reason)) => {
            findings.push(Finding::attention(subject, format!("{} {}", reason.code, reason.text)));
            return;
        }
    };
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for queue in queues.iter() {
        match counts.last_mut() {
            Some((broker, n)) if *broker == queue.broker_name => *n += 1,
            _ => counts.push((&queue.broker_name, 1)),
        }
    }
    let total: usize = counts.iter().map(|(_, n)| n).sum();
    if total == 0 {
        findings.push(Finding::attention(subject, "no queue can be written to: look at its perm"));
        return;
    }
    let slots = config.slots as usize;
    let list: Vec<String> = counts.iter().map(|(broker, n)| format!("{broker} {n}")).collect();
    let queues = format!("{total} queues ({})", list.join(", "));
    findings.push(match slots.is_multiple_of(total) {
        true => Finding::fine(&subject, queues),
        false if counts.len() == 1 => Finding::fine(
            &subject,
            format!("{queues}; `slots` ({slots}) is no multiple of them, one sends more at once"),
        ),
        false => Finding::attention(
            &subject,
            format!(
                "{queues}: `slots` ({slots}) must be a multiple of {total}, or one broker that is down holds up the \
                     keys of the others"
            ),
        ),
    });
    for (name, _) in counts {
        let Ok(broker) = cluster.broker(name) else { continue };
        findings.push(may_send(cluster, &broker, topic, config.request_limit()).await);
        findings.push(may_read(&broker, topic, config.request_limit()).await);
    }
}

/// Asks for a queue that does not exist: nothing can be stored.
async fn may_send(cluster: &Cluster, broker: &Broker, topic: &str, limit: Duration) -> Finding {
    let subject = format!("topic {topic}");
    let name = &broker.facts.name;
    let queue = MessageQueue { topic: topic.to_owned(), broker_name: name.clone(), queue_id: NO_SUCH_QUEUE };
    let options = SendOptions { limit: Some(limit), ..SendOptions::default() };
    let Ok(message) = Message::new(topic, "outhaul validate") else {
        return Finding::attention(subject, "cannot be sent to");
    };
    match cluster.producer.send(&queue, &message, &options).await {
        Err(Error::Refused { remark: Some(remark), .. }) if remark.contains("queueId") => {
            Finding::fine(subject, format!("broker {name} lets this account send"))
        }
        Err(error) => Finding::attention(subject, format!("broker {name} does not let it send: {}", describe(&error))),
        Ok(_) => Finding::attention(subject, format!("broker {name} stored a message in a queue that does not exist")),
    }
}

/// Reading is what finds out whether a broker has forgotten something.
async fn may_read(broker: &Broker, topic: &str, limit: Duration) -> Finding {
    let subject = format!("topic {topic}");
    let name = &broker.facts.name;
    let pull = Pull {
        group: "outhaul-verify".into(),
        topic: topic.to_owned(),
        queue_id: 0,
        offset: 0,
        max_messages: 1,
        subscription: Subscription::all(),
        suspend: Duration::ZERO,
        commit_offset: None,
        max_bytes: None,
        broker_name: broker.facts.version.filter(|v| v.is_5()).map(|_| name.clone()),
    };
    let asked = match broker.connection(limit).await {
        Ok(connection) => connection.request(&pull, limit).await.map(drop),
        Err(error) => Err(error),
    };
    match asked {
        Ok(()) | Err(Error::Stored { .. }) => {
            Finding::fine(subject, format!("broker {name} lets this account read, so what it forgets is found"))
        }
        Err(Error::Refused { code: ResponseCode::NoPermission | ResponseCode::SystemError, remark, .. }) => {
            let why = remark.unwrap_or_default();
            Finding::attention(
                subject,
                format!("broker {name} does not let this account read (SUB): what it forgets may not be found ({why})"),
            )
        }
        Err(error) => Finding::attention(subject, format!("broker {name}: reading: {}", describe(&error))),
    }
}
