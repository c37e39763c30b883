//! Requests and their answers, one file each.

use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;

/// A request that knows its answer.
pub trait Request {
    /// What a successful answer holds.
    type Answer;

    /// What is asked.
    const CODE: RequestCode;

    /// The request as a command, unsigned and without an opaque.
    ///
    /// # Errors
    /// [`Error::Message`] if what is to be sent breaks a rule of the protocol.
    fn command(&self) -> Result<Command, Error>;

    /// Reads the answer.
    ///
    /// # Errors
    /// [`Error::Refused`] if its code is none of this request's results; [`Error::Answer`] if it lacks something.
    fn answer(&self, answer: Command) -> Result<Self::Answer, Error>;
}
