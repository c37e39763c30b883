//! Queues of two masters.

use std::sync::Arc;

use rocketmq_remoting::client::Producer;

use super::{A, B, Cluster};
use crate::servers::topic;

/// By broker name and number, and a key goes where Java's producers send it.
pub async fn of_two_masters_are_javas(cluster: Arc<Cluster>) {
    let client = cluster.client();
    let (topic, queues) = topic(&client, "masters", 3).await;
    let listed: Vec<_> = queues.iter().map(|queue| (queue.broker_name.as_str(), queue.queue_id)).collect();
    assert_eq!(listed, [A, B].map(|part| [0, 1, 2].map(|id| (part.name(), id))).concat());

    let keys = "user-1,user-2,user-3,ä😀,polygenelubricants,7,8,9,hello,";
    let arguments = ["--kind", "ordered", "--count", "10", "--keys", keys];
    let producer = Producer::new(&client, "it").unwrap();
    let mut brokers = std::collections::BTreeSet::new();
    for sent in cluster.servers().java().produce(&topic, &arguments).await {
        let ours = producer.queue_for(&topic, &sent.key).await.unwrap();
        assert_eq!(
            (sent.broker.as_str(), sent.queue_id),
            (ours.broker_name.as_str(), ours.queue_id as u64),
            "{}",
            sent.key
        );
        brokers.insert(sent.broker);
    }
    assert_eq!(brokers.len(), 2, "the keys reach both");
}
