//! PostgreSQL 12 and later.
//!
//! Seven connections, each opened when it is needed first: poll, rescan, checkpoint, lease, log, scheduled rows, and
//! everything else; and some for what brokers ask about transactions, where they do.
//! Every statement travels in a transaction of its own making that states isolation level, time zone and limits with
//! `SET LOCAL`, so that a transaction pooler may stand in between and the server's defaults do not matter. See `link`.

mod acts;
mod catalogue;
mod checkpoint;
mod enqueue;
mod inbox;
mod lease;
mod link;
mod log;
mod maintain;
mod memory;
mod parked;
mod read;
mod refusal;
mod reshard;
mod resolved;
pub(crate) mod scan;
mod schema;
mod status_table;
mod tls;
mod transaction;
mod upgrade;
mod values;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use outhaul_core::act::{Act, ActNumber, Edit};
use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::lease::LeaseReport;
use outhaul_core::message::{Position, Seq, ShardId};
use outhaul_core::parked::ParkedEntry;
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::Run;
use outhaul_core::schedule::Upcoming;
use outhaul_core::transaction::Finding;

use self::acts::ActsSql;
use self::catalogue::Layout;
use self::checkpoint::CheckpointSql;
pub use self::inbox::PostgresInbox;
use self::link::{Dialer, Slot};
use self::read::Stretch;
use self::resolved::Marks;
pub(crate) use self::status_table::PostgresStatusTable;
use crate::acts::{
    ActRecord, ActsWanted, CancelRequest, ListedParked, NewAct, ParkedCount, ParkedQuery, PauseStatus, ReplayProgress,
    edits_of,
};
use crate::error::StoreError;
use crate::options::{DatabaseKind, InitPlan, StoreOptions};
use crate::store::{
    Found, InstanceStatus, LeaseRound, NewRow, NumberedReceipts, Prunable, PruneRequest, Pruned, ReadRequest, ReadRows,
    Recovery, Resharded, SchemaInfo, ShardStatus, Store, StoreResult, StoredChunk, StoredParked, Upgrade,
};
use crate::transaction::{EndedTransaction, FallBack, FellBack, TransactionRecord};

/// A store in PostgreSQL.
pub struct PostgresStore {
    options: StoreOptions,
    dialer: Dialer,
    poll: Slot,
    rescan: Slot,
    checkpoint: Slot,
    lease: Slot,
    log: Slot,
    schedule: Slot,
    other: Slot,
    transactions: transaction::Slots,
    layout: Mutex<Option<Arc<Layout>>>,
    checkpoint_sql: CheckpointSql,
    acts_sql: ActsSql,
    poll_stretch: Stretch,
    rescan_stretch: Stretch,
    marks: Mutex<Marks>,
}

impl PostgresStore {
    /// Opens the first connection.
    ///
    /// # Errors
    /// `Configuration`, `Authentication`, `Unavailable`, `ReadOnly` (a standby, or a server that defaults to read-only
    /// transactions), `Unsupported` (older than PostgreSQL 12).
    pub async fn open(options: StoreOptions) -> Result<Self, StoreError> {
        let dialer = Dialer::new(&options)?;
        let store = Self {
            checkpoint_sql: CheckpointSql::new(&options),
            acts_sql: ActsSql::new(&options),
            transactions: transaction::Slots::new(&options)?,
            options,
            dialer,
            poll: Slot::new(),
            rescan: Slot::new(),
            checkpoint: Slot::new(),
            lease: Slot::new(),
            log: Slot::new(),
            schedule: Slot::new(),
            other: Slot::new(),
            layout: Mutex::default(),
            poll_stretch: Stretch::new(),
            rescan_stretch: Stretch::new(),
            marks: Mutex::default(),
        };
        let first = store.other.take(&store.dialer).await?;
        first.give_back(Ok(()))?;
        Ok(store)
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn kind(&self) -> DatabaseKind {
        DatabaseKind::Postgres
    }

    fn ddl(&self, plan: &InitPlan) -> String {
        schema::print(&self.options, plan, self.dialer.version())
    }

    async fn init(&self, plan: &InitPlan) -> StoreResult<()> {
        self.make_tables(plan).await.map_err(|e| e.while_doing("making the tables"))
    }

    async fn upgrade_plan(&self) -> StoreResult<Upgrade> {
        self.plan_upgrade().await.map_err(|e| e.while_doing("looking for what the tables lack"))
    }

    async fn upgrade(&self) -> StoreResult<Upgrade> {
        self.bring_up().await.map_err(|e| e.while_doing("upgrading the tables"))
    }

    async fn reshard(&self, owner: &str, shards: u16) -> StoreResult<Resharded> {
        self.change_shards(owner, shards).await.map_err(|e| e.while_doing("changing the number of shards"))
    }

    async fn check_version(&self) -> StoreResult<Option<String>> {
        self.look_at_version().await
    }

    async fn inspect(&self) -> StoreResult<SchemaInfo> {
        self.look().await
    }

    async fn read(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        self.checked(self.read_rows(request).await).map_err(|e| e.while_doing("reading the outbox"))
    }

    async fn look_ahead(&self, shards: &[ShardId], ranges: &[Run], limit: usize) -> StoreResult<Upcoming> {
        self.checked(self.upcoming(shards, ranges, limit).await)
            .map_err(|e| e.while_doing("looking for scheduled rows"))
    }

    /// Rests on the lock that every INSERT holds, which `pg_locks` shows: see the module `resolved`.
    async fn resolved(&self, _seen: Seq) -> StoreResult<Seq> {
        self.checked(self.resolved_mark().await).map_err(|e| e.while_doing("looking for open transactions"))
    }

    async fn checkpoint(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<ShardOutcome>> {
        self.checked(self.write_checkpoint(checkpoint).await).map_err(|e| e.while_doing("writing a checkpoint"))
    }

    async fn checkpoint_applied(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<Option<ShardOutcome>>> {
        self.was_applied(checkpoint).await.map_err(|e| e.while_doing("asking for a checkpoint"))
    }

    async fn recover(&self, shard: ShardId) -> StoreResult<Recovery> {
        self.recovery(shard).await.map_err(|e| e.while_doing("recovering a shard"))
    }

    async fn read_log(&self, shard: ShardId, from: Position, max_bytes: usize) -> StoreResult<Vec<StoredChunk>> {
        self.chunks_from(&self.log, shard, from, max_bytes).await.map_err(|e| e.while_doing("reading the log"))
    }

    async fn parked(&self, shard: ShardId, destination: &str, from: Position) -> StoreResult<Vec<ParkedEntry>> {
        let result = self.parked_page(shard, destination, from).await;
        result.map_err(|e| e.while_doing("reading parked rows"))
    }

    async fn read_parked(
        &self,
        shard: ShardId,
        destination: &str,
        positions: &[Position],
        destinations: &[String],
    ) -> StoreResult<Vec<StoredParked>> {
        let result = self.parked_with_content(shard, destination, positions, destinations).await;
        result.map_err(|e| e.while_doing("reading parked rows"))
    }

    async fn lease_round(&self, round: &LeaseRound) -> StoreResult<LeaseReport> {
        self.round(round).await.map_err(|e| e.while_doing("renewing leases"))
    }

    async fn enqueue(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        self.checked(self.insert_rows(rows).await).map_err(|e| e.while_doing("inserting rows"))
    }

    async fn status(&self) -> StoreResult<Vec<ShardStatus>> {
        self.shard_statuses().await.map_err(|e| e.while_doing("reading the status"))
    }

    async fn memory(&self, destination: &str) -> StoreResult<Option<String>> {
        self.kept(destination).await.map_err(|e| e.while_doing("reading what a destination remembers"))
    }

    async fn keep_memory(&self, destination: &str, text: &str) -> StoreResult<()> {
        self.keep(destination, text).await.map_err(|e| e.while_doing("keeping what a destination remembers"))
    }

    async fn turn(&self, name: &str, owner: &str, ttl_ms: u64) -> StoreResult<Option<String>> {
        self.take_turn(name, owner, ttl_ms).await.map_err(|e| e.while_doing("taking a turn"))
    }

    async fn instances(&self) -> StoreResult<Vec<InstanceStatus>> {
        self.instance_statuses().await.map_err(|e| e.while_doing("reading the instances"))
    }

    async fn find(&self, id: &str, created_at_us: Option<(i64, i64)>) -> StoreResult<Vec<Found>> {
        self.find_id(id, created_at_us).await.map_err(|e| e.while_doing("looking for an id"))
    }

    async fn receipts_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ReceiptRow>> {
        self.covering_receipts(shard, position).await.map_err(|e| e.while_doing("reading receipts"))
    }

    async fn receipts_below(
        &self,
        shard: ShardId,
        below: Option<u64>,
        max_bytes: usize,
    ) -> StoreResult<Vec<NumberedReceipts>> {
        self.newest_receipts(shard, below, max_bytes).await.map_err(|e| e.while_doing("reading receipts"))
    }

    async fn parked_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ParkedEntry>> {
        self.parked_at(shard, position).await.map_err(|e| e.while_doing("reading parked rows"))
    }

    async fn prunable(&self, request: &PruneRequest, from: ShardId, max_bytes: usize) -> StoreResult<Prunable> {
        self.look_for_prunable(request, from, max_bytes).await.map_err(|e| e.while_doing("looking for what to prune"))
    }

    async fn prune(&self, request: &PruneRequest) -> StoreResult<Pruned> {
        self.maintain(request).await.map_err(|e| e.while_doing("pruning"))
    }

    async fn order(&self, act: &NewAct) -> StoreResult<ActNumber> {
        self.order_act(act).await.map_err(|e| e.while_doing("ordering an act"))
    }

    async fn open_acts(&self, shards: &[ShardId]) -> StoreResult<Vec<Act>> {
        self.look_for_acts(shards).await.map_err(|e| e.while_doing("looking for acts"))
    }

    async fn acts(&self, wanted: &ActsWanted) -> StoreResult<Vec<ActRecord>> {
        self.act_records(wanted).await.map_err(|e| e.while_doing("reading acts"))
    }

    async fn take_replay(&self, number: ActNumber, runner: &str) -> StoreResult<bool> {
        self.checked(self.replay_taken(number, runner).await).map_err(|e| e.while_doing("taking a replay"))
    }

    async fn keep_replay(&self, progress: &ReplayProgress) -> StoreResult<bool> {
        let kept = self.checked(self.replay_kept(progress).await);
        kept.map_err(|e| e.while_doing("storing how far a replay has got"))
    }

    async fn pauses(&self) -> StoreResult<Vec<PauseStatus>> {
        self.pause_statuses().await.map_err(|e| e.while_doing("reading what is paused"))
    }

    async fn edits(&self, shard: ShardId, destination: &str) -> StoreResult<Vec<(Position, Arc<Edit>)>> {
        let result = self.edit_records(shard, Some(destination)).await;
        result.map(edits_of).map_err(|e| e.while_doing("reading edits"))
    }

    async fn list_parked(&self, query: &ParkedQuery, limit: u32) -> StoreResult<Vec<ListedParked>> {
        self.parked_list(query, limit).await.map_err(|e| e.while_doing("listing parked rows"))
    }

    async fn count_parked(&self, query: &ParkedQuery) -> StoreResult<Vec<ParkedCount>> {
        self.parked_counts(query).await.map_err(|e| e.while_doing("counting parked rows"))
    }

    async fn cancel(&self, request: &CancelRequest) -> StoreResult<Vec<ActNumber>> {
        self.checked(self.cancel_rows(request).await).map_err(|e| e.while_doing("cancelling a message"))
    }

    async fn origin(&self) -> StoreResult<String> {
        self.own_origin().await.map_err(|e| e.while_doing("reading the name of the outbox"))
    }

    async fn judge(&self, transaction: &str) -> StoreResult<Finding> {
        self.judged(transaction).await.map_err(|e| e.while_doing("judging a transaction"))
    }

    async fn end_transactions(&self, ended: &[EndedTransaction]) -> StoreResult<u64> {
        self.transactions_ended(ended).await.map_err(|e| e.while_doing("ending transactions"))
    }

    async fn fall_back(&self, wanted: &FallBack) -> StoreResult<FellBack> {
        let fell = self.checked(self.fallen_back(wanted).await);
        fell.map_err(|e| e.while_doing("looking for transactions that were not ended"))
    }

    async fn prune_transactions(&self, retention_ms: u64, limit: u32) -> StoreResult<u64> {
        self.old_transactions_gone(retention_ms, limit).await.map_err(|e| e.while_doing("pruning transactions"))
    }

    async fn find_transactions(&self, id: &str) -> StoreResult<Vec<TransactionRecord>> {
        self.transactions_of(id).await.map_err(|e| e.while_doing("looking for a transaction"))
    }

    async fn close(&self) {
        self.dialer.close();
        self.transactions.clear().await;
        for slot in [&self.poll, &self.rescan, &self.checkpoint, &self.lease, &self.log, &self.schedule, &self.other] {
            slot.clear().await;
        }
    }
}
