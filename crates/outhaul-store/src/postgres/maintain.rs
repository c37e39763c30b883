//! Pruning and merging, one step a transaction, under the lease of maintenance.

use outhaul_core::message::{Position, ShardId};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Failure, Held, Link, Statement, get};
use super::log::{CHUNK, receipts, stored_chunk};
use super::schema::MAINTENANCE;
use super::values::{Micros, clean, quoted, signed, unsigned};
use crate::error::{StoreError, StoreErrorKind};
use crate::merge::{self, CHUNK_BYTES, Head, JoinedChunk, JoinedReceipts, StoredReceipts};
use crate::store::{Prunable, PruneBound, PruneRequest, Pruned, StoreResult, StoredChunk};

/// Time to live of the lease of maintenance, seconds.
const LEASE_SECONDS: u32 = 60;
/// Instances whose last heartbeat is older than this are gone for good, hours.
const INSTANCE_HOURS: u32 = 24;

/// What a step needs to know of a shard.
struct ShardLog {
    shard: i16,
    newest: i64,
    log_end: Position,
    settled_below: Option<Position>,
}

/// One step under way.
struct Step<'a> {
    link: &'a Link,
    log: String,
    receipt: String,
    meta: String,
    request: &'a PruneRequest,
    now_us: i64,
    /// Rows that this step may still touch.
    left: u32,
    done: Pruned,
}

impl PostgresStore {
    /// Begins a transaction and takes the lease of maintenance. None: another one holds it, and nothing is open.
    async fn begin_step(&self, held: &Held<'_>, request: &PruneRequest) -> Result<Option<Vec<Vec<Row>>>, Failure> {
        let t = |name: &str| quoted(&self.options.table(name));
        let lease = format!(
            "UPDATE {lease} SET epoch = epoch + (owner IS DISTINCT FROM $1)::int, owner = $1, \
               expires_at = clock_timestamp() + interval '{LEASE_SECONDS} seconds' \
             WHERE shard = (SELECT shard FROM {lease} WHERE shard = {MAINTENANCE} \
               AND (owner = $1 OR owner IS NULL OR expires_at IS NULL OR expires_at <= clock_timestamp()) FOR UPDATE SKIP LOCKED) \
             RETURNING clock_timestamp()",
            lease = t("outbox_lease")
        );
        let shards = format!(
            "SELECT l.shard, r.number, r.log_end, r.lanes FROM {} l, LATERAL (SELECT number, log_end, lanes FROM {} \
             WHERE shard = l.shard ORDER BY number DESC LIMIT 1) r WHERE l.shard >= 0 ORDER BY l.shard",
            t("outbox_lease"),
            t("outbox_receipt")
        );
        let owner = clean(&request.owner);
        let statements = [Statement::new(&lease).with(&owner, Type::TEXT), Statement::new(&shards)];
        let answers = held.link.begin(&self.dialer.begin_write, &statements).await?;
        if answers.first().is_none_or(Vec::is_empty) {
            held.link.rollback().await?;
            return Ok(None);
        }
        Ok(Some(answers))
    }

    pub(super) async fn look_for_prunable(
        &self,
        request: &PruneRequest,
        from: ShardId,
        max_bytes: usize,
    ) -> StoreResult<Prunable> {
        let held = self.other.take(&self.dialer).await?;
        let (now_us, logs) = match self.begin_step(&held, request).await {
            Ok(Some(answers)) => begun(&answers)?,
            Ok(None) => return held.give_back(Ok(Prunable::default())),
            Err(failure) => return held.give_back(Err(failure)),
        };
        let sql = format!(
            "SELECT base_position + count <= $2 AND moved_at < $3 FROM {} WHERE shard = $1 ORDER BY base_position LIMIT 1",
            quoted(&self.options.table("outbox_log"))
        );
        let bounds: Vec<(i16, ShardId, PruneBound, i64, Micros)> = logs
            .iter()
            .filter_map(|log| {
                let shard = ShardId(u16::try_from(log.shard).unwrap_or_default());
                let bound = request.bound(shard, log.settled_below?, now_us);
                (shard >= from).then_some((log.shard, shard, bound, signed(bound.below.0), Micros(bound.before_us)))
            })
            .collect();
        let statements: Vec<Statement<'_>> = bounds
            .iter()
            .map(|(shard, _, _, below, before)| {
                Statement::new(&sql).with(shard, Type::INT2).with(below, Type::INT8).with(before, Type::TIMESTAMPTZ)
            })
            .collect();
        let result = held.link.run_and_commit(&statements).await;
        let answers = held.give_back(result)?;
        let goes = |rows: &Vec<Row>| rows.first().is_some_and(|row| get(row, 0).unwrap_or(false));
        let Some(((_, shard, bound, ..), _)) = bounds.iter().zip(&answers).find(|(_, rows)| goes(rows)) else {
            return Ok(Prunable { ran: true, chunks: vec![] });
        };
        let chunks = self.chunks_from(&self.other, *shard, Position(0), max_bytes).await?;
        Ok(Prunable { ran: true, chunks: bound.prunable(chunks, request.step) })
    }

    pub(super) async fn maintain(&self, request: &PruneRequest) -> StoreResult<Pruned> {
        let t = |name: &str| quoted(&self.options.table(name));
        let held = self.other.take(&self.dialer).await?;
        let (now_us, logs) = match self.begin_step(&held, request).await {
            Ok(Some(answers)) => begun(&answers)?,
            Ok(None) => return held.give_back(Ok(Pruned::default())),
            Err(failure) => return held.give_back(Err(failure)),
        };
        let mut step = Step {
            link: &held.link,
            log: t("outbox_log"),
            receipt: t("outbox_receipt"),
            meta: t("outbox_meta"),
            request,
            now_us,
            left: request.step.max(1),
            done: Pruned { ran: true, ..Pruned::default() },
        };
        step.all(&logs).await?;
        let done = step.done.clone();
        self.end_step(held, done).await
    }

    async fn end_step(&self, held: Held<'_>, done: Pruned) -> StoreResult<Pruned> {
        let gone = format!(
            "DELETE FROM {} WHERE heartbeat < now() - interval '{INSTANCE_HOURS} hours'",
            quoted(&self.options.table("outbox_instance"))
        );
        // Work that goes on keeps the lease; finished work leaves it to whoever asks next.
        let release = format!(
            "UPDATE {} SET owner = NULL, expires_at = NULL WHERE shard = {MAINTENANCE}",
            quoted(&self.options.table("outbox_lease"))
        );
        let statements = [Statement::new(&gone), Statement::new(&release)];
        let result = held.link.run_and_commit(&statements[..if done.more { 1 } else { 2 }]).await;
        held.give_back(result).map(|_| done)
    }
}

/// The time of the database, and every shard.
fn begun(answers: &[Vec<Row>]) -> StoreResult<(i64, Vec<ShardLog>)> {
    let now = answers.first().and_then(|rows| rows.first()).map(|row| get::<Micros>(row, 0)).transpose()?;
    let logs = answers.get(1).into_iter().flatten().map(shard_log).collect::<StoreResult<_>>()?;
    Ok((now.map_or(i64::MIN, |now| now.0), logs))
}

fn shard_log(row: &Row) -> StoreResult<ShardLog> {
    let (shard, newest): (i16, i64) = (get(row, 0)?, get(row, 1)?);
    let lanes = receipts(get(row, 3)?, ShardId(u16::try_from(shard).unwrap_or_default()), unsigned(newest))?;
    Ok(ShardLog {
        shard,
        newest,
        log_end: Position(unsigned(get(row, 2)?)),
        settled_below: merge::settled_below(&lanes),
    })
}

fn stopped(failure: Failure) -> StoreError {
    failure.error
}

impl Step<'_> {
    async fn all(&mut self, logs: &[ShardLog]) -> StoreResult<()> {
        for log in logs {
            self.prune(log).await?;
        }
        let Some(after_ms) = self.request.merge_after_ms else { return Ok(()) };
        for log in logs {
            if self.left == 0 {
                self.done.more = true;
                return Ok(());
            }
            self.merge_chunks(log, after_ms).await?;
            self.merge_receipts(log, after_ms).await?;
        }
        Ok(())
    }

    async fn one(&self, statement: Statement<'_>) -> StoreResult<Vec<Row>> {
        Ok(self.link.run(&[statement]).await.map_err(stopped)?.into_iter().next().unwrap_or_default())
    }

    fn used(&mut self, rows: usize) {
        self.left = self.left.saturating_sub(u32::try_from(rows).unwrap_or(u32::MAX));
    }

    /// Deletes the oldest chunks that are settled and past their retention, from the start on without a gap, then the
    /// receipts of what is gone.
    async fn prune(&mut self, log: &ShardLog) -> StoreResult<()> {
        let Some(settled_below) = log.settled_below else { return Ok(()) };
        let bound =
            self.request.bound(ShardId(u16::try_from(log.shard).unwrap_or_default()), settled_below, self.now_us);
        if self.left == 0 {
            self.done.more = true;
            return Ok(());
        }
        let keep = "base_position + count > $2 OR moved_at >= $3";
        let chunks = format!(
            "DELETE FROM {log} WHERE shard = $1 AND base_position IN (SELECT base_position FROM {log} WHERE shard = $1 \
               AND base_position + count <= $2 AND moved_at < $3 AND base_position < coalesce( \
                 (SELECT base_position FROM {log} WHERE shard = $1 AND ({keep}) ORDER BY base_position LIMIT 1), \
                 9223372036854775807) \
               ORDER BY base_position LIMIT $4) RETURNING count",
            log = self.log
        );
        let (below, before, limit) = (signed(bound.below.0), Micros(bound.before_us), i64::from(self.left));
        let deleted = self
            .one(
                Statement::new(&chunks)
                    .with(&log.shard, Type::INT2)
                    .with(&below, Type::INT8)
                    .with(&before, Type::TIMESTAMPTZ)
                    .with(&limit, Type::INT8),
            )
            .await?;
        self.used(deleted.len());
        self.done.chunks += deleted.len() as u64;
        for row in &deleted {
            self.done.messages += unsigned(i64::from(get::<i32>(row, 0)?));
        }
        let cutoff = Micros(self.request.cutoff_us(self.now_us));
        let receipts = format!(
            "DELETE FROM {receipt} WHERE shard = $1 AND number IN (SELECT number FROM {receipt} WHERE shard = $1 AND number < $2 \
               AND created_at < $3 AND coalesce(to_position, -1) < coalesce((SELECT base_position FROM {log} WHERE shard = $1 \
                 ORDER BY base_position LIMIT 1), $4) ORDER BY number LIMIT $5) RETURNING number",
            receipt = self.receipt,
            log = self.log
        );
        let (end, limit) = (signed(log.log_end.0), i64::from(self.left.max(1)));
        let deleted_receipts = self
            .one(
                Statement::new(&receipts)
                    .with(&log.shard, Type::INT2)
                    .with(&log.newest, Type::INT8)
                    .with(&cutoff, Type::TIMESTAMPTZ)
                    .with(&end, Type::INT8)
                    .with(&limit, Type::INT8),
            )
            .await?
            .len();
        self.used(deleted_receipts);
        self.done.receipts += deleted_receipts as u64;
        self.done.more |= self.left == 0;
        Ok(())
    }

    /// The mark from which merging goes on; one above the end is of another history and counts from the start.
    async fn mark(&self, name: &str, end: u64) -> StoreResult<u64> {
        let sql = format!("SELECT value FROM {} WHERE name = $1", self.meta);
        let rows = self.one(Statement::new(&sql).with(&name, Type::TEXT)).await?;
        let value: Option<String> = rows.first().map(|row| get(row, 0)).transpose()?;
        Ok(value.and_then(|v| v.parse().ok()).filter(|mark| *mark <= end).unwrap_or(0))
    }

    async fn set_mark(&self, name: &str, before: u64, mark: u64) -> StoreResult<()> {
        if mark == before {
            return Ok(());
        }
        let sql = format!(
            "INSERT INTO {} (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value",
            self.meta
        );
        let value = mark.to_string();
        self.one(Statement::new(&sql).with(&name, Type::TEXT).with(&value, Type::TEXT)).await.map(|_| ())
    }

    async fn merge_chunks(&mut self, log: &ShardLog, after_ms: u64) -> StoreResult<()> {
        let name = merge::chunk_mark(ShardId(u16::try_from(log.shard).unwrap_or_default()));
        let mark = self.mark(&name, log.log_end.0).await?;
        let sql = format!(
            "SELECT base_position, count, moved_at, octet_length(chunk) FROM {} WHERE shard = $1 AND base_position >= $2 \
             ORDER BY base_position LIMIT $3",
            self.log
        );
        let (from, limit) = (signed(mark), i64::from(merge::step(self.request.step)));
        let statement =
            Statement::new(&sql).with(&log.shard, Type::INT2).with(&from, Type::INT8).with(&limit, Type::INT8);
        let heads: Vec<Head> = self.one(statement).await?.iter().map(head).collect::<StoreResult<_>>()?;
        let filled = i64::try_from(heads.len()).unwrap_or(i64::MAX) >= limit;
        let plan = merge::plan(mark, &heads, filled, self.now_us, after_ms);
        let read = format!(
            "SELECT {CHUNK} FROM {} WHERE shard = $1 AND base_position BETWEEN $2 AND $3 ORDER BY base_position",
            self.log
        );
        let mut last = None;
        for group in &plan.groups {
            let (first, end) = (signed(group.first), signed(group.last));
            let statement =
                Statement::new(&read).with(&log.shard, Type::INT2).with(&first, Type::INT8).with(&end, Type::INT8);
            let chunks: Vec<StoredChunk> =
                self.one(statement).await?.iter().map(stored_chunk).collect::<StoreResult<_>>()?;
            let joining = tokio::task::spawn_blocking(move || merge::join_chunks(&chunks, CHUNK_BYTES));
            let (joined, last_base) =
                joining.await.map_err(|_| StoreError::new(StoreErrorKind::Other, "joining chunks failed"))?;
            for chunk in &joined {
                self.replace_chunks(log.shard, chunk).await?;
                self.used(chunk.sources.len());
                self.done.merged_chunks += chunk.sources.len() as u64;
            }
            last = last_base;
        }
        self.done.more |= plan.more;
        self.set_mark(&name, mark, plan.next_mark(last)).await
    }

    async fn replace_chunks(&self, shard: i16, joined: &JoinedChunk) -> StoreResult<()> {
        let delete = format!("DELETE FROM {} WHERE shard = $1 AND base_position = ANY ($2)", self.log);
        let insert = format!(
            "INSERT INTO {} (shard, base_position, count, first_created_at, last_created_at, moved_at, codec, id_filter, chunk) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
            self.log
        );
        let sources: Vec<i64> = joined.sources.iter().map(|base| signed(base.0)).collect();
        let c = &joined.chunk;
        let (base, count, codec) = (signed(c.base.0), i32::try_from(c.count).unwrap_or(i32::MAX), i16::from(c.codec));
        let times = [c.first_created_at_us, c.last_created_at_us, joined.moved_at_us].map(Micros);
        let statements = [
            Statement::new(&delete).with(&shard, Type::INT2).with(&sources, Type::INT8_ARRAY),
            Statement::new(&insert)
                .with(&shard, Type::INT2)
                .with(&base, Type::INT8)
                .with(&count, Type::INT4)
                .with(&times[0], Type::TIMESTAMPTZ)
                .with(&times[1], Type::TIMESTAMPTZ)
                .with(&times[2], Type::TIMESTAMPTZ)
                .with(&codec, Type::INT2)
                .with(&c.id_filter, Type::BYTEA)
                .with(&c.bytes, Type::BYTEA),
        ];
        self.link.run(&statements).await.map_err(stopped).map(|_| ())
    }

    async fn merge_receipts(&mut self, log: &ShardLog, after_ms: u64) -> StoreResult<()> {
        let name = merge::receipt_mark(ShardId(u16::try_from(log.shard).unwrap_or_default()));
        let mark = self.mark(&name, unsigned(log.newest)).await?;
        let sql = format!(
            "SELECT number, 1, created_at, octet_length(lanes) FROM {} WHERE shard = $1 AND number >= $2 AND number < $3 \
             ORDER BY number LIMIT $4",
            self.receipt
        );
        let (from, limit) = (signed(mark), i64::from(merge::step(self.request.step)));
        let statement = Statement::new(&sql)
            .with(&log.shard, Type::INT2)
            .with(&from, Type::INT8)
            .with(&log.newest, Type::INT8)
            .with(&limit, Type::INT8);
        let heads: Vec<Head> = self.one(statement).await?.iter().map(head).collect::<StoreResult<_>>()?;
        let filled = i64::try_from(heads.len()).unwrap_or(i64::MAX) >= limit;
        let plan = merge::plan(mark, &heads, filled, self.now_us, after_ms);
        let read = format!(
            "SELECT number, epoch, log_end, created_at, lanes FROM {} WHERE shard = $1 AND number BETWEEN $2 AND $3 ORDER BY number",
            self.receipt
        );
        let mut last = None;
        for group in &plan.groups {
            let (first, end) = (signed(group.first), signed(group.last));
            let statement =
                Statement::new(&read).with(&log.shard, Type::INT2).with(&first, Type::INT8).with(&end, Type::INT8);
            let rows: Vec<StoredReceipts> =
                self.one(statement).await?.iter().map(stored_receipts).collect::<StoreResult<_>>()?;
            let (joined, last_number) = merge::join_receipts(&rows);
            for row in &joined {
                self.replace_receipts(log.shard, row).await?;
                self.used(row.sources.len());
                self.done.merged_receipts += row.sources.len() as u64;
            }
            last = last_number;
        }
        self.done.more |= plan.more;
        self.set_mark(&name, mark, plan.next_mark(last)).await
    }

    async fn replace_receipts(&self, shard: i16, joined: &JoinedReceipts) -> StoreResult<()> {
        let delete = format!("DELETE FROM {} WHERE shard = $1 AND number = ANY ($2)", self.receipt);
        let insert = format!(
            "INSERT INTO {} (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            self.receipt
        );
        let sources: Vec<i64> = joined.sources.iter().map(|n| signed(*n)).collect();
        let r = &joined.row;
        let numbers = [r.number, r.epoch.0, r.log_end.0].map(signed);
        let span = joined.span.map(|(from, to)| (signed(from.0), signed(to.0)));
        let (from, to, at) = (span.map(|s| s.0), span.map(|s| s.1), Micros(r.created_at_us));
        let statements = [
            Statement::new(&delete).with(&shard, Type::INT2).with(&sources, Type::INT8_ARRAY),
            Statement::new(&insert)
                .with(&shard, Type::INT2)
                .with(&numbers[0], Type::INT8)
                .with(&numbers[1], Type::INT8)
                .with(&numbers[2], Type::INT8)
                .with(&from, Type::INT8)
                .with(&to, Type::INT8)
                .with(&at, Type::TIMESTAMPTZ)
                .with(&r.lanes, Type::BYTEA),
        ];
        self.link.run(&statements).await.map_err(stopped).map(|_| ())
    }
}

fn head(row: &Row) -> StoreResult<Head> {
    Ok(Head {
        key: unsigned(get(row, 0)?),
        count: u32::try_from(get::<i32>(row, 1)?).unwrap_or_default(),
        at_us: get::<Micros>(row, 2)?.0,
        bytes: unsigned(get::<i32>(row, 3)?.into()),
    })
}

fn stored_receipts(row: &Row) -> StoreResult<StoredReceipts> {
    Ok(StoredReceipts {
        number: unsigned(get(row, 0)?),
        epoch: outhaul_core::message::Epoch(unsigned(get(row, 1)?)),
        log_end: Position(unsigned(get(row, 2)?)),
        created_at_us: get::<Micros>(row, 3)?.0,
        lanes: get(row, 4)?,
    })
}
