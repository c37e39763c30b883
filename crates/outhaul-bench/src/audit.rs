//! `audit`: what `outhaul audit ID` asks the database for, over a large log: near the message's time, and everywhere.

use std::sync::Arc;
use std::time::Instant;

use outhaul_core::chunk;
use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, Stop};
use outhaul_store::{Found, InitPlan, Store, StoreOptions};

use crate::Db;
use crate::drain::Counting;
use crate::measure::{now_us, percentile};
use crate::raw::{self, Raw};

/// Messages that are inserted, and then moved into the log by a relay, at a time.
const ROUND: usize = 250_000;
/// Over which time messages are spread. Less than what is pruned.
const SPAN_US: u64 = 6 * 24 * 3_600_000_000;
/// As `audit` looks around a time that it is given.
const AROUND_US: i64 = 3_600_000_000;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long, default_value = "mariadb")]
    db: Db,
    /// Messages of the log.
    #[arg(long, default_value_t = 2_000_000)]
    messages: usize,
    /// Messages that are looked for, of each kind.
    #[arg(long, default_value_t = 50)]
    searches: usize,
    /// Shards.
    #[arg(long, default_value_t = 8)]
    shards: u16,
    /// Bytes of a payload.
    #[arg(long, default_value_t = 300)]
    payload_bytes: usize,
}

/// Runs it.
pub async fn run(a: Arguments) {
    let mut place = raw::place(a.db).await;
    let shards = if a.db == Db::Sqlite { 1 } else { a.shards };
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan { shards, ..InitPlan::default() }).await.expect("tables");
    store.close().await;
    let (begun, first_us) = (Instant::now(), now_us() - SPAN_US);
    let times = Times { first_us, step_us: SPAN_US / a.messages.max(1) as u64 };
    for from in (0..a.messages).step_by(ROUND) {
        fill(a.db, place.raw.as_mut(), from..a.messages.min(from + ROUND), &times, a.payload_bytes).await;
        log(&place.url).await;
    }
    place.raw.execute(if a.db == Db::Postgres { "VACUUM ANALYZE" } else { "SELECT 1" }).await;
    let chunks = place.raw.number("SELECT count(*) FROM outbox_log").await;
    let bytes = async |raw: &mut dyn Raw, column: &str| {
        let length = if a.db == Db::Postgres { "octet_length" } else { "length" };
        raw.number(&format!("SELECT sum({length}({column})) FROM outbox_log")).await as f64 / a.messages as f64
    };
    println!(
        "{:?}, {shards} shard(s): {} messages with {} bytes of payload in {chunks} chunks, made in {:.0} s; {:.1} bytes a \
         message, its filter {:.2}",
        a.db,
        a.messages,
        a.payload_bytes,
        begun.elapsed().as_secs_f64(),
        bytes(place.raw.as_mut(), "chunk").await,
        bytes(place.raw.as_mut(), "id_filter").await
    );
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    let mut base = None;
    for (name, hint, there) in
        [("with its time", true, true), ("without a time", false, true), ("not there at all", false, false)]
    {
        let mut waits = Vec::new();
        let mut read = 0;
        for n in 0..a.searches {
            // Spread over all of the log, in no order.
            let message = n.wrapping_mul(2_654_435_761) % a.messages;
            let id = if there { id_of(message) } else { format!("absent-{n}") };
            let at = times.of(message);
            let one = Instant::now();
            let (found, chunks) = search(&store, &id, hint.then_some((at - AROUND_US, at + AROUND_US))).await;
            waits.push(u64::try_from(one.elapsed().as_micros()).unwrap_or(u64::MAX));
            assert_eq!(found, usize::from(there), "{id}");
            read += chunks;
        }
        waits.sort_unstable();
        let p50 = percentile(&waits, 50.0);
        let ratio = p50 as f64 / *base.get_or_insert(p50.max(1)) as f64;
        println!(
            "{name:<18} P50 {:>8.1} ms  P99 {:>8.1} ms  max {:>8.1} ms  {:.2} chunks unpacked  {ratio:.1} x",
            p50 as f64 / 1e3,
            percentile(&waits, 99.0) as f64 / 1e3,
            waits.last().copied().unwrap_or_default() as f64 / 1e3,
            read as f64 / a.searches.max(1) as f64
        );
    }
    println!("every one was found");
    store.close().await;
    raw::remove(a.db, place).await;
}

/// When messages were created.
struct Times {
    first_us: u64,
    step_us: u64,
}

impl Times {
    fn of(&self, message: usize) -> i64 {
        i64::try_from(self.first_us + self.step_us * message as u64).unwrap_or(i64::MAX)
    }
}

fn id_of(message: usize) -> String {
    // Random to look at, as the ids of applications are.
    let mixed = (message as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{:08x}-{:04x}-4{:03x}-8000-{message:012x}", mixed >> 32, mixed >> 16 & 0xffff, mixed & 0xfff)
}

async fn fill(db: Db, raw: &mut dyn Raw, messages: std::ops::Range<usize>, times: &Times, payload_bytes: usize) {
    const STEP: usize = 500;
    for from in messages.clone().step_by(STEP) {
        let value = |n: usize| {
            let (us, payload) = (times.of(n), raw::payload(n, payload_bytes));
            let at = match db {
                Db::Sqlite => us.to_string(),
                Db::Postgres => format!("to_timestamp({us} / 1000000.0)"),
                Db::Mariadb | Db::Mysql => {
                    format!("TIMESTAMP'1970-01-01 00:00:00' + INTERVAL {us} MICROSECOND")
                }
            };
            format!("('{}', 'order-created', 'user-{}', '{payload}', {at})", id_of(n), n % 5_000)
        };
        let values: Vec<String> = (from..messages.end.min(from + STEP)).map(value).collect();
        let columns = "id, topic, msg_key, payload, created_at";
        raw.execute(&format!("INSERT INTO outbox ({columns}) VALUES {}", values.join(","))).await;
    }
}

/// A relay moves what is in the table into the log.
async fn log(url: &str) {
    let store = outhaul_store::open(StoreOptions::new(url)).await.expect("a store");
    let sink = Arc::new(Counting::default());
    let outbox = Outbox {
        name: "bench".into(),
        store: store.clone(),
        destinations: vec![Destination { name: "sink".into(), sink, limits: LaneLimits::default(), require_ack: None }],
        routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
        settings: Settings::default(),
        owner: format!("bench-{}-{}", std::process::id(), now_us()),
        until_empty: true,
        shutdown_limit_ms: 60_000,
        maintenance: None,
        transactions: None,
        watch: None,
    };
    outhaul_relay::run(vec![outbox], Stop::new()).await.expect("a relay that ends well");
    store.close().await;
}

/// As `audit` does: where it may be, what is there of it, and what became of it. How many were found, and how many
/// chunks were unpacked.
async fn search(store: &Arc<dyn Store>, id: &str, around_us: Option<(i64, i64)>) -> (usize, usize) {
    let (mut found, mut chunks) = (0, 0);
    for place in store.find(id, around_us).await.expect("an answer") {
        let Found::Logged { chunk: stored } = place else { continue };
        chunks += 1;
        let names = chunk::destination_names(stored.codec, &stored.bytes).expect("names");
        let messages = chunk::decode(stored.codec, &stored.bytes, stored.shard, stored.base, &names).expect("a chunk");
        for m in messages.iter().filter(|m| m.id == id) {
            found += 1;
            let receipts = store.receipts_of(m.shard, m.position).await.expect("receipts");
            assert!(!receipts.is_empty(), "it was delivered");
            store.parked_of(m.shard, m.position).await.expect("what is parked of it");
        }
    }
    if found == 0 {
        // What `audit` asks besides where the log does not have it.
        store.find_transactions(id).await.expect("transactions");
    }
    (found, chunks)
}
