//! Reading many rows as they come.

use rusqlite::types::ValueRef;

use super::names::{path_of, quoted};
use super::refusal::refusal;
use super::session::{Access, Session};
use crate::options::StoreOptions;
use crate::scan::{Cell, Pages, Wanted, statement};
use crate::store::StoreResult;

fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Reads all rows, on a connection that refuses to write. Gives the pages back, with the last rows.
pub(crate) async fn read(options: &StoreOptions, wanted: &Wanted, mut pages: Pages) -> StoreResult<Pages> {
    let session = Session::new(&path_of(options)?, Access::Read, options, "outhaul-scan");
    let sql = statement(options, wanted, quoted, literal);
    let read = session
        .read(move |tx| {
            let mut statement = tx.prepare(&sql).map_err(refusal)?;
            let columns = statement.column_count();
            let mut rows = statement.query([]).map_err(refusal)?;
            while let Some(row) = rows.next().map_err(refusal)? {
                let cell = |n| {
                    Ok(match row.get_ref(n).map_err(refusal)? {
                        ValueRef::Null => Cell::Null,
                        ValueRef::Integer(n) => Cell::Whole(n),
                        ValueRef::Real(x) => Cell::Bytes(x.to_string().into_bytes()),
                        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Cell::Bytes(bytes.to_vec()),
                    })
                };
                pages.push_blocking((0..columns).map(cell).collect::<StoreResult<_>>()?)?;
            }
            Ok(pages)
        })
        .await;
    session.close().await;
    read.map_err(|e| e.while_doing("reading rows"))
}
