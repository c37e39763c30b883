//! Transactions of processes that are killed, every check-back with its answer, and the judgement in the end.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul::transaction::{CheckBackAnswers, RocketMqConfig, StoreOptions, TransactionOptions};
use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, Stop, Transactions};
use outhaul_sink::rocketmq::RocketMqSink;
use outhaul_testkit::proxy::Proxy;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::stage::{LIMIT, Stage, eventually};
use super::worker::{Work, Worker, rolls_back};

/// Each answer of each transaction.
type Answers = HashMap<String, Vec<String>>;

/// A stage, and what was said on it.
pub struct Trial {
    pub stage: Stage,
    answers: Arc<Mutex<Answers>>,
    /// Number of the newest message that was begun.
    begun: watch::Sender<u64>,
    failed: Mutex<u64>,
}

/// A member of the group whose database is away for good.
pub struct Blind {
    answers: CheckBackAnswers,
    _proxy: Proxy,
}

impl Blind {
    pub async fn stop(self) {
        self.answers.stop().await;
    }
}

impl Trial {
    pub fn new(stage: Stage) -> Self {
        Self { stage, answers: Arc::default(), begun: watch::channel(0).0, failed: Mutex::default() }
    }

    /// Counts what it answers.
    pub fn observed(&self, options: TransactionOptions) -> TransactionOptions {
        let answers = self.answers.clone();
        options.observe(move |j| add(&answers, &j.transaction, j.answer.name()))
    }

    pub async fn blind(&self) -> Blind {
        let proxy = Proxy::start(self.stage.database.address()).await;
        let mut options = self.stage.options();
        options.store = StoreOptions::new(self.stage.database.url_at(proxy.address()));
        options.store.connect_timeout = Duration::from_millis(500);
        options.store.statement_timeout = Duration::from_millis(500);
        let answers = CheckBackAnswers::start(self.observed(options)).await.unwrap();
        proxy.refuse().await;
        proxy.cut_all().await;
        Blind { answers, _proxy: proxy }
    }

    /// Waits until so many messages were begun.
    pub async fn begun(&self, number: u64) {
        let mut begun = self.begun.subscribe();
        timeout(LIMIT * 4, begun.wait_for(|n| *n >= number)).await.expect("it goes on").unwrap();
    }

    /// Lets processes work through all messages, one after the other, each killed at its step; the last is not. Returns how
    /// many were killed.
    pub async fn work(&self, config: &RocketMqConfig, all: u64, steps: &[&str]) -> usize {
        let mut from = 1;
        let mut killed = 0;
        let share = all / (steps.len() as u64 + 1);
        while from <= all {
            let stop_at = steps.get(killed).map(|step| ((*step).to_owned(), i64::try_from(share / 3).unwrap().max(1)));
            let last = stop_at.is_none();
            let work = Work {
                url: self.stage.database.url.clone(),
                config: config.clone(),
                topic: self.stage.topic.clone(),
                from,
                below: if last { all + 1 } else { (from + share * 3).min(all + 1) },
                stop_at,
            };
            let mut worker = Worker::start(&work);
            let mut ended = false;
            loop {
                let line = timeout(LIMIT, worker.lines.next_line()).await.expect("a worker goes on").unwrap();
                let Some(line) = line else { break };
                let words: Vec<&str> = line.split(' ').collect();
                match words.as_slice() {
                    ["begin", n] => {
                        from = n.parse::<u64>().unwrap() + 1;
                        self.begun.send_replace(from - 1);
                    }
                    ["judged", transaction, answer] => add(&self.answers, transaction, answer),
                    ["failed", ..] => *self.failed.lock().unwrap() += 1,
                    ["at", _] => {
                        worker.child.kill().await.unwrap(); // SIGKILL, and waits until it is gone
                        killed += 1;
                    }
                    ["end"] => ended = true,
                    _ => {} // of the test harness
                }
            }
            assert!(ended || killed > 0, "a worker has failed");
            if ended && !last && from <= all {
                killed += 1; // it never came there so often
            }
        }
        killed
    }

    /// A relay beside it all.
    pub async fn relay(&self, fallback_after: Duration) -> (Stop, JoinHandle<()>) {
        let stop = Stop::new();
        let outbox = Outbox {
            name: "test".into(),
            store: outhaul_store::open(StoreOptions::new(&self.stage.database.url)).await.unwrap(),
            destinations: vec![Destination {
                name: "mq".into(),
                sink: Arc::new(RocketMqSink::new(self.stage.config(), None)),
                limits: LaneLimits { send_limit_ms: 4_000, ..LaneLimits::default() },
                require_ack: None,
            }],
            routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
            settings: Settings::default(),
            owner: "fire".into(),
            until_empty: false,
            shutdown_limit_ms: 20_000,
            maintenance: None,
            transactions: Some(Transactions { fallback_after, ..Transactions::default() }),
            watch: None,
        };
        let running = stop.clone();
        let task = tokio::spawn(async move {
            Box::pin(outhaul_relay::run(vec![outbox], running)).await.unwrap();
        });
        (stop, task)
    }

    /// Waits until what committed is delivered.
    pub async fn all_delivered(&self) {
        eventually("no transaction is left", async || {
            !self.stage.states().await.values().any(|state| state == "committed")
        })
        .await;
        let business = self.stage.business().await;
        eventually("all is delivered", async || {
            let delivered = self.stage.delivered().await;
            business.keys().all(|id| delivered.contains_key(id))
        })
        .await;
    }

    /// What came of it, judged by the business rows.
    pub async fn verdict(&self, title: &str, at_least: u64) {
        let (business, delivered, states) =
            (self.stage.business().await, self.stage.delivered().await, self.stage.states().await);
        let missing: Vec<&String> = business.keys().filter(|id| !delivered.contains_key(*id)).collect();
        let phantom: Vec<&String> = delivered.keys().filter(|id| !business.contains_key(*id)).collect();
        let committed: HashSet<&String> = business.values().collect();
        let answers = std::mem::take(&mut *self.answers.lock().unwrap());
        let (mut commits, mut rollbacks, mut unknowns, mut misjudged) = (0, 0, 0, Vec::new());
        for (transaction, answer) in answers.iter().flat_map(|(t, all)| all.iter().map(move |answer| (t, answer))) {
            let sent = states.get(transaction).is_some_and(|state| state == "sent");
            let wrong = match answer.as_str() {
                "commit" => {
                    commits += 1;
                    !committed.contains(transaction)
                }
                "rollback" => {
                    rollbacks += 1;
                    committed.contains(transaction) && !sent
                }
                _ => {
                    unknowns += 1;
                    false
                }
            };
            if wrong {
                misjudged.push((transaction, answer));
            }
        }
        let copies: u32 = delivered.values().sum();
        println!(
            "{title}: {} committed, {} failed, {} delivered ({copies} copies); check-backs: {commits} commit, {rollbacks} rollback, \
             {unknowns} unknown, {} misjudged; {} by the relay",
            business.len(),
            self.failed.lock().unwrap(),
            delivered.len(),
            misjudged.len(),
            states.values().filter(|state| *state == "sent").count()
        );
        assert!(missing.is_empty() && phantom.is_empty(), "missing {missing:?}, phantom {phantom:?}");
        assert!(misjudged.is_empty(), "{misjudged:?}");
        assert!(commits > 0 && rollbacks > 0 && unknowns > 0, "every answer was given");
        assert!(business.keys().all(|id| !rolls_back(id[1..].parse().unwrap_or(1))), "nothing rolled back is there");
        assert!(business.len() as u64 > at_least, "enough have committed");
    }
}

fn add(answers: &Mutex<Answers>, transaction: &str, answer: &str) {
    answers.lock().unwrap().entry(transaction.to_owned()).or_default().push(answer.to_owned());
}
