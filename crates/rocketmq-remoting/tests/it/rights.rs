//! Accounts: signatures that are right, wrong, missing, and rights that are missing.

use std::time::Duration;

use outhaul_testkit::servers::rocketmq::Account;
use rocketmq_remoting::client::{Admin, Client, Producer, SendOptions, TransactionalProducer, Where};
use rocketmq_remoting::request::{CreateTopic, DURABILITY_KEYS, Resolution};
use rocketmq_remoting::{Credentials, Error, ResponseCode, Serialization};

use crate::on_both;
use crate::send::{batch, read_all};
use crate::servers::{
    LIMIT, Server, credentials, eventually, fresh, guarded_client, guarded_options, master_address, message, topic,
};

on_both!(
    signed_requests_of_every_kind_pass,
    binary_headers_are_signed_alike,
    a_wrong_secret_is_refused,
    a_missing_signature_is_refused,
    missing_rights_are_refused,
);

/// 4.9 says SYSTEM_ERROR to everything that access control refuses, 5.x NO_PERMISSION.
fn refusal(server: Server) -> ResponseCode {
    if server.is_5() { ResponseCode::NoPermission } else { ResponseCode::SystemError }
}

async fn signed_requests_of_every_kind_pass(server: Server) {
    let admin = guarded_client(server, Account::ADMIN).await;
    let (topic, queues) = topic(&admin, "acl", 2).await;
    let app = guarded_client(server, Account::APP).await;
    let group = fresh("group");
    let (transactional, _checks) = TransactionalProducer::start(&app, &group, LIMIT).await.unwrap();
    let producer = transactional.producer();
    let options = SendOptions::default();
    // Every kind of character, in fields and bodies.
    let odd = message(&topic, "u", "grüße ☃").with_keys(["k/+=&"]).unwrap().with_property("ключ", "значение").unwrap();
    producer.send(&queues[0], &odd, &options).await.unwrap();
    let batch = batch((0..10).map(|n| message(&topic, &n.to_string(), "x")));
    producer.send_batch(&queues[1], &batch, &options).await.unwrap();
    let half = transactional.half(&queues[0], &message(&topic, "half", "x"), &options).await.unwrap();
    transactional.end(&half, Resolution::Commit, None).await.unwrap();
    transactional.stop().await;
    let address = master_address(&app).await;
    Admin::new(&app).broker_config(&address, DURABILITY_KEYS).await.unwrap();
    // 4.9.4 cannot answer it in the first second after its start.
    eventually("runtime info", LIMIT, || async { Admin::new(&app).runtime_info(&address).await.ok() }).await;
    assert_eq!(read_all(&admin, &queues[0], 2).await.len(), 2);
}

async fn binary_headers_are_signed_alike(server: Server) {
    let admin = guarded_client(server, Account::ADMIN).await;
    let (topic, queues) = topic(&admin, "aclbin", 1).await;
    let options = guarded_options(server).await.credentials(credentials(Account::APP));
    let producer = Producer::new(&Client::new(options.serialization(Serialization::Binary)), "it").unwrap();
    producer.send(&queues[0], &message(&topic, "u", "x"), &SendOptions::default()).await.unwrap();
    let batch = batch((0..3).map(|n| message(&topic, &n.to_string(), "x")));
    producer.send_batch(&queues[0], &batch, &SendOptions::default()).await.unwrap();
}

async fn a_wrong_secret_is_refused(server: Server) {
    let wrong = Credentials::new(Account::APP.access_key, "wrong secret");
    let client = Client::new(guarded_options(server).await.credentials(wrong));
    let channel = client.channel(&master_address(&client).await);
    let error = channel.connection(LIMIT).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(refusal(server)), "{error}");
    assert!(error.to_string().to_lowercase().contains("check signature failed"), "{error}");
    assert_eq!(channel.generation(), 0, "never usable");
}

async fn a_missing_signature_is_refused(server: Server) {
    let client = Client::new(guarded_options(server).await);
    let channel = client.channel(&master_address(&client).await);
    let error = channel.connection(LIMIT).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(refusal(server)), "{error}");
}

async fn missing_rights_are_refused(server: Server) {
    let admin = guarded_client(server, Account::ADMIN).await;
    let (topic, queues) = topic(&admin, "rights", 1).await;
    let reader = guarded_client(server, Account::READER).await;
    let producer = Producer::new(&reader, "it").unwrap();
    let options = SendOptions { limit: Some(Duration::from_secs(5)), ..SendOptions::default() };
    let error = producer.send(&queues[0], &message(&topic, "u", "x"), &options).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(refusal(server)), "{error}");
    let created = Admin::new(&reader).create_topic(&CreateTopic::new(fresh("forbidden"), 1), &Where::Everywhere).await;
    assert!(matches!(&created, Err(Error::Refused { .. })), "{created:?}");
    assert_eq!(admin.max_offset(&queues[0]).await.unwrap(), 0);
}
