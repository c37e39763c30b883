//! Lengths of time and numbers of bytes, as people write and read them.

/// Reads `250ms`, `3s`, `10m`, `1h`, `7d`, `0s`; several may follow each other (`1h30m`). Milliseconds.
pub fn parse_span(text: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let (mut rest, mut total_ms) = (text.trim(), 0u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at(digits);
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
        total_ms = total_ms.checked_add(number.parse::<u64>().ok()?.checked_mul(*unit_ms)?)?;
        rest = tail;
    }
    // Beyond this, sums with a clock's microseconds could overflow.
    (total_ms <= 1_000 * 365 * 86_400_000).then_some(total_ms)
}

/// Reads `4MiB`, `512KiB`, `1GiB`, `65536`. Bytes. Decimal units (`MB`) are not taken: they invite mistakes.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|n| *n <= 1 << 40)
}

/// Reads `500`, `0.5`, `500/s`: a number a second, from a thousandth to a million. Thousandths.
pub fn parse_rate(text: &str) -> Option<u64> {
    const MOST: f64 = 1_000_000.0;
    let number: f64 = text.strip_suffix("/s").unwrap_or(text).trim().parse().ok()?;
    // Comparisons with what is no number are false.
    (0.001..=MOST).contains(&number).then(|| (number * 1_000.0).round() as u64)
}

/// A rate in thousandths, as [`parse_rate`] reads it: `500/s`, `0.5/s`.
pub fn rate_text(milli: u64) -> String {
    let fraction = format!(".{:03}", milli % 1_000);
    format!("{}{}/s", milli / 1_000, fraction.trim_end_matches('0').trim_end_matches('.'))
}

/// A length of time in the two largest units that it has: `2d 3h`, `4m 10s`, `350ms`.
pub fn span_text(ms: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let Some(first) = UNITS.iter().position(|(unit_ms, _)| ms >= *unit_ms) else { return format!("{ms}ms") };
    let mut rest = ms;
    let parts: Vec<String> = UNITS
        .iter()
        .skip(first)
        .take(2)
        .filter_map(|(unit_ms, name)| {
            let n = rest / unit_ms;
            rest %= unit_ms;
            (n > 0).then(|| format!("{n}{name}"))
        })
        .collect();
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (text, ms) in
            [("0s", 0), ("250ms", 250), ("3s", 3_000), ("1h30m", 5_400_000), ("7d", 604_800_000), (" 5 s", 5_000)]
        {
            assert_eq!(parse_span(text), Some(ms), "{text}");
        }
        for text in ["", "3", "s", "3 weeks", "-1s", "1.5s", "99999999999999999999s", "400000d", "1s3"] {
            assert_eq!(parse_span(text), None, "{text}");
        }
        assert_eq!(span_text(999), "999ms");
        assert_eq!(span_text(250_000), "4m 10s");
        assert_eq!(span_text(86_400_000 * 2 + 3_600_000 * 3 + 5), "2d 3h");
        assert_eq!(span_text(3_600_000), "1h");
    }

    #[test]
    fn rates() {
        for (text, milli) in [
            ("500", 500_000),
            ("0.5", 500),
            ("500/s", 500_000),
            ("7.25 /s", 7_250),
            ("1e3", 1_000_000),
            ("0.001", 1),
            ("1000000", 1_000_000_000),
        ] {
            assert_eq!(parse_rate(text), Some(milli), "{text}");
            assert_eq!(parse_rate(&rate_text(milli)), Some(milli), "{text}");
        }
        for text in ["", "0", "-1", "nan", "inf", "-inf", "0.0009", "1000001", "1/m", "/s", "many", "1e99"] {
            assert_eq!(parse_rate(text), None, "{text}");
        }
        assert_eq!([500_000, 500, 7_250, 1, 0].map(rate_text), ["500/s", "0.5/s", "7.25/s", "0.001/s", "0/s"]);
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4MiB"), Some(4 << 20));
        assert_eq!(parse_size("65536"), Some(65_536));
        assert_eq!(parse_size("1 KiB"), Some(1_024));
        for text in ["", "MiB", "4MB", "-1", "4.5MiB", "99999999GiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
