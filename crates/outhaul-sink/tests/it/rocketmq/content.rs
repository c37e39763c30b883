//! What a message becomes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use outhaul_sink::Sink;
use outhaul_testkit::servers::rocketmq::RocketMq;
use rocketmq_remoting::message::queue_by_hash;

use super::{Topics, delivered, many, message, receipts, send, text, word};

/// Keys, tags and UNIQ_KEY are where RocketMQ's own tools look; the same id has the same UNIQ_KEY on every sending.
pub(super) async fn ids_keys_and_tags_are_those_that_tools_look_for(version: RocketMq) {
    let topics = Topics::shared(version);
    let sink = topics.started(|c| c.tag = "orders".into()).await;
    let uuid = "018c2f0e-7a44-7c3b-9f00-0123456789ab";
    let all = [
        message(0, |row| row.id = uuid.into()),
        message(1, |row| row.headers = Some(r#"{"tags":"paid","trace":"7"}"#.into())),
        message(2, |row| row.key = Some("user 7".into())),
    ];
    delivered(&sink, &all).await;
    delivered(&sink, &all[..1]).await;
    let stored = topics.stored("orders").await;
    let of = |id: &str| -> Vec<_> { stored.iter().filter(|m| m.properties.get("outhaul-id") == Some(id)).collect() };
    let twice = of(uuid);
    assert_eq!(twice.len(), 2);
    assert!(twice.iter().all(|m| m.unique_key() == Some("018C2F0E7A447C3B9F000123456789AB")));
    assert_eq!((twice[0].properties.get("KEYS"), twice[0].tag()), (Some(&*format!("{uuid} key-0")), Some("orders")));
    let tagged = of("id-1");
    assert_eq!((tagged[0].tag(), tagged[0].properties.get("trace")), (Some("paid"), Some("7")));
    assert_eq!(of("id-2")[0].keys().collect::<Vec<_>>(), ["id-2", "user%207"]);

    let java = version.java();
    let topic = topics.topic("orders");
    let found = java.query_by_unique_key(&topic, "018C2F0E7A447C3B9F000123456789AB").await.expect("the tool finds it");
    assert_eq!(found.properties["outhaul-id"], uuid);
    assert_eq!(java.query_by_key(&topic, "id-1").await.len(), 1);
}

/// The queue of a key is the one that Java's `SelectMessageQueueByHash` chooses.
pub(super) async fn keys_go_where_java_sends_them(version: RocketMq) {
    let topics = Topics::shared(version);
    let queues = topics.create("orders", 6).await;
    let sink = topics.started(|_| ()).await;
    let keys = ["", "user-1", "user-2", "Ω😀", "polygenelubricants", "x y"];
    let all: Vec<_> = (0..).zip(keys).map(|(n, key)| message(n, |row| row.key = Some(key.into()))).collect();
    for (receipt, key) in delivered(&sink, &all).await.iter().zip(keys) {
        let queue = &queues[queue_by_hash(key, 6).unwrap()];
        let place = format!(" {}/{}/{}@", queue.broker_name, queue.topic, queue.queue_id);
        assert!(receipt.detail.contains(&place), "{key}: {} {place}", receipt.detail);
    }
    // Without a key: in turn.
    let lone: Vec<_> = (0..12).map(|n| message(n, |row| row.key = None)).collect();
    let used: BTreeSet<String> =
        delivered(&sink, &lone).await.iter().map(|r| r.detail.split('@').next().unwrap().to_owned()).collect();
    assert_eq!(used.len(), 6);
}

/// A level goes through on both; a timer only where there is one.
pub(super) async fn a_delay_is_kept_or_refused(version: RocketMq) {
    let topics = Topics::shared(version);
    let sink = topics.started(|_| ()).await;
    let with = |number, headers: &str| message(number, |row| row.headers = Some(headers.into()));
    let now_ms = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    let all = [
        message(0, |_| ()),
        with(1, r#"{"delay-level":"1"}"#),
        with(2, &format!(r#"{{"deliver-at-ms":"{}"}}"#, now_ms + 1_500)),
        with(3, r#"{"delay-level":"77"}"#),
        message(4, |_| ()),
    ];
    let all = all.map(|m| {
        let mut m = (*m).clone();
        m.key = None;
        std::sync::Arc::new(m)
    });
    let outcomes = send(&sink, &all).await;
    assert_eq!(word(&outcomes[0]).0, "delivered");
    assert!(text(&outcomes[1]).contains("@delayed "), "{outcomes:?}");
    assert_eq!((word(&outcomes[3]), word(&outcomes[4]).0), (("rejected", "OUT-2035"), "delivered"));
    match version {
        RocketMq::V4 => {
            assert_eq!(word(&outcomes[2]), ("rejected", "OUT-2035"));
            assert!(text(&outcomes[2]).contains("4.9.4"), "{outcomes:?}");
        }
        RocketMq::V5 => assert!(text(&outcomes[2]).contains("@delayed "), "{outcomes:?}"),
    }
    let expected = if version == RocketMq::V5 { 4 } else { 3 };
    for _ in 0..40 {
        if topics.stored("orders").await.len() == expected {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(250)).await;
    }
    panic!("the delayed messages did not come");
}

/// A thousand messages of a few keys need a few batches, and come in order.
pub(super) async fn a_batch_goes_in_few_requests(version: RocketMq) {
    let topics = Topics::shared(version);
    topics.create("orders", 4).await;
    let sink = topics.started(|_| ()).await;
    let all = many(0..1_000);
    let receipts = delivered(&sink, &all).await;
    // Each message's own offset: rising for each key.
    let mut last: HashMap<&str, i64> = HashMap::new();
    for (message, receipt) in all.iter().zip(&receipts) {
        let (_, rest) = receipt.detail.split_once('@').unwrap();
        let offset: i64 = rest.split(' ').next().unwrap().parse().unwrap();
        assert!(last.insert(message.key.as_deref().unwrap(), offset).is_none_or(|before| before < offset));
    }
    let times: BTreeSet<i64> = receipts.iter().map(|r| r.sent_at_us).collect();
    assert!(times.len() <= 14, "{} answers for 7 keys", times.len());
    let stored = topics.stored("orders").await;
    assert_eq!(stored.len(), 1_000);
    for receipt in &receipts {
        let id = receipt.detail.rsplit(' ').next().unwrap();
        assert!(stored.iter().any(|m| m.offset_id().to_string() == id), "{}", receipt.detail);
    }
}

/// A key that goes to two topics in turn: each topic has its part in order.
pub(super) async fn a_key_in_two_topics_stays_in_order(version: RocketMq) {
    let topics = Topics::shared(version);
    let sink = topics.started(|_| ()).await;
    let all: Vec<_> = (0..40)
        .map(|n| {
            message(n, |row| {
                row.key = Some("one".into());
                row.topic = if n % 3 == 0 { "orders" } else { "invoices" }.into();
            })
        })
        .collect();
    let receipts = delivered(&sink, &all).await;
    assert!(receipts.windows(2).all(|pair| pair[0].sent_at_us <= pair[1].sent_at_us), "one after the other");
    for topic in ["orders", "invoices"] {
        let got: Vec<String> =
            topics.stored(topic).await.iter().map(|m| m.properties.get("outhaul-id").unwrap().to_owned()).collect();
        let sent: Vec<&String> = all.iter().filter(|m| m.topic == topic).map(|m| &m.id).collect();
        assert_eq!(got.iter().collect::<Vec<_>>(), sent);
    }
}

/// All slots have something for the one queue at the same time: nothing is lost or doubled, order holds, and each
/// message's receipt tells where that message is, whichever request it went in.
pub(super) async fn slots_that_share_a_queue_get_their_own_receipts(version: RocketMq) {
    const SLOTS: u32 = 24;
    let topics = Topics::shared(version);
    topics.create("orders", 1).await;
    let sink = Arc::new(topics.started(|c| c.slots = SLOTS).await);
    let all: Vec<_> = (0..1_200).map(|n| message(n, |row| row.key = Some(format!("key-{}", n % 96)))).collect();
    let slots: Vec<_> = (0..SLOTS)
        .map(|slot| {
            let sink = sink.clone();
            let of_slot: Vec<_> = all.iter().filter(|m| sink.slotting().slot(m) == slot).cloned().collect();
            tokio::spawn(async move {
                let mut places = Vec::new();
                for batch in of_slot.chunks(3) {
                    let outcomes = sink.send(slot, batch).await;
                    places.extend(batch.iter().zip(receipts(&outcomes)).map(|(m, r)| (m.id.clone(), r.detail)));
                }
                places
            })
        })
        .collect();
    let mut places = HashMap::new();
    for slot in slots {
        places.extend(slot.await.unwrap());
    }
    let stored = topics.stored("orders").await;
    assert_eq!((places.len(), stored.len()), (all.len(), all.len()));
    let mut last = HashMap::new();
    for message in &stored {
        let id = message.properties.get("outhaul-id").unwrap();
        let place = format!("/0@{} {}", message.queue_offset, message.offset_id());
        assert!(places[id].ends_with(&place), "{id}: {} and not {place}", places[id]);
        let number: u64 = id[3..].parse().unwrap();
        let key = message.properties.get("outhaul-key").unwrap().to_owned();
        assert!(last.insert(key, number).is_none_or(|before| before < number), "{id}");
    }
}

/// The limit is in the reason, and only the message's own key waits.
pub(super) async fn what_is_too_large_is_named(version: RocketMq) {
    let topics = Topics::shared(version);
    let sink = topics.started(|_| ()).await;
    let mut all = many(0..14);
    all[3] = message(3, |row| row.payload = Bytes::from(vec![b'x'; (4 << 20) + 1]));
    all[4] = message(4, |row| row.headers = Some(format!("{{\"h\":\"{}\"}}", "x".repeat(32_000))));
    let outcomes = send(&sink, &all).await;
    assert_eq!((word(&outcomes[3]), word(&outcomes[4])), (("rejected", "OUT-2034"), ("rejected", "OUT-2034")));
    assert!(text(&outcomes[3]).contains("maxMessageSize=4194304"), "{outcomes:?}");
    assert!(text(&outcomes[4]).contains("31743"), "{outcomes:?}");
    for (n, outcome) in outcomes.iter().enumerate().filter(|(n, _)| ![3, 4].contains(n)) {
        let expected = if [10, 11].contains(&n) { "retry" } else { "delivered" };
        assert_eq!(word(outcome).0, expected, "{n} {outcome:?}");
    }
}
