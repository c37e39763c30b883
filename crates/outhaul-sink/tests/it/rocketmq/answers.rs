//! Answers that are neither a plain yes nor a plain no, provoked on real brokers.

use std::time::Duration;

use outhaul_sink::rocketmq::OnWeakAck;
use outhaul_sink::{AckLevel, Sink};
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};
use rocketmq_remoting::client::Admin;

use super::{Topics, delivered, many, send, text, word};

/// SLAVE_NOT_AVAILABLE and FLUSH_SLAVE_TIMEOUT: accepted with the lower level, or sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slave_that_is_slow_and_then_gone() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["slave", "slaveTimeout=800"]).await;
    let topics = Topics::at(cluster.namesrv());
    topics.create("orders", 4).await;
    let accepts = topics.started(|_| ()).await;
    let resends = topics.started(|c| c.on_weak_ack = OnWeakAck::Resend).await;
    // The first ones take the slave longer.
    until(&accepts, "SEND_OK ").await;
    let receipts = delivered(&accepts, &many(0..7)).await;
    for receipt in &receipts {
        let replicated = receipt.detail.starts_with("SEND_OK ");
        assert_eq!(receipt.level, if replicated { AckLevel::Replicated } else { AckLevel::Received }, "{receipt:?}");
    }

    cluster.pause(&[Part::SlaveA]).await;
    until(&accepts, "FLUSH_SLAVE_TIMEOUT ").await;
    let outcomes = send(&accepts, &many(7..9)).await;
    assert!(outcomes.iter().all(|o| text(o).starts_with("FLUSH_SLAVE_TIMEOUT ")), "{outcomes:?}");
    let levels: Vec<AckLevel> = super::receipts(&outcomes).iter().map(|r| r.level).collect();
    assert_eq!(levels, [AckLevel::Received; 2]);
    let outcomes = send(&resends, &many(9..11)).await;
    assert!(outcomes.iter().all(|o| word(o) == ("down", "OUT-2043")), "{outcomes:?}");

    cluster.kill9(&[Part::SlaveA]).await;
    until(&accepts, "SLAVE_NOT_AVAILABLE ").await;
}

/// Sends until it is stored with this status.
async fn until(sink: &outhaul_sink::rocketmq::RocketMqSink, status: &str) {
    let mut last = None;
    for _ in 0..100 {
        let outcomes = send(sink, &many(11..12)).await;
        if text(&outcomes[0]).starts_with(status) {
            return;
        }
        last = outcomes.into_iter().next();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("not {status}: {last:?}");
}

/// SYSTEM_BUSY under a flood: nothing is lost, nothing counts as an attempt of a message, and order holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_sheds_load() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &[]).await;
    let topics = Topics::at(cluster.namesrv());
    topics.create("orders", 8).await;
    let sink = std::sync::Arc::new(topics.started(|c| (c.request_limit_ms, c.slots) = (10_000, 24)).await);
    let address = cluster.address(Part::BrokerA).await.to_string().parse().unwrap();
    let admin = Admin::new(&topics.client());
    admin.update_broker_config(&address, &[("waitTimeMillsInSendQueue", "1")]).await.unwrap();
    let all: Vec<_> = (0..6_000)
        .map(|n| {
            super::message(n, |row| {
                row.key = Some(format!("key-{}", n % 96));
                row.payload = vec![b'x'; 20_000].into();
            })
        })
        .collect();
    let slots = (0..24u32).map(|slot| {
        let sink = sink.clone();
        let of_slot: Vec<_> = all.iter().filter(|m| sink.slotting().slot(m) == slot).cloned().collect();
        tokio::spawn(async move {
            let mut rest = of_slot.as_slice();
            let (mut downs, mut tries) = (0, 0);
            while !rest.is_empty() {
                let batch = &rest[..rest.len().min(20)];
                let outcomes = sink.send(slot, batch).await;
                let done = outcomes.iter().take_while(|o| word(o).0 == "delivered").count();
                assert!(outcomes[done..].iter().all(|o| ["down", "wait"].contains(&word(o).0)), "{outcomes:?}");
                downs += outcomes.len() - done;
                rest = &rest[done..];
                tries += 1;
                assert!(tries < 2_000);
            }
            downs
        })
    });
    let mut downs = 0;
    for slot in slots.collect::<Vec<_>>() {
        downs += slot.await.unwrap();
    }
    let stored = topics.stored("orders").await;
    assert_eq!(stored.len(), all.len(), "busy means not stored, so there are no copies");
    println!("{downs} messages were answered as busy for longer than the limit");
    let mut last = std::collections::HashMap::new();
    for message in stored {
        let number: u64 = message.properties.get("outhaul-id").unwrap()[3..].parse().unwrap();
        assert!(
            last.insert(message.properties.get("outhaul-key").unwrap().to_owned(), number).is_none_or(|n| n < number)
        );
    }
}

/// A broker that accepts and never answers: unknown within the limit, the rest is not sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_hangs() {
    let cluster = OwnRocketMq::start(RocketMq::V5, &[]).await;
    let topics = Topics::at(cluster.namesrv());
    let sink = topics.started(|c| c.request_limit_ms = 800).await;
    let topics_there = delivered(&topics.started(|_| ()).await, &many(0..7)).await;
    assert_eq!(topics_there.len(), 7);
    delivered(&sink, &many(0..7)).await;
    cluster.pause(&[Part::BrokerA]).await;
    let one = [super::message(7, |_| ())];
    // A busy machine takes a moment to stop all threads of a process.
    let (mut begin, mut outcomes) = (std::time::Instant::now(), send(&sink, &one).await);
    for _ in 0..20 {
        if word(&outcomes[0]).0 != "delivered" {
            break;
        }
        begin = std::time::Instant::now();
        outcomes = send(&sink, &one).await;
    }
    assert_eq!(word(&outcomes[0]), ("unknown", "OUT-2041"), "{outcomes:?}");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    cluster.resume(&[Part::BrokerA]).await;
    for _ in 0..100 {
        if word(&send(&sink, &one).await[0]).0 == "delivered" {
            return;
        }
        sink.start().await.ok();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it does not go on");
}
