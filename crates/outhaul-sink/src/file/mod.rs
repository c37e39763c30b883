//! A file or standard output: one JSON object a line.
//!
//! A call of [`Sink::send`](crate::Sink::send) hands its messages to a thread of the sink's own, so that a slow disk
//! never holds a runtime thread. The thread takes all batches that wait (of several shards), makes one buffer of them,
//! writes it by one call and flushes it once. What makes lines whole:
//!
//! - a batch that could not be written completely is cut off again before anything else is written;
//! - a last line without its newline, left by a killed process, is moved to `PATH.torn`: it was never acknowledged;
//! - each write happens under the file's advisory lock, so several relays of one machine may share a file.

pub mod config;
mod date;
mod journal;
mod json;
mod line;
mod outcome;
mod rotation;
mod sink;
mod stream;
mod worker;

pub use config::{FileConfig, Fsync, StdoutConfig};
pub use date::push_rfc3339;
pub use json::{embeddable, is_map_of_strings, push_on_one_line};
pub use line::{push_base64, push_string};
pub use sink::FileSink;
