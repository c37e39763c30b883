//! The flush barrier, from the outbox to a real broker with ASYNC_FLUSH (RocketMQ 4.9.4): `flushed` is demanded, receipts
//! are first `received`, then `flushed`; what never gets there is sent again.

use std::sync::Arc;
use std::time::Duration;

use outhaul_core::lane::Slotting;
use outhaul_core::message::Position;
use outhaul_relay::Destination;
use outhaul_sink::rocketmq::{RocketMqConfig, RocketMqSink};
use outhaul_sink::{AckLevel, Sink};
use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq, topic_name};
use rocketmq_remoting::client::{Admin, Client, ClientOptions};

use crate::engine::{Bench, LIMIT};
use crate::on_each;

/// With limits for a real broker on a machine that is shared; the first send makes the topic too.
async fn bench(flavour: Flavour) -> Bench {
    let mut bench = Bench::new(flavour).await;
    bench.settings.lease_ttl_ms = 15_000;
    bench.limits.send_limit_ms = 5_000;
    bench
}

/// Where a test's messages go: the topic `PREFIX-order-created`, which is made by the sink.
struct Topic {
    namesrv: String,
    prefix: String,
}

impl Topic {
    fn at(namesrv: impl Into<String>) -> Self {
        Self { namesrv: namesrv.into(), prefix: format!("{}-", topic_name()) }
    }

    /// A destination that demands `flushed`.
    fn destination(&self, bench: &Bench) -> Destination {
        let mut config = RocketMqConfig::new(&*self.namesrv);
        config.topic_prefix.clone_from(&self.prefix);
        config.create_topics = true;
        let require_ack = Some(AckLevel::Flushed);
        let sink = Arc::new(RocketMqSink::new(config, require_ack));
        assert!(matches!(sink.slotting(), Slotting::ByJavaHash(_)));
        Destination { name: "d0".into(), sink, limits: bench.limits.clone(), require_ack }
    }

    fn name(&self) -> String {
        format!("{}order-created", self.prefix)
    }
}

/// How messages are delivered: how many, how many of them to the level that is demanded, and the lowest level.
async fn reached(bench: &Bench) -> (u64, u64, AckLevel) {
    let (mut delivered, mut proven, mut lowest) = (0, 0, AckLevel::Quorum);
    for shard in bench.status().await {
        for (lane, _) in &shard.lanes.lanes {
            (delivered, proven) = (delivered + lane.cursor.0, proven + lane.proven.0);
            for position in (0..lane.cursor.0).map(Position) {
                let rows = bench.store.receipts_of(shard.shard, position).await.unwrap();
                let mut of_it = rows.iter().flat_map(|row| &row.lanes).flat_map(|(_, receipts)| receipts);
                let newest = of_it.rfind(|r| r.position == position).expect("it has a receipt");
                lowest = lowest.min(lane.level(position, newest.receipt.level));
            }
        }
    }
    (delivered, proven, lowest)
}

async fn wait_proven(bench: &Bench) {
    let is_proven = |s: &outhaul_store::ShardStatus| {
        s.hot_rows == 0 && s.lanes.lanes.iter().all(|(lane, _)| lane.proven == s.log_end)
    };
    bench.wait("everything is flushed", |shards| shards.iter().all(is_proven)).await;
}

on_each!(all_and_a_lone_one_are_flushed: sqlite => Sqlite, mariadb => MariaDb);

/// As brokers come: the demand is met by itself, for many messages and for a lone one.
async fn all_and_a_lone_one_are_flushed(flavour: Flavour) {
    let mut bench = bench(flavour).await;
    let topic = Topic::at(RocketMq::V4.namesrv());
    let relay = bench.relay_of(vec![topic.destination(&bench)], "*").await;
    bench.insert_many(0..200).await;
    bench.wait_settled().await;
    wait_proven(&bench).await;
    assert_eq!(reached(&bench).await, (200, 200, AckLevel::Flushed));
    bench.insert_many(200..201).await;
    bench.wait("it is sent", |shards| shards.iter().map(|s| s.log_end.0).sum::<u64>() == 201).await;
    wait_proven(&bench).await;
    assert_eq!(reached(&bench).await, (201, 201, AckLevel::Flushed));
    let report = relay.drain().await;
    assert_eq!((report.outboxes[0].1[0].delivered, report.outboxes[0].1[0].forgotten), (201, 0));
}

/// A broker of the test's own, and how often it flushes what is less than four pages.
async fn flushes_every(cluster: &OwnRocketMq, ms: u32) {
    let client = Client::new(ClientOptions::new(cluster.namesrv()).unwrap());
    let address = cluster.address(Part::BrokerA).await.to_string().parse().unwrap();
    let setting = [("flushCommitLogThoroughInterval", &*ms.to_string())];
    Admin::new(&client).update_broker_config(&address, &setting).await.unwrap();
}

/// Nobody waits for a flush but who has to: messages are sent in order at once, are `received` as long as the broker does
/// not flush, and a relay that ends when all is delivered ends when it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn received_until_the_broker_flushes() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["flushCommitLogThoroughInterval=3600000"]).await;
    let mut bench = bench(Flavour::MariaDb).await;
    let topic = Topic::at(cluster.namesrv());
    bench.until_empty = true;
    bench.insert_many(0..1).await;
    let relay = bench.relay_of(vec![topic.destination(&bench)], "*").await;
    bench.wait_settled().await;
    // It is asked every 150 ms.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(reached(&bench).await, (1, 0, AckLevel::Received));
    bench.insert_many(1..3).await;
    bench
        .wait("all are sent", |shards| {
            shards.iter().flat_map(|s| &s.lanes.lanes).map(|l| l.0.cursor.0).sum::<u64>() == 3
        })
        .await;
    assert_eq!(reached(&bench).await, (3, 0, AckLevel::Received));
    assert!(!relay.task.is_finished());
    flushes_every(&cluster, 200).await;
    let ended = tokio::time::timeout(LIMIT, relay.task).await.expect("it ends by itself").unwrap().unwrap();
    assert_eq!((ended.outboxes[0].1[0].delivered, ended.outboxes[0].1[0].forgotten), (3, 0));
    assert_eq!(reached(&bench).await, (3, 3, AckLevel::Flushed));
}

/// What a broker acknowledged and lost before it was flushed is sent again without a new message that shows it, and then
/// flushed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_never_flushed_is_sent_again() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["flushCommitLogThoroughInterval=3600000"]).await;
    let mut bench = bench(Flavour::Sqlite).await;
    let topic = Topic::at(cluster.namesrv());
    cluster.snapshot("before", &[Part::BrokerA]).await;
    let relay = bench.relay_of(vec![topic.destination(&bench)], "*").await;
    bench.insert_many(0..3).await;
    bench.wait_settled().await;
    assert_eq!(reached(&bench).await, (3, 0, AckLevel::Received));
    cluster.rollback("before").await;
    flushes_every(&cluster, 200).await;
    wait_proven(&bench).await;
    assert_eq!(reached(&bench).await, (3, 3, AckLevel::Flushed));
    let report = relay.drain().await;
    assert_eq!((report.outboxes[0].1[0].delivered, report.outboxes[0].1[0].forgotten), (6, 3));
    let stored = cluster.java().consume(&topic.name(), &["--count", "3"]).await;
    let mut ids: Vec<&str> = stored.iter().map(|m| &*m.properties["outhaul-id"]).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["m0", "m1", "m2"]);
}
