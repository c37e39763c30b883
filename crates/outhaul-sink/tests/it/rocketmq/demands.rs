//! What is demanded of an acknowledgement.

use std::time::{Duration, Instant};

use outhaul_sink::rocketmq::RocketMqSink;
use outhaul_sink::{AckLevel, Outcome, Sink};
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};

use super::{Topics, delivered, many};

/// A broker that flushes later: `flushed` is refused without the barrier, more than that with it too.
pub(super) async fn what_cannot_be_proven_is_not_started(version: RocketMq) {
    let topics = Topics::shared(version);
    for (level, barrier, setting) in [
        (AckLevel::Flushed, false, "flushDiskType=SYNC_FLUSH"),
        (AckLevel::Replicated, true, "brokerRole=SYNC_MASTER"),
        (AckLevel::Quorum, true, "enableDLegerCommitLog=true"),
    ] {
        let error = topics.sink(Some(level), |c| c.flush_barrier = barrier).start().await.unwrap_err();
        assert_eq!((error.code, error.passes), ("OUT-2044", false));
        assert!(error.message.contains(setting) && error.message.contains("broker-a"), "{error}");
        let of_5 = level == AckLevel::Replicated && version == RocketMq::V5;
        assert_eq!(error.message.contains("inSyncReplicas=2"), of_5, "{error}");
    }
    let info = topics.sink(Some(AckLevel::Received), |_| ()).start().await.unwrap();
    assert_eq!((info.level, info.proves_later), (AckLevel::Received, false));
    assert!(info.warnings.iter().any(|w| w.contains("ASYNC_FLUSH") && w.contains("power cut")), "{info:?}");
}

/// A lone message is proven when the broker's slow flush has come (up to 10 s); asking is cheap, and one for all.
pub(super) async fn the_barrier_proves_a_lone_message(version: RocketMq) {
    let topics = Topics::shared(version);
    let sink = topics.sink(Some(AckLevel::Flushed), |_| ());
    let info = sink.start().await.unwrap();
    assert_eq!((info.level, info.proves_later), (AckLevel::Received, true));
    let mut receipts = delivered(&sink, &many(0..1)).await;
    receipts.extend(delivered(&sink, &many(1..60)).await);
    let begin = Instant::now();
    let mut rounds = 0;
    loop {
        let proven = sink.prove(&receipts).await.unwrap();
        assert_eq!(proven.len(), 60);
        rounds += 1;
        if proven.iter().all(|p| *p) {
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(25), "{} of 60 proven", proven.iter().filter(|p| **p).count());
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    println!("{}: proven after {:?}, {rounds} rounds", version.name(), begin.elapsed());
}

/// Sends until the flush of a message took longer than the broker waited.
/// What the sink says of the first message whose flush took too long.
async fn slow_flush(cluster: &OwnRocketMq, topics: &Topics, sink: &RocketMqSink) -> Outcome {
    let address = cluster.address(Part::BrokerA).await.to_string().parse().unwrap();
    let admin = rocketmq_remoting::client::Admin::new(&topics.client());
    admin.update_broker_config(&address, &[("syncFlushTimeout", "0")]).await.unwrap();
    let large = |n| super::message(n, |row| row.payload = vec![b'x'; 1 << 20].into());
    for n in 100..400 {
        let outcome = super::send(sink, &[large(n)]).await.remove(0);
        if !super::text(&outcome).starts_with("SEND_OK ") {
            admin.update_broker_config(&address, &[("syncFlushTimeout", "5000")]).await.unwrap();
            return outcome;
        }
    }
    panic!("every flush was quick enough");
}

/// A broker that flushes before it answers needs no barrier; when it comes back configured otherwise, it is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_flushes_first() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["flushDiskType=SYNC_FLUSH"]).await;
    let topics = Topics::at(cluster.namesrv());
    let sink = topics.sink(Some(AckLevel::Flushed), |_| ());
    let info = sink.start().await.unwrap();
    assert_eq!((info.level, info.proves_later, info.warnings), (AckLevel::Flushed, false, vec![]));
    let receipts = delivered(&sink, &many(0..7)).await;
    assert!(receipts.iter().all(|r| r.level == AckLevel::Flushed));
    assert_eq!(sink.prove(&receipts).await.unwrap(), [true; 7]);

    // A flush that takes longer than the broker waits for it.
    let accepts = topics.started(|_| ()).await;
    let slow = slow_flush(&cluster, &topics, &accepts).await;
    let Outcome::Delivered(receipt) = &slow else { panic!("{slow:?}") };
    assert!(receipt.level == AckLevel::Received && receipt.detail.starts_with("FLUSH_DISK_TIMEOUT "), "{slow:?}");
    // Where more is demanded, it is not delivered.
    let refused = slow_flush(&cluster, &topics, &sink).await;
    assert_eq!(super::word(&refused), ("down", "OUT-2043"));

    let address = cluster.address(Part::BrokerA).await.to_string().parse().unwrap();
    let admin = rocketmq_remoting::client::Admin::new(&topics.client());
    admin.update_broker_config(&address, &[("flushDiskType", "ASYNC_FLUSH")]).await.unwrap();
    // Not read again over the same connection.
    sink.start().await.unwrap();
    cluster.kill9(&[Part::BrokerA]).await;
    cluster.restart(&[Part::BrokerA]).await;
    let renewed = super::send(&sink, &many(7..14)).await;
    assert!(renewed.iter().all(|o| super::word(o).0 == "down"), "{renewed:?}");
    sink.close().await;
    let refused = topics.sink(Some(AckLevel::Flushed), |c| c.flush_barrier = false).start().await.unwrap_err();
    assert_eq!(refused.code, "OUT-2044");
}
