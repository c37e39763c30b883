//! The four statuses of a message that is stored, each provoked for real.

use std::sync::Arc;
use std::time::Duration;

use outhaul_testkit::servers::rocketmq::Part;
use rocketmq_remoting::client::{Client, Producer, SendOptions, TransactionalProducer};
use rocketmq_remoting::message::MessageQueue;
use rocketmq_remoting::request::{Resolution, SendStatus};
use tokio::time::Instant;

use super::{A, B, Cluster, of};
use crate::send::{batch, read_all};
use crate::servers::{LIMIT, eventually, fresh, message, topic};

/// What a message and a batch of two are answered. Whatever the answer, they are stored: the queue must have as many.
async fn statuses(client: &Client, queue: &MessageQueue) -> [SendStatus; 2] {
    let producer = Producer::new(client, "it").unwrap();
    let before = client.max_offset(queue).await.unwrap();
    let one = producer.send(queue, &message(&queue.topic, &fresh("one"), "x"), &SendOptions::default()).await.unwrap();
    let two = batch((0..2).map(|_| message(&queue.topic, &fresh("two"), "x")));
    let two = producer.send_batch(queue, &two, &SendOptions::default()).await.unwrap();
    assert_eq!((one.answer.queue_offset, two.answer.queue_offset), (before, before + 1));
    assert_eq!((one.answer.offset_ids.len(), two.answer.offset_ids.len()), (1, 2));
    let stored = read_all(client, queue, before + 3).await;
    let last: Vec<_> = stored.iter().rev().take(3).map(|m| m.offset_id()).collect();
    assert_eq!(last, [two.answer.offset_ids[1], two.answer.offset_ids[0], one.answer.offset_ids[0]]);
    [one.answer.status, two.answer.status]
}

/// FLUSH_DISK_TIMEOUT: with a limit of 0 the broker's watch looks at a flush before the disk can have done it, most of
/// the time.
pub async fn a_flush_that_is_late(cluster: Arc<Cluster>) {
    let client = cluster.client();
    let (_, queues) = topic(&client, "flush", 1).await;
    let queue = &of(B, &queues)[0];
    assert_eq!(statuses(&client, queue).await, [SendStatus::Ok; 2]);
    let late = eventually("FLUSH_DISK_TIMEOUT", LIMIT, || async {
        (statuses(&client, queue).await == [SendStatus::FlushDiskTimeout; 2]).then_some(())
    });
    cluster.with_settings(B, &[("syncFlushTimeout", "0")], late).await;
    assert_eq!(statuses(&client, queue).await, [SendStatus::Ok; 2]);
}

/// 5.x waits for its slave only if it is told to.
fn wait_for_the_slave(cluster: &Cluster) -> Vec<(&'static str, &'static str)> {
    let mut settings = vec![("slaveTimeout", "500")];
    if cluster.server.is_5() {
        settings.push(("inSyncReplicas", "2"));
    }
    settings
}

/// FLUSH_SLAVE_TIMEOUT. The end of a half message waits like the half did, and says yes all the same (rocketmq.md F.1).
pub async fn a_slave_that_hangs(cluster: Arc<Cluster>) {
    let client = cluster.client();
    let (topic, queues) = topic(&client, "hangs", 1).await;
    let queue = &of(A, &queues)[0];
    let hanging = async {
        eventually("a slave that keeps up", LIMIT, || async {
            (statuses(&client, queue).await == [SendStatus::Ok; 2]).then_some(())
        })
        .await;
        cluster.servers().pause(&[Part::SlaveA]).await;
        // A busy machine takes a moment to stop all threads of a process.
        eventually("a slave that hangs", LIMIT, || async {
            (statuses(&client, queue).await == [SendStatus::FlushSlaveTimeout; 2]).then_some(())
        })
        .await;
        let (producer, _checks) = TransactionalProducer::start(&client, &fresh("group"), LIMIT).await.unwrap();
        let half = producer.half(queue, &message(&topic, "half", "x"), &SendOptions::default()).await.unwrap();
        assert_eq!(half.sent.answer.status, SendStatus::FlushSlaveTimeout);
        let began = Instant::now();
        producer.end(&half, Resolution::Commit, None).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
        producer.stop().await;
        cluster.servers().resume(&[Part::SlaveA]).await;
    };
    cluster.with_settings(A, &wait_for_the_slave(&cluster), hanging).await;
}

/// SLAVE_NOT_AVAILABLE on 4.9; 5.x knows only FLUSH_SLAVE_TIMEOUT. A master without slaves is not concerned. The slave
/// stays away.
pub async fn a_slave_that_is_gone(cluster: Arc<Cluster>) {
    let client = cluster.client();
    let (_, queues) = topic(&client, "gone", 1).await;
    let gone = async {
        cluster.servers().kill9(&[Part::SlaveA]).await;
        let expected =
            if cluster.server.is_5() { SendStatus::FlushSlaveTimeout } else { SendStatus::SlaveNotAvailable };
        eventually("a missed slave", LIMIT, || async {
            (statuses(&client, &of(A, &queues)[0]).await == [expected; 2]).then_some(())
        })
        .await;
        for alone in of(B, &queues) {
            assert_eq!(statuses(&client, &alone).await, [SendStatus::Ok; 2]);
        }
    };
    cluster.with_settings(A, &wait_for_the_slave(&cluster), gone).await;
}
