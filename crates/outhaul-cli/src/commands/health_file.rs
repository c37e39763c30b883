//! The file that a daemon writes every second for probes.

use std::path::{Path, PathBuf};

use serde::Serialize;

/// Whole, or not at all: a probe never reads half of it.
pub(super) fn write(file: &Path, state: &impl Serialize) {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    let written = serde_json::to_string(state)
        .map_err(std::io::Error::from)
        .and_then(|text| std::fs::write(&beside, text + "\n"))
        .and_then(|()| std::fs::rename(&beside, file));
    if let Err(e) = written {
        tracing::warn!("the health file cannot be written: {e}");
    }
}
