//! The log, the receipts, and what is looked up in them.

use bytes::Bytes;
use outhaul_core::chunk;
use outhaul_core::filter;
use outhaul_core::message::{Epoch, Message, Position, ShardId};
use outhaul_core::receipt::{LaneState, ReceiptRow};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Slot, Statement, get};
use super::values::{Micros, quoted, signed, small, unsigned};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Found, NumberedReceipts, Recovery, ShardStatus, StoreResult, StoredChunk};

/// Columns of a chunk, in the order in which [`stored_chunk`] reads them.
pub(super) const CHUNK: &str = "shard, base_position, count, codec, first_created_at, last_created_at, moved_at, chunk";
/// Chunks whose filters are fetched at a time: at most 15 MB of them.
const FILTERS_AT_A_TIME: i64 = 500;
/// The most rows that `status` counts of a shard.
const COUNTED_ROWS: i64 = 100_000;
/// Receipt rows whose sizes are looked at in one statement.
const RECEIPTS_A_PAGE: usize = 256;
/// Chunks looked through for a lane's first unsent message.
const CHUNKS_LOOKED_THROUGH: usize = 8;

pub(super) fn stored_chunk(row: &Row) -> StoreResult<StoredChunk> {
    Ok(StoredChunk {
        shard: ShardId(u16::try_from(get::<i16>(row, 0)?).unwrap_or_default()),
        base: Position(unsigned(get(row, 1)?)),
        count: u32::try_from(get::<i32>(row, 2)?).unwrap_or_default(),
        codec: u8::try_from(get::<i16>(row, 3)?).unwrap_or(u8::MAX),
        created_at_us: (get::<Micros>(row, 4)?.0, get::<Micros>(row, 5)?.0),
        moved_at_us: get::<Micros>(row, 6)?.0,
        bytes: Bytes::copy_from_slice(get::<&[u8]>(row, 7)?),
    })
}

pub(super) fn receipts(bytes: &[u8], shard: ShardId, number: u64) -> StoreResult<ReceiptRow> {
    ReceiptRow::decode(bytes)
        .map_err(|e| StoreError::new(StoreErrorKind::Corrupt, format!("receipt row {number} of shard {shard}: {e}")))
}

impl PostgresStore {
    /// One statement that reads, on the connection of `slot`.
    pub(super) async fn select(&self, slot: &Slot, statement: Statement<'_>) -> StoreResult<Vec<Row>> {
        let held = slot.take(&self.dialer).await?;
        let answers = held.link.read(&self.dialer.begin_read, &[statement]).await;
        Ok(held.give_back(answers)?.into_iter().next().unwrap_or_default())
    }

    pub(super) async fn recovery(&self, shard: ShardId) -> StoreResult<Recovery> {
        let newest = format!(
            "SELECT number, log_end, lanes FROM {} WHERE shard = $1 ORDER BY number DESC LIMIT 1",
            quoted(&self.options.table("outbox_receipt"))
        );
        let number = small(shard);
        let rows = self.select(&self.log, Statement::new(&newest).with(&number, Type::INT2)).await?;
        let mut recovery = Recovery::default();
        if let Some(row) = rows.first() {
            let number = unsigned(get(row, 0)?);
            recovery.log_end = Position(unsigned(get(row, 1)?));
            recovery.next_number = number + 1;
            recovery.lanes = receipts(get(row, 2)?, shard, number)?;
        }
        recovery.parked = self.parked_of_lanes(shard).await?;
        self.recover_acts(shard, &mut recovery).await?;
        Ok(recovery)
    }

    pub(super) async fn chunks_from(
        &self,
        slot: &Slot,
        shard: ShardId,
        from: Position,
        max_bytes: usize,
    ) -> StoreResult<Vec<StoredChunk>> {
        // The running sum is of sizes alone: what is beyond the limit stays in its storage.
        let sql = format!(
            "SELECT {CHUNK} FROM (SELECT *, sum(octet_length(chunk)) OVER (ORDER BY base_position ROWS UNBOUNDED PRECEDING) AS total \
               FROM (SELECT * FROM {log} WHERE shard = $1 AND base_position >= coalesce((SELECT base_position FROM {log} \
                   WHERE shard = $1 AND base_position <= $2 AND base_position + count > $2 ORDER BY base_position DESC LIMIT 1), $2) \
                 ORDER BY base_position LIMIT $4) page) summed \
             WHERE total <= $3 OR total = octet_length(chunk) ORDER BY base_position",
            log = quoted(&self.options.table("outbox_log"))
        );
        let (number, from) = (small(shard), signed(from.0));
        let max_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
        // A chunk takes tens of bytes at least.
        let limit = (max_bytes / 32).clamp(2, 10_000);
        let statement = Statement::new(&sql)
            .with(&number, Type::INT2)
            .with(&from, Type::INT8)
            .with(&max_bytes, Type::INT8)
            .with(&limit, Type::INT8);
        self.select(slot, statement).await?.iter().map(stored_chunk).collect()
    }

    pub(super) async fn covering_receipts(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ReceiptRow>> {
        let sql = format!(
            "SELECT number, lanes FROM {} WHERE shard = $1 AND from_position <= $2 AND to_position >= $2 ORDER BY number",
            quoted(&self.options.table("outbox_receipt"))
        );
        let (number, position) = (small(shard), signed(position.0));
        let statement = Statement::new(&sql).with(&number, Type::INT2).with(&position, Type::INT8);
        let rows = self.select(&self.other, statement).await?;
        rows.iter().map(|row| receipts(get(row, 1)?, shard, unsigned(get(row, 0)?))).collect()
    }

    pub(super) async fn newest_receipts(
        &self,
        shard: ShardId,
        below: Option<u64>,
        max_bytes: usize,
    ) -> StoreResult<Vec<NumberedReceipts>> {
        // As with chunks: sizes are summed up before content is fetched.
        let sql = format!(
            "SELECT number, lanes FROM (SELECT *, sum(octet_length(lanes)) OVER (ORDER BY number DESC ROWS UNBOUNDED PRECEDING) AS total \
               FROM (SELECT number, lanes FROM {} WHERE shard = $1 AND number < $2 AND from_position IS NOT NULL \
                 ORDER BY number DESC LIMIT {RECEIPTS_A_PAGE}) page) summed \
             WHERE total <= $3 OR total = octet_length(lanes) ORDER BY number DESC",
            quoted(&self.options.table("outbox_receipt"))
        );
        let number = small(shard);
        let below = below.map_or(i64::MAX, signed);
        let max_bytes = i64::try_from(max_bytes).unwrap_or(i64::MAX);
        let statement =
            Statement::new(&sql).with(&number, Type::INT2).with(&below, Type::INT8).with(&max_bytes, Type::INT8);
        let rows = self.select(&self.log, statement).await?;
        let numbered = |row: &Row| {
            let number = unsigned(get(row, 0)?);
            Ok(NumberedReceipts { number, row: receipts(get(row, 1)?, shard, number)? })
        };
        rows.iter().map(numbered).collect()
    }

    pub(super) async fn find_id(&self, id: &str, created_at_us: Option<(i64, i64)>) -> StoreResult<Vec<Found>> {
        let mut found = self.find_hot(id).await?;
        let log = quoted(&self.options.table("outbox_log"));
        let (from, to) = created_at_us.unwrap_or((i64::MIN, i64::MAX));
        let (from, to) = (Micros(from), Micros(to));
        let filters = format!(
            "SELECT shard, base_position, id_filter FROM {log} WHERE (shard, base_position) > ($1, $2) \
               AND last_created_at >= $3 AND first_created_at <= $4 ORDER BY shard, base_position LIMIT {FILTERS_AT_A_TIME}"
        );
        let one = format!("SELECT {CHUNK} FROM {log} WHERE shard = $1 AND base_position = $2");
        let mut after: (i16, i64) = (i16::MIN, i64::MIN);
        loop {
            let statement = Statement::new(&filters)
                .with(&after.0, Type::INT2)
                .with(&after.1, Type::INT8)
                .with(&from, Type::TIMESTAMPTZ)
                .with(&to, Type::TIMESTAMPTZ);
            let rows = self.select(&self.other, statement).await?;
            for row in &rows {
                after = (get(row, 0)?, get(row, 1)?);
                if filter::may_contain(get(row, 2)?, id) {
                    let statement = Statement::new(&one).with(&after.0, Type::INT2).with(&after.1, Type::INT8);
                    let chunks = self.select(&self.other, statement).await?;
                    for chunk in &chunks {
                        found.push(Found::Logged { chunk: stored_chunk(chunk)? });
                    }
                }
            }
            if i64::try_from(rows.len()).unwrap_or(i64::MAX) < FILTERS_AT_A_TIME {
                return Ok(found);
            }
        }
    }

    /// Rows that are still in the outbox table. It has no index on the id, but few rows.
    pub(super) async fn find_hot(&self, id: &str) -> StoreResult<Vec<Found>> {
        let layout = self.layout(&self.other).await?;
        let shard = layout.shard.as_ref().map_or("0::smallint".to_owned(), |s| format!("{s}::smallint"));
        let sql = format!(
            "SELECT {shard}, {seq}::bigint, {due} FROM {table} o WHERE {id}::text = $1 ORDER BY {seq} LIMIT 100",
            seq = layout.seq,
            due = layout.due_if_scheduled(),
            table = layout.table,
            id = layout.id
        );
        let rows = self.select(&self.other, Statement::new(&sql).with(&id, Type::TEXT)).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            let due_at_us = get::<Option<Micros>>(row, 2)?.map(|at| at.0);
            let row = self.row_at(&self.other, &layout, get(row, 0)?, get(row, 1)?).await?;
            found.extend(row.map(|row| Found::Hot { row: Box::new(row), due_at_us }));
        }
        Ok(found)
    }

    pub(super) async fn shard_statuses(&self) -> StoreResult<Vec<ShardStatus>> {
        let layout = self.layout(&self.other).await?;
        let t = |name: &str| quoted(&self.options.table(name));
        let of_shard = layout.shard.as_ref().map_or("true".to_owned(), |s| format!("o.{s} = l.shard"));
        let oldest = layout.created_at.as_ref().map_or("now()".to_owned(), |c| {
            if c.zoned { format!("o.{}", c.name) } else { format!("(o.{} AT TIME ZONE 'UTC')", c.name) }
        });
        let shards = format!(
            "SELECT l.shard, CASE WHEN l.expires_at > clock_timestamp() THEN l.owner END, l.epoch, \
               hot.counted, \
               (SELECT {oldest} FROM {table} o WHERE {of_shard} AND NOT {scheduled} ORDER BY o.{seq} LIMIT 1), \
               r.number, r.log_end, r.lanes, clock_timestamp(), hot.scheduled, hot.due \
             FROM {lease} l CROSS JOIN LATERAL (SELECT count(*) AS counted, count(due) AS scheduled, min(due) AS due \
               FROM (SELECT {due} AS due FROM {table} o WHERE {of_shard} LIMIT {COUNTED_ROWS}) counted) hot LEFT JOIN LATERAL (SELECT number, log_end, lanes FROM {receipt} WHERE shard = l.shard \
               ORDER BY number DESC LIMIT 1) r ON true WHERE l.shard >= 0 ORDER BY l.shard",
            scheduled = layout.scheduled().unwrap_or_else(|| "false".to_owned()),
            due = layout.due_if_scheduled(),
            table = layout.table,
            seq = layout.seq,
            lease = t("outbox_lease"),
            receipt = t("outbox_receipt"),
        );
        let parked = format!(
            "SELECT shard, destination, count(*) FILTER (WHERE state = 'retrying'), count(*) FILTER (WHERE state = 'waiting'), \
               count(*) FILTER (WHERE state = 'dead'), \
               (array_agg(error_text ORDER BY last_failed_at DESC, position DESC) FILTER (WHERE error_text <> ''))[1] \
             FROM {} GROUP BY shard, destination ORDER BY shard, destination",
            t("outbox_parked")
        );
        let held = self.other.take(&self.dialer).await?;
        let answers =
            held.link.read(&self.dialer.begin_read, &[Statement::new(&shards), Statement::new(&parked)]).await;
        let answers = held.give_back(answers)?;
        let mut statuses = Vec::new();
        for row in answers.first().into_iter().flatten() {
            let (mut status, now) = shard_status(row)?;
            for row in answers.get(1).into_iter().flatten() {
                if get::<i16>(row, 0)? == small(status.shard) {
                    let destination: String = get(row, 1)?;
                    let count = |column| Ok::<_, StoreError>(unsigned(get(row, column)?));
                    status.parked.push((destination.clone(), count(2)?, count(3)?, count(4)?));
                    status.last_errors.extend(get::<Option<String>>(row, 5)?.map(|text| (destination, text)));
                }
            }
            for (lane, _) in &status.lanes.lanes {
                if let Some(at) = self.first_unsent(&status, lane).await? {
                    status.oldest_unsent_ms.push((lane.destination.clone(), age_ms(now, at)));
                }
            }
            statuses.push(status);
        }
        Ok(statuses)
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
    unsigned(now_us.saturating_sub(at_us) / 1_000)
}

fn shard_status(row: &Row) -> StoreResult<(ShardStatus, i64)> {
    let shard = ShardId(u16::try_from(get::<i16>(row, 0)?).unwrap_or_default());
    let now = get::<Micros>(row, 8)?.0;
    let lanes = match get::<Option<&[u8]>>(row, 7)? {
        Some(bytes) => receipts(bytes, shard, get::<Option<i64>>(row, 5)?.map_or(0, unsigned))?,
        None => ReceiptRow::default(),
    };
    let status = ShardStatus {
        shard,
        owner: get(row, 1)?,
        epoch: Epoch(unsigned(get(row, 2)?)),
        hot_rows: unsigned(get(row, 3)?),
        oldest_hot_ms: get::<Option<Micros>>(row, 4)?.map(|at| age_ms(now, at.0)),
        scheduled_rows: unsigned(get(row, 9)?),
        next_due_ms: get::<Option<Micros>>(row, 10)?.map(|at| at.0.saturating_sub(now) / 1_000),
        log_end: Position(get::<Option<i64>>(row, 6)?.map_or(0, unsigned)),
        lanes,
        oldest_unsent_ms: Vec::new(),
        parked: Vec::new(),
        last_errors: Vec::new(),
    };
    Ok((status, now))
}
