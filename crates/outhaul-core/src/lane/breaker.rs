//! Whether the part of a destination behind a slot is worth asking.

use crate::config::{Jitter, LaneLimits, Now};

/// State of a slot's breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Breaker {
    /// Sends flow.
    #[default]
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
    /// How many messages a batch may have that begins now: None if none may begin.
    pub(crate) fn allows(self, now: Now, limits: &LaneLimits) -> Option<usize> {
        const PROBE: usize = 10;
        match self {
            Self::Closed => Some(limits.max_batch),
            Self::Open { until_us, .. } if now.mono_us >= until_us => Some(PROBE.min(limits.max_batch)),
            Self::Open { .. } | Self::Probing { .. } => None,
        }
    }

    pub(crate) const fn is_closed(self) -> bool {
        matches!(self, Self::Closed)
    }

    /// The earliest moment at which something may be sent that is ready at `at_us`. None: only an answer decides.
    pub(crate) fn not_before(self, at_us: u64) -> Option<u64> {
        match self {
            Self::Closed => Some(at_us),
            Self::Open { until_us, .. } => Some(at_us.max(until_us)),
            Self::Probing { .. } => None,
        }
    }

    /// A batch begins.
    pub(crate) const fn begin(&mut self) {
        if let Self::Open { failures, .. } = *self {
            *self = Self::Probing { failures };
        }
    }

    /// The batch was not sent after all.
    pub(crate) const fn not_begun(&mut self, now: Now) {
        if let Self::Probing { failures } = *self {
            *self = Self::Open { until_us: now.mono_us, failures };
        }
    }

    /// The destination showed that it lives. Returns true if that closed the breaker.
    pub(crate) fn succeed(&mut self) -> bool {
        !matches!(std::mem::replace(self, Self::Closed), Self::Closed)
    }

    /// The destination is down. Returns true if that opened a closed breaker.
    pub(crate) fn fail(&mut self, now: Now, limits: &LaneLimits, jitter: &mut Jitter) -> bool {
        let failures = match *self {
            Self::Closed => 1,
            Self::Open { .. } => return false, // Nothing of the slot was under way.
            Self::Probing { failures } => failures.saturating_add(1),
        };
        let wait = jitter.backoff_ms(failures, limits.breaker_backoff_ms);
        *self = Self::Open { until_us: now.after_ms(wait), failures };
        failures == 1
    }
}
