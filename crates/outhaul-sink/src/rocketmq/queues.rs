//! The queues of a topic, in the order in which Java's producers count them, and what becomes of those whose broker is
//! gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rocketmq_remoting::client::TopicRoute;
use rocketmq_remoting::message::{MessageQueue, queue_by_hash};
use rocketmq_remoting::request::PERM_WRITE;
use serde::Deserialize;

use super::config::OnMissingBroker;

/// Topics whose queues are remembered, also while their broker is not listed. Far above what a relay delivers to.
const MAX_TOPICS: usize = 65_536;
/// Topics that the next process is told of.
const MAX_REMEMBERED: usize = 4_096;

/// The queues of a topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Queues {
    /// All, in the order that keys are counted by.
    all: Vec<MessageQueue>,
    /// Places of those whose master is listed now.
    alive: Vec<usize>,
}

impl Queues {
    /// The queue of a message: by its key, as Java's `SelectMessageQueueByHash`; without one, in turn among those that
    /// are alive. None: there is no queue.
    pub(super) fn of(&self, key: Option<&str>, position: u64) -> Option<&MessageQueue> {
        let at = match key {
            Some(key) => queue_by_hash(key, self.all.len())?,
            None => {
                let candidates = self.alive.len() as u64;
                // None alive: any will tell why.
                if candidates == 0 {
                    return self.all.first();
                }
                *self.alive.get(usize::try_from(position % candidates).ok()?)?
            }
        };
        self.all.get(at)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &MessageQueue> {
        self.all.iter()
    }
}

/// The queues of all topics that were delivered to.
#[derive(Debug)]
pub(super) struct Topics {
    policy: OnMissingBroker,
    /// Only brokers of this cluster count. Empty: all.
    cluster: String,
    known: Mutex<HashMap<String, Topic>>,
    /// Grows when what the next process has to know changes.
    version: AtomicU64,
}

#[derive(Debug, Default)]
struct Topic {
    /// The route that `queues` was made of.
    route: Option<Arc<TopicRoute>>,
    queues: Option<Arc<Queues>>,
    /// Queues of each broker as last listed, or as receipts tell of one that is not.
    brokers: BTreeMap<String, Listed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// By a route.
    Queues(i32),
    /// By a receipt: at least so many.
    AtLeast(i32),
}

impl Topics {
    pub(super) fn new(policy: OnMissingBroker, cluster: &str) -> Self {
        Self { policy, cluster: cluster.to_owned(), known: Mutex::default(), version: AtomicU64::new(0) }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Topic>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next process has to know, with the number of its version: `{"topics": {TOPIC: {BROKER: QUEUES}}}`.
    /// None: version `kept` has it.
    pub(super) fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        let version = self.version.load(Ordering::Relaxed);
        if kept == Some(version) {
            return None;
        }
        if self.policy == OnMissingBroker::Rehash {
            return Some((version, "{}".to_owned()));
        }
        let known = self.known();
        let exact = |topic: &Topic| -> BTreeMap<String, i32> {
            let exact = topic.brokers.iter().filter_map(|(broker, listed)| match listed {
                Listed::Queues(n) if *n > 0 => Some((broker.clone(), *n)),
                Listed::Queues(_) | Listed::AtLeast(_) => None,
            });
            exact.collect()
        };
        let mut topics: BTreeMap<&String, BTreeMap<String, i32>> =
            known.iter().map(|(name, topic)| (name, exact(topic))).filter(|(_, brokers)| !brokers.is_empty()).collect();
        while topics.len() > MAX_REMEMBERED {
            topics.pop_last();
        }
        Some((version, serde_json::json!({ "topics": topics }).to_string()))
    }

    /// What an earlier process knew. What is known already stays.
    pub(super) fn recall(&self, memory: &str) {
        let Ok(Memory { topics }) = serde_json::from_str(memory) else { return };
        if self.policy == OnMissingBroker::Rehash {
            return;
        }
        let mut known = self.known();
        for (name, brokers) in topics.into_iter().take(MAX_REMEMBERED) {
            let topic = known.entry(name).or_default();
            for (broker, queues) in brokers {
                let listed = topic.brokers.entry(broker).or_insert(Listed::AtLeast(0));
                if let Listed::AtLeast(_) = listed {
                    *listed = Listed::Queues(queues.clamp(0, 65_536));
                    topic.route = None;
                    self.version.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The queues of a topic that no name server lists, as they were: what is known of one whose brokers are all away.
    pub(super) fn remembered(&self, topic: &str) -> Option<Queues> {
        let known = self.known();
        let of = known.get(topic).filter(|t| !t.brokers.is_empty())?;
        let all = of.all(topic);
        (self.policy == OnMissingBroker::Wait && !all.is_empty()).then_some(Queues { all, alive: Vec::new() })
    }

    /// Names of topics that are known.
    pub(super) fn names(&self, most: usize) -> Vec<String> {
        self.known().keys().take(most).cloned().collect()
    }

    /// The queues of a topic whose route this is.
    pub(super) fn queues(&self, route: &Arc<TopicRoute>) -> Arc<Queues> {
        let mut known = self.known();
        let room = known.len() < MAX_TOPICS;
        let mut passing = Topic::default();
        let topic = match known.contains_key(route.topic()) || room {
            true => known.entry(route.topic().to_owned()).or_default(),
            false => &mut passing,
        };
        if let (Some(of), Some(queues)) = (&topic.route, &topic.queues)
            && Arc::ptr_eq(of, route)
        {
            return queues.clone();
        }
        let before = topic.brokers.clone();
        let queues = Arc::new(topic.take_in(route, self.policy, &self.cluster));
        if topic.brokers != before {
            self.version.fetch_add(1, Ordering::Relaxed);
        }
        topic.route = Some(route.clone());
        topic.queues = Some(queues.clone());
        queues
    }

    /// A receipt names a queue: its broker may be one that no route lists at the moment.
    pub(super) fn remember(&self, topic: &str, broker: &str, queue_id: i32) {
        let mut known = self.known();
        if known.len() >= MAX_TOPICS && !known.contains_key(topic) {
            return;
        }
        let topic = known.entry(topic.to_owned()).or_default();
        let count = queue_id.saturating_add(1);
        match topic.brokers.get_mut(broker) {
            Some(Listed::AtLeast(n)) if *n < count => *n = count,
            Some(_) => return,
            None => drop(topic.brokers.insert(broker.to_owned(), Listed::AtLeast(count))),
        }
        topic.route = None;
    }
}

impl Topic {
    fn take_in(&mut self, route: &TopicRoute, policy: OnMissingBroker, cluster: &str) -> Queues {
        let told = route.as_told();
        let fixed = route.is_ordered();
        let elsewhere = |name: &str| {
            let of = told.broker_datas.iter().find(|data| data.broker_name == name);
            !cluster.is_empty() && of.is_some_and(|data| data.cluster != cluster)
        };
        if policy == OnMissingBroker::Rehash || fixed {
            let all: Vec<_> = route.queues().iter().filter(|q| !elsewhere(&q.broker_name)).cloned().collect();
            return Queues { alive: alive(&all, route), all };
        }
        for data in told.queue_datas.iter().filter(|data| !elsewhere(&data.broker_name)) {
            let count = if data.perm & PERM_WRITE == 0 { 0 } else { data.write_queue_nums.clamp(0, 65_536) };
            self.brokers.insert(data.broker_name.clone(), Listed::Queues(count));
        }
        let all = self.all(route.topic());
        Queues { alive: alive(&all, route), all }
    }

    /// Its queues by what is known.
    fn all(&self, name: &str) -> Vec<MessageQueue> {
        // A topic mostly has as many queues on each of its brokers.
        let usual = self.brokers.values().map(|l| match l {
            Listed::Queues(n) => *n,
            Listed::AtLeast(_) => 0,
        });
        let usual = usual.max().unwrap_or_default();
        let counts = self.brokers.iter().map(|(broker, listed)| match listed {
            Listed::Queues(n) => (broker, *n),
            Listed::AtLeast(n) => (broker, (*n).max(usual)),
        });
        counts
            .flat_map(|(broker, count)| (0..count).map(move |queue_id| (broker, queue_id)))
            .map(|(broker, queue_id)| MessageQueue { topic: name.to_owned(), broker_name: broker.clone(), queue_id })
            .collect()
    }
}

/// What one process leaves for the next.
#[derive(Deserialize)]
struct Memory {
    topics: BTreeMap<String, BTreeMap<String, i32>>,
}

fn alive(all: &[MessageQueue], route: &TopicRoute) -> Vec<usize> {
    (0..all.len()).filter(|at| all.get(*at).is_some_and(|q| route.master(&q.broker_name).is_some())).collect()
}

#[cfg(test)]
mod tests {
    use rocketmq_remoting::request::{BrokerData, QueueData, Route};

    use super::*;

    /// Brokers with their queues; a name in capitals has no master.
    fn route(brokers: &[(&str, i32)]) -> Arc<TopicRoute> {
        let route = Route {
            order_topic_conf: None,
            queue_datas: brokers
                .iter()
                .map(|(name, queues)| QueueData {
                    broker_name: name.to_lowercase(),
                    read_queue_nums: *queues,
                    write_queue_nums: *queues,
                    perm: 6,
                    topic_sys_flag: 0,
                })
                .collect(),
            broker_datas: brokers
                .iter()
                .map(|(name, _)| BrokerData {
                    cluster: String::new(),
                    broker_name: name.to_lowercase(),
                    broker_addrs: [(i64::from(name.to_lowercase() != *name), "h:1".to_owned())].into(),
                })
                .collect(),
        };
        Arc::new(TopicRoute::new("t", route))
    }

    fn words(queues: &Queues) -> Vec<String> {
        queues.all.iter().map(|q| format!("{}{}", q.broker_name, q.queue_id)).collect()
    }

    #[test]
    fn a_broker_that_is_gone_keeps_its_places() {
        let topics = Topics::new(OnMissingBroker::Wait, "");
        let both = topics.queues(&route(&[("b", 2), ("a", 2)]));
        assert_eq!(words(&both), ["a0", "a1", "b0", "b1"]);
        let one = topics.queues(&route(&[("a", 2)]));
        assert_eq!((words(&one), &one.alive), (words(&both), &vec![0, 1]));
        let no_master = topics.queues(&route(&[("a", 2), ("B", 2)]));
        assert_eq!((words(&no_master), &no_master.alive), (words(&both), &vec![0, 1]));
        for key in ["x", "y", "z", "user-1"] {
            assert_eq!(one.of(Some(key), 0), both.of(Some(key), 0));
        }
        // Without a key: never where nobody is.
        assert!((0..9).all(|n| one.of(None, n).unwrap().broker_name == "a"));
        // What is still listed follows its configuration.
        assert_eq!(words(&topics.queues(&route(&[("a", 3)]))), ["a0", "a1", "a2", "b0", "b1"]);
    }

    #[test]
    fn rehash_counts_those_that_are_there() {
        let topics = Topics::new(OnMissingBroker::Rehash, "");
        topics.queues(&route(&[("b", 2), ("a", 2)]));
        assert_eq!(words(&topics.queues(&route(&[("a", 2)]))), ["a0", "a1"]);
        assert_eq!(words(&topics.queues(&route(&[("a", 2), ("B", 2)]))), ["a0", "a1"]);
    }

    #[test]
    fn receipts_tell_of_a_broker_that_is_gone() {
        let topics = Topics::new(OnMissingBroker::Wait, "");
        let alone = route(&[("a", 4)]);
        assert_eq!(words(&topics.queues(&alone)).len(), 4);
        topics.remember("t", "b", 1);
        topics.remember("t", "a", 9); // an old receipt of one that is listed says nothing
        assert_eq!(words(&topics.queues(&alone)), ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]);
        topics.remember("t", "b", 5);
        assert_eq!(words(&topics.queues(&alone)).len(), 10);
        // It is back, with what it has.
        assert_eq!(words(&topics.queues(&route(&[("a", 4), ("b", 2)]))).len(), 6);
    }

    #[test]
    fn the_next_process_knows_where_keys_are() {
        let topics = Topics::new(OnMissingBroker::Wait, "");
        let before = topics.memory(None).unwrap();
        let both = topics.queues(&route(&[("b", 3), ("a", 2)]));
        let (version, text) = topics.memory(Some(before.0)).unwrap();
        assert!(version > before.0);
        topics.queues(&route(&[("a", 2)]));
        assert_eq!(topics.memory(Some(version)), None, "a broker that is away is no change");
        assert_eq!(topics.memory(None), Some((version, text.clone())));

        let next = Topics::new(OnMissingBroker::Wait, "");
        next.recall("neither JSON nor anything");
        next.recall(&text);
        assert_eq!(words(&next.remembered("t").unwrap()), words(&both));
        assert_eq!(words(&next.queues(&route(&[("a", 2)]))), words(&both));
        // What is listed now counts, and is told on.
        assert_eq!(words(&next.queues(&route(&[("a", 2), ("b", 1)]))), ["a0", "a1", "b0"]);
        next.recall(&text);
        assert_eq!(words(&next.remembered("t").unwrap()), ["a0", "a1", "b0"]);
        let told = next.memory(None).unwrap().1;
        assert!(told.contains("\"b\":1"), "{told}");
        assert!(next.remembered("u").is_none());

        let rehash = Topics::new(OnMissingBroker::Rehash, "");
        rehash.recall(&text);
        assert!(rehash.remembered("t").is_none());
        assert_eq!(rehash.memory(None).unwrap().1, "{}", "the operator's way to forget a broker that never comes back");
    }

    #[test]
    fn brokers_of_another_cluster_do_not_count() {
        let mut told = route(&[("b", 2), ("a", 2)]).as_told().clone();
        told.broker_datas.iter_mut().for_each(|data| data.cluster = data.broker_name.to_uppercase());
        let both = Arc::new(TopicRoute::new("t", told));
        for policy in [OnMissingBroker::Wait, OnMissingBroker::Rehash] {
            assert_eq!(words(&Topics::new(policy, "B").queues(&both)), ["b0", "b1"]);
            assert_eq!(words(&Topics::new(policy, "").queues(&both)).len(), 4);
        }
    }

    #[test]
    fn no_queue_is_no_queue() {
        let topics = Topics::new(OnMissingBroker::Wait, "");
        let closed = topics.queues(&route(&[("a", 0)]));
        assert_eq!((closed.of(Some("x"), 0), closed.of(None, 0)), (None, None));
    }
}
