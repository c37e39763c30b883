//! Reading many rows as they come.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::link::{Dialer, get};
use super::values::{Micros, Raw, literal, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::scan::{Cell, Pages, Wanted, statement};
use crate::store::StoreResult;

/// Reads all rows, in a transaction that may only read. Gives the pages back, with the last rows.
pub(crate) async fn read(options: &StoreOptions, wanted: &Wanted, mut pages: Pages) -> StoreResult<Pages> {
    let link = Dialer::new(options)?.connect().await?;
    let limit_ms = options.statement_timeout.as_millis().clamp(1, i32::MAX as u128);
    let begin = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL statement_timeout = {limit_ms}; \
         SET LOCAL TimeZone = 'UTC'"
    );
    let sql = statement(options, wanted, quoted, literal);
    // The connection goes with this call, whatever becomes of it.
    let read = link.stream(&begin, &sql, cells, &mut pages).await;
    read.map(|()| pages).map_err(|e| e.while_doing("reading rows"))
}

fn cells(row: &Row) -> StoreResult<Vec<Cell>> {
    (0..row.len()).map(|n| cell(row, n)).collect()
}

/// A value as it travels in binary.
fn cell(row: &Row, n: usize) -> StoreResult<Cell> {
    let Some(column) = row.columns().get(n) else { return Ok(Cell::Null) };
    let cell = match *column.type_() {
        Type::INT2 => get::<Option<i16>>(row, n)?.map(|x| Cell::Whole(x.into())),
        Type::INT4 => get::<Option<i32>>(row, n)?.map(|x| Cell::Whole(x.into())),
        Type::INT8 => get::<Option<i64>>(row, n)?.map(Cell::Whole),
        Type::TIMESTAMP | Type::TIMESTAMPTZ => get::<Option<Micros>>(row, n)?.map(|t| Cell::Time(t.0)),
        Type::UUID => get::<Option<Uuid>>(row, n)?.map(|uuid| Cell::Bytes(uuid.0)),
        Type::JSONB => get::<Option<Any>>(row, n)?.map(|any| Cell::Bytes(any.0.get(1..).unwrap_or_default().to_vec())),
        Type::TEXT | Type::VARCHAR | Type::BPCHAR | Type::JSON | Type::BYTEA | Type::UNKNOWN => {
            get::<Option<Raw<'_>>>(row, n)?.map(|raw| Cell::Bytes(raw.0.to_vec()))
        }
        ref other => {
            let what = format!("column {} is of type {other}: cast it to text in the query", column.name());
            return Err(StoreError::new(StoreErrorKind::Configuration, what));
        }
    };
    Ok(cell.unwrap_or(Cell::Null))
}

/// A UUID as text.
struct Uuid(Vec<u8>);

impl<'a> tokio_postgres::types::FromSql<'a> for Uuid {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let mut text = Vec::with_capacity(36);
        for (n, byte) in raw.iter().enumerate() {
            if matches!(n, 4 | 6 | 8 | 10) {
                text.push(b'-');
            }
            text.extend(format!("{byte:02x}").into_bytes());
        }
        Ok(Self(text))
    }

    tokio_postgres::types::accepts!(UUID);
}

/// Bytes as sent.
struct Any<'a>(&'a [u8]);

impl<'a> tokio_postgres::types::FromSql<'a> for Any<'a> {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw))
    }

    tokio_postgres::types::accepts!(JSONB);
}
