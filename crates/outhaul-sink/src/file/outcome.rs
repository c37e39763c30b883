//! From what the file system said to an outcome.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;

use outhaul_core::receipt::{Outcome, Reason};

use crate::codes::SinkCode;
use crate::sink::SinkError;

/// Why lines could not be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: SinkCode,
    /// One line.
    pub(super) text: String,
}

impl Failure {
    pub(super) fn new(code: SinkCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// A failure of the file system, met while doing `what` with `path`.
    pub(super) fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::new(code_of(error), format!("cannot {what} {}: {error}", path.display()))
    }

    /// What a send is answered with: it says nothing about the messages.
    pub(super) fn outcome(&self) -> Outcome {
        Outcome::DestinationDown(Reason::new(self.code.code(), self.text.clone()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

impl From<Failure> for SinkError {
    fn from(failure: Failure) -> Self {
        Self::of(failure.code, failure.text)
    }
}

fn code_of(error: &io::Error) -> SinkCode {
    match error.kind() {
        ErrorKind::NotFound => SinkCode::FolderMissing,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => SinkCode::NotPermitted,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => SinkCode::DiskFull,
        ErrorKind::NotADirectory | ErrorKind::IsADirectory | ErrorKind::InvalidFilename => SinkCode::NotAFile,
        ErrorKind::BrokenPipe => SinkCode::ReaderGone,
        _ => SinkCode::FileFailed,
    }
}

/// No answer came from the thread that writes: the lines may be in the file or not.
pub(super) fn no_answer() -> Outcome {
    let text = "the thread that writes the file ended before it answered";
    Outcome::Unknown(Reason::new(SinkCode::WriterStopped.code(), text))
}

/// The message cannot be written as it is.
pub(super) fn rejected(why: impl fmt::Display) -> Outcome {
    Outcome::Rejected(Reason::new(SinkCode::MessageDefect.code(), why.to_string()))
}

/// An earlier message of the key was not written.
pub(super) fn behind() -> Outcome {
    let text = "an earlier message of the same key was not written";
    Outcome::Retry { reason: Reason::new(SinkCode::BehindEarlier.code(), text), after_ms: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_says_has_a_code() {
        for (errno, code) in [
            (2, SinkCode::FolderMissing), // ENOENT
            (13, SinkCode::NotPermitted), // EACCES
            (1, SinkCode::NotPermitted),  // EPERM
            (30, SinkCode::NotPermitted), // EROFS
            (28, SinkCode::DiskFull),     // ENOSPC
            (122, SinkCode::DiskFull),    // EDQUOT
            (27, SinkCode::DiskFull),     // EFBIG
            (20, SinkCode::NotAFile),     // ENOTDIR
            (21, SinkCode::NotAFile),     // EISDIR
            (36, SinkCode::NotAFile),     // ENAMETOOLONG
            (32, SinkCode::ReaderGone),   // EPIPE
            (5, SinkCode::FileFailed),    // EIO
            (116, SinkCode::FileFailed),  // ESTALE
        ] {
            assert_eq!(code_of(&io::Error::from_raw_os_error(errno)), code, "{errno}");
        }
    }
}
