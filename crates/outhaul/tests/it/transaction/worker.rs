//! An application as a process of its own: this very test binary, started again. It sends transactional messages, stops at
//! a step that it was told, to be killed there, and prints what it does, a line each:
//!
//! `begin N`, `at STEP`, `judged TRANSACTION ANSWER`, `failed N WHY`, `end`

use std::io::Write;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use outhaul::Event;
use outhaul::transaction::{
    Prepared, RocketMqConfig, StoreOptions, TransactionError, TransactionOptions, TransactionalSender,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::Semaphore;

const WORK: &str = "OUTHAUL_TRANSACTION_WORK";
/// Transactions under way at a time.
const AT_A_TIME: usize = 12;
/// Between tries of what cannot be begun while a server is away, and how many there are.
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: u32 = 100;
/// Longer than the broker waits before it asks.
pub const HELD: Duration = Duration::from_millis(4_500);

/// Steps at which it can be killed: before and after each that counts.
pub const STEPS: [&str; 7] = ["start", "half", "row", "business", "committed", "ended", "rolled-back"];

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Work {
    pub url: String,
    pub config: RocketMqConfig,
    pub topic: String,
    /// Messages, by number.
    pub from: u64,
    pub below: u64,
    /// Where it waits to be killed, when it comes there the how-manieth time.
    pub stop_at: Option<(String, i64)>,
}

/// A third is rolled back.
pub fn rolls_back(n: u64) -> bool {
    n.is_multiple_of(3)
}

/// A process.
pub struct Worker {
    pub child: Child,
    pub lines: Lines<BufReader<ChildStdout>>,
    /// Closed when this process ends: then the child ends too.
    _stdin: Option<ChildStdin>,
}

impl Worker {
    pub fn start(work: &Work) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "transaction::worker::worker_process", "--nocapture"])
            .env(WORK, serde_json::to_string(work).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let _stdin = child.stdin.take();
        Self { child, lines, _stdin }
    }
}

fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    _ = writeln!(out, "{line}");
    _ = out.flush();
}

struct Steps(Option<(String, AtomicI64)>);

impl Steps {
    /// Waits for ever where it was told to.
    async fn at(&self, step: &str) {
        if let Some((wanted, left)) = &self.0
            && wanted == step
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            say(format_args!("at {step}"));
            std::future::pending::<()>().await;
        }
    }
}

/// Not a test: the process that [`Worker::start`] starts.
#[test]
fn worker_process() {
    let Ok(work) = std::env::var(WORK) else { return };
    let work: Work = serde_json::from_str(&work).unwrap();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(async {
        tokio::spawn(async {
            let mut end = [0];
            _ = tokio::io::AsyncReadExt::read(&mut tokio::io::stdin(), &mut end).await;
            std::process::exit(1);
        });
        if work.url.starts_with("postgres") {
            postgres::run(work).await
        } else {
            mysql::run(work).await
        }
        say(format_args!("end"));
        std::process::exit(0);
    });
}

/// Tries again while a server is away, as an application does that is started again by whoever looks after it.
async fn sender(work: &Work) -> TransactionalSender {
    for _ in 0..TRIES {
        let options = TransactionOptions::of(work.config.clone(), StoreOptions::new(&work.url));
        let options = options.observe(|j| say(format_args!("judged {} {}", j.transaction, j.answer.name())));
        match TransactionalSender::start(options).await {
            Ok(sender) => return sender,
            Err(e) => say(format_args!("failed start {e}")),
        }
        tokio::time::sleep(PAUSE).await;
    }
    panic!("it never starts")
}

/// Tries again while the broker is away: nothing has begun yet.
async fn prepared(sender: &TransactionalSender, event: &Event) -> Result<Prepared, TransactionError> {
    let mut tries = 0;
    loop {
        match sender.prepare(event.clone()).await {
            Err(TransactionError::Half(_)) if tries < TRIES => tries += 1,
            result => return result,
        }
        tokio::time::sleep(PAUSE).await;
    }
}

macro_rules! worker {
    ($name:ident, $pool:ty, $insert:literal) => {
        mod $name {
            use super::*;

            pub async fn run(work: Work) {
                let sender = Arc::new(sender(&work).await);
                let pool = <$pool>::connect_lazy(&work.url).unwrap();
                let steps = Arc::new(Steps(work.stop_at.clone().map(|(step, n)| (step, AtomicI64::new(n)))));
                let places = Arc::new(Semaphore::new(AT_A_TIME));
                for n in work.from..work.below {
                    let place = places.clone().acquire_owned().await.unwrap();
                    say(format_args!("begin {n}"));
                    let (sender, pool, steps, topic) =
                        (sender.clone(), pool.clone(), steps.clone(), work.topic.clone());
                    tokio::spawn(async move {
                        if let Err(e) = one(&sender, &pool, &steps, &topic, n).await {
                            say(format_args!("failed {n} {e}"));
                        }
                        drop(place);
                    });
                }
                _ = places.acquire_many(AT_A_TIME as u32).await;
                if let Some(sender) = Arc::into_inner(sender) {
                    sender.stop().await;
                }
            }

            type Failure = Box<dyn std::error::Error + Send + Sync>;

            async fn one(
                sender: &TransactionalSender,
                pool: &$pool,
                steps: &Steps,
                topic: &str,
                n: u64,
            ) -> Result<(), Failure> {
                steps.at("start").await;
                let id = format!("m{n:06}");
                let event = Event::bytes(topic, format!("payload {n}")).id(&id).key(format!("k{}", n % 7));
                let prepared = prepared(sender, &event).await?;
                steps.at("half").await;
                if n % 41 == 5 {
                    tokio::time::sleep(HELD).await; // judged before its row
                }
                let mut tx = pool.begin().await?;
                match prepared.record(&mut tx).await {
                    Ok(()) => {}
                    Err(TransactionError::RolledBack) => return Ok(tx.rollback().await?),
                    Err(e) => return Err(e.into()),
                }
                steps.at("row").await;
                sqlx::query($insert).bind(&id).bind(prepared.transaction()).execute(&mut *tx).await?;
                steps.at("business").await;
                if n % 29 == 7 {
                    tokio::time::sleep(HELD).await; // held open past the first question
                }
                if rolls_back(n) {
                    tx.rollback().await?;
                    steps.at("rolled-back").await;
                    if n.is_multiple_of(2) {
                        prepared.settle().await;
                    }
                    return Ok(());
                }
                tx.commit().await?;
                steps.at("committed").await;
                match n % 10 {
                    1 => drop(prepared), // the request is lost
                    // The answer is lost.
                    2 => _ = tokio::time::timeout(Duration::from_micros(200), prepared.committed()).await,
                    _ => _ = prepared.committed().await,
                }
                steps.at("ended").await;
                Ok(())
            }
        }
    };
}

worker!(mysql, sqlx::MySqlPool, "INSERT INTO business (id, tx) VALUES (?, ?)");
worker!(postgres, sqlx::PgPool, "INSERT INTO business (id, tx) VALUES ($1, $2)");
