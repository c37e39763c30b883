//! One open connection, spoken to in plain SQL.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use tokio::task::JoinHandle;
use tokio_postgres::SimpleQueryMessage;

use super::Flavour;

/// Limit of connecting.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Limit of a statement, unless the server's own is shorter. Long enough for a test's bulk insert.
const STATEMENT_LIMIT: Duration = Duration::from_secs(120);

type Rows = Vec<Vec<Option<String>>>;

/// An open connection to a database. Closed when dropped; an open transaction is rolled back.
pub struct Session {
    client: Client,
}

enum Client {
    Sqlite(Arc<Mutex<rusqlite::Connection>>),
    MySql(Box<mysql_async::Conn>),
    Postgres(tokio_postgres::Client, JoinHandle<()>),
}

impl Session {
    /// Connects.
    ///
    /// # Errors
    /// What the client or the server said. Nothing of the URL is in it.
    pub async fn open(flavour: Flavour, url: &str) -> Result<Self, String> {
        let opening = async {
            match flavour {
                Flavour::Sqlite => open_sqlite(url.trim_start_matches("sqlite:")).await,
                Flavour::MariaDb | Flavour::MySql => {
                    let options = mysql_async::Opts::from_url(url).map_err(|error| error.to_string())?;
                    let client = mysql_async::Conn::new(options).await.map_err(|error| error.to_string())?;
                    Ok(Client::MySql(Box::new(client)))
                }
                Flavour::Postgres => {
                    let (client, connection) =
                        tokio_postgres::connect(url, tokio_postgres::NoTls).await.map_err(postgres_error)?;
                    Ok(Client::Postgres(client, tokio::spawn(async { _ = connection.await })))
                }
            }
        };
        let client =
            tokio::time::timeout(CONNECT_LIMIT, opening).await.map_err(|_| "no answer to connecting".to_owned())??;
        Ok(Self { client })
    }

    /// Runs statements, several with `;` between them: how many rows the last one changed.
    ///
    /// # Panics
    /// One of them fails.
    pub async fn execute(&mut self, sql: &str) -> u64 {
        self.try_execute(sql).await.unwrap_or_else(|error| panic!("{error}\nin: {}", shortened(sql)))
    }

    /// Runs a query: all its rows, as the server writes values as text (PostgreSQL: bytes as `\x…`).
    ///
    /// # Panics
    /// It fails.
    pub async fn query(&mut self, sql: &str) -> Rows {
        self.try_query(sql).await.unwrap_or_else(|error| panic!("{error}\nin: {}", shortened(sql)))
    }

    /// The first column of the first row, as a number.
    ///
    /// # Panics
    /// There is none.
    pub async fn query_u64(&mut self, sql: &str) -> u64 {
        let text = self.query_text(sql).await;
        text.parse().unwrap_or_else(|_| panic!("not a number: {text}\nin: {}", shortened(sql)))
    }

    /// The first column of the first row, as text.
    ///
    /// # Panics
    /// There is none, or it is NULL.
    pub async fn query_text(&mut self, sql: &str) -> String {
        let first = self.query(sql).await.into_iter().next().and_then(|row| row.into_iter().next());
        first.flatten().unwrap_or_else(|| panic!("no row, or NULL\nin: {}", shortened(sql)))
    }

    /// [`execute`](Self::execute) for statements that may fail.
    ///
    /// # Errors
    /// What the server said, with its number or SQLSTATE.
    pub async fn try_execute(&mut self, sql: &str) -> Result<u64, String> {
        limited(async {
            match &mut self.client {
                Client::Sqlite(connection) => {
                    on_sqlite(connection, sql, |connection, sql| {
                        connection.execute_batch(sql)?;
                        Ok(connection.changes())
                    })
                    .await
                }
                Client::MySql(connection) => {
                    let mut result = connection.query_iter(sql).await.map_err(|error| error.to_string())?;
                    let mut changed = result.affected_rows();
                    while !result.is_empty() {
                        changed = result.affected_rows();
                        result.for_each(drop).await.map_err(|error| error.to_string())?;
                    }
                    Ok(changed)
                }
                Client::Postgres(client, _) => {
                    let messages = client.simple_query(sql).await.map_err(postgres_error)?;
                    let changed = messages.iter().rev().find_map(|message| match message {
                        SimpleQueryMessage::CommandComplete(changed) => Some(*changed),
                        _ => None,
                    });
                    Ok(changed.unwrap_or(0))
                }
            }
        })
        .await
    }

    /// [`query`](Self::query) for one that may fail.
    ///
    /// # Errors
    /// What the server said, with its number or SQLSTATE.
    pub async fn try_query(&mut self, sql: &str) -> Result<Rows, String> {
        limited(async {
            match &mut self.client {
                Client::Sqlite(connection) => on_sqlite(connection, sql, sqlite_rows).await,
                Client::MySql(connection) => {
                    let rows: Vec<mysql_async::Row> = connection.query(sql).await.map_err(|error| error.to_string())?;
                    Ok(rows.into_iter().map(|row| row.unwrap().into_iter().map(mysql_text).collect()).collect())
                }
                Client::Postgres(client, _) => {
                    let messages = client.simple_query(sql).await.map_err(postgres_error)?;
                    let rows = messages.iter().filter_map(|message| match message {
                        SimpleQueryMessage::Row(row) => {
                            Some((0..row.len()).map(|column| row.get(column).map(str::to_owned)).collect())
                        }
                        _ => None,
                    });
                    Ok(rows.collect())
                }
            }
        })
        .await
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Client::Postgres(_, task) = &self.client {
            task.abort(); // closes the socket at once, whatever the server is doing
        }
    }
}

async fn limited<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    tokio::time::timeout(STATEMENT_LIMIT, work).await.map_err(|_| "the statement's time limit ran out".to_owned())?
}

fn shortened(sql: &str) -> String {
    sql.chars().take(300).collect()
}

fn postgres_error(error: tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(server) => format!("{} {}", server.code().code(), server.message()),
        None => error.to_string(),
    }
}

fn mysql_text(value: mysql_async::Value) -> Option<String> {
    match value {
        mysql_async::Value::NULL => None,
        mysql_async::Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        other => Some(other.as_sql(true).trim_matches('\'').to_owned()),
    }
}

async fn open_sqlite(path: &str) -> Result<Client, String> {
    let path = path.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        let connection = rusqlite::Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        Ok(connection)
    });
    let opened: rusqlite::Result<_> = opened.await.map_err(|error| error.to_string())?;
    Ok(Client::Sqlite(Arc::new(Mutex::new(opened.map_err(|error| error.to_string())?))))
}

/// SQLite may wait for a lock, so that it works outside the runtime's threads.
async fn on_sqlite<T: Send + 'static>(
    connection: &Arc<Mutex<rusqlite::Connection>>,
    sql: &str,
    work: impl FnOnce(&rusqlite::Connection, &str) -> rusqlite::Result<T> + Send + 'static,
) -> Result<T, String> {
    let (connection, sql) = (Arc::clone(connection), sql.to_owned());
    let done =
        tokio::task::spawn_blocking(move || work(&connection.lock().unwrap_or_else(PoisonError::into_inner), &sql));
    done.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

fn sqlite_rows(connection: &rusqlite::Connection, sql: &str) -> rusqlite::Result<Rows> {
    use rusqlite::types::ValueRef;
    let mut statement = connection.prepare(sql)?;
    let columns = statement.column_count();
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let text = |column| {
            Ok(match row.get_ref(column)? {
                ValueRef::Null => None,
                ValueRef::Integer(number) => Some(number.to_string()),
                ValueRef::Real(number) => Some(number.to_string()),
                ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            })
        };
        all.push((0..columns).map(text).collect::<rusqlite::Result<_>>()?);
    }
    Ok(all)
}
