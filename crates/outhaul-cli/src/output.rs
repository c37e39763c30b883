//! Standard output: data and nothing else.

use std::io::Write;

use serde::Serialize;

use crate::codes;
use crate::failure::Failure;

/// A text as one line: characters that would command a terminal, or begin another line, are shown by their codes.
/// Applications choose ids, keys and reasons.
pub fn plain(text: impl std::fmt::Display) -> String {
    let text = text.to_string();
    if !text.contains(|c: char| c.is_control() && c != '\t') {
        return text;
    }
    let shown = |c: char| if c.is_control() && c != '\t' { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

/// Writes a line, as [`plain`].
///
/// # Errors
/// Nobody reads any more, or the file that takes it is full.
pub fn line(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", plain(text)).and_then(|()| out.flush()).map_err(failed)
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

/// Writes several lines at once, each as [`plain`].
///
/// # Errors
/// As [`line`].
pub fn lines<T: std::fmt::Display>(texts: impl IntoIterator<Item = T>) -> Result<(), Failure> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for text in texts {
        writeln!(out, "{}", plain(text)).map_err(failed)?;
    }
    out.flush().map_err(failed)
}

fn failed(e: std::io::Error) -> Failure {
    Failure::new(&codes::INPUT_OUTPUT, format!("writing to standard output: {e}"))
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn nothing_commands_a_terminal_or_begins_a_line() {
        assert_eq!(plain("a\u{1b}[31mRED\nOUT-1001 x\u{9b}2J\té"), "a\\u{1b}[31mRED\\nOUT-1001 x\\u{9b}2J\té");
        assert_eq!(plain("ordinary – text"), "ordinary – text");
    }
}
