//! What these tests are made of: brokers, a database with the tables, a topic, and what consumers got.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use outhaul::transaction::{RocketMqConfig, StoreOptions, TransactionOptions};
use outhaul_store::InitPlan;
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, RocketMq, topic_name};
use outhaul_testkit::servers::{self, Flavour, TestDatabase};
use rocketmq_remoting::ResponseCode;
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Consumer, PullOptions, Start, Where};
use rocketmq_remoting::request::CreateTopic;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

/// For what must happen before a test goes on.
pub const LIMIT: Duration = Duration::from_secs(120);
/// The property that consumers dedupe by.
const ID: &str = "outhaul-id";

/// Of a broker that asks early and gives up early.
pub const IMPATIENT: [&str; 4] = [
    "transactionCheckInterval=1000",
    "transactionTimeOut=2000",
    "transactionOpBatchInterval=200",
    "transactionCheckMax=8",
];

/// An impatient broker. One of each generation for all tests of the process.
pub async fn brokers(version: RocketMq) -> &'static OwnRocketMq {
    static V4: OnceCell<&OwnRocketMq> = OnceCell::const_new();
    static V5: OnceCell<&OwnRocketMq> = OnceCell::const_new();
    let cell = if version == RocketMq::V4 { &V4 } else { &V5 };
    cell.get_or_init(async || OwnRocketMq::start(version, &IMPATIENT).await.until_this_process_ends()).await
}

/// A database with the tables, and a topic.
pub struct Stage {
    pub client: Client,
    pub topic: String,
    pub group: String,
    pub namesrv: String,
    pub database: TestDatabase,
}

impl Stage {
    /// On shared servers.
    pub async fn new(version: RocketMq, flavour: Flavour) -> Self {
        Self::on(brokers(version).await.namesrv(), servers::create(flavour).await).await
    }

    pub async fn on(namesrv: &str, database: TestDatabase) -> Self {
        let store = outhaul_store::open(StoreOptions::new(&database.url)).await.unwrap();
        store.init(&InitPlan::default()).await.unwrap();
        let columns = match database.flavour {
            Flavour::Sqlite => "id TEXT PRIMARY KEY, tx TEXT NOT NULL",
            _ => "id VARCHAR(64) PRIMARY KEY, tx VARCHAR(64) NOT NULL",
        };
        database.execute(&format!("CREATE TABLE business ({columns})")).await;
        let client = Client::new(ClientOptions::new(namesrv).unwrap().request_limit(Duration::from_secs(10)));
        let (topic, group) = (topic_name(), topic_name());
        Admin::new(&client).create_topic(&CreateTopic::new(&topic, 4), &Where::Everywhere).await.unwrap();
        store.close().await;
        Self { client, topic, group, namesrv: namesrv.to_owned(), database }
    }

    pub fn config(&self) -> RocketMqConfig {
        let mut config = RocketMqConfig::new(&self.namesrv);
        config.producer_group.clone_from(&self.group);
        config.request_limit_ms = 3_000;
        config
    }

    pub fn options(&self) -> TransactionOptions {
        TransactionOptions::of(self.config(), StoreOptions::new(&self.database.url))
    }

    /// How often each id is in the topic.
    pub async fn delivered(&self) -> HashMap<String, u32> {
        self.ids_in(&self.topic).await
    }

    /// How often each id is in a topic. One that the broker makes when it first needs it may not be there yet.
    pub async fn ids_in(&self, topic: &str) -> HashMap<String, u32> {
        let consumer = Consumer::new(&self.client, "it").unwrap();
        let mut found = HashMap::new();
        let route = match self.client.refresh_route(topic).await {
            Err(e) if e.refused_with() == Some(ResponseCode::TopicNotExist) => return found,
            route => route.unwrap(),
        };
        for queue in route.queues() {
            let end = self.client.max_offset(queue).await.unwrap();
            let options = PullOptions { suspend: Duration::ZERO, ..PullOptions::default() };
            let mut reader = consumer.read(queue, Start::First, options).await.unwrap();
            while reader.offset() < end {
                for message in reader.next().await.unwrap().messages {
                    let id = message.properties.get(ID).unwrap_or_else(|| message.unique_key().unwrap()).to_owned();
                    *found.entry(id).or_default() += 1;
                }
            }
        }
        found
    }

    /// Ids of business rows, with the ids of their transactions.
    pub async fn business(&self) -> HashMap<String, String> {
        let rows = self.database.query("SELECT id, tx FROM business").await;
        rows.into_iter().map(|mut row| (row.remove(0).unwrap(), row.remove(0).unwrap())).collect()
    }

    /// State of each transaction.
    pub async fn states(&self) -> HashMap<String, String> {
        let rows = self.database.query("SELECT id, state FROM outbox_transaction").await;
        rows.into_iter().map(|mut row| (row.remove(0).unwrap(), row.remove(0).unwrap())).collect()
    }
}

/// Looks again until it is so: what brokers do they do in the background.
pub async fn eventually<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let deadline = Instant::now() + LIMIT;
    while !is_so().await {
        assert!(Instant::now() < deadline, "it never came to pass: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}
