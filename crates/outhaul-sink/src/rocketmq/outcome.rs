//! From what a broker said, or did not say, to an outcome. The table is rocketmq.md B.7 with the corrections of F.4.

use outhaul_core::receipt::{AckLevel, Outcome, Reason, Receipt};
use rocketmq_remoting::ResponseCode;
use rocketmq_remoting::error::Error;
use rocketmq_remoting::request::SendAnswer;

use super::broker::{Facts, is_account_problem};
use crate::codes::SinkCode;
use crate::sink::SinkError;

/// What a failed request means for the messages that were in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing was stored, and nobody's messages would be now.
    Down(Reason),
    /// Flow control: nothing was stored.
    Busy(Reason),
    /// Nothing was stored: something about the topic or the rights to it.
    Topic(Reason),
    /// The broker does not take one of the messages; nothing was stored.
    Message(Reason),
    /// It may have been stored.
    Unknown(Reason),
    /// It may have been stored, though most likely the broker failed before: said by the broker itself.
    Failed(Reason),
}

/// Judges an error of a send.
pub(super) fn judge(error: &Error, broker: &Facts) -> Verdict {
    let text = || format!("broker {}: {}", broker.name, describe(error));
    let reason = |code: SinkCode| Reason::new(code.code(), text());
    match error {
        Error::Refused { code, remark, .. } => refused(*code, remark.as_deref().unwrap_or_default(), error, &reason),
        Error::Reconnected { .. } => Verdict::Down(Reason::new(
            SinkCode::RocketMqRenewed.code(),
            format!("connection to broker {} was renewed: what it has is looked at first", broker.name),
        )),
        Error::Message(_) | Error::Unsendable(_) => Verdict::Message(reason(SinkCode::MessageDefect)),
        _ if error.may_have_been_done() => Verdict::Unknown(reason(SinkCode::RocketMqUnanswered)),
        Error::Tls { .. } => Verdict::Down(reason(SinkCode::RocketMqTls)),
        _ => Verdict::Down(reason(SinkCode::RocketMqUnreachable)),
    }
}

fn refused(code: ResponseCode, remark: &str, error: &Error, reason: &dyn Fn(SinkCode) -> Reason) -> Verdict {
    use ResponseCode as R;
    if is_account_problem(error) {
        return Verdict::Down(reason(SinkCode::RocketMqAccount));
    }
    let says = |words: &str| remark.contains(words);
    match code {
        R::SystemBusy | R::FlowControl => Verdict::Busy(reason(SinkCode::RocketMqBusy)),
        R::ServiceNotAvailable | R::GoAway | R::NotLeaderForQueue | R::SlaveNotAvailable => {
            Verdict::Down(reason(SinkCode::RocketMqRefused))
        }
        R::RequestCodeNotSupported | R::VersionNotSupported => Verdict::Down(reason(SinkCode::RocketMqRefused)),
        R::MessageIllegal => Verdict::Message(reason(SinkCode::RocketMqIllegal)),
        R::InvalidParameter if says("queueId") => Verdict::Topic(reason(SinkCode::RocketMqTopic)),
        R::InvalidParameter => Verdict::Message(reason(SinkCode::RocketMqIllegal)),
        R::NoPermission => Verdict::Topic(reason(SinkCode::RocketMqRights)),
        R::TopicNotExist | R::SubscriptionGroupNotExist => Verdict::Topic(reason(SinkCode::RocketMqTopic)),
        // Code 1, with a remark that tells more.
        R::SystemError if says("PC_SYNCHRONIZED") || says("broker busy") => {
            Verdict::Busy(reason(SinkCode::RocketMqBusy))
        }
        R::SystemError if says("message body size exceeded") || says("message size exceeded") => {
            Verdict::Message(reason(SinkCode::RocketMqTooLarge))
        }
        R::SystemError if says("queueId") && says("illegal") => Verdict::Topic(reason(SinkCode::RocketMqTopic)),
        R::SystemError if says("in-sync replicas not enough") => Verdict::Down(reason(SinkCode::RocketMqRefused)),
        R::SystemError if says("No default permission") || says("AclException") || says("admin permission") => {
            Verdict::Topic(reason(SinkCode::RocketMqRights))
        }
        _ => Verdict::Failed(reason(SinkCode::RocketMqFailed)),
    }
}

/// An error with its causes in one line.
pub(super) fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let words = next.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = next.source();
    }
    text
}

/// Why the destination cannot be started, or looked at.
pub(super) fn start_error(what: &str, error: &Error) -> SinkError {
    let code = match error {
        Error::Tls { .. } => SinkCode::RocketMqTls,
        _ if is_account_problem(error) => SinkCode::RocketMqAccount,
        Error::Refused { code: ResponseCode::NoPermission, .. } => SinkCode::RocketMqRights,
        Error::Reconnected { .. } => SinkCode::RocketMqRenewed,
        Error::Refused { .. } => SinkCode::RocketMqRefused,
        _ => SinkCode::RocketMqUnreachable,
    };
    SinkError::of(code, format!("{what}: {}", describe(error)))
}

/// The outcome of the message at `index` of those that were stored together.
pub(super) fn stored(
    answer: &SendAnswer,
    index: usize,
    place: (&str, &str),
    delayed: bool,
    broker: &Facts,
    sent_at_us: i64,
) -> Outcome {
    let level = broker.level_of(answer.status);
    // A topic that 5.x stores as batches has one id for all.
    let Some(id) = answer.offset_ids.get(index).or(answer.offset_ids.first()) else {
        return Outcome::Unknown(Reason::new(
            SinkCode::RocketMqUnanswered.code(),
            format!("broker {}: the answer has no id", broker.name),
        ));
    };
    let offset = answer.queue_offset.saturating_add(i64::try_from(index).unwrap_or_default());
    let (broker_name, topic) = place;
    let mut detail = String::with_capacity(96);
    let queue = (broker_name, topic, answer.queue_id);
    let _ = super::place::write(&mut detail, answer.status, queue, (!delayed).then_some(offset), id); // It takes all.
    Outcome::Delivered(Receipt { sent_at_us, level, attempts: 1, detail })
}

/// An earlier message of the key was not delivered.
pub(super) fn behind() -> Outcome {
    let text = "an earlier message of the same key was not delivered";
    Outcome::Retry { reason: Reason::new(SinkCode::BehindEarlier.code(), text), after_ms: None }
}

/// The word for a level that is below what is demanded.
pub(super) fn is_below(level: AckLevel, demanded: Option<AckLevel>) -> bool {
    demanded.is_some_and(|least| level < least)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rocketmq_remoting::RequestCode;

    use super::*;

    const REQUEST: RequestCode = RequestCode::SendBatchMessage;

    fn word(verdict: &Verdict) -> &'static str {
        match verdict {
            Verdict::Down(_) => "down",
            Verdict::Busy(_) => "busy",
            Verdict::Topic(_) => "topic",
            Verdict::Message(_) => "message",
            Verdict::Unknown(_) => "unknown",
            Verdict::Failed(_) => "failed",
        }
    }

    fn of(code: ResponseCode, remark: &str) -> &'static str {
        let error = Error::Refused { request: REQUEST, code, remark: Some(remark.into()) };
        word(&judge(&error, &Facts::unknown("a")))
    }

    #[test]
    fn every_answer_has_its_verdict() {
        use ResponseCode as R;
        for (code, remark, expected) in [
            (R::SystemBusy, "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while", "busy"),
            (R::SystemBusy, "[REJECTREQUEST]system busy", "busy"),
            (R::FlowControl, "", "busy"),
            (R::SystemError, "[PC_SYNCHRONIZED]broker busy, start flow control for a while", "busy"),
            (R::ServiceNotAvailable, "service not available now.", "down"),
            (R::GoAway, "", "down"),
            (R::NotLeaderForQueue, "", "down"),
            (R::SystemError, "in-sync replicas not enough", "down"),
            (R::SystemError, "org.apache.rocketmq.acl.common.AclException: No accessKey is configured", "down"),
            (
                R::SystemError,
                "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=x",
                "down",
            ),
            (R::NoPermission, "User:x is not found.", "down"),
            (R::NoPermission, "check signature failed.", "down"),
            (R::NoPermission, "User:app has no permission to access Topic:t, no matched policies.", "topic"),
            (R::SystemError, "org.apache.rocketmq.acl.common.AclException: No default permission for topic t", "topic"),
            (R::NoPermission, "the broker[1.2.3.4] sending message is forbidden", "topic"),
            (R::TopicNotExist, "topic[x] not exist", "topic"),
            (R::SystemError, "request queueId[9] is illegal, TopicConfig...", "topic"),
            (R::InvalidParameter, "request queueId[9] is illegal", "topic"),
            (R::MessageIllegal, "the message is illegal, maybe msg body or properties length not matched", "message"),
            (R::SystemError, "message body size exceeded, msg body size: 9, maxMessageSize: 8", "message"),
            (R::SystemError, "UNKNOWN_ERROR DEFAULT", "failed"),
            (R::Unknown(9_999), "?", "failed"),
        ] {
            assert_eq!(of(code, remark), expected, "{code} {remark}");
        }
    }

    #[test]
    fn only_what_was_handed_to_the_socket_is_unknown() {
        let timed_out = |sent| Error::TimedOut { request: REQUEST, after: Duration::from_secs(1), sent };
        let lost = |sent| Error::ConnectionLost { request: REQUEST, sent };
        let no_host = Error::Connect { address: "a:1".into(), source: std::io::Error::other("refused by somebody") };
        for (error, expected) in [
            (timed_out(true), "unknown"),
            (timed_out(false), "down"),
            (lost(true), "unknown"),
            (lost(false), "down"),
            (no_host, "down"),
            (Error::Reconnected { expected: 1, now: 2 }, "down"),
            (Error::Route { topic: "t".into(), problem: "no broker" }, "down"),
            (Error::Closed, "down"),
            (Error::Answer { request: REQUEST, what: "msgId" }, "unknown"),
        ] {
            assert_eq!(word(&judge(&error, &Facts::unknown("a"))), expected, "{error}");
        }
        let no_host = Error::Connect { address: "a:1".into(), source: std::io::Error::other("refused by somebody") };
        assert_eq!(describe(&no_host), "cannot connect to a:1: refused by somebody");
    }
}
