//! When to kill: seeded, so that a run can be asked for again. (What the kills hit still depends on the machine.)

use std::time::Duration;

/// A small generator of random numbers (splitmix64): the same seed, the same numbers, on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// `stream` tells apart generators of one seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut dice = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        dice.next();
        dice
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is at least 1.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }
}

/// Whom to kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Service,
    Relay,
}

/// `count` random moments for one victim: the time is cut into equal parts, and each has one moment anywhere in it.
/// So they are spread over the run, and none can be foreseen. The first half second is left out: nothing runs yet.
pub(crate) fn moments(seed: u64, victim: Victim, count: u32, run: Duration) -> Vec<Duration> {
    let mut dice = Dice::new(seed, 1_000_000 + victim as u64);
    let start = Duration::from_millis(500).min(run / 4);
    let part_us = u64::try_from((run - start).as_micros()).unwrap_or(u64::MAX) / u64::from(count.max(1));
    (0..u64::from(count)).map(|i| start + Duration::from_micros(i * part_us + dice.below(part_us))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_repeatable_rising_and_inside_the_run() {
        let run = Duration::from_secs(20);
        for seed in 0..50 {
            let a = moments(seed, Victim::Service, 8, run);
            assert_eq!(a, moments(seed, Victim::Service, 8, run));
            assert_ne!(a, moments(seed, Victim::Relay, 8, run));
            assert_eq!(a.len(), 8);
            assert!(a.is_sorted() && a.iter().all(|m| *m < run && *m >= Duration::from_millis(500)), "{a:?}");
        }
        assert!(moments(1, Victim::Service, 0, run).is_empty());
    }
}
