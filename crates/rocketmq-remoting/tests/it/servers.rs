//! Where the servers are.
//!
//! | variable | what |
//! |---|---|
//! | `OUTHAUL_TEST_ROCKETMQ4_NAMESRV`, `…5_NAMESRV` | `host:port` of a name server with one plain broker |
//! | `OUTHAUL_TEST_ROCKETMQ4_TLS` | a folder as `tests/make-certificates.sh` makes it, with `ca.pem`, `client.pem`, `client.key` (made by that authority) and `other-ca.pem` (which signed nothing); the 4.9 servers above have a certificate of `ca.pem` for [`TLS_NAME`], and want one of clients (`tls.server.need.client.auth=require`) |
//! | `OUTHAUL_TEST_ROCKETMQ4_ACL_NAMESRV`, `…5_ACL_NAMESRV` | a name server with one broker that checks accounts |
//! | `OUTHAUL_TEST_ROCKETMQ4_ACL_ACCOUNTS`, `…5_ACL_ACCOUNTS` | a file with lines `ADMIN_ACCESS_KEY=`, `ADMIN_SECRET_KEY=`, and the same with `APP_` (may send and receive) and `READER_` (may receive) |
//!
//! Tests of transactions wait for the broker's checks: `transactionCheckInterval` and `transactionTimeOut` of a few
//! seconds make them quick.

use std::collections::HashMap;
use std::env;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rocketmq_remoting::Credentials;
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Master, Where};
use rocketmq_remoting::connection::Address;
use rocketmq_remoting::message::{Message, MessageQueue};
use rocketmq_remoting::request::CreateTopic;
use tokio::time::{Instant, sleep, timeout};

/// The name in the TLS certificate of the 4.9 servers.
pub const TLS_NAME: &str = "broker.test";
/// No single step of a test takes longer, unless it waits for the broker's own clockwork.
pub const LIMIT: Duration = Duration::from_secs(20);

/// A generation of servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    V4,
    V5,
}

/// A variable, or a failure that says what to do.
fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: these tests need real RocketMQ servers; see tests/it/servers.rs for what it holds")
    })
}

impl Server {
    fn number(self) -> u8 {
        match self {
            Self::V4 => 4,
            Self::V5 => 5,
        }
    }

    pub fn is_5(self) -> bool {
        self == Self::V5
    }

    pub fn options(self) -> ClientOptions {
        options(&variable(&format!("OUTHAUL_TEST_ROCKETMQ{}_NAMESRV", self.number())))
    }

    pub fn client(self) -> Client {
        Client::new(self.options())
    }

    pub fn acl_options(self) -> ClientOptions {
        options(&variable(&format!("OUTHAUL_TEST_ROCKETMQ{}_ACL_NAMESRV", self.number())))
    }

    /// `admin`, `app` or `reader`.
    pub fn account(self, who: &str) -> (String, String) {
        let file = variable(&format!("OUTHAUL_TEST_ROCKETMQ{}_ACL_ACCOUNTS", self.number()));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
        let lines: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('=')).collect();
        let of = |what: &str| lines[format!("{}_{what}", who.to_uppercase()).as_str()].to_owned();
        (of("ACCESS_KEY"), of("SECRET_KEY"))
    }

    pub fn acl_client(self, who: &str) -> Client {
        let (access_key, secret_key) = self.account(who);
        Client::new(self.acl_options().credentials(Credentials::new(access_key, secret_key)))
    }
}

pub fn tls_folder() -> PathBuf {
    variable("OUTHAUL_TEST_ROCKETMQ4_TLS").into()
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

/// A topic of the test's own, with its queues.
pub async fn topic(client: &Client, what: &str, queues: u16) -> (String, Vec<MessageQueue>) {
    let topic = fresh(what);
    Admin::new(client).create_topic(&CreateTopic::new(&topic, queues), &Where::Everywhere).await.unwrap();
    let route = client.route(&topic).await.unwrap();
    assert_eq!(route.queues().len(), usize::from(queues));
    (topic, route.queues().to_vec())
}

/// The only master.
pub async fn master(client: &Client) -> Master {
    let mut masters = Admin::new(client).masters(None).await.unwrap();
    assert_eq!(masters.len(), 1, "these tests want one broker");
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
