//! Rows of `outbox_transaction`: judged, ended, put into the outbox, pruned.

use outhaul_core::transaction::{Finding, TransactionState};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::{read, schema, signed};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::StoreResult;
use crate::transaction::{EndedTransaction, FallBack, FellBack, SPAN_MAX_MS, TransactionRecord, state_of};
use crate::version::ORIGIN;

pub(super) fn origin(tx: &Transaction<'_>, names: &Names) -> StoreResult<String> {
    schema::meta(tx, names, ORIGIN)?
        .ok_or_else(|| StoreError::new(StoreErrorKind::Outdated, "the meta table has no origin"))
}

pub(super) fn state(tx: &Transaction<'_>, names: &Names, id: &str) -> StoreResult<Option<TransactionState>> {
    let sql = format!("SELECT state FROM {} WHERE id = ?", names.transaction);
    let state: Option<String> =
        tx.prepare_cached(&sql).and_then(|mut s| s.query_row([id], |row| row.get(0)).optional()).map_err(refusal)?;
    state.map(|name| state_of(&name)).transpose()
}

/// Puts a tombstone where there is no row. Writers are serial: what is not there under the write lock is nowhere.
pub(super) fn bury(tx: &Transaction<'_>, names: &Names, id: &str) -> StoreResult<Finding> {
    let sql = format!(
        "INSERT INTO {} (id, state, since_at) VALUES (?, '{}', {NOW_US}) ON CONFLICT (id) DO NOTHING",
        names.transaction,
        TransactionState::RolledBack.name()
    );
    let buried = tx.prepare_cached(&sql).and_then(|mut s| s.execute([id])).map_err(refusal)?;
    match state(tx, names, id)? {
        _ if buried == 1 => Ok(Finding::Buried),
        Some(state) => Ok(Finding::Row(state)),
        None => Err(StoreError::new(StoreErrorKind::Conflict, "the row of a transaction has just gone")),
    }
}

pub(super) fn end(tx: &Transaction<'_>, names: &Names, ended: &[EndedTransaction]) -> StoreResult<u64> {
    let sql = format!(
        "UPDATE {} SET state = '{}', since_at = {NOW_US}, receipt = ?2, msg_key = NULL, headers = NULL, payload = NULL \
         WHERE id = ?1 AND state = '{}'",
        names.transaction,
        TransactionState::Ended.name(),
        TransactionState::Committed.name()
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut changed = 0;
    for one in ended {
        changed += statement.execute([one.id.as_str(), &one.receipt()]).map_err(refusal)? as u64;
    }
    Ok(changed)
}

/// Without the write lock: nearly always there is nothing.
pub(super) fn is_any_committed(tx: &Transaction<'_>, names: &Names, wanted: &FallBack) -> StoreResult<bool> {
    let sql = format!(
        "SELECT EXISTS (SELECT 1 FROM {} WHERE state = '{}' AND (since_at IS NULL OR since_at <= {NOW_US} - ?))",
        names.transaction,
        TransactionState::Committed.name()
    );
    tx.prepare_cached(&sql).and_then(|mut s| s.query_row([us(wanted.after_ms)], |row| row.get(0))).map_err(refusal)
}

fn us(ms: u64) -> i64 {
    signed(ms.min(SPAN_MAX_MS)) * 1_000
}

/// Marks what is new as seen; returns what is due.
pub(super) fn see(tx: &Transaction<'_>, names: &Names, wanted: &FallBack) -> StoreResult<(FellBack, Vec<String>)> {
    let (table, committed) = (&names.transaction, TransactionState::Committed.name());
    let limit = i64::from(wanted.limit.max(1));
    let due = format!(
        "SELECT id FROM {table} WHERE state = '{committed}' AND since_at <= {NOW_US} - ? ORDER BY since_at LIMIT ?"
    );
    let due: Vec<String> = tx
        .prepare_cached(&due)
        .and_then(|mut s| s.query_map([us(wanted.after_ms), limit], |row| row.get(0)).and_then(Iterator::collect))
        .map_err(refusal)?;
    let sql = format!(
        "UPDATE {table} SET since_at = {NOW_US} WHERE id IN (SELECT id FROM {table} WHERE state = '{committed}' \
         AND since_at IS NULL LIMIT ?)"
    );
    let seen = tx.prepare_cached(&sql).and_then(|mut s| s.execute([limit])).map_err(refusal)?;
    let full = |n: usize| n >= wanted.limit.max(1) as usize;
    let fell = FellBack { seen: seen as u64, more: full(seen) || full(due.len()), ..FellBack::default() };
    Ok((fell, due))
}

/// Puts the message of one transaction into the outbox. None: it is not committed any more, but ended or sent.
pub(super) fn send(tx: &Transaction<'_>, names: &Names, id: &str) -> StoreResult<Option<String>> {
    let (table, committed) = (&names.transaction, TransactionState::Committed.name());
    let sql = format!(
        "SELECT coalesce(message_id, id), msg_key IS NOT NULL, headers IS NOT NULL FROM {table} WHERE id = ? AND state = '{committed}'"
    );
    let found: Option<(String, bool, bool)> = tx
        .prepare_cached(&sql)
        .and_then(|mut s| s.query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional())
        .map_err(refusal)?;
    let Some((message, has_key, has_headers)) = found else { return Ok(None) };
    let mut columns = vec![(names.id.as_str(), "coalesce(message_id, id)"), (names.topic.as_str(), "topic")];
    for (column, source, given) in [(&names.key, "msg_key", has_key), (&names.headers, "headers", has_headers)] {
        match column {
            Some(column) => columns.push((column, source)),
            None if given => {
                let what = format!("the outbox table has no column for {source}");
                return Err(StoreError::new(StoreErrorKind::Configuration, what));
            }
            None => {}
        }
    }
    columns.push((&names.payload, if read::payload_is_text(tx, names)? { "CAST(payload AS TEXT)" } else { "payload" }));
    let (into, from): (Vec<&str>, Vec<&str>) = columns.into_iter().unzip();
    let insert = format!(
        "INSERT INTO {} ({}) SELECT {} FROM {table} WHERE id = ?",
        names.outbox,
        into.join(", "),
        from.join(", ")
    );
    tx.prepare_cached(&insert).and_then(|mut s| s.execute([id])).map_err(refusal)?;
    let sent = format!(
        "UPDATE {table} SET state = '{}', since_at = {NOW_US}, msg_key = NULL, headers = NULL, payload = NULL WHERE id = ?",
        TransactionState::Sent.name()
    );
    tx.prepare_cached(&sent).and_then(|mut s| s.execute([id])).map_err(refusal)?;
    Ok(Some(message))
}

/// The outbox refuses it: it is tried again later.
pub(super) fn put_off(tx: &Transaction<'_>, names: &Names, id: &str) -> StoreResult<()> {
    let sql = format!(
        "UPDATE {} SET since_at = {NOW_US} WHERE id = ? AND state = '{}'",
        names.transaction,
        TransactionState::Committed.name()
    );
    tx.prepare_cached(&sql).and_then(|mut s| s.execute([id])).map(drop).map_err(refusal)
}

pub(super) fn prune(tx: &Transaction<'_>, names: &Names, retention_ms: u64, limit: u32) -> StoreResult<u64> {
    let table = &names.transaction;
    let mut gone = 0;
    for state in [TransactionState::Ended, TransactionState::Sent, TransactionState::RolledBack] {
        let left = i64::from(limit.max(1)) - gone;
        let sql = format!(
            "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE state = '{}' AND since_at < {NOW_US} - ?1 \
             ORDER BY since_at LIMIT ?2)",
            state.name()
        );
        let deleted = tx.prepare_cached(&sql).and_then(|mut s| s.execute(params![us(retention_ms), left]));
        gone += deleted.map_err(refusal)? as i64;
    }
    Ok(gone.unsigned_abs())
}

pub(super) fn find(tx: &Transaction<'_>, names: &Names, id: &str) -> StoreResult<Vec<TransactionRecord>> {
    let sql = format!(
        "SELECT id, coalesce(message_id, id), state, topic, receipt, created_at, since_at FROM {} \
         WHERE id = ?1 OR message_id = ?1 ORDER BY created_at, id",
        names.transaction
    );
    let row = |row: &Row<'_>| {
        let record = TransactionRecord {
            transaction: row.get(0)?,
            message: row.get(1)?,
            state: TransactionState::Committed,
            topic: row.get(3)?,
            receipt: row.get(4)?,
            created_at_us: row.get(5)?,
            since_us: row.get(6)?,
        };
        Ok((record, row.get::<_, String>(2)?))
    };
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let found: Vec<(TransactionRecord, String)> =
        statement.query_map([id], row).and_then(Iterator::collect).map_err(refusal)?;
    found.into_iter().map(|(r, state)| Ok(TransactionRecord { state: state_of(&state)?, ..r })).collect()
}
