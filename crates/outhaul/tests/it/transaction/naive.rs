//! The listener of the article, for comparison: it answers by whether the business row is there, COMMIT or ROLLBACK.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::RocketMq;
use rocketmq_remoting::client::{SendOptions, TransactionalProducer};
use rocketmq_remoting::message::Message;
use rocketmq_remoting::request::Resolution;

use super::stage::{Stage, eventually};
use super::worker::HELD;

/// Transactions, all held open past the first question.
const ALL: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_listener_misjudges_and_loses_on_4_9() {
    Box::pin(naive(RocketMq::V4)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_naive_listener_misjudges_and_loses_on_5() {
    Box::pin(naive(RocketMq::V5)).await;
}

async fn naive(version: RocketMq) {
    let stage = Arc::new(Stage::new(version, Flavour::MariaDb).await);
    let (producer, mut checks) =
        TransactionalProducer::start(&stage.client, &stage.group, Duration::from_secs(20)).await.unwrap();
    let said: Arc<Mutex<HashMap<String, Vec<Resolution>>>> = Arc::default();
    let listener = {
        let (stage, said) = (stage.clone(), said.clone());
        tokio::spawn(async move {
            let mut session = stage.database.session().await;
            while let Some(check) = checks.next().await {
                let key = check.check.unique_key.clone();
                let there = session.query_u64(&format!("SELECT COUNT(*) FROM business WHERE id = '{key}'")).await > 0;
                let resolution = if there { Resolution::Commit } else { Resolution::Rollback };
                if check.answer(resolution, Duration::from_secs(5)).await.is_ok() {
                    said.lock().unwrap().entry(key).or_default().push(resolution);
                }
            }
        })
    };
    let queue = stage.client.route(&stage.topic).await.unwrap().queues()[0].clone();
    let producer = Arc::new(producer);
    let mut sending = tokio::task::JoinSet::new();
    for n in 0..ALL {
        let (stage, producer, queue) = (stage.clone(), producer.clone(), queue.clone());
        sending.spawn(async move {
            let key = format!("N{n:03}");
            let message = Message::new(&stage.topic, "x").unwrap().with_unique_key(&key).unwrap();
            let half = producer.half(&queue, &message, &SendOptions::default()).await.unwrap();
            let mut session = stage.database.session().await;
            session.execute(&format!("BEGIN; INSERT INTO business (id, tx) VALUES ('{key}', '{key}')")).await;
            tokio::time::sleep(HELD).await;
            session.execute("COMMIT").await;
            // Of every second one the commit is lost, as a process that is killed here loses it.
            if n.is_multiple_of(2) {
                _ = producer.end(&half, Resolution::Commit, None).await;
            }
        });
    }
    while let Some(done) = sending.join_next().await {
        done.unwrap();
    }
    eventually("every one was asked about", async || said.lock().unwrap().len() == ALL).await;
    // What is asked about and answered COMMIT would be there by now.
    tokio::time::sleep(HELD).await;
    listener.abort();
    let business = stage.business().await;
    let delivered = stage.delivered().await;
    let lost = business.keys().filter(|id| !delivered.contains_key(*id)).count();
    let said = said.lock().unwrap();
    let misjudged: HashSet<&String> = said
        .iter()
        .filter(|(key, all)| business.contains_key(*key) && all.contains(&Resolution::Rollback))
        .map(|(key, _)| key)
        .collect();
    println!(
        "{}, the article's listener: {ALL} transactions held open past the first question, all committed: {} misjudged, {lost} lost",
        version.name(),
        misjudged.len()
    );
    assert!(!misjudged.is_empty() && lost > 0, "the comparison shows nothing");
}
