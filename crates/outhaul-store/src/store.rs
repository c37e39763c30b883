//! The contract that every database keeps.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_core::act::{Act, ActNumber, Edit};
use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::lease::LeaseReport;
use outhaul_core::message::{Epoch, Message, Position, Row, Seq, ShardId};
use outhaul_core::parked::ParkedEntry;
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::Run;
use outhaul_core::schedule::Upcoming;
use outhaul_core::transaction::Finding;
use outhaul_core::trouble::Trouble;

use crate::acts::{
    ActRecord, ActsWanted, CancelRequest, ListedParked, NewAct, ParkedCount, ParkedQuery, PauseStatus, ReplayProgress,
};
use crate::error::StoreError;
use crate::options::{DatabaseKind, InitPlan, PayloadType};
use crate::transaction::{EndedTransaction, FallBack, FellBack, TransactionRecord};

/// `schema_version` in `outbox_meta`: the lowest version of a build that may use the tables. Raised where earlier builds
/// could not go on.
pub const SCHEMA_VERSION: u32 = 1;

/// `schema_level` in `outbox_meta`, 1 where it is missing: what has been added to the tables, up to this build. Builds of
/// an earlier level go on with them.
pub const SCHEMA_LEVEL: u32 = 3;

/// Parked rows that recovery reads in one statement, each within the limit of a statement.
pub const PARKED_PAGE_ROWS: usize = 5_000;

/// Where the page after this one begins. None: it was the last.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn behind_page(page: &[ParkedEntry]) -> Option<Position> {
    page.last().filter(|_| page.len() >= PARKED_PAGE_ROWS).map(|last| Position(last.position.0 + 1))
}

/// The name under which [`Store::memory`] keeps a [`Migration`](outhaul_core::adopted::Migration): no destination has it.
pub const MIGRATION: &str = "=migration";

/// The name under which [`Store::memory`] keeps up to where rows of a status table are marked
/// ([`Marks`](outhaul_core::adopted::Marks)): no destination has it.
pub const MARKS: &str = "=marked";

/// The name in `outbox_meta` of what a destination keeps.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn memory_name(destination: &str) -> String {
    format!("destination:{destination}")
}

/// The name in `outbox_meta` of whose turn it is.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn turn_name(name: &str) -> String {
    format!("turn:{name}")
}

/// Who has a turn, of its text `UNTIL_US OWNER`, if it is not this one.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn another_has_it(text: Option<&str>, owner: &str) -> Option<String> {
    let holder = text.and_then(|text| text.split_once(' ')).map(|(_, holder)| holder).unwrap_or_default();
    (holder != owner).then(|| holder.to_owned())
}

/// The result of a store's call.
pub type StoreResult<T> = Result<T, StoreError>;

/// What a read of the outbox is for. Each has a connection of its own, so that a slow rescan never delays a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadPurpose {
    /// New rows and open gaps.
    Poll,
    /// A look at everything from the start of the table.
    Rescan,
    /// Scheduled rows that are due. First those of the ranges that are due by the database's clock become ordinary rows, in
    /// a transaction of its own: their `available_at` falls to `created_at` (to NULL where there is none). Rows that an open
    /// transaction holds stay as they are, and are not waited for. Then the ordinary rows are read, so that it is safe to
    /// repeat.
    Due,
}

/// Which rows to read. ONE statement serves the whole request, so that all its rows come from one snapshot: a row that
/// committed before another one that is returned is returned too, or lies above the cut by a limit.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// What for.
    pub purpose: ReadPurpose,
    /// Shards to read.
    pub shards: Vec<ShardId>,
    /// Ranges of `seq`, rising, not touching; at least one. The last may end at `u64::MAX` (bind it as `i64::MAX`).
    pub ranges: Vec<Run>,
    /// The most rows to return, at least 1.
    pub limit: u32,
    /// The most payload bytes to return, unless a single row is larger. Rows are cut at the end, in order of `seq`;
    /// large payloads must not be fetched only to be thrown away.
    pub max_bytes: usize,
}

/// Rows that were read.
#[derive(Clone, Debug, Default)]
pub struct ReadRows {
    /// Committed rows of the wanted shards and ranges, by rising `seq` over all shards. Scheduled ones, whose
    /// `available_at` lies behind their `created_at`, are left out, due or not, and do not count against a limit.
    pub rows: Vec<Row>,
    /// Whether a limit cut the answer: there may be more above the last row.
    pub cut: bool,
}

/// What the database's meta table and catalogue say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaInfo {
    /// Server name and version, for people: `MariaDB 10.11.6`.
    pub server: String,
    /// Schema version in `outbox_meta`.
    pub version: u32,
    /// Shard count in `outbox_meta`.
    pub shards: u16,
    /// Lease rows: of the shards, and of those that are none any more, and only have a log.
    pub leases: usize,
    /// `move` or `status`.
    pub mode: String,
    /// Type of `payload`, from the catalogue.
    pub payload: PayloadType,
    /// Sentences for the operator: settings under which something weaker than usual is promised (durability of COMMIT,
    /// sequence cache, auto_increment_increment, a missing time-zone setting).
    pub warnings: Vec<String>,
    /// Rows of the outbox table are in a shard that there is not: `StrayRows`. All others are delivered all the same.
    pub stray: Option<StoreError>,
}

/// What brings the tables of an earlier version to this one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upgrade {
    /// Level of the tables as they are.
    pub from: u32,
    /// Level of this build.
    pub to: u32,
    /// What is still missing, in order, without semicolons. Empty: nothing is.
    pub statements: Vec<String>,
    /// GRANTs that the relay's user needs for what is new, if it is not the tables' owner.
    pub grants: Vec<String>,
}

/// What became of a change of the number of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resharded {
    /// Shards before.
    pub before: u16,
    /// Shards now.
    pub after: u16,
    /// Rows of the outbox table that were given another shard one by one. None: the table was made anew.
    pub moved: Option<u64>,
    /// Why nothing keeps an application from naming a shard that there is not.
    pub unguarded: Option<StoreError>,
}

/// What a shard's owner needs to go on where the last one stopped.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// End of the log.
    pub log_end: Position,
    /// Number for the next receipt row: one more than the newest, 0 if there is none.
    pub next_number: u64,
    /// The newest receipt row. Empty if there is none.
    pub lanes: ReceiptRow,
    /// Parked rows of the shard's lanes, without content and error text, by destination and rising position.
    /// Rows that no route names ([`outhaul_core::destination::NO_ROUTE`]) are left out.
    pub parked: Vec<ParkedEntry>,
    /// Acts of the shard that are open, by number; at most [`crate::OPEN_ACTS`].
    pub acts: Vec<Act>,
    /// Paused destinations of the shard; None: all of it.
    pub paused: Vec<Option<String>>,
    /// Destinations and positions of messages that were edited.
    pub edited: Vec<(String, Position, ActNumber)>,
}

/// A receipt row with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedReceipts {
    /// Number.
    pub number: u64,
    /// The lanes as they stood, and their receipts.
    pub row: ReceiptRow,
}

/// A chunk as stored.
#[derive(Clone, Debug)]
pub struct StoredChunk {
    /// Shard.
    pub shard: ShardId,
    /// Position of the first message.
    pub base: Position,
    /// Number of messages.
    pub count: u32,
    /// Codec.
    pub codec: u8,
    /// Smallest and largest `created_at`, microseconds since 1970-01-01 UTC.
    pub created_at_us: (i64, i64),
    /// When it was moved, microseconds since 1970-01-01 UTC, database clock.
    pub moved_at_us: i64,
    /// Content, see `outhaul_core::chunk`.
    pub bytes: Bytes,
}

/// A parked row with its content.
#[derive(Clone, Debug)]
pub struct StoredParked {
    /// The row.
    pub entry: ParkedEntry,
    /// The message. For one that was too large to be moved through the relay, the payload is empty.
    pub message: Message,
}

/// One lease round: heartbeat, renewals, releases, acquisitions, and a look at the result, in this order.
#[derive(Clone, Debug)]
pub struct LeaseRound {
    /// Owner name of this process.
    pub owner: String,
    /// Program version, for the instance table.
    pub version: String,
    /// Whether this instance takes no more shards.
    pub draining: bool,
    /// Time to live of a lease, milliseconds.
    pub ttl_ms: u64,
    /// Shards to renew: only where owner and epoch still are these, expired or not.
    pub renew: Vec<(ShardId, Epoch)>,
    /// Shards to release: only where owner and epoch still are these. The epoch stays, the owner becomes NULL.
    pub release: Vec<(ShardId, Epoch)>,
    /// Shards to acquire, only where free or expired by the database's clock: owner is set, epoch grows by one. While
    /// their number is being changed, one that takes no more shards gets them alone: it is what changes it.
    pub acquire: Vec<ShardId>,
    /// The process ends: remove its row from the instance table.
    pub leave: bool,
    /// What keeps it from delivering, for [`Store::instances`].
    pub troubles: Vec<Trouble>,
    /// Digest of its configuration, at most 16 characters of ASCII.
    pub config: String,
}

/// A relay process, as its last heartbeat shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceStatus {
    /// Owner name of the process.
    pub owner: String,
    /// Program version.
    pub version: String,
    /// Whether it takes no more shards.
    pub draining: bool,
    /// Age of the heartbeat, milliseconds, database clock. One that ended without a word stays for a while.
    pub heartbeat_ms: u64,
    /// What keeps it from delivering.
    pub troubles: Vec<Trouble>,
    /// Digest of its configuration: live instances whose digests differ have other routes or destinations.
    pub config: String,
}

/// A new outbox row, as `outhaul enqueue` inserts it.
#[derive(Clone, Debug, Default)]
pub struct NewRow {
    /// None: the database's default, a UUID.
    pub id: Option<String>,
    /// The id was made because none was given: a status table that counts by itself leaves it out.
    pub id_is_made: bool,
    /// Topic.
    pub topic: String,
    /// Key.
    pub key: Option<String>,
    /// JSON object of strings.
    pub headers: Option<String>,
    /// Payload.
    pub payload: Bytes,
    /// Not before this time, microseconds since 1970-01-01 UTC.
    pub available_at_us: Option<i64>,
}

/// What `status` shows of a shard, straight from the tables.
#[derive(Clone, Debug)]
pub struct ShardStatus {
    /// Shard.
    pub shard: ShardId,
    /// Owner, if the lease is held and not expired.
    pub owner: Option<String>,
    /// Epoch.
    pub epoch: Epoch,
    /// Committed rows in the outbox table. Counted up to a limit of 100,000.
    pub hot_rows: u64,
    /// Age of the oldest of them that is not scheduled, milliseconds, database clock.
    pub oldest_hot_ms: Option<u64>,
    /// How many of them are scheduled, due or not.
    pub scheduled_rows: u64,
    /// Until the first of those is due, milliseconds, database clock. Negative: it has been.
    pub next_due_ms: Option<i64>,
    /// End of the log.
    pub log_end: Position,
    /// Lanes as of the newest checkpoint.
    pub lanes: ReceiptRow,
    /// Age of `created_at` of the first message at or above each lane's cursor, by destination name.
    pub oldest_unsent_ms: Vec<(String, u64)>,
    /// Parked rows: destination, retrying, waiting, dead.
    pub parked: Vec<(String, u64, u64, u64)>,
    /// Newest error text of a parked row, by destination.
    pub last_errors: Vec<(String, String)>,
}

/// Where an id was found.
#[derive(Clone, Debug)]
pub enum Found {
    /// Still in the outbox table.
    Hot {
        /// The row.
        row: Box<Row>,
        /// When it is due, if it is scheduled, microseconds since 1970-01-01 UTC.
        due_at_us: Option<i64>,
    },
    /// In a status table, whatever became of it.
    Status {
        /// The row.
        row: Box<Row>,
        /// Its status, as it stands there.
        status: String,
        /// Whether that is the status of rows that wait.
        waits: bool,
        /// When it was marked as sent, microseconds since 1970-01-01 UTC.
        sent_at_us: Option<i64>,
    },
    /// In the log: the chunk that holds it, and the receipt rows that cover its position.
    Logged {
        /// The chunk. The caller unpacks it: its filter said "perhaps".
        chunk: StoredChunk,
    },
}

/// What to prune.
#[derive(Clone, Debug)]
pub struct PruneRequest {
    /// Owner name of this process: pruning has a lease of its own, one runner at a time.
    pub owner: String,
    /// Log and receipts older than this go, milliseconds, if they lie below every lane's `proven`.
    pub retention_ms: u64,
    /// Merge small chunks and receipt rows of hours that ended this long ago, milliseconds. None: do not merge.
    pub merge_after_ms: Option<u64>,
    /// The most chunks to touch in one transaction.
    pub step: u32,
    /// None: what is old and settled goes. Otherwise, of the log, only what was kept elsewhere before.
    pub exported: Option<Vec<Exported>>,
}

/// What of a shard's log may go.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PruneBound {
    /// Chunks that end at or below it.
    pub below: Position,
    /// Chunks that were moved before it, microseconds since 1970-01-01 UTC, database clock.
    pub before_us: i64,
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
impl PruneBound {
    /// Of chunks from the start of a log, those that may go: up to `step`, as far as none of them has to stay.
    pub(crate) fn prunable(self, mut chunks: Vec<StoredChunk>, step: u32) -> Vec<StoredChunk> {
        let goes = |c: &&StoredChunk| {
            c.base.0.saturating_add(c.count.into()) <= self.below.0 && c.moved_at_us < self.before_us
        };
        let n = chunks.iter().take(step.max(1) as usize).take_while(goes).count();
        chunks.truncate(n);
        chunks
    }
}

impl PruneRequest {
    /// Before which time something was written that may go.
    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    pub(crate) fn cutoff_us(&self, now_us: i64) -> i64 {
        now_us.saturating_sub(i64::try_from(self.retention_ms).unwrap_or(i64::MAX).saturating_mul(1_000))
    }

    /// What of a shard's log may go whose lanes have settled everything below a position.
    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    pub(crate) fn bound(&self, shard: ShardId, settled_below: Position, now_us: i64) -> PruneBound {
        let old = PruneBound { below: settled_below, before_us: self.cutoff_us(now_us) };
        let Some(exported) = &self.exported else { return old };
        match exported.iter().find(|e| e.shard == shard) {
            None => PruneBound { below: Position(0), ..old },
            Some(e) => PruneBound {
                below: old.below.min(e.below),
                before_us: old.before_us.min(e.moved_at_us.saturating_add(1)),
            },
        }
    }
}

/// What of a shard's log was kept elsewhere, from its start on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Shard.
    pub shard: ShardId,
    /// Every position below it.
    pub below: Position,
    /// The newest `moved_at` among its chunks, microseconds since 1970-01-01 UTC. What was moved later stands at a position
    /// that was given anew (tables made anew, a backup put back) and stays.
    pub moved_at_us: i64,
}

/// What the next step of pruning would delete of the log.
#[derive(Clone, Debug, Default)]
pub struct Prunable {
    /// False: another runner holds the lease, nothing was looked at.
    pub ran: bool,
    /// Chunks of one shard, from the start of its log, rising.
    pub chunks: Vec<StoredChunk>,
}

/// What was pruned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Chunks deleted.
    pub chunks: u64,
    /// Messages in them.
    pub messages: u64,
    /// Receipt rows deleted.
    pub receipts: u64,
    /// Chunks that were merged into larger ones.
    pub merged_chunks: u64,
    /// Receipt rows that were merged into larger ones.
    pub merged_receipts: u64,
    /// Rows of a status table that went into its archive.
    pub archived: u64,
    /// Rows that left the archive.
    pub purged: u64,
    /// False: another runner holds the lease, nothing was done.
    pub ran: bool,
    /// True: a step's limit was reached, there is more.
    pub more: bool,
}

/// A database with an outbox.
///
/// Every call has a limit in time (`statement_timeout`, plus reconnecting within `connect_timeout`) and may be dropped:
/// a dropped call leaves its connection unusable, and the next call takes a new one. Calls for different purposes use
/// different connections and do not wait for each other: poll, rescan, checkpoint, lease, and everything else.
/// Sessions are READ COMMITTED and UTC whatever the server's default is, and need nothing that a transaction pooler
/// takes away. Errors never hold payloads, keys or passwords.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Family of the database.
    fn kind(&self) -> DatabaseKind;

    /// The DDL of a plan, statements in order, with comments; then, as comments, the GRANTs for the application's and
    /// the relay's user. Works without any table being there.
    fn ddl(&self, plan: &InitPlan) -> String;

    /// Makes what is missing. Safe to repeat; changes nothing that is there already.
    ///
    /// # Errors
    /// `WrongSchema` where the tables were made with another shard count or by a later version, `Outdated` by an earlier
    /// one.
    async fn init(&self, plan: &InitPlan) -> StoreResult<()>;

    /// What [`Store::upgrade`] would do. Changes nothing.
    ///
    /// # Errors
    /// `NotInitialised`, `WrongSchema` (the tables are of a later version), `Resharding`.
    async fn upgrade_plan(&self) -> StoreResult<Upgrade>;

    /// Brings the tables of an earlier version to this one, while relays of that version run: adds what is missing,
    /// statement by statement, last the row that says so. Safe to repeat, also after it was broken off. Waits for locks
    /// of the relays a second at a time, and tries again up to a minute; the outbox table itself is not touched. Returns
    /// what was found missing.
    ///
    /// # Errors
    /// As of the plan; `Permission`; `Timeout` where somebody holds a lock all the time: what was added stays.
    async fn upgrade(&self) -> StoreResult<Upgrade>;

    /// Changes the number of shards, while applications insert. The caller holds all leases under `owner` and keeps renewing
    /// them, and has seen to it that nothing is unsettled, parked or paused. Waits for open transactions that have
    /// inserted, a second at a time, so that applications never wait longer behind it, and tries again up to a minute.
    /// Logs stay as they are; shards that are none any more keep their leases.
    ///
    /// # Errors
    /// `Configuration`: not such a number, not in this database. `WrongSchema`: the table is not as `init` makes it.
    /// `Timeout`: an application has a transaction open for too long. After any of them either all is as it was, or relays
    /// refuse (`Resharding`) until it was repeated and came to its end.
    async fn reshard(&self, owner: &str, shards: u16) -> StoreResult<Resharded>;

    /// Whether this build can work with the tables, by the meta table alone. Some: they are just being changed to so many
    /// shards. Tables that are not there are no error of this.
    ///
    /// # Errors
    /// `Outdated`, `WrongSchema`, and whatever connecting can bring.
    async fn check_version(&self) -> StoreResult<Option<String>>;

    /// What a destination keeps for the next process ([`Store::keep_memory`]). None: nothing yet.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn memory(&self, destination: &str) -> StoreResult<Option<String>>;

    /// Keeps a text for a destination, in place of an earlier one. Names up to 255 characters, texts up to 1 MiB.
    ///
    /// # Errors
    /// Any; either text may be kept.
    async fn keep_memory(&self, destination: &str, text: &str) -> StoreResult<()>;

    /// Takes a turn at something that one process at a time does, or keeps it, for so long from now on by the database's
    /// clock; 0 gives it back. Some: another process has it, by this owner name, and nothing has changed. Names up to 200
    /// characters. A turn that ran out is anybody's: whoever works longer has to take it again in time.
    ///
    /// # Errors
    /// Any; it may be taken.
    async fn turn(&self, name: &str, owner: &str, ttl_ms: u64) -> StoreResult<Option<String>>;

    /// Looks at the server, the tables and the meta table, and whether leases and rows match the number of shards.
    ///
    /// # Errors
    /// `NotInitialised` (names the table or column and the DDL that is missing), `WrongSchema`, `Outdated`, `Resharding`,
    /// `ReadOnly`, `Permission`, and whatever connecting can bring.
    async fn inspect(&self) -> StoreResult<SchemaInfo>;

    /// Reads committed rows, takes no locks.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn read(&self, request: &ReadRequest) -> StoreResult<ReadRows>;

    /// The scheduled rows of these shards and ranges that are due soonest, by due time and `seq`, and the database's
    /// clock. There is no index for it: it costs as much as looking through the ranges.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn look_ahead(&self, shards: &[ShardId], ranges: &[Run], limit: usize) -> StoreResult<Upcoming>;

    /// A number such that every `seq` at or below it is visible to statements that begin after this call has returned,
    /// or never will be: no open transaction holds one. May fall when the sequence has started again. `seen` is the
    /// largest `seq` that the caller has read. The weaker the means that a database offers for this, the lower the
    /// answer; it is never too high (each implementation says what it rests on).
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn resolved(&self, seen: Seq) -> StoreResult<Seq>;

    /// Writes a checkpoint in one transaction (see [`Checkpoint`]); one outcome for each of its shards, in order. A
    /// shard that is `Fenced` or `Mismatch` has nothing written, the others are written all the same.
    ///
    /// DELETE never waits for an application's open row, and application INSERTs never wait for it.
    ///
    /// # Errors
    /// Nothing was written, except `CommitUnknown`: ask [`Store::checkpoint_applied`].
    async fn checkpoint(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<ShardOutcome>>;

    /// Whether a checkpoint whose COMMIT was not answered was applied. Locks the lease rows first, so that it waits out
    /// the transaction it asks about, then looks for each shard's receipt row by number and epoch.
    ///
    /// Per shard: Written, Fenced (another epoch holds the shard by now), or None: not applied, may be tried again.
    ///
    /// # Errors
    /// Not known yet: ask again.
    async fn checkpoint_applied(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<Option<ShardOutcome>>>;

    /// What an owner needs to start a shard. Parked rows come in pages of [`PARKED_PAGE_ROWS`], so that their number has
    /// no say in whether a statement stays within its limit. Only the owner changes them, so pages are of one state.
    ///
    /// # Errors
    /// Any; `Corrupt` if the newest receipt row cannot be read.
    async fn recover(&self, shard: ShardId) -> StoreResult<Recovery>;

    /// Chunks of a shard from the one that holds `from` (or the first above it), rising, up to `max_bytes` of content
    /// or one chunk. Empty at the end of the log.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn read_log(&self, shard: ShardId, from: Position, max_bytes: usize) -> StoreResult<Vec<StoredChunk>>;

    /// At most [`PARKED_PAGE_ROWS`] parked rows of a destination, without content and error text, from a position on, rising.
    /// Also those that no route names.
    ///
    /// # Errors
    /// Any.
    async fn parked(&self, shard: ShardId, destination: &str, from: Position) -> StoreResult<Vec<ParkedEntry>>;

    /// Parked rows with their content, those of `positions` that exist, rising. `destinations` are the relay's names,
    /// for unpacking.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn read_parked(
        &self,
        shard: ShardId,
        destination: &str,
        positions: &[Position],
        destinations: &[String],
    ) -> StoreResult<Vec<StoredParked>>;

    /// One lease round.
    ///
    /// # Errors
    /// Any; each of its parts may have been done or not.
    async fn lease_round(&self, round: &LeaseRound) -> StoreResult<LeaseReport>;

    /// Inserts rows in one transaction and returns their ids in order.
    ///
    /// # Errors
    /// Nothing was inserted, except `CommitUnknown`.
    async fn enqueue(&self, rows: &[NewRow]) -> StoreResult<Vec<String>>;

    /// All shards.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn status(&self) -> StoreResult<Vec<ShardStatus>>;

    /// The relay processes that have said something lately, by owner name.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn instances(&self) -> StoreResult<Vec<InstanceStatus>>;

    /// Where an id may be: hot rows, then every chunk whose filter says "perhaps" and whose time range overlaps
    /// `created_at_us` (microseconds since 1970-01-01 UTC), if given.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn find(&self, id: &str, created_at_us: Option<(i64, i64)>) -> StoreResult<Vec<Found>>;

    /// Receipt rows of a shard that cover a position.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn receipts_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ReceiptRow>>;

    /// Receipt rows of a shard from the newest down, those with receipts alone: numbers below `below` (None: all), up to
    /// `max_bytes` of stored content or one row. Empty: there is none.
    ///
    /// # Errors
    /// Any; `Corrupt` if a row cannot be read.
    async fn receipts_below(
        &self,
        shard: ShardId,
        below: Option<u64>,
        max_bytes: usize,
    ) -> StoreResult<Vec<NumberedReceipts>>;

    /// Parked rows of a position, without content.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn parked_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ParkedEntry>>;

    /// What pruning would delete of the log: of the first shard at or above `from` that has any, from the start of its log,
    /// up to the request's step and up to `max_bytes` of content or one chunk. Takes the lease of pruning and keeps it
    /// for the [`Store::prune`] that follows; nothing else is locked, and nothing changes.
    ///
    /// # Errors
    /// Any.
    async fn prunable(&self, request: &PruneRequest, from: ShardId, max_bytes: usize) -> StoreResult<Prunable>;

    /// One step of pruning and merging. Never touches what is at or above any lane's `proven`, the newest receipt row,
    /// or a parked row.
    ///
    /// # Errors
    /// Any; a step is one transaction.
    async fn prune(&self, request: &PruneRequest) -> StoreResult<Pruned>;

    /// Orders an act: it is open in each of its shards; a replay is unfinished there, and open nowhere.
    ///
    /// # Errors
    /// Nothing was ordered, except `CommitUnknown`.
    async fn order(&self, act: &NewAct) -> StoreResult<ActNumber>;

    /// Acts that are open in these shards, by number, at most [`crate::OPEN_ACTS`]. Asked twice a second by every relay:
    /// where there is none, it costs the database next to nothing.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn open_acts(&self, shards: &[ShardId]) -> StoreResult<Vec<Act>>;

    /// Acts as they are recorded, by number and shard.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn acts(&self, wanted: &ActsWanted) -> StoreResult<Vec<ActRecord>>;

    /// Makes a process the one that carries out a replay, in place of an earlier one. False: there is no replay of this
    /// number that is unfinished.
    ///
    /// # Errors
    /// Any; it may be the one.
    async fn take_replay(&self, number: ActNumber, runner: &str) -> StoreResult<bool>;

    /// Writes how far a replay has got in a shard. False: nothing was written, since another process carries it out by
    /// now, or it is over with another result. Safe to repeat.
    ///
    /// # Errors
    /// Any; it may be written.
    async fn keep_replay(&self, progress: &ReplayProgress) -> StoreResult<bool>;

    /// What is paused, by shard and destination.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn pauses(&self) -> StoreResult<Vec<PauseStatus>>;

    /// What was edited of a shard's messages for a destination, in the order in which it was.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn edits(&self, shard: ShardId, destination: &str) -> StoreResult<Vec<(Position, Arc<Edit>)>>;

    /// Parked rows without content, by destination, shard and position, at most `limit`.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn list_parked(&self, query: &ParkedQuery, limit: u32) -> StoreResult<Vec<ListedParked>>;

    /// How many parked rows there are of each kind. What the query says of ids, positions and `after` is left aside.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn count_parked(&self, query: &ParkedQuery) -> StoreResult<Vec<ParkedCount>>;

    /// Takes scheduled rows with this id out of the outbox table and records the act, in one transaction; its content is
    /// kept with the act. Only rows that are not due by the database's clock; each is found by looking through the table
    /// without a lock, and deleted by its place. Returns the acts.
    ///
    /// # Errors
    /// Nothing was cancelled, except `CommitUnknown`.
    async fn cancel(&self, request: &CancelRequest) -> StoreResult<Vec<ActNumber>>;

    /// What names this outbox to others, the same for all who use it: a half message carries it, and nobody judges a
    /// transaction of another outbox.
    ///
    /// # Errors
    /// Any; `NotInitialised`, `Outdated` if there is none.
    async fn origin(&self) -> StoreResult<String>;

    /// What became of a transaction, for a check-back. Where there is no row, a tombstone is put in its place, in a
    /// statement that commits by itself: from then on the business transaction cannot insert its row, and so never
    /// commits. A row that an open transaction holds is not waited for, or not longer than a quarter of a second (where
    /// a server cannot, a second). Several calls at a time go on side by side.
    ///
    /// # Errors
    /// Nothing is known: [`outhaul_core::transaction::answer`] of None. A tombstone may stand there; asking again finds it.
    async fn judge(&self, transaction: &str) -> StoreResult<Finding>;

    /// The broker has confirmed these: `committed` becomes `ended`, and the content goes. Others are left as they are.
    /// One short transaction. Returns how many changed.
    ///
    /// # Errors
    /// Any; either all are ended or none. Safe to repeat.
    async fn end_transactions(&self, ended: &[EndedTransaction]) -> StoreResult<u64>;

    /// Looks for transactions that committed and were not ended: those that were not seen before are marked as seen, those
    /// that were seen long enough ago go into the outbox table, each in a transaction of its own in which its row
    /// becomes `sent`. Rows that others hold are passed over. Any number of relays may do it at once.
    ///
    /// # Errors
    /// Any; each transaction by itself went or did not.
    async fn fall_back(&self, wanted: &FallBack) -> StoreResult<FellBack>;

    /// Deletes rows that have been ended, sent or rolled back for longer than this, at most `limit`; never a committed
    /// one. Returns how many.
    ///
    /// # Errors
    /// Any.
    async fn prune_transactions(&self, retention_ms: u64, limit: u32) -> StoreResult<u64>;

    /// Transactions whose own id, or whose message's, is this one. There is no index on the message's.
    ///
    /// # Errors
    /// Any; nothing has changed.
    async fn find_transactions(&self, id: &str) -> StoreResult<Vec<TransactionRecord>>;

    /// Whether there is work beside the sending ([`Store::tend`]).
    fn tends(&self) -> bool {
        false
    }

    /// One step of the work beside the sending: marking rows of a status table. True: there is more. To be called one
    /// at a time, again and again while a relay runs; what was not done is done by the next owner, and by
    /// [`Store::close`] for a few seconds.
    ///
    /// # Errors
    /// Any; the step may have been done, and is repeated by the next.
    async fn tend(&self) -> StoreResult<bool> {
        Ok(false)
    }

    /// Closes all connections. Later calls fail.
    async fn close(&self);
}
