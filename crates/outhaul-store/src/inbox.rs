//! The `inbox_message` table of a consumer's database: where the `inbox` destination delivers, and `outhaul inbox`.

use std::time::Duration;

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

/// How far a consumer has read a source, a queue of a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Names the source, at most 512 bytes.
    pub source: String,
    /// The first offset that the table does not have.
    pub next_offset: i64,
    /// When the newest message that was read had been stored at the source, ms since 1970 by the source's clock; 0: none
    /// was read.
    pub stored_at_ms: i64,
}

/// What was read from a source, from one offset to another.
#[derive(Clone, Debug)]
pub struct Step {
    /// The source.
    pub source: String,
    /// Where the reader believes that the table is. Nothing is stored if it is elsewhere.
    pub before: i64,
    /// Where the table is afterwards.
    pub after: i64,
    /// As [`Place::stored_at_ms`], afterwards.
    pub stored_at_ms: i64,
    /// Messages in their order, perhaps none.
    pub arrivals: Vec<Arrival>,
}

/// A message that was read.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The message.
    pub message: InboxMessage,
    /// Why nobody can handle it as it is: it is stored as dead.
    pub dead: Option<String>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The table is at [`Step::after`].
    Stored {
        /// Messages that the table did not have. The others were there already.
        new: u64,
    },
    /// Nothing was stored: the table was not at [`Step::before`].
    Elsewhere,
    /// Nothing was stored: the table refuses what one of the messages holds.
    Refused(String),
}

/// What a table holds of a consumer. Counts end at [`COUNT_MAX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InboxCounts {
    /// Not done and not dead.
    pub waiting: u64,
    /// Dead.
    pub dead: u64,
    /// Age of the oldest that waits, in seconds.
    pub oldest_seconds: u64,
}

/// What a step of pruning did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxPruned {
    /// Rows that it deleted.
    pub deleted: u64,
    /// Where the next step begins. None: there is nothing behind it that could be old enough.
    pub next: Option<String>,
}

/// The most rows that a step of pruning looks at, and so the most that it deletes.
pub const PRUNE_ROWS: usize = 500;

/// The longest age that every database can subtract from its clock: a hundred years.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
const AGE_MAX_SECONDS: u64 = 3_155_760_000;

/// An age in whole seconds, as statements have it.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) fn age_seconds(age: Duration) -> i64 {
    // Rounded up: never earlier than was asked.
    let seconds = age.as_secs().saturating_add(u64::from(age.subsec_nanos() > 0)).min(AGE_MAX_SECONDS);
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// Where counting ends: what is above is said to be this.
pub const COUNT_MAX: u64 = 100_000;

/// A database with an `inbox_message` table.
#[async_trait]
pub trait Inbox: Send + Sync + 'static {
    /// The DDL of `inbox`, `inbox_message` and `inbox_queue`.
    fn ddl(&self) -> String;

    /// Makes the tables if they are missing, and gives an `inbox_message` of an earlier version what it lacks: rows that
    /// are there are numbered in the order in which they came.
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

    /// Looks whether the tables are of this version, as [`Self::take`] needs them.
    ///
    /// # Errors
    /// As [`Self::inspect`]; `NotInitialised` also where they lack something.
    async fn inspect_places(&self) -> Result<(), StoreError>;

    /// Where a consumer is in all sources that it has begun.
    ///
    /// # Errors
    /// Whatever the database says.
    async fn places(&self, consumer: &str) -> Result<Vec<Place>, StoreError>;

    /// Begins sources, all or none; those that were begun stay where they are.
    ///
    /// # Errors
    /// Whatever the database says; beginning again is harmless.
    async fn begin(&self, consumer: &str, places: &[Place]) -> Result<(), StoreError>;

    /// Stores what was read from a source and moves the place behind it, in one transaction, if the place is where the
    /// reader believes it to be. So what two readers of a source bring is stored once, in the order of the source, also
    /// when one of them was stopped for long. Rows are numbered in the order of the arrivals. What is there already under
    /// its id is left as it is. `lane` as in [`Self::deliver`].
    ///
    /// # Errors
    /// Nothing was stored, except `CommitUnknown`: then [`Self::places`] tells.
    async fn take(&self, lane: usize, consumer: &str, step: &Step) -> Result<Taken, StoreError>;

    /// Counts what waits and what is dead.
    ///
    /// # Errors
    /// Whatever the database says.
    async fn counts(&self, consumer: &str) -> Result<InboxCounts, StoreError>;

    /// Deletes messages of a consumer that were done longer ago than `older_than`, by the database's clock: one step, of at
    /// most [`PRUNE_ROWS`] rows, in a transaction of its own. What is not done stays. `from` is [`InboxPruned::next`] of the
    /// step before, None for the first. No gap between rows is locked, and nobody waits for long.
    ///
    /// # Errors
    /// Nothing was deleted, except `CommitUnknown` (deleting again is harmless). `Permission`: no right to DELETE, also if
    /// nothing is old.
    async fn prune(&self, consumer: &str, older_than: Duration, from: Option<&str>) -> Result<InboxPruned, StoreError>;

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
