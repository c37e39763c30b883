//! A limit to how many messages are sent in a time.

use crate::config::Now;

/// What was held back by something else may be made up for within this long, and no longer, nanoseconds.
const BURST_NS: u64 = 50_000_000;

/// A limit to the rate: messages are evenly apart, except that a few that are close together go at one time.
#[derive(Debug)]
pub(super) struct Rate {
    /// How far messages are apart, nanoseconds. None: there is no limit.
    spacing_ns: Option<u64>,
    /// Nanoseconds of the monotonic clock.
    next_at_ns: u64,
}

const fn ns(now: Now) -> u64 {
    now.mono_us.saturating_mul(1_000)
}

/// The rate that was ordered (0: as fast as it goes), or the destination's where that is less.
pub(super) fn slower(ordered_milli: u64, most_milli: Option<u64>) -> u64 {
    most_milli.map_or(ordered_milli, |most| if ordered_milli == 0 { most } else { most.min(ordered_milli) })
}

impl Rate {
    /// At most so many in a thousand seconds. 0: as fast as it goes.
    pub(super) const fn new(milli: u64, now: Now) -> Self {
        Self { spacing_ns: 1_000_000_000_000u64.checked_div(milli), next_at_ns: ns(now) }
    }

    /// How many may be sent now.
    pub(super) fn available(&self, now: Now) -> usize {
        let Some(spacing) = self.spacing_ns else { return usize::MAX };
        let Some(behind) = ns(now).checked_sub(self.next_at_ns) else { return 0 };
        usize::try_from(behind.min(BURST_NS) / spacing.max(1)).unwrap_or(usize::MAX).saturating_add(1)
    }

    /// So many are sent now.
    pub(super) fn take(&mut self, messages: usize, now: Now) {
        if let Some(spacing) = self.spacing_ns {
            let from = self.next_at_ns.max(ns(now).saturating_sub(BURST_NS));
            self.next_at_ns = from.saturating_add(spacing.saturating_mul(messages as u64));
        }
    }

    /// When more may be sent, microseconds of the monotonic clock: several at a time where they are close together.
    pub(super) fn wakes_at_us(&self, now: Now) -> u64 {
        if self.available(now) > 0 {
            return now.mono_us;
        }
        let several = self.spacing_ns.is_some_and(|spacing| spacing < BURST_NS / 2);
        let at = if several { self.next_at_ns.max(ns(now) + BURST_NS / 4) } else { self.next_at_ns };
        at.div_ceil(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(us: u64) -> Now {
        Now { mono_us: us, wall_us: 0 }
    }

    /// Sends as much as may be sent whenever it may, for so long; how many that is, and how often it looked.
    fn sent(milli: u64, seconds: u64) -> (usize, usize) {
        let (mut rate, mut now, mut sent, mut looks) = (Rate::new(milli, at(7)), 7, 0, 0);
        while now < 7 + seconds * 1_000_000 {
            let n = rate.available(at(now));
            rate.take(n, at(now));
            (sent, looks) = (sent + n, looks + 1);
            let wakes = rate.wakes_at_us(at(now));
            assert!(wakes > now && (rate.available(at(wakes)) > 0), "woken for nothing at {now}: {wakes}");
            now = wakes;
        }
        (sent, looks)
    }

    #[test]
    fn it_is_kept_and_used_without_spinning() {
        for (milli, seconds) in [(500, 20), (1_000, 10), (7_300, 10), (500_000, 10), (100_000_000, 1)] {
            let wanted = (milli * seconds / 1_000) as usize;
            let burst = (milli / 20_000) as usize + 1;
            let (sent, looks) = sent(milli, seconds);
            assert!(sent <= wanted + burst && sent + burst >= wanted, "{milli}: {sent} instead of {wanted}");
            assert!(looks <= 81 * seconds as usize, "{milli}: {looks} looks in {seconds} s");
        }
        assert_eq!(Rate::new(0, at(0)).available(at(0)), usize::MAX);
        assert_eq!(Rate::new(0, at(0)).wakes_at_us(at(9)), 9);
    }

    #[test]
    fn the_destination_has_its_say() {
        let of = [slower(0, None), slower(7, None), slower(0, Some(5)), slower(7, Some(5)), slower(3, Some(5))];
        assert_eq!(of, [0, 7, 5, 5, 3]);
    }

    #[test]
    fn what_was_held_back_for_long_is_not_made_up_for() {
        let mut rate = Rate::new(1_000_000, at(0));
        rate.take(1, at(0));
        let at_once = rate.available(at(60_000_000));
        assert!(at_once <= 51, "{at_once}");
        rate.take(at_once, at(60_000_000));
        assert_eq!(rate.available(at(60_000_000)), 0);
    }
}
