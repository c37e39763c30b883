//! The log, its receipts, and parked rows: what recovery, catching up, `audit` and `status` read.

use std::collections::BTreeMap;

use bytes::Bytes;
use outhaul_core::message::{Epoch, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState};
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::{chunk, filter};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::{SHARD, read, signed, unsigned};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{
    Found, NumberedReceipts, PARKED_PAGE_ROWS, Recovery, ShardStatus, StoreResult, StoredChunk, StoredParked,
};

/// The most hot rows that `status` counts.
const COUNTED: i64 = 100_000;

/// Without parked rows and acts: those come page by page, each in a call of its own.
pub(super) fn recover(tx: &Transaction<'_>, names: &Names) -> StoreResult<Recovery> {
    let (next_number, log_end, lanes) = newest(tx, names)?.unwrap_or_default();
    Ok(Recovery { log_end, next_number, lanes, ..Recovery::default() })
}

/// The first destination behind a name that has parked rows.
pub(super) fn next_parked(tx: &Transaction<'_>, names: &Names, behind: &str) -> StoreResult<Option<String>> {
    let sql = format!("SELECT destination FROM {} WHERE destination > ? ORDER BY destination LIMIT 1", names.parked);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.query_row([behind], |row| row.get(0)).optional().map_err(refusal)
}

/// A page of what a lane has parked, from a position on.
pub(super) fn parked_page(
    tx: &Transaction<'_>,
    names: &Names,
    destination: &str,
    from: Position,
) -> StoreResult<Vec<ParkedEntry>> {
    let sql = format!(
        "SELECT {} FROM {} WHERE destination = ? AND shard = 0 AND position >= ? ORDER BY position LIMIT {PARKED_PAGE_ROWS}",
        ENTRY.replace("error_text", "''"),
        names.parked
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.query_map(params![destination, signed(from.0)], entry).and_then(Iterator::collect).map_err(refusal)
}

/// The newest receipt row: the number after its own, the end of the log, the lanes.
fn newest(tx: &Transaction<'_>, names: &Names) -> StoreResult<Option<(u64, Position, ReceiptRow)>> {
    let sql = format!("SELECT number + 1, log_end, lanes FROM {} ORDER BY number DESC LIMIT 1", names.receipt);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let row = |row: &Row<'_>| Ok((unsigned(row.get(0)?), Position(unsigned(row.get(1)?)), row.get::<_, Vec<u8>>(2)?));
    let Some((number, end, lanes)) = statement.query_row([], row).optional().map_err(refusal)? else { return Ok(None) };
    Ok(Some((number, end, decode_receipts(&lanes)?)))
}

pub(super) fn decode_receipts(lanes: &[u8]) -> StoreResult<ReceiptRow> {
    ReceiptRow::decode(lanes).map_err(|e| StoreError::new(StoreErrorKind::Corrupt, format!("a receipt row: {e}")))
}

pub(super) const CHUNK: &str = "base_position, count, codec, first_created_at, last_created_at, moved_at, chunk";

pub(super) fn stored_chunk(row: &Row<'_>) -> rusqlite::Result<StoredChunk> {
    Ok(StoredChunk {
        shard: SHARD,
        base: Position(unsigned(row.get(0)?)),
        count: row.get(1)?,
        codec: row.get(2)?,
        created_at_us: (row.get(3)?, row.get(4)?),
        moved_at_us: row.get(5)?,
        bytes: Bytes::from(row.get::<_, Vec<u8>>(6)?),
    })
}

/// Chunks from the one that holds a position, or the first above it.
pub(super) fn chunks(
    tx: &Transaction<'_>,
    names: &Names,
    from: Position,
    max_bytes: usize,
) -> StoreResult<Vec<StoredChunk>> {
    let log = &names.log;
    // The size comes first and alone: a chunk that does not fit is not read.
    let sql = format!(
        "SELECT base_position, octet_length(chunk) FROM {log} WHERE base_position >= coalesce((SELECT base_position FROM {log} \
         WHERE base_position <= ?1 ORDER BY base_position DESC LIMIT 1), ?1) ORDER BY base_position"
    );
    let mut heads = tx.prepare_cached(&sql).map_err(refusal)?;
    let sql = format!("SELECT {CHUNK} FROM {log} WHERE base_position = ?");
    let mut content = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut found = heads.query([signed(from.0)]).map_err(refusal)?;
    let (mut answer, mut bytes) = (Vec::new(), 0u64);
    while let Some(head) = found.next().map_err(refusal)? {
        let (base, size): (i64, i64) = (head.get(0).map_err(refusal)?, head.get(1).map_err(refusal)?);
        bytes = bytes.saturating_add(unsigned(size));
        if !answer.is_empty() && bytes > max_bytes as u64 {
            break;
        }
        let chunk = content.query_row([base], stored_chunk).map_err(refusal)?;
        if chunk.base.0.saturating_add(u64::from(chunk.count)) > from.0 {
            answer.push(chunk);
        } else {
            bytes = 0; // it ends below the position: the first above it is wanted
        }
    }
    Ok(answer)
}

pub(super) const ENTRY: &str = "destination, shard, position, msg_key, state, attempts, due_at, error_code, error_text, first_failed_at, \
                     last_failed_at";

pub(super) fn entry(row: &Row<'_>) -> rusqlite::Result<ParkedEntry> {
    let state: String = row.get(4)?;
    let unknown = || rusqlite::Error::InvalidColumnType(4, "state".into(), rusqlite::types::Type::Text);
    Ok(ParkedEntry {
        destination: row.get(0)?,
        shard: ShardId(row.get(1)?),
        position: Position(unsigned(row.get(2)?)),
        key: row.get(3)?,
        state: ParkedState::parse(&state).ok_or_else(unknown)?,
        attempts: row.get(5)?,
        due_at_us: row.get(6)?,
        error_code: row.get(7)?,
        error_text: row.get(8)?,
        first_failed_at_us: row.get(9)?,
        last_failed_at_us: row.get(10)?,
    })
}

pub(super) fn parked_messages(
    tx: &Transaction<'_>,
    names: &Names,
    shard: ShardId,
    destination: &str,
    positions: &[Position],
    destinations: &[String],
) -> StoreResult<Vec<StoredParked>> {
    let sql = format!(
        "SELECT {ENTRY}, codec, message FROM {} WHERE destination = ? AND shard = ? AND position = ?",
        names.parked
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut positions = positions.to_vec();
    positions.sort_unstable();
    positions.dedup();
    let mut answer = Vec::new();
    for position in positions {
        let row = |row: &Row<'_>| Ok((entry(row)?, row.get::<_, u8>(11)?, row.get::<_, Vec<u8>>(12)?));
        let found =
            statement.query_row(params![destination, shard.0, signed(position.0)], row).optional().map_err(refusal)?;
        let Some((entry, codec, bytes)) = found else { continue };
        let corrupt =
            |why: &str| StoreError::new(StoreErrorKind::Corrupt, format!("the message parked at {position}: {why}"));
        let messages =
            chunk::decode(codec, &bytes, shard, position, destinations).map_err(|e| corrupt(&e.to_string()))?;
        let message = messages.into_iter().next().ok_or_else(|| corrupt("it is empty"))?;
        answer.push(StoredParked { entry, message });
    }
    Ok(answer)
}

pub(super) fn parked_of(
    tx: &Transaction<'_>,
    names: &Names,
    shard: ShardId,
    position: Position,
) -> StoreResult<Vec<ParkedEntry>> {
    let sql = format!("SELECT {ENTRY} FROM {} WHERE shard = ? AND position = ? ORDER BY destination", names.parked);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.query_map([i64::from(shard.0), signed(position.0)], entry).and_then(Iterator::collect).map_err(refusal)
}

pub(super) fn receipts_of(tx: &Transaction<'_>, names: &Names, position: Position) -> StoreResult<Vec<ReceiptRow>> {
    let sql =
        format!("SELECT lanes FROM {} WHERE ? BETWEEN from_position AND to_position ORDER BY number", names.receipt);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut rows = statement.query([signed(position.0)]).map_err(refusal)?;
    let mut answer = Vec::new();
    while let Some(row) = rows.next().map_err(refusal)? {
        answer.push(decode_receipts(&row.get::<_, Vec<u8>>(0).map_err(refusal)?)?);
    }
    Ok(answer)
}

pub(super) fn newest_receipts(
    tx: &Transaction<'_>,
    names: &Names,
    below: Option<u64>,
    max_bytes: usize,
) -> StoreResult<Vec<NumberedReceipts>> {
    let sql = format!(
        "SELECT number, octet_length(lanes), lanes FROM {} WHERE number < ? AND from_position IS NOT NULL ORDER BY number DESC",
        names.receipt
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut rows = statement.query([below.map_or(i64::MAX, signed)]).map_err(refusal)?;
    let (mut answer, mut bytes) = (Vec::new(), 0u64);
    while let Some(row) = rows.next().map_err(refusal)? {
        bytes = bytes.saturating_add(unsigned(row.get(1).map_err(refusal)?));
        if !answer.is_empty() && bytes > max_bytes as u64 {
            break;
        }
        let number = unsigned(row.get(0).map_err(refusal)?);
        answer.push(NumberedReceipts { number, row: decode_receipts(&row.get::<_, Vec<u8>>(2).map_err(refusal)?)? });
    }
    Ok(answer)
}

pub(super) fn find(
    tx: &Transaction<'_>,
    names: &Names,
    id: &str,
    created_at_us: Option<(i64, i64)>,
) -> StoreResult<Vec<Found>> {
    let hot = read::with_id(tx, names, id)?;
    let mut answer = Vec::new();
    for row in hot {
        let due_at_us = read::due_at_us(tx, names, row.seq)?;
        answer.push(Found::Hot { row: Box::new(row), due_at_us });
    }
    // The filter stands before the chunk, so that a chunk is only read where its filter says "perhaps".
    let (from, to) = created_at_us.unwrap_or((i64::MIN, i64::MAX));
    let sql = format!(
        "SELECT base_position, id_filter FROM {} WHERE last_created_at >= ? AND first_created_at <= ? ORDER BY base_position",
        names.log
    );
    let mut filters = tx.prepare_cached(&sql).map_err(refusal)?;
    let sql = format!("SELECT {CHUNK} FROM {} WHERE base_position = ?", names.log);
    let mut content = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut rows = filters.query([from, to]).map_err(refusal)?;
    while let Some(row) = rows.next().map_err(refusal)? {
        let perhaps = row.get_ref(1).map_err(refusal)?.as_blob().is_ok_and(|bits| filter::may_contain(bits, id));
        if perhaps {
            let base: i64 = row.get(0).map_err(refusal)?;
            answer.push(Found::Logged { chunk: content.query_row([base], stored_chunk).map_err(refusal)? });
        }
    }
    Ok(answer)
}

pub(super) fn status(tx: &Transaction<'_>, names: &Names) -> StoreResult<Vec<ShardStatus>> {
    let sql =
        format!("SELECT iif(expires_at > {NOW_US}, owner, NULL), epoch, {NOW_US} FROM {} WHERE shard = 0", names.lease);
    let row = |row: &Row<'_>| Ok((row.get(0)?, Epoch(unsigned(row.get(1)?)), row.get::<_, i64>(2)?));
    let (owner, epoch, now_us) = tx.prepare_cached(&sql).and_then(|mut s| s.query_row([], row)).map_err(refusal)?;
    let sql = format!(
        "SELECT count(*), min(at) FILTER (WHERE due IS NULL), count(due), min(due) FROM \
           (SELECT {} AS at, {} AS due FROM {} ORDER BY {} LIMIT {COUNTED})",
        names.created_at_us(),
        match (names.available_at_us(), names.scheduled()) {
            (Some(at), Some(scheduled)) => format!("CASE WHEN {scheduled} THEN {at} END"),
            _ => "NULL".to_owned(),
        },
        names.outbox,
        names.seq
    );
    let row = |row: &Row<'_>| {
        let (counted, scheduled) = (unsigned(row.get(0)?), unsigned(row.get(2)?));
        Ok((counted, row.get::<_, Option<i64>>(1)?, scheduled, row.get::<_, Option<i64>>(3)?))
    };
    let (hot_rows, oldest_hot_us, scheduled_rows, due_us) =
        tx.prepare_cached(&sql).and_then(|mut s| s.query_row([], row)).map_err(refusal)?;
    let (_, log_end, lanes) = newest(tx, names)?.unwrap_or_default();
    let age_ms = |at_us: i64| unsigned(now_us.saturating_sub(at_us) / 1_000);
    let mut oldest_unsent_ms = Vec::new();
    for (lane, _) in &lanes.lanes {
        let oldest_us = if lane.cursor < log_end { created_at_of(tx, names, lane.cursor)? } else { oldest_hot_us };
        oldest_unsent_ms.extend(oldest_us.map(|at_us| (lane.destination.clone(), age_ms(at_us))));
    }
    let (parked, last_errors) = parked_status(tx, names)?;
    Ok(vec![ShardStatus {
        shard: SHARD,
        owner,
        epoch,
        hot_rows,
        oldest_hot_ms: oldest_hot_us.map(age_ms),
        scheduled_rows,
        next_due_ms: due_us.map(|at_us| at_us.saturating_sub(now_us) / 1_000),
        log_end,
        lanes,
        oldest_unsent_ms,
        parked,
        last_errors,
    }])
}

/// `created_at` of the first message at or above a position. None: it cannot be read, or there is none.
fn created_at_of(tx: &Transaction<'_>, names: &Names, position: Position) -> StoreResult<Option<i64>> {
    let Some(stored) = chunks(tx, names, position, 0)?.into_iter().next() else { return Ok(None) };
    let messages = chunk::decode(stored.codec, &stored.bytes, stored.shard, stored.base, &[]).unwrap_or_default();
    Ok(messages.into_iter().find(|m| m.position >= position).map(|m| m.created_at_us))
}

type ParkedCounts = Vec<(String, u64, u64, u64)>;
type LastErrors = Vec<(String, String)>;

fn parked_status(tx: &Transaction<'_>, names: &Names) -> StoreResult<(ParkedCounts, LastErrors)> {
    let sql = format!(
        "SELECT destination, state, count(*) FROM {} WHERE shard = 0 GROUP BY destination, state",
        names.parked
    );
    let mut counts: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut rows = statement.query([]).map_err(refusal)?;
    while let Some(row) = rows.next().map_err(refusal)? {
        let state: String = row.get(1).map_err(refusal)?;
        let of = counts.entry(row.get(0).map_err(refusal)?).or_default();
        let count = unsigned(row.get(2).map_err(refusal)?);
        match ParkedState::parse(&state) {
            Some(ParkedState::Retrying) => of.0 = count,
            Some(ParkedState::Waiting) => of.1 = count,
            Some(ParkedState::Dead) => of.2 = count,
            None => {}
        }
    }
    // A bare column beside max() comes from the row that has the maximum: SQLite promises so.
    let sql = format!(
        "SELECT destination, error_text, max(last_failed_at) FROM {} WHERE shard = 0 AND error_text <> '' GROUP BY destination",
        names.parked
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let errors =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).and_then(Iterator::collect).map_err(refusal)?;
    let counts = counts.into_iter().map(|(name, (retrying, waiting, dead))| (name, retrying, waiting, dead)).collect();
    Ok((counts, errors))
}
