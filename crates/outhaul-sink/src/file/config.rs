//! Keys of a destination of kind `file`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::settings::{Key, read, refuse};
use crate::sink::SinkError;

/// When written lines are brought to stable storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fsync {
    /// Before each batch is acknowledged: level `flushed`.
    #[default]
    Batch,
    /// Every `fsync_interval_ms`: level `received`.
    Interval,
    /// When the operating system sees fit: level `received`.
    None,
}

/// Keys of a destination of kind `file`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileConfig {
    /// Where the lines go; `-` is standard output.
    pub path: PathBuf,
    /// When lines are flushed.
    #[serde(default)]
    pub fsync: Fsync,
    /// With `fsync = "interval"`: milliseconds between two flushes, 1 to 60,000.
    #[serde(default = "default_interval_ms")]
    pub fsync_interval_ms: u64,
    /// Bytes above which the file is put aside; 0: never.
    #[serde(default)]
    pub rotate_bytes: u64,
    /// Whether the file is put aside when a day (UTC) is over.
    #[serde(default)]
    pub rotate_daily: bool,
}

const fn default_interval_ms() -> u64 {
    1000
}

/// The smallest `rotate_bytes`: below it, a folder would fill with files of a line each.
const MIN_ROTATE_BYTES: u64 = 1024;

/// The keys, for reference pages.
pub const KEYS: [Key; 5] = [
    Key { name: "path", default: None, help: "file that lines are appended to; \"-\" is standard output" },
    Key {
        name: "fsync",
        default: Some("\"batch\""),
        help: "when lines are flushed to the disk: \"batch\" (before each acknowledgement, level flushed), \
               \"interval\" or \"none\" (level received)",
    },
    Key {
        name: "fsync_interval_ms",
        default: Some("1000"),
        help: "with fsync = \"interval\": milliseconds between two flushes, 1 to 60000",
    },
    Key {
        name: "rotate_bytes",
        default: Some("0"),
        help: "size in bytes above which the file is renamed to PATH.YYYYMMDD-NNNN and a new one begun, at least 1024; \
               0: never",
    },
    Key {
        name: "rotate_daily",
        default: Some("false"),
        help: "whether the file is renamed in the same way when a day (UTC) is over",
    },
];

/// Keys of a destination of kind `stdout`: none.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StdoutConfig {}

impl FileConfig {
    /// A file with the defaults of every key.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            fsync: Fsync::default(),
            fsync_interval_ms: default_interval_ms(),
            rotate_bytes: 0,
            rotate_daily: false,
        }
    }

    /// Standard output.
    pub fn stdout() -> Self {
        Self::new("-")
    }

    /// Whether the lines go to standard output.
    pub fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }

    /// Reads and checks the keys of the destination called `name`.
    ///
    /// # Errors
    /// [`SinkCode::Settings`](crate::SinkCode::Settings).
    pub fn read(name: &str, settings: &Value) -> Result<Self, SinkError> {
        let config: Self = read(name, settings, &KEYS)?;
        match config.fault() {
            Some(fault) => Err(refuse(name, &fault)),
            None => Ok(config),
        }
    }

    fn fault(&self) -> Option<String> {
        if self.path.as_os_str().is_empty() {
            Some("`path` is empty".into())
        } else if !(1..=60_000).contains(&self.fsync_interval_ms) {
            Some("`fsync_interval_ms` must be 1 to 60000".into())
        } else if (1..MIN_ROTATE_BYTES).contains(&self.rotate_bytes) {
            Some(format!("`rotate_bytes` must be 0 or at least {MIN_ROTATE_BYTES}"))
        } else if self.is_stdout() && (self.rotate_bytes > 0 || self.rotate_daily) {
            Some("standard output cannot be rotated: leave `rotate_bytes` and `rotate_daily` out".into())
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_keys_is_what_is_read() {
        let Value::Object(fields) = serde_json::to_value(FileConfig::new("x")).unwrap() else { panic!("an object") };
        assert_eq!(fields.len(), KEYS.len());
        for key in KEYS {
            let value = fields.get(key.name).unwrap_or_else(|| panic!("{}", key.name));
            assert_eq!(key.default.unwrap_or("\"x\""), value.to_string(), "{}", key.name);
        }
    }
}
