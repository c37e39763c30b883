//! `status-table`: what polls of a table with a status column cost with the right index, with the wrong one and with
//! none, what writers feel of the archiver, and how fast a backlog goes out, beside a hand-made relay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::message::ShardId;
use outhaul_core::route::{Route, Routes};
use outhaul_core::runs::Run;
use outhaul_relay::{Destination, Outbox, Stop};
use outhaul_store::{Archive, InitPlan, PruneRequest, ReadPurpose, ReadRequest, StatusTable, Store, StoreOptions};

use crate::Db;
use crate::drain::Counting;
use crate::measure::percentile;
use crate::raw::{self, Raw};

/// Rows of a poll of the hand-made relay.
const BATCH: u32 = 200;
/// Rows that are inserted by values before the table doubles itself.
const SEED_ROWS: usize = 10_000;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long, default_value = "mariadb")]
    db: Db,
    /// Rows that were sent, within the last six days.
    #[arg(long, default_value_t = 5_000_000)]
    sent: usize,
    /// Rows that wait.
    #[arg(long, default_value_t = 1_000)]
    pending: usize,
    /// Rows of the backlog that is drained.
    #[arg(long, default_value_t = 20_000)]
    backlog: usize,
    /// Longest time for the polls of one index, and of each round of writers, seconds.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

/// Runs it.
pub async fn run(a: Arguments) {
    let mut place = raw::place(a.db).await;
    let begun = Instant::now();
    fill(a.db, place.raw.as_mut(), a.sent, a.pending).await;
    println!(
        "{:?}: {} rows sent, {} waiting, filled in {:.0} s; polls of {BATCH} rows, by created_at",
        a.db,
        a.sent,
        a.pending,
        begun.elapsed().as_secs_f64()
    );
    let mut first = None;
    for columns in ["status, created_at", "created_at, status", ""] {
        if !columns.is_empty() {
            place.raw.execute(&format!("CREATE INDEX waiting ON outbox_message ({columns})")).await;
        }
        place.raw.execute(analyze(a.db)).await;
        let (mut waits, examined) = polls(a.db, place.raw.as_mut(), Duration::from_secs(a.seconds)).await;
        waits.sort_unstable();
        let (p50, p99) = (percentile(&waits, 50.0), percentile(&waits, 99.0));
        let ratio = first.map_or(1.0, |base: u64| p50 as f64 / base.max(1) as f64);
        first = first.or(Some(p50));
        let index = if columns.is_empty() { "none".to_owned() } else { format!("({columns})") };
        let examined = examined.map_or_else(|| "-".to_owned(), |n| n.to_string());
        println!(
            "index {index:<22} P50 {:>9.2} ms  P99 {:>9.2} ms  {examined:>9} rows examined a poll  {ratio:>7.1} x",
            p50 as f64 / 1e3,
            p99 as f64 / 1e3
        );
        if !columns.is_empty() {
            place.raw.execute(drop_index(a.db)).await;
        }
    }
    place.raw.execute("CREATE INDEX waiting ON outbox_message (status, created_at)").await;
    place.raw.execute(analyze(a.db)).await;
    ours(&place.url, Duration::from_secs(a.seconds)).await;
    drains(a.db, &place.url, place.raw.as_mut(), a.backlog).await;
    archiver(&place.url, Duration::from_secs(a.seconds)).await;
    raw::remove(a.db, place).await;
}

fn options(url: &str) -> StoreOptions {
    let archive = Archive { table: "outbox_archive".into(), after: Duration::from_secs(24 * 3_600), purge_after: None };
    let table = StatusTable {
        table: "outbox_message".into(),
        interval: Some(Duration::from_millis(1)), // no pauses between polls
        archive: Some(archive),
        ..StatusTable::default()
    };
    StoreOptions { outbox_table: "outbox_native".into(), status: Some(table), ..StoreOptions::new(url) }
}

const fn analyze(db: Db) -> &'static str {
    match db {
        Db::Sqlite => "ANALYZE",
        Db::Postgres => "VACUUM ANALYZE outbox_message",
        Db::Mariadb | Db::Mysql => "ANALYZE TABLE outbox_message",
    }
}

const fn drop_index(db: Db) -> &'static str {
    match db {
        Db::Sqlite | Db::Postgres => "DROP INDEX waiting",
        Db::Mariadb | Db::Mysql => "DROP INDEX waiting ON outbox_message",
    }
}

async fn fill(db: Db, raw: &mut dyn Raw, sent: usize, pending: usize) {
    let (id, columns, ago) = match db {
        Db::Sqlite => (
            "INTEGER PRIMARY KEY AUTOINCREMENT",
            "created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')), sent_at TEXT",
            "strftime('%Y-%m-%d %H:%M:%f', 'now', '-' || (600 + abs(random()) % 518400) || ' seconds')",
        ),
        Db::Postgres => (
            "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            "created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), sent_at TIMESTAMPTZ",
            "now() - interval '10 minutes' - random() * interval '6 days'",
        ),
        Db::Mariadb | Db::Mysql => (
            "BIGINT AUTO_INCREMENT PRIMARY KEY",
            "created_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), sent_at DATETIME(6) NULL",
            "UTC_TIMESTAMP(6) - INTERVAL (600 + FLOOR(RAND() * 518400)) SECOND",
        ),
    };
    raw.execute(&format!(
        "CREATE TABLE outbox_message (id {id}, topic VARCHAR(255) NOT NULL, payload TEXT, \
         status VARCHAR(16) NOT NULL DEFAULT 'PENDING', {columns})"
    ))
    .await;
    let mut rows = 0;
    while rows < sent.min(SEED_ROWS) {
        let n = 500.min(sent - rows);
        let value = |n| format!("('order-created', '{}', 'SENT', {ago})", raw::payload(n, 300));
        let values: Vec<String> = (rows..rows + n).map(value).collect();
        raw.execute(&format!(
            "INSERT INTO outbox_message (topic, payload, status, created_at) VALUES {}",
            values.join(",")
        ))
        .await;
        rows += n;
    }
    while rows < sent {
        let n = rows.min(sent - rows).min(250_000);
        raw.execute(&format!(
            "INSERT INTO outbox_message (topic, payload, status, created_at) \
             SELECT topic, payload, status, {ago} FROM outbox_message LIMIT {n}"
        ))
        .await;
        rows += n;
    }
    waiting(raw, pending).await;
}

/// Rows that wait.
async fn waiting(raw: &mut dyn Raw, rows: usize) {
    for from in (0..rows).step_by(500) {
        let value = |n| format!("('order-created', '{}')", raw::payload(n, 300));
        let values: Vec<String> = (from..rows.min(from + 500)).map(value).collect();
        raw.execute(&format!("INSERT INTO outbox_message (topic, payload) VALUES {}", values.join(","))).await;
    }
}

/// How long polls of a hand-made relay take, microseconds, and how many rows one examines, where the server tells.
async fn polls(db: Db, raw: &mut dyn Raw, limit: Duration) -> (Vec<u64>, Option<u64>) {
    let poll = format!(
        "SELECT payload, topic, id FROM outbox_message WHERE status = 'PENDING' ORDER BY created_at LIMIT {BATCH}"
    );
    let mut examined = None;
    if matches!(db, Db::Mariadb | Db::Mysql) {
        raw.execute("FLUSH STATUS").await;
        raw.texts(&poll).await;
        let table = if db == Db::Mariadb { "information_schema" } else { "performance_schema" };
        let sum = format!(
            "SELECT CAST(SUM(VARIABLE_VALUE) AS UNSIGNED) FROM {table}.session_status WHERE VARIABLE_NAME IN \
             ('Handler_read_first', 'Handler_read_key', 'Handler_read_next', 'Handler_read_prev', 'Handler_read_rnd', 'Handler_read_rnd_next')"
        );
        examined = Some(raw.number(&sum).await);
    }
    let (begun, mut waits) = (Instant::now(), Vec::new());
    while waits.len() < 500 && (waits.len() < 3 || begun.elapsed() < limit) {
        let one = Instant::now();
        raw.texts(&poll).await;
        waits.push(micros(one.elapsed()));
    }
    (waits, examined)
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// Polls of the store: what waits, read for the first time.
async fn ours(url: &str, limit: Duration) {
    let store = outhaul_store::open(options(url)).await.expect("a store");
    store.init(&InitPlan::default()).await.expect("tables");
    store.close().await;
    let (begun, mut waits) = (Instant::now(), Vec::new());
    while waits.len() < 100 && begun.elapsed() < limit {
        let store = outhaul_store::open(options(url)).await.expect("a store");
        let request = |purpose, first| ReadRequest {
            purpose,
            shards: vec![ShardId(0)],
            ranges: vec![Run { first, last: u64::MAX }],
            limit: BATCH,
            max_bytes: 8 << 20,
        };
        // The first opens the connection and looks at the columns.
        let first = store.read(&request(ReadPurpose::Poll, 0)).await.expect("a poll").rows;
        let behind = first.last().map_or(0, |row| row.seq.0) + 1;
        let one = Instant::now();
        let rows = store.read(&request(ReadPurpose::Poll, behind)).await.expect("a poll").rows;
        waits.push(micros(one.elapsed()));
        assert!(!rows.is_empty(), "there is a second batch");
        store.close().await;
    }
    waits.sort_unstable();
    println!(
        "Outhaul, the next {BATCH}          P50 {:>9.2} ms  P99 {:>9.2} ms",
        percentile(&waits, 50.0) as f64 / 1e3,
        percentile(&waits, 99.0) as f64 / 1e3
    );
}

/// The same backlog by a hand-made relay, with its pause and without, and by Outhaul: each until nothing waits any more.
/// What is sent is counted, and nothing else.
async fn drains(db: Db, url: &str, raw: &mut dyn Raw, rows: usize) {
    const WAITING: &str = "SELECT count(*) FROM outbox_message WHERE status = 'PENDING'";
    let mut base = None;
    for (name, pause) in [
        ("hand-made, 200 ms between polls", Some(Some(Duration::from_millis(200)))),
        ("hand-made, no pause", Some(None)),
        ("Outhaul", None),
    ] {
        // What earlier parts have left waiting counts as well.
        let left = raw.number(WAITING).await as usize;
        waiting(raw, rows.saturating_sub(left)).await;
        raw.execute(analyze(db)).await;
        let rows = raw.number(WAITING).await;
        let begun = Instant::now();
        match pause {
            Some(pause) => hand_made(db, raw, pause).await,
            None => by_outhaul(url, rows).await,
        }
        let took = begun.elapsed().as_secs_f64();
        assert_eq!(raw.number(WAITING).await, 0, "{name}: everything is marked");
        let rate = rows as f64 / took;
        let ratio = rate / *base.get_or_insert(rate);
        println!("drain by {name:<32} {rows} rows in {took:>7.2} s = {rate:>7.0}/s  {ratio:.1} x");
    }
}

/// 200 rows by created_at, hand them over, UPDATE by ids, pause; until nothing waits.
async fn hand_made(db: Db, raw: &mut dyn Raw, pause: Option<Duration>) {
    let now = match db {
        Db::Sqlite => "strftime('%Y-%m-%d %H:%M:%f', 'now')",
        Db::Postgres => "now()",
        Db::Mariadb | Db::Mysql => "UTC_TIMESTAMP(6)",
    };
    let id = if db == Db::Sqlite || db == Db::Postgres { "CAST(id AS TEXT)" } else { "CAST(id AS CHAR)" };
    let poll = format!(
        "SELECT {id}, topic, payload FROM outbox_message WHERE status = 'PENDING' ORDER BY created_at LIMIT {BATCH}"
    );
    loop {
        let ids = raw.texts(&poll).await;
        if ids.is_empty() {
            return;
        }
        let list = ids.join(",");
        raw.execute(&format!("UPDATE outbox_message SET status = 'SENT', sent_at = {now} WHERE id IN ({list})")).await;
        if let Some(pause) = pause {
            tokio::time::sleep(pause).await;
        }
    }
}

async fn by_outhaul(url: &str, rows: u64) {
    let mut options = options(url);
    options.status = options.status.map(|table| StatusTable { interval: None, archive: None, ..table });
    let store = outhaul_store::open(options).await.expect("a store");
    let sink = Arc::new(Counting::default());
    let outbox = Outbox {
        name: "bench".into(),
        store: store.clone(),
        destinations: vec![Destination { name: "sink".into(), sink, limits: LaneLimits::default(), require_ack: None }],
        routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
        settings: Settings::default(),
        owner: format!("bench-{}", std::process::id()),
        until_empty: true,
        shutdown_limit_ms: 60_000,
        maintenance: None,
        transactions: None,
        watch: None,
    };
    let report = outhaul_relay::run(vec![outbox], Stop::new()).await.expect("a relay that ends well");
    store.close().await;
    assert_eq!(report.outboxes[0].1[0].delivered, rows, "every row once");
}

/// What inserting one row takes, with the archiver at work and without.
async fn archiver(url: &str, span: Duration) {
    let mut base = None;
    for (name, archives) in [("without the archiver", false), ("with the archiver", true)] {
        let store = outhaul_store::open(options(url)).await.expect("a store");
        let work = archives.then(|| tokio::spawn(archive(store.clone(), span)));
        let mut writer = raw::connect(url).await;
        let (begun, mut waits) = (Instant::now(), Vec::new());
        let mut every = tokio::time::interval(Duration::from_millis(4));
        while begun.elapsed() < span {
            every.tick().await;
            let one = Instant::now();
            writer.execute("INSERT INTO outbox_message (topic, payload) VALUES ('order-created', '{}')").await;
            waits.push(micros(one.elapsed()));
        }
        let moved = match work {
            Some(work) => Some(work.await.expect("the archiver")),
            None => None,
        };
        store.close().await;
        waits.sort_unstable();
        let p99 = percentile(&waits, 99.0);
        let ratio = base.map_or(1.0, |base: u64| p99 as f64 / base.max(1) as f64);
        base = base.or(Some(p99));
        let rate =
            moved.map_or_else(String::new, |n| format!("  {:.0} rows archived/s", n as f64 / span.as_secs_f64()));
        println!(
            "INSERT {name:<22} P50 {:>7.2} ms  P99 {:>7.2} ms  max {:>7.2} ms  {} over 100 ms  {} rows  {ratio:.2} x{rate}",
            percentile(&waits, 50.0) as f64 / 1e3,
            p99 as f64 / 1e3,
            waits.last().copied().unwrap_or_default() as f64 / 1e3,
            waits.iter().filter(|us| **us > 100_000).count(),
            waits.len()
        );
    }
}

/// Archives with the relay's pauses.
async fn archive(store: Arc<dyn Store>, span: Duration) -> u64 {
    let request = PruneRequest {
        owner: "bench".into(),
        retention_ms: u64::MAX / 1_000,
        merge_after_ms: None,
        step: 500,
        exported: None,
    };
    let (begun, mut moved) = (Instant::now(), 0);
    while begun.elapsed() < span {
        moved += store.prune(&request).await.expect("a step").archived;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    moved
}
