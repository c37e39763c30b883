//! Connections: lost, killed, hanging; and what travels on them.

use std::time::Duration;

use outhaul_core::checkpoint::ShardOutcome;
use outhaul_core::message::ShardId;
use outhaul_store::{InitPlan, StoreErrorKind, StoreOptions};
use outhaul_testkit::proxy::{Direction, Fate, Proxy};
use outhaul_testkit::servers::Flavour;
use outhaul_testkit::store_suite::{AppRow, Fixture};

use super::waits::fixture;

const OTHERS: &str = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()";

async fn kill_all_others(f: &Fixture) -> usize {
    let mut session = f.database.session().await;
    let ids = session.query(OTHERS).await;
    for row in &ids {
        if let Some(Some(id)) = row.first() {
            _ = session.try_execute(&format!("KILL {id}")).await; // it may be gone already
        }
    }
    ids.len()
}

/// An idle connection that was killed costs one call at most.
pub async fn a_killed_connection_is_made_anew(flavour: Flavour) {
    let f = fixture(flavour, 4).await;
    f.insert_series(0..20).await;
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    for round in 0..3 {
        f.insert_series(round * 10 + 100..round * 10 + 110).await;
        assert!(kill_all_others(&f).await >= 2);
        if let Err(error) = f.store.read(&f.everything()).await {
            assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
        }
        let rows = f.read_all().await;
        assert_eq!(rows.len(), 10);
        let parts: Vec<_> = f.shards().iter().map(|shard| owner.part(*shard, &rows)).collect();
        if let Err(error) = f.store.checkpoint(&owner.checkpoint(parts.clone())).await {
            assert_eq!(error.kind, StoreErrorKind::Unavailable, "nothing was committed: {error}");
            owner.write(f.store.as_ref(), parts).await;
        } else {
            owner.recover(f.store.as_ref()).await;
        }
        assert!(f.hot().await.is_empty());
    }
}

/// KILL while a checkpoint waits inside its transaction: nothing was written, and nothing is in doubt.
pub async fn a_connection_killed_in_its_transaction_wrote_nothing(flavour: Flavour) {
    let f = Fixture::with(flavour, InitPlan::default(), |o| o.lock_timeout = Duration::from_secs(60)).await;
    f.insert_series(0..30).await;
    let owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &f.read_all().await)]);
    let mut holder = f.database.session().await;
    holder.execute("BEGIN; UPDATE outbox_lease SET epoch = epoch").await;
    holder.query("SELECT * FROM outbox_lease FOR UPDATE").await;
    let store = f.another_store().await;
    let writing = tokio::spawn({
        let (store, checkpoint) = (store.clone(), checkpoint.clone());
        async move { store.checkpoint(&checkpoint).await }
    });
    let mut killer = f.database.session().await;
    let waiting = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'SELECT shard, owner, epoch%'";
    let id = loop {
        if let Some(Some(id)) = killer.query(waiting).await.first().and_then(|row| row.first().cloned()) {
            break id;
        }
        tokio::task::yield_now().await;
    };
    killer.execute(&format!("KILL {id}")).await;
    let error = writing.await.expect("the task").expect_err("killed");
    assert_eq!(error.kind, StoreErrorKind::Unavailable, "{error}");
    holder.execute("COMMIT").await;
    assert_eq!(store.checkpoint_applied(&checkpoint).await.expect("applied"), [None]);
    assert_eq!(store.checkpoint(&checkpoint).await.expect("checkpoint"), [ShardOutcome::Written]);
    assert_eq!(f.log_ids(ShardId(0)).await.len(), 30);
}

/// A COMMIT that arrives late: as long as its transaction lives nothing is known; then the truth comes out. When the
/// connection is killed instead, nothing was written.
pub async fn a_late_commit_is_waited_out(flavour: Flavour) {
    for killed in [false, true] {
        let f = fixture(flavour, 4).await;
        f.insert_series(0..60).await;
        let owner = f.owner("one").await;
        let rows = f.read_all().await;
        let checkpoint = owner.checkpoint(f.shards().iter().map(|shard| owner.part(*shard, &rows)).collect());
        let proxy = Proxy::start(f.database.address()).await;
        let options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
        let store = outhaul_store::open(options).await.expect("open");
        let trap = proxy.trap(flavour.commit_bytes(), Fate::RequestLate);
        assert_eq!(store.checkpoint(&checkpoint).await.expect_err("lost").kind, StoreErrorKind::CommitUnknown);
        assert_eq!(store.checkpoint_applied(&checkpoint).await.expect_err("open").kind, StoreErrorKind::Timeout);
        if killed {
            kill_all_others(&f).await;
        }
        trap.release();
        trap.finished().await;
        let truth = (!killed).then_some(ShardOutcome::Written);
        let mut applied = store.checkpoint_applied(&checkpoint).await;
        if killed && applied.is_err() {
            applied = store.checkpoint_applied(&checkpoint).await; // its own connection was killed too
        }
        assert_eq!(applied.expect("applied"), vec![truth; 4]);
        assert_eq!(f.hot().await.len(), if killed { 60 } else { 0 });
        store.close().await;
    }
}

/// A server that hangs is given up within the limits, and used again when it is back.
pub async fn a_server_that_does_not_answer_is_given_up(flavour: Flavour) {
    let f = fixture(flavour, 1).await;
    f.insert_series(0..2).await;
    let proxy = Proxy::start(f.database.address()).await;
    let options = StoreOptions {
        url: f.database.url_at(proxy.address()),
        statement_timeout: Duration::from_millis(200),
        connect_timeout: Duration::from_secs(1),
        ..f.options.clone()
    };
    let store = outhaul_store::open(options).await.expect("open");
    store.read(&f.everything()).await.expect("read");
    proxy.hold(Direction::ToClient);
    assert_eq!(store.read(&f.everything()).await.expect_err("hangs").kind, StoreErrorKind::Timeout);
    assert_eq!(store.read(&f.everything()).await.expect_err("hangs").kind, StoreErrorKind::Unavailable, "connecting");
    proxy.flow(Direction::ToClient);
    assert_eq!(store.read(&f.everything()).await.expect("read").rows.len(), 2);
    store.close().await;
}

/// An idle poll is one statement, and needs nothing that was there before.
pub async fn an_idle_poll_is_one_statement(flavour: Flavour) {
    let f = fixture(flavour, 4).await;
    f.insert_series(0..400).await;
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    let proxy = Proxy::start(f.database.address()).await;
    let options = StoreOptions { url: f.database.url_at(proxy.address()), ..f.options.clone() };
    let store = outhaul_store::open(options).await.expect("open");
    store.read(&f.everything()).await.expect("read");
    let before = proxy.counts();
    for _ in 0..10 {
        assert!(store.read(&f.everything()).await.expect("read").rows.is_empty());
    }
    let after = proxy.counts();
    assert_eq!(after.accepted, before.accepted, "no connection was made anew");
    let bytes = after.to_server_bytes - before.to_server_bytes;
    assert!(bytes < 10 * 1_500, "{bytes} bytes for ten idle polls");
    store.close().await;
}

/// Between calls no transaction is open and no lock is held, so that a pooler may hand a session on.
pub async fn a_session_leaves_nothing_behind(flavour: Flavour) {
    let f = fixture(flavour, 4).await;
    f.insert_series(0..20).await;
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    let strange = owner.checkpoint(f.shards().iter().map(|shard| owner.part(*shard, &[])).collect());
    f.insert(&[AppRow::nth(50)]).await;
    f.store.checkpoint_applied(&strange).await.expect("applied");
    let mut fenced = strange.clone();
    fenced.owner = "nobody".into();
    f.store.checkpoint(&fenced).await.expect("checkpoint");
    f.store.status().await.expect("status");
    f.store.resolved(outhaul_core::message::Seq(1)).await.expect("resolved");
    f.store
        .prune(&outhaul_store::PruneRequest {
            owner: "p".into(),
            retention_ms: 0,
            merge_after_ms: Some(0),
            step: 9,
            exported: None,
        })
        .await
        .expect("prune");
    let open = "SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
                ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID()";
    assert_eq!(f.database.query_u64(open).await, 0);
    // DDL needs every other session to let go of the table.
    let mut session = f.database.session().await;
    session.execute("SET lock_wait_timeout = 1; ALTER TABLE outbox COMMENT = 'changed'; TRUNCATE TABLE outbox").await;
    assert!(f.read_all().await.is_empty());
}
