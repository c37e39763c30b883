//! What destinations keep for the next process, and whose turn it is: rows of the meta table.

use rusqlite::{Connection, Transaction};

use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::schema;
use crate::store::{StoreResult, another_has_it, memory_name, turn_name};

pub(super) fn kept(connection: &Connection, names: &Names, destination: &str) -> StoreResult<Option<String>> {
    schema::meta(connection, names, &memory_name(destination))
}

pub(super) fn keep(tx: &Transaction<'_>, names: &Names, destination: &str, value: &str) -> StoreResult<()> {
    let sql = format!(
        "INSERT INTO {} (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        names.meta
    );
    let name = memory_name(destination);
    tx.prepare_cached(&sql).and_then(|mut s| s.execute([name.as_str(), value])).map(drop).map_err(refusal)
}

pub(super) fn turn(
    tx: &Transaction<'_>,
    names: &Names,
    name: &str,
    owner: &str,
    ttl_ms: u64,
) -> StoreResult<Option<String>> {
    let sql = format!(
        "INSERT INTO {meta} AS t (name, value) VALUES (?1, ({NOW_US} + ?3) || ' ' || ?2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value \
         WHERE CAST(substr(t.value, 1, instr(t.value, ' ')) AS INTEGER) <= {NOW_US} \
           OR substr(t.value, instr(t.value, ' ') + 1) = ?2",
        meta = names.meta
    );
    let ttl_us = i64::try_from(ttl_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
    let name = turn_name(name);
    tx.prepare_cached(&sql).and_then(|mut s| s.execute((name.as_str(), owner, ttl_us))).map_err(refusal)?;
    Ok(another_has_it(schema::meta(tx, names, &name)?.as_deref(), owner))
}
