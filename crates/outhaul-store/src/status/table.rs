//! What a status table is asked, in each database.

use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::message::Row;

use crate::options::{Archive, ColumnNames};
use crate::store::{NewRow, StoreResult};

/// Where a row stands in the order in which rows are taken, as the database writes both values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// `created_at`; None where it is NULL, or where the table has no such column.
    pub(crate) created: Option<String>,
    /// Id.
    pub(crate) id: String,
}

/// Which of the rows that wait to list.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// All from this time on, rows of the same time included. None: from the first.
    From(Option<String>),
    /// Those behind this one.
    Behind(Place),
    /// Those without a time.
    Timeless,
}

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mark {
    /// It was delivered.
    Sent,
    /// It will not be delivered by itself.
    Dead,
}

/// A row that was looked up by its id.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// Its content.
    pub(crate) row: Row,
    /// Its status, as it stands there.
    pub(crate) status: String,
    /// When it was marked as sent, microseconds since 1970-01-01 UTC.
    pub(crate) sent_at_us: Option<i64>,
}

/// Rows with their content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fetched {
    /// Those of the wanted rows that still wait, in any order, with `seq` 0.
    pub(crate) rows: Vec<Row>,
    /// How many of the wanted ids were looked at, from the first on: the others would have exceeded the bytes.
    pub(crate) covered: usize,
}

/// Where rows are moved, and by whom.
#[derive(Clone, Debug)]
pub(crate) struct Into {
    /// The outbox table.
    pub(crate) outbox: String,
    /// Its columns.
    pub(crate) columns: ColumnNames,
    /// The table of leases.
    pub(crate) lease: String,
    /// Who moves: the owner of shard 0.
    pub(crate) owner: String,
}

/// What became of rows that were to be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fed {
    /// They are in the outbox table, and were marked as sent.
    Moved,
    /// Nothing has changed: these are held by others, or wait no more.
    Held(Vec<String>),
    /// Nothing has changed: somebody else has the shard now.
    NotOwner,
    /// Nothing has changed: the outbox table refuses what one of them holds.
    Refused(String),
}

/// What can be said of the table as a whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Condition {
    /// Sentences for the operator.
    pub(crate) warnings: Vec<String>,
    /// It has so many rows that they are a matter of their own.
    pub(crate) is_large: bool,
}

/// A status table in one database. Ids are texts, as the database writes them; numbers, UUIDs and the like are turned
/// back by the database. No call waits for a lock longer than `lock_timeout`.
#[async_trait]
pub(crate) trait Table: Send + Sync {
    /// Looks at the catalogue: that table and columns are there and the id is unique; what is unwise comes as warnings.
    async fn inspect(&self) -> StoreResult<Condition>;

    /// Rows that wait, by `created_at` and id, at most `limit`, without content. `rescan`: on a connection of its own.
    async fn waiting(&self, wanted: &Wanted, limit: usize, rescan: bool) -> StoreResult<Vec<Place>>;

    /// The content of these rows, up to `max_bytes` of payloads and headers, or a single one.
    async fn rows(&self, ids: &[String], max_bytes: usize, rescan: bool) -> StoreResult<Fetched>;

    /// Marks rows, by exact ids, which have to be waiting, or dead where they were sent. Returns how many have changed.
    async fn mark(&self, ids: &[String], mark: Mark) -> StoreResult<u64>;

    /// Moves exactly these rows into the outbox table, in their order, and marks them as sent, in one transaction in which
    /// the lease of shard 0 is the owner's. Nobody is waited for but whoever has that lease's row.
    async fn feed(&self, ids: &[String], into: &Into) -> StoreResult<Fed>;

    /// Whether ids are numbers.
    async fn counts(&self) -> StoreResult<bool>;

    /// Inserts rows that wait. Returns their ids.
    async fn insert(&self, rows: &[NewRow]) -> StoreResult<Vec<String>>;

    /// Makes the archive, if it is not there: a table with the same columns.
    async fn make_archive(&self, archive: &Archive) -> StoreResult<()>;

    /// Moves rows that were delivered and are old enough into the archive, oldest first, at most `limit`, in one
    /// transaction. Rows that others hold stay. Returns how many.
    async fn archive(&self, archive: &Archive, limit: usize) -> StoreResult<u64>;

    /// Deletes the oldest rows of the archive that are old enough, at most `limit`. Returns how many.
    async fn purge(&self, archive: &Archive, after: Duration, limit: usize) -> StoreResult<u64>;

    /// A row by its id, whatever its status, in the table or in its archive.
    async fn find(&self, id: &str) -> StoreResult<Option<Standing>>;

    /// How many rows wait, counted up to 100,000, and the age of the first of them, milliseconds, by the database's clock.
    async fn count(&self) -> StoreResult<(u64, Option<u64>)>;

    /// Closes all connections.
    async fn close(&self);
}
