//! Nothing waits for an application's open row, and no application waits for the relay. The limit of waiting for a lock
//! is one second, the shortest that the servers know: whoever waits for a transaction that stays open fails.

use std::time::Duration;

use outhaul_core::checkpoint::ShardOutcome;
use outhaul_core::message::{Row, ShardId};
use outhaul_core::runs::Run;
use outhaul_store::{InitPlan, LeaseRound, PruneRequest, StoreErrorKind, StoreOptions};
use outhaul_testkit::proxy::{Fate, Proxy};
use outhaul_testkit::servers::{Flavour, Session};
use outhaul_testkit::store_suite::{AppRow, Fixture};

pub(super) async fn fixture(flavour: Flavour, shards: u16) -> Fixture {
    let plan = InitPlan { shards, ..InitPlan::default() };
    Fixture::with(flavour, plan, |o| o.lock_timeout = Duration::from_secs(1)).await
}

/// An open transaction that has inserted a row.
pub(super) async fn open(f: &Fixture, row: AppRow) -> Session {
    let mut session = f.database.session().await;
    session.execute(&format!("SET innodb_lock_wait_timeout = 1; BEGIN; {}", f.insert_sql(&[row]))).await;
    session
}

fn all_of_key(n: u64) -> AppRow {
    AppRow::nth(n).with_key(Some("one shard"))
}

/// Open rows right before, inside and right behind what is moved, in runs of many sizes: the table holds nothing else,
/// or much else, which changes what a server thinks is the best way to the rows.
pub async fn open_neighbours_of_a_run_are_not_waited_for(flavour: Flavour) {
    for shards in [1, 4] {
        for (run, others) in [(16u64, 0u64), (17, 0), (40, 0), (40, 400), (700, 0)] {
            let f = fixture(flavour, shards).await;
            let mut owner = f.owner("one").await;
            f.insert(&(10_000..10_000 + others).map(all_of_key).collect::<Vec<_>>()).await;
            let mut sessions = vec![open(&f, all_of_key(0)).await];
            f.insert(&(1..=run).map(all_of_key).collect::<Vec<_>>()).await;
            sessions.push(open(&f, all_of_key(1_000)).await);
            f.insert(&(2_001..=2_000 + run).map(all_of_key).collect::<Vec<_>>()).await;
            sessions.push(open(&f, all_of_key(3_000)).await);
            let rows: Vec<Row> = f.read_all().await.into_iter().skip(others as usize).collect();
            assert_eq!(rows.len() as u64, 2 * run);
            owner.move_rows(f.store.as_ref(), &rows).await;
            for session in &mut sessions {
                session.execute("COMMIT").await;
            }
            let left: Vec<String> = f.hot_ids().await.into_iter().skip(others as usize).collect();
            assert_eq!(left, ["m0", "m1000", "m3000"], "{shards} shards, runs of {run}, {others} others");
            assert_eq!(f.log_ids(rows[0].shard).await.len() as u64, 2 * run);
        }
    }
}

/// The same for rows that stand alone between open ones.
pub async fn open_neighbours_of_single_rows_are_not_waited_for(flavour: Flavour) {
    for shards in [1, 4] {
        let f = fixture(flavour, shards).await;
        let mut owner = f.owner("one").await;
        let mut sessions = Vec::new();
        for n in 0..8 {
            sessions.push(open(&f, all_of_key(n * 10)).await);
            f.insert(&(1..=n % 3 + 1).map(|k| all_of_key(n * 10 + k)).collect::<Vec<_>>()).await;
        }
        let rows = f.read_all().await;
        owner.move_rows(f.store.as_ref(), &rows).await;
        for session in &mut sessions {
            session.execute("ROLLBACK").await;
        }
        assert!(f.hot().await.is_empty());
        assert_eq!(f.log_ids(rows[0].shard).await.len(), rows.len());
    }
}

/// While a checkpoint has deleted its rows and has not committed, applications insert before, between and behind them,
/// at READ COMMITTED and at the servers' default, and into every shard.
pub async fn applications_do_not_wait_for_a_checkpoint(flavour: Flavour) {
    for shards in [1, 4] {
        let f = fixture(flavour, shards).await;
        let proxy = Proxy::start(f.database.address()).await;
        let options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
        let store = outhaul_store::open(options).await.expect("open");
        for seq in (100..140).chain(150..160).chain([170, 180]) {
            f.database.execute(&f.insert_at_sql(seq, &AppRow::nth(seq))).await;
        }
        let rows = f.read_all().await;
        let owner = f.owner("one").await;
        let checkpoint = owner.checkpoint(f.shards().iter().map(|shard| owner.part(*shard, &rows)).collect());
        let trap = proxy.trap(flavour.commit_bytes(), Fate::RequestLate);
        let error = store.checkpoint(&checkpoint).await.expect_err("the answer is lost");
        assert_eq!(error.kind, StoreErrorKind::CommitUnknown);
        let mut session = f.database.session().await;
        session.execute("SET innodb_lock_wait_timeout = 1").await;
        for level in ["READ COMMITTED", "REPEATABLE READ"] {
            session.execute(&format!("SET SESSION TRANSACTION ISOLATION LEVEL {level}")).await;
            let more = if level == "READ COMMITTED" { 0 } else { 1 };
            for seq in [98, 144, 146, 164, 174] {
                session.execute(&f.insert_at_sql(seq + more, &AppRow::nth(seq + more))).await;
            }
            session.execute(&f.insert_sql(&(0..40).map(AppRow::nth).collect::<Vec<_>>())).await;
        }
        trap.release();
        trap.finished().await;
        let written = vec![Some(ShardOutcome::Written); checkpoint.shards.len()];
        assert_eq!(store.checkpoint_applied(&checkpoint).await.expect("applied"), written);
        assert_eq!(f.hot().await.len(), 90);
        store.close().await;
    }
}

/// Two owners, each with its shards, write and renew while the other's transaction is open.
pub async fn owners_do_not_wait_for_each_other(flavour: Flavour) {
    let f = fixture(flavour, 4).await;
    f.insert_series(0..200).await;
    let rows = f.read_all().await;
    let shards = f.shards();
    let one = outhaul_testkit::store_suite::Owner::take(&f, "one", &shards[..2]).await;
    let mut two = outhaul_testkit::store_suite::Owner::take(&f, "two", &shards[2..]).await;
    let proxy = Proxy::start(f.database.address()).await;
    let options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
    let store = outhaul_store::open(options).await.expect("open");
    let checkpoint = one.checkpoint(shards[..2].iter().map(|shard| one.part(*shard, &rows)).collect());
    let trap = proxy.trap(flavour.commit_bytes(), Fate::RequestLate);
    store.checkpoint(&checkpoint).await.expect_err("the answer is lost");
    let parts: Vec<_> = shards[2..].iter().map(|shard| two.part(*shard, &rows)).collect();
    assert_eq!(two.write(f.store.as_ref(), parts).await, [ShardOutcome::Written; 2]);
    let renew = two.epochs.iter().map(|(shard, epoch)| (*shard, *epoch)).collect();
    // What is locked is skipped when it is asked for.
    let round = LeaseRound { renew, acquire: shards.clone(), ..f.round("two") };
    let report = f.store.lease_round(&round).await.expect("lease_round");
    assert!(report.leases[2..].iter().all(|l| l.owner.as_deref() == Some("two")));
    // The owner's own renewal waits for its own checkpoint, within its limit.
    let renew = one.epochs.iter().map(|(shard, epoch)| (*shard, *epoch)).collect();
    let error = f.store.lease_round(&LeaseRound { renew, ..f.round("one") }).await.expect_err("the lease is locked");
    assert_eq!(error.kind, StoreErrorKind::Timeout);
    trap.release();
    trap.finished().await;
    assert!(f.hot().await.is_empty());
    store.close().await;
}

/// Pruning, merging and looking go on beside a checkpoint that has not committed.
pub async fn pruning_does_not_wait_for_a_checkpoint(flavour: Flavour) {
    let f = fixture(flavour, 1).await;
    let mut owner = f.owner("one").await;
    for n in 0..6 {
        f.insert_series(n * 5..n * 5 + 5).await;
        owner.move_all(&f).await;
    }
    for (table, column) in [("outbox_log", "moved_at"), ("outbox_receipt", "created_at")] {
        f.database.execute(&format!("UPDATE {table} SET {column} = {column} - INTERVAL 3 HOUR")).await;
    }
    let proxy = Proxy::start(f.database.address()).await;
    let options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
    let store = outhaul_store::open(options).await.expect("open");
    f.insert_series(100..105).await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &f.read_all().await)]);
    let trap = proxy.trap(flavour.commit_bytes(), Fate::RequestLate);
    store.checkpoint(&checkpoint).await.expect_err("the answer is lost");
    let merge = PruneRequest {
        owner: "p".into(),
        retention_ms: 86_400_000,
        merge_after_ms: Some(0),
        step: 1_000,
        exported: None,
    };
    let merged = f.store.prune(&merge).await.expect("prune");
    assert!(merged.ran && merged.merged_chunks >= 5, "{merged:?}");
    let pruned = f.store.prune(&PruneRequest { retention_ms: 0, merge_after_ms: None, ..merge }).await.expect("prune");
    assert_eq!(pruned.messages, 30);
    f.store.status().await.expect("status");
    f.store.recover(ShardId(0)).await.expect("recover");
    trap.release();
    trap.finished().await;
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 5);
    store.close().await;
}

/// A lock that is not had in time is a Timeout; the connection stays, and so does everything else.
pub async fn a_lock_is_waited_for_within_its_limit(flavour: Flavour) {
    let f = fixture(flavour, 1).await;
    f.insert_series(0..2).await;
    let owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &f.read_all().await)]);
    let mut holder = f.database.session().await;
    let sessions = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE()";
    assert_eq!(f.store.checkpoint_applied(&checkpoint).await.expect("applied"), [None]);
    let before = f.database.query_u64(sessions).await;
    holder.execute("BEGIN; UPDATE outbox_lease SET epoch = epoch").await;
    holder.query("SELECT * FROM outbox_lease FOR UPDATE").await;
    assert_eq!(f.store.checkpoint(&checkpoint).await.expect_err("locked").kind, StoreErrorKind::Timeout);
    assert_eq!(f.store.checkpoint_applied(&checkpoint).await.expect_err("locked").kind, StoreErrorKind::Timeout);
    let round = LeaseRound { acquire: vec![ShardId(0)], ..f.round("two") };
    assert_eq!(f.store.lease_round(&round).await.expect("skipped").leases[0].owner.as_deref(), Some("one"));
    let prune = PruneRequest { owner: "p".into(), retention_ms: 0, merge_after_ms: None, step: 9, exported: None };
    assert!(!f.store.prune(&prune).await.expect("skipped").ran);
    holder.execute("COMMIT").await;
    assert_eq!(f.store.checkpoint(&checkpoint).await.expect("checkpoint"), [ShardOutcome::Written]);
    assert_eq!(f.database.query_u64(sessions).await, before, "no connection was made anew");
    // A TRUNCATE in progress, or any other change of the table: the same.
    holder.execute("LOCK TABLES outbox WRITE").await;
    let error = f.store.read(&f.everything()).await.expect_err("locked");
    assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
    holder.execute("UNLOCK TABLES").await;
    f.read_all().await;
}

/// A row inside a run that was read, and is not among those to move, stays: by range only where that is safe.
pub async fn rows_read_but_not_moved_stay(flavour: Flavour) {
    for shards in [1, 4] {
        let f = fixture(flavour, shards).await;
        let mut owner = f.owner("one").await;
        f.insert(&(0..60).map(all_of_key).collect::<Vec<_>>()).await;
        let mut rows = f.read_all().await;
        let shard = rows[0].shard;
        let runs = vec![Run { first: rows[0].seq.0, last: rows[59].seq.0 }];
        rows.remove(30);
        let part = outhaul_core::checkpoint::ShardCheckpoint { runs, ..owner.part(shard, &rows) };
        assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Written]);
        assert_eq!(f.hot_ids().await, ["m30"]);
        assert_eq!(f.log_ids(shard).await.len(), 59);
    }
}

/// B5: numbers that were given again, to rows that nobody has read, delete nothing: by range, too. One row of many that
/// is another one by now is enough.
pub async fn numbers_given_again_delete_nothing(flavour: Flavour) {
    for shards in [1, 4] {
        for strange in [0..60, 30..31] {
            let f = fixture(flavour, shards).await;
            let mut owner = f.owner("one").await;
            f.insert(&(0..60).map(all_of_key).collect::<Vec<_>>()).await;
            let rows = f.read_all().await;
            f.truncate().await;
            let row = |n| if strange.contains(&n) { all_of_key(n + 1_000) } else { all_of_key(n) };
            f.insert(&(0..60).map(row).collect::<Vec<_>>()).await;
            let part = owner.part(rows[0].shard, &rows);
            assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Mismatch]);
            assert_eq!(f.hot().await.len(), 60);
            owner.move_all(&f).await;
            assert_eq!(f.log_ids(rows[0].shard).await[30], "m1030");
        }
    }
}
