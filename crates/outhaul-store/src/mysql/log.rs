//! The log, the receipts, and what is looked up in them.

use mysql_async::Row;
use outhaul_core::chunk;
use outhaul_core::filter;
use outhaul_core::message::{Epoch, Message, Position, ShardId};
use outhaul_core::receipt::{LaneState, ReceiptRow};
use outhaul_core::runs::Run;

use super::MySqlStore;
use super::catalogue::Layout;
use super::link::Slot;
use super::statement::Statement;
use super::values::{
    NOW, bytes, bytes_opt, hex, micros, micros_opt, number, number_opt, quoted, text, text_opt, time_literal,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{
    Found, NumberedReceipts, ReadPurpose, ReadRequest, Recovery, ShardStatus, StoreResult, StoredChunk,
};

/// Columns of a chunk, in the order in which [`stored_chunk`] reads them.
pub(super) const CHUNK: &str =
    "shard, base_position, `count`, codec, first_created_at, last_created_at, moved_at, chunk";
/// Chunks whose filters are fetched at a time: at most 15 MB of them.
const FILTERS_AT_A_TIME: usize = 500;
/// The most rows that `status` counts of a shard.
const COUNTED_ROWS: u64 = 100_000;
/// Chunks looked through for a lane's first unsent message.
const CHUNKS_LOOKED_THROUGH: usize = 8;
/// Receipt rows whose sizes are looked at in one statement.
const RECEIPTS_A_PAGE: usize = 256;
/// Chunks whose sizes are looked at in one statement.
const CHUNKS_A_PAGE: usize = 32;
/// Hot rows with one id that are shown.
const HOT_MAX: u32 = 100;

pub(super) fn stored_chunk(row: &mut Row) -> StoreResult<StoredChunk> {
    Ok(StoredChunk {
        shard: ShardId(number(row, 0)?),
        base: Position(number(row, 1)?),
        count: number(row, 2)?,
        codec: number(row, 3)?,
        created_at_us: (micros(row, 4)?, micros(row, 5)?),
        moved_at_us: micros(row, 6)?,
        bytes: bytes(row, 7)?.into(),
    })
}

pub(super) fn receipts(bytes: &[u8], shard: ShardId, number: u64) -> StoreResult<ReceiptRow> {
    ReceiptRow::decode(bytes)
        .map_err(|e| StoreError::new(StoreErrorKind::Corrupt, format!("receipt row {number} of shard {shard}: {e}")))
}

impl MySqlStore {
    /// One statement that reads, on the connection of `slot`.
    pub(super) async fn select(&self, slot: &Slot, sql: String) -> StoreResult<Vec<Row>> {
        let mut held = slot.take(&self.dialer).await?;
        let result = held.link.run(&[Statement::new(sql)]).await;
        Ok(held.give_back(result)?.into_iter().next().unwrap_or_default().rows)
    }

    pub(super) async fn recovery(&self, shard: ShardId) -> StoreResult<Recovery> {
        let newest = format!(
            "SELECT `number`, log_end, lanes FROM {} WHERE shard = {shard} ORDER BY `number` DESC LIMIT 1",
            quoted(&self.options.table("outbox_receipt"))
        );
        let mut recovery = Recovery::default();
        if let Some(mut row) = self.select(&self.log, newest).await?.into_iter().next() {
            let newest: u64 = number(&row, 0)?;
            recovery.log_end = Position(number(&row, 1)?);
            recovery.next_number = newest + 1;
            recovery.lanes = receipts(&bytes(&mut row, 2)?, shard, newest)?;
        }
        recovery.parked = self.parked_of_lanes(shard).await?;
        self.recover_acts(shard, &mut recovery).await?;
        Ok(recovery)
    }

    /// Page by page, each of one statement and so of one snapshot. Where merging or pruning comes in between two pages,
    /// the answer ends with the first.
    pub(super) async fn chunks_from(
        &self,
        slot: &Slot,
        shard: ShardId,
        from: Position,
        max_bytes: usize,
    ) -> StoreResult<Vec<StoredChunk>> {
        let mut chunks: Vec<StoredChunk> = Vec::new();
        let mut left = max_bytes;
        let mut next = from;
        loop {
            let (sql, limit) = self.page_of_log(shard, next, left, chunks.is_empty());
            let page = self.select(slot, sql).await?;
            let full = page.len() >= limit;
            for mut row in page {
                let chunk = stored_chunk(&mut row)?;
                if !chunks.is_empty() && chunk.base != next {
                    return Ok(chunks);
                }
                left = left.saturating_sub(chunk.bytes.len());
                next = Position(chunk.base.0 + u64::from(chunk.count.max(1)));
                chunks.push(chunk);
            }
            if !full || left == 0 {
                return Ok(chunks);
            }
        }
    }

    /// `first`: one chunk at least, whatever its size. Sizes are summed up before content is fetched.
    fn page_of_log(&self, shard: ShardId, from: Position, max_bytes: usize, first: bool) -> (String, usize) {
        let log = quoted(&self.options.table("outbox_log"));
        let limit = (max_bytes / 4_096).clamp(1, CHUNKS_A_PAGE);
        let columns: Vec<String> = CHUNK.split(", ").map(|column| format!("g.{column}")).collect();
        let or_first = if first { " OR s.total = s.own" } else { "" };
        let sql = format!(
            "SELECT {columns} FROM (SELECT base_position, own, SUM(own) OVER (ORDER BY base_position ROWS UNBOUNDED PRECEDING) AS total \
               FROM (SELECT base_position, LENGTH(chunk) AS own FROM {log} WHERE shard = {shard} AND base_position >= COALESCE( \
                 (SELECT IF(base_position + `count` > {from}, base_position, NULL) FROM {log} \
                  WHERE shard = {shard} AND base_position <= {from} ORDER BY base_position DESC LIMIT 1), {from}) \
               ORDER BY base_position LIMIT {limit}) sized) s \
             JOIN {log} g ON g.shard = {shard} AND g.base_position = s.base_position \
             WHERE s.total <= {max_bytes}{or_first} ORDER BY g.base_position",
            columns = columns.join(", ")
        );
        (sql, limit)
    }

    pub(super) async fn covering_receipts(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ReceiptRow>> {
        let sql = format!(
            "SELECT `number`, lanes FROM {} WHERE shard = {shard} AND from_position <= {position} AND to_position >= {position} \
             ORDER BY `number`",
            quoted(&self.options.table("outbox_receipt"))
        );
        let rows = self.select(&self.other, sql).await?;
        rows.into_iter().map(|mut row| receipts(&bytes(&mut row, 1)?, shard, number(&row, 0)?)).collect()
    }

    pub(super) async fn newest_receipts(
        &self,
        shard: ShardId,
        below: Option<u64>,
        max_bytes: usize,
    ) -> StoreResult<Vec<NumberedReceipts>> {
        let table = quoted(&self.options.table("outbox_receipt"));
        let below = below.map_or_else(String::new, |below| format!(" AND `number` < {below}"));
        // As with chunks: sizes are summed up before content is fetched.
        let sql = format!(
            "SELECT g.`number`, g.lanes FROM (SELECT n, own, SUM(own) OVER (ORDER BY n DESC ROWS UNBOUNDED PRECEDING) AS total \
               FROM (SELECT `number` AS n, LENGTH(lanes) AS own FROM {table} WHERE shard = {shard}{below} \
                 AND from_position IS NOT NULL ORDER BY `number` DESC LIMIT {RECEIPTS_A_PAGE}) sized) s \
             JOIN {table} g ON g.shard = {shard} AND g.`number` = s.n \
             WHERE s.total <= {max_bytes} OR s.total = s.own ORDER BY g.`number` DESC"
        );
        let rows = self.select(&self.log, sql).await?;
        let numbered = |mut row: Row| {
            let number = number(&row, 0)?;
            Ok(NumberedReceipts { number, row: receipts(&bytes(&mut row, 1)?, shard, number)? })
        };
        rows.into_iter().map(numbered).collect()
    }

    pub(super) async fn find_id(&self, id: &str, created_at_us: Option<(i64, i64)>) -> StoreResult<Vec<Found>> {
        let mut found = self.find_hot(id).await?;
        let log = quoted(&self.options.table("outbox_log"));
        let within = created_at_us.map_or_else(String::new, |(from, to)| {
            format!(" AND last_created_at >= {} AND first_created_at <= {}", time_literal(from), time_literal(to))
        });
        let mut after = String::new();
        loop {
            let filters = format!(
                "SELECT shard, base_position, id_filter FROM {log} WHERE 1 = 1{after}{within} \
                 ORDER BY shard, base_position LIMIT {FILTERS_AT_A_TIME}"
            );
            let rows = self.select(&self.other, filters).await?;
            let full = rows.len() >= FILTERS_AT_A_TIME;
            for mut row in rows {
                let (shard, base): (u16, u64) = (number(&row, 0)?, number(&row, 1)?);
                after = format!(" AND (shard > {shard} OR (shard = {shard} AND base_position > {base}))");
                if filter::may_contain(&bytes(&mut row, 2)?, id) {
                    let one = format!("SELECT {CHUNK} FROM {log} WHERE shard = {shard} AND base_position = {base}");
                    for mut chunk in self.select(&self.other, one).await? {
                        found.push(Found::Logged { chunk: stored_chunk(&mut chunk)? });
                    }
                }
            }
            if !full {
                return Ok(found);
            }
        }
    }

    /// Rows that are still in the outbox table. It has no index on the id, but few rows.
    pub(super) async fn find_hot(&self, id: &str) -> StoreResult<Vec<Found>> {
        let layout = self.layout(&self.other).await?;
        let sql = format!(
            "SELECT {shard}, {seq}, {due} FROM {table} WHERE {bytes} = {id} ORDER BY {seq} LIMIT {HOT_MAX}",
            shard = layout.shard.as_deref().unwrap_or("0"),
            seq = layout.seq,
            table = layout.table,
            due = layout.due_if_scheduled(),
            bytes = layout.id.bytes(""),
            id = hex(id.as_bytes()),
        );
        let mut found = Vec::new();
        for row in self.select(&self.other, sql).await? {
            let seq: u64 = number(&row, 1)?;
            let request = ReadRequest {
                purpose: ReadPurpose::Rescan,
                shards: vec![ShardId(number(&row, 0)?)],
                ranges: vec![Run { first: seq, last: seq }],
                limit: 1,
                max_bytes: usize::MAX,
            };
            let due_at_us = micros_opt(&row, 2)?;
            let rows = self.read_on(&self.other, &request, true).await?.rows;
            found.extend(rows.into_iter().map(|row| Found::Hot { row: Box::new(row), due_at_us }));
        }
        Ok(found)
    }

    pub(super) async fn shard_statuses(&self) -> StoreResult<Vec<ShardStatus>> {
        let layout = self.layout(&self.other).await?;
        let t = |name: &str| quoted(&self.options.table(name));
        let of_receipts = |what: &str| {
            format!(
                "(SELECT {what} FROM {} r WHERE r.shard = l.shard ORDER BY r.`number` DESC LIMIT 1)",
                t("outbox_receipt")
            )
        };
        let leases = format!(
            "SELECT l.shard, IF(l.expires_at > {NOW}, l.owner, NULL), l.epoch, {}, {}, {}, {NOW} FROM {} l \
             WHERE l.shard >= 0 ORDER BY l.shard",
            of_receipts("r.`number`"),
            of_receipts("r.log_end"),
            of_receipts("r.lanes"),
            t("outbox_lease")
        );
        let parked = format!(
            "SELECT p.shard, p.destination, SUM(p.state = 'retrying'), SUM(p.state = 'waiting'), SUM(p.state = 'dead'), \
               (SELECT e.error_text FROM {table} e WHERE e.shard = p.shard AND e.destination = p.destination \
                AND e.error_text <> '' ORDER BY e.last_failed_at DESC, e.`position` DESC LIMIT 1) \
             FROM {table} p GROUP BY p.shard, p.destination ORDER BY p.shard, p.destination",
            table = t("outbox_parked")
        );
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&[leases, parked].map(Statement::new)).await;
        let mut answers = held.give_back(result)?.into_iter();
        let mut statuses = Vec::new();
        for mut row in answers.next().unwrap_or_default().rows {
            statuses.push((shard_status(&mut row)?, micros(&row, 6)?));
        }
        self.count_hot(&layout, &mut statuses).await?;
        for mut row in answers.next().unwrap_or_default().rows {
            let shard = ShardId(number(&row, 0)?);
            let Some((status, _)) = statuses.iter_mut().find(|(s, _)| s.shard == shard) else { continue };
            let destination = text(&mut row, 1)?;
            status.parked.push((destination.clone(), number(&row, 2)?, number(&row, 3)?, number(&row, 4)?));
            status.last_errors.extend(text_opt(&mut row, 5)?.map(|text| (destination, text)));
        }
        for (status, now_us) in &mut statuses {
            let mut unsent = Vec::new();
            for (lane, _) in &status.lanes.lanes {
                if let Some(at_us) = self.first_unsent(status, lane).await? {
                    unsent.push((lane.destination.clone(), age_ms(*now_us, at_us)));
                }
            }
            status.oldest_unsent_ms = unsent;
        }
        Ok(statuses.into_iter().map(|(status, _)| status).collect())
    }

    async fn count_hot(&self, layout: &Layout, statuses: &mut [(ShardStatus, i64)]) -> StoreResult<()> {
        let created = layout.created_at.as_deref().unwrap_or(NOW);
        let scheduled = layout.scheduled();
        let (is_scheduled, due) = (scheduled.as_deref().unwrap_or("0"), layout.due_if_scheduled());
        let statements: Vec<Statement> = statuses
            .iter()
            .flat_map(|(status, _)| {
                let which =
                    layout.shard.as_ref().map_or_else(|| "1 = 1".into(), |name| format!("{name} = {}", status.shard));
                let table = &layout.table;
                [
                    format!(
                        "SELECT COUNT(*), COUNT(due), MIN(due) FROM (SELECT {due} AS due FROM {table} WHERE {which} LIMIT {COUNTED_ROWS}) counted"
                    ),
                    format!("SELECT {created} FROM {table} WHERE {which} AND NOT {is_scheduled} ORDER BY {} LIMIT 1", layout.seq),
                ]
            })
            .map(Statement::new)
            .collect();
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&statements).await;
        let mut answers = held.give_back(result)?.into_iter();
        for (status, now_us) in statuses {
            let (count, oldest) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
            status.hot_rows = count.rows.first().map_or(Ok(0), |row| number(row, 0))?;
            if let Some(row) = count.rows.first() {
                status.scheduled_rows = number(row, 1)?;
                status.next_due_ms = micros_opt(row, 2)?.map(|at_us| at_us.saturating_sub(*now_us) / 1_000);
            }
            let at_us = oldest.rows.first().map(|row| micros_opt(row, 0)).transpose()?;
            status.oldest_hot_ms = at_us.map(|at_us| age_ms(*now_us, at_us.unwrap_or(*now_us)));
        }
        Ok(())
    }

    /// When the first message that a lane has not settled was created.
    async fn first_unsent(&self, status: &ShardStatus, lane: &LaneState) -> StoreResult<Option<i64>> {
        let mut from = lane.cursor;
        for _ in 0..CHUNKS_LOOKED_THROUGH {
            if from >= status.log_end {
                break;
            }
            let Some(stored) = self.chunks_from(&self.other, status.shard, from, 1).await?.into_iter().next() else {
                break;
            };
            let names = [lane.destination.clone()];
            let messages =
                chunk::decode(stored.codec, &stored.bytes, stored.shard, stored.base, &names).unwrap_or_default();
            let unsent =
                |m: &&Message| m.position >= from && !m.destinations.is_empty() && !lane.ahead.contains(m.position.0);
            if let Some(message) = messages.iter().find(unsent) {
                return Ok(Some(message.created_at_us));
            }
            from = Position(stored.base.0 + u64::from(stored.count.max(1)));
        }
        Ok(None)
    }
}

fn age_ms(now_us: i64, at_us: i64) -> u64 {
    u64::try_from(now_us.saturating_sub(at_us) / 1_000).unwrap_or(0)
}

fn shard_status(row: &mut Row) -> StoreResult<ShardStatus> {
    let shard = ShardId(number(row, 0)?);
    let newest: u64 = number_opt(row, 3)?.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
    let lanes = match bytes_opt(row, 5)? {
        Some(bytes) => receipts(&bytes, shard, newest)?,
        None => ReceiptRow::default(),
    };
    Ok(ShardStatus {
        shard,
        owner: text_opt(row, 1)?,
        epoch: Epoch(number(row, 2)?),
        hot_rows: 0,
        oldest_hot_ms: None,
        scheduled_rows: 0,
        next_due_ms: None,
        log_end: Position(number_opt(row, 4)?.and_then(|n| u64::try_from(n).ok()).unwrap_or(0)),
        lanes,
        oldest_unsent_ms: Vec::new(),
        parked: Vec::new(),
        last_errors: Vec::new(),
    })
}
