//! Shards whose part of a checkpoint the database refuses: they must not hold up the others.
//!
//! One transaction writes for all shards. When it fails again and again while the database answers otherwise, its shards
//! are tried one by one; those that fail alone are left out of what the others write, and tried alone with a back-off
//! until they succeed.

use std::collections::{BTreeMap, VecDeque};

use crate::config::{Jitter, Now};
use crate::message::ShardId;

/// Checkpoints that failed in a row before their shards are tried one by one.
const FAILURES: u32 = 3;

#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    failures: u32,
    not_before_us: u64,
}

/// Which shards write alone.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    to_try: VecDeque<ShardId>,
    refused: BTreeMap<ShardId, Refused>,
}

/// Who takes part in the next checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// This shard alone.
    Alone(ShardId),
    /// All but those that are refused.
    Others,
}

impl Refusals {
    /// Who is next. `wants`: shards that have something to write now.
    pub(super) fn turn(&mut self, now: Now, wants: impl Fn(ShardId) -> bool) -> Turn {
        while let Some(shard) = self.to_try.front().copied() {
            if wants(shard) {
                return Turn::Alone(shard);
            }
            self.to_try.pop_front();
        }
        let due = |(shard, r): (&ShardId, &Refused)| {
            (r.not_before_us <= now.mono_us && wants(*shard)).then_some((r.not_before_us, *shard))
        };
        self.refused.iter().filter_map(due).min().map_or(Turn::Others, |(_, shard)| Turn::Alone(shard))
    }

    /// Whether it is left out of what the others write.
    pub(super) fn is_refused(&self, shard: ShardId) -> bool {
        self.refused.contains_key(&shard)
    }

    /// The earliest moment at which it may write, if it is left out.
    pub(super) fn not_before_us(&self, shard: ShardId) -> Option<u64> {
        self.refused.get(&shard).map(|r| r.not_before_us)
    }

    /// A checkpoint of these was written.
    pub(super) fn written(&mut self, shards: impl Iterator<Item = ShardId>) {
        for shard in shards {
            self.refused.remove(&shard);
            self.to_try.retain(|s| *s != shard);
        }
    }

    /// A checkpoint of these failed, for the so manieth time in a row if it was of all. True: that is the matter of one
    /// shard, the others need not wait for it.
    pub(super) fn failed(
        &mut self,
        shards: &[ShardId],
        failures: u32,
        now: Now,
        (jitter, backoff_ms): (&mut Jitter, (u64, u64)),
    ) -> bool {
        if let [shard] = shards
            && (self.to_try.contains(shard) || self.is_refused(*shard))
        {
            self.to_try.retain(|s| s != shard);
            let r = self.refused.entry(*shard).or_default();
            r.failures = r.failures.saturating_add(1);
            r.not_before_us = now.after_ms(jitter.backoff_ms(r.failures, backoff_ms));
            return true;
        }
        if failures >= FAILURES && shards.len() > 1 && self.to_try.is_empty() {
            self.to_try.extend(shards);
        }
        false
    }

    /// A shard is not this instance's any more.
    pub(super) fn forget(&mut self, shard: ShardId) {
        self.written(std::iter::once(shard));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ShardId = ShardId(0);
    const B: ShardId = ShardId(1);
    const C: ShardId = ShardId(2);

    #[test]
    fn one_that_fails_alone_is_left_out_and_tried_again() {
        let (mut refusals, mut jitter) = (Refusals::default(), Jitter::new(1));
        let at = |ms: u64| Now { mono_us: ms * 1_000, wall_us: 0 };
        let backoff = (50, 2_000);
        let all = [A, B, C];
        for failures in 1..FAILURES {
            assert!(!refusals.failed(&all, failures, at(0), (&mut jitter, backoff)));
            assert_eq!(refusals.turn(at(0), |_| true), Turn::Others);
        }
        assert!(!refusals.failed(&all, FAILURES, at(0), (&mut jitter, backoff)));
        assert_eq!(refusals.turn(at(0), |_| true), Turn::Alone(A));
        refusals.written([A].into_iter());
        assert_eq!(refusals.turn(at(0), |_| true), Turn::Alone(B));
        assert!(refusals.failed(&[B], 1, at(0), (&mut jitter, backoff)));
        // One that has nothing to write is not tried for its own sake.
        assert_eq!(refusals.turn(at(0), |s| s != C), Turn::Others);
        assert!(refusals.is_refused(B) && !refusals.is_refused(A) && !refusals.is_refused(C));
        let first = refusals.not_before_us(B).unwrap();
        assert!((25_000..=50_000).contains(&first), "{first}");
        assert_eq!(refusals.turn(at(first / 1_000), |_| false), Turn::Others);
        assert_eq!(refusals.turn(at(1 + first / 1_000), |_| true), Turn::Alone(B));
        for _ in 0..20 {
            assert!(refusals.failed(&[B], 1, at(0), (&mut jitter, backoff)));
        }
        assert!((1_000_000..=2_000_000).contains(&refusals.not_before_us(B).unwrap()));
        refusals.written([B].into_iter());
        assert_eq!((refusals.turn(at(0), |_| true), refusals.is_refused(B)), (Turn::Others, false));
    }

    #[test]
    fn one_shard_by_itself_is_everybody() {
        let (mut refusals, mut jitter) = (Refusals::default(), Jitter::new(1));
        let now = Now::default();
        for failures in 1..10 {
            assert!(!refusals.failed(&[A], failures, now, (&mut jitter, (50, 2_000))));
            assert_eq!(refusals.turn(now, |_| true), Turn::Others);
        }
    }
}
