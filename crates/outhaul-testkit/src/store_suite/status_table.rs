//! A status table behind the `Store` contract: no row is lost, and none is handed out twice, whatever the order of
//! things.

use std::collections::{BTreeMap, BTreeSet};

use outhaul_core::checkpoint::{Checkpoint, ShardCheckpoint, ShardOutcome};
use outhaul_core::destination::{DestinationIndex, DestinationSet};
use outhaul_core::message::{Message, Position, Row, ShardId};
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::{Run, Runs};
use outhaul_store::{LeaseRound, ReadPurpose, ReadRequest, StatusTable, StoreOptions};

use super::fixture::{Fixture, destinations, lane};
use crate::servers::Flavour;

const SHARD: ShardId = ShardId(0);
const SEEDS: std::ops::Range<u64> = 1..3;
const STEPS: usize = 120;

fn options(options: &mut StoreOptions) {
    options.outbox_table = "outbox_native".into();
    options.status = Some(StatusTable { interval: Some(std::time::Duration::ZERO), ..StatusTable::default() });
}

/// xorshift64*, Vigna 2014.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % n
    }
}

/// A relay's side: what it has read, and how far its log and its one lane are.
struct Relay {
    name: String,
    epoch: outhaul_core::message::Epoch,
    number: u64,
    end: u64,
    cursor: u64,
    taken: BTreeMap<u64, Row>,
    known: Runs,
}

impl Relay {
    async fn start(f: &Fixture, name: &str) -> Self {
        let round = LeaseRound { acquire: vec![SHARD], ..f.round(name) };
        let report = f.store.lease_round(&round).await.expect("lease_round");
        let lease = report.leases.iter().find(|l| l.owner.as_deref() == Some(name)).expect("the shard");
        let recovery = f.store.recover(SHARD).await.expect("recover");
        let cursor = recovery.lanes.lanes.first().map_or(0, |(lane, _)| lane.cursor.0);
        Self {
            name: name.into(),
            epoch: lease.epoch,
            number: recovery.next_number,
            end: recovery.log_end.0,
            cursor,
            taken: BTreeMap::new(),
            known: Runs::new(),
        }
    }

    async fn stop(&self, f: &Fixture) {
        let round = LeaseRound { release: vec![(SHARD, self.epoch)], ..f.round(&self.name) };
        f.store.lease_round(&round).await.expect("lease_round");
    }

    /// Reads; the answer may be lost.
    async fn read(&mut self, f: &Fixture, dice: &mut Dice, is_lost: bool) -> usize {
        let request = ReadRequest {
            purpose: if dice.below(3) == 0 { ReadPurpose::Rescan } else { ReadPurpose::Poll },
            shards: vec![SHARD],
            ranges: self.known.gaps(Run { first: 0, last: u64::MAX }),
            limit: 1 + dice.below(15) as u32,
            max_bytes: 1 + dice.below(400) as usize,
        };
        let answer = f.store.read(&request).await.expect("read");
        assert!(answer.rows.len() <= request.limit as usize);
        assert!(answer.rows.is_sorted_by_key(|row| row.seq), "in the order of their numbers");
        if is_lost {
            return 0;
        }
        let mut new = 0;
        for row in answer.rows {
            assert!(self.known.insert(row.seq.0), "{} was not asked for: {}", row.seq, row.id);
            self.taken.insert(row.seq.0, row);
            new += 1;
        }
        new
    }

    /// Moves some of what was read, and says that the lane has got on.
    async fn checkpoint(&mut self, f: &Fixture, rows: usize, settles: u64) {
        let seqs: Vec<u64> = self.taken.keys().take(rows).copied().collect();
        let rows: Vec<Row> = seqs.iter().filter_map(|seq| self.taken.remove(seq)).collect();
        let to_a: DestinationSet = [DestinationIndex(0)].into_iter().collect();
        let moved = rows.into_iter().enumerate();
        let moved: Vec<_> =
            moved.map(|(n, row)| Message::from_row(row, Position(self.end + n as u64), to_a).into()).collect();
        let end = self.end + moved.len() as u64;
        self.cursor = (self.cursor + settles).min(end);
        let part = ShardCheckpoint {
            shard: SHARD,
            epoch: self.epoch,
            number: self.number,
            base: Position(self.end),
            moved,
            runs: vec![],
            receipts: ReceiptRow { lanes: vec![(lane("a", Position(self.cursor)), vec![])], ..ReceiptRow::default() },
            parked: vec![],
            acts: vec![],
        };
        let checkpoint =
            Checkpoint { owner: self.name.clone(), destinations: destinations().into(), shards: vec![part] };
        assert_eq!(f.store.checkpoint(&checkpoint).await.expect("checkpoint"), [ShardOutcome::Written]);
        (self.number, self.end) = (self.number + 1, end);
    }
}

async fn table(flavour: Flavour) -> Fixture {
    let f = Fixture::empty(flavour, options).await;
    let columns = "topic VARCHAR(99), payload VARCHAR(999), status VARCHAR(9) NOT NULL DEFAULT 'PENDING'";
    let (time, now) = match flavour {
        Flavour::Sqlite => ("TEXT", "CURRENT_TIMESTAMP"),
        Flavour::Postgres => ("TIMESTAMP(0)", "(now() AT TIME ZONE 'UTC')"),
        Flavour::MariaDb | Flavour::MySql => ("DATETIME", "CURRENT_TIMESTAMP"),
    };
    let create = format!(
        "CREATE TABLE outbox (id VARCHAR(36) PRIMARY KEY, {columns}, created_at {time} DEFAULT {now}, sent_at {time})"
    );
    f.database.execute(&create).await;
    f.database.execute("CREATE INDEX waiting ON outbox (status, created_at)").await;
    f.store.init(&f.plan).await.expect("init");
    f
}

/// `created_at` so many seconds ago, as SQL.
fn ago(flavour: Flavour, seconds: u64) -> String {
    match flavour {
        Flavour::Sqlite => format!("datetime('now', '-{seconds} seconds')"),
        Flavour::Postgres => format!("(now() AT TIME ZONE 'UTC') - interval '{seconds} seconds'"),
        Flavour::MariaDb | Flavour::MySql => format!("UTC_TIMESTAMP() - INTERVAL {seconds} SECOND"),
    }
}

/// Inserts at any time and of any age, rows set back to waiting, lost answers, owners that come and go, with and
/// without an orderly end: in the end every row is in the log as often as it was set to waiting.
pub async fn every_row_is_handed_out_once(flavour: Flavour) {
    let mut f = table(flavour).await;
    let mut wanted: BTreeMap<String, u32> = BTreeMap::new();
    for seed in SEEDS {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut relay = Relay::start(&f, &format!("relay-{seed}-0")).await;
        let mut set_back: BTreeSet<String> = BTreeSet::new();
        for step in 0..STEPS {
            match dice.below(20) {
                0..6 => {
                    for _ in 0..1 + dice.below(6) {
                        let id = format!("{seed}-{}", dice.below(1 << 30));
                        let payload = "x".repeat(dice.below(90) as usize);
                        let (topic, at) = ("t", ago(flavour, dice.below(20) * dice.below(3)));
                        let values = format!("('{id}', '{topic}', '{payload}', {at})");
                        f.database
                            .execute(&format!("INSERT INTO outbox (id, topic, payload, created_at) VALUES {values}"))
                            .await;
                        wanted.insert(id, 1);
                    }
                }
                6..11 => _ = relay.read(&f, &mut dice, step % 7 == 0).await,
                11..15 => {
                    let (rows, settles) = (dice.below(20) as usize, dice.below(20));
                    relay.checkpoint(&f, rows, settles).await;
                    set_back.retain(|id| relay.taken.values().any(|row| row.id == *id));
                }
                15..18 => _ = f.store.tend().await.expect("tend"),
                18 => {
                    let sent = f.database.query("SELECT id FROM outbox WHERE status = 'SENT'").await;
                    let sent: Vec<String> = sent.into_iter().filter_map(|mut row| row.remove(0)).collect();
                    if !sent.is_empty() {
                        let id = sent[dice.below(sent.len() as u64) as usize].clone();
                        f.database.execute(&format!("UPDATE outbox SET status = 'PENDING' WHERE id = '{id}'")).await;
                        *wanted.entry(id.clone()).or_default() += 1;
                        set_back.insert(id);
                    }
                }
                // What was set back within the last second and was not read again may be marked again by the next owner.
                _ if !set_back.is_empty() => {}
                _ => {
                    relay.stop(&f).await;
                    if dice.below(2) == 0 {
                        f.store.close().await;
                    }
                    f.store = f.another_store().await;
                    relay = Relay::start(&f, &format!("relay-{seed}-{step}")).await;
                }
            }
        }
        // The end: everything is read, moved, delivered and marked.
        let mut quiet = 0;
        while quiet < 20 {
            quiet = if relay.read(&f, &mut dice, false).await == 0 { quiet + 1 } else { 0 };
            relay.checkpoint(&f, usize::MAX, u64::MAX / 2).await;
            while f.store.tend().await.expect("tend") {}
        }
        relay.stop(&f).await;
        let mut logged: BTreeMap<String, u32> = BTreeMap::new();
        for id in f.log_ids(SHARD).await {
            *logged.entry(id).or_default() += 1;
        }
        let wrong: Vec<_> = wanted.iter().filter(|(id, n)| logged.get(*id) != Some(*n)).collect();
        assert!(wrong.is_empty() && logged.len() == wanted.len(), "seed {seed}: not as often as wanted: {wrong:?}");
        let waiting = "SELECT COUNT(*) FROM outbox WHERE status = 'PENDING' OR sent_at IS NULL";
        assert_eq!(f.database.query_u64(waiting).await, 0, "seed {seed}");
    }
}

/// Rows that wait come in the order of their times and ids, however small the answers, and whatever waits that is in
/// the log already.
pub async fn a_backlog_comes_in_order(flavour: Flavour) {
    let f = table(flavour).await;
    let mut dice = Dice(7);
    for n in 0..150u64 {
        let (seconds, id) = (1_000 - 5 * dice.below(150), format!("i{:03}", n * 37 % 150));
        let values = format!("('{id}', 't', '{}', {})", "x".repeat(dice.below(60) as usize), ago(flavour, seconds));
        f.database.execute(&format!("INSERT INTO outbox (id, topic, payload, created_at) VALUES {values}")).await;
    }
    // Times of the database, since a second may have ended meanwhile.
    let ordered = f.database.query("SELECT id FROM outbox ORDER BY created_at, id").await;
    let ordered: Vec<String> = ordered.into_iter().filter_map(|mut row| row.remove(0)).collect();
    let mut relay = Relay::start(&f, "relay").await;
    let mut found = Vec::new();
    while found.len() < ordered.len() {
        let request = ReadRequest {
            purpose: ReadPurpose::Poll,
            shards: vec![SHARD],
            ranges: relay.known.gaps(Run { first: 0, last: u64::MAX }),
            limit: 1 + dice.below(9) as u32,
            max_bytes: 1 + dice.below(200) as usize,
        };
        let rows = f.store.read(&request).await.expect("read").rows;
        assert!(!rows.is_empty(), "a poll finds what waits: {} of {}", found.len(), ordered.len());
        for row in rows {
            assert!(relay.known.insert(row.seq.0));
            found.push(row.id.clone());
            relay.taken.insert(row.seq.0, row);
        }
        if dice.below(3) == 0 {
            relay.checkpoint(&f, 5, 3).await;
        }
    }
    assert_eq!(found, ordered);
}

/// A row whose time lies in the future does not keep polls from finding the others: the first rescan that finds one sets
/// them right.
pub async fn a_time_in_the_future_blinds_no_poll(flavour: Flavour) {
    let f = table(flavour).await;
    let insert = async |id: &str, at: &str| {
        let values = format!("('{id}', 't', 'p', {at})");
        f.database.execute(&format!("INSERT INTO outbox (id, topic, payload, created_at) VALUES {values}")).await;
    };
    let mut relay = Relay::start(&f, "relay").await;
    let mut read = async |purpose| {
        let ranges = relay.known.gaps(Run { first: 0, last: u64::MAX });
        let request = ReadRequest { purpose, shards: vec![SHARD], ranges, limit: 100, max_bytes: 1 << 20 };
        let rows = f.store.read(&request).await.expect("read").rows;
        rows.iter().for_each(|row| _ = relay.known.insert(row.seq.0));
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    insert("future", "'2099-01-01 00:00:00'").await;
    assert_eq!(read(ReadPurpose::Poll).await, ["future"]);
    // Polls look behind it once it is the newest that was seen five seconds ago.
    let mut n = 0;
    super::fixture::until("polls have moved on", async || {
        n += 1;
        insert(&format!("n{n}"), &ago(flavour, 0)).await;
        read(ReadPurpose::Poll).await.is_empty()
    })
    .await;
    assert_eq!(read(ReadPurpose::Rescan).await, [format!("n{n}")]);
    insert("after", &ago(flavour, 0)).await;
    assert_eq!(read(ReadPurpose::Poll).await, ["after"]);
}
