use super::*;

/// Java's `String.hashCode`, as far as the keys below go.
fn java_hash(key: &str) -> i32 {
    key.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

fn statuses(sent: &[JavaSent]) -> Vec<&str> {
    sent.iter().map(|sent| sent.status.as_str()).collect()
}

#[tokio::test]
async fn the_shared_brokers_serve_apaches_client() {
    for version in RocketMq::ALL {
        let (java, topic) = (version.java(), topic_name());
        java.create_topic(&topic, 4).await;
        let arguments = ["--kind", "ordered", "--count", "6", "--keys", "a,ü€😀,c", "--tag", "T"];
        let sent = java.produce(&topic, &[&arguments[..], &["--properties", "p=1,q=zwei"]].concat()).await;
        for sent in &sent {
            assert_eq!(sent.queue_id, u64::from(java_hash(&sent.key).unsigned_abs() % 4), "{version:?}");
        }
        let batch = java.produce(&topic, &["--kind", "batch", "--count", "5", "--batch", "5", "--bytes", "2000"]).await;
        assert_eq!((batch.len(), batch[0].message_ids.len(), batch[0].offset_ids.len()), (1, 5, 5), "{version:?}");

        let got = java.consume(&topic, &["--mode", "orderly", "--count", "11"]).await;
        assert_eq!(got.len(), 11, "{version:?}");
        for sent in &sent {
            let message = got.iter().find(|got| Some(&got.message_id) == sent.message_ids.first()).unwrap();
            assert_eq!(message.keys.as_ref(), Some(&sent.key));
            assert_eq!((message.tags.as_deref(), message.properties["q"].as_str()), (Some("T"), "zwei"));
            assert_eq!((message.queue_id, message.queue_offset), (sent.queue_id, sent.queue_offset));
            assert!(message.body.starts_with(b"message-"));
        }
        assert!(got.iter().filter(|got| got.tags.is_none()).all(|got| got.body.len() == 2000));
        for queue in 0..4 {
            let offsets: Vec<_> = got.iter().filter(|got| got.queue_id == queue).map(|got| got.queue_offset).collect();
            assert!(offsets.is_sorted(), "{version:?}: {offsets:?}");
        }

        let id = &batch[0].message_ids[3];
        let found = java.query_by_unique_key(&topic, id).await.unwrap();
        assert_eq!(found.unique_key.as_ref(), Some(id), "{version:?}");
        assert_eq!(java.query_by_key(&topic, "a").await.len(), 2, "{version:?}");
        assert_eq!(java.query_by_unique_key(&topic, "00000000000000000000000000000000").await, None, "{version:?}");
    }
}

#[tokio::test]
async fn transactions_and_delays_of_apaches_client() {
    for version in RocketMq::ALL {
        let (java, topic) = (version.java(), topic_name());
        java.create_topic(&topic, 1).await;
        let transactions = ["--kind", "transaction", "--count", "3", "--outcomes", "commit,rollback,commit"];
        java.produce(&topic, &[&transactions[..], &["--group", &topic_name()]].concat()).await;
        java.produce(&topic, &["--kind", "delayed", "--delay-level", "1", "--bodies", "late"]).await;
        let got = java.consume(&topic, &["--mode", "orderly", "--count", "3"]).await;
        let bodies: Vec<_> = got.iter().map(|got| String::from_utf8_lossy(&got.body).into_owned()).collect();
        assert_eq!(bodies, ["message-0", "message-2", "late"], "{version:?}");
    }
}

#[tokio::test]
async fn tls_on_the_shared_brokers_plain_ports() {
    for version in RocketMq::ALL {
        let (java, topic) = (version.java(), topic_name());
        java.create_topic(&topic, 1).await;
        let trusting = java.clone().tls(&version.ca_file());
        assert_eq!(statuses(&trusting.produce(&topic, &[]).await), ["SEND_OK"], "{version:?}");
    }
}

/// What was stored outlives a kill; what came after a snapshot does not outlive the rollback.
async fn cluster_of_its_own(version: RocketMq) {
    let cluster = OwnRocketMq::start(version, &["flushDiskType=SYNC_FLUSH", "maxMessageSize=1024"]).await;
    let (java, topic) = (cluster.java(), topic_name());
    java.create_topic(&topic, 1).await;
    let refused = java.start("produce", &["--topic", &topic, "--bytes", "2000"]).try_finish().await.unwrap_err();
    assert!(refused.contains("CODE: 13"), "{version:?}: {refused}");

    let kept = java.produce(&topic, &["--count", "3"]).await;
    cluster.snapshot("three", &[]).await;
    java.produce(&topic, &["--count", "2", "--bodies", "forgotten"]).await;
    cluster.kill9(&[Part::BrokerA]).await;
    let broker = cluster.address(Part::BrokerA).await;
    assert!(tokio::net::TcpStream::connect(broker).await.is_err());
    cluster.restart(&[Part::BrokerA]).await;
    assert_eq!(java.consume(&topic, &["--count", "5"]).await.len(), 5, "{version:?}");

    cluster.rollback("three").await;
    assert_eq!(cluster.address(Part::BrokerA).await, broker);
    let again = java.produce(&topic, &[]).await;
    assert_eq!((again[0].queue_offset, again[0].status.as_str()), (3, "SEND_OK"), "{version:?}");
    let got = java.consume(&topic, &["--count", "4"]).await;
    assert_eq!(got.len(), 4);
    assert!(kept.iter().all(|kept| got.iter().any(|got| kept.message_ids[0] == got.message_id)), "{version:?}");

    // The kernel accepts for a broker that hangs.
    cluster.pause(&[Part::BrokerA]).await;
    let waiting = java.start("produce", &["--topic", &topic]);
    tokio::net::TcpStream::connect(broker).await.unwrap();
    cluster.resume(&[Part::BrokerA]).await;
    waiting.finish().await;

    let folder = cluster.folder().to_owned();
    drop(cluster);
    assert!(!folder.exists());
    assert!(tokio::net::TcpStream::connect(broker).await.is_err());
}

#[tokio::test]
async fn a_rocketmq_4_of_its_own() {
    cluster_of_its_own(RocketMq::V4).await;
}

#[tokio::test]
async fn a_rocketmq_5_of_its_own() {
    cluster_of_its_own(RocketMq::V5).await;
}

#[tokio::test]
async fn slave_second_master_second_name_server_and_accounts() {
    let cluster = OwnRocketMq::start(RocketMq::V4, &["slave", "second-master", "second-namesrv", "acl"]).await;
    assert_eq!(cluster.namesrv().split(';').count(), 2);
    let topic = topic_name();
    cluster.java().signed(Account::ADMIN).create_topic(&topic, 1).await;
    let app = cluster.java().signed(Account::APP);
    assert_eq!(statuses(&app.produce(&topic, &["--count", "2"]).await), ["SEND_OK"; 2]);
    for forbidden in [cluster.java().signed(Account::READER), cluster.java()] {
        let error = forbidden.start("produce", &["--topic", &topic]).try_finish().await.unwrap_err();
        assert!(error.contains("AclException"), "{error}");
    }
    assert_eq!(cluster.java().signed(Account::READER).consume(&topic, &["--count", "2"]).await.len(), 2);

    // Of two masters, only the one that lost its slave says so.
    cluster.kill9(&[Part::Namesrv2, Part::SlaveA]).await;
    let mut after = app.produce(&topic, &["--count", "2"]).await;
    after.sort_by(|one, other| one.broker.cmp(&other.broker));
    assert_eq!(statuses(&after), ["SLAVE_NOT_AVAILABLE", "SEND_OK"]);
}
