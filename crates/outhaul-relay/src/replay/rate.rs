//! A limit to how many messages are sent in a time.

use std::time::Duration;

use tokio::time::Instant;

/// What was held back by something else may be made up for within this long, and no longer.
const BURST: Duration = Duration::from_millis(50);

/// A limit to the rate: messages are evenly apart, except that a few that are close together go at one time.
#[derive(Debug)]
pub(super) struct Rate {
    /// How far messages are apart. None: there is no limit.
    spacing: Option<Duration>,
    next_at: Instant,
}

/// The rate that was ordered (0: as fast as it goes), or the destination's where that is less.
pub(super) fn slower(ordered_milli: u64, most_milli: Option<u64>) -> u64 {
    most_milli.map_or(ordered_milli, |most| if ordered_milli == 0 { most } else { most.min(ordered_milli) })
}

impl Rate {
    /// At most so many in a thousand seconds. 0: as fast as it goes.
    pub(super) fn new(milli: u64, now: Instant) -> Self {
        Self { spacing: 1_000_000_000_000u64.checked_div(milli).map(Duration::from_nanos), next_at: now }
    }

    /// How many may be sent now.
    pub(super) fn available(&self, now: Instant) -> usize {
        let Some(spacing) = self.spacing else { return usize::MAX };
        let Some(behind) = now.checked_duration_since(self.next_at) else { return 0 };
        let times = behind.min(BURST).as_nanos() / spacing.as_nanos().max(1);
        usize::try_from(times).unwrap_or(usize::MAX).saturating_add(1)
    }

    /// So many are sent now.
    pub(super) fn take(&mut self, messages: usize, now: Instant) {
        if let Some(spacing) = self.spacing {
            let from = now.checked_sub(BURST).map_or(self.next_at, |least| self.next_at.max(least));
            self.next_at = from + spacing.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX));
        }
    }

    /// When more may be sent: several at a time where they are close together. None: now.
    pub(super) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let several = self.spacing.is_some_and(|spacing| spacing < BURST / 2);
        let at = if several { self.next_at.max(now + BURST / 4) } else { self.next_at };
        (self.available(now) == 0).then_some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends as much as may be sent whenever it may, for so long; how many that is.
    fn sent(milli: u64, seconds: u64, most: usize) -> usize {
        let start = Instant::now();
        let end = start + Duration::from_secs(seconds);
        let (mut rate, mut now, mut sent) = (Rate::new(milli, start), start, 0);
        while now < end {
            let n = rate.available(now).min(most);
            rate.take(n, now);
            sent += n;
            // A slow destination is asked again later.
            now = rate.wakes_at(now).unwrap_or(now + Duration::from_millis(3));
        }
        sent
    }

    #[test]
    fn it_is_kept_and_used() {
        for (milli, seconds) in [(500, 20), (1_000, 10), (7_300, 10), (500_000, 10), (100_000_000, 1)] {
            let wanted = (milli * seconds / 1_000) as usize;
            let burst = (milli / 20_000) as usize + 1;
            let sent = sent(milli, seconds, usize::MAX);
            assert!(sent <= wanted + burst && sent + burst >= wanted, "{milli}: {sent} instead of {wanted}");
        }
        assert_eq!(Rate::new(0, Instant::now()).available(Instant::now()), usize::MAX);
    }

    #[test]
    fn the_destination_has_its_say() {
        let of = [slower(0, None), slower(7, None), slower(0, Some(5)), slower(7, Some(5)), slower(3, Some(5))];
        assert_eq!(of, [0, 7, 5, 5, 3]);
    }

    #[test]
    fn what_was_held_back_for_long_is_not_made_up_for() {
        let start = Instant::now();
        let mut rate = Rate::new(1_000_000, start);
        rate.take(1, start);
        let later = start + Duration::from_secs(60);
        let at_once = rate.available(later);
        assert!(at_once <= 51, "{at_once}");
        rate.take(at_once, later);
        assert_eq!(rate.available(later), 0);
    }
}
