//! Checkpoints among open transactions, cut connections and rows that are not as they were.

use std::sync::Arc;
use std::time::Duration;

use outhaul_core::checkpoint::ShardOutcome;
use outhaul_core::message::{Seq, ShardId};
use outhaul_core::runs::Run;
use outhaul_store::{InitPlan, LeaseRound, Store, StoreErrorKind, StoreOptions};
use outhaul_testkit::proxy::{Direction, Fate, Proxy};
use outhaul_testkit::servers::Flavour;
use outhaul_testkit::store_suite::{AppRow, Fixture, Owner};

use super::until;

const WAITING: &str =
    "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";

/// The same database through a proxy.
async fn through_proxy(f: &Fixture, change: impl FnOnce(&mut StoreOptions)) -> (Proxy, Arc<dyn Store>) {
    let proxy = Proxy::start(f.database.address()).await;
    let mut options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
    change(&mut options);
    let store = outhaul_store::open(options).await.expect("open");
    (proxy, store)
}

#[tokio::test]
async fn an_open_row_is_not_waited_for_and_waits_for_nothing() {
    for shards in [1, 4] {
        let f = Fixture::with(Flavour::Postgres, InitPlan { shards, ..InitPlan::default() }, |o| {
            o.lock_timeout = Duration::from_millis(200)
        })
        .await;
        let mut owner = f.owner("one").await;
        f.insert_series([0]).await;
        let mut open = f.database.session().await;
        open.execute(&format!("BEGIN; {}", f.insert_sql(&[AppRow::nth(1)]))).await;
        f.insert_series([2]).await;
        let rows = f.read_all().await;
        // Numbers on both sides of the open one.
        owner.move_rows(f.store.as_ref(), &rows).await;
        assert_eq!(f.hot_ids().await, Vec::<String>::new());
        open.execute(&format!("{}; COMMIT", f.insert_sql(&[AppRow::nth(3)]))).await;
        assert_eq!(f.hot_ids().await, ["m1", "m3"]);
    }
}

#[tokio::test]
async fn a_row_inside_a_run_that_is_not_moved_yet_stays() {
    for shards in [1, 4] {
        let f = Fixture::with(Flavour::Postgres, InitPlan { shards, ..InitPlan::default() }, |_| {}).await;
        let mut owner = f.owner("one").await;
        f.insert(&(0..9).map(|n| AppRow::nth(n).with_key(Some("same"))).collect::<Vec<_>>()).await;
        let mut rows = f.read_all().await;
        let shard = rows[0].shard;
        rows.remove(4);
        let mut part = owner.part(shard, &rows);
        part.runs = vec![Run { first: 1, last: 9 }];
        assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Written]);
        assert_eq!(f.hot_ids().await, ["m4"]);
        assert_eq!(f.log_ids(shard).await.len(), 8);
    }
}

/// B5: numbers that are given again after a TRUNCATE name rows that nobody has read.
#[tokio::test]
async fn b5_rows_that_took_over_a_number_are_not_deleted() {
    let f = Fixture::sharded(Flavour::Postgres).await;
    let mut owner = f.owner("one").await;
    f.insert_series(0..8).await;
    let rows = f.read_all().await;
    f.truncate().await;
    // The first half as it was, the second one with other ids.
    f.insert(
        &(0..8)
            .map(|n| if n < 4 { AppRow::nth(n) } else { AppRow::nth(n).with_id(Some(&format!("x{n}"))) })
            .collect::<Vec<_>>(),
    )
    .await;
    let strange: Vec<ShardId> = rows[4..].iter().map(|row| row.shard).collect();
    let parts = f.shards().into_iter().map(|shard| owner.part(shard, &rows)).collect();
    let outcomes = owner.write(f.store.as_ref(), parts).await;
    let mut left = 0;
    for (shard, outcome) in f.shards().into_iter().zip(outcomes) {
        let wanted = if strange.contains(&shard) { ShardOutcome::Mismatch } else { ShardOutcome::Written };
        assert_eq!(outcome, wanted, "shard {shard}");
        let of_shard = rows.iter().filter(|row| row.shard == shard).count();
        left += if outcome == ShardOutcome::Mismatch { of_shard } else { 0 };
    }
    assert_eq!(f.hot().await.len(), left);
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_found_out() {
    for (fate, applied) in [(Fate::AnswerLost, true), (Fate::RequestLost, false), (Fate::RequestLate, true)] {
        let f = Fixture::sharded(Flavour::Postgres).await;
        f.insert_series(0..6).await;
        let owner = f.owner("one").await;
        let rows = f.read_all().await;
        let checkpoint = owner.checkpoint(f.shards().into_iter().map(|shard| owner.part(shard, &rows)).collect());
        let (proxy, store) = through_proxy(&f, |o| o.lock_timeout = Duration::from_millis(200)).await;
        store.read(&f.everything()).await.unwrap();
        let trap = proxy.trap(Flavour::Postgres.commit_bytes(), fate);
        let error = store.checkpoint(&checkpoint).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::CommitUnknown, "{error}");
        if fate == Fate::RequestLate {
            // The old transaction is open and holds the leases: nothing is known as long as it lives.
            let error = store.checkpoint_applied(&checkpoint).await.unwrap_err();
            assert_eq!(error.kind, StoreErrorKind::Timeout, "{error}");
            trap.release();
        }
        trap.finished().await;
        let outcomes = store.checkpoint_applied(&checkpoint).await.unwrap();
        let wanted = applied.then_some(ShardOutcome::Written);
        assert_eq!(outcomes, vec![wanted; 4], "{fate:?}");
        assert_eq!(f.hot().await.len(), if applied { 0 } else { 6 });
        if !applied {
            assert_eq!(store.checkpoint(&checkpoint).await.unwrap(), [ShardOutcome::Written; 4]);
        }
    }
}

#[tokio::test]
async fn a_connection_that_ends_before_the_commit_leaves_nothing_behind() {
    let f = Fixture::new(Flavour::Postgres).await;
    f.insert_series(0..6).await;
    let owner = f.owner("one").await;
    let part = owner.part(ShardId(0), &f.read_all().await);
    let checkpoint = owner.checkpoint(vec![part]);
    let mut holder = f.database.session().await;
    holder.execute("BEGIN; SELECT * FROM outbox_lease FOR UPDATE").await;
    let store = f.another_store().await;
    let writing = tokio::spawn({
        let (store, checkpoint) = (store.clone(), checkpoint.clone());
        async move { store.checkpoint(&checkpoint).await }
    });
    let mut killer = f.database.session().await;
    until(&mut killer, WAITING).await;
    killer.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'").await;
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    holder.execute("COMMIT").await;
    assert_eq!(store.checkpoint_applied(&checkpoint).await.unwrap(), [None]);
    assert_eq!(store.checkpoint(&checkpoint).await.unwrap(), [ShardOutcome::Written]);
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 6);
}

#[tokio::test]
async fn a_lock_is_waited_for_within_its_limit_and_the_connection_stays() {
    let f =
        Fixture::with(Flavour::Postgres, InitPlan::default(), |o| o.lock_timeout = Duration::from_millis(100)).await;
    f.insert_series(0..2).await;
    let owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &f.read_all().await)]);
    let mut holder = f.database.session().await;
    holder.execute("BEGIN; SELECT * FROM outbox_lease FOR UPDATE").await;
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()";
    let mut pids = f.database.session().await;
    for _ in 0..3 {
        assert_eq!(f.store.checkpoint(&checkpoint).await.unwrap_err().kind, StoreErrorKind::Timeout);
        let renewal = LeaseRound { renew: vec![(ShardId(0), owner.epochs[&ShardId(0)])], ..f.round("one") };
        assert_eq!(f.store.lease_round(&renewal).await.unwrap_err().kind, StoreErrorKind::Timeout);
    }
    let before = pids.query_u64(sessions).await;
    // An acquisition by another one does not wait: it goes without.
    let other = LeaseRound { acquire: vec![ShardId(0)], ..f.round("two") };
    assert_eq!(f.store.lease_round(&other).await.unwrap().leases[0].owner.as_deref(), Some("one"));
    holder.execute("COMMIT").await;
    assert_eq!(f.store.checkpoint(&checkpoint).await.unwrap(), [ShardOutcome::Written]);
    assert_eq!(pids.query_u64(sessions).await, before, "no connection was made anew");
}

#[tokio::test]
async fn a_statement_has_its_limit() {
    let f = Fixture::with(Flavour::Postgres, InitPlan::default(), |o| {
        o.lock_timeout = Duration::from_secs(20);
        o.statement_timeout = Duration::from_millis(100);
    })
    .await;
    f.insert_series(0..2).await;
    assert_eq!(f.read_all().await.len(), 2);
    let mut holder = f.database.session().await;
    holder.execute("BEGIN; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE").await;
    assert_eq!(f.store.read(&f.everything()).await.unwrap_err().kind, StoreErrorKind::Timeout);
    holder.execute("COMMIT").await;
    assert_eq!(f.read_all().await.len(), 2);
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let f = Fixture::new(Flavour::Postgres).await;
    f.insert_series(0..2).await;
    let (proxy, store) = through_proxy(&f, |o| o.statement_timeout = Duration::from_millis(100)).await;
    store.read(&f.everything()).await.unwrap();
    proxy.hold(Direction::ToClient);
    assert_eq!(store.read(&f.everything()).await.unwrap_err().kind, StoreErrorKind::Timeout);
    proxy.flow(Direction::ToClient);
    assert_eq!(store.read(&f.everything()).await.unwrap().rows.len(), 2);
    proxy.cut_all().await;
    assert_eq!(store.read(&f.everything()).await.map_or_else(|_| 2, |r| r.rows.len()), 2, "an error or the rows");
    assert_eq!(store.read(&f.everything()).await.unwrap().rows.len(), 2);
    proxy.refuse().await;
    proxy.cut_all().await;
    assert_eq!(store.read(&f.everything()).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    assert_eq!(store.read(&f.everything()).await.unwrap_err().kind, StoreErrorKind::Unavailable);
    proxy.accept().await;
    assert_eq!(store.read(&f.everything()).await.unwrap().rows.len(), 2);
}

/// A relay that is stopped between its statements and its COMMIT does not keep the leases locked for ever.
#[tokio::test]
async fn an_owner_that_hangs_inside_its_transaction_is_thrown_out_by_the_server() {
    let f = Fixture::new(Flavour::Postgres).await;
    f.insert_series(0..3).await;
    let owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &f.read_all().await)]);
    let (proxy, store) = through_proxy(&f, |o| o.statement_timeout = Duration::from_secs(2)).await;
    // The checkpoint's own connection must be there, and the table's columns known, before answers are held back.
    store.read(&f.everything()).await.unwrap();
    assert_eq!(store.checkpoint_applied(&checkpoint).await.unwrap(), [None]);
    proxy.hold(Direction::ToClient);
    let hanging = tokio::spawn({
        let checkpoint = checkpoint.clone();
        async move { store.checkpoint(&checkpoint).await }
    });
    let mut session = f.database.session().await;
    until(&mut session, "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'").await;
    until(&mut session, "SELECT count(*) = 0 FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'").await;
    session.execute("BEGIN; SELECT * FROM outbox_lease FOR UPDATE NOWAIT; ROLLBACK").await;
    assert!(hanging.await.unwrap().is_err());
    assert_eq!(f.hot().await.len(), 3);
}

#[tokio::test]
async fn a_dropped_call_leaves_neither_locks_nor_a_half_used_connection() {
    let f = Fixture::new(Flavour::Postgres).await;
    f.insert_series(0..3).await;
    let owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &f.read_all().await)]);
    let mut holder = f.database.session().await;
    let mut looker = f.database.session().await;
    holder.execute("BEGIN; SELECT * FROM outbox_lease FOR UPDATE").await;
    tokio::select! {
        result = f.store.checkpoint(&checkpoint) => panic!("{result:?}"),
        () = until(&mut looker, WAITING) => {}
    }
    holder.execute("COMMIT").await;
    assert_eq!(f.store.checkpoint(&checkpoint).await.unwrap(), [ShardOutcome::Written]);
    assert_eq!(f.store.resolved(Seq(3)).await.unwrap(), Seq(3), "no transaction of the dropped call is left");
}

#[tokio::test]
async fn a_checkpoint_among_sixteen_shards_leaves_out_only_those_that_do_not_fit() {
    let f = Fixture::with(Flavour::Postgres, InitPlan { shards: 16, ..InitPlan::default() }, |_| {}).await;
    f.insert(&(0..200).map(|n| AppRow::nth(n).with_key(Some(&n.to_string()))).collect::<Vec<_>>()).await;
    let mut owner = f.owner("one").await;
    let rows = f.read_all().await;
    Owner::take(&f, "one", &[]).await;
    // Shard 3 changed hands, shard 5 lost a row, shard 7 has a log that is longer than this owner knows.
    f.database
        .execute(
            "UPDATE outbox_lease SET epoch = epoch + 1 WHERE shard = 3; DELETE FROM outbox WHERE seq = (SELECT min(seq) FROM outbox WHERE shard = 5); \
             INSERT INTO outbox_log VALUES (7, 0, 5, now(), now(), now(), 1, '', '')",
        )
        .await;
    let parts = f.shards().into_iter().map(|shard| owner.part(shard, &rows)).collect();
    let outcomes = owner.write(f.store.as_ref(), parts).await;
    for (shard, outcome) in outcomes.iter().enumerate() {
        let wanted = match shard {
            3 => ShardOutcome::Fenced,
            5 | 7 => ShardOutcome::Mismatch,
            _ => ShardOutcome::Written,
        };
        assert_eq!(*outcome, wanted, "shard {shard}");
    }
    let left = f.database.query("SELECT DISTINCT shard FROM outbox ORDER BY 1").await;
    assert_eq!(left, [["3"], ["5"], ["7"]].map(|r| r.map(|s| Some(s.to_owned())).to_vec()));
    assert_eq!(f.database.query_u64("SELECT count(*) FROM outbox_receipt").await, 13);
}
