//! Failures of reading: late commits, long transactions, restarted sequences, restored backups, repeated ids.

use std::time::Duration;

use outhaul_testkit::scripted::ScriptedSink;
use outhaul_testkit::servers::{self, Flavour};

use crate::engine::{Bench, begin, insert};
use crate::on_each;

on_each!(l1_d6_late_commit: servers);

/// L1, D6: a smaller seq becomes visible after a larger one; nothing of an open transaction is sent before it commits.
async fn l1_d6_late_commit(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    let mut open = bench.database.session().await;
    open.execute(begin(flavour)).await;
    open.execute(&insert("early", "k1")).await;
    open.execute(&insert("early-2", "k1")).await;
    let mut rolled_back = bench.database.session().await;
    rolled_back.execute(begin(flavour)).await;
    rolled_back.execute(&insert("never", "k2")).await;
    bench.insert("later", "k3").await;
    sink.wait_stored(1).await;
    rolled_back.execute("ROLLBACK").await;
    let open_for = if servers::soak() { Duration::from_secs(360) } else { Duration::from_secs(5) };
    let until = tokio::time::Instant::now() + open_for;
    let mut sent = 1;
    while tokio::time::Instant::now() < until {
        bench.insert(&format!("meanwhile-{sent}"), "k3").await;
        sent += 1;
        sink.wait_stored(sent).await;
        tokio::time::sleep(Duration::from_millis(100)).await; // The transaction must be open for long: that is the case.
    }
    assert!(sink.stored_ids().iter().all(|id| !id.starts_with("early")), "sent before its commit");
    open.execute("COMMIT").await;
    bench.insert("last", "k1").await;
    sink.wait_stored(sent + 3).await;
    bench.wait_settled().await;
    relay.drain().await;
    let of_key: Vec<String> =
        sink.stored_ids().into_iter().filter(|id| id.starts_with("early") || id == "last").collect();
    assert_eq!(of_key, ["early", "early-2", "last"]);
    assert_eq!(sink.duplicates(), 0);
}

on_each!(l9_four_columns_by_plain_sql: all);

/// L9: rows of any kind that the four documented columns allow.
async fn l9_four_columns_by_plain_sql(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.database.execute("INSERT INTO outbox (topic, payload) VALUES ('order-created', 'no key, no id')").await;
    bench.database.execute("INSERT INTO outbox (topic, msg_key, payload) VALUES ('order-created', NULL, '')").await;
    bench
        .database
        .execute("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('x', 'order-created', '', 'empty key')")
        .await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    sink.wait_stored(3).await;
    bench.wait_settled().await;
    relay.drain().await;
    let stored = sink.stored();
    assert!(stored.iter().filter(|m| m.id != "x").all(|m| m.id.len() == 36 && m.key.is_none()));
    assert_eq!(stored.iter().find(|m| m.id == "x").unwrap().key.as_deref(), Some(""), "an empty key is a key");
    assert!(stored.iter().any(|m| &m.payload[..] == b"no key, no id"));
}

on_each!(l10_the_same_id_twice: all);

/// L10: both rows are delivered.
async fn l10_the_same_id_twice(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    bench.insert("twin", "k").await;
    sink.wait_stored(1).await;
    bench.insert("twin", "k").await;
    sink.wait_stored(2).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!(sink.duplicates(), 1);
}

on_each!(b5_sequence_restarts: all);

/// B5: the sequence starts again below the tail, while the relay runs.
async fn b5_sequence_restarts(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..50).await;
    sink.wait_stored(50).await;
    bench.wait_settled().await;
    bench
        .database
        .execute(match flavour {
            Flavour::Sqlite => "DELETE FROM outbox; DELETE FROM sqlite_sequence WHERE name = 'outbox'",
            Flavour::Postgres => "TRUNCATE outbox RESTART IDENTITY",
            _ => "TRUNCATE TABLE outbox",
        })
        .await;
    for n in 50..130 {
        bench.insert_many(n..n + 1).await;
    }
    sink.wait_stored(130).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!(sink.stored_ids().len(), 130);
    assert_eq!(sink.duplicates(), 0);
    let ends: u64 = bench.status().await.iter().map(|s| s.log_end.0).sum();
    assert_eq!(ends, 130, "positions go on upwards");
}

on_each!(b7_restored_backup: servers);

/// B7: the database goes back to an earlier state under a running relay. Rows are sent again under their ids, and
/// positions and cursors go on.
async fn b7_restored_backup(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.settings.rescan_min_ms = 200;
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..20).await;
    sink.wait_stored(20).await;
    bench.wait_settled().await;
    // The backup is from here: 20 messages in the log, then ten rows are committed and delivered.
    let backup = ["outbox_log", "outbox_receipt"];
    for table in backup {
        let like = if flavour == Flavour::Postgres { format!("(LIKE {table})") } else { format!("LIKE {table}") };
        let backup = format!("CREATE TABLE backup_{table} {like}; INSERT INTO backup_{table} SELECT * FROM {table}");
        bench.database.execute(&backup).await;
    }
    bench.insert_many(20..30).await;
    sink.wait_stored(30).await;
    bench.wait_settled().await;
    let restore: String =
        backup.iter().map(|t| format!("DELETE FROM {t}; INSERT INTO {t} SELECT * FROM backup_{t};")).collect();
    let values: Vec<String> = (20..30).map(|n| format!("('m{n}', 'order-created', 'k{}', '{{}}')", n % 5)).collect();
    let hot = format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {}", values.join(","));
    bench.database.execute(&format!("BEGIN; {restore} {hot}; COMMIT")).await;
    sink.wait_stored(40).await;
    bench.insert_many(30..35).await;
    sink.wait_stored(45).await;
    bench.wait_settled().await;
    relay.drain().await;
    let ends: u64 = bench.status().await.iter().map(|s| s.log_end.0).sum();
    assert_eq!(ends, 35);
    assert_eq!(sink.stored_ids().len(), 35);
}

on_each!(d4_receipts_cannot_be_written: all);

/// D4: the table for receipts is gone for a while: what was sent is not sent again, and nothing is lost.
async fn d4_receipts_cannot_be_written(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..20).await;
    sink.wait_stored(20).await;
    bench.wait_settled().await;
    bench.database.execute("ALTER TABLE outbox_receipt RENAME TO outbox_receipt_away").await;
    bench.insert_many(20..40).await;
    sink.wait_stored(40).await; // Sent ahead of the checkpoint that cannot be written.
    bench.insert_many(40..60).await;
    bench.database.execute("ALTER TABLE outbox_receipt_away RENAME TO outbox_receipt").await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!((sink.stored().len(), sink.duplicates()), (60, 0));
}

on_each!(l2_killed_between_send_and_receipt: all);

/// L2: the destination has it, the relay dies before it knows: sent again, not lost.
async fn l2_killed_between_send_and_receipt(flavour: Flavour) {
    use outhaul_testkit::scripted::Answer;
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    bench.insert("first", "k").await;
    sink.wait_stored(1).await;
    bench.wait_settled().await;
    sink.script("second", [Answer::Never { stored: false }]);
    bench.insert("second", "k").await;
    sink.wait_received(2).await;
    relay.kill().await;
    let relay = bench.relay(&[&sink]).await;
    sink.wait_stored(2).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!(sink.stored_ids(), ["first", "second"]);
}
