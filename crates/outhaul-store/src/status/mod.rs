//! A table of the application's own with a status column, served as if it were an outbox.
//!
//! Everything but the hot table is that of native mode: the log, receipts, parked messages, leases, acts. A row that is read
//! goes into the log like any other, but stays where it is; once its destination has it, it is marked as sent, by a
//! task beside the sending. So lanes, catching up, dead letters, healing, replay and audit are those of native mode, and a
//! destination that is down never makes polls look at the rows that wait for it again and again: they are read once.
//!
//! What is already in the log and still waits in the table is known in memory ([`Ledger`]) and, for the next owner, by the
//! marks: up to which position of the log each destination's messages have been marked. A crash marks the last second's
//! again, which changes nothing.
//!
//! One shard, so one owner; one destination a topic. Scheduled messages, transactional ones and `reshard` are native
//! mode's alone.

mod feeder;
mod marker;
mod table;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outhaul_core::act::{Act, ActNumber, Edit};
use outhaul_core::adopted::{Ledger, Look, Migration, Stage};
use outhaul_core::checkpoint::{Checkpoint, ShardOutcome};
use outhaul_core::lease::LeaseReport;
use outhaul_core::message::{Position, Row, Seq, ShardId};
use outhaul_core::parked::ParkedEntry;
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::Run;
use outhaul_core::schedule::Upcoming;
use outhaul_core::transaction::Finding;

use self::feeder::Feeder;
use self::marker::Marker;
pub(crate) use self::table::{Condition, Fed, Fetched, Into, Mark, Place, Standing, Table, Wanted};
use crate::acts::{
    ActRecord, ActsWanted, CancelRequest, ListedParked, NewAct, ParkedCount, ParkedQuery, PauseStatus, ReplayProgress,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{Archive, DatabaseKind, InitPlan, StatusTable, StoreOptions};
use crate::store::{
    Exported, Found, InstanceStatus, LeaseRound, MIGRATION, NewRow, NumberedReceipts, Prunable, PruneRequest, Pruned,
    ReadPurpose, ReadRequest, ReadRows, Recovery, Resharded, SchemaInfo, ShardStatus, Store, StoreResult, StoredChunk,
    StoredParked, Upgrade,
};
use crate::transaction::{EndedTransaction, FallBack, FellBack, TransactionRecord};

/// The one shard that there is.
const SHARD: ShardId = ShardId(0);
/// Places that one statement of a rescan lists.
const PAGE: usize = 5_000;
/// Known rows that a poll passes over, at most: beyond them it goes on behind the last one.
const PASSED_MAX: usize = 200_000;
/// Polls look at what waits from this long before the newest row on: a transaction that commits later than this after
/// its `created_at` is found by a rescan.
const LATE: Duration = Duration::from_secs(5);
/// Between two bookmarks of where polls were.
const BOOKMARK_EVERY: Duration = Duration::from_millis(500);
/// Polls are this many times as long apart as one takes...
const REST_FACTOR: u32 = 4;
/// ... but not longer than this, unless the configuration says so.
const REST_MAX: Duration = Duration::from_millis(200);
/// How long a rescan lists places; the next one goes on behind them.
const LISTING_MAX: Duration = Duration::from_secs(3);

/// Rows of a step of archiving, least and most.
const ARCHIVE_STEP: (usize, usize) = (100, 2_000);
/// How long such a step takes, at least and at most, before it is made larger or smaller.
const ARCHIVE_TAKES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(50));

/// Where reads begin, and when the next poll may.
#[derive(Default)]
struct Pace {
    /// Newest time that was seen, some while ago each.
    bookmarks: VecDeque<(Instant, Option<String>)>,
    newest: Option<String>,
    /// The last poll was cut behind this row.
    tail: Option<Place>,
    /// The last rescan was cut behind this row.
    rescanned: Option<Place>,
    next: Option<Instant>,
    /// Rows of the next step of archiving.
    archive_step: usize,
}

impl Pace {
    /// What the next poll lists. One statement, so one snapshot: a row comes with those that committed before it, unless
    /// they are older than [`LATE`] or lie before a place where a limit has cut.
    fn poll(&mut self, now: Instant) -> Wanted {
        if let Some(tail) = &self.tail {
            return Wanted::Behind(tail.clone());
        }
        while self.bookmarks.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= LATE) {
            self.bookmarks.pop_front();
        }
        Wanted::From(self.bookmarks.front().and_then(|(_, created)| created.clone()))
    }

    /// A poll has found these new rows.
    fn saw(&mut self, new: &[Place], now: Instant) {
        self.newest = new.last().and_then(|p| p.created.clone()).or(self.newest.take());
        if self.bookmarks.back().is_none_or(|(at, _)| now.duration_since(*at) >= BOOKMARK_EVERY) {
            self.bookmarks.push_back((now, self.newest.clone()));
        }
    }

    /// A rescan has found these new rows. Where one lies before what polls look at, a clock was wrong, or rows come later
    /// than they should: polls begin anew. (Times are compared as texts. Where that is wrong, only a rescan is.)
    fn rescan_saw(&mut self, new: &[Place]) {
        let from = self.bookmarks.front().and_then(|(_, created)| created.as_ref());
        if from.is_some_and(|from| new.iter().any(|p| p.created.as_ref().is_some_and(|created| created < from))) {
            self.bookmarks.clear();
            self.newest = None;
        }
    }
}

/// A store whose rows are those of a status table.
pub(crate) struct StatusStore {
    inner: Arc<dyn Store>,
    table: Arc<dyn Table>,
    options: StatusTable,
    ledger: Arc<Mutex<Ledger>>,
    pace: Mutex<Pace>,
    /// One read at a time numbers rows: what a read lists lies behind what an earlier one has numbered.
    reading: tokio::sync::Mutex<()>,
    marker: Marker,
    /// Rows are moved into the outbox table, and everything else is native mode's.
    feeder: Option<Feeder>,
}

/// A look at the table that ends when it is dropped.
struct Looking<'a> {
    ledger: &'a Mutex<Ledger>,
    look: Look,
}

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        lock(self.ledger).end(self.look);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn not_here(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unsupported, format!("a status table has no {what}: native mode has"))
}

/// The refusal of a table in which an id may stand for several rows.
pub(crate) fn not_unique(table: &StatusTable) -> StoreError {
    let what = format!(
        "column {} of table {} is neither its primary key nor unique: a row could not be marked by itself",
        table.id, table.table
    );
    StoreError::new(StoreErrorKind::WrongSchema, what)
}

/// What is unwise about a table's indexes, given the columns of each.
pub(crate) fn index_warning(table: &StatusTable, indexes: &[Vec<String>]) -> Option<String> {
    let wanted: Vec<&str> = std::iter::once(table.status.as_str()).chain(table.created_at.as_deref()).collect();
    let begins = |index: &Vec<String>, wanted: &[&str]| {
        index.len() >= wanted.len() && wanted.iter().zip(index).all(|(a, b)| a.eq_ignore_ascii_case(b))
    };
    if indexes.iter().any(|index| begins(index, &wanted)) {
        return None;
    }
    let columns = wanted.join(", ");
    let turned: Vec<&str> = wanted.iter().rev().copied().collect();
    let why = if wanted.len() > 1 && indexes.iter().any(|index| begins(index, &turned)) {
        format!("the index ({}) makes every poll read past all rows that were sent", turned.join(", "))
    } else {
        "without it every poll reads the whole table".to_owned()
    };
    Some(format!(
        "table {t} has no index that begins with ({columns}); {why}: CREATE INDEX {t}_waiting ON {t} ({columns})",
        t = table.table
    ))
}

/// Rows of a table from which on its size is a matter of its own.
pub(crate) const LARGE: u64 = 5_000_000;

/// Columns and values of a row to insert, but for its time.
pub(crate) fn columns_of<'t>(table: &'t StatusTable, row: &NewRow) -> StoreResult<(Vec<&'t str>, Vec<Vec<u8>>)> {
    let lacks = |what: &str| {
        let what = format!("the row has {what}, and table {} has no column for it", table.table);
        StoreError::new(StoreErrorKind::Configuration, what)
    };
    let mut columns = vec![table.topic.as_str(), table.payload.as_str(), table.status.as_str()];
    let mut values = vec![row.topic.clone().into_bytes(), row.payload.to_vec(), table.pending.clone().into_bytes()];
    let mut add = |column: Option<&'t String>, value: &Option<String>, what| match (column, value) {
        (_, None) => Ok(()),
        (None, Some(_)) => Err(lacks(what)),
        (Some(column), Some(value)) => {
            columns.push(column);
            values.push(value.clone().into_bytes());
            Ok(())
        }
    };
    add(Some(&table.id), &row.id, "an id")?;
    add(table.key.as_ref(), &row.key, "a key")?;
    add(table.headers.as_ref(), &row.headers, "headers")?;
    Ok((columns, values))
}

impl StatusStore {
    pub(crate) fn new(
        inner: Arc<dyn Store>,
        table: Arc<dyn Table>,
        options: StatusTable,
        store: &StoreOptions,
    ) -> Self {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let marker = Marker::new(inner.clone(), table.clone(), ledger.clone(), options.dead.is_some());
        let feeder = options.migrate.then(|| Feeder::new(inner.clone(), table.clone(), &options, store));
        let (pace, reading) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { inner, table, options, ledger, pace, reading, marker, feeder }
    }

    fn look(&self) -> Looking<'_> {
        Looking { ledger: &self.ledger, look: lock(&self.ledger).begin() }
    }

    /// Waits until the next poll may begin.
    async fn rest(&self) {
        let next = lock(&self.pace).next;
        if let Some(next) = next {
            tokio::time::sleep_until(next.into()).await;
        }
    }

    /// What waits and is not known, in order, for a poll. True: there may be more behind it.
    async fn list(&self, limit: usize) -> StoreResult<(Vec<Place>, bool)> {
        let wanted = lock(&self.pace).poll(Instant::now());
        let passed = match wanted {
            Wanted::Behind(_) => 0,
            _ => lock(&self.ledger).len().min(PASSED_MAX),
        };
        let most = limit + 1 + passed;
        let page = self.table.waiting(&wanted, most, false).await?;
        let (full, last) = (page.len() >= most, page.last().cloned());
        let mut found = self.unknown(page);
        lock(&self.pace).saw(&found, Instant::now());
        let cut = full || found.len() > limit;
        found.truncate(limit);
        if cut && found.is_empty() {
            lock(&self.pace).tail = last; // as many as it passes over at most: behind them the next time
        }
        Ok((found, cut))
    }

    /// What waits and is not known, in order, at most `limit`, for a rescan: page by page from where the last one stopped.
    async fn look_through(&self, limit: usize) -> StoreResult<Vec<Place>> {
        let begun = Instant::now();
        let mut found = self.unknown(self.table.waiting(&Wanted::Timeless, limit + PAGE, true).await?);
        let from = lock(&self.pace).rescanned.take();
        let mut wanted = from.map_or(Wanted::From(None), Wanted::Behind);
        let mut cut = false;
        while found.len() < limit && !cut {
            let page = self.table.waiting(&wanted, PAGE, true).await?;
            let last = page.last().cloned().filter(|_| page.len() >= PAGE);
            found.extend(self.unknown(page));
            let Some(last) = last else { break };
            cut = begun.elapsed() >= LISTING_MAX;
            if cut || found.len() >= limit {
                lock(&self.pace).rescanned = Some(last.clone());
            }
            wanted = Wanted::Behind(last);
        }
        found.truncate(limit);
        lock(&self.pace).rescan_saw(&found);
        Ok(found)
    }

    fn unknown(&self, mut places: Vec<Place>) -> Vec<Place> {
        let ledger = lock(&self.ledger);
        places.retain(|p| !ledger.knows(&p.id));
        places
    }

    async fn read_rows(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        let rescan = request.purpose == ReadPurpose::Rescan;
        let limit = (request.limit as usize).min(self.options.batch.map_or(usize::MAX, |n| n as usize)).max(1);
        let takes_new = request.ranges.last().is_some_and(|r| r.last == u64::MAX) && !lock(&self.ledger).is_full();
        let looking = self.look();
        let listed = if rescan && takes_new { Some(self.look_through(limit).await?) } else { None };
        if !rescan {
            self.rest().await;
        }
        let _one = self.reading.lock().await;
        let began = Instant::now();
        // What was handed out and the caller does not know: an answer that was lost.
        let mut again: Vec<(Seq, String)> = Vec::new();
        for Run { first, last } in &request.ranges {
            again.extend(lock(&self.ledger).open_within(*first, *last));
        }
        again.sort_unstable();
        let mut answer = ReadRows { rows: Vec::new(), cut: again.len() > limit };
        again.truncate(limit);
        let mut bytes = request.max_bytes;
        if !again.is_empty() {
            let ids: Vec<String> = again.iter().map(|(_, id)| id.clone()).collect();
            let Fetched { rows, covered } = self.table.rows(&ids, bytes, rescan).await?;
            answer.cut |= covered < ids.len();
            bytes = bytes.saturating_sub(weight(&rows));
            let mut by_id: HashMap<String, Row> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
            let mut ledger = lock(&self.ledger);
            for (seq, id) in again.into_iter().take(covered) {
                match by_id.remove(&id) {
                    Some(row) => answer.rows.push(Row { seq, ..row }),
                    None => ledger.vanished(seq),
                }
            }
        }
        if takes_new && !answer.cut && answer.rows.len() < limit && bytes > 0 {
            let room = limit - answer.rows.len();
            let (mut places, mut more) = match listed {
                Some(places) => (places, false),
                None => self.list(room).await?,
            };
            more |= places.len() > room;
            places.truncate(room);
            let ids: Vec<String> = places.iter().map(|p| p.id.clone()).collect();
            let Fetched { rows, covered } = match ids.is_empty() {
                true => Fetched::default(),
                false => self.table.rows(&ids, bytes, rescan).await?,
            };
            answer.cut = more || covered < ids.len();
            let mut by_id: HashMap<String, Row> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
            let mut ledger = lock(&self.ledger);
            if ledger.is_stale(looking.look) {
                return Ok(ReadRows::default());
            }
            for id in ids.into_iter().take(covered) {
                let Some(row) = by_id.remove(&id) else { continue };
                if let Some(seq) = ledger.take(&id) {
                    answer.rows.push(Row { seq, ..row });
                }
            }
            drop(ledger);
            if rescan && answer.cut {
                lock(&self.pace).rescanned = None; // what was left out is behind the first row, too
            }
            if !rescan {
                let mut pace = lock(&self.pace);
                match covered.checked_sub(1).and_then(|n| places.into_iter().nth(n)) {
                    Some(last) if answer.cut => pace.tail = Some(last),
                    _ if !answer.cut => pace.tail = None,
                    _ => {}
                }
            }
        }
        drop(looking);
        if !rescan {
            // While there is more, nothing is gained by waiting.
            let rest = if answer.cut { Duration::ZERO } else { (began.elapsed() * REST_FACTOR).min(REST_MAX) };
            let next = self.options.interval.map_or_else(|| Instant::now() + rest, |interval| began + interval);
            lock(&self.pace).next = Some(next);
        }
        Ok(answer)
    }

    /// One step of archiving. How many rows it takes follows the time that it takes: nobody else should notice.
    async fn archive(&self, archive: &Archive, pruned: &mut Pruned) -> StoreResult<()> {
        let limit = lock(&self.pace).archive_step.clamp(ARCHIVE_STEP.0, ARCHIVE_STEP.1);
        let begun = Instant::now();
        let archiving = |e: StoreError| e.while_doing("archiving rows of the status table");
        pruned.archived = self.table.archive(archive, limit).await.map_err(archiving)?;
        if let Some(after) = archive.purge_after {
            pruned.purged = self.table.purge(archive, after, limit).await.map_err(archiving)?;
        }
        pruned.more |= pruned.archived.max(pruned.purged) >= limit as u64;
        let took = begun.elapsed();
        lock(&self.pace).archive_step = match took {
            t if t > ARCHIVE_TAKES.1 => limit / 2,
            t if t < ARCHIVE_TAKES.0 => limit + limit / 2,
            _ => limit,
        };
        Ok(())
    }

    /// What the log holds and may be waiting in the table is known before the first poll.
    async fn learn(&self, recovery: &Recovery) -> StoreResult<()> {
        lock(&self.ledger).begin_anew();
        *lock(&self.pace) = Pace::default();
        self.marker.learn(recovery).await
    }

    /// Below it everything of the log is marked. None: everything is.
    async fn marked_below(&self) -> StoreResult<Option<Position>> {
        match &self.feeder {
            Some(feeder) if feeder.has_marked().await? => Ok(None),
            _ => self.marker.marked_below().await.map(Some),
        }
    }

    /// A table whose rows are being moved is not served by marks.
    async fn refuse_if_moved(&self) -> StoreResult<()> {
        let kept = self.inner.memory(MIGRATION).await?.and_then(|text| Migration::decode(&text));
        match kept {
            Some(kept) if kept.stage != Stage::Finished || kept.table == self.options.table => {
                let what = match kept.stage {
                    Stage::Finished => format!("the rows of table {} were moved into the outbox table", kept.table),
                    Stage::Marking | Stage::Feeding => {
                        format!("the rows of table {} are being moved into the outbox table", kept.table)
                    }
                };
                Err(StoreError::new(StoreErrorKind::Migrating, what))
            }
            _ => Ok(()),
        }
    }
}

fn weight(rows: &[Row]) -> usize {
    rows.iter().map(|row| row.payload.len() + row.headers.as_ref().map_or(0, String::len)).sum()
}

#[async_trait]
impl Store for StatusStore {
    fn kind(&self) -> DatabaseKind {
        self.inner.kind()
    }

    fn ddl(&self, plan: &InitPlan) -> String {
        let table = &self.options.table;
        let mut ddl = self.inner.ddl(plan);
        ddl.push_str("\n-- Beside it, on the table that is there already, the relay's user needs:\n");
        match &self.options.archive {
            None => ddl.push_str(&format!("--   GRANT SELECT, UPDATE ON {table} TO relay;\n")),
            Some(archive) => {
                ddl.push_str(&format!("--   GRANT SELECT, UPDATE, DELETE ON {table} TO relay;\n"));
                ddl.push_str(&format!("--   GRANT SELECT, INSERT, DELETE ON {} TO relay;\n", archive.table));
                ddl.push_str("-- The archive has the columns of that table; `init` without --print makes it.\n");
            }
        }
        if self.feeder.is_none() {
            ddl.push_str("-- Its application needs nothing more than it has: outbox_native stays empty.\n");
        }
        ddl
    }

    async fn init(&self, plan: &InitPlan) -> StoreResult<()> {
        if plan.shards != 1 {
            return Err(StoreError::new(StoreErrorKind::Configuration, "a status table is one shard"));
        }
        self.inner.init(plan).await?;
        match &self.options.archive {
            Some(archive) => self.table.make_archive(archive).await,
            None => Ok(()),
        }
    }

    async fn upgrade_plan(&self) -> StoreResult<Upgrade> {
        self.inner.upgrade_plan().await
    }

    async fn upgrade(&self) -> StoreResult<Upgrade> {
        self.inner.upgrade().await
    }

    async fn reshard(&self, _owner: &str, _shards: u16) -> StoreResult<Resharded> {
        Err(not_here("shards"))
    }

    async fn check_version(&self) -> StoreResult<Option<String>> {
        self.inner.check_version().await
    }

    async fn inspect(&self) -> StoreResult<SchemaInfo> {
        let mut info = self.inner.inspect().await?;
        if info.shards != 1 {
            let what = format!("the tables have {} shards, and a status table is one", info.shards);
            return Err(StoreError::new(StoreErrorKind::WrongSchema, what));
        }
        let Condition { warnings, is_large } = self.table.inspect().await?;
        info.mode = if self.feeder.is_some() { "migrate" } else { "status" }.into();
        info.warnings.extend(warnings);
        if is_large && self.options.archive.is_none() {
            info.warnings.push(format!(
                "table {} has millions of rows and no archive: name one (status.archive), polls and marks get slower with it",
                self.options.table
            ));
        }
        Ok(info)
    }

    async fn read(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        if let Some(feeder) = &self.feeder {
            return feeder.read(request).await;
        }
        if request.purpose == ReadPurpose::Due || !request.shards.contains(&SHARD) {
            return Ok(ReadRows::default());
        }
        self.read_rows(request).await
    }

    async fn look_ahead(&self, shards: &[ShardId], ranges: &[Run], limit: usize) -> StoreResult<Upcoming> {
        match self.feeder {
            Some(_) => self.inner.look_ahead(shards, ranges, limit).await,
            None => Ok(Upcoming::default()),
        }
    }

    /// The numbers are the ledger's own.
    async fn resolved(&self, seen: Seq) -> StoreResult<Seq> {
        if self.feeder.is_some() {
            return self.inner.resolved(seen).await;
        }
        Ok(lock(&self.ledger).resolved())
    }

    async fn checkpoint(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<ShardOutcome>> {
        if self.feeder.is_some() {
            return self.inner.checkpoint(checkpoint).await;
        }
        self.marker.before(checkpoint).await?;
        let outcomes = self.inner.checkpoint(checkpoint).await?;
        self.marker.after(checkpoint, outcomes.iter().map(|o| Some(*o)));
        Ok(outcomes)
    }

    async fn checkpoint_applied(&self, checkpoint: &Checkpoint) -> StoreResult<Vec<Option<ShardOutcome>>> {
        let outcomes = self.inner.checkpoint_applied(checkpoint).await?;
        if self.feeder.is_some() {
            return Ok(outcomes);
        }
        self.marker.after(checkpoint, outcomes.iter().copied());
        Ok(outcomes)
    }

    async fn recover(&self, shard: ShardId) -> StoreResult<Recovery> {
        let recovery = self.inner.recover(shard).await?;
        match &self.feeder {
            _ if shard != SHARD => {}
            Some(feeder) => feeder.begin(&recovery).await?,
            None => {
                self.refuse_if_moved().await?;
                self.learn(&recovery).await?;
            }
        }
        Ok(recovery)
    }

    async fn read_log(&self, shard: ShardId, from: Position, max_bytes: usize) -> StoreResult<Vec<StoredChunk>> {
        self.inner.read_log(shard, from, max_bytes).await
    }

    async fn parked(&self, shard: ShardId, destination: &str, from: Position) -> StoreResult<Vec<ParkedEntry>> {
        self.inner.parked(shard, destination, from).await
    }

    async fn read_parked(
        &self,
        shard: ShardId,
        destination: &str,
        positions: &[Position],
        destinations: &[String],
    ) -> StoreResult<Vec<StoredParked>> {
        self.inner.read_parked(shard, destination, positions, destinations).await
    }

    async fn lease_round(&self, round: &LeaseRound) -> StoreResult<LeaseReport> {
        if let Some(feeder) = &self.feeder {
            feeder.is_owner(&round.owner);
        }
        self.inner.lease_round(round).await
    }

    async fn enqueue(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        if self.feeder.is_some() {
            return self.inner.enqueue(rows).await;
        }
        if rows.iter().any(|row| row.available_at_us.is_some()) {
            return Err(not_here("scheduled messages"));
        }
        let mut rows = rows.to_vec();
        if self.table.counts().await? {
            rows.iter_mut().filter(|row| row.id_is_made).for_each(|row| row.id = None);
            if let Some(id) = rows.iter().filter_map(|row| row.id.as_ref()).find(|id| id.parse::<i128>().is_err()) {
                let what = format!("{id} is no id of table {}: they are numbers there", self.options.table);
                return Err(StoreError::new(StoreErrorKind::Configuration, what));
            }
        }
        self.table.insert(&rows).await
    }

    async fn status(&self) -> StoreResult<Vec<ShardStatus>> {
        let mut shards = self.inner.status().await?;
        let (waiting, oldest) = self.table.count().await?;
        if let Some(shard) = shards.iter_mut().find(|s| s.shard == SHARD) {
            match self.feeder {
                Some(_) => {
                    shard.hot_rows += waiting;
                    shard.oldest_hot_ms = shard.oldest_hot_ms.max(oldest);
                }
                None => (shard.hot_rows, shard.oldest_hot_ms) = (waiting, oldest),
            }
        }
        Ok(shards)
    }

    async fn memory(&self, destination: &str) -> StoreResult<Option<String>> {
        self.inner.memory(destination).await
    }

    async fn keep_memory(&self, destination: &str, text: &str) -> StoreResult<()> {
        self.inner.keep_memory(destination, text).await
    }

    async fn turn(&self, name: &str, owner: &str, ttl_ms: u64) -> StoreResult<Option<String>> {
        self.inner.turn(name, owner, ttl_ms).await
    }

    async fn instances(&self) -> StoreResult<Vec<InstanceStatus>> {
        self.inner.instances().await
    }

    async fn find(&self, id: &str, created_at_us: Option<(i64, i64)>) -> StoreResult<Vec<Found>> {
        let mut found = self.inner.find(id, created_at_us).await?;
        if let Some(Standing { row, status, sent_at_us }) = self.table.find(id).await? {
            let waits = status == self.options.pending;
            found.push(Found::Status { row: Box::new(row), status, waits, sent_at_us });
        }
        Ok(found)
    }

    async fn receipts_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ReceiptRow>> {
        self.inner.receipts_of(shard, position).await
    }

    async fn receipts_below(
        &self,
        shard: ShardId,
        below: Option<u64>,
        max_bytes: usize,
    ) -> StoreResult<Vec<NumberedReceipts>> {
        self.inner.receipts_below(shard, below, max_bytes).await
    }

    async fn parked_of(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ParkedEntry>> {
        self.inner.parked_of(shard, position).await
    }

    async fn prunable(&self, request: &PruneRequest, from: ShardId, max_bytes: usize) -> StoreResult<Prunable> {
        let Some(below) = self.marked_below().await? else {
            return self.inner.prunable(request, from, max_bytes).await;
        };
        let mut prunable = self.inner.prunable(request, from, max_bytes).await?;
        prunable.chunks.retain(|c| c.shard != SHARD || c.base.0 + u64::from(c.count) <= below.0);
        Ok(prunable)
    }

    /// What was not marked yet stays in the log: the next owner knows by it what it has.
    async fn prune(&self, request: &PruneRequest) -> StoreResult<Pruned> {
        let exported = match (self.marked_below().await?, &request.exported) {
            (None, kept) => kept.clone(),
            (Some(below), None) => Some(vec![Exported { shard: SHARD, below, moved_at_us: i64::MAX }]),
            (Some(below), Some(kept)) => {
                Some(kept.iter().map(|e| Exported { below: e.below.min(below), ..*e }).collect())
            }
        };
        let mut pruned = self.inner.prune(&PruneRequest { exported, ..request.clone() }).await?;
        if pruned.ran
            && let Some(archive) = &self.options.archive
        {
            self.archive(archive, &mut pruned).await?;
        }
        Ok(pruned)
    }

    async fn order(&self, act: &NewAct) -> StoreResult<ActNumber> {
        self.inner.order(act).await
    }

    async fn open_acts(&self, shards: &[ShardId]) -> StoreResult<Vec<Act>> {
        self.inner.open_acts(shards).await
    }

    async fn acts(&self, wanted: &ActsWanted) -> StoreResult<Vec<ActRecord>> {
        self.inner.acts(wanted).await
    }

    async fn take_replay(&self, number: ActNumber, runner: &str) -> StoreResult<bool> {
        self.inner.take_replay(number, runner).await
    }

    async fn keep_replay(&self, progress: &ReplayProgress) -> StoreResult<bool> {
        self.inner.keep_replay(progress).await
    }

    async fn pauses(&self) -> StoreResult<Vec<PauseStatus>> {
        self.inner.pauses().await
    }

    async fn edits(&self, shard: ShardId, destination: &str) -> StoreResult<Vec<(Position, Arc<Edit>)>> {
        self.inner.edits(shard, destination).await
    }

    async fn list_parked(&self, query: &ParkedQuery, limit: u32) -> StoreResult<Vec<ListedParked>> {
        self.inner.list_parked(query, limit).await
    }

    async fn count_parked(&self, query: &ParkedQuery) -> StoreResult<Vec<ParkedCount>> {
        self.inner.count_parked(query).await
    }

    async fn cancel(&self, request: &CancelRequest) -> StoreResult<Vec<ActNumber>> {
        match self.feeder {
            Some(_) => self.inner.cancel(request).await,
            None => Err(not_here("scheduled messages")),
        }
    }

    async fn origin(&self) -> StoreResult<String> {
        self.inner.origin().await
    }

    async fn judge(&self, transaction: &str) -> StoreResult<Finding> {
        self.inner.judge(transaction).await
    }

    async fn end_transactions(&self, ended: &[EndedTransaction]) -> StoreResult<u64> {
        self.inner.end_transactions(ended).await
    }

    async fn fall_back(&self, wanted: &FallBack) -> StoreResult<FellBack> {
        match self.feeder {
            Some(_) => self.inner.fall_back(wanted).await,
            None => Err(not_here("transactional messages")),
        }
    }

    async fn prune_transactions(&self, retention_ms: u64, limit: u32) -> StoreResult<u64> {
        self.inner.prune_transactions(retention_ms, limit).await
    }

    async fn find_transactions(&self, id: &str) -> StoreResult<Vec<TransactionRecord>> {
        self.inner.find_transactions(id).await
    }

    fn tends(&self) -> bool {
        true
    }

    async fn tend(&self) -> StoreResult<bool> {
        match &self.feeder {
            Some(feeder) => feeder.step().await,
            None => self.marker.step().await,
        }
    }

    async fn close(&self) {
        if self.feeder.is_none() {
            self.marker.finish().await;
        }
        self.table.close().await;
        self.inner.close().await;
    }
}
