//! VIEW_MESSAGE_BY_ID. Source: `ViewMessageRequestHeader`, `QueryMessageProcessor` of RocketMQ 4.9.4.

use super::{Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;
use crate::message::{OffsetId, StoredMessage};

/// Reads one message by its place in the commit log. Ask the broker that its offset id names. A place where no message
/// begins is refused with SYSTEM_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewMessage {
    /// Bytes from the beginning of the commit log.
    pub commit_log_offset: i64,
}

impl From<OffsetId> for ViewMessage {
    fn from(id: OffsetId) -> Self {
        Self { commit_log_offset: id.commit_log_offset }
    }
}

impl Request for ViewMessage {
    type Answer = StoredMessage;
    const CODE: RequestCode = RequestCode::ViewMessageById;

    fn command(&self) -> Result<Command, Error> {
        Ok(Command::request(Self::CODE).with("offset", self.commit_log_offset))
    }

    fn answer(&self, answer: Command) -> Result<StoredMessage, Error> {
        answer::success(Self::CODE, &answer)?;
        StoredMessage::read(&mut answer.body.clone()).map_err(|source| Error::Stored { request: Self::CODE, source })
    }
}
