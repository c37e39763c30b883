//! Instances that come and go under load: some are stopped, some are killed.

use std::collections::BTreeMap;
use std::time::Duration;

use outhaul_testkit::servers::{self, Flavour};
use tokio::time::Instant;

use crate::child::RelayProcess;
use crate::on_each;
use crate::scene::{Account, Scene};
use crate::writers::Writers;

/// For a change of instances to show in who owns what.
const LIMIT: Duration = Duration::from_secs(30);

impl Scene {
    /// Waits until every shard has one of so many owners, each its share; the sum of the epochs.
    async fn shared_by(&self, instances: usize) -> u64 {
        let shared = async {
            loop {
                let status = self.store.status().await.unwrap();
                let mut owned: BTreeMap<&str, usize> = BTreeMap::new();
                status.iter().filter_map(|s| s.owner.as_deref()).for_each(|o| *owned.entry(o).or_default() += 1);
                let share = usize::from(self.shards).div_ceil(instances);
                let all = owned.values().sum::<usize>() == status.len() && owned.len() == instances;
                if all && owned.values().all(|shards| *shards <= share) {
                    return status.iter().map(|s| s.epoch.0).sum();
                }
                // Processes of their own write it, so there is no signal.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let late = |_| panic!("{instances} instances do not share within {LIMIT:?}");
        tokio::time::timeout(LIMIT, shared).await.unwrap_or_else(late)
    }
}

/// What happens to the instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Add,
    Stop,
    Kill,
}

/// From two instances to two, again and again; never more than there are shards.
const CHANGES: [Change; 8] =
    [Change::Add, Change::Kill, Change::Add, Change::Stop, Change::Add, Change::Add, Change::Kill, Change::Stop];
const EVERY: Duration = Duration::from_secs(5);

on_each!(d5_o2_churn: mariadb => MariaDb, postgres => Postgres);

/// D5, O2: an instance is added, stopped or killed every five seconds while rows come, 20 s, in the soak five minutes. Each
/// change moves shards. Nothing is missing, order per key holds, and only kills cause copies: of what had arrived by then
/// and was not settled.
async fn d5_o2_churn(flavour: Flavour) {
    let database = servers::create(flavour).await;
    let mut scene = Scene::new(flavour, &database.url).await;
    let changes = if servers::soak() { 60 } else { 4 };
    const ROWS_PER_S: u64 = 1_000;
    let rows = (ROWS_PER_S * EVERY.as_secs()) as usize * (changes + 1);
    let mut relays: Vec<RelayProcess> = vec![scene.relay(), scene.relay()];
    let mut epochs = scene.shared_by(relays.len()).await;
    let mut writers = Writers::start(flavour, &database.url, 4, rows * 2, ROWS_PER_S, 41 + flavour as u64);
    let mut kills = 0;
    let mut due = Instant::now();
    for (n, change) in CHANGES.into_iter().cycle().take(changes).enumerate() {
        let victim = n % relays.len();
        match change {
            Change::Add => relays.push(scene.relay()),
            Change::Stop => relays.remove(victim).terminate().await,
            Change::Kill => {
                relays.remove(victim).kill9().await;
                scene.fault_happened().await;
                kills += 1;
            }
        }
        let moved = scene.shared_by(relays.len()).await - epochs;
        epochs += moved;
        println!(
            "{n}: {change:?}, {} run, {moved} changes of owner; {} arrived",
            relays.len(),
            scene.collector.distinct()
        );
        assert!(moved > 0, "{change:?} moves a shard");
        due += EVERY;
        tokio::time::sleep_until(due).await; // Under load for that long: that is the case.
    }
    assert!(writers.write(), "rows came all the while: {} were too few", writers.committed());
    writers.enough();
    let title = format!("{changes} changes of instances, {kills} of them kills, {}", flavour.name());
    let account = scene.settle(&mut writers, &mut relays, &title).await;
    assert!(account.arrived > rows / 4, "{account:?}");
}

on_each!(d5_l8_rolling_restart: mariadb => MariaDb, postgres => Postgres);

/// A machine can be so busy that a lease is lost or a send is late: then it is no run without faults.
const RUNS: u64 = 3;

/// D5, L8: each of four instances is stopped and started again, one after the other, under load. No duplicate.
async fn d5_l8_rolling_restart(flavour: Flavour) {
    for run in 0..RUNS {
        let account = rolling_restart(flavour, run).await;
        if account.bound == 0 {
            assert_eq!(account.duplicates, 0);
            return;
        }
    }
    panic!("something disturbed each of {RUNS} runs");
}

async fn rolling_restart(flavour: Flavour, run: u64) -> Account {
    let database = servers::create(flavour).await;
    let mut scene = Scene::new(flavour, &database.url).await;
    let mut relays: Vec<RelayProcess> = (0..4).map(|_| scene.relay()).collect();
    scene.shared_by(4).await;
    let mut writers = Writers::start(flavour, &database.url, 4, 118_402, 1_500, 53 + run);
    for relay in &mut relays {
        let arrived = scene.collector.distinct();
        relay.terminate().await;
        scene.shared_by(3).await;
        *relay = scene.relay();
        scene.shared_by(4).await;
        assert!(scene.collector.wait_for(arrived + 500, LIMIT).await, "messages arrive all the while");
    }
    assert!(writers.write(), "rows came all the while: {} were too few", writers.committed());
    writers.enough();
    scene.settle(&mut writers, &mut relays, &format!("rolling restart of 4, {}", flavour.name())).await
}
