//! S4 and the like: rows that nobody should write. Each is parked with its reason, the others flow, nothing spins.

use outhaul_store::InitPlan;
use outhaul_testkit::scripted::ScriptedSink;
use outhaul_testkit::servers::Flavour;

use crate::engine::{Bench, LIMIT};
use crate::on_each;

on_each!(s4_poison_rows: all);

async fn s4_poison_rows(flavour: Flavour) {
    let mut bench = Bench::with(flavour, |o| o.max_message_bytes = 1_000).await;
    let sink = ScriptedSink::by_key(2);
    let db = &bench.database;
    db.execute("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('no-topic', '', 'a', 'x')").await;
    let big = "y".repeat(5_000);
    db.execute(&format!(
        "INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('too-large', 'order-created', 'b', '{big}')"
    ))
    .await;
    db.execute("INSERT INTO outbox (id, topic, msg_key, payload, headers) VALUES ('headers', 'order-created', 'c', 'x', '{\"n\":1}')").await;
    let mut poison = 3;
    // Bytes that are not UTF-8, where the database lets them in.
    let bytes = match flavour {
        Flavour::Sqlite => Some("CAST(x'ff41' AS TEXT)"),
        Flavour::MariaDb | Flavour::MySql => Some("x'ff41'"),
        Flavour::Postgres => None,
    };
    if let Some(bytes) = bytes {
        db.execute(&format!(
            "INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('not-utf8', 'order-created', {bytes}, 'x')"
        ))
        .await;
        poison += 1;
    }
    bench.insert_many(0..20).await;
    let relay = bench.relay(&[&sink]).await;
    sink.wait_stored(20).await;
    bench.wait_settled().await;
    bench.insert_many(20..40).await;
    sink.wait_stored(40).await;
    bench.wait_settled().await;
    relay.drain().await;
    let dead: u64 = bench.status().await.iter().flat_map(|s| &s.parked).map(|p| p.3).sum();
    assert_eq!(dead, poison, "{:?}", bench.status().await);
    let large = bench
        .database
        .query_u64(
            "SELECT count(*) FROM outbox_parked WHERE oversize_payload IS NOT NULL AND length(oversize_payload) = 5000",
        )
        .await;
    assert_eq!(large, 1, "the payload was kept without passing through the relay");
    assert!(sink.received().iter().all(|r| r.message.id.starts_with('m')), "no poison row was sent");
}

on_each!(another_shard_count_is_refused: servers);

/// The tables are made anew with another number of shards under a relay that runs.
async fn another_shard_count_is_refused(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..5).await;
    sink.wait_stored(5).await;
    bench.database.execute("DELETE FROM outbox_lease WHERE shard = 1").await;
    let ended = tokio::time::timeout(LIMIT, relay.task).await.expect("ends by itself").unwrap();
    let error = ended.expect_err("a relay with another number of shards");
    assert_eq!(error.code(), "OUT-4008", "{error}");
}

on_each!(rows_in_no_shard_are_an_error: servers);

/// Rows in a shard that there is not: everything else is delivered, and the outbox is not called empty.
async fn rows_in_no_shard_are_an_error(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.until_empty = true;
    let sink = ScriptedSink::single();
    let tables = ["", "_log", "_receipt", "_parked", "_lease", "_instance", "_meta"].map(|t| format!("outbox{t}"));
    bench.database.execute(&format!("DROP TABLE {}", tables.join(", "))).await;
    bench.store.init(&InitPlan { shards: 3, ..InitPlan::default() }).await.unwrap();
    bench.insert_many(0..50).await;
    bench.database.execute("UPDATE outbox_meta SET value = '2' WHERE name = 'shards'").await;
    bench.database.execute("DELETE FROM outbox_lease WHERE shard = 2").await;
    let left = bench.database.query_u64("SELECT count(*) FROM outbox WHERE shard = 2").await;
    assert!(left > 0 && left < 50, "{left}");
    let relay = bench.relay(&[&sink]).await;
    let ended = tokio::time::timeout(LIMIT, relay.task).await.expect("ends by itself").unwrap();
    let error = ended.expect_err("it is not empty");
    assert_eq!(error.code(), "OUT-1016", "{error}");
    assert_eq!(sink.stored().len() as u64, 50 - left);
}

on_each!(no_route_is_parked: all);

async fn no_route_is_parked(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay_with(&[&sink], "order-*").await;
    bench
        .database
        .execute("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('lost?', 'payment', 'a', 'x')")
        .await;
    bench.insert_many(0..5).await;
    sink.wait_stored(5).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!(bench.parked("-").await, (0, 0, 1));
}

on_each!(cannot_start: servers);

/// No tables, wrong password, a user without rights, another shard count: a coded error, at once.
async fn cannot_start(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::single();
    let ends = async |bench: &mut Bench, url: String, code: &str| {
        bench.options.url = url;
        let store = outhaul_store::open(bench.options.clone()).await;
        let error = match store {
            Err(e) => e.kind.code().to_owned(),
            Ok(_) => {
                let relay = bench.relay(&[&sink]).await;
                let ended = tokio::time::timeout(LIMIT, relay.task).await.expect("ends by itself").unwrap();
                ended.expect_err("must not run").code().to_owned()
            }
        };
        assert_eq!(error, code, "{}", flavour.name());
    };
    let url = bench.database.url.clone();
    let wrong = bench.database.url_as("outhaul", "wrong");
    ends(&mut bench, wrong, "OUT-1005").await;
    let reader = bench
        .database
        .restricted_user(match flavour {
            Flavour::Postgres => &["SELECT ON ALL TABLES IN SCHEMA public"],
            _ => &["SELECT ON *.*"],
        })
        .await;
    ends(&mut bench, reader, "OUT-1006").await;
    bench.database.execute("UPDATE outbox_meta SET value = '99' WHERE name = 'schema_version'").await;
    ends(&mut bench, url.clone(), "OUT-1008").await;
    bench.database.execute("DROP TABLE outbox_meta").await;
    ends(&mut bench, url, "OUT-1007").await;
    assert_eq!(sink.calls(), 0);
}

on_each!(l5_too_large_and_a_lagging_lane: all);

/// L5: the payload of a row that is too large is kept for every lane in the transaction that deletes the row, also for
/// a lane that is behind, and also when the row is moved before the owner has sent anything.
async fn l5_too_large_and_a_lagging_lane(flavour: Flavour) {
    let mut bench = Bench::with(flavour, |o| o.max_message_bytes = 1_000).await;
    bench.settings.window_bytes = 1;
    let (fast, slow) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    slow.otherwise(outhaul_testkit::scripted::Answer::Down);
    let big = "y".repeat(5_000);
    let large = |id: &str| {
        format!(
            "INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('{id}', 'order-created', 'big-{id}', '{big}')"
        )
    };
    bench.database.execute(&large("before")).await;
    let relay = bench.relay(&[&fast, &slow]).await;
    bench.insert_many(0..20).await;
    fast.wait_stored(20).await;
    bench.database.execute(&large("while-down")).await;
    bench.insert_many(20..40).await;
    fast.wait_stored(40).await;
    bench.wait("all moved", |s| s.iter().all(|s| s.hot_rows == 0)).await;
    slow.otherwise(outhaul_testkit::scripted::Answer::Ok);
    slow.wait_stored(40).await;
    bench.wait_settled().await;
    relay.drain().await;
    let kept = "SELECT count(*) FROM outbox_parked WHERE length(oversize_payload) = 5000 AND state = 'dead'";
    assert_eq!(bench.database.query_u64(kept).await, 4, "two rows for each of two lanes");
    assert_eq!((fast.duplicates(), slow.duplicates()), (0, 0));
}
