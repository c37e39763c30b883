//! The recipe with Apache's transactional producer: real brokers, `outhaul checkback`, a relay, and an application that is killed.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::time::Duration;

use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, RocketMq, topic_name};
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Consumer, PullOptions, Start, Where};
use rocketmq_remoting::request::CreateTopic;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::program::{LIMIT, Running, Scene, eventually};
use crate::recipes::{Recipe, variables};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_with_rocketmq_4_9() {
    Box::pin(java(RocketMq::V4, "4.9.4")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn java_with_rocketmq_5() {
    Box::pin(java(RocketMq::V5, "5.5.0")).await;
}

/// Twenty orders, of which every fourth is rolled back. Order 18 is held open past the first question, then killed before
/// its COMMIT; order 19 is killed between COMMIT and END_TRANSACTION. A row without a half stands for one that the broker lost.
async fn java(version: RocketMq, client_version: &str) {
    let settings = ["transactionCheckInterval=1000", "transactionTimeOut=4000", "transactionOpBatchInterval=200"];
    let (broker, recipe) = tokio::join!(OwnRocketMq::start(version, &settings), async {
        let recipe = Recipe::new("java-transactional", Flavour::Postgres).await;
        let fetch = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
        let version = format!("-Drocketmq.version={client_version}");
        recipe.run("mvn", &["-q", "-B", fetch, "-DoutputDirectory=lib", &version]).await;
        recipe
    });
    let client = Client::new(ClientOptions::new(broker.namesrv()).unwrap());
    let (topic, group) = (topic_name(), topic_name());
    Admin::new(&client).create_topic(&CreateTopic::new(&topic, 2), &Where::Everywhere).await.unwrap();
    let scene = &recipe.scene;
    scene.folder.write(
        "outhaul.toml",
        &format!(
            "[[outbox]]\nurl = \"{}\"\ntransactions.fallback_after = \"1s\"\n[[destination]]\nname = \"mq\"\nkind = \"rocketmq\"\n\
             namesrv = [\"{}\"]\nproducer_group = \"{group}\"\n[[route]]\ntopic = \"*\"\nto = [\"mq\"]\n",
            scene.url(),
            broker.namesrv()
        ),
    );
    // Members are asked in turn, two questions a round: with an even number of them each would get the same question ever
    // again. Three, the application, and somebody else's.
    let files = ["health-1", "health-2", "health-3"];
    let mut running = files.map(|file| scene.folder.start(&["checkback", "--health-file", file, "--json"], &[]));
    for copy in &mut running {
        copy.says("answering check-backs").await;
    }
    // In the same group by mistake: it finds no row of any of these messages.
    let stranger = Scene::ready(Flavour::Sqlite).await;
    let to = format!("rocketmq://{}", broker.namesrv());
    let theirs =
        ["checkback", "--db", stranger.url(), "--to", &to, "--group", &group, "--health-file", "health", "--json"];
    let mut theirs = stranger.folder.start(&theirs, &[]);
    theirs.says("answering check-backs").await;
    let of_copy = |file: &str, name: &str| scene.folder.json_lines(file).pop().and_then(|h: Value| h[name].as_u64());
    let told = |name: &str| files.iter().filter_map(|file| of_copy(file, name)).sum::<u64>();

    let mut application = Command::new("java")
        .args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Duser.home=.", "-cp", "lib/*", "Producer.java"])
        .current_dir(&recipe.folder)
        .envs(variables(&scene.database))
        .env("MQ_NAMESRV", broker.namesrv())
        .env("MQ_TOPIC", &topic)
        .env("MQ_GROUP", &group)
        .env("STOP_AT", "before-commit 18,after-commit 19")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(application.stdout.take().unwrap()).lines();
    let mut said = BTreeSet::new();
    while said.len() < 20 {
        let line = timeout(LIMIT, lines.next_line()).await.expect("it goes on").unwrap().expect("it does not end");
        said.insert(line);
    }
    let expected = (1..=20).map(|order| match order {
        18 => format!("order {order}: stopped before-commit"),
        19 => format!("order {order}: stopped after-commit"),
        _ if order % 4 == 0 => format!("order {order}: ROLLBACK_MESSAGE"),
        _ => format!("order {order}: COMMIT_MESSAGE"),
    });
    assert_eq!(said, expected.collect());
    eventually("somebody was asked about the open one", async || told("unknowns") > 0).await;
    eventually("somebody was asked about the committed one", async || told("commits") > 0).await;
    // The broker asks about the open one again and again, a member after the other.
    let asked = async || {
        let health = stranger.folder.json_lines("health").pop();
        health.and_then(|h| h["unknowns"].as_u64()) > Some(0)
    };
    eventually("the stranger was asked too", asked).await;
    let open = "SELECT COUNT(*) FROM outbox_transaction WHERE state = 'rolled_back'";
    assert_eq!(scene.database.query_u64(open).await, 0, "no answer was given about the open one");
    application.kill().await.unwrap(); // SIGKILL
    eventually("the open one is judged", async || told("rollbacks") > 0).await;

    let by_hand = "INSERT INTO outbox_transaction (id, message_id, topic, payload) VALUES ('T', 'lost-half', $t, 'x'); \
                   INSERT INTO orders (id, message) VALUES (99, 'lost-half')";
    scene.database.execute(&by_hand.replace("$t", &format!("'{topic}'"))).await;
    let mut relay: Running = scene.folder.start(&["relay"], &[]);
    relay.says("OUT-4040").await;
    let rows = scene.database.query("SELECT message FROM orders").await;
    let orders: BTreeSet<String> = rows.into_iter().map(|mut row| row.remove(0).unwrap()).collect();
    assert_eq!(orders.len(), 15, "14 of the application, since one was killed before it committed, and one by hand");
    eventually("all is delivered", async || orders.is_subset(&delivered(&client, &topic).await)).await;
    assert_eq!(delivered(&client, &topic).await, orders, "each order is announced, and nothing else is");
    let health = stranger.folder.json_lines("health").pop().unwrap();
    let answers = ["commits", "rollbacks"].map(|name| health[name].as_u64());
    assert_eq!(answers, [Some(0), Some(0)], "who has another database judges nothing: {health}");
    let sent = scene.database.query_u64("SELECT COUNT(*) FROM outbox_transaction WHERE state = 'sent'").await;
    assert_eq!(sent, 1, "what was ended is not delivered again");
    for running in running.into_iter().chain([relay, theirs]) {
        running.signal("TERM").await;
        running.end().await.expect(0);
    }
}

/// What consumers dedupe by, of all that is in the topic.
async fn delivered(client: &Client, topic: &str) -> BTreeSet<String> {
    let consumer = Consumer::new(client, "it").unwrap();
    let mut found = BTreeSet::new();
    for queue in client.refresh_route(topic).await.unwrap().queues() {
        let end = client.max_offset(queue).await.unwrap();
        let options = PullOptions { suspend: Duration::ZERO, ..PullOptions::default() };
        let mut reader = consumer.read(queue, Start::First, options).await.unwrap();
        while reader.offset() < end {
            for message in reader.next().await.unwrap().messages {
                found.insert(message.properties.get("outhaul-id").expect("the id").to_owned());
            }
        }
    }
    found
}
