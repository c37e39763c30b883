//! Scheme B under fire: 2,000 transactions (40,000 in the soak) over two generations of brokers and two databases. Processes
//! are killed at every step, requests and answers are lost, transactions are held open past the first question, a process
//! of the group has no database, and in the end there is nobody else to answer, until the broker has given up.

use std::time::Duration;

use outhaul::Event;
use outhaul::transaction::TransactionalSender;
use outhaul_testkit::servers::rocketmq::RocketMq;
use outhaul_testkit::servers::{self, Flavour};

use super::judged::Trial;
use super::stage::{Stage, eventually};
use super::worker::STEPS;

/// Of each pair of broker and database.
const FEW: u64 = 500;
const MANY: u64 = 10_000;
/// Longer than all questions of a broker take.
const FALLBACK: Duration = Duration::from_secs(20);
/// Transactions that are left to the relay.
const ABANDONED: u64 = 12;
/// Where brokers put halfs that they have given up.
const GIVEN_UP: &str = "TRANS_CHECK_MAX_TIME_TOPIC";

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
    let trial = Trial::new(Stage::new(version, flavour).await);
    let stage = &trial.stage;
    let (all, rounds) = if servers::soak() { (MANY, 4) } else { (FEW, 1) };
    let blind = trial.blind().await;
    let killed = trial.work(&stage.config(), all, &STEPS.repeat(rounds)).await;
    let (stop, relay) = trial.relay(FALLBACK).await;

    // The last application is started again, sends a few that it never ends, and leaves the group to the blind one.
    let sender = TransactionalSender::start(trial.observed(stage.options())).await.unwrap();
    eventually("all earlier ones are settled", async || {
        !stage.states().await.values().any(|state| state == "committed")
    })
    .await;
    let abandoned = abandon(stage, &sender, all).await;
    sender.stop().await;
    eventually("the broker gives them up", async || {
        let given_up = stage.ids_in(GIVEN_UP).await;
        abandoned.iter().all(|id| given_up.contains_key(id))
    })
    .await;
    blind.stop().await;
    trial.all_delivered().await;
    stop.drain();
    relay.await.unwrap();

    let sent = stage.states().await.into_values().filter(|state| state == "sent").count() as u64;
    assert!(sent >= ABANDONED, "what the broker gave up is delivered by the relay");
    let title = format!("{} with {}: {all} transactions, {killed} processes killed", version.name(), flavour.name());
    trial.verdict(&title, all / 2).await;
}

/// Messages whose transaction commits, and that nobody ends or answers for.
async fn abandon(stage: &Stage, sender: &TransactionalSender, all: u64) -> Vec<String> {
    let mut session = stage.database.session().await;
    let mut abandoned = Vec::new();
    for n in 0..ABANDONED {
        // Numbers that are not rolled back; in a topic of all tests, so the table of none may have them.
        let id = format!("m{:06}-{}", (all + 1_000 + n) * 3 + 1, stage.group);
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
        abandoned.push(id);
    }
    abandoned
}
