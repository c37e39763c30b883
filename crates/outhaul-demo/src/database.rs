//! Connections to the demo's SQLite files.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::DemoError;

/// The longest wait for another process's write lock. A killed process's locks are gone at once, so it is never
/// reached unless the disk stands still.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// A connection that writes: WAL, commits that survive the death of any process.
pub(crate) fn open(path: &Path) -> Result<Connection, DemoError> {
    let db = Connection::open(path).map_err(DemoError::database("opening a database"))?;
    db.busy_timeout(LOCK_LIMIT).map_err(DemoError::database("opening a database"))?;
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        .map_err(DemoError::database("setting up a database"))?;
    Ok(db)
}

/// A connection that counts.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, DemoError> {
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(DemoError::database("opening a database to count"))?;
    db.busy_timeout(LOCK_LIMIT).map_err(DemoError::database("opening a database to count"))?;
    db.execute_batch("PRAGMA query_only = ON;").map_err(DemoError::database("opening a database to count"))?;
    Ok(db)
}
