//! MySQL's and MariaDB's error numbers (their manuals' server error references). Where both use a number it means the
//! same.

use super::RefusalKind;

/// Kind and line of an error.
pub(super) fn refusal(number: u16, message: &str) -> (RefusalKind, String) {
    let kind = match number {
        1062 if is_of_primary_key(message) => RefusalKind::Duplicate,
        // Deadlock; lock wait limit; changed since the snapshot; definition changed (twice); NOWAIT; refused by Galera or
        // group replication.
        1213 | 1205 | 1020 | 1412 | 1615 | 3572 | 3100 | 3101 => RefusalKind::Retry,
        // No such column, no such table, bytes for a column of JSON.
        1054 | 1146 | 3144 => RefusalKind::Table,
        1044 | 1142 | 1143 | 1227 | 1370 => RefusalKind::Permission,
        _ => RefusalKind::Other,
    };
    let line = match kind {
        // They quote names of tables, columns and users, no values.
        RefusalKind::Table | RefusalKind::Permission => format!("{message} (error {number})"),
        _ => format!("error {number}"),
    };
    (kind, line)
}

/// Whether a duplicate is one of this table's primary key, as far as the message tells: `… for key 'PRIMARY'`, from MySQL
/// 8.0.19 on `… for key 'inbox.PRIMARY'`.
fn is_of_primary_key(message: &str) -> bool {
    message.ends_with("for key 'PRIMARY'") || message.ends_with(".PRIMARY'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_without_values() {
        let of = |number, message| refusal(number, message);
        assert_eq!(of(1213, "Deadlock found").0, RefusalKind::Retry);
        assert_eq!(
            of(1062, "Duplicate entry 's3cret' for key 'PRIMARY'"),
            (RefusalKind::Duplicate, "error 1062".into())
        );
        assert!(of(1146, "Table 'shop.outbox' doesn't exist").1.contains("shop.outbox"));
        assert!(is_of_primary_key("Duplicate entry 'a-b' for key 'PRIMARY'"));
        assert!(is_of_primary_key("Duplicate entry 'a-b' for key 'inbox.PRIMARY'"));
        assert!(!is_of_primary_key("Duplicate entry 'a-b' for key 'other'"));
    }
}
