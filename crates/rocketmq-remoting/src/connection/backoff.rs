//! Pauses between attempts to connect.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Doubles from a first pause to a longest one. Each pause is cut by a random part of up to half, so that many clients
/// of a broker that comes back do not knock in step.
#[derive(Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    dice: RandomState,
    throws: u64,
}

impl Backoff {
    /// Starts with `first`; never longer than `longest`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        let longest = longest.max(first);
        Self { first, longest, next: first, dice: RandomState::new(), throws: 0 }
    }

    /// The next pause: between half of the step and all of it.
    pub fn pause(&mut self) -> Duration {
        let step = self.next;
        self.next = step.saturating_mul(2).min(self.longest);
        self.throws = self.throws.wrapping_add(1);
        let part = (self.dice.hash_one(self.throws) % 1_000) as u32;
        step / 2 + step / 2 * part / 1_000
    }

    /// The next pause is a first one again.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_are_never_below_half_of_it() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(50), ms(1_000));
        let mut step = ms(50);
        for _ in 0..40 {
            let pause = backoff.pause();
            assert!(pause >= step / 2 && pause <= step, "{pause:?} of {step:?}");
            step = (step * 2).min(ms(1_000));
        }
        backoff.reset();
        assert!(backoff.pause() <= ms(50));
    }

    #[test]
    fn two_clients_do_not_knock_in_step() {
        let mut a = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let mut b = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        let different = (0..20).filter(|_| a.pause() != b.pause()).count();
        assert!(different > 10);
    }
}
