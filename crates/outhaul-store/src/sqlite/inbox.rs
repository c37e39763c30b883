//! The inbox of a consumer that keeps a SQLite database.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use rusqlite::{Connection, MAIN_DB, Transaction, params};

use super::names::{NOW_US, path_of, quoted};
use super::refusal::refusal;
use super::session::{Access, Session};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{Inbox, InboxMessage, InboxOutcome};
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// The `inbox_message` table of a SQLite database.
pub struct SqliteInbox {
    tables: Arc<Tables>,
    writer: Session,
}

struct Tables {
    inbox: String,
    message: String,
}

/// The columns of `inbox_message` that a delivery fills.
const FILLED: [&str; 8] = ["consumer", "id", "topic", "msg_key", "headers", "payload", "position", "received_at"];

impl SqliteInbox {
    /// Opens the database that the URL names. The file need not exist yet: `init` makes it. There is one connection:
    /// writers are serial in SQLite.
    ///
    /// # Errors
    /// `Configuration`: the URL names no file.
    pub async fn open(options: StoreOptions) -> StoreResult<Self> {
        let path = path_of(&options)?;
        let tables =
            Tables { inbox: quoted(&options.table("inbox")), message: quoted(&options.table("inbox_message")) };
        Ok(Self { tables: Arc::new(tables), writer: Session::new(&path, Access::Write, &options, "outhaul-inbox") })
    }
}

impl Tables {
    fn ddl(&self) -> [String; 2] {
        let inbox = format!(
            "CREATE TABLE IF NOT EXISTS {} (
  consumer TEXT NOT NULL CHECK (length(consumer) <= 255),
  id TEXT NOT NULL CHECK (length(id) <= 64),
  processed_at INTEGER NOT NULL DEFAULT {NOW_US},
  result BLOB,
  PRIMARY KEY (consumer, id)
)",
            self.inbox
        );
        let message = format!(
            "CREATE TABLE IF NOT EXISTS {} (
  consumer TEXT NOT NULL CHECK (length(consumer) <= 255),
  id TEXT NOT NULL CHECK (length(id) <= 64),
  topic TEXT NOT NULL CHECK (length(topic) <= 255),
  msg_key TEXT CHECK (length(msg_key) <= 255),
  headers TEXT,
  payload BLOB NOT NULL,
  position TEXT NOT NULL,
  received_at INTEGER NOT NULL DEFAULT {NOW_US},
  claimed_by TEXT,
  claimed_until INTEGER,
  attempts INTEGER NOT NULL DEFAULT 0,
  done_at INTEGER,
  last_error TEXT,
  PRIMARY KEY (consumer, id)
)",
            self.message
        );
        [inbox, message]
    }

    fn inspect(&self, connection: &Connection) -> StoreResult<()> {
        if connection.is_readonly(MAIN_DB).map_err(refusal)? {
            return Err(StoreError::new(StoreErrorKind::ReadOnly, "the database file cannot be written"));
        }
        let sql = format!("SELECT {} FROM {} LIMIT 0", FILLED.join(", "), self.message);
        connection.prepare(&sql).map_err(refusal)?;
        Ok(())
    }

    fn deliver(
        &self,
        tx: &Transaction<'_>,
        consumer: &str,
        messages: &[InboxMessage],
    ) -> StoreResult<Vec<InboxOutcome>> {
        let sql = format!(
            "INSERT INTO {} ({}) VALUES (?, ?, ?, ?, ?, ?, ?, {NOW_US}) ON CONFLICT (consumer, id) DO NOTHING",
            self.message,
            FILLED.join(", ")
        );
        let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
        let mut refused_keys: HashSet<&str> = HashSet::new();
        let mut outcomes = Vec::with_capacity(messages.len());
        for m in messages {
            if m.key.as_deref().is_some_and(|key| refused_keys.contains(key)) {
                outcomes.push(InboxOutcome::Behind);
                continue;
            }
            let values = params![consumer, m.id, m.topic, m.key, m.headers, &m.payload[..], m.position];
            // A statement that fails by itself undoes itself alone, the transaction goes on.
            outcomes.push(match statement.execute(values) {
                Ok(0) => InboxOutcome::Duplicate,
                Ok(_) => InboxOutcome::Stored,
                Err(error) => {
                    refused_keys.extend(m.key.as_deref());
                    InboxOutcome::Refused(refused(error)?)
                }
            });
        }
        Ok(outcomes)
    }
}

/// Why the table refuses a message; any other error is one of the whole batch.
fn refused(error: rusqlite::Error) -> StoreResult<String> {
    use rusqlite::ErrorCode::{ConstraintViolation, TooBig, TypeMismatch};
    match error.sqlite_error_code() {
        Some(ConstraintViolation | TooBig | TypeMismatch) => Ok(error.to_string()),
        _ => Err(refusal(error)),
    }
}

#[async_trait]
impl Inbox for SqliteInbox {
    fn ddl(&self) -> String {
        let [inbox, message] = self.tables.ddl();
        format!(
            "-- ids that a consumer has processed, written in the transaction of the effect\n{inbox};\n\n\
             -- messages delivered by the relay\n{message};\n"
        )
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.writer.create_file().await?;
        let tables = Arc::clone(&self.tables);
        self.writer
            .write(move |tx| tables.ddl().iter().try_for_each(|sql| tx.execute_batch(sql)).map_err(refusal))
            .await
    }

    async fn inspect(&self) -> Result<(), StoreError> {
        let tables = Arc::clone(&self.tables);
        self.writer.call(move |connection, _| tables.inspect(connection)).await
    }

    async fn deliver(
        &self,
        _lane: usize,
        consumer: &str,
        messages: &[InboxMessage],
    ) -> Result<Vec<InboxOutcome>, StoreError> {
        if messages.is_empty() {
            return Ok(vec![]);
        }
        let (tables, consumer, messages) = (Arc::clone(&self.tables), consumer.to_owned(), messages.to_vec());
        self.writer.write(move |tx| tables.deliver(tx, &consumer, &messages)).await
    }

    async fn close(&self) {
        self.writer.close().await;
    }
}
