//! Apache's own client (`dev.d/java`), a process for each command.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use tokio::process::{Child, Command};

use super::{Account, RocketMq};
use crate::servers::variable;

pub(super) const SCRIPT_VARIABLE: &str = "OUTHAUL_TEST_ROCKETMQ_SERVICES";

/// Limit of one command; `consume` ends by itself before it.
const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// Apache's client of one version, for one cluster. `dev.d/rocketmq java rocketmq4 help` tells its commands; each takes
/// about a second to start.
#[derive(Clone, Debug)]
pub struct Java {
    version: RocketMq,
    namesrv: String,
    before: Vec<String>,
    after: Vec<String>,
}

impl Java {
    /// For any name servers.
    pub fn new(version: RocketMq, namesrv: &str) -> Self {
        Self { version, namesrv: namesrv.to_owned(), before: Vec::new(), after: Vec::new() }
    }

    /// With an account.
    #[must_use]
    pub fn signed(mut self, account: Account) -> Self {
        let words = ["--access-key", account.access_key, "--secret-key", account.secret_key];
        self.after.extend(words.map(str::to_owned));
        self
    }

    /// Over TLS, with servers of this authority only.
    #[must_use]
    pub fn tls(mut self, ca_file: &std::path::Path) -> Self {
        self.before.push("-Dtls.test.mode.enable=false".to_owned());
        self.before.push("-Dtls.client.authServer=true".to_owned());
        self.before.push(format!("-Dtls.client.trustCertPath={}", ca_file.display()));
        self.after.push("--tls".to_owned());
        self
    }

    /// Makes a topic with so many queues on every master, and waits until the name server knows.
    pub async fn create_topic(&self, topic: &str, queues: u32) {
        self.run("topic", &["--topic", topic, "--queues", &queues.to_string()]).await;
    }

    /// `consume`: the messages, in the order in which its listener got them.
    pub async fn consume(&self, topic: &str, arguments: &[&str]) -> Vec<JavaMessage> {
        let lines = self.run("consume", &[&["--topic", topic], arguments].concat()).await;
        lines.iter().map(JavaMessage::new).collect()
    }

    /// `produce`: what each send was answered.
    pub async fn produce(&self, topic: &str, arguments: &[&str]) -> Vec<JavaSent> {
        let lines = self.run("produce", &[&["--topic", topic], arguments].concat()).await;
        lines.iter().filter(|line| !line["status"].is_null()).map(JavaSent::new).collect()
    }

    /// What the admin tool finds under a UNIQ_KEY, if anything.
    pub async fn query_by_unique_key(&self, topic: &str, key: &str) -> Option<JavaMessage> {
        let run = self.start("query", &["--topic", topic, "--unique-key", key]);
        run.try_finish().await.ok()?.first().map(JavaMessage::new)
    }

    /// What the admin tool finds under one of the words in KEYS.
    pub async fn query_by_key(&self, topic: &str, key: &str) -> Vec<JavaMessage> {
        self.run("query", &["--topic", topic, "--key", key]).await.iter().map(JavaMessage::new).collect()
    }

    /// Any command: the JSON objects that it printed.
    ///
    /// # Panics
    /// It failed, or took too long.
    pub async fn run(&self, command: &str, arguments: &[&str]) -> Vec<Value> {
        self.start(command, arguments).finish().await
    }

    /// Starts a command that runs while the test goes on.
    ///
    /// # Panics
    /// `OUTHAUL_TEST_ROCKETMQ_SERVICES` is missing.
    pub fn start(&self, command: &str, arguments: &[&str]) -> JavaRun {
        let mut process = Command::new(variable(SCRIPT_VARIABLE));
        process.args(["java", self.version.name()]).args(&self.before).arg(command);
        process.args(["--namesrv", &self.namesrv]).args(&self.after).args(arguments);
        process.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        JavaRun { command: command.to_owned(), child: process.spawn().expect("the script runs") }
    }
}

/// A command that runs. It is killed when dropped.
#[derive(Debug)]
pub struct JavaRun {
    command: String,
    child: Child,
}

impl JavaRun {
    /// Waits for its end: the JSON objects that it printed.
    ///
    /// # Panics
    /// It failed, or took too long.
    pub async fn finish(self) -> Vec<Value> {
        let command = self.command.clone();
        self.try_finish().await.unwrap_or_else(|error| panic!("Java client, {command}: {error}"))
    }

    /// The same; the error is what it wrote to standard error.
    pub async fn try_finish(self) -> Result<Vec<Value>, String> {
        let output = tokio::time::timeout(COMMAND_LIMIT, self.child.wait_with_output()).await;
        let output = output.map_err(|_| "it did not end in time".to_owned())?.map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        text.lines().map(|line| serde_json::from_str(line).map_err(|error| format!("{error}: {line}"))).collect()
    }
}

/// A message as Apache's client sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct JavaMessage {
    /// `MessageExt.getMsgId`: the UNIQ_KEY, if there is one.
    pub message_id: String,
    /// The property UNIQ_KEY.
    pub unique_key: Option<String>,
    /// The property KEYS.
    pub keys: Option<String>,
    /// The property TAGS.
    pub tags: Option<String>,
    /// All of them, also the client's own MIN_OFFSET and MAX_OFFSET.
    pub properties: BTreeMap<String, String>,
    /// Decompressed.
    pub body: Vec<u8>,
    /// Which queue of its broker.
    pub queue_id: u64,
    /// Where in the queue.
    pub queue_offset: u64,
    /// The broker, if it came from a consumer.
    pub broker: Option<String>,
    /// When the listener got it, in milliseconds of the machine's clock, if it came from a consumer.
    pub received_at_ms: Option<u64>,
    /// All else.
    pub line: Value,
}

impl JavaMessage {
    fn new(line: &Value) -> Self {
        let properties = line["properties"].as_object().into_iter().flatten();
        Self {
            message_id: text(&line["msgId"]).unwrap_or_default(),
            unique_key: text(&line["uniqKey"]),
            keys: text(&line["keys"]),
            tags: text(&line["tags"]),
            properties: properties.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect(),
            body: STANDARD.decode(line["body"].as_str().unwrap_or_default()).expect("the helper's Base64"),
            queue_id: line["queueId"].as_u64().expect("a queue"),
            queue_offset: line["queueOffset"].as_u64().expect("an offset"),
            broker: text(&line["brokerName"]),
            received_at_ms: line["receivedTimestamp"].as_u64(),
            line: line.clone(),
        }
    }
}

/// What one send of Apache's client was answered; a batch is one send.
#[derive(Clone, Debug, PartialEq)]
pub struct JavaSent {
    /// `SEND_OK`, `FLUSH_DISK_TIMEOUT`, `FLUSH_SLAVE_TIMEOUT` or `SLAVE_NOT_AVAILABLE`.
    pub status: String,
    /// The key that it was sent with (of a batch: the first).
    pub key: String,
    /// UNIQ_KEYs, one a message.
    pub message_ids: Vec<String>,
    /// Offset ids, one a message; none for a transaction.
    pub offset_ids: Vec<String>,
    /// The broker.
    pub broker: String,
    /// Which queue of its broker.
    pub queue_id: u64,
    /// Of the first message.
    pub queue_offset: u64,
}

impl JavaSent {
    fn new(line: &Value) -> Self {
        let list = |name: &str| {
            let joined = text(&line[name]).unwrap_or_default();
            joined.split(',').filter(|id| !id.is_empty()).map(str::to_owned).collect()
        };
        Self {
            status: text(&line["status"]).unwrap_or_default(),
            key: text(&line["key"]).unwrap_or_default(),
            message_ids: list("msgId"),
            offset_ids: list("offsetMsgId"),
            broker: text(&line["brokerName"]).unwrap_or_default(),
            queue_id: line["queueId"].as_u64().expect("a queue"),
            queue_offset: line["queueOffset"].as_u64().expect("an offset"),
        }
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}
