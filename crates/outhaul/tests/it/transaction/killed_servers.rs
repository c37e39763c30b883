//! The broker and the database are killed while transactions go on, and ends of transactions get lost on their way.

use std::time::Duration;

use outhaul::transaction::CheckBackAnswers;
use outhaul_testkit::detour::Detour;
use outhaul_testkit::proxy::{Fate, Proxy, TrapState};
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};
use outhaul_testkit::servers::{self, Flavour, OwnServer};
use tokio::time::{sleep, timeout};

use super::judged::Trial;
use super::stage::{IMPATIENT, LIMIT, Stage};

const FEW: u64 = 240;
/// As many as take ten minutes on a machine that is busy with other things too.
const MANY: u64 = 480;
/// So soon that the relay and check-backs race for what was not ended.
const FALLBACK: Duration = Duration::from_secs(6);
/// Processes are killed here too.
const STEPS: [&str; 3] = ["business", "committed", "half"];
/// A field that nothing but END_TRANSACTION has, whether the sender's or an answer to a check-back.
const END: &[u8] = b"commitOrRollback";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_misjudged_while_servers_die_on_4_9_with_mariadb() {
    Box::pin(servers_die(RocketMq::V4, Flavour::MariaDb)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_misjudged_while_servers_die_on_5_with_postgres() {
    Box::pin(servers_die(RocketMq::V5, Flavour::Postgres)).await;
}

async fn servers_die(version: RocketMq, flavour: Flavour) {
    // What the broker has acknowledged it still has after the kill.
    let settings = [&IMPATIENT[..], &["flushDiskType=SYNC_FLUSH"]].concat();
    let (broker, server) = tokio::join!(OwnRocketMq::start(version, &settings), OwnServer::start(flavour, &[]));
    let trial = Trial::new(Stage::on(broker.namesrv(), server.database().await).await);
    let (all, kills) = if servers::soak() { (MANY, 6) } else { (FEW, 2) };
    let address = broker.address(Part::BrokerA).await;
    let proxy = Proxy::start(address).await;
    let names = Detour::names(broker.address(Part::Namesrv).await, vec![(address, proxy.address())]).await;
    let mut config = trial.stage.config();
    config.namesrv = vec![names.address.to_string()];
    let blind = trial.blind().await;
    let (stop, relay) = trial.relay(FALLBACK).await;

    let die = async {
        for n in 0..kills {
            trial.begun(all * (n + 1) / (kills + 1)).await;
            if n % 2 == 0 {
                broker.kill9(&[Part::BrokerA]).await;
                broker.restart(&[Part::BrokerA]).await;
            } else {
                server.kill9().await;
                server.restart().await;
            }
        }
    };
    let mut lost = [0; 3];
    let (killed, ()) = tokio::select! {
        done = async { tokio::join!(trial.work(&config, all, &STEPS), die) } => done,
        () = lose(&proxy, &mut lost) => unreachable!("it never ends"),
    };
    proxy.disarm();
    let answers = CheckBackAnswers::start(trial.observed(trial.stage.options())).await.unwrap();
    trial.all_delivered().await;
    answers.stop().await;
    blind.stop().await;
    stop.drain();
    timeout(LIMIT, relay).await.expect("the relay ends").unwrap();
    let title = format!(
        "{} with {}: {all} transactions, {killed} processes and {kills} times a broker or a database killed, ends of transactions: \
         {} lost, {} answers lost, {} late",
        version.name(),
        flavour.name(),
        lost[0],
        lost[1],
        lost[2]
    );
    assert!(lost.iter().all(|n| *n > 0), "every fate was met: {title}");
    trial.verdict(&title, all / 3).await;
}

/// Between two that are lost: the connection that goes with each takes other requests along.
const BETWEEN: Duration = Duration::from_secs(1);

/// Again and again an END_TRANSACTION is lost, its answer is lost, or it comes late, each with its connection.
async fn lose(proxy: &Proxy, lost: &mut [u32; 3]) {
    loop {
        for (fate, lost) in [Fate::RequestLost, Fate::AnswerLost, Fate::RequestLate].into_iter().zip(lost.iter_mut()) {
            let trap = proxy.trap(END, fate);
            while trap.state() == TrapState::Armed {
                sleep(Duration::from_millis(20)).await;
            }
            *lost += 1;
            sleep(BETWEEN).await;
            trap.release();
        }
    }
}
