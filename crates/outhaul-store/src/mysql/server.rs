//! What MariaDB and MySQL do differently: asked of the server when a connection is made, and named here.

use std::collections::BTreeMap;
use std::time::Duration;

use mysql_async::Row;
use outhaul_core::outbox::{PACKET_MAX_BYTES, PACKET_RESERVE_BYTES};

use super::values::text;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// The variables that are asked for. A server that lacks one does not list it.
const VARIABLES: [&str; 16] = [
    "version",
    "max_allowed_packet",
    "read_only",
    "super_read_only",
    "innodb_read_only",
    "tx_read_only",
    "transaction_read_only",
    "log_bin",
    "binlog_format",
    "sync_binlog",
    "innodb_flush_log_at_trx_commit",
    "auto_increment_increment",
    "innodb_doublewrite",
    "wsrep_on",
    "idle_transaction_timeout",
    "max_statement_time",
];
const PACKET_RESERVE: usize = PACKET_RESERVE_BYTES as usize;
const PACKET_MAX: usize = PACKET_MAX_BYTES as usize;

/// A server, as it was when it was connected to.
#[derive(Debug)]
pub(super) struct Server {
    /// MariaDB, or else MySQL.
    pub(super) mariadb: bool,
    version: (u16, u16, u16),
    /// The largest packet that may be sent or asked for, bytes.
    pub(super) packet_bytes: usize,
    variables: BTreeMap<String, String>,
}

impl Server {
    /// One that nothing is known of yet.
    pub(super) const fn unknown() -> Self {
        Self { mariadb: false, version: (0, 0, 0), packet_bytes: 1 << 10, variables: BTreeMap::new() }
    }

    /// The question.
    pub(super) fn question() -> String {
        format!("SHOW VARIABLES WHERE Variable_name IN ('{}')", VARIABLES.join("','"))
    }

    /// The answer.
    ///
    /// # Errors
    /// `Unsupported`: older than MariaDB 10.6 or MySQL 8.0.13. `ReadOnly`: not the writable primary.
    pub(super) fn of(rows: Vec<Row>) -> StoreResult<Self> {
        let mut variables = BTreeMap::new();
        for mut row in rows {
            variables.insert(text(&mut row, 0)?.to_ascii_lowercase(), text(&mut row, 1)?);
        }
        let version = variables.get("version").cloned().unwrap_or_default();
        let packet: usize = variables.get("max_allowed_packet").and_then(|v| v.parse().ok()).unwrap_or(1 << 20);
        let server = Self {
            mariadb: version.to_ascii_lowercase().contains("mariadb"),
            version: version_of(&version),
            packet_bytes: packet.min(PACKET_MAX).saturating_sub(PACKET_RESERVE),
            variables,
        };
        server.check()?;
        Ok(server)
    }

    fn check(&self) -> StoreResult<()> {
        // JSON_TABLE and SKIP LOCKED; on MySQL also a DEFAULT that is an expression.
        let oldest = if self.mariadb { (10, 6, 0) } else { (8, 0, 13) };
        if self.version < oldest {
            let what = format!("{} is too old: MariaDB 10.6 or MySQL 8.0.13 is needed", self.name());
            return Err(StoreError::new(StoreErrorKind::Unsupported, what));
        }
        // A user with high rights may write to a read-only server. It is a replica all the same.
        let read_only = ["read_only", "super_read_only", "innodb_read_only", "tx_read_only", "transaction_read_only"];
        match read_only.into_iter().find(|name| !self.is_off(name)) {
            Some(name) => Err(StoreError::new(StoreErrorKind::ReadOnly, format!("the server has {name} set"))),
            None => Ok(()),
        }
    }

    fn is_off(&self, name: &str) -> bool {
        self.variables.get(name).is_none_or(|value| matches!(value.as_str(), "OFF" | "0"))
    }

    fn variable(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// Name and version, for people.
    pub(super) fn name(&self) -> String {
        let (major, minor, patch) = self.version;
        format!("{} {major}.{minor}.{patch}", if self.mariadb { "MariaDB" } else { "MySQL" })
    }

    /// The statements that make a session ours.
    ///
    /// Both limit what waits for a lock, in whole seconds. MariaDB limits every statement (`max_statement_time`), MySQL
    /// those that only read (`max_execution_time`); the client limits the rest. What is left open by a client that died
    /// without a word must not hold its locks for hours: MariaDB ends such a transaction by itself, MySQL only the
    /// idle session, so there `wait_timeout` is short, and an idle connection is made anew.
    pub(super) fn session(&self, options: &StoreOptions) -> Vec<String> {
        let lock_seconds = whole_seconds(options.lock_timeout);
        let seconds = whole_seconds(options.statement_timeout);
        let mut settings = vec![
            "autocommit = 1".to_owned(),
            "time_zone = '+00:00'".into(),
            "sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION'".into(),
            "sql_safe_updates = 0".into(),
            format!("innodb_lock_wait_timeout = {lock_seconds}"),
            format!("lock_wait_timeout = {lock_seconds}"),
        ];
        if self.mariadb {
            settings.push(format!("max_statement_time = {}", options.statement_timeout.as_secs_f64()));
            settings.push(format!("idle_transaction_timeout = {seconds}"));
        } else {
            settings.push(format!("max_execution_time = {}", options.statement_timeout.as_millis().max(1)));
            settings.push(format!("wait_timeout = {}", seconds.saturating_mul(2).max(20)));
        }
        vec![
            "SET NAMES utf8mb4".into(),
            "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED".into(),
            format!("SET SESSION {}", settings.join(", SESSION ")),
        ]
    }

    /// Whether the server heeds CHECK. Some(true): as MariaDB lists them, Some(false): as MySQL does, from 8.0.16 on.
    pub(super) fn check_constraints(&self) -> Option<bool> {
        (self.mariadb || self.version >= (8, 0, 16)).then_some(self.mariadb)
    }

    /// A setting under which this store cannot work at all.
    ///
    /// # Errors
    /// `Configuration`.
    pub(super) fn check_binlog(&self) -> StoreResult<()> {
        if !self.is_off("log_bin") && self.variable("binlog_format").eq_ignore_ascii_case("STATEMENT") {
            let what =
                "binlog_format is STATEMENT, with which InnoDB refuses every write under READ COMMITTED: set it to ROW";
            return Err(StoreError::new(StoreErrorKind::Configuration, what));
        }
        Ok(())
    }

    /// Sentences about what promises less than usual.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let flush = self.variable("innodb_flush_log_at_trx_commit");
        if !matches!(flush, "1" | "3" | "") {
            warnings.push(format!(
                "innodb_flush_log_at_trx_commit is {flush}: a row can be sent although a crash of the server takes its transaction back"
            ));
        }
        let sync = self.variable("sync_binlog");
        if !self.is_off("log_bin") && !matches!(sync, "1" | "") {
            warnings.push(format!(
                "sync_binlog is {sync}: after a crash of the machine the binary log, and replicas, may lack what was sent"
            ));
        }
        if self.mariadb && self.is_off("log_bin") {
            warnings.push(
                "there is no binary log: MariaDB shows a row to readers before its COMMIT is on disk, so one that was sent may be gone after a crash"
                    .into(),
            );
        }
        if self.is_off("innodb_doublewrite") && self.variables.contains_key("innodb_doublewrite") {
            warnings.push("innodb_doublewrite is off: a crash of the machine can damage committed rows".into());
        }
        let increment = self.variable("auto_increment_increment");
        if !matches!(increment, "1" | "") {
            warnings.push(format!(
                "auto_increment_increment is {increment}: several servers give numbers, so order is kept only for what one of them wrote"
            ));
        }
        if !self.is_off("wsrep_on") {
            warnings
                .push("this is a Galera cluster: order is kept only if all applications write to the same node".into());
        }
        warnings
    }
}

/// A limit that the server counts in whole seconds, at least 1.
fn whole_seconds(limit: Duration) -> u64 {
    limit.as_millis().div_ceil(1_000).clamp(1, 1_000_000) as u64
}

/// `8.0.15`, `10.11.6-MariaDB-1`, `5.5.5-10.11.6-MariaDB` (as MariaDB pretends to old clients).
fn version_of(text: &str) -> (u16, u16, u16) {
    let text = text.strip_prefix("5.5.5-").filter(|rest| rest.contains('.')).unwrap_or(text);
    let mut parts = text.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(version_of("8.0.15"), (8, 0, 15));
        assert_eq!(version_of("10.11.19-MariaDB-0+deb12u1-log"), (10, 11, 19));
        assert_eq!(version_of("5.5.5-10.6.12-MariaDB"), (10, 6, 12));
        assert_eq!(version_of("8.0.36-28"), (8, 0, 36));
        assert_eq!(version_of(""), (0, 0, 0));
    }

    fn server(variables: &[(&str, &str)]) -> Server {
        let variables: BTreeMap<String, String> = variables.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
        let version = variables.get("version").cloned().unwrap_or_else(|| "8.0.15".into());
        Server { mariadb: version.contains("Maria"), version: version_of(&version), packet_bytes: 1 << 20, variables }
    }

    #[test]
    fn replicas_and_old_servers_are_refused() {
        assert!(server(&[("read_only", "OFF"), ("super_read_only", "OFF"), ("tx_read_only", "OFF")]).check().is_ok());
        for (name, value) in
            [("read_only", "ON"), ("super_read_only", "ON"), ("transaction_read_only", "ON"), ("read_only", "NO_LOCK")]
        {
            assert_eq!(server(&[(name, value)]).check().unwrap_err().kind, StoreErrorKind::ReadOnly);
        }
        for version in ["8.0.12", "5.7.44", "10.5.9-MariaDB"] {
            assert_eq!(server(&[("version", version)]).check().unwrap_err().kind, StoreErrorKind::Unsupported);
        }
    }

    #[test]
    fn warnings_name_the_setting() {
        assert!(
            server(&[("innodb_flush_log_at_trx_commit", "1"), ("log_bin", "ON"), ("sync_binlog", "1")])
                .warnings()
                .is_empty()
        );
        let weak = server(&[
            ("innodb_flush_log_at_trx_commit", "2"),
            ("log_bin", "ON"),
            ("sync_binlog", "0"),
            ("auto_increment_increment", "2"),
        ]);
        let said = weak.warnings().join("\n");
        assert!(
            ["innodb_flush_log_at_trx_commit", "sync_binlog", "auto_increment_increment"]
                .iter()
                .all(|n| said.contains(n))
        );
        assert!(server(&[("log_bin", "ON"), ("binlog_format", "STATEMENT")]).check_binlog().is_err());
        assert!(server(&[("log_bin", "OFF"), ("binlog_format", "STATEMENT")]).check_binlog().is_ok());
    }
}
