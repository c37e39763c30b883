//! A broker that is killed and started again (L3, O1).

use std::sync::Arc;

use outhaul_testkit::servers::soak;
use rocketmq_remoting::Error;
use rocketmq_remoting::client::{Producer, SendOptions, TransactionalProducer};
use rocketmq_remoting::message::queue_by_hash;
use rocketmq_remoting::request::Resolution;

use super::lanes::Lanes;
use super::{A, B, Cluster, of};
use crate::send::read_all;
use crate::servers::{LIMIT, eventually, fresh, message, topic, within};

pub async fn nothing_acknowledged_is_lost_and_order_is_kept(cluster: Arc<Cluster>) {
    let client = cluster.client();
    let (main, queues) = topic(&client, "kill", 4).await;
    let (on_the_side, side_queues) = topic(&client, "side", 1).await;
    let b = &of(B, &side_queues)[0];
    let producer = Producer::new(&client, "it").unwrap();
    let (halfs, mut checks) = TransactionalProducer::start(&client, &fresh("group"), LIMIT).await.unwrap();
    let mut lanes = Lanes::start(&client, &queues);
    let kills: i64 = if soak() { 5 } else { 1 };
    for kill in 0..kills {
        for broker in [A, B] {
            lanes.advance(broker.name(), 10).await;
        }
        let key = format!("half-{kill}");
        halfs.half(b, &message(&on_the_side, &key, "x"), &SendOptions::default()).await.unwrap();
        cluster.servers().kill9(&[B]).await;

        // The name server tells at once; until then there is nobody who could take anything.
        let refused = |error: Error| {
            assert!(
                matches!(error, Error::Connect { .. } | Error::ConnectionLost { .. } | Error::Route { .. }),
                "{error}"
            );
        };
        let route = eventually("a route without the dead", LIMIT, || async {
            let sent = producer.send(b, &message(&on_the_side, "nobody", "x"), &SendOptions::default()).await;
            refused(sent.unwrap_err());
            let route = client.refresh_route(&main).await.unwrap();
            (route.master(B.name()).is_none()).then_some(route)
        })
        .await;
        assert_eq!(route.queues(), of(A, &queues));
        let sent = producer.send(b, &message(&on_the_side, "nobody", "x"), &SendOptions::default()).await;
        assert!(!sent.unwrap_err().may_have_been_done());
        // Keys move with the list; whoever minds keeps the list.
        let moved = producer.queue_for(&main, "user-1").await.unwrap();
        assert_eq!(moved, of(A, &queues)[queue_by_hash("user-1", 4).unwrap()]);
        lanes.advance(A.name(), 10).await;

        cluster.servers().restart(&[B]).await;
        lanes.advance(B.name(), 10).await;
        for (topic, queues) in [(&main, &queues), (&on_the_side, &side_queues)] {
            assert_eq!(client.refresh_route(topic).await.unwrap().queues(), queues);
        }
        // The group is registered again by itself: the broker asks what became of the half.
        let asked = within(async {
            loop {
                let asked = checks.next().await.unwrap();
                if asked.check.unique_key == key {
                    break asked;
                }
            }
        })
        .await;
        asked.answer(Resolution::Commit, LIMIT).await.unwrap();
    }
    let keys: Vec<_> = read_all(&client, b, kills).await.iter().map(|m| m.unique_key().unwrap().to_owned()).collect();
    assert_eq!(keys, (0..kills).map(|kill| format!("half-{kill}")).collect::<Vec<_>>());
    for lane in lanes.finish().await {
        if lane.queue.broker_name == B.name() {
            assert!(!lane.failures.is_empty(), "{}", lane.queue);
        } else {
            lane.assert_undisturbed();
        }
    }
    halfs.stop().await;
}
