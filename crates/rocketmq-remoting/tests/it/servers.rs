//! Where the servers are: the shared brokers that `./dev test` starts, and own ones ([`guarded`]) for what those are not.
//! A missing variable is a failure with its remedy, never a skipped test.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use outhaul_testkit::servers::rocketmq::{Account, OwnRocketMq, RocketMq};
use rocketmq_remoting::Credentials;
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Master, Where};
use rocketmq_remoting::connection::Address;
use rocketmq_remoting::message::{Message, MessageQueue};
use rocketmq_remoting::request::CreateTopic;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

/// No single step of a test takes longer, unless it waits for the broker's own clockwork.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A generation of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    V4,
    V5,
}

impl Server {
    pub fn kit(self) -> RocketMq {
        match self {
            Self::V4 => RocketMq::V4,
            Self::V5 => RocketMq::V5,
        }
    }

    pub fn is_5(self) -> bool {
        self == Self::V5
    }

    /// For the shared broker.
    pub fn options(self) -> ClientOptions {
        options(&self.kit().namesrv())
    }

    pub fn client(self) -> Client {
        Client::new(self.options())
    }
}

/// A broker that checks accounts, that wants a certificate of whoever speaks TLS, and that asks about half messages after
/// two seconds instead of minutes. On 5.x it has a slave. One for all tests of the process.
pub async fn guarded(server: Server) -> &'static OwnRocketMq {
    static V4: OnceCell<&OwnRocketMq> = OnceCell::const_new();
    static V5: OnceCell<&OwnRocketMq> = OnceCell::const_new();
    let settings = ["acl", "tls-client", "transactionCheckInterval=1000", "transactionTimeOut=2000", "slave"];
    let (cell, settings) = match server {
        Server::V4 => (&V4, &settings[..4]),
        Server::V5 => (&V5, &settings[..]),
    };
    let start = async || OwnRocketMq::start(server.kit(), settings).await.until_this_process_ends();
    cell.get_or_init(start).await
}

/// For the [`guarded`] broker, without an account.
pub async fn guarded_options(server: Server) -> ClientOptions {
    options(guarded(server).await.namesrv())
}

/// A client of the [`guarded`] broker.
pub async fn guarded_client(server: Server, account: Account) -> Client {
    Client::new(guarded_options(server).await.credentials(credentials(account)))
}

pub fn credentials(account: Account) -> Credentials {
    Credentials::new(account.access_key, account.secret_key)
}

pub fn options(name_servers: &str) -> ClientOptions {
    ClientOptions::new(name_servers).unwrap().request_limit(Duration::from_secs(10))
}

/// A name that no other test uses.
pub fn fresh(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("it_{what}_{:x}_{}", since.as_micros(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_millis()).unwrap()
}

/// A topic of the test's own, with its queues: so many on each master.
pub async fn topic(client: &Client, what: &str, queues: u16) -> (String, Vec<MessageQueue>) {
    let topic = fresh(what);
    Admin::new(client).create_topic(&CreateTopic::new(&topic, queues), &Where::Everywhere).await.unwrap();
    let route = client.route(&topic).await.unwrap();
    assert_eq!(route.queues().len(), usize::from(queues) * route.brokers().count());
    (topic, route.queues().to_vec())
}

/// The only master.
pub async fn master(client: &Client) -> Master {
    let mut masters = Admin::new(client).masters(None).await.unwrap();
    assert_eq!(masters.len(), 1, "one master");
    masters.remove(0)
}

pub async fn master_address(client: &Client) -> Address {
    master(client).await.address
}

pub fn message(topic: &str, unique_key: &str, body: impl Into<String>) -> Message {
    Message::new(topic, body.into()).unwrap().with_unique_key(unique_key).unwrap()
}

pub async fn within<T>(what: impl Future<Output = T>) -> T {
    timeout(LIMIT, what).await.expect("it took too long")
}

/// Looks again until there is something: brokers index and register in the background.
pub async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, limit: Duration, look: impl Fn() -> F) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        sleep(Duration::from_millis(20)).await;
    }
}
