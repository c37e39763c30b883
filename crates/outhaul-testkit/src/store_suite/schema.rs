//! `ddl`, `init` and `inspect`.

use outhaul_store::{InitPlan, PayloadType, SCHEMA_VERSION, StoreErrorKind, StoreOptions};

use super::fixture::{AppRow, Fixture, shards_of};
use crate::servers::Flavour;

/// `inspect` is content with what `init` made.
pub async fn init_makes_all_that_inspect_wants(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let info = f.store.inspect().await.expect("inspect");
    assert_eq!((info.version, info.shards, info.mode.as_str()), (SCHEMA_VERSION, f.plan.shards, "move"));
    assert_eq!(info.payload, PayloadType::Bytes);
    assert!(!info.server.is_empty());
    assert_eq!(f.store.kind(), flavour.kind());
}

/// A second `init` leaves rows, leases and the rest as they are.
pub async fn init_may_be_repeated(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.insert_series(0..3).await;
    let owner = f.owner("one").await;
    f.store.init(&f.plan).await.expect("init again");
    assert_eq!(f.hot_ids().await, ["m0", "m1", "m2"]);
    let report = f.store.lease_round(&f.round("one")).await.expect("lease_round");
    assert!(report.leases.iter().all(|l| owner.epochs.get(&l.shard) == Some(&l.epoch)));
}

/// What `init --print` prints makes the same tables when it is run by hand.
pub async fn the_ddl_can_be_run_by_hand(flavour: Flavour) {
    for payload in [PayloadType::Bytes, PayloadType::Json] {
        let plan = InitPlan { shards: shards_of(flavour), payload, ..InitPlan::default() };
        let by_hand = Fixture::empty(flavour, |_| {}).await;
        let ddl = by_hand.store.ddl(&plan);
        assert!(ddl.contains("GRANT"), "the rights of both users belong to it");
        by_hand.database.execute(&ddl).await;
        let made = Fixture::with(flavour, plan, |_| {}).await;
        let (by_hand_info, made_info) = (by_hand.store.inspect().await, made.store.inspect().await);
        assert_eq!(by_hand_info.expect("inspect"), made_info.expect("inspect"));
        by_hand.store.init(&made.plan).await.expect("init after it");
    }
}

/// The type of the payload is what the catalogue says. SQLite has no type of its own for JSON.
pub async fn the_payload_type_is_found(flavour: Flavour) {
    for payload in [PayloadType::Bytes, PayloadType::Text, PayloadType::Json] {
        let f = Fixture::with(flavour, InitPlan { payload, ..InitPlan::default() }, |_| {}).await;
        let found = f.store.inspect().await.expect("inspect").payload;
        let wanted = match payload {
            PayloadType::Json if flavour == Flavour::Sqlite => PayloadType::Text,
            // MariaDB's JSON is LONGTEXT with a check.
            PayloadType::Json if flavour == Flavour::MariaDb && found == PayloadType::Text => PayloadType::Text,
            other => other,
        };
        assert_eq!(found, wanted);
        f.database.execute("INSERT INTO outbox (topic, msg_key, payload) VALUES ('t', 'k', '{\"a\": \"b\"}')").await;
        let text = String::from_utf8(f.read_all().await[0].payload.to_vec()).expect("text");
        assert_eq!(text.replace(' ', ""), r#"{"a":"b"}"#);
    }
}

/// Another shard count, and another version, are refused by `init` and `inspect` alike.
pub async fn another_schema_is_refused(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let more = InitPlan { shards: f.plan.shards + 1, ..InitPlan::default() };
    let refused = f.store.init(&more).await.expect_err("another shard count").kind;
    let wanted = if flavour == Flavour::Sqlite { StoreErrorKind::Configuration } else { StoreErrorKind::WrongSchema };
    assert_eq!(refused, wanted);
    f.store.inspect().await.expect("nothing has changed");
    f.database.execute("UPDATE outbox_meta SET value = '999' WHERE name = 'schema_version'").await;
    assert_eq!(f.store.inspect().await.expect_err("another version").kind, StoreErrorKind::WrongSchema);
    assert_eq!(f.store.init(&f.plan).await.expect_err("another version").kind, StoreErrorKind::WrongSchema);
}

/// A plan that the database cannot have is refused before anything is made.
pub async fn an_impossible_plan_is_refused(flavour: Flavour) {
    let f = Fixture::empty(flavour, |_| {}).await;
    let mut plans = vec![0, 1_025];
    plans.extend((flavour == Flavour::Sqlite).then_some(2));
    for shards in plans {
        let refused = f.store.init(&InitPlan { shards, ..InitPlan::default() }).await.expect_err("no such plan");
        assert_eq!(refused.kind, StoreErrorKind::Configuration, "{shards} shards");
    }
    assert_eq!(f.store.inspect().await.expect_err("nothing is there").kind, StoreErrorKind::NotInitialised);
}

/// What is missing is named, with the DDL that makes it.
pub async fn what_is_missing_is_named(flavour: Flavour) {
    let empty = Fixture::empty(flavour, |_| {}).await;
    for error in [empty.store.inspect().await.err(), empty.store.read(&empty.everything()).await.err()] {
        assert_eq!(error.expect("no tables").kind, StoreErrorKind::NotInitialised);
    }
    let tables =
        ["outbox", "outbox_log", "outbox_receipt", "outbox_parked", "outbox_lease", "outbox_instance", "outbox_meta"];
    for table in tables {
        let f = Fixture::sharded(flavour).await;
        f.database.execute(&format!("DROP TABLE {table}")).await;
        let error = f.store.inspect().await.expect_err("a table is missing");
        assert_eq!(error.kind, StoreErrorKind::NotInitialised, "{error}");
        assert!(error.message.contains(table), "{error}");
        f.store.init(&f.plan).await.expect("init makes what is missing");
        f.store.inspect().await.expect("inspect");
    }
    for (table, column) in [("outbox", "headers"), ("outbox", "available_at"), ("outbox_parked", "oversize_payload")] {
        let f = Fixture::sharded(flavour).await;
        f.database.execute(&format!("ALTER TABLE {table} DROP COLUMN {column}")).await;
        let error = f.store.inspect().await.expect_err("a column is missing");
        assert_eq!(error.kind, StoreErrorKind::NotInitialised, "{error}");
        assert!(error.message.contains(table) && error.message.contains(column), "{error}");
    }
}

/// A prefix goes before every name, so that two outboxes share a database.
pub async fn two_outboxes_share_a_database(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let options = StoreOptions { table_prefix: "Second_".into(), outbox_table: "out box".into(), ..f.options.clone() };
    let second = outhaul_store::open(options).await.expect("open");
    assert_eq!(second.inspect().await.expect_err("not yet").kind, StoreErrorKind::NotInitialised);
    second.init(&f.plan).await.expect("init");
    second.inspect().await.expect("inspect");
    f.insert(&[AppRow::nth(1)]).await;
    let new = outhaul_store::NewRow { id: Some("second".into()), topic: "t".into(), ..Default::default() };
    second.enqueue(&[new]).await.expect("enqueue");
    let read = second.read(&f.everything()).await.expect("read").rows;
    assert_eq!(super::fixture::ids(&read), ["second"]);
    assert_eq!(f.hot_ids().await, ["m1"]);
    let mut round = f.round("two");
    round.acquire = f.shards();
    second.lease_round(&round).await.expect("lease_round");
    f.owner("one").await.move_all(&f).await;
    assert_eq!(second.read(&f.everything()).await.expect("read").rows.len(), 1);
    second.close().await;
}

/// No error and no debug text holds the password.
pub async fn the_password_is_never_shown(flavour: Flavour) {
    if flavour == Flavour::Sqlite {
        return;
    }
    let f = Fixture::new(flavour).await;
    let url = f.database.url_as("nobody", "s3cr3t-word");
    let options = StoreOptions { url, ..f.options.clone() };
    assert!(!format!("{options:?}").contains("s3cr3t-word"));
    let error = match outhaul_store::open(options).await {
        Err(error) => error,
        Ok(store) => store.inspect().await.expect_err("no such user"),
    };
    assert_eq!(error.kind, StoreErrorKind::Authentication, "{error}");
    assert!(!format!("{error} {error:?}").contains("s3cr3t-word"));
}

/// A shard without a lease row is an error that `init` heals; a lease row without a shard is a warning.
pub async fn every_shard_has_a_lease(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    assert_eq!(f.store.inspect().await.expect("inspect").stray, None);
    let last = f.plan.shards - 1;
    f.database.execute(&format!("DELETE FROM outbox_lease WHERE shard = {last}")).await;
    let error = f.store.inspect().await.expect_err("a lease is missing");
    assert_eq!(error.kind, StoreErrorKind::WrongSchema);
    assert!(error.message.contains(&format!("no row for shard {last}")), "{error}");
    f.store.init(&f.plan).await.expect("init again");
    let before = f.store.inspect().await.expect("healed").warnings;
    f.database.execute("INSERT INTO outbox_lease (shard, epoch) VALUES (77, 0)").await;
    let warnings = f.store.inspect().await.expect("inspect").warnings;
    assert!(warnings.len() == before.len() + 1 && warnings.iter().any(|w| w.contains("shard 77")), "{warnings:?}");
}

/// Rows whose shard is none are said to be there, and what keeps them out on new tables keeps them out.
pub async fn rows_in_no_shard_are_said(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    if f.plan.shards == 1 {
        return; // every row is in the one shard
    }
    f.insert_series(0..50).await;
    if matches!(flavour, Flavour::MariaDb | Flavour::MySql) {
        let named = "INSERT INTO outbox (shard, id, topic, payload) VALUES (9, 'named', 't', 'p')";
        if f.database.session().await.try_execute(named).await.is_ok() {
            // MySQL below 8.0.16 does not heed the constraint.
            assert_eq!(flavour, Flavour::MySql);
            let stray = f.store.inspect().await.expect("inspect").stray.expect("a row of shard 9");
            assert!(stray.message.contains("shard is 9, and the shards are 0 to 3"), "{stray}");
            f.database.execute("DELETE FROM outbox WHERE id = 'named'").await;
        }
    }
    assert_eq!(f.store.inspect().await.expect("inspect").stray, None);
    let last = f.plan.shards - 1;
    f.database.execute(&format!("UPDATE outbox_meta SET value = '{last}' WHERE name = 'shards'")).await;
    f.database.execute(&format!("DELETE FROM outbox_lease WHERE shard = {last}")).await;
    let stray = f.store.inspect().await.expect("inspect").stray.expect("rows of a shard that there is not");
    assert_eq!(stray.kind, StoreErrorKind::StrayRows);
    assert!(stray.message.contains(&format!("shard is {last}")), "{stray}");
    f.database.execute(&format!("DELETE FROM outbox WHERE shard = {last}")).await;
    assert_eq!(f.store.inspect().await.expect("inspect").stray, None);
}
