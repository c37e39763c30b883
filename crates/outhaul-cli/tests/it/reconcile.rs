//! What must be there against what is there.

use std::collections::BTreeSet;
use std::time::Duration;

#[cfg(feature = "sqlite")]
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};
use outhaul_testkit::servers::{Flavour, Session};
#[cfg(feature = "sqlite")]
use rocketmq_remoting::client::{Client, ClientOptions, SendOptions, TransactionalProducer};
#[cfg(feature = "sqlite")]
use rocketmq_remoting::message::Message;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::program::{LIMIT, Ran, Scene, on_every_database};

on_every_database!(
    orders_without_event_are_named_and_mended,
    what_a_file_lacks_is_found_and_delivered_again,
    what_an_inbox_lacks_is_found_and_delivered_again,
    what_is_under_way_or_parked_or_pruned_is_not_missing,
);

fn ids(list: &Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

impl Scene {
    async fn reconcile(&self, more: &[&str]) -> Ran {
        let mut call = vec!["reconcile", "--json"];
        for (name, value) in [("--from", "beginning"), ("--settle", "0s"), ("--examples", "100000")] {
            if !more.contains(&name) {
                call.extend([name, value]);
            }
        }
        self.run(&[&call[..], more].concat()).await
    }

    /// A configuration with one destination, to which everything goes.
    fn one_destination(&self, keys: &str) {
        let text = format!(
            "[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"points\"\n{keys}\n\
             [[route]]\ntopic = \"order-*\"\nto = [\"points\"]\n",
            self.url()
        );
        self.folder.write("outhaul.toml", &text);
    }

    async fn numbered(&self, numbers: std::ops::Range<usize>) {
        let lines: String = numbers
            .map(|n| {
                format!("{{\"id\":\"m{n:04}\",\"topic\":\"order-created\",\"key\":\"k{}\",\"payload\":{n}}}\n", n % 5)
            })
            .collect();
        self.enqueue(&lines).await.expect(0);
    }
}

/// Commits an order, then sends its event: with nothing in between but the chance to be killed.
async fn commit_then_send(flavour: Flavour, url: String, worker: usize) {
    let mut session = Session::open(flavour, &url).await.unwrap();
    for n in 0usize.. {
        let id = format!("{}-{worker}-{n}", uuid::Uuid::new_v4().simple());
        if session
            .try_execute(&format!("INSERT INTO orders (id, customer) VALUES ('{id}', 'c{}')", n % 7))
            .await
            .is_err()
        {
            continue;
        }
        let event =
            format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('{id}', 'order-created', 'c', '1')");
        while session.try_execute(&event).await.is_err() {}
    }
}

const WITHOUT_EVENT: &str = "SELECT id FROM orders WHERE id NOT IN (SELECT id FROM outbox)";

/// The article's scene: a service that commits, then sends, is killed again and again. Exactly the orders without event are
/// named, from the table and from the log; `--fix` enqueues them, a second run finds nothing, the inbox has each once.
async fn orders_without_event_are_named_and_mended(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let created_at = match flavour {
        Flavour::Sqlite => "created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now'))",
        Flavour::Postgres => "created_at timestamptz NOT NULL DEFAULT now()",
        _ => "created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)",
    };
    scene
        .database
        .execute(&format!("CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY, customer VARCHAR(64), {created_at})"))
        .await;
    let working = async {
        let mut workers = JoinSet::new();
        for round in 0.. {
            for worker in 0..4 {
                workers.spawn(commit_then_send(flavour, scene.url().to_owned(), worker));
            }
            let kill = 100 + u64::from(uuid::Uuid::new_v4().as_bytes()[0]);
            tokio::time::sleep(Duration::from_millis(kill)).await;
            workers.shutdown().await;
            if round >= 5 && scene.database.query(WITHOUT_EVENT).await.len() >= 5 {
                return;
            }
        }
    };
    tokio::time::timeout(LIMIT, working).await.unwrap();
    // A killed session may still be at work at the server: what it does is done, or not, when nobody has a lock any more.
    let mut without: BTreeSet<String> = BTreeSet::new();
    loop {
        let rows = scene.database.query(WITHOUT_EVENT).await;
        let now: BTreeSet<String> = rows.into_iter().map(|row| row[0].clone().unwrap()).collect();
        if now == without {
            break;
        }
        without = now;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let orders = scene.database.query_u64("SELECT count(*) FROM orders").await;
    eprintln!("{flavour:?}: {orders} orders, {} without event", without.len());

    let inbox = scene.folder.path("inbox.db");
    scene.one_destination(&format!("kind = \"inbox\"\nurl = \"sqlite:{}\"", inbox.display()));
    let query = "SELECT id, created_at FROM orders";
    let found = scene.reconcile(&["--query", query]).await.expect(3).json();
    assert_eq!(
        (&found["checked"], &found["stray"], &found["duplicate"]),
        (&json!(orders), &json!([]), &json!([])),
        "{found}"
    );
    assert_eq!(ids(&found["missing"]), without, "while they are in the table");
    let by_hour: u64 = found["hours"].as_array().unwrap().iter().map(|h| h["missing"].as_u64().unwrap()).sum();
    assert_eq!(by_hour, without.len() as u64);

    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let found = scene.reconcile(&["--query", query]).await.expect(3).json();
    assert_eq!(ids(&found["missing"]), without, "when they have been moved into the log");
    let found = scene.reconcile(&["--query", query, "--to", "2001-01-01T00:00:00Z"]).await.expect(0).json();
    assert_eq!(found["checked"], 0, "none is as old as that: {found}");
    let young = scene.reconcile(&["--query", query, "--settle", "1h"]).await.expect(0).json();
    assert_eq!((&young["missing"], &young["pending"]), (&json!([]), &json!(without.len())), "too young: {young}");

    // What --fix needs is said before anything is done.
    let refused = scene.reconcile(&["--query", query, "--fix", "--yes"]).await.expect(2);
    assert!(
        refused.stderr.contains("OUT-3061") && refused.stderr.contains("topic, key, payload"),
        "{}",
        refused.stderr
    );
    let payload = match flavour {
        Flavour::Sqlite | Flavour::Postgres => "'{\"order\":\"' || id || '\"}'",
        _ => "CONCAT('{\"order\":\"', id, '\"}')",
    };
    let whole = format!("SELECT id, created_at, 'order-created', customer, {payload} FROM orders");
    let dry = scene.reconcile(&["--query", &whole, "--fix"]).await.expect(3).json();
    assert_eq!((&dry["fixable"], &dry["fixed"]), (&json!(without.len()), &json!(0)), "{dry}");
    assert_eq!(scene.database.query_u64("SELECT count(*) FROM outbox").await, 0, "a dry run writes nothing");
    let fixed = scene.reconcile(&["--query", &whole, "--fix", "--yes"]).await.expect(0).json();
    assert_eq!(fixed["fixed"], without.len(), "{fixed}");
    let again = scene.reconcile(&["--query", &whole, "--fix", "--yes"]).await.expect(0).json();
    assert_eq!((&again["missing"], &again["fixed"]), (&json!([]), &json!(0)), "{again}");
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let again = scene.reconcile(&["--query", &whole]).await.expect(0).json();
    assert_eq!((&again["checked"], &again["missing"]), (&json!(orders), &json!([])), "{again}");

    let mut consumer = Session::open(Flavour::Sqlite, &format!("sqlite:{}", inbox.display())).await.unwrap();
    assert_eq!(consumer.query_u64("SELECT count(*) FROM inbox_message").await, orders, "each once");
    let mended = without.first().unwrap();
    let row = consumer
        .query(&format!("SELECT msg_key, CAST(payload AS TEXT) FROM inbox_message WHERE id = '{mended}'"))
        .await;
    assert!(row[0][0].as_ref().unwrap().starts_with('c'), "{row:?}");
    assert_eq!(row[0][1], Some(format!("{{\"order\":\"{mended}\"}}")));
    scene.reconcile(&[]).await.expect(0);
}

async fn what_a_file_lacks_is_found_and_delivered_again(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.one_destination("kind = \"file\"\npath = \"points.jsonl\"");
    scene.numbered(0..500).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let all = scene.reconcile(&[]).await.expect(0).json();
    assert_eq!((&all["checked"], &all["counts"]["missing"]), (&json!(500), &json!(0)), "{all}");

    // Lines are lost, one is there twice, one nobody knows.
    let path = scene.folder.path("points.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let is_lost = |line: &str| {
        let n: usize = serde_json::from_str::<Value>(line).unwrap()["payload"].as_u64().unwrap() as usize;
        n % 47 == 11 || (200..230).contains(&n)
    };
    let (lost, kept): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| is_lost(line));
    let lost: BTreeSet<String> = lost
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
        .collect();
    let twice = serde_json::from_str::<Value>(kept[7]).unwrap()["id"].as_str().unwrap().to_owned();
    let nobodys = kept[7].replace(&twice, "nobodys").replace("\"position\":", "\"position\":99");
    let mut lines = kept.clone();
    lines.extend([kept[7], &nobodys]);
    std::fs::write(&path, lines.join("\n") + "\n{\"id\":\"cut o").unwrap();

    let found = scene.reconcile(&["--out", "found"]).await.expect(3).json();
    assert_eq!(ids(&found["missing"]), lost);
    assert_eq!(
        (ids(&found["duplicate"]), ids(&found["stray"])),
        ([twice].into(), ["nobodys".to_owned()].into()),
        "{found}"
    );
    let files = scene.folder.json_lines("found/shop-points.missing.jsonl");
    assert_eq!(ids(&Value::from(files)), lost);
    let few = scene.reconcile(&["--examples", "3", "--destination", "points"]).await.expect(3).json();
    assert_eq!((few["missing"].as_array().unwrap().len(), &few["counts"]["missing"]), (3, &json!(lost.len())));
    let people = scene.run(&["reconcile", "--from", "beginning", "--settle", "0s"]).await.expect(3);
    assert!(
        people.lines()[0].starts_with(&format!("{} of 500 of shop are missing at points", lost.len())),
        "{people:?}"
    );

    let dry = scene.reconcile(&["--fix"]).await.expect(3).json();
    assert_eq!((&dry["fixable"], &dry["fixed"]), (&json!(lost.len()), &json!(0)));
    assert!(std::fs::read_to_string(&path).unwrap().ends_with("cut o"), "a dry run sends nothing");
    std::fs::write(&path, kept.join("\n") + "\n").unwrap();
    let fixed = scene.reconcile(&["--fix", "--yes", "--why", "the disk"]).await.expect(0).json();
    assert_eq!(fixed["fixed"], lost.len(), "{fixed}");
    assert_eq!(scene.folder.json_lines("points.jsonl").len(), 500, "these and no others");
    let again = scene.reconcile(&["--fix", "--yes"]).await.expect(0).json();
    assert_eq!((&again["counts"]["missing"], &again["fixed"]), (&json!(0), &json!(0)));
    let acts = scene.run(&["acts"]).await.expect(0).stdout;
    assert!(acts.contains("replay points") && acts.contains("the disk"), "{acts}");
}

async fn what_an_inbox_lacks_is_found_and_delivered_again(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.one_destination(&format!("kind = \"inbox\"\nurl = \"{}\"", scene.url()));
    scene.numbered(0..100).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    scene.reconcile(&[]).await.expect(0);
    scene.database.execute("DELETE FROM inbox_message WHERE id IN ('m0003', 'm0050', 'm0051', 'm0099')").await;
    // This one was applied, and has left the table of messages since.
    scene.database.execute("INSERT INTO inbox (consumer, id) VALUES ('points', 'm0099')").await;
    // This one was applied, and is still in both: it is one copy.
    scene.database.execute("INSERT INTO inbox (consumer, id) VALUES ('points', 'm0001')").await;
    let found = scene.reconcile(&["--fix", "--yes"]).await.expect(0).json();
    let lost = ["m0003", "m0050", "m0051"].map(str::to_owned);
    assert_eq!((ids(&found["missing"]), &found["fixed"]), (lost.into(), &json!(3)), "{found}");
    let again = scene.reconcile(&[]).await.expect(0).json();
    assert_eq!((&again["checked"], &again["counts"]["missing"]), (&json!(100), &json!(0)));
}

async fn what_is_under_way_or_parked_or_pruned_is_not_missing(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.one_destination("kind = \"file\"\npath = \"points.jsonl\"");
    scene.numbered(0..20).await;
    // Headers that are no object of strings: no destination takes it, and later ones of its key wait behind it.
    scene
        .database
        .execute("INSERT INTO outbox (id, topic, msg_key, headers, payload) VALUES ('bad', 'order-created', 'kx', '[1]', '1')")
        .await;
    scene.numbered(20..40).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    // In the table, and no relay runs; no route leads the other one there.
    scene.numbered(40..45).await;
    scene.enqueue("{\"id\":\"elsewhere\",\"topic\":\"refund\",\"payload\":1}\n").await.expect(0);
    let found = scene.reconcile(&[]).await.expect(0).json();
    let counts = &found["counts"];
    assert_eq!(
        (&found["checked"], &found["pending"], &counts["parked"]),
        (&json!(46), &json!(5), &json!(1)),
        "{found}"
    );
    assert_eq!(ids(&found["parked"]), ["bad".to_owned()].into());
    scene.run(&["parked", "skip", "--id", "bad", "--why", "a test", "--wait", "0s"]).await.expect(0);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let found = scene.reconcile(&[]).await.expect(0).json();
    let counts = &found["counts"];
    assert_eq!(
        (&counts["given_up"], &counts["parked"], &found["pending"]),
        (&json!(1), &json!(0), &json!(0)),
        "{found}"
    );

    // A message from before the window is no stray, and one that was pruned is not either.
    let now = scene.run(&["audit", "m0044", "--json"]).await.json()["created_at"].as_str().unwrap().to_owned();
    let late = scene.reconcile(&["--from", &now]).await.expect(0).json();
    assert_eq!(late["counts"]["stray"], 0, "{late}");
    assert!(late["checked"].as_u64().unwrap() < 46, "{late}");
    // Files know when their messages were created; an edited one tells a later time, and only the log knows better.
    let path = scene.folder.path("points.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let moved = text.replacen("\"created_at\":\"20", "\"created_at\":\"30", 1);
    std::fs::write(&path, &moved).unwrap();
    let far = ["--from", "2090-01-01T00:00:00Z"];
    let late = scene.reconcile(&far).await.expect(0).json();
    assert_eq!(late["counts"]["stray"], 0, "the log has it from before the window: {late}");
    let line = moved.lines().find(|line| line.contains("\"created_at\":\"30")).unwrap();
    let id = serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    std::fs::write(&path, moved.clone() + &line.replace(&id, "nobodys") + "\n").unwrap();
    let late = scene.reconcile(&far).await.expect(3).json();
    assert_eq!(ids(&late["stray"]), ["nobodys".to_owned()].into(), "{late}");
    let asked = scene.reconcile(&[&far[..], &["--query", "SELECT 'm0001'"]].concat()).await.expect(0).json();
    assert_eq!((&asked["checked"], &asked["missing"]), (&json!(1), &json!([])), "also without a time: {asked}");
    std::fs::write(&path, &text).unwrap();
    scene.run(&["prune", "--retention", "0s"]).await.expect(0);
    let found = scene.reconcile(&[]).await.expect(0).json();
    let counts = &found["counts"];
    assert_eq!((&counts["stray"], &counts["missing"]), (&json!(0), &json!(0)), "{found}");
    assert!(counts["unknown"].as_u64().unwrap() > 0, "{found}");
    // Nor is an order whose event may have been pruned: it is not enqueued a second time.
    let query = "SELECT 'm0001', '2001-01-01T00:00:00Z', 'order-created', NULL, '1'";
    let found =
        scene.reconcile(&["--query", query, "--topic", "order-*", "--fix", "--yes", "--from", "beginning"]).await;
    let found = found.json();
    assert_eq!((&found["counts"]["unknown"], &found["fixed"]), (&json!(1), &json!(0)), "{found}");
    let bad = scene.reconcile(&["--query", "DELETE FROM outbox"]).await;
    assert!(bad.code == 1 || bad.code == 2, "{bad:?}");
    let bad = scene.reconcile(&["--query", "SELECT 'a', 'yesterday'"]).await.expect(2);
    assert!(bad.stderr.contains("row 1: its second column is no time"), "{}", bad.stderr);
    let bad = scene.reconcile(&["--query", "SELECT nothing FROM nowhere"]).await;
    assert!(bad.code == 1 && bad.stderr.contains("--query"), "{bad:?}");
}

/// A broker of its own whose store is put back to an earlier copy while no relay runs: exactly what it lost is found, and is
/// delivered again.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn what_a_broker_lost_is_found_and_delivered_again() {
    let broker = OwnRocketMq::start(RocketMq::V4, &[]).await;
    let scene = Scene::ready(Flavour::Sqlite).await;
    scene.one_destination(&format!(
        "kind = \"rocketmq\"\nnamesrv = [\"{}\"]\ncreate_topics = true\ntopic_prefix = \"shop-\"",
        broker.namesrv()
    ));
    scene.numbered(0..150).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let all = scene.reconcile(&[]).await.expect(0).json();
    assert_eq!((&all["checked"], &all["counts"]["missing"]), (&json!(150), &json!(0)), "{all}");
    broker.snapshot("early", &[Part::BrokerA]).await;
    scene.numbered(150..260).await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    scene.reconcile(&[]).await.expect(0);
    broker.rollback("early").await;
    // Another producer fills the hole with messages of its own.
    broker.java().produce("shop-order-created", &["--count", "20"]).await;

    let lost: BTreeSet<String> = (150..260).map(|n| format!("m{n:04}")).collect();
    let found = scene.reconcile(&[]).await.expect(3);
    assert!(found.stderr.contains("20 messages of other producers"), "{}", found.stderr);
    let found = found.json();
    assert_eq!(ids(&found["missing"]), lost);
    assert_eq!((&found["stray"], &found["duplicate"]), (&json!([]), &json!([])), "{found}");
    let fixed = scene.reconcile(&["--fix", "--yes"]).await.expect(0).json();
    assert_eq!(fixed["fixed"], lost.len(), "{fixed}");
    let again = scene.reconcile(&[]).await.expect(0).json();
    assert_eq!((&again["checked"], &again["counts"]["missing"]), (&json!(260), &json!(0)), "{again}");

    // The database is put back to where it was before the last ones, and the broker is ahead of it.
    scene.database.execute("DELETE FROM outbox_receipt WHERE from_position >= 150").await;
    scene.database.execute("DELETE FROM outbox_log WHERE base_position >= 150").await;
    let ahead = scene.reconcile(&[]).await.expect(3).json();
    assert_eq!(ids(&ahead["stray"]), lost, "the broker has what the database does not know");
}

/// Halfs that a broker has given up, and what the database says of them.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn halfs_that_were_given_up_are_listed() {
    let settings = ["transactionCheckInterval=1000", "transactionTimeOut=1000", "transactionCheckMax=1"];
    let broker = OwnRocketMq::start(RocketMq::V4, &settings).await;
    let scene = Scene::ready(Flavour::Sqlite).await;
    scene.one_destination(&format!("kind = \"rocketmq\"\nnamesrv = [\"{}\"]", broker.namesrv()));
    let none = scene.reconcile(&["--transactions"]).await.expect(0);
    assert_eq!(none.stdout, "", "no topic yet");
    broker.java().create_topic("orders", 1).await;
    let store = outhaul_store::open(outhaul_store::StoreOptions::new(scene.url())).await.unwrap();
    let origin = store.origin().await.unwrap();
    store.close().await;
    scene
        .database
        .execute("INSERT INTO outbox_transaction (id, message_id, topic, payload) VALUES ('t1', 'e1', 'orders', 'x')")
        .await;
    let client = Client::new(ClientOptions::new(broker.namesrv()).unwrap());
    let (producer, mut checks) = TransactionalProducer::start(&client, "orders", LIMIT).await.unwrap();
    let route = client.route("orders").await.unwrap();
    for (n, outbox) in [(1, &*origin), (2, &*origin), (3, "another")] {
        let half = Message::new("orders", "x")
            .and_then(|m| m.with_unique_key(&format!("U{n}")))
            .and_then(|m| m.with_property("outhaul-id", &format!("e{n}")))
            .and_then(|m| m.with_property("outhaul-transaction", &format!("t{n}")))
            .and_then(|m| m.with_property("outhaul-origin", outbox))
            .unwrap();
        producer.half(&route.queues()[0], &half, &SendOptions::default()).await.unwrap();
    }
    // It is asked, and nobody answers.
    tokio::time::timeout(LIMIT, checks.next()).await.unwrap().unwrap();
    let mut states = vec![];
    crate::program::eventually("all three are given up", async || {
        let listed = scene.reconcile(&["--transactions"]).await;
        let lines = listed.lines().into_iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
        states =
            lines.map(|v| (v["id"].as_str().unwrap().to_owned(), v["state"].as_str().unwrap().to_owned())).collect();
        states.sort();
        states.len() >= 3 && listed.code == 3
    })
    .await;
    let said = |id: &str, state: &str| (id.to_owned(), state.to_owned());
    assert_eq!(states, [said("e1", "committed"), said("e2", "absent"), said("e3", "other")]);
    let text = scene.run(&["reconcile", "--from", "beginning", "--transactions"]).await.expect(3).stdout;
    assert!(text.contains("points: 3 halfs were given up, 1 of them committed and not gone out yet"), "{text}");
    scene.database.execute("UPDATE outbox_transaction SET state = 'sent'").await;
    scene.reconcile(&["--transactions"]).await.expect(0);
    producer.stop().await;
}
