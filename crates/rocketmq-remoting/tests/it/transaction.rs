//! Half messages: committed, rolled back, asked about, given up and taken back.

use std::time::Duration;

use outhaul_testkit::servers::rocketmq::Account;
use rocketmq_remoting::Error;
use rocketmq_remoting::client::{
    Admin, CheckBack, CheckBacks, Client, Consumer, PullOptions, SendOptions, TransactionalProducer,
};
use rocketmq_remoting::message::{MessageError, MessageQueue};
use rocketmq_remoting::request::Resolution;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::on_both;
use crate::send::read_all;
use crate::servers::{LIMIT, Server, eventually, fresh, guarded_client, master_address, message, topic, within};

on_both!(
    a_commit_delivers_and_a_rollback_does_not,
    a_restarted_group_is_asked_about_what_was_left_open,
    a_half_that_was_given_up_is_taken_back,
    two_of_a_client_and_strange_halfs_are_refused,
);

/// Settings that these tests change are the whole broker's: one test at a time.
async fn turn(server: Server) -> MutexGuard<'static, ()> {
    static V4: Mutex<()> = Mutex::const_new(());
    static V5: Mutex<()> = Mutex::const_new(());
    if server.is_5() { V5.lock().await } else { V4.lock().await }
}

/// Who sends, and who administers.
async fn clients(server: Server) -> (Client, Client) {
    (guarded_client(server, Account::APP).await, guarded_client(server, Account::ADMIN).await)
}

/// How long a broker may take until it asks about a half.
async fn check_limit(client: &Client) -> Duration {
    let address = master_address(client).await;
    let keys = ["transactionCheckInterval", "transactionTimeOut"];
    let config = Admin::new(client).broker_config(&address, &keys).await.unwrap();
    let ms = keys.iter().map(|key| config.number(key).unwrap()).sum::<i64>() * 2 + 20_000;
    Duration::from_millis(u64::try_from(ms).unwrap())
}

async fn start(client: &Client, group: &str) -> (TransactionalProducer, CheckBacks) {
    TransactionalProducer::start(client, group, LIMIT).await.unwrap()
}

/// The next question about this key; others (of earlier runs of a group) are left open.
async fn asked(checks: &mut CheckBacks, key: &str, limit: Duration) -> CheckBack {
    let asking = async {
        loop {
            let check = checks.next().await.expect("the client lives");
            if check.check.unique_key == key {
                return check;
            }
        }
    };
    timeout(limit, asking).await.expect("the broker did not ask")
}

/// The key of the only message.
async fn stored_keys(client: &Client, queue: &MessageQueue) -> Vec<String> {
    read_all(client, queue, 1).await.iter().map(|m| m.unique_key().unwrap().to_owned()).collect()
}

async fn a_commit_delivers_and_a_rollback_does_not(server: Server) {
    let _turn = turn(server).await;
    let (client, operator) = clients(server).await;
    let (topic, queues) = topic(&operator, "tx", 2).await;
    let (producer, _checks) = start(&client, &fresh("group")).await;
    assert_eq!(producer.registered_with(), [master_address(&client).await]);
    let options = SendOptions::default();
    let committed = producer.half(&queues[1], &message(&topic, "committed", "x"), &options).await.unwrap();
    let dropped = producer.half(&queues[1], &message(&topic, "dropped", "x"), &options).await.unwrap();
    assert_eq!((committed.unique_key(), committed.sent.answer.queue_id), ("committed", 1));
    assert_eq!(operator.max_offset(&queues[1]).await.unwrap(), 0);
    producer.end(&committed, Resolution::Commit, None).await.unwrap();
    producer.end(&dropped, Resolution::Rollback, None).await.unwrap();
    assert_eq!(stored_keys(&operator, &queues[1]).await, ["committed"]);

    // Nothing has to be waited for, so nothing tells when it was handled.
    producer.end(&committed, Resolution::Unknown, None).await.unwrap();

    let mut wrong = dropped.clone();
    wrong.sent.queue.broker_name = "nobody".into();
    let error = producer.end(&wrong, Resolution::Commit, None).await.unwrap_err();
    assert!(matches!(error, Error::Route { .. }), "{error}");
    producer.stop().await;
}

async fn a_restarted_group_is_asked_about_what_was_left_open(server: Server) {
    let _turn = turn(server).await;
    let (client, operator) = clients(server).await;
    let limit = check_limit(&client).await;
    let (topic, queues) = topic(&operator, "check", 1).await;
    let group = fresh("group");
    {
        let first = guarded_client(server, Account::APP).await;
        let (producer, _checks) = start(&first, &group).await;
        for key in ["to commit", "to roll back"].map(|key| key.replace(' ', "_")) {
            producer.half(&queues[0], &message(&topic, &key, "body"), &SendOptions::default()).await.unwrap();
        }
        producer.stop().await;
    }
    // This one has sent nothing, and is asked all the same (apache/rocketmq#386).
    let (_producer, mut checks) = start(&client, &group).await;
    let mut open = vec!["to_commit", "to_roll_back"];
    let answering = async {
        while !open.is_empty() {
            let asked = checks.next().await.unwrap();
            assert_eq!(asked.check.topic(), topic);
            assert_eq!(asked.check.producer_group, group);
            assert_eq!(&asked.check.message.body().unwrap()[..], b"body");
            let commit = asked.check.unique_key == "to_commit";
            let resolution = if commit { Resolution::Commit } else { Resolution::Rollback };
            // The first answer of each counts; a second one would store the message again.
            if let Some(at) = open.iter().position(|key| *key == asked.check.unique_key) {
                open.remove(at);
                asked.answer(resolution, LIMIT).await.unwrap();
            }
        }
    };
    timeout(limit, answering).await.expect("the broker did not ask");
    assert_eq!(stored_keys(&operator, &queues[0]).await, ["to_commit"]);
    assert_eq!(client.counters().values().pushes_dropped, 0);
}

async fn a_half_that_was_given_up_is_taken_back(server: Server) {
    let _turn = turn(server).await;
    let (client, operator) = clients(server).await;
    let limit = check_limit(&client).await;
    let (admin, address) = (Admin::new(&operator), master_address(&operator).await);
    let (topic, queues) = topic(&operator, "parked", 1).await;
    let key = fresh("key");
    let (producer, mut checks) = start(&client, &fresh("group")).await;
    let before = admin.broker_config(&address, &["transactionCheckMax"]).await.unwrap();
    let before = before.get("transactionCheckMax").unwrap().to_owned();
    let check_max = async |value: &str| {
        admin.update_broker_config(&address, &[("transactionCheckMax", value)]).await.unwrap();
    };
    check_max("1").await;
    producer.half(&queues[0], &message(&topic, &key, "x"), &SendOptions::default()).await.unwrap();
    let asked_once = asked(&mut checks, &key, limit).await;
    asked_once.answer(Resolution::Unknown, LIMIT).await.unwrap();

    let parking = MessageQueue { topic: "TRANS_CHECK_MAX_TIME_TOPIC".into(), ..queues[0].clone() };
    let consumer = Consumer::new(&operator, "it").unwrap();
    let copy = eventually("given up", limit, || async {
        // The topic does not exist before the first half that is given up.
        operator.refresh_route(&parking.topic).await.ok()?;
        let mut reader = consumer
            .read(
                &parking,
                rocketmq_remoting::client::Start::First,
                PullOptions { suspend: Duration::ZERO, ..PullOptions::default() },
            )
            .await
            .ok()?;
        let end = operator.max_offset(&parking).await.ok()?;
        while reader.offset() < end {
            let read = reader.next().await.ok()?;
            if let Some(copy) = read.messages.into_iter().find(|m| m.unique_key() == Some(&key)) {
                return Some(copy);
            }
        }
        None
    })
    .await;
    check_max(&before).await;
    admin.resume_half(copy.offset_id()).await.unwrap();
    let asked_again = asked(&mut checks, &key, limit).await;
    asked_again.answer(Resolution::Commit, LIMIT).await.unwrap();
    assert_eq!(within(stored_keys(&operator, &queues[0])).await, [key]);
}

async fn two_of_a_client_and_strange_halfs_are_refused(server: Server) {
    let (client, operator) = clients(server).await;
    let (topic, queues) = topic(&operator, "strange", 1).await;
    let group = fresh("group");
    let (producer, checks) = start(&client, &group).await;
    let second = TransactionalProducer::start(&client, &group, LIMIT).await;
    assert!(matches!(second, Err(Error::Closed)), "{second:?}");
    let options = SendOptions::default();
    let keyless = rocketmq_remoting::Message::new(topic.as_str(), "x").unwrap();
    let error = producer.half(&queues[0], &keyless, &options).await.unwrap_err();
    assert!(matches!(error, Error::Message(MessageError::NoUniqueKey)), "{error}");
    let delayed = message(&topic, "u", "x").with_delay_level(1).unwrap();
    let error = producer.half(&queues[0], &delayed, &options).await.unwrap_err();
    assert!(matches!(error, Error::Message(MessageError::DelayedHalf)), "{error}");

    let half = producer.half(&queues[0], &message(&topic, "u", "x"), &options).await.unwrap();
    producer.end(&half, Resolution::Rollback, None).await.unwrap();
    assert_eq!(operator.max_offset(&queues[0]).await.unwrap(), 0);

    drop(checks);
    producer.stop().await;
    let again = TransactionalProducer::start(&client, &group, LIMIT).await;
    assert!(again.is_ok(), "after the first one stopped");
}
