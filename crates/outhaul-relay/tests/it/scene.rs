//! Everything of one kill test: database, destination, writers, relays, and what is checked in the end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::chunk;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::receipt::LaneState;
use outhaul_store::{InitPlan, Store, StoreError, StoreOptions};
use outhaul_testkit::servers::Flavour;

use crate::child::{DESTINATION, RelayProcess, Target};
use crate::collector::{Collector, log_beside};
use crate::rocketmq::Reader;
use crate::writers::{Truth, Writers};

/// How far the lane of each shard is settled.
pub type Settled = BTreeMap<ShardId, LaneState>;

/// A scene.
pub struct Scene {
    pub url: String,
    target: Target,
    pub collector: Arc<Collector>,
    /// Reads a broker for the collector.
    pub reader: Option<Reader>,
    /// A store of the test's own, past any proxy.
    pub store: Arc<dyn Store>,
    pub shards: u16,
    relays_started: usize,
    /// Whether a relay that loses a shard by itself may cause copies. False where the test counts such copies itself.
    pub fences: bool,
    /// Messages that may arrive once more for each fault so far.
    pub allowed: HashMap<String, usize>,
    /// Ids of sends that were not answered within their limit.
    unknown: PathBuf,
    /// Kills of a relay: when, and what was settled by then.
    kills: Vec<(i64, Settled)>,
    log: BTreeMap<ShardId, Position>,
    place: HashMap<String, (ShardId, Position)>,
}

impl Scene {
    pub async fn new(flavour: Flavour, url: &str) -> Self {
        let shards = if flavour == Flavour::Sqlite { 1 } else { 4 };
        let collector = Arc::<Collector>::default();
        let target = Target::Collector(collector.listen().await);
        Self::to(target, collector, url, shards).await
    }

    /// With another destination, whose messages come to the collector in some way of their own.
    pub async fn to(target: Target, collector: Arc<Collector>, url: &str, shards: u16) -> Self {
        let store = outhaul_store::open(StoreOptions::new(url)).await.unwrap();
        store.init(&InitPlan { shards, ..InitPlan::default() }).await.unwrap();
        Self {
            url: url.to_owned(),
            target,
            collector,
            reader: None,
            store,
            shards,
            relays_started: 0,
            fences: true,
            allowed: HashMap::new(),
            unknown: std::env::temp_dir().join(format!("outhaul-unknown-{}", uuid::Uuid::new_v4())),
            kills: Vec::new(),
            log: BTreeMap::new(),
            place: HashMap::new(),
        }
    }

    pub fn relay(&mut self) -> RelayProcess {
        self.relay_at(&self.url.clone())
    }

    pub fn relay_at(&mut self, url: &str) -> RelayProcess {
        self.relays_started += 1;
        let owner = format!("relay-{}", self.relays_started);
        RelayProcess::start(url, &self.target, &owner, &self.unknown, self.fences)
    }

    /// Reads on in the log: where each id stands.
    async fn read_log(&mut self) {
        let names = [DESTINATION.to_owned()];
        for shard in (0..self.shards).map(ShardId) {
            let mut from = self.log.get(&shard).copied().unwrap_or_default();
            loop {
                let chunks = patiently(|| self.store.read_log(shard, from, 8 << 20)).await;
                if chunks.is_empty() {
                    break;
                }
                for c in chunks {
                    for m in chunk::decode(c.codec, &c.bytes, shard, c.base, &names).unwrap() {
                        assert_eq!(m.position.0, from.0, "positions of the log have no gap");
                        from = Position(from.0 + 1);
                        assert!(self.place.insert(m.id.clone(), (shard, m.position)).is_none(), "{} moved twice", m.id);
                    }
                }
            }
            self.log.insert(shard, from);
        }
    }

    /// What is settled in the database by now.
    pub async fn settled(&self) -> Settled {
        let mut settled = Settled::new();
        for shard in (0..self.shards).map(ShardId) {
            let recovery = patiently(|| self.store.recover(shard)).await;
            let lane = recovery.lanes.lanes.into_iter().map(|(s, _)| s).find(|s| s.destination == DESTINATION);
            settled.insert(shard, lane.unwrap_or_default());
        }
        settled
    }

    /// A fault has just happened: what has arrived by now and is not settled in the database may arrive once more.
    /// Returns how many that are.
    pub async fn fault_happened(&mut self) -> usize {
        let settled = self.settled().await;
        self.fault_happened_after(&settled).await
    }

    /// A fault has happened since `settled` was read: what had not been settled by then and has arrived by now may
    /// arrive once more.
    pub async fn fault_happened_after(&mut self, settled: &Settled) -> usize {
        // What the relay had written to its sockets by then still arrives. It takes a moment, well under the lease.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let arrived: HashSet<String> = self.collector.arrivals.lock().unwrap().ids.clone();
        self.read_log().await;
        let open: Vec<String> = arrived.into_iter().filter(|id| !is_settled(self.place.get(id), settled)).collect();
        for id in &open {
            *self.allowed.entry(id.clone()).or_default() += 1;
        }
        open.len()
    }

    /// A relay was killed: what it had sent by now, and what is not settled in the database, may arrive once more. Which
    /// that is, is found out in the end, by the times that messages of a broker carry.
    pub async fn relay_was_killed(&mut self) {
        let settled = self.settled().await; // it may have stored more than that: all the better
        self.kills.push((now_ms(), settled));
    }

    fn allow_for_kills(&mut self) {
        let mut sent_at: HashMap<String, i64> = HashMap::new();
        for arrival in &self.collector.arrivals.lock().unwrap().all {
            let at = arrival.place.as_ref().map_or(0, |place| place.sent_at_ms);
            sent_at.entry(arrival.id.clone()).and_modify(|first| *first = at.min(*first)).or_insert(at);
        }
        for (killed_at, settled) in std::mem::take(&mut self.kills) {
            for (id, _) in sent_at.iter().filter(|(_, at)| **at <= killed_at) {
                if !is_settled(self.place.get(id), &settled) {
                    *self.allowed.entry(id.clone()).or_default() += 1;
                }
            }
        }
    }

    /// What relays have logged so far that calls for attention.
    pub fn log(&self) -> Vec<String> {
        let text = std::fs::read_to_string(log_beside(&self.unknown)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Everything must have arrived; then the final accounts.
    pub async fn settle(&mut self, writers: &mut Writers, relays: &mut [RelayProcess], title: &str) -> Account {
        writers.finish().await;
        let certain = writers.truth.lock().unwrap().committed.len();
        let limit = Duration::from_secs(120);
        assert!(
            self.collector.wait_for(certain, limit).await,
            "{title}: {} of at least {certain} ids arrived within {limit:?}",
            self.collector.distinct()
        );
        self.wait_until_settled(limit).await;
        for relay in relays {
            relay.terminate().await;
        }
        if let Some(reader) = &self.reader {
            reader.catch_up().await;
        }
        self.read_log().await;
        self.allow_for_kills();
        // On a busy machine an answer can take longer than the send limit: then a copy is right.
        let unanswered = std::fs::read_to_string(&self.unknown).unwrap_or_default();
        for id in unanswered.lines() {
            *self.allowed.entry(id.to_owned()).or_default() += 1;
        }
        println!("{title}: {} messages of sends without an answer in time", unanswered.lines().count());
        let _ = std::fs::remove_file(&self.unknown);
        let account = self.check(&writers.truth.lock().unwrap(), title);
        assert_eq!(self.store.status().await.unwrap().iter().map(|s| s.hot_rows).sum::<u64>(), 0, "{title}: hot rows");
        account
    }

    pub async fn wait_until_settled(&self, limit: Duration) {
        let done = async {
            loop {
                let status = patiently(|| self.store.status()).await;
                let behind = |s: &outhaul_store::ShardStatus| s.lanes.lanes.iter().any(|(l, _)| l.cursor < s.log_end);
                if status.iter().all(|s| s.hot_rows == 0 && !behind(s)) {
                    return;
                }
                // There is no signal for what a process of its own has written.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(limit, done).await.expect("all lanes reach the end of the log");
    }

    fn check(&self, truth: &Truth, title: &str) -> Account {
        let arrivals = self.collector.arrivals.lock().unwrap();
        let missing: Vec<_> = truth.committed.difference(&arrivals.ids).take(10).collect();
        let phantom: Vec<_> = arrivals
            .ids
            .iter()
            .filter(|id| !truth.committed.contains(*id) && !truth.unknown.contains(*id))
            .take(10)
            .collect();
        assert!(missing.is_empty(), "{title}: missing {missing:?}");
        assert!(phantom.is_empty(), "{title}: phantom {phantom:?}");
        let duplicates: usize = arrivals.repeats.values().sum();
        let bound: usize = self.allowed.values().sum();
        let unexplained: Vec<_> = arrivals
            .repeats
            .iter()
            .filter(|(id, n)| self.allowed.get(*id).copied().unwrap_or(0) < **n)
            .take(10)
            .collect();
        println!(
            "{title}: {} committed, {} arrived, 0 missing, 0 phantom, {duplicates} duplicates (bound {bound})",
            truth.committed.len(),
            arrivals.ids.len()
        );
        assert!(unexplained.is_empty(), "{title}: sent again without a reason: {unexplained:?}");
        let mut seen = HashSet::new();
        let mut by_key: HashMap<&str, Vec<&str>> = HashMap::new();
        for a in arrivals.all.iter().filter(|a| seen.insert(&a.id)) {
            by_key.entry(&a.key).or_default().push(&a.id);
        }
        for (key, expected) in &truth.by_key {
            let expected: Vec<&str> =
                expected.iter().map(String::as_str).filter(|id| arrivals.ids.contains(*id)).collect();
            assert_eq!(
                by_key.get(key.as_str()).map(Vec::as_slice).unwrap_or_default(),
                expected,
                "{title}: order of {key}"
            );
        }
        Account { arrived: arrivals.ids.len(), duplicates, bound }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for file in [&self.unknown, &log_beside(&self.unknown)] {
            _ = std::fs::remove_file(file);
        }
    }
}

/// What it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    pub arrived: usize,
    pub duplicates: usize,
    /// The most duplicates that the faults explain.
    pub bound: usize,
}

fn is_settled(place: Option<&(ShardId, Position)>, settled: &Settled) -> bool {
    place.is_some_and(|(shard, position)| {
        settled.get(shard).is_some_and(|lane| *position < lane.cursor || lane.ahead.contains(position.0))
    })
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// Calls again while the database that was just started does not answer yet, or a kept connection turns out dead.
async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(call: impl Fn() -> F) -> T {
    const TRIES: u32 = 50;
    for _ in 0..TRIES {
        match call().await {
            Err(e) if e.kind.passes() => tokio::time::sleep(Duration::from_millis(100)).await,
            answer => return answer.unwrap(),
        }
    }
    panic!("the database does not answer");
}
