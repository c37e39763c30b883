//! What `audit` finds without an id.

use outhaul_testkit::servers::Flavour;
use serde_json::Value;

use crate::program::{Ran, Scene, on_every_database};

on_every_database!(messages_are_found_by_what_they_are, what_waits_is_told_with_its_reason);

fn ids(ran: &Ran) -> Vec<String> {
    let line = |line: &&str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    ran.lines().iter().map(line).collect()
}

impl Scene {
    async fn found(&self, question: &[&str]) -> Ran {
        self.run(&[&["audit", "--json", "--db", self.url()], question].concat()).await
    }
}

fn line(id: &str, topic: &str, key: &str) -> String {
    format!("{{\"id\":\"{id}\",\"topic\":\"{topic}\",\"key\":\"{key}\",\"payload\":1}}\n")
}

async fn messages_are_found_by_what_they_are(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let lines: String =
        (0..30).map(|n| line(&format!("m{n}"), ["order-created", "stock"][n % 2], ["a", "b", "c"][n % 3])).collect();
    scene.enqueue(&lines).await.expect(0);
    scene.deliver("out.jsonl").await;
    scene.enqueue(&line("hot", "order-created", "a")).await.expect(0);
    let key = scene.found(&["--key", "a"]).await.expect(0);
    assert_eq!(ids(&key), (0..30).step_by(3).map(|n| format!("m{n}")).chain(["hot".to_owned()]).collect::<Vec<_>>());
    assert!(key.lines()[0].contains("\"state\":\"delivered\""), "{}", key.lines()[0]);
    assert_eq!(
        ids(&scene.found(&["--topic", "order-*", "--key", "b"]).await.expect(0)),
        ["m4", "m10", "m16", "m22", "m28"]
    );
    let few = scene.found(&["--topic", "*", "--limit", "7"]).await.expect(0);
    assert_eq!(ids(&few).len(), 7);
    assert!(few.stderr.contains("there are more than these 7"), "{}", few.stderr);
    for nothing in [["--from", "2999-01-01T00:00:00Z"], ["--to", "2001-01-01T00:00:00Z"]] {
        assert!(scene.found(&nothing).await.expect(0).stdout.is_empty());
    }
    assert_eq!(
        ids(&scene.found(&["--from", "2001-01-01T00:00:00Z", "--to", "2999-01-01T00:00:00Z"]).await.expect(0)).len(),
        31
    );
    scene.found(&["m1", "--key", "a"]).await.expect(2);
    scene.found(&[]).await.expect(2);
}

async fn what_waits_is_told_with_its_reason(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.enqueue(&line("sent", "order-created", "x")).await.expect(0);
    scene.deliver("out.jsonl").await;
    let none = scene.run(&["audit", "--unsent", "--db", scene.url()]).await.expect(0);
    assert_eq!((none.stdout.as_str(), none.stderr.trim()), ("", "nothing waits"));
    for (id, headers) in [("bad", "'[1]'"), ("behind", "NULL")] {
        let values = format!("('{id}', 'order-created', 'k', {headers}, '1')");
        let insert = format!("INSERT INTO outbox (id, topic, msg_key, headers, payload) VALUES {values}");
        scene.database.execute(&insert).await;
    }
    scene.deliver("out.jsonl").await;
    scene.enqueue(&line("later", "order-created", "y")).await.expect(0);
    let unsent = scene.found(&["--unsent"]).await.expect(3);
    assert_eq!(ids(&unsent), ["bad", "behind", "later"]);
    let aloud = scene.run(&["audit", "--unsent", "--db", scene.url()]).await.expect(3);
    let lines = aloud.lines();
    assert!(lines[0].contains("file has given up after") && lines[0].contains("OUT-4002"), "{}", lines[0]);
    assert!(lines[1].contains("waits behind an earlier message of its key"), "{}", lines[1]);
    assert!(lines[2].contains("is in the outbox table") && lines[2].contains("waits for the relay"), "{}", lines[2]);
    assert_eq!(ids(&scene.found(&["--unsent", "--key", "k", "--limit", "1"]).await.expect(3)), ["bad"]);
    // What its destination has not got yet, though it was moved: the file cannot be written.
    let nowhere = format!("file:{}", scene.folder.path("no/such/folder/out.jsonl").display());
    let mut relay = scene.folder.start(&["relay", "--db", scene.url(), "--to", &nowhere], &[]);
    relay.says("OUT-").await;
    crate::program::eventually("it is moved", async || {
        let ran = scene.found(&["--unsent", "--key", "y"]).await;
        ran.code == 3 && ran.stdout.contains("\"state\":\"pending\"")
    })
    .await;
    relay.signal("TERM").await;
    relay.end().await;
}
