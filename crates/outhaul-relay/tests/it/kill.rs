//! Kills at random moments, on every database: nothing missing, nothing phantom, order per key, duplicates explained.

use std::time::Duration;

use outhaul_testkit::proxy::{Fate, Proxy};
use outhaul_testkit::servers::{self, Flavour, OwnServer};

use crate::child::{LEASE_TTL_MS, RelayProcess};
use crate::scene::Scene;
use crate::writers::{Dice, Writers};

const ROWS: usize = 118_402;

/// From one kill to the next, the look at what is settled included.
const A_KILL_MS: u64 = 1_800;

fn kills() -> u64 {
    if servers::soak() { 100 } else { 20 }
}

/// The relay is killed again and again while two instances run and eight writers write.
async fn killed_relays(flavour: Flavour) {
    let database = servers::create(flavour).await;
    let mut scene = Scene::new(flavour, &database.url).await;
    let seed = 7 + flavour as u64;
    let mut dice = Dice(seed);
    let kills = kills();
    let rows_per_s = ROWS as u64 * 1_000 / (kills * A_KILL_MS);
    let mut writers = Writers::start(flavour, &database.url, 8, ROWS, rows_per_s, seed);
    let mut relays = [scene.relay(), scene.relay()];
    let mut under_load = 0;
    for n in 0..kills {
        tokio::time::sleep(Duration::from_millis(400 + dice.roll(1_800))).await; // A random moment is the point.
        let victim = dice.roll(2) as usize;
        relays[victim].kill9().await;
        under_load += u64::from(writers.write());
        let open = scene.fault_happened().await;
        println!("kill {n}: {} committed, {} arrived, {open} open", writers.committed(), scene.collector.distinct());
        relays[victim] = scene.relay();
    }
    let title = format!("{kills} kills, {under_load} of them while rows came, {}", flavour.name());
    scene.settle(&mut writers, &mut relays, &title).await;
    assert!(under_load * 10 >= kills * 7, "{title}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_relays_sqlite() {
    killed_relays(Flavour::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_relays_mariadb() {
    killed_relays(Flavour::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_relays_mysql() {
    killed_relays(Flavour::MySql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_relays_postgres() {
    killed_relays(Flavour::Postgres).await;
}

/// D3: the owner is stopped past its lease, another takes over, the first wakes up.
async fn paused_owner(flavour: Flavour) {
    let database = servers::create(flavour).await;
    let mut scene = Scene::new(flavour, &database.url).await;
    scene.fences = false; // A fenced owner's copies are counted at each pause.
    let mut writers = Writers::start(flavour, &database.url, 4, 6_000, 1_000, 3);
    let mut relays = [scene.relay(), scene.relay()];
    for n in 0..2 {
        assert!(scene.collector.wait_for(1_000 + n * 2_000, Duration::from_secs(60)).await);
        let paused = &relays[n % 2];
        paused.signal("-STOP").await;
        scene.fault_happened().await;
        tokio::time::sleep(Duration::from_millis(LEASE_TTL_MS * 2)).await; // Past the lease: that is the point.
        scene.fault_happened().await; // What the other sent and did not store yet may also be sent by the first.
        relays[n % 2].signal("-CONT").await;
    }
    scene.settle(&mut writers, &mut relays, &format!("D3 paused owner, {}", flavour.name())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_paused_owner_mariadb() {
    paused_owner(Flavour::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_paused_owner_postgres() {
    paused_owner(Flavour::Postgres).await;
}

/// The database is killed and started again under load.
async fn killed_database(flavour: Flavour) {
    let server = OwnServer::start(flavour, &[]).await;
    let database = server.database().await;
    let mut scene = Scene::new(flavour, &database.url).await;
    let mut writers = Writers::start(flavour, &database.url, 4, 6_000, 1_000, 5);
    let mut relays: Vec<RelayProcess> = vec![scene.relay(), scene.relay()];
    for n in 0..2 {
        assert!(scene.collector.wait_for(1_000 + n * 2_000, Duration::from_secs(60)).await);
        // Both relays may lose their leases while the server is away, and store anew before it can be asked again.
        let settled = scene.settled().await;
        server.kill9().await;
        server.restart().await;
        scene.fault_happened_after(&settled).await;
    }
    scene.settle(&mut writers, &mut relays, &format!("killed database, {}", flavour.name())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_database_mariadb() {
    killed_database(Flavour::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_database_mysql() {
    killed_database(Flavour::MySql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_database_postgres() {
    killed_database(Flavour::Postgres).await;
}

/// D1: several instances, no faults: exactly no duplicate. L8 and D5 of a rolling stop: SIGTERM gives none either.
async fn no_faults(flavour: Flavour, instances: usize) {
    let database = servers::create(flavour).await;
    let mut scene = Scene::new(flavour, &database.url).await;
    let mut writers = Writers::start(flavour, &database.url, 4, 20_000, 4_000, 11);
    let mut relays: Vec<RelayProcess> = (0..instances).map(|_| scene.relay()).collect();
    assert!(scene.collector.wait_for(8_000, Duration::from_secs(60)).await);
    relays[0].terminate().await;
    relays[0] = scene.relay();
    scene
        .settle(&mut writers, &mut relays, &format!("D1 {instances} instances and a clean restart, {}", flavour.name()))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_l8_two_instances_mariadb() {
    no_faults(Flavour::MariaDb, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_l8_two_instances_mysql() {
    no_faults(Flavour::MySql, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_l8_eight_instances_postgres() {
    no_faults(Flavour::Postgres, 8).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_l8_one_instance_sqlite() {
    no_faults(Flavour::Sqlite, 1).await;
}

/// The connection is cut at a COMMIT under load: before the server sees it, after it was carried out, and so that it
/// arrives when the relay has long connected anew. No duplicate comes of it, unless the lease was lost over it.
async fn cut_commits(flavour: Flavour) {
    let database = servers::create(flavour).await;
    let proxy = Proxy::start(database.address()).await;
    let mut scene = Scene::new(flavour, &database.url).await;
    let mut writers = Writers::start(flavour, &database.url, 4, 8_000, 1_000, 23);
    let url = database.url_at(proxy.address());
    let mut relays = [scene.relay_at(&url), scene.relay_at(&url)];
    assert!(scene.collector.wait_for(500, Duration::from_secs(60)).await);
    for n in 0..12 {
        let fate = [Fate::RequestLost, Fate::AnswerLost, Fate::RequestLate][n % 3];
        let accepted = proxy.counts().accepted;
        let trap = proxy.trap(flavour.commit_bytes(), fate);
        trap.sprung().await;
        if fate == Fate::RequestLate {
            proxy.wait_until(|c| c.accepted > accepted).await; // Whoever lost it has connected anew, or another has.
            trap.release();
        }
        trap.finished().await;
    }
    scene.settle(&mut writers, &mut relays, &format!("12 cut COMMITs, {}", flavour.name())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_commits_mariadb() {
    cut_commits(Flavour::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_commits_mysql() {
    cut_commits(Flavour::MySql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_commits_postgres() {
    cut_commits(Flavour::Postgres).await;
}
