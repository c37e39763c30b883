//! Brokers that are gone.

use std::collections::BTreeSet;
use std::time::Duration;

use outhaul_sink::Acknowledged;
use outhaul_sink::Sink;
use outhaul_sink::rocketmq::OnMissingBroker;
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};
use rocketmq_remoting::client::{Admin, Where};
use rocketmq_remoting::request::CreateTopic;

use super::{Topics, acknowledged, delivered, message, send, text, word};

/// Of two masters one dies: with `wait` its keys wait, whatever the route says, and others go on; with `rehash` all go
/// to the one that is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_masters() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["second-master"]).await;
    let topics = Topics::at(cluster.namesrv());
    topics.create("orders", 4).await;
    let waits = topics.started(|_| ()).await;
    let rehashes = topics.started(|c| c.on_missing_broker = OnMissingBroker::Rehash).await;
    let keyed = |from: u64| -> Vec<_> {
        (0..40).map(|n| message(from + n, |row| row.key = Some(format!("user-{n}")))).collect()
    };
    let first = keyed(0);
    let receipts = delivered(&waits, &first).await;
    let on_b: BTreeSet<usize> = (0..40).filter(|n| receipts[*n].detail.contains(" broker-b/")).collect();
    assert!((5..36).contains(&on_b.len()), "{on_b:?}");
    delivered(&rehashes, &first).await;

    cluster.kill9(&[Part::BrokerB]).await;
    // It died after the start, before it was looked at what it has: the other one does not wait for that.
    let verified = waits.verify(&acknowledged(&first, &receipts)).await.unwrap();
    assert_eq!((verified.forgotten.len(), verified.older), (0, false));
    for (n, outcome) in send(&waits, &keyed(400)).await.iter().enumerate() {
        let expected = if on_b.contains(&n) { "held" } else { "delivered" };
        assert_eq!(word(outcome).0, expected, "user-{n}: {}", text(outcome));
    }
    // A process that begins only now, and knows of the broker by receipts.
    let late = topics.started(|_| ()).await;
    let verified = late.verify(&acknowledged(&first, &receipts)).await.unwrap();
    assert_eq!((verified.forgotten.len(), verified.older), (0, false));
    // The route forgets the broker within 30 s; a start looks at once.
    waits.start().await.unwrap();
    for (sink, from) in [(&waits, 40), (&late, 80)] {
        for round in 0..3 {
            let outcomes = send(sink, &keyed(from)).await;
            for (n, outcome) in outcomes.iter().enumerate() {
                let expected = if on_b.contains(&n) { "held" } else { "delivered" };
                assert_eq!(word(outcome).0, expected, "round {round}, user-{n}: {}", text(outcome));
            }
            sink.start().await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    let mut left = 100;
    while send(&rehashes, &keyed(200)).await.iter().any(|o| word(o).0 != "delivered") {
        rehashes.start().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        left -= 1;
        assert!(left > 0, "rehash does not move to the one that is left");
    }

    // Who sends nothing notices too that it is back, and not that it is away.
    late.prove(&[]).await.unwrap();
    cluster.restart(&[Part::BrokerB]).await;
    let mut left = 100;
    let noticed = loop {
        match late.prove(&[]).await {
            Ok(none) => assert!(none.is_empty()),
            Err(error) => break error,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        left -= 1;
        assert!(left > 0, "nobody notices that the broker is back");
    };
    assert!(noticed.passes && noticed.message.contains("broker-b"), "{noticed}");
    assert!(!late.start().await.unwrap().unchanged);
    late.prove(&[]).await.unwrap();
    for sink in [&waits, &late] {
        let mut left = 100;
        while send(sink, &keyed(300)).await.iter().any(|o| word(o).0 != "delivered") {
            sink.start().await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            left -= 1;
            assert!(left > 0, "the broker is back and nobody goes there");
        }
    }
    // What it has is looked at, however old its newest receipts are: older ones are asked for until some are its own.
    let shown = acknowledged(&first, &receipts);
    let (of_b, of_a): (Vec<_>, Vec<_>) = shown.into_iter().partition(|a| a.receipt.detail.contains(" broker-b/"));
    late.start().await.unwrap();
    for (part, older) in [(&of_a, true), (&of_a, true), (&of_b, false)] {
        let verified = late.verify(part).await.unwrap();
        assert_eq!((verified.forgotten.len(), verified.older), (0, older));
    }
}

/// A broker is away when a process begins that has no receipt of it: what the last one kept tells where keys belong, and
/// which topics there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_begins_while_a_broker_is_away() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["second-master"]).await;
    let topics = Topics::at(cluster.namesrv());
    topics.create("orders", 4).await;
    // A topic of the second one alone.
    let client = topics.client();
    let master = Admin::new(&client).masters(None).await.unwrap().into_iter().find(|m| m.broker_name == "broker-b");
    let only = Where::Brokers(vec![master.unwrap().address]);
    Admin::new(&client).create_topic(&CreateTopic::new(topics.topic("rare"), 4), &only).await.unwrap();
    let rare = |n: u64| [message(n, |row| row.topic = "rare".into())];
    let keyed = |from: u64| -> Vec<_> {
        (0..40).map(|n| message(from + n, |row| row.key = Some(format!("user-{n}")))).collect()
    };
    let first = topics.started(|_| ()).await;
    let (receipts, rare_receipts) = (delivered(&first, &keyed(0)).await, delivered(&first, &rare(900)).await);
    let on_b: BTreeSet<usize> = (0..40).filter(|n| receipts[*n].detail.contains(" broker-b/")).collect();
    let (version, memory) = first.memory(None).unwrap();
    assert_eq!(first.memory(Some(version)), None, "nothing new");

    // Of a broker that is there, and none of whose receipts was shown, older ones are wanted: also where a topic leads
    // there that nobody knows of any more.
    let late = topics.started(|_| ()).await;
    let (of_a, of_b): (Vec<_>, Vec<_>) = acknowledged(&keyed(0), &receipts)
        .into_iter()
        .chain(acknowledged(&rare(900), &rare_receipts))
        .map(|a| Acknowledged { comparison: 7_000, ..a })
        .partition(|a| a.receipt.detail.contains(" broker-a/"));
    assert!(late.verify(&of_a).await.unwrap().older);
    assert!(!late.verify(&of_b).await.unwrap().older);

    cluster.kill9(&[Part::BrokerB]).await;
    cluster.kill9(&[Part::Namesrv]).await;
    cluster.restart(&[Part::Namesrv]).await;
    let next = topics.sink(None, |_| ());
    next.recall(&memory);
    let mut left = 100;
    while next.start().await.is_err() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        left -= 1;
        assert!(left > 0, "the broker that is left registers with the name server");
    }
    for (n, outcome) in send(&next, &keyed(400)).await.iter().enumerate() {
        let expected = if on_b.contains(&n) { "held" } else { "delivered" };
        assert_eq!(word(outcome).0, expected, "user-{n}: {}", text(outcome));
    }
    assert_eq!(word(&send(&next, &rare(901)).await[0]).0, "held", "it is not made anew on the other one");
    assert!(topics.client().refresh_route(&topics.topic("rare")).await.is_err());
}

/// Of two masters one is connected and does not answer: it is given up once, and further starts change nothing for the
/// other one, until somebody who has time was answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_masters_hangs() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["second-master"]).await;
    let topics = Topics::at(cluster.namesrv());
    topics.create("orders", 4).await;
    let sink = topics.started(|c| c.request_limit_ms = 800).await;
    let keyed = |from: u64| -> Vec<_> {
        (0..40).map(|n| message(from + n, |row| row.key = Some(format!("user-{n}")))).collect()
    };
    let first = keyed(0);
    let receipts = delivered(&sink, &first).await;
    let on_b: BTreeSet<usize> = (0..40).filter(|n| receipts[*n].detail.contains(" broker-b/")).collect();
    cluster.pause(&[Part::BrokerB]).await;
    let mut left = 50;
    while send(&sink, &keyed(100)).await.iter().all(|o| word(o).0 == "delivered") {
        left -= 1;
        assert!(left > 0, "it hangs and delivers");
    }
    sink.start().await.unwrap();
    let verified = sink.verify(&acknowledged(&first, &receipts)).await.unwrap();
    assert_eq!((verified.forgotten.len(), verified.older), (0, false), "the one that answers is compared");
    for round in 0..5 {
        let started = sink.start().await.unwrap();
        assert!(started.unchanged, "round {round}: nobody has to compare anew");
        for (n, outcome) in send(&sink, &keyed(200 + round * 40)).await.iter().enumerate() {
            let expected = if on_b.contains(&n) { "held" } else { "delivered" };
            assert_eq!(word(outcome).0, expected, "round {round}, user-{n}: {}", text(outcome));
        }
        sink.prove(&[]).await.unwrap();
    }
    cluster.resume(&[Part::BrokerB]).await;
    let mut left = 100;
    while sink.prove(&[]).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        left -= 1;
        assert!(left > 0, "nobody notices that it answers again");
    }
    assert!(!sink.start().await.unwrap().unchanged);
    let outcomes = send(&sink, &keyed(600)).await;
    assert!(outcomes.iter().all(|o| word(o).0 == "delivered"), "{outcomes:?}");
}

/// Nothing is there: started later, it says so and goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_answers() {
    let topics = Topics::at("127.0.0.1:1");
    let sink = topics.sink(None, |c| c.request_limit_ms = 300);
    let outcomes = send(&sink, &[message(0, |_| ())]).await;
    assert_eq!(word(&outcomes[0]), ("down", "OUT-2030"), "not started");
    let error = sink.start().await.unwrap_err();
    assert_eq!((error.code, error.passes), ("OUT-2030", true));
    assert!(error.message.contains("127.0.0.1:1"), "{error}");
    sink.close().await;
}
