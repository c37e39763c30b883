//! The only place of the engine that reads clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use outhaul_core::config::Now;

/// A monotonic clock that starts at zero, and the wall clock beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now(&self) -> Now {
        Now { mono_us: u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX), wall_us: wall_us() }
    }

    /// The moment at which the monotonic clock shows `mono_us`.
    pub(crate) fn at(&self, mono_us: u64) -> tokio::time::Instant {
        let start = tokio::time::Instant::from_std(self.start);
        start + std::time::Duration::from_micros(mono_us)
    }
}

/// Microseconds since 1970-01-01 UTC.
pub(crate) fn wall_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
}
