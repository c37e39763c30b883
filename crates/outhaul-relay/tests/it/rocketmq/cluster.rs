//! Brokers that tests may kill.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

pub const A: Part = Part::BrokerA;
pub const B: Part = Part::BrokerB;

/// A name server and two masters of 4.9.4: one such cluster for all tests of this process, in turn.
pub struct Cluster {
    pub servers: &'static OwnRocketMq,
    _turn: MutexGuard<'static, ()>,
}

static SERVERS: OnceCell<&OwnRocketMq> = OnceCell::const_new();
static TURN: Mutex<()> = Mutex::const_new(());
/// Whether whoever had it has failed.
static BROKEN: AtomicBool = AtomicBool::new(false);

impl Cluster {
    pub async fn take() -> Self {
        let _turn = TURN.lock().await;
        let servers = SERVERS.get_or_init(|| async {
            let began = Instant::now();
            let servers = OwnRocketMq::start(RocketMq::V4, &["second-master"]).await.until_this_process_ends();
            println!("two masters: {} ms", began.elapsed().as_millis());
            servers
        });
        let servers = servers.await;
        if BROKEN.swap(false, Ordering::SeqCst) {
            servers.kill9(&[]).await;
            servers.restart(&[]).await;
        }
        Self { servers, _turn }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        BROKEN.store(std::thread::panicking(), Ordering::SeqCst);
    }
}
