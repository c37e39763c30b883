//! One name server of several is enough, and none at all for a while.

use std::time::Duration;

use rocketmq_remoting::client::{Client, ClientOptions, Producer, SendOptions};
use rocketmq_remoting::connection::Address;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use crate::on_both;
use crate::servers::{LIMIT, Server, message, options, topic, within};

on_both!(dead_and_hanging_name_servers_are_passed_over, the_last_known_route_outlives_the_name_server);

async fn free_port() -> Address {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().to_string().parse().unwrap()
}

async fn dead_and_hanging_name_servers_are_passed_over(server: Server) {
    let hanging = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let real = &server.options().name_servers[0];
    let list = format!("{};{};{real}", free_port().await, hanging.local_addr().unwrap());
    let options = ClientOptions { route_limit: Duration::from_secs(3), ..options(&list) };
    let client = Client::new(options);
    let began = Instant::now();
    let (topic, queues) = topic(&client, "failover", 1).await;
    assert!(began.elapsed() < LIMIT);
    // From now on the one that answered is asked first.
    let began = Instant::now();
    client.refresh_route(&topic).await.unwrap();
    assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    let producer = Producer::new(&client, "it").unwrap();
    producer.send(&queues[0], &message(&topic, "u", "x"), &SendOptions::default()).await.unwrap();
}

/// Passes one connection after the other on, until it is dropped.
async fn pass_on(listener: TcpListener, to: Address) {
    loop {
        let (mut here, _) = listener.accept().await.unwrap();
        let mut there = TcpStream::connect(to.as_str()).await.unwrap();
        let _ended = tokio::io::copy_bidirectional(&mut here, &mut there).await;
    }
}

async fn the_last_known_route_outlives_the_name_server(server: Server) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let real = server.options().name_servers[0].clone();
    let name_server = tokio::spawn(pass_on(listener, real));
    let options = ClientOptions {
        route_limit: Duration::from_millis(500),
        route_refresh: Duration::from_millis(1),
        ..options(&address)
    };
    let client = Client::new(options);
    let (topic, queues) = topic(&client, "outlive", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let send = |n: i32| {
        let (producer, queue, message) = (&producer, &queues[0], message(&topic, &n.to_string(), "x"));
        async move { producer.send(queue, &message, &SendOptions::default()).await }
    };
    within(send(0)).await.unwrap();

    name_server.abort();
    let _aborted = name_server.await;
    for n in 1..20 {
        let began = Instant::now();
        within(send(n)).await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(2), "a dead name server holds nothing up");
    }
    assert!(within(client.route("never_seen_before")).await.is_err());
}
