//! What can go wrong with a database, and what to do about it.

use std::fmt;

/// What kind of failure it was. Decides what the relay does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection, a connection lost, a server that shuts down: try again with back-off.
    Unavailable,
    /// A limit ran out: statement, lock wait, connection pool. Try again.
    Timeout,
    /// Deadlock, serialisation failure: nothing was written, try again at once.
    Conflict,
    /// The answer to a COMMIT was lost: written or not, nobody knows until asked.
    CommitUnknown,
    /// User name or password refused.
    Authentication,
    /// A right is missing.
    Permission,
    /// A table or column that Outhaul needs is not there.
    NotInitialised,
    /// The database was made by another version, with another shard count or another mode.
    WrongSchema,
    /// A replica, a read-only session or server: not the writable primary.
    ReadOnly,
    /// A value or packet is larger than the server takes.
    TooLarge,
    /// The disk or tablespace is full.
    Full,
    /// Stored bytes that cannot be read: a codec of a newer version, a damaged value.
    Corrupt,
    /// The URL or an option cannot be used.
    Configuration,
    /// Not in this build, or not something that this database can do.
    Unsupported,
    /// Rows of the outbox table are in a shard that there is not: nobody delivers them.
    StrayRows,
    /// The tables are those of an earlier version.
    Outdated,
    /// The number of shards is being changed, or a change was broken off.
    Resharding,
    /// The rows of a status table are being moved into the outbox table, and this does not fit to it.
    Migrating,
    /// Anything else the server said.
    Other,
}

impl StoreErrorKind {
    /// The code of this kind: `outhaul explain CODE` prints its page.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Unavailable => "OUT-1001",
            Self::Timeout => "OUT-1002",
            Self::Conflict => "OUT-1003",
            Self::CommitUnknown => "OUT-1004",
            Self::Authentication => "OUT-1005",
            Self::Permission => "OUT-1006",
            Self::NotInitialised => "OUT-1007",
            Self::WrongSchema => "OUT-1008",
            Self::ReadOnly => "OUT-1009",
            Self::TooLarge => "OUT-1010",
            Self::Full => "OUT-1011",
            Self::Corrupt => "OUT-1012",
            Self::Configuration => "OUT-1013",
            Self::Unsupported => "OUT-1014",
            Self::Other => "OUT-1015",
            Self::StrayRows => "OUT-1016",
            Self::Outdated => "OUT-1030",
            Self::Resharding => "OUT-1031",
            Self::Migrating => "OUT-1032",
        }
    }

    /// One line on what to do.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Unavailable => {
                "check that the database runs and that host and port are right; a relay tries again by itself, a command is to be run again"
            }
            Self::Timeout => {
                "look for a long lock or an overloaded server; a relay tries again by itself, a command is to be run again"
            }
            Self::Conflict => "nothing to do: a relay tries again by itself, a command is to be run again",
            Self::CommitUnknown => "nothing to do: the relay asks the database whether it was applied",
            Self::Authentication => "check user name and password in the URL",
            Self::Permission => "run `outhaul init --print` and apply the GRANTs for the relay's user",
            Self::NotInitialised => {
                "run `outhaul init --db URL`, or hand the output of `outhaul init --print` to your DBA"
            }
            Self::WrongSchema => {
                "compare the tables with what `outhaul init --print` makes, or use the relay version that made them"
            }
            Self::ReadOnly => "point the relay at the writable primary",
            Self::TooLarge => "raise the server's packet limit, or lower max_message_bytes",
            Self::Full => "free space on the database server; nothing is lost meanwhile",
            Self::Corrupt => "use a relay version that knows the codec; if none does, restore the row from a backup",
            Self::Configuration => "correct the URL or option that the message names",
            Self::Unsupported => "use a build that has it, see `outhaul --version`",
            Self::StrayRows => {
                "correct what names a shard in its INSERT, insert the rows again without one, then delete them"
            }
            Self::Outdated => {
                "run `outhaul init --upgrade`, or hand the output of `outhaul init --upgrade --print` to your DBA; relays of the earlier version may run meanwhile"
            }
            Self::Resharding => {
                "run `outhaul reshard` again with the same number of shards: it goes on; nothing is lost meanwhile"
            }
            Self::Migrating => {
                "set mode = \"migrate\" for every relay of the outbox; `outhaul migrate` shows how far it is, --finish ends it, --back undoes it"
            }
            Self::Other => "read the server's message; if it persists, report it with `outhaul validate --json`",
        }
    }

    /// Whether trying again later can help without anybody doing anything.
    pub const fn passes(self) -> bool {
        matches!(
            self,
            Self::Unavailable
                | Self::Timeout
                | Self::Conflict
                | Self::CommitUnknown
                | Self::Full
                | Self::ReadOnly
                | Self::Other
        )
    }
}

/// A failure of a database, as one line without secrets: URLs are never printed with their password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreError {
    /// What kind.
    pub kind: StoreErrorKind,
    /// One line: what was tried and what the server said.
    pub message: String,
}

impl StoreError {
    /// An error of a kind with its line.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The same error, with what was being done put in front.
    #[must_use]
    pub fn while_doing(mut self, what: &str) -> Self {
        self.message = format!("{what}: {}", self.message);
        self
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.code(), self.message)
    }
}

impl std::error::Error for StoreError {}
