//! S7: alive but not moving. Each internal task hangs or panics in turn: it is named within ten seconds, mends by itself, and
//! nothing is lost.

use std::time::Duration;

use outhaul_metrics::Page;
use outhaul_relay::failpoint::{self, Failure};
use outhaul_relay::watch::{Turning, Watch, WatchLimits};
use outhaul_relay::{Maintenance, Transactions};
use outhaul_testkit::scripted::ScriptedSink;
use outhaul_testkit::servers::Flavour;
use tokio::time::{Instant, sleep, timeout};

use crate::engine::{Bench, LIMIT};
use crate::on_each;

/// Within this it must be seen that something does not move.
const SEEN: Duration = Duration::from_secs(10);

async fn watched(flavour: Flavour, answer: Duration) -> (Bench, Watch) {
    let mut bench = Bench::new(flavour).await;
    bench.name = format!("o{}", uuid::Uuid::new_v4().simple());
    let limits = WatchLimits { answer, ..WatchLimits::default() };
    let watch = Watch::with_limits(&bench.name, vec!["d0".into()], limits);
    bench.watch = Some(watch.clone());
    bench.maintenance =
        Some(Maintenance { interval: Duration::from_millis(100), retention: Duration::ZERO, ..Maintenance::default() });
    bench.transactions = Some(Transactions {
        interval: Duration::from_millis(100),
        fallback_after: Duration::from_millis(400),
        ..Transactions::default()
    });
    (bench, watch)
}

/// Waits until it stands so: the engine says once a second how it stands.
async fn until(watch: &Watch, limit: Duration, what: &str, is_so: impl Fn(&[String]) -> bool) -> Duration {
    let began = Instant::now();
    let parts = || -> Vec<String> { watch.standing().stalls.into_iter().map(|s| s.part).collect() };
    while !is_so(&parts()) {
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}; {:?}", watch.standing());
        sleep(Duration::from_millis(100)).await;
    }
    began.elapsed()
}

/// A task of the kind fails from now on; messages come all the while. `named`: what is named for it.
async fn fails(place: &str, named: &str, failure: Failure) {
    let (mut bench, watch) = watched(Flavour::Sqlite, Duration::from_secs(12)).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    bench.insert("before", "k").await;
    bench.wait_settled().await;
    until(&watch, LIMIT, "ready", <[String]>::is_empty).await;
    failpoint::set(&bench.name, place, Some(failure));
    let began = Instant::now();
    let mut n = 0;
    let is_named = || watch.standing().stalls.iter().any(|s| s.part.contains(named));
    while !is_named() {
        assert!(began.elapsed() < SEEN, "{place} is not named: {:?}", watch.standing());
        bench.insert(&format!("m{n}"), "k").await;
        n += 1;
        sleep(Duration::from_millis(200)).await;
    }
    println!("{place} {failure:?}: named after {:?}: {:?}", began.elapsed(), watch.standing().stalls);
    if failure == Failure::Hang {
        // The place is free again, but who hangs there is left hanging: only giving up helps. It does so by itself.
        let hung = failpoint::forget(&bench.name, place);
        until(&watch, Duration::from_secs(40), "heals by itself", <[String]>::is_empty).await;
        drop(hung);
    } else {
        failpoint::set(&bench.name, place, None);
        until(&watch, LIMIT, "goes on", <[String]>::is_empty).await;
    }
    bench.insert("after", "k").await;
    bench.wait_settled().await;
    relay.drain().await;
    let ids: std::collections::HashSet<String> = sink.stored().into_iter().map(|m| m.id.clone()).collect();
    assert_eq!(ids.len(), n + 2, "{place}: nothing is lost");
    let mut page = Page::default();
    watch.write(&mut page);
    let text = page.finish();
    assert!(text.contains("outhaul_tasks_lost_total"), "{text}");
}

macro_rules! each_place {
    ($($name:ident: $place:literal, $named:literal;)*) => { $(
        mod $name {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn hangs() {
                super::fails($place, $named, super::Failure::Hang).await;
            }
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn panics() {
                super::fails($place, $named, super::Failure::Panic).await;
            }
        }
    )* };
}

each_place! {
    poll: "poll", "poll";
    rescan: "rescan", "rescan";
    leases: "leases", "leases";
    checkpoint: "checkpoint", "checkpoint";
    resolve: "resolved mark", "resolved mark";
    send: "send", "d0";
    acts: "acts", "acts";
    scheduled: "scheduled messages", "scheduled messages";
    pruning: "pruning", "pruning";
    fallback: "transactions", "transactions";
    sampling: "sampling", "sampling";
}

on_each!(a_start_that_fails_is_named: sqlite => Sqlite);

async fn a_start_that_fails_is_named(flavour: Flavour) {
    for failure in [Failure::Hang, Failure::Panic] {
        let (mut bench, watch) = watched(flavour, Duration::from_secs(8)).await;
        let sink = ScriptedSink::single();
        failpoint::set(&bench.name, "start", Some(failure));
        bench.insert("a", "k").await;
        let relay = bench.relay(&[&sink]).await;
        let named = |parts: &[String]| parts.iter().any(|p| p == "start to d0" || p == "lane d0 of shard 0");
        until(&watch, SEEN, "the start is named", named).await;
        failpoint::set(&bench.name, "start", None);
        until(&watch, LIMIT, "ready", <[String]>::is_empty).await;
        bench.wait_settled().await;
        relay.drain().await;
        assert!(watch.standing().stalls.iter().any(|s| s.part == "relay"), "it has ended");
    }
}

on_each!(the_engine_itself_hangs: sqlite => Sqlite);

async fn the_engine_itself_hangs(flavour: Flavour) {
    let (mut bench, watch) = watched(flavour, Duration::from_secs(9)).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    until(&watch, LIMIT, "ready", <[String]>::is_empty).await;
    failpoint::set(&bench.name, "engine", Some(Failure::Hang));
    until(&watch, SEEN, "the engine is named", |parts| parts.iter().any(|p| p == "engine")).await;
    let mut turning = Turning::default();
    let mut looks = 0;
    while turning.look(std::slice::from_ref(&watch), 3).is_none() {
        looks += 1;
        assert!(looks < 10);
    }
    timeout(LIMIT, async {
        while watch.is_alive() {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("only a restart helps, and it says so");
    relay.kill().await;
    failpoint::set(&bench.name, "engine", None);
}

on_each!(what_may_stand_still_does_not_count: sqlite => Sqlite);

/// A lane that is paused, and one whose destination is down with nothing to deliver, are no reason; one that is down with
/// something to deliver is.
async fn what_may_stand_still_does_not_count(flavour: Flavour) {
    use outhaul_testkit::scripted::Answer;
    let (mut bench, watch) = watched(flavour, Duration::from_secs(30)).await;
    let sink = ScriptedSink::single();
    let relay = bench.relay(&[&sink]).await;
    bench.insert("a", "k").await;
    bench.wait_settled().await;
    sink.otherwise(Answer::Down);
    bench.insert("b", "k").await;
    let lane = |parts: &[String]| parts == ["lane d0 of shard 0"];
    let after = until(&watch, SEEN, "a lane that is down is named", lane).await;
    assert!(after >= Duration::from_secs(5), "not for a moment's sake: {after:?}");
    let why = watch.standing().stalls[0].why.clone();
    assert!(why.contains("the destination is down") && why.contains("1 messages wait"), "{why}");
    sink.otherwise(Answer::Ok);
    until(&watch, LIMIT, "ready", <[String]>::is_empty).await;
    let mut page = Page::default();
    watch.write(&mut page);
    let text = page.finish();
    for line in [
        "outhaul_ready{outbox=\"NAME\"} 1",
        "outhaul_attempts_total{outbox=\"NAME\",destination=\"d0\",outcome=\"delivered\"} 2",
        "outhaul_moved_messages_total{outbox=\"NAME\"} 2",
        "outhaul_commit_to_read_seconds_count{outbox=\"NAME\"} 2",
        // The second waited until its lane read it from the log.
        "outhaul_commit_to_ack_seconds_count{outbox=\"NAME\",destination=\"d0\"} 1",
        "outhaul_read_to_ack_seconds_count{outbox=\"NAME\",destination=\"d0\"} 1",
        "outhaul_lane_lag_messages{outbox=\"NAME\",shard=\"0\",destination=\"d0\"} 0",
        "outhaul_breaker_open{outbox=\"NAME\",shard=\"0\",destination=\"d0\"} 0",
        "outhaul_lease_state{outbox=\"NAME\",shard=\"0\",state=\"running\"} 1",
        "outhaul_ack_level{outbox=\"NAME\",destination=\"d0\",level=\"flushed\"} 1",
    ] {
        let line = line.replace("NAME", &bench.name);
        assert!(text.lines().any(|l| l == line), "{line}: {text}");
    }
    // Of a look some seconds ago.
    assert!(text.contains(&format!("outhaul_hot_rows{{outbox=\"{}\",shard=\"0\"}} ", bench.name)), "{text}");
    relay.drain().await;
}
