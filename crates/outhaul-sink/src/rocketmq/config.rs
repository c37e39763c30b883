//! Keys of a destination of kind `rocketmq`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use outhaul_core::receipt::AckLevel;
use rocketmq_remoting::client::ClientOptions;
use rocketmq_remoting::message::{check_group, check_topic};
use rocketmq_remoting::request::SendStatus;
use rocketmq_remoting::tls::{Tls, TlsOptions};
use rocketmq_remoting::{Credentials, Serialization};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::ack::Durability;
use super::broker::Facts;
use crate::codes::SinkCode;
use crate::settings::{Key, read, refuse};
use crate::sink::SinkError;

/// What becomes of the keys whose queue is on a broker that the name servers no longer list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnMissingBroker {
    /// They wait for it: each key stays in its queue, so its order holds.
    #[default]
    Wait,
    /// They go to the queues that are left, as Java's producers do: a key may change its queue, and its order is kept
    /// only within each.
    Rehash,
}

/// What becomes of a message that is stored, but less safely than the broker is configured for (FLUSH_DISK_TIMEOUT,
/// FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnWeakAck {
    /// It is delivered; its receipt has the status and the lower level.
    #[default]
    Accept,
    /// It is sent again until an answer is as strong as configured, and meanwhile the broker counts as down: consumers
    /// get it more than once.
    Resend,
}

/// Keys of a destination of kind `rocketmq`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RocketMqConfig {
    /// Name servers, `host:port`.
    #[serde(deserialize_with = "one_or_many")]
    pub namesrv: Vec<String>,
    /// Only brokers of this cluster are looked at. Empty: all that the name servers know.
    #[serde(default)]
    pub cluster: String,
    /// What stands before every topic.
    #[serde(default)]
    pub topic_prefix: String,
    /// Tag of messages without a header `tags`. Empty: none.
    #[serde(default)]
    pub tag: String,
    /// Whether a topic that does not exist is created.
    #[serde(default)]
    pub create_topics: bool,
    /// Queues of a created topic, on each broker.
    #[serde(default = "default_queues")]
    pub queues: u16,
    /// How many parts of a lane are sent at the same time.
    #[serde(default = "default_slots")]
    pub slots: u32,
    /// What becomes of keys whose broker is not there.
    #[serde(default)]
    pub on_missing_broker: OnMissingBroker,
    /// What becomes of answers that are weaker than configured.
    #[serde(default)]
    pub on_weak_ack: OnWeakAck,
    /// Whether `require_ack = "flushed"` may be met by watching what the broker has flushed.
    #[serde(default = "default_flush_barrier")]
    pub flush_barrier: bool,
    /// Name of the producer group.
    #[serde(default = "default_group")]
    pub producer_group: String,
    /// What brokers know the client by. Empty: made from host, process and a random number.
    #[serde(default)]
    pub client_id: String,
    /// Account. Empty: requests are not signed.
    #[serde(default)]
    pub access_key: String,
    /// Its secret.
    #[serde(default)]
    pub secret_key: String,
    /// A temporary token of a security service. Empty: none.
    #[serde(default)]
    pub security_token: String,
    /// Whether connections are TLS.
    #[serde(default)]
    pub tls: bool,
    /// PEM file with the authorities that servers are trusted by.
    #[serde(default)]
    pub tls_ca_file: PathBuf,
    /// PEM file with the client's certificate.
    #[serde(default)]
    pub tls_cert_file: PathBuf,
    /// PEM file with its key.
    #[serde(default)]
    pub tls_key_file: PathBuf,
    /// Name that every server's certificate must have. Empty: the host of its address.
    #[serde(default)]
    pub tls_server_name: String,
    /// Whether any certificate is accepted.
    #[serde(default)]
    pub tls_insecure: bool,
    /// Milliseconds within which a broker must have answered.
    #[serde(default = "default_request_limit_ms")]
    pub request_limit_ms: u64,
    /// The most requests under way to one broker.
    #[serde(default = "default_max_in_flight")]
    pub max_in_flight: u32,
}

const fn default_queues() -> u16 {
    8
}
const fn default_slots() -> u32 {
    48
}
const fn default_flush_barrier() -> bool {
    true
}
fn default_group() -> String {
    "outhaul".into()
}
const fn default_request_limit_ms() -> u64 {
    2_500
}
const fn default_max_in_flight() -> u32 {
    64
}

/// A list of texts, or one text with commas or semicolons between them.
fn one_or_many<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Given {
        One(String),
        Many(Vec<String>),
    }
    let all = match Given::deserialize(from)? {
        Given::One(text) => vec![text],
        Given::Many(list) => list,
    };
    let split = all.iter().flat_map(|text| text.split([',', ';'])).map(str::trim).filter(|one| !one.is_empty());
    Ok(split.map(str::to_owned).collect())
}

/// The most slots and the most queues of a created topic.
const MAX_SLOTS: u32 = 1_024;
const MAX_QUEUES: u16 = 1_024;
/// The most requests under way to one broker: far below the 10,000 that its send queue holds.
const MAX_IN_FLIGHT: u32 = 1_024;

/// The keys, for reference pages.
pub const KEYS: [Key; 23] = [
    Key { name: "namesrv", default: None, help: "name servers, a list of \"HOST:PORT\"; or one text with commas" },
    Key {
        name: "cluster",
        default: Some("\"\""),
        help: "only brokers of this cluster count; empty: all that the name servers know",
    },
    Key {
        name: "topic_prefix",
        default: Some("\"\""),
        help: "what is put before every topic; RocketMQ's topics are 1 to 127 of a-zA-Z0-9_%|-",
    },
    Key { name: "tag", default: Some("\"\""), help: "tag (TAGS) of messages that have no header `tags`; empty: none" },
    Key {
        name: "create_topics",
        default: Some("false"),
        help: "whether a topic that does not exist is created, on every broker (with ACL this takes an \
               administrator's account); otherwise its messages wait and fail with the reason",
    },
    Key { name: "queues", default: Some("8"), help: "queues of a created topic on each broker, 1 to 1024" },
    Key {
        name: "slots",
        default: Some("48"),
        help: "parts of a lane that are sent at the same time, 1 to 1024; a multiple of the number of queues of every \
               topic, or one broker that is down holds up the keys of others",
    },
    Key {
        name: "on_missing_broker",
        default: Some("\"wait\""),
        help: "keys whose queue is on a broker that is gone: \"wait\" for it (order per key holds), or \"rehash\" to \
               the queues that are left, as Java's producers do",
    },
    Key {
        name: "on_weak_ack",
        default: Some("\"accept\""),
        help: "FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE (stored, less safely than \
               configured): \"accept\" with the lower level in the receipt, or \"resend\", which makes duplicates",
    },
    Key {
        name: "flush_barrier",
        default: Some("true"),
        help: "with require_ack = \"flushed\" on an ASYNC_FLUSH broker: watch what it has flushed instead of refusing \
               to start",
    },
    Key { name: "producer_group", default: Some("\"outhaul\""), help: "name of the producer group" },
    Key {
        name: "client_id",
        default: Some("\"\""),
        help: "what brokers know this client by; empty: host, process and a random number",
    },
    Key { name: "access_key", default: Some("\"\""), help: "account (AccessKey); empty: requests are not signed" },
    Key {
        name: "secret_key",
        default: Some("\"\""),
        help: "its secret (SecretKey): write `${NAME}` or `${file:PATH}`",
    },
    Key {
        name: "security_token",
        default: Some("\"\""),
        help: "temporary token of a security service, with access_key and secret_key; empty: none",
    },
    Key { name: "tls", default: Some("false"), help: "whether name servers and brokers are spoken to over TLS" },
    Key {
        name: "tls_ca_file",
        default: Some("\"\""),
        help: "PEM file with the authorities that servers must be signed by; needed with tls, unless tls_insecure",
    },
    Key {
        name: "tls_cert_file",
        default: Some("\"\""),
        help: "PEM file with the certificate (and chain) to show to servers that ask for one",
    },
    Key { name: "tls_key_file", default: Some("\"\""), help: "PEM file with its private key" },
    Key {
        name: "tls_server_name",
        default: Some("\"\""),
        help: "name that every server's certificate must have; empty: the host of its address, which for brokers is \
               mostly an IP",
    },
    Key {
        name: "tls_insecure",
        default: Some("false"),
        help: "accept any certificate, for brokers in TLS test mode; every start says so",
    },
    Key {
        name: "request_limit_ms",
        default: Some("2500"),
        help: "milliseconds within which a broker must have answered, 50 to 60000; below send_limit (where that is \
               less and this is not set, four fifths of it)",
    },
    Key {
        name: "max_in_flight",
        default: Some("64"),
        help: "the most requests under way to one broker, 1 to 1024; fewer while it is busy or slow",
    },
];

impl RocketMqConfig {
    /// A destination with the defaults of every key.
    pub fn new(namesrv: impl Into<String>) -> Self {
        Self {
            namesrv: vec![namesrv.into()],
            cluster: String::new(),
            topic_prefix: String::new(),
            tag: String::new(),
            create_topics: false,
            queues: default_queues(),
            slots: default_slots(),
            on_missing_broker: OnMissingBroker::default(),
            on_weak_ack: OnWeakAck::default(),
            flush_barrier: default_flush_barrier(),
            producer_group: default_group(),
            client_id: String::new(),
            access_key: String::new(),
            secret_key: String::new(),
            security_token: String::new(),
            tls: false,
            tls_ca_file: PathBuf::new(),
            tls_cert_file: PathBuf::new(),
            tls_key_file: PathBuf::new(),
            tls_server_name: String::new(),
            tls_insecure: false,
            request_limit_ms: default_request_limit_ms(),
            max_in_flight: default_max_in_flight(),
        }
    }

    /// Reads and checks the keys of the destination called `name`.
    ///
    /// # Errors
    /// [`SinkCode::Settings`](crate::SinkCode::Settings). No secret is shown.
    pub fn read(name: &str, settings: &Value) -> Result<Self, SinkError> {
        let config: Self = read(name, settings, &KEYS)?;
        match config.fault() {
            Some(fault) => Err(refuse(name, &fault)),
            None => Ok(config),
        }
    }

    fn fault(&self) -> Option<String> {
        let outside = |name: &str, value: u64, most: u64| {
            (!(1..=most).contains(&value)).then(|| format!("`{name}` must be 1 to {most}"))
        };
        if let Err(e) = ClientOptions::new(&self.namesrv.join(",")) {
            return Some(format!("`namesrv`: {e}"));
        }
        if !self.topic_prefix.is_empty() && check_topic(&self.topic_prefix).is_err() {
            return Some("`topic_prefix` takes letters, digits and _ % | - only".into());
        }
        if self.tag.contains(|c: char| c.is_whitespace() || c.is_control()) || self.tag.contains("||") {
            return Some("`tag` must be one word without `||`".into());
        }
        if check_group(&self.producer_group).is_err() {
            return Some("`producer_group` is 1 to 255 letters, digits and _ % | -".into());
        }
        if self.access_key.is_empty() != self.secret_key.is_empty() {
            return Some("`access_key` and `secret_key` belong together".into());
        }
        if !self.security_token.is_empty() && self.access_key.is_empty() {
            return Some("`security_token` needs `access_key` and `secret_key`".into());
        }
        if !(50..=60_000).contains(&self.request_limit_ms) {
            return Some("`request_limit_ms` must be 50 to 60000".into());
        }
        self.tls_fault()
            .or_else(|| outside("slots", self.slots.into(), MAX_SLOTS.into()))
            .or_else(|| outside("queues", self.queues.into(), MAX_QUEUES.into()))
            .or_else(|| outside("max_in_flight", self.max_in_flight.into(), MAX_IN_FLIGHT.into()))
    }

    fn tls_fault(&self) -> Option<String> {
        let named = |path: &Path| !path.as_os_str().is_empty();
        let any = named(&self.tls_ca_file) || named(&self.tls_cert_file) || named(&self.tls_key_file);
        if !self.tls && (any || self.tls_insecure || !self.tls_server_name.is_empty()) {
            Some("keys that begin with `tls_` need `tls = true`".into())
        } else if self.tls && named(&self.tls_ca_file) == self.tls_insecure {
            Some("`tls` needs either `tls_ca_file` or `tls_insecure = true`".into())
        } else if named(&self.tls_cert_file) != named(&self.tls_key_file) {
            Some("`tls_cert_file` and `tls_key_file` belong together".into())
        } else {
            None
        }
    }

    /// Whether what is stored with this status, which is not SEND_OK, is not delivered: if so it was asked for, or if it
    /// proves less than is demanded and nothing proves it later.
    pub(super) fn is_too_weak(&self, status: SendStatus, broker: &Facts, demanded: Option<AckLevel>) -> bool {
        let Some(least) = demanded.filter(|_| self.on_weak_ack == OnWeakAck::Accept) else {
            return self.on_weak_ack == OnWeakAck::Resend;
        };
        let enough = |d: &Durability| d.meets_with(status, least) || self.is_proven_later(d, least);
        !broker.durability.as_ref().is_some_and(enough)
    }

    /// Whether a broker that does not prove this with its answer does so later: by the flush barrier.
    pub(super) fn is_proven_later(&self, broker: &Durability, least: AckLevel) -> bool {
        !broker.meets(least) && self.flush_barrier && broker.can_show(least)
    }

    /// Limit of a request.
    pub(super) fn request_limit(&self) -> Duration {
        Duration::from_millis(self.request_limit_ms)
    }

    /// Settings of the client. Reads the files of TLS.
    ///
    /// # Errors
    /// [`SinkCode::Settings`], [`SinkCode::RocketMqTls`].
    pub fn client_options(&self) -> Result<ClientOptions, SinkError> {
        let unusable = |what: String| SinkError::of(SinkCode::RocketMqTls, what);
        let mut options = ClientOptions::new(&self.namesrv.join(","))
            .map_err(|e| SinkError::of(SinkCode::Settings, format!("`namesrv`: {e}")))?
            .serialization(Serialization::Binary)
            .request_limit(self.request_limit());
        options.route_limit = self.request_limit();
        options.connection.connect_limit = self.request_limit();
        options.connection.window = self.max_in_flight as usize + 16; // what is not a send goes beside
        if !self.client_id.is_empty() {
            options.client_id = Some(self.client_id.clone());
        }
        if !self.access_key.is_empty() {
            let credentials = Credentials::new(&*self.access_key, &*self.secret_key);
            options = options.credentials(if self.security_token.is_empty() {
                credentials
            } else {
                credentials.with_security_token(&*self.security_token)
            });
        }
        if self.tls {
            options = options.tls(self.make_tls().map_err(unusable)?);
        }
        Ok(options)
    }

    fn make_tls(&self) -> Result<Tls, String> {
        let read = |path: &Path| std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let mut tls = TlsOptions::new();
        if self.tls_insecure {
            tls = tls.danger_accept_any_certificate_of_anybody();
        } else {
            tls = tls.trust(read(&self.tls_ca_file)?);
        }
        if !self.tls_cert_file.as_os_str().is_empty() {
            tls = tls.identity(read(&self.tls_cert_file)?, read(&self.tls_key_file)?);
        }
        if !self.tls_server_name.is_empty() {
            tls = tls.server_name(&*self.tls_server_name);
        }
        tls.build().map_err(|e| e.to_string())
    }
}

impl std::fmt::Debug for RocketMqConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RocketMqConfig")
            .field("namesrv", &self.namesrv)
            .field("topic_prefix", &self.topic_prefix)
            .field("slots", &self.slots)
            .field("signed", &!self.access_key.is_empty())
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_list_of_keys_is_what_is_read() {
        let Value::Object(fields) = serde_json::to_value(RocketMqConfig::new("x:1")).unwrap() else {
            panic!("an object")
        };
        assert_eq!(fields.len(), KEYS.len());
        for key in KEYS {
            let value = fields.get(key.name).unwrap_or_else(|| panic!("{}", key.name));
            assert_eq!(key.default.unwrap_or("[\"x:1\"]"), value.to_string(), "{}", key.name);
        }
    }

    #[test]
    fn name_servers_are_a_list_or_a_text() {
        for given in [json!(["a:1", "b:2"]), json!("a:1, b:2"), json!("a:1;b:2"), json!(["a:1,b:2"])] {
            assert_eq!(RocketMqConfig::read("mq", &json!({"namesrv": given})).unwrap().namesrv, ["a:1", "b:2"]);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_without_a_secret() {
        for (key, value, part) in [
            ("namesrv", json!("host"), "`namesrv`"),
            ("namesrv", json!([]), "`namesrv`"),
            ("namesrv", json!(5), "`namesrv`"),
            ("topic_prefix", json!("a.b"), "`topic_prefix`"),
            ("tag", json!("a b"), "`tag`"),
            ("slots", json!(0), "`slots`"),
            ("queues", json!(2_000), "`queues`"),
            ("max_in_flight", json!(0), "`max_in_flight`"),
            ("request_limit_ms", json!(10), "`request_limit_ms`"),
            ("secret_key", json!("s3cret"), "`access_key`"),
            ("producer_group", json!("a b"), "`producer_group`"),
            ("tls_insecure", json!(true), "`tls = true`"),
            ("tls", json!(true), "`tls_ca_file`"),
            ("on_weak_ack", json!("ignore"), "`on_weak_ack`"),
        ] {
            let mut settings = json!({"namesrv": "a:1"});
            settings[key] = value;
            let text = RocketMqConfig::read("mq", &settings).unwrap_err().to_string();
            assert!(text.starts_with("OUT-2003") && text.contains(part), "{key} {text}");
            assert!(!text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let mut config = RocketMqConfig::new("a:1");
        config.secret_key = "s3cret".into();
        config.security_token = "t0ken".into();
        let text = format!("{config:?}");
        assert!(!text.contains("s3cret") && !text.contains("t0ken"), "{text}");
    }
}
