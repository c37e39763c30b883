//! Whether a destination is worth asking.

use crate::config::{Jitter, LaneLimits, Now};

/// State of a lane's breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Breaker {
    /// Sends flow.
    Closed,
    /// Nothing is sent until the time, microseconds on the monotonic clock; then one small batch probes.
    Open {
        /// When to probe.
        until_us: u64,
        /// Failures in a row that led here.
        failures: u32,
    },
    /// The probe is under way.
    Probing {
        /// Failures in a row that led here.
        failures: u32,
    },
}

impl Breaker {
    /// How many batches may begin now, and how many messages in one: None if none.
    pub(super) fn allows(self, now: Now, in_flight: usize, limits: &LaneLimits) -> Option<usize> {
        const PROBE: usize = 10;
        match self {
            Self::Closed => Some(limits.max_batch),
            Self::Open { until_us, .. } if now.mono_us >= until_us && in_flight == 0 => {
                Some(PROBE.min(limits.max_batch))
            }
            Self::Open { .. } | Self::Probing { .. } => None,
        }
    }

    /// A batch begins.
    pub(super) const fn begin(&mut self) {
        if let Self::Open { failures, .. } = *self {
            *self = Self::Probing { failures };
        }
    }

    /// The destination showed that it lives. Returns true if that closed the breaker.
    pub(super) fn succeed(&mut self) -> bool {
        !matches!(std::mem::replace(self, Self::Closed), Self::Closed)
    }

    /// The destination is down. Returns true if that opened a closed breaker.
    pub(super) fn fail(&mut self, now: Now, limits: &LaneLimits, jitter: &mut Jitter) -> bool {
        let failures = match *self {
            Self::Closed => 1,
            // Answers of batches that were under way when the breaker opened say nothing new.
            Self::Open { .. } => return false,
            Self::Probing { failures } => failures.saturating_add(1),
        };
        let wait = jitter.backoff_ms(failures, limits.breaker_backoff_ms);
        *self = Self::Open { until_us: now.after_ms(wait), failures };
        failures == 1
    }
}
