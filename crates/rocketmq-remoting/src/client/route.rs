//! Where the queues of a topic are.

use std::collections::BTreeMap;

use crate::connection::Address;
use crate::message::MessageQueue;
use crate::request::{MASTER_ID, Route};

/// A topic's brokers and queues, as a name server told them at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicRoute {
    topic: String,
    queues: Vec<MessageQueue>,
    read_queues: Vec<MessageQueue>,
    brokers: BTreeMap<String, Addresses>,
    ordered: bool,
    route: Route,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Addresses {
    master: Option<Address>,
    slaves: Vec<Address>,
}

impl TopicRoute {
    /// What a name server told of a topic.
    #[must_use]
    pub fn new(topic: &str, route: Route) -> Self {
        let mut brokers: BTreeMap<String, Addresses> = BTreeMap::new();
        for broker in &route.broker_datas {
            let addresses = brokers.entry(broker.broker_name.clone()).or_default();
            for (id, text) in &broker.broker_addrs {
                let Ok(address) = text.parse() else {
                    tracing::warn!(topic, broker = broker.broker_name, address = text, "an address that is none");
                    continue;
                };
                if *id == MASTER_ID {
                    addresses.master = Some(address);
                } else {
                    addresses.slaves.push(address);
                }
            }
        }
        Self {
            topic: topic.to_owned(),
            queues: route.publish_queues(topic),
            read_queues: route.subscribe_queues(topic),
            brokers,
            ordered: route.order_topic_conf.as_ref().is_some_and(|conf| !conf.is_empty()),
            route,
        }
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Queues that can be written to, in the order in which Java's producers list them: by broker name, then number,
    /// those of living masters only; or as the topic's `orderTopicConf` lists them, if it has one
    /// ([`Self::is_ordered`]), dead brokers included.
    #[must_use]
    pub fn queues(&self) -> &[MessageQueue] {
        &self.queues
    }

    /// Queues that can be read, by broker name and number.
    #[must_use]
    pub fn read_queues(&self) -> &[MessageQueue] {
        &self.read_queues
    }

    /// True if the list of queues is a fixed one (`orderTopicConf`).
    #[must_use]
    pub const fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Names of its brokers.
    pub fn brokers(&self) -> impl Iterator<Item = &str> {
        self.brokers.keys().map(String::as_str)
    }

    /// Address of the master of this broker name, if there is one.
    #[must_use]
    pub fn master(&self, broker_name: &str) -> Option<&Address> {
        self.brokers.get(broker_name)?.master.as_ref()
    }

    /// Who can be read from: the master, or a slave while there is none.
    #[must_use]
    pub fn readable(&self, broker_name: &str) -> Option<&Address> {
        let addresses = self.brokers.get(broker_name)?;
        addresses.master.as_ref().or_else(|| addresses.slaves.first())
    }

    /// The name server's own words.
    #[must_use]
    pub const fn as_told(&self) -> &Route {
        &self.route
    }
}
