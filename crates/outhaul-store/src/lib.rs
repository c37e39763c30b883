//! Outhaul's databases.
//!
//! [`Store`] is the contract; `sqlite`, `mysql` (MySQL 8 and MariaDB) and `postgres` keep it, each with the same file
//! names: `schema` (DDL, catalogue), `poll`, `checkpoint`, `log` (chunks, receipts, parked), `acts`, `lease`, `maintain`
//! (prune, merge), `inbox`, `transaction`. All pass the one conformance suite in `outhaul-testkit`.

mod acts;
pub mod error;
pub mod inbox;
pub mod merge;
pub mod options;
#[cfg(any(feature = "mysql", feature = "postgres"))]
mod parked;
pub mod row;
pub mod scan;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod shards;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod status;
mod store;
mod transaction;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
mod version;

#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "sqlite")]
pub mod sqlite;

pub use acts::*;
pub use error::{StoreError, StoreErrorKind};
pub use options::{Archive, ColumnNames, DatabaseKind, InitPlan, PayloadType, StatusTable, StoreOptions, Tls};
pub use row::HEADERS_MAX_BYTES;
pub use store::*;
pub use transaction::*;

use std::sync::Arc;

use outhaul_core::adopted::{Migration, Stage};

/// Opens the store that a URL names. Nothing is asked of the database yet beyond a first connection.
///
/// # Errors
/// The URL names no database of this build ([`StoreErrorKind::Unsupported`]), is malformed, or the first connection
/// fails.
pub async fn open(options: StoreOptions) -> Result<Arc<dyn Store>, StoreError> {
    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    if let Some(table) = options.status.clone() {
        let rows: Arc<dyn status::Table> = match options.kind()? {
            #[cfg(feature = "sqlite")]
            DatabaseKind::Sqlite => Arc::new(sqlite::SqliteStatusTable::open(&options, &table)?),
            #[cfg(feature = "mysql")]
            DatabaseKind::MySql => Arc::new(mysql::MySqlStatusTable::open(&options, &table)?),
            #[cfg(feature = "postgres")]
            DatabaseKind::Postgres => Arc::new(postgres::PostgresStatusTable::open(&options, &table)?),
            #[allow(unreachable_patterns)]
            kind => return Err(StoreError::new(StoreErrorKind::Unsupported, format!("{kind} is not in this build"))),
        };
        // What is moved into the outbox table is taken out of it as in native mode.
        let status = options.status.clone().filter(|table| !table.migrate);
        let inner = Box::pin(open_tables(StoreOptions { status, ..options.clone() })).await?;
        return Ok(Arc::new(status::StatusStore::new(inner, rows, table, &options)));
    }
    Box::pin(open_tables(options)).await
}

/// For a relay that is to serve the outbox table alone: whether rows of a status table are still on their way into it,
/// and would be left behind.
///
/// # Errors
/// [`StoreErrorKind::Migrating`]: they are. Any other: it is not known; tables that are not there hold nothing.
pub async fn refuse_unfinished_migration(store: &dyn Store) -> Result<(), StoreError> {
    let kept = match store.memory(MIGRATION).await {
        Err(e) if e.kind == StoreErrorKind::NotInitialised => return Ok(()),
        kept => kept?,
    };
    match kept.and_then(|text| Migration::decode(&text)).filter(|m| m.stage != Stage::Finished) {
        None => Ok(()),
        Some(Migration { table, .. }) => {
            let what = format!("rows of table {table} are still being moved into the outbox table");
            Err(StoreError::new(StoreErrorKind::Migrating, what))
        }
    }
}

async fn open_tables(options: StoreOptions) -> Result<Arc<dyn Store>, StoreError> {
    match options.kind()? {
        #[cfg(feature = "sqlite")]
        DatabaseKind::Sqlite => Ok(Arc::new(sqlite::SqliteStore::open(options).await?)),
        #[cfg(feature = "mysql")]
        DatabaseKind::MySql => Ok(Arc::new(mysql::MySqlStore::open(options).await?)),
        #[cfg(feature = "postgres")]
        DatabaseKind::Postgres => Ok(Arc::new(postgres::PostgresStore::open(options).await?)),
        #[allow(unreachable_patterns)]
        kind => Err(StoreError::new(StoreErrorKind::Unsupported, format!("{kind} is not in this build"))),
    }
}
