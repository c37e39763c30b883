//! Tables of an earlier version, brought to this one.

use rusqlite::{Connection, OptionalExtension as _, Transaction};

use super::names::{Names, quoted};
use super::refusal::refusal;
use super::schema;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::InitPlan;
use crate::store::{SCHEMA_LEVEL, StoreResult, Upgrade};
use crate::version::{Addition, LEVEL, Meta, Part, additions, left_to_do};

/// The rows of the meta table. None: there is no such table.
pub(super) fn meta(connection: &Connection, names: &Names) -> StoreResult<Option<Meta>> {
    if schema::columns_of(connection, &names.options.table("outbox_meta"))?.is_empty() {
        return Ok(None);
    }
    let sql = format!("SELECT name, value FROM {}", names.meta);
    let mut statement = connection.prepare_cached(&sql).map_err(refusal)?;
    let rows: rusqlite::Result<Vec<(String, String)>> =
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).and_then(Iterator::collect);
    rows.map(|rows| Some(Meta::new(rows))).map_err(refusal)
}

fn sql_of(names: &Names, table: &'static str, part: Part) -> Vec<String> {
    let name = names.options.table(table);
    let tables = schema::tables(names, &InitPlan::default());
    let made = tables.iter().find(|t| t.name == name);
    let index = |about: &str| -> Vec<String> {
        let index = quoted(&format!("{name}_{about}"));
        schema::indexes(names).into_iter().filter(|sql| sql.contains(&index)).collect()
    };
    match part {
        Part::Table => made.map(schema::Table::ddl).into_iter().collect(),
        Part::Column(column) => {
            let declared = made.and_then(|t| t.columns.iter().find(|c| c.split(' ').next() == Some(column)));
            declared.map(|c| format!("ALTER TABLE {} ADD COLUMN {c}", quoted(&name))).into_iter().collect()
        }
        Part::Index(about) => index(about),
    }
}

fn is_there(connection: &Connection, names: &Names, addition: &Addition) -> StoreResult<bool> {
    let table = names.options.table(addition.table);
    match addition.part {
        Part::Table => Ok(!schema::columns_of(connection, &table)?.is_empty()),
        Part::Column(column) => Ok(schema::columns_of(connection, &table)?.iter().any(|(name, _)| name == column)),
        Part::Index(about) => {
            let sql = "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?";
            let found: Option<i64> = connection
                .query_row(sql, [format!("{table}_{about}")], |row| row.get(0))
                .optional()
                .map_err(refusal)?;
            Ok(found.is_some())
        }
    }
}

pub(super) fn plan(connection: &Connection, names: &Names) -> StoreResult<Upgrade> {
    let made = meta(connection, names)?.filter(Meta::is_made);
    let Some(meta) = made else {
        return Err(StoreError::new(StoreErrorKind::NotInitialised, format!("there is no table {}", names.meta)));
    };
    let additions = additions(|table, part| sql_of(names, table, part));
    let mut there = Vec::new();
    for addition in &additions {
        there.push(is_there(connection, names, addition)?);
    }
    let mut there = there.into_iter();
    let row = format!(
        "INSERT INTO {} (name, value) VALUES ('{LEVEL}', '{SCHEMA_LEVEL}') ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        names.meta
    );
    let additions = additions.into_iter().filter(|_| !there.next().unwrap_or_default()).collect();
    left_to_do(&meta, additions, [schema::origin_row(names), row], vec![])
}

/// All in one transaction.
pub(super) fn upgrade(tx: &Transaction<'_>, names: &Names) -> StoreResult<Upgrade> {
    let plan = plan(tx, names)?;
    for statement in &plan.statements {
        tx.execute_batch(statement).map_err(refusal)?;
    }
    Ok(plan)
}
