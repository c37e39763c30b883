//! Pruning and merging, by one instance at a time.

use std::time::Duration;

use outhaul_core::message::{Epoch, Position};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::schema::meta;
use super::{SHARD, log, signed, unsigned};
use crate::error::{StoreError, StoreErrorKind};
use crate::merge::{self, Head, JoinedChunk, JoinedReceipts, Plan, StoredReceipts};
use crate::store::{PruneBound, PruneRequest, Pruned, StoreResult, StoredChunk};

/// The shard number of the lease of maintenance.
pub(super) const MAINTENANCE: i64 = -1;
/// Its time to live.
const TTL: Duration = Duration::from_secs(60);

/// Takes the lease of maintenance and prunes. None: another one holds it.
pub(super) fn prune(tx: &Transaction<'_>, names: &Names, request: &PruneRequest) -> StoreResult<Option<Pruned>> {
    if !take_lease(tx, names, &request.owner)? {
        return Ok(None);
    }
    let pruned = prune_step(tx, names, request)?;
    if request.merge_after_ms.is_none() && !pruned.more {
        release(tx, names)?;
    }
    Ok(Some(pruned))
}

fn prune_step(tx: &Transaction<'_>, names: &Names, request: &PruneRequest) -> StoreResult<Pruned> {
    let mut pruned = Pruned { ran: true, ..Pruned::default() };
    let Some(Settled { newest, below, now_us }) = settled(tx, names)? else { return Ok(pruned) };
    let step = i64::from(request.step.max(1));
    let bound = request.bound(SHARD, below, now_us);
    // An empty log was pruned up to what is settled.
    let end = prune_log(tx, names, bound, step, &mut pruned)?.unwrap_or(signed(below.0));
    prune_receipts(tx, names, end, newest, request.cutoff_us(now_us), step, &mut pruned)?;
    Ok(pruned)
}

/// What the newest receipt row says.
struct Settled {
    /// Its number.
    newest: i64,
    /// Every lane is past what lies below.
    below: Position,
    now_us: i64,
}

/// None: no lane has settled anything.
fn settled(tx: &Transaction<'_>, names: &Names) -> StoreResult<Option<Settled>> {
    let newest = format!("SELECT number, lanes, {NOW_US} FROM {} ORDER BY number DESC LIMIT 1", names.receipt);
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, Vec<u8>>(1)?, row.get(2)?));
    let newest = tx.prepare_cached(&newest).and_then(|mut s| s.query_row([], row).optional()).map_err(refusal)?;
    let Some((newest, lanes, now_us)) = newest else { return Ok(None) };
    let below = merge::settled_below(&log::decode_receipts(&lanes)?);
    Ok(below.map(|below| Settled { newest, below, now_us }))
}

/// Takes the lease of maintenance. None: another one holds it. Inside: what may go, if there is something.
pub(super) fn prunable(
    tx: &Transaction<'_>,
    names: &Names,
    request: &PruneRequest,
) -> StoreResult<Option<Option<PruneBound>>> {
    if !take_lease(tx, names, &request.owner)? {
        return Ok(None);
    }
    let Some(Settled { below, now_us, .. }) = settled(tx, names)? else { return Ok(Some(None)) };
    let bound = request.bound(SHARD, below, now_us);
    let sql =
        format!("SELECT base_position + count <= ? AND moved_at < ? FROM {} ORDER BY base_position LIMIT 1", names.log);
    let first = tx
        .prepare_cached(&sql)
        .and_then(|mut s| s.query_row([signed(bound.below.0), bound.before_us], |row| row.get(0)).optional())
        .map_err(refusal)?;
    Ok(Some(first.unwrap_or(false).then_some(bound)))
}

fn take_lease(tx: &Transaction<'_>, names: &Names, owner: &str) -> StoreResult<bool> {
    let sql = format!(
        "UPDATE {} SET epoch = epoch + (owner IS NOT ?1), owner = ?1, expires_at = {NOW_US} + ?2 \
         WHERE shard = {MAINTENANCE} AND (owner IS NULL OR owner = ?1 OR expires_at <= {NOW_US})",
        names.lease
    );
    let ttl_us = i64::try_from(TTL.as_micros()).unwrap_or(i64::MAX);
    let taken = tx.prepare_cached(&sql).and_then(|mut s| s.execute(params![owner, ttl_us])).map_err(refusal)?;
    Ok(taken == 1)
}

/// Work that goes on keeps the lease; finished work leaves it to whoever asks next.
fn release(tx: &Transaction<'_>, names: &Names) -> StoreResult<()> {
    let sql = format!("UPDATE {} SET owner = NULL, expires_at = 0 WHERE shard = {MAINTENANCE}", names.lease);
    tx.prepare_cached(&sql).and_then(|mut s| s.execute([])).map_err(refusal)?;
    Ok(())
}

/// Deletes chunks from the start of the log, as far as they may go. Returns where the log begins now. None: it is empty.
fn prune_log(
    tx: &Transaction<'_>,
    names: &Names,
    bound: PruneBound,
    step: i64,
    pruned: &mut Pruned,
) -> StoreResult<Option<i64>> {
    let log = &names.log;
    let sql = format!("SELECT base_position, count, moved_at < ? FROM {log} ORDER BY base_position LIMIT ?");
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut rows = statement.query([bound.before_us, step + 1]).map_err(refusal)?;
    let mut end = None;
    while let Some(row) = rows.next().map_err(refusal)? {
        let (base, count): (i64, i64) = (row.get(0).map_err(refusal)?, row.get(1).map_err(refusal)?);
        let old: bool = row.get(2).map_err(refusal)?;
        if !old || base.saturating_add(count) > signed(bound.below.0) {
            break;
        }
        if pruned.chunks == unsigned(step) {
            pruned.more = true;
            break;
        }
        pruned.chunks += 1;
        pruned.messages += unsigned(count);
        end = Some(base.saturating_add(count));
    }
    if let Some(end) = end {
        let sql = format!("DELETE FROM {log} WHERE base_position < ?");
        tx.prepare_cached(&sql).and_then(|mut s| s.execute([end])).map_err(refusal)?;
    }
    let sql = format!("SELECT base_position FROM {log} ORDER BY base_position LIMIT 1");
    tx.prepare_cached(&sql).and_then(|mut s| s.query_row([], |row| row.get(0)).optional()).map_err(refusal)
}

/// Deletes receipts of messages that are no longer in the log, and old rows without receipts. Never the newest row.
fn prune_receipts(
    tx: &Transaction<'_>,
    names: &Names,
    end: i64,
    newest: i64,
    before_us: i64,
    step: i64,
    pruned: &mut Pruned,
) -> StoreResult<()> {
    let sql = format!(
        "DELETE FROM {receipt} WHERE number IN (SELECT number FROM {receipt} WHERE number < ?1 AND created_at < ?2 \
         AND (to_position < ?3 OR to_position IS NULL) ORDER BY number LIMIT ?4)",
        receipt = names.receipt
    );
    let deleted =
        tx.prepare_cached(&sql).and_then(|mut s| s.execute(params![newest, before_us, end, step])).map_err(refusal)?;
    pruned.receipts = deleted as u64;
    pruned.more |= deleted as i64 == step;
    Ok(())
}

/// What one step of merging found to do.
pub(super) struct Merge {
    chunks: Vec<JoinedChunk>,
    chunk_mark: u64,
    receipts: Vec<JoinedReceipts>,
    receipt_mark: u64,
    more: bool,
}

/// Reads and packs what can be merged.
pub(super) fn plan(tx: &Transaction<'_>, names: &Names, step: u32, after_ms: u64) -> StoreResult<Merge> {
    let step = merge::step(step);
    let Names { log, receipt, .. } = names;
    let heads = format!(
        "SELECT base_position, count, moved_at, octet_length(chunk) FROM {log} WHERE base_position >= ?1 ORDER BY 1 LIMIT ?2"
    );
    let (chunk_plan, groups) = look(tx, names, &merge::chunk_mark(SHARD), &heads, step, after_ms)?;
    let (mut chunks, mut last_joined) = (Vec::new(), None);
    for group in groups {
        let (joined, last) = merge::join_chunks(&read_chunks(tx, names, group)?, merge::CHUNK_BYTES);
        chunks.extend(joined);
        last_joined = last;
    }
    let chunk_mark = chunk_plan.next_mark(last_joined);

    let heads = format!(
        "SELECT number, 1, created_at, octet_length(lanes) FROM {receipt} WHERE number >= ?1 \
         AND number < (SELECT max(number) FROM {receipt}) ORDER BY 1 LIMIT ?2"
    );
    let (receipt_plan, groups) = look(tx, names, &merge::receipt_mark(SHARD), &heads, step, after_ms)?;
    let (mut receipts, mut last_joined) = (Vec::new(), None);
    for group in groups {
        let (joined, last) = merge::join_receipts(&read_receipts(tx, names, group)?);
        receipts.extend(joined);
        last_joined = last;
    }
    let receipt_mark = receipt_plan.next_mark(last_joined);
    Ok(Merge { chunks, chunk_mark, receipts, receipt_mark, more: chunk_plan.more || receipt_plan.more })
}

type Group = (i64, i64);

fn look(
    tx: &Transaction<'_>,
    names: &Names,
    mark: &str,
    heads: &str,
    step: u32,
    after_ms: u64,
) -> StoreResult<(Plan, Vec<Group>)> {
    let mark = meta(tx, names, mark)?.and_then(|text| text.parse().ok()).unwrap_or(0u64);
    let head = |row: &Row<'_>| {
        Ok(Head { key: unsigned(row.get(0)?), count: row.get(1)?, at_us: row.get(2)?, bytes: unsigned(row.get(3)?) })
    };
    let mut statement = tx.prepare_cached(heads).map_err(refusal)?;
    let found = statement.query_map([signed(mark), i64::from(step) + 1], head).map_err(refusal)?;
    let mut heads: Vec<Head> = found.collect::<rusqlite::Result<_>>().map_err(refusal)?;
    let filled = heads.len() > step as usize;
    heads.truncate(step as usize);
    let now_us: i64 = tx.query_row(&format!("SELECT {NOW_US}"), [], |row| row.get(0)).map_err(refusal)?;
    let plan = merge::plan(mark, &heads, filled, now_us, after_ms);
    let groups = plan.groups.iter().map(|run| (signed(run.first), signed(run.last))).collect();
    Ok((plan, groups))
}

fn read_chunks(tx: &Transaction<'_>, names: &Names, (first, last): Group) -> StoreResult<Vec<StoredChunk>> {
    let sql =
        format!("SELECT {} FROM {} WHERE base_position BETWEEN ? AND ? ORDER BY base_position", log::CHUNK, names.log);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.query_map([first, last], log::stored_chunk).and_then(Iterator::collect).map_err(refusal)
}

fn read_receipts(tx: &Transaction<'_>, names: &Names, (first, last): Group) -> StoreResult<Vec<StoredReceipts>> {
    let sql = format!(
        "SELECT number, epoch, log_end, created_at, lanes FROM {} WHERE number BETWEEN ? AND ? ORDER BY number",
        names.receipt
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let row = |row: &Row<'_>| {
        Ok(StoredReceipts {
            number: unsigned(row.get(0)?),
            epoch: Epoch(unsigned(row.get(1)?)),
            log_end: Position(unsigned(row.get(2)?)),
            created_at_us: row.get(3)?,
            lanes: row.get(4)?,
        })
    };
    statement.query_map([first, last], row).and_then(Iterator::collect).map_err(refusal)
}

/// Puts what was merged in the place of its sources. Between the plan and this, the lease may have been lost and
/// another instance may have merged: then the sources are not all there, and nothing is changed.
pub(super) fn exchange(
    tx: &Transaction<'_>,
    names: &Names,
    owner: &str,
    merge: &Merge,
    pruned: &mut Pruned,
) -> StoreResult<()> {
    if !take_lease(tx, names, owner)? {
        pruned.more = true;
        return Ok(());
    }
    for chunk in &merge.chunks {
        exchange_chunk(tx, names, chunk)?;
        pruned.merged_chunks += chunk.sources.len() as u64;
    }
    for receipts in &merge.receipts {
        exchange_receipts(tx, names, receipts)?;
        pruned.merged_receipts += receipts.sources.len() as u64;
    }
    pruned.more |= merge.more;
    for (name, mark) in [(merge::chunk_mark(SHARD), merge.chunk_mark), (merge::receipt_mark(SHARD), merge.receipt_mark)]
    {
        let sql = format!(
            "INSERT INTO {} (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            names.meta
        );
        tx.prepare_cached(&sql).and_then(|mut s| s.execute(params![name, mark.to_string()])).map_err(refusal)?;
    }
    if pruned.more { Ok(()) } else { release(tx, names) }
}

fn exchange_chunk(tx: &Transaction<'_>, names: &Names, joined: &JoinedChunk) -> StoreResult<()> {
    let delete = format!("DELETE FROM {} WHERE base_position = ?", names.log);
    delete_all(tx, &delete, joined.sources.iter().map(|base| base.0))?;
    let insert = format!(
        "INSERT INTO {} (shard, base_position, count, first_created_at, last_created_at, moved_at, codec, id_filter, chunk) \
         VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?)",
        names.log
    );
    let c = &joined.chunk;
    let (base, first, last) = (signed(c.base.0), c.first_created_at_us, c.last_created_at_us);
    let values = params![base, c.count, first, last, joined.moved_at_us, c.codec, c.id_filter, c.bytes];
    tx.prepare_cached(&insert).and_then(|mut s| s.execute(values)).map_err(refusal)?;
    Ok(())
}

fn exchange_receipts(tx: &Transaction<'_>, names: &Names, joined: &JoinedReceipts) -> StoreResult<()> {
    let delete = format!("DELETE FROM {} WHERE number = ?", names.receipt);
    delete_all(tx, &delete, joined.sources.iter().copied())?;
    let insert = format!(
        "INSERT INTO {} (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) \
         VALUES (0, ?, ?, ?, ?, ?, ?, ?)",
        names.receipt
    );
    let row = &joined.row;
    let (number, epoch, end) = (signed(row.number), signed(row.epoch.0), signed(row.log_end.0));
    let (from, to) = joined.span.map(|(from, to)| (signed(from.0), signed(to.0))).unzip();
    let values = params![number, epoch, end, from, to, row.created_at_us, row.lanes];
    tx.prepare_cached(&insert).and_then(|mut s| s.execute(values)).map_err(refusal)?;
    Ok(())
}

fn delete_all(tx: &Transaction<'_>, sql: &str, keys: impl Iterator<Item = u64>) -> StoreResult<()> {
    let mut statement = tx.prepare_cached(sql).map_err(refusal)?;
    for key in keys {
        if statement.execute([signed(key)]).map_err(refusal)? != 1 {
            return Err(StoreError::new(StoreErrorKind::Conflict, "another instance has merged or pruned meanwhile"));
        }
    }
    Ok(())
}
