//! What operators do: parked messages, pauses, cancelling, and how it is recorded.

use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use serde_json::{Value, json};

use crate::program::{LIMIT, Running, Scene, on_every_database};

on_every_database!(
    a_dead_message_is_edited_while_the_relay_runs,
    what_is_ordered_without_a_relay_is_done_by_the_next,
    what_had_no_route_is_redriven,
    a_paused_destination_waits,
    a_scheduled_message_is_cancelled,
    instances_with_other_destinations_are_told,
    a_destination_that_is_gone_is_dropped,
    what_waits_or_gives_no_reason_is_told,
);

/// Two messages of a key, the first of which cannot be read.
async fn blocked(scene: &Scene) {
    for (id, headers) in [("bad", "'[1]'"), ("behind", "NULL")] {
        let values = format!("('{id}', 'order-created', 'k', {headers}, '{{\"n\":1}}')");
        scene
            .database
            .execute(&format!("INSERT INTO outbox (id, topic, msg_key, headers, payload) VALUES {values}"))
            .await;
    }
}

/// Asks again until the answer is yes: another process writes what is asked for.
async fn until(what: &str, mut asked: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !asked().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "it never came to pass: {what}");
}

impl Scene {
    fn relay(&self, file: &str) -> Running {
        let to = format!("file:{}", self.folder.path(file).display());
        self.folder.start(&["relay", "--db", self.url(), "--to", &to], &[])
    }

    async fn parked(&self) -> Value {
        let ran = self.run(&["parked", "list", "--db", self.url(), "--json"]).await;
        assert!([0, 3].contains(&ran.code), "{ran:?}");
        ran.json()
    }

    async fn audit(&self, id: &str) -> Value {
        self.run(&["audit", id, "--db", self.url(), "--json"]).await.json()
    }
}

fn ids(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["id"].as_str().unwrap()).collect()
}

async fn a_dead_message_is_edited_while_the_relay_runs(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let db = scene.url();
    let relay = scene.relay("out.jsonl");
    blocked(&scene).await;
    until("one is dead, one waits", async || scene.parked().await["messages"].as_array().unwrap().len() == 2).await;
    let parked = scene.parked().await;
    let kinds: Vec<(&str, &str, u64)> = parked["counts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (c["reason"].as_str().unwrap(), c["state"].as_str().unwrap(), c["count"].as_u64().unwrap()))
        .collect();
    assert_eq!(kinds, [("OUT-4002", "dead", 1), ("OUT-4009", "waiting", 1)]);
    let list = scene.run(&["parked", "list", "--db", db, "--reason", "OUT-4002", "--state", "dead"]).await.expect(3);
    assert_eq!(list.lines().len(), 2, "a count and a message: {}", list.stdout);
    assert!(list.lines()[1].starts_with("bad  file  shard 0 number 0 key k  dead "), "{}", list.stdout);

    let edit = ["parked", "edit", "--db", db, "--id", "bad", "--no-headers", "--payload", r#"{"n":2}"#];
    let ordered =
        scene.run(&[&edit[..], &["--why", "bad headers", "--actor", "ann", "--json"]].concat()).await.expect(0);
    let act = &ordered.json()["acts"][0];
    assert_eq!((&act["state"], &act["changed"], &act["verb"]), (&json!("done"), &json!(1), &json!("edit")), "{act}");
    until("both are delivered", async || scene.folder.json_lines("out.jsonl").len() == 2).await;
    let delivered = scene.folder.json_lines("out.jsonl");
    assert_eq!(ids(&delivered), ["bad", "behind"]);
    assert_eq!(delivered[0]["payload"], json!({"n": 2}));
    until("nothing is parked", async || scene.parked().await["messages"] == json!([])).await;
    relay.signal("TERM").await;
    relay.end().await;
    let audit = scene.audit("bad").await;
    assert_eq!(audit["deliveries"][0]["state"], "delivered", "{audit}");
    let recorded = &audit["acts"][0];
    assert_eq!(
        (&recorded["verb"], &recorded["actor"], &recorded["why"], &recorded["id"]),
        (&json!("edit"), &json!("ann"), &json!("bad headers"), &json!("bad"))
    );
    let aloud = scene.run(&["audit", "bad", "--db", db]).await.expect(0);
    assert!(aloud.stdout.contains(" by ann: bad headers"), "{}", aloud.stdout);
    assert_eq!(scene.audit("behind").await["acts"], json!([]));
}

async fn what_is_ordered_without_a_relay_is_done_by_the_next(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let db = scene.url();
    blocked(&scene).await;
    assert!(scene.deliver("out.jsonl").await.is_empty());
    let skip = ["parked", "skip", "--db", db, "--id", "bad", "--why", "it is obsolete"];
    let ordered = scene.run(&skip).await.expect(0);
    assert!(ordered.stdout.starts_with("act 1: skip bad at file: open"), "{}", ordered.stdout);
    assert!(ordered.stderr.contains("no relay owns the shard now"), "{}", ordered.stderr);
    assert_eq!(ids(&scene.deliver("out.jsonl").await), ["behind"]);
    let audit = scene.run(&["audit", "bad", "--db", db, "--json"]).await.expect(0).json();
    assert_eq!(audit["deliveries"][0]["state"], "skipped", "{audit}");
    assert_eq!((&audit["acts"][0]["verb"], &audit["acts"][0]["state"]), (&json!("skip"), &json!("done")), "{audit}");
    let acts = scene.run(&["acts", "--db", db]).await.expect(0);
    assert!(
        acts.stdout.contains(": done, 1 changed; ordered ") && acts.stdout.contains(": it is obsolete"),
        "{}",
        acts.stdout
    );
    let again = scene.run(&skip).await.expect(1);
    assert!(again.stderr.starts_with("OUT-3029 "), "{}", again.stderr);
}

async fn what_had_no_route_is_redriven(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let config = |topic: &str| {
        format!(
            "[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"trail\"\nkind = \"file\"\npath = \"t.jsonl\"\n\
             [[route]]\ntopic = \"{topic}\"\nto = [\"trail\"]\n",
            scene.url()
        )
    };
    scene.folder.write("outhaul.toml", &config("order-*"));
    let lines: String = (0..20)
        .map(|n| format!("{{\"id\":\"m{n}\",\"topic\":\"stray\",\"key\":\"k{}\",\"payload\":{n}}}\n", n % 3))
        .collect();
    scene.enqueue(&lines).await.expect(0);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let refused = scene.run(&["parked", "edit", "--id", "m1", "--payload", "x", "--why", "w"]).await.expect(1);
    assert!(refused.stderr.starts_with("OUT-3032 "), "{}", refused.stderr);
    scene.folder.write("outhaul.toml", &config("*"));
    let redrive =
        ["parked", "redrive", "--destination", "-", "--all", "--rate", "1000/s", "--why", "a route was added"];
    scene.run(&redrive).await.expect(0);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let delivered = scene.folder.json_lines("t.jsonl");
    assert_eq!(delivered.len(), 20);
    for key in 0..3 {
        let of_key = delivered.iter().map(|m| m["payload"].as_u64().unwrap()).filter(|n| n % 3 == key);
        assert!(of_key.is_sorted(), "{delivered:?}");
    }
    let audit = scene.run(&["audit", "m7", "--json"]).await.expect(0).json();
    let delivery = &audit["deliveries"][0];
    assert_eq!((&delivery["destination"], &delivery["state"]), (&json!("trail"), &json!("delivered")), "{audit}");
    assert_eq!((&audit["acts"][0]["verb"], &audit["acts"][0]["changed"]), (&json!("redrive"), &json!(20)), "{audit}");
}

async fn a_paused_destination_waits(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let db = scene.url();
    let relay = scene.relay("out.jsonl");
    scene.enqueue("{\"id\":\"a\",\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
    until("the first is delivered", async || scene.folder.json_lines("out.jsonl").len() == 1).await;
    let nothing = scene.run(&["pause", "--db", db, "--destination", "flie", "--why", "w"]).await.expect(2);
    assert!(nothing.stderr.starts_with("OUT-3031 "), "{}", nothing.stderr);
    scene.run(&["pause", "--db", db, "--shard", "7", "--why", "w"]).await.expect(2);
    let pause =
        ["pause", "--db", db, "--destination", "file", "--why", "a migration", "--actor", "ann", "--wait", "60s"];
    let paused = scene.run(&pause).await.expect(0);
    assert!(paused.stdout.contains("pause file, shard 0: done"), "{}", paused.stdout);
    scene.enqueue("{\"id\":\"b\",\"topic\":\"t\",\"payload\":2}\n").await.expect(0);
    let lane = async || {
        let status = scene.run(&["status", "--db", db, "--json"]).await.expect(0).json();
        let shard = status["outboxes"][0]["shards"][0].clone();
        (shard["hot_rows"].clone(), shard["lanes"][0].clone())
    };
    until("the row has left the table", async || lane().await.0 == json!(0)).await;
    let (_, shown) = lane().await;
    assert_eq!(
        (&shown["state"], &shown["paused"]["by"], &shown["paused"]["why"]),
        (&json!("paused"), &json!("ann"), &json!("a migration"))
    );
    let table = scene.run(&["status", "--db", db]).await.expect(0);
    assert!(
        table.stdout.contains(" paused since ") && table.stdout.contains(" by ann: a migration"),
        "{}",
        table.stdout
    );
    assert_eq!(scene.folder.json_lines("out.jsonl").len(), 1);
    scene.run(&["resume", "--db", db, "--destination", "file", "--why", "done", "--wait", "60s"]).await.expect(0);
    until("the second is delivered", async || scene.folder.json_lines("out.jsonl").len() == 2).await;
    assert_eq!(lane().await.1["paused"], Value::Null);
    relay.signal("TERM").await;
    relay.end().await;
}

async fn a_scheduled_message_is_cancelled(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let db = scene.url();
    let lines = "{\"id\":\"later\",\"topic\":\"t\",\"payload\":1,\"available_at\":\"2037-12-31T00:00:00Z\"}\n{\"id\":\"now\",\"topic\":\"t\",\"payload\":2}\n";
    scene.enqueue(lines).await.expect(0);
    let cancel = |id| ["cancel", id, "--db", db, "--why", "withdrawn", "--actor", "ann"];
    let refused = scene.run(&cancel("now")).await.expect(1);
    assert!(refused.stderr.starts_with("OUT-3030 "), "{}", refused.stderr);
    assert_eq!(scene.audit("later").await["position"], Value::Null, "it waits in the outbox table");
    scene.run(&cancel("later")).await.expect(0);
    scene.run(&cancel("later")).await.expect(1);
    let audit = scene.run(&["audit", "later", "--db", db, "--json"]).await.expect(0).json();
    assert_eq!((&audit["cancelled"], &audit["acts"][0]["actor"]), (&json!(true), &json!("ann")), "{audit}");
    let aloud = scene.run(&["audit", "later", "--db", db]).await.expect(0);
    assert!(
        aloud.stdout.starts_with("later was cancelled on ") && aloud.stdout.contains(" by ann: withdrawn"),
        "{}",
        aloud.stdout
    );
    assert_eq!(ids(&scene.deliver("out.jsonl").await), ["now"]);
}

async fn instances_with_other_destinations_are_told(flavour: Flavour) {
    let scene = Scene::new(flavour).await;
    let db = scene.url();
    let shards = if flavour == Flavour::Sqlite { "1" } else { "2" };
    scene.run(&["init", "--db", db, "--shards", shards]).await.expect(0);
    let mut one = scene.relay("one.jsonl");
    let mut two = scene.folder.start(&["relay", "--db", db, "--to", "stdout:"], &[]);
    one.says("OUT-4021").await;
    two.says("OUT-4021").await;
    if flavour != Flavour::Sqlite {
        until("both own a shard", async || {
            let status = scene.run(&["status", "--db", db, "--json"]).await.json();
            status["outboxes"][0]["same_configuration"] == json!(false)
        })
        .await;
        let status = scene.run(&["status", "--db", db]).await.expect(3);
        assert!(status.stdout.contains("OUT-4021 main: "), "{}", status.stdout);
    }
    two.signal("TERM").await;
    two.end().await.expect(0);
    one.says("all instances have the same routes and destinations").await;
    until("only one is left", async || scene.run(&["status", "--db", db]).await.code == 0).await;
    one.signal("TERM").await;
    one.end().await.expect(0);
}

async fn a_destination_that_is_gone_is_dropped(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let destination =
        |name: &str| format!("[[destination]]\nname = \"{name}\"\nkind = \"file\"\npath = \"{name}.jsonl\"\n");
    let config = |names: &[&str]| {
        let all: String = names.iter().map(|n| destination(n)).collect();
        let to = names.join("\", \"");
        let outbox = format!("[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n", scene.url());
        scene.folder.write("outhaul.toml", &format!("{outbox}{all}[[route]]\ntopic = \"*\"\nto = [\"{to}\"]\n"));
    };
    let drop = |name| ["destination", "drop", name, "--why", "it was sold"];
    config(&["trail", "ledger"]);
    blocked(&scene).await;
    scene.run(&["relay", "--until-empty"]).await;
    let refused = scene.run(&drop("ledger")).await.expect(2);
    assert!(refused.stderr.starts_with("OUT-3033 "), "{}", refused.stderr);

    config(&["trail"]);
    scene.enqueue("{\"id\":\"later\",\"topic\":\"order-created\",\"payload\":1}\n").await.expect(0);
    scene.run(&["relay", "--until-empty"]).await;
    let status = scene.run(&["status"]).await.expect(3);
    assert!(status.stdout.contains("ledger is not configured; the log is kept"), "{}", status.stdout);
    let pruned = scene.run(&["prune"]).await.expect(0);
    assert!(pruned.stderr.contains("shop: ledger is not configured any more"), "{}", pruned.stderr);
    let refused = scene.run(&drop("nobody")).await.expect(2);
    assert!(refused.stderr.starts_with("OUT-3031 "), "{}", refused.stderr);

    let relay = scene.folder.start(&["relay"], &[]);
    until("the shard is owned", async || {
        scene.run(&["status", "--json"]).await.json()["outboxes"][0]["shards"][0]["owner"].is_string()
    })
    .await;
    let dropped = scene.run(&drop("ledger")).await.expect(0);
    assert!(dropped.stdout.contains("drop ledger: done, 2 parked given up"), "{}", dropped.stdout);
    assert!(dropped.stderr.contains("and 2 that are parked for it"), "{}", dropped.stderr);
    relay.signal("TERM").await;
    relay.end().await;
    let status = scene.run(&["status"]).await;
    assert!(!status.stdout.contains("ledger"), "{}", status.stdout);
    let states = async |id: &str| -> Vec<String> {
        let audit = scene.run(&["audit", id, "--json"]).await.json();
        let one = |d: &Value| format!("{} {}", d["destination"].as_str().unwrap(), d["state"].as_str().unwrap());
        audit["deliveries"].as_array().unwrap().iter().map(one).collect()
    };
    assert_eq!(states("bad").await, ["trail dead", "ledger dropped"]);
    assert_eq!(states("later").await, ["trail delivered"]);
    let aloud = scene.run(&["audit", "bad"]).await;
    assert!(aloud.stdout.contains("ledger was dropped by an operator"), "{}", aloud.stdout);
    assert!(aloud.stdout.contains(": it was sold"), "{}", aloud.stdout);

    // It comes back: like a new one it begins at the end.
    config(&["trail", "ledger"]);
    scene.run(&["relay", "--until-empty"]).await;
    scene.enqueue("{\"id\":\"new\",\"topic\":\"order-created\",\"payload\":1}\n").await.expect(0);
    scene.run(&["relay", "--until-empty"]).await;
    assert_eq!(ids(&scene.folder.json_lines("ledger.jsonl")), ["new"]);
    assert_eq!(ids(&scene.folder.json_lines("trail.jsonl")), ["later", "new"]);
}

async fn what_waits_or_gives_no_reason_is_told(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let db = scene.url();
    blocked(&scene).await;
    assert!(scene.deliver("out.jsonl").await.is_empty());
    let redrive = |why| ["parked", "redrive", "--db", db, "--id", "behind", "--why", why];
    for blank in ["", "  ", "\t"] {
        let refused = scene.run(&redrive(blank)).await.expect(2);
        assert!(refused.stderr.contains("--why"), "{}", refused.stderr);
    }
    assert_eq!(scene.run(&["acts", "--db", db]).await.expect(0).stdout, "");
    let ordered = scene.run(&redrive("now")).await.expect(3);
    assert!(ordered.stderr.contains("it waits behind an earlier message of its key"), "{}", ordered.stderr);
}
