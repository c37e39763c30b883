//! What clusters go through: a slave that hangs or dies, disks that are late, brokers that are killed, hang or have too
//! much to do, a name server that is gone.
//!
//! All of it happens to one cluster of 4.9: a name server, two masters that flush synchronously, a slave of the first. So
//! it is one test, step by step; a step that fails costs a new cluster, and the others are taken all the same. 5.x goes
//! through what differs, and through all of it in the soak.

use std::pin::Pin;
use std::sync::Arc;

use outhaul_testkit::servers::rocketmq::{Account, OwnRocketMq, Part};
use outhaul_testkit::servers::soak;
use rocketmq_remoting::client::{Admin, Client, ClientOptions};
use rocketmq_remoting::connection::Address;
use rocketmq_remoting::message::MessageQueue;
use tokio::time::Instant;

use crate::servers::{Server, credentials, guarded, options, topic};

mod acks;
mod busy;
mod hang;
mod kill;
mod lanes;
mod name_server;
mod queues;
mod slave;

const SETTINGS: [&str; 6] = [
    "second-master",
    "slave",
    "flushDiskType=SYNC_FLUSH",
    "slaveReadEnable=true",
    "transactionCheckInterval=1000",
    "transactionTimeOut=2000",
];

/// Master and slave, and a master that is alone.
pub const A: Part = Part::BrokerA;
pub const B: Part = Part::BrokerB;

enum Own {
    Started(OwnRocketMq),
    Guarded(&'static OwnRocketMq),
}

/// The cluster that a step is taken in.
pub struct Cluster {
    pub server: Server,
    own: Own,
    /// A topic that has been there from the beginning: slaves copy the list of topics every ten seconds.
    pub old_topic: (String, Vec<MessageQueue>),
}

impl Cluster {
    async fn start(server: Server) -> Arc<Self> {
        Self::of(server, Own::Started(OwnRocketMq::start(server.kit(), &SETTINGS).await)).await
    }

    async fn of(server: Server, own: Own) -> Arc<Self> {
        let mut cluster = Self { server, own, old_topic: (String::new(), Vec::new()) };
        cluster.old_topic = topic(&cluster.client(), "old", 1).await;
        Arc::new(cluster)
    }

    pub fn servers(&self) -> &OwnRocketMq {
        match &self.own {
            Own::Started(servers) => servers,
            Own::Guarded(servers) => servers,
        }
    }

    pub fn options(&self) -> ClientOptions {
        let options = options(self.servers().namesrv());
        match self.own {
            Own::Started(_) => options,
            Own::Guarded(_) => options.credentials(credentials(Account::ADMIN)),
        }
    }

    pub fn client(&self) -> Client {
        Client::new(self.options())
    }

    pub async fn address(&self, part: Part) -> Address {
        self.servers().address(part).await.to_string().parse().unwrap()
    }

    /// Runs `work` while a broker has other settings.
    pub async fn with_settings<T>(&self, part: Part, settings: &[(&str, &str)], work: impl Future<Output = T>) -> T {
        let (client, address) = (self.client(), self.address(part).await);
        let admin = Admin::new(&client);
        let keys: Vec<_> = settings.iter().map(|(key, _)| *key).collect();
        let before = admin.broker_config(&address, &keys).await.unwrap();
        let before: Vec<_> = keys.iter().map(|key| (*key, before.get(key).expect("a known setting"))).collect();
        admin.update_broker_config(&address, settings).await.unwrap();
        let done = work.await;
        admin.update_broker_config(&address, &before).await.unwrap();
        done
    }
}

/// The queues of one broker.
pub fn of(part: Part, queues: &[MessageQueue]) -> Vec<MessageQueue> {
    queues.iter().filter(|queue| queue.broker_name == part.name()).cloned().collect()
}

type Taken = Pin<Box<dyn Future<Output = ()> + Send>>;
type Step = (&'static str, fn(Arc<Cluster>) -> Taken);

macro_rules! steps {
    ($($step:path),* $(,)?) => { [$((stringify!($step), (|cluster| Box::pin($step(cluster))) as fn(Arc<Cluster>) -> Taken)),*] };
}

const STEPS: [Step; 9] = steps![
    queues::of_two_masters_are_javas,
    acks::a_flush_that_is_late,
    busy::what_is_refused_is_not_stored,
    hang::a_broker_that_hangs_holds_up_its_own_queues_only,
    kill::nothing_acknowledged_is_lost_and_order_is_kept,
    acks::a_slave_that_hangs,
    slave::is_no_master_and_is_read_while_there_is_none,
    acks::a_slave_that_is_gone,
    name_server::sends_go_on_without_one,
];

async fn take(steps: &[Step], server: Server) {
    let mut cluster = Cluster::start(server).await;
    let mut failed = Vec::new();
    for (name, step) in steps {
        let began = Instant::now();
        let outcome = tokio::spawn(step(cluster.clone())).await;
        println!("{name}: {} ms", began.elapsed().as_millis());
        if outcome.is_err() {
            failed.push(*name);
            drop(cluster);
            cluster = Cluster::start(server).await;
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v4() {
    take(&STEPS, Server::V4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v5() {
    if soak() {
        return take(&STEPS, Server::V5).await;
    }
    let cluster = Cluster::of(Server::V5, Own::Guarded(guarded(Server::V5).await)).await;
    acks::a_slave_that_hangs(cluster.clone()).await;
    slave::is_no_master(cluster.clone()).await;
    acks::a_slave_that_is_gone(cluster).await;
}
