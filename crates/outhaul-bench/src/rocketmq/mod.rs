//! What the benches share about RocketMQ: brokers, topics, and messages of the same bytes as the sink's.

pub mod drain;
pub mod hand_made;
pub mod java;
pub mod latency;
pub mod sends;

use std::time::Duration;

use clap::ValueEnum;
use outhaul_sink::Sink;
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Where};
use rocketmq_remoting::message::{Message, MessageQueue};
use rocketmq_remoting::request::CreateTopic;
use std::sync::Arc;

/// Queues of every topic.
pub const QUEUES: u16 = 8;
/// Messages of a batch: a lane's default.
pub const BATCH: usize = 500;
/// Topic of every row.
const TOPIC: &str = "order-created";

/// A broker to measure on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Broker {
    /// 4.9.4 at OUTHAUL_TEST_ROCKETMQ4_NAMESRV.
    #[value(name = "rocketmq4")]
    V4,
    /// 5.x at OUTHAUL_TEST_ROCKETMQ5_NAMESRV.
    #[value(name = "rocketmq5")]
    V5,
}

impl Broker {
    /// As the script writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "rocketmq4",
            Self::V5 => "rocketmq5",
        }
    }

    /// Its name server, `host:port`.
    pub fn namesrv(self) -> String {
        crate::raw::variable(match self {
            Self::V4 => "OUTHAUL_TEST_ROCKETMQ4_NAMESRV",
            Self::V5 => "OUTHAUL_TEST_ROCKETMQ5_NAMESRV",
        })
    }
}

/// A client.
pub fn client(namesrv: &str) -> Client {
    let options = ClientOptions::new(namesrv).expect("an address").request_limit(Duration::from_secs(30));
    Client::new(options)
}

/// A topic of one run's own.
pub struct Topic {
    pub client: Client,
    /// What stands before [`TOPIC`].
    pub prefix: String,
    pub name: String,
}

impl Topic {
    /// Makes it, with [`QUEUES`] queues.
    pub async fn make(namesrv: &str) -> Self {
        let micros = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_micros());
        let prefix = format!("bench_{}_{micros}_", std::process::id());
        let (client, name) = (client(namesrv), format!("{prefix}{TOPIC}"));
        Admin::new(&client).create_topic(&CreateTopic::new(&name, QUEUES), &Where::Everywhere).await.expect("a topic");
        let topic = Self { client, prefix, name };
        while topic.client.refresh_route(&topic.name).await.map_or(0, |r| r.queues().len()) < usize::from(QUEUES) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        topic
    }

    pub async fn queues(&self) -> Vec<MessageQueue> {
        self.client.route(&self.name).await.expect("a route").queues().to_vec()
    }

    /// Waits until consumers can see so many messages, which is a little after they were acknowledged.
    pub async fn shows(&self, messages: usize) {
        let limit = std::time::Instant::now() + Duration::from_secs(60);
        while self.messages().await < messages as u64 && std::time::Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(self.messages().await, messages as u64, "every message once");
    }

    /// Messages that it shows.
    async fn messages(&self) -> u64 {
        let mut sum = 0;
        for queue in self.queues().await {
            sum += self.client.max_offset(&queue).await.expect("an offset").unsigned_abs();
        }
        sum
    }

    /// Deletes it.
    pub async fn delete(self) {
        let _ = Admin::new(&self.client).delete_topic(&self.name, &Where::Everywhere).await;
    }
}

/// The destination, as a configuration would make it.
pub fn sink(namesrv: &str, prefix: &str) -> Arc<dyn Sink> {
    let settings = serde_json::json!({ "namesrv": namesrv, "topic_prefix": prefix });
    outhaul_sink::make("rocketmq", "sink", settings, None).expect("a sink")
}

/// A message with the properties that the sink gives it.
pub fn sealed(topic: &str, n: usize, payload_bytes: usize) -> Message {
    let id = format!("0192f0c1-5a7e-7b3c-8d4e-{n:012x}");
    let key = format!("user-{}", n % 5_000);
    Message::new(topic, crate::raw::payload(n, payload_bytes))
        .and_then(|m| m.with_unique_key(&id.replace('-', "").to_uppercase()))
        .and_then(|m| m.with_keys([&id, &key]))
        .and_then(|m| m.with_property("outhaul-id", &id))
        .and_then(|m| m.with_property("outhaul-key", &key))
        .and_then(|m| m.with_property("outhaul-position", &format!("0:{n}")))
        .expect("a message")
}
