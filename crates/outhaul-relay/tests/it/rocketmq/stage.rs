//! What all these tests are made of: a database, a topic, a reader, and rows of 5,000 users.

use std::sync::Arc;
use std::time::Duration;

use outhaul_sink::rocketmq::RocketMqConfig;
use outhaul_testkit::servers::rocketmq::topic_name;
use outhaul_testkit::servers::{self, Flavour, TestDatabase};
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Where};
use rocketmq_remoting::request::CreateTopic;

use super::reader::Reader;
use crate::child::Target;
use crate::collector::Collector;
use crate::scene::Scene;
use crate::writers::{Work, Writers};

const FLAVOUR: Flavour = Flavour::MariaDb;
const USERS: u64 = 5_000;
/// Of the whole topic.
pub const QUEUES: u16 = 8;
/// For what must happen before a test goes on.
pub const LIMIT: Duration = Duration::from_secs(90);

pub struct Stage {
    pub database: TestDatabase,
    pub scene: Scene,
    pub client: Client,
    pub topic: String,
}

const ROWS: usize = 118_402;

/// This many rows, and all 118,402 in the soak.
pub fn rows(few: usize) -> usize {
    if servers::soak() { ROWS } else { few }
}

/// What the writers' topic is called.
pub const TOPIC: &str = "order-created";

/// Settings for a topic of the test's own, which begins with a random prefix.
pub fn config(namesrv: &str) -> RocketMqConfig {
    let mut config = RocketMqConfig::new(namesrv);
    config.topic_prefix = format!("{}-", topic_name());
    config.request_limit_ms = 1_200;
    config
}

pub fn client(namesrv: &str) -> Client {
    Client::new(ClientOptions::new(namesrv).unwrap().request_limit(Duration::from_secs(5)))
}

/// Creates the topic of these settings, with so many queues on each broker; its name.
pub async fn create_topic(client: &Client, config: &RocketMqConfig, queues: u16) -> String {
    let topic = format!("{}{TOPIC}", config.topic_prefix);
    Admin::new(client).create_topic(&CreateTopic::new(&*topic, queues), &Where::Everywhere).await.unwrap();
    topic
}

impl Stage {
    /// The test itself speaks to `namesrv`, whatever the relay's settings say.
    pub async fn new(namesrv: &str, config: RocketMqConfig, queues: u16, shards: u16) -> Self {
        let database = servers::create(FLAVOUR).await;
        let client = client(namesrv);
        let topic = create_topic(&client, &config, queues).await;
        let collector = Arc::<Collector>::default();
        let target = Target::RocketMq(Box::new(config));
        let mut scene = Scene::to(target, collector.clone(), &database.url, shards).await;
        scene.reader = Some(Reader::start(&client, &topic, &collector).await);
        Self { database, scene, client, topic }
    }

    /// Writers that write all the while that faults happen, until [`faults_are_over`](Self::faults_are_over); in the soak all rows.
    pub fn writers_during_faults(&self, rows_per_s: u64, seed: u64) -> Writers {
        self.writers(ROWS, rows_per_s, seed)
    }

    /// The faults are over.
    pub fn faults_are_over(&self, writers: &Writers) {
        assert!(writers.write(), "rows came in while faults happened: {} were too few", writers.committed());
        if !servers::soak() {
            writers.enough();
        }
    }

    pub fn writers(&self, rows: usize, rows_per_s: u64, seed: u64) -> Writers {
        Writers::at(FLAVOUR, &self.database.url, Work { writers: 8, rows, rows_per_s, keys: USERS, seed })
    }

    /// Waits until so many different messages are there.
    pub async fn arrived(&self, distinct: usize) {
        let there = self.scene.collector.wait_for(distinct, LIMIT).await;
        let (now, log) = (self.scene.collector.distinct(), self.scene.log());
        assert!(there, "{now} of {distinct} messages within {LIMIT:?}: {log:#?}");
    }

    /// Waits until so many more are there.
    pub async fn advance(&self, messages: usize) {
        self.arrived(self.scene.collector.distinct() + messages).await;
    }

    /// Waits until a relay has logged a line with this; the line.
    pub async fn logged(&self, what: &str) -> String {
        let looking = async {
            loop {
                if let Some(line) = self.scene.log().into_iter().find(|line| line.contains(what)) {
                    return line;
                }
                // There is no signal for what a process of its own has written.
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(LIMIT, looking).await.unwrap_or_else(|_| panic!("no {what} in {:?}", self.scene.log()))
    }

    /// No message was found forgotten, and none was given up.
    pub fn assert_nothing_forgotten(&self) {
        let events: Vec<String> =
            self.scene.log().into_iter().filter(|l| l.contains("OUT-4015") || l.contains("message is dead")).collect();
        assert!(events.is_empty(), "{events:?}");
    }
}
