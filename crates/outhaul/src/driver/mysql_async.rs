//! mysql_async's transaction and connection.

use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Params, Row, Value as Parameter};

use super::{Dialect, Refusal, RefusalKind, Transaction};
use crate::statement::{Statement, Value};

fn parameters(values: &[Value<'_>]) -> Params {
    let parameter = |value: &Value<'_>| match value {
        Value::Text(text) => text.map_or(Parameter::NULL, |text| Parameter::Bytes(text.into())),
        Value::Bytes(bytes) => Parameter::Bytes(bytes.to_vec()),
        Value::Number(number) => number.map_or(Parameter::NULL, Parameter::Int),
    };
    Params::Positional(values.iter().map(parameter).collect())
}

/// Runs it, and gives the statement's place in the cache back if the text does not come again.
async fn run<Q: Queryable>(on: &mut Q, statement: &Statement<'_>) -> Result<Vec<Row>, Error> {
    let prepared = on.prep(statement.sql.as_str()).await?;
    let rows = on.exec(&prepared, parameters(&statement.values)).await;
    if !statement.repeats {
        on.close(prepared).await?;
    }
    rows
}

fn first_column(row: Row) -> Option<Vec<u8>> {
    match row.unwrap().into_iter().next() {
        Some(Parameter::Bytes(bytes)) => Some(bytes),
        Some(Parameter::Int(n)) => Some(n.to_string().into_bytes()),
        Some(Parameter::UInt(n)) => Some(n.to_string().into_bytes()),
        _ => None,
    }
}

impl Transaction for mysql_async::Transaction<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    async fn execute(&mut self, statement: Statement<'_>) -> Result<u64, Refusal> {
        run(self, &statement).await.map_err(refusal)?;
        Ok(self.affected_rows())
    }

    async fn fetch(&mut self, statement: Statement<'_>) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
        Ok(run(self, &statement).await.map_err(refusal)?.into_iter().map(first_column).collect())
    }
}

impl Transaction for Conn {
    fn dialect(&self) -> Dialect {
        Dialect::MySql
    }

    /// As the server said with its last answer, if it has. Without autocommit a transaction begins by itself.
    fn is_open(&self) -> bool {
        self.last_ok_packet().is_none_or(|ok| {
            let flags = ok.status_flags();
            flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
                || !flags.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)
        })
    }

    async fn execute(&mut self, statement: Statement<'_>) -> Result<u64, Refusal> {
        run(self, &statement).await.map_err(refusal)?;
        Ok(self.affected_rows())
    }

    async fn fetch(&mut self, statement: Statement<'_>) -> Result<Vec<Option<Vec<u8>>>, Refusal> {
        Ok(run(self, &statement).await.map_err(refusal)?.into_iter().map(first_column).collect())
    }
}

fn refusal(error: Error) -> Refusal {
    let Error::Server(answer) = &error else {
        return Refusal::new(RefusalKind::Other, "the connection or the driver failed", error);
    };
    let (kind, line) = super::mysql_number::refusal(answer.code, &answer.message);
    Refusal::new(kind, line, error)
}
