//! What a destination may be sent now: its rate, and the batches that may be under way, over all its lanes together.
//!
//! The rate is a bucket. An instance fills it by its share of the shards, those that it runs under a lease that holds for
//! certain: a shard has one such owner, so all instances together keep to the rate, whoever comes and goes. Once it is
//! empty nothing begins until a quantum is in it, so that batches stay batches, and waking up costs little.

use std::ops::Bound::{self, Excluded, Included, Unbounded};

use crate::config::{LaneLimits, Now};
use crate::message::ShardId;

/// A message, in the unit of the bucket: microseconds times messages in a thousand seconds.
const MESSAGE: u128 = 1_000_000_000;
/// What was not used is kept for this long, microseconds: so much may go at one time, and one message more.
const BURST_US: u128 = 100_000;
/// An empty bucket is waited for this long, microseconds, and for one message at least.
const QUANTUM_US: u128 = 25_000;

/// How many shards of how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) mine: usize,
    pub(crate) of: usize,
}

/// When a batch may begin that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Now: none that is ready was held back.
    Open,
    /// At this moment, microseconds of the monotonic clock.
    At(u64),
    /// An answer, or a lease, decides.
    Shut,
}

/// A range of shards, and in each of them one of slots, that have their turn.
pub(crate) type Turns = ((Bound<ShardId>, Bound<ShardId>), (Bound<u32>, Bound<u32>));

/// All slots.
pub(crate) const ALL_SLOTS: (Bound<u32>, Bound<u32>) = (Unbounded, Unbounded);

/// What a destination may be sent.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    bucket: Option<Bucket>,
    concurrency: Option<usize>,
    /// Batches without an answer, also of lanes that are gone.
    under_way: usize,
    /// The slot that had the last turn.
    last: Option<(ShardId, u32)>,
}

#[derive(Clone, Debug)]
struct Bucket {
    rate_milli: u64,
    share: Share,
    filled: u128,
    /// It was empty, and there is no quantum in it yet.
    waits: bool,
    at_us: u64,
}

impl Allowance {
    pub(crate) fn new(limits: &LaneLimits) -> Self {
        let bucket = limits.rate_milli.map(|rate| Bucket {
            rate_milli: rate.max(1),
            share: Share::default(),
            filled: MESSAGE,
            waits: false,
            at_us: 0,
        });
        Self { bucket, concurrency: limits.concurrency.map(|n| n.max(1)), under_way: 0, last: None }
    }

    /// Whether there is anything to keep to.
    pub(crate) const fn is_limited(&self) -> bool {
        self.bucket.is_some() || self.concurrency.is_some()
    }

    /// Time passes.
    pub(crate) fn advance(&mut self, now: Now, share: Share) {
        if let Some(bucket) = &mut self.bucket {
            bucket.advance(now.mono_us, share);
        }
    }

    /// How many messages a batch may have that begins now. None: none may begin.
    pub(crate) fn most(&self) -> Option<usize> {
        if self.concurrency.is_some_and(|most| self.under_way >= most) {
            return None;
        }
        self.bucket.as_ref().map_or(Some(usize::MAX), Bucket::most)
    }

    /// A batch of so many messages begins.
    pub(crate) fn begun(&mut self, messages: usize, turn: (ShardId, u32)) {
        self.under_way += 1;
        self.last = Some(turn);
        if let Some(bucket) = &mut self.bucket {
            bucket.take(messages);
        }
    }

    /// A batch was answered, or was not sent after all: what it has taken of the rate is not given back.
    pub(crate) const fn ended(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Of several lanes each has the rate for itself.
    pub(crate) fn refill(&mut self, as_of: &Self) {
        self.bucket.clone_from(&as_of.bucket);
    }

    pub(crate) fn gate(&self) -> Gate {
        if self.most().is_some() {
            return Gate::Open;
        }
        let full = self.concurrency.is_some_and(|most| self.under_way >= most);
        let at = self.bucket.as_ref().filter(|_| !full).and_then(Bucket::opens_at_us);
        at.map_or(Gate::Shut, Gate::At)
    }

    /// Everybody in turn, beginning behind the slot that had the last one.
    pub(crate) fn turns(&self) -> Vec<Turns> {
        let Some((shard, slot)) = self.last else { return vec![((Unbounded, Unbounded), ALL_SLOTS)] };
        let same = (Included(shard), Included(shard));
        vec![
            (same, (Excluded(slot), Unbounded)),
            ((Excluded(shard), Unbounded), ALL_SLOTS),
            ((Unbounded, Excluded(shard)), ALL_SLOTS),
            (same, (Unbounded, Included(slot))),
        ]
    }

    /// It begins anew with the first slot.
    pub(crate) const fn forget_turn(&mut self) {
        self.last = None;
    }
}

impl Bucket {
    /// What comes in within so many microseconds.
    fn within(&self, us: u128, share: Share) -> u128 {
        us * u128::from(self.rate_milli) * share.mine as u128 / (share.of.max(1) as u128)
    }

    fn quantum(&self) -> u128 {
        self.within(QUANTUM_US, self.share).div_ceil(MESSAGE).max(1) * MESSAGE
    }

    fn advance(&mut self, now_us: u64, share: Share) {
        let passed = u128::from(now_us.saturating_sub(self.at_us));
        // A share that has become less may have been less for a while.
        let less = |a: Share, b: Share| if a.mine * b.of <= b.mine * a.of { a } else { b };
        self.filled += self.within(passed, less(self.share, share));
        (self.share, self.at_us) = (share, now_us);
        self.filled = self.filled.min(MESSAGE + self.within(BURST_US, share));
        self.waits &= self.filled < self.quantum();
    }

    fn most(&self) -> Option<usize> {
        let most = usize::try_from(self.filled / MESSAGE).unwrap_or(usize::MAX);
        (most > 0 && !self.waits).then_some(most)
    }

    fn take(&mut self, messages: usize) {
        self.filled = self.filled.saturating_sub(messages as u128 * MESSAGE);
        self.waits = self.filled < MESSAGE;
    }

    /// When there will be a quantum. None: not with this share.
    fn opens_at_us(&self) -> Option<u64> {
        let missing = self.quantum().saturating_sub(self.filled);
        let a_microsecond = u128::from(self.rate_milli) * self.share.mine as u128;
        let us = (missing * self.share.of.max(1) as u128).checked_add(a_microsecond.checked_sub(1)?)? / a_microsecond;
        Some(self.at_us.saturating_add(u64::try_from(us).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Share = Share { mine: 1, of: 1 };
    const SECOND: u64 = 1_000_000;

    fn at(mono_us: u64) -> Now {
        Now { mono_us, wall_us: 0 }
    }

    fn allowance(rate_milli: u64) -> Allowance {
        let mut a = Allowance::new(&LaneLimits { rate_milli: Some(rate_milli), ..LaneLimits::default() });
        a.advance(at(0), ALL);
        a
    }

    /// Sends as much as may be sent whenever it may: when, and how many each time.
    fn sent(rate_milli: u64, seconds: u64, late_us: u64) -> Vec<(u64, usize)> {
        let (mut a, mut now, mut sent) = (allowance(rate_milli), 0, Vec::new());
        while now < seconds * SECOND {
            a.advance(at(now), ALL);
            if let Some(most) = a.most() {
                a.begun(most, (ShardId(0), 0));
                sent.push((now, most));
            }
            let Gate::At(next) = a.gate() else { panic!("{a:?}") };
            assert!(next > now, "it never asks to be woken for nothing");
            now = next + late_us;
        }
        sent
    }

    #[test]
    fn a_rate_is_kept_to_the_message_and_used_in_full_however_low_or_high() {
        for (rate_milli, seconds) in [(1, 10_000), (500, 1_000), (7_300, 100), (500_000, 20), (100_000_000, 2)] {
            // One message may go at once; woken up late, it makes up for that.
            for late_us in [0, 300, 5_000] {
                let sent = sent(rate_milli, seconds, late_us);
                let all: usize = sent.iter().map(|(_, n)| n).sum();
                let exactly = (rate_milli * seconds / 1_000) as usize;
                let quantum = (rate_milli as usize).div_ceil(40_000);
                let rest = (rate_milli * late_us / 1_000_000_000) as usize + quantum;
                assert!(all <= exactly + 1, "{rate_milli}: {all}");
                assert!(all + rest > exactly, "{rate_milli}, {late_us} us late: {all} of {exactly}");
                assert!(sent.len() as u64 <= 40 * seconds + 1, "{rate_milli}: {} turns", sent.len());
                // To the microsecond in which the clock counts.
                let spaced = |w: &[(u64, usize)]| (w[1].0 - w[0].0 + 1) * rate_milli >= 1_000_000_000;
                assert!(rate_milli > 40_000 || sent.windows(2).all(|w| w[1].1 == 1 && (late_us > 0 || spaced(w))));
            }
        }
    }

    #[test]
    fn what_was_not_used_is_kept_for_a_tenth_of_a_second_and_no_window_has_more() {
        let mut a = allowance(1_000_000);
        a.advance(at(3_600 * SECOND), ALL);
        assert_eq!(a.most(), Some(101));
        a.begun(60, (ShardId(0), 0));
        assert_eq!((a.most(), a.gate()), (Some(41), Gate::Open), "the rest may go at once");
        a.begun(41, (ShardId(0), 0));
        assert_eq!((a.most(), a.gate()), (None, Gate::At(3_600 * SECOND + 25_000)));
        a.advance(at(3_600 * SECOND + 24_999), ALL);
        assert_eq!(a.most(), None, "a quantum, and no single messages");
        a.advance(at(3_600 * SECOND + 25_000), ALL);
        assert_eq!(a.most(), Some(25));
    }

    #[test]
    fn instances_share_the_rate_by_their_shards_and_a_lease_that_has_run_out_counts_for_nothing() {
        let (third, none) = (Share { mine: 1, of: 3 }, Share { mine: 0, of: 3 });
        let mut a = allowance(300_000);
        a.begun(1, (ShardId(0), 0));
        a.advance(at(0), third);
        a.advance(at(SECOND / 20), third);
        assert_eq!(a.most(), Some(5), "a hundred a second");
        a.advance(at(SECOND / 20), none);
        assert_eq!(a.most(), Some(1), "its burst is one message now");
        a.begun(1, (ShardId(0), 0));
        a.advance(at(60 * SECOND), none);
        assert_eq!((a.most(), a.gate()), (None, Gate::Shut));
        // Since when it has the share again is not known.
        a.advance(at(61 * SECOND), third);
        assert_eq!(a.most(), None);
        a.advance(at(61 * SECOND + 30_000), third);
        assert_eq!(a.most(), Some(3));
    }

    #[test]
    fn no_more_batches_than_allowed_are_under_way_and_only_an_answer_makes_room() {
        let limits = LaneLimits { rate_milli: Some(1_000_000), concurrency: Some(2), ..LaneLimits::default() };
        let mut a = Allowance::new(&limits);
        a.advance(at(SECOND), ALL);
        a.begun(1, (ShardId(0), 0));
        a.advance(at(2 * SECOND), ALL);
        a.begun(101, (ShardId(0), 1));
        assert_eq!((a.most(), a.gate()), (None, Gate::Shut));
        a.ended();
        assert!(matches!(a.gate(), Gate::At(_)), "now the rate decides");
        a.advance(at(3 * SECOND), ALL);
        assert_eq!((a.most(), a.gate()), (Some(101), Gate::Open));
    }

    #[test]
    fn every_slot_of_every_shard_has_its_turn_before_one_has_a_second() {
        let mut a = allowance(1_000);
        let slots = [(0, 0), (0, 1), (0, 7), (2, 3), (5, 0), (5, 9)].map(|(shard, slot)| (ShardId(shard), slot));
        let next = |a: &Allowance| {
            let has = |(shards, range): &Turns| {
                use std::ops::RangeBounds;
                slots.iter().find(|(shard, slot)| shards.contains(shard) && range.contains(slot)).copied()
            };
            a.turns().iter().find_map(has).unwrap()
        };
        let mut order = Vec::new();
        for _ in 0..12 {
            let turn = next(&a);
            a.begun(1, turn);
            order.push(turn);
        }
        assert_eq!(order, [slots, slots].concat());
    }
}
