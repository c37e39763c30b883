//! What the server's and the client's errors mean: error numbers to [`StoreErrorKind`].

use mysql_async::{DriverError, Error, IoError, ServerError, UrlError};

use crate::error::{StoreError, StoreErrorKind};

/// Why a call did not come to its end.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// The connection cannot be used any more.
    pub(super) session_over: bool,
    /// The server refuses what a value holds, not the statement as such.
    pub(super) about_content: bool,
}

impl Failure {
    pub(super) fn new(kind: StoreErrorKind, message: impl Into<String>, session_over: bool) -> Self {
        Self { error: StoreError::new(kind, message), session_over, about_content: false }
    }

    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::Server(refusal) => Self {
                error: StoreError::new(kind(refusal), line(refusal)),
                session_over: ends_session(refusal.code),
                about_content: refuses_content(refusal.code),
            },
            other => Self { error: client_error(other), session_over: true, about_content: false },
        }
    }

    /// A failure of the statement that commits: unless the server says for certain that nothing was committed, nobody
    /// knows.
    pub(super) fn of_commit(error: &Error) -> Self {
        let failure = Self::of(error);
        let refused = matches!(error, Error::Server(refusal) if refuses_commit(refusal.code));
        if refused { failure } else { failure.commit_unknown() }
    }

    /// Nobody knows whether the transaction was committed. The connection is given up: what is asked next must not
    /// stand behind it.
    pub(super) fn commit_unknown(mut self) -> Self {
        self.error.kind = StoreErrorKind::CommitUnknown;
        self.error = self.error.while_doing("COMMIT");
        self.session_over = true;
        self
    }
}

impl From<StoreError> for Failure {
    /// An answer that is not what was asked for: the connection is not trusted any more.
    fn from(error: StoreError) -> Self {
        Self { error, session_over: true, about_content: false }
    }
}

/// The kind of an error, by the numbers of MySQL's and MariaDB's manuals (server error reference). Where both use a
/// number it means the same.
fn kind(refusal: &ServerError) -> StoreErrorKind {
    match refusal.code {
        // Lock wait limit; statement limit of MySQL; of MariaDB; lock not available; KILL QUERY.
        1205 | 3024 | 1969 | 3572 | 1317 => StoreErrorKind::Timeout,
        // Deadlock; changed since the snapshot; definition changed (twice); refused by Galera or group replication.
        1213 | 1020 | 1412 | 1615 | 3100 | 3101 => StoreErrorKind::Conflict,
        1045 | 1698 | 1251 | 1275 | 1524 | 1820 | 1862 | 3118 | 4151 => StoreErrorKind::Authentication,
        1044 | 1142 | 1143 | 1227 | 1370 => StoreErrorKind::Permission,
        1054 | 1146 => StoreErrorKind::NotInitialised,
        1792 | 1836 => StoreErrorKind::ReadOnly,
        // "running with the --read-only option", and other options that are none of this project's business.
        1290 if refusal.message.contains("read-only") || refusal.message.contains("read_only") => {
            StoreErrorKind::ReadOnly
        }
        1153 | 1301 => StoreErrorKind::TooLarge,
        1021 | 1114 => StoreErrorKind::Full,
        // "Got error 28 from storage engine": ENOSPC.
        1030 | 1026 | 1180 if mentions_enospc(&refusal.message) => StoreErrorKind::Full,
        1034 | 1194 | 1712 => StoreErrorKind::Corrupt,
        // Unknown database; TLS demanded by the server; binlog_format=STATEMENT.
        1049 | 3159 | 1665 => StoreErrorKind::Configuration,
        1040 | 1041 | 1047 | 1053 | 1129 | 1152 | 1158..=1161 | 1203 | 1226 | 1927 | 4031 => {
            StoreErrorKind::Unavailable
        }
        _ => StoreErrorKind::Other,
    }
}

fn mentions_enospc(message: &str) -> bool {
    message.split(|c: char| !c.is_ascii_digit()).any(|n| n == "28")
}

/// One line without values: where the server quotes one, the rest of its message is left out.
fn line(refusal: &ServerError) -> String {
    let quotes_values = matches!(
        refusal.code,
        1062 | 1064 | 1105 | 1264 | 1292 | 1300 | 1366 | 1411 | 1525 | 1644 | 1690 | 3140 | 3141 | 3143
    );
    let message = match refusal.code {
        1644 => "a trigger or constraint of the application refuses it",
        _ if quotes_values => refusal.message.split(['\'', '"']).next().unwrap_or_default(),
        _ => refusal.message.as_str(),
    };
    format!("{} (error {})", message.trim_end_matches([' ', ':']), refusal.code)
}

fn client_error(error: &Error) -> StoreError {
    use StoreErrorKind::{Authentication, Configuration, Corrupt, Other, TooLarge, Unavailable};
    let (kind, text) = match error {
        Error::Io(IoError::Tls(e)) => (Configuration, tls_error(&e.to_string())),
        // rustls speaks through the stream: a certificate that is not trusted comes as an error of the stream.
        Error::Io(IoError::Io(e)) if e.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) => {
            (Configuration, tls_error(&e.to_string()))
        }
        Error::Io(IoError::Io(e)) => (Unavailable, e.to_string()),
        Error::Driver(e) => match e {
            DriverError::ConnectionClosed | DriverError::PoolDisconnected => (Unavailable, e.to_string()),
            DriverError::UnknownAuthPlugin { .. }
            | DriverError::MysqlOldPasswordDisabled
            | DriverError::CleartextPluginDisabled => (Authentication, e.to_string()),
            DriverError::NoClientSslFlagFromServer => (Configuration, "the server does not offer TLS".into()),
            DriverError::PacketTooLarge => (TooLarge, e.to_string()),
            DriverError::PacketOutOfOrder | DriverError::UnexpectedPacket { .. } => (Unavailable, e.to_string()),
            DriverError::FromRow { .. } | DriverError::FromValue { .. } => (Corrupt, "an answer cannot be read".into()),
            _ => (Other, "the client refuses the statement".into()),
        },
        Error::Url(e) => (Configuration, url_error(e)),
        Error::Server(refusal) => (self::kind(refusal), line(refusal)),
        Error::Other(_) => (Other, "the client failed".into()),
    };
    StoreError::new(kind, text)
}

fn tls_error(said: &str) -> String {
    // What a server answers that is linked with an old OpenSSL, such as MySQL's own builds of 8.0.15.
    let hint =
        if said.contains("HandshakeFailure") { " (does the server offer TLS 1.2 with ECDHE, or TLS 1.3?)" } else { "" };
    format!("TLS: {said}{hint}")
}

/// What is wrong with a URL, without any part of it that may hold a secret.
pub(super) fn url_error(error: &UrlError) -> String {
    match error {
        UrlError::UnknownParameter { param } => format!("the database URL has an unknown parameter {param}"),
        UrlError::InvalidParamValue { param, .. } => {
            format!("the database URL has a value for {param} that cannot be used")
        }
        UrlError::FeatureRequired { param, .. } => {
            format!("parameter {param} of the database URL is not in this build")
        }
        _ => "the database URL cannot be read: it must be mysql://USER:PASSWORD@HOST:PORT/DATABASE".into(),
    }
}

/// Whether the server closes the connection after this error.
fn ends_session(code: u16) -> bool {
    // Shutdown; killed (MariaDB); packet errors; idle for too long; and whatever is said while connecting.
    matches!(code, 1053 | 1927 | 1152..=1161 | 4031 | 1040 | 1129)
}

/// Whether a COMMIT that met this error has certainly not happened: deadlock (also Galera's and group replication's
/// certification), a read-only server.
fn refuses_commit(code: u16) -> bool {
    matches!(code, 1213 | 3100 | 3101 | 1290 | 1792 | 1836)
}

/// Whether the server refuses what a value holds: length, range, character set, NULL, constraints, JSON, triggers.
fn refuses_content(code: u16) -> bool {
    matches!(
        code,
        1048 | 1062 | 1216 | 1264 | 1265 | 1292 | 1300 | 1366 | 1406 | 1452 | 1644 | 3140
            ..=3144 | 3819 | 4025 | 1118 | 1690
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(code: u16, message: &str) -> ServerError {
        ServerError { code, message: message.into(), state: "HY000".into() }
    }

    #[test]
    fn kinds() {
        for (code, message, expected) in [
            (1205, "Lock wait timeout exceeded", StoreErrorKind::Timeout),
            (1969, "max_statement_time exceeded", StoreErrorKind::Timeout),
            (3024, "maximum statement execution time exceeded", StoreErrorKind::Timeout),
            (1213, "Deadlock found", StoreErrorKind::Conflict),
            (1045, "Access denied for user", StoreErrorKind::Authentication),
            (1142, "DELETE command denied", StoreErrorKind::Permission),
            (1146, "Table 'a.b' doesn't exist", StoreErrorKind::NotInitialised),
            (1290, "running with the --read-only option", StoreErrorKind::ReadOnly),
            (1290, "running with the --super-read-only option", StoreErrorKind::ReadOnly),
            (1290, "running with the --secure-file-priv option", StoreErrorKind::Other),
            (1792, "in a READ ONLY transaction", StoreErrorKind::ReadOnly),
            (1153, "Got a packet bigger than 'max_allowed_packet' bytes", StoreErrorKind::TooLarge),
            (1030, "Got error 28 \"No space left on device\" from storage engine", StoreErrorKind::Full),
            (1030, "Got error 168 from storage engine", StoreErrorKind::Other),
            (1114, "The table 'x' is full", StoreErrorKind::Full),
            (1049, "Unknown database", StoreErrorKind::Configuration),
            (1040, "Too many connections", StoreErrorKind::Unavailable),
            (1927, "Connection was killed", StoreErrorKind::Unavailable),
        ] {
            assert_eq!(kind(&refusal(code, message)), expected, "{code} {message}");
        }
    }

    #[test]
    fn values_are_not_repeated() {
        for (code, message) in [
            (1062, "Duplicate entry 'secret' for key 'PRIMARY'"),
            (1064, "You have an error in your SQL syntax near 'secret' at line 1"),
            (1366, "Incorrect string value: 'secret' for column 'x'"),
            (3140, "Invalid JSON text: \"secret\" at position 0"),
            (1644, "secret"),
        ] {
            let said = line(&refusal(code, message));
            assert!(!said.contains("secret") && said.len() > 12, "{said}");
        }
        assert!(line(&refusal(1146, "Table 'a.outbox' doesn't exist")).contains("outbox"));
    }

    #[test]
    fn a_commit_is_unknown_unless_it_was_refused() {
        let commit = |code| Failure::of_commit(&Error::Server(refusal(code, "x"))).error.kind;
        assert_eq!(commit(1213), StoreErrorKind::Conflict);
        assert_eq!(commit(1180), StoreErrorKind::CommitUnknown);
        assert_eq!(commit(1053), StoreErrorKind::CommitUnknown);
        let lost = Failure::of_commit(&Error::Driver(DriverError::ConnectionClosed));
        assert_eq!((lost.error.kind, lost.session_over), (StoreErrorKind::CommitUnknown, true));
    }
}
