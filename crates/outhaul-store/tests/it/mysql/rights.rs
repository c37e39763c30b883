//! Users with few rights.

use outhaul_core::checkpoint::ShardOutcome;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::transaction::Finding;
use outhaul_store::{EndedTransaction, FallBack, NewRow, PruneRequest, StoreErrorKind, StoreOptions};
use outhaul_testkit::servers::Flavour;
use outhaul_testkit::store_suite::{AppRow, Fixture};

/// The grants that the DDL prints for a user: what stands between GRANT and TO.
fn grants(ddl: &str, user: &str) -> Vec<String> {
    let end = format!(" TO {user};");
    ddl.lines().filter_map(|line| line.strip_prefix("--   GRANT ")?.strip_suffix(&end)).map(str::to_owned).collect()
}

async fn as_user(f: &mut Fixture, user: &str) -> String {
    let name = f.database.name().to_owned();
    let on_database = |grant: String| grant.replacen(" ON ", &format!(" ON {name}."), 1);
    let grants: Vec<String> = grants(&f.store.ddl(&f.plan), user).into_iter().map(on_database).collect();
    assert!(!grants.is_empty());
    f.database.restricted_user(&grants.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// With the printed grants, and none else, the relay does all that it does.
pub async fn the_printed_grants_are_enough(flavour: Flavour) {
    let mut f = Fixture::sharded(flavour).await;
    let url = as_user(&mut f, "relay").await;
    let store = outhaul_store::open(StoreOptions { url, ..f.options.clone() }).await.expect("open");
    store.inspect().await.expect("inspect");
    let new = NewRow { topic: "t".into(), ..NewRow::default() };
    store.enqueue(&[new]).await.expect("enqueue");
    f.insert_series(0..30).await;
    let rows = store.read(&f.everything()).await.expect("read").rows;
    store.resolved(rows[30].seq).await.expect("resolved");
    let f = Fixture { store, ..f };
    let mut owner = f.owner("one").await;
    owner.move_rows(f.store.as_ref(), &rows).await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &[])]);
    assert_eq!(f.store.checkpoint_applied(&checkpoint).await.expect("applied"), [None]);
    f.store.status().await.expect("status");
    f.store.find("m1", None).await.expect("find");
    f.store.read_log(ShardId(0), Position(0), 1 << 20).await.expect("read_log");
    f.database.execute("UPDATE outbox_log SET moved_at = moved_at - INTERVAL 2 HOUR; UPDATE outbox_receipt SET created_at = created_at - INTERVAL 2 HOUR").await;
    let prune = PruneRequest { owner: "p".into(), retention_ms: 0, merge_after_ms: Some(0), step: 100, exported: None };
    assert_eq!(f.store.prune(&prune).await.expect("prune").messages, 31);
    outhaul_testkit::store_suite::acts::whatever_acts_need(&f, &mut owner).await;

    // What fell back, and what is pruned and looked for.
    let columns = "id, topic, payload";
    f.database.execute(&format!("INSERT INTO outbox_transaction ({columns}) VALUES ('tx', 't', 'p')")).await;
    for sent in [0, 1] {
        let fell = f.store.fall_back(&FallBack { after_ms: 0, limit: 10 }).await.expect("fall_back");
        assert_eq!(fell.sent.len(), sent, "{fell:?}");
    }
    f.store.prune_transactions(0, 10).await.expect("prune_transactions");
    f.store.find_transactions("tx").await.expect("find_transactions");
    let leave = outhaul_store::LeaseRound { leave: true, ..f.round("one") };
    f.store.lease_round(&leave).await.expect("leave");
}

/// With the printed grants, and none else, check-backs are answered and transactions are ended.
pub async fn a_user_of_transactions_judges_and_ends(flavour: Flavour) {
    let mut f = Fixture::sharded(flavour).await;
    let url = as_user(&mut f, "transactional").await;
    let store = outhaul_store::open(StoreOptions { url: url.clone(), ..f.options.clone() }).await.expect("open");
    store.check_version().await.expect("check_version");
    store.origin().await.expect("origin");
    let mut session = outhaul_testkit::servers::Session::open(flavour, &url).await.expect("connect");
    session.execute("INSERT INTO outbox_transaction (id, topic, payload) VALUES ('tx', 't', 'p')").await;
    assert_eq!(store.judge("none").await.expect("judge"), Finding::Buried);
    let ended = EndedTransaction { id: "tx".into(), receipt: "r".into() };
    assert_eq!(store.end_transactions(&[ended]).await.expect("end"), 1);
    session.try_query("SELECT * FROM outbox").await.expect_err("no right");
}

/// A right that is missing is noticed by inspect, before anything is sent.
pub async fn what_a_user_may_not_do_is_named(flavour: Flavour) {
    let mut f = Fixture::sharded(flavour).await;
    let name = f.database.name().to_owned();
    let read_only = f.database.restricted_user(&[&format!("SELECT ON {name}.*")]).await;
    let nothing = f.database.restricted_user(&[&format!("INSERT ON {name}.outbox")]).await;
    for url in [read_only, nothing] {
        let store = outhaul_store::open(StoreOptions { url, ..f.options.clone() }).await.expect("open");
        let error = store.inspect().await.expect_err("rights are missing");
        assert!(matches!(error.kind, StoreErrorKind::Permission | StoreErrorKind::NotInitialised), "{error}");
        store.close().await;
    }
    // One right after the other.
    let all = grants(&f.store.ddl(&f.plan), "relay");
    for left_out in 0..all.len() {
        let some: Vec<String> = all
            .iter()
            .enumerate()
            .filter(|(n, _)| *n != left_out)
            .map(|(_, grant)| grant.replacen(" ON ", &format!(" ON {name}."), 1))
            .collect();
        let url = f.database.restricted_user(&some.iter().map(String::as_str).collect::<Vec<_>>()).await;
        let store = outhaul_store::open(StoreOptions { url, ..f.options.clone() }).await.expect("open");
        store.inspect().await.expect_err(&all[left_out]);
        store.close().await;
    }
}

/// The application's user inserts, and can do nothing else; the shard and the id are the database's to compute.
pub async fn an_application_only_inserts(flavour: Flavour) {
    let mut f = Fixture::sharded(flavour).await;
    let url = as_user(&mut f, "application").await;
    let mut session = outhaul_testkit::servers::Session::open(flavour, &url).await.expect("connect");
    session.execute(&f.insert_sql(&[AppRow::nth(0), AppRow::nth(1).with_id(None)])).await;
    for sql in ["SELECT * FROM outbox", "DELETE FROM outbox", "SELECT * FROM outbox_lease"] {
        session.try_query(sql).await.expect_err(sql);
    }
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 2);
    let mut owner = f.owner("one").await;
    let parts = f.shards().iter().map(|shard| owner.part(*shard, &rows)).collect();
    assert_eq!(owner.write(f.store.as_ref(), parts).await, vec![ShardOutcome::Written; f.shards().len()]);
}
