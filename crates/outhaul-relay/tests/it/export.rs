//! A relay that exports what it prunes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use outhaul_core::trouble::Trouble;
use outhaul_relay::Maintenance;
use outhaul_testkit::scripted::ScriptedSink;
use outhaul_testkit::servers::Flavour;
use serde_json::Value;

use crate::engine::{Bench, LIMIT};
use crate::on_each;

/// Ids in all finished files of a folder.
fn exported(folder: &Path) -> Vec<String> {
    let mut ids = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.path().extension().is_none_or(|e| e != "zst") {
            continue;
        }
        let text = zstd::decode_all(std::fs::File::open(entry.path()).unwrap()).unwrap();
        for line in String::from_utf8(text).unwrap().lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            ids.push(value["id"].as_str().unwrap().to_owned());
        }
    }
    ids
}

impl Bench {
    /// Prunes all the time, into a folder that is not there yet.
    fn exporting(&mut self) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("outhaul-export-{}", uuid::Uuid::new_v4()));
        self.maintenance = Some(Maintenance {
            retention: Duration::ZERO,
            interval: Duration::from_millis(100),
            export: Some(folder.clone()),
            ..Maintenance::default()
        });
        folder
    }

    async fn log_rows(&self) -> u64 {
        self.database.query_u64("SELECT COUNT(*) FROM outbox_log").await
    }

    /// What the only instance says of itself.
    async fn trouble(&self) -> Option<Trouble> {
        let instances = self.store.instances().await.unwrap();
        instances.into_iter().flat_map(|i| i.troubles).find(|t| t.destination.is_empty())
    }
}

/// Asks again until the answer is yes: another task writes what is asked for.
async fn until(what: &str, mut asked: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !asked().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(LIMIT, waiting).await.is_ok(), "it never came to pass: {what}");
}

on_each!(without_its_folder_a_relay_delivers_and_prunes_nothing: all);

/// The folder is missing: delivery goes on, nothing is pruned, and `instances` says so until it is there.
async fn without_its_folder_a_relay_delivers_and_prunes_nothing(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let folder = bench.exporting();
    let sink = ScriptedSink::by_key(2);
    let relay = bench.relay(&[&sink]).await;
    bench.insert_many(0..20).await;
    sink.wait_stored(20).await;
    until("it is told", async || bench.trouble().await.is_some()).await;
    let told = bench.trouble().await.unwrap();
    assert_eq!((told.code.as_str(), told.shards.len()), ("OUT-4019", 0));
    assert!(told.text.contains(folder.to_str().unwrap()), "{}", told.text);
    bench.insert_many(20..50).await;
    sink.wait_stored(50).await;
    bench.wait_settled().await;
    assert!(bench.log_rows().await > 0);
    let kept: u64 = bench.status().await.iter().map(|s| s.log_end.0).sum();
    assert_eq!(kept, 50);

    std::fs::create_dir(&folder).unwrap();
    until("all is pruned", async || bench.log_rows().await == 0).await;
    let mut ids = exported(&folder);
    ids.sort();
    let mut expected: Vec<String> = (0..50).map(|n| format!("m{n}")).collect();
    expected.sort();
    assert_eq!(ids, expected);
    until("it is no longer told", async || bench.trouble().await.is_none()).await;
    relay.drain().await;
    assert_eq!(sink.duplicates(), 0);
    std::fs::remove_dir_all(folder).unwrap();
}

on_each!(two_relays_export_each_message_once: all);

/// Two relays prune by turns while messages come.
async fn two_relays_export_each_message_once(flavour: Flavour) {
    let mut bench = Bench::new(flavour).await;
    let folder = bench.exporting();
    std::fs::create_dir(&folder).unwrap();
    let sink = ScriptedSink::by_key(2);
    let relays = [bench.relay(&[&sink]).await, bench.relay(&[&sink]).await];
    for n in 0..10 {
        bench.insert_many(n * 30..n * 30 + 30).await;
        sink.wait_stored(n * 30 + 30).await;
    }
    until("all is pruned", async || {
        bench.log_rows().await == 0 && bench.status().await.iter().map(|s| s.log_end.0).sum::<u64>() == 300
    })
    .await;
    for relay in relays {
        relay.drain().await;
    }
    let mut ids = exported(&folder);
    ids.sort();
    let mut expected: Vec<String> = (0..300).map(|n| format!("m{n}")).collect();
    expected.sort();
    assert_eq!(ids, expected);
    std::fs::remove_dir_all(folder).unwrap();
}
