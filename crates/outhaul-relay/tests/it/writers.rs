//! An application: writers that commit, roll back and dawdle, and remember what they did.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_testkit::servers::{Flavour, Session};

/// What was committed, by key in the order of the commits.
#[derive(Debug, Default)]
pub struct Truth {
    pub by_key: BTreeMap<String, Vec<String>>,
    pub committed: HashSet<String>,
    pub rolled_back: HashSet<String>,
    /// COMMIT was not answered: either is right.
    pub unknown: HashSet<String>,
}

/// The writers, as they run.
pub struct Writers {
    pub truth: Arc<Mutex<Truth>>,
    committed: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

/// How much they write. No two of them share a key.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub writers: u64,
    pub rows: usize,
    pub rows_per_s: u64,
    pub keys: u64,
    pub seed: u64,
}

/// A small generator of numbers, so that a run can be repeated from its seed.
#[derive(Clone)]
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

impl Writers {
    /// `rows` rows from `writers` writers at about `rows_per_s`: a tenth of the transactions roll back, some dawdle
    /// between INSERT and COMMIT.
    pub fn start(flavour: Flavour, url: &str, writers: u64, rows: usize, rows_per_s: u64, seed: u64) -> Self {
        Self::at(flavour, url, Work { writers, rows, rows_per_s, keys: 50 * writers, seed })
    }

    pub fn at(flavour: Flavour, url: &str, work: Work) -> Self {
        let truth = Arc::<Mutex<Truth>>::default();
        let committed = Arc::<AtomicUsize>::default();
        let enough = Arc::<AtomicBool>::default();
        let tasks = (0..work.writers)
            .map(|w| {
                let (truth, committed, enough) = (truth.clone(), committed.clone(), enough.clone());
                tokio::spawn(write(flavour, url.to_owned(), w, work, truth, committed, enough))
            })
            .collect();
        Self { truth, committed, enough, tasks }
    }

    pub fn committed(&self) -> usize {
        self.committed.load(Ordering::Relaxed)
    }

    /// Each ends after the transaction that it is in.
    pub fn enough(&self) {
        self.enough.store(true, Ordering::Relaxed);
    }

    /// Whether some write still.
    pub fn write(&self) -> bool {
        self.tasks.iter().any(|task| !task.is_finished())
    }

    pub async fn finish(&mut self) {
        for task in self.tasks.drain(..) {
            task.await.unwrap();
        }
    }
}

async fn write(
    flavour: Flavour,
    url: String,
    writer: u64,
    work: Work,
    truth: Arc<Mutex<Truth>>,
    committed: Arc<AtomicUsize>,
    enough: Arc<AtomicBool>,
) {
    let writers = work.writers as usize;
    let rows = work.rows / writers + usize::from((writer as usize) < work.rows % writers);
    let (rows_per_s, keys) = (work.rows_per_s / work.writers, (work.keys / work.writers).max(1));
    let mut dice = Dice(work.seed * 1000 + writer + 1);
    let begin = if flavour == Flavour::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
    let payload = "x".repeat(300);
    let mut session = None;
    let (mut written, mut number) = (0, 0u64);
    while written < rows && !enough.load(Ordering::Relaxed) {
        let open = match session.take() {
            Some(open) => open,
            None => match Session::open(flavour, &url).await {
                Ok(open) => open,
                Err(_) => {
                    tokio::time::sleep(Duration::from_millis(100)).await; // The server is down: that is the test.
                    continue;
                }
            },
        };
        let mut open: Session = open;
        let count = (1 + dice.roll(20) as usize).min(rows - written);
        let key = format!("key-{writer}-{}", dice.roll(keys));
        let ids: Vec<String> = (0..count).map(|i| format!("{writer}-{number}-{i}")).collect();
        number += 1;
        let values: Vec<String> =
            ids.iter().map(|id| format!("('{id}', 'order-created', '{key}', '{payload}')")).collect();
        let insert = format!("INSERT INTO outbox (id, topic, msg_key, payload) VALUES {}", values.join(","));
        let rolls_back = dice.roll(10) == 0;
        let dawdles = dice.roll(25) == 0;
        let before = async {
            open.try_execute(begin).await?;
            open.try_execute(&insert).await?;
            if dawdles {
                tokio::time::sleep(Duration::from_millis(20 + dice.roll(200))).await;
            }
            Ok::<_, String>(())
        }
        .await;
        if before.is_err() {
            truth.lock().unwrap().rolled_back.extend(ids);
            continue; // The connection is gone, and the transaction with it.
        }
        if rolls_back {
            truth.lock().unwrap().rolled_back.extend(ids);
            if open.try_execute("ROLLBACK").await.is_ok() {
                session = Some(open);
            }
            continue;
        }
        let answer = open.try_execute("COMMIT").await;
        {
            let mut truth = truth.lock().unwrap();
            truth.by_key.entry(key).or_default().extend(ids.iter().cloned());
            let known = if answer.is_ok() { &mut truth.committed } else { &mut truth.unknown };
            known.extend(ids);
        }
        if answer.is_ok() {
            session = Some(open);
        }
        written += count;
        committed.fetch_add(count, Ordering::Relaxed);
        let pace = count as u64 * 1_000_000 / rows_per_s.max(1);
        tokio::time::sleep(Duration::from_micros(pace / 2 + dice.roll(pace.max(1)))).await;
    }
}
