//! What is read, and where to.

use std::time::Duration;

use outhaul_store::StoreOptions;
use rocketmq_remoting::client::ClientOptions;
use rocketmq_remoting::message::{check_group, check_topic};
use rocketmq_remoting::request::Subscription;

use crate::error::InboxError;

/// The longest name of a consumer, in bytes.
const MAX_CONSUMER_BYTES: usize = 64;
/// The most topics of one daemon.
const MAX_TOPICS: usize = 1_024;

/// Where a topic begins that was never read for this consumer. Queues that a topic gets later begin at their beginning
/// in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Begin {
    /// At what the broker still has.
    #[default]
    Beginning,
    /// Behind what is there: with what comes from then on.
    End,
    /// Where the group stands at the broker; a queue that it does not know there at its beginning.
    Group,
}

/// A topic, and which of its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name at the broker.
    pub name: String,
    /// Which messages.
    pub tags: Subscription,
}

impl Topic {
    /// Reads `TOPIC`, or `TOPIC:TAG||TAG`.
    pub fn parse(text: &str) -> Self {
        let (name, tags) = text.split_once(':').unwrap_or((text, "*"));
        let tags: Vec<&str> = tags.split("||").map(str::trim).collect();
        // All, also where some are named beside it.
        let tags = if tags.contains(&"*") { Subscription::all() } else { Subscription::of_tags(tags) };
        Self { name: name.trim().to_owned(), tags }
    }
}

/// What is read, and where to.
#[derive(Clone, Debug)]
pub struct InboxOptions {
    /// The brokers.
    pub brokers: ClientOptions,
    /// The database with the inbox.
    pub database: StoreOptions,
    /// Name under which messages are stored.
    pub consumer: String,
    /// The consumer group.
    pub group: String,
    /// Topics.
    pub topics: Vec<Topic>,
    /// Where they begin.
    pub begin: Begin,
    /// Connections to the database: how many queues are stored at the same time.
    pub connections: usize,
    /// Whether tables that are missing are made.
    pub create_tables: bool,
    /// The most messages of one transaction.
    pub max_batch: usize,
    /// The most bytes of one transaction, unless one pull brought more.
    pub max_batch_bytes: usize,
    /// The most bytes that were read and are not stored, of all queues together; besides this one answer of each queue.
    pub max_buffered_bytes: usize,
    /// Messages that were done longer ago are deleted; None: they stay.
    pub retention: Option<Duration>,
}

impl InboxOptions {
    /// With defaults.
    pub fn new(brokers: ClientOptions, database: StoreOptions, consumer: &str, group: &str) -> Self {
        Self {
            brokers,
            database,
            consumer: consumer.to_owned(),
            group: group.to_owned(),
            topics: Vec::new(),
            begin: Begin::default(),
            connections: 4,
            create_tables: true,
            max_batch: 512,
            max_batch_bytes: 1 << 20,
            max_buffered_bytes: 64 << 20,
            retention: None,
        }
    }

    pub(crate) fn check(&self) -> Result<(), InboxError> {
        let no = |what: String| Err(InboxError::Options(what));
        if self.consumer.is_empty() || self.consumer.len() > MAX_CONSUMER_BYTES {
            return no(format!("`consumer` must have 1 to {MAX_CONSUMER_BYTES} bytes"));
        }
        if check_group(&self.group).is_err() {
            return no("`group` is 1 to 255 letters, digits and _ % | -".into());
        }
        if self.topics.is_empty() || self.topics.len() > MAX_TOPICS {
            return no(format!("`topics` must be 1 to {MAX_TOPICS}"));
        }
        for (n, topic) in self.topics.iter().enumerate() {
            if check_topic(&topic.name).is_err() {
                return no(format!("`topics`: {:?} is no name of a topic", topic.name));
            }
            if self.topics.iter().take(n).any(|other| other.name == topic.name) {
                return no(format!("`topics`: {} is there twice; put its tags together: TOPIC:A||B", topic.name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_may_name_tags() {
        assert_eq!(Topic::parse("Orders"), Topic { name: "Orders".into(), tags: Subscription::all() });
        assert_eq!(Topic::parse("Orders:*").tags, Subscription::all());
        assert_eq!(Topic::parse("Orders:paid || *").tags, Subscription::all());
        assert_eq!(Topic::parse("Orders: paid || refunded").tags, Subscription::of_tags(["paid", "refunded"]));
    }
}
