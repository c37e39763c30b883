//! What ends a command that did not do what it was asked, and how it is shown.

use std::fmt;
use std::io::Write;

use outhaul_sink::SinkError;
use outhaul_store::{StoreError, StoreErrorKind};
use serde::Serialize;

/// How a command ended that did what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Exit code 0.
    Fine,
    /// Exit code 3: found something that needs attention.
    Attention,
}

impl Exit {
    /// This, or [`Exit::Attention`] if something else needs it too.
    pub const fn or_attention(self, needed: bool) -> Self {
        if needed { Self::Attention } else { self }
    }
}

/// Exit code of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    /// 1: something did not work.
    Failure,
    /// 2: the command line or the configuration is wrong.
    Usage,
}

/// One failure: its code, one line of what, one line of what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// `OUT-nnnn`.
    pub code: String,
    /// What happened. One line, without secrets.
    pub message: String,
    /// What to do.
    pub remedy: String,
    /// Whose it is.
    #[serde(skip)]
    pub blame: Blame,
}

impl Failure {
    /// A failure of an entry of the table of codes.
    pub fn new(code: &'static crate::codes::Code, message: impl Into<String>) -> Self {
        Self { code: code.code.into(), message: message.into(), remedy: code.remedy.into(), blame: code.blame }
    }

    /// The same failure with a remedy that says more than the table's.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = remedy.into();
        self
    }

    /// The same failure with what was being done put in front.
    #[must_use]
    pub fn while_doing(mut self, what: impl fmt::Display) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Servers' messages may hold line breaks; an error stays one line.
        let one_line: Vec<&str> = self.message.split_whitespace().collect();
        write!(f, "{} {}\n→ {}", self.code, one_line.join(" "), self.remedy)
    }
}

impl From<StoreError> for Failure {
    fn from(e: StoreError) -> Self {
        let blame = if e.kind == StoreErrorKind::Configuration { Blame::Usage } else { Blame::Failure };
        Self { code: e.kind.code().into(), message: e.message, remedy: e.kind.remedy().into(), blame }
    }
}

/// What to do where a right is missing that a destination needs: only an inbox has a database's codes.
const INBOX_RIGHTS: &str = "GRANT SELECT, INSERT on inbox_message to its user (MySQL, MariaDB: UPDATE too), and CREATE if \
                            the relay is to make the tables";

impl From<SinkError> for Failure {
    fn from(e: SinkError) -> Self {
        let of_inbox = (e.code == StoreErrorKind::Permission.code()).then_some(INBOX_RIGHTS);
        let remedy = crate::codes::remedy(e.code)
            .or(of_inbox)
            .map_or_else(|| format!("read what `outhaul explain {}` says", e.code), str::to_owned);
        Self { code: e.code.into(), message: e.message, remedy, blame: Blame::Failure }
    }
}

/// One or more failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures(pub Vec<Failure>);

impl<T: Into<Failure>> From<T> for Failures {
    fn from(failure: T) -> Self {
        Self(vec![failure.into()])
    }
}

impl Failures {
    /// The exit code: 2 if all are to blame on how the command was called, 1 otherwise.
    pub fn exit_code(&self) -> u8 {
        if self.0.iter().all(|f| f.blame == Blame::Usage) { 2 } else { 1 }
    }

    /// Writes all of them to standard error: two lines each, or a JSON object a line.
    pub fn report(&self, json: bool) {
        let mut err = std::io::stderr().lock();
        for failure in &self.0 {
            // Where standard error is gone, there is nobody left to tell.
            let _ = match serde_json::to_string(&serde_json::json!({ "error": failure })) {
                Ok(line) if json => writeln!(err, "{line}"),
                _ => writeln!(err, "{failure}"),
            };
        }
    }
}

/// The result of a command.
pub type Outcome = Result<Exit, Failures>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_lines_whatever_the_server_says() {
        let f = Failure::new(&crate::codes::BAD_VALUE, "a\nb   c");
        assert_eq!(f.to_string().lines().count(), 2);
        assert!(f.to_string().starts_with("OUT-3005 a b c\n→ "));
    }
}
