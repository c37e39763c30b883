//! `parked`: a million messages that were refused: what it costs to have them, and how soon an operator's act takes effect.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outhaul_core::act::{Selector, Verb};
use outhaul_core::message::ShardId;
use outhaul_store::{InitPlan, NewAct, ParkedQuery, Store, StoreOptions};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::measure::{peak_rss_kib, used};
use crate::raw::{self, Raw};
use crate::{Db, child};

/// Codes that the destination gives as its reasons.
const REASONS: [&str; 4] = ["OUT-2001", "OUT-2002", "OUT-2003", "OUT-2004"];
/// Messages of a key: one is refused, the others wait behind it.
const PER_KEY: usize = 2;
/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(900);

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long, default_value = "mariadb")]
    db: Db,
    /// Messages that get parked.
    #[arg(long, default_value_t = 1_000_000)]
    count: usize,
    /// Shards.
    #[arg(long, default_value_t = 8)]
    shards: u16,
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let mut place = raw::place(arguments.db).await;
    let shards = if arguments.db == Db::Sqlite { 1 } else { arguments.shards };
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan { shards, ..InitPlan::default() }).await.expect("tables");
    let (address, mut arrivals) = collector().await;
    println!("{:?}, {shards} shard(s), {} messages, {PER_KEY} of each key", arguments.db, arguments.count);

    let relay = child::start(&place.url, Some(address), 1, None);
    first_delivery(place.raw.as_mut(), &mut arrivals, "fresh-0").await;
    println!("relay with none parked              RSS {:>7.1} MiB", rss(relay.id()));
    child::stop(relay).await;

    fill(place.raw.as_mut(), arguments.count).await;
    let begin = Instant::now();
    let relay = child::start_refusing(&place.url);
    until(place.raw.as_mut(), "SELECT count(*) FROM outbox", 0).await;
    let took = begin.elapsed().as_secs_f64();
    let peak = relay.id().map(peak_rss_kib).unwrap_or_default() as f64 / 1024.0;
    child::stop(relay).await;
    let parked = place.raw.number("SELECT count(*) FROM outbox_parked").await;
    assert_eq!(parked, arguments.count as u64, "every message is parked");
    println!(
        "refused and parked                  {took:>7.1} s = {:.0}/s, relay at most {peak:.1} MiB",
        parked as f64 / took
    );

    let begin = Instant::now();
    let relay = child::start(&place.url, Some(address), 1, None);
    first_delivery(place.raw.as_mut(), &mut arrivals, "fresh-1").await;
    println!(
        "start with them, to the first delivery {:>4.2} s, RSS {:>7.1} MiB",
        begin.elapsed().as_secs_f64(),
        rss(relay.id())
    );
    lists(&*store, place.raw.as_mut()).await;

    // Of the million, the two of one key; then a quarter of those refused, with what waits behind them.
    let all: Vec<ShardId> = (0..shards).map(ShardId).collect();
    let of_key = Selector { key: Some(key(arguments.count / 2)), ..Selector::default() };
    redrive(&*store, &mut arrivals, "key", of_key, &all, PER_KEY).await;
    until(place.raw.as_mut(), "SELECT count(*) FROM outbox_parked", (arguments.count - PER_KEY) as u64).await;
    let reason = REASONS[1];
    let query = ParkedQuery { code: Some(reason.to_owned()), ..ParkedQuery::default() };
    let dead: u64 = store.count_parked(&query).await.expect("counts").iter().map(|c| c.count).sum();
    let of_reason = Selector { code: Some(reason.to_owned()), ..Selector::default() };
    redrive(&*store, &mut arrivals, "reason", of_reason, &all, dead as usize * PER_KEY).await;
    println!("relay afterwards                    RSS {:>7.1} MiB", rss(relay.id()));
    child::stop(relay).await;
    store.close().await;
    raw::remove(arguments.db, place).await;
}

/// Why a message is refused, from its id.
pub fn reason_of(id: &str) -> &'static str {
    let n: usize = id.trim_start_matches("p-").parse().unwrap_or(0);
    REASONS[n / PER_KEY % REASONS.len()]
}

fn key(n: usize) -> String {
    format!("user-{}", n / PER_KEY)
}

fn rss(pid: Option<u32>) -> f64 {
    pid.map(used).unwrap_or_default().rss_kib as f64 / 1024.0
}

async fn fill(raw: &mut dyn Raw, count: usize) {
    const STEP: usize = 1_000;
    for from in (0..count).step_by(STEP) {
        let values: Vec<String> = (from..(from + STEP).min(count))
            .map(|n| format!("('p-{n}','order-created','{}','{}')", key(n), raw::payload(n, 300)))
            .collect();
        raw.execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {}", values.join(","))).await;
    }
}

async fn until(raw: &mut dyn Raw, sql: &str, wanted: u64) {
    let begin = Instant::now();
    while raw.number(sql).await != wanted {
        assert!(begin.elapsed() < LIMIT, "{sql}: not {wanted} in time");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Commits a row and waits for its arrival.
async fn first_delivery(raw: &mut dyn Raw, arrivals: &mut mpsc::Receiver<String>, id: &str) {
    raw.execute(&format!("INSERT INTO outbox (id, topic, payload) VALUES ('{id}', 'order-created', '1')")).await;
    while next(arrivals).await != id {}
}

async fn next(arrivals: &mut mpsc::Receiver<String>) -> String {
    tokio::time::timeout(LIMIT, arrivals.recv()).await.expect("a message in time").expect("a collector")
}

async fn lists(store: &dyn Store, raw: &mut dyn Raw) {
    let begin = Instant::now();
    let page = store.list_parked(&ParkedQuery::default(), 100).await.expect("a list");
    println!("list, the first {}                 {:>7.1} ms", page.len(), ms(begin));
    let begin = Instant::now();
    let of_key = ParkedQuery { key: Some(key(10)), ..ParkedQuery::default() };
    let found = store.list_parked(&of_key, 100).await.expect("a list");
    println!("list, the {} of a key                {:>7.1} ms", found.len(), ms(begin));
    let begin = Instant::now();
    let counts = store.count_parked(&ParkedQuery::default()).await.expect("counts");
    let counted = ms(begin);
    let begin = Instant::now();
    raw.number("SELECT count(*) FROM outbox_parked").await;
    let floor = ms(begin);
    println!(
        "counts by shard, reason, state ({}) {counted:>7.1} ms; floor, SELECT count(*) {floor:.1} ms: {:.1} x",
        counts.len(),
        counted / floor
    );
}

fn ms(begin: Instant) -> f64 {
    begin.elapsed().as_secs_f64() * 1e3
}

async fn redrive(
    store: &dyn Store,
    arrivals: &mut mpsc::Receiver<String>,
    by: &str,
    selector: Selector,
    shards: &[ShardId],
    count: usize,
) {
    let begin = Instant::now();
    let act = NewAct {
        verb: Verb::Redrive,
        destination: Some("sink-0".into()),
        shards: shards.to_vec(),
        selector,
        ranges: BTreeMap::new(),
        message_id: None,
        edit: None,
        actor: "bench".into(),
        why: "measured".into(),
    };
    store.order(&act).await.expect("an act");
    let ordered = ms(begin);
    next(arrivals).await;
    let first = ms(begin);
    for _ in 1..count {
        next(arrivals).await;
    }
    println!(
        "redrive by {by:<7} {count:>8} messages: ordered in {ordered:.1} ms, first delivery after {first:.0} ms, the last after {:.1} s = {:.0}/s",
        begin.elapsed().as_secs_f64(),
        count as f64 / begin.elapsed().as_secs_f64()
    );
}

/// Where the relay reports to, and what it reported.
async fn collector() -> (std::net::SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (send, receive) = mpsc::channel(64);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let send = send.clone();
            // Nobody listens once the bench is at its end.
            tokio::spawn(child::collect(stream, async move |id| drop(send.send(id).await)));
        }
    });
    (address, receive)
}
