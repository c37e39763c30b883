//! Another number of shards, while applications insert.

use std::path::PathBuf;
use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::program::{LIMIT, Ran, Running, Scene, on_every_server};
use crate::writers::{Writers, came_once_and_in_order, lines_reach};

on_every_server!(
    shards_become_more_and_fewer_under_writers,
    one_shard_becomes_many,
    an_open_transaction_is_waited_for,
    what_is_not_settled_is_in_the_way,
    a_change_that_was_killed_is_gone_on_with,
    a_relay_that_waits_takes_no_shard_in_the_middle_of_a_change,
    tens_of_thousands_of_rows_that_wait_follow,
);

impl Scene {
    async fn sharded(flavour: Flavour, shards: &str) -> Self {
        let scene = Self::new(flavour).await;
        scene.run(&["init", "--db", scene.url(), "--shards", shards]).await.expect(0);
        scene
    }

    fn file(&self) -> PathBuf {
        self.folder.path("out.jsonl")
    }

    fn start_relay(&self) -> Running {
        let to = format!("file:{}", self.file().display());
        self.folder.start(&["relay", "--db", self.url(), "--to", &to], &[])
    }

    async fn reshard(&self, shards: &str) -> Ran {
        self.run(&["reshard", "--db", self.url(), "--shards", shards]).await
    }

    /// The documented procedure: everything settled, then the change, again where something came in between.
    async fn settle_and_reshard(&self, shards: &str) -> Vec<Value> {
        for _ in 0..20 {
            let delivered = self.deliver("out.jsonl").await;
            let ran = self.reshard(shards).await;
            if ran.code == 0 {
                assert!(ran.stdout.contains(&format!("{shards} shards")), "{}", ran.stdout);
                return delivered;
            }
            assert!(ran.stderr.starts_with("OUT-3057 "), "{}", ran.stderr);
        }
        panic!("never settled");
    }

    async fn status(&self) -> Value {
        let ran = self.run(&["status", "--db", self.url(), "--json"]).await;
        assert!([0, 3].contains(&ran.code), "{ran:?}");
        ran.json()["outboxes"][0].clone()
    }

    /// Shard of each row of the outbox table.
    async fn shards_of_rows(&self) -> Vec<(String, u16)> {
        let rows = self.database.query("SELECT id, shard FROM outbox ORDER BY seq").await;
        rows.iter().map(|r| (r[0].clone().unwrap(), r[1].as_deref().unwrap().parse().unwrap())).collect()
    }
}

async fn stop(relay: Running) {
    relay.signal("TERM").await;
    let ended = relay.end().await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

async fn shards_become_more_and_fewer_under_writers(flavour: Flavour) {
    let scene = Scene::sharded(flavour, "4").await;
    let writers = Writers::start(flavour, scene.url(), "w");
    let mut lines = 0;
    for shards in ["16", "4", "7"] {
        let relay = scene.start_relay();
        lines += 50;
        lines_reach(&scene.file(), lines).await;
        stop(relay).await;
        lines = scene.settle_and_reshard(shards).await.len();
        let info = scene.run(&["validate", "--db", scene.url(), "--json"]).await.expect(0).json();
        assert_eq!(info["outboxes"][0]["shards"], json!(shards.parse::<u16>().unwrap()), "{info}");
        assert!(!info["warnings"].to_string().contains("shard"), "{info}");
        assert!(scene.shards_of_rows().await.iter().all(|(_, shard)| *shard < shards.parse().unwrap()));
    }
    let relay = scene.start_relay();
    lines_reach(&scene.file(), lines + 50).await;
    let written = writers.stop().await;
    stop(relay).await;
    let delivered = scene.deliver("out.jsonl").await;
    came_once_and_in_order(&delivered, &written);
    // Logs of shards that are none any more are there for all that reads, and are pruned.
    let status = scene.status().await;
    let shards = status["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 16, "{status}");
    assert!(shards[7..].iter().any(|s| s["log_end"].as_u64().unwrap() > 0), "{status}");
    for line in delivered.iter().step_by(40) {
        let id = line["id"].as_str().unwrap();
        let audit = scene.run(&["audit", id, "--db", scene.url(), "--json"]).await.expect(0).json();
        assert_eq!(audit["deliveries"][0]["state"], "delivered", "{audit}");
    }
    let replay = ["replay", "--destination", "file", "--from", "beginning", "--dry-run", "--json"];
    let to = format!(
        "[[outbox]]\nname = \"o\"\nurl = \"{}\"\n[[destination]]\nname = \"file\"\nkind = \"file\"\npath = \"r.jsonl\"\n\
         [[route]]\ntopic = \"*\"\nto = [\"file\"]\n",
        scene.url()
    );
    scene.folder.write("outhaul.toml", &to);
    let counted = scene.run(&replay).await.expect(0).json();
    assert_eq!(counted["messages"], json!(delivered.len()), "{counted}");
    let pruned = scene.run(&["prune", "--db", scene.url(), "--retention", "0s", "--json"]).await.expect(0).json();
    assert_eq!(pruned["messages"], json!(delivered.len()), "{pruned}");
}

async fn one_shard_becomes_many(flavour: Flavour) {
    let scene = Scene::sharded(flavour, "1").await;
    let writers = Writers::start(flavour, scene.url(), "w");
    lines_reach_by_relay(&scene, 50).await;
    let lines = scene.settle_and_reshard("16").await.len();
    lines_reach_by_relay(&scene, lines + 50).await;
    let written = writers.stop().await;
    came_once_and_in_order(&scene.deliver("out.jsonl").await, &written);
    let status = scene.status().await;
    let used = status["shards"].as_array().unwrap().iter().filter(|s| s["log_end"].as_u64().unwrap() > 0).count();
    assert!(used > 1, "{status}");
}

async fn lines_reach_by_relay(scene: &Scene, lines: usize) {
    let relay = scene.start_relay();
    lines_reach(&scene.file(), lines).await;
    stop(relay).await;
}

fn insert(id: &str, key: &str) -> String {
    format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('{id}', 't', '{key}', '1')")
}

/// The numbers go on, rows of a transaction that was open are in the new shard of their key, before those that follow.
async fn an_open_transaction_is_waited_for(flavour: Flavour) {
    let scene = Scene::sharded(flavour, "4").await;
    for n in 0..8 {
        scene.database.execute(&insert(&format!("a{n}"), &format!("k{n}"))).await;
    }
    let mut early = scene.database.session().await; // begun before, writes after
    early.execute("BEGIN").await;
    early.query("SELECT count(*) FROM outbox_meta").await;
    let mut open = scene.database.session().await;
    open.execute("BEGIN").await;
    open.execute(&insert("b", "k1")).await;
    let db = scene.url();
    let changing = scene.folder.start(&["reshard", "--db", db, "--shards", "16"], &[]);
    // Others go on meanwhile: none waits for longer than the change's own limit for a lock.
    for n in 0..20 {
        let inserting = async { scene.database.execute(&insert(&format!("c{n}"), "k2")).await };
        assert!(timeout(LIMIT, inserting).await.is_ok(), "an application waits behind the change");
    }
    open.execute("COMMIT").await;
    let ended = changing.end().await;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    early.execute(&insert("d", "k1")).await;
    early.execute("COMMIT").await;
    scene.database.execute(&insert("e", "k1")).await;
    let rows = scene.shards_of_rows().await;
    let shard = |id: &str| rows.iter().find(|(i, _)| i == id).unwrap().1;
    assert_eq!((shard("a1"), shard("b"), shard("d")), (shard("e"), shard("e"), shard("e")), "{rows:?}");
    assert_eq!(shard("a2"), shard("c19"));
    assert!(rows.iter().any(|(_, shard)| *shard > 3), "{rows:?}");
    let seqs = scene.database.query("SELECT seq FROM outbox ORDER BY seq").await;
    assert_eq!(seqs.len(), 31);
    scene.deliver("out.jsonl").await;
    // An empty table that is changed does not begin to count anew.
    scene.reshard("5").await.expect(0);
    scene.database.execute(&insert("f", "k1")).await;
    let next = scene.database.query_u64("SELECT seq FROM outbox").await;
    let last: u64 = seqs.last().unwrap()[0].as_deref().unwrap().parse().unwrap();
    assert!(next > last, "{next} follows {last}");
    assert_eq!(scene.deliver("out.jsonl").await.len(), 32);
}

async fn what_is_not_settled_is_in_the_way(flavour: Flavour) {
    let scene = Scene::sharded(flavour, "4").await;
    let db = scene.url();
    let refused = async |code: &str, what: &str| {
        let ran = scene.reshard("8").await.expect(1);
        assert!(ran.stderr.starts_with(code) && ran.stderr.contains(what), "{}", ran.stderr);
    };
    let mut relay = scene.start_relay();
    relay.says("database is ready").await;
    let mut tries = 0;
    while scene.status().await["instances"] == json!([]) {
        tries += 1;
        assert!(tries < 600, "the relay never said that it is there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    refused("OUT-3056 ", "relay ").await;
    // The relay has lost nothing by it.
    scene.database.execute(&insert("a", "k")).await;
    lines_reach(&scene.file(), 1).await;
    scene.run(&["pause", "--db", db, "--destination", "file", "--why", "w", "--wait", "60s"]).await.expect(0);
    scene.database.execute(&insert("b", "k")).await;
    let mut tries = 0;
    while scene.database.query_u64("SELECT count(*) FROM outbox").await > 0 {
        tries += 1;
        assert!(tries < 600, "the row never left the table");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop(relay).await;
    refused("OUT-3057 ", "1 messages that are not settled for file").await;
    refused("OUT-3057 ", "file is paused").await;
    scene.run(&["resume", "--db", db, "--destination", "file", "--why", "w"]).await.expect(0);
    refused("OUT-3057 ", " is open").await;
    scene.deliver("out.jsonl").await;
    scene
        .database
        .execute("INSERT INTO outbox (id, topic, msg_key, headers, payload) VALUES ('bad', 't', 'k', '[1]', 'p')")
        .await;
    scene.deliver("out.jsonl").await;
    refused("OUT-3057 ", "1 parked messages of file").await;
    scene.run(&["parked", "skip", "--db", db, "--all", "--why", "w"]).await.expect(0);
    scene.deliver("out.jsonl").await;
    scene.reshard("8").await.expect(0);
    let again = scene.reshard("8").await.expect(0);
    assert!(again.stdout.contains("already"), "{}", again.stdout);
}

/// Killed while it waits for an application's transaction, and at moments by chance.
async fn a_change_that_was_killed_is_gone_on_with(flavour: Flavour) {
    let scene = Scene::sharded(flavour, "4").await;
    let db = scene.url();
    let to = format!("file:{}", scene.file().display());
    scene.deliver("out.jsonl").await; // so that there are lanes
    let mut open = scene.database.session().await;
    open.execute("BEGIN").await;
    open.execute(&insert("a", "k")).await;
    let mut changing = scene.folder.start(&["reshard", "--db", db, "--shards", "16"], &[]);
    let mut tries = 0;
    let announced = match flavour {
        // It holds the leases, and one transaction tries to do it all.
        Flavour::Postgres => "SELECT count(*) FROM outbox_lease WHERE shard = 3 AND owner IS NOT NULL",
        _ => "SELECT count(*) FROM outbox_meta WHERE name = 'reshard'",
    };
    while scene.database.query_u64(announced).await == 0 {
        tries += 1;
        assert!(tries < 600, "it never began");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    changing.child.kill().await.unwrap();
    open.execute("COMMIT").await;
    if flavour != Flavour::Postgres {
        for command in ["relay", "validate", "status"] {
            let more: &[&str] = if command == "relay" { &["--to", &to, "--until-empty"] } else { &[] };
            let refused = scene.run(&[&[command, "--db", db], more].concat()).await.expect(1);
            assert!(refused.stderr.contains("OUT-1031 "), "{}", refused.stderr);
        }
    }
    scene.database.execute(&insert("b", "k")).await;
    if flavour != Flavour::Postgres {
        // Nobody can carry this out now, so it is not in the way.
        scene.run(&["pause", "--db", db, "--destination", "file", "--why", "w", "--wait", "0s"]).await;
        assert!(scene.database.query_u64("SELECT count(*) FROM outbox_act").await > 0);
    }
    scene.reshard("16").await.expect(0);
    scene.run(&["resume", "--db", db, "--destination", "file", "--why", "w", "--wait", "0s"]).await;
    let ids =
        |lines: Vec<Value>| -> Vec<String> { lines.iter().map(|l| l["id"].as_str().unwrap().to_owned()).collect() };
    assert_eq!(ids(scene.deliver("out.jsonl").await), ["a", "b"]);

    let writers = Writers::start(flavour, db, "w");
    for (n, shards) in ["4", "9"].into_iter().enumerate() {
        scene.deliver("out.jsonl").await;
        let mut changing = scene.folder.start(&["reshard", "--db", db, "--shards", shards], &[]);
        tokio::time::sleep(Duration::from_millis(120 + 130 * n as u64)).await; // any moment will do
        changing.child.kill().await.unwrap();
        let mut tries = 0;
        loop {
            let ran = scene.reshard(shards).await;
            if ran.code == 0 {
                break;
            }
            tries += 1;
            assert!(tries < 20 && ran.stderr.starts_with("OUT-3057 "), "{}", ran.stderr);
            scene.deliver("out.jsonl").await;
        }
        scene.run(&["validate", "--db", db]).await.expect(0);
    }
    let mut written = writers.stop().await;
    written.insert("k".into(), vec!["a".into(), "b".into()]);
    came_once_and_in_order(&scene.deliver("out.jsonl").await, &written);
}

/// It has begun before the change, and finds the leases that one which was killed has left behind.
async fn a_relay_that_waits_takes_no_shard_in_the_middle_of_a_change(flavour: Flavour) {
    if flavour == Flavour::Postgres {
        return; // One transaction: there is no middle.
    }
    let scene = Scene::sharded(flavour, "4").await;
    scene.database.execute(&insert("a", "k")).await;
    let leases = "UPDATE outbox_lease SET owner = 'reshard@x', expires_at = NOW(6) + INTERVAL 1 DAY WHERE shard >= 0";
    scene.database.execute(leases).await;
    let relay = scene.start_relay();
    let mut tries = 0;
    while scene.status().await["instances"] == json!([]) {
        tries += 1;
        assert!(tries < 600, "the relay never said that it is there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    scene.database.execute("INSERT INTO outbox_meta (name, value) VALUES ('reshard', '16')").await;
    scene.database.execute("UPDATE outbox_lease SET expires_at = NOW(6) WHERE shard >= 0").await;
    let ended = relay.end().await;
    assert!(ended.code == 1 && ended.stderr.contains("OUT-1031 "), "{}", ended.stderr);
    let owned = "SELECT count(*) FROM outbox_lease WHERE shard >= 0 AND owner <> 'reshard@x'";
    assert_eq!(scene.database.query_u64(owned).await, 0);
    assert_eq!(scene.database.query_u64("SELECT count(*) FROM outbox").await, 1);
    let mut changed = scene.reshard("16").await;
    while changed.stderr.starts_with("OUT-3056 ") {
        tries += 1;
        assert!(tries < 1_200, "{}", changed.stderr); // its row may be there for a while
        tokio::time::sleep(Duration::from_millis(500)).await;
        changed = scene.reshard("16").await;
    }
    changed.expect(0);
    assert_eq!(scene.deliver("out.jsonl").await.len(), 1);
}

/// The relays were stopped for a while: what waits has to follow well within the leases.
async fn tens_of_thousands_of_rows_that_wait_follow(flavour: Flavour) {
    const ROWS: usize = 40_000;
    const STEP: usize = 5_000;
    let scene = Scene::sharded(flavour, "4").await;
    for from in (0..ROWS).step_by(STEP) {
        let rows: Vec<String> = (from..from + STEP).map(|n| format!("('m{n}', 't', 'k{}', '1')", n % 1_000)).collect();
        scene
            .database
            .execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {}", rows.join(",")))
            .await;
    }
    let ran = scene.reshard("16").await.expect(0);
    assert!(ran.stdout.contains("16 shards"), "{}", ran.stdout);
    let rows = scene.shards_of_rows().await;
    assert_eq!(rows.len(), ROWS);
    assert!((4..16).all(|shard| rows.iter().any(|(_, of)| *of == shard)), "rows are in the new shards");
    scene.run(&["validate", "--db", scene.url()]).await.expect(0);
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlite_has_one_shard() {
    let scene = Scene::ready(Flavour::Sqlite).await;
    let refused = scene.reshard("4").await.expect(2);
    assert!(refused.stderr.starts_with("OUT-1013 ") && refused.stderr.contains("one shard"), "{}", refused.stderr);
}
