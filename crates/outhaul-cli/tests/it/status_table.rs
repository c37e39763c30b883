//! An existing table with a status column, served as it is.

use std::collections::BTreeSet;
use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use serde_json::{Value, json};

use crate::program::{Running, Scene, eventually, on_every_database, on_every_server};

on_every_database!(
    rows_are_delivered_once_and_marked,
    ids_of_other_types,
    nothing_is_lost_under_kills_and_late_commits,
    what_is_dead_is_marked_and_left_out,
    what_no_value_is_there_for_stays_and_is_left_out,
    what_was_sent_long_ago_is_archived,
    a_table_that_cannot_be_served_is_refused,
);

// SQLite has one lock for all.
mod held {
    use super::{Flavour, a_row_that_somebody_holds_is_marked_later, on_every_server};

    on_every_server!(a_row_that_somebody_holds_is_marked_later);
}

/// The table of many services, as their own DDL makes it.
fn ddl(flavour: Flavour, id: &str) -> Vec<String> {
    let columns = match flavour {
        Flavour::Sqlite => {
            "payload TEXT, status TEXT NOT NULL DEFAULT 'PENDING', \
             created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')), sent_at TEXT"
        }
        Flavour::Postgres => {
            "payload TEXT, status VARCHAR(16) NOT NULL DEFAULT 'PENDING', \
             created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(), sent_at TIMESTAMPTZ"
        }
        Flavour::MariaDb | Flavour::MySql => {
            "payload TEXT, status VARCHAR(16) NOT NULL DEFAULT 'PENDING', \
             created_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, sent_at DATETIME(6) NULL"
        }
    };
    vec![
        format!("CREATE TABLE outbox_message (id {id}, topic VARCHAR(255) NOT NULL, {columns})"),
        "CREATE INDEX outbox_message_status ON outbox_message (status, created_at)".to_owned(),
    ]
}

fn counting_id(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
        Flavour::Postgres => "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        Flavour::MariaDb | Flavour::MySql => "BIGINT AUTO_INCREMENT PRIMARY KEY",
    }
}

impl Scene {
    /// A scene with such a table, and a configuration that adds this to its outbox.
    async fn with_status_table(flavour: Flavour, id: &str, more: &str) -> Self {
        let scene = Self::new(flavour).await;
        for statement in ddl(flavour, id) {
            scene.database.execute(&statement).await;
        }
        scene.configure(more);
        scene.run(&["init"]).await.expect(0);
        scene
    }

    fn configure(&self, more: &str) {
        let text = format!(
            "[relay]\nrescan_min = \"200ms\"\nlease_ttl = \"4s\"\n\n[[outbox]]\nurl = \"{}\"\nmode = \"status\"\ntable = \"outbox_message\"\n{more}\n\n\
             [[destination]]\nname = \"orders\"\nkind = \"file\"\npath = \"orders.jsonl\"\n\n\
             [[destination]]\nname = \"rest\"\nkind = \"file\"\npath = \"rest.jsonl\"\n\n\
             [[route]]\ntopic = \"order-*\"\nto = [\"orders\"]\n\n[[route]]\ntopic = \"stock-*\"\nto = [\"rest\"]\n",
            self.url()
        );
        self.folder.write("outhaul.toml", &text);
    }

    async fn insert(&self, n: u32, topic: &str) {
        self.database
            .execute(&format!("INSERT INTO outbox_message (topic, payload) VALUES ('{topic}', '{{\"n\":{n}}}')"))
            .await;
    }

    async fn waiting(&self) -> u64 {
        self.database.query_u64("SELECT COUNT(*) FROM outbox_message WHERE status = 'PENDING'").await
    }

    async fn drain(&self) {
        self.run(&["relay", "--until-empty"]).await.expect(0);
    }

    fn relay_of_status_table(&self) -> Running {
        self.folder.start(&["relay"], &[])
    }

    async fn status_of(&self, id: &str) -> String {
        self.database.query_text(&format!("SELECT status FROM outbox_message WHERE id = '{id}'")).await
    }
}

fn numbers(lines: &[Value]) -> Vec<u64> {
    lines.iter().map(|line| line["payload"]["n"].as_u64().unwrap()).collect()
}

async fn rows_are_delivered_once_and_marked(flavour: Flavour) {
    let scene = Scene::with_status_table(flavour, counting_id(flavour), "").await;
    for n in 0..60 {
        scene.insert(n, if n % 3 == 0 { "stock-changed" } else { "order-created" }).await;
    }
    let printed = scene.run(&["init", "--print"]).await.expect(0);
    assert!(printed.stdout.contains("GRANT SELECT, UPDATE ON outbox_message TO relay;"), "{}", printed.stdout);
    let validated = scene.run(&["validate"]).await.expect(0);
    assert!(!validated.stdout.contains("no index"), "{}", validated.stdout);
    scene.drain().await;
    let orders = scene.folder.json_lines("orders.jsonl");
    assert_eq!(
        numbers(&orders),
        (0..60).filter(|n| n % 3 != 0).collect::<Vec<u64>>(),
        "in the order of their creation"
    );
    assert_eq!(numbers(&scene.folder.json_lines("rest.jsonl")).len(), 20);
    let id = orders[0]["id"].as_str().unwrap();
    let sent = "SELECT COUNT(*) FROM outbox_message WHERE status = 'SENT' AND sent_at IS NOT NULL";
    assert_eq!(scene.database.query_u64(sent).await, 60);
    scene.drain().await;
    assert_eq!(scene.folder.json_lines("orders.jsonl").len(), 40, "nothing is sent again");

    let audit = scene.run(&["audit", id, "--json"]).await.expect(0).json();
    assert_eq!(audit["deliveries"][0]["state"], "delivered", "{audit}");
    let status = scene.run(&["status", "--json"]).await.expect(0).json();
    assert_eq!(
        (&status["outboxes"][0]["mode"], &status["outboxes"][0]["shards"][0]["hot_rows"]),
        (&json!("status"), &json!(0))
    );

    // Somebody sets a row back, as is done where a consumer has lost its message: it is sent again.
    scene.database.execute(&format!("UPDATE outbox_message SET status = 'PENDING' WHERE id = '{id}'")).await;
    let waits = scene.run(&["audit", id, "--json"]).await.expect(0).json();
    assert_eq!(waits["deliveries"][0]["state"], "delivered", "the log knows the first time: {waits}");
    scene.drain().await;
    assert_eq!(scene.folder.json_lines("orders.jsonl").len(), 41);
    assert_eq!(scene.status_of(id).await, "SENT");

    let given = "{\"id\":\"order-1\",\"topic\":\"order-created\",\"payload\":1}\n";
    let refused = scene.folder.run(&["enqueue"], given, &[]).await;
    assert!(refused.code != 0 && refused.stderr.contains("they are numbers there"), "{}", refused.stderr);
    let made =
        scene.folder.run(&["enqueue"], "{\"topic\":\"order-created\",\"payload\":{\"n\":100}}\n", &[]).await.expect(0);
    assert!(!made.lines()[0].is_empty());
    assert_eq!(scene.waiting().await, 1);
    scene.drain().await;
    assert_eq!(scene.folder.json_lines("orders.jsonl").last().unwrap()["id"], made.lines()[0]);
}

async fn ids_of_other_types(flavour: Flavour) {
    let (kind, fresh) = match flavour {
        Flavour::Sqlite => ("TEXT PRIMARY KEY", "lower(hex(randomblob(16)))"),
        Flavour::Postgres => ("UUID PRIMARY KEY", "md5(random()::text)::uuid"),
        Flavour::MariaDb | Flavour::MySql => ("BINARY(16) PRIMARY KEY", "UNHEX(REPLACE(UUID(), '-', ''))"),
    };
    let scene = Scene::with_status_table(flavour, kind, "").await;
    for n in 0..30 {
        let values = format!("({fresh}, 'order-created', '{{\"n\":{n}}}')");
        scene.database.execute(&format!("INSERT INTO outbox_message (id, topic, payload) VALUES {values}")).await;
    }
    scene.drain().await;
    let delivered = scene.folder.json_lines("orders.jsonl");
    let ids: BTreeSet<&str> = delivered.iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!((delivered.len(), ids.len(), scene.waiting().await), (30, 30, 0));
    let one = ids.first().unwrap();
    let audit = scene.run(&["audit", one, "--json"]).await.expect(0).json();
    assert_eq!(audit["deliveries"][0]["state"], "delivered", "{audit}");
    scene.run(&["audit", "no-such-id"]).await.expect(1);
    // A row that is in no log yet is known under the same id.
    let values = format!("({fresh}, 'order-created', '{{\"n\":30}}')");
    scene.database.execute(&format!("INSERT INTO outbox_message (id, topic, payload) VALUES {values}")).await;
    let id = if matches!(flavour, Flavour::MariaDb | Flavour::MySql) { "LOWER(HEX(id))" } else { "CAST(id AS TEXT)" };
    let query = format!("SELECT {id}, created_at FROM outbox_message");
    let compared = ["reconcile", "--query", &query, "--from", "beginning", "--settle", "0s", "--json"];
    let compared = scene.run(&compared).await.expect(0).json();
    assert_eq!((&compared["checked"], &compared["missing"]), (&json!(31), &json!([])), "{compared}");
}

async fn nothing_is_lost_under_kills_and_late_commits(flavour: Flavour) {
    const WRITERS: u64 = 4;
    const EACH: u64 = 60;
    let scene = Scene::with_status_table(flavour, counting_id(flavour), "").await;
    let mut relay = scene.relay_of_status_table();
    relay.says("database is ready").await;
    let write = async |writer: u64| {
        let mut session = scene.database.session().await;
        for n in 0..EACH {
            let n = writer * EACH + n;
            let insert =
                format!("INSERT INTO outbox_message (topic, payload) VALUES ('order-created', '{{\"n\":{n}}}')");
            // One writer of a database that has several commits long after its rows were created.
            let late = writer == 0 && flavour != Flavour::Sqlite;
            if late {
                session.execute("BEGIN").await;
            }
            session.execute(&insert).await;
            tokio::time::sleep(Duration::from_millis(if late { 60 } else { 15 })).await;
            if late {
                session.execute("COMMIT").await;
            }
        }
    };
    let kill = async {
        for _ in 0..2 {
            eventually("something is delivered", async || !scene.folder.json_lines("orders.jsonl").is_empty()).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            relay.child.kill().await.unwrap();
            relay = scene.relay_of_status_table();
            relay.says("database is ready").await;
        }
    };
    tokio::join!(write(0), write(1), write(2), write(3), kill);
    eventually("everything is marked", async || scene.waiting().await == 0).await;
    let delivered = numbers(&scene.folder.json_lines("orders.jsonl"));
    let all: BTreeSet<u64> = delivered.iter().copied().collect();
    assert_eq!(all.len() as u64, WRITERS * EACH, "missing");
    // A kill when nothing is under way sends nothing again.
    relay.child.kill().await.unwrap();
    scene.drain().await;
    assert_eq!(scene.folder.json_lines("orders.jsonl").len(), delivered.len());
}

async fn what_is_dead_is_marked_and_left_out(flavour: Flavour) {
    let scene = Scene::with_status_table(flavour, counting_id(flavour), "status.dead = \"DEAD\"").await;
    scene.insert(1, "nobody-wants-it").await;
    scene.insert(2, "order-created").await;
    scene.drain().await;
    assert_eq!(numbers(&scene.folder.json_lines("orders.jsonl")), [2]);
    assert_eq!((scene.status_of("1").await.as_str(), scene.status_of("2").await.as_str()), ("DEAD", "SENT"));
    let listed = scene.run(&["parked", "list", "--json"]).await.expect(3).json();
    assert_eq!(listed["messages"][0]["id"], "1", "{listed}");

    // What an operator gives up is dead; what is redriven and delivered is sent.
    scene.insert(3, "nobody-wants-it").await;
    scene.drain().await;
    let skip = ["parked", "skip", "--id", "3", "--destination", "-", "--why", "obsolete"];
    scene.run(&skip).await.expect(0);
    let route = "\n[[route]]\ntopic = \"nobody-*\"\nto = [\"rest\"]\n";
    let text = std::fs::read_to_string(scene.folder.path("outhaul.toml")).unwrap();
    scene.folder.write("outhaul.toml", &format!("{text}{route}"));
    scene
        .run(&["parked", "redrive", "--id", "1", "--destination", "-", "--why", "there is a route now"])
        .await
        .expect(0);
    let mut relay = scene.relay_of_status_table();
    relay.says("database is ready").await;
    eventually("it is delivered", async || numbers(&scene.folder.json_lines("rest.jsonl")) == [1]).await;
    eventually("it is marked", async || scene.status_of("1").await == "SENT").await;
    eventually("nothing is parked", async || {
        scene.run(&["parked", "list", "--json"]).await.json()["messages"] == json!([])
    })
    .await;
    relay.signal("TERM").await;
    relay.end().await.expect(0);
    assert_eq!(scene.status_of("3").await, "DEAD");
    scene.drain().await;
    assert_eq!(numbers(&scene.folder.json_lines("rest.jsonl")), [1]);
}

async fn what_no_value_is_there_for_stays_and_is_left_out(flavour: Flavour) {
    let scene = Scene::with_status_table(flavour, counting_id(flavour), "").await;
    for n in 0..5 {
        scene.insert(n, "nobody-wants-it").await;
    }
    scene.drain().await;
    scene.insert(9, "order-created").await;
    scene.drain().await;
    assert_eq!(scene.waiting().await, 5);
    assert_eq!(numbers(&scene.folder.json_lines("orders.jsonl")), [9]);
    let listed = scene.run(&["parked", "list", "--json"]).await.expect(3).json();
    assert_eq!(listed["messages"].as_array().unwrap().len(), 5, "parked once each: {listed}");
}

async fn a_row_that_somebody_holds_is_marked_later(flavour: Flavour) {
    let scene = Scene::with_status_table(flavour, counting_id(flavour), "").await;
    for n in 0..10 {
        scene.insert(n, "order-created").await;
    }
    let mut session = scene.database.session().await;
    session.execute("BEGIN").await;
    session.execute("UPDATE outbox_message SET payload = payload WHERE id = 4").await;
    let mut relay = scene.relay_of_status_table();
    relay.says("database is ready").await;
    eventually("all others are marked", async || scene.waiting().await == 1).await;
    scene.insert(10, "order-created").await;
    eventually("what comes later is delivered", async || scene.folder.json_lines("orders.jsonl").len() == 11).await;
    eventually("and marked", async || scene.waiting().await == 1).await;
    // The next owner knows that the held row was delivered, although it still waits in the table.
    relay.child.kill().await.unwrap();
    let mut relay = scene.relay_of_status_table();
    relay.says("database is ready").await;
    scene.insert(11, "order-created").await;
    eventually("the next one delivers", async || scene.folder.json_lines("orders.jsonl").len() >= 12).await;
    eventually("and marks", async || scene.waiting().await == 1).await;
    session.execute("COMMIT").await;
    eventually("it is marked once it is free", async || scene.waiting().await == 0).await;
    relay.signal("TERM").await;
    relay.end().await.expect(0);
    let mut delivered = numbers(&scene.folder.json_lines("orders.jsonl"));
    delivered.sort_unstable();
    assert_eq!(delivered, (0..12).collect::<Vec<u64>>(), "each once");
}

async fn what_was_sent_long_ago_is_archived(flavour: Flavour) {
    let archive = "status.archive = \"outbox_archive\"\nstatus.archive_after = \"1d\"\nstatus.purge_after = \"30d\"";
    let scene = Scene::with_status_table(flavour, counting_id(flavour), archive).await;
    let (ago, times): (fn(u32) -> String, [u32; 4]) = match flavour {
        Flavour::Sqlite => (|days| format!("strftime('%Y-%m-%d %H:%M:%f', 'now', '-{days} days')"), [40, 10, 2, 0]),
        Flavour::Postgres => (|days| format!("now() - interval '{days} days'"), [40, 10, 2, 0]),
        Flavour::MariaDb | Flavour::MySql => (|days| format!("UTC_TIMESTAMP() - INTERVAL {days} DAY"), [40, 10, 2, 0]),
    };
    for (n, days) in times.into_iter().enumerate() {
        for status in ["SENT", "PENDING"] {
            let values = format!("('order-created', '{{\"n\":{n}}}', '{status}', {})", ago(days));
            let insert = format!("INSERT INTO outbox_message (topic, payload, status, created_at) VALUES {values}");
            scene.database.execute(&insert).await;
        }
    }
    let count = async |table: &str| scene.database.query_u64(&format!("SELECT COUNT(*) FROM {table}")).await;
    let pruned = scene.run(&["prune", "--json"]).await.expect(0).json();
    assert_eq!((&pruned["archived"], &pruned["purged"]), (&json!(3), &json!(1)), "{pruned}");
    assert_eq!((count("outbox_message").await, count("outbox_archive").await, scene.waiting().await), (5, 2, 4));
    // What waits is never archived, however old, and is delivered.
    scene.drain().await;
    assert_eq!(numbers(&scene.folder.json_lines("orders.jsonl")), [0, 1, 2, 3]);
    let pruned = scene.run(&["prune"]).await.expect(0);
    assert!(pruned.stdout.contains("; 3 rows archived, 1 deleted from the archive"), "{}", pruned.stdout);
    assert_eq!((count("outbox_message").await, count("outbox_archive").await), (2, 4));
    scene.drain().await;
    assert_eq!(scene.folder.json_lines("orders.jsonl").len(), 4, "nothing is sent again");
    // Orders are compared with the log, with the table and with its archive.
    scene.database.execute("CREATE TABLE orders (id VARCHAR(36))").await;
    scene.database.execute("INSERT INTO orders SELECT id FROM outbox_message").await;
    scene.database.execute("INSERT INTO orders SELECT id FROM outbox_archive").await;
    scene.database.execute("INSERT INTO orders VALUES ('2')").await; // has left the archive; the log has it
    let query = ["reconcile", "--json", "--from", "beginning", "--query", "SELECT id FROM orders"];
    let compared = scene.run(&query).await.expect(0).json();
    assert_eq!((&compared["missing"], &compared["checked"]), (&json!([]), &json!(7)), "{compared}");
    scene.database.execute("INSERT INTO orders VALUES ('999')").await;
    let compared = scene.run(&query).await.expect(3).json();
    assert_eq!(
        (compared["missing"].as_array().unwrap().len(), &compared["missing"][0]["id"]),
        (1, &json!("999")),
        "{compared}"
    );
    // A row that was sent before Outhaul came is found in the archive.
    let old = scene.database.query_text("SELECT MIN(id) FROM outbox_archive").await;
    let audit = scene.run(&["audit", &old]).await.expect(0);
    assert!(audit.stdout.contains("stands in its table as SENT"), "{}", audit.stdout);
}

async fn a_table_that_cannot_be_served_is_refused(flavour: Flavour) {
    let scene = Scene::new(flavour).await;
    scene.configure("");
    let refused = scene.run(&["init"]).await.expect(2);
    assert!(refused.stderr.contains("there is no table outbox_message"), "{}", refused.stderr);
    let columns = "topic VARCHAR(99), payload TEXT, status VARCHAR(9), created_at VARCHAR(99)";
    scene.database.execute(&format!("CREATE TABLE outbox_message (id INTEGER, {columns})")).await;
    let refused = scene.run(&["relay", "--until-empty"]).await.expect(1);
    assert!(refused.stderr.contains("has no column sent_at"), "{}", refused.stderr);
    scene.configure("status.sent_at = \"none\"");
    let refused = scene.run(&["relay", "--until-empty"]).await;
    assert!(refused.stderr.contains("neither its primary key nor unique"), "{}", refused.stderr);
    scene.database.execute("CREATE UNIQUE INDEX one_id ON outbox_message (id)").await;
    scene.database.execute("CREATE INDEX turned ON outbox_message (created_at, status)").await;
    let warned = scene.run(&["validate"]).await.expect(0);
    let wanted = "CREATE INDEX outbox_message_waiting ON outbox_message (status, created_at)";
    assert!(warned.stdout.contains(wanted), "{}", warned.stdout);
    assert!(warned.stdout.contains("read past all rows that were sent"), "{}", warned.stdout);

    // One status cannot say of two destinations which has it.
    let text = std::fs::read_to_string(scene.folder.path("outhaul.toml")).unwrap();
    for (topic, to) in [("order-x", "\"rest\""), ("else", "\"rest\", \"orders\"")] {
        let route = format!("\n[[route]]\ntopic = \"{topic}\"\nto = [{to}]\n");
        scene.folder.write("outhaul.toml", &format!("{text}{route}"));
        let refused = scene.run(&["validate"]).await.expect(2);
        assert!(refused.stderr.contains("OUT-3012"), "{}", refused.stderr);
    }
}
