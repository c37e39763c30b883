//! Nothing happens but rows.

use std::time::Instant;

use outhaul_testkit::servers::rocketmq::RocketMq;

use super::stage::{QUEUES, Stage, config, rows};
use crate::scene::Account;

/// A machine can be so busy that a broker does not answer for seconds: then it is no run without faults.
const RUNS: u64 = 3;

/// 0 missing, 0 phantom, 0 duplicates, order per key.
async fn without_faults(version: RocketMq) {
    for run in 0..RUNS {
        let account = once(version, run).await;
        if account.bound == 0 {
            assert_eq!(account.duplicates, 0);
            return;
        }
    }
    panic!("something disturbed each of {RUNS} runs");
}

async fn once(version: RocketMq, run: u64) -> Account {
    let mut settings = config(&version.namesrv());
    settings.request_limit_ms = 8_000;
    let mut stage = Stage::new(&version.namesrv(), settings, QUEUES, 4).await;
    let mut writers = stage.writers(rows(12_000), 10_000, 31 + run);
    let began = Instant::now();
    let mut relays = [stage.scene.relay()];
    let account = stage.scene.settle(&mut writers, &mut relays, &format!("without faults, {}", version.name())).await;
    println!("{}: {} ms, the writing of rows included", version.name(), began.elapsed().as_millis());
    if account.bound > 0 {
        println!("disturbed: {:#?}", stage.scene.log());
    }
    let queues = stage.scene.reader.as_ref().unwrap().positions();
    assert!(queues.len() == usize::from(QUEUES) && queues.values().all(|at| *at > 0), "{queues:?}");
    stage.assert_nothing_forgotten();
    account
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v4() {
    without_faults(RocketMq::V4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v5() {
    without_faults(RocketMq::V5).await;
}
