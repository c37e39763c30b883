//! rusqlite's connection, which is synchronous.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Error, Statement as Prepared, params_from_iter};

use super::{Refusal, RefusalKind};
use crate::statement::{Statement, Value};

fn parameters<'a>(values: &'a [Value<'a>]) -> impl Iterator<Item = ToSqlOutput<'a>> {
    values.iter().map(|value| match value {
        Value::Text(Some(text)) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
        Value::Bytes(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        Value::Number(Some(number)) => ToSqlOutput::Borrowed(ValueRef::Integer(*number)),
        Value::Text(None) | Value::Number(None) => ToSqlOutput::Borrowed(ValueRef::Null),
    })
}

fn with<T>(
    connection: &Connection,
    statement: &Statement<'_>,
    run: impl FnOnce(&mut Prepared<'_>) -> Result<T, Error>,
) -> Result<T, Refusal> {
    let result = if statement.repeats {
        connection.prepare_cached(&statement.sql).and_then(|mut prepared| run(&mut prepared))
    } else {
        connection.prepare(&statement.sql).and_then(|mut prepared| run(&mut prepared))
    };
    result.map_err(refusal)
}

/// As [`super::Transaction::execute`].
pub(crate) fn execute(connection: &Connection, statement: &Statement<'_>) -> Result<u64, Refusal> {
    with(connection, statement, |prepared| {
        prepared.execute(params_from_iter(parameters(&statement.values))).map(|rows| rows as u64)
    })
}

/// As [`super::Transaction::fetch`].
pub(crate) fn fetch(connection: &Connection, statement: &Statement<'_>) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
    with(connection, statement, |prepared| {
        let rows = prepared.query_map(params_from_iter(parameters(&statement.values)), |row| {
            Ok(match row.get_ref(0)? {
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes.to_vec()),
                ValueRef::Integer(n) => Some(n.to_string().into_bytes()),
                ValueRef::Null | ValueRef::Real(_) => None,
            })
        })?;
        rows.collect()
    })
}

fn refusal(error: Error) -> Refusal {
    let (kind, line) = match &error {
        Error::SqliteFailure(failure, message) => {
            super::sqlite_code::refusal(failure.extended_code, message.as_deref().unwrap_or_default())
        }
        Error::SqlInputError { error, msg, .. } => super::sqlite_code::refusal(error.extended_code, msg),
        _ => (RefusalKind::Other, "the driver failed".to_owned()),
    };
    Refusal::new(kind, line, error)
}
