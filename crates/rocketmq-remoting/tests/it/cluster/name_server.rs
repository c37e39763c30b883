//! A cluster without a name server.

use std::sync::Arc;
use std::time::Duration;

use outhaul_testkit::servers::rocketmq::Part;
use outhaul_testkit::servers::soak;
use rocketmq_remoting::Error;
use rocketmq_remoting::client::Client;
use tokio::time::Instant;

use super::lanes::Lanes;
use super::{A, B, Cluster};
use crate::servers::{LIMIT, eventually, topic, within};

/// The last known route stays in use, whether no name server answers, or one that was just started knows nothing yet.
pub async fn sends_go_on_without_one(cluster: Arc<Cluster>) {
    let mut options = cluster.options();
    options.route_limit = Duration::from_millis(500);
    options.route_refresh = Duration::from_millis(1);
    options.route_pause = Duration::from_millis(1);
    let client = Client::new(options);
    let (topic, queues) = topic(&client, "nameless", 2).await;
    let mut lanes = Lanes::start(&client, &queues);

    cluster.servers().kill9(&[Part::Namesrv]).await;
    let (began, away) = (Instant::now(), Duration::from_secs(if soak() { 60 } else { 0 }));
    loop {
        for broker in [A, B] {
            lanes.advance(broker.name(), 20).await;
        }
        if began.elapsed() >= away {
            break;
        }
    }
    assert_eq!(client.refresh_route(&topic).await.unwrap().queues(), queues);
    let newcomer = within(cluster.client().route(&topic)).await;
    assert!(matches!(newcomer, Err(Error::Connect { .. })), "{newcomer:?}");

    cluster.servers().restart(&[Part::Namesrv]).await;
    let newcomer = cluster.client();
    // Brokers tell it every ten seconds; when this setting is set, at once.
    for broker in [A, B] {
        cluster.with_settings(broker, &[("brokerPermission", "6")], async {}).await;
    }
    eventually("brokers that are known again", LIMIT, || async {
        let route = newcomer.refresh_route(&topic).await.ok()?;
        (route.queues() == queues).then_some(())
    })
    .await;
    for broker in [A, B] {
        lanes.advance(broker.name(), 20).await;
    }
    // A name server that was just started may know one broker and not yet the other.
    for lane in lanes.finish().await {
        let elsewhere = lane.failures.iter().all(|error| matches!(error, Error::Route { .. }));
        assert!(elsewhere && lane.uncertain == 0, "{}: {:?}", lane.queue, lane.failures);
    }
}
