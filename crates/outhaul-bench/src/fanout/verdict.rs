//! What a run came to.

use super::Design;
use super::phases::{Kept, Sample, Seen};
use super::troubled::UNANSWERED;
use crate::measure::percentile;

/// P99 of a healthy lane beside bad ones, as a multiple of the P99 without them: wanted at most.
const WANTED_RATIO: f64 = 1.1;

/// When each row was first acknowledged, how often beyond that, and how many of its sends were not answered.
struct Acknowledged {
    at_us: Vec<Option<u64>>,
    again: Vec<u32>,
    unanswered: Vec<u32>,
}

impl Acknowledged {
    fn of(seen: &Seen, destination: usize) -> Self {
        let rows = seen.committed.len();
        let (mut at_us, mut again, mut unanswered) = (vec![None::<u64>; rows], vec![0; rows], vec![0; rows]);
        for (n, at) in seen.acks[destination].iter().copied() {
            match &mut at_us[n] {
                _ if at == UNANSWERED => unanswered[n] += 1,
                Some(first) => (*first, again[n]) = ((*first).min(at), again[n] + 1),
                none => *none = Some(at),
            }
        }
        Self { at_us, again, unanswered }
    }

    /// Copies beyond the first, and how many of them no unanswered send explains.
    fn copies(&self, seen: &Seen, destination: usize) -> (u64, u64) {
        let held = seen.held[destination].iter().map(|copies| copies.saturating_sub(1));
        // An inbox holds nothing twice: of it what it was sent again.
        let again: Vec<u32> = if seen.parts[destination].is_inbox() { self.again.clone() } else { held.collect() };
        let unexplained = again.iter().zip(&self.unanswered).map(|(again, times)| again.saturating_sub(*times));
        (again.iter().map(|n| u64::from(*n)).sum(), unexplained.map(u64::from).sum())
    }

    /// P50 and P99 of a phase. What was not acknowledged counts as if it had been at the end.
    fn waits(&self, seen: &Seen, phase: usize) -> [Wait; 2] {
        let mut waits: Vec<u64> = Vec::new();
        let mut open = usize::MAX;
        for n in seen.timeline.measured(phase) {
            let at = self.at_us[n].unwrap_or(seen.ended_us);
            let wait = at.saturating_sub(seen.committed[n]);
            if self.at_us[n].is_none() {
                open = open.min(wait as usize);
            }
            waits.push(wait);
        }
        waits.sort_unstable();
        [50.0, 99.0].map(|percent| {
            let us = percentile(&waits, percent);
            Wait { us, at_least: us as usize >= open }
        })
    }

    /// Seconds from the recovery until it had acknowledged all that was committed before.
    fn caught_up_s(&self, seen: &Seen) -> Option<f64> {
        let before = self.at_us.get(..seen.timeline.phase(2).start)?;
        let last = before.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()?;
        Some(last.saturating_sub(seen.borders_us[2]) as f64 / 1e6)
    }
}

#[derive(Clone, Copy)]
struct Wait {
    us: u64,
    at_least: bool,
}

impl std::fmt::Display for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.at_least { "≥ " } else { "" };
        f.pad(&format!("{sign}{:.1}", self.us as f64 / 1e3))
    }
}

/// Prints it. Of Outhaul nothing may be missing, and nothing twice on a healthy lane, but what was not answered in time
/// since the machine has too much to do.
pub fn print(seen: &Seen) {
    println!("\n{}", seen.design.title());
    println!(
        "{:<9} {:>11} {:>11} {:>11} {:>11} {:>9} {:>11} {:>8} {:>10}",
        "", "P50 (a) ms", "P99 (a) ms", "P50 (b) ms", "P99 (b) ms", "P99 b/a", "P99 (c) ms", "missing", "duplicates"
    );
    let (mut worst, mut all_missing, mut healthy_twice, mut without_reason) = (0.0f64, 0, 0, 0);
    for (n, part) in seen.parts.iter().enumerate() {
        let acknowledged = Acknowledged::of(seen, n);
        let [[p50_a, p99_a], [p50_b, p99_b], [_, p99_c]] = [0, 1, 2].map(|phase| acknowledged.waits(seen, phase));
        let missing = seen.held[n].iter().filter(|copies| **copies == 0).count();
        let (twice, unexplained) = acknowledged.copies(seen, n);
        let ratio = p99_b.us as f64 / p99_a.us.max(1) as f64;
        let bad = part.trouble.map_or_else(String::new, |trouble| {
            let caught_up = acknowledged.caught_up_s(seen);
            let caught_up =
                caught_up.map_or("not caught up by the end".into(), |s| format!("caught up after {s:.1} s"));
            format!("  {} in (b), {caught_up}", trouble.name())
        });
        println!(
            "{:<9} {p50_a:>11} {p99_a:>11} {p50_b:>11} {p99_b:>11} {ratio:>9.2} {p99_c:>11} {missing:>8} {twice:>10}{bad}",
            part.name
        );
        all_missing += missing;
        if part.trouble.is_none() {
            worst = worst.max(ratio);
            healthy_twice += twice;
            without_reason += unexplained;
        }
    }
    println!(
        "healthy lanes: the largest P99 b/a is {worst:.2} (wanted: at most {WANTED_RATIO}); duplicates {healthy_twice}: {} of sends without an answer in time, {without_reason} without a reason",
        healthy_twice - without_reason
    );
    print_samples(seen);
    if seen.design == Design::Outhaul {
        let [a, b, c, end] = seen.kept;
        println!(
            "log and receipts, bytes a message as written: (a) {:.0}, (b) {:.0}, (c) {:.0}",
            a.growth(b),
            b.growth(c),
            c.growth(end)
        );
        assert_eq!((all_missing, without_reason), (0, 0), "nothing missing, nothing twice on a healthy lane");
    }
}

impl Kept {
    /// Bytes a message until `later`.
    fn growth(self, later: Self) -> f64 {
        (later.bytes as f64 - self.bytes as f64) / (later.messages - self.messages).max(1) as f64
    }
}

fn print_samples(seen: &Seen) {
    let [a, b, c, end] = seen.borders_us;
    let within = |from: u64, to: u64| -> Vec<Sample> {
        seen.samples.iter().copied().filter(|s| (from..to).contains(&s.at_us)).collect()
    };
    let phases =
        [("(a)", within(a, b)), ("(b)", within(b, c)), ("(c)", within(c, end)), ("end", within(end, u64::MAX))];
    let most = |samples: &[Sample], of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap_or(0);
    let last = |samples: &[Sample], of: fn(&Sample) -> u64| samples.last().map_or(0, of);
    let hot: Vec<String> = phases
        .iter()
        .map(|(name, s)| format!("{name} max {} last {}", most(s, |s| s.hot_rows), last(s, |s| s.hot_rows)))
        .collect();
    println!("rows in the outbox table: {}", hot.join(", "));
    let mib = |kib: u64| kib as f64 / 1024.0;
    let rss: Vec<String> = phases
        .iter()
        .map(|(name, s)| {
            let (most, last) = (mib(most(s, |s| s.rss_kib)), mib(last(s, |s| s.rss_kib)));
            format!("{name} max {most:.1} last {last:.1}")
        })
        .collect();
    println!("RSS of the relay, MiB: {}", rss.join(", "));
}
