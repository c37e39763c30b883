//! Values as they travel as text: literals one way, columns the other.

use mysql_async::{Row, Value};

use crate::error::{StoreError, StoreErrorKind};
use crate::store::StoreResult;

/// The present, by the database's clock alone, in UTC whatever the session's time zone is.
pub(super) const NOW: &str = "UTC_TIMESTAMP(6)";
/// What DATETIME holds: 1000-01-01 to 9999-12-31, in microseconds since 1970-01-01 UTC.
const FIRST_US: i64 = -30_610_224_000_000_000;
const LAST_US: i64 = 253_402_300_799_999_999;
const DAY_US: i64 = 86_400_000_000;

/// An identifier in backticks.
pub(super) fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// A text literal, for a session in utf8mb4 whose sql_mode lets backslashes escape.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        match c {
            '\'' => out.push_str("''"),
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            c => out.push(c),
        }
    }
    out.push('\'');
    out
}

/// A literal of bytes.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut out = String::with_capacity(bytes.len() * 2 + 3);
    out.push_str("x'");
    for b in bytes {
        out.push(char::from(DIGITS[usize::from(b >> 4)]));
        out.push(char::from(DIGITS[usize::from(b & 15)]));
    }
    out.push('\'');
    out
}

/// A time in UTC as a literal; what lies outside of DATETIME becomes the nearest that does not.
pub(super) fn time_literal(us: i64) -> String {
    format!("'{}'", time_text(us))
}

/// A time in UTC as the server writes it.
pub(super) fn time_text(us: i64) -> String {
    let us = us.clamp(FIRST_US, LAST_US);
    let (days, of_day) = (us.div_euclid(DAY_US), us.rem_euclid(DAY_US));
    let (year, month, day) = date_of(days);
    let (seconds, micros) = (of_day / 1_000_000, of_day % 1_000_000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micros:06}")
}

/// Microseconds since 1970-01-01 UTC of a time as the server writes it, in UTC. None: it is not one (a zero date).
pub(super) fn micros_of(text: &[u8]) -> Option<i64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.iter().try_fold(0i64, |n, d| d.is_ascii_digit().then(|| n * 10 + i64::from(d - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let mut us = days_to(year, month, day) * DAY_US;
    if text.len() > 10 {
        us += (number(11, 13)? * 3600 + number(14, 16)? * 60 + number(17, 19)?) * 1_000_000;
    }
    let fraction = text.get(20..).unwrap_or_default();
    let fraction: &[u8] = fraction.get(..6).unwrap_or(fraction);
    let scale = 10i64.pow(6 - fraction.len() as u32);
    Some(us + number(20.min(text.len()), 20.min(text.len()) + fraction.len())? * scale)
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years are counted from March, so that a leap day is the
/// last of its year.
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of a number of days since 1970-01-01.
fn date_of(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

fn unexpected(column: usize) -> StoreError {
    StoreError::new(StoreErrorKind::Other, format!("column {column} of an answer is not what was asked for"))
}

/// Bytes of a column, moved out of the row; None: NULL.
pub(super) fn bytes_opt(row: &mut Row, column: usize) -> StoreResult<Option<Vec<u8>>> {
    match row.take::<Value, _>(column) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Value::Int(n)) => Ok(Some(n.to_string().into_bytes())),
        Some(Value::UInt(n)) => Ok(Some(n.to_string().into_bytes())),
        _ => Err(unexpected(column)),
    }
}

/// Bytes of a column that is not NULL, moved out of the row.
pub(super) fn bytes(row: &mut Row, column: usize) -> StoreResult<Vec<u8>> {
    bytes_opt(row, column)?.ok_or_else(|| unexpected(column))
}

/// Text of a column; what is not UTF-8 gets replacement characters. None: NULL.
pub(super) fn text_opt(row: &mut Row, column: usize) -> StoreResult<Option<String>> {
    let bytes = bytes_opt(row, column)?;
    Ok(bytes.map(|b| String::from_utf8(b).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())))
}

/// Text of a column that is not NULL.
pub(super) fn text(row: &mut Row, column: usize) -> StoreResult<String> {
    text_opt(row, column)?.ok_or_else(|| unexpected(column))
}

/// A whole number; None: NULL.
pub(super) fn number_opt(row: &Row, column: usize) -> StoreResult<Option<i128>> {
    match row.as_ref(column) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Int(n)) => Ok(Some(i128::from(*n))),
        Some(Value::UInt(n)) => Ok(Some(i128::from(*n))),
        Some(Value::Bytes(digits)) => {
            let parsed = std::str::from_utf8(digits).ok().and_then(|d| d.parse().ok());
            parsed.map(Some).ok_or_else(|| unexpected(column))
        }
        _ => Err(unexpected(column)),
    }
}

/// A whole number in the range of `T`.
pub(super) fn number<T: TryFrom<i128>>(row: &Row, column: usize) -> StoreResult<T> {
    let n = number_opt(row, column)?.ok_or_else(|| unexpected(column))?;
    T::try_from(n).map_err(|_| unexpected(column))
}

/// A time in microseconds since 1970-01-01 UTC; None: NULL, or a zero date.
pub(super) fn micros_opt(row: &Row, column: usize) -> StoreResult<Option<i64>> {
    match row.as_ref(column) {
        Some(Value::NULL) => Ok(None),
        Some(Value::Bytes(text)) => Ok(micros_of(text)),
        _ => Err(unexpected(column)),
    }
}

/// A time in microseconds since 1970-01-01 UTC.
pub(super) fn micros(row: &Row, column: usize) -> StoreResult<i64> {
    micros_opt(row, column)?.ok_or_else(|| unexpected(column))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (us, text) in [
            (0, "1970-01-01 00:00:00.000000"),
            (951_782_400_000_001, "2000-02-29 00:00:00.000001"),
            (-1, "1969-12-31 23:59:59.999999"),
            (1_709_251_199_123_456, "2024-02-29 23:59:59.123456"),
            (i64::MIN, "1000-01-01 00:00:00.000000"),
            (i64::MAX, "9999-12-31 23:59:59.999999"),
        ] {
            assert_eq!(time_text(us), text);
            assert_eq!(micros_of(text.as_bytes()), Some(us.clamp(FIRST_US, LAST_US)));
        }
        assert_eq!(micros_of(b"2024-02-29 23:59:59"), Some(1_709_251_199_000_000));
        assert_eq!(micros_of(b"2024-02-29 23:59:59.12"), Some(1_709_251_199_120_000));
        assert_eq!(micros_of(b"2024-02-29"), Some(1_709_164_800_000_000));
        for bad in [&b"0000-00-00 00:00:00"[..], b"", b"x", b"2024-02-29 2", b"2024-02-29 23:59:59.1x"] {
            assert_eq!(micros_of(bad), None);
        }
        for day in -400_000..400_000 {
            let (y, m, d) = date_of(day);
            assert_eq!(days_to(y, m, d), day);
        }
    }

    #[test]
    fn literals_cannot_be_left() {
        assert_eq!(literal("a'b\\c\0\u{e9}"), "'a''b\\\\c\\0\u{e9}'");
        assert_eq!(quoted("a`b"), "`a``b`");
        assert_eq!(hex(&[0, 255, 16]), "x'00ff10'");
        assert_eq!(hex(&[]), "x''");
    }
}
