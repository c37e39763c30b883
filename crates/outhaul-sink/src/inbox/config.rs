//! Keys of a destination of kind `inbox`.

use std::path::PathBuf;

use outhaul_store::{DatabaseKind, StoreOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::settings::{Key, read, refuse};
use crate::sink::SinkError;

/// Keys of a destination of kind `inbox`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InboxConfig {
    /// Database that holds the inbox.
    pub url: String,
    /// Name under which the messages are stored. Empty: the destination's name.
    #[serde(default)]
    pub consumer: String,
    /// Connections, 1 to 64: how many batches are stored at the same time. SQLite always has one.
    #[serde(default = "default_connections")]
    pub connections: u32,
    /// What the names of the inbox tables begin with.
    #[serde(default)]
    pub table_prefix: String,
    /// Whether the tables are made at the start if they are missing.
    #[serde(default = "default_create_table")]
    pub create_table: bool,
    /// PEM file with the authorities to trust instead of the built-in ones. Empty: none.
    #[serde(default)]
    pub tls_ca_file: PathBuf,
}

const fn default_connections() -> u32 {
    4
}

const fn default_create_table() -> bool {
    true
}

/// The most connections to one inbox.
const MAX_CONNECTIONS: u32 = 64;
/// The longest name of a consumer, and the longest prefix, in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The keys, for reference pages.
pub const KEYS: [Key; 6] = [
    Key {
        name: "url",
        default: None,
        help: "database that holds the inbox: sqlite:PATH, mysql://…, mariadb://… or postgres://…; its user needs \
               SELECT and INSERT on inbox_message (MySQL, MariaDB: UPDATE too)",
    },
    Key {
        name: "consumer",
        default: Some("\"\""),
        help: "name under which messages are stored, at most 64 bytes; empty: the destination's name",
    },
    Key {
        name: "connections",
        default: Some("4"),
        help: "batches stored at the same time, 1 to 64; SQLite always has one",
    },
    Key { name: "table_prefix", default: Some("\"\""), help: "what the names of the inbox tables begin with" },
    Key {
        name: "create_table",
        default: Some("true"),
        help: "whether inbox and inbox_message are made at the start if they are missing: the user needs CREATE for it",
    },
    Key {
        name: "tls_ca_file",
        default: Some("\"\""),
        help: "PEM file with the authorities to trust instead of the built-in ones; empty: none",
    },
];

impl InboxConfig {
    /// An inbox with the defaults of every key.
    pub fn new(url: impl Into<String>, consumer: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            consumer: consumer.into(),
            connections: default_connections(),
            table_prefix: String::new(),
            create_table: default_create_table(),
            tls_ca_file: PathBuf::new(),
        }
    }

    /// Reads and checks the keys of the destination called `name`.
    ///
    /// # Errors
    /// [`SinkCode::Settings`](crate::SinkCode::Settings). The URL is never shown.
    pub fn read(name: &str, settings: &Value) -> Result<Self, SinkError> {
        let mut config: Self = read(name, settings, &KEYS)?;
        if config.consumer.is_empty() {
            name.clone_into(&mut config.consumer);
        }
        match config.fault() {
            Some(fault) => Err(refuse(name, &fault)),
            None => Ok(config),
        }
    }

    fn fault(&self) -> Option<String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if let Err(e) = self.options().kind() {
            Some(format!("`url`: {}", e.message))
        } else if self.consumer.is_empty() || self.consumer.len() > MAX_NAME_BYTES {
            Some(format!("`consumer` must have 1 to {MAX_NAME_BYTES} bytes"))
        } else if !(1..=MAX_CONNECTIONS).contains(&self.connections) {
            Some(format!("`connections` must be 1 to {MAX_CONNECTIONS}"))
        } else if self.table_prefix.len() > MAX_NAME_BYTES || !self.table_prefix.chars().all(plain) {
            Some("`table_prefix` may have up to 64 letters, digits and underscores".into())
        } else {
            None
        }
    }

    /// How the database is opened.
    pub fn options(&self) -> StoreOptions {
        let mut options = StoreOptions::new(self.url.clone());
        options.table_prefix.clone_from(&self.table_prefix);
        if !self.tls_ca_file.as_os_str().is_empty() {
            options.tls.ca_file = Some(self.tls_ca_file.clone());
        }
        options
    }

    /// Connections, as far as the database takes several writers.
    pub(super) fn lanes(&self) -> u32 {
        match self.options().kind() {
            Ok(DatabaseKind::Sqlite) => 1,
            _ => self.connections.max(1),
        }
    }
}

impl std::fmt::Debug for InboxConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxConfig")
            .field("url", &self.options().redacted_url())
            .field("consumer", &self.consumer)
            .field("connections", &self.connections)
            .field("table_prefix", &self.table_prefix)
            .field("create_table", &self.create_table)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_list_of_keys_is_what_is_read() {
        let Value::Object(fields) = serde_json::to_value(InboxConfig::new("x", "")).unwrap() else {
            panic!("an object")
        };
        assert_eq!(fields.len(), KEYS.len());
        for key in KEYS {
            let value = fields.get(key.name).unwrap_or_else(|| panic!("{}", key.name));
            assert_eq!(key.default.unwrap_or("\"x\""), value.to_string(), "{}", key.name);
        }
    }

    #[test]
    fn the_consumer_is_the_destination_unless_named() {
        let read = |v| InboxConfig::read("points", &v).unwrap().consumer;
        assert_eq!(read(json!({"url": "sqlite:x"})), "points");
        assert_eq!(read(json!({"url": "sqlite:x", "consumer": "risk"})), "risk");
    }

    #[test]
    fn no_password_is_shown_and_sqlite_has_one_lane() {
        let config = InboxConfig::new("mysql://u:s3cret@h/x", "c");
        assert!(!format!("{config:?}").contains("s3cret"));
        assert_eq!((config.lanes(), InboxConfig::new("sqlite:x", "c").lanes()), (4, 1));
    }
}
