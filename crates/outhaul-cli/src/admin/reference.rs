//! `docs/metrics.md`, written from the list of metrics.

use std::fmt::Write;

use outhaul_relay::watch::families::FAMILIES;

const HEAD: &str = "\
# Metrics

<!-- Written by `outhaul reference --metrics`. Change crates/outhaul-relay/src/watch/families.rs and run it again: a test
     compares. -->

What `/metrics` of a relay shows, see [monitoring.md](monitoring.md). Values of labels come from the configuration or are
words that are known beforehand, never topics, keys or ids. Counters begin at 0 with the process.

| metric | kind | labels | meaning |
|---|---|---|---|
";

/// The page.
pub(crate) fn page() -> String {
    let mut page = HEAD.to_owned();
    for f in FAMILIES {
        _ = writeln!(page, "| `{}` | {} | {} | {} |", f.name, f.kind.as_str(), f.labels.join(", "), f.help);
    }
    page
}
