//! When a file is put aside, and under which name.

use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::config::FileConfig;
use super::date::{Date, day_of_seconds};

/// Which files are put aside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rotation {
    bytes: u64,
    daily: bool,
}

impl Rotation {
    pub(super) const fn of(config: &FileConfig) -> Self {
        Self { bytes: config.rotate_bytes, daily: config.rotate_daily }
    }

    /// Whether the file has to be put aside before `more` bytes are appended at `now`. An empty file never is.
    pub(super) fn is_due(self, file: &Metadata, more: u64, now: SystemTime) -> bool {
        let full = self.bytes > 0 && file.len().saturating_add(more) > self.bytes;
        let old = self.daily && file.modified().is_ok_and(|written| day_of(written) < day_of(now));
        file.len() > 0 && (full || old)
    }
}

/// The first free name for a file that is put aside: `PATH.YYYYMMDD-NNNN`, by the day (UTC) of its last line. Sorted by
/// name, the files are in the order of their lines.
pub(super) fn name_for(path: &Path, file: &Metadata) -> io::Result<PathBuf> {
    let base = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let day = Date::of_days(day_of(file.modified()?)).compact();
    let stem = format!("{base}.{day}-");
    let mut last = 0u64;
    for entry in std::fs::read_dir(folder(path))? {
        let name = entry?.file_name();
        let number = name.to_string_lossy().strip_prefix(&stem).and_then(|n| n.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    Ok(path.with_file_name(format!("{stem}{:04}", last.saturating_add(1))))
}

/// The folder that holds a file.
pub(super) fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn day_of(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => day_of_seconds(since.as_secs() as i64),
        Err(before) => day_of_seconds(-(before.duration().as_secs() as i64)),
    }
}
