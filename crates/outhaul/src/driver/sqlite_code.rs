//! SQLite's result codes (sqlite.org/rescode.html).

use super::RefusalKind;

/// Kind and line of an error, by its extended code.
pub(super) fn refusal(code: i32, message: &str) -> (RefusalKind, String) {
    const ERROR: i32 = 1;
    const BUSY: i32 = 5;
    const LOCKED: i32 = 6;
    const READONLY: i32 = 8;
    const PRIMARY_KEY: i32 = 1555;
    const UNIQUE: i32 = 2067;
    let kind = match code & 0xff {
        BUSY | LOCKED => RefusalKind::Retry,
        READONLY => RefusalKind::Permission,
        _ if matches!(code, PRIMARY_KEY | UNIQUE) => RefusalKind::Duplicate,
        ERROR if message.contains("no such") || message.contains("has no column") => RefusalKind::Table,
        _ => RefusalKind::Other,
    };
    let line = match kind {
        RefusalKind::Table | RefusalKind::Permission => format!("{message} (code {code})"),
        _ => format!("code {code}"),
    };
    (kind, line)
}
