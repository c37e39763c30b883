//! The databases without Outhaul: filling tables, floors, and the way of a hand-made relay.

mod mysql;
mod postgres;
mod sqlite;

use std::path::PathBuf;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_core::chunk;
use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message, Position, Seq, ShardId};

use crate::Db;

/// Rows of a page of the floor.
pub const PAGE: usize = 5_000;
/// Rows of a batch of the hand-made relay.
pub const ARTICLE_BATCH: usize = 200;

/// A database of the bench's own.
#[async_trait]
pub trait Raw: Send {
    /// Runs statements.
    async fn execute(&mut self, sql: &str);
    /// First column of the first row, as a number.
    async fn number(&mut self, sql: &str) -> u64;
    /// First column of all rows, as text.
    async fn texts(&mut self, sql: &str) -> Vec<String>;
    /// The floor: one connection; select a page, delete it by runs, insert one chunk, commit; until the table is empty.
    /// With `shards`, the table has the primary key (shard, seq) and a page is read over all of them.
    async fn floor(&mut self, shards: u16) -> usize;
    /// Of a hand-made relay: 200 pending rows by created_at.
    async fn pending(&mut self) -> Vec<PendingRow>;
    /// Of a hand-made relay: UPDATE … SENT by id.
    async fn mark_sent(&mut self, rows: &[PendingRow]);
}

/// A row of the hand-made relay's table.
pub struct PendingRow {
    pub id: String,
    pub payload: Vec<u8>,
}

/// The hand-made relay: pending rows, hand them over, UPDATE … SENT by id; until none is pending.
pub async fn article(raw: &mut dyn Raw, mut hand_over: impl AsyncFnMut(&[PendingRow])) -> usize {
    let mut sent = 0;
    loop {
        let rows = raw.pending().await;
        if rows.is_empty() {
            return sent;
        }
        hand_over(&rows).await;
        raw.mark_sent(&rows).await;
        sent += rows.len();
    }
}

/// A database for one run.
pub struct Place {
    /// URL for a store.
    pub url: String,
    /// Raw access.
    pub raw: Box<dyn Raw>,
    folder: Option<PathBuf>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// An environment variable that the command for the servers prints.
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        eprintln!("{name} is not set: run `./dev servers start`, then `eval \"$(./dev servers env)\"`");
        std::process::exit(2)
    })
}

/// A new, empty database.
pub async fn place(db: Db) -> Place {
    let unique = format!(
        "bench_{}_{}",
        std::process::id(),
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_micros())
    );
    match db {
        Db::Sqlite => {
            let folder = std::env::temp_dir().join(unique);
            std::fs::create_dir_all(&folder).expect("a temporary folder");
            let path = folder.join("bench.db");
            let raw = sqlite::SqliteRaw::open(&path);
            Place { url: format!("sqlite:{}", path.display()), raw: Box::new(raw), folder: Some(folder) }
        }
        Db::Mariadb | Db::Mysql => {
            let server =
                variable(if db == Db::Mariadb { "OUTHAUL_TEST_MARIADB_URL" } else { "OUTHAUL_TEST_MYSQL_URL" });
            mysql::MySqlRaw::open(&server).await.execute(&format!("CREATE DATABASE {unique}")).await;
            let url = in_database(&server, &unique);
            Place { raw: Box::new(mysql::MySqlRaw::open(&url).await), url, folder: None }
        }
        Db::Postgres => {
            let server = variable("OUTHAUL_TEST_POSTGRES_URL");
            postgres::PostgresRaw::open(&server).await.execute(&format!("CREATE DATABASE {unique}")).await;
            let url = in_database(&server, &unique);
            Place { raw: Box::new(postgres::PostgresRaw::open(&url).await), url, folder: None }
        }
    }
}

fn in_database(server: &str, name: &str) -> String {
    server.rsplit_once('/').map_or_else(String::new, |(front, _)| format!("{front}/{name}"))
}

/// One more connection to a place.
pub async fn connect(url: &str) -> Box<dyn Raw> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        Box::new(sqlite::SqliteRaw::open(std::path::Path::new(path)))
    } else if url.starts_with("postgres") {
        Box::new(postgres::PostgresRaw::open(url).await)
    } else {
        Box::new(mysql::MySqlRaw::open(url).await)
    }
}

/// Begins a transaction whose first read keeps old row versions alive.
pub const fn hold_snapshot(db: Db) -> &'static str {
    match db {
        Db::Sqlite => "BEGIN",
        Db::Postgres => "BEGIN ISOLATION LEVEL REPEATABLE READ",
        Db::Mariadb | Db::Mysql => "START TRANSACTION WITH CONSISTENT SNAPSHOT",
    }
}

/// Drops what [`place`] made.
pub async fn remove(db: Db, place: Place) {
    let name = place.url.rsplit('/').next().unwrap_or_default().to_owned();
    match db {
        Db::Sqlite => {}
        Db::Mariadb | Db::Mysql => {
            let server =
                variable(if db == Db::Mariadb { "OUTHAUL_TEST_MARIADB_URL" } else { "OUTHAUL_TEST_MYSQL_URL" });
            mysql::MySqlRaw::open(&server).await.execute(&format!("DROP DATABASE {name}")).await;
        }
        Db::Postgres => {
            drop(place);
            let server = variable("OUTHAUL_TEST_POSTGRES_URL");
            postgres::PostgresRaw::open(&server).await.execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
    }
}

/// Port of a server's URL.
pub fn port(url: &str) -> u16 {
    url.rsplit_once('@').and_then(|(_, rest)| rest.split('/').next()?.rsplit_once(':')?.1.parse().ok()).unwrap_or(0)
}

/// An order event of about `bytes` bytes: JSON that compresses as such things do.
pub fn payload(n: usize, bytes: usize) -> String {
    let mut text = format!(
        r#"{{"order_id":{n},"user_id":{},"status":"CREATED","currency":"EUR","items":[{{"sku":"SKU-{:05}","quantity":{},"price_cents":{}}}],"note":""#,
        n % 5_000,
        n.wrapping_mul(2_654_435_761) % 100_000,
        n % 7 + 1,
        n.wrapping_mul(7_919) % 100_000
    );
    while text.len() + 2 < bytes {
        text.push(char::from(b'a' + ((n + text.len() * 7) % 26) as u8));
        text.push_str(" - ");
    }
    text.truncate(bytes.saturating_sub(2).max(2));
    text.push_str("\"}");
    text
}

/// Fills `table` (id, topic, msg_key, payload) with `rows` rows.
pub async fn fill(raw: &mut dyn Raw, table: &str, columns: &str, rows: usize, payload_bytes: usize) {
    const STEP: usize = 500;
    for from in (0..rows).step_by(STEP) {
        let values: Vec<String> = (from..(from + STEP).min(rows))
            .map(|n| {
                let (id, payload) = (format!("0192f0c1-5a7e-7b3c-8d4e-{n:012x}"), payload(n, payload_bytes));
                match columns {
                    "article" => format!("('{id}','order-created','{payload}')"),
                    _ => format!("('{id}','order-created','user-{}','{payload}')", n % 5_000),
                }
            })
            .collect();
        let names = if columns == "article" { "id, topic, payload" } else { "id, topic, msg_key, payload" };
        raw.execute(&format!("INSERT INTO {table} ({names}) VALUES {}", values.join(","))).await;
    }
}

/// A row of the floor's page.
pub struct FloorRow {
    pub shard: u16,
    pub seq: u64,
    pub id: String,
    pub topic: String,
    pub key: Option<String>,
    pub payload: Bytes,
}

/// One chunk of a page, as Outhaul would write it.
pub fn floor_chunk(base: u64, rows: Vec<FloorRow>) -> Vec<u8> {
    let messages: Vec<Message> = rows
        .into_iter()
        .enumerate()
        .map(|(i, r)| Message {
            position: Position(base + i as u64),
            seq: Seq(r.seq),
            shard: ShardId(r.shard),
            id: r.id,
            topic: r.topic,
            key: r.key,
            headers: None,
            payload: r.payload,
            created_at_us: 0,
            destinations: DestinationSet::EMPTY,
            defect: None,
        })
        .collect();
    chunk::encode(messages.iter(), &[]).bytes
}

/// Runs of consecutive numbers of one shard's rows. With shards, a page holds every number of its range, so a run is
/// the whole range for each shard.
pub fn runs(rows: &[FloorRow]) -> Vec<(u16, u64, u64, usize)> {
    let mut by_shard = std::collections::BTreeMap::<u16, (u64, u64, usize)>::new();
    for r in rows {
        let e = by_shard.entry(r.shard).or_insert((r.seq, r.seq, 0));
        (e.0, e.1, e.2) = (e.0.min(r.seq), e.1.max(r.seq), e.2 + 1);
    }
    by_shard.into_iter().map(|(s, (a, b, n))| (s, a, b, n)).collect()
}
