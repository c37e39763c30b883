//! Names of tables and columns, quoted, and expressions that several statements use.

use std::path::PathBuf;

use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// The clock: microseconds since 1970-01-01 UTC. `julianday` is in every SQLite, `unixepoch` is not, and as a DEFAULT
/// this is evaluated by the application's own library. It counts milliseconds.
pub(super) const NOW_US: &str = "(CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000)";

/// Names of tables and columns.
pub(super) struct Names {
    pub(super) options: StoreOptions,
    pub(super) outbox: String,
    pub(super) log: String,
    pub(super) receipt: String,
    pub(super) parked: String,
    pub(super) lease: String,
    pub(super) instance: String,
    pub(super) meta: String,
    pub(super) act: String,
    pub(super) pause: String,
    pub(super) transaction: String,
    pub(super) seq: String,
    pub(super) id: String,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) headers: Option<String>,
    pub(super) payload: String,
    pub(super) created_at: Option<String>,
    pub(super) available_at: Option<String>,
}

impl Names {
    pub(super) fn new(options: StoreOptions) -> Self {
        let table = |name: &str| quoted(&options.table(name));
        let columns = &options.columns;
        Self {
            outbox: quoted(&options.outbox()),
            log: table("outbox_log"),
            receipt: table("outbox_receipt"),
            parked: table("outbox_parked"),
            lease: table("outbox_lease"),
            instance: table("outbox_instance"),
            meta: table("outbox_meta"),
            act: table("outbox_act"),
            pause: table("outbox_pause"),
            transaction: table("outbox_transaction"),
            seq: quoted(&columns.seq),
            id: quoted(&columns.id),
            topic: quoted(&columns.topic),
            key: columns.key.as_deref().map(quoted),
            headers: columns.headers.as_deref().map(quoted),
            payload: quoted(&columns.payload),
            created_at: columns.created_at.as_deref().map(quoted),
            available_at: columns.available_at.as_deref().map(quoted),
            options,
        }
    }

    /// `created_at` of an outbox row in microseconds; the present where there is none.
    pub(super) fn created_at_us(&self) -> String {
        let read = self.created_at.as_deref().map(micros);
        read.map_or_else(|| NOW_US.to_owned(), |read| format!("coalesce({read}, {NOW_US})"))
    }

    /// `available_at` of an outbox row in microseconds. None: rows cannot be scheduled.
    pub(super) fn available_at_us(&self) -> Option<String> {
        self.available_at.as_deref().map(micros)
    }

    /// Whether an outbox row is scheduled: 1 or 0. None: rows cannot be.
    pub(super) fn scheduled(&self) -> Option<String> {
        let at = self.available_at_us()?;
        let created = self.created_at.as_deref().map_or_else(|| "NULL".to_owned(), micros);
        Some(format!("coalesce(({at}) > ({created}), ({at}) IS NOT NULL)"))
    }
}

/// A time in microseconds from a column that holds microseconds, or text that SQLite knows as a time.
pub(super) fn micros(column: &str) -> String {
    format!(
        "CASE typeof({column}) WHEN 'text' THEN CAST(round((julianday({column}) - 2440587.5) * 86400000.0) AS INTEGER) \
         * 1000 WHEN 'null' THEN NULL ELSE CAST({column} AS INTEGER) END"
    )
}

/// An identifier in quotes.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The file that a URL names: `sqlite:PATH`, `sqlite://PATH`, or a path.
pub(super) fn path_of(options: &StoreOptions) -> StoreResult<PathBuf> {
    let refuse = |why: &str| Err(StoreError::new(StoreErrorKind::Configuration, why));
    let path = options.url.strip_prefix("sqlite:").unwrap_or(&options.url);
    let path = path.strip_prefix("//").unwrap_or(path);
    match path {
        "" => refuse("the URL names no file: write sqlite:PATH"),
        ":memory:" => refuse("a database in memory belongs to one connection alone: name a file"),
        _ if path.starts_with("file:") || path.contains('?') => {
            refuse("write a plain path, without file: and without parameters")
        }
        path => Ok(PathBuf::from(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_plain_path() {
        for (url, path) in [
            ("sqlite:a/b.db", "a/b.db"),
            ("sqlite:/a/b", "/a/b"),
            ("sqlite:///a/b", "/a/b"),
            ("a.sqlite3", "a.sqlite3"),
            ("sqlite:with space.db", "with space.db"),
        ] {
            assert_eq!(path_of(&StoreOptions::new(url)).unwrap(), PathBuf::from(path));
        }
        for url in ["sqlite:", "sqlite::memory:", "sqlite:file:x.db", "sqlite:x.db?mode=ro"] {
            assert_eq!(path_of(&StoreOptions::new(url)).unwrap_err().kind, StoreErrorKind::Configuration, "{url}");
        }
    }

    #[test]
    fn a_name_cannot_leave_its_quotes() {
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
