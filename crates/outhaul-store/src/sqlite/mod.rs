//! SQLite: the embedded database, one shard.
//!
//! Writers are serial in SQLite, so there is one writing connection for all that writes, and one reading connection for
//! each purpose; in WAL mode readers and the writer do not wait for each other. Each connection lives on a thread of
//! its own ([`session`]). COMMIT is durable (`synchronous = FULL`), whatever the application chooses for its own.
//!
//! Times are INTEGER microseconds since 1970-01-01 UTC. Times that an application wrote as text are read as well.

mod acts;
mod checkpoint;
mod inbox;
mod lease;
mod log;
mod maintain;
mod memory;
mod names;
mod read;
mod refusal;
pub(crate) mod scan;
mod schema;
mod session;
mod status_table;
mod transaction;
mod upgrade;

use std::sync::Arc;

use async_trait::async_trait;
use outhaul_core::act::{Act, ActNumber, Edit};
use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::lease::LeaseReport;
use outhaul_core::message::{Position, Seq, ShardId};
use outhaul_core::parked::ParkedEntry;
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::Run;
use outhaul_core::schedule::Upcoming;
use outhaul_core::transaction::Finding;

pub use inbox::SqliteInbox;
use names::Names;
use session::{Access, Session};
pub(crate) use status_table::SqliteStatusTable;

use crate::acts::{
    ActRecord, ActsWanted, CancelRequest, ListedParked, NewAct, ParkedCount, ParkedQuery, PauseStatus, ReplayProgress,
    check_order, edits_of,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{DatabaseKind, InitPlan, StoreOptions};
use crate::store::{
    Found, InstanceStatus, LeaseRound, NewRow, NumberedReceipts, Prunable, PruneRequest, Pruned, ReadPurpose,
    ReadRequest, ReadRows, Recovery, Resharded, SchemaInfo, ShardStatus, Store, StoreResult, StoredChunk, StoredParked,
    Upgrade, behind_page,
};
use crate::transaction::{EndedTransaction, FallBack, FellBack, TransactionRecord, check_id, refuses_row};
use crate::version::Patience;

/// The one shard that there is.
const SHARD: ShardId = ShardId(0);

/// A SQLite database with an outbox.
pub struct SqliteStore {
    names: Arc<Names>,
    writer: Session,
    poll: Session,
    rescan: Session,
    rest: Session,
}

impl SqliteStore {
    /// Opens the database that the URL names. The file need not exist yet: `init` makes it.
    ///
    /// # Errors
    /// `Configuration`: the URL names no file.
    pub async fn open(options: StoreOptions) -> StoreResult<Self> {
        let path = names::path_of(&options)?;
        let session = |access, name| Session::new(&path, access, &options, name);
        Ok(Self {
            writer: session(Access::Write, "outhaul-write"),
            poll: session(Access::Read, "outhaul-poll"),
            rescan: session(Access::Read, "outhaul-rescan"),
            rest: session(Access::Read, "outhaul-read"),
            names: Arc::new(Names::new(options)),
        })
    }

    /// What the lanes have parked: page by page along the primary key, one destination after the other.
    async fn parked_of_lanes(&self) -> StoreResult<Vec<ParkedEntry>> {
        let (mut found, mut destination) = (Vec::new(), String::new());
        loop {
            let names = Arc::clone(&self.names);
            let next = self.rest.read(move |tx| log::next_parked(tx, &names, &destination)).await?;
            let Some(name) = next else { return Ok(found) };
            let mut from = (name != NO_ROUTE).then_some(Position(0));
            while let Some(first) = from {
                let (names, lane) = (Arc::clone(&self.names), name.clone());
                let page = self.rest.read(move |tx| log::parked_page(tx, &names, &lane, first)).await?;
                from = behind_page(&page);
                found.extend(page);
            }
            destination = name;
        }
    }
}

/// A number of ours as SQLite stores it. Numbers above its range do not occur: they count rows, or are its own.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A number of SQLite's that is never negative.
fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

fn no_such_shard(shard: ShardId) -> StoreError {
    StoreError::new(StoreErrorKind::Configuration, format!("SQLite has one shard, 0, and no shard {shard}"))
}

#[async_trait]
impl Store for SqliteStore {
    fn kind(&self) -> DatabaseKind {
        DatabaseKind::Sqlite
    }

    fn ddl(&self, plan: &InitPlan) -> String {
        schema::ddl(&self.names, plan)
    }

    async fn init(&self, plan: &InitPlan) -> StoreResult<()> {
        schema::check_plan(plan)?;
        let (names, plan) = (Arc::clone(&self.names), plan.clone());
        self.writer.create_file().await?;
        self.writer.write(move |tx| schema::init(tx, &names, &plan)).await
    }

    async fn upgrade_plan(&self) -> StoreResult<Upgrade> {
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| upgrade::plan(tx, &names)).await
    }

    async fn upgrade(&self) -> StoreResult<Upgrade> {
        let patience = Patience::begins();
        loop {
            let names = Arc::clone(&self.names);
            match self.writer.write(move |tx| upgrade::upgrade(tx, &names)).await {
                Err(e) if patience.lasts(&e).await => {}
                result => return result.map_err(|e| e.while_doing("upgrading the tables")),
            }
        }
    }

    async fn reshard(&self, _owner: &str, shards: u16) -> StoreResult<Resharded> {
        schema::check_plan(&InitPlan { shards, ..InitPlan::default() })?;
        Ok(Resharded { before: 1, after: 1, moved: Some(0), unguarded: None })
    }

    async fn check_version(&self) -> StoreResult<Option<String>> {
        let names = Arc::clone(&self.names);
        let checked = self.rest.read(move |tx| Ok(upgrade::meta(tx, &names)?.map(|meta| meta.look()))).await;
        match checked {
            Err(e) if e.kind == StoreErrorKind::NotInitialised => Ok(None),
            checked => checked?.unwrap_or(Ok(None)),
        }
    }

    async fn inspect(&self) -> StoreResult<SchemaInfo> {
        let names = Arc::clone(&self.names);
        self.writer.call(move |connection, _| schema::inspect(connection, &names)).await
    }

    async fn read(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        let session = match request.purpose {
            ReadPurpose::Poll => &self.poll,
            ReadPurpose::Rescan => &self.rescan,
            ReadPurpose::Due => &self.rest,
        };
        if !request.shards.contains(&SHARD) {
            return Ok(ReadRows::default());
        }
        if request.purpose == ReadPurpose::Due {
            let (names, ranges) = (Arc::clone(&self.names), request.ranges.clone());
            self.writer.write(move |tx| read::make_ordinary(tx, &names, &ranges)).await?;
        }
        let (names, request) = (Arc::clone(&self.names), request.clone());
        session.read(move |tx| read::rows(tx, &names, &request)).await
    }

    async fn look_ahead(&self, shards: &[ShardId], ranges: &[Run], limit: usize) -> StoreResult<Upcoming> {
        if !shards.contains(&SHARD) {
            return Ok(Upcoming::default());
        }
        let (names, ranges) = (Arc::clone(&self.names), ranges.to_vec());
        self.rest.read(move |tx| read::upcoming(tx, &names, &ranges, limit)).await
    }

    /// Rests on writers being serial: `seq` is given inside a write transaction, so every one up to the largest that
    /// `sqlite_sequence` shows was given by a transaction that has ended. A table without AUTOINCREMENT is not in it:
    /// there `seq` is given again after a DELETE, and the answer is 0.
    async fn resolved(&self, _seen: Seq) -> StoreResult<Seq> {
        let names = Arc::clone(&self.names);
        self.poll.read(move |tx| read::resolved(tx, &names)).await
    }

    async fn checkpoint(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<ShardOutcome>> {
        let (names, checkpoint) = (Arc::clone(&self.names), checkpoint.clone());
        self.writer
            .call(move |connection, call| {
                let packed = checkpoint::pack(&checkpoint); // takes time, so before anything is locked
                session::write(connection, call, |tx| checkpoint::write(tx, &names, &checkpoint, &packed))
            })
            .await
    }

    async fn checkpoint_applied(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<Option<ShardOutcome>>> {
        let names = Arc::clone(&self.names);
        let owner = checkpoint.owner.clone();
        let asked: Vec<_> = checkpoint.shards.iter().map(|s| (s.shard, s.epoch, s.number)).collect();
        self.writer.write(move |tx| checkpoint::applied(tx, &names, &owner, &asked)).await
    }

    async fn recover(&self, shard: ShardId) -> StoreResult<Recovery> {
        if shard != SHARD {
            return Err(no_such_shard(shard));
        }
        let names = Arc::clone(&self.names);
        let mut recovery = self.rest.read(move |tx| log::recover(tx, &names)).await?;
        recovery.parked = self.parked_of_lanes().await?;
        let names = Arc::clone(&self.names);
        (recovery.acts, recovery.paused, recovery.edited) = self.rest.read(move |tx| acts::recover(tx, &names)).await?;
        Ok(recovery)
    }

    async fn read_log(&self, shard: ShardId, from: Position, max_bytes: usize) -> StoreResult<Vec<StoredChunk>> {
        if shard != SHARD {
            return Ok(vec![]);
        }
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| log::chunks(tx, &names, from, max_bytes)).await
    }

    async fn parked(&self, shard: ShardId, destination: &str, from: Position) -> StoreResult<Vec<ParkedEntry>> {
        if shard != SHARD {
            return Ok(vec![]);
        }
        let (names, destination) = (Arc::clone(&self.names), destination.to_owned());
        self.rest.read(move |tx| log::parked_page(tx, &names, &destination, from)).await
    }

    async fn read_parked(
        &self,
        shard: ShardId,
        destination: &str,
        positions: &[Position],
        destinations: &[String],
    ) -> StoreResult<Vec<StoredParked>> {
        let (names, destination) = (Arc::clone(&self.names), destination.to_owned());
        let (positions, destinations) = (positions.to_vec(), destinations.to_vec());
        self.rest.read(move |tx| log::parked_messages(tx, &names, shard, &destination, &positions, &destinations)).await
    }

    async fn lease_round(&self, round: &LeaseRound) -> StoreResult<LeaseReport> {
        let (names, round) = (Arc::clone(&self.names), round.clone());
        self.writer.write(move |tx| lease::round(tx, &names, &round)).await
    }

    async fn enqueue(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        if rows.is_empty() {
            return Ok(vec![]);
        }
        let (names, rows) = (Arc::clone(&self.names), rows.to_vec());
        self.writer.write(move |tx| read::enqueue(tx, &names, &rows)).await
    }

    async fn status(&self) -> StoreResult<Vec<ShardStatus>> {
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| log::status(tx, &names)).await
    }

    async fn memory(&self, destination: &str) -> StoreResult<Option<String>> {
        let (names, destination) = (Arc::clone(&self.names), destination.to_owned());
        self.rest.read(move |tx| memory::kept(tx, &names, &destination)).await
    }

    async fn keep_memory(&self, destination: &str, text: &str) -> StoreResult<()> {
        let (names, destination, text) = (Arc::clone(&self.names), destination.to_owned(), text.to_owned());
        self.writer.write(move |tx| memory::keep(tx, &names, &destination, &text)).await
    }

    async fn turn(&self, name: &str, owner: &str, ttl_ms: u64) -> StoreResult<Option<String>> {
        let (names, name, owner) = (Arc::clone(&self.names), name.to_owned(), owner.to_owned());
        self.writer.write(move |tx| memory::turn(tx, &names, &name, &owner, ttl_ms)).await
    }

    async fn instances(&self) -> StoreResult<Vec<InstanceStatus>> {
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| lease::instances(tx, &names)).await
    }

    async fn find(&self, id: &str, created_at_us: Option<(i64, i64)>) -> StoreResult<Vec<Found>> {
        let (names, id) = (Arc::clone(&self.names), id.to_owned());
        self.rest.read(move |tx| log::find(tx, &names, &id, created_at_us)).await
    }

    async fn receipts_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ReceiptRow>> {
        if shard != SHARD {
            return Ok(vec![]);
        }
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| log::receipts_of(tx, &names, position)).await
    }

    async fn receipts_below(
        &self,
        shard: ShardId,
        below: Option<u64>,
        max_bytes: usize,
    ) -> StoreResult<Vec<NumberedReceipts>> {
        if shard != SHARD {
            return Ok(vec![]);
        }
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| log::newest_receipts(tx, &names, below, max_bytes)).await
    }

    async fn parked_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ParkedEntry>> {
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| log::parked_of(tx, &names, shard, position)).await
    }

    async fn prunable(&self, request: &PruneRequest, from: ShardId, max_bytes: usize) -> StoreResult<Prunable> {
        if from > SHARD {
            return Ok(Prunable { ran: true, chunks: vec![] });
        }
        let (names, asked) = (Arc::clone(&self.names), request.clone());
        let Some(bound) = self.writer.write(move |tx| maintain::prunable(tx, &names, &asked)).await? else {
            return Ok(Prunable::default());
        };
        let Some(bound) = bound else { return Ok(Prunable { ran: true, chunks: vec![] }) };
        let names = Arc::clone(&self.names);
        let chunks = self.rest.read(move |tx| log::chunks(tx, &names, Position(0), max_bytes)).await?;
        Ok(Prunable { ran: true, chunks: bound.prunable(chunks, request.step) })
    }

    /// What is merged is read and packed on a reading connection: only the exchange holds the write lock.
    async fn prune(&self, request: &PruneRequest) -> StoreResult<Pruned> {
        let (names, asked) = (Arc::clone(&self.names), request.clone());
        let Some(mut pruned) = self.writer.write(move |tx| maintain::prune(tx, &names, &asked)).await? else {
            return Ok(Pruned::default());
        };
        if let Some(after_ms) = request.merge_after_ms {
            let (names, step) = (Arc::clone(&self.names), request.step);
            let merge = self.rest.read(move |tx| maintain::plan(tx, &names, step, after_ms)).await?;
            let (names, owner) = (Arc::clone(&self.names), request.owner.clone());
            self.writer
                .write(move |tx| maintain::exchange(tx, &names, &owner, &merge, &mut pruned).map(|()| pruned))
                .await
        } else {
            Ok(pruned)
        }
    }

    async fn order(&self, act: &NewAct) -> StoreResult<ActNumber> {
        check_order(act)?;
        let (names, act) = (Arc::clone(&self.names), act.clone());
        self.writer.write(move |tx| acts::order(tx, &names, &act)).await
    }

    async fn open_acts(&self, shards: &[ShardId]) -> StoreResult<Vec<Act>> {
        if !shards.contains(&SHARD) {
            return Ok(vec![]);
        }
        let names = Arc::clone(&self.names);
        self.poll.read(move |tx| acts::open(tx, &names)).await
    }

    async fn acts(&self, wanted: &ActsWanted) -> StoreResult<Vec<ActRecord>> {
        let (names, wanted) = (Arc::clone(&self.names), wanted.clone());
        self.rest.read(move |tx| acts::records(tx, &names, &wanted)).await
    }

    async fn take_replay(&self, number: ActNumber, runner: &str) -> StoreResult<bool> {
        let (names, runner) = (Arc::clone(&self.names), runner.to_owned());
        self.writer.write(move |tx| acts::take_replay(tx, &names, number, &runner)).await
    }

    async fn keep_replay(&self, progress: &ReplayProgress) -> StoreResult<bool> {
        let (names, progress) = (Arc::clone(&self.names), progress.clone());
        self.writer.write(move |tx| acts::keep_replay(tx, &names, &progress)).await
    }

    async fn pauses(&self) -> StoreResult<Vec<PauseStatus>> {
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| acts::pauses(tx, &names)).await
    }

    async fn edits(&self, shard: ShardId, destination: &str) -> StoreResult<Vec<(Position, Arc<Edit>)>> {
        if shard != SHARD {
            return Ok(vec![]);
        }
        let (names, destination) = (Arc::clone(&self.names), destination.to_owned());
        self.rest.read(move |tx| acts::edits(tx, &names, Some(&destination)).map(edits_of)).await
    }

    async fn list_parked(&self, query: &ParkedQuery, limit: u32) -> StoreResult<Vec<ListedParked>> {
        let (names, query) = (Arc::clone(&self.names), query.clone());
        self.rest.read(move |tx| acts::list_parked(tx, &names, &query, limit)).await
    }

    async fn count_parked(&self, query: &ParkedQuery) -> StoreResult<Vec<ParkedCount>> {
        let (names, query) = (Arc::clone(&self.names), query.clone());
        self.rest.read(move |tx| acts::count_parked(tx, &names, &query)).await
    }

    async fn cancel(&self, request: &CancelRequest) -> StoreResult<Vec<ActNumber>> {
        let (names, request) = (Arc::clone(&self.names), request.clone());
        self.writer.write(move |tx| acts::cancel(tx, &names, &request)).await
    }

    async fn origin(&self) -> StoreResult<String> {
        let names = Arc::clone(&self.names);
        self.rest.read(move |tx| transaction::origin(tx, &names)).await
    }

    /// What has committed is seen without the write lock, which an application's open transaction may hold: it is waited
    /// for as long as for any other write.
    async fn judge(&self, transaction: &str) -> StoreResult<Finding> {
        check_id(transaction)?;
        let (names, id) = (Arc::clone(&self.names), transaction.to_owned());
        let found = self.rest.read(move |tx| transaction::state(tx, &names, &id)).await?;
        if let Some(state) = found {
            return Ok(Finding::Row(state));
        }
        let (names, id) = (Arc::clone(&self.names), transaction.to_owned());
        match self.writer.write(move |tx| transaction::bury(tx, &names, &id)).await {
            Err(e) if e.kind == StoreErrorKind::Timeout => Ok(Finding::Open),
            judged => judged,
        }
    }

    async fn end_transactions(&self, ended: &[EndedTransaction]) -> StoreResult<u64> {
        if ended.is_empty() {
            return Ok(0);
        }
        let (names, ended) = (Arc::clone(&self.names), ended.to_vec());
        self.writer.write(move |tx| transaction::end(tx, &names, &ended)).await
    }

    async fn fall_back(&self, wanted: &FallBack) -> StoreResult<FellBack> {
        let (names, asked) = (Arc::clone(&self.names), *wanted);
        if !self.rest.read(move |tx| transaction::is_any_committed(tx, &names, &asked)).await? {
            return Ok(FellBack::default());
        }
        let (names, asked) = (Arc::clone(&self.names), *wanted);
        let (mut fell, due) = self.writer.write(move |tx| transaction::see(tx, &names, &asked)).await?;
        for id in due {
            let (names, transaction) = (Arc::clone(&self.names), id.clone());
            match self.writer.write(move |tx| transaction::send(tx, &names, &transaction)).await {
                Ok(message) => fell.sent.extend(message),
                Err(e) if !refuses_row(&e) => return Err(e),
                Err(e) => {
                    let names = Arc::clone(&self.names);
                    fell.refused.push((id.clone(), e.message));
                    self.writer.write(move |tx| transaction::put_off(tx, &names, &id)).await?;
                }
            }
        }
        Ok(fell)
    }

    async fn prune_transactions(&self, retention_ms: u64, limit: u32) -> StoreResult<u64> {
        let names = Arc::clone(&self.names);
        self.writer.write(move |tx| transaction::prune(tx, &names, retention_ms, limit)).await
    }

    async fn find_transactions(&self, id: &str) -> StoreResult<Vec<TransactionRecord>> {
        let (names, id) = (Arc::clone(&self.names), id.to_owned());
        self.rest.read(move |tx| transaction::find(tx, &names, &id)).await
    }

    async fn close(&self) {
        for session in [&self.poll, &self.rescan, &self.rest, &self.writer] {
            session.close().await;
        }
    }
}
