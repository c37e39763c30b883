//! `outhaul validate`.

use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::RocketMq;

use crate::inbox::{Service, topic_with};
use crate::program::{Folder, Scene, on_every_database};

on_every_database!(
    before_and_after_init,
    a_destination_that_does_not_start,
    an_inbox_is_only_looked_at,
    the_folder_of_exports_is_tried_out,
    inboxes_need_no_outbox,
);

async fn before_and_after_init(flavour: Flavour) {
    let scene = Scene::new(flavour).await;
    let missing = scene.run(&["validate", "--db", scene.url(), "--to", "stdout:"]).await.expect(3);
    assert!(
        missing.stdout.contains("CREATE TABLE") && missing.stdout.contains("FAIL outbox main"),
        "{}",
        missing.stdout
    );
    assert!(missing.stderr.starts_with("OUT-3025 outbox main: "), "{}", missing.stderr);
    scene.run(&["init", "--db", scene.url()]).await.expect(0);
    let ran = scene.run(&["validate", "--db", scene.url(), "--to", "stdout:"]).await.expect(0);
    assert!(ran.stdout.contains("ok   outbox main: ") && ran.stdout.contains("payload as bytes"), "{}", ran.stdout);
    assert!(ran.stdout.contains("ok   destination stdout: "), "{}", ran.stdout);
    let report = scene.run(&["validate", "--db", scene.url(), "--json"]).await.expect(0).json();
    assert_eq!((&report["outboxes"][0]["ok"], &report["outboxes"][0]["shards"]), (&true.into(), &1.into()));
    assert!(report["warnings"].as_array().unwrap().iter().any(|w| w.as_str().unwrap().contains("no destination")));
}

async fn a_destination_that_does_not_start(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let ran = scene.run(&["validate", "--db", scene.url(), "--to", "file:none/x.jsonl"]).await.expect(1);
    assert!(ran.stdout.contains("FAIL destination file: file"), "{}", ran.stdout);
    assert!(ran.stderr.starts_with("OUT-2004 destination file: "), "{}", ran.stderr);
    let config = format!(
        "[[outbox]]\nurl = \"{}\"\n[[destination]]\nname = \"weak\"\nkind = \"file\"\npath = \"x.jsonl\"\nfsync = \"none\"\n\
         require_ack = \"flushed\"\n[[route]]\ntopic = \"*\"\nto = [\"weak\"]\n",
        scene.url()
    );
    scene.folder.write("outhaul.toml", &config);
    for command in ["validate", "relay"] {
        let ran = scene.run(&[command]).await.expect(1);
        assert!(ran.stderr.contains("OUT-3018 destination weak: require_ack is flushed, "), "{command} {}", ran.stderr);
    }
    scene.folder.run(&["validate"], "", &[("OUTHAUL__DESTINATION__WEAK__FSYNC", "batch")]).await.expect(0);
}

async fn an_inbox_is_only_looked_at(flavour: Flavour) {
    let (scene, other) = (Scene::ready(flavour).await, Scene::new(flavour).await);
    let to = format!("inbox:{}", other.url());
    let look = ["validate", "--db", scene.url(), "--to", &to, "--json"];
    for _ in 0..2 {
        let report = scene.run(&look).await.expect(0).json();
        let (d, found) = (&report["destinations"][0], &report["destinations"][0]["findings"][0]);
        assert_eq!((&d["ok"], &found["attention"]), (&true.into(), &true.into()), "{report}");
        let text = found["text"].as_str().unwrap();
        assert!(text.contains("CREATE TABLE") && text.contains("inbox_message"), "{report}");
    }
    let by_hand = [("OUTHAUL__DESTINATION__INBOX__CREATE_TABLE", "false")];
    let ran = scene.folder.run(&look, "", &by_hand).await.expect(1);
    assert!(ran.stderr.contains("OUT-2021"), "{}", ran.stderr);
    // With nothing to deliver it may end before the destination is started.
    scene.enqueue("{\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
    scene.run(&["relay", "--db", scene.url(), "--to", &to, "--until-empty"]).await.expect(0);
    let report = scene.run(&look).await.expect(0).json();
    assert_eq!(report["destinations"][0]["findings"], serde_json::json!([]), "{report}");
}

/// A configuration that has only inboxes is looked at: tables, rights, brokers, topics. Nothing is made by it.
async fn inboxes_need_no_outbox(flavour: Flavour) {
    let namesrv = RocketMq::V4.namesrv();
    let (_client, topic) = topic_with(&namesrv, 3).await;
    let mut service = Service::new(flavour, &namesrv, &topic, "retention = \"14d\"").await;
    let validate = async |folder: &Folder, code: i32, variables: &[(&str, &str)]| {
        folder.run(&["validate"], "", variables).await.expect(code)
    };
    let by_itself = validate(&service.folder, 0, &[]).await.stdout;
    assert!(
        by_itself.contains("ok   inbox points: group ") && by_itself.contains("are made at the start"),
        "{by_itself}"
    );
    assert!(by_itself.contains(&format!("  ok   topic {topic}: 3 queues can be read")), "{by_itself}");
    let by_hand = [("OUTHAUL__INBOX__POINTS__CREATE_TABLE", "false")];
    let missing = validate(&service.folder, 3, &by_hand).await;
    let ddl = missing.stdout.contains("FAIL inbox points") && missing.stdout.contains("CREATE TABLE");
    assert!(ddl && missing.stderr.starts_with("OUT-3025 inbox points: "), "{missing:?}");
    service.folder.run(&["init", "--inbox"], "", &[]).await.expect(0);
    let report = service.folder.run(&["validate", "--json"], "", &[]).await.expect(0).json();
    let found = &report["inboxes"][0];
    assert_eq!(
        (&found["ok"], &found["makes_tables"], &report["warnings"]),
        (&true.into(), &false.into(), &serde_json::json!([]))
    );
    let away = validate(&service.folder, 1, &[("OUTHAUL__INBOX__POINTS__NAMESRV", "127.0.0.1:9")]).await;
    assert!(away.stderr.contains("OUT-5050 inbox points: "), "{}", away.stderr);
    let twice = format!("{topic},{topic}:a");
    let twice = validate(&service.folder, 2, &[("OUTHAUL__INBOX__POINTS__TOPICS", &twice)]).await;
    assert_eq!(twice.stderr.matches("OUT-5051 inbox points: ").count(), 1, "{}", twice.stderr);
    if flavour != Flavour::Sqlite {
        let all = if flavour == Flavour::Postgres {
            ["SELECT, INSERT, UPDATE ON inbox_message", "SELECT, INSERT, UPDATE ON inbox_queue"]
        } else {
            ["SELECT, INSERT, UPDATE ON *", "SELECT ON *"]
        };
        let database = std::sync::Arc::get_mut(&mut service.database).unwrap();
        let narrow = database.restricted_user(&all).await;
        let narrow = ("OUTHAUL__INBOX__POINTS__URL", narrow.as_str());
        let ran = validate(&service.folder, 1, &[narrow]).await;
        assert!(ran.stderr.starts_with("OUT-1006 inbox points: "), "{}", ran.stderr);
    }
    let empty = Folder::new();
    empty.write("outhaul.toml", "[relay]\n");
    let none = validate(&empty, 2, &[]).await.stderr;
    assert!(none.contains("OUT-3007") && none.contains("neither an outbox nor an inbox"), "{none}");
}

async fn the_folder_of_exports_is_tried_out(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let validate = ["validate", "--db", scene.url(), "--to", "stdout:"];
    let export = [("OUTHAUL__RELAY__EXPORT", "gone")];
    let ran = scene.folder.run(&validate, "", &export).await.expect(1);
    assert!(ran.stdout.contains("FAIL export to ") && ran.stderr.starts_with("OUT-4019 "), "{ran:?}");
    std::fs::create_dir(scene.folder.path("gone")).unwrap();
    let ran = scene.folder.run(&validate, "", &export).await.expect(0);
    assert!(ran.stdout.contains("ok   export to "), "{}", ran.stdout);
    assert_eq!(std::fs::read_dir(scene.folder.path("gone")).unwrap().count(), 0, "nothing is left in it");
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod servers {
    use tokio::net::TcpListener;

    use super::*;

    #[cfg(feature = "mysql")]
    const SERVERS: &[Flavour] = if cfg!(feature = "postgres") {
        &[Flavour::MariaDb, Flavour::MySql, Flavour::Postgres]
    } else {
        &[Flavour::MariaDb, Flavour::MySql]
    };
    #[cfg(not(feature = "mysql"))]
    const SERVERS: &[Flavour] = &[Flavour::Postgres];

    #[tokio::test(flavor = "multi_thread")]
    async fn credentials_and_rights() {
        for flavour in SERVERS {
            let mut scene = Scene::ready(*flavour).await;
            // Whom MySQL and MariaDB give no right on a table, they do not tell that it exists.
            let grant = if *flavour == Flavour::Postgres { "SELECT ON outbox" } else { "SELECT ON *" };
            let narrow = scene.database.restricted_user(&[grant]).await;
            let wrong = narrow.replace("narrow", "s3cret");
            let ran = scene.run(&["validate", "--db", &wrong]).await.expect(1);
            assert!(ran.stderr.starts_with("OUT-1005 outbox main: "), "{flavour:?} {}", ran.stderr);
            assert!(!ran.stderr.contains("s3cret") && !ran.stdout.contains("s3cret"), "{flavour:?}");
            let ran = scene.run(&["relay", "--db", &wrong, "--to", "stdout:"]).await.expect(1);
            assert!(ran.stderr.contains("OUT-1005 ") && !ran.stderr.contains("s3cret"), "{flavour:?} {}", ran.stderr);
            let ran = scene.run(&["validate", "--db", &narrow]).await.expect(1);
            assert!(ran.stderr.starts_with("OUT-1006 outbox main: "), "{flavour:?} {}", ran.stderr);
        }
    }

    const TABLES: [&str; 10] = [
        "outbox",
        "outbox_log",
        "outbox_receipt",
        "outbox_parked",
        "outbox_lease",
        "outbox_instance",
        "outbox_act",
        "outbox_pause",
        "outbox_transaction",
        "outbox_meta",
    ];

    #[tokio::test(flavor = "multi_thread")]
    async fn reading_needs_select_only() {
        for flavour in SERVERS {
            let mut scene = Scene::ready(*flavour).await;
            scene.enqueue("{\"id\":\"a\",\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
            scene.deliver("out.jsonl").await;
            let grants = TABLES.map(|table| format!("SELECT ON {table}"));
            let reader = scene.database.restricted_user(&grants.each_ref().map(String::as_str)).await;
            let status = scene.run(&["status", "--db", &reader, "--json"]).await.expect(0).json();
            let owners = scene.run(&["status", "--db", scene.url(), "--json"]).await.expect(0).json();
            assert_eq!(status, owners, "{flavour:?}");
            let audit = scene.run(&["audit", "a", "--db", &reader]).await.expect(0);
            assert!(audit.stdout.contains("file has it since"), "{flavour:?} {}", audit.stdout);
            scene.run(&["audit", "b", "--db", &reader]).await.expect(1);
            let ran = scene.run(&["validate", "--db", &reader]).await.expect(1);
            assert!(ran.stderr.starts_with("OUT-1006 outbox main: "), "{flavour:?} {}", ran.stderr);
        }
    }

    /// As an earlier version has given them.
    #[tokio::test(flavor = "multi_thread")]
    async fn who_may_not_update_is_told_that_scheduled_messages_wait() {
        for flavour in SERVERS {
            let mut scene = Scene::ready(*flavour).await;
            let mut grants: Vec<String> =
                TABLES[1..].iter().map(|table| format!("SELECT, INSERT, UPDATE, DELETE ON {table}")).collect();
            if *flavour == Flavour::Postgres {
                grants.push("SELECT ON SEQUENCE outbox_seq_seq".into());
            }
            let told = "no right to UPDATE outbox: scheduled messages wait";
            for (rights, warned) in [("SELECT, DELETE", true), ("SELECT, UPDATE, DELETE", false)] {
                let mut grants: Vec<&str> = grants.iter().map(String::as_str).collect();
                let on_outbox = format!("{rights} ON outbox");
                grants.push(&on_outbox);
                let user = scene.database.restricted_user(&grants).await;
                let ran = scene.run(&["validate", "--db", &user, "--to", "stdout:"]).await.expect(0);
                assert_eq!(ran.stdout.contains(told), warned, "{flavour:?} {}", ran.stdout);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rights_on_an_inbox_are_named() {
        for flavour in SERVERS {
            let (scene, mut other) = (Scene::ready(*flavour).await, Scene::new(*flavour).await);
            let to = format!("inbox:{}", other.url());
            // What has nothing to send may end before its destination has started and made the table.
            scene.enqueue("{\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
            scene.run(&["relay", "--db", scene.url(), "--to", &to, "--until-empty"]).await.expect(0);
            let narrow = other.database.restricted_user(&["SELECT ON inbox_message"]).await;
            let to = format!("inbox:{narrow}");
            let ran = scene.run(&["validate", "--db", scene.url(), "--to", &to]).await.expect(1);
            assert!(ran.stderr.starts_with("OUT-1006 destination inbox: "), "{flavour:?} {}", ran.stderr);
            assert!(ran.stderr.contains("GRANT SELECT, INSERT on inbox_message"), "{flavour:?} {}", ran.stderr);
            let update = if *flavour == Flavour::Postgres { "" } else { ", UPDATE" };
            let enough = format!("SELECT, INSERT{update} ON inbox_message");
            let to = format!("inbox:{}", other.database.restricted_user(&[&enough]).await);
            scene.enqueue("{\"topic\":\"t\",\"payload\":1}\n").await.expect(0);
            scene.run(&["relay", "--db", scene.url(), "--to", &to, "--until-empty"]).await.expect(0);
            assert_eq!(other.database.query_u64("SELECT COUNT(*) FROM inbox_message").await, 2, "{flavour:?}");
        }
    }

    /// Rows of a shard that there is not are never called fine.
    #[tokio::test(flavor = "multi_thread")]
    async fn rows_in_no_shard() {
        for flavour in SERVERS {
            let scene = Scene::new(*flavour).await;
            scene.run(&["init", "--db", scene.url(), "--shards", "4"]).await.expect(0);
            let lines: String =
                (1..=40).map(|n| format!("{{\"topic\":\"t\",\"key\":\"k{n}\",\"payload\":1}}\n")).collect();
            scene.enqueue(&lines).await.expect(0);
            scene.database.execute("UPDATE outbox_meta SET value = '3' WHERE name = 'shards'").await;
            scene.database.execute("DELETE FROM outbox_lease WHERE shard = 3").await;
            let to = ["--to", "stdout:", "--until-empty"];
            for call in [&["validate"][..], &["status"], &["relay", to[0], to[1], to[2]]] {
                let ran = scene.run(&[call, &["--db", scene.url()]].concat()).await.expect(1);
                assert!(ran.stderr.contains("OUT-1016 outbox main: "), "{flavour:?} {call:?} {}", ran.stderr);
                let said = if call[0] == "validate" { "FAIL outbox main" } else { "main" };
                assert!(call[0] == "relay" || ran.stdout.contains(said), "{flavour:?} {call:?} {}", ran.stdout);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_server_that_is_not_there() {
        // A port that was just free: nobody listens there.
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        for flavour in SERVERS {
            let scene = Scene::new(*flavour).await;
            let at = scene.database.url_at(([127, 0, 0, 1], port).into());
            for call in [&["validate", "--db", &at][..], &["relay", "--db", &at, "--to", "stdout:", "--until-empty"]] {
                let ran = scene.run(call).await.expect(1);
                assert!(ran.stderr.contains("OUT-1001 outbox main: "), "{flavour:?} {}", ran.stderr);
            }
        }
    }
}
