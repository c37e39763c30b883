//! A message's way through every command, on every database.

use outhaul_testkit::servers::Flavour;
use serde_json::{Value, json};

use crate::program::{Scene, on_every_database};

on_every_database!(
    from_init_to_prune,
    ddl_that_is_printed_makes_the_same_tables,
    raw_inserts_of_the_documented_columns_are_delivered,
    a_topic_without_a_route_is_kept_and_shown,
    two_rows_of_one_id_are_both_told,
);

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Names in the order of the alphabet, as serde_json keeps them.
fn names(list: &str) -> Vec<&str> {
    let mut names: Vec<&str> = list.split(' ').collect();
    names.sort_unstable();
    names
}

async fn from_init_to_prune(flavour: Flavour) {
    let scene = Scene::new(flavour).await;
    let db = scene.url();
    for _ in 0..2 {
        let ran = scene.run(&["init", "--db", db]).await.expect(0);
        assert!(ran.stdout.starts_with("main: table outbox with 1 shard is ready ("), "{}", ran.stdout);
    }
    let lines: String = (0..1_200)
        .map(|n| format!("{{\"topic\":\"order-created\",\"key\":\"k{}\",\"headers\":{{\"n\":\"{n}\"}},\"payload\":{{\"n\":{n}}}}}\n", n % 7))
        .collect();
    let ids: Vec<String> = scene.enqueue(&lines).await.expect(0).stdout.lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), 1_200);

    let status = scene.run(&["status", "--db", db, "--json"]).await.expect(0).json();
    let shard = &status["outboxes"][0]["shards"][0];
    assert_eq!(keys(&status), ["outboxes"]);
    assert_eq!(keys(&status["outboxes"][0]), names("name mode shards instances same_configuration reconcile"));
    assert_eq!(keys(shard), names("shard owner epoch hot_rows oldest_hot_ms scheduled_rows next_due_ms log_end lanes"));
    assert_eq!((&shard["hot_rows"], &shard["log_end"]), (&json!(1_200), &json!(0)));

    let audit = scene.run(&["audit", &ids[0], "--db", db, "--json"]).await.expect(0).json();
    assert_eq!(
        (&audit["moved_at"], &audit["position"], &audit["deliveries"]),
        (&Value::Null, &Value::Null, &json!([]))
    );

    let delivered = scene.deliver("trail.jsonl").await;
    assert_eq!(delivered.len(), 1_200);
    for key in 0..7 {
        let key = format!("k{key}");
        let of_key: Vec<u64> =
            delivered.iter().filter(|m| m["key"] == *key).map(|m| m["payload"]["n"].as_u64().unwrap()).collect();
        assert!(of_key.windows(2).all(|w| w[0] < w[1]), "{key}: {of_key:?}");
    }
    assert!(delivered.iter().all(|m| ids.contains(&m["id"].as_str().unwrap().to_owned())));

    let status = scene.run(&["status", "--db", db, "--json"]).await.expect(0).json();
    let shard = &status["outboxes"][0]["shards"][0];
    let lane = &shard["lanes"][0];
    assert_eq!((&shard["hot_rows"], &shard["log_end"]), (&json!(0), &json!(1_200)));
    assert_eq!(shard["owner"], Value::Null, "the shard was released");
    assert_eq!(
        keys(lane),
        names("destination kind state ack_level cursor lag oldest_unsent_ms parked last_error down_since paused rate")
    );
    assert_eq!(lane["parked"], json!({"retrying": 0, "waiting": 0, "dead": 0}));
    assert_eq!(
        (&lane["destination"], &lane["state"], &lane["cursor"]),
        (&json!("file"), &json!("idle"), &json!(1_200))
    );
    assert_eq!((&lane["lag"], &lane["ack_level"]), (&json!(0), &json!("flushed")));
    let table = scene.run(&["status", "--db", db]).await.expect(0);
    assert!(table.lines()[0].starts_with("OUTBOX") && table.lines()[1].contains("idle"), "{}", table.stdout);

    for (id, more) in [(&ids[0], &[][..]), (&ids[1_199], &["--around", "2001-01-01T00:00:00Z"][..])] {
        let mut call = vec!["audit", id.as_str(), "--db", db, "--json"];
        call.extend(more);
        let audit = scene.run(&call).await.expect(0).json();
        assert_eq!(keys(&audit), names("id topic key created_at moved_at shard position deliveries acts"));
        let delivery = &audit["deliveries"][0];
        assert_eq!(keys(delivery), names("destination state sent_at ack_level receipt attempts reason"));
        assert_eq!((&delivery["state"], &delivery["attempts"]), (&json!("delivered"), &json!(1)), "{audit}");
        assert_eq!((&audit["id"], &audit["topic"]), (&json!(id), &json!("order-created")));
        let (created, moved) = (audit["created_at"].as_str().unwrap(), audit["moved_at"].as_str().unwrap());
        assert!(created <= moved && moved.ends_with('Z'), "{audit}");
        let n = delivered.iter().find(|m| m["id"] == **id).unwrap();
        assert_eq!((&audit["position"], &audit["created_at"]), (&n["position"], &n["created_at"]));
    }
    let aloud = scene.run(&["audit", &ids[5], "--db", db]).await.expect(0);
    assert_eq!(aloud.lines().len(), 1);
    assert!(
        aloud.stdout.contains("; file has it since ") && aloud.stdout.contains(" UTC and moved "),
        "{}",
        aloud.stdout
    );

    let kept = scene.run(&["prune", "--db", db, "--retention", "1d", "--json"]).await.expect(0).json();
    assert_eq!((&kept["ran"], &kept["messages"]), (&json!(true), &json!(0)), "{kept}");
    let pruned = scene.run(&["prune", "--db", db, "--retention", "0s", "--json"]).await.expect(0).json();
    assert_eq!((&pruned["messages"], &pruned["more"]), (&json!(1_200), &json!(false)), "{pruned}");
    let gone = scene.run(&["audit", &ids[0], "--db", db]).await.expect(1);
    assert!(gone.stderr.starts_with("OUT-3021 ") && gone.stdout.is_empty(), "{}", gone.stderr);
    let status = scene.run(&["status", "--db", db, "--json"]).await.expect(0).json();
    assert_eq!(status["outboxes"][0]["shards"][0]["log_end"], 1_200, "positions never go back");
}

async fn ddl_that_is_printed_makes_the_same_tables(flavour: Flavour) {
    let scene = Scene::new(flavour).await;
    let shards = if flavour == Flavour::Sqlite { "1" } else { "4" };
    let plan = ["--shards", shards, "--payload", "text", "--shard-by", "topic"];
    let mut print = vec!["init", "--db", scene.url(), "--print"];
    print.extend(plan);
    let ddl = scene.run(&print).await.expect(0).stdout;
    if flavour != Flavour::Sqlite {
        assert!(ddl.contains("GRANT"), "{ddl}");
    }
    scene.run(&["status", "--db", scene.url()]).await.expect(1);
    scene.database.execute(&ddl).await;
    let mut init = vec!["init", "--db", scene.url(), "--json"];
    init.extend(plan);
    let made = scene.run(&init).await.expect(0).json();
    assert_eq!(made["shards"].to_string(), shards);
    if flavour != Flavour::Sqlite {
        let other = scene.run(&["init", "--db", scene.url(), "--shards", "8"]).await.expect(1);
        assert!(other.stderr.starts_with("OUT-1008 "), "{}", other.stderr);
    }
    scene.enqueue("{\"topic\":\"a\",\"payload\":1}\n{\"topic\":\"b\",\"payload\":2}\n").await.expect(0);
    assert_eq!(scene.deliver("out.jsonl").await.len(), 2);
}

/// L9: rows without anything but what an application names.
async fn raw_inserts_of_the_documented_columns_are_delivered(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let values = "'order-created', 'k', '{\"n\":1}'";
    scene.database.execute(&format!("INSERT INTO outbox (topic, msg_key, payload) VALUES ({values})")).await;
    scene
        .database
        .execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('mine', {values})"))
        .await;
    let delivered = scene.deliver("out.jsonl").await;
    assert_eq!(delivered.len(), 2);
    assert_eq!(delivered[0]["id"].as_str().unwrap().len(), 36, "a UUID by default");
    assert_eq!((&delivered[1]["id"], &delivered[1]["payload"]), (&json!("mine"), &json!({"n": 1})));
}

async fn a_topic_without_a_route_is_kept_and_shown(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let config = format!(
        "[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n[[destination]]\nname = \"trail\"\nkind = \"file\"\npath = \"t.jsonl\"\n\
         [[route]]\ntopic = \"order-*\"\nto = [\"trail\"]\n",
        scene.url()
    );
    scene.folder.write("outhaul.toml", &config);
    let lines =
        "{\"id\":\"a\",\"topic\":\"order-1\",\"payload\":1}\n{\"id\":\"b\",\"topic\":\"stray\",\"payload\":2}\n";
    scene.enqueue(lines).await.expect(0);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    assert_eq!(scene.folder.json_lines("t.jsonl").len(), 1);
    let status = scene.run(&["status", "--json"]).await.expect(3).json();
    let lanes = status["outboxes"][0]["shards"][0]["lanes"].as_array().unwrap().clone();
    let stray = lanes.iter().find(|l| l["destination"] == "-").unwrap();
    assert_eq!((&stray["state"], &stray["parked"]["dead"]), (&json!("no_route"), &json!(1)), "{stray}");
    let trail = lanes.iter().find(|l| l["destination"] == "trail").unwrap();
    assert_eq!((&trail["kind"], &trail["lag"]), (&json!("file"), &json!(0)), "{trail}");
    let audit = scene.run(&["audit", "b", "--json"]).await.expect(3).json();
    let delivery = &audit["deliveries"][0];
    assert_eq!((&delivery["destination"], &delivery["state"]), (&json!("-"), &json!("dead")), "{audit}");
    assert!(delivery["reason"].as_str().unwrap().starts_with("OUT-4001 "), "{audit}");
    let aloud = scene.run(&["audit", "b"]).await.expect(3);
    assert!(aloud.stdout.contains("; - has given up after 0 attempts: OUT-4001 "), "{}", aloud.stdout);

    // What is parked keeps its id and its story when its log has been pruned.
    let pruned = scene.run(&["prune", "--retention", "0s", "--json"]).await.expect(0).json();
    assert_eq!(pruned["messages"], 2, "{pruned}");
    let kept = scene.run(&["audit", "b", "--json"]).await.expect(3).json();
    for name in ["id", "topic", "created_at", "shard", "position", "deliveries"] {
        assert_eq!(kept[name], audit[name], "{name}: {kept}");
    }
    assert_eq!(kept["moved_at"], Value::Null, "{kept}");
    let aloud = scene.run(&["audit", "b"]).await.expect(3);
    assert!(aloud.stdout.contains("whose log is pruned there; - has given up"), "{}", aloud.stdout);
    scene.run(&["audit", "a"]).await.expect(1);
}

/// L10.
async fn two_rows_of_one_id_are_both_told(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let line = "{\"id\":\"same\",\"topic\":\"t\",\"payload\":1}\n";
    scene.enqueue(&line.repeat(2)).await.expect(0);
    assert_eq!(scene.run(&["audit", "same", "--db", scene.url()]).await.expect(0).lines().len(), 2);
    assert_eq!(scene.deliver("out.jsonl").await.len(), 2);
    let ran = scene.run(&["audit", "same", "--db", scene.url(), "--json"]).await.expect(0);
    let mut positions: Vec<Value> =
        ran.lines().iter().map(|l| serde_json::from_str::<Value>(l).unwrap()["position"].clone()).collect();
    positions.sort_by_key(Value::as_u64);
    assert_eq!(positions, [json!(0), json!(1)]);
    assert!(ran.stderr.contains("several messages have this id"), "{}", ran.stderr);
}
