//! Log lines of which one stands for many.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Lines of one kind are written at most once in this time.
const SPACING: Duration = Duration::from_secs(10);

/// Counts what is said over and over: the first of a kind is told at once, what follows within [`SPACING`] is told
/// with the next one, as a number.
pub(crate) struct Repeats<K> {
    /// When a line of the kind was last written, and how many messages it did not count.
    told: HashMap<K, (Instant, u64)>,
    /// All that no line has counted yet.
    open: u64,
}

impl<K> Default for Repeats<K> {
    fn default() -> Self {
        Self { told: HashMap::new(), open: 0 }
    }
}

impl<K: Eq + Hash + Clone> Repeats<K> {
    /// How many messages a line of this kind is to count, if it is to be written now.
    pub(crate) fn count(&mut self, now: Instant, kind: K, messages: u64) -> Option<u64> {
        match self.told.get_mut(&kind) {
            None => {
                self.told.insert(kind, (now, 0));
                Some(messages)
            }
            Some((at, since)) if now.duration_since(*at) >= SPACING => {
                *at = now;
                let before = std::mem::take(since);
                self.open -= before;
                Some(before + messages)
            }
            Some((_, since)) => {
                *since += messages;
                self.open += messages;
                None
            }
        }
    }

    /// What has waited for its line long enough, or (with `all`) at all.
    pub(crate) fn rest(&mut self, now: Instant, all: bool) -> Vec<(K, u64)> {
        if self.open == 0 {
            return Vec::new();
        }
        let mut rest = Vec::new();
        for (kind, (at, since)) in &mut self.told {
            if *since > 0 && (all || now.duration_since(*at) >= SPACING) {
                *at = now;
                self.open -= *since;
                rest.push((kind.clone(), std::mem::take(since)));
            }
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_stands_for_many_and_every_message_is_counted_once() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        assert_eq!(repeats.count(start, "a", 2), Some(2));
        assert!((0..100_000).all(|_| repeats.count(start, "a", 1).is_none()));
        assert_eq!(repeats.count(start, "b", 1), Some(1), "each kind by itself");
        assert!(repeats.rest(start, false).is_empty());
        assert_eq!(repeats.count(start + SPACING, "a", 1), Some(100_001));
        assert_eq!(repeats.count(start + SPACING, "a", 7), None);
        assert!(repeats.rest(start + SPACING, false).is_empty());
        assert_eq!(repeats.rest(start + SPACING * 2, false), [("a", 7)]);
        assert_eq!(repeats.count(start + SPACING * 2, "a", 3), None);
        assert_eq!(repeats.rest(start + SPACING * 2, true), [("a", 3)], "the end comes early");
        assert!(repeats.rest(start + SPACING * 9, true).is_empty());
    }
}
