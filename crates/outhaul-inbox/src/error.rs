//! Why the daemon does not start.

use outhaul_store::StoreError;

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// No broker takes it as a member of its group.
    #[error("OUT-5050 the consumer group {group} cannot be joined: {why}")]
    Join {
        /// The group.
        group: String,
        /// What the brokers or name servers say.
        why: String,
    },
    /// An option cannot be used.
    #[error("OUT-5051 {0}")]
    Options(String),
    /// The database cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl InboxError {
    /// Code of its page.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Join { .. } => "OUT-5050",
            Self::Options(_) => "OUT-5051",
            Self::Store(e) => e.kind.code(),
        }
    }

    /// One line on what to do.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Join { .. } => {
                "check the name servers, the account, and that the group may be made or is there (autoCreateSubscriptionGroup)"
            }
            Self::Options(_) => "correct the option that the message names",
            Self::Store(e) => e.kind.remedy(),
        }
    }
}
