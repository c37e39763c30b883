//! What can go wrong, and what to do about it.

use std::time::Duration;

use crate::driver::{Refusal, RefusalKind};

/// Why a call did not do what it was asked for. Its text holds no value of an event, its source may: it is what the
/// database said.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The event could not be delivered as it is: the relay would park it. Nothing was written.
    #[error("OUT-5001 the event cannot be delivered as it is: {0}")]
    Event(String),
    /// A part of the event is larger than the relay takes. Nothing was written.
    #[error("OUT-5002 {part} of the event has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Which part.
        part: &'static str,
        /// Its size, bytes.
        bytes: u64,
        /// The limit that it exceeds, bytes.
        limit: u64,
    },
    /// A value cannot be written as JSON, or a stored result is not what the caller reads. Nothing was written.
    #[error("OUT-5003 {what}")]
    Json {
        /// Which value.
        what: &'static str,
        /// What serde said.
        #[source]
        source: serde_json::Error,
    },
    /// The connection is not in a transaction: what is written would be kept whatever becomes of the rest. Nothing was
    /// written.
    #[error("OUT-5004 no transaction is open on this connection")]
    NoTransaction,
    /// A deadlock, a serialisation failure, a lock that was not given in time: roll back and run the whole transaction
    /// again.
    #[error("OUT-5005 the database asks for the transaction to be run again: {0}")]
    Retry(#[source] Refusal),
    /// The table or a column is not there.
    #[error("OUT-5006 the table is not as this library expects it: {0}")]
    Table(#[source] Refusal),
    /// A right is missing.
    #[error("OUT-5007 the application's user lacks a right: {0}")]
    Permission(#[source] Refusal),
    /// Whatever else the database or the driver said.
    #[error("OUT-5008 the database did not do as asked: {0}")]
    Database(#[source] Refusal),
    /// The name of a consumer or the id of a message does not fit into the inbox. Nothing was written.
    #[error("OUT-5009 {0}")]
    Inbox(String),
    /// Younger than what a replay may bring again. Nothing was deleted.
    #[error("OUT-5010 what is {} old may be replayed within {} and must stay", seconds(older_than), seconds(window))]
    ReplayWindow {
        /// The age from which the caller wanted to delete.
        older_than: Duration,
        /// How far back a replay may go.
        window: Duration,
    },
}

fn seconds(time: &Duration) -> String {
    format!("{} s", time.as_secs())
}

impl Error {
    /// `OUT-nnnn`: `outhaul explain CODE` prints its page.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Event(_) => "OUT-5001",
            Self::TooLarge { .. } => "OUT-5002",
            Self::Json { .. } => "OUT-5003",
            Self::NoTransaction => "OUT-5004",
            Self::Retry(_) => "OUT-5005",
            Self::Table(_) => "OUT-5006",
            Self::Permission(_) => "OUT-5007",
            Self::Database(_) => "OUT-5008",
            Self::Inbox(_) => "OUT-5009",
            Self::ReplayWindow { .. } => "OUT-5010",
        }
    }

    /// One line on what to do.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Event(_) => "correct the event",
            Self::TooLarge { .. } => {
                "make the event smaller (a reference instead of the content), or raise max_message_bytes here and in the relay"
            }
            Self::Json { .. } => {
                "correct the type's Serialize or Deserialize, or read the result as the type it was kept as"
            }
            Self::NoTransaction => "begin a transaction with the driver's own call and pass that",
            Self::Retry(_) => "roll back, then run the whole transaction again",
            Self::Table(_) => {
                "run `outhaul init`, for an inbox `outhaul init --inbox`, or correct prefix, columns or payload type"
            }
            Self::Permission(_) => "apply the GRANTs that `outhaul init --print` shows for the application's user",
            Self::Database(_) => "read what the database said: the error's source",
            Self::Inbox(_) => "use a consumer name of 1 to 255 bytes and the message's own id",
            Self::ReplayWindow { .. } => {
                "keep what a replay may bring again: prune what is older than the replay window"
            }
        }
    }

    /// Whether running the whole transaction again can help without anybody doing anything.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Retry(_))
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal.kind {
            RefusalKind::Retry => Self::Retry(refusal),
            RefusalKind::Table => Self::Table(refusal),
            RefusalKind::Permission => Self::Permission(refusal),
            RefusalKind::Duplicate | RefusalKind::Other => Self::Database(refusal),
        }
    }
}
