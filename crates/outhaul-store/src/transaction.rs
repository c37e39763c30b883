//! Rows of `outbox_transaction`: what becomes of transactional messages.

use outhaul_core::transaction::TransactionState;

/// A transaction whose commit the broker has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedTransaction {
    /// Its id.
    pub id: String,
    /// What the broker calls the half message, for people; at most 255 characters.
    pub receipt: String,
}

/// Which transactions go into the outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FallBack {
    /// So long after a relay saw them first, milliseconds.
    pub after_ms: u64,
    /// The most to look at in one call, of those that are new and of those that are due.
    pub limit: u32,
}

/// What a look at transactions did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FellBack {
    /// Seen for the first time.
    pub seen: u64,
    /// Ids of the messages that were put into the outbox table.
    pub sent: Vec<String>,
    /// Transactions that the outbox table refuses, with the reason. They are tried again after another `after_ms`.
    pub refused: Vec<(String, String)>,
    /// A limit was reached: there is more.
    pub more: bool,
}

/// A row, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionRecord {
    /// Id of the transaction.
    pub transaction: String,
    /// Id of the message.
    pub message: String,
    /// State.
    pub state: TransactionState,
    /// Topic; None for a tombstone.
    pub topic: Option<String>,
    /// What the broker calls the half message.
    pub receipt: Option<String>,
    /// When the row was inserted: the start of the business transaction, for a tombstone the check-back. Microseconds since
    /// 1970-01-01 UTC.
    pub created_at_us: i64,
    /// When it came to its state; for a committed one, when a relay first saw it. None: not yet.
    pub since_us: Option<i64>,
}

/// The most characters of a receipt.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
const RECEIPT_MAX: usize = 255;

impl EndedTransaction {
    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    pub(crate) fn receipt(&self) -> String {
        self.receipt.chars().filter(|c| *c != '\0').take(RECEIPT_MAX).collect()
    }
}

/// The longest id of a transaction, bytes.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) const TRANSACTION_ID_MAX: usize = 64;

/// Refuses an id that the column does not take: it would never be found, and its tombstone would be cut off.
///
/// # Errors
/// `Configuration`.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn check_id(id: &str) -> Result<(), crate::StoreError> {
    if !id.is_empty() && id.len() <= TRANSACTION_ID_MAX && !id.contains('\0') {
        return Ok(());
    }
    let what = format!("the id of a transaction has 1 to {TRANSACTION_ID_MAX} bytes without NUL");
    Err(crate::StoreError::new(crate::StoreErrorKind::Configuration, what))
}

/// Time spans of a request, milliseconds: at most a hundred years, with which every server can reckon.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) const SPAN_MAX_MS: u64 = 100 * 366 * 86_400_000;

/// Whether an error is about the one row that was to go into the outbox. With any other the look ends.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) const fn refuses_row(error: &crate::StoreError) -> bool {
    use crate::StoreErrorKind::{Configuration, Corrupt, Other, TooLarge};
    matches!(error.kind, Configuration | Corrupt | Other | TooLarge)
}

/// The state of a row as it was read.
///
/// # Errors
/// `Corrupt`: none that this build knows.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn state_of(name: &str) -> Result<TransactionState, crate::StoreError> {
    let unknown = || {
        let what = "outbox_transaction holds a state that this build does not know";
        crate::StoreError::new(crate::StoreErrorKind::Corrupt, what)
    };
    TransactionState::of_name(name).ok_or_else(unknown)
}
