//! How a store is opened and what `init` makes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub use outhaul_core::outbox::{ColumnNames, PayloadType};

use crate::error::{StoreError, StoreErrorKind};

/// A database family of this project.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatabaseKind {
    /// The embedded one.
    Sqlite,
    /// MySQL 8 and MariaDB: one code, what differs is asked of the server.
    MySql,
    /// PostgreSQL 12 and later.
    Postgres,
}

impl fmt::Display for DatabaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sqlite => "sqlite",
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        })
    }
}

/// How to check the server's certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whether to use TLS at all. Never chosen silently: a URL with `sslmode=require` (PostgreSQL) or
    /// `ssl-mode=REQUIRED` (MySQL) sets it too.
    pub required: bool,
    /// PEM file with the authorities to trust instead of the built-in ones.
    pub ca_file: Option<PathBuf>,
    /// Accept any certificate. For tests only; every start says so.
    pub insecure: bool,
}

/// How to open a store.
#[derive(Clone)]
pub struct StoreOptions {
    /// `sqlite:PATH` (or a path that ends in .db, .sqlite, .sqlite3), `mysql://…`, `mariadb://…`, `postgres://…`,
    /// `postgresql://…`.
    pub url: String,
    /// What every table name begins with, besides its own name. Empty by default: `outbox`, `outbox_log`, …
    pub table_prefix: String,
    /// Name of the outbox table itself, without the prefix. Default `outbox`.
    pub outbox_table: String,
    /// Column names of the outbox table.
    pub columns: ColumnNames,
    /// Payloads above this are not fetched. Bytes; default 4 MiB.
    pub max_message_bytes: u64,
    /// Limit of a statement. Default 10 s.
    pub statement_timeout: Duration,
    /// Limit of waiting for a lock. Default 1 s.
    pub lock_timeout: Duration,
    /// Limit of connecting. Default 5 s.
    pub connect_timeout: Duration,
    /// TLS.
    pub tls: Tls,
    /// An existing table whose rows are marked instead of moved. `outbox_table` then names the table that native mode
    /// would have, which stays empty, or into which they are moved ([`StatusTable::migrate`]).
    pub status: Option<StatusTable>,
}

/// A table of the application's own with a status column: `id, topic, payload, status, created_at, sent_at`. Rows are
/// delivered while they wait, and marked as sent. Nothing else of it is changed, and nothing is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusTable {
    /// Its name, as it is: no prefix is put in front.
    pub table: String,
    /// Column that identifies a row: one that is unique.
    pub id: String,
    /// Column with the topic.
    pub topic: String,
    /// Column with the key. None: no keys, so no order.
    pub key: Option<String>,
    /// Column with headers, a JSON object of strings. None: no headers.
    pub headers: Option<String>,
    /// Column with the payload.
    pub payload: String,
    /// Column with the time of creation. Rows are taken in its order, then in that of their ids. None: of their ids alone.
    pub created_at: Option<String>,
    /// Column with the status.
    pub status: String,
    /// Column that is set to the present when a row is marked as sent.
    pub sent_at: Option<String>,
    /// Status of a row that waits.
    pub pending: String,
    /// Status of a row that was delivered.
    pub sent: String,
    /// Status of a row that will not be delivered by itself any more. None: it stays as one that waits, is listed as
    /// parked, and left out of polls.
    pub dead: Option<String>,
    /// Least time between two polls. None: as short as costs allow.
    pub interval: Option<Duration>,
    /// Most rows of a poll. None: as many as the relay takes.
    pub batch: Option<u32>,
    /// Where rows go that were delivered long ago. None: they stay.
    pub archive: Option<Archive>,
    /// Rows that wait are moved into the outbox table, which applications may insert into as well, and marked as sent by
    /// that. What the log holds of them is delivered from there.
    pub migrate: bool,
}

/// Where the rows of a status table go in the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// Name of the table, as it is. It has the columns of the status table.
    pub table: String,
    /// Rows that were delivered go there this long after they were created.
    pub after: Duration,
    /// They leave it this long after they were created. None: never.
    pub purge_after: Option<Duration>,
}

impl Default for StatusTable {
    fn default() -> Self {
        let own = |name: &str| name.to_owned();
        Self {
            table: own("outbox"),
            id: own("id"),
            topic: own("topic"),
            key: None,
            headers: None,
            payload: own("payload"),
            created_at: Some(own("created_at")),
            status: own("status"),
            sent_at: Some(own("sent_at")),
            pending: own("PENDING"),
            sent: own("SENT"),
            dead: None,
            interval: None,
            batch: None,
            archive: None,
            migrate: false,
        }
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOptions")
            .field("url", &self.redacted_url())
            .field("outbox_table", &self.outbox())
            .finish_non_exhaustive()
    }
}

impl StoreOptions {
    /// Options with defaults for a URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            table_prefix: String::new(),
            outbox_table: "outbox".into(),
            columns: ColumnNames::default(),
            max_message_bytes: outhaul_core::outbox::MESSAGE_MAX_BYTES,
            statement_timeout: Duration::from_secs(10),
            lock_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(5),
            tls: Tls::default(),
            status: None,
        }
    }

    /// The database family that the URL names.
    ///
    /// # Errors
    /// [`StoreErrorKind::Configuration`]: it names none.
    pub fn kind(&self) -> Result<DatabaseKind, StoreError> {
        let scheme = self.url.split_once(':').map_or("", |(s, _)| s);
        match scheme {
            "sqlite" => Ok(DatabaseKind::Sqlite),
            "mysql" | "mariadb" => Ok(DatabaseKind::MySql),
            "postgres" | "postgresql" => Ok(DatabaseKind::Postgres),
            _ if [".db", ".sqlite", ".sqlite3"].iter().any(|end| self.url.ends_with(end)) => Ok(DatabaseKind::Sqlite),
            _ => Err(StoreError::new(
                StoreErrorKind::Configuration,
                "the database URL must begin with sqlite:, mysql://, mariadb:// or postgres://",
            )),
        }
    }

    /// The URL without its password.
    pub fn redacted_url(&self) -> String {
        let Some((scheme, rest)) = self.url.split_once("://") else { return self.url.clone() };
        let Some((user, host)) = rest.rsplit_once('@') else { return self.url.clone() };
        let name = user.split(':').next().unwrap_or_default();
        let host = host.split('?').next().unwrap_or_default();
        format!("{scheme}://{name}@{host}")
    }

    /// Full name of the outbox table.
    pub fn outbox(&self) -> String {
        format!("{}{}", self.table_prefix, self.outbox_table)
    }

    /// Full name of one of the other tables, `outbox_log` and the like.
    pub fn table(&self, name: &str) -> String {
        format!("{}{name}", self.table_prefix)
    }
}

/// What `init` makes.
#[derive(Clone, Debug)]
pub struct InitPlan {
    /// Number of shards, 1 to 1024. Fixed afterwards. SQLite has one.
    pub shards: u16,
    /// Type of `payload`.
    pub payload: PayloadType,
    /// What the shard is computed from when the application gives none: true: `msg_key`, or `id` where it is NULL;
    /// false: `topic`.
    pub shard_by_key: bool,
}

impl Default for InitPlan {
    fn default() -> Self {
        Self { shards: 1, payload: PayloadType::Bytes, shard_by_key: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        let shown = |url: &str| format!("{:?}", StoreOptions::new(url));
        assert!(!shown("mysql://relay:s3cret@127.0.0.1:3306/shop?x=s3cret").contains("s3cret"));
        assert!(!shown("postgres://relay:s3c@ret@h/shop").contains("s3c"));
    }
}
