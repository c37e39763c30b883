//! Topics, groups, settings, positions.

use std::time::Duration;

use rocketmq_remoting::client::{Admin, Producer, SendOptions, Where};
use rocketmq_remoting::request::{CreateSubscriptionGroup, CreateTopic, DURABILITY_KEYS};
use rocketmq_remoting::{Error, ResponseCode};

use crate::on_both;
use crate::servers::{LIMIT, Server, eventually, fresh, master, master_address, message, topic};

on_both!(
    a_topic_is_created_and_deleted_and_never_otherwise,
    the_heartbeat_tells_the_version,
    settings_are_picked,
    a_setting_is_changed_at_run_time,
    the_flush_barrier_passes_a_lone_message,
    cluster_and_group,
);

async fn a_topic_is_created_and_deleted_and_never_otherwise(server: Server) {
    let client = server.client();
    let admin = Admin::new(&client);
    let producer = Producer::new(&client, "it").unwrap();
    let name = fresh("create");

    let error = client.route(&name).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(ResponseCode::TopicNotExist), "{error}");

    let broker = master(&client).await;
    admin.create_topic(&CreateTopic::new(&name, 3), &Where::Cluster(broker.cluster.clone())).await.unwrap();
    let queues = client.route(&name).await.unwrap().queues().to_vec();
    let expected: Vec<(&str, i32)> = (0..3).map(|id| (broker.broker_name.as_str(), id)).collect();
    assert_eq!(queues.iter().map(|q| (q.broker_name.as_str(), q.queue_id)).collect::<Vec<_>>(), expected);
    producer.send(&queues[2], &message(&name, "u", "x"), &SendOptions::default()).await.unwrap();

    // More queues: the same request again.
    admin.create_topic(&CreateTopic::new(&name, 5), &Where::Brokers(vec![broker.address.clone()])).await.unwrap();
    eventually("five queues", LIMIT, || async {
        (client.refresh_route(&name).await.unwrap().queues().len() == 5).then_some(())
    })
    .await;

    admin.delete_topic(&name, &Where::Everywhere).await.unwrap();
    let error = client.route(&name).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(ResponseCode::TopicNotExist), "{error}");

    // A typo: whoever has the address of a broker cannot create a topic by sending to it.
    let (known, queues) = topic(&client, "known", 1).await;
    admin.delete_topic(&known, &Where::Brokers(vec![broker.address])).await.unwrap();
    let options = SendOptions::default();
    let error = producer.send(&queues[0], &message(&known, "u", "x"), &options).await.unwrap_err();
    assert_eq!(error.refused_with(), Some(ResponseCode::TopicNotExist), "{error}");
    assert!(!error.may_have_been_done());
}

async fn the_heartbeat_tells_the_version(server: Server) {
    let client = server.client();
    let channel = client.channel(&master_address(&client).await);
    let connection = channel.connection(LIMIT).await.unwrap();
    let version = connection.peer_version().unwrap();
    assert_eq!(version.is_5(), server.is_5(), "{version}");
    assert!(version.to_string().starts_with(if server.is_5() { "5." } else { "4.9." }), "{version}");
    assert_eq!(channel.status().peer_version, Some(version));
}

async fn settings_are_picked(server: Server) {
    let client = server.client();
    let broker = master(&client).await;
    let config = Admin::new(&client).broker_config(&broker.address, DURABILITY_KEYS).await.unwrap();
    assert_eq!(config.get("brokerName"), Some(broker.broker_name.as_str()));
    assert!(config.get("flushDiskType").unwrap().ends_with("_FLUSH"));
    assert_eq!(config.number("maxMessageSize"), Some(4 * 1024 * 1024));
    assert_eq!(config.get("inSyncReplicas").is_some(), server.is_5());
    assert_eq!(config.get("namesrvAddr"), None, "only what was asked for is kept");
}

async fn a_setting_is_changed_at_run_time(server: Server) {
    let client = server.client();
    let (admin, address) = (Admin::new(&client), master_address(&client).await);
    // Only topics that are created by a send would notice, which these tests forbid.
    let key = "defaultTopicQueueNums";
    let before = admin.broker_config(&address, &[key]).await.unwrap().number(key).unwrap();
    admin.update_broker_config(&address, &[(key, &(before + 1).to_string())]).await.unwrap();
    assert_eq!(admin.broker_config(&address, &[key]).await.unwrap().number(key), Some(before + 1));
    admin.update_broker_config(&address, &[(key, &before.to_string())]).await.unwrap();
}

async fn the_flush_barrier_passes_a_lone_message(server: Server) {
    let client = server.client();
    let (topic, queues) = topic(&client, "flush", 1).await;
    let producer = Producer::new(&client, "it").unwrap();
    let sent = producer.send(&queues[0], &message(&topic, "u", "x"), &SendOptions::default()).await.unwrap();
    let target = sent.answer.last_commit_log_offset().unwrap();
    let admin = Admin::new(&client);
    // Up to 10 s for one small message (rocketmq.md F.2).
    eventually("flushed", Duration::from_secs(30), || async {
        let info = admin.runtime_info(&sent.address).await.unwrap();
        assert!(info.commit_log_max_offset().unwrap() > target);
        (info.flushed_at_least().unwrap() > target).then_some(())
    })
    .await;
}

async fn cluster_and_group(server: Server) {
    let client = server.client();
    let (admin, broker) = (Admin::new(&client), master(&client).await);
    let info = admin.cluster_info().await.unwrap();
    assert!(info.cluster_addr_table[&broker.cluster].contains(&broker.broker_name));
    assert_eq!(admin.masters(Some("no such cluster")).await.unwrap(), []);
    let place = Where::Cluster(broker.cluster);
    admin.create_group(&CreateSubscriptionGroup::new(fresh("group")), &place).await.unwrap();
    let nowhere = Where::Cluster("no such cluster".into());
    let error = admin.create_group(&CreateSubscriptionGroup::new(fresh("group")), &nowhere).await.unwrap_err();
    assert!(matches!(error, Error::Route { .. }), "{error}");
}
