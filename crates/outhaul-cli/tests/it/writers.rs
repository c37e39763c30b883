//! An application that writes all the time, and what a file must hold in the end.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use outhaul_testkit::servers::{Flavour, Session};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::program::LIMIT;

/// Ids by key, in the order in which they were committed.
type Written = BTreeMap<String, Vec<String>>;

/// Writers that go on until they are told to stop. No two of them share a key.
pub struct Writers {
    enough: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Written>>,
}

impl Writers {
    pub fn start(flavour: Flavour, url: &str, prefix: &str) -> Self {
        let enough = Arc::<AtomicBool>::default();
        let writer = |n: u32| tokio::spawn(write(flavour, url.to_owned(), format!("{prefix}{n}"), enough.clone()));
        let tasks = (0..3).map(writer).collect();
        Self { enough, tasks }
    }

    /// What they have committed.
    pub async fn stop(self) -> Written {
        self.enough.store(true, Ordering::Relaxed);
        let mut all = Written::new();
        for task in self.tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}

/// Transactions of one to three rows of one key; some dawdle before they commit, some are rolled back.
async fn write(flavour: Flavour, url: String, writer: String, enough: Arc<AtomicBool>) -> Written {
    let begin = if flavour == Flavour::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
    let mut written = Written::new();
    let mut session = Session::open(flavour, &url).await.unwrap();
    for n in 0u64.. {
        if enough.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("{writer}-{}", n % 7);
        let ids: Vec<String> = (0..=n % 3).map(|i| format!("{writer}.{n}.{i}")).collect();
        let values: Vec<String> = ids.iter().map(|id| format!("('{id}', 't', '{key}', '1')")).collect();
        let insert = format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {}", values.join(","));
        let inserted = async {
            session.try_execute(begin).await?;
            session.try_execute(&insert).await
        };
        if inserted.await.is_err() {
            // Another one has the file, or the table has changed under an old snapshot: a transaction that is begun anew.
            _ = session.try_execute("ROLLBACK").await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        if n % 11 == 0 {
            tokio::time::sleep(Duration::from_millis(40)).await;
        }
        if n % 13 == 5 {
            session.execute("ROLLBACK").await;
        } else {
            session.execute("COMMIT").await;
            written.entry(key).or_default().extend(ids);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    written
}

/// Waits until the file has so many lines: as long as lines come, however slowly.
pub async fn lines_reach(file: &Path, wanted: usize) {
    let count = || std::fs::read_to_string(file).unwrap_or_default().lines().count();
    let (mut seen, mut since) = (count(), Instant::now());
    while seen < wanted {
        tokio::time::sleep(Duration::from_millis(50)).await; // a file gives no signal
        let now = count();
        if now > seen {
            (seen, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < LIMIT, "{seen} of {wanted} lines came, and no more for {LIMIT:?}");
    }
}

/// Every message came once, those of a key in their order, and nothing else.
#[track_caller]
pub fn came_once_and_in_order(delivered: &[Value], written: &Written) {
    let mut by_key = Written::new();
    let mut seen = HashSet::new();
    for line in delivered {
        let id = line["id"].as_str().unwrap();
        assert!(seen.insert(id.to_owned()), "{id} came twice");
        by_key.entry(line["key"].as_str().unwrap().to_owned()).or_default().push(id.to_owned());
    }
    let all: usize = written.values().map(Vec::len).sum();
    assert_eq!(seen.len(), all, "as many as were committed");
    for (key, ids) in written {
        assert_eq!(by_key.get(key), Some(ids), "{key}");
    }
    println!("{all} committed, {} came: 0 missing, 0 twice, order per key held", seen.len());
}
