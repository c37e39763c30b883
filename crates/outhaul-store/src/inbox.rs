//! The `inbox_message` table of a consumer's database: where the `inbox` destination delivers.

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{StoreError, StoreErrorKind};
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
use crate::options::DatabaseKind;
use crate::options::StoreOptions;

/// A message for an inbox.
#[derive(Clone, Debug)]
pub struct InboxMessage {
    /// Outbox id: with the consumer's name, the primary key.
    pub id: String,
    /// Topic.
    pub topic: String,
    /// Key.
    pub key: Option<String>,
    /// JSON object of strings, as stored.
    pub headers: Option<String>,
    /// Payload.
    pub payload: Bytes,
    /// `SHARD:POSITION` where it came from.
    pub position: String,
}

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxOutcome {
    /// It is in the table now.
    Stored,
    /// It was in the table already.
    Duplicate,
    /// The table refuses this message (a value too long or of the wrong kind).
    Refused(String),
    /// Not stored, because an earlier message of its key in this batch was refused: it must not overtake that one.
    Behind,
}

/// A database with an `inbox_message` table.
#[async_trait]
pub trait Inbox: Send + Sync + 'static {
    /// The DDL of `inbox` and `inbox_message`.
    fn ddl(&self) -> String;

    /// Makes the tables if they are missing.
    ///
    /// # Errors
    /// Whatever the database says.
    async fn init(&self) -> Result<(), StoreError>;

    /// Looks whether the table is there and may be written.
    ///
    /// # Errors
    /// `NotInitialised`, `Permission`, `ReadOnly`, or whatever connecting can bring.
    async fn inspect(&self) -> Result<(), StoreError>;

    /// Stores a batch in one transaction; what is there already is left as it is. Ids compare by bytes. One outcome a
    /// message, in order. When the server refuses one message for what it holds, the others are stored all the same,
    /// except later ones of its key, which are [`InboxOutcome::Behind`].
    /// `lane` picks one of several connections (for order: one lane's calls never overlap).
    ///
    /// # Errors
    /// Nothing was stored, except `CommitUnknown` (storing again is harmless).
    async fn deliver(
        &self,
        lane: usize,
        consumer: &str,
        messages: &[InboxMessage],
    ) -> Result<Vec<InboxOutcome>, StoreError>;

    /// Closes all connections.
    async fn close(&self);
}

/// Opens the inbox of the database that a URL names, with up to `connections` connections.
///
/// # Errors
/// As [`crate::open`].
pub async fn open(options: StoreOptions, connections: usize) -> Result<std::sync::Arc<dyn Inbox>, StoreError> {
    match options.kind()? {
        #[cfg(feature = "sqlite")]
        DatabaseKind::Sqlite => Ok(std::sync::Arc::new(crate::sqlite::SqliteInbox::open(options).await?)),
        #[cfg(feature = "mysql")]
        DatabaseKind::MySql => Ok(std::sync::Arc::new(crate::mysql::MySqlInbox::open(options, connections).await?)),
        #[cfg(feature = "postgres")]
        DatabaseKind::Postgres => {
            Ok(std::sync::Arc::new(crate::postgres::PostgresInbox::open(options, connections).await?))
        }
        #[allow(unreachable_patterns)]
        kind => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            format!("{kind} is not in this build (inbox with {connections} connections)"),
        )),
    }
}
