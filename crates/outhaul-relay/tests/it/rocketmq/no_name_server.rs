//! No name server (S2).

use std::time::{Duration, Instant};

use outhaul_testkit::servers::rocketmq::Part;
use outhaul_testkit::servers::soak;

use super::cluster::Cluster;
use super::stage::{QUEUES, Stage, config};

/// A relay that knows the brokers goes on; one that is started meanwhile waits, and goes on by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_name_server() {
    let cluster = Cluster::take().await;
    let namesrv = cluster.servers.namesrv();
    let mut stage = Stage::new(namesrv, config(namesrv), QUEUES / 2, 4).await;
    let mut writers = stage.writers_during_faults(if soak() { 1_200 } else { 500 }, 43);
    let mut relays = [stage.scene.relay()];
    stage.arrived(500).await;

    cluster.servers.kill9(&[Part::Namesrv]).await;
    let (began, away) = (Instant::now(), Duration::from_secs(if soak() { 60 } else { 3 }));
    while began.elapsed() < away {
        stage.advance(100).await;
    }
    relays[0].terminate().await;
    let before = stage.scene.collector.distinct();
    relays[0] = stage.scene.relay();
    stage.logged("name servers").await;
    println!("{} arrived before, {} after the restart of the relay", before, stage.scene.collector.distinct());

    cluster.servers.restart(&[Part::Namesrv]).await;
    stage.advance(100).await;
    stage.faults_are_over(&writers);
    stage.scene.settle(&mut writers, &mut relays, &format!("{away:?} without a name server")).await;
    stage.assert_nothing_forgotten();
}
