//! A broker under SIGSTOP: it accepts connections, and never answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rocketmq_remoting::Error;
use rocketmq_remoting::client::{Client, Producer, SendOptions};

use super::lanes::Lanes;
use super::{A, B, Cluster, of};
use crate::send::read_all;
use crate::servers::{LIMIT, eventually, fresh, message, topic, within};

pub async fn a_broker_that_hangs_holds_up_its_own_queues_only(cluster: Arc<Cluster>) {
    let mut options = cluster.options();
    options.connection.heartbeat_limit = Duration::from_millis(500);
    options.connection.connect_limit = Duration::from_secs(1);
    options.connection.backoff_longest = Duration::from_millis(500);
    let client = Client::new(options);
    let (topic, queues) = topic(&client, "hang", 4).await;
    let queue = &of(B, &queues)[0];
    let mut lanes = Lanes::start(&client, &of(A, &queues));
    let producer = Producer::new(&client, "it").unwrap();
    let options = SendOptions { limit: Some(Duration::from_secs(1)), ..SendOptions::default() };
    let send = async || producer.send(queue, &message(&topic, &fresh("hang"), "x"), &options).await;
    let first = send().await.unwrap();

    cluster.servers().pause(&[B]).await;
    let mut watch = client.channel(&first.address).watch();
    let error = within(send()).await.unwrap_err();
    assert!(matches!(error, Error::TimedOut { sent: true, .. }), "{error}");
    // Found out by a heartbeat that has no answer either; then nothing more is sent into the void.
    within(async {
        while watch.status().connected {
            _ = watch.changed().await
        }
    })
    .await;
    let error = within(send()).await.unwrap_err();
    assert!(matches!(error, Error::Connect { .. }) && !error.may_have_been_done(), "{error}");
    lanes.advance(A.name(), 20).await;

    cluster.servers().resume(&[B]).await;
    within(watch.connected_after(first.generation)).await.unwrap();
    let last = eventually("an answer", LIMIT, || async { send().await.ok() }).await;
    assert!(last.generation > first.generation);
    // What was not answered was in its socket, and is stored now, before what came after it.
    let stored = read_all(&client, queue, last.answer.queue_offset + 1).await;
    let keys: BTreeSet<_> = stored.iter().filter_map(|m| m.unique_key()).collect();
    assert!(stored.len() >= 2 && keys.len() == stored.len(), "{keys:?}");

    for lane in lanes.finish().await {
        lane.assert_undisturbed();
    }
}
