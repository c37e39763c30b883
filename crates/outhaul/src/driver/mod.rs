//! What the library needs of a driver, and the drivers that it knows.

use std::error::Error as StdError;
use std::fmt;

use crate::statement::Statement;

#[cfg(feature = "mysql_async")]
mod mysql_async;
#[cfg(any(feature = "sqlx-mysql", feature = "mysql_async"))]
mod mysql_number;
#[cfg(feature = "rusqlite")]
pub(crate) mod rusqlite;
#[cfg(any(feature = "sqlx-sqlite", feature = "rusqlite"))]
mod sqlite_code;
#[cfg(any(feature = "sqlx-postgres", feature = "tokio-postgres"))]
mod sqlstate;
#[cfg(any(feature = "sqlx-mysql", feature = "sqlx-postgres", feature = "sqlx-sqlite"))]
mod sqlx;
#[cfg(feature = "tokio-postgres")]
mod tokio_postgres;

/// Which SQL a database speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// MySQL 8 and MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
    /// SQLite.
    Sqlite,
}

/// A transaction that the application has opened. Implemented for what the drivers call a transaction, and for sqlx's
/// and mysql_async's connections, which a function that is called inside of one often has.
///
/// Implement it for anything else that runs SQL: two methods, each of which sends one statement. Neither may commit or
/// roll back, and a statement that failed must be reported as such.
pub trait Transaction: Send {
    /// The SQL that it takes.
    fn dialect(&self) -> Dialect;

    /// Whether a transaction is open. Where the driver cannot tell: true.
    fn is_open(&self) -> bool {
        true
    }

    /// Runs a statement: how many rows it inserted, changed or deleted.
    fn execute(&mut self, statement: Statement<'_>) -> impl Future<Output = Result<u64, Refusal>> + Send;

    /// Runs a query: the bytes of the first column of each row, text as UTF-8. None: NULL.
    fn fetch(&mut self, statement: Statement<'_>)
    -> impl Future<Output = Result<Vec<Option<Vec<u8>>>, Refusal>> + Send;
}

/// What a database's refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalKind {
    /// A row with this key is there.
    Duplicate,
    /// A deadlock, a serialisation failure, a lock that was not given in time.
    Retry,
    /// A table or column is not there, or of another type.
    Table,
    /// A right is missing.
    Permission,
    /// Anything else.
    Other,
}

/// A statement that failed.
#[derive(Debug)]
pub struct Refusal {
    /// What it means.
    pub kind: RefusalKind,
    /// One line without values.
    line: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl Refusal {
    /// A refusal. The line must not hold values; the driver's own error is kept as the source.
    pub fn new(kind: RefusalKind, line: impl Into<String>, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind, line: line.into(), source: source.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl StdError for Refusal {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self.source.as_ref())
    }
}
