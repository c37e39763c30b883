//! Servers whose settings are not what one would wish for. Each case has a server of its own.

use std::sync::Arc;

use outhaul_core::checkpoint::ShardOutcome;
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Defect, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState, ParkedWrite};
use outhaul_store::inbox::{InboxMessage, InboxOutcome};
use outhaul_store::{InitPlan, NewRow, ReadRequest, StoreErrorKind, StoreOptions};
use outhaul_testkit::servers::{Flavour, OwnServer};
use outhaul_testkit::store_suite::{AppRow, Fixture};

async fn on(server: &OwnServer, shards: u16) -> Fixture {
    let database = server.database().await;
    let options = StoreOptions::new(database.url.clone());
    let store = outhaul_store::open(options.clone()).await.expect("open");
    let plan = InitPlan { shards, ..InitPlan::default() };
    store.init(&plan).await.expect("init");
    Fixture { options, plan, store, database }
}

/// B4, S8: SERIALIZABLE, no autocommit, another time zone, another sql_mode, and safe updates by default. The relay's
/// sessions are its own, and nothing is missed, waited for or shifted in time.
pub async fn a_server_with_other_ideas(flavour: Flavour) {
    let isolation = if flavour == Flavour::MariaDb {
        "transaction-isolation=SERIALIZABLE"
    } else {
        "transaction_isolation=SERIALIZABLE"
    };
    let server = OwnServer::start(
        flavour,
        &[
            isolation,
            "default-time-zone=+09:30",
            "sql-mode=ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT",
            "init-connect=SET sql_safe_updates = 1, autocommit = 0",
        ],
    )
    .await;
    let f = on(&server, 4).await;
    f.store.inspect().await.expect("inspect");
    let mut owner = f.owner("one").await;
    // As the servers' own root, which skips init_connect: an application in another time zone.
    let mut application = f.database.session().await;
    application
        .execute("SET time_zone = '-07:00'; SET autocommit = 1; SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        .await;
    application.execute(&f.insert_sql(&(0..40).map(AppRow::nth).collect::<Vec<_>>())).await;
    application
        .execute("INSERT INTO outbox (id, topic, payload, available_at) VALUES ('due', 't', 'p', NOW(6) - INTERVAL 1 MINUTE), ('later', 't', 'p', NOW(6) + INTERVAL 1 HOUR)")
        .await;
    let mut open = f.database.session().await;
    open.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
    open.execute(&format!("BEGIN; {}", f.insert_sql(&[AppRow::nth(100)]))).await;
    let answer = f.read(&f.everything()).await;
    assert_eq!(answer.rows.len(), 41);
    let now_us = f.database.query_u64("SELECT CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)").await as i64;
    assert!(answer.rows.iter().all(|row| (now_us - row.created_at_us).abs() < 60_000_000));
    owner.move_rows(f.store.as_ref(), &answer.rows).await;
    open.execute("COMMIT").await;
    let left = f.read_all().await;
    assert_eq!(left.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["m100"]);
    let quoted = NewRow {
        id: Some("it's \\ \"quoted\"".into()),
        topic: "t\\'".into(),
        key: Some("\\".into()),
        ..NewRow::default()
    };
    f.store.enqueue(std::slice::from_ref(&quoted)).await.expect("enqueue");
    let rows = f.read_all().await;
    let row = rows.iter().find(|row| Some(&row.id) == quoted.id.as_ref()).expect("the row");
    assert_eq!((&row.topic, &row.key), (&quoted.topic, &quoted.key));
    owner.move_rows(f.store.as_ref(), &rows).await;
    assert_eq!(f.store.status().await.expect("status").len(), 4);
    assert!(f.store.resolved(row.seq).await.is_ok());
}

/// B6: statements, chunks and answers fit into small packets.
pub async fn packets_may_be_small(flavour: Flavour) {
    let server = OwnServer::start(flavour, &["max_allowed_packet=64K"]).await;
    let f = on(&server, 4).await;
    let mut owner = f.owner("one").await;
    let noise = |seed: u64, bytes: usize| -> Vec<u8> {
        let mut state = seed * 2 + 0x9e37_79b9;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        std::iter::repeat_with(&mut next).take(bytes).collect()
    };
    for n in 0..60u64 {
        f.insert(&(0..50).map(|k| AppRow::nth(n * 100 + k).with_payload(noise(n * 100 + k, 300))).collect::<Vec<_>>())
            .await;
        if n % 2 == 0 {
            f.database.execute(&format!("BEGIN;{}ROLLBACK", f.insert_sql(&[AppRow::nth(0)]))).await;
        }
    }
    // As large as an application can insert them at all, and a long key.
    for n in 0..5u64 {
        f.insert(&[AppRow::nth(n + 90_000).with_payload(noise(n, 30_000)).with_key(Some(&"k".repeat(255)))]).await;
    }
    let rows = f.read(&ReadRequest { max_bytes: 1 << 20, limit: 10_000, ..f.everything() }).await.rows;
    assert!(rows.len() > 2_500 && rows.iter().all(|row| row.defect.is_none()));
    let all = f.read_all().await;
    assert_eq!(all.len(), 3_005);
    // All ways of deleting: by range, and, where every second one stays, by name.
    let odd: Vec<_> =
        all.iter().enumerate().filter(|(n, _)| *n < 1_000 && n % 2 == 1).map(|(_, row)| row.clone()).collect();
    owner.move_rows(f.store.as_ref(), &odd).await;
    owner.move_all(&f).await;
    assert!(f.hot().await.is_empty());
    let mut logged = 0;
    for shard in f.shards() {
        let chunks = f.store.read_log(shard, outhaul_core::message::Position(0), usize::MAX).await.expect("read_log");
        assert!(chunks.iter().all(|c| c.bytes.len() < 60_000));
        logged += f.log(shard).await.len();
    }
    assert_eq!(logged, 3_005);
    let rows: Vec<NewRow> =
        (0..500).map(|n| NewRow { topic: "t".into(), payload: noise(n, 400).into(), ..NewRow::default() }).collect();
    assert_eq!(f.store.enqueue(&rows).await.expect("enqueue").len(), 500);
    let prune = outhaul_store::PruneRequest {
        owner: "p".into(),
        retention_ms: 0,
        merge_after_ms: None,
        step: 10_000,
        exported: None,
    };
    f.database.execute("UPDATE outbox_log SET moved_at = moved_at - INTERVAL 1 HOUR; UPDATE outbox_receipt SET created_at = created_at - INTERVAL 1 HOUR").await;
    assert_eq!(f.store.prune(&prune).await.expect("prune").messages, 3_005);
    // An inbox on such a server: what fits is stored, what does not is refused.
    let inbox = outhaul_store::inbox::open(f.options.clone(), 1).await.expect("open");
    inbox.init().await.expect("init");
    let message = |id: &str, bytes: usize| InboxMessage {
        id: id.into(),
        topic: "t".into(),
        key: Some(id.into()),
        headers: None,
        payload: noise(7, bytes).into(),
        position: "0:1".into(),
    };
    let batch = [message("a", 20_000), message("b", 45_000), message("c", 70_000), message("d", 20_000)];
    let outcomes = inbox.deliver(0, "c", &batch).await.expect("deliver");
    assert!(matches!(outcomes[2], InboxOutcome::Refused(_)), "{outcomes:?}");
    assert!([0, 1, 3].iter().all(|n| outcomes[*n] == InboxOutcome::Stored), "{outcomes:?}");
    let stored = f.database.query_u64("SELECT SUM(LENGTH(payload)) FROM inbox_message").await;
    assert_eq!(stored, 85_000);
}

/// L5, B6: a payload of 32 MiB, more than a packet takes, is neither fetched nor lost: it goes from table to table.
pub async fn a_payload_larger_than_a_packet_is_parked(flavour: Flavour) {
    let server = OwnServer::start(flavour, &["max_allowed_packet=64M"]).await;
    let f = on(&server, 1).await;
    f.insert_series(0..1).await;
    f.database
        .execute("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('huge', 't', 'k', REPEAT('x', 33554432))")
        .await;
    f.insert_series(1..2).await;
    f.database.execute("SET GLOBAL max_allowed_packet = 1048576").await;
    // Sessions keep what they began with.
    let f = Fixture { store: f.another_store().await, ..f };
    let rows = f.read_all().await;
    let limit = f.options.max_message_bytes.min(1 << 20);
    assert!(
        matches!(rows[1].defect, Some(Defect::TooLarge { bytes: 33_554_432, limit: l }) if l <= limit),
        "{:?}",
        rows[1].defect
    );
    let mut owner = f.owner("one").await;
    let mut part = owner.part(ShardId(0), &rows);
    let message = Arc::clone(&part.moved[1]);
    let entry = ParkedEntry {
        destination: NO_ROUTE.into(),
        shard: ShardId(0),
        position: message.position,
        key: message.key.clone(),
        state: ParkedState::Dead,
        attempts: 0,
        due_at_us: 0,
        error_code: "OUT-2001".into(),
        error_text: String::new(),
        first_failed_at_us: 0,
        last_failed_at_us: 0,
    };
    part.parked = vec![ParkedWrite::Insert { entry, message }];
    assert_eq!(owner.write(f.store.as_ref(), vec![part]).await, [ShardOutcome::Written]);
    assert_eq!(f.database.query_u64("SELECT LENGTH(oversize_payload) FROM outbox_parked").await, 33_554_432);
    assert!(f.hot().await.is_empty());
}

/// What promises less than usual is named by its setting.
pub async fn weak_settings_are_named(flavour: Flavour) {
    let server = OwnServer::start(
        flavour,
        &["innodb_flush_log_at_trx_commit=2", "sync_binlog=0", "auto_increment_increment=2", "binlog_format=MIXED"],
    )
    .await;
    let f = on(&server, 4).await;
    f.database.execute("SET GLOBAL binlog_format = 'STATEMENT'").await;
    let f = Fixture { store: f.another_store().await, ..f };
    let error = f.store.inspect().await.expect_err("no write would work");
    assert_eq!((error.kind, error.message.contains("binlog_format")), (StoreErrorKind::Configuration, true));
    f.database.execute("SET GLOBAL binlog_format = 'MIXED'").await;
    let f = Fixture { store: f.another_store().await, ..f };
    let said = f.store.inspect().await.expect("inspect").warnings.join("\n");
    for setting in ["innodb_flush_log_at_trx_commit", "sync_binlog", "auto_increment_increment"] {
        assert!(said.contains(setting), "{setting} is not in: {said}");
    }
    // Numbers with holes between them, and a binary log that would rather have statements.
    let mut owner = f.owner("one").await;
    f.insert_series(0..100).await;
    let rows = f.read_all().await;
    assert!(rows.windows(2).all(|w| w[1].seq.0 - w[0].seq.0 == 2));
    owner.move_rows(f.store.as_ref(), &rows).await;
    assert!(f.hot().await.is_empty());
}

/// A server that is set read-only is refused at once, and noticed when it becomes so later.
pub async fn a_replica_is_refused(flavour: Flavour) {
    let server = OwnServer::start(flavour, &[]).await;
    let mut f = on(&server, 1).await;
    let all = format!("ALL ON {}.*", f.database.name());
    let url = f.database.restricted_user(&[&all]).await;
    let store = outhaul_store::open(StoreOptions { url: url.clone(), ..f.options.clone() }).await.expect("open");
    f.insert_series(0..3).await;
    let rows = f.read_all().await;
    let owner = f.owner("one").await;
    let checkpoint = owner.checkpoint(vec![owner.part(ShardId(0), &rows)]);
    assert_eq!(store.checkpoint_applied(&checkpoint).await.expect("applied"), [None]);
    store.lease_round(&f.round("one")).await.expect("round");
    store.inspect().await.expect("inspect");
    f.database.execute("SET GLOBAL read_only = ON").await;
    for error in [
        store.checkpoint(&checkpoint).await.map(drop),
        store.lease_round(&f.round("one")).await.map(drop),
        store.inspect().await.map(drop),
    ] {
        assert_eq!(error.expect_err("nobody may write").kind, StoreErrorKind::ReadOnly);
    }
    for url in [url, f.options.url.clone()] {
        let error = outhaul_store::open(StoreOptions::new(url)).await.err().expect("a replica");
        assert_eq!(error.kind, StoreErrorKind::ReadOnly, "{error}");
    }
    if flavour == Flavour::MySql {
        f.database.execute("SET GLOBAL super_read_only = ON").await;
        assert_eq!(f.store.checkpoint(&checkpoint).await.expect_err("nobody").kind, StoreErrorKind::ReadOnly);
        f.database.execute("SET GLOBAL super_read_only = OFF").await;
    }
    f.database.execute("SET GLOBAL read_only = OFF").await;
    assert_eq!(store.checkpoint(&checkpoint).await.expect("checkpoint"), [ShardOutcome::Written]);
    // A default that makes transactions read-only.
    let variable = if flavour == Flavour::MariaDb { "tx_read_only" } else { "transaction_read_only" };
    f.database.execute(&format!("SET GLOBAL {variable} = ON")).await;
    let error = outhaul_store::open(f.options.clone()).await.err().expect("a read-only session");
    assert_eq!((error.kind, error.message.contains(variable)), (StoreErrorKind::ReadOnly, true), "{error}");
}

/// kill -9 of the server: every connection is lost, what was committed is there, and the next calls connect anew.
pub async fn a_restarted_server_is_connected_to_anew(flavour: Flavour) {
    let server = OwnServer::start(flavour, &[]).await;
    let f = on(&server, 4).await;
    f.insert_series(0..20).await;
    let mut owner = f.owner("one").await;
    owner.move_all(&f).await;
    f.insert_series(20..30).await;
    server.kill9().await;
    assert_eq!(f.store.read(&f.everything()).await.expect_err("gone").kind, StoreErrorKind::Unavailable);
    server.restart().await;
    // A connection that was idle all the while notices by itself, once.
    _ = f.store.lease_round(&f.round("one")).await;
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 10);
    let parts: Vec<_> = f.shards().iter().map(|shard| owner.part(*shard, &rows)).collect();
    let checkpoint = owner.checkpoint(parts.clone());
    if let Err(error) = f.store.checkpoint(&checkpoint).await {
        assert_eq!(error.kind, StoreErrorKind::Unavailable, "nothing was sent on a connection that is gone");
        owner.write(f.store.as_ref(), parts).await;
    }
    assert!(f.hot().await.is_empty());
    f.insert_series(30..31).await;
    assert!(f.read_all().await[0].seq > rows[9].seq, "numbers are not given again");
}
