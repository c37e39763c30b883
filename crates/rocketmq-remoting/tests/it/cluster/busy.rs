//! SYSTEM_BUSY.

use std::collections::BTreeSet;
use std::sync::Arc;

use rocketmq_remoting::ResponseCode;
use rocketmq_remoting::client::{Client, Producer, SendOptions};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{B, Cluster, of};
use crate::send::read_all;
use crate::servers::{LIMIT, message, topic, within};

/// A broker that lets nothing wait for its threads, and more at once than they can do.
pub async fn what_is_refused_is_not_stored(cluster: Arc<Cluster>) {
    let client = Client::new(cluster.options().window(256));
    let (topic, queues) = topic(&client, "busy", 1).await;
    let queue = &of(B, &queues)[0];
    let producer = Producer::new(&client, "it").unwrap();
    let body = "x".repeat(20_000);
    let flood = async {
        let (mut stored, mut end, mut refused) = (BTreeSet::new(), 0, 0);
        let begin = Instant::now();
        for round in 0.. {
            let mut sends = JoinSet::new();
            for n in 0..256 {
                let key = format!("{round}.{n}");
                let (producer, queue, message) =
                    (producer.clone(), queue.clone(), message(&topic, &key, body.as_str()));
                sends.spawn(async move { (key, producer.send(&queue, &message, &SendOptions::default()).await) });
            }
            for (key, sent) in within(sends.join_all()).await {
                match sent {
                    Ok(sent) => {
                        end = sent.answer.queue_offset.max(end - 1) + 1;
                        stored.insert(key);
                    }
                    Err(error) => {
                        assert_eq!(error.refused_with(), Some(ResponseCode::SystemBusy), "{error}");
                        assert!(!error.may_have_been_done());
                        refused += 1;
                    }
                }
            }
            if refused > 100 && !stored.is_empty() {
                break;
            }
            assert!(begin.elapsed() < LIMIT, "only {refused} refused of {round} rounds");
        }
        (stored, end)
    };
    let (stored, end) = cluster.with_settings(B, &[("waitTimeMillsInSendQueue", "0")], flood).await;
    assert_eq!(end, stored.len() as i64);
    let keys = read_all(&client, queue, end).await.iter().map(|m| m.unique_key().unwrap().to_owned()).collect();
    assert_eq!(stored, keys);
}
