//! Healing: what a broker acknowledged and no longer has.

use std::time::Duration;

use outhaul_core::message::Position;
use outhaul_sink::Sink;
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};

use super::{Topics, acknowledged, delivered, many, message, send, word};

/// A store that was put back to an earlier copy: exactly what came after it is forgotten, also after others have
/// written into the hole.
async fn a_store_that_was_put_back(version: RocketMq) {
    let cluster = OwnRocketMq::start(version, &[]).await;
    let topics = Topics::at(cluster.namesrv());
    topics.create("orders", 8).await;
    let sink = topics.started(|_| ()).await;
    let before = many(0..500);
    let receipts_before = delivered(&sink, &before).await;
    // The topic itself and the offsets are written by the broker every few seconds.
    tokio::time::sleep(Duration::from_secs(6)).await;
    cluster.snapshot("half", &[Part::BrokerA]).await;
    let after = many(500..900);
    let receipts_after = delivered(&sink, &after).await;
    let all: Vec<_> = before.iter().chain(&after).cloned().collect();
    let receipts: Vec<_> = receipts_before.into_iter().chain(receipts_after).collect();
    let shown = acknowledged(&all, &receipts);
    let verified = sink.verify(&shown).await.unwrap();
    assert_eq!((verified.forgotten.len(), verified.older), (0, false), "all is there");

    cluster.rollback("half").await;
    // Nothing goes over the new connection before it was looked at.
    let one = [message(900, |_| ())];
    for _ in 0..50 {
        assert_eq!(word(&send(&sink, &one).await[0]).0, "down");
    }
    started(&sink).await;
    let forgotten: Vec<Position> = (500..900).map(Position).collect();
    let verified = sink.verify(&shown).await.unwrap();
    assert_eq!(verified.forgotten, forgotten);
    assert!(verified.older, "older receipts may be forgotten too");
    // Receipts in parts, the newest first: older ones are asked for until some are all there.
    let parts = [&shown[700..], &shown[500..700], &shown[300..500]];
    let mut found = Vec::new();
    let mut asked = Vec::new();
    for part in parts {
        let verified = sink.verify(part).await.unwrap();
        found.extend(verified.forgotten);
        asked.push(verified.older);
    }
    found.sort_unstable();
    assert_eq!((found, asked), (forgotten.clone(), vec![true, true, false]));

    // Others fill the hole: a message is at the place, and it is not ours.
    let others: Vec<_> = (0..600).map(|n| message(n, |row| row.id = format!("other-{n}"))).collect();
    delivered(&sink, &others).await;
    started(&sink).await;
    let verified = sink.verify(&shown).await.unwrap();
    assert_eq!(verified.forgotten, forgotten, "with other messages in their places");
}

async fn started(sink: &outhaul_sink::rocketmq::RocketMqSink) {
    for _ in 0..150 {
        if sink.start().await.is_ok() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the broker does not come back: {:?}", sink.start().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_4_9_that_was_put_back() {
    a_store_that_was_put_back(RocketMq::V4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_5_that_was_put_back() {
    a_store_that_was_put_back(RocketMq::V5).await;
}

/// A killed process forgets nothing; a topic whose index lags is not forgotten; neither are delayed messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_broker_forgets_nothing() {
    let cluster = OwnRocketMq::start(RocketMq::V5, &[]).await;
    let topics = Topics::at(cluster.namesrv());
    let sink = topics.started(|_| ()).await;
    let mut all = many(0..300);
    all.extend((300..310).map(|n| {
        message(n, |row| {
            row.headers = Some(r#"{"delay-level":"5"}"#.into());
            row.key = None;
        })
    }));
    let mut shown = Vec::new();
    for batch in all.chunks(50) {
        let receipts = delivered(&sink, batch).await;
        shown.extend(acknowledged(batch, &receipts));
        let newest = &shown[shown.len().saturating_sub(50)..];
        let verified = sink.verify(newest).await.unwrap();
        assert_eq!((verified.forgotten.len(), verified.older), (0, false), "at once after the acknowledgement");
    }
    cluster.kill9(&[Part::BrokerA]).await;
    cluster.restart(&[Part::BrokerA]).await;
    started(&sink).await;
    let verified = sink.verify(&shown).await.unwrap();
    assert_eq!((verified.forgotten.len(), verified.older), (0, false));
}
