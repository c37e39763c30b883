//! A set of numbers kept as runs of consecutive ones.

use std::collections::BTreeMap;

/// One run: every number from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First number of the run.
    pub first: u64,
    /// Last number of the run, not below `first`.
    pub last: u64,
}

/// A set of `u64`, stored as runs: its size in memory goes by the number of gaps, not of members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    by_first: BTreeMap<u64, u64>, // first → last; runs never touch
}

impl Runs {
    /// The empty set.
    pub const fn new() -> Self {
        Self { by_first: BTreeMap::new() }
    }

    /// Whether `n` is in the set.
    pub fn contains(&self, n: u64) -> bool {
        self.by_first.range(..=n).next_back().is_some_and(|(_, last)| *last >= n)
    }

    /// Adds `n`. Returns false if it was there already.
    pub fn insert(&mut self, n: u64) -> bool {
        if self.contains(n) {
            return false;
        }
        self.insert_run(Run { first: n, last: n });
        true
    }

    /// Adds all numbers of a run.
    pub fn insert_run(&mut self, run: Run) {
        let (mut first, mut last) = (run.first, run.last);
        if last < first {
            return;
        }
        if let Some((f, l)) = self.by_first.range(..=first).next_back() {
            if *l >= last {
                return;
            }
            if l.checked_add(1).is_none_or(|next| next >= first) {
                first = *f;
            }
        }
        // Swallow what the run now covers or touches.
        let upper = last.saturating_add(1);
        let swallowed: Vec<u64> = self.by_first.range(first..=upper).map(|(f, _)| *f).collect();
        for f in swallowed {
            if let Some(l) = self.by_first.remove(&f) {
                last = last.max(l);
            }
        }
        self.by_first.insert(first, last);
    }

    /// Removes all numbers of a run.
    pub fn remove_run(&mut self, run: Run) {
        if run.last < run.first {
            return;
        }
        let touched: Vec<(u64, u64)> = self
            .by_first
            .range(..=run.last)
            .rev()
            .take_while(|(_, last)| **last >= run.first)
            .map(|(f, l)| (*f, *l))
            .collect();
        for (first, last) in touched {
            self.by_first.remove(&first);
            if first < run.first {
                self.by_first.insert(first, run.first - 1);
            }
            if last > run.last {
                self.by_first.insert(run.last + 1, last);
            }
        }
    }

    /// Removes `n`.
    pub fn remove(&mut self, n: u64) {
        self.remove_run(Run { first: n, last: n });
    }

    /// Removes every number up to and including `n`.
    pub fn remove_through(&mut self, n: u64) {
        self.remove_run(Run { first: 0, last: n });
    }

    /// The runs in rising order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Run> + '_ {
        self.by_first.iter().map(|(first, last)| Run { first: *first, last: *last })
    }

    /// Runs that overlap `range`, cut to it, in rising order.
    pub fn within(&self, range: Run) -> impl Iterator<Item = Run> + '_ {
        let start = self
            .by_first
            .range(..=range.first)
            .next_back()
            .filter(|(_, last)| **last >= range.first)
            .map_or(range.first, |(f, _)| *f);
        self.by_first
            .range(start..=range.last.max(start))
            .map(|(f, l)| Run { first: *f, last: *l })
            .filter(move |r| r.first <= range.last && r.last >= range.first)
            .map(move |r| Run { first: r.first.max(range.first), last: r.last.min(range.last) })
    }

    /// How many numbers of the set lie in `range`.
    pub fn count_within(&self, range: Run) -> u64 {
        self.within(range).map(|r| r.last - r.first + 1).sum()
    }

    /// The runs of numbers in `range` that are not in the set, in rising order.
    pub fn gaps(&self, range: Run) -> Vec<Run> {
        let mut gaps = Vec::new();
        let mut next = range.first;
        for run in self.within(range) {
            if run.first > next {
                gaps.push(Run { first: next, last: run.first - 1 });
            }
            match run.last.checked_add(1) {
                Some(n) => next = n,
                None => return gaps,
            }
        }
        if next <= range.last {
            gaps.push(Run { first: next, last: range.last });
        }
        gaps
    }

    /// Whether every number of `run` is in the set.
    pub fn covers(&self, run: Run) -> bool {
        self.by_first.range(..=run.first).next_back().is_some_and(|(_, last)| *last >= run.last)
    }

    /// The smallest number.
    pub fn first(&self) -> Option<u64> {
        self.by_first.keys().next().copied()
    }

    /// The largest number.
    pub fn last(&self) -> Option<u64> {
        self.by_first.values().next_back().copied()
    }

    /// Number of runs.
    pub fn run_count(&self) -> usize {
        self.by_first.len()
    }

    /// Number of members.
    pub fn len(&self) -> u64 {
        self.iter().map(|r| r.last - r.first + 1).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.by_first.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u64, u64),
        Remove(u64, u64),
    }

    fn op() -> impl Strategy<Value = Op> {
        (any::<bool>(), 0..60u64, 0..8u64)
            .prop_map(|(ins, a, n)| if ins { Op::Insert(a, a + n) } else { Op::Remove(a, a + n) })
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(ops in proptest::collection::vec(op(), 0..60), lo in 0..70u64, n in 0..20u64) {
            let (mut runs, mut set) = (Runs::new(), BTreeSet::new());
            for op in ops {
                match op {
                    Op::Insert(a, b) => { runs.insert_run(Run { first: a, last: b }); set.extend(a..=b); }
                    Op::Remove(a, b) => { runs.remove_run(Run { first: a, last: b }); set.retain(|x| *x < a || *x > b); }
                }
            }
            let flat: Vec<u64> = runs.iter().flat_map(|r| r.first..=r.last).collect();
            prop_assert_eq!(&flat, &set.iter().copied().collect::<Vec<_>>());
            let all: Vec<Run> = runs.iter().collect();
            prop_assert!(all.windows(2).all(|w| w[0].last + 1 < w[1].first));
            let range = Run { first: lo, last: lo + n };
            let gaps: Vec<u64> = runs.gaps(range).iter().flat_map(|r| r.first..=r.last).collect();
            prop_assert_eq!(gaps, (lo..=lo + n).filter(|x| !set.contains(x)).collect::<Vec<_>>());
            prop_assert_eq!(runs.count_within(range), set.range(lo..=lo + n).count() as u64);
            prop_assert_eq!(runs.covers(range), (lo..=lo + n).all(|x| set.contains(&x)));
        }
    }
}
