//! A broker that never answers (S1, L3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use outhaul_core::config::LaneLimits;
use outhaul_sink::Sink;
use outhaul_sink::rocketmq::{RocketMqConfig, RocketMqSink};
use outhaul_testkit::servers::rocketmq::RocketMq;
use outhaul_testkit::servers::{Flavour, soak};
use rocketmq_remoting::message::queue_by_hash;

use super::cluster::{B, Cluster};
use super::noted::NotedSink;
use super::reader::Reader;
use super::stage::{LIMIT, QUEUES, TOPIC, client, config, create_topic};
use crate::collector::{Collector, Notes};
use crate::engine::Bench;

/// Rows of a round whose queues are on the first broker; as many go to the second.
const ROUND: usize = 40;

/// A destination, and what it has.
struct Lane {
    collector: Arc<Collector>,
    _reader: Reader,
    sink: Arc<dyn Sink>,
}

impl Lane {
    async fn new(namesrv: &str, config: RocketMqConfig, queues: u16, notes: &Arc<Notes>) -> Self {
        let (client, collector) = (client(namesrv), Arc::<Collector>::default());
        let topic = create_topic(&client, &config, queues).await;
        let _reader = Reader::start(&client, &topic, &collector).await;
        let sink = Arc::new(NotedSink::new(RocketMqSink::new(config, None), notes.clone()));
        Self { collector, _reader, sink }
    }

    /// Each key's messages are there in their order, which is that of their numbers.
    fn assert_order(&self) {
        let arrivals = self.collector.arrivals.lock().unwrap();
        let mut newest = std::collections::HashMap::new();
        let mut seen = std::collections::HashSet::new();
        for arrival in arrivals.all.iter().filter(|arrival| seen.insert(&arrival.id)) {
            let number: usize = arrival.id.parse().unwrap();
            assert!(newest.insert(&arrival.key, number).is_none_or(|before| before < number), "{arrival:?}");
        }
    }
}

/// Of two masters one stops answering. Rows come round after round, each only after all of the one before that do not
/// need it have arrived: at the other master, and in the lane to another cluster. More wait for it than a lane may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_queue() {
    let cluster = Cluster::take().await;
    let file = std::env::temp_dir().join(format!("outhaul-unknown-{}", uuid::Uuid::new_v4()));
    let notes = Notes::new(file.clone());
    let mut settings = config(cluster.servers.namesrv());
    settings.request_limit_ms = 800;
    settings.slots = 6; // Eight queues: each slot meets some of both brokers.
    let other = RocketMqConfig { namesrv: vec![RocketMq::V4.namesrv()], ..settings.clone() };
    let lanes = [
        Lane::new(cluster.servers.namesrv(), settings, QUEUES / 2, &notes).await,
        Lane::new(&RocketMq::V4.namesrv(), other, QUEUES, &notes).await,
    ];
    let mut bench = Bench::new(Flavour::MariaDb).await;
    bench.limits.send_limit_ms = 1_000;
    (bench.limits.max_queued, bench.limits.breaker_backoff_ms) = if soak() {
        (LaneLimits::default().max_queued, LaneLimits::default().breaker_backoff_ms)
    } else {
        (10 * ROUND, (100, 1_000))
    };
    let relay = bench.relay_into(lanes.iter().map(|lane| lane.sink.clone()).collect(), "*").await;

    // Queues are counted broker by broker.
    let (on_a, on_b): (Vec<String>, Vec<String>) = (0..400)
        .map(|n| format!("user-{n}"))
        .partition(|key| queue_by_hash(key, QUEUES.into()).unwrap() < usize::from(QUEUES / 2));
    let mut next = 0;
    let mut all: Vec<String> = Vec::new();
    let mut round = async |dead: bool| {
        let keys = (0..ROUND).flat_map(|n| [&on_a[(next + n) % on_a.len()], &on_b[(next + n) % on_b.len()]]);
        let rows: Vec<(String, &String)> = keys.enumerate().map(|(n, key)| ((next + n).to_string(), key)).collect();
        next += rows.len();
        let values: Vec<String> =
            rows.iter().map(|(id, key)| format!("('{id}', '{TOPIC}', '{key}', '{{}}')")).collect();
        let values = values.join(",");
        let insert = format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {values}");
        bench.database.execute(&insert).await;
        let began = Instant::now();
        let ids: Vec<String> = rows.iter().map(|(id, _)| id.clone()).collect();
        let of_a: Vec<String> = ids.iter().step_by(2).cloned().collect();
        let here = if dead { &of_a } else { &ids };
        assert!(lanes[0].collector.wait_for_all(here, LIMIT).await, "the queues that answer");
        assert!(lanes[1].collector.wait_for_all(&ids, LIMIT).await, "the other lane");
        all.extend(ids);
        began.elapsed()
    };
    let rounds = if soak() { 1_000 } else { 60 };
    let (mut before, mut during) = (Vec::new(), Vec::new());
    for _ in 0..rounds / 2 {
        before.push(round(false).await);
    }
    cluster.servers.pause(&[B]).await;
    for _ in 0..rounds {
        during.push(round(true).await);
    }
    let waiting = all.len() - lanes[0].collector.distinct();
    cluster.servers.resume(&[B]).await;
    println!("rounds before: {}; with a broker that never answers: {}", times(before), times(during));
    assert!(waiting > bench.limits.max_queued, "{waiting} wait for the dead one");
    for lane in &lanes {
        assert!(lane.collector.wait_for_all(&all, LIMIT).await);
    }
    bench.wait_settled().await;
    assert_eq!((bench.parked("d0").await, bench.parked("d1").await), ((0, 0, 0), (0, 0, 0)), "silence parks nothing");
    relay.drain().await;
    let noted = std::fs::read_to_string(&file).unwrap_or_default().lines().count();
    let copies = |lane: &Lane| lane.collector.arrivals.lock().unwrap().repeats.values().sum::<usize>();
    println!("{waiting} waited for it; {} duplicates (bound {noted})", copies(&lanes[0]));
    assert!(copies(&lanes[0]) <= noted && copies(&lanes[1]) == 0);
    for lane in &lanes {
        lane.assert_order();
    }
    _ = std::fs::remove_file(file);
}

fn times(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)].as_millis();
    format!("P50 {} ms, P99 {} ms, longest {} ms", at(50), at(99), at(100))
}
