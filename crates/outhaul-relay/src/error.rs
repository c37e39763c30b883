//! Why a relay does not run.

use outhaul_store::StoreError;

/// Why a relay could not start, or ended before it was told to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The database cannot be used as it is.
    #[error("outbox {outbox}: {error}")]
    Store {
        /// Name of the outbox.
        outbox: String,
        /// What the store said.
        error: StoreError,
    },
    /// A lease must outlive every send.
    #[error(
        "OUT-4010 outbox {outbox}: lease_ttl ({lease_ttl_ms} ms) must be longer than send_limit ({send_limit_ms} ms) of destination {destination}"
    )]
    LeaseTooShort {
        /// Name of the outbox.
        outbox: String,
        /// Name of the destination.
        destination: String,
        /// Time to live of a lease, milliseconds.
        lease_ttl_ms: u64,
        /// Limit of a send, milliseconds.
        send_limit_ms: u64,
    },
    /// The tables were made anew with another number of shards while the relay ran: rows would not be found where they
    /// belong.
    #[error("OUT-4008 outbox {outbox}: the tables had {before} shards when this relay started, and have {now} now")]
    ShardCount {
        /// Name of the outbox.
        outbox: String,
        /// Shards at the start.
        before: usize,
        /// Shards now.
        now: usize,
    },
    /// The drain did not end within its limit. Nothing is lost; what was under way may be sent again.
    #[error("OUT-4005 outbox {outbox}: the drain took longer than shutdown_limit ({limit_ms} ms){}", said(database))]
    ShutdownLimit {
        /// Name of the outbox.
        outbox: String,
        /// The limit, milliseconds.
        limit_ms: u64,
        /// What the database said to a call that did not succeed any more: the last checkpoint could not be written.
        database: Option<String>,
    },
}

fn said(database: &Option<String>) -> String {
    database.as_ref().map(|text| format!("; {text}")).unwrap_or_default()
}

impl RelayError {
    /// Code of the error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Store { error, .. } => error.kind.code(),
            Self::LeaseTooShort { .. } => "OUT-4010",
            Self::ShardCount { .. } => "OUT-4008",
            Self::ShutdownLimit { .. } => "OUT-4005",
        }
    }

    /// One line on what to do.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Store { error, .. } => error.kind.remedy(),
            Self::LeaseTooShort { .. } => "raise lease_ttl, or lower send_limit of the destination",
            Self::ShardCount { .. } => "stop every relay, then start them again",
            Self::ShutdownLimit { database: Some(_), .. } => {
                "see to what the database said: the last checkpoint could not be written; nothing is lost, what was delivered \
                 since the one before is delivered again"
            }
            Self::ShutdownLimit { .. } => {
                "raise shutdown_limit above the slowest destination's send_limit; nothing is lost"
            }
        }
    }
}
