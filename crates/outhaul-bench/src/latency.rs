//! `latency`: from the return of COMMIT to the arrival at the sink, at a steady rate of single-row transactions.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outhaul_store::{InitPlan, StoreOptions};
use tokio::net::TcpListener;
use tokio::process::Child;
use tokio::task::{JoinHandle, JoinSet};

use crate::drain::article_table;
use crate::measure::{now_us, percentile, used, used_by_server};
use crate::raw::{self, Place};
use crate::rocketmq::{self, Broker, Topic};
use crate::{Db, child};

const WRITERS: u64 = 8;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long)]
    db: Db,
    /// Transactions a second, one row each.
    #[arg(long, default_value_t = 1_400)]
    rate: u64,
    /// Seconds measured, after two of warming up.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Shards.
    #[arg(long, default_value_t = 1)]
    shards: u16,
    /// Into a topic of this broker; a consumer of this program reads it.
    #[arg(long)]
    sink: Option<Broker>,
    /// Wait between two polls while rows come, microseconds. Default: as the relay has it.
    #[arg(long)]
    poll_busy_us: Option<u64>,
    /// Beside it a relay made by hand, one batch message a poll: polling every 200 ms, and every 2.5 ms.
    #[arg(long, requires = "sink")]
    hand_made: bool,
    /// Messages logged before; the same is measured again with them, as a ratio.
    #[arg(long, default_value_t = 0)]
    history: usize,
    /// Measure once more while another session holds a snapshot.
    #[arg(long)]
    held_snapshot: bool,
    /// Seconds measured with the snapshot held. Default: as without it.
    #[arg(long, requires = "held_snapshot")]
    held_seconds: Option<u64>,
}

/// Times in microseconds since the start: of COMMIT and of arrival, by number of the row.
pub struct Times {
    start: Instant,
    /// The same on the clock that other processes see, microseconds since 1970.
    start_us: u64,
    committed: Vec<AtomicU64>,
    arrived: Vec<AtomicU64>,
    count: AtomicUsize,
}

impl Times {
    fn new(rows: usize) -> Self {
        let zeroes = || (0..rows).map(|_| AtomicU64::new(0)).collect();
        Self {
            start: Instant::now(),
            start_us: now_us(),
            committed: zeroes(),
            arrived: zeroes(),
            count: AtomicUsize::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// A message has arrived.
    pub fn arrived(&self, id: &str, at: u64) {
        if let Some(slot) = number(id).and_then(|n| self.arrived.get(n))
            && slot.swap(at, Ordering::Relaxed) == 0
        {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A message has arrived now.
    pub fn arrives(&self, id: &str) {
        self.arrived(id, self.now());
    }

    /// Sorted waits from COMMIT to what `until` says of a row, without the first rows.
    fn waits(&self, skip: usize, until: impl Fn(usize) -> u64) -> Vec<u64> {
        let committed = self.committed.iter().enumerate().skip(skip);
        let mut waits: Vec<u64> =
            committed.map(|(n, at)| until(n).saturating_sub(at.load(Ordering::Relaxed))).collect();
        waits.sort_unstable();
        waits
    }
}

/// Number of a row, from its id.
pub fn number(id: &str) -> Option<usize> {
    id.strip_prefix("b-")?.parse().ok()
}

/// Key of a row.
pub fn key(n: usize) -> String {
    format!("user-{}", n % 5_000)
}

struct Figures {
    p50: u64,
    p99: u64,
    max: u64,
    rate: f64,
    relay_cpu: f64,
    database_cpu: f64,
    rss_mib: f64,
    /// P50 and P99 from COMMIT to the acknowledgement, where that is another moment.
    acknowledged: Option<(u64, u64)>,
}

/// Where the rows go.
enum Target {
    Collector(JoinHandle<()>),
    /// `acks`: where the relay leaves the times of its acknowledgements. None: one that notes none.
    RocketMq {
        topic: Topic,
        readers: JoinSet<()>,
        acks: Option<PathBuf>,
    },
}

/// Which relay is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relay {
    Outhaul,
    /// Made by hand, polling so often, microseconds.
    HandMade(u64),
}

impl Relay {
    /// The statement of a row. The hand-made one has a table of its own, without a key.
    fn insert(self, n: usize, run: u64) -> String {
        let payload = raw::payload(n, 300);
        match self {
            Self::Outhaul => format!(
                "INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('b-{n}', 'order-created', 'user-{}-{run}', '{payload}')",
                n % 5_000
            ),
            Self::HandMade(_) => format!(
                "INSERT INTO article_outbox (id, topic, payload) VALUES ('b-{n}', 'order-created', '{payload}')"
            ),
        }
    }
}

impl Target {
    async fn begin(arguments: &Arguments, relay: Relay, url: &str, times: &Arc<Times>) -> (Self, Child) {
        let wait = arguments.poll_busy_us;
        let Some(broker) = arguments.sink else {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let times = times.clone();
            let accepting = tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let times = times.clone();
                    tokio::spawn(child::collect(stream, async move |id| times.arrives(&id)));
                }
            });
            return (Self::Collector(accepting), child::start(url, Some(address), 1, wait));
        };
        let namesrv = broker.namesrv();
        let topic = Topic::make(&namesrv).await;
        let readers = rocketmq::latency::read(&topic, times).await;
        let acks = std::env::temp_dir().join(format!("outhaul-bench-{}-acks", std::process::id()));
        let (relay, acks) = match relay {
            Relay::Outhaul => (child::start_to_rocketmq(url, (&namesrv, &topic.prefix), &acks, wait), Some(acks)),
            Relay::HandMade(wait_us) => (child::start_hand_made(url, (&namesrv, &topic.name), wait_us), None),
        };
        (Self::RocketMq { topic, readers, acks }, relay)
    }

    /// P50 and P99 of the acknowledgements, if they are another moment.
    async fn end(self, times: &Times, skip: usize) -> Option<(u64, u64)> {
        match self {
            Self::Collector(accepting) => {
                accepting.abort();
                None
            }
            Self::RocketMq { topic, mut readers, acks } => {
                readers.shutdown().await;
                topic.delete().await;
                let acks = acks?;
                let text = std::fs::read_to_string(&acks).expect("the times of the acknowledgements");
                let _ = std::fs::remove_file(&acks);
                let lines = text.lines().filter_map(|line| line.split_once(' '));
                let of: HashMap<usize, u64> =
                    lines.filter_map(|(id, at)| Some((number(id)?, at.parse().ok()?))).collect();
                let waits = times.waits(skip, |n| of.get(&n).map_or(0, |at| at.saturating_sub(times.start_us)));
                Some((percentile(&waits, 50.0), percentile(&waits, 99.0)))
            }
        }
    }
}

async fn measure(place: &Place, arguments: &Arguments, of: Relay, seconds: u64, run: u64) -> Figures {
    const WARM_S: u64 = 2;
    let rows = (arguments.rate * (seconds + WARM_S)) as usize;
    let times = Arc::new(Times::new(rows));
    let (target, relay) = Target::begin(arguments, of, &place.url, &times).await;
    let pid = relay.id().unwrap_or(0);
    // The relay owns its shards once the first row has arrived; that row is number 0.
    let port = raw::port(&place.url);
    let begin = Instant::now();
    let tasks: Vec<_> = (0..WRITERS)
        .map(|w| {
            let (url, times, rate) = (place.url.clone(), times.clone(), arguments.rate);
            tokio::spawn(async move {
                let mut raw = raw::connect(&url).await;
                for n in (w as usize..times.committed.len()).step_by(WRITERS as usize) {
                    let due = begin + Duration::from_micros(n as u64 * 1_000_000 / rate);
                    tokio::time::sleep_until(due.into()).await;
                    raw.execute(&of.insert(n, run)).await;
                    times.committed[n].store(times.now(), Ordering::Relaxed);
                }
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(WARM_S)).await;
    let (relay_before, database_before, measured) = (used(pid), used_by_server(port), Instant::now());
    for task in tasks {
        task.await.expect("a writer");
    }
    let (relay_after, database_after, span) = (used(pid), used_by_server(port), measured.elapsed().as_secs_f64());
    let took = begin.elapsed().as_secs_f64();
    let limit = Instant::now() + Duration::from_secs(30);
    while times.count.load(Ordering::Relaxed) < rows && Instant::now() < limit {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(times.count.load(Ordering::Relaxed), rows, "every row arrives");
    child::stop(relay).await;
    let skip = (arguments.rate * WARM_S) as usize;
    let acknowledged = target.end(&times, skip).await;
    let waits = times.waits(skip, |n| times.arrived[n].load(Ordering::Relaxed));
    Figures {
        p50: percentile(&waits, 50.0),
        p99: percentile(&waits, 99.0),
        max: waits.last().copied().unwrap_or(0),
        rate: rows as f64 / took,
        relay_cpu: (relay_after.cpu - relay_before.cpu).as_secs_f64() / span * 100.0,
        database_cpu: (database_after.cpu.saturating_sub(database_before.cpu)).as_secs_f64() / span * 100.0,
        rss_mib: relay_after.rss_kib as f64 / 1024.0,
        acknowledged,
    }
}

fn print(name: &str, f: &Figures, base: Option<&Figures>) {
    let ratio = base.map_or(String::new(), |b| format!("  P99 ratio {:.2}", f.p99 as f64 / b.p99.max(1) as f64));
    println!(
        "{name:<24} P50 {:>6.2} ms  P99 {:>6.2} ms  max {:>7.2} ms  {:>6.0}/s  relay CPU {:>4.1} % = {:>3.0} us an event  RSS {:>5.1} MiB  database CPU {:>5.1} %{ratio}",
        f.p50 as f64 / 1e3,
        f.p99 as f64 / 1e3,
        f.max as f64 / 1e3,
        f.rate,
        f.relay_cpu,
        f.relay_cpu * 1e4 / f.rate,
        f.rss_mib,
        f.database_cpu
    );
    if let Some((p50, p99)) = f.acknowledged {
        println!(
            "{:<24} P50 {:>6.2} ms  P99 {:>6.2} ms  to the acknowledgement",
            "",
            p50 as f64 / 1e3,
            p99 as f64 / 1e3
        );
    }
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let mut place = raw::place(arguments.db).await;
    let shards = if arguments.db == Db::Sqlite { 1 } else { arguments.shards };
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan { shards, ..InitPlan::default() }).await.expect("tables");
    store.close().await;
    println!(
        "{:?}{}: {} single-row transactions a second for {} s, {shards} shard(s)",
        arguments.db,
        arguments.sink.map_or_else(String::new, |broker| format!(" to a consumer of {}", broker.name())),
        arguments.rate,
        arguments.seconds
    );
    let base = measure(&place, &arguments, Relay::Outhaul, arguments.seconds, 0).await;
    print(if arguments.hand_made { "Outhaul" } else { "no history" }, &base, None);
    if arguments.hand_made {
        for wait_us in [200_000, 2_500] {
            place.raw.execute(article_table(arguments.db)).await;
            let f = measure(&place, &arguments, Relay::HandMade(wait_us), arguments.seconds, 3).await;
            print(&format!("hand-made, every {} ms", wait_us as f64 / 1e3), &f, Some(&base));
        }
    }
    if arguments.history > 0 {
        raw::fill(place.raw.as_mut(), "outbox", "outhaul", arguments.history, 300).await;
        let relay = child::start(&place.url, None, 1, None);
        while place.raw.number("SELECT count(*) FROM outbox").await > 0 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        child::stop(relay).await;
        let f = measure(&place, &arguments, Relay::Outhaul, arguments.seconds, 1).await;
        print(&format!("{} logged", arguments.history), &f, Some(&base));
    }
    if arguments.held_snapshot {
        let mut holder = raw::connect(&place.url).await;
        holder.execute(raw::hold_snapshot(arguments.db)).await;
        holder.number("SELECT count(*) FROM outbox_log").await;
        let seconds = arguments.held_seconds.unwrap_or(arguments.seconds);
        let f = measure(&place, &arguments, Relay::Outhaul, seconds, 2).await;
        print("snapshot held", &f, Some(&base));
        holder.execute("ROLLBACK").await;
    }
    raw::remove(arguments.db, place).await;
}
