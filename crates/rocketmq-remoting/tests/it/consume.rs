//! Reading: offsets, long polls, tags, places.

use std::time::Duration;

use rocketmq_remoting::client::{Admin, Consumer, Producer, PullOptions, SendOptions, Start, Where};
use rocketmq_remoting::request::{PullStatus, Subscription};
use tokio::time::{Instant, sleep};

use crate::on_both;
use crate::servers::{Server, fresh, message, topic, within};

on_both!(
    a_group_keeps_its_offset,
    a_long_poll_ends_with_the_message_it_waited_for,
    tags_are_chosen,
    places_are_found_by_time_and_by_end,
    an_offset_that_is_gone_is_told,
    several_queues_are_read_at_once,
);

fn at_once() -> PullOptions {
    PullOptions { suspend: Duration::ZERO, ..PullOptions::default() }
}

async fn a_group_keeps_its_offset(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "offsets", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    for n in 0..5 {
        producer.send(&queues[0], &message(&topic, &n.to_string(), "x"), &SendOptions::default()).await.unwrap();
    }
    let group = fresh("group");
    let consumer = Consumer::new(&client, &group).unwrap();
    // A young queue that is whole and in memory: the broker says 0 for a group that it does not know.
    assert!(matches!(consumer.committed(&queues[0]).await.unwrap(), None | Some(0)));
    let mut reader = consumer.read(&queues[0], Start::CommittedOrFirst, at_once()).await.unwrap();
    let mut seen = 0;
    within(async {
        while seen < 5 {
            seen += reader.next().await.unwrap().messages.len();
        }
    })
    .await;
    reader.commit().await.unwrap();
    assert_eq!(consumer.committed(&queues[0]).await.unwrap(), Some(5));
    consumer.commit(&queues[0], 2).await.unwrap();
    let again = Consumer::new(&server.client(), &group).unwrap();
    let reader = again.read(&queues[0], Start::CommittedOrLast, at_once()).await.unwrap();
    assert_eq!(reader.offset(), 2);
}

async fn a_long_poll_ends_with_the_message_it_waited_for(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "poll", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let consumer = Consumer::new(&client, "it").unwrap();
    let options = PullOptions { suspend: Duration::from_secs(15), ..PullOptions::default() };
    let mut reader = consumer.read(&queues[0], Start::Last, options).await.unwrap();
    let began = Instant::now();
    let (read, ()) = within(async {
        tokio::join!(reader.next(), async {
            sleep(Duration::from_millis(300)).await;
            producer.send(&queues[0], &message(&topic, "u", "x"), &SendOptions::default()).await.unwrap();
        })
    })
    .await;
    assert_eq!(read.unwrap().messages.len(), 1);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());

    let short = PullOptions { suspend: Duration::from_millis(500), ..PullOptions::default() };
    let nothing = within(consumer.pull(&queues[0], 1, &short)).await.unwrap().answer;
    assert!(matches!(nothing.status, PullStatus::NotFound | PullStatus::RetryImmediately), "{nothing:?}");
    assert_eq!(nothing.next_offset, 1);
}

async fn tags_are_chosen(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "tags", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    // "Aa" and "BB" have one hash: the broker cannot tell them apart, we must.
    for (n, tag) in ["Aa", "BB", "other", "Aa"].into_iter().enumerate() {
        let message = message(&topic, &n.to_string(), "x").with_tag(tag).unwrap();
        producer.send(&queues[0], &message, &SendOptions::default()).await.unwrap();
    }
    let consumer = Consumer::new(&client, "it").unwrap();
    let options = PullOptions { subscription: Subscription::of_tags(["Aa"]), ..at_once() };
    let mut reader = consumer.read(&queues[0], Start::First, options).await.unwrap();
    let mut keys = Vec::new();
    within(async {
        while reader.offset() < 4 {
            let read = reader.next().await.unwrap();
            keys.extend(read.messages.iter().map(|m| m.unique_key().unwrap().to_owned()));
        }
    })
    .await;
    assert_eq!(keys, ["0", "3"]);
}

async fn places_are_found_by_time_and_by_end(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "places", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let consumer = Consumer::new(&client, "it").unwrap();
    let send = async |n: i32| {
        producer.send(&queues[0], &message(&topic, &n.to_string(), "x"), &SendOptions::default()).await.unwrap();
    };
    for n in 0..3 {
        send(n).await;
        sleep(Duration::from_millis(50)).await;
    }
    let stored = within(crate::send::read_all(&client, &queues[0], 3)).await;
    let third = stored[2].stored_at_ms;
    for (start, expected) in [
        (Start::First, 0),
        (Start::Last, 3),
        (Start::AtMs(third), 2),
        (Start::AtMs(third - 3_600_000), 0),
        (Start::AtMs(third + 3_600_000), if server.is_5() { 3 } else { 2 }),
        (Start::Offset(1), 1),
    ] {
        assert_eq!(consumer.offset_of(&queues[0], start).await.unwrap(), expected, "{start:?}");
    }
    let mut reader = consumer.read(&queues[0], Start::Last, at_once()).await.unwrap();
    reader.seek(Start::AtMs(third)).await.unwrap();
    assert_eq!(reader.next().await.unwrap().messages[0].unique_key(), Some("2"));
}

async fn an_offset_that_is_gone_is_told(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "moved", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    producer.send(&queues[0], &message(&topic, "0", "x"), &SendOptions::default()).await.unwrap();
    let consumer = Consumer::new(&client, "it").unwrap();
    let mut reader = consumer.read(&queues[0], Start::Offset(1_000), at_once()).await.unwrap();
    let read = within(reader.next()).await.unwrap();
    assert_eq!(read.moved_from, Some(1_000));
    assert!(read.next_offset <= 1, "{read:?}");
    Admin::new(&client).delete_topic(&topic, &Where::Everywhere).await.unwrap();
}

async fn several_queues_are_read_at_once(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "assign", 4).await;
    let producer = Producer::new(&client, "it").unwrap();
    let consumer = Consumer::new(&client, "it").unwrap();
    let options = PullOptions { suspend: Duration::from_secs(5), ..PullOptions::default() };
    let mut assignment = consumer.assign(&queues, Start::First, options, 4).await.unwrap();
    for n in 0..40 {
        let message = message(&topic, &n.to_string(), "x");
        producer.send(&queues[n % 4], &message, &SendOptions::default()).await.unwrap();
    }
    let mut next = [0_usize; 4];
    within(async {
        while next.iter().sum::<usize>() < 40 {
            let read = assignment.next().await.unwrap();
            let queue = usize::try_from(read.queue.queue_id).unwrap();
            for stored in &read.messages {
                let n: usize = stored.unique_key().unwrap().parse().unwrap();
                assert_eq!(n, queue + 4 * next[queue], "in order, none twice");
                next[queue] += 1;
            }
        }
    })
    .await;
    assert_eq!(next, [10; 4]);
}
