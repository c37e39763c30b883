//! What we send, Apache's client of the same version reads alike, and the other way round.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::LazyLock;
use std::time::Duration;

use outhaul_testkit::servers::rocketmq::JavaSent;
use rocketmq_remoting::client::{Consumer, Producer, PullOptions, SendOptions, Start, TransactionalProducer};
use rocketmq_remoting::message::{
    Compression, Message, MessageQueue, Properties, StoredMessage, UniqueKeys, is_reserved,
};
use rocketmq_remoting::request::Resolution;

use crate::on_both;
use crate::send::batch;
use crate::servers::{LIMIT, Server, fresh, message, now_ms, topic, within};

on_both!(java_reads_what_we_send, we_read_what_java_sends);

const KEYS: [&str; 5] = ["user-1", "user-2", "ä😀", "polygenelubricants", "7"];

/// In Java's layout, whose middle is the time: 4.9.4's tool looks for a key only among what was stored after that, and
/// fails on one that is shorter (`MQAdminImpl.queryMessageByUniqKey`).
fn unique_key() -> String {
    static MADE: LazyLock<UniqueKeys> =
        LazyLock::new(|| UniqueKeys::new(Ipv4Addr::LOCALHOST.into(), std::process::id(), now_ms() as u32));
    MADE.next(now_ms() as u64)
}

/// The n-th message of a key.
fn of_key(topic: &str, key: &str, n: usize) -> Message {
    let message = message(topic, &unique_key(), format!("{n} ☃")).with_flag(7).with_keys([key, "all"]).unwrap();
    message
        .with_tag("paid")
        .and_then(|m| m.with_property("key", key))
        .and_then(|m| m.with_property("größe", "2 m"))
        .unwrap()
}

/// Properties that are the application's.
fn own<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<&'a str, &'a str> {
    properties.into_iter().filter(|(name, _)| !is_reserved(name)).collect()
}

async fn java_reads_what_we_send(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "ours", 4).await;
    let producer = Producer::new(&client, "it").unwrap();
    let options = SendOptions::default();
    // With the place, where it is known.
    let mut ours: Vec<(Message, MessageQueue, Option<i64>)> = Vec::new();

    for n in 0..20 {
        let key = KEYS[n % KEYS.len()];
        let (message, queue) = (of_key(&topic, key, n), producer.queue_for(&topic, key).await.unwrap());
        let sent = producer.send(&queue, &message, &options).await.unwrap();
        ours.push((message, queue, Some(sent.answer.queue_offset)));
    }
    for kind in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
        let message = message(&topic, &unique_key(), "a long story ".repeat(1_000));
        let options = SendOptions { compression: Some(kind), ..options };
        let sent = producer.send(&queues[3], &message, &options).await.unwrap();
        ours.push((message, queues[3].clone(), Some(sent.answer.queue_offset)));
    }
    let queue = producer.queue_for(&topic, KEYS[0]).await.unwrap();
    let messages: Vec<_> = (20..30).map(|n| of_key(&topic, KEYS[0], n)).collect();
    let sent = producer.send_batch(&queue, &batch(messages.iter().cloned()), &options).await.unwrap();
    for (message, place) in messages.into_iter().zip(sent.answer.queue_offset..) {
        ours.push((message, queue.clone(), Some(place)));
    }
    let (transactional, _checks) = TransactionalProducer::start(&client, &fresh("group"), LIMIT).await.unwrap();
    let rolled_back = transactional.half(&queue, &of_key(&topic, KEYS[0], 30), &options).await.unwrap();
    let committed = of_key(&topic, KEYS[0], 31);
    let half = transactional.half(&queue, &committed, &options).await.unwrap();
    transactional.end(&rolled_back, Resolution::Rollback, None).await.unwrap();
    transactional.end(&half, Resolution::Commit, None).await.unwrap();
    transactional.stop().await;
    ours.push((committed, queue, None));

    let (java, count) = (server.kit().java(), ours.len());
    let theirs = java.consume(&topic, &["--mode", "orderly", "--count", &count.to_string()]).await;
    assert_eq!(theirs.len(), count);
    for (message, queue, place) in &ours {
        let unique_key = message.unique_key().unwrap();
        let read = theirs.iter().find(|read| read.message_id == unique_key).expect(unique_key);
        let sent = message.properties();
        assert_eq!(read.unique_key.as_deref(), Some(unique_key));
        assert_eq!((read.keys.as_deref(), read.tags.as_deref()), (sent.get("KEYS"), sent.get("TAGS")));
        assert_eq!(
            own(read.properties.iter().map(|(k, v)| (k.as_str(), v.as_str()))),
            own(sent.iter()),
            "{unique_key}"
        );
        assert_eq!((&read.body[..], &read.line["flag"]), (&message.body()[..], &message.flag().into()));
        assert_eq!((read.broker.as_deref(), read.queue_id), (Some(&*queue.broker_name), queue.queue_id as u64));
        assert!(place.is_none_or(|place| place as u64 == read.queue_offset), "{unique_key}");
    }
    for key in KEYS {
        let sent = ours.iter().filter(|(m, ..)| m.properties().get("key") == Some(key)).map(|(m, ..)| m.unique_key());
        let read = theirs.iter().filter(|m| m.properties.get("key").is_some_and(|of| of == key));
        assert_eq!(read.map(|m| m.unique_key.as_deref()).collect::<Vec<_>>(), sent.collect::<Vec<_>>(), "{key}");
    }

    // A single one, one of the batch, the committed one.
    let id = |at: usize| ours[at].0.unique_key().unwrap();
    let find = async |at: usize| java.query_by_unique_key(&topic, id(at)).await.unwrap();
    let found = tokio::join!(find(0), find(25), find(count - 1));
    for (found, at) in [(found.0, 0), (found.1, 25), (found.2, count - 1)] {
        assert_eq!((found.message_id.as_str(), &found.body[..]), (id(at), &ours[at].0.body()[..]));
    }
}

/// All messages of a topic, queue by queue.
async fn read(consumer: &Consumer, queues: &[MessageQueue], count: usize) -> BTreeMap<u64, Vec<StoredMessage>> {
    let options = PullOptions { suspend: Duration::from_secs(5), ..PullOptions::default() };
    let mut reading = consumer.assign(queues, Start::First, options, 4).await.unwrap();
    let mut all: BTreeMap<u64, Vec<StoredMessage>> = BTreeMap::new();
    within(async {
        while all.values().map(Vec::len).sum::<usize>() < count {
            let read = reading.next().await.unwrap();
            all.entry(read.queue.queue_id as u64).or_default().extend(read.messages);
        }
    })
    .await;
    all
}

async fn we_read_what_java_sends(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "theirs", 4).await;
    let java = server.kit().java();
    let (keys, group) = (KEYS.join(","), fresh("group"));
    let described = ["--keys", &keys, "--tag", "paid", "--properties", "source=till 3,größe=2 m"];
    let produce = async |arguments: &[&str]| java.produce(&topic, &[arguments, &described].concat()).await;
    // Java packs bodies of 4,096 bytes and more.
    let transactions =
        ["--kind", "transaction", "--count", "3", "--outcomes", "commit,rollback,commit", "--group", &group];
    let (ordered, batches, halfs) = tokio::join!(
        produce(&["--kind", "ordered", "--count", "20", "--bytes", "5000"]),
        produce(&["--kind", "batch", "--count", "10", "--batch", "10"]),
        produce(&transactions),
    );
    assert_eq!((ordered.len(), batches.len(), batches[0].message_ids.len(), halfs.len()), (20, 1, 10, 3));

    let all = read(&Consumer::new(&client, "it").unwrap(), &queues, 32).await;
    assert_eq!(all.values().map(Vec::len).sum::<usize>(), 32, "none rolled back");
    let find = |sent: &JavaSent, id: &str| {
        let found = all.get(&sent.queue_id)?.iter().find(|m| m.unique_key() == Some(id))?;
        assert_eq!((found.tag(), found.keys().next()), (Some("paid"), Some(found.properties.get("KEYS").unwrap())));
        let properties: &Properties = &found.properties;
        assert_eq!(properties.get("source").zip(properties.get("größe")), Some(("till 3", "2 m")));
        Some(found)
    };
    for (n, sent) in ordered.iter().enumerate() {
        let found = find(sent, &sent.message_ids[0]).unwrap();
        assert_eq!(
            (found.offset_id().to_string(), found.keys().next()),
            (sent.offset_ids[0].clone(), Some(&*sent.key))
        );
        assert_eq!(found.queue_offset as u64, sent.queue_offset);
        let (body, start) = (found.body().unwrap(), format!("message-{n}"));
        assert!(body.starts_with(start.as_bytes()) && body[start.len()..].iter().all(|b| *b == b'.'));
        assert_eq!(body.len(), 5_000);
        assert!(found.stored_body.len() < 1_000, "it was packed");
    }
    for key in KEYS {
        let sent: Vec<_> =
            ordered.iter().filter(|sent| sent.key == key).map(|sent| sent.message_ids[0].as_str()).collect();
        let queue = all[&ordered.iter().find(|sent| sent.key == key).unwrap().queue_id].iter();
        let read: Vec<_> = queue.filter_map(StoredMessage::unique_key).filter(|id| sent.contains(id)).collect();
        assert_eq!(read, sent, "{key}");
    }
    let batch = &batches[0];
    let stored: Vec<_> =
        all[&batch.queue_id].iter().skip_while(|m| m.queue_offset as u64 != batch.queue_offset).collect();
    let ids: Vec<_> = stored.iter().take(10).filter_map(|m| m.unique_key()).collect();
    // 5.3.3 tells these ids too, but stores all ten under one, as its own consumer sees.
    let told = ids == batch.message_ids;
    assert!(told || ids == [ids[0]; 10], "{ids:?}");
    for (n, found) in stored.into_iter().take(10).enumerate() {
        assert_eq!(found.offset_id().to_string(), batch.offset_ids[n]);
        assert_eq!((found.tag(), found.keys().next()), (Some("paid"), Some(KEYS[n % KEYS.len()])));
        assert_eq!(&found.body().unwrap()[..], format!("message-{n}").as_bytes());
    }
    for (n, sent) in halfs.iter().enumerate() {
        let found = find(sent, &sent.message_ids[0]);
        assert_eq!(found.is_some(), n != 1);
        assert!(found.is_none_or(|m| &m.body().unwrap()[..] == format!("message-{n}").as_bytes()));
    }
}
