//! `prune --export`: what leaves the log is in files before, and can be put back.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use serde_json::{Value, json};

use crate::program::{LIMIT, Scene, on_every_database};

on_every_database!(
    what_is_pruned_is_in_files_and_comes_back,
    a_kill_before_the_delete_repeats_nothing,
    where_it_cannot_be_written_nothing_goes,
    a_full_disk_keeps_the_log,
);

/// Name and text of every finished file.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if name.ends_with(".jsonl.zst") {
            let text = zstd::decode_all(std::fs::File::open(entry.path()).unwrap()).unwrap();
            files.insert(name, String::from_utf8(text).unwrap());
        }
    }
    files
}

fn lines(folder: &Path) -> Vec<Value> {
    files(folder).values().flat_map(|text| text.lines()).map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn ids(lines: &[Value]) -> Vec<String> {
    let mut ids: Vec<String> = lines.iter().map(|l| l["id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    ids
}

fn numbered(n: std::ops::Range<u32>) -> Vec<String> {
    let mut ids: Vec<String> = n.map(|n| format!("m{n}")).collect();
    ids.sort();
    ids
}

impl Scene {
    async fn prune_into(&self, folder: &str) -> crate::program::Ran {
        self.run(&["prune", "--db", self.url(), "--retention", "0s", "--export", folder, "--json"]).await
    }

    async fn log_rows(&self) -> u64 {
        self.database.query_u64("SELECT COUNT(*) FROM outbox_log").await
    }

    /// Enqueues and delivers messages `m…`.
    async fn delivered(&self, n: std::ops::Range<u32>) {
        let lines: String = n
            .map(|n| format!("{{\"id\":\"m{n}\",\"topic\":\"t\",\"key\":\"k{}\",\"payload\":{n}}}\n", n % 3))
            .collect();
        self.enqueue(&lines).await.expect(0);
        self.deliver("out.jsonl").await;
    }
}

async fn what_is_pruned_is_in_files_and_comes_back(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let folder = scene.folder.path("kept");
    std::fs::create_dir(&folder).unwrap();
    let payloads = [
        ("json", "\"payload\":{\"price\": 1.50}", "payload", json!({"price": 1.50})),
        ("text", "\"payload_text\":\"<a>\\u00e9\\n</a>\"", "payload_text", json!("<a>é\n</a>")),
        ("bytes", "\"payload_base64\":\"AP8=\"", "payload_base64", json!("AP8=")),
    ];
    let text: String = payloads
        .iter()
        .map(|(id, payload, ..)| {
            format!("{{\"id\":\"{id}\",\"topic\":\"t é\",\"key\":\"k \",\"headers\":{{\"h\":\"ü\"}},{payload}}}\n")
        })
        .collect();
    scene.enqueue(&text).await.expect(0);
    let empty_key =
        "INSERT INTO outbox (id, topic, msg_key, payload) VALUES ('plain', 't', NULL, '1'), ('empty', 't', '', '2')";
    scene.database.execute(empty_key).await;
    let bad = "INSERT INTO outbox (id, topic, headers, payload) VALUES ('bad', 't', '[1]', '3')";
    scene.database.execute(bad).await;
    let first = scene.deliver("out.jsonl").await;
    assert_eq!(ids(&first), ["bytes", "empty", "json", "plain", "text"]);

    let pruned = scene.prune_into("kept").await.expect(0).json();
    assert_eq!((&pruned["messages"], &pruned["exported"]), (&json!(6), &json!(6)), "{pruned}");
    assert_eq!(scene.log_rows().await, 0);
    let found = files(&folder);
    let mut all = vec![];
    for (name, text) in &found {
        let mut parts = name.split('.');
        assert_eq!((parts.next(), parts.next()), (Some("main"), Some("shard-00")), "{name}");
        let day = parts.next().unwrap();
        let of_file: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let positions: Vec<u64> = of_file.iter().map(|l| l["position"].as_u64().unwrap()).collect();
        let span = format!("{:012}-{:012}", positions[0], positions[positions.len() - 1]);
        assert!(positions.is_sorted() && parts.next() == Some(span.as_str()), "{name}: {positions:?}");
        assert!(of_file.iter().all(|l| l["created_at"].as_str().unwrap().starts_with(day)), "{name}: {text}");
        all.extend(of_file);
    }
    let of = |id: &str| all.iter().find(|l| l["id"] == *id).unwrap();
    for (id, _, member, value) in &payloads {
        let line = of(id);
        assert_eq!((&line[*member], &line["headers"]), (value, &json!({"h": "ü"})), "{line}");
        assert_eq!(
            (&line["topic"], &line["key"], &line["destinations"]),
            (&json!("t é"), &json!("k "), &json!(["file"]))
        );
    }
    assert!(found.values().any(|text| text.contains("{\"price\": 1.50}")), "as it was written");
    assert_eq!(
        (&of("plain")["key"], &of("plain")["headers"], &of("empty")["key"]),
        (&Value::Null, &Value::Null, &json!(""))
    );
    assert_eq!(of("bad")["headers_text"], "[1]");
    assert!(of("bad")["defect"].as_str().unwrap().contains("headers"));

    // Back again, all but the one that nobody could read.
    let put_back = scene.enqueue(&found.values().cloned().collect::<String>()).await.expect(0);
    assert!(put_back.stderr.starts_with("1 lines were left out"), "{}", put_back.stderr);
    let second = scene.deliver("again.jsonl").await;
    let content = |lines: &[Value]| -> BTreeMap<String, Value> {
        let one = |l: &Value| {
            let mut l = l.clone();
            for name in ["position", "created_at"] {
                l.as_object_mut().unwrap().remove(name);
            }
            (l["id"].as_str().unwrap().to_owned(), l)
        };
        lines.iter().map(one).collect()
    };
    assert_eq!(content(&second), content(&first));
}

/// Between the file and the delete it is killed (SQLite: the delete fails). The next run finds what is there, adds what
/// is new, and every message is exported once.
async fn a_kill_before_the_delete_repeats_nothing(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    let folder = scene.folder.path("kept");
    std::fs::create_dir(&folder).unwrap();
    scene.delivered(0..20).await;
    if flavour == Flavour::Sqlite {
        let trigger = "CREATE TRIGGER held BEFORE DELETE ON outbox_log BEGIN SELECT RAISE(ABORT, 'held'); END";
        scene.database.execute(trigger).await;
        let failed = scene.prune_into("kept").await.expect(1);
        assert!(failed.stderr.contains("held"), "{}", failed.stderr);
        scene.database.execute("DROP TRIGGER held").await;
    } else {
        let mut other = scene.database.session().await;
        other.execute("BEGIN").await;
        other.query("SELECT base_position FROM outbox_log FOR UPDATE").await;
        let db = scene.url();
        let prune = ["prune", "--db", db, "--retention", "0s", "--export", "kept"];
        let mut running = scene.folder.start(&prune, &[]);
        let written = async {
            while files(&folder).is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LIMIT, written).await.expect("a file");
        running.child.kill().await.unwrap();
        other.execute("ROLLBACK").await;
    }
    assert!(scene.log_rows().await > 0, "nothing was deleted");
    let before = files(&folder);
    assert_eq!(ids(&lines(&folder)), numbered(0..20));
    scene.delivered(20..30).await;
    let pruned = scene.prune_into("kept").await.expect(0).json();
    assert_eq!((&pruned["messages"], &pruned["exported"]), (&json!(30), &json!(30)), "{pruned}");
    assert_eq!(scene.log_rows().await, 0);
    let after = files(&folder);
    assert!(before.iter().all(|(name, text)| after.get(name) == Some(text)), "{before:?}\n{after:?}");
    assert_eq!(ids(&lines(&folder)), numbered(0..30), "each once");
}

async fn where_it_cannot_be_written_nothing_goes(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    scene.delivered(0..5).await;
    scene.folder.write("file", "");
    for place in ["missing", "file"] {
        let ran = scene.prune_into(place).await.expect(1);
        assert!(ran.stderr.contains("\"code\":\"OUT-4019\"") && ran.stderr.contains(place), "{}", ran.stderr);
        assert!(scene.log_rows().await > 0, "{place}");
    }
    let ran = scene.run(&["prune", "--db", scene.url(), "--retention", "0s", "--export", "missing"]).await.expect(1);
    assert!(ran.stderr.starts_with("OUT-4019 outbox main: exporting to missing: "), "{}", ran.stderr);
    // The configuration's folder holds for the command too.
    let config = format!(
        "[relay]\nexport = \"kept\"\nretention = \"0s\"\n[[outbox]]\nname = \"shop\"\nurl = \"{}\"\n",
        scene.url()
    );
    scene.folder.write("outhaul.toml", &config);
    scene.run(&["prune"]).await.expect(1);
    assert!(scene.log_rows().await > 0);
    let folder = scene.folder.path("kept");
    std::fs::create_dir(&folder).unwrap();
    let said = scene.run(&["prune"]).await.expect(0);
    assert!(said.stdout.starts_with("shop: 5 exported, 1 files; 5 messages older than 0ms deleted"), "{}", said.stdout);
    assert_eq!((ids(&lines(&folder)), scene.log_rows().await), (numbered(0..5), 0));
    assert!(files(&folder).keys().all(|name| name.starts_with("shop.shard-00.")));
}

/// A small file system of its own; where none can be mounted, a folder in which nobody but root may write.
async fn a_full_disk_keeps_the_log(flavour: Flavour) {
    let scene = Scene::ready(flavour).await;
    // Nothing that can be packed.
    let mut noise = 1u64;
    let mut word = || {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        format!("{:016x}", noise ^ noise >> 29)
    };
    let messages: String = (0..40)
        .map(|n| {
            let payload: String = (0..256).map(|_| word()).collect();
            format!("{{\"id\":\"m{n}\",\"topic\":\"t\",\"payload\":\"{payload}\"}}\n")
        })
        .collect();
    scene.enqueue(&messages).await.expect(0);
    scene.deliver("out.jsonl").await;
    let folder = scene.folder.path("small");
    std::fs::create_dir(&folder).unwrap();
    let at = folder.to_str().unwrap();
    let run = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).output().is_ok_and(|o| o.status.success())
    };
    let mounted = run("mount", &["-t", "tmpfs", "-o", "size=64k", "tmpfs", at]);
    if !mounted {
        run("chmod", &["555", at]);
    }
    let refused = scene.prune_into("small").await;
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
    let rows = scene.log_rows().await;
    run("mount", &["-o", "remount,size=4m", at]);
    run("chmod", &["755", at]);
    let mended = scene.prune_into("small").await;
    let found = ids(&lines(&folder));
    if mounted {
        run("umount", &[at]);
    }
    let refused = refused.expect(1);
    let why = if mounted { "No space left" } else { "Permission denied" };
    assert!(refused.stderr.contains("\"code\":\"OUT-4019\"") && refused.stderr.contains(why), "{}", refused.stderr);
    assert!(left.is_empty() && rows > 0, "{left:?}");
    mended.expect(0);
    assert_eq!((found, scene.log_rows().await), (numbered(0..40), 0));
}
