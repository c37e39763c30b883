//! `outhaul checkback`, for an application that inserts its rows itself.

use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, RocketMq, topic_name};
use rocketmq_remoting::client::{Admin, Client, ClientOptions, SendOptions, TransactionalProducer, Where};
use rocketmq_remoting::message::{Message, MessageQueue};
use rocketmq_remoting::request::CreateTopic;
use serde_json::Value;

use crate::program::{LIMIT, Running, Scene, eventually};

/// The application: sends halfs, inserts rows for some, and is gone.
async fn application(scene: &Scene, client: &Client, queue: &MessageQueue, group: &str) {
    let (producer, _checks) = TransactionalProducer::start(client, group, LIMIT).await.unwrap();
    for (key, commits) in [("A1", true), ("A2", false), ("A3", true)] {
        let message = Message::new(&queue.topic, key).unwrap().with_unique_key(key).unwrap();
        producer.half(queue, &message, &SendOptions::default()).await.unwrap();
        if commits {
            let columns = "id, topic, payload";
            let values = format!("'{key}', '{}', '{key}'", queue.topic);
            scene.database.execute(&format!("INSERT INTO outbox_transaction ({columns}) VALUES ({values})")).await;
        }
    }
    producer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_it_answer_for_an_application_that_is_gone() {
    let settings = ["transactionCheckInterval=1000", "transactionTimeOut=2000"];
    let broker = OwnRocketMq::start(RocketMq::V4, &settings).await;
    let scene = Scene::ready(Flavour::MariaDb).await;
    let client = Client::new(ClientOptions::new(broker.namesrv()).unwrap());
    let (topic, group) = (topic_name(), topic_name());
    Admin::new(&client).create_topic(&CreateTopic::new(&topic, 1), &Where::Everywhere).await.unwrap();
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    application(&scene, &client, &queue, &group).await;

    let to = format!("rocketmq://{}", broker.namesrv());
    let start = |health: &'static str| {
        let arguments =
            ["checkback", "--db", scene.url(), "--to", &to, "--group", &group, "--health-file", health, "--json"];
        scene.folder.start(&arguments, &[])
    };
    let mut copies: Vec<Running> = vec![start("health-1"), start("health-2")];
    for copy in &mut copies {
        copy.says("answering check-backs").await;
    }
    let states = async || {
        let rows = scene.database.query("SELECT id, state FROM outbox_transaction ORDER BY id").await;
        rows.into_iter().map(|row| row.into_iter().flatten().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    eventually("all are judged", async || states().await == ["A1 ended", "A2 rolled_back", "A3 ended"]).await;
    assert_eq!(client.max_offset(&queue).await.unwrap(), 2);
    let health = || scene.folder.json_lines("health-1").pop();
    eventually("the health file says so", async || health().is_some_and(|h: Value| h["healthy"] == true)).await;
    let audit = scene.run(&["audit", "A1", "--db", scene.url(), "--json"]).await.expect(0).json();
    assert_eq!((&audit["state"], &audit["transaction"]), (&Value::from("ended"), &Value::from("A1")));

    // One is killed, the other goes on; nobody of the application is there.
    copies[0].child.kill().await.unwrap();
    let message = Message::new(&topic, "x").unwrap().with_unique_key("A4").unwrap();
    let (producer, checks) = TransactionalProducer::start(&client, &group, LIMIT).await.unwrap();
    producer.half(&queue, &message, &SendOptions::default()).await.unwrap();
    producer.stop().await;
    drop(checks);
    eventually("A4 is judged", async || states().await.contains(&"A4 rolled_back".to_owned())).await;
    copies[1].signal("TERM").await;
    let ran = copies.pop().unwrap().end().await.expect(0);
    let counts = ran.json();
    assert!(counts["rollbacks"].as_u64() > Some(0), "{counts}");
    assert!(!scene.folder.path("health-2").exists(), "whoever looks must not take it for alive");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named() {
    let scene = Scene::ready(Flavour::Sqlite).await;
    let ran = scene.run(&["checkback", "--db", scene.url()]).await.expect(2);
    assert!(ran.stderr.contains("OUT-3015") && ran.stderr.contains("rocketmq"), "{}", ran.stderr);
    let config = format!(
        "[[outbox]]\nurl = \"{}\"\n[[destination]]\nname = \"a\"\nkind = \"rocketmq\"\nnamesrv = [\"127.0.0.1:9\"]\n\
         [[destination]]\nname = \"b\"\nkind = \"rocketmq\"\nnamesrv = [\"127.0.0.1:9\"]\n",
        scene.url()
    );
    scene.folder.write("outhaul.toml", &config);
    let ran = scene.run(&["checkback"]).await.expect(2);
    assert!(ran.stderr.contains("OUT-3009") && ran.stderr.contains("a, b"), "{}", ran.stderr);
    let ran = scene.run(&["checkback", "--destination", "b"]).await.expect(1);
    assert!(ran.stderr.contains("OUT-5023"), "{}", ran.stderr);
}
