//! Messages that a lane cannot deliver now, set aside with their reason.

use std::sync::Arc;

use crate::message::{Message, Position, ShardId};

/// Why a parked message is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParkedState {
    /// Tried and to be tried again at its due time.
    Retrying,
    /// Behind another parked message of its key.
    Waiting,
    /// Will not be tried again unless an operator says so.
    Dead,
}

impl ParkedState {
    /// The word for it in tables, output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retrying => "retrying",
            Self::Waiting => "waiting",
            Self::Dead => "dead",
        }
    }

    /// Reads [`ParkedState::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Retrying, Self::Waiting, Self::Dead].into_iter().find(|s| s.as_str() == word)
    }
}

/// A parked message without its content: what a lane keeps in memory of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedEntry {
    /// Destination by name; `-` for a message that no route names.
    pub destination: String,
    /// Shard.
    pub shard: ShardId,
    /// Position.
    pub position: Position,
    /// Key, if any.
    pub key: Option<String>,
    /// State.
    pub state: ParkedState,
    /// Sends that failed.
    pub attempts: u32,
    /// When to try again, microseconds since 1970-01-01 UTC, relay's clock. Zero unless `Retrying`.
    pub due_at_us: i64,
    /// Code of the last failure, or empty.
    pub error_code: String,
    /// Text of the last failure, or empty.
    pub error_text: String,
    /// First failure, microseconds since 1970-01-01 UTC, relay's clock.
    pub first_failed_at_us: i64,
    /// Last failure, microseconds since 1970-01-01 UTC, relay's clock.
    pub last_failed_at_us: i64,
}

/// A change to the parked table that a checkpoint makes.
#[derive(Clone, Debug, PartialEq)]
pub enum ParkedWrite {
    /// Insert the row. `message` is stored as a chunk of one ([`crate::chunk`]). If the payload was too large to be
    /// fetched, the server fills `oversize_payload` of the row by INSERT … SELECT from the outbox row, before it is
    /// deleted.
    Insert {
        /// The row.
        entry: ParkedEntry,
        /// The message.
        message: Arc<Message>,
    },
    /// Set state, attempts, due time and error of an existing row. Where the code is empty, its code and text stay.
    Update(ParkedEntry),
    /// The same, and its key and content: an operator has edited it. `oversize_payload` goes.
    Replace {
        /// The row.
        entry: ParkedEntry,
        /// The message as it is to be delivered.
        message: Arc<Message>,
    },
    /// Delete the row: the message was delivered after all, or an operator has skipped it. The receipt, or who skipped
    /// it, is in the same checkpoint.
    Remove {
        /// Destination by name.
        destination: String,
        /// Shard.
        shard: ShardId,
        /// Position.
        position: Position,
    },
}
