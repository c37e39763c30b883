//! SQLite: the suite, and what only SQLite has.

mod suite {
    use outhaul_testkit::servers::Flavour;

    outhaul_testkit::store_suite!(Flavour::Sqlite);
}

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::message::{Seq, ShardId};
use outhaul_store::{InitPlan, NewRow, StoreErrorKind, StoreOptions};
use outhaul_testkit::servers::{self, Flavour};
use outhaul_testkit::store_suite::{AppRow, Fixture};

fn path(f: &Fixture) -> PathBuf {
    f.database.name().into()
}

#[tokio::test]
async fn a_missing_file_is_not_made_by_looking() {
    let f = Fixture::empty(Flavour::Sqlite, |_| {}).await;
    assert_eq!(f.store.inspect().await.unwrap_err().kind, StoreErrorKind::NotInitialised);
    assert_eq!(f.store.read(&f.everything()).await.unwrap_err().kind, StoreErrorKind::NotInitialised);
    assert!(!path(&f).exists());
    f.store.init(&f.plan).await.unwrap();
    f.store.inspect().await.unwrap();
}

#[tokio::test]
async fn what_is_no_database_is_said_to_be_none() {
    let f = Fixture::empty(Flavour::Sqlite, |_| {}).await;
    std::fs::write(path(&f), "this is a text of some length, and it is no database at all".repeat(20)).unwrap();
    assert_eq!(f.store.inspect().await.unwrap_err().kind, StoreErrorKind::Corrupt);
    assert_eq!(f.store.init(&f.plan).await.unwrap_err().kind, StoreErrorKind::Corrupt);
    std::fs::remove_file(path(&f)).unwrap();
    std::fs::create_dir(path(&f)).unwrap();
    assert_eq!(f.store.inspect().await.unwrap_err().kind, StoreErrorKind::Configuration);
    let nowhere = StoreOptions::new(format!("sqlite:{}/no/such/folder.db", path(&f).display()));
    let store = outhaul_store::open(nowhere).await.unwrap();
    assert_eq!(store.init(&f.plan).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert!(outhaul_store::open(StoreOptions::new("sqlite::memory:")).await.is_err());
}

/// A database that the application has made in another journal mode is put into WAL mode, which stays.
#[tokio::test]
async fn the_journal_mode_is_wal() {
    let f = Fixture::adopted(Flavour::Sqlite).await;
    assert_eq!(f.database.query_text("PRAGMA journal_mode").await, "wal");
    assert!(f.store.inspect().await.unwrap().warnings.is_empty());
}

/// B1: a snapshot that somebody holds stops neither reading nor writing.
#[tokio::test]
async fn a_held_snapshot_stops_nothing() {
    let f = Fixture::new(Flavour::Sqlite).await;
    f.insert_series(0..5).await;
    let mut holder = f.database.session().await;
    holder.execute("BEGIN").await;
    assert_eq!(holder.query_u64("SELECT count(*) FROM outbox").await, 5);
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    f.insert_series(5..9).await;
    owner.move_all(&f).await;
    assert!(f.hot().await.is_empty());
    assert_eq!(holder.query_u64("SELECT count(*) FROM outbox").await, 5, "the snapshot still holds");
}

/// B7: another file in the place of the database, as after a restore, is what the next call sees.
#[tokio::test]
async fn a_restored_file_is_opened_anew() {
    let f = Fixture::new(Flavour::Sqlite).await;
    f.insert_series(0..2).await;
    f.owner("one").await.move_all(&f).await;
    let other = Fixture::new(Flavour::Sqlite).await;
    other.insert_series(7..9).await;
    other.store.close().await;
    f.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
    other.database.execute("PRAGMA wal_checkpoint(TRUNCATE)").await;
    for suffix in ["-wal", "-shm"] {
        _ = std::fs::remove_file(format!("{}{suffix}", f.database.name()));
    }
    std::fs::rename(path(&other), path(&f)).unwrap();
    let ids: Vec<String> = f.read_all().await.into_iter().map(|row| row.id).collect();
    assert_eq!(ids, ["m7", "m8"]);
    assert_eq!(f.store.recover(ShardId(0)).await.unwrap().next_number, 0);
    f.owner("two").await.move_all(&f).await;
    assert_eq!(f.log_ids(ShardId(0)).await, ["m7", "m8"]);
}

/// Times that an application wrote as text are understood; what cannot be understood is not held against the row.
#[tokio::test]
async fn times_may_be_text() {
    let f = Fixture::new(Flavour::Sqlite).await;
    let sql = "INSERT INTO outbox (id, topic, payload, created_at, available_at) VALUES
        ('a', 't', 'p', '2024-02-29 12:30:15.250', '2024-02-29T12:30:15Z'),
        ('b', 't', 'p', '2024-02-29T13:30:15.250+01:00', NULL),
        ('c', 't', 'p', 1709209815250000, '9999-12-31 00:00:00'),
        ('d', 't', 'p', 1709209815250000, 1709209815250000),
        ('e', 't', 'p', 'yesterday', 'soon')";
    f.database.execute(sql).await;
    let answer = f.read(&f.everything()).await;
    let times: Vec<(&str, i64)> = answer.rows.iter().map(|row| (row.id.as_str(), row.created_at_us)).collect();
    assert_eq!(times[..3], [("a", 1_709_209_815_250_000), ("b", 1_709_209_815_250_000), ("d", 1_709_209_815_250_000)]);
    assert_eq!((times.len(), times[3].0), (4, "e"));
    assert!(times[3].1 > 1_709_209_815_250_000, "now, for want of better");
}

/// SQLite's columns hold values of any type, whatever they were declared as.
#[tokio::test]
async fn values_may_be_of_any_type() {
    let f = Fixture::adopted(Flavour::Sqlite).await;
    let sql = "INSERT INTO outbox (id, topic, msg_key, payload) VALUES
        (X'6162', X'74', 17, 42), (7, 't', 1.5, 'text'), (NULL, 't', NULL, NULL), ('x' || char(0) || 'y', 't', '', X'00')";
    f.database.execute(sql).await;
    let rows = f.read_all().await;
    let seen: Vec<(&str, Option<&str>, &[u8])> =
        rows.iter().map(|r| (r.id.as_str(), r.key.as_deref(), r.payload.as_ref())).collect();
    let wanted: [(&str, Option<&str>, &[u8]); 4] =
        [("ab", Some("17"), b"42"), ("7", Some("1.5"), b"text"), ("", None, b""), ("x\0y", Some(""), b"\0")];
    assert_eq!(seen, wanted);
    assert_eq!(f.store.find("ab", None).await.unwrap().len(), 1);
    f.owner("one").await.move_rows(f.store.as_ref(), &rows).await;
    assert!(f.hot().await.is_empty());
}

/// Amendment 7: without AUTOINCREMENT the numbers of deleted rows come again. It is said, and nothing is ever resolved.
#[tokio::test]
async fn a_table_without_autoincrement_is_warned_about() {
    let f = Fixture::empty(Flavour::Sqlite, |_| {}).await;
    let columns = "seq INTEGER PRIMARY KEY, id TEXT, topic TEXT, msg_key TEXT, headers TEXT, payload BLOB, created_at, available_at";
    f.database.execute(&format!("CREATE TABLE outbox ({columns})")).await;
    f.store.init(&InitPlan::default()).await.unwrap();
    let warnings = f.store.inspect().await.unwrap().warnings;
    assert!(warnings.len() == 1 && warnings[0].contains("AUTOINCREMENT"), "{warnings:?}");
    let mut owner = f.owner("one").await;
    for n in 0..3 {
        f.insert_series([n]).await;
        assert_eq!(f.store.resolved(Seq(1)).await.unwrap(), Seq(0));
        assert_eq!(f.hot().await[0].0, 1);
        owner.move_all(&f).await;
    }
    assert_eq!(f.log_ids(ShardId(0)).await, ["m0", "m1", "m2"]);
}

/// A limit that runs out inside a transaction leaves nothing of it.
#[tokio::test]
async fn a_time_limit_leaves_nothing_behind() {
    let f = Fixture::new(Flavour::Sqlite).await;
    let hasty =
        StoreOptions { statement_timeout: Duration::from_millis(1), lock_timeout: Duration::ZERO, ..f.options.clone() };
    let store = outhaul_store::open(hasty).await.unwrap();
    let rows = vec![NewRow { topic: "t".into(), ..NewRow::default() }; 100_000];
    assert_eq!(store.enqueue(&rows).await.unwrap_err().kind, StoreErrorKind::Timeout);
    assert!(f.hot().await.is_empty());
    f.store.enqueue(&rows[..10]).await.unwrap();
    assert_eq!(f.hot().await.len(), 10);
}

/// Writers of the application's own and the relay share the file: each row is moved once, none is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_and_relay_share_the_file() {
    let f = Arc::new(Fixture::new(Flavour::Sqlite).await);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4u64 {
        let f = Arc::clone(&f);
        writers.spawn(async move {
            let mut session = f.database.session().await;
            for n in 0..100 {
                let (a, b) = (writer * 1_000 + n * 2, writer * 1_000 + n * 2 + 1);
                let end = if n % 10 == 3 { "ROLLBACK" } else { "COMMIT" };
                session.execute(&format!("BEGIN;{}{end}", f.insert_sql(&[AppRow::nth(a), AppRow::nth(b)]))).await;
            }
        });
    }
    let mut owner = f.owner("one").await;
    while !writers.is_empty() {
        while let Some(ended) = writers.try_join_next() {
            ended.unwrap();
        }
        owner.move_all(&f).await;
    }
    owner.move_all(&f).await;
    assert!(f.hot().await.is_empty());
    let log = f.log(ShardId(0)).await;
    assert!(log.is_sorted_by_key(|m| m.seq), "writers are serial, so is the log");
    let mut ids = f.log_ids(ShardId(0)).await;
    ids.sort();
    let mut wanted: Vec<String> = (0..4u64)
        .flat_map(|w| (0..200).filter(|n| n / 2 % 10 != 3).map(move |n| format!("m{}", w * 1_000 + n)))
        .collect();
    wanted.sort();
    assert_eq!(ids, wanted);
}

/// Two stores on one file at once, as two relays are: leases and checkpoints wait for each other within their limits.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_relays_share_the_file() {
    let f = Arc::new(Fixture::new(Flavour::Sqlite).await);
    let other = f.another_store().await;
    let mut owner = f.owner("one").await;
    let busy = {
        let (f, other) = (Arc::clone(&f), Arc::clone(&other));
        tokio::spawn(async move {
            for _ in 0..100 {
                other.lease_round(&f.round("two")).await.unwrap();
            }
        })
    };
    for n in 0..50 {
        f.insert_series(n * 10..n * 10 + 10).await;
        owner.move_all(&f).await;
    }
    busy.await.unwrap();
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 500);
    other.close().await;
}

#[tokio::test]
async fn a_bare_path_is_a_url() {
    let database = servers::create(Flavour::Sqlite).await;
    let store = outhaul_store::open(StoreOptions::new(database.name())).await.unwrap();
    store.init(&InitPlan::default()).await.unwrap();
    assert_eq!(store.inspect().await.unwrap().shards, 1);
    store.close().await;
}
