//! Relays that are killed (L2, O1).

use outhaul_testkit::servers::rocketmq::RocketMq;
use outhaul_testkit::servers::soak;

use super::stage::{QUEUES, Stage, config, rows};
use crate::writers::Dice;

/// SIGKILL at random moments, while two relays run and eight writers write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_relays() {
    let kills = if soak() { 50 } else { 5 };
    let step = rows(4_000) / (kills + 1);
    let namesrv = RocketMq::V4.namesrv();
    let mut stage = Stage::new(&namesrv, config(&namesrv), QUEUES, 4).await;
    let mut writers = stage.writers_during_faults(600, 37);
    let mut relays = [stage.scene.relay(), stage.scene.relay()];
    let mut dice = Dice(37);
    for kill in 0..kills {
        // Each within its part of the rows.
        stage.arrived(step * kill + dice.roll(step as u64) as usize).await;
        let victim = dice.roll(2) as usize;
        relays[victim].kill9().await;
        stage.scene.relay_was_killed().await;
        println!("kill {kill}: {} committed, {} arrived", writers.committed(), stage.scene.collector.distinct());
        relays[victim] = stage.scene.relay();
    }
    stage.faults_are_over(&writers);
    stage.scene.settle(&mut writers, &mut relays, &format!("{kills} kills of relays")).await;
    stage.assert_nothing_forgotten();
}
