//! The progress line on standard error: refreshed in place on a terminal, else a plain line now and then.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Time between two plain lines.
const PLAIN_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Progress {
    terminal: bool,
    last: Option<Instant>,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), last: None }
    }

    /// A line that stays.
    pub(crate) fn say(&mut self, line: &str) {
        self.write(&format!("{}{line}\n", if self.terminal { "\r\x1b[K" } else { "" }));
    }

    /// A line that the next one replaces.
    pub(crate) fn show(&mut self, line: &str) {
        if self.terminal {
            self.write(&format!("\r\x1b[K{line}"));
        } else if self.last.is_none_or(|last| last.elapsed() >= PLAIN_INTERVAL) {
            self.last = Some(Instant::now());
            self.write(&format!("{line}\n"));
        }
    }

    /// Leaves a clean line.
    pub(crate) fn done(&mut self) {
        if self.terminal {
            self.write("\r\x1b[K");
        }
    }

    fn write(&self, text: &str) {
        // Nobody may be looking; that is no reason to stop.
        let _shown = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.done();
    }
}
