//! From what SQLite says to a [`StoreError`].

use rusqlite::{Error, ErrorCode};

use crate::error::{StoreError, StoreErrorKind};

/// The error of a statement.
pub(super) fn refusal(error: Error) -> StoreError {
    let kind = match &error {
        Error::SqliteFailure(_, Some(text)) if text.starts_with("no such table") => StoreErrorKind::NotInitialised,
        Error::SqliteFailure(_, Some(text)) if text.starts_with("no such column") => StoreErrorKind::NotInitialised,
        Error::SqliteFailure(_, Some(text)) if text.contains("has no column named") => StoreErrorKind::NotInitialised,
        Error::SqlInputError { msg, .. } if msg.starts_with("no such ") || msg.contains("has no column named") => {
            StoreErrorKind::NotInitialised
        }
        Error::FromSqlConversionFailure(..) | Error::IntegralValueOutOfRange(..) | Error::InvalidColumnType(..) => {
            StoreErrorKind::Corrupt
        }
        _ => error.sqlite_error_code().map_or(StoreErrorKind::Other, kind_of),
    };
    let message = match error {
        Error::SqlInputError { msg, .. } => msg, // without the statement
        other => other.to_string(),
    };
    StoreError::new(kind, message)
}

/// The error of a COMMIT. Where writing or syncing failed, the transaction may be found applied when the log is read
/// again: nobody knows until asked.
pub(super) fn commit_refusal(error: Error) -> StoreError {
    let mut refusal = refusal(error);
    if refusal.kind == StoreErrorKind::Unavailable {
        refusal.kind = StoreErrorKind::CommitUnknown;
    }
    refusal.while_doing("COMMIT")
}

fn kind_of(code: ErrorCode) -> StoreErrorKind {
    match code {
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::OperationInterrupted
        | ErrorCode::FileLockingProtocolFailed => StoreErrorKind::Timeout,
        ErrorCode::SchemaChanged => StoreErrorKind::Conflict,
        ErrorCode::SystemIoFailure | ErrorCode::CannotOpen => StoreErrorKind::Unavailable,
        ErrorCode::DiskFull => StoreErrorKind::Full,
        ErrorCode::ReadOnly => StoreErrorKind::ReadOnly,
        ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied => StoreErrorKind::Permission,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreErrorKind::Corrupt,
        ErrorCode::TooBig => StoreErrorKind::TooLarge,
        _ => StoreErrorKind::Other,
    }
}
