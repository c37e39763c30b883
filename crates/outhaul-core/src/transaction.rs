//! What a broker's question about a half message is answered, and when a message goes out without the broker.
//!
//! A transactional message has a row in `outbox_transaction`, inserted by the business transaction under the id of that
//! one transaction. The row is the record of the outcome, whatever the broker remembers. See `docs/transactions.md`.

/// State of a row. A row that is not there has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TransactionState {
    /// The business transaction has committed; the broker has not confirmed that it delivers.
    Committed,
    /// The broker has confirmed the commit.
    Ended,
    /// The message went into the outbox instead, as a plain one. The half is of no use any more.
    Sent,
    /// A tombstone: the business transaction cannot commit any more, since it could not insert its row.
    RolledBack,
}

impl TransactionState {
    /// Its name in the table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Ended => "ended",
            Self::Sent => "sent",
            Self::RolledBack => "rolled_back",
        }
    }

    /// The state of a name. None: of a later version, or of nobody's.
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Committed, Self::Ended, Self::Sent, Self::RolledBack].into_iter().find(|state| state.name() == name)
    }

    /// Whether a row may go from one state to the other. Every change is a compare-and-set on the state before.
    pub const fn may_become(self, next: Self) -> bool {
        matches!((self, next), (Self::Committed, Self::Ended | Self::Sent))
    }
}

/// What the database said when it was asked about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Finding {
    /// There is a row.
    Row(TransactionState),
    /// There was none, and a tombstone was put in its place.
    Buried,
    /// Somebody has the row open: an application that has not committed yet, nearly always.
    Open,
}

/// The answer to a check-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    /// Deliver.
    Commit,
    /// Drop.
    Rollback,
    /// Ask again later.
    Unknown,
}

impl Answer {
    /// Its name, for people and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Rollback => "rollback",
            Self::Unknown => "unknown",
        }
    }
}

/// Answers a check-back. `None`: the database was not reached, or gave no answer that means anything.
///
/// COMMIT only for what has committed, ROLLBACK only for what can never commit, or goes out by the outbox. That a row is
/// not there says nothing: only the tombstone in its place does.
pub const fn answer(finding: Option<Finding>) -> Answer {
    match finding {
        Some(Finding::Row(TransactionState::Committed | TransactionState::Ended)) => Answer::Commit,
        Some(Finding::Row(TransactionState::RolledBack | TransactionState::Sent) | Finding::Buried) => Answer::Rollback,
        Some(Finding::Open) | None => Answer::Unknown,
    }
}

/// Whether a row goes into the outbox: committed, not ended, and that long after a relay has seen it first. Not after
/// `created_at`: that lies at the start of a transaction that may have been open for hours.
pub const fn falls_back(state: TransactionState, seen_for_ms: Option<u64>, after_ms: u64) -> bool {
    matches!((state, seen_for_ms), (TransactionState::Committed, Some(ms)) if ms >= after_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [TransactionState; 4] =
        [TransactionState::Committed, TransactionState::Ended, TransactionState::Sent, TransactionState::RolledBack];

    #[test]
    fn names_and_states_go_together() {
        for state in ALL {
            assert_eq!(TransactionState::of_name(state.name()), Some(state));
        }
        assert_eq!(TransactionState::of_name("Committed"), None);
    }

    #[test]
    fn an_answer_once_given_stays_what_it_was_unless_the_message_went_out_by_the_outbox() {
        for (from, to) in ALL.into_iter().flat_map(|from| ALL.map(|to| (from, to))) {
            let (before, after) = (answer(Some(Finding::Row(from))), answer(Some(Finding::Row(to))));
            if from.may_become(to) && to != TransactionState::Sent {
                assert_eq!(before, after);
            }
        }
        assert_eq!(answer(Some(Finding::Buried)), answer(Some(Finding::Row(TransactionState::RolledBack))));
        assert_eq!(answer(None), Answer::Unknown);
        assert_eq!(answer(Some(Finding::Open)), Answer::Unknown);
    }

    #[test]
    fn only_what_nobody_has_ended_falls_back() {
        for state in ALL {
            assert_eq!(falls_back(state, Some(10), 10), state == TransactionState::Committed);
            assert!(!falls_back(state, Some(9), 10) && !falls_back(state, None, 0));
        }
    }
}
