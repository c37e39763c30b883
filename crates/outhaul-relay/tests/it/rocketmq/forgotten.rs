//! Brokers that forget what they have acknowledged: an older copy of a store is put back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use rocketmq_remoting::message::MessageQueue;

use super::cluster::{A, Cluster};
use super::reader::Reader;
use super::stage::{QUEUES, Stage, TOPIC, config, rows};
use crate::collector::Collector;
use crate::writers::Writers;

/// Of two masters one loses all that came after a copy of its store. The relay that has a connection to it finds that out
/// when the connection is renewed; after a second time, another relay does, from the receipts in the database. Each
/// sends what vanished, and nothing else, again by itself, and says once how many messages that are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten() {
    let cluster = Cluster::take().await;
    let namesrv = cluster.servers.namesrv();
    let rows = rows(4_000);
    // One shard: one lane, one event.
    let mut stage = Stage::new(namesrv, config(namesrv), QUEUES / 2, 1).await;
    let mut writers = stage.writers(rows / 2, 5_000, 59);
    let mut relays = [stage.scene.relay()];
    writers.finish().await;
    stage.arrived(writers.committed()).await;
    stage.scene.wait_until_settled(super::stage::LIMIT).await;
    stage.scene.reader.as_ref().unwrap().catch_up().await;
    let kept = stage.scene.reader.as_ref().unwrap().positions();
    cluster.servers.snapshot("early", &[A]).await;
    insert(&stage, &writers, "late", rows / 2).await;
    everything_is_there(&stage, &writers).await;
    let vanished = after(&stage, &kept).len();
    assert!(vanished > rows / 8, "{vanished}");

    stage.scene.reader = None;
    cluster.servers.rollback("early").await;
    insert(&stage, &writers, "next", 60).await; // Whatever comes next leads to the connection that is gone.
    stage.logged("OUT-4015").await;
    read_anew(&mut stage).await;
    everything_is_there(&stage, &writers).await;
    assert_eq!(counts(&stage), [vanished]);

    // Also what was sent again is forgotten, while no relay is there.
    let vanished_again = after(&stage, &kept).len();
    assert!(vanished_again >= vanished, "{vanished_again}");
    relays[0].kill9().await;
    stage.scene.reader = None;
    cluster.servers.rollback("early").await;
    insert(&stage, &writers, "last", 60).await;
    relays[0] = stage.scene.relay();
    read_anew(&mut stage).await;
    everything_is_there(&stage, &writers).await;
    assert_eq!(counts(&stage), [vanished, vanished_again]);

    let title = format!("{vanished} and {vanished_again} forgotten");
    // What was still there and is sent again would be a copy that nothing explains.
    stage.scene.settle(&mut writers, &mut relays, &title).await;
}

/// Commits rows of many users.
async fn insert(stage: &Stage, writers: &Writers, name: &str, count: usize) {
    let numbers: Vec<usize> = (0..count).collect();
    for part in numbers.chunks(1_000) {
        let row = |n: &usize| format!("('{name}-{n}', '{TOPIC}', 'user-{}', '{{\"n\":{n}}}')", n % 3_000);
        let values: Vec<String> = part.iter().map(row).collect();
        let values = values.join(",");
        stage.database.execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {values}")).await;
        let mut truth = writers.truth.lock().unwrap();
        for n in part {
            let id = format!("{name}-{n}");
            truth.by_key.entry(format!("user-{}", n % 3_000)).or_default().push(id.clone());
            truth.committed.insert(id);
        }
    }
}

async fn read_anew(stage: &mut Stage) {
    stage.scene.collector = Arc::<Collector>::default();
    stage.scene.reader = Some(Reader::start(&stage.client, &stage.topic, &stage.scene.collector).await);
}

/// At the brokers, and settled in the database.
async fn everything_is_there(stage: &Stage, writers: &Writers) {
    let committed = writers.truth.lock().unwrap().committed.len();
    stage.arrived(committed).await;
    stage.scene.wait_until_settled(super::stage::LIMIT).await;
    stage.scene.reader.as_ref().unwrap().catch_up().await;
}

/// What the first broker has beyond these offsets.
fn after(stage: &Stage, offsets: &HashMap<MessageQueue, i64>) -> HashSet<String> {
    let arrivals = stage.scene.collector.arrivals.lock().unwrap();
    let placed = arrivals.all.iter().filter_map(|arrival| Some((arrival, arrival.place.as_ref()?)));
    let beyond =
        placed.filter(|(_, place)| place.queue.broker_name == A.name() && place.offset >= offsets[&*place.queue]);
    beyond.map(|(arrival, _)| arrival.id.clone()).collect()
}

/// What each event names.
fn counts(stage: &Stage) -> Vec<usize> {
    let events = stage.scene.log().into_iter().filter(|line| line.contains("OUT-4015"));
    let count = |line: String| {
        let number = line.split("count=").nth(1).and_then(|rest| rest.split(' ').next());
        number.and_then(|digits| digits.parse().ok()).unwrap_or_else(|| panic!("no count in {line}"))
    };
    events.map(count).collect()
}
