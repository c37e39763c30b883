//! How many values were at most how large, by fixed limits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Limits of a histogram, in the unit in which values are given.
#[derive(Clone, Copy, Debug)]
pub struct Buckets {
    /// Upper limits, included, rising. What exceeds the last is counted too.
    pub limits: &'static [u64],
    /// So many of the unit in which values are given are one of the unit that is shown: 1,000,000 for microseconds that
    /// are shown as seconds.
    pub scale: u64,
}

impl Buckets {
    /// Microseconds, shown as seconds: from half a millisecond to ten minutes.
    pub const SECONDS: Self = Self {
        limits: &[
            500,
            1_000,
            2_500,
            5_000,
            10_000,
            25_000,
            50_000,
            100_000,
            250_000,
            500_000,
            1_000_000,
            2_500_000,
            5_000_000,
            10_000_000,
            30_000_000,
            60_000_000,
            600_000_000,
        ],
        scale: 1_000_000,
    };
    /// Messages: from one to ten thousand.
    pub const MESSAGES: Self = Self { limits: &[1, 10, 50, 100, 500, 1_000, 2_500, 5_000, 10_000], scale: 1 };
}

/// A histogram.
#[derive(Debug)]
pub struct Histogram {
    buckets: Buckets,
    /// One more than there are limits.
    counts: Box<[AtomicU64]>,
    sum: AtomicU64,
}

impl Histogram {
    /// With nothing in it.
    pub fn new(buckets: Buckets) -> Self {
        let counts = (0..=buckets.limits.len()).map(|_| AtomicU64::new(0)).collect();
        Self { buckets, counts, sum: AtomicU64::new(0) }
    }

    /// Adds one value. Negative ones, as two clocks that differ give them, count as 0.
    pub fn observe(&self, value: i64) {
        let value = u64::try_from(value).unwrap_or(0);
        let at = self.buckets.limits.partition_point(|limit| *limit < value);
        if let Some(count) = self.counts.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// Adds what was gathered beside it: a few atomic additions for many values.
    pub fn add(&self, tally: &Tally) {
        for (count, n) in self.counts.iter().zip(&tally.counts).filter(|(_, n)| **n > 0) {
            count.fetch_add(*n, Ordering::Relaxed);
        }
        self.sum.fetch_add(tally.sum, Ordering::Relaxed);
    }

    /// An empty tally with these limits.
    pub fn tally(&self) -> Tally {
        Tally { limits: self.buckets.limits, counts: vec![0; self.counts.len()], sum: 0 }
    }

    pub(crate) const fn buckets(&self) -> Buckets {
        self.buckets
    }

    /// Values by limit, each with what is below it too; the last is all. And their sum.
    pub(crate) fn read(&self) -> (Vec<u64>, u64) {
        let mut total = 0u64;
        let rising = self.counts.iter().map(|count| {
            total = total.saturating_add(count.load(Ordering::Relaxed));
            total
        });
        (rising.collect(), self.sum.load(Ordering::Relaxed))
    }
}

/// Values that are gathered before they are added.
#[derive(Clone, Debug)]
pub struct Tally {
    limits: &'static [u64],
    counts: Vec<u64>,
    sum: u64,
}

impl Tally {
    /// Adds one value. Negative ones count as 0.
    pub fn observe(&mut self, value: i64) {
        let value = u64::try_from(value).unwrap_or(0);
        let at = self.limits.partition_point(|limit| *limit < value);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(value);
    }
}
