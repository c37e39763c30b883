//! A destination is away for long, and comes back to a backlog.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::config::LaneLimits;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Message, ShardId};
use outhaul_sink::{AckLevel, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo};
use outhaul_testkit::scripted::ScriptedSink;
use outhaul_testkit::servers::{self, Flavour};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::engine::Bench;
use crate::on_each;

const SLOTS: u32 = 4;
const BATCH: usize = 50;
/// What a slot may be sent first after an outage.
const PROBE: usize = 10;
const ANSWER: Duration = Duration::from_millis(20);
/// Where a send rate is counted.
const WINDOW: Duration = Duration::from_millis(200);
const CODE: &str = "OUT-9001";

/// A destination that takes a while for each batch, and refuses connections while it is down.
#[derive(Clone, Default)]
struct Away(Arc<Inner>);

#[derive(Default)]
struct Inner {
    down: AtomicBool,
    calls: Mutex<Vec<Call>>,
    distinct: watch::Sender<usize>,
    copies: Mutex<HashMap<String, usize>>,
}

/// One call of `send`, or of `start` if it names no slot.
struct Call {
    at: Instant,
    slot: Option<(ShardId, u32)>,
    messages: usize,
    refused: bool,
}

impl Away {
    fn note(&self, slot: Option<(ShardId, u32)>, messages: usize) -> bool {
        let refused = self.0.down.load(Ordering::SeqCst);
        self.0.calls.lock().unwrap().push(Call { at: Instant::now(), slot, messages, refused });
        refused
    }
}

#[async_trait]
impl Sink for Away {
    fn slotting(&self) -> Slotting {
        Slotting::ByKey(SLOTS)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        match self.note(None, 0) {
            true => Err(SinkError { code: CODE, message: "connection refused".into(), passes: true }),
            false => Ok(SinkInfo { level: AckLevel::Flushed, ..SinkInfo::default() }),
        }
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        if self.note(Some((messages[0].shard, slot)), messages.len()) {
            return vec![Outcome::DestinationDown(Reason::new(CODE, "connection refused")); messages.len()];
        }
        tokio::time::sleep(ANSWER).await;
        let mut copies = self.0.copies.lock().unwrap();
        messages.iter().for_each(|m| *copies.entry(m.id.clone()).or_default() += 1);
        self.0.distinct.send_replace(copies.len());
        vec![Outcome::Delivered(Receipt { level: AckLevel::Flushed, ..Receipt::default() }); messages.len()]
    }

    async fn close(&self) {}
}

on_each!(s1_a_long_outage: sqlite => Sqlite, mariadb => MariaDb);

/// S1: a destination is down for 20 s, in the soak for three minutes, while rows come. It is asked less and less often;
/// rows leave the hot table and the other destination gets all of them; nothing is dead. When it is back, each slot begins
/// with a small probe, never has more than one batch under way, and sends nothing twice.
async fn s1_a_long_outage(flavour: Flavour) {
    const STEP: usize = 20;
    let mut bench = Bench::new(flavour).await;
    bench.limits = LaneLimits { max_batch: BATCH, ..LaneLimits::default() };
    bench.limits.send_limit_ms = 1_000;
    let (away, other) = (Away::default(), ScriptedSink::by_key(2));
    let relay = bench.relay_into(vec![Arc::new(away.clone()), other.sink()], "*").await;
    bench.insert_many(0..STEP).await;
    let mut distinct = away.0.distinct.subscribe();
    tokio::time::timeout(crate::engine::LIMIT, distinct.wait_for(|n| *n == STEP)).await.expect("it works").unwrap();
    bench.wait_settled().await;

    away.0.down.store(true, Ordering::SeqCst);
    let outage = Duration::from_secs(if servers::soak() { 180 } else { 20 });
    let (began, mut rows) = (Instant::now(), STEP);
    while began.elapsed() < outage {
        bench.insert_many(rows..rows + STEP).await;
        rows += STEP;
        tokio::time::sleep(Duration::from_millis(100)).await; // It must be away for long: that is the case.
    }
    other.wait_stored(rows).await;
    bench.wait("rows leave the hot table", |shards| shards.iter().all(|s| s.hot_rows == 0)).await;
    away.0.down.store(false, Ordering::SeqCst);
    let back = Instant::now();
    let backlog = rows - STEP;
    let limit = Duration::from_millis(bench.limits.breaker_backoff_ms.1) + Duration::from_secs(60);
    let caught_up = tokio::time::timeout(limit, distinct.wait_for(|n| *n == rows)).await;
    caught_up.expect("it catches up").unwrap();
    let caught_up = back.elapsed();
    bench.wait_settled().await;
    assert_eq!(bench.parked("d0").await, (0, 0, 0), "an outage parks nothing");
    let lanes = bench.status().await.len();
    relay.drain().await;

    let copies: usize = away.0.copies.lock().unwrap().values().map(|n| n - 1).sum();
    assert_eq!((copies, other.duplicates()), (0, 0));
    let calls = away.0.calls.lock().unwrap();
    let refused: Vec<&Call> = calls.iter().filter(|c| c.refused).collect();
    let (starts, sends) = (refused.iter().filter(|c| c.slot.is_none()).count(), refused.len());
    let sends = sends - starts;
    // Waits double from 100 ms to 10 s, of each at least half; every start may lead to a try of each slot.
    let most_starts = 10 + outage.as_secs() as usize / 5;
    assert!(starts <= most_starts, "{starts} starts within {outage:?}, at most {most_starts}");
    assert!(sends <= SLOTS as usize * lanes, "{sends} sends were refused: it was sent to before a start succeeded");

    let taken: Vec<&Call> = calls.iter().filter(|c| !c.refused && c.slot.is_some() && c.at >= back).collect();
    let mut first: HashMap<(ShardId, u32), usize> = HashMap::new();
    for call in &taken {
        first.entry(call.slot.unwrap()).or_insert(call.messages);
    }
    let tried: Vec<(ShardId, u32)> = refused.iter().filter_map(|c| c.slot).collect();
    let large: Vec<_> = tried.iter().filter_map(|slot| first.get(slot)).filter(|n| **n > PROBE).collect();
    assert!(!tried.is_empty() && large.is_empty(), "a slot that was refused begins with a probe: {first:?}");
    let rate = |from: Instant| {
        let within = taken.iter().filter(|c| c.at >= from && c.at < from + WINDOW);
        within.map(|c| c.messages).sum::<usize>()
    };
    let highest = taken.iter().map(|c| rate(c.at)).max().unwrap_or(0);
    // One batch under way in each slot.
    let most = SLOTS as usize * lanes * BATCH * (WINDOW.as_millis() / ANSWER.as_millis() + 1) as usize;
    let a_second = |messages: usize| messages as u128 * 1_000 / WINDOW.as_millis();
    println!(
        "{} away for {outage:?}: asked {starts} times, {sends} sends refused; back: first message after {:?}, {backlog} caught up after {caught_up:?}; at most {} messages/s, bound {}",
        flavour.name(),
        taken.first().map(|c| c.at - back).unwrap_or_default(),
        a_second(highest),
        a_second(most)
    );
    assert!(highest <= most, "{highest} messages within {WINDOW:?}, at most {most}");
    let sent: usize = taken.iter().map(|c| c.messages).sum();
    assert_eq!(sent, backlog, "each message of the backlog is sent once");
}
