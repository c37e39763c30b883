//! Counters and histograms that cost an atomic addition, and the text that Prometheus reads
//! (the exposition format, version 0.0.4).
//!
//! There is no registry: whoever owns the numbers writes them into a [`Page`] when it is asked, each under a [`Family`]
//! that is known beforehand, so that documentation, alert rules and dashboards can be compared with what there is.

mod histogram;
mod page;

use std::sync::atomic::{AtomicU64, Ordering};

pub use histogram::{Buckets, Histogram, Tally};
pub use page::Page;

/// What a family's values mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only rises, from the start of the process.
    Counter,
    /// It is what it is now.
    Gauge,
    /// How many values were at most how large.
    Histogram,
}

impl Kind {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A metric: what all its time series have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name, with its unit (`…_seconds`, `…_bytes`), that of a counter with `_total`.
    pub name: &'static str,
    /// What its values mean.
    pub kind: Kind,
    /// Names of labels. Their values come from the configuration or from words that are known, never from messages.
    pub labels: &'static [&'static str],
    /// One line.
    pub help: &'static str,
}

/// A number that rises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// What it has come to.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
