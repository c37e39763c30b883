//! What the server's and the client's errors mean: SQLSTATE to [`StoreErrorKind`].

use std::error::Error as _;

use tokio_postgres::Error;
use tokio_postgres::error::{DbError, Severity};

use crate::error::{StoreError, StoreErrorKind};

/// One error as one line, without values: DETAIL, which quotes rows, is left out, and so is what a data exception's
/// message quotes.
pub(super) fn store_error(error: &Error) -> StoreError {
    match error.as_db_error() {
        Some(refusal) => StoreError::new(kind(refusal.code().code()), line(refusal)),
        None => client_error(error),
    }
}

/// The kind of a SQLSTATE (PostgreSQL manual, appendix A).
pub(super) fn kind(sqlstate: &str) -> StoreErrorKind {
    match sqlstate {
        "57014" | "55P03" | "25P03" | "25P04" => StoreErrorKind::Timeout, // canceled by a limit, lock not available, idle in transaction, transaction timeout
        "40001" | "40P01" | "55006" => StoreErrorKind::Conflict,
        "40003" => StoreErrorKind::CommitUnknown,
        "28000" | "28P01" => StoreErrorKind::Authentication,
        "42501" => StoreErrorKind::Permission,
        "42P01" | "42703" | "3F000" => StoreErrorKind::NotInitialised,
        "25006" => StoreErrorKind::ReadOnly,
        "53100" => StoreErrorKind::Full,
        "3D000" => StoreErrorKind::Configuration,
        "XX001" | "XX002" => StoreErrorKind::Corrupt, // data_corrupted, index_corrupted
        _ => match sqlstate.get(..2) {
            Some("08" | "57") => StoreErrorKind::Unavailable,
            Some("53") => StoreErrorKind::Unavailable, // too many connections, out of memory
            Some("54") => StoreErrorKind::TooLarge,
            _ => StoreErrorKind::Other,
        },
    }
}

fn line(refusal: &DbError) -> String {
    let code = refusal.code().code();
    let message = refusal.message();
    // `invalid input syntax for type json: "…"`, `value too long for type …`: the part in quotes may be a payload's.
    let message = if code.starts_with("22") { message.split('"').next().unwrap_or_default() } else { message };
    let message = message.trim_end_matches([' ', ':']);
    match refusal.table() {
        Some(table) if code.starts_with("23") => format!("{message} (table {table}, SQLSTATE {code})"),
        _ => format!("{message} (SQLSTATE {code})"),
    }
}

fn client_error(error: &Error) -> StoreError {
    let mut text = error.to_string();
    let (mut io, mut certificate) = (false, false);
    let mut cause = error.source();
    while let Some(c) = cause {
        let inner = c.downcast_ref::<std::io::Error>();
        io |= inner.is_some();
        certificate |= inner.and_then(std::io::Error::get_ref).is_some_and(|e| e.is::<rustls::Error>());
        text = format!("{text}: {c}");
        cause = c.source();
    }
    let kind = if certificate || text.starts_with("error performing TLS") || text.starts_with("invalid co") {
        StoreErrorKind::Configuration
    } else if text.starts_with("authentication error") {
        StoreErrorKind::Authentication
    } else if text.starts_with("error serializing") || text.starts_with("error encoding") {
        StoreErrorKind::TooLarge
    } else if text.starts_with("error deserializing") || text.starts_with("error parsing") {
        StoreErrorKind::Corrupt
    } else if io || error.is_closed() || text.starts_with("error connecting") || text.starts_with("timeout") {
        StoreErrorKind::Unavailable
    } else {
        StoreErrorKind::Other
    };
    StoreError::new(kind, text)
}

/// Whether the session is over after this error: no answer came, or the server closes the connection after it.
pub(super) fn ends_session(error: &Error) -> bool {
    error.as_db_error().is_none_or(|refusal| {
        matches!(refusal.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
            || refusal.code().code().starts_with("08")
    })
}

/// Whether the server says for certain that a COMMIT which met this error has not happened.
pub(super) fn refuses_commit(error: &Error) -> bool {
    !ends_session(error) && error.code().is_some_and(|code| code.code() != "40003")
}

/// Whether the server refuses what a value holds: data exceptions, constraints, and what a trigger raises.
pub(super) fn refuses_content(error: &Error) -> bool {
    error.code().is_some_and(|code| matches!(code.code().get(..2), Some("22" | "23" | "P0" | "44")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for (sqlstate, expected) in [
            ("08006", StoreErrorKind::Unavailable),
            ("57P01", StoreErrorKind::Unavailable),
            ("57P03", StoreErrorKind::Unavailable),
            ("57014", StoreErrorKind::Timeout),
            ("53300", StoreErrorKind::Unavailable),
            ("53100", StoreErrorKind::Full),
            ("55P03", StoreErrorKind::Timeout),
            ("40P01", StoreErrorKind::Conflict),
            ("28P01", StoreErrorKind::Authentication),
            ("42501", StoreErrorKind::Permission),
            ("42P01", StoreErrorKind::NotInitialised),
            ("25006", StoreErrorKind::ReadOnly),
            ("23505", StoreErrorKind::Other),
            ("", StoreErrorKind::Other),
        ] {
            assert_eq!(kind(sqlstate), expected, "{sqlstate}");
        }
    }
}
