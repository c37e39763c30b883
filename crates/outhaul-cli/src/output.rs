//! Standard output: data and nothing else.

use std::io::Write;

use serde::Serialize;

use crate::codes;
use crate::failure::Failure;

/// Writes a line.
///
/// # Errors
/// Nobody reads any more, or the file that takes it is full.
pub fn line(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(failed)
}

/// Writes a value as one line of JSON.
///
/// # Errors
/// As [`line`].
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text =
        serde_json::to_string(value).map_err(|e| Failure::new(&codes::INPUT_OUTPUT, format!("writing JSON: {e}")))?;
    line(text)
}

/// Writes several lines at once.
///
/// # Errors
/// As [`line`].
pub fn lines<T: std::fmt::Display>(texts: impl IntoIterator<Item = T>) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for text in texts {
        writeln!(out, "{text}").map_err(failed)?;
    }
    out.flush().map_err(failed)
}

fn failed(e: std::io::Error) -> Failure {
    Failure::new(&codes::INPUT_OUTPUT, format!("writing to standard output: {e}"))
}
