//! Brokers that are killed (L3, O1, O4, S2).

use outhaul_testkit::servers::soak;

use super::cluster::{A, B, Cluster};
use super::stage::{QUEUES, Stage, config, rows};

/// One of two masters after the other is killed and started again while rows come in. The queues of the other one go on
/// meanwhile; keys of the dead one wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_brokers() {
    let cluster = Cluster::take().await;
    let namesrv = cluster.servers.namesrv();
    let kills = if soak() { 5 } else { 2 };
    let step = rows(2_000) / (kills + 1);
    let mut stage = Stage::new(namesrv, config(namesrv), QUEUES / 2, 4).await;
    let mut writers = stage.writers_during_faults(800, 41);
    let mut relays = [stage.scene.relay()];
    for kill in 0..kills {
        stage.arrived(step * kill + 500).await;
        let victim = [B, A][kill % 2];
        cluster.servers.kill9(&[victim]).await;
        stage.advance(100).await;
        cluster.servers.restart(&[victim]).await;
        println!("kill {kill}: {} committed, {} arrived", writers.committed(), stage.scene.collector.distinct());
    }
    stage.faults_are_over(&writers);
    stage.scene.settle(&mut writers, &mut relays, &format!("{kills} kills of brokers")).await;
    stage.assert_nothing_forgotten();
}
