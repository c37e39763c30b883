//! Connections that are cut, and connections that hang (S1, S2, O1).

use std::net::SocketAddr;
use std::time::Duration;

use outhaul_testkit::detour::Detour;
use outhaul_testkit::proxy::{Direction, Proxy};
use outhaul_testkit::servers::rocketmq::Part;
use outhaul_testkit::servers::soak;

use super::cluster::{A, B, Cluster};
use super::stage::{QUEUES, Stage, config, rows};
use crate::writers::Dice;

/// All that the relay says and hears goes through proxies, which cut it between requests, within a request and within an
/// answer, and hold back either direction for longer than a send may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cut_connections() {
    let cluster = Cluster::take().await;
    let brokers = [cluster.servers.address(A).await, cluster.servers.address(B).await];
    let proxies = [Proxy::start(brokers[0]).await, Proxy::start(brokers[1]).await];
    let name_server = Proxy::start(cluster.servers.address(Part::Namesrv).await).await;
    let instead: Vec<(SocketAddr, SocketAddr)> =
        brokers.iter().zip(&proxies).map(|(broker, proxy)| (*broker, proxy.address())).collect();
    let names = Detour::names(name_server.address(), instead).await;

    let settings = config(&names.address.to_string());
    let stall = Duration::from_millis(settings.request_limit_ms * 3 / 2);
    let faults = if soak() { 60 } else { 10 };
    let step = rows(1_500) / (faults + 1);
    let mut stage = Stage::new(cluster.servers.namesrv(), settings, QUEUES / 2, 4).await;
    let mut writers = stage.writers_during_faults(if soak() { 700 } else { 500 }, 47);
    let mut relays = [stage.scene.relay()];
    let mut dice = Dice(47);
    for fault in 0..faults {
        stage.arrived(step * fault + 200).await;
        let proxy = &proxies[fault / 5 % 2];
        match fault % 5 {
            0 => {
                proxy.cut_all().await;
                name_server.cut_all().await;
            }
            1 => proxy.cut_after(Direction::ToClient, dice.roll(2_000)).sprung().await,
            2 => proxy.cut_after(Direction::ToServer, dice.roll(20_000)).sprung().await,
            hang => {
                let direction = if hang == 3 { Direction::ToServer } else { Direction::ToClient };
                proxy.hold(direction);
                tokio::time::sleep(stall).await; // That long is the point.
                proxy.flow(direction);
            }
        }
    }
    for (proxy, broker) in proxies.iter().zip(["a", "b"]) {
        let counts = proxy.counts();
        assert!(counts.accepted > faults as u64 / 5, "{counts:?}");
        println!("broker {broker}: {} connections, {} cut", counts.accepted, counts.cut);
    }
    stage.faults_are_over(&writers);
    stage.scene.settle(&mut writers, &mut relays, &format!("{faults} cuts and stalls")).await;
    stage.assert_nothing_forgotten();
}
