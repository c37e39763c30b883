//! RocketMQ from the command line.

use outhaul_testkit::servers::Flavour;
use outhaul_testkit::servers::rocketmq::{RocketMq, topic_name};

use crate::program::Scene;

async fn scene() -> Scene {
    Scene::ready(Flavour::Sqlite).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_line_delivers_and_the_receipt_is_in_the_audit() {
    for version in RocketMq::ALL {
        let (scene, topic) = (scene().await, topic_name());
        let line = format!("{{\"id\":\"order-1\",\"topic\":\"{topic}\",\"key\":\"k\",\"payload\":{{\"total\":5}}}}\n");
        scene.enqueue(&line).await.expect(0);
        let to = format!("rocketmq://{}", version.namesrv());
        let call = ["relay", "--db", scene.url(), "--to", &to, "--until-empty"];
        let creates = [("OUTHAUL__DESTINATION__ROCKETMQ__CREATE_TOPICS", "true")];
        scene.folder.run(&call, "", &creates).await.expect(0);
        let audit = scene.run(&["audit", "order-1", "--db", scene.url(), "--json"]).await.expect(0).json();
        let delivery = &audit["deliveries"][0];
        assert_eq!((&delivery["state"], &delivery["ack_level"]), (&"delivered".into(), &"received".into()), "{audit}");
        let receipt = delivery["receipt"].as_str().unwrap();
        assert!(receipt.starts_with(&format!("SEND_OK broker-a/{topic}/")), "{receipt}");
        let consumed = version.java().consume(&topic, &["--count", "1"]).await;
        assert_eq!((&*consumed[0].properties["outhaul-id"], &*consumed[0].body), ("order-1", &br#"{"total":5}"#[..]));
    }
}

/// A broker with ASYNC_FLUSH, and `flushed` demanded: the relay ends when all is flushed, and the audit says so.
#[tokio::test(flavor = "multi_thread")]
async fn flushed_is_had_from_a_broker_that_flushes_later() {
    for version in RocketMq::ALL {
        let (scene, topic) = (scene().await, topic_name());
        scene
            .enqueue(&format!("{{\"id\":\"order-1\",\"topic\":\"{topic}\",\"payload\":{{\"total\":5}}}}\n"))
            .await
            .expect(0);
        let to = format!("rocketmq://{}", version.namesrv());
        let call = ["relay", "--db", scene.url(), "--to", &to, "--until-empty"];
        let demands = [
            ("OUTHAUL__DESTINATION__ROCKETMQ__CREATE_TOPICS", "true"),
            ("OUTHAUL__DESTINATION__ROCKETMQ__REQUIRE_ACK", "flushed"),
        ];
        scene.folder.run(&call, "", &demands).await.expect(0);
        let audit = scene.run(&["audit", "order-1", "--db", scene.url(), "--json"]).await.expect(0).json();
        let delivery = &audit["deliveries"][0];
        assert_eq!((&delivery["state"], &delivery["ack_level"]), (&"delivered".into(), &"flushed".into()), "{audit}");
        let status = scene.run(&["status", "--db", scene.url()]).await.expect(0).stdout;
        assert!(status.contains("flushed") && !status.contains("received"), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn validate_names_the_setting_to_change() {
    for version in RocketMq::ALL {
        let (scene, topic) = (scene().await, topic_name());
        version.java().create_topic(&topic, 6).await;
        let config = format!(
            "[[outbox]]\nurl = \"{}\"\n[[destination]]\nname = \"mq\"\nkind = \"rocketmq\"\nnamesrv = [\"{}\"]\n\
             require_ack = \"received\"\n[[route]]\ntopic = \"{topic}\"\nto = [\"mq\"]\n",
            scene.url(),
            version.namesrv()
        );
        scene.folder.write("outhaul.toml", &config);
        let ran = scene.run(&["validate"]).await.expect(0);
        for part in ["ok   destination mq: rocketmq", "maxMessageSize 4194304", "6 queues (broker-a 6)", "account send"]
        {
            assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
        }
        let level = |level| ("OUTHAUL__DESTINATION__MQ__REQUIRE_ACK", level);
        let ran = scene.folder.run(&["validate"], "", &[level("flushed")]).await.expect(0);
        assert!(ran.stdout.contains("`flushed` is reached later"), "{}", ran.stdout);
        for (demand, barrier, setting) in [
            (level("flushed"), "false", "flushDiskType=SYNC_FLUSH"),
            (level("replicated"), "true", "brokerRole=SYNC_MASTER"),
        ] {
            for command in ["validate", "relay"] {
                let barrier = ("OUTHAUL__DESTINATION__MQ__FLUSH_BARRIER", barrier);
                let ran = scene.folder.run(&[command], "", &[demand, barrier]).await.expect(1);
                let (begins, names) = (ran.stderr.contains("OUT-2044 destination mq: "), ran.stderr.contains(setting));
                assert!(begins && names, "{command}: {}", ran.stderr);
            }
        }
    }
}
