//! What one side of tens of millions of ids has and the other has not: exactly, and in bounded memory.
//!
//! ```text
//! expected ──▶ Side: buffer ──sorted──▶ runs ─┐
//!                                             ├─▶ merge ──▶ groups (an id, its records of both sides) ──▶ verdict
//! actual ────▶ Side: buffer ──sorted──▶ runs ─┘
//! ```
//!
//! Ids are compared byte by byte, never by a hash: there is no error to state. Runs lie in temporary files that have no
//! name any more while they are used, where the system allows that, so that nothing stays behind however the process ends.
//!
//! Blocking, single-threaded; no clock, no database.

mod merge;
mod record;
mod side;
mod spool;
mod verdict;

pub use merge::{Group, Half, compare};
pub use record::{Expectation, Place, Record};
pub use side::{MEMORY_MIN_BYTES, Side, Sorted};
pub use spool::Room;
pub use verdict::{Counts, Verdict, judge};

/// Longest id, bytes.
pub const ID_MAX_BYTES: usize = 1_024;
/// Longest content that a record carries along, bytes.
pub const CONTENT_MAX_BYTES: usize = 64 << 20;
