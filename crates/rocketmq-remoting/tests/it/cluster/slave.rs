//! A slave: it takes nothing, and gives what its master had while that is gone.

use std::sync::Arc;
use std::time::Duration;

use outhaul_testkit::servers::rocketmq::Part;
use rocketmq_remoting::client::{Consumer, Producer, PullOptions, SendOptions, Start};
use rocketmq_remoting::request::{Delivery, EndTransaction, GetMaxOffset, Resolution, SendMessage};
use rocketmq_remoting::{Error, ResponseCode};

use super::{A, Cluster, of};
use crate::servers::{LIMIT, eventually, message, now_ms, within};

pub async fn is_no_master(cluster: Arc<Cluster>) {
    let client = cluster.client();
    let topic = &cluster.old_topic.0;
    let slave = client.channel(&cluster.address(Part::SlaveA).await);
    let send = SendMessage {
        producer_group: "it".into(),
        message: message(topic, "u", "x"),
        queue_id: 0,
        born_at_ms: now_ms(),
        delivery: Delivery::Plain,
        compression: None,
        broker_name: None,
    };
    let expected = if cluster.server.is_5() { ResponseCode::SystemBusy } else { ResponseCode::ServiceNotAvailable };
    eventually("a slave that knows the topic, and refuses", LIMIT, || async {
        let error = slave.request(&send, LIMIT).await.unwrap_err();
        assert!(!error.may_have_been_done(), "{error}");
        (error.refused_with() == Some(expected)).then_some(())
    })
    .await;
    let end = EndTransaction {
        producer_group: "it".into(),
        half_queue_offset: 0,
        commit_log_offset: 0,
        resolution: Resolution::Commit,
        unique_key: "u".into(),
        transaction_id: None,
        from_check: false,
        topic: Some(topic.clone()),
        broker_name: None,
    };
    let error = slave.request(&end, LIMIT).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(ResponseCode::SlaveNotAvailable), "{error}");
    assert!(!error.may_have_been_done());
}

pub async fn is_no_master_and_is_read_while_there_is_none(cluster: Arc<Cluster>) {
    is_no_master(cluster.clone()).await;
    let client = cluster.client();
    let (topic, queues) = &cluster.old_topic;
    let queue = &of(A, queues)[0];
    let producer = Producer::new(&client, "it").unwrap();
    let send = async |key: &str| producer.send(queue, &message(topic, key, "x"), &SendOptions::default()).await;
    for key in ["0", "1", "2"] {
        send(key).await.unwrap();
    }
    let slave = cluster.address(Part::SlaveA).await;
    let max_offset = GetMaxOffset { topic: topic.clone(), queue_id: queue.queue_id, broker_name: None };
    eventually("a slave that has all", LIMIT, || async {
        (client.channel(&slave).request(&max_offset, LIMIT).await.ok()?.offset == 3).then_some(())
    })
    .await;

    cluster.servers().kill9(&[A]).await;
    let options = PullOptions { suspend: Duration::ZERO, ..PullOptions::default() };
    let consumer = Consumer::new(&client, "it").unwrap();
    let pulled = eventually("messages from the slave", LIMIT, || async {
        let pulled = consumer.pull(queue, 0, &options).await.ok()?;
        (pulled.answer.messages.len() == 3).then_some(pulled)
    })
    .await;
    assert_eq!(pulled.address, slave);
    let keys: Vec<_> = pulled.answer.messages.iter().map(|m| m.unique_key().unwrap()).collect();
    assert_eq!(keys, ["0", "1", "2"]);
    assert_eq!(consumer.offset_of(queue, Start::First).await.unwrap(), 0);
    // What only the master can know or do.
    assert!(matches!(client.max_offset(queue).await, Err(Error::Route { .. })));
    let error = send("3").await.unwrap_err();
    assert!(matches!(error, Error::Route { .. }) && !error.may_have_been_done(), "{error}");
    assert!(matches!(consumer.commit(queue, 3).await, Err(Error::Route { .. })));

    cluster.servers().restart(&[A]).await;
    eventually("a master again", LIMIT, || async { send("4").await.ok() }).await;
    let pulled = within(consumer.pull(queue, 0, &options)).await.unwrap();
    assert_eq!(pulled.address, cluster.address(A).await);
}
