//! Comparisons that relays run by themselves, and the turn of those that enqueue.

use std::collections::BTreeSet;

use outhaul_testkit::servers::Flavour;
#[cfg(feature = "sqlite")]
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};
use serde_json::{Value, json};

use crate::program::{Ran, Running, Scene, eventually, on_every_database};

on_every_database!(
    what_is_missing_is_told_and_mended_by_the_schedule,
    one_of_two_relays_compares_and_the_other_takes_over,
    two_that_enqueue_at_once_enqueue_once,
    a_schedule_that_fails_says_so_and_goes_on,
);

const POINTS: &str = "kind = \"file\"\npath = \"points.jsonl\"";

impl Scene {
    fn with_schedule(&self, destination: &str, keys: &str) {
        let text = format!(
            "[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"points\"\n{destination}\n\
             [[route]]\ntopic = \"order-*\"\nto = [\"points\"]\n[[reconcile]]\n{keys}\n",
            self.url()
        );
        self.folder.write("outhaul.toml", &text);
    }

    async fn some_messages(&self, numbers: std::ops::Range<usize>) {
        let line = |n| format!("{{\"id\":\"m{n:04}\",\"topic\":\"order-created\",\"payload\":{n}}}\n");
        self.enqueue(&numbers.map(line).collect::<String>()).await.expect(0);
    }

    fn relay_named(&self, instance: &str) -> Running {
        self.folder.start(&["relay"], &[("OUTHAUL__RELAY__INSTANCE", instance)])
    }

    /// What `status` shows of the one comparison, and its exit code.
    async fn last_comparison(&self) -> (Value, i32) {
        let Ran { code, stdout, .. } = self.run(&["status", "--json"]).await;
        let status: Value = serde_json::from_str(&stdout).unwrap();
        (status["outboxes"][0]["reconcile"][0].clone(), code)
    }

    /// Waits until the comparison has come to a result of which this is so.
    async fn until_last(&self, what: &str, mut is_so: impl FnMut(&Value) -> bool) -> (Value, i32) {
        let mut last = (Value::Null, 0);
        eventually(what, async || {
            last = self.last_comparison().await;
            is_so(&last.0)
        })
        .await;
        last
    }
}

async fn stopped(relay: Running) {
    relay.signal("TERM").await;
    relay.end().await.expect(0);
}

async fn what_is_missing_is_told_and_mended_by_the_schedule(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let inbox = format!("kind = \"inbox\"\nurl = \"{}\"", scene.url());
    scene.with_schedule(&inbox, "destination = \"points\"\nevery = \"1s\"\nfrom = \"1d\"\nsettle = \"0s\"");
    let (none, _) = scene.last_comparison().await;
    assert_eq!((&none["at"], &none["name"]), (&Value::Null, &json!("points")), "{none}");
    scene.some_messages(0..40).await;
    let mut relay = scene.relay_named("one");
    let (all, code) = scene.until_last("all are there", |last| last["checked"] == 40 && last["pending"] == 0).await;
    assert_eq!((&all["missing"], &all["stray"], code), (&json!(0), &json!(0), 0), "{all}");

    scene.database.execute("DELETE FROM inbox_message WHERE id IN ('m0003', 'm0017', 'm0039')").await;
    let (found, code) = scene.until_last("they are found", |last| last["missing"] != 0).await;
    assert_eq!((&found["missing"], &found["checked"], code), (&json!(3), &json!(40), 3), "{found}");
    assert_eq!(found["examples"], json!(["m0003", "m0017", "m0039"]), "exactly these");
    let line = relay.says("OUT-4050").await;
    assert!(line.contains("missing=3") && line.contains("points"), "{line}");
    let text = scene.run(&["status"]).await.expect(3).stdout;
    assert!(text.contains("OUT-4050 shop reconcile points") && text.contains("3 missing: m0003, m0017"), "{text}");
    // It only tells.
    assert_eq!(scene.database.query_u64("SELECT count(*) FROM inbox_message").await, 37);
    stopped(relay).await;

    let mends = "destination = \"points\"\nevery = \"1s\"\nfrom = \"1d\"\nsettle = \"0s\"\nfix = true";
    scene.with_schedule(&inbox, mends);
    let mut relay = scene.relay_named("one");
    let line = relay.says("OUT-4050").await;
    assert!(line.contains("missing=3") && line.contains("fixed=3"), "{line}");
    let (whole, code) = scene.until_last("all are there again", |last| last["missing"] == 0).await;
    assert_eq!((&whole["checked"], code), (&json!(40), 0), "{whole}");
    assert_eq!(scene.database.query_u64("SELECT count(*) FROM inbox_message").await, 40, "these and no others");
    let acts = scene.run(&["acts"]).await.expect(0).stdout;
    assert!(acts.contains("replay points") && acts.contains("schedule"), "{acts}");
    stopped(relay).await;
}

async fn one_of_two_relays_compares_and_the_other_takes_over(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    // Slow enough that it is met in the middle: 2,000 ids a side, at 256 a second.
    let slow = "destination = \"points\"\nevery = \"1s\"\nfrom = \"1d\"\nsettle = \"0s\"\nrate = 256";
    scene.with_schedule(POINTS, slow);
    scene.some_messages(0..2_000).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    assert_eq!(scene.last_comparison().await.0["at"], Value::Null, "a script that empties the outbox compares nothing");
    let mut one = scene.relay_named("one");
    let holder = "SELECT value FROM outbox_meta WHERE name = 'turn:reconcile:points'";
    let has_it = async |name: &str| {
        let rows = scene.database.query(holder).await;
        let text = rows.first().and_then(|row| row[0].clone()).unwrap_or_default();
        text.split_once(' ').is_some_and(|(_, owner)| owner.starts_with(name))
    };
    eventually("it is at it", async || has_it("one#").await).await;
    let mut two = scene.relay_named("two");
    two.says("relay starts").await;
    one.child.start_kill().unwrap();
    one.child.wait().await.unwrap();
    assert_eq!(scene.last_comparison().await.0["at"], Value::Null, "it was met in the middle");
    assert!(has_it("one#").await, "until its turn runs out");
    // Whoever takes over has to do it faster than this test waits.
    let fast = slow.replace("rate = 256", "rate = 1000000");
    scene.with_schedule(POINTS, &fast);
    let three = scene.relay_named("three");
    let (last, _) = scene
        .until_last("another one does it", |last| last["by"].as_str().is_some_and(|by| !by.starts_with("one#")))
        .await;
    assert_eq!((&last["checked"], &last["missing"], &last["error"]), (&json!(2_000), &json!(0), &Value::Null));
    stopped(two).await;
    stopped(three).await;
}

async fn two_that_enqueue_at_once_enqueue_once(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.with_schedule(POINTS, "destination = \"points\"");
    let of = |n: usize| format!("SELECT 'e{n:03}', NULL, 'order-created', NULL, '1'");
    let query = (0..200).map(of).collect::<Vec<_>>().join(" UNION ALL ");
    let base = ["reconcile", "--json", "--from", "beginning", "--settle", "0s", "--fix", "--yes", "--query", &query];
    let runs = (0..4).map(|_| scene.run(&base));
    let ran = futures_of(runs).await;
    let fixed: u64 = ran.iter().filter(|r| r.code == 0).map(|r| r.json()["fixed"].as_u64().unwrap()).sum();
    assert!(ran.iter().all(|r| r.code == 0 || (r.code == 1 && r.stderr.contains("OUT-3070"))), "{ran:?}");
    assert_eq!(fixed, 200, "{ran:?}");
    assert_eq!(scene.database.query_u64("SELECT count(*) FROM outbox").await, 200, "each once");
    // While another has the turn, nothing is done; one that was killed keeps nobody out for long.
    let store = outhaul_store::open(outhaul_store::StoreOptions::new(scene.url())).await.unwrap();
    assert_eq!(store.turn("reconcile-fix", "somebody", 60_000).await.unwrap(), None);
    let refused = scene.run(&base).await.expect(1);
    assert!(refused.stderr.contains("OUT-3070") && refused.stderr.contains("somebody"), "{}", refused.stderr);
    let dry: Vec<&str> = base.iter().copied().filter(|word| *word != "--yes").collect();
    scene.run(&dry).await.expect(0);
    store.turn("reconcile-fix", "somebody", 0).await.unwrap();
    store.close().await;
    assert_eq!(scene.run(&base).await.expect(0).json()["fixed"], 0);
}

async fn futures_of(runs: impl Iterator<Item = impl Future<Output = Ran>>) -> Vec<Ran> {
    let mut runs: Vec<_> = runs.map(Box::pin).collect();
    let mut ended = vec![];
    std::future::poll_fn(|cx| {
        runs.retain_mut(|run| match run.as_mut().poll(cx) {
            std::task::Poll::Ready(ran) => {
                ended.push(ran);
                false
            }
            std::task::Poll::Pending => true,
        });
        if runs.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    ended
}

/// A folder for temporary files that is not there, or too little room: delivery goes on, it is told, and tried again.
async fn a_schedule_that_fails_says_so_and_goes_on(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let keys = "destination = \"points\"\nevery = \"1s\"\nfrom = \"1d\"\nsettle = \"0s\"\ntemp = \"tmp\"";
    scene.with_schedule(POINTS, keys);
    let mut relay = scene.relay_named("one");
    scene.some_messages(0..10).await;
    let line = relay.says("OUT-4051").await;
    assert!(line.contains("OUT-3062"), "{line}");
    let (failed, code) = scene.until_last("it is told", |last| last["error"].is_string()).await;
    assert_eq!(code, 3, "{failed}");
    eventually("delivery goes on", async || scene.folder.json_lines("points.jsonl").len() == 10).await;
    std::fs::create_dir(scene.folder.path("tmp")).unwrap();
    let (whole, code) = scene.until_last("it is tried again", |last| last["checked"] == 10).await;
    assert_eq!((&whole["missing"], &whole["error"], code), (&json!(0), &Value::Null, 0), "{whole}");
    stopped(relay).await;

    for (keys, code) in [
        ("destination = \"pints\"", "OUT-3009"),
        ("", "OUT-3004"),
        ("query = \"SELECT 1\"\ndestination = \"points\"", "OUT-3005"),
        ("destination = \"points\"\nfrom = \"30m\"", "OUT-3005"),
        ("destination = \"points\"\nevrey = \"1h\"", "OUT-3003"),
        ("destination = \"points\"\noutbox = \"shops\"", "OUT-3017"),
    ] {
        scene.with_schedule(POINTS, keys);
        let refused = scene.run(&["status"]).await.expect(2);
        assert!(refused.stderr.contains(code), "{keys}: {}", refused.stderr);
    }
}

/// A broker whose store is put back to an earlier copy while no relay runs.
#[cfg(feature = "sqlite")]
async fn a_broker_that_lost_something_is_mended_by_the_schedule(version: RocketMq) {
    let broker = OwnRocketMq::start(version, &[]).await;
    let scene = Scene::ready(Flavour::Sqlite).await;
    let mq = format!(
        "kind = \"rocketmq\"\nnamesrv = [\"{}\"]\ncreate_topics = true\ntopic_prefix = \"shop-\"",
        broker.namesrv()
    );
    let keys = "destination = \"points\"\nevery = \"1s\"\nfrom = \"1d\"\nsettle = \"0s\"";
    scene.with_schedule(&mq, keys);
    scene.some_messages(0..60).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    broker.snapshot("early", &[Part::BrokerA]).await;
    scene.some_messages(60..100).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    broker.rollback("early").await;
    let lost: BTreeSet<String> = (60..100).map(|n| format!("m{n:04}")).collect();
    let found = scene.run(&["reconcile", "--json", "--from", "beginning", "--settle", "0s"]).await.expect(3).json();
    let missing: BTreeSet<String> =
        found["missing"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!((missing, &found["stray"], &found["duplicate"]), (lost, &json!([]), &json!([])), "{found}");
    // A relay that starts sends again what its destination forgot, as far as receipts tell; the schedule sees to the rest.
    scene.with_schedule(&mq, &format!("{keys}\nfix = true"));
    let relay = scene.relay_named("one");
    let (whole, _) = scene
        .until_last("all are there", |last| last["checked"] == 100 && last["missing"] == 0 && last["pending"] == 0)
        .await;
    assert_eq!((&whole["stray"], &whole["error"]), (&json!(0), &Value::Null), "{whole}");
    stopped(relay).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn rocketmq_4_is_mended_by_the_schedule() {
    a_broker_that_lost_something_is_mended_by_the_schedule(RocketMq::V4).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn rocketmq_5_is_mended_by_the_schedule() {
    a_broker_that_lost_something_is_mended_by_the_schedule(RocketMq::V5).await;
}
