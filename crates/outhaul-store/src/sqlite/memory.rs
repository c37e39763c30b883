//! What destinations keep for the next process: rows of the meta table.

use rusqlite::{Connection, Transaction};

use super::names::Names;
use super::refusal::refusal;
use super::schema;
use crate::store::{StoreResult, memory_name};

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
