//! Unique keys in the layout that Java's client gives to messages. Source: `MessageClientIDSetter` of RocketMQ 4.9.4.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};

/// Makes unique keys: address (4 or 16 bytes), process id (2), a number (4), milliseconds since the month began (4), a
/// counter (2), as hexadecimal digits. Tools read time and address from it; brokers take any text.
///
/// Unique among the makers that differ in address, process or number, for up to 65,536 keys a millisecond. The month is
/// UTC's where Java takes the local one, so that the time that tools show can be hours off.
#[derive(Debug)]
pub struct UniqueKeys {
    prefix: String,
    counter: AtomicU16,
}

impl UniqueKeys {
    /// A maker of its own. `salt` tells makers of one process apart: take a random number.
    #[must_use]
    pub fn new(address: IpAddr, process_id: u32, salt: u32) -> Self {
        let address = match address {
            IpAddr::V4(ip) => format!("{:08X}", ip.to_bits()),
            IpAddr::V6(ip) => format!("{:032X}", ip.to_bits()),
        };
        Self { prefix: format!("{address}{:04X}{salt:08X}", process_id & 0xFFFF), counter: AtomicU16::new(0) }
    }

    /// The next key. `now_ms` is the time, in milliseconds since 1970.
    #[must_use]
    pub fn next(&self, now_ms: u64) -> String {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        // A month has at most 2,678,400,000 ms, which 32 bits hold.
        format!("{}{:08X}{count:04X}", self.prefix, ms_since_month_began(now_ms) & 0xFFFF_FFFF)
    }
}

fn ms_since_month_began(now_ms: u64) -> u64 {
    const DAY_MS: u64 = 86_400_000;
    let (mut day, ms_of_day) = (now_ms / DAY_MS, now_ms % DAY_MS);
    // Whole cycles of 400 years change nothing; what is left takes a few hundred steps at most, once a key.
    day %= 146_097;
    let mut year = 1970;
    loop {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let february = if leap { 29 } else { 28 };
        for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if day < days {
                return day * DAY_MS + ms_of_day;
            }
            day -= days;
        }
        year += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_key_has_javas_layout() {
        let keys = UniqueKeys::new("10.1.2.3".parse().unwrap(), 0x1_2345, 0xCAFE_F00D);
        // 2026-03-01T00:00:01.000Z
        assert_eq!(keys.next(1_772_323_201_000), "0A0102032345CAFEF00D000003E80000");
        assert_eq!(keys.next(1_772_323_201_000), "0A0102032345CAFEF00D000003E80001");
        let v6 = UniqueKeys::new("2001:db8::1".parse().unwrap(), 1, 2);
        assert_eq!(v6.next(0).len(), 56);
    }

    #[test]
    fn months_begin_where_the_calendar_says() {
        const DAY: u64 = 86_400_000;
        assert_eq!(ms_since_month_began(0), 0);
        assert_eq!(ms_since_month_began(31 * DAY - 1), 31 * DAY - 1);
        assert_eq!(ms_since_month_began(31 * DAY), 0);
        assert_eq!(ms_since_month_began(951_782_400_000), 28 * DAY); // 2000-02-29
        assert_eq!(ms_since_month_began(951_868_800_000), 0); // 2000-03-01
        assert_eq!(ms_since_month_began(4_107_542_400_000), 0); // 2100-03-01
        let _ = ms_since_month_began(u64::MAX);
    }

    #[test]
    fn keys_of_one_millisecond_differ() {
        let keys = UniqueKeys::new("127.0.0.1".parse().unwrap(), 1, 1);
        let all: HashSet<String> = (0..65_536).map(|_| keys.next(5)).collect();
        assert_eq!(all.len(), 65_536);
    }
}
