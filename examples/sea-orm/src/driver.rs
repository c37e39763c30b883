//! SeaORM as a driver of the library.

use outhaul::{Dialect, Refusal, RefusalKind, Statement, Transaction, Value};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, QueryResult, SqlErr};

/// A transaction that SeaORM has opened.
pub struct SeaOrm<'a>(pub &'a DatabaseTransaction);

impl SeaOrm<'_> {
    fn statement(&self, statement: Statement<'_>) -> sea_orm::Statement {
        let values = statement.values.into_iter().map(|value| match value {
            Value::Text(text) => text.map(str::to_owned).into(),
            Value::Bytes(bytes) => bytes.to_vec().into(),
            Value::Number(number) => number.into(),
        });
        sea_orm::Statement::from_sql_and_values(self.0.get_database_backend(), statement.sql, values)
    }
}

impl Transaction for SeaOrm<'_> {
    fn dialect(&self) -> Dialect {
        match self.0.get_database_backend() {
            DbBackend::MySql => Dialect::MySql,
            DbBackend::Postgres => Dialect::Postgres,
            DbBackend::Sqlite => Dialect::Sqlite,
        }
    }

    async fn execute(&mut self, statement: Statement<'_>) -> Result<u64, Refusal> {
        let done = self.0.execute(self.statement(statement)).await;
        done.map(|done| done.rows_affected()).map_err(refusal)
    }

    async fn fetch(&mut self, statement: Statement<'_>) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
        let rows = self.0.query_all(self.statement(statement)).await.map_err(refusal)?;
        rows.iter().map(first_column).collect()
    }
}

/// Text or bytes, whichever the column holds.
fn first_column(row: &QueryResult) -> Result<Option<Vec<u8>>, Refusal> {
    let text: Result<Option<String>, DbErr> = row.try_get_by_index(0);
    match text {
        Ok(text) => Ok(text.map(String::into_bytes)),
        Err(_) => row.try_get_by_index(0).map_err(refusal),
    }
}

/// The library goes by one kind alone, a duplicate key; the others make its errors say more.
fn refusal(error: DbErr) -> Refusal {
    let kind = match error.sql_err() {
        Some(SqlErr::UniqueConstraintViolation(_)) => RefusalKind::Duplicate,
        _ => RefusalKind::Other,
    };
    // Without values: the text of the database's own message may hold some.
    Refusal::new(kind, "the database refused a statement", error)
}
