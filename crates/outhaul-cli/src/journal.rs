//! The log: standard error, text or JSON.

use tracing_subscriber::EnvFilter;

use crate::arguments::{Global, LogFormat};
use crate::codes;
use crate::failure::Failure;

/// Starts the log.
///
/// # Errors
/// `--log-level` cannot be read.
pub fn start(global: &Global, standard: &str) -> Result<(), Failure> {
    let level = global.log_level.as_deref().unwrap_or(standard);
    let filter = EnvFilter::try_new(level).map_err(|e| {
        Failure::new(&codes::BAD_VALUE, format!("--log-level {level:?}: {e}"))
            .remedy("use error, warn, info, debug, trace, or pairs such as `warn,outhaul_relay=debug`")
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    match global.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
    Ok(())
}
