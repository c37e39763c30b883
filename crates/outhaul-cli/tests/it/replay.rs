//! What the log still holds, delivered again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::{RocketMq, topic_name};
use serde_json::{Value, json};

use crate::program::{LIMIT, Ran, Running, Scene, on_every_database};

on_every_database!(
    parts_of_the_log_are_delivered_again,
    a_new_destination_is_filled_beside_live_traffic,
    a_killed_replay_is_gone_on_with,
    what_cannot_be_replayed_is_said,
);

/// Asks again until the answer is yes: another process writes what is asked for.
async fn until(what: &str, mut asked: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !asked().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "it never came to pass: {what}");
}

impl Scene {
    /// A configuration of files `NAME.jsonl`, to each of which everything goes.
    fn files(&self, names: &[&str]) {
        let mut text = format!("[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n", self.url());
        for name in names {
            text += &format!("[[destination]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{name}.jsonl\"\n");
        }
        text += &format!("[[route]]\ntopic = \"*\"\nto = {}\n", json!(names));
        self.folder.write("outhaul.toml", &text);
    }

    /// Stores messages `mN` of topic `order-created` or `order-paid`, with one of four keys.
    async fn store(&self, numbers: std::ops::Range<usize>) {
        let topic = |n: usize| if n.is_multiple_of(2) { "order-created" } else { "order-paid" };
        let lines: String = numbers
            .map(|n| format!("{{\"id\":\"m{n}\",\"topic\":\"{}\",\"key\":\"k{}\",\"payload\":{n}}}\n", topic(n), n % 4))
            .collect();
        self.enqueue(&lines).await.expect(0);
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        self.folder.json_lines(&format!("{name}.jsonl"))
    }

    async fn replay(&self, more: &[&str]) -> Ran {
        self.run(&[&["replay", "--why", "a test"], more].concat()).await
    }
}

fn numbers(lines: &[Value]) -> Vec<usize> {
    lines.iter().map(|line| line["payload"].as_u64().unwrap() as usize).collect()
}

/// The numbers of each key, in the order in which they came; the first copy of each counts.
#[track_caller]
fn assert_in_order(lines: &[Value]) {
    let mut keys: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for line in lines {
        let (key, n) = (line["key"].as_str().unwrap().to_owned(), line["payload"].as_u64().unwrap() as usize);
        let of_key = keys.entry(key).or_default();
        if !of_key.contains(&n) {
            of_key.push(n);
        }
    }
    for (key, numbers) in keys {
        assert!(numbers.is_sorted(), "{key}: {numbers:?}");
    }
}

async fn parts_of_the_log_are_delivered_again(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.files(&["trail"]);
    scene.store(0..40).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    scene.store(40..60).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let second = scene.run(&["audit", "m40", "--json"]).await.json()["created_at"].as_str().unwrap().to_owned();
    let mut before = 60;
    assert_eq!(scene.lines("trail").len(), before);
    let status = async || scene.run(&["status", "--json"]).await.json()["outboxes"][0]["shards"][0]["lanes"].clone();
    let lanes = status().await;
    let to_trail = ["--destination", "trail", "--from"];
    for (more, expected) in [
        (vec!["beginning"], (0..60).collect::<Vec<_>>()),
        (vec!["beginning", "--key", "k3"], (0..60).filter(|n| n % 4 == 3).collect()),
        (vec!["beginning", "--topic", "*-paid"], (0..60).filter(|n| n % 2 == 1).collect()),
        (vec!["50"], (50..60).collect()),
        (vec!["10", "--to", "12", "--shard", "0", "--rate", "1000/s"], (10..12).collect()),
        (vec![&second], (40..60).collect()),
        (vec!["beginning", "--to", &second], (0..40).collect()),
        (vec!["2001-01-01T00:00:00Z", "--to", "2002-01-01T00:00:00Z"], vec![]),
        (vec!["beginning", "--fill"], vec![]),
    ] {
        let arguments = [&to_trail[..], &more].concat();
        let dry = scene.replay(&[&arguments[..], &["--dry-run", "--json"]].concat()).await.expect(0).json();
        assert_eq!(dry["messages"], expected.len(), "{more:?}: {dry}");
        let ended = scene.replay(&[&arguments[..], &["--json"]].concat()).await.expect(0).json();
        let act = &ended["acts"][0];
        assert_eq!((&act["state"], &act["changed"]), (&json!("done"), &json!(expected.len())), "{more:?}: {ended}");
        let lines = scene.lines("trail");
        let mut again = numbers(&lines[before..]);
        assert_in_order(&lines[before..]);
        again.sort_unstable();
        assert_eq!(again, expected, "{more:?}");
        before = lines.len();
    }
    assert_eq!(status().await, lanes, "the relay's lanes know nothing of it");

    let audit = scene.run(&["audit", "m7", "--json"]).await.expect(0).json();
    assert_eq!(audit["deliveries"].as_array().unwrap().len(), 1, "{audit}");
    let covered: Vec<u64> = audit["acts"].as_array().unwrap().iter().map(|a| a["number"].as_u64().unwrap()).collect();
    assert_eq!(covered, [1, 2, 3, 7], "m7 has key k3, topic order-paid, and is among the first forty: {audit}");
    let aloud = scene.run(&["audit", "m7"]).await.expect(0).stdout;
    assert!(aloud.contains("; act 2: replay trail, key k3: done, 15 delivered; ordered "), "{aloud}");
    assert!(aloud.contains(": a test"), "{aloud}");
    let acts = scene.run(&["acts"]).await.expect(0);
    assert!(acts.lines()[2].starts_with("act 3: replay trail, topic *-paid: done, 30 delivered; "), "{}", acts.stdout);
}

/// As docs/operating.md says it: add it, restart the relay, then replay with `--fill`. No gap, nothing twice.
async fn a_new_destination_is_filled_beside_live_traffic(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.files(&["trail"]);
    let relay = scene.folder.start(&["relay"], &[]);
    scene.store(0..300).await;
    until("the first are delivered", async || scene.lines("trail").len() == 300).await;
    relay.signal("TERM").await;
    relay.end().await;
    // What comes before the relay that knows the new destination is among what it routes already.
    scene.store(300..320).await;
    scene.files(&["trail", "new"]);
    let early = scene.replay(&["--destination", "new", "--from", "beginning", "--dry-run"]).await.expect(0);
    assert!(early.stderr.contains("shard 0: the relay has no lane to new yet"), "{}", early.stderr);
    let relay = scene.folder.start(&["relay"], &[]);
    until("its lane begins at the end", async || !scene.lines("new").is_empty()).await;
    let replaying = ["replay", "--why", "filling", "--destination", "new", "--from", "beginning", "--fill", "--json"];
    let replay = scene.folder.start(&[&replaying[..], &["--rate", "600/s"]].concat(), &[]);
    for n in 0..20 {
        scene.store(320 + n * 10..330 + n * 10).await;
    }
    let ended = replay.end().await.expect(0);
    assert_eq!(ended.json()["acts"][0]["changed"], 300, "{}", ended.stdout);
    assert!(!ended.stderr.contains("no lane"), "{}", ended.stderr);
    until("all are delivered", async || scene.lines("new").len() >= 520 && scene.lines("trail").len() >= 520).await;
    relay.signal("TERM").await;
    relay.end().await;
    let lines = scene.lines("new");
    let mut seen = numbers(&lines);
    seen.sort_unstable();
    assert_eq!(seen, (0..520).collect::<Vec<_>>(), "each once");
    let (filled, live): (Vec<Value>, Vec<Value>) = lines.into_iter().partition(|l| l["payload"].as_u64() < Some(300));
    assert_in_order(&filled);
    assert_in_order(&live);
    assert_eq!(numbers(&scene.lines("trail")).len(), 520, "nothing twice");
    // The whole log, without --fill: what the lane delivered comes again, and the ids tell.
    scene.replay(&["--destination", "new", "--from", "beginning"]).await.expect(0);
    let lines = scene.lines("new");
    let ids: BTreeSet<&str> = lines.iter().map(|l| l["id"].as_str().unwrap()).collect();
    assert_eq!((lines.len(), ids.len()), (2 * 520, 520));
}

async fn a_killed_replay_is_gone_on_with(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.files(&["trail"]);
    scene.store(0..400).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let call = ["replay", "--why", "w", "--destination", "trail", "--from", "beginning", "--rate", "100/s"];
    let mut replay: Running = scene.folder.start(&call, &[]);
    let act = async || scene.run(&["acts", "--json"]).await.json()["acts"][0].clone();
    until("some of it is stored", async || act().await["changed"].as_u64() > Some(0)).await;
    replay.child.kill().await.unwrap();
    let killed = act().await;
    assert_eq!(killed["state"], "unfinished", "{killed}");
    let stored = killed["changed"].as_u64().unwrap() as usize;
    let sent = scene.lines("trail").len() - 400;
    assert!(stored <= sent && sent < 400, "{stored} of {sent}");
    let relay = scene.folder.start(&["relay"], &[]);
    let again = scene.folder.start(&["replay", "--resume", "1"], &[]);
    until("it goes on", async || scene.lines("trail").len() > 400 + sent).await;
    // Told to stop, it says how to go on.
    again.signal("INT").await;
    let stopped = again.end().await.expect(1);
    assert!(
        stopped.stderr.contains("OUT-3041 ") && stopped.stderr.contains("`outhaul replay --resume 1"),
        "{}",
        stopped.stderr
    );
    let at_stop = act().await["changed"].as_u64().unwrap() as usize;
    assert!(at_stop > stored && at_stop < 400, "{at_stop}");
    assert_eq!(scene.lines("trail").len() - 400, sent + at_stop - stored, "a clean stop repeats nothing");
    let ended = scene.run(&["replay", "--resume", "1", "--json"]).await.expect(0).json();
    assert_eq!((&ended["acts"][0]["state"], &ended["acts"][0]["changed"]), (&json!("done"), &json!(400)), "{ended}");
    relay.signal("TERM").await;
    relay.end().await;
    let lines = scene.lines("trail").split_off(400);
    assert_in_order(&lines);
    let ids: BTreeSet<usize> = numbers(&lines).into_iter().collect();
    assert_eq!((ids.len(), lines.len()), (400, 400 + sent - stored), "what was not stored as sent comes again");
    for (number, why) in [("1", "it is over"), ("2", "no act has this number")] {
        let refused = scene.run(&["replay", "--resume", number]).await.expect(2);
        assert!(refused.stderr.starts_with("OUT-3040 ") && refused.stderr.contains(why), "{}", refused.stderr);
    }
}

async fn what_cannot_be_replayed_is_said(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.files(&["trail"]);
    let values = "('bad', 'order-created', 'k0', '[1]', '9'), ('behind', 'order-created', 'k0', NULL, '10')";
    scene.database.execute(&format!("INSERT INTO outbox (id, topic, msg_key, headers, payload) VALUES {values}")).await;
    scene.store(1..4).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let from_beginning = ["--destination", "trail", "--from", "beginning"];
    // Parked for the destination: the relay's.
    let ended = scene.replay(&from_beginning).await.expect(3);
    assert!(
        ended.stdout.starts_with("act 1: replay trail: done, 3 delivered, 2 left out (OUT-4030 "),
        "{}",
        ended.stdout
    );
    assert!(ended.stderr.contains("left out: bad (shard 0 number 0): OUT-4030 "), "{}", ended.stderr);
    // Not parked for a new one, and it cannot be read.
    scene.files(&["trail", "new"]);
    let ended = scene.replay(&["--destination", "new", "--from", "beginning"]).await.expect(3);
    assert!(ended.stdout.contains(": done, 4 delivered, 1 left out (OUT-4002 "), "{}", ended.stdout);
    assert_eq!(scene.lines("new").iter().map(|l| l["id"].clone()).collect::<Vec<_>>()[0], "behind");
    scene.files(&["trail"]);
    for (arguments, code, exit) in [
        (vec!["--destination", "nobody", "--from", "beginning"], "OUT-3031", 2),
        (vec!["--destination", "trail", "--from", "beginning", "--shard", "9"], "OUT-3031", 2),
        (vec!["--destination", "trail", "--from", "99"], "OUT-3005", 2),
        (vec!["--destination", "trail", "--from", "now"], "OUT-3005", 2),
    ] {
        let refused = scene.replay(&arguments).await.expect(exit);
        assert!(refused.stderr.starts_with(code), "{arguments:?}: {}", refused.stderr);
    }
    scene.run(&["replay", "--destination", "trail", "--from", "beginning"]).await.expect(2);
    assert_eq!(
        scene.run(&["acts", "--json"]).await.json()["acts"].as_array().unwrap().len(),
        2,
        "none of them is an act"
    );

    scene.run(&["parked", "skip", "--all", "--destination", "trail", "--why", "w"]).await.expect(0);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    scene.run(&["prune", "--retention", "0s"]).await.expect(0);
    let ended = scene.replay(&["--destination", "trail", "--from", "0"]).await.expect(3);
    assert!(
        ended.stderr.contains("OUT-4033 shard 0: the log does not hold positions 0 to 5 any more (5)"),
        "{}",
        ended.stderr
    );
    assert!(ended.stdout.contains(": done, 0 delivered"), "{}", ended.stdout);
    let ended = scene.replay(&from_beginning).await.expect(0);
    assert!(ended.stdout.contains(": done, 0 delivered") && !ended.stderr.contains("OUT-4033"), "{}", ended.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn rocketmq_gets_it_again_under_the_same_ids() {
    let scene = Scene::ready(Flavour::Sqlite).await;
    for version in RocketMq::ALL {
        let topic = topic_name();
        let config = format!(
            "[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"mq\"\nkind = \"rocketmq\"\nnamesrv = [\"{}\"]\n\
             create_topics = true\n[[route]]\ntopic = \"{topic}\"\nto = [\"mq\"]\n",
            scene.url(),
            version.namesrv()
        );
        scene.folder.write("outhaul.toml", &config);
        let lines: String = (0..20)
            .map(|n| {
                format!("{{\"id\":\"{topic}-{n}\",\"topic\":\"{topic}\",\"key\":\"k{}\",\"payload\":{n}}}\n", n % 3)
            })
            .collect();
        scene.enqueue(&lines).await.expect(0);
        scene.run(&["relay", "--until-empty"]).await.expect(0);
        let replay = ["--destination", "mq", "--from", "beginning", "--topic", &topic];
        let ended = scene.replay(&replay).await.expect(0);
        assert!(ended.stdout.contains(": done, 20 delivered"), "{}", ended.stdout);
        let consumed = version.java().consume(&topic, &["--count", "40"]).await;
        let mut copies: BTreeMap<String, usize> = BTreeMap::new();
        consumed.iter().for_each(|m| *copies.entry(m.properties["outhaul-id"].to_string()).or_default() += 1);
        assert_eq!(copies.len(), 20);
        assert!(copies.values().all(|n| *n == 2), "{copies:?}");
    }
}

/// An inbox knows what it has: a replay changes nothing there, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_inbox_ignores_what_it_knows() {
    let scene = Scene::ready(Flavour::Sqlite).await;
    let inbox = scene.folder.path("inbox.db");
    let config = format!(
        "[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"points\"\nkind = \"inbox\"\nurl = \"sqlite:{}\"\n\
         consumer = \"points\"\n[[route]]\ntopic = \"*\"\nto = [\"points\"]\n",
        scene.url(),
        inbox.display()
    );
    scene.folder.write("outhaul.toml", &config);
    scene.store(0..20).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let dry = scene.replay(&["--destination", "points", "--from", "beginning", "--dry-run"]).await.expect(0);
    let warned =
        |ran: &Ran| ran.stderr.contains("points is an inbox: ids that its inbox_message still has are ignored");
    assert!(warned(&dry) && dry.stdout.starts_with("20 messages would be sent to points "), "{dry:?}");
    let ended = scene.replay(&["--destination", "points", "--from", "beginning"]).await.expect(0);
    assert!(warned(&ended) && ended.stdout.contains(": done, 20 delivered"), "{ended:?}");
}
