//! Real RocketMQ clusters for tests, and Apache's own client.
//!
//! A test on the shared broker takes [`RocketMq::namesrv`] and a topic of its own ([`topic_name`]). One that stops,
//! kills, pauses or configures a broker takes an [`OwnRocketMq`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::script::Script;
use super::{random_name, variable};

mod java;
#[cfg(test)]
mod tests;

pub use java::{Java, JavaMessage, JavaRun, JavaSent};

/// A generation of RocketMQ that Outhaul is tested on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RocketMq {
    /// 4.9.4.
    V4,
    /// 5.5.0, or what `OUTHAUL_ROCKETMQ5_VERSION` says.
    V5,
}

impl RocketMq {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V5];

    /// As the script, folder names and messages write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::V4 => "rocketmq4",
            Self::V5 => "rocketmq5",
        }
    }

    /// The shared name server, `host:port`. Its one broker is a plain master.
    pub fn namesrv(self) -> String {
        variable(match self {
            Self::V4 => "OUTHAUL_TEST_ROCKETMQ4_NAMESRV",
            Self::V5 => "OUTHAUL_TEST_ROCKETMQ5_NAMESRV",
        })
    }

    /// The authority of the certificates that the shared name server and broker show to who speaks TLS on their plain
    /// ports: good for 127.0.0.1 and localhost.
    pub fn ca_file(self) -> PathBuf {
        PathBuf::from(variable(match self {
            Self::V4 => "OUTHAUL_TEST_ROCKETMQ4_CA",
            Self::V5 => "OUTHAUL_TEST_ROCKETMQ5_CA",
        }))
    }

    /// A client's certificate and key (PEM), by that authority. The shared cluster looks at one, but asks for none.
    pub fn client_certificate(self) -> (PathBuf, PathBuf) {
        let ca_file = self.ca_file();
        (ca_file.with_file_name("client.pem"), ca_file.with_file_name("client.key"))
    }

    /// Apache's client on the shared cluster.
    pub fn java(self) -> Java {
        Java::new(self, &self.namesrv())
    }
}

/// A topic or group name that no other test has.
pub fn topic_name() -> String {
    random_name()
}

/// A process of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The first name server.
    Namesrv,
    /// The one that `second-namesrv` asks for.
    Namesrv2,
    /// The first master.
    BrokerA,
    /// The one that `second-master` asks for.
    BrokerB,
    /// The first master's slave, that `slave` asks for.
    SlaveA,
}

impl Part {
    /// As the script writes it; of a master also its broker name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namesrv => "namesrv",
            Self::Namesrv2 => "namesrv-2",
            Self::BrokerA => "broker-a",
            Self::BrokerB => "broker-b",
            Self::SlaveA => "slave-a",
        }
    }
}

/// An account of a cluster that was started with `acl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its AccessKey.
    pub access_key: &'static str,
    /// Its SecretKey.
    pub secret_key: &'static str,
}

impl Account {
    /// May do everything.
    pub const ADMIN: Self = Self { access_key: "outhaul-admin", secret_key: "outhaul-admin-secret" };
    /// May send to and receive from every topic.
    pub const APP: Self = Self { access_key: "outhaul-app", secret_key: "outhaul-app-secret" };
    /// May receive from every topic.
    pub const READER: Self = Self { access_key: "outhaul-reader", secret_key: "outhaul-reader-secret" };
}

/// A cluster of this test alone, killed and deleted when dropped. What a process wrote is in its part's folder: `log`
/// and `rocketmq.log`.
#[derive(Debug)]
pub struct OwnRocketMq {
    script: Script,
    version: RocketMq,
    namesrv: String,
}

impl OwnRocketMq {
    /// Starts a cluster, by default one name server and one ASYNC_MASTER with ASYNC_FLUSH, and waits until every name
    /// server knows every broker and a slave is connected to its master. Settings are those of `dev.d/rocketmq`:
    /// `"second-master"`, `"slave"`, `"second-namesrv"`, `"acl"`, `"self-signed"`, `"tls-client"`, `"version=5.3.3"`,
    /// any broker setting (`"flushDiskType=SYNC_FLUSH"`), any JVM option (`"-Xmx1g"`).
    ///
    /// # Panics
    /// `OUTHAUL_TEST_ROCKETMQ_SERVICES` is missing, or the cluster does not start.
    pub async fn start(version: RocketMq, settings: &[&str]) -> Self {
        let script = Script::new(java::SCRIPT_VARIABLE, version.name());
        let namesrv = script.run(&["start", version.name()], settings).await;
        Self { script, version, namesrv }
    }

    /// For all tests of this process: it is removed when the process has ended, however it ends.
    pub fn until_this_process_ends(self) -> &'static Self {
        self.script.remove_after_this_process();
        Box::leak(Box::new(self))
    }

    /// What it is.
    pub fn version(&self) -> RocketMq {
        self.version
    }

    /// Its name servers, `host:port` with `;` between them. The same over restarts.
    pub fn namesrv(&self) -> &str {
        &self.namesrv
    }

    /// Where a process listens. The same over restarts.
    pub async fn address(&self, part: Part) -> SocketAddr {
        self.script.run(&["url"], &[part.name()]).await.parse().expect("an address of digits")
    }

    /// Where all of it is.
    pub fn folder(&self) -> &Path {
        self.script.folder()
    }

    /// The authority of its certificates, see [`RocketMq::ca_file`]; also of its clients'.
    pub fn ca_file(&self) -> PathBuf {
        self.folder().join("ca.pem")
    }

    /// A client's certificate and key (PEM), which a cluster started with `"tls-client"` demands.
    pub fn client_certificate(&self) -> (PathBuf, PathBuf) {
        (self.folder().join("client.pem"), self.folder().join("client.key"))
    }

    /// Apache's client, connected to its name servers.
    pub fn java(&self) -> Java {
        Java::new(self.version, &self.namesrv)
    }

    /// Kills processes with SIGKILL, and waits until they are gone. No part means all, here and below.
    pub async fn kill9(&self, parts: &[Part]) {
        self.act("kill", parts).await;
    }

    /// Shuts them down as an operator would. A broker takes 5 to 25 seconds.
    pub async fn stop(&self, parts: &[Part]) {
        self.act("stop", parts).await;
    }

    /// Starts them again on the same stores and ports (stops first what runs), and waits until they serve.
    pub async fn restart(&self, parts: &[Part]) {
        self.act("restart", parts).await;
    }

    /// SIGSTOP: they accept connections and never answer.
    pub async fn pause(&self, parts: &[Part]) {
        self.act("pause", parts).await;
    }

    /// Lets paused ones go on.
    pub async fn resume(&self, parts: &[Part]) {
        self.act("resume", parts).await;
    }

    /// Keeps a copy of what brokers have stored until now, which takes milliseconds; they may run.
    pub async fn snapshot(&self, name: &str, brokers: &[Part]) {
        let mut rest = vec![name];
        rest.extend(brokers.iter().map(|part| part.name()));
        self.script.run(&["snapshot"], &rest).await;
    }

    /// Kills the brokers of a snapshot, puts their stores back and starts them: whatever they acknowledged since is
    /// forgotten, topics too. It can be done again with the same snapshot.
    pub async fn rollback(&self, name: &str) {
        self.script.run(&["rollback"], &[name]).await;
    }

    async fn act(&self, verb: &str, parts: &[Part]) {
        let parts: Vec<_> = parts.iter().map(|part| part.name()).collect();
        self.script.run(&[verb], &parts).await;
    }
}
