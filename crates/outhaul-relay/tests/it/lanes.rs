//! Failures of sending: outage, silence, poison, order across retries, fan-out, lagging lanes.

use std::time::Duration;

use outhaul_store::PruneRequest;
use outhaul_testkit::scripted::{Answer, ScriptedSink};
use outhaul_testkit::servers::Flavour;

use crate::engine::Bench;
use crate::on_each;

on_each!(s1_s3_s6_bad_destinations: sqlite => Sqlite, mariadb => MariaDb, postgres => Postgres);

/// S1, S3, S6: of ten destinations one is down from the start and one never answers. The others do not notice; nothing
/// is dead when the two come back.
async fn s1_s3_s6_bad_destinations(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.limits.send_limit_ms = 200;
    bench.limits.max_attempts = 3;
    let sinks: Vec<ScriptedSink> = (0..10).map(|_| ScriptedSink::by_key(2)).collect();
    sinks[0].otherwise(Answer::Down);
    sinks[1].otherwise(Answer::Never { stored: false });
    let relay = bench.relay(&sinks.iter().collect::<Vec<_>>()).await;
    bench.insert_many(0..100).await;
    for sink in &sinks[2..] {
        sink.wait_stored(100).await;
    }
    bench
        .wait("rows leave the hot table although two destinations are bad", |s| s.iter().all(|s| s.hot_rows == 0))
        .await;
    sinks[0].wait_received(5).await;
    sinks[1].wait_received(40).await; // Of five keys, the first: more sends than attempts would allow, if silence counted.
    sinks[0].otherwise(Answer::Ok);
    sinks[1].otherwise(Answer::Ok);
    sinks[0].wait_stored(100).await;
    sinks[1].wait_stored(100).await;
    bench.wait_settled().await;
    for (n, sink) in sinks.iter().enumerate() {
        assert_eq!(sink.duplicates(), 0, "destination {n}");
        assert_eq!(bench.parked(&format!("d{n}")).await, (0, 0, 0), "an outage parks nothing: destination {n}");
        assert_eq!(sink.overlaps(), []);
    }
    relay.drain().await;
}

on_each!(a_shard_that_is_refused: mariadb => MariaDb, postgres => Postgres);

/// The database takes no checkpoint of one shard (a trigger, a constraint, a full partition). The other one is moved and
/// settled all the same, and the first one once it is taken again; nothing is sent twice.
async fn a_shard_that_is_refused(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.database.execute("ALTER TABLE outbox_log ADD CONSTRAINT refuse CHECK (shard <> 0)").await;
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    // Before the first checkpoint of an epoch has committed nothing is sent, and one with rows would be refused.
    bench.wait("both shards have begun", |shards| shards.iter().all(|s| !s.lanes.lanes.is_empty())).await;
    for round in 1..=3 {
        bench.insert_many((round - 1) * 40..round * 40).await;
        sink.wait_stored(round * 40).await;
        bench
            .wait("the other shard is settled", |shards| {
                let settled = shards[1].lanes.lanes.iter().all(|(l, _)| l.cursor == shards[1].log_end);
                shards[0].hot_rows > 0 && shards[1].hot_rows == 0 && shards[1].log_end.0 > 0 && settled
            })
            .await;
    }
    bench.database.execute("ALTER TABLE outbox_log DROP CONSTRAINT refuse").await;
    bench.wait_settled().await;
    assert_eq!((sink.duplicates(), bench.parked("d0").await), (0, (0, 0, 0)));
    relay.drain().await;
}

on_each!(o1_d5_retries_keep_order: all);

/// O1, D5: the first of a key fails again and again, until it is parked and after; later ones of the key wait, other
/// keys and other destinations do not, and nobody gets anything twice.
async fn o1_d5_retries_keep_order(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let (good, bad) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    bad.script("m0", vec![Answer::Retry { after_ms: None }; 8]);
    bad.script("m6", vec![Answer::Retry { after_ms: None }; 2]);
    let relay = bench.relay(&[&good, &bad]).await;
    bench.insert_many(0..30).await;
    good.wait_stored(30).await;
    bad.wait_stored(30).await;
    bench.insert_many(30..40).await;
    bad.wait_stored(40).await;
    bench.wait("nothing parked", |s| s.iter().all(|s| s.parked.iter().all(|(_, r, w, d)| r + w + d == 0))).await;
    bench.wait_settled().await;
    relay.drain().await;
    for sink in [&good, &bad] {
        assert_eq!((sink.stored().len(), sink.duplicates()), (40, 0));
        for key in 0..5 {
            let of_key: Vec<usize> =
                sink.stored_ids().iter().map(|id| id[1..].parse::<usize>().unwrap()).filter(|n| n % 5 == key).collect();
            assert!(of_key.is_sorted(), "order of key {key}: {of_key:?}");
        }
    }
    let sent = good.received().len();
    assert_eq!(sent, 40, "the good destination is sent each message once");
}

on_each!(parked_survive_a_restart: all);

/// A dead message blocks its key over a restart; a retrying one goes on after it.
async fn parked_survive_a_restart(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.limits.retry_backoff_ms = (200, 400);
    let sink = ScriptedSink::by_key(2);
    sink.script("m0", [Answer::Rejected]);
    sink.script("m1", vec![Answer::Retry { after_ms: None }; 4]);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..10).await;
    bench
        .wait("one dead, its follower waits", |s| {
            let sum = s.iter().flat_map(|s| &s.parked).fold((0, 0), |(w, d), p| (w + p.2, d + p.3));
            sum.1 == 1 && sum.0 >= 1
        })
        .await;
    relay.kill().await;
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(10..20).await;
    bench
        .wait("all but the dead one's key is delivered", |s| {
            s.iter().flat_map(|s| &s.parked).fold((0, 0, 0), |(r, w, d), p| (r + p.1, w + p.2, d + p.3)) == (0, 3, 1)
        })
        .await;
    bench.wait_settled().await;
    relay.drain().await;
    let ids = sink.stored_ids();
    assert_eq!(ids.len(), 16, "{ids:?}");
    assert!(ids.iter().all(|id| id[1..].parse::<usize>().unwrap() % 5 != 0), "the dead one's key waits: {ids:?}");
    let of_one: Vec<&String> = ids.iter().filter(|id| id[1..].parse::<usize>().unwrap() % 5 == 1).collect();
    assert_eq!(of_one, ["m1", "m6", "m11", "m16"]);
}

on_each!(l6_prune_never_touches_unsettled: all);

/// L6: retention 0 while one lane lags: nothing that it still needs goes; once it is past, it goes.
async fn l6_prune_never_touches_unsettled(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.settings.window_bytes = 1; // A lagging lane must read the log.
    let (fast, slow) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    slow.otherwise(Answer::Down);
    let relay = bench.relay(&[&fast, &slow]).await;
    for n in 0..10 {
        bench.insert_many(n * 20..n * 20 + 20).await;
        fast.wait_stored(n * 20 + 20).await;
    }
    bench.wait("all moved", |s| s.iter().all(|s| s.hot_rows == 0)).await;
    let prune =
        PruneRequest { owner: "pruner".into(), retention_ms: 0, merge_after_ms: None, step: 1_000, exported: None };
    let pruned = bench.store.prune(&prune).await.unwrap();
    assert!(pruned.ran && pruned.messages == 0, "{pruned:?}");
    slow.otherwise(Answer::Ok);
    slow.wait_stored(200).await;
    bench.wait_settled().await;
    let pruned = bench.store.prune(&prune).await.unwrap();
    assert_eq!(pruned.messages, 200);
    bench.insert_many(200..210).await;
    slow.wait_stored(210).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!((fast.duplicates(), slow.duplicates()), (0, 0));
}

on_each!(l8_drain_with_a_slow_destination: all);

/// L8: stop with much in flight at a slow destination, and start again: every row once.
async fn l8_drain_with_a_slow_destination(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.limits.send_limit_ms = 1_500;
    bench.limits.max_batch = 50;
    let sink = ScriptedSink::by_key(4);
    let relay = bench.relay(&[&sink]).await;
    bench.insert("first", "k0").await;
    sink.wait_stored(1).await;
    bench.wait_settled().await;
    sink.otherwise(Answer::late());
    bench.insert_many(0..1_000).await;
    sink.wait_received(100).await;
    relay.stop.drain();
    sink.otherwise(Answer::Ok);
    sink.open_gates();
    relay.drain().await;
    let relay = bench.relay(&[&sink]).await;
    sink.wait_stored(1_001).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!((sink.stored().len(), sink.duplicates()), (1_001, 0));
}

on_each!(s7_a_sink_that_panics: sqlite => Sqlite);

/// A panic inside a sink is an unanswered send: tried again, other lanes do not notice.
async fn s7_a_sink_that_panics(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let (good, bad) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    bad.script("m0", vec![Answer::Panics; 3]);
    let relay = bench.relay(&[&good, &bad]).await;
    bench.insert_many(0..10).await;
    good.wait_stored(10).await;
    bad.wait_stored(10).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!((good.duplicates(), bad.duplicates()), (0, 0));
}

on_each!(a_second_stop_ends_at_once: sqlite => Sqlite, postgres => Postgres);

/// The second SIGTERM: ends at once, loses nothing.
async fn a_second_stop_ends_at_once(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::by_key(2);
    sink.otherwise(Answer::late());
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..10).await;
    sink.wait_received(1).await;
    relay.stop.drain();
    relay.stop.now();
    tokio::time::timeout(Duration::from_millis(bench.limits.send_limit_ms * 10), relay.task)
        .await
        .expect("ends")
        .unwrap()
        .unwrap();
    sink.otherwise(Answer::Ok);
    let relay = bench.relay(&[&sink]).await;
    bench.wait_settled().await;
    relay.drain().await;
    assert_eq!(sink.stored_ids().len(), 10);
}
