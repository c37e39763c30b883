//! Sending, and reading it back.

use std::collections::HashSet;
use std::time::Duration;

use rocketmq_remoting::client::{Admin, Client, Consumer, Producer, PullOptions, SendOptions, Sent};
use rocketmq_remoting::message::{
    Batch, BatchBuilder, Compression, Message, MessageQueue, StoredMessage, queue_by_hash,
};
use rocketmq_remoting::request::SendStatus;
use rocketmq_remoting::{Error, ResponseCode, Serialization};
use tokio::task::JoinSet;

use crate::on_both;
use crate::servers::{LIMIT, Server, eventually, message, now_ms, topic, within};

on_both!(
    a_message_arrives_as_it_was_sent,
    a_batch_arrives_in_order_and_in_one_piece,
    compressed_bodies_are_read_back,
    binary_headers_are_understood,
    keys_choose_queues_as_java_does,
    a_message_is_found_by_id_and_by_key,
    refusals_say_that_nothing_was_stored,
    one_in_flight_per_queue_keeps_order,
    singles_fill_the_window,
    a_demanded_connection_that_is_gone_sends_nothing,
);

/// All messages of a queue, which has this many: brokers index in the background, so its end alone is no measure.
pub async fn read_all(client: &Client, queue: &MessageQueue, count: i64) -> Vec<StoredMessage> {
    let consumer = Consumer::new(client, "it_reader").unwrap();
    let options = PullOptions { suspend: Duration::from_secs(1), ..PullOptions::default() };
    let (mut all, mut at) = (Vec::new(), client.min_offset(queue).await.unwrap());
    within(async {
        while at < count {
            let pulled = consumer.pull(queue, at, &options).await.unwrap().answer;
            at = pulled.next_offset;
            all.extend(pulled.messages);
        }
    })
    .await;
    assert_eq!(client.max_offset(queue).await.unwrap(), count);
    all
}

pub fn batch(messages: impl IntoIterator<Item = Message>) -> Batch {
    let mut builder = BatchBuilder::new(1 << 20);
    for message in messages {
        assert!(builder.push(&message).unwrap());
    }
    builder.finish().unwrap()
}

async fn send(producer: &Producer, queue: &MessageQueue, message: &Message) -> Sent {
    producer.send(queue, message, &SendOptions::default()).await.unwrap()
}

async fn a_message_arrives_as_it_was_sent(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "single", 2).await;
    let producer = Producer::new(&client, "it").unwrap();
    let message = message(&topic, "0123456789ABCDEF0123456789ABCDEF", "grüße")
        .with_flag(7)
        .with_keys(["42", "user-7"])
        .and_then(|m| m.with_tag("paid"))
        .and_then(|m| m.with_property("source", "till 3"))
        .unwrap();
    let sent = send(&producer, &queues[1], &message).await;
    assert_eq!((sent.answer.status, sent.answer.queue_id, sent.answer.queue_offset), (SendStatus::Ok, 1, 0));
    assert_eq!(sent.answer.broker_version.is_5(), server.is_5());
    assert_eq!(sent.generation, client.channel(&sent.address).generation());

    let all = read_all(&client, &queues[1], 1).await;
    assert_eq!(all.len(), 1);
    let stored = &all[0];
    assert_eq!(&stored.body().unwrap()[..], "grüße".as_bytes());
    assert_eq!((stored.flag, stored.tag(), stored.unique_key()), (7, Some("paid"), message.unique_key()));
    assert_eq!(stored.keys().collect::<Vec<_>>(), ["42", "user-7"]);
    assert_eq!(stored.properties.get("source"), Some("till 3"));
    assert_eq!(stored.offset_id(), sent.answer.offset_ids[0]);
    assert!((now_ms() - stored.born_at_ms).abs() < 60_000);
}

async fn a_batch_arrives_in_order_and_in_one_piece(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "batch", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let messages = (0..200).map(|n| {
        let message = message(&topic, &format!("u{n}"), format!("body {n}")).with_keys([format!("k{n}")]).unwrap();
        message.with_tag(&format!("t{n}")).unwrap()
    });
    let batch = batch(messages);
    for round in 0..2 {
        let sent = producer.send_batch(&queues[0], &batch, &SendOptions::default()).await.unwrap();
        assert_eq!((sent.answer.status, sent.answer.queue_offset), (SendStatus::Ok, round * 200));
        assert_eq!(sent.answer.offset_ids.len(), 200);
    }
    let all = read_all(&client, &queues[0], 400).await;
    assert_eq!(all.len(), 400);
    for (at, stored) in all.iter().enumerate() {
        let n = at % 200;
        assert_eq!(stored.queue_offset, i64::try_from(at).unwrap());
        assert_eq!(&stored.body().unwrap()[..], format!("body {n}").as_bytes());
        assert_eq!(stored.unique_key(), Some(format!("u{n}").as_str()));
        assert_eq!(stored.keys().next(), Some(format!("k{n}").as_str()));
        assert_eq!(stored.tag(), Some(format!("t{n}").as_str()));
    }
}

async fn compressed_bodies_are_read_back(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "compress", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let body = "a long story ".repeat(1_000);
    for kind in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
        let options = SendOptions { compression: Some(kind), ..SendOptions::default() };
        producer.send(&queues[0], &message(&topic, "u", body.clone()), &options).await.unwrap();
    }
    let all = read_all(&client, &queues[0], 3).await;
    assert_eq!(all.len(), 3);
    for stored in all {
        assert!(stored.stored_body.len() < 2_000);
        assert_eq!(&stored.body().unwrap()[..], body.as_bytes());
    }
}

async fn binary_headers_are_understood(server: Server) {
    let client = Client::new(server.options().serialization(Serialization::Binary));
    let (topic, queues) = topic(&client, "binary", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    send(&producer, &queues[0], &message(&topic, "u1", "x")).await;
    let batch = batch((0..3).map(|n| message(&topic, &format!("b{n}"), "y")));
    producer.send_batch(&queues[0], &batch, &SendOptions::default()).await.unwrap();
    assert_eq!(read_all(&client, &queues[0], 4).await.len(), 4);
}

async fn keys_choose_queues_as_java_does(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "hash", 8).await;
    let producer = Producer::new(&client, "it").unwrap();
    for key in ["user-1", "user-2", "polygenelubricants", "ä😀"] {
        let queue = producer.queue_for(&topic, key).await.unwrap();
        assert_eq!(queue, queues[queue_by_hash(key, 8).unwrap()]);
        let sent = send(&producer, &queue, &message(&topic, "u", "x")).await;
        assert_eq!(sent.answer.queue_id, queue.queue_id);
    }
}

async fn a_message_is_found_by_id_and_by_key(server: Server) {
    let client = server.client();
    let admin = Admin::new(&client);
    let (topic, queues) = topic(&client, "find", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let begin = now_ms() - 60_000;
    let one = message(&topic, "unique-1", "first").with_keys(["order-1", "both"]).unwrap();
    let two = message(&topic, "unique-2", "second").with_keys(["order-2", "both"]).unwrap();
    let sent = send(&producer, &queues[0], &one).await;
    send(&producer, &queues[0], &two).await;

    let viewed = admin.view_message(sent.answer.offset_ids[0]).await.unwrap();
    assert_eq!((viewed.unique_key(), &viewed.body().unwrap()[..]), (Some("unique-1"), &b"first"[..]));
    let between = admin.view_message_at(&sent.address, sent.answer.offset_ids[0].commit_log_offset + 5).await;
    assert!(matches!(between, Err(Error::Refused { .. })), "{between:?}");

    for (key, expected) in [("both", 2), ("order-2", 1), ("unique-1", 1), ("nobody", 0)] {
        let found = eventually(key, LIMIT, || async {
            let found = admin.query_by_key(&topic, key, begin, now_ms() + 60_000, 32).await.unwrap();
            (found.len() == expected).then_some(found)
        })
        .await;
        assert!(found.windows(2).all(|w| w[0].commit_log_offset < w[1].commit_log_offset));
    }
}

async fn refusals_say_that_nothing_was_stored(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "refuse", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let options = SendOptions::default();

    let nowhere = MessageQueue { queue_id: 99, ..queues[0].clone() };
    let error = producer.send(&nowhere, &message(&topic, "u", "x"), &options).await.unwrap_err();
    // 4.9: SYSTEM_ERROR, which counts as uncertain; 5.x says it better (rocketmq.md F.1).
    let expected = if server.is_5() { ResponseCode::InvalidParameter } else { ResponseCode::SystemError };
    assert_eq!(error.refused_with(), Some(expected), "{error}");

    let huge = message(&topic, "u", "x".repeat(5 * 1024 * 1024));
    let error = producer.send(&queues[0], &huge, &options).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(ResponseCode::MessageIllegal), "{error}");
    assert!(!error.may_have_been_done());

    let elsewhere = MessageQueue { broker_name: "nobody".into(), ..queues[0].clone() };
    let error = producer.send(&elsewhere, &message(&topic, "u", "x"), &options).await.unwrap_err();
    assert!(matches!(error, Error::Route { .. }) && !error.may_have_been_done(), "{error}");
    let error = producer.send(&queues[0], &message("another", "u", "x"), &options).await.unwrap_err();
    assert!(matches!(error, Error::Route { .. }), "{error}");
    assert_eq!(client.max_offset(&queues[0]).await.unwrap(), 0);
}

async fn one_in_flight_per_queue_keeps_order(server: Server) {
    const BATCHES: usize = 50;
    let client = server.client();
    let (topic, queues) = topic(&client, "order", 4).await;
    let producer = Producer::new(&client, "it").unwrap();
    let mut lanes = JoinSet::new();
    for queue in queues.clone() {
        let (producer, topic) = (producer.clone(), topic.clone());
        lanes.spawn(async move {
            for n in 0..BATCHES {
                let batch = batch((0..20).map(|m| message(&topic, &format!("{n}.{m}"), format!("{}", n * 20 + m))));
                let sent = producer.send_batch(&queue, &batch, &SendOptions::default()).await.unwrap();
                assert_eq!(sent.answer.queue_offset, i64::try_from(n * 20).unwrap());
            }
        });
    }
    within(lanes.join_all()).await;
    for queue in &queues {
        let all = read_all(&client, queue, 1_000).await;
        let bodies: Vec<usize> =
            all.iter().map(|m| std::str::from_utf8(&m.body().unwrap()).unwrap().parse().unwrap()).collect();
        assert_eq!(bodies, (0..BATCHES * 20).collect::<Vec<_>>());
    }
}

async fn singles_fill_the_window(server: Server) {
    const MESSAGES: usize = 2_000;
    let client = Client::new(server.options().window(64));
    let (topic, queues) = topic(&client, "window", 4).await;
    let producer = Producer::new(&client, "it").unwrap();
    let mut sends = JoinSet::new();
    for n in 0..MESSAGES {
        let (producer, queue) = (producer.clone(), queues[n % 4].clone());
        let message = message(&topic, &format!("u{n}"), "x");
        sends.spawn(async move { send(&producer, &queue, &message).await.answer.offset_ids[0] });
    }
    let ids: HashSet<_> = within(sends.join_all()).await.into_iter().collect();
    assert_eq!(ids.len(), MESSAGES);
    for queue in &queues {
        assert_eq!(read_all(&client, queue, 500).await.len(), 500);
    }
    let counts = client.counters().values();
    assert!(counts.writes < counts.requests, "{counts:?}");
    assert_eq!((counts.connections_opened, counts.answers_without_request), (2, 0), "{counts:?}");
}

async fn a_demanded_connection_that_is_gone_sends_nothing(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "generation", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let first = send(&producer, &queues[0], &message(&topic, "1", "x")).await;
    let demanded = SendOptions { generation: Some(first.generation), ..SendOptions::default() };
    producer.send(&queues[0], &message(&topic, "2", "x"), &demanded).await.unwrap();

    let channel = client.channel(&first.address);
    let mut watch = channel.watch();
    channel.connection(LIMIT).await.unwrap().close();
    let now = within(watch.connected_after(first.generation)).await.unwrap().generation;
    let error = producer.send(&queues[0], &message(&topic, "3", "x"), &demanded).await.unwrap_err();
    assert!(matches!(error, Error::Reconnected { expected, now: n } if expected == first.generation && n == now));
    assert!(!error.may_have_been_done());
    assert_eq!(read_all(&client, &queues[0], 2).await.len(), 2);
}
