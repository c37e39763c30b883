//! Calendar dates of UTC: for `created_at`, and for the names of rotated files.

/// Seconds of a day.
const DAY_S: i64 = 86_400;
/// Days of 400 years, after which the calendar repeats.
const CYCLE_DAYS: i64 = 146_097;

/// A date of the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    pub(super) year: i64,
    pub(super) month: u32,
    pub(super) day: u32,
}

impl Date {
    /// The date of a number of days since 1970-01-01.
    pub(super) fn of_days(days: i64) -> Self {
        // Years are counted from a first of March, so that the leap day is the last day of its year.
        let since_march_of_0 = days + 719_468;
        let cycle = since_march_of_0.div_euclid(CYCLE_DAYS);
        let in_cycle = since_march_of_0.rem_euclid(CYCLE_DAYS);
        // 1,460 is the last day of four years, 36,524 of a hundred, 146,096 of four hundred: each holds a leap day that
        // the plain division by 365 must not count.
        let year_in_cycle = (in_cycle - in_cycle / 1_460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
        let in_year = in_cycle - (year_in_cycle * 365 + year_in_cycle / 4 - year_in_cycle / 100);
        // From March on, months are 31, 30, 31, 30, 31 days, again and again: 153 days each five.
        let month_from_march = (in_year * 5 + 2) / 153;
        let day = in_year - (month_from_march * 153 + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = cycle * 400 + year_in_cycle + i64::from(month <= 2);
        Self { year, month: month as u32, day: day as u32 }
    }

    /// `YYYYMMDD`.
    pub(super) fn compact(self) -> String {
        format!("{:04}{:02}{:02}", self.year, self.month, self.day)
    }
}

/// The number of days from 1970-01-01 to the day of a moment, given in seconds since then.
pub(super) fn day_of_seconds(seconds: i64) -> i64 {
    seconds.div_euclid(DAY_S)
}

/// Appends a moment as RFC 3339 in UTC with microseconds, such as `2025-01-31T23:59:59.000001Z`. A year outside of 0 to
/// 9999, which RFC 3339 cannot write, is written with its sign and as many digits as it takes.
pub fn push_rfc3339(out: &mut Vec<u8>, us: i64) {
    let seconds = us.div_euclid(1_000_000);
    let fraction = us.rem_euclid(1_000_000) as u32;
    let date = Date::of_days(day_of_seconds(seconds));
    let in_day = seconds.rem_euclid(DAY_S) as u32;
    if (0..=9999).contains(&date.year) {
        push_digits(out, date.year as u32, 4);
    } else {
        out.extend_from_slice(format!("{:+05}", date.year).as_bytes());
    }
    for (before, value, width) in [
        (b'-', date.month, 2),
        (b'-', date.day, 2),
        (b'T', in_day / 3600, 2),
        (b':', in_day / 60 % 60, 2),
        (b':', in_day % 60, 2),
        (b'.', fraction, 6),
    ] {
        out.push(before);
        push_digits(out, value, width);
    }
    out.push(b'Z');
}

/// Appends the last `width` decimal digits of a number, with leading zeros.
fn push_digits(out: &mut Vec<u8>, value: u32, width: u32) {
    for place in (0..width).rev() {
        out.push(b'0' + (value / 10u32.pow(place) % 10) as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(us: i64) -> String {
        let mut out = Vec::new();
        push_rfc3339(&mut out, us);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn known_moments() {
        for (us, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199_123_456, "2024-02-29T23:59:59.123456Z"),
            (1_709_251_200_000_000, "2024-03-01T00:00:00.000000Z"),
            (4_107_542_400_000_000, "2100-03-01T00:00:00.000000Z"),
            (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
            (253_402_300_800_000_000, "+10000-01-01T00:00:00.000000Z"),
            (-62_135_596_800_000_000, "0001-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(text(us), expected);
        }
        text(i64::MIN);
        text(i64::MAX);
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let leap = |y: i64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
        let length = |d: Date| match d.month {
            2 if leap(d.year) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        let mut before = Date::of_days(-800_000);
        for days in -799_999..800_000 {
            let date = Date::of_days(days);
            let expected = if before.day < length(before) {
                Date { day: before.day + 1, ..before }
            } else if before.month < 12 {
                Date { month: before.month + 1, day: 1, ..before }
            } else {
                Date { year: before.year + 1, month: 1, day: 1 }
            };
            assert_eq!(date, expected, "{days}");
            before = date;
        }
    }
}
