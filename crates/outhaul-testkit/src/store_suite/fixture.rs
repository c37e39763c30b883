//! A fresh database with a store on it, an application that writes by plain SQL, and a relay's owner of shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::checkpoint::{Checkpoint, ShardCheckpoint, ShardOutcome};
use outhaul_core::chunk;
use outhaul_core::destination::DestinationIndex;
use outhaul_core::message::{Epoch, Message, Position, Row, ShardId};
use outhaul_core::receipt::{AckLevel, LaneReceipt, LaneState, Receipt, ReceiptRow};
use outhaul_core::runs::{Run, Runs};
use outhaul_store::{InitPlan, LeaseRound, ReadPurpose, ReadRequest, ReadRows, Store, StoreOptions};

use crate::servers::{self, Flavour, TestDatabase};

/// A time to live that outlasts every case.
pub(crate) const TTL_MS: u64 = 600_000;

/// A row as an application inserts it: the four documented columns, or three without an id.
#[derive(Clone, Debug)]
pub struct AppRow {
    /// `id`; None leaves it to the database.
    pub id: Option<String>,
    /// `topic`.
    pub topic: String,
    /// `msg_key`.
    pub key: Option<String>,
    /// `payload`.
    pub payload: Vec<u8>,
}

impl AppRow {
    /// The `n`th of a series that has five keys.
    pub fn nth(n: u64) -> Self {
        Self {
            id: Some(format!("m{n}")),
            topic: format!("topic-{}", n % 3),
            key: Some(format!("k{}", n % 5)),
            payload: format!("payload {n}").into_bytes(),
        }
    }

    /// The same row with another payload.
    #[must_use]
    pub fn with_payload(self, payload: impl Into<Vec<u8>>) -> Self {
        Self { payload: payload.into(), ..self }
    }

    /// The same row with another key.
    #[must_use]
    pub fn with_key(self, key: Option<&str>) -> Self {
        Self { key: key.map(str::to_owned), ..self }
    }

    /// The same row with another id.
    #[must_use]
    pub fn with_id(self, id: Option<&str>) -> Self {
        Self { id: id.map(str::to_owned), ..self }
    }
}

/// A fresh database with a store on it.
pub struct Fixture {
    /// How the store was opened.
    pub options: StoreOptions,
    /// What `init` made.
    pub plan: InitPlan,
    /// The store.
    pub store: Arc<dyn Store>,
    /// The database. Last, so that it goes after the store.
    pub database: TestDatabase,
}

impl Fixture {
    /// Tables of one shard.
    pub async fn new(flavour: Flavour) -> Self {
        Self::with(flavour, InitPlan::default(), |_| {}).await
    }

    /// Tables of four shards; of one where the database has no more.
    pub async fn sharded(flavour: Flavour) -> Self {
        Self::with(flavour, InitPlan { shards: shards_of(flavour), ..InitPlan::default() }, |_| {}).await
    }

    /// Tables as planned, with changed options.
    pub async fn with(flavour: Flavour, plan: InitPlan, change: impl FnOnce(&mut StoreOptions)) -> Self {
        let fixture = Self::empty(flavour, change).await;
        fixture.store.init(&plan).await.expect("init");
        Self { plan, ..fixture }
    }

    /// A database without tables.
    pub async fn empty(flavour: Flavour, change: impl FnOnce(&mut StoreOptions)) -> Self {
        let database = servers::create(flavour).await;
        let mut options = StoreOptions::new(database.url.clone());
        change(&mut options);
        let store = outhaul_store::open(options.clone()).await.expect("open");
        Self { options, plan: InitPlan::default(), store, database }
    }

    /// A table that an application made for itself, with nothing forbidden, and the relay's tables beside it.
    pub async fn adopted(flavour: Flavour) -> Self {
        let fixture = Self::empty(flavour, |_| {}).await;
        let columns = match flavour {
            Flavour::Sqlite => {
                "seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, topic TEXT, msg_key TEXT, headers TEXT, payload BLOB, \
                 created_at INTEGER, available_at INTEGER"
            }
            Flavour::Postgres => {
                "seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id text, topic text, msg_key text, headers json, \
                 payload bytea, created_at timestamptz DEFAULT now(), available_at timestamptz"
            }
            Flavour::MariaDb | Flavour::MySql => {
                "seq BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, id VARBINARY(64), topic VARBINARY(255), \
                 msg_key VARBINARY(255), headers LONGBLOB, payload LONGBLOB, \
                 created_at DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6), available_at DATETIME(6)"
            }
        };
        fixture.database.execute(&format!("CREATE TABLE outbox ({columns})")).await;
        fixture.store.init(&fixture.plan).await.expect("init beside a table that is there");
        fixture
    }

    /// Another store on the same database: another process.
    pub async fn another_store(&self) -> Arc<dyn Store> {
        outhaul_store::open(self.options.clone()).await.expect("open")
    }

    /// The flavour of the database.
    pub fn flavour(&self) -> Flavour {
        self.database.flavour
    }

    /// All shards.
    pub fn shards(&self) -> Vec<ShardId> {
        (0..self.plan.shards).map(ShardId).collect()
    }

    /// Whether an application's open transaction that has written leaves others free to write.
    pub fn writers_are_concurrent(&self) -> bool {
        self.flavour() != Flavour::Sqlite
    }

    /// INSERT of these rows, with the documented columns and none else.
    pub fn insert_sql(&self, rows: &[AppRow]) -> String {
        let with_id: Vec<String> = rows.iter().filter(|r| r.id.is_some()).map(|r| self.values(r)).collect();
        let without: Vec<String> = rows.iter().filter(|r| r.id.is_none()).map(|r| self.values(r)).collect();
        let table = self.options.outbox();
        let mut sql = String::new();
        if !with_id.is_empty() {
            sql += &format!("INSERT INTO {table} (id, topic, msg_key, payload) VALUES {};", with_id.join(","));
        }
        if !without.is_empty() {
            sql += &format!("INSERT INTO {table} (topic, msg_key, payload) VALUES {};", without.join(","));
        }
        sql
    }

    /// INSERT of a row whose `seq` is given, as a late commit or another primary would bring it.
    pub fn insert_at_sql(&self, seq: u64, row: &AppRow) -> String {
        let overriding = if self.flavour() == Flavour::Postgres { "OVERRIDING SYSTEM VALUE " } else { "" };
        let values = self.values(row).replacen('(', &format!("({seq},"), 1);
        format!("INSERT INTO {} (seq, id, topic, msg_key, payload) {overriding}VALUES {values}", self.options.outbox())
    }

    fn values(&self, row: &AppRow) -> String {
        let key = row.key.as_deref().map_or_else(|| "NULL".to_owned(), text_sql);
        let id = row.id.as_deref().map(|id| text_sql(id) + ",").unwrap_or_default();
        format!("({id}{},{key},{})", text_sql(&row.topic), self.bytes_sql(&row.payload))
    }

    /// A literal of bytes.
    pub fn bytes_sql(&self, bytes: &[u8]) -> String {
        use std::fmt::Write as _;
        let mut hex = String::with_capacity(bytes.len() * 2);
        bytes.iter().for_each(|b| _ = write!(hex, "{b:02x}"));
        match self.flavour() {
            Flavour::Postgres => format!("'\\x{hex}'::bytea"),
            _ => format!("X'{hex}'"),
        }
    }

    /// Inserts rows in one transaction.
    pub async fn insert(&self, rows: &[AppRow]) {
        self.database.execute(&format!("BEGIN;{}COMMIT", self.insert_sql(rows))).await;
    }

    /// Inserts the rows of the series with these numbers.
    pub async fn insert_series(&self, numbers: impl IntoIterator<Item = u64>) {
        self.insert(&numbers.into_iter().map(AppRow::nth).collect::<Vec<_>>()).await;
    }

    /// Empties the outbox table and starts its sequence again.
    pub async fn truncate(&self) {
        let table = self.options.outbox();
        let sql = match self.flavour() {
            Flavour::Sqlite => format!("DELETE FROM {table}; DELETE FROM sqlite_sequence WHERE name = '{table}'"),
            Flavour::Postgres => format!("TRUNCATE {table} RESTART IDENTITY"),
            Flavour::MariaDb | Flavour::MySql => format!("TRUNCATE TABLE {table}"),
        };
        self.database.execute(&sql).await;
    }

    /// The committed rows of the outbox table by plain SQL: seq and id, by rising seq.
    pub async fn hot(&self) -> Vec<(u64, String)> {
        let rows = self.database.query(&format!("SELECT seq, id FROM {} ORDER BY seq", self.options.outbox())).await;
        let number = |text: &Option<String>| text.as_deref().and_then(|t| t.parse().ok()).expect("a number");
        rows.iter().map(|r| (number(&r[0]), r[1].clone().unwrap_or_default())).collect()
    }

    /// The ids of [`Fixture::hot`].
    pub async fn hot_ids(&self) -> Vec<String> {
        self.hot().await.into_iter().map(|(_, id)| id).collect()
    }

    /// The number of rows of a table, by plain SQL.
    pub async fn count(&self, table: &str) -> u64 {
        self.database.query_u64(&format!("SELECT count(*) FROM {}", self.options.table(table))).await
    }

    /// A request for everything.
    pub fn everything(&self) -> ReadRequest {
        ReadRequest {
            purpose: ReadPurpose::Poll,
            shards: self.shards(),
            ranges: vec![Run { first: 0, last: u64::MAX }],
            limit: 100_000,
            max_bytes: 256 << 20,
        }
    }

    /// Reads by the store.
    pub async fn read(&self, request: &ReadRequest) -> ReadRows {
        self.store.read(request).await.expect("read")
    }

    /// Reads everything by the store.
    pub async fn read_all(&self) -> Vec<Row> {
        self.read(&self.everything()).await.rows
    }

    /// Every message of a shard's log, chunk by chunk.
    pub async fn log(&self, shard: ShardId) -> Vec<Message> {
        let names = destinations();
        let chunks = self.store.read_log(shard, Position(0), usize::MAX).await.expect("read_log");
        let unpack = |c: &outhaul_store::StoredChunk| {
            let messages = chunk::decode(c.codec, &c.bytes, shard, c.base, &names).expect("a chunk");
            assert_eq!(messages.len(), c.count as usize);
            messages
        };
        chunks.iter().flat_map(unpack).collect()
    }

    /// The ids of [`Fixture::log`].
    pub async fn log_ids(&self, shard: ShardId) -> Vec<String> {
        self.log(shard).await.into_iter().map(|m| m.id).collect()
    }

    /// A lease round that only tells who is there.
    pub fn round(&self, owner: &str) -> LeaseRound {
        LeaseRound {
            owner: owner.into(),
            version: "0".into(),
            draining: false,
            ttl_ms: TTL_MS,
            renew: vec![],
            release: vec![],
            acquire: vec![],
            leave: false,
            troubles: vec![],
            config: String::new(),
        }
    }

    /// Takes all shards.
    pub async fn owner(&self, name: &str) -> Owner {
        Owner::take(self, name, &self.shards()).await
    }
}

/// How many shards the suite uses where it uses several.
pub const fn shards_of(flavour: Flavour) -> u16 {
    match flavour {
        Flavour::Sqlite => 1,
        _ => 4,
    }
}

/// A literal of text. The texts of the suite hold no backslash.
pub(crate) fn text_sql(text: &str) -> String {
    assert!(!text.contains('\\'));
    format!("'{}'", text.replace('\'', "''"))
}

/// The names of the destinations of the suite.
pub(crate) fn destinations() -> Vec<String> {
    vec!["a".into(), "b".into()]
}

/// The message that a row becomes: routed to the destination `a`, and to `b` where its position is even.
pub fn message_of(row: &Row, position: Position) -> Message {
    let both = [DestinationIndex(0), DestinationIndex(1)];
    let named = if position.0.is_multiple_of(2) { &both[..] } else { &both[..1] };
    Message::from_row(row.clone(), position, named.iter().copied().collect())
}

/// The owner of some shards, as far as a checkpoint needs one.
pub struct Owner {
    /// Name.
    pub name: String,
    /// Epoch of each shard.
    pub epochs: BTreeMap<ShardId, Epoch>,
    next: BTreeMap<ShardId, (u64, Position)>,
}

impl Owner {
    /// Acquires shards and recovers them.
    pub async fn take(fixture: &Fixture, name: &str, shards: &[ShardId]) -> Self {
        let round = LeaseRound { acquire: shards.to_vec(), ..fixture.round(name) };
        let report = fixture.store.lease_round(&round).await.expect("lease_round");
        let mine = report.leases.iter().filter(|l| l.owner.as_deref() == Some(name) && shards.contains(&l.shard));
        let epochs: BTreeMap<ShardId, Epoch> = mine.map(|l| (l.shard, l.epoch)).collect();
        assert_eq!(epochs.len(), shards.len(), "{name} did not get all of {shards:?}");
        let mut owner = Self::of(name, epochs);
        owner.recover(fixture.store.as_ref()).await;
        owner
    }

    /// An owner of shards that it has acquired by other means; it has to [`recover`](Self::recover) before it writes.
    pub fn of(name: &str, epochs: impl IntoIterator<Item = (ShardId, Epoch)>) -> Self {
        Self { name: name.into(), epochs: epochs.into_iter().collect(), next: BTreeMap::new() }
    }

    /// Learns anew where its shards stand.
    pub async fn recover(&mut self, store: &dyn Store) {
        for shard in self.epochs.keys() {
            let recovery = store.recover(*shard).await.expect("recover");
            self.next.insert(*shard, (recovery.next_number, recovery.log_end));
        }
    }

    /// What a checkpoint that moves these rows does for a shard. Rows of other shards among them count as read, and are
    /// not moved. The lane `a` delivers everything at once; there is no other.
    pub fn part(&self, shard: ShardId, rows: &[Row]) -> ShardCheckpoint {
        let (number, base) = self.next[&shard];
        let mine = rows.iter().filter(|row| row.shard == shard).enumerate();
        let moved: Vec<Arc<Message>> =
            mine.map(|(n, row)| Arc::new(message_of(row, Position(base.0 + n as u64)))).collect();
        let mut runs = Runs::new();
        rows.iter().for_each(|row| _ = runs.insert(row.seq.0));
        let end = Position(base.0 + moved.len() as u64);
        let receipts = moved.iter().map(|m| receipt_of(m.position)).collect();
        ShardCheckpoint {
            shard,
            epoch: self.epochs[&shard],
            number,
            base,
            moved,
            runs: runs.iter().collect(),
            receipts: ReceiptRow { lanes: vec![(lane("a", end), receipts)], ..ReceiptRow::default() },
            parked: vec![],
            acts: vec![],
        }
    }

    /// A checkpoint of these parts.
    pub fn checkpoint(&self, shards: Vec<ShardCheckpoint>) -> Checkpoint {
        Checkpoint { owner: self.name.clone(), destinations: destinations().into(), shards }
    }

    /// Writes a checkpoint of these parts, and goes on from what was written.
    pub async fn write(&mut self, store: &dyn Store, shards: Vec<ShardCheckpoint>) -> Vec<ShardOutcome> {
        let checkpoint = self.checkpoint(shards);
        let outcomes = store.checkpoint(&checkpoint).await.expect("checkpoint");
        assert_eq!(outcomes.len(), checkpoint.shards.len());
        for (part, outcome) in checkpoint.shards.iter().zip(&outcomes) {
            if *outcome == ShardOutcome::Written {
                self.next.insert(part.shard, (part.number + 1, part.log_end()));
            }
        }
        outcomes
    }

    /// Moves these rows, of all shards that it owns, in one checkpoint.
    pub async fn move_rows(&mut self, store: &dyn Store, rows: &[Row]) {
        let parts: Vec<ShardCheckpoint> = self.epochs.keys().map(|shard| self.part(*shard, rows)).collect();
        let written = vec![ShardOutcome::Written; parts.len()];
        assert_eq!(self.write(store, parts).await, written);
    }

    /// Moves everything that is in the outbox table.
    pub async fn move_all(&mut self, fixture: &Fixture) {
        let rows = fixture.read_all().await;
        self.move_rows(fixture.store.as_ref(), &rows).await;
    }
}

/// A lane that stands at a position, with everything below it proven.
pub(crate) fn lane(destination: &str, cursor: Position) -> LaneState {
    LaneState { destination: destination.into(), cursor, proven: cursor, ..LaneState::default() }
}

/// The receipt of a position.
pub(crate) fn receipt_of(position: Position) -> LaneReceipt {
    let receipt = Receipt {
        sent_at_us: 1_700_000_000_000_000 + position.0 as i64,
        level: AckLevel::Flushed,
        attempts: 1,
        detail: format!("at {position}"),
    };
    LaneReceipt { position, receipt }
}

/// The ids of rows.
pub(crate) fn ids(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.id.clone()).collect()
}

/// Asks again until the answer is yes. For what a database tells nobody when it happens.
pub(crate) async fn until(what: &str, mut asked: impl AsyncFnMut() -> bool) {
    let mut turn = tokio::time::interval(Duration::from_millis(20));
    for _ in 0..1_500 {
        if asked().await {
            return;
        }
        turn.tick().await;
    }
    panic!("it never came to pass: {what}");
}
