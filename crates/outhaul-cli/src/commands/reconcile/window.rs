//! Which times are asked for.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::arguments::{Point, Reconcile};
use crate::codes;
use crate::failure::Failure;

/// How far clocks of databases, brokers and this machine may be apart.
pub(super) const CLOCK_MARGIN_MS: i64 = 3_600_000;

/// From a time on, before another, milliseconds since 1970-01-01 UTC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) from_ms: Option<i64>,
    to_ms: i64,
    /// When it began.
    pub(super) now_ms: i64,
}

impl Window {
    pub(super) fn of(a: &Reconcile) -> Result<Self, Failure> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now_ms = i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
        let bad = |what: &str| Err(Failure::new(&codes::BAD_VALUE, what));
        let from_ms = match a.from {
            Some(Point::Time(us)) => Some(us.div_euclid(1_000)),
            Some(Point::Beginning) | None => None,
            Some(_) => return bad("--from takes a moment or `beginning`"),
        };
        let to_ms = match a.to {
            Point::Time(us) => us.div_euclid(1_000),
            Point::Now => i64::MAX,
            _ => return bad("--to takes a moment or `now`"),
        };
        if from_ms.is_some_and(|from| from >= to_ms) {
            return bad("--to must lie behind --from");
        }
        Ok(Self { from_ms, to_ms, now_ms })
    }

    /// Whether a time is asked for. A time that nobody knows is.
    pub(super) fn contains(&self, at_ms: Option<i64>) -> bool {
        at_ms.is_none_or(|at| self.from_ms.is_none_or(|from| from <= at) && at < self.to_ms)
    }

    /// From when on a place is read that has clocks of its own. None: from its beginning.
    pub(super) fn read_from_ms(&self) -> Option<i64> {
        self.from_ms.map(|from| from.saturating_sub(CLOCK_MARGIN_MS))
    }
}
