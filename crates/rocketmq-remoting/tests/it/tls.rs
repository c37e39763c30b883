//! TLS on the ordinary ports, with the tests' own authority.

use std::fs;
use std::path::Path;

use outhaul_testkit::servers::rocketmq::Account;
use rocketmq_remoting::Error;
use rocketmq_remoting::client::{Client, Producer, SendOptions};
use rocketmq_remoting::connection::Channel;
use rocketmq_remoting::tls::TlsOptions;

use crate::on_both;
use crate::send::{batch, read_all};
use crate::servers::{
    LIMIT, Server, credentials, guarded, guarded_client, guarded_options, master_address, message, topic,
};

on_both!(
    with_the_right_authority_and_name_everything_passes,
    another_authority_is_not_trusted,
    another_name_is_not_accepted,
    a_client_certificate_opens_a_broker_that_wants_one,
    only_the_loud_switch_accepts_anybody,
);

/// Of an authority that has signed nothing; its key was thrown away.
const OTHER_AUTHORITY: &str = include_str!("other-ca.pem");

fn pem(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn trusting(server: Server) -> TlsOptions {
    TlsOptions::new().trust(pem(&server.kit().ca_file()))
}

/// A channel to the shared broker that speaks TLS like this.
async fn broker(server: Server, tls: &TlsOptions) -> Channel {
    let address = master_address(&server.client()).await;
    Client::new(server.options().tls(tls.build().unwrap())).channel(&address)
}

async fn with_the_right_authority_and_name_everything_passes(server: Server) {
    let (chain, key) = server.kit().client_certificate();
    let shown = trusting(server).server_name("localhost").identity(pem(&chain), pem(&key));
    for tls in [trusting(server), shown] {
        let client = Client::new(server.options().tls(tls.build().unwrap()));
        let (topic, queues) = topic(&client, "tls", 1).await;
        let producer = Producer::new(&client, "it").unwrap();
        let options = SendOptions::default();
        producer.send(&queues[0], &message(&topic, "u", "x"), &options).await.unwrap();
        // More than a TLS record and than a socket's buffers.
        let batch = batch((0..800).map(|n| message(&topic, &n.to_string(), "x".repeat(1_000))));
        for _ in 0..5 {
            producer.send_batch(&queues[0], &batch, &options).await.unwrap();
        }
        assert_eq!(read_all(&client, &queues[0], 4_001).await.len(), 4_001);
    }
}

async fn another_authority_is_not_trusted(server: Server) {
    let error = broker(server, &TlsOptions::new().trust(OTHER_AUTHORITY)).await.connection(LIMIT).await.unwrap_err();
    assert!(matches!(error, Error::Tls { .. }) && !error.may_have_been_done(), "{error}");
}

async fn another_name_is_not_accepted(server: Server) {
    let tls = trusting(server).server_name("other.test");
    let error = broker(server, &tls).await.connection(LIMIT).await.unwrap_err();
    assert!(matches!(&error, Error::Tls { problem, .. } if problem.contains("other.test")), "{error}");
    assert!(!error.may_have_been_done());
}

async fn a_client_certificate_opens_a_broker_that_wants_one(server: Server) {
    let cluster = guarded(server).await;
    let address = master_address(&guarded_client(server, Account::APP).await).await;
    let options = guarded_options(server).await.credentials(credentials(Account::APP));
    let nameless = TlsOptions::new().trust(pem(&cluster.ca_file()));
    let channel = Client::new(options.clone().tls(nameless.build().unwrap())).channel(&address);
    // TLS 1.3: the client's handshake is over before the server looks at the certificate.
    let error = channel.connection(LIMIT).await.unwrap_err();
    assert!(!error.may_have_been_done(), "{error}");
    assert_eq!(channel.generation(), 0);

    let (chain, key) = cluster.client_certificate();
    let named = nameless.identity(pem(&chain), pem(&key));
    let channel = Client::new(options.tls(named.build().unwrap())).channel(&address);
    channel.connection(LIMIT).await.unwrap();
}

async fn only_the_loud_switch_accepts_anybody(server: Server) {
    assert!(matches!(TlsOptions::new().build(), Err(Error::Tls { .. })), "nobody is trusted");
    let tls = TlsOptions::new().trust(OTHER_AUTHORITY).danger_accept_any_certificate_of_anybody();
    broker(server, &tls).await.connection(LIMIT).await.unwrap();
}
