//! Moments as text: RFC 3339, in and out, microseconds since 1970-01-01 UTC.

/// `2026-03-01T12:30:05.000250Z`. Trailing zeros of the fraction stay: lines keep their width.
pub fn format_us(us: i64) -> String {
    let (days, of_day) = (us.div_euclid(86_400_000_000), us.rem_euclid(86_400_000_000));
    let (year, month, day) = civil(days);
    let (s, micros) = (of_day / 1_000_000, of_day % 1_000_000);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{micros:06}Z", s / 3600, s / 60 % 60, s % 60)
}

/// The time of day alone, to the millisecond: `12:30:05.000`.
pub fn time_of_day(us: i64) -> String {
    let of_day = us.rem_euclid(86_400_000_000);
    let (s, ms) = (of_day / 1_000_000, of_day / 1_000 % 1_000);
    format!("{:02}:{:02}:{:02}.{ms:03}", s / 3600, s / 60 % 60, s % 60)
}

/// Whether two moments lie on the same day, UTC.
pub const fn same_day(a_us: i64, b_us: i64) -> bool {
    a_us.div_euclid(86_400_000_000) == b_us.div_euclid(86_400_000_000)
}

/// Reads an RFC 3339 moment with its offset (`Z`, `+02:00`); a space may stand for the `T`. A moment without an offset
/// is refused: whose clock it means cannot be known.
pub fn parse(text: &str) -> Option<i64> {
    let b = text.as_bytes();
    let digits = |from: usize, n: usize| -> Option<i64> {
        let part = b.get(from..from + n)?;
        part.iter().try_fold(0i64, |sum, c| c.is_ascii_digit().then(|| sum * 10 + i64::from(c - b'0')))
    };
    let mark = |at: usize, any: &[u8]| b.get(at).filter(|c| any.contains(c)).map(|_| ());
    let (year, month, day) = (digits(0, 4)?, digits(5, 2)?, digits(8, 2)?);
    let (hour, minute, second) = (digits(11, 2)?, digits(14, 2)?, digits(17, 2)?);
    mark(4, b"-").and(mark(7, b"-")).and(mark(10, b"Tt ")).and(mark(13, b":")).and(mark(16, b":"))?;
    let mut at = 19;
    let mut micros = 0;
    if b.get(at) == Some(&b'.') {
        let n = b.iter().skip(at + 1).take_while(|c| c.is_ascii_digit()).count();
        if n == 0 || n > 9 {
            return None;
        }
        micros = digits(at + 1, n.min(6))? * 10i64.pow(6 - u32::try_from(n.min(6)).ok()?);
        at += 1 + n;
    }
    let offset_s = match b.get(at)? {
        b'Z' | b'z' if b.len() == at + 1 => 0,
        sign @ (b'+' | b'-') if b.len() == at + 6 => {
            let (h, m) = (digits(at + 1, 2)?, digits(at + 4, 2)?);
            mark(at + 3, b":")?;
            (h < 24 && m < 60).then_some((h * 3600 + m * 60) * if *sign == b'+' { 1 } else { -1 })?
        }
        _ => return None,
    };
    let days = days_from_civil(year, month, day)?;
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    Some((days * 86_400 + hour * 3600 + minute * 60 + second - offset_s) * 1_000_000 + micros)
}

/// Days since 1970-01-01 of a date of the Gregorian calendar; None if there is no such day.
fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March have their leap day at the end, so that days of the months before need no cases.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        y * 365 + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (m * 153 + 2) / 5 + day - 1 - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

/// Date of a day number, the reverse of [`days_from_civil`].
fn civil(days: i64) -> (i64, i64, i64) {
    let z = days + 719_468;
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let m = (of_year * 5 + 2) / 153;
    let day = of_year - (m * 153 + 2) / 5 + 1;
    let (month, next) = if m < 10 { (m + 3, 0) } else { (m - 9, 1) };
    (era * 400 + year_of_era + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (text, us) in [
            ("1970-01-01T00:00:00.000000Z", 0),
            ("1969-12-31T23:59:59.999999Z", -1),
            ("2000-02-29T12:00:00.000001Z", 951_825_600_000_001),
            ("2026-03-01T12:30:05.000250Z", 1_772_368_205_000_250),
        ] {
            assert_eq!(parse(text), Some(us), "{text}");
            assert_eq!(format_us(us), text);
        }
        for day in -200_000..200_000 {
            let (y, m, d) = civil(day);
            assert_eq!(days_from_civil(y, m, d), Some(day));
        }
    }

    #[test]
    fn offsets_and_fractions() {
        assert_eq!(parse("2026-03-01T14:30:05+02:00"), parse("2026-03-01T12:30:05Z"));
        assert_eq!(parse("2026-03-01 12:30:05.5Z"), parse("2026-03-01T12:30:05.500000Z"));
        assert_eq!(parse("2026-03-01T12:30:05.123456789Z"), parse("2026-03-01T12:30:05.123456Z"));
        for bad in [
            "",
            "2026-03-01",
            "2026-03-01T12:30:05",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-03-01T24:00:00Z",
            "2026-03-01T12:30:05.Z",
            "2026-03-01T12:30:05+2",
            "2026-03-01T12:30:05Zx",
            "é026-03-01T12:30:05Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
