//! From what the database said to an outcome.

use outhaul_core::message::Defect;
use outhaul_core::receipt::{AckLevel, Outcome, Reason, Receipt};
use outhaul_store::inbox::InboxOutcome;
use outhaul_store::{StoreError, StoreErrorKind};

use crate::codes::SinkCode;
use crate::sink::SinkError;

/// What became of one message that was given to the database.
pub(super) fn of_answer(answer: InboxOutcome, sent_at_us: i64) -> Outcome {
    let delivered = |detail: &str| {
        Outcome::Delivered(Receipt { sent_at_us, level: AckLevel::Flushed, attempts: 1, detail: detail.to_owned() })
    };
    match answer {
        InboxOutcome::Stored => delivered(""),
        InboxOutcome::Duplicate => delivered("duplicate"),
        InboxOutcome::Refused(why) => Outcome::Rejected(Reason::new(SinkCode::InboxRefused.code(), why)),
        InboxOutcome::Behind => behind(),
    }
}

/// What an error means for the messages that were given to the database.
pub(super) fn of_error(error: &StoreError) -> Outcome {
    let reason = reason(error);
    match error.kind {
        StoreErrorKind::CommitUnknown => Outcome::Unknown(reason),
        // Nothing was stored, and none of these says anything about a message.
        _ => Outcome::DestinationDown(reason),
    }
}

/// A single message that the server does not take for its size.
pub(super) fn too_large(error: &StoreError) -> Outcome {
    Outcome::Rejected(Reason::new(error.kind.code(), error.message.clone()))
}

/// The database answered for another number of messages.
pub(super) fn miscounted() -> Outcome {
    let text = "the inbox answered for another number of messages than it was given";
    Outcome::Unknown(Reason::new(SinkCode::InboxAnswer.code(), text))
}

/// The message cannot be stored as it is.
pub(super) fn rejected(defect: &Defect) -> Outcome {
    Outcome::Rejected(Reason::new(SinkCode::MessageDefect.code(), defect.to_string()))
}

/// An earlier message of the key was not stored.
pub(super) fn behind() -> Outcome {
    let text = "an earlier message of the same key was not stored";
    Outcome::Retry { reason: Reason::new(SinkCode::BehindEarlier.code(), text), after_ms: None }
}

/// Why the inbox cannot be used.
pub(super) fn start_error(error: &StoreError) -> SinkError {
    let Reason { code, text } = reason(error);
    SinkError { code, message: text, passes: error.kind.passes() }
}

/// The database's own codes hold here too, except that other things are to be done where its tables are missing.
fn reason(error: &StoreError) -> Reason {
    let code = match error.kind {
        StoreErrorKind::NotInitialised | StoreErrorKind::WrongSchema => SinkCode::InboxTables.code(),
        kind => kind.code(),
    };
    Reason::new(code, format!("inbox: {}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_commit_is_unknown() {
        use StoreErrorKind as K;
        for kind in [
            K::Unavailable,
            K::Timeout,
            K::Conflict,
            K::Authentication,
            K::Permission,
            K::NotInitialised,
            K::WrongSchema,
            K::ReadOnly,
            K::TooLarge,
            K::Full,
            K::Corrupt,
            K::Configuration,
            K::Unsupported,
            K::Other,
        ] {
            assert!(matches!(of_error(&StoreError::new(kind, "x")), Outcome::DestinationDown(_)), "{kind:?}");
        }
        assert!(matches!(of_error(&StoreError::new(K::CommitUnknown, "x")), Outcome::Unknown(_)));
    }
}
