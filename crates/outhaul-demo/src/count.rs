//! Counts what a run left in its databases and notes.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::time::Duration;

use rusqlite::{Connection, Row};

use crate::database::open_to_read;
use crate::error::DemoError;
use crate::notes::Notes;
use crate::options::Strategy;
use crate::outcome::{Cut, Downstream, Latency, Numbers};
use crate::scene::Scene;
use crate::shop::{Order, SERVICES, Service};

/// An order counts as undisturbed if it was committed at least this long after the latest start of a relay …
const CALM_AFTER_START_US: i64 = 2_000_000;
/// … and this long before the next kill.
const CALM_BEFORE_KILL_US: i64 = 250_000;

/// What happened in a run, as far as the databases do not say it.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) service_kills: u64,
    /// When, microseconds since 1970-01-01 UTC.
    pub(crate) relay_kills_us: Vec<i64>,
    pub(crate) relay_starts_us: Vec<i64>,
    /// From the first order service's start to the last one's end.
    pub(crate) load: Duration,
    /// From then until all was applied.
    pub(crate) settling: Duration,
}

impl Course {
    pub(crate) fn kills(&self) -> u64 {
        self.service_kills + u64::try_from(self.relay_kills_us.len()).unwrap_or_default()
    }

    fn calm(&self, committed_us: i64) -> bool {
        self.relay_starts_us
            .iter()
            .all(|start| !(start - CALM_BEFORE_KILL_US..start + CALM_AFTER_START_US).contains(&committed_us))
            && self.relay_kills_us.iter().all(|kill| !(kill - CALM_BEFORE_KILL_US..*kill).contains(&committed_us))
    }
}

/// Counts for the progress line, while the run is on.
pub(crate) struct Running {
    orders: Connection,
    downstream: Vec<Connection>,
}

impl Running {
    pub(crate) fn open(scene: &Scene) -> Result<Self, DemoError> {
        Ok(Self {
            orders: open_to_read(&scene.orders())?,
            downstream: SERVICES.iter().map(|s| open_to_read(&scene.downstream(s))).collect::<Result<_, _>>()?,
        })
    }

    /// The progress line.
    pub(crate) fn line(&self, strategy: Strategy, at: Duration, of: Duration, kills: u64) -> Result<String, DemoError> {
        let last = |db: &Connection, table: &str| {
            db.query_row(&format!("SELECT coalesce(max(number), 0) FROM {table}"), [], |row| number(row, 0))
        };
        let failed = || DemoError::database("counting");
        let orders = last(&self.orders, "orders").map_err(failed())?;
        let mut line = format!(
            "{}: {:2} of {} s, {kills} kills, {orders} orders; received, with repeats:",
            strategy.title(),
            at.as_secs(),
            of.as_secs()
        );
        for (n, (service, db)) in SERVICES.iter().zip(&self.downstream).enumerate() {
            let comma = if n > 0 { "," } else { "" };
            line += &format!("{comma} {} {}", service.name, last(db, "arrival").map_err(failed())?);
        }
        Ok(line)
    }
}

/// Counts a finished run.
pub(crate) fn count(scene: &Scene, course: &Course) -> Result<Numbers, DemoError> {
    let orders = orders(&open_to_read(&scene.orders())?).map_err(DemoError::database("counting orders"))?;
    let notes = Notes::read(&scene.notes())?;
    let mut arrived = vec![];
    for service in &SERVICES {
        let db = open_to_read(&scene.downstream(service))?;
        arrived.push((service, Arrived::read(&db, service).map_err(DemoError::database("counting arrivals"))?));
    }

    let (mut waits_us, mut calm_us, mut lost) = (vec![], vec![], BTreeSet::new());
    let mut downstream = vec![];
    for (service, arrived) in &arrived {
        let missing: Vec<&String> = orders.keys().filter(|id| !arrived.stored.contains(*id)).collect();
        for (id, at_ms) in &arrived.first_ms {
            // An order whose process was killed between its COMMIT and the note of it has no known moment.
            let Some(committed_us) = notes.committed_us.get(id) else { continue };
            // SQLite's clock has milliseconds: the middle of the one it gave.
            let wait = (at_ms * 1000 + 500 - committed_us).max(0);
            waits_us.push(wait);
            if course.calm(*committed_us) {
                calm_us.push(wait);
            }
        }
        downstream.push(arrived.numbers(service, &orders, missing.len()));
        lost.extend(missing.into_iter().map(|id| (id.clone(), service.name)));
    }
    let cut = if scene.strategy == Strategy::CommitThenSend { Some(cut(&orders, &notes, &lost)) } else { None };
    let committed = as_u64(orders.len());
    Ok(Numbers {
        strategy: scene.strategy,
        orders_committed: committed,
        orders_declined: notes.declined,
        downstream,
        missing_orders: as_u64(lost.iter().map(|(id, _)| id).collect::<BTreeSet<_>>().len()),
        missing_deliveries: as_u64(lost.len()),
        service_kills: course.service_kills,
        relay_kills: as_u64(course.relay_kills_us.len()),
        cut,
        latency: Latency::of(waits_us),
        calm_latency: if scene.strategy == Strategy::Outhaul { Latency::of(calm_us) } else { None },
        load_seconds: course.load.as_secs_f64(),
        settling_seconds: course.settling.as_secs_f64(),
        orders_per_second: rate(committed, course.load),
    })
}

/// A count. SQLite's integers are signed, a count is never negative.
fn number(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}

fn as_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[allow(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64().max(f64::EPSILON)
}

/// All committed orders, with the content that their events must have.
fn orders(db: &Connection) -> rusqlite::Result<HashMap<String, Order>> {
    let mut items: HashMap<String, Vec<crate::shop::Item>> = HashMap::new();
    let mut statement = db.prepare("SELECT order_id, sku, quantity, price_cents FROM order_item")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let item = crate::shop::Item { sku: row.get(1)?, quantity: row.get(2)?, price_cents: row.get(3)? };
        items.entry(row.get(0)?).or_default().push(item);
    }
    db.prepare("SELECT id, customer, total_cents FROM orders")?
        .query_map([], |row| {
            let id: String = row.get(0)?;
            let items = items.get(&id).cloned().unwrap_or_default();
            Ok((id.clone(), Order { id, customer: row.get(1)?, total_cents: row.get(2)?, items }))
        })?
        .collect()
}

/// What a downstream service's database holds.
struct Arrived {
    /// Ids in the inbox.
    stored: HashSet<String>,
    /// First arrival of each id, milliseconds since 1970-01-01 UTC.
    first_ms: BTreeMap<String, i64>,
    /// Attempts to store an id that was there already.
    repeats: u64,
    /// Events that were applied: distinct ids, and all.
    applied: (u64, u64),
    /// Sum of all effects.
    amount: i64,
}

impl Arrived {
    fn read(db: &Connection, service: &Service) -> rusqlite::Result<Self> {
        let stored = db
            .prepare("SELECT id FROM inbox_message WHERE consumer = ?1")?
            .query_map([service.name], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        let first_ms = db
            .prepare("SELECT id, min(at_ms) FROM arrival GROUP BY id")?
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Self {
            stored,
            first_ms,
            repeats: db.query_row("SELECT count(*) - count(DISTINCT id) FROM arrival", [], |row| number(row, 0))?,
            applied: db.query_row("SELECT count(DISTINCT event_id), count(*) FROM applied", [], |row| {
                Ok((number(row, 0)?, number(row, 1)?))
            })?,
            amount: service.amount_applied(db)?,
        })
    }

    fn numbers(&self, service: &Service, orders: &HashMap<String, Order>, missing: usize) -> Downstream {
        let expected: i64 = self.stored.iter().filter_map(|id| orders.get(id)).map(|o| service.amount_of(o)).sum();
        Downstream {
            name: service.name,
            received: as_u64(self.stored.iter().filter(|id| orders.contains_key(*id)).count()),
            missing: as_u64(missing),
            phantom: as_u64(self.stored.iter().filter(|id| !orders.contains_key(*id)).count()),
            duplicates_received: self.repeats,
            applied: self.applied.0,
            duplicates_applied: self.applied.1 - self.applied.0,
            amounts_agree: self.amount == expected,
        }
    }
}

/// The inquest: what every worker was at when its process ended, against what is missing.
fn cut(orders: &HashMap<String, Order>, notes: &Notes, lost: &BTreeSet<(String, &'static str)>) -> Cut {
    let mut cut = Cut { unexplained: as_u64(lost.len()), ..Cut::default() };
    let mut processes = BTreeSet::new();
    for last in notes.last.iter().filter(|last| orders.contains_key(&last.id)) {
        let unsent: Vec<&str> = SERVICES.iter().map(|s| s.name).filter(|name| !last.sent.contains(*name)).collect();
        if unsent.is_empty() {
            continue;
        }
        processes.insert(last.process);
        cut.orders += 1;
        for service in unsent {
            if lost.contains(&(last.id.clone(), service)) {
                cut.explained += 1;
                cut.unexplained -= 1;
            } else {
                cut.escaped += 1;
            }
        }
    }
    cut.kills = as_u64(processes.len());
    cut
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notes::LastOrder;

    fn last(process: u32, id: &str, sent: &[&str]) -> LastOrder {
        LastOrder { process, id: id.into(), sent: sent.iter().map(|s| (*s).to_owned()).collect() }
    }

    #[test]
    fn every_missing_event_is_explained_or_not() {
        let order = |id: &str| Order { id: id.into(), customer: String::new(), total_cents: 0, items: vec![] };
        let orders = ["a", "b", "c", "d"].map(|id| (id.to_owned(), order(id))).into();
        let notes = Notes {
            last: vec![
                last(0, "a", &[]),
                last(0, "b", &["inventory"]),
                last(1, "c", &["inventory", "points", "risk"]),
                last(1, "never committed", &[]),
            ],
            ..Notes::default()
        };
        let lost = [("a", "inventory"), ("a", "points"), ("a", "risk"), ("b", "risk"), ("d", "risk")];
        let lost = lost.map(|(id, service)| (id.to_owned(), service)).into();
        assert_eq!(cut(&orders, &notes, &lost), Cut { kills: 1, orders: 2, explained: 4, escaped: 1, unexplained: 1 });
    }

    #[test]
    fn calm_is_far_from_kills_and_starts() {
        let course =
            Course { relay_starts_us: vec![0, 10_000_000], relay_kills_us: vec![9_900_000], ..Course::default() };
        assert!(!course.calm(1_000_000) && course.calm(3_000_000) && course.calm(9_600_000));
        assert!(!course.calm(9_700_000) && !course.calm(11_900_000) && course.calm(12_000_000));
    }
}
