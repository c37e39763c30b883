//! `scale`: a destination that takes 50 ms for a batch of few messages, and more and more instances and shards.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Message, ShardId};
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, RelayError, Report, Stop};
use outhaul_sink::{AckLevel, Outcome, Receipt, Sink, SinkError, SinkInfo};
use outhaul_store::{InitPlan, Store, StoreOptions};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::Db;
use crate::raw::{self, Place, Raw};

/// How long the destination takes for a batch.
const ANSWER: Duration = Duration::from_millis(50);
/// Messages of a batch.
const BATCH: usize = 10;
/// Messages a second of one batch under way.
const RATE: f64 = BATCH as f64 * 1e3 / ANSWER.as_millis() as f64;
/// Topics, the first of which has half of all messages.
const TOPICS: usize = 10;
/// For whatever must happen before a step goes on.
const LIMIT: Duration = Duration::from_secs(120);

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database. SQLite has one shard, and nothing to share.
    #[arg(long, default_value = "mariadb")]
    db: Db,
    /// Seconds measured of each step.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// The most instances and shards: steps are its halves.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    most: u16,
}

/// What one batch is under way at a time of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OneAtATime {
    Shard,
    /// All shards of an instance share one connection.
    Instance,
}

#[derive(Clone, Copy)]
struct Step {
    instances: u16,
    shards: u16,
    by_key: bool,
    one: OneAtATime,
}

/// What all instances have delivered.
struct Taken {
    ids: Mutex<HashMap<String, u32>>,
    by_shard: watch::Sender<BTreeMap<ShardId, u64>>,
    /// Sends wait until it is open.
    open: watch::Sender<bool>,
    /// Answers come at once.
    hurry: AtomicBool,
}

impl Taken {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            ids: Mutex::default(),
            by_shard: watch::Sender::default(),
            open: watch::Sender::new(false),
            hurry: AtomicBool::new(false),
        })
    }

    fn all(&self) -> u64 {
        self.by_shard.borrow().values().sum()
    }

    async fn wait(&self, what: &str, until: impl FnMut(&BTreeMap<ShardId, u64>) -> bool) {
        let mut taken = self.by_shard.subscribe();
        let reached = tokio::time::timeout(LIMIT, taken.wait_for(until)).await;
        assert!(reached.is_ok(), "{what}: not within {LIMIT:?}");
    }
}

struct Slow {
    taken: Arc<Taken>,
    /// Whose turn it is, where an instance sends one batch at a time.
    turn: Option<tokio::sync::Mutex<()>>,
}

#[async_trait]
impl Sink for Slow {
    fn slotting(&self) -> Slotting {
        Slotting::Single
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        Ok(SinkInfo { level: AckLevel::Flushed, ..SinkInfo::default() })
    }

    async fn send(&self, _slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let _turn = match &self.turn {
            Some(turn) => Some(turn.lock().await),
            None => None,
        };
        _ = self.taken.open.subscribe().wait_for(|open| *open).await;
        if !self.taken.hurry.load(Ordering::Relaxed) {
            tokio::time::sleep(ANSWER).await;
        }
        let mut ids = self.taken.ids.lock().expect("the ids");
        for message in messages {
            *ids.entry(message.id.clone()).or_default() += 1;
        }
        drop(ids);
        self.taken.by_shard.send_modify(|taken| {
            for message in messages {
                *taken.entry(message.shard).or_default() += 1;
            }
        });
        vec![Outcome::Delivered(Receipt { level: AckLevel::Flushed, ..Receipt::default() }); messages.len()]
    }

    async fn close(&self) {}
}

/// Instances that run on one database.
struct Fleet {
    place: Place,
    store: Arc<dyn Store>,
    taken: Arc<Taken>,
    stop: Stop,
    instances: JoinSet<Result<Report, RelayError>>,
}

impl Fleet {
    /// Starts them, and waits until each has its share.
    async fn start(db: Db, step: Step) -> Self {
        let place = raw::place(db).await;
        let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
        let plan = InitPlan { shards: step.shards, shard_by_key: step.by_key, ..InitPlan::default() };
        store.init(&plan).await.expect("tables");
        let (taken, stop, mut instances) = (Taken::new(), Stop::new(), JoinSet::new());
        for n in 0..step.instances {
            let sink = Slow {
                taken: taken.clone(),
                turn: (step.one == OneAtATime::Instance).then(|| tokio::sync::Mutex::new(())),
            };
            let limits = LaneLimits { max_batch: BATCH, send_limit_ms: 8_000, ..LaneLimits::default() };
            let outbox = Outbox {
                name: "bench".into(),
                store: outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store"),
                destinations: vec![Destination {
                    name: "slow".into(),
                    sink: Arc::new(sink),
                    limits,
                    require_ack: None,
                }],
                routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
                settings: Settings { lease_interval_ms: 200, ..Settings::default() },
                owner: format!("bench-{}-{n}", std::process::id()),
                until_empty: false,
                shutdown_limit_ms: 60_000,
                maintenance: None,
                transactions: None,
                watch: None,
            };
            instances.spawn(outhaul_relay::run(vec![outbox], stop.clone()));
        }
        let fleet = Self { place, store, taken, stop, instances };
        let fair = async {
            while !fleet.is_fair(step).await {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(LIMIT, fair).await.expect("the shards are shared evenly");
        fleet
    }

    async fn is_fair(&self, step: Step) -> bool {
        let status = self.store.status().await.expect("a status");
        let mut owned: HashMap<&str, u16> = HashMap::new();
        for shard in &status {
            let Some(owner) = shard.owner.as_deref().filter(|_| !shard.lanes.lanes.is_empty()) else { return false };
            *owned.entry(owner).or_default() += 1;
        }
        let share = step.shards.div_ceil(step.instances);
        owned.values().all(|shards| *shards <= share) && owned.len() == usize::from(step.shards.min(step.instances))
    }

    /// Inserts so many rows and lets the destination answer.
    async fn open(&mut self, rows: usize) {
        fill(self.place.raw.as_mut(), rows).await;
        self.taken.open.send_replace(true);
    }

    /// Stops all; copies of messages beyond the first.
    async fn end(mut self, db: Db, rows: usize) -> usize {
        self.taken.wait("every row arrives", |_| self.taken.ids.lock().expect("the ids").len() >= rows).await;
        self.stop.drain();
        while let Some(instance) = self.instances.join_next().await {
            instance.expect("no panic").expect("an instance that ends well");
        }
        self.store.close().await;
        let ids = std::mem::take(&mut *self.taken.ids.lock().expect("the ids"));
        assert_eq!(ids.len(), rows, "every row, and no other");
        raw::remove(db, self.place).await;
        ids.values().map(|copies| *copies as usize - 1).sum()
    }
}

/// Rows with 5,000 keys, half of them of one topic.
async fn fill(raw: &mut dyn Raw, rows: usize) {
    const STEP: usize = 500;
    for from in (0..rows).step_by(STEP) {
        let values: Vec<String> = (from..(from + STEP).min(rows))
            .map(|n| {
                let topic = if n % 2 == 0 { 0 } else { 1 + n / 2 % (TOPICS - 1) };
                format!("('b-{n}','topic-{topic}','user-{}','{}')", n % 5_000, raw::payload(n, 300))
            })
            .collect();
        raw.execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {}", values.join(","))).await;
    }
}

/// Messages a second while every shard has a backlog, and copies.
async fn steady(db: Db, step: Step, seconds: f64) -> (f64, usize) {
    // A third more than is taken meanwhile: the database spreads keys only about evenly.
    let rows = (f64::from(step.shards) * RATE * (seconds + 1.0) * 4.0 / 3.0) as usize;
    let mut fleet = Fleet::start(db, step).await;
    fleet.open(rows).await;
    fleet.taken.wait("all shards deliver", |taken| taken.len() == usize::from(step.shards)).await;
    let (before, start) = (fleet.taken.all(), Instant::now());
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let (then, took) = (fleet.taken.by_shard.borrow().clone(), start.elapsed());
    fleet.taken.hurry.store(true, Ordering::Relaxed);
    let taken = fleet.taken.clone();
    let copies = fleet.end(db, rows).await;
    let all = taken.by_shard.borrow().clone();
    assert!(then.iter().all(|(shard, n)| n < &all[shard]), "every shard had a backlog to the end: {then:?} {all:?}");
    ((then.values().sum::<u64>() - before) as f64 / took.as_secs_f64(), copies)
}

/// Seconds until a backlog is delivered, and copies.
async fn emptied(db: Db, step: Step, rows: usize) -> (f64, usize) {
    let mut fleet = Fleet::start(db, step).await;
    fleet.open(rows).await;
    let start = Instant::now();
    fleet.taken.wait("the backlog is delivered", |taken| taken.values().sum::<u64>() >= rows as u64).await;
    let took = start.elapsed().as_secs_f64();
    (took, fleet.end(db, rows).await)
}

/// 1, 2, 4 … and the most.
fn steps(most: u16) -> Vec<u16> {
    let halves = std::iter::successors(Some(most), |n| (*n > 1).then_some(n / 2));
    let mut steps: Vec<u16> = halves.collect();
    steps.reverse();
    steps
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let Arguments { db, seconds, most } = arguments;
    if db == Db::Sqlite {
        eprintln!("SQLite has one shard, and nothing to share: take a server");
        std::process::exit(2);
    }
    println!(
        "{db:?}: a destination that takes {} ms for a batch of {BATCH} messages; instances are relays of one process, each with connections of its own; {seconds} s a step",
        ANSWER.as_millis()
    );
    let mut copies = 0;
    let per_shard = steps(most)
        .into_iter()
        .map(|n| (1, n))
        .chain(steps(most).into_iter().filter(|n| *n > 1 && *n < most).map(|n| (n, most)))
        .chain(steps(most).into_iter().filter(|n| *n > 1).map(|n| (n, n)));
    copies += table(db, seconds, "one batch under way for each shard", OneAtATime::Shard, per_shard.collect()).await;
    let per_instance = steps(most).into_iter().map(|n| (n, most)).collect();
    let title = "one batch under way for each instance, which has one connection";
    copies += table(db, seconds, title, OneAtATime::Instance, per_instance).await;

    let rows = (RATE * seconds * 3.0) as usize;
    println!("\none hot topic of {TOPICS}: half of {rows} messages");
    println!("{:<44} {:>9} {:>12} {:>16} {:>10}", "", "seconds", "messages/s", "× single relay", "duplicates");
    let mut single = None;
    for (name, shards, by_key) in [
        ("single relay, 1 shard".to_owned(), 1, true),
        (format!("{most} instances, {most} shards by topic"), most, false),
        (format!("{most} instances, {most} shards by key"), most, true),
    ] {
        let step = Step { instances: shards, shards, by_key, one: OneAtATime::Shard };
        let (took, more) = emptied(db, step, rows).await;
        let ratio = *single.get_or_insert(took) / took;
        println!("{name:<44} {took:>9.2} {:>12.0} {ratio:>16.2} {more:>10}", rows as f64 / took);
        copies += more;
    }
    assert_eq!(copies, 0, "every message once");
}

/// Measures steps of (instances, shards) and prints them beside the first; copies.
async fn table(db: Db, seconds: f64, title: &str, one: OneAtATime, steps: Vec<(u16, u16)>) -> usize {
    let (mut base, mut copies) = (None, 0);
    println!("\n{title}");
    println!("{:>9} {:>7} {:>12} {:>8} {:>10}", "instances", "shards", "messages/s", "× first", "duplicates");
    for (instances, shards) in steps {
        let (rate, more) = steady(db, Step { instances, shards, by_key: true, one }, seconds).await;
        let ratio = rate / *base.get_or_insert(rate);
        println!("{instances:>9} {shards:>7} {rate:>12.0} {ratio:>8.2} {more:>10}");
        copies += more;
    }
    copies
}
