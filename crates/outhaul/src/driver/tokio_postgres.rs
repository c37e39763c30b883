//! tokio-postgres' transaction. Statements are not prepared but sent in one go with their types, which costs one way to
//! the server and back, and works behind a pooler.

use tokio_postgres::Error;
use tokio_postgres::types::{FromSql, ToSql, Type};

use super::{Dialect, Refusal, RefusalKind, Transaction};
use crate::statement::{Statement, Value};

type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

fn parameters<'a>(values: &'a [Value<'a>]) -> Vec<Parameter<'a>> {
    let parameter = |value: &'a Value<'a>| -> Parameter<'a> {
        match value {
            Value::Text(text) => (text, Type::TEXT),
            Value::Bytes(bytes) => (bytes, Type::BYTEA),
            Value::Number(number) => (number, Type::INT8),
        }
    };
    values.iter().map(parameter).collect()
}

impl Transaction for tokio_postgres::Transaction<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    async fn execute(&mut self, statement: Statement<'_>) -> Result<u64, Refusal> {
        self.execute_typed(&statement.sql, &parameters(&statement.values)).await.map_err(refusal)
    }

    async fn fetch(&mut self, statement: Statement<'_>) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
        let rows = self.query_typed(&statement.sql, &parameters(&statement.values)).await.map_err(refusal)?;
        rows.iter().map(|row| Ok(row.try_get::<_, Option<Raw>>(0).map_err(refusal)?.map(|raw| raw.0))).collect()
    }
}

/// The bytes of a value, whatever its type.
struct Raw(Vec<u8>);

impl FromSql<'_> for Raw {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Self(raw.to_vec()))
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

fn refusal(error: Error) -> Refusal {
    let Some(answer) = error.as_db_error() else {
        return Refusal::new(RefusalKind::Other, "the connection or the driver failed", error);
    };
    let (kind, line) = super::sqlstate::refusal(answer.code().code(), answer.message());
    Refusal::new(kind, line, error)
}
