//! Destinations that forget what they have acknowledged: after a reconnect, and over a restart of the relay.

use std::collections::HashSet;

use outhaul_testkit::scripted::{Answer, ScriptedSink};
use outhaul_testkit::servers::Flavour;

use crate::engine::{Bench, LIMIT, Running};
use crate::on_each;

/// Each key's messages in the order in which they were written, as a consumer sees them that drops copies.
fn assert_order(sink: &ScriptedSink) {
    for key in 0..5 {
        let ids = sink.stored_ids();
        let of_key: Vec<usize> = ids.iter().map(|id| id[1..].parse().unwrap()).filter(|n| n % 5 == key).collect();
        assert!(of_key.is_sorted(), "order of key {key}: {of_key:?}");
    }
}

fn assert_all(sink: &ScriptedSink, count: usize) {
    let ids: HashSet<String> = sink.stored_ids().into_iter().collect();
    let missing: Vec<usize> = (0..count).filter(|n| !ids.contains(&format!("m{n}"))).collect();
    assert!(missing.is_empty(), "missing: {missing:?}");
    assert_eq!(sink.duplicates(), 0, "what it still had is not sent again");
    assert_order(sink);
    assert_eq!(sink.overlaps(), []);
}

/// The destination says of the next message that it is down: the relay connects anew.
async fn reconnect(bench: &Bench, sink: &ScriptedSink, id: usize) {
    let starts = sink.starts();
    sink.script(&format!("m{id}"), [Answer::Down]);
    bench.insert_many(id..id + 1).await;
    sink.wait_starts(starts + 1).await;
}

/// Ends a relay cleanly, and returns how many messages it found forgotten.
async fn forgotten(relay: Running) -> u64 {
    let report = relay.drain().await;
    report.outboxes.iter().flat_map(|(_, all)| all).map(|d| d.forgotten).sum()
}

on_each!(forgotten_after_a_reconnect: all);

/// The destination loses its unflushed tail, and later some of what was flushed. All of it comes again by itself, the
/// rest does not.
async fn forgotten_after_a_reconnect(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let (sink, other) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    let relay = bench.relay(&[&sink, &other]).await;
    bench.insert_many(0..200).await;
    sink.wait_stored(200).await;
    sink.flush();
    bench.wait_settled().await;
    bench.insert_many(200..300).await;
    sink.wait_stored(300).await;
    let lost = sink.crash();
    assert_eq!(lost.len(), 100);
    reconnect(&bench, &sink, 300).await;
    sink.wait_stored(401).await;
    bench.wait_settled().await;
    assert_all(&sink, 301);
    sink.flush();
    // A copy of its storage is put back: what stands before the end is there, the last 20 are not.
    let gone: Vec<String> = (281..301).map(|n| format!("m{n}")).collect();
    sink.forget(&gone.iter().map(String::as_str).collect::<Vec<_>>());
    reconnect(&bench, &sink, 301).await;
    sink.wait_stored(422).await;
    bench.wait_settled().await;
    assert_all(&sink, 302);
    assert_all(&other, 302);
    assert_eq!(bench.parked("d0").await, (0, 0, 0));
    let audit = bench.store.receipts_of(outhaul_core::message::ShardId(0), outhaul_core::message::Position(0)).await;
    assert!(!audit.unwrap().is_empty());
    assert_eq!(forgotten(relay).await, 120);
}

on_each!(forgotten_while_the_relay_was_away: all);

/// The relay is killed, or stopped; the destination forgets; another relay finds it out from the stored receipts, before
/// it sends anything new.
async fn forgotten_while_the_relay_was_away(flavour: Flavour) {
    for kill in [true, false] {
        let mut bench = Bench::new(flavour).await;
        let sink = ScriptedSink::by_key(2);
        let relay = bench.relay(&[&sink]).await;
        // In several checkpoints, and so in several receipt rows.
        for n in 0..10 {
            bench.insert_many(n * 30..n * 30 + 30).await;
            sink.wait_stored(n * 30 + 30).await;
            bench.wait_settled().await;
            if n == 4 {
                sink.flush();
            }
        }
        if kill {
            relay.kill().await;
        } else {
            assert_eq!(forgotten(relay).await, 0);
        }
        assert_eq!(sink.crash().len(), 150);
        bench.insert_many(300..310).await;
        let relay = bench.relay(&[&sink]).await;
        sink.wait_stored(460).await;
        bench.wait_settled().await;
        assert_all(&sink, 310);
        assert_eq!(forgotten(relay).await, 150);
        // The next one finds everything where it should be.
        let relay = bench.relay(&[&sink]).await;
        bench.insert_many(310..311).await;
        sink.wait_stored(461).await;
        assert_eq!(forgotten(relay).await, 0);
        assert_all(&sink, 311);
    }
}

on_each!(much_is_forgotten: sqlite => Sqlite, mariadb => MariaDb);

/// More than is shown to the destination at a time, over many receipt rows, beside another lane that has everything.
async fn much_is_forgotten(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.settings.checkpoint_rows = 100;
    bench.settings.poll_rows = 300;
    let (sink, other) = (ScriptedSink::by_key(4), ScriptedSink::by_key(4));
    let relay = bench.relay(&[&other, &sink]).await;
    bench.insert_many(0..1_000).await;
    sink.wait_stored(1_000).await;
    sink.flush();
    for n in 1..8 {
        bench.insert_many(n * 1_000..n * 1_000 + 1_000).await;
    }
    sink.wait_stored(8_000).await;
    bench.wait_settled().await;
    relay.kill().await;
    assert_eq!(sink.crash().len(), 7_000);
    let relay = bench.relay(&[&other, &sink]).await;
    sink.wait_stored(15_000).await;
    bench.wait_settled().await;
    assert_all(&sink, 8_000);
    assert_all(&other, 8_000);
    assert!(sink.verified().len() >= 4, "page by page");
    assert_eq!(forgotten(relay).await, 7_000);
}

on_each!(what_cannot_be_found_out_holds_the_lane: sqlite => Sqlite, postgres => Postgres);

/// A comparison that fails is tried again, and nothing is sent until it has been made; nothing is parked for it.
async fn what_cannot_be_found_out_holds_the_lane(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..50).await;
    sink.wait_stored(50).await;
    bench.wait_settled().await;
    sink.crash();
    for _ in 0..4 {
        sink.fail_verify(true);
    }
    reconnect(&bench, &sink, 50).await;
    sink.wait_stored(101).await;
    bench.wait_settled().await;
    assert_all(&sink, 51);
    assert_eq!(bench.parked("d0").await, (0, 0, 0));
    assert_eq!(forgotten(relay).await, 50);
}

on_each!(too_much_forgotten_stops_the_lane_until_it_is_allowed: sqlite => Sqlite, mariadb => MariaDb);

/// Above `max_forgotten` the lane waits, other lanes do not; with the limit raised it goes on.
async fn too_much_forgotten_stops_the_lane_until_it_is_allowed(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    bench.limits.max_forgotten = 10;
    let (sink, other) = (ScriptedSink::by_key(2), ScriptedSink::by_key(2));
    let relay = bench.relay(&[&sink, &other]).await;
    bench.insert_many(0..100).await;
    sink.wait_stored(100).await;
    bench.wait_settled().await;
    assert_eq!(sink.crash().len(), 100);
    reconnect(&bench, &sink, 100).await;
    bench.insert_many(101..120).await;
    other.wait_stored(120).await;
    relay.stop.drain();
    assert_eq!(forgotten(relay).await, 0);
    assert_eq!(sink.stored_ids().len(), 0);
    bench.limits.max_forgotten = 1_000;
    let relay = bench.relay(&[&sink, &other]).await;
    sink.wait_stored(100 + 120).await;
    bench.wait_settled().await;
    assert_all(&sink, 120);
    assert_all(&other, 120);
    assert_eq!(forgotten(relay).await, 100);
}

on_each!(one_slot_that_is_down_or_hangs_leaves_the_others: sqlite => Sqlite, postgres => Postgres);

/// L3: messages of one key are answered as down, or not at all; those in other slots are delivered meanwhile.
async fn one_slot_that_is_down_or_hangs_leaves_the_others(flavour: Flavour) {
    for bad in [Answer::Down, Answer::Never { stored: false }] {
        let mut bench = Bench::new(flavour).await;
        bench.limits.send_limit_ms = 200;
        let sink = ScriptedSink::by_key(16);
        let answer = bad.clone();
        sink.script_by(move |m, _| (m.key.as_deref() == Some("k0")).then(|| answer.clone()));
        let relay = bench.relay(&[&sink]).await;
        let slot_of = |key: usize| {
            let slotting = outhaul_core::lane::Slotting::ByKey(16);
            slotting.slot_of(Some(&format!("k{key}")), outhaul_core::message::Position(0))
        };
        let apart: Vec<usize> = (1..5).filter(|key| slot_of(*key) != slot_of(0)).collect();
        assert!(apart.len() >= 2);
        for round in 0..20 {
            bench.insert_many(round * 20..round * 20 + 20).await;
            let began = std::time::Instant::now();
            let there = |sink: &ScriptedSink| {
                let ids: HashSet<String> = sink.stored_ids().into_iter().collect();
                (round * 20..round * 20 + 20)
                    .filter(|n| apart.contains(&(n % 5)))
                    .all(|n| ids.contains(&format!("m{n}")))
            };
            while !there(&sink) {
                assert!(began.elapsed() < LIMIT, "round {round} with {bad:?}");
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
        sink.script_by(|_, _| None);
        sink.wait_stored(400).await;
        bench.wait_settled().await;
        relay.drain().await;
        assert_all(&sink, 400);
        assert_eq!(bench.parked("d0").await, (0, 0, 0));
    }
}

/// How far each shard's lane is proven, and the end of its log.
async fn proven(bench: &Bench) -> Vec<(u64, u64)> {
    let status = bench.status().await;
    status.iter().flat_map(|s| s.lanes.lanes.iter().map(|(l, _)| (l.proven.0, s.log_end.0))).collect()
}

async fn wait_proven(bench: &Bench) {
    bench
        .wait("everything is proven", |shards| {
            shards.iter().all(|s| s.hot_rows == 0 && s.lanes.lanes.iter().all(|(l, _)| l.proven == s.log_end))
        })
        .await;
}

on_each!(proven_when_it_is_flushed: all);

/// Late proof: the second number follows the flush; what never got there before a crash is sent again without a new
/// message to show it; an owner that takes over goes on where the last one was.
async fn proven_when_it_is_flushed(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::by_key(2);
    sink.proves_later(true);
    sink.level(outhaul_core::receipt::AckLevel::Received);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..100).await;
    sink.wait_stored(100).await;
    bench.wait_settled().await;
    assert!(proven(&bench).await.iter().all(|(proven, _)| *proven == 0), "{:?}", proven(&bench).await);
    sink.flush();
    wait_proven(&bench).await;
    bench.insert_many(100..150).await;
    sink.wait_stored(150).await;
    bench.wait_settled().await;
    assert_eq!(sink.crash().len(), 50);
    sink.wait_stored(200).await;
    bench.wait_settled().await;
    assert_all(&sink, 150);
    assert_eq!(proven(&bench).await.iter().map(|(proven, _)| proven).sum::<u64>(), 100);
    relay.kill().await;
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(150..160).await;
    sink.wait_stored(210).await;
    bench.wait_settled().await;
    let reached = proven(&bench).await;
    assert!(reached.iter().any(|(proven, end)| proven < end), "nothing was flushed since: {reached:?}");
    sink.flush();
    wait_proven(&bench).await;
    let (state, _) = bench.status().await[0].lanes.lanes[0].clone();
    let level = state.level(outhaul_core::message::Position(0), outhaul_core::receipt::AckLevel::Received);
    assert_eq!(level, outhaul_core::receipt::AckLevel::Flushed);
    assert_all(&sink, 160);
    assert_eq!(forgotten(relay).await, 0);
}

on_each!(until_empty_waits_for_the_flush: sqlite => Sqlite, postgres => Postgres);

/// A relay that ends when everything is settled ends when it is proven.
async fn until_empty_waits_for_the_flush(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let sink = ScriptedSink::by_key(2);
    sink.proves_later(true);
    bench.insert_many(0..30).await;
    bench.until_empty = true;
    let relay = bench.relay(&[&sink]).await;
    sink.wait_stored(30).await;
    bench.wait_settled().await;
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert!(!relay.task.is_finished());
    sink.flush();
    let ended = tokio::time::timeout(LIMIT, relay.task).await.expect("it ends by itself").unwrap().unwrap();
    assert_eq!(ended.outboxes[0].1[0].delivered, 30);
    assert!(proven(&bench).await.iter().all(|(proven, end)| proven == end));
}
