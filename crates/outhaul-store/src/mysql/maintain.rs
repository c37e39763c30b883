//! Pruning and merging, one step a transaction, under the lease of maintenance.
//!
//! Rows are deleted by range with a LIMIT, as in a checkpoint: a DELETE that scans would wait for the row that a
//! checkpoint is adding at the end.

use mysql_async::Row;
use outhaul_core::message::{Epoch, Position, ShardId};

use super::MySqlStore;
use super::checkpoint::{CHUNK_COLUMNS, RECEIPT_COLUMNS, chunk_bytes, chunk_values};
use super::link::{Answer, Link};
use super::log::{CHUNK, receipts, stored_chunk};
use super::refusal::Failure;
use super::schema::MAINTENANCE;
use super::statement::Statement;
use super::values::{NOW, bytes, hex, literal, micros, number, quoted, text, time_literal, time_text};
use crate::error::{StoreError, StoreErrorKind};
use crate::merge::{self, Head, JoinedChunk, JoinedReceipts, StoredReceipts};
use crate::store::{Prunable, PruneBound, PruneRequest, Pruned, StoreResult, StoredChunk};

/// Time to live of the lease of maintenance, seconds.
const LEASE_SECONDS: u32 = 60;
/// Instances whose last heartbeat is older than this are gone for good, hours.
const INSTANCE_HOURS: u32 = 24;

/// What a step needs to know of a shard.
struct ShardLog {
    shard: ShardId,
    newest: u64,
    log_end: Position,
    settled_below: Option<Position>,
}

/// One step under way.
struct Step<'a> {
    link: &'a mut Link,
    log: String,
    receipt: String,
    meta: String,
    request: &'a PruneRequest,
    now_us: i64,
    /// Rows that this step may still touch.
    left: u32,
    done: Pruned,
}

impl MySqlStore {
    pub(super) async fn maintain(&self, request: &PruneRequest) -> StoreResult<Pruned> {
        let mut held = self.other.take(&self.dialer).await?;
        let result = self.step(&mut held.link, request).await;
        held.give_back(result)
    }

    pub(super) async fn look_for_prunable(
        &self,
        request: &PruneRequest,
        from: ShardId,
        max_bytes: usize,
    ) -> StoreResult<Prunable> {
        let mut held = self.other.take(&self.dialer).await?;
        let result = self.first_prunable(&mut held.link, request, from).await;
        let (shard, bound) = match held.give_back(result)? {
            None => return Ok(Prunable::default()),
            Some(None) => return Ok(Prunable { ran: true, chunks: vec![] }),
            Some(Some(found)) => found,
        };
        let chunks = self.chunks_from(&self.other, shard, Position(0), max_bytes).await?;
        Ok(Prunable { ran: true, chunks: bound.prunable(chunks, request.step) })
    }

    /// None: another one holds the lease. Inside: the first shard of which something may go.
    async fn first_prunable(
        &self,
        link: &mut Link,
        request: &PruneRequest,
        from: ShardId,
    ) -> Result<Option<Option<(ShardId, PruneBound)>>, Failure> {
        let Some((now_us, logs)) = self.begin_step(link, request).await? else { return Ok(None) };
        let bounds: Vec<(ShardId, PruneBound)> = logs
            .iter()
            .filter(|log| log.shard >= from)
            .filter_map(|log| Some((log.shard, request.bound(log.shard, log.settled_below?, now_us))))
            .collect();
        let log = quoted(&self.options.table("outbox_log"));
        let heads: Vec<Statement> = bounds
            .iter()
            .map(|(shard, bound)| {
                Statement::new(format!(
                    "SELECT base_position + `count` <= {} AND moved_at < {} FROM {log} WHERE shard = {shard} \
                     ORDER BY base_position LIMIT 1",
                    bound.below,
                    time_literal(bound.before_us)
                ))
            })
            .collect();
        let mut found = None;
        for (answer, candidate) in link.run_inside(&heads).await?.iter().zip(&bounds) {
            let goes = answer.rows.first().map(|row| number::<u8>(row, 0)).transpose()? == Some(1);
            if goes && found.is_none() {
                found = Some(*candidate);
            }
        }
        link.commit().await?;
        Ok(Some(found))
    }

    /// Begins a transaction and takes the lease of maintenance. None: another one holds it, and nothing is open.
    async fn begin_step(
        &self,
        link: &mut Link,
        request: &PruneRequest,
    ) -> Result<Option<(i64, Vec<ShardLog>)>, Failure> {
        let t = |name: &str| quoted(&self.options.table(name));
        let (lease, owner) = (t("outbox_lease"), hex(request.owner.as_bytes()));
        let begin = [
            "START TRANSACTION".to_owned(),
            format!(
                "SELECT {NOW} FROM {lease} WHERE shard = {MAINTENANCE} AND (owner = {owner} OR owner IS NULL \
                 OR expires_at IS NULL OR expires_at <= {NOW}) FOR UPDATE SKIP LOCKED"
            ),
            format!("SELECT shard FROM {lease} WHERE shard >= 0 ORDER BY shard"),
        ];
        let mut answers = link.run_inside(&begin.map(Statement::new)).await?.into_iter().skip(1);
        let (free, shards) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let Some(row) = free.rows.first() else {
            link.rollback().await?;
            return Ok(None);
        };
        let now_us = micros(row, 0)?;
        let shards: Vec<ShardId> =
            shards.rows.iter().map(|row| Ok(ShardId(number(row, 0)?))).collect::<StoreResult<_>>()?;
        let mut statements = vec![Statement::new(format!(
            "UPDATE {lease} SET epoch = epoch + IF(owner <=> {owner}, 0, 1), owner = {owner}, \
             expires_at = {NOW} + INTERVAL {LEASE_SECONDS} SECOND WHERE shard = {MAINTENANCE}"
        ))];
        statements.extend(shards.iter().map(|shard| {
            Statement::new(format!(
                "SELECT `number`, log_end, lanes FROM {} WHERE shard = {shard} ORDER BY `number` DESC LIMIT 1",
                t("outbox_receipt")
            ))
        }));
        let answers = link.run_inside(&statements).await?.into_iter().skip(1);
        let mut logs = Vec::new();
        for (shard, answer) in shards.into_iter().zip(answers) {
            logs.extend(shard_log(shard, answer)?);
        }
        Ok(Some((now_us, logs)))
    }

    async fn step(&self, link: &mut Link, request: &PruneRequest) -> Result<Pruned, Failure> {
        let t = |name: &str| quoted(&self.options.table(name));
        let Some((now_us, logs)) = self.begin_step(link, request).await? else { return Ok(Pruned::default()) };
        let mut step = Step {
            link,
            log: t("outbox_log"),
            receipt: t("outbox_receipt"),
            meta: t("outbox_meta"),
            request,
            now_us,
            left: request.step.max(1),
            done: Pruned { ran: true, ..Pruned::default() },
        };
        step.all(&logs).await?;
        let done = step.done;
        // By primary key: instances that are alive are being updated.
        let gone = format!(
            "SELECT owner FROM {} WHERE heartbeat < {NOW} - INTERVAL {INSTANCE_HOURS} HOUR LIMIT 100",
            t("outbox_instance")
        );
        let answers = link.run_inside(&[Statement::new(gone)]).await?;
        let mut statements = Vec::new();
        for mut row in answers.into_iter().flat_map(|a| a.rows) {
            let mut s = Statement::new(format!("DELETE FROM {} WHERE owner = ", t("outbox_instance")));
            s.push_bytes(bytes(&mut row, 0)?);
            statements.push(s);
        }
        if !done.more {
            // Work that goes on keeps the lease; finished work leaves it to whoever asks next.
            let release =
                format!("UPDATE {} SET owner = NULL, expires_at = NULL WHERE shard = {MAINTENANCE}", t("outbox_lease"));
            statements.push(Statement::new(release));
        }
        link.run_inside(&statements).await?;
        link.commit().await?;
        Ok(done)
    }
}

fn shard_log(shard: ShardId, answer: Answer) -> StoreResult<Option<ShardLog>> {
    let Some(mut row) = answer.rows.into_iter().next() else { return Ok(None) };
    let newest = number(&row, 0)?;
    let log_end = Position(number(&row, 1)?);
    let lanes = receipts(&bytes(&mut row, 2)?, shard, newest)?;
    Ok(Some(ShardLog { shard, newest, log_end, settled_below: merge::settled_below(&lanes) }))
}

impl Step<'_> {
    async fn all(&mut self, logs: &[ShardLog]) -> Result<(), Failure> {
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

    async fn one(&mut self, statement: Statement) -> Result<Answer, Failure> {
        Ok(self.link.run_inside(&[statement]).await?.into_iter().next().unwrap_or_default())
    }

    async fn rows(&mut self, sql: String) -> Result<Vec<Row>, Failure> {
        Ok(self.one(Statement::new(sql)).await?.rows)
    }

    fn used(&mut self, rows: usize) {
        self.left = self.left.saturating_sub(u32::try_from(rows).unwrap_or(u32::MAX));
    }

    /// Deletes keys that were just read, from the first to the last of them.
    async fn delete(&mut self, table: &str, shard: ShardId, column: &str, keys: &[u64]) -> Result<(), Failure> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(()) };
        let sql = format!(
            "DELETE FROM {table} WHERE shard = {shard} AND {column} BETWEEN {first} AND {last} ORDER BY shard, {column} LIMIT {}",
            keys.len()
        );
        let deleted = self.one(Statement::new(sql)).await?.affected;
        if deleted == keys.len() as u64 {
            return Ok(());
        }
        let what = format!("{deleted} rows of shard {shard} were deleted where {} had been read", keys.len());
        Err(StoreError::new(StoreErrorKind::Conflict, what).into())
    }

    /// Deletes the oldest chunks that are settled and past their retention, from the start on without a gap, then the
    /// receipts of what is gone.
    async fn prune(&mut self, log: &ShardLog) -> Result<(), Failure> {
        let Some(settled_below) = log.settled_below else { return Ok(()) };
        if self.left == 0 {
            self.done.more = true;
            return Ok(());
        }
        let shard = log.shard;
        let PruneBound { below, before_us } = self.request.bound(shard, settled_below, self.now_us);
        let before = time_literal(before_us);
        let (log_table, receipt_table) = (self.log.clone(), self.receipt.clone());
        let oldest = format!(
            "SELECT base_position, `count`, base_position + `count` <= {below} AND moved_at < {before} FROM {log_table} \
             WHERE shard = {shard} ORDER BY base_position LIMIT {}",
            self.left
        );
        let mut gone = Vec::new();
        for row in self.rows(oldest).await? {
            if number::<u8>(&row, 2)? != 1 {
                break;
            }
            gone.push(number::<u64>(&row, 0)?);
            self.done.messages += number::<u64>(&row, 1)?;
        }
        self.delete(&log_table, shard, "base_position", &gone).await?;
        self.used(gone.len());
        self.done.chunks += gone.len() as u64;

        let start =
            format!("SELECT base_position FROM {log_table} WHERE shard = {shard} ORDER BY base_position LIMIT 1");
        let start = self.rows(start).await?.first().map(|row| number::<u64>(row, 0)).transpose()?;
        let start = start.unwrap_or(log.log_end.0);
        let cutoff = time_literal(self.request.cutoff_us(self.now_us));
        let oldest = format!(
            "SELECT `number`, created_at < {cutoff} AND (to_position IS NULL OR to_position < {start}) FROM {receipt_table} \
             WHERE shard = {shard} AND `number` < {} ORDER BY `number` LIMIT {}",
            log.newest,
            self.left.max(1)
        );
        let mut gone = Vec::new();
        for row in self.rows(oldest).await? {
            if number::<u8>(&row, 1)? != 1 {
                break;
            }
            gone.push(number::<u64>(&row, 0)?);
        }
        self.delete(&receipt_table, shard, "`number`", &gone).await?;
        self.used(gone.len());
        self.done.receipts += gone.len() as u64;
        self.done.more |= self.left == 0;
        Ok(())
    }

    /// The mark from which merging goes on; one above the end is of another history and counts from the start.
    async fn mark(&mut self, name: &str, end: u64) -> Result<u64, Failure> {
        let sql = format!("SELECT value FROM {} WHERE name = {}", self.meta, literal(name));
        let value = self.rows(sql).await?.first_mut().map(|row| text(row, 0)).transpose()?;
        Ok(value.and_then(|v| v.parse().ok()).filter(|mark| *mark <= end).unwrap_or(0))
    }

    async fn set_mark(&mut self, name: &str, before: u64, mark: u64) -> Result<(), Failure> {
        if mark == before {
            return Ok(());
        }
        let sql = format!(
            "INSERT INTO {} (name, value) VALUES ({}, '{mark}') ON DUPLICATE KEY UPDATE value = '{mark}'",
            self.meta,
            literal(name)
        );
        self.one(Statement::new(sql)).await.map(|_| ())
    }

    async fn merge_chunks(&mut self, log: &ShardLog, after_ms: u64) -> Result<(), Failure> {
        let shard = log.shard;
        let name = merge::chunk_mark(shard);
        let mark = self.mark(&name, log.log_end.0).await?;
        let limit = merge::step(self.request.step) as usize;
        let sql = format!(
            "SELECT base_position, `count`, moved_at, LENGTH(chunk) FROM {} WHERE shard = {shard} AND base_position >= {mark} \
             ORDER BY base_position LIMIT {limit}",
            self.log
        );
        let heads: Vec<Head> = self.rows(sql).await?.iter().map(head).collect::<StoreResult<_>>()?;
        let plan = merge::plan(mark, &heads, heads.len() >= limit, self.now_us, after_ms);
        let max_bytes = chunk_bytes(self.link.server.packet_bytes);
        let mut last = None;
        for group in &plan.groups {
            let sql = format!(
                "SELECT {CHUNK} FROM {} WHERE shard = {shard} AND base_position BETWEEN {} AND {} ORDER BY base_position",
                self.log, group.first, group.last
            );
            let chunks: Vec<StoredChunk> =
                self.rows(sql).await?.iter_mut().map(stored_chunk).collect::<StoreResult<_>>()?;
            let joining = tokio::task::spawn_blocking(move || merge::join_chunks(&chunks, max_bytes));
            let (joined, last_base) =
                joining.await.map_err(|_| StoreError::new(StoreErrorKind::Other, "joining chunks failed"))?;
            for chunk in &joined {
                self.replace_chunks(shard, chunk).await?;
                self.used(chunk.sources.len());
                self.done.merged_chunks += chunk.sources.len() as u64;
            }
            last = last_base;
        }
        self.done.more |= plan.more;
        self.set_mark(&name, mark, plan.next_mark(last)).await
    }

    async fn replace_chunks(&mut self, shard: ShardId, joined: &JoinedChunk) -> Result<(), Failure> {
        let keys: Vec<u64> = joined.sources.iter().map(|base| base.0).collect();
        let table = self.log.clone();
        self.delete(&table, shard, "base_position", &keys).await?;
        let mut insert = Statement::new(format!("INSERT INTO {table} {CHUNK_COLUMNS} VALUES "));
        insert.append(chunk_values(shard, &joined.chunk, Some(joined.moved_at_us)));
        self.one(insert).await.map(|_| ())
    }

    async fn merge_receipts(&mut self, log: &ShardLog, after_ms: u64) -> Result<(), Failure> {
        let shard = log.shard;
        let name = merge::receipt_mark(shard);
        let mark = self.mark(&name, log.newest).await?;
        let limit = merge::step(self.request.step) as usize;
        let sql = format!(
            "SELECT `number`, 1, created_at, LENGTH(lanes) FROM {} WHERE shard = {shard} AND `number` >= {mark} \
             AND `number` < {} ORDER BY `number` LIMIT {limit}",
            self.receipt, log.newest
        );
        let heads: Vec<Head> = self.rows(sql).await?.iter().map(head).collect::<StoreResult<_>>()?;
        let plan = merge::plan(mark, &heads, heads.len() >= limit, self.now_us, after_ms);
        let mut last = None;
        for group in &plan.groups {
            let sql = format!(
                "SELECT `number`, epoch, log_end, created_at, lanes FROM {} WHERE shard = {shard} \
                 AND `number` BETWEEN {} AND {} ORDER BY `number`",
                self.receipt, group.first, group.last
            );
            let rows: Vec<StoredReceipts> =
                self.rows(sql).await?.iter_mut().map(stored_receipts).collect::<StoreResult<_>>()?;
            let (joined, last_number) = merge::join_receipts(&rows);
            for row in &joined {
                self.replace_receipts(shard, row).await?;
                self.used(row.sources.len());
                self.done.merged_receipts += row.sources.len() as u64;
            }
            last = last_number;
        }
        self.done.more |= plan.more;
        self.set_mark(&name, mark, plan.next_mark(last)).await
    }

    async fn replace_receipts(&mut self, shard: ShardId, joined: &JoinedReceipts) -> Result<(), Failure> {
        let table = self.receipt.clone();
        self.delete(&table, shard, "`number`", &joined.sources).await?;
        let r = &joined.row;
        let span = joined.span.map_or_else(|| "NULL, NULL".into(), |(from, to)| format!("{from}, {to}"));
        let mut insert = Statement::new(format!("INSERT INTO {table} {RECEIPT_COLUMNS} VALUES "));
        insert.push(&format!("({shard}, {}, {}, {}, {span}, ", r.number, r.epoch, r.log_end));
        insert.push_text(time_text(r.created_at_us)).push(", ").push_bytes(r.lanes.clone()).push(")");
        self.one(insert).await.map(|_| ())
    }
}

fn head(row: &Row) -> StoreResult<Head> {
    Ok(Head { key: number(row, 0)?, count: number(row, 1)?, at_us: micros(row, 2)?, bytes: number(row, 3)? })
}

fn stored_receipts(row: &mut Row) -> StoreResult<StoredReceipts> {
    Ok(StoredReceipts {
        number: number(row, 0)?,
        epoch: Epoch(number(row, 1)?),
        log_end: Position(number(row, 2)?),
        created_at_us: micros(row, 3)?,
        lanes: bytes(row, 4)?,
    })
}
