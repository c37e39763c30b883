//! What a destination may be sent: its rate and its concurrency, over all shards and instances.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outhaul_core::config::LaneLimits;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_relay::Destination;
use outhaul_sink::{Outcome, Sink, SinkError, SinkInfo};
use outhaul_testkit::scripted::{Answer, ScriptedSink};
use outhaul_testkit::servers::Flavour;

use crate::engine::Bench;
use crate::on_each;

/// Hands on to a scripted sink, and notes when it was sent how many messages.
struct Timed {
    sink: Arc<dyn Sink>,
    sent: Arc<Mutex<Vec<(Instant, usize)>>>,
}

#[async_trait]
impl Sink for Timed {
    fn slotting(&self) -> Slotting {
        self.sink.slotting()
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        Ok(SinkInfo::default())
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        self.sent.lock().unwrap().push((Instant::now(), messages.len()));
        self.sink.send(slot, messages).await
    }

    async fn close(&self) {}
}

on_each!(a_rate_holds_over_all_shards_and_instances: sqlite => Sqlite, mariadb => MariaDb);

/// Two instances share the shards and one rate: by the test's clock never more is sent than its rate and a burst each,
/// however slow the machine is. A destination without a rate beside it has everything long before.
async fn a_rate_holds_over_all_shards_and_instances(flavour: Flavour) {
    const RATE: usize = 100;
    const MESSAGES: usize = 600;
    let mut bench = Bench::new(flavour).await;
    let (slow, fast) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    // A busy machine must not look like a destination that does not answer.
    (bench.settings.lease_ttl_ms, bench.limits.send_limit_ms) = (15_000, 5_000);
    slow.script("m7", vec![Answer::Retry { after_ms: None }; 2]);
    let sent = Arc::new(Mutex::new(Vec::new()));
    let limited = LaneLimits { rate_milli: Some(RATE as u64 * 1_000), ..bench.limits.clone() };
    let destinations = |bench: &Bench| {
        let timed = Timed { sink: slow.sink(), sent: sent.clone() };
        let of = |name: &str, sink: Arc<dyn Sink>, limits| Destination {
            name: name.into(),
            sink,
            limits,
            require_ack: None,
        };
        vec![of("slow", Arc::new(timed), limited.clone()), of("fast", fast.sink(), bench.limits.clone())]
    };
    let mut relays = vec![];
    for _ in 0..2 {
        let destinations = destinations(&bench);
        relays.push(bench.relay_of(destinations, "*").await);
    }
    bench.insert_many(0..1).await;
    slow.wait_stored(1).await;
    fast.wait_stored(1).await;
    let began = Instant::now();
    bench.insert_many(1..MESSAGES).await;
    fast.wait_stored(MESSAGES).await;
    let behind = MESSAGES - slow.stored().len();
    slow.wait_stored(MESSAGES).await;
    bench.wait_settled().await;
    for relay in relays {
        relay.drain().await;
    }
    let (mut all, burst) = (0usize, (1.0 + RATE as f64 * 0.1) * 2.0);
    let sent = sent.lock().unwrap().clone();
    for (at, messages) in sent.iter().filter(|(at, _)| *at > began) {
        all += messages;
        let most = RATE as f64 * at.duration_since(began).as_secs_f64() + burst;
        assert!(all as f64 <= most, "{all} messages sent within {:?}, at most {most:.1}", at.duration_since(began));
    }
    assert!(all >= MESSAGES - 1 + 2, "tries count too: {all}");
    println!("{behind} behind when the other destination had everything, {} batches", sent.len());
    assert_eq!((slow.stored().len(), slow.duplicates(), fast.duplicates()), (MESSAGES, 0, 0));
    assert_eq!(bench.parked("slow").await, (0, 0, 0));
}

on_each!(no_more_batches_are_under_way_than_allowed: sqlite => Sqlite, mariadb => MariaDb);

async fn no_more_batches_are_under_way_than_allowed(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.limits.concurrency = Some(2);
    bench.limits.max_batch = 3;
    bench.limits.send_limit_ms = 1_500;
    let sink = ScriptedSink::by_key(4);
    sink.script("m0", vec![Answer::Retry { after_ms: None }; 2]);
    let relay = bench.relay(&[&sink]).await;
    sink.otherwise(Answer::late());
    bench.insert_many(0..200).await;
    // Two batches wait at the gate; all others wait for them.
    sink.wait_received(2).await;
    bench.wait("all moved", |s| s.iter().all(|s| s.hot_rows == 0)).await;
    sink.otherwise(Answer::Ok);
    sink.open_gates();
    sink.wait_stored(200).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!(sink.most_under_way(), 2);
    assert_eq!((sink.stored_ids().len(), sink.overlaps()), (200, vec![]));
}

on_each!(l8_a_drain_does_not_wait_for_the_rate: sqlite => Sqlite, postgres => Postgres);

/// A destination that takes one message in ten minutes, and many that wait for it: SIGTERM ends the relay at once, and the
/// next one, without the limit, delivers the rest, each once.
async fn l8_a_drain_does_not_wait_for_the_rate(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    (bench.settings.lease_ttl_ms, bench.limits.send_limit_ms) = (15_000, 5_000);
    bench.limits.rate_milli = Some(2);
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..100).await;
    sink.wait_stored(1).await;
    bench.wait("all moved", |s| s.iter().all(|s| s.hot_rows == 0)).await;
    relay.drain().await;
    assert_eq!(sink.stored().len(), 1);
    bench.limits.rate_milli = None;
    let relay = bench.relay(&[&sink]).await;
    sink.wait_stored(100).await;
    bench.wait_settled().await;
    tokio::time::timeout(Duration::from_secs(20), relay.drain()).await.unwrap();
    assert_eq!((sink.stored().len(), sink.duplicates()), (100, 0));
}
