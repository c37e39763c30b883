//! `outhaul reconcile`: what must be there is compared with what is there, id by id.
//!
//! | file | holds |
//! |---|---|
//! | `window` | which times are asked for |
//! | `known` | what the outbox knows: table, log, transactions |
//! | `destination`, `queues` | what a destination has |
//! | `query` | what a business query says |
//! | `report` | counts, examples, files |
//! | `fix` | missing ones are enqueued, or replayed |
//! | `transactions` | halfs that brokers have given up |
//! | `turn` | one process at a time |
//! | `schedule`, `kept` | what a relay compares by itself, and its last result |

mod destination;
mod fix;
pub(in crate::commands) mod kept;
mod known;
mod query;
mod queues;
mod report;
pub(in crate::commands) mod schedule;
mod transactions;
mod turn;
mod window;

use std::path::PathBuf;
use std::sync::Arc;

use outhaul_reconcile::{Expectation, Group, Place, Record, Side, Sorted, Verdict, compare, judge};
use outhaul_store::Store;

use self::fix::{Again, Enqueue};
use self::known::{Known, Lanes, Reach};
use self::report::{Report, Shown};
use self::schedule::Beside;
use self::turn::Turn;
use self::window::Window;
use super::{of_outbox, open, owner};
use crate::arguments::Reconcile;
use crate::config::{self, Config, Destination, Outbox};
use crate::failure::{Exit, Failure, Outcome};
use crate::{codes, timestamp};

/// Examples that are shown where nobody says how many: to people, and to programs.
const EXAMPLES: u32 = 10;
const JSON_EXAMPLES: u32 = 1_000;

/// Compares, and mends what is missing if asked to. Exit code 3: something was found and is not mended.
///
/// # Errors
/// A side cannot be read; the configuration's.
pub async fn run(a: &Reconcile, json: bool) -> Outcome {
    let sources = config::Sources { to: &a.to_target, ..a.source.sources() };
    let config = config::load(sources)?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let asked = Asked { store: &store, outbox, config: &config, a, window: Window::of(a)?, json, beside: None };
    let result = if a.transactions {
        Box::pin(transactions::list(&asked)).await
    } else if let Some(sql) = &a.query {
        Box::pin(asked.against_query(sql)).await
    } else {
        Box::pin(asked.against_destinations()).await
    };
    store.close().await;
    Ok(result.map_err(|f| of_outbox(f, outbox))?)
}

/// What is asked for.
struct Asked<'a> {
    store: &'a Arc<dyn Store>,
    outbox: &'a Outbox,
    config: &'a Config,
    a: &'a Reconcile,
    window: Window,
    json: bool,
    /// A relay runs it beside its work.
    beside: Option<Beside>,
}

impl Asked<'_> {
    /// Says something to people.
    fn tell(&self, what: std::fmt::Arguments<'_>) {
        match self.beside {
            None => eprintln!("{what}"),
            Some(_) => tracing::debug!("reconcile: {what}"),
        }
    }

    fn folder(&self) -> PathBuf {
        self.a.temp.clone().unwrap_or_else(std::env::temp_dir)
    }

    fn side(&self) -> Side {
        let side = Side::new(&self.folder(), self.memory());
        match &self.beside {
            None => side,
            Some(beside) => side.within(beside.room.clone()),
        }
    }

    fn memory(&self) -> usize {
        usize::try_from(self.a.memory).unwrap_or(usize::MAX)
    }

    fn shown(&self) -> Shown<'_> {
        Shown {
            examples: self.a.examples.unwrap_or(if self.json { JSON_EXAMPLES } else { EXAMPLES }) as usize,
            out: self.a.out.as_deref(),
        }
    }

    // ---- the outbox against destinations ---------------------------------------------------------------------------

    async fn against_destinations(&self) -> Result<Exit, Failure> {
        let mut exit = Exit::Fine;
        let wanted = self.destinations()?;
        for d in wanted {
            let found = Box::pin(self.against_destination(d)).await;
            let found = found.map_err(|f| f.while_doing(format_args!("destination {}", d.name)))?;
            exit = exit.or_attention(found == Exit::Attention);
        }
        Ok(exit)
    }

    /// The one that was named, or all that can be read.
    fn destinations(&self) -> Result<Vec<&Destination>, Failure> {
        let all = &self.config.destinations;
        if let Some(name) = &self.a.destination {
            let Some(d) = all.iter().find(|d| d.name == *name) else {
                let names: Vec<&str> = all.iter().map(|d| d.name.as_str()).collect();
                let what = format!("no destination {name} is configured; there are: {}", names.join(", "));
                return Err(Failure::new(&codes::NOTHING_THERE, what));
            };
            return Ok(vec![d]);
        }
        let (read, not): (Vec<&Destination>, Vec<&Destination>) = all.iter().partition(|d| d.can_be_read());
        for d in not {
            eprintln!("destination {} is left out: what a {} has cannot be read", d.name, d.kind);
        }
        if read.is_empty() {
            let none = Failure::new(&codes::NOTHING_TO_COMPARE, "no destination is configured that can be read");
            return Err(none);
        }
        Ok(read)
    }

    async fn against_destination(&self, d: &Destination) -> Result<Exit, Failure> {
        let (report, parked) = Box::pin(self.compared(d)).await?;
        report.show(self.json, self.a.fix, self.a.yes, parked)
    }

    /// What is to be said, and how what is parked is delivered.
    async fn compared(&self, d: &Destination) -> Result<(Report, Option<String>), Failure> {
        let known = Known { asked: self, topic: self.a.topic.as_deref(), delays: d.kind == "rocketmq" };
        let mut lanes = Lanes::of(self.store, &d.name).await?;
        let mut expected = self.side();
        let mut log = known.expected_at(&d.name, &mut expected).await?;
        let expected = finished(expected)?;
        let mut actual = self.side();
        let reach = destination::read(self, d, &log.topics, &mut actual).await?;
        let actual = finished(actual)?;
        // What has become of lanes and parked messages meanwhile counts too.
        lanes.widen(&Lanes::of(self.store, &d.name).await?);

        let mut report = Report::new(&self.outbox.name, &d.name, self.shown())?;
        let mut again = Again::default();
        let mut strays = self.side();
        self.walk(&expected, &actual, |group| match judge(&group) {
            Verdict::Missing => {
                let Some(record) = missing_one(&group) else { return Ok(()) };
                let verdict = lanes.verdict(self.store, record, self.settled_before_ms())?;
                if verdict != Verdict::Missing {
                    return report.note(verdict, record, 0);
                }
                if reach.begins_ms.is_some_and(|begins| record.at_ms.is_none_or(|at| at < begins)) {
                    return report.note_unknown(record);
                }
                if let Place::Log(shard, position) = record.place {
                    again.add(shard, position);
                }
                report.note(Verdict::Missing, record, 0)
            }
            Verdict::Stray => group.actual.records.iter().try_for_each(|r| pushed(self, &mut strays, r)),
            verdict => report.judged(verdict, &group),
        })?;
        drop((expected, actual));
        // Is it known from before the window, or to another outbox?
        let strays = finished(strays)?;
        if !strays.is_empty() {
            let mut earlier = self.side();
            known.earlier(&mut log, &mut earlier).await?;
            let earlier = finished(earlier)?;
            self.walk(&earlier, &strays, |group| {
                let Some(record) = group.actual.records.first() else { return Ok(()) };
                if group.expected.count + group.expected.echoes > 0 {
                    return Ok(());
                }
                let pruned = match record.log {
                    Some((shard, position)) => log.was_pruned(shard, position),
                    None => log.may_have_been_pruned(record.at_ms),
                };
                if pruned {
                    report.note_unknown(record)
                } else {
                    report.note(Verdict::Stray, record, group.actual.count)
                }
            })?;
        }
        let parked = lanes.remedy(&d.name);
        report.finish_files()?;
        if self.a.fix {
            fix::replay(self, d, again, &mut report).await?;
        }
        Ok((report, parked))
    }

    // ---- a business query against the outbox -----------------------------------------------------------------------

    async fn against_query(&self, sql: &str) -> Result<Exit, Failure> {
        let report = Box::pin(self.asked_query(sql)).await?;
        report.show(self.json, self.a.fix, self.a.yes, None)
    }

    /// Two that enqueue at once would both enqueue what both found missing: the turn is taken before anything is read.
    async fn asked_query(&self, sql: &str) -> Result<Report, Failure> {
        if !(self.a.fix && self.a.yes) {
            return self.compared_query(sql, None).await;
        }
        let turn = Turn::fix(self.store, &owner(self.config.relay.instance.as_deref())).await?;
        let report = self.compared_query(sql, Some(&turn)).await;
        turn.give_back().await;
        report
    }

    async fn compared_query(&self, sql: &str, turn: Option<&Turn>) -> Result<Report, Failure> {
        let known = Known { asked: self, topic: self.a.topic.as_deref(), delays: false };
        let mut expected = self.side();
        // Before the outbox is read: what commits meanwhile is then there too.
        query::read(self, sql, &mut expected).await?;
        let expected = finished(expected)?;
        let mut actual = self.side();
        let mut log = known.actual(&mut actual).await?;
        let actual = finished(actual)?;

        let mut report = Report::new("query", &self.outbox.name, self.shown())?;
        let mut missing = self.side();
        let settled_before_ms = self.settled_before_ms();
        self.walk(&expected, &actual, |group| match judge(&group) {
            Verdict::Missing => {
                let Some(record) = missing_one(&group) else { return Ok(()) };
                if record.at_ms.is_some_and(|at| at >= settled_before_ms) {
                    return report.note(Verdict::Pending, record, 0);
                }
                pushed(self, &mut missing, record)
            }
            verdict => report.judged(verdict, &group),
        })?;
        drop((expected, actual));
        let missing = finished(missing)?;
        let mut enqueue = Enqueue::new(self, turn);
        if !missing.is_empty() {
            let mut earlier = self.side();
            known.earlier(&mut log, &mut earlier).await?;
            let earlier = finished(earlier)?;
            self.walk(&missing, &earlier, |group| {
                let Some(record) = missing_one(&group) else { return Ok(()) };
                if group.actual.count + group.actual.echoes > 0 {
                    return report.judged(Verdict::Fine, &group);
                }
                if log.may_have_been_pruned(record.at_ms) {
                    return report.note_unknown(record);
                }
                report.note(Verdict::Missing, record, 0)?;
                if self.a.fix { enqueue.add(record, &mut report) } else { Ok(()) }
            })?;
            enqueue.rest(&mut report)?;
        }
        report.finish_files()?;
        Ok(report)
    }

    /// What is younger may be on its way yet, milliseconds since 1970-01-01 UTC.
    fn settled_before_ms(&self) -> i64 {
        self.window.now_ms.saturating_sub(i64::try_from(self.a.settle).unwrap_or(i64::MAX))
    }

    /// Walks through both sides. It reads files, and may ask the database in between: the thread is not given to others.
    fn walk(
        &self,
        expected: &Sorted,
        actual: &Sorted,
        each: impl FnMut(Group) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut each = each;
        tokio::task::block_in_place(|| {
            let each = |group: Group| self.beside.as_ref().map_or(Ok(()), Beside::pace).and_then(|()| each(group));
            let mut each = each;
            compare(expected, actual, self.memory(), |group| each(group).map_err(Broken::Failed)).map_err(|e| match e {
                Broken::Failed(failure) => failure,
                Broken::File(e) => spool_failure(&e),
            })
        })
    }
}

/// Why a walk ended.
enum Broken {
    Failed(Failure),
    File(std::io::Error),
}

impl From<std::io::Error> for Broken {
    fn from(e: std::io::Error) -> Self {
        Self::File(e)
    }
}

/// The record that says what is missing.
fn missing_one(group: &Group) -> Option<&Record> {
    let must = group.expected.records.iter().find(|r| r.expectation == Expectation::Must);
    must.or_else(|| group.expected.records.first())
}

fn pushed(asked: &Asked<'_>, side: &mut Side, record: &Record) -> Result<(), Failure> {
    asked.beside.as_ref().map_or(Ok(()), Beside::pace)?;
    side.push(record).map_err(|e| spool_failure(&e))
}

fn finished(side: Side) -> Result<Sorted, Failure> {
    tokio::task::block_in_place(|| side.finish()).map_err(|e| spool_failure(&e))
}

fn spool_failure(e: &std::io::Error) -> Failure {
    Failure::new(&codes::TEMPORARY_FILES, format!("what is compared cannot be kept in temporary files: {e}"))
}

/// An id as text.
fn id_text(record: &Record) -> String {
    String::from_utf8_lossy(&record.id).into_owned()
}

fn time_text(at_ms: i64) -> String {
    timestamp::format_us(at_ms.saturating_mul(1_000))
}

/// Where something was found, for people.
fn place_text(record: &Record, names: &[String]) -> Option<String> {
    let name = |n: u32| names.get(n as usize).cloned().unwrap_or_default();
    match record.place {
        Place::None => None,
        Place::Log(shard, position) => Some(format!("{shard}:{position}")),
        Place::Line(file, line) => Some(format!("{}:{line}", name(file))),
        Place::Queue(queue, offset) => Some(format!("{}:{offset}", name(queue))),
    }
}

/// A source's own end of what it can tell.
fn earliest(reach: &mut Reach, begins_ms: i64) {
    reach.begins_ms = Some(reach.begins_ms.map_or(begins_ms, |known| known.max(begins_ms)));
}
