//! Scheme B under fire: 2,000 transactions (20,000 in the soak) over two generations of brokers and two databases. Processes
//! are killed at every step, requests and answers are lost, transactions are held open past the first question, a process
//! of the group has no database, and in the end nobody is left to answer, until the broker has given up.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul::Event;
use outhaul::transaction::{CheckBackAnswers, StoreOptions, TransactionOptions, TransactionalSender};
use outhaul_core::config::{LaneLimits, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::route::{Route, Routes};
use outhaul_relay::{Destination, Outbox, Stop, Transactions};
use outhaul_sink::rocketmq::RocketMqSink;
use outhaul_testkit::proxy::Proxy;
use outhaul_testkit::servers::rocketmq::RocketMq;
use outhaul_testkit::servers::{self, Flavour};
use tokio::time::timeout;

use super::stage::{LIMIT, Stage, eventually};
use super::worker::{Judgements, STEPS, Work, Worker, rolls_back};

/// Of each pair of broker and database.
const FEW: u64 = 500;
const MANY: u64 = 5_000;
/// Longer than all questions of a broker take.
const FALLBACK: Duration = Duration::from_secs(20);
/// Transactions that are left to the relay.
const ABANDONED: u64 = 12;

macro_rules! fire {
    ($($name:ident $version:ident $flavour:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            Box::pin(under_fire(RocketMq::$version, Flavour::$flavour)).await;
        })*
    };
}

fire! {
    nothing_is_misjudged_on_4_9_with_mariadb V4 MariaDb
    nothing_is_misjudged_on_4_9_with_postgres V4 Postgres
    nothing_is_misjudged_on_5_with_mariadb V5 MariaDb
    nothing_is_misjudged_on_5_with_postgres V5 Postgres
}

async fn under_fire(version: RocketMq, flavour: Flavour) {
    let stage = Stage::new(version, flavour).await;
    let all = if servers::soak() { MANY } else { FEW };
    let judgements = Arc::new(Mutex::new(Judgements::default()));
    let observed = |options: TransactionOptions| {
        let judgements = judgements.clone();
        options.observe(move |j| judgements.lock().unwrap().add(&j.transaction, j.answer.name()))
    };

    // One of the group whose database goes away, and stays away.
    let proxy = Proxy::start(stage.database.address()).await;
    let mut blind_options = stage.options();
    blind_options.store = StoreOptions::new(stage.database.url_at(proxy.address()));
    blind_options.store.connect_timeout = Duration::from_millis(500);
    blind_options.store.statement_timeout = Duration::from_millis(500);
    let blind = CheckBackAnswers::start(observed(blind_options)).await.unwrap();
    proxy.refuse().await;
    proxy.cut_all().await;

    let killed = work(&stage, all, &judgements).await;
    let (stop, relay) = relay(&stage).await;

    // The last application is started again, sends a few that it never ends, and everybody leaves.
    let sender = TransactionalSender::start(observed(stage.options())).await.unwrap();
    eventually("all earlier ones are settled", async || {
        !stage.states().await.values().any(|state| state == "committed")
    })
    .await;
    blind.stop().await;
    abandon(&stage, &sender, all).await;
    sender.stop().await;
    eventually("the relay sees to them", async || {
        let states = stage.states().await;
        states.values().filter(|state| *state == "sent").count() as u64 >= ABANDONED
            && !states.values().any(|state| state == "committed")
    })
    .await;
    let business = stage.business().await;
    eventually("all is delivered", async || {
        let delivered = stage.delivered().await;
        business.keys().all(|id| delivered.contains_key(id))
    })
    .await;
    stop.drain();
    relay.await.unwrap();

    let delivered = stage.delivered().await;
    let states = stage.states().await;
    let missing: Vec<&String> = business.keys().filter(|id| !delivered.contains_key(*id)).collect();
    let phantom: Vec<&String> = delivered.keys().filter(|id| !business.contains_key(*id)).collect();
    let committed: HashSet<&String> = business.values().collect();
    let judgements = std::mem::take(&mut *judgements.lock().unwrap());
    let (mut commits, mut rollbacks, mut unknowns, mut misjudged) = (0, 0, 0, Vec::new());
    for (transaction, answers) in &judgements.0 {
        let sent = states.get(transaction).is_some_and(|state| state == "sent");
        for answer in answers {
            match answer.as_str() {
                "commit" => commits += 1,
                "rollback" => rollbacks += 1,
                _ => unknowns += 1,
            }
            let wrong = match answer.as_str() {
                "commit" => !committed.contains(transaction),
                "rollback" => committed.contains(transaction) && !sent,
                _ => false,
            };
            if wrong {
                misjudged.push((transaction, answer));
            }
        }
    }
    let copies: u32 = delivered.values().sum();
    println!(
        "{} with {}: {all} transactions, {killed} processes killed, {} committed, {} delivered ({} copies); check-backs: {commits} \
         commit, {rollbacks} rollback, {unknowns} unknown, {} misjudged; {} by the relay",
        version.name(),
        flavour.name(),
        business.len(),
        delivered.len(),
        copies,
        misjudged.len(),
        states.values().filter(|state| *state == "sent").count()
    );
    assert!(missing.is_empty() && phantom.is_empty(), "missing {missing:?}, phantom {phantom:?}");
    assert!(misjudged.is_empty(), "{misjudged:?}");
    assert!(commits > 0 && rollbacks > 0 && unknowns > 0, "every answer was given");
    assert!(business.keys().all(|id| !rolls_back(id[1..].parse().unwrap_or(1))), "nothing rolled back is there");
    assert!(business.len() as u64 > all / 2, "most of two thirds have committed");
}

/// Lets processes work through all messages, one after the other; all but the last are killed, each at another step.
async fn work(stage: &Stage, all: u64, judgements: &Arc<Mutex<Judgements>>) -> usize {
    let mut from = 1;
    let mut killed = 0;
    let share = all / (STEPS.len() as u64 + 1);
    while from <= all {
        let stop_at = STEPS.get(killed).map(|step| ((*step).to_owned(), i64::try_from(share / 3).unwrap().max(1)));
        let last = stop_at.is_none();
        let work = Work {
            url: stage.database.url.clone(),
            config: stage.config(),
            topic: stage.topic.clone(),
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
                ["begin", n] => from = n.parse::<u64>().unwrap() + 1,
                ["judged", transaction, answer] => judgements.lock().unwrap().add(transaction, answer),
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

/// Messages whose transaction commits, and that nobody ends or answers for.
async fn abandon(stage: &Stage, sender: &TransactionalSender, all: u64) {
    let mut session = stage.database.session().await;
    for n in 0..ABANDONED {
        // Numbers that are not rolled back.
        let id = format!("m{:06}", (all + 1_000 + n) * 3 + 1);
        let prepared = sender.prepare(Event::bytes(&stage.topic, "abandoned").id(&id)).await.unwrap();
        let tx = prepared.transaction();
        // As an application in another language does it.
        session
            .execute(&format!(
                "BEGIN; INSERT INTO outbox_transaction (id, message_id, topic, payload) VALUES ('{tx}', '{id}', '{}', 'abandoned'); \
                 INSERT INTO business (id, tx) VALUES ('{id}', '{tx}'); COMMIT",
                stage.topic
            ))
            .await;
    }
}

async fn relay(stage: &Stage) -> (Stop, tokio::task::JoinHandle<()>) {
    let stop = Stop::new();
    let outbox = Outbox {
        name: "test".into(),
        store: outhaul_store::open(StoreOptions::new(&stage.database.url)).await.unwrap(),
        destinations: vec![Destination {
            name: "mq".into(),
            sink: Arc::new(RocketMqSink::new(stage.config(), None)),
            limits: LaneLimits { send_limit_ms: 4_000, ..LaneLimits::default() },
            require_ack: None,
        }],
        routes: Routes::new(vec![Route { pattern: "*".into(), to: vec![DestinationIndex(0)] }]),
        settings: Settings::default(),
        owner: "fire".into(),
        until_empty: false,
        shutdown_limit_ms: 20_000,
        maintenance: None,
        transactions: Some(Transactions { fallback_after: FALLBACK, ..Transactions::default() }),
    };
    let running = stop.clone();
    let task = tokio::spawn(async move {
        Box::pin(outhaul_relay::run(vec![outbox], running)).await.unwrap();
    });
    (stop, task)
}
