//! RESUME_CHECK_HALF_MESSAGE. Source: `ResumeCheckHalfMessageRequestHeader`, `AdminBrokerProcessor` of RocketMQ 4.9.4.

use super::{Acknowledged, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::OffsetId;

/// Puts a half message back that was given up after too many checks: the broker makes a new half of the copy in
/// TRANS_CHECK_MAX_TIME_TOPIC and checks it from the beginning. Done twice, there are two halfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResumeHalf {
    /// The id of the copy.
    pub offset_id: OffsetId,
}

impl Request for ResumeHalf {
    type Answer = Acknowledged;
    const CODE: RequestCode = RequestCode::ResumeCheckHalfMessage;

    fn command(&self) -> Result<Command, Error> {
        Ok(Command::request(Self::CODE).with("msgId", self.offset_id))
    }

    fn answer(&self, answer: Command) -> Result<Acknowledged, Error> {
        answer::acknowledged(Self::CODE, answer)
    }
}
