//! `latency`: from the return of COMMIT to the arrival at the sink, at a steady rate of single-row transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use outhaul_store::{InitPlan, StoreOptions};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::measure::{percentile, used, used_by_server};
use crate::raw::{self, Place};
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
struct Times {
    start: Instant,
    committed: Vec<AtomicU64>,
    arrived: Vec<AtomicU64>,
    count: AtomicUsize,
}

impl Times {
    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

async fn collect(times: Arc<Times>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut lines = BufReader::new(stream).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        if line.is_empty() {
            if lines.get_mut().write_u8(1).await.is_err() {
                return;
            }
            continue;
        }
        let at = times.now();
        if let Some(slot) =
            line.strip_prefix("b-").and_then(|n| n.parse::<usize>().ok()).and_then(|n| times.arrived.get(n))
            && slot.swap(at, Ordering::Relaxed) == 0
        {
            times.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Figures {
    p50: u64,
    p99: u64,
    max: u64,
    rate: f64,
    relay_cpu: f64,
    database_cpu: f64,
    rss_mib: f64,
}

async fn measure(place: &Place, arguments: &Arguments, seconds: u64, run: u64) -> Figures {
    const WARM_S: u64 = 2;
    let rows = (arguments.rate * (seconds + WARM_S)) as usize;
    let times = Arc::new(Times {
        start: Instant::now(),
        committed: (0..rows).map(|_| AtomicU64::new(0)).collect(),
        arrived: (0..rows).map(|_| AtomicU64::new(0)).collect(),
        count: AtomicUsize::new(0),
    });
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let collecting = times.clone();
    let accepting = tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(collect(collecting.clone(), stream));
        }
    });
    let relay = child::start(&place.url, Some(address), 1);
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
                    let payload = raw::payload(n, 300);
                    raw.execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('b-{n}', 'order-created', 'user-{}-{run}', '{payload}')", n % 5_000)).await;
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
    accepting.abort();
    let skip = (arguments.rate * WARM_S) as usize;
    let mut waits: Vec<u64> = times
        .committed
        .iter()
        .zip(&times.arrived)
        .skip(skip)
        .map(|(c, a)| a.load(Ordering::Relaxed).saturating_sub(c.load(Ordering::Relaxed)))
        .collect();
    waits.sort_unstable();
    Figures {
        p50: percentile(&waits, 50.0),
        p99: percentile(&waits, 99.0),
        max: waits.last().copied().unwrap_or(0),
        rate: rows as f64 / took,
        relay_cpu: (relay_after.cpu - relay_before.cpu).as_secs_f64() / span * 100.0,
        database_cpu: (database_after.cpu.saturating_sub(database_before.cpu)).as_secs_f64() / span * 100.0,
        rss_mib: relay_after.rss_kib as f64 / 1024.0,
    }
}

fn print(name: &str, f: &Figures, base: Option<&Figures>) {
    let ratio = base.map_or(String::new(), |b| format!("  P99 ratio {:.2}", f.p99 as f64 / b.p99.max(1) as f64));
    println!(
        "{name:<24} P50 {:>6.2} ms  P99 {:>6.2} ms  max {:>7.2} ms  {:>6.0}/s  relay CPU {:>4.1} %  RSS {:>5.1} MiB  database CPU {:>5.1} %{ratio}",
        f.p50 as f64 / 1e3,
        f.p99 as f64 / 1e3,
        f.max as f64 / 1e3,
        f.rate,
        f.relay_cpu,
        f.rss_mib,
        f.database_cpu
    );
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let mut place = raw::place(arguments.db).await;
    let shards = if arguments.db == Db::Sqlite { 1 } else { arguments.shards };
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan { shards, ..InitPlan::default() }).await.expect("tables");
    store.close().await;
    println!(
        "{:?}: {} single-row transactions a second for {} s, {shards} shard(s)",
        arguments.db, arguments.rate, arguments.seconds
    );
    let base = measure(&place, &arguments, arguments.seconds, 0).await;
    print("no history", &base, None);
    if arguments.history > 0 {
        raw::fill(place.raw.as_mut(), "outbox", "outhaul", arguments.history, 300).await;
        let relay = child::start(&place.url, None, 1);
        while place.raw.number("SELECT count(*) FROM outbox").await > 0 {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        child::stop(relay).await;
        let f = measure(&place, &arguments, arguments.seconds, 1).await;
        print(&format!("{} logged", arguments.history), &f, Some(&base));
    }
    if arguments.held_snapshot {
        let mut holder = raw::connect(&place.url).await;
        holder.execute(raw::hold_snapshot(arguments.db)).await;
        holder.number("SELECT count(*) FROM outbox_log").await;
        let f = measure(&place, &arguments, arguments.held_seconds.unwrap_or(arguments.seconds), 2).await;
        print("snapshot held", &f, Some(&base));
        holder.execute("ROLLBACK").await;
    }
    raw::remove(arguments.db, place).await;
}
