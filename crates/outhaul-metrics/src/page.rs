//! The text that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::{Family, Histogram};

/// A page that is being written. Families may come in any order, and each several times; the text has each once.
#[derive(Debug, Default)]
pub struct Page {
    families: BTreeMap<&'static str, (&'static Family, String)>,
}

impl Page {
    /// Media type of the text.
    pub const CONTENT_TYPE: &'static str = "text/plain; version=0.0.4; charset=utf-8";

    /// One value, with the values of the family's labels in their order.
    pub fn put(&mut self, family: &'static Family, labels: &[&str], value: f64) {
        let lines = self.lines(family);
        _ = lines.write_str(family.name);
        write_labels(lines, family, labels, None);
        _ = writeln!(lines, " {value}");
    }

    /// The same for a whole number.
    pub fn count(&mut self, family: &'static Family, labels: &[&str], value: u64) {
        let lines = self.lines(family);
        _ = lines.write_str(family.name);
        write_labels(lines, family, labels, None);
        _ = writeln!(lines, " {value}");
    }

    /// A histogram.
    #[allow(clippy::cast_precision_loss)]
    pub fn histogram(&mut self, family: &'static Family, labels: &[&str], histogram: &Histogram) {
        let (counts, sum) = histogram.read();
        let buckets = histogram.buckets();
        let scale = buckets.scale as f64;
        let all = counts.last().copied().unwrap_or(0);
        let lines = self.lines(family);
        for (limit, count) in buckets.limits.iter().zip(&counts) {
            _ = write!(lines, "{}_bucket", family.name);
            write_labels(lines, family, labels, Some(&(*limit as f64 / scale).to_string()));
            _ = writeln!(lines, " {count}");
        }
        _ = write!(lines, "{}_bucket", family.name);
        write_labels(lines, family, labels, Some("+Inf"));
        _ = writeln!(lines, " {all}");
        _ = write!(lines, "{}_sum", family.name);
        write_labels(lines, family, labels, None);
        _ = writeln!(lines, " {}", sum as f64 / scale);
        _ = write!(lines, "{}_count", family.name);
        write_labels(lines, family, labels, None);
        _ = writeln!(lines, " {all}");
    }

    fn lines(&mut self, family: &'static Family) -> &mut String {
        &mut self.families.entry(family.name).or_insert_with(|| (family, String::new())).1
    }

    /// The text.
    pub fn finish(self) -> String {
        let mut text = String::new();
        for (name, (family, lines)) in self.families {
            let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
            _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {}\n{lines}", family.kind.as_str());
        }
        text
    }
}

fn write_labels(to: &mut String, family: &Family, values: &[&str], le: Option<&str>) {
    debug_assert_eq!(family.labels.len(), values.len(), "{}", family.name);
    let all = family.labels.iter().copied().zip(values.iter().copied()).chain(le.map(|le| ("le", le)));
    let mut first = true;
    for (name, value) in all {
        to.push(if first { '{' } else { ',' });
        first = false;
        _ = write!(to, "{name}=\"");
        for c in value.chars() {
            match c {
                '\\' => to.push_str("\\\\"),
                '"' => to.push_str("\\\""),
                '\n' => to.push_str("\\n"),
                c => to.push(c),
            }
        }
        to.push('"');
    }
    if !first {
        to.push('}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buckets, Kind};

    static ROWS: Family = Family { name: "rows", kind: Kind::Gauge, labels: &["a", "b"], help: "Rows\\ of\nall." };
    static WAIT: Family = Family { name: "wait_seconds", kind: Kind::Histogram, labels: &["a"], help: "Wait." };
    static UP: Family = Family { name: "up_total", kind: Kind::Counter, labels: &[], help: "Up." };

    #[test]
    fn families_come_together_and_labels_are_escaped() {
        let mut page = Page::default();
        page.count(&ROWS, &["x\"\\\n", "1"], 7);
        page.count(&UP, &[], 1);
        page.put(&ROWS, &["y", "2"], 0.5);
        assert_eq!(
            page.finish(),
            "# HELP rows Rows\\\\ of\\nall.\n# TYPE rows gauge\nrows{a=\"x\\\"\\\\\\n\",b=\"1\"} 7\nrows{a=\"y\",b=\"2\"} 0.5\n\
             # HELP up_total Up.\n# TYPE up_total counter\nup_total 1\n"
        );
    }

    #[test]
    fn a_histogram_counts_what_is_at_most_so_large() {
        const FEW: Buckets = Buckets { limits: &[1_000, 2_500], scale: 1_000_000 };
        let histogram = Histogram::new(FEW);
        let mut tally = histogram.tally();
        [-5, 1_000, 1_001].into_iter().for_each(|v| tally.observe(v));
        histogram.add(&tally);
        histogram.observe(3_000_000);
        let mut page = Page::default();
        page.histogram(&WAIT, &["x"], &histogram);
        let text = page.finish();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            [
                "wait_seconds_bucket{a=\"x\",le=\"0.001\"} 2",
                "wait_seconds_bucket{a=\"x\",le=\"0.0025\"} 3",
                "wait_seconds_bucket{a=\"x\",le=\"+Inf\"} 4",
                "wait_seconds_sum{a=\"x\"} 3.002001",
                "wait_seconds_count{a=\"x\"} 4",
            ]
        );
    }
}
