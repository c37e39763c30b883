//! Chance from a seed: the only source of it in a run.

/// A stream of numbers that is the same for the same seed on every machine (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    /// Neighbouring seeds give streams that have nothing to do with each other.
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x2545_f491_4f6c_dd1d))
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from `first` to `last`, both included.
    pub(super) const fn between(&mut self, (first, last): (u64, u64)) -> u64 {
        if last <= first {
            return first;
        }
        first + self.next() % (last - first + 1)
    }

    /// A place in a list of `n`, which must not be empty.
    pub(super) const fn place(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// True in so many of a thousand cases.
    pub(super) const fn chance(&mut self, per_mille: u32) -> bool {
        self.next() % 1_000 < per_mille as u64
    }
}
