//! The consumer of `latency --sink`, and that of `fanout`.

use std::sync::Arc;
use std::time::Duration;

use rocketmq_remoting::client::{Consumer, PullOptions, Start};
use tokio::task::JoinSet;

use super::Topic;
use crate::latency::Times;

/// Reads all queues of a topic from its beginning, and tells `times` what arrives.
pub async fn read(topic: &Topic, times: &Arc<Times>) -> JoinSet<()> {
    let consumer = Consumer::new(&topic.client, "outhaul-bench").expect("a group");
    let mut readers = JoinSet::new();
    for queue in topic.queues().await {
        let options = PullOptions { suspend: Duration::from_secs(2), ..PullOptions::default() };
        let mut reader = consumer.read(&queue, Start::First, options).await.expect("a place");
        let times = times.clone();
        readers.spawn(async move {
            loop {
                for message in reader.next().await.expect("an answer").messages {
                    if let Some(id) = message.properties.get("outhaul-id") {
                        times.arrives(id);
                    }
                }
            }
        });
    }
    readers
}

/// Ids of all messages of a topic, copies included.
pub async fn ids(topic: &Topic) -> Vec<String> {
    let consumer = Consumer::new(&topic.client, "outhaul-bench").expect("a group");
    let mut ids = Vec::new();
    for queue in topic.queues().await {
        let mut left = topic.client.max_offset(&queue).await.expect("an offset");
        let options = PullOptions { suspend: Duration::from_secs(2), ..PullOptions::default() };
        let mut reader = consumer.read(&queue, Start::First, options).await.expect("a place");
        while left > 0 {
            let messages = reader.next().await.expect("an answer").messages;
            left -= messages.len() as i64;
            ids.extend(messages.iter().filter_map(|m| m.properties.get("outhaul-id").map(str::to_owned)));
        }
    }
    ids
}
