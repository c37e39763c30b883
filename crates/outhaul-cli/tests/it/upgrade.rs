//! Tables of the previous version: refused with what to do, brought up while its relays run, gone on with.

use std::path::PathBuf;

use outhaul_testkit::earlier;
use outhaul_testkit::servers::{Flavour, soak};
use serde_json::json;

use crate::program::{Running, Scene, on_every_database};
use crate::writers::{Writers, came_once_and_in_order, lines_reach};

on_every_database!(
    tables_of_the_previous_version_are_gone_on_with,
    an_upgrade_goes_on_where_it_was_broken_off,
    acts_wait_until_no_relay_is_of_the_previous_version,
    relays_are_replaced_one_by_one,
);

impl Scene {
    /// What a relay of the previous version has left: see `outhaul_testkit::earlier`.
    async fn earlier(flavour: Flavour) -> Self {
        let scene = Self::new(flavour).await;
        scene.database.execute(earlier::tables(flavour)).await;
        scene
    }

    /// Statements that the upgrade would run.
    async fn missing(&self) -> Vec<String> {
        let plan = self.run(&["init", "--db", self.url(), "--upgrade", "--print", "--json"]).await.expect(0).json();
        plan["statements"].as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect()
    }

    /// Columns and indexes of the relay's tables, by name.
    async fn shape(&self) -> Vec<Vec<Option<String>>> {
        let sql = match self.database.flavour {
            Flavour::Sqlite => {
                "SELECT t.name, c.name, c.type, c.\"notnull\", c.dflt_value, c.pk FROM sqlite_master t, pragma_table_info(t.name) c \
                 WHERE t.type = 'table' AND t.name LIKE 'outbox%' \
                 UNION ALL SELECT tbl_name, name, sql, '', '', '' FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL ORDER BY 1, 2"
            }
            Flavour::Postgres => {
                "SELECT table_name::text, column_name::text, data_type::text, is_nullable::text, column_default::text, ordinal_position::text \
                 FROM information_schema.columns WHERE table_schema = 'public' \
                 UNION ALL SELECT tablename::text, indexname::text, indexdef, '', '', '' FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2"
            }
            Flavour::MariaDb | Flavour::MySql => {
                "SELECT table_name, column_name, column_type, is_nullable, column_default, collation_name FROM information_schema.columns \
                 WHERE table_schema = DATABASE() \
                 UNION ALL SELECT table_name, index_name, column_name, sub_part, seq_in_index, non_unique FROM information_schema.statistics \
                 WHERE table_schema = DATABASE() ORDER BY 1, 2, 3"
            }
        };
        self.database.query(sql).await
    }
}

async fn tables_of_the_previous_version_are_gone_on_with(flavour: Flavour) {
    let scene = Scene::earlier(flavour).await;
    let db = scene.url();
    let (why, destination) = (["--why", "w"], ["--destination", "file"]);
    let to = format!("file:{}", scene.folder.path("out.jsonl").display());
    let all: &[&[&str]] = &[
        &["status", "--db", db],
        &["validate", "--db", db],
        &["init", "--db", db],
        &["relay", "--db", db, "--to", &to, "--until-empty"],
        &["audit", "m1", "--db", db],
        &["parked", "list", "--db", db],
        &["parked", "redrive", "--db", db, "--all", why[0], why[1]],
        &["pause", "--db", db, destination[0], destination[1], why[0], why[1]],
        &["cancel", "later", "--db", db, why[0], why[1]],
        &["acts", "--db", db],
        &["prune", "--db", db],
        &["enqueue", "--db", db],
    ];
    let missing = scene.missing().await;
    assert!(missing.len() > 5 && missing.last().unwrap().contains("schema_level"), "{missing:?}");
    for arguments in all {
        let refused = scene.run(arguments).await.expect(1);
        assert!(refused.stderr.contains("OUT-1030 "), "{arguments:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("`outhaul init --upgrade`"), "{arguments:?}: {}", refused.stderr);
    }
    assert_eq!(scene.missing().await, missing, "to print changes nothing");

    let done = scene.run(&["init", "--db", db, "--upgrade"]).await.expect(0);
    assert!(done.stdout.contains("the tables are of this version now"), "{}", done.stdout);
    let again = scene.run(&["init", "--db", db, "--upgrade"]).await.expect(0);
    assert!(again.stdout.contains("already"), "{}", again.stdout);
    assert_eq!(scene.missing().await, Vec::<String>::new());
    scene.run(&["validate", "--db", db]).await.expect(0);

    // The relay goes on where the other one was: what it had delivered is not sent again.
    let delivered = scene.deliver("out.jsonl").await;
    let mut ids: Vec<&str> = delivered.iter().map(|line| line["id"].as_str().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["hot0", "hot1", "hot2", "hot3", "hot4"]);
    let audit = scene.run(&["audit", "m1", "--db", db, "--json"]).await.expect(0).json();
    assert_eq!(audit["deliveries"][0]["state"], "delivered", "{audit}");
    // Acts work, also on what was parked before.
    let edit = ["parked", "edit", "--db", db, "--id", "bad", "--no-headers", "--why", "mended"];
    scene.run(&edit).await.expect(0);
    scene.run(&["cancel", "later", "--db", db, "--why", "w"]).await.expect(0);
    let delivered = scene.deliver("out.jsonl").await;
    let ids: Vec<&str> = delivered[5..].iter().map(|line| line["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["bad", "behind"]);
    let parked = scene.run(&["parked", "list", "--db", db, "--json"]).await.expect(0).json();
    assert_eq!(parked["messages"], json!([]));
    scene.run(&["prune", "--db", db, "--retention", "0s"]).await.expect(0);
}

async fn an_upgrade_goes_on_where_it_was_broken_off(flavour: Flavour) {
    let shards = if flavour == Flavour::Sqlite { "1" } else { "4" };
    let fresh = Scene::new(flavour).await;
    fresh.run(&["init", "--db", fresh.url(), "--shards", shards]).await.expect(0);
    let wanted = fresh.shape().await;
    let first = Scene::earlier(flavour).await;
    let statements = first.missing().await;
    for done in 0..=statements.len() {
        let scene = Scene::earlier(flavour).await;
        for sql in &statements[..done] {
            scene.database.execute(sql).await;
        }
        assert_eq!(scene.missing().await, statements[done..], "after {done} statements");
        scene.run(&["init", "--db", scene.url(), "--upgrade"]).await.expect(0);
        assert_eq!(
            scene.shape().await,
            wanted,
            "after {done} statements by hand: the tables are those of a fresh `init`"
        );
    }
}

async fn acts_wait_until_no_relay_is_of_the_previous_version(flavour: Flavour) {
    let scene = Scene::earlier(flavour).await;
    let db = scene.url();
    scene.run(&["init", "--db", db, "--upgrade"]).await.expect(0);
    let now = match flavour {
        Flavour::Sqlite => "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)",
        Flavour::Postgres => "clock_timestamp()",
        Flavour::MariaDb | Flavour::MySql => "UTC_TIMESTAMP(6)",
    };
    // As the previous version writes it.
    let values = format!("('old#1', '0.1.0', {}, {now})", if flavour == Flavour::Postgres { "false" } else { "0" });
    scene
        .database
        .execute(&format!("INSERT INTO outbox_instance (owner, version, draining, heartbeat) VALUES {values}"))
        .await;
    let pause = ["pause", "--db", db, "--destination", "file", "--why", "w"];
    let refused = scene.run(&pause).await.expect(1);
    assert!(refused.stderr.starts_with("OUT-3055 ") && refused.stderr.contains("old#1"), "{}", refused.stderr);
    assert_eq!(scene.database.query_u64("SELECT count(*) FROM outbox_act").await, 0);
    scene.database.execute("DELETE FROM outbox_instance").await;
    scene.run(&pause).await.expect(0);
}

/// A build of the previous version, where the soak has made one; otherwise this one, on tables that it takes for older.
fn previous() -> PathBuf {
    std::env::var_os("OUTHAUL_TEST_EARLIER").map_or_else(|| env!("CARGO_BIN_EXE_outhaul").into(), PathBuf::from)
}

/// A rolling upgrade under load: two relays of the previous version, the tables, then one relay after the other.
async fn relays_are_replaced_one_by_one(flavour: Flavour) {
    let real = std::env::var_os("OUTHAUL_TEST_EARLIER").is_some();
    let scene = Scene::new(flavour).await;
    let db = scene.url();
    let shards = if flavour == Flavour::Sqlite { "1" } else { "4" };
    let old = scene.folder.start_program(&previous(), &["init", "--db", db, "--shards", shards], &[]).end().await;
    assert_eq!(old.code, 0, "{}", old.stderr);
    let file = scene.folder.path("out.jsonl");
    let to = format!("file:{}", file.display());
    let relay = ["relay", "--db", db, "--to", &to];
    let old = |of: &Scene| -> Running { of.folder.start_program(&previous(), &relay, &[("RUST_BACKTRACE", "0")]) };
    let writers = Writers::start(flavour, db, "w");
    let step = if soak() { 2_000 } else { 60 };
    let mut lines = step;
    let mut running = vec![old(&scene), old(&scene)];
    lines_reach(&file, lines).await;
    // Relays of this build begin on tables of this version only. Running, they do not look at it again.
    if !real {
        scene.database.execute("DELETE FROM outbox_meta WHERE name = 'schema_level'").await;
    }
    let upgraded = scene.run(&["init", "--db", db, "--upgrade"]).await.expect(0);
    assert!(upgraded.stdout.contains("of this version now"), "{}", upgraded.stdout);
    if real {
        let refused = scene.run(&["pause", "--db", db, "--destination", "file", "--why", "w"]).await.expect(1);
        assert!(refused.stderr.starts_with("OUT-3055 "), "{}", refused.stderr);
    }
    for _ in 0..2 {
        lines += step;
        lines_reach(&file, lines).await;
        let stopped = running.remove(0);
        stopped.signal("TERM").await;
        let ended = stopped.end().await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let mut new = scene.folder.start(&relay, &[]);
        new.says("database is ready").await;
        running.push(new);
    }
    lines += step;
    lines_reach(&file, lines).await;
    let written = writers.stop().await;
    for relay in running {
        relay.signal("TERM").await;
        let ended = relay.end().await;
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
    came_once_and_in_order(&scene.deliver("out.jsonl").await, &written);
    scene.run(&["pause", "--db", db, "--destination", "file", "--why", "all are new"]).await.expect(0);
}
