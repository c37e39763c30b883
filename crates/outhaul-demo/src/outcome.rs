//! The numbers of a demo, and how they are shown.

use std::fmt;

use serde::Serialize;

use crate::options::Strategy;

/// What the demo showed. Serializes to what `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Seed of the moments of the kills.
    pub seed: u64,
    /// Seconds of load in each run.
    pub seconds: u32,
    /// Orders per second that were asked for.
    pub rate: u32,
    /// Kills of the service in each run, and of the relay in the second.
    pub kills: u32,
    /// The runs, in order.
    pub runs: Vec<Numbers>,
    /// Folder that was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}

/// The numbers of one run, all of them counted.
#[derive(Clone, Debug, Serialize)]
pub struct Numbers {
    /// How events were sent.
    pub strategy: Strategy,
    /// Orders in the service's database.
    pub orders_committed: u64,
    /// Orders that were rolled back on purpose.
    pub orders_declined: u64,
    /// What each downstream service has.
    pub downstream: Vec<Downstream>,
    /// Orders that at least one downstream service never received.
    pub missing_orders: u64,
    /// Events that were never received, over all downstream services.
    pub missing_deliveries: u64,
    /// Kills of the order service.
    pub service_kills: u64,
    /// Kills of the relay.
    pub relay_kills: u64,
    /// Commit, then send: the inquest over the kills.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// From COMMIT to the inbox, all deliveries, those that waited for a killed relay's successor included.
    pub latency: Option<Latency>,
    /// The same, of orders that were committed at least 2 s after the latest start of a relay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calm_latency: Option<Latency>,
    /// Seconds of load.
    pub load_seconds: f64,
    /// Seconds from the end of the load until all was applied.
    pub settling_seconds: f64,
    /// Committed orders per second of load.
    pub orders_per_second: f64,
}

/// The numbers of a downstream service.
#[derive(Clone, Debug, Serialize)]
pub struct Downstream {
    /// Name.
    pub name: &'static str,
    /// Committed orders whose event is in its inbox.
    pub received: u64,
    /// Committed orders whose event is not.
    pub missing: u64,
    /// Events of orders that were never committed.
    pub phantom: u64,
    /// Events that came again, and were refused by the inbox's primary key.
    pub duplicates_received: u64,
    /// Events that were applied.
    pub applied: u64,
    /// Events that were applied again.
    pub duplicates_applied: u64,
    /// Whether the sum of all effects is that of the orders received.
    pub amounts_agree: bool,
}

/// What the killed processes were at, from the notes that their workers kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cut {
    /// Kills that found at least one worker between an order's commit and its last send.
    pub kills: u64,
    /// Orders that were there.
    pub orders: u64,
    /// Missing events whose order was committed and whose send was not noted when its process was killed.
    pub explained: u64,
    /// Events that arrived although their send was not noted: the kill came between the two system calls.
    pub escaped: u64,
    /// Missing events that no kill explains. Must be 0.
    pub unexplained: u64,
}

/// Percentiles of a time, milliseconds. Arrivals are known to the millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: f64,
    /// 99 of 100 are not above.
    pub p99_ms: f64,
    /// Longest.
    pub max_ms: f64,
    /// How many were measured.
    pub count: u64,
}

impl Latency {
    pub(crate) fn of(mut us: Vec<i64>) -> Option<Self> {
        us.sort_unstable();
        let last = us.len().checked_sub(1)?;
        let at = |percent: usize| us.get(last * percent / 100).copied().unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "milliseconds for people")]
        let ms = |us: i64| us as f64 / 1000.0;
        Some(Self { p50_ms: ms(at(50)), p99_ms: ms(at(99)), max_ms: ms(at(100)), count: u64::try_from(last).ok()? + 1 })
    }
}

impl Outcome {
    /// Whether it shows what it must: with Outhaul nothing is missing, phantom or applied twice; without it, every
    /// missing event is explained by a kill.
    pub fn holds(&self) -> bool {
        self.runs.iter().all(|run| {
            let sound = run.downstream.iter().all(|d| d.phantom == 0 && d.duplicates_applied == 0 && d.amounts_agree);
            let complete = match &run.cut {
                Some(cut) => cut.unexplained == 0 && cut.explained == run.missing_deliveries,
                None => run.missing_deliveries == 0,
            };
            sound && complete
        })
    }

    fn row(&self, f: &mut fmt::Formatter<'_>, name: &str, cell: impl Fn(&Numbers) -> String) -> fmt::Result {
        write!(f, "{name:<34}")?;
        for run in &self.runs {
            write!(f, "{:>22}", cell(run))?;
        }
        writeln!(f)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.row(f, "", |run| run.strategy.title().into())?;
        self.row(f, "kills of service + relay", |run| format!("{} + {}", run.service_kills, run.relay_kills))?;
        self.row(f, "orders committed", |run| grouped(run.orders_committed))?;
        for (i, service) in crate::shop::SERVICES.iter().enumerate() {
            let received = |run: &Numbers| run.downstream.get(i).map_or(0, |d| d.received);
            self.row(f, &format!("  received by {}", service.name), |run| grouped(received(run)))?;
        }
        let sum = |pick: fn(&Downstream) -> u64| move |run: &Numbers| grouped(run.downstream.iter().map(pick).sum());
        self.row(f, "orders lost for someone", |run| grouped(run.missing_orders))?;
        self.row(f, "events missing", sum(|d| d.missing))?;
        self.row(f, "events phantom", sum(|d| d.phantom))?;
        self.row(f, "duplicates received", sum(|d| d.duplicates_received))?;
        self.row(f, "duplicates applied", sum(|d| d.duplicates_applied))?;
        self.row(f, "commit to inbox, P50 / P99", |run| shown(run.latency))?;
        if self.runs.iter().any(|run| run.calm_latency.is_some()) {
            self.row(f, "  2 s and more after a relay's start", |run| match run.strategy {
                Strategy::CommitThenSend => String::new(),
                Strategy::Outhaul => shown(run.calm_latency),
            })?;
        }
        self.row(f, &format!("orders/s ({} asked for)", grouped(self.rate.into())), |run| {
            format!("{:.0}", run.orders_per_second)
        })?;
        writeln!(f)?;
        for run in &self.runs {
            if let Some(cut) = &run.cut {
                inquest(f, run, cut)?;
            }
        }
        if self.runs.iter().any(|run| run.strategy == Strategy::Outhaul) {
            writeln!(
                f,
                "With Outhaul: the event is a row of the order's own transaction. What a killed relay had sent but not \
                 written down,\nthe next one sends again once the old lease (1 s) is over; the inbox knows the id."
            )?;
        }
        writeln!(
            f,
            "SQLite in WAL mode with synchronous=NORMAL: a commit survives the death of every process, not a power cut.\n\
             Seed {}.{}",
            self.seed,
            if self.holds() { "" } else { " THE NUMBERS ARE NOT WHAT THEY MUST BE." }
        )?;
        if let Some(folder) = &self.folder {
            writeln!(f, "Kept: {folder}")?;
        }
        write!(f, "{TRY_NEXT}")
    }
}

/// Says what the kills of a run explain.
fn inquest(f: &mut fmt::Formatter<'_>, run: &Numbers, cut: &Cut) -> fmt::Result {
    writeln!(
        f,
        "Commit, then send: {} of {} kills fell between a commit and its sends, on {} orders with {} events not yet sent.",
        cut.kills,
        run.service_kills,
        cut.orders,
        cut.explained + cut.escaped
    )?;
    if cut.escaped > 0 {
        writeln!(f, "{} of these arrived: the kill came after the send and before the note of it.", cut.escaped)?;
    }
    match cut.unexplained {
        0 => writeln!(f, "That explains all {} missing events.", run.missing_deliveries),
        n => writeln!(f, "{n} OF {} MISSING EVENTS HAVE NO EXPLANATION: please report this.", run.missing_deliveries),
    }
}

/// What the table ends with.
const TRY_NEXT: &str = r#"
Try next, with a database of your own:
  outhaul init --db sqlite:shop.db
  echo '{"topic":"order-created","key":"customer-1","payload":{"order":1}}' | outhaul enqueue --db sqlite:shop.db
  outhaul relay --db sqlite:shop.db --to stdout: --until-empty
"#;

fn shown(latency: Option<Latency>) -> String {
    latency.map_or_else(|| "-".into(), |l| format!("{:.1} / {:.1} ms", l.p50_ms, l.p99_ms))
}

/// A number with its thousands apart.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 118_402, 1_000_000].map(grouped), ["0", "999", "1,000", "118,402", "1,000,000"]);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        assert_eq!(Latency::of(vec![]), None);
        let latency = Latency::of((1..=101).rev().map(|n| n * 1000).collect()).unwrap();
        assert_eq!(latency, Latency { p50_ms: 51.0, p99_ms: 100.0, max_ms: 101.0, count: 101 });
    }
}
