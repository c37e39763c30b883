//! A consumer of every queue of a topic, from its beginning on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rocketmq_remoting::client::{Client, Consumer, PullOptions};
use rocketmq_remoting::message::{MessageQueue, StoredMessage};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::collector::{Arrival, Collector, Place};

/// How long it may lag.
const LIMIT: Duration = Duration::from_secs(60);

/// Reads until it is dropped, and tells a collector: of each queue, and so of each key, in its order.
pub struct Reader {
    client: Client,
    queues: Vec<(Arc<MessageQueue>, watch::Receiver<i64>)>,
    _reading: JoinSet<()>,
}

/// Ids by UNIQ_KEY: each copy of a message has the same, and no other message has it.
type Unique = Arc<Mutex<HashMap<String, String>>>;

impl Reader {
    pub async fn start(client: &Client, topic: &str, collector: &Arc<Collector>) -> Self {
        let route = client.refresh_route(topic).await.unwrap();
        let consumer = Consumer::new(client, "outhaul-test").unwrap();
        let (mut queues, mut reading, unique) = (Vec::new(), JoinSet::new(), Unique::default());
        for queue in route.read_queues().iter().cloned().map(Arc::new) {
            let (at, seen) = watch::channel(0);
            reading.spawn(read(consumer.clone(), queue.clone(), at, collector.clone(), unique.clone()));
            queues.push((queue, seen));
        }
        Self { client: client.clone(), queues, _reading: reading }
    }

    /// Waits until it has read all that the queues have now.
    pub async fn catch_up(&self) {
        for (queue, at) in &self.queues {
            let reading = async {
                let end = loop {
                    match self.client.max_offset(queue).await {
                        Ok(end) => break end,
                        Err(_) => tokio::time::sleep(Duration::from_millis(100)).await, // its broker comes up
                    }
                };
                _ = at.clone().wait_for(|at| *at >= end).await.expect("the reader runs");
            };
            let late = || panic!("{queue}: not read to its end within {LIMIT:?}");
            tokio::time::timeout(LIMIT, reading).await.unwrap_or_else(|_| late());
        }
    }

    /// How far it has read each queue.
    pub fn positions(&self) -> HashMap<MessageQueue, i64> {
        self.queues.iter().map(|(queue, at)| ((**queue).clone(), *at.borrow())).collect()
    }
}

async fn read(
    consumer: Consumer,
    queue: Arc<MessageQueue>,
    at: watch::Sender<i64>,
    collector: Arc<Collector>,
    unique: Unique,
) {
    let options = PullOptions { max_messages: 512, suspend: Duration::from_secs(1), ..PullOptions::default() };
    loop {
        let next = *at.borrow();
        let Ok(pulled) = consumer.pull(&queue, next, &options).await else {
            tokio::time::sleep(Duration::from_millis(50)).await; // The broker is down: that is the test.
            continue;
        };
        let messages = pulled.answer.messages;
        for (message, expected) in messages.iter().zip(next..) {
            assert_eq!(message.queue_offset, expected, "{queue}: a gap");
        }
        collector.arrived(messages.iter().map(|message| arrival(message, &queue, &unique)));
        at.send_replace(next + messages.len() as i64);
    }
}

fn arrival(message: &StoredMessage, queue: &Arc<MessageQueue>, unique: &Unique) -> Arrival {
    let property = |name| message.properties.get(name).expect("a property of Outhaul's").to_owned();
    let (id, key) = (property("outhaul-id"), property("outhaul-key"));
    assert!(message.keys().any(|word| word == id), "{id} is a word of KEYS");
    let unique_key = message.unique_key().expect("a UNIQ_KEY").to_owned();
    let known = unique.lock().unwrap().entry(unique_key).or_insert_with(|| id.clone()).clone();
    assert_eq!(known, id, "one UNIQ_KEY, one id");
    let place = Place { queue: queue.clone(), offset: message.queue_offset, sent_at_ms: message.born_at_ms };
    Arrival { id, key, place: Some(place) }
}
