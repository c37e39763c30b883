//! The transaction that moves rows into the log.
//!
//! It holds the write lock from its start, so what it looks at stays as it is until it commits: every shard is checked
//! in full before anything of it is written, and nothing has to be undone.

use outhaul_core::checkpoint::{Checkpoint, ShardCheckpoint, ShardOutcome};
use outhaul_core::chunk::{self, EncodedChunk};
use outhaul_core::message::{Defect, Epoch, Message, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedWrite};
use outhaul_core::runs::{Run, Runs};
use rusqlite::types::ValueRef;
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::{SHARD, acts, signed};
use crate::merge::CHUNK_BYTES;
use crate::store::StoreResult;

/// The chunks and receipts of one shard, ready to be written.
pub(super) struct Packed {
    chunks: Vec<EncodedChunk>,
    receipts: Vec<u8>,
}

/// Packs what a checkpoint writes, one for each of its shards.
pub(super) fn pack(checkpoint: &Checkpoint) -> Vec<Packed> {
    let pack = |shard: &ShardCheckpoint| Packed {
        chunks: shard.chunks(&checkpoint.destinations, CHUNK_BYTES),
        receipts: shard.receipts.encode(),
    };
    checkpoint.shards.iter().map(pack).collect()
}

pub(super) fn write(
    tx: &Transaction<'_>,
    names: &Names,
    checkpoint: &Checkpoint,
    packed: &[Packed],
) -> StoreResult<Vec<ShardOutcome>> {
    let mut outcomes = Vec::with_capacity(checkpoint.shards.len());
    for (shard, packed) in checkpoint.shards.iter().zip(packed) {
        let outcome = check(tx, names, &checkpoint.owner, shard)?;
        if outcome == ShardOutcome::Written {
            acts::write(tx, names, shard, &checkpoint.destinations)?;
            for change in &shard.parked {
                park(tx, names, change, &checkpoint.destinations)?;
            }
            if names.options.status.is_none() {
                delete(tx, names, shard)?;
            }
            insert(tx, names, shard, packed)?;
        }
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// What is to be said of a shard, before anything is written.
fn check(tx: &Transaction<'_>, names: &Names, owner: &str, shard: &ShardCheckpoint) -> StoreResult<ShardOutcome> {
    if shard.shard != SHARD || !owns(tx, names, owner, shard.epoch)? {
        return Ok(ShardOutcome::Fenced);
    }
    if newest(tx, names)? != (shard.number, signed(shard.base.0)) || is_logged(tx, names, shard)? {
        return Ok(ShardOutcome::Mismatch);
    }
    let there = names.options.status.is_some() || are_there(tx, names, shard)?;
    Ok(if there { ShardOutcome::Written } else { ShardOutcome::Mismatch })
}

fn owns(tx: &Transaction<'_>, names: &Names, owner: &str, epoch: Epoch) -> StoreResult<bool> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE shard = 0 AND owner = ? AND epoch = ?)", names.lease);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.query_row(params![owner, signed(epoch.0)], |row| row.get(0)).map_err(refusal)
}

/// The number for the next receipt row, and the end of the log.
fn newest(tx: &Transaction<'_>, names: &Names) -> StoreResult<(u64, i64)> {
    let sql = format!("SELECT number + 1, log_end FROM {} ORDER BY number DESC LIMIT 1", names.receipt);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let newest = statement.query_row([], |row| Ok((super::unsigned(row.get(0)?), row.get(1)?))).optional();
    Ok(newest.map_err(refusal)?.unwrap_or((0, 0)))
}

/// Whether the log holds something at or above the base already: it and the receipts do not belong together.
fn is_logged(tx: &Transaction<'_>, names: &Names, shard: &ShardCheckpoint) -> StoreResult<bool> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE base_position >= ?)", names.log);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.query_row([signed(shard.base.0)], |row| row.get(0)).map_err(refusal)
}

/// Runs of consecutive `seq` among the rows to move. Each was read, or it would not be named; so a run holds nothing
/// else.
fn runs(shard: &ShardCheckpoint) -> Vec<Run> {
    let mut runs = Runs::new();
    let mut open: Option<Run> = None;
    for seq in shard.moved.iter().map(|m| m.seq.0) {
        open = match open {
            Some(run) if run.last.checked_add(1) == Some(seq) => Some(Run { last: seq, ..run }),
            other => {
                other.into_iter().for_each(|run| runs.insert_run(run));
                Some(Run { first: seq, last: seq })
            }
        };
    }
    open.into_iter().for_each(|run| runs.insert_run(run));
    runs.iter().collect()
}

/// Whether all rows to move are there, with the ids that were read: a `seq` that was given again is another row.
fn are_there(tx: &Transaction<'_>, names: &Names, shard: &ShardCheckpoint) -> StoreResult<bool> {
    let mut by_seq: Vec<&Message> = shard.moved.iter().map(AsRef::as_ref).collect();
    by_seq.sort_unstable_by_key(|m| m.seq);
    let mut wanted = by_seq.into_iter();
    let sql = format!(
        "SELECT {seq}, {} FROM {} WHERE {seq} BETWEEN ? AND ? ORDER BY {seq}",
        names.id,
        names.outbox,
        seq = names.seq
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    for run in runs(shard) {
        let mut rows = statement.query([signed(run.first), signed(run.last)]).map_err(refusal)?;
        while let Some(row) = rows.next().map_err(refusal)? {
            let seq: i64 = row.get(0).map_err(refusal)?;
            let is_it = wanted.next().is_some_and(|m| signed(m.seq.0) == seq && id_is(row.get_ref(1), &m.id));
            if !is_it {
                return Ok(false);
            }
        }
    }
    Ok(wanted.next().is_none())
}

/// Whether a stored id is the one that was read: read with replacement characters where it is not UTF-8.
fn id_is(stored: rusqlite::Result<ValueRef<'_>>, id: &str) -> bool {
    match stored {
        Ok(ValueRef::Text(bytes) | ValueRef::Blob(bytes)) => {
            bytes == id.as_bytes() || String::from_utf8_lossy(bytes) == id
        }
        Ok(ValueRef::Null) => id.is_empty(),
        Ok(ValueRef::Integer(n)) => n.to_string() == id,
        Ok(ValueRef::Real(n)) => n.to_string() == id,
        Err(_) => false,
    }
}

fn delete(tx: &Transaction<'_>, names: &Names, shard: &ShardCheckpoint) -> StoreResult<()> {
    let sql = format!("DELETE FROM {} WHERE {} BETWEEN ? AND ?", names.outbox, names.seq);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    for run in runs(shard) {
        statement.execute([signed(run.first), signed(run.last)]).map_err(refusal)?;
    }
    Ok(())
}

fn insert(tx: &Transaction<'_>, names: &Names, shard: &ShardCheckpoint, packed: &Packed) -> StoreResult<()> {
    let sql = format!(
        "INSERT INTO {} (shard, base_position, count, first_created_at, last_created_at, moved_at, codec, id_filter, chunk) \
         VALUES (0, ?, ?, ?, ?, {NOW_US}, ?, ?, ?)",
        names.log
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    for c in &packed.chunks {
        let (first, last) = (c.first_created_at_us, c.last_created_at_us);
        statement
            .execute(params![signed(c.base.0), c.count, first, last, c.codec, c.id_filter, c.bytes])
            .map_err(refusal)?;
    }
    let sql = format!(
        "INSERT INTO {} (shard, number, epoch, log_end, from_position, to_position, created_at, lanes) \
         VALUES (0, ?, ?, ?, ?, ?, {NOW_US}, ?)",
        names.receipt
    );
    let (from, to) = shard.receipts.span().map(|(from, to)| (signed(from.0), signed(to.0))).unzip();
    let (number, epoch, end) = (signed(shard.number), signed(shard.epoch.0), signed(shard.log_end().0));
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.execute(params![number, epoch, end, from, to, packed.receipts]).map_err(refusal)?;
    Ok(())
}

fn park(tx: &Transaction<'_>, names: &Names, change: &ParkedWrite, destinations: &[String]) -> StoreResult<()> {
    match change {
        ParkedWrite::Insert { entry, message } => insert_parked(tx, names, entry, message, destinations),
        ParkedWrite::Update(entry) => update_parked(tx, names, entry),
        ParkedWrite::Replace { entry, message } => replace_parked(tx, names, entry, message, destinations),
        ParkedWrite::Remove { destination, shard, position } => {
            let sql = format!("DELETE FROM {} WHERE destination = ? AND shard = ? AND position = ?", names.parked);
            let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
            statement.execute(params![destination, shard.0, signed(position.0)]).map_err(refusal)?;
            Ok(())
        }
    }
}

/// A payload that was not fetched goes from table to table inside the database.
fn insert_parked(
    tx: &Transaction<'_>,
    names: &Names,
    entry: &ParkedEntry,
    message: &Message,
    destinations: &[String],
) -> StoreResult<()> {
    let packed = chunk::encode(std::iter::once(message), destinations);
    let sql = format!(
        "INSERT INTO {} (destination, shard, position, id, msg_key, state, attempts, due_at, error_code, error_text, \
         first_failed_at, last_failed_at, codec, message, oversize_payload) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, \
         ?, (SELECT CAST({} AS BLOB) FROM {} WHERE {} = ?))",
        names.parked, names.payload, names.outbox, names.seq
    );
    let fetch = matches!(message.defect, Some(Defect::TooLarge { .. })).then(|| signed(message.seq.0));
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let values = params![
        entry.destination,
        entry.shard.0,
        signed(entry.position.0),
        message.id,
        entry.key,
        entry.state.as_str(),
        entry.attempts,
        entry.due_at_us,
        entry.error_code,
        entry.error_text,
        entry.first_failed_at_us,
        entry.last_failed_at_us,
        packed.codec,
        packed.bytes,
        fetch,
    ];
    statement.execute(values).map_err(|e| refusal(e).while_doing("parking a message"))?;
    Ok(())
}

fn update_parked(tx: &Transaction<'_>, names: &Names, entry: &ParkedEntry) -> StoreResult<()> {
    let sql = format!(
        "UPDATE {} SET state = ?1, attempts = ?2, due_at = ?3, error_code = iif(?4 = '', error_code, ?4), \
         error_text = iif(?4 = '', error_text, ?5), first_failed_at = ?6, last_failed_at = ?7 \
         WHERE destination = ?8 AND shard = ?9 AND position = ?10",
        names.parked
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let values = params![
        entry.state.as_str(),
        entry.attempts,
        entry.due_at_us,
        entry.error_code,
        entry.error_text,
        entry.first_failed_at_us,
        entry.last_failed_at_us,
        entry.destination,
        entry.shard.0,
        signed(entry.position.0),
    ];
    statement.execute(values).map_err(refusal)?;
    Ok(())
}

fn replace_parked(
    tx: &Transaction<'_>,
    names: &Names,
    entry: &ParkedEntry,
    message: &Message,
    destinations: &[String],
) -> StoreResult<()> {
    update_parked(tx, names, entry)?;
    let packed = chunk::encode(std::iter::once(message), destinations);
    let sql = format!(
        "UPDATE {} SET msg_key = ?, codec = ?, message = ?, oversize_payload = NULL WHERE destination = ? AND shard = ? AND position = ?",
        names.parked
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let place = (&entry.destination, entry.shard.0, signed(entry.position.0));
    statement.execute(params![entry.key, packed.codec, packed.bytes, place.0, place.1, place.2]).map_err(refusal)?;
    Ok(())
}

/// What became of a checkpoint. Holding the write lock, nothing is under way any more.
pub(super) fn applied(
    tx: &Transaction<'_>,
    names: &Names,
    owner: &str,
    asked: &[(ShardId, Epoch, u64)],
) -> StoreResult<Vec<Option<ShardOutcome>>> {
    let sql = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE number = ? AND epoch = ?)", names.receipt);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut answer = |(shard, epoch, number): &(ShardId, Epoch, u64)| {
        if *shard != SHARD {
            return Ok(Some(ShardOutcome::Fenced));
        }
        let written: bool =
            statement.query_row([signed(*number), signed(epoch.0)], |row| row.get(0)).map_err(refusal)?;
        if written {
            return Ok(Some(ShardOutcome::Written));
        }
        Ok((!owns(tx, names, owner, *epoch)?).then_some(ShardOutcome::Fenced))
    };
    asked.iter().map(&mut answer).collect()
}
