//! PostgreSQL's SQLSTATEs (manual, appendix A).

use super::RefusalKind;

/// Kind and line of an error.
pub(super) fn refusal(sqlstate: &str, message: &str) -> (RefusalKind, String) {
    let kind = match sqlstate {
        // Serialisation failure, deadlock, lock not available.
        "40001" | "40P01" | "55P03" => RefusalKind::Retry,
        // No such table, column, schema; another type; no such primary key.
        "42P01" | "42703" | "3F000" | "42804" | "42P10" => RefusalKind::Table,
        "42501" => RefusalKind::Permission,
        "23505" => RefusalKind::Duplicate,
        _ => RefusalKind::Other,
    };
    let line = match kind {
        RefusalKind::Table | RefusalKind::Permission => format!("{message} (SQLSTATE {sqlstate})"),
        _ => format!("SQLSTATE {sqlstate}"),
    };
    (kind, line)
}
