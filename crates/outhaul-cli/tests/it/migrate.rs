//! From a table with a status column to the outbox table, while applications insert into both.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use outhaul_testkit::servers::{Flavour, soak};
use serde_json::{Value, json};

use crate::program::{Running, Scene, eventually, on_every_database, on_every_server};

on_every_database!(
    nothing_is_lost_on_the_way,
    what_was_sent_or_parked_before_is_not_sent_again,
    there_is_a_way_back,
    what_the_outbox_refuses_is_told_and_stays,
);

mod held {
    use super::{Flavour, a_row_that_somebody_holds_keeps_its_key_alone, on_every_server};

    on_every_server!(a_row_that_somebody_holds_keeps_its_key_alone);
}

fn ddl(flavour: Flavour) -> Vec<String> {
    let columns = match flavour {
        Flavour::Sqlite => {
            "id INTEGER PRIMARY KEY AUTOINCREMENT, topic TEXT, order_id TEXT, payload TEXT, \
             status TEXT NOT NULL DEFAULT 'PENDING', \
             created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')), sent_at TEXT"
        }
        Flavour::Postgres => {
            "id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic VARCHAR(300), order_id VARCHAR(300), payload JSONB, \
             status VARCHAR(16) NOT NULL DEFAULT 'PENDING', created_at TIMESTAMP NOT NULL DEFAULT (clock_timestamp() AT \
             TIME ZONE 'UTC'), sent_at TIMESTAMPTZ"
        }
        Flavour::MariaDb | Flavour::MySql => {
            "id BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(300), order_id VARCHAR(300) CHARACTER SET latin1, payload \
             JSON, status VARCHAR(16) NOT NULL DEFAULT 'PENDING', created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, \
             sent_at DATETIME(6) NULL"
        }
    };
    vec![
        format!("CREATE TABLE outbox_message ({columns})"),
        "CREATE INDEX outbox_message_status ON outbox_message (status, created_at)".to_owned(),
    ]
}

impl Scene {
    async fn with_a_table_to_leave(flavour: Flavour) -> Self {
        let scene = Self::new(flavour).await;
        for statement in ddl(flavour) {
            scene.database.execute(&statement).await;
        }
        scene.in_mode("status");
        scene.run(&["init"]).await.expect(0);
        scene
    }

    fn in_mode(&self, mode: &str) {
        let of_table = "table = \"outbox_message\"\ncolumns.msg_key = \"order_id\"";
        let table = if mode == "move" { "table = \"outbox_native\"" } else { of_table };
        let text = format!(
            "[relay]\nrescan_min = \"200ms\"\nlease_ttl = \"4s\"\n\n[[outbox]]\nurl = \"{}\"\nmode = \"{mode}\"\n{table}\n\n\
             [[destination]]\nname = \"orders\"\nkind = \"file\"\npath = \"orders.jsonl\"\n\n\
             [[route]]\ntopic = \"order-*\"\nto = [\"orders\"]\n",
            self.url()
        );
        self.folder.write("outhaul.toml", &text);
    }

    /// A relay that serves its shard.
    async fn relay_that_serves(&self) -> Running {
        let mut relay = self.folder.start(&["relay"], &[]);
        relay.says("database is ready").await;
        relay
    }

    async fn old(&self, n: u64, key: &str, topic: &str) {
        let values = format!("('{topic}', '{key}', '{{\"n\": {n}}}')");
        self.database.execute(&format!("INSERT INTO outbox_message (topic, order_id, payload) VALUES {values}")).await;
    }

    async fn new_row(&self, n: u64, key: &str) {
        let values = format!("('order-created', '{key}', '{{\"n\": {n}}}')");
        self.database.execute(&format!("INSERT INTO outbox_native (topic, msg_key, payload) VALUES {values}")).await;
    }

    async fn left(&self) -> (u64, u64) {
        let waiting = "SELECT COUNT(*) FROM outbox_message WHERE status = 'PENDING'";
        let hot = "SELECT COUNT(*) FROM outbox_native";
        (self.database.query_u64(waiting).await, self.database.query_u64(hot).await)
    }

    async fn settled(&self) {
        eventually("nothing waits", async || self.left().await == (0, 0)).await;
    }

    fn orders(&self) -> Vec<Value> {
        self.folder.json_lines("orders.jsonl")
    }
}

fn number(line: &Value) -> u64 {
    line["payload"]["n"].as_u64().unwrap_or_else(|| panic!("{line}"))
}

/// Writers insert into the old table and, one after the other, go over to the new one, without a pause between two events
/// of a key. Relays are killed and restarted meanwhile, first in one mode, then in the other.
async fn nothing_is_lost_on_the_way(flavour: Flavour) {
    let (writers, each) = (4u64, if soak() { 8_000u64 } else { 150 });
    let scene = Scene::with_a_table_to_leave(flavour).await;
    let mut relay = scene.relay_that_serves().await;
    // A writer is a key. It goes over when it has written so many.
    let write = async |writer: u64| {
        let mut session = scene.database.session().await;
        for n in 0..each {
            let (value, is_old) = (writer * each + n, n < each * 2 / 3);
            let (table, key) = if is_old { ("outbox_message", "order_id") } else { ("outbox_native", "msg_key") };
            let insert = format!(
                "INSERT INTO {table} (topic, {key}, payload) VALUES ('order-created', 'key {writer}', '{{\"n\": {value}}}')"
            );
            session.execute(&insert).await;
            if n % 8 == writer {
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
        }
    };
    let delivered = async |share: u64| {
        let wanted = writers * each * share / 100;
        eventually("some are delivered", async || scene.orders().len() as u64 >= wanted).await;
    };
    let restart = async {
        delivered(5).await;
        relay.child.kill().await.unwrap();
        relay = scene.relay_that_serves().await;
        delivered(20).await;
        scene.in_mode("migrate");
        relay.child.kill().await.unwrap();
        relay = scene.relay_that_serves().await;
        for share in [40, 60, 80] {
            delivered(share).await;
            relay.child.kill().await.unwrap();
            relay = scene.relay_that_serves().await;
        }
    };
    tokio::join!(write(0), write(1), write(2), write(3), restart);
    scene.settled().await;
    relay.signal("TERM").await;
    relay.end().await.expect(0);
    // What the last kill left to be sent again is in the log.
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let lines = scene.orders();
    let mut of_key: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    for line in &lines {
        of_key.entry(line["key"].as_str().unwrap().to_owned()).or_default().push(number(line));
    }
    for writer in 0..writers {
        let found = of_key.get(&format!("key {writer}")).cloned().unwrap_or_default();
        let all: BTreeSet<u64> = found.iter().copied().collect();
        assert_eq!(all, (writer * each..(writer + 1) * each).collect(), "missing of key {writer}");
        // A kill repeats what was under way, in order: without what came before, the order is that of the commits.
        let mut first = Vec::new();
        let mut seen = BTreeSet::new();
        for n in found {
            if seen.insert(n) {
                first.push(n);
            }
        }
        assert!(first.is_sorted(), "key {writer}: {first:?}");
    }
    // The end of it: what is left is an outbox like any other.
    let progress = scene.run(&["migrate", "--json"]).await.expect(0).json();
    assert_eq!(
        (&progress["stage"], &progress["waiting_in_table"], &progress["waiting_in_outbox"]),
        (&json!("feeding"), &json!(0), &json!(0)),
        "{progress}"
    );
    scene.in_mode("move");
    let refused = scene.run(&["relay", "--until-empty"]).await.expect(1);
    assert!(refused.stderr.contains("OUT-1032"), "{}", refused.stderr);
    scene.in_mode("migrate");
    let ended = scene.run(&["migrate", "--finish"]).await.expect(0);
    assert!(ended.stdout.contains("mode = \"move\" and table = \"outbox_native\""), "{}", ended.stdout);
    scene.in_mode("move");
    scene.new_row(1_000_000, "key 0").await;
    let said = scene.run(&["relay", "--until-empty"]).await.expect(0).stderr;
    let after = scene.orders();
    let all: Vec<u64> = after.iter().map(number).collect();
    assert_eq!((after.len(), number(after.last().unwrap())), (lines.len() + 1, 1_000_000), "{all:?}\n{said}");
}

/// While rows wait for a destination that is down, or are dead, the mode changes: they are delivered from the log.
async fn what_was_sent_or_parked_before_is_not_sent_again(flavour: Flavour) {
    let scene = Scene::with_a_table_to_leave(flavour).await;
    for n in 0..20 {
        scene.old(n, "a", "order-created").await;
    }
    scene.old(90, "b", "nobody-wants-it").await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    assert_eq!(scene.left().await, (1, 0), "what is dead waits, where the column has no word for it");
    // The log has them, and their marks are lost, as they would be by a crash before they were written.
    scene.database.execute("UPDATE outbox_message SET status = 'PENDING', sent_at = NULL WHERE id > 10").await;
    let marks = "UPDATE outbox_meta SET value = '{\"orders\":10}' WHERE name = 'destination:=marked'";
    assert_eq!(scene.database.execute(marks).await, 1);
    scene.in_mode("migrate");
    scene.old(20, "a", "order-created").await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    assert_eq!(scene.left().await, (0, 0));
    assert_eq!(
        scene.orders().iter().map(number).collect::<Vec<_>>(),
        (0..21).collect::<Vec<_>>(),
        "each once, in order"
    );
    let listed = scene.run(&["parked", "list", "--json"]).await.expect(3).json();
    assert_eq!(listed["messages"].as_array().unwrap().len(), 1, "{listed}");
    let story = scene.run(&["audit", "22", "--json"]).await.expect(0).json();
    assert_eq!(story["deliveries"][0]["state"], "delivered", "{story}");
    // A status table is not served any more, and says so.
    scene.in_mode("status");
    let mut relay = scene.folder.start(&["relay"], &[]);
    relay.says("OUT-1032").await;
    relay.signal("TERM").await;
    relay.end().await;
}

async fn there_is_a_way_back(flavour: Flavour) {
    let scene = Scene::with_a_table_to_leave(flavour).await;
    let nothing = scene.run(&["migrate", "--back"]).await.expect(1);
    assert!(nothing.stderr.starts_with("OUT-3071 "), "{}", nothing.stderr);
    scene.in_mode("migrate");
    let relay = scene.relay_that_serves().await;
    scene.old(1, "a", "order-created").await;
    scene.settled().await;
    scene.new_row(2, "a").await;
    scene.settled().await;
    let runs = scene.run(&["migrate", "--back"]).await.expect(1);
    assert!(runs.stderr.starts_with("OUT-3071 ") && runs.stderr.contains("stop every relay"), "{}", runs.stderr);
    relay.signal("TERM").await;
    relay.end().await.expect(0);
    scene.old(3, "a", "order-created").await;
    scene.new_row(4, "a").await;
    let early = scene.run(&["migrate", "--finish"]).await.expect(1);
    assert!(early.stderr.contains("1 rows wait in table outbox_message"), "{}", early.stderr);
    let waits = scene.run(&["migrate", "--back"]).await.expect(1);
    assert!(waits.stderr.contains("1 rows wait in table outbox_native"), "{}", waits.stderr);
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    let back = scene.run(&["migrate", "--back"]).await.expect(0);
    assert!(back.stdout.contains("next: set mode = \"status\""), "{}", back.stdout);
    scene.in_mode("status");
    scene.old(5, "a", "order-created").await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    // And over again.
    scene.in_mode("migrate");
    scene.old(6, "a", "order-created").await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    assert_eq!(scene.orders().iter().map(number).collect::<BTreeSet<_>>(), (1..=6).collect(), "{:?}", scene.orders());
    assert_eq!((scene.orders().len(), scene.left().await), (6, (0, 0)), "each once");
}

async fn what_the_outbox_refuses_is_told_and_stays(flavour: Flavour) {
    let scene = Scene::with_a_table_to_leave(flavour).await;
    scene.in_mode("migrate");
    let long = "k".repeat(280);
    scene.old(1, "a", "order-created").await;
    scene.old(2, &long, "order-created").await;
    scene.old(3, "a", "order-created").await;
    scene.old(4, &long, "order-created").await;
    scene
        .database
        .execute("INSERT INTO outbox_message (topic, order_id, payload) VALUES (NULL, 'c', '{\"n\": 5}')")
        .await;
    scene.old(6, "b", "order-created").await;
    let mut relay = scene.relay_that_serves().await;
    relay.says("cannot be moved into the outbox").await;
    eventually("the others are delivered", async || scene.orders().len() == 3).await;
    scene.new_row(7, "a").await;
    eventually("what comes later is delivered", async || scene.orders().len() == 4).await;
    assert_eq!(scene.orders().iter().map(number).collect::<Vec<_>>(), [1, 3, 6, 7]);
    assert_eq!(scene.left().await.0, 3);
    relay.signal("TERM").await;
    relay.end().await.expect(0);
    scene.database.execute("UPDATE outbox_message SET order_id = 'long' WHERE id IN (2, 4)").await;
    scene.run(&["relay", "--until-empty"]).await.expect(0);
    assert_eq!(scene.orders().iter().map(number).collect::<Vec<_>>(), [1, 3, 6, 7, 2, 4]);
    assert_eq!(scene.left().await, (1, 0));
}

async fn a_row_that_somebody_holds_keeps_its_key_alone(flavour: Flavour) {
    let scene = Scene::with_a_table_to_leave(flavour).await;
    scene.in_mode("migrate");
    for (n, key) in [(1, "a"), (2, "b"), (3, "a"), (4, "b"), (5, "c")] {
        scene.old(n, key, "order-created").await;
    }
    let mut session = scene.database.session().await;
    session.execute("BEGIN").await;
    session.execute("UPDATE outbox_message SET payload = payload WHERE id = 2").await;
    let relay = scene.relay_that_serves().await;
    eventually("the others are delivered", async || scene.orders().len() == 3).await;
    assert_eq!(scene.orders().iter().map(number).collect::<Vec<_>>(), [1, 3, 5]);
    session.execute("COMMIT").await;
    scene.settled().await;
    eventually("all are delivered", async || scene.orders().len() == 5).await;
    assert_eq!(scene.orders().iter().map(number).collect::<Vec<_>>(), [1, 3, 5, 2, 4]);
    relay.signal("TERM").await;
    relay.end().await.expect(0);
}
