//! TLS with certificates of our own, on the ordinary port of the 4.9 servers.

use std::fs;

use rocketmq_remoting::Error;
use rocketmq_remoting::client::{Client, Producer, SendOptions};
use rocketmq_remoting::connection::Channel;
use rocketmq_remoting::tls::{Tls, TlsOptions};

use crate::send::batch;
use crate::servers::{LIMIT, Server, TLS_NAME, master_address, message, tls_folder, topic};

fn pem(name: &str) -> Vec<u8> {
    let path = tls_folder().join(name);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn identified(options: TlsOptions) -> TlsOptions {
    options.identity(pem("client.pem"), pem("client.key"))
}

/// A channel to the broker that speaks TLS like this.
async fn broker(tls: Tls) -> Channel {
    let plain = Server::V4.client();
    let address = master_address(&plain).await;
    Client::new(Server::V4.options().tls(tls)).channel(&address)
}

#[tokio::test]
async fn with_the_right_authority_name_and_certificate_everything_passes() {
    let tls = identified(TlsOptions::new().trust(pem("ca.pem")).server_name(TLS_NAME)).build().unwrap();
    let client = Client::new(Server::V4.options().tls(tls));
    let (topic, queues) = topic(&client, "tls", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let options = SendOptions::default();
    producer.send(&queues[0], &message(&topic, "u", "x"), &options).await.unwrap();
    // More than a TLS record and than a socket's buffers.
    let batch = batch((0..800).map(|n| message(&topic, &n.to_string(), "x".repeat(1_000))));
    for _ in 0..5 {
        producer.send_batch(&queues[0], &batch, &options).await.unwrap();
    }
    assert_eq!(crate::send::read_all(&client, &queues[0], 4_001).await.len(), 4_001);
}

#[tokio::test]
async fn another_authority_is_not_trusted() {
    let tls = identified(TlsOptions::new().trust(pem("other-ca.pem")).server_name(TLS_NAME)).build().unwrap();
    let error = broker(tls).await.connection(LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::Tls { .. }) && !error.may_have_been_done(), "{error}");
}

#[tokio::test]
async fn another_name_is_not_accepted() {
    let options = identified(TlsOptions::new().trust(pem("ca.pem")));
    let error = broker(options.build().unwrap()).await.connection(LIMIT).await.unwrap_err();
    assert!(matches!(&error, Error::Tls { problem, .. } if problem.contains("127.0.0.1")), "{error}");
    let error = broker(options.server_name("other.test").build().unwrap()).await.connection(LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::Tls { .. }), "{error}");
}

#[tokio::test]
async fn without_a_client_certificate_the_server_hangs_up() {
    let tls = TlsOptions::new().trust(pem("ca.pem")).server_name(TLS_NAME).build().unwrap();
    let channel = broker(tls).await;
    // TLS 1.3: the client's handshake is over before the server looks at the certificate.
    let error = channel.connection(LIMIT).await.unwrap_err();
    assert!(!error.may_have_been_done(), "{error}");
    assert_eq!(channel.generation(), 0);
}

#[tokio::test]
async fn only_the_loud_switch_accepts_anybody() {
    assert!(matches!(TlsOptions::new().build(), Err(Error::Tls { .. })), "nobody is trusted");
    let tls = identified(TlsOptions::new().danger_accept_any_certificate_of_anybody()).build().unwrap();
    broker(tls).await.connection(LIMIT).await.unwrap();
}
