//! Reading many rows as they come: the tables whose ids are compared, and whatever a query names.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::error::{StoreError, StoreErrorKind};
use crate::options::{DatabaseKind, StoreOptions};
use crate::store::StoreResult;

/// Rows of one page.
pub(crate) const PAGE_ROWS: usize = 1_000;
/// Bytes of one page, unless a single row is larger.
pub(crate) const PAGE_BYTES: usize = 1 << 20;
/// Pages that wait to be taken.
const PAGES: usize = 4;

/// A value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    /// NULL.
    Null,
    /// A whole number.
    Whole(i64),
    /// A time, microseconds since 1970-01-01 UTC. One without a zone is taken as UTC.
    Time(i64),
    /// Text, bytes, JSON; other numbers as the server writes them.
    Bytes(Vec<u8>),
}

impl Cell {
    /// As bytes: what an id, a key or a payload is. None: NULL.
    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Null => None,
            Self::Whole(n) => Some(n.to_string().into_bytes()),
            Self::Time(us) => Some(us.to_string().into_bytes()),
            Self::Bytes(bytes) => Some(bytes),
        }
    }

    pub(crate) fn weight(&self) -> usize {
        16 + if let Self::Bytes(bytes) = self { bytes.len() } else { 0 }
    }
}

/// Rows that follow each other.
pub type Page = Vec<Vec<Cell>>;

/// What is read.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// A SELECT of the caller's. It runs in a transaction that may only read.
    Query(String),
    /// The outbox table, also what is scheduled: id, created_at or NULL, topic. Of a status table those that wait.
    Outbox,
    /// As [`Wanted::Outbox`], but of a status table all rows, whatever their status, and those of its archive.
    Kept,
    /// Messages of transactions that have committed: message's id, created_at.
    Transactions,
    /// `inbox_message` of a consumer: id, received_at, `SHARD:POSITION` or what else is there.
    InboxMessage(String),
    /// `inbox` of a consumer: id, processed_at.
    Inbox(String),
}

/// Rows that are being read. Dropping it ends the statement.
#[derive(Debug)]
pub struct Scan {
    pages: mpsc::Receiver<StoreResult<Page>>,
    reading: JoinHandle<()>,
    limit: Duration,
}

impl Drop for Scan {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Scan {
    /// The next rows. None: that was all.
    ///
    /// # Errors
    /// The statement is refused, or has failed in its middle; `Timeout`: nothing came within the limit of a statement.
    pub async fn next(&mut self) -> StoreResult<Option<Page>> {
        match tokio::time::timeout(self.limit, self.pages.recv()).await {
            Ok(page) => page.transpose(),
            Err(_) => Err(StoreError::new(StoreErrorKind::Timeout, format!("no row within {:?}", self.limit))),
        }
    }
}

/// Where pages go.
#[cfg_attr(not(any(feature = "sqlite", feature = "mysql", feature = "postgres")), expect(dead_code))]
pub(crate) struct Pages {
    to: mpsc::Sender<StoreResult<Page>>,
    page: Page,
    bytes: usize,
}

#[cfg_attr(not(any(feature = "sqlite", feature = "mysql", feature = "postgres")), expect(dead_code))]
impl Pages {
    /// Adds a row. Some: a page is full and to be handed on.
    pub(crate) fn add(&mut self, row: Vec<Cell>) -> Option<Page> {
        self.bytes += row.iter().map(Cell::weight).sum::<usize>();
        self.page.push(row);
        let full = self.page.len() >= PAGE_ROWS || self.bytes >= PAGE_BYTES;
        full.then(|| {
            self.bytes = 0;
            std::mem::take(&mut self.page)
        })
    }

    /// Hands a row on, in a task.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) async fn push(&mut self, row: Vec<Cell>) -> StoreResult<()> {
        match self.add(row) {
            Some(page) => self.to.send(Ok(page)).await.map_err(|_| gone()),
            None => Ok(()),
        }
    }

    /// Hands a row on, in a thread.
    #[cfg(feature = "sqlite")]
    pub(crate) fn push_blocking(&mut self, row: Vec<Cell>) -> StoreResult<()> {
        match self.add(row) {
            Some(page) => self.to.blocking_send(Ok(page)).map_err(|_| gone()),
            None => Ok(()),
        }
    }
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
fn gone() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "nobody takes the rows any more")
}

/// Begins to read, over a connection of its own. The limit of a statement holds for the whole of it: give it a long one.
///
/// # Errors
/// The URL cannot be used. Everything else comes with the rows.
pub fn scan(options: StoreOptions, wanted: Wanted) -> StoreResult<Scan> {
    let kind = options.kind()?;
    let limit = options.statement_timeout;
    let (to, pages) = mpsc::channel(PAGES);
    let reading = tokio::spawn(async move {
        let pages = Pages { to: to.clone(), page: Vec::new(), bytes: 0 };
        let result = match kind {
            #[cfg(feature = "sqlite")]
            DatabaseKind::Sqlite => crate::sqlite::scan::read(&options, &wanted, pages).await,
            #[cfg(feature = "mysql")]
            DatabaseKind::MySql => crate::mysql::scan::read(&options, &wanted, pages).await,
            #[cfg(feature = "postgres")]
            DatabaseKind::Postgres => crate::postgres::scan::read(&options, &wanted, pages).await,
            #[allow(unreachable_patterns)]
            kind => {
                drop(pages);
                Err(StoreError::new(StoreErrorKind::Unsupported, format!("{kind} is not in this build")))
            }
        };
        // Where nobody takes it, nobody asks.
        _ = match result {
            Ok(rest) if rest.page.is_empty() => return,
            Ok(rest) => to.send(Ok(rest.page)).await,
            Err(e) => to.send(Err(e)).await,
        };
    });
    Ok(Scan { pages, reading, limit })
}

/// The statement, in a database's way to quote names and text.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn statement(
    options: &StoreOptions,
    wanted: &Wanted,
    quoted: fn(&str) -> String,
    literal: fn(&str) -> String,
) -> String {
    let table = |name: &str| quoted(&options.table(name));
    match wanted {
        Wanted::Query(sql) => sql.trim().trim_end_matches(';').to_owned(),
        Wanted::Outbox | Wanted::Kept if options.status.is_some() => {
            let Some(of) = &options.status else { return String::new() };
            let id = quoted(&of.id);
            let id = match options.kind() {
                // Bytes that are no text are hexadecimal as a message's id; a number's character set is binary too.
                Ok(DatabaseKind::MySql) => format!(
                    "CASE WHEN CHARSET({id}) = 'binary' AND COERCIBILITY({id}) < 5 THEN LOWER(HEX({id})) ELSE CAST({id} AS \
                     CHAR) END"
                ),
                _ => format!("CAST({id} AS TEXT)"),
            };
            let created_at = of.created_at.as_deref().map_or_else(|| "NULL".to_owned(), quoted);
            let rows = |table: &str| {
                let name = table.split('.').map(quoted).collect::<Vec<_>>().join(".");
                format!("SELECT {id}, {created_at}, {} FROM {name}", quoted(&of.topic))
            };
            let of_table = match (wanted, &of.archive) {
                (Wanted::Kept, Some(archive)) => format!("{} UNION ALL {}", rows(&of.table), rows(&archive.table)),
                (Wanted::Kept, None) => rows(&of.table),
                _ => format!("{} WHERE {} = {}", rows(&of.table), quoted(&of.status), literal(&of.pending)),
            };
            match of.migrate {
                true => format!("{of_table} UNION ALL {}", of_outbox(options, quoted)),
                false => of_table,
            }
        }
        Wanted::Outbox | Wanted::Kept => of_outbox(options, quoted),
        Wanted::Transactions => format!(
            "SELECT message_id, created_at FROM {} WHERE state <> 'rolled_back' AND message_id IS NOT NULL",
            table("outbox_transaction")
        ),
        Wanted::InboxMessage(consumer) => format!(
            "SELECT id, received_at, {} FROM {} WHERE consumer = {}",
            quoted("position"),
            table("inbox_message"),
            literal(consumer)
        ),
        Wanted::Inbox(consumer) => {
            format!("SELECT id, processed_at FROM {} WHERE consumer = {}", table("inbox"), literal(consumer))
        }
    }
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
fn of_outbox(options: &StoreOptions, quoted: fn(&str) -> String) -> String {
    let columns = &options.columns;
    let created_at = columns.created_at.as_deref().map_or_else(|| "NULL".to_owned(), quoted);
    let (id, topic) = (quoted(&columns.id), quoted(&columns.topic));
    format!("SELECT {id}, {created_at}, {topic} FROM {}", quoted(&options.outbox()))
}
