//! What can go wrong, and whether the broker may have done it nevertheless.

use std::time::Duration;

use crate::code::{RequestCode, ResponseCode};

pub use crate::codec::CodecError;
pub use crate::message::{MessageError, StoredError};

/// Any failure of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A command that the protocol cannot carry; nothing was sent.
    #[error("the request cannot be written: {0}")]
    Unsendable(#[source] CodecError),
    /// The peer sent bytes that are no frame. The connection that they came from is of no use any more.
    #[error("the peer sent what cannot be read: {0}")]
    Codec(#[source] CodecError),
    /// A message that breaks a rule or limit of the protocol; nothing was sent.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// No connection could be made; nothing was sent.
    #[error("cannot connect to {address}")]
    Connect {
        /// `host:port`.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// TLS settings are wrong, or the handshake failed; nothing was sent.
    #[error("TLS with {address}: {problem}")]
    Tls {
        /// `host:port`, or what the settings are for.
        address: String,
        /// Why.
        problem: String,
    },
    /// No answer within the request's limit.
    #[error("{request}: no answer within {} ms", after.as_millis())]
    TimedOut {
        /// What was asked.
        request: RequestCode,
        /// The limit.
        after: Duration,
        /// False if the limit ran out before the first byte was handed to the socket.
        sent: bool,
    },
    /// The connection ended before the answer came.
    #[error("{request}: the connection was lost{}", if *sent { " after the request was sent" } else { " before the request was sent" })]
    ConnectionLost {
        /// What was asked.
        request: RequestCode,
        /// False if the request was not handed to the socket as a whole: the peer cannot have read it.
        sent: bool,
    },
    /// The connection or client was closed by its owner; nothing was sent.
    #[error("closed")]
    Closed,
    /// The request was to go on one certain connection, and there is another one now; nothing was sent.
    #[error("the connection is number {now}, not {expected} as demanded")]
    Reconnected {
        /// The number of the connection that was demanded.
        expected: u64,
        /// The number of the current connection.
        now: u64,
    },
    /// The peer answered, and the answer is no.
    #[error("{request}: {code}{}", remark.as_deref().map(|r| format!(": {}", one_line(r))).unwrap_or_default())]
    Refused {
        /// What was asked.
        request: RequestCode,
        /// The answer's code.
        code: ResponseCode,
        /// The answer's explanation, as the peer wrote it.
        remark: Option<String>,
    },
    /// The peer answered yes, with an answer that lacks something or cannot be read.
    #[error("{request}: the answer has no usable {what}")]
    Answer {
        /// What was asked.
        request: RequestCode,
        /// The missing or unreadable part.
        what: &'static str,
    },
    /// The peer answered yes, with a stored message that cannot be read.
    #[error("{request}: {source}")]
    Stored {
        /// What was asked.
        request: RequestCode,
        /// Why.
        #[source]
        source: StoredError,
    },
    /// A topic has no broker or queue that could be used; nothing was sent.
    #[error("topic {topic}: {problem}")]
    Route {
        /// The topic.
        topic: String,
        /// What is missing.
        problem: &'static str,
    },
}

/// Brokers put hints on lines of their own.
fn one_line(remark: &str) -> String {
    remark.split(['\r', '\n']).map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

impl Error {
    /// True if the broker may have executed the request: sending it again can then do it twice.
    ///
    /// False is certain (rocketmq.md B.7, F.1): nothing was sent, or the broker's code says that it refused before it
    /// did anything. [`ResponseCode::SystemError`] and codes without a name count as uncertain.
    #[must_use]
    pub const fn may_have_been_done(&self) -> bool {
        match self {
            Self::Unsendable(_)
            | Self::Message(_)
            | Self::Connect { .. }
            | Self::Tls { .. }
            | Self::Closed
            | Self::Reconnected { .. }
            | Self::Route { .. } => false,
            Self::TimedOut { sent, .. } | Self::ConnectionLost { sent, .. } => *sent,
            Self::Codec(_) | Self::Answer { .. } | Self::Stored { .. } => true,
            Self::Refused { code, .. } => matches!(
                code,
                ResponseCode::Success
                    | ResponseCode::SystemError
                    | ResponseCode::TransactionFailed
                    | ResponseCode::FlushDiskTimeout
                    | ResponseCode::FlushSlaveTimeout
                    | ResponseCode::Unknown(_)
            ),
        }
    }

    /// The code with which the peer refused, if it did.
    #[must_use]
    pub const fn refused_with(&self) -> Option<ResponseCode> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: ResponseCode) -> Error {
        Error::Refused { request: RequestCode::EndTransaction, code, remark: Some("why".into()) }
    }

    #[test]
    fn an_error_is_one_line() {
        let remark = Some("no route\r\n\nSee a page for details.\n".into());
        let error = Error::Refused { request: RequestCode::EndTransaction, code: ResponseCode::TopicNotExist, remark };
        assert!(error.to_string().ends_with(": no route See a page for details."), "{error}");
    }

    #[test]
    fn what_may_have_been_done() {
        let request = RequestCode::SendMessageV2;
        for (error, expected) in [
            (Error::Closed, false),
            (Error::ConnectionLost { request, sent: false }, false),
            (Error::ConnectionLost { request, sent: true }, true),
            (Error::TimedOut { request, after: Duration::from_secs(3), sent: true }, true),
            (refused(ResponseCode::SystemBusy), false),
            (refused(ResponseCode::SlaveNotAvailable), false),
            (refused(ResponseCode::MessageIllegal), false),
            (refused(ResponseCode::IllegalOperation), false),
            (refused(ResponseCode::SystemError), true),
            (refused(ResponseCode::Unknown(999)), true),
            (Error::Answer { request, what: "msgId" }, true),
        ] {
            assert_eq!(error.may_have_been_done(), expected, "{error}");
        }
    }

    #[test]
    fn the_text_holds_code_and_remark() {
        assert_eq!(refused(ResponseCode::SystemBusy).to_string(), "END_TRANSACTION (37): SYSTEM_BUSY (2): why");
    }
}
