//! What the answer to a pull means for the place in a queue. No socket, no clock.

use rocketmq_remoting::message::StoredMessage;
use rocketmq_remoting::request::{PullAnswer, PullStatus};

/// What to do after a pull.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: ask again.
    Stay,
    /// Store these, perhaps none, and go on at `to`.
    Go {
        /// In the queue's order, none before the offset that was asked for.
        messages: Vec<StoredMessage>,
        /// Behind them, and behind what is not wanted.
        to: i64,
    },
    /// The queue does not have what was asked for any more: what is before `to` is lost to this reader.
    Lost {
        /// The oldest message that is there.
        to: i64,
    },
    /// The queue ends before the offset that was asked for: it was made anew, or its broker has lost its end.
    Shorter {
        /// The oldest message that is there.
        first: i64,
        /// Where it ends.
        end: i64,
    },
}

/// Judges the answer of a master to a pull from `asked` on.
pub(crate) fn judge(asked: i64, answer: PullAnswer) -> Verdict {
    let (first, end) = (answer.min_offset, answer.max_offset);
    match answer.status {
        PullStatus::Found => {
            let mut messages = answer.messages;
            messages.retain(|message| message.queue_offset >= asked);
            let behind = messages.last().map_or(asked, |message| message.queue_offset + 1);
            Verdict::Go { messages, to: answer.next_offset.max(behind) }
        }
        // It skips what has no wanted tag, and also files that were deleted: then the queue begins later.
        PullStatus::RetryImmediately | PullStatus::OffsetMoved if asked < first => Verdict::Lost { to: first },
        PullStatus::RetryImmediately if answer.next_offset > asked => {
            Verdict::Go { messages: Vec::new(), to: answer.next_offset }
        }
        PullStatus::OffsetMoved if asked > end => Verdict::Shorter { first, end },
        // Also an offset that is within: a broker that is not ready yet.
        PullStatus::RetryImmediately | PullStatus::OffsetMoved | PullStatus::NotFound => Verdict::Stay,
    }
}

/// Where to go on in a queue that ended before the place: a minute before the newest message that was read from it, by
/// the broker's clock. What was stored since then is behind that, what was read is known by its id.
pub(crate) const OVERLAP_MS: i64 = 60_000;

/// The offset to go on at: what the broker found for that time, within what it has.
pub(crate) fn resume(found: i64, first: i64, end: i64) -> i64 {
    found.clamp(first.min(end), end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: PullStatus, next: i64, first: i64, end: i64) -> PullAnswer {
        PullAnswer {
            status,
            next_offset: next,
            min_offset: first,
            max_offset: end,
            suggested_broker_id: 0,
            messages: Vec::new(),
            remark: None,
        }
    }

    #[test]
    fn the_place_never_goes_back_or_over_what_is_there() {
        let go = |to| Verdict::Go { messages: vec![], to };
        for (asked, status, next, first, end, expected) in [
            (5, PullStatus::Found, 9, 0, 9, go(9)),
            (5, PullStatus::Found, 2, 0, 9, go(5)),
            (5, PullStatus::NotFound, 0, 0, 5, Verdict::Stay),
            (5, PullStatus::NotFound, 5, 0, 5, Verdict::Stay),
            (5, PullStatus::RetryImmediately, 8, 0, 9, go(8)),
            (5, PullStatus::RetryImmediately, 5, 0, 9, Verdict::Stay),
            (5, PullStatus::RetryImmediately, 2, 0, 9, Verdict::Stay),
            (5, PullStatus::RetryImmediately, 8, 7, 9, Verdict::Lost { to: 7 }),
            (5, PullStatus::OffsetMoved, 7, 7, 9, Verdict::Lost { to: 7 }),
            (5, PullStatus::OffsetMoved, 3, 0, 3, Verdict::Shorter { first: 0, end: 3 }),
            (5, PullStatus::OffsetMoved, 0, 0, 9, Verdict::Stay),
        ] {
            assert_eq!(judge(asked, answer(status, next, first, end)), expected, "{asked} {status:?} {next}");
        }
    }

    #[test]
    fn it_resumes_within_the_queue() {
        assert_eq!(resume(4, 2, 9), 4);
        assert_eq!(resume(0, 2, 9), 2);
        assert_eq!(resume(12, 2, 9), 9);
        assert_eq!(resume(-1, 0, 0), 0);
    }
}
