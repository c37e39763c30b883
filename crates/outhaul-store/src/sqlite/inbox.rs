//! The inbox of a consumer that keeps a SQLite database.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, MAIN_DB, Transaction, params};

use super::names::{NOW_US, path_of, quoted};
use super::refusal::refusal;
use super::session::{Access, Session};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{
    COUNT_MAX, Inbox, InboxCounts, InboxMessage, InboxOutcome, InboxPruned, PRUNE_ROWS, Place, Step, Taken, age_seconds,
};
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
    queue: String,
    /// Names without quotes: of `inbox_message`, and of what it is made anew as.
    message_name: String,
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
        let table = |name| quoted(&options.table(name));
        let tables = Tables {
            inbox: table("inbox"),
            message: table("inbox_message"),
            queue: table("inbox_queue"),
            message_name: options.table("inbox_message"),
        };
        Ok(Self { tables: Arc::new(tables), writer: Session::new(&path, Access::Write, &options, "outhaul-inbox") })
    }
}

impl Tables {
    fn ddl(&self) -> [String; 5] {
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
        let message = Self::message_ddl(&self.message);
        let queue = format!(
            "CREATE TABLE IF NOT EXISTS {} (
  consumer TEXT NOT NULL CHECK (length(consumer) <= 255),
  source TEXT NOT NULL CHECK (length(source) <= 512),
  next_offset INTEGER NOT NULL,
  stored_at_ms INTEGER NOT NULL DEFAULT 0,
  updated_at INTEGER NOT NULL DEFAULT {NOW_US},
  PRIMARY KEY (consumer, source)
)",
            self.queue
        );
        let index = |end: &str, columns: &str, what: &str| {
            let name = quoted(&format!("{}_{end}", self.message_name));
            format!("CREATE INDEX IF NOT EXISTS {name} ON {} ({columns}) WHERE {what}", self.message)
        };
        let open = index("open", "consumer, seq", "done_at IS NULL AND dead_at IS NULL");
        let of_key = index("open_of_key", "consumer, msg_key, seq", "done_at IS NULL");
        [inbox, message, queue, open, of_key]
    }

    fn message_ddl(name: &str) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {name} (
  seq INTEGER PRIMARY KEY AUTOINCREMENT,
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
  dead_at INTEGER,
  last_error TEXT,
  UNIQUE (consumer, id)
)"
        )
    }

    fn init(&self, tx: &Transaction<'_>) -> StoreResult<()> {
        let [inbox, message, queue, open, of_key] = self.ddl();
        for sql in [inbox, message, queue] {
            tx.execute_batch(&sql).map_err(refusal)?;
        }
        // One of an earlier version is made anew, its rows numbered in the order in which they came.
        if tx.prepare(&format!("SELECT seq, dead_at FROM {} LIMIT 0", self.message)).is_err() {
            let new = quoted(&format!("{}_new", self.message_name));
            let columns = "consumer, id, topic, msg_key, headers, payload, position, received_at, claimed_by, \
                           claimed_until, attempts, done_at, last_error";
            let sql = format!(
                "{}; INSERT INTO {new} ({columns}) SELECT {columns} FROM {old} ORDER BY received_at, \
                 CAST(substr(position, instr(position, ':') + 1) AS INTEGER), rowid; DROP TABLE {old}; \
                 ALTER TABLE {new} RENAME TO {old}",
                Self::message_ddl(&new),
                old = self.message
            );
            tx.execute_batch(&sql).map_err(refusal)?;
        }
        [open, of_key].iter().try_for_each(|sql| tx.execute_batch(sql)).map_err(refusal)
    }

    fn take(&self, tx: &Transaction<'_>, consumer: &str, step: &Step) -> StoreResult<Taken> {
        let sql = format!(
            "UPDATE {} SET next_offset = ?, stored_at_ms = ?, updated_at = {NOW_US} \
             WHERE consumer = ? AND source = ? AND next_offset = ?",
            self.queue
        );
        let values = params![step.after, step.stored_at_ms, consumer, step.source, step.before];
        if tx.prepare_cached(&sql).map_err(refusal)?.execute(values).map_err(refusal)? != 1 {
            return Ok(Taken::Elsewhere);
        }
        let sql = format!(
            "INSERT INTO {} ({}, dead_at, last_error) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, {NOW_US}, \
             CASE WHEN ?8 IS NOT NULL THEN {NOW_US} END, ?8) ON CONFLICT (consumer, id) DO NOTHING",
            self.message,
            FILLED.join(", ")
        );
        let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
        let mut new = 0;
        for arrival in &step.arrivals {
            let m = &arrival.message;
            let values = params![consumer, m.id, m.topic, m.key, m.headers, &m.payload[..], m.position, arrival.dead];
            match statement.execute(values) {
                Ok(rows) => new += rows as u64,
                Err(error) => return refused(error).map(Taken::Refused),
            }
        }
        Ok(Taken::Stored { new })
    }

    fn counts(&self, tx: &Connection, consumer: &str) -> StoreResult<InboxCounts> {
        let open = "consumer = ?1 AND done_at IS NULL AND dead_at IS NULL";
        let sql = format!(
            "SELECT (SELECT count(*) FROM (SELECT 1 FROM {t} WHERE {open} LIMIT {COUNT_MAX})), \
             (SELECT count(*) FROM (SELECT 1 FROM {t} WHERE consumer = ?1 AND done_at IS NULL AND dead_at IS NOT NULL \
               LIMIT {COUNT_MAX})), \
             coalesce((SELECT max(0, {NOW_US} - received_at) / 1000000 FROM {t} WHERE {open} ORDER BY seq LIMIT 1), 0)",
            t = self.message
        );
        tx.query_row(&sql, params![consumer], |row| {
            let number = |column| row.get::<_, i64>(column).map(i64::unsigned_abs);
            Ok(InboxCounts { waiting: number(0)?, dead: number(1)?, oldest_seconds: number(2)? })
        })
        .map_err(refusal)
    }

    /// Along the table in the order in which rows came, from behind `from`. Once all of a step came too late to be old,
    /// what is behind it did too.
    fn prune(&self, tx: &Transaction<'_>, consumer: &str, older_than: Duration, from: i64) -> StoreResult<InboxPruned> {
        let before = format!("{NOW_US} - {} * 1000000", age_seconds(older_than));
        let look = format!(
            "SELECT count(*), max(seq), max(received_at < {before}) FROM \
             (SELECT seq, received_at FROM {} WHERE seq > ? ORDER BY seq LIMIT {PRUNE_ROWS})",
            self.message
        );
        let row = tx.query_row(&look, params![from], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let (looked_at, last, some_old): (i64, Option<i64>, Option<bool>) = row.map_err(refusal)?;
        let delete =
            format!("DELETE FROM {} WHERE seq > ? AND seq <= ? AND consumer = ? AND done_at < {before}", self.message);
        let deleted = tx.execute(&delete, params![from, last.unwrap_or(from), consumer]).map_err(refusal)?;
        let whole = usize::try_from(looked_at).is_ok_and(|n| n >= PRUNE_ROWS);
        let next = last.filter(|_| whole && some_old == Some(true)).map(|last| last.to_string());
        Ok(InboxPruned { deleted: deleted as u64, next })
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

/// What marks the error by which a refused step is rolled back.
const REFUSED: &str = "refused: ";

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
        let [inbox, message, queue, open, of_key] = self.tables.ddl();
        format!(
            "-- ids that a consumer has processed, written in the transaction of the effect\n{inbox};\n\n\
             -- messages delivered by the relay, or read by `outhaul inbox`\n{message};\n{open};\n{of_key};\n\n\
             -- how far `outhaul inbox` has read each queue\n{queue};\n"
        )
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.writer.create_file().await?;
        let tables = Arc::clone(&self.tables);
        self.writer.write(move |tx| tables.init(tx)).await
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

    async fn inspect_places(&self) -> Result<(), StoreError> {
        self.inspect().await?;
        let tables = Arc::clone(&self.tables);
        self.writer
            .call(move |connection, _| {
                let (message, queue) = (&tables.message, &tables.queue);
                for sql in [
                    format!("SELECT seq, dead_at FROM {message} LIMIT 0"),
                    format!("SELECT consumer, source, next_offset, stored_at_ms FROM {queue} LIMIT 0"),
                ] {
                    // Run, and not only prepared: that alone does not see what others have changed.
                    connection
                        .execute_batch(&sql)
                        .map_err(|e| StoreError::new(StoreErrorKind::NotInitialised, refusal(e).message))?;
                }
                Ok(())
            })
            .await
    }

    async fn places(&self, consumer: &str) -> Result<Vec<Place>, StoreError> {
        let (tables, consumer) = (Arc::clone(&self.tables), consumer.to_owned());
        self.writer
            .call(move |connection, _| {
                let sql = format!("SELECT source, next_offset, stored_at_ms FROM {} WHERE consumer = ?", tables.queue);
                let mut statement = connection.prepare_cached(&sql).map_err(refusal)?;
                let rows = statement.query_map(params![consumer], |row| {
                    Ok(Place { source: row.get(0)?, next_offset: row.get(1)?, stored_at_ms: row.get(2)? })
                });
                rows.and_then(Iterator::collect).map_err(refusal)
            })
            .await
    }

    async fn begin(&self, consumer: &str, places: &[Place]) -> Result<(), StoreError> {
        let (tables, consumer, places) = (Arc::clone(&self.tables), consumer.to_owned(), places.to_vec());
        self.writer
            .write(move |tx| {
                let sql = format!(
                    "INSERT INTO {} (consumer, source, next_offset, stored_at_ms) VALUES (?, ?, ?, ?) \
                     ON CONFLICT (consumer, source) DO NOTHING",
                    tables.queue
                );
                for place in &places {
                    let values = params![consumer, place.source, place.next_offset, place.stored_at_ms];
                    tx.execute(&sql, values).map_err(refusal)?;
                }
                Ok(())
            })
            .await
    }

    async fn take(&self, _lane: usize, consumer: &str, step: &Step) -> Result<Taken, StoreError> {
        let (tables, consumer, step) = (Arc::clone(&self.tables), consumer.to_owned(), step.clone());
        // Kept aside: what is refused, or elsewhere, must not be committed in part.
        let result = self
            .writer
            .write(move |tx| match tables.take(tx, &consumer, &step)? {
                Taken::Refused(why) => Err(StoreError::new(StoreErrorKind::TooLarge, format!("{REFUSED}{why}"))),
                taken => Ok(taken),
            })
            .await;
        match result {
            Err(e) if e.message.starts_with(REFUSED) => {
                Ok(Taken::Refused(e.message.trim_start_matches(REFUSED).to_owned()))
            }
            result => result.map_err(|e| e.while_doing("storing into the inbox")),
        }
    }

    async fn counts(&self, consumer: &str) -> Result<InboxCounts, StoreError> {
        let (tables, consumer) = (Arc::clone(&self.tables), consumer.to_owned());
        self.writer.call(move |connection, _| tables.counts(connection, &consumer)).await
    }

    async fn prune(&self, consumer: &str, older_than: Duration, from: Option<&str>) -> Result<InboxPruned, StoreError> {
        let from = from.and_then(|seq| seq.parse().ok()).unwrap_or_default();
        let (tables, consumer) = (Arc::clone(&self.tables), consumer.to_owned());
        let result = self.writer.write(move |tx| tables.prune(tx, &consumer, older_than, from)).await;
        result.map_err(|e| e.while_doing("pruning the inbox"))
    }

    async fn close(&self) {
        self.writer.close().await;
    }
}
