//! sqlx's transactions and connections.

use sqlx::{AssertSqlSafe, Connection, Error, Row};

use super::{Dialect, Refusal, RefusalKind, Transaction};
use crate::statement::{Statement, Value};

macro_rules! implement {
    ($database:ty, $connection:ty, $dialect:ident, $refusal:path) => {
        impl Transaction for $connection {
            fn dialect(&self) -> Dialect {
                Dialect::$dialect
            }

            /// sqlx counts the transactions that were begun with its own calls.
            fn is_open(&self) -> bool {
                self.is_in_transaction()
            }

            async fn execute(&mut self, statement: Statement<'_>) -> Result<u64, Refusal> {
                let mut query = sqlx::query::<$database>(AssertSqlSafe(statement.sql)).persistent(statement.repeats);
                for value in &statement.values {
                    query = match value {
                        Value::Text(text) => query.bind(*text),
                        Value::Bytes(bytes) => query.bind(*bytes),
                        Value::Number(number) => query.bind(*number),
                    };
                }
                query.execute(self).await.map(|done| done.rows_affected()).map_err($refusal)
            }

            async fn fetch(&mut self, statement: Statement<'_>) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
                let mut query = sqlx::query::<$database>(AssertSqlSafe(statement.sql)).persistent(statement.repeats);
                for value in &statement.values {
                    query = match value {
                        Value::Text(text) => query.bind(*text),
                        Value::Bytes(bytes) => query.bind(*bytes),
                        Value::Number(number) => query.bind(*number),
                    };
                }
                let rows = query.fetch_all(self).await.map_err($refusal)?;
                rows.iter().map(|row| row.try_get_unchecked(0).map_err($refusal)).collect()
            }
        }

        impl Transaction for sqlx::Transaction<'_, $database> {
            fn dialect(&self) -> Dialect {
                Dialect::$dialect
            }

            async fn execute(&mut self, statement: Statement<'_>) -> Result<u64, Refusal> {
                Transaction::execute(&mut **self, statement).await
            }

            async fn fetch(&mut self, statement: Statement<'_>) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
                Transaction::fetch(&mut **self, statement).await
            }
        }
    };
}

/// Everything but an answer of the server: a connection that was lost, a value that cannot be read.
fn of_client(error: Error) -> Refusal {
    Refusal::new(RefusalKind::Other, "the connection or the driver failed", error)
}

#[cfg(feature = "sqlx-mysql")]
implement!(sqlx::MySql, sqlx::MySqlConnection, MySql, mysql);

#[cfg(feature = "sqlx-mysql")]
fn mysql(error: Error) -> Refusal {
    use sqlx::mysql::MySqlDatabaseError;
    let answer = error.as_database_error().and_then(|e| e.try_downcast_ref::<MySqlDatabaseError>());
    let Some(answer) = answer else { return of_client(error) };
    let (kind, line) = super::mysql_number::refusal(answer.number(), answer.message());
    Refusal::new(kind, line, error)
}

#[cfg(feature = "sqlx-postgres")]
implement!(sqlx::Postgres, sqlx::PgConnection, Postgres, postgres);

#[cfg(feature = "sqlx-postgres")]
fn postgres(error: Error) -> Refusal {
    use sqlx::postgres::PgDatabaseError;
    let answer = error.as_database_error().and_then(|e| e.try_downcast_ref::<PgDatabaseError>());
    let Some(answer) = answer else { return of_client(error) };
    let (kind, line) = super::sqlstate::refusal(answer.code(), answer.message());
    Refusal::new(kind, line, error)
}

#[cfg(feature = "sqlx-sqlite")]
implement!(sqlx::Sqlite, sqlx::SqliteConnection, Sqlite, sqlite);

#[cfg(feature = "sqlx-sqlite")]
fn sqlite(error: Error) -> Refusal {
    let Some(answer) = error.as_database_error() else { return of_client(error) };
    let code = answer.code().and_then(|code| code.parse().ok()).unwrap_or_default();
    let (kind, line) = super::sqlite_code::refusal(code, answer.message());
    Refusal::new(kind, line, error)
}
