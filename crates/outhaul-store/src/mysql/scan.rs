//! Reading many rows as they come.

use mysql_async::consts::ColumnType;
use mysql_async::{Row, Value};

use super::link::{Dialer, Slot};
use super::values::{literal, micros_of, quoted};
use crate::options::StoreOptions;
use crate::scan::{Cell, Pages, Wanted, statement};
use crate::store::StoreResult;

/// Reads all rows, in a transaction that may only read. Gives the pages back, with the last rows.
pub(crate) async fn read(options: &StoreOptions, wanted: &Wanted, mut pages: Pages) -> StoreResult<Pages> {
    let dialer = Dialer::new(options)?;
    let slot = Slot::new();
    let mut held = slot.take(&dialer).await?;
    let sql = statement(options, wanted, quoted, literal);
    // The connection goes with this call, whatever becomes of it.
    let read = held.link.stream("START TRANSACTION READ ONLY", sql, cells, &mut pages).await;
    read.map(|()| pages).map_err(|failure| failure.error.while_doing("reading rows"))
}

fn cells(mut row: Row) -> Vec<Cell> {
    let columns = row.columns();
    let cell = |(n, column): (usize, &mysql_async::Column)| match row.take::<Value, _>(n) {
        Some(Value::Int(n)) => Cell::Whole(n),
        Some(Value::UInt(n)) => i64::try_from(n).map_or_else(|_| Cell::Bytes(n.to_string().into_bytes()), Cell::Whole),
        Some(Value::Bytes(bytes)) => of_text(bytes, column.column_type()),
        _ => Cell::Null,
    };
    columns.iter().enumerate().map(cell).collect()
}

/// A value as the server writes it: all of them travel as text.
fn of_text(bytes: Vec<u8>, column: ColumnType) -> Cell {
    use ColumnType::{
        MYSQL_TYPE_DATE, MYSQL_TYPE_DATETIME, MYSQL_TYPE_DATETIME2, MYSQL_TYPE_INT24, MYSQL_TYPE_LONG,
        MYSQL_TYPE_LONGLONG, MYSQL_TYPE_SHORT, MYSQL_TYPE_TIMESTAMP, MYSQL_TYPE_TIMESTAMP2, MYSQL_TYPE_TINY,
    };
    match column {
        MYSQL_TYPE_TINY | MYSQL_TYPE_SHORT | MYSQL_TYPE_INT24 | MYSQL_TYPE_LONG | MYSQL_TYPE_LONGLONG => {
            let number = std::str::from_utf8(&bytes).ok().and_then(|digits| digits.parse().ok());
            number.map_or(Cell::Bytes(bytes), Cell::Whole)
        }
        MYSQL_TYPE_DATE | MYSQL_TYPE_DATETIME | MYSQL_TYPE_DATETIME2 | MYSQL_TYPE_TIMESTAMP | MYSQL_TYPE_TIMESTAMP2 => {
            micros_of(&bytes).map_or(Cell::Null, Cell::Time)
        }
        _ => Cell::Bytes(bytes),
    }
}
