//! What can go wrong, and what to do about it.

use outhaul_store::StoreError;

use crate::error::Error as EventError;

/// Why a transactional message was not sent, or answers could not be given. Its text holds no value of an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// RocketMQ would not take the event, or not as a half. Nothing was sent.
    #[error("OUT-5020 the event cannot be sent as a transactional message: {0}")]
    Event(String),
    /// The transaction was judged before its row was inserted: the broker had waited too long and was told to drop the
    /// half. Nothing of the business was done.
    #[error("OUT-5021 a check-back has already decided that this transaction is rolled back")]
    RolledBack,
    /// No broker has stored the half, as far as is known. Nothing was written, and what may be stored is never delivered.
    #[error("OUT-5022 the half message was not stored: {0}")]
    Half(String),
    /// No master of the cluster has accepted the producer group within the limit.
    #[error("OUT-5023 no broker has accepted the producer group: {0}")]
    Register(String),
    /// A broker refuses transactional messages.
    #[error("OUT-5024 broker {broker} refuses transactional messages (rejectTransactionMessage=true)")]
    Rejecting {
        /// Its name.
        broker: String,
    },
    /// A broker cannot find halfs that it has just written anew.
    #[error("OUT-5025 broker {broker} has transientStorePoolEnable=true, with which ends of transactions get lost")]
    TransientPool {
        /// Its name.
        broker: String,
    },
    /// The outbox's database.
    #[error("OUT-5026 the outbox's database: {0}")]
    Store(#[from] StoreError),
    /// The row was not inserted. Roll back.
    #[error("OUT-5027 the row of the transaction was not inserted: {0}")]
    Row(#[source] EventError),
    /// The row of this very message is there and committed: an earlier COMMIT whose answer was lost.
    #[error("OUT-5028 an earlier try of this transaction has committed")]
    Committed,
    /// A setting cannot be used.
    #[error("OUT-5029 {0}")]
    Options(String),
}

impl TransactionError {
    /// `OUT-nnnn`: `outhaul explain CODE` prints its page.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Event(_) => "OUT-5020",
            Self::RolledBack => "OUT-5021",
            Self::Half(_) => "OUT-5022",
            Self::Register(_) => "OUT-5023",
            Self::Rejecting { .. } => "OUT-5024",
            Self::TransientPool { .. } => "OUT-5025",
            Self::Store(_) => "OUT-5026",
            Self::Row(_) => "OUT-5027",
            Self::Committed => "OUT-5028",
            Self::Options(_) => "OUT-5029",
        }
    }

    /// One line on what to do.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Event(_) => "correct the event, or send it by the outbox",
            Self::RolledBack => "roll back, prepare the message again and run the whole transaction again",
            Self::Half(_) => "check the broker and the topic, then prepare the message again",
            Self::Register(_) => "check the name servers, the brokers and the account",
            Self::Rejecting { .. } => "set rejectTransactionMessage=false on the broker, or use the outbox",
            Self::TransientPool { .. } => "set transientStorePoolEnable=false on the broker, or use the outbox",
            Self::Store(_) => "read what the database said; `outhaul explain` knows its code",
            Self::Row(_) => "roll back, and read what the database said: the error's source",
            Self::Committed => {
                "roll back this try: the business of the earlier one is done, and its message is delivered"
            }
            Self::Options(_) => "correct the setting",
        }
    }
}
