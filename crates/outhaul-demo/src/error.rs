//! Why the demo could not be shown.

use std::path::PathBuf;

use outhaul_store::StoreError;

/// Why the demo could not be shown. Numbers that come out wrong are no error, see [`crate::Outcome::holds`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DemoError {
    /// The folder named by `--dir` holds something.
    #[error("{0} is not empty")]
    NotEmpty(PathBuf),
    /// A file or folder cannot be used.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A database of the demo failed.
    #[error("{what}: {source}")]
    Database {
        /// What was being done.
        what: &'static str,
        /// What SQLite says.
        source: rusqlite::Error,
    },
    /// Outhaul's tables cannot be made.
    #[error("{0}")]
    Tables(#[from] StoreError),
    /// A process cannot be started or spoken to.
    #[error("{who}: {source}")]
    Process {
        /// Which part.
        who: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A process ended by itself.
    #[error("{who} ended by itself ({how}){said}")]
    Ended {
        /// Which part.
        who: String,
        /// Exit status.
        how: String,
        /// The last lines of its log, or nothing.
        said: String,
    },
    /// Something took longer than its limit.
    #[error("{what} took longer than {seconds} s{said}")]
    TooSlow {
        /// What.
        what: String,
        /// The limit.
        seconds: u64,
        /// The last lines of a log, or nothing.
        said: String,
    },
    /// The user asked to stop.
    #[error("interrupted; its processes are stopped")]
    Interrupted,
}

impl DemoError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    pub(crate) fn database(what: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Database { what, source }
    }

    pub(crate) fn process(who: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let who = who.into();
        move |source| Self::Process { who, source }
    }
}
