//! What is missing is enqueued, or delivered again.

use std::collections::BTreeMap;
use std::sync::Arc;

use outhaul_core::act::{PositionRange, SELECTED_RUNS_MAX, Selector, Verb};
use outhaul_core::message::{Position, ShardId};
use outhaul_core::runs::{Run, Runs};
use outhaul_reconcile::Record;
use outhaul_relay::Stop;
use outhaul_relay::replay::{Replay as Work, ReplayShard, ReplayStand, replay as carry};
use outhaul_store::{NewAct, NewRow};
use tokio::sync::watch;

use super::query::Content;
use super::report::Report;
use super::turn::Turn;
use super::{Asked, id_text};
use crate::codes;
use crate::commands::enqueue::store_batch;
use crate::commands::shared_sink::SharedSink;
use crate::commands::{act, owner, relay, replay};
use crate::config::Destination;
use crate::failure::Failure;

/// Runs of positions that one call mends: the rest is for the next.
const RUNS_MAX: usize = 200_000;
/// Rows and bytes of one transaction.
const BATCH: (usize, usize) = (500, 1 << 20);

/// Positions of the log that a destination gets again.
#[derive(Debug, Default)]
pub(super) struct Again {
    shards: BTreeMap<u16, Runs>,
    runs: usize,
    more: u64,
}

impl Again {
    pub(super) fn add(&mut self, shard: u16, position: u64) {
        if self.runs >= RUNS_MAX {
            self.more += 1;
            return;
        }
        let runs = self.shards.entry(shard).or_default();
        let before = runs.run_count();
        runs.insert(position);
        self.runs = (self.runs + runs.run_count()).saturating_sub(before);
    }
}

/// Delivers positions of the log to a destination once more, or says what would be: replays of exactly these, beside the
/// relay, each recorded.
///
/// # Errors
/// As those of `outhaul replay`, which goes on with one that was begun.
pub(super) async fn replay(
    asked: &Asked<'_>,
    d: &Destination,
    again: Again,
    report: &mut Report,
) -> Result<(), Failure> {
    let all: u64 = again.shards.values().map(Runs::len).sum();
    (report.fixable, report.left) = (all, again.more);
    if again.more > 0 {
        asked.tell(format_args!("{} more are left for another call: too many at once", again.more));
    }
    if !asked.a.yes || all == 0 {
        return Ok(());
    }
    if !asked.config.routes.iter().any(|route| route.goes_to(&d.name)) {
        let none = Failure::new(&codes::NOWHERE_TO_DELIVER, format!("no route leads to destination {}", d.name));
        return Err(none.remedy(format!("add a [[route]] whose `to` names {}", d.name)));
    }
    if let Some(beside) = &asked.beside {
        let sink = beside.sink(asked.config, d)?;
        replay::usable(d, sink).await?;
        return Box::pin(replays(asked, d, &again, (sink, &beside.stop), report)).await;
    }
    let sink = SharedSink::new(asked.config.sink(d)?, d.require_ack);
    replay::usable(d, &sink).await?;
    let stop = Stop::new();
    relay::watch_signals(stop.clone(), Arc::new(watch::Sender::new(false)))?;
    let result = Box::pin(replays(asked, d, &again, (&sink, &stop), report)).await;
    sink.finish().await;
    result
}

async fn replays(
    asked: &Asked<'_>,
    d: &Destination,
    again: &Again,
    (sink, stop): (&SharedSink, &Stop),
    report: &mut Report,
) -> Result<(), Failure> {
    for (shard, runs) in &again.shards {
        let runs: Vec<Run> = runs.iter().collect();
        for some in runs.chunks(SELECTED_RUNS_MAX) {
            let (Some(first), Some(last)) = (some.first(), some.last()) else { continue };
            let mut positions = Runs::new();
            some.iter().for_each(|run| positions.insert_run(*run));
            let range = PositionRange { from: Position(first.first), to: Position(last.last + 1) };
            let shard = ShardId(*shard);
            let selector = Selector { positions, ..Selector::default() };
            let order = NewAct {
                verb: Verb::Replay,
                destination: Some(d.name.clone()),
                shards: vec![shard],
                selector: selector.clone(),
                ranges: BTreeMap::from([(shard, range)]),
                message_id: None,
                edit: None,
                actor: act::actor(asked.a.actor.as_deref()),
                why: asked.a.why.clone().unwrap_or_else(|| "reconcile --fix".into()),
            };
            let number = asked.store.order(&order).await?;
            let runner = owner(asked.config.relay.instance.as_deref());
            if !asked.store.take_replay(number, &runner).await? {
                return Err(Failure::new(&codes::NOT_RESUMED, format!("replay {number} is over already")));
            }
            let work = Work {
                store: asked.store.clone(),
                destination: outhaul_relay::Destination {
                    name: d.name.clone(),
                    sink: Arc::new(sink.handle()),
                    limits: d.limits.clone(),
                    require_ack: d.require_ack,
                },
                names: asked.config.destinations.iter().map(|d| d.name.clone()).collect(),
                routes: asked.config.routes(),
                number,
                runner,
                selector,
                shards: vec![ReplayShard { shard, range, next: range.from, done: 0, left: 0 }],
                give_up_after: None,
            };
            let stand = watch::Sender::new(ReplayStand::default());
            let tell = |left: &outhaul_relay::replay::LeftOut| {
                tracing::warn!(code = left.reason.code, id = left.id, "left out: {}", left.reason.text);
            };
            let ended = Box::pin(carry(work, stop, &stand, &tell)).await;
            let ended = ended.map_err(|e| replay::failure(e, number, asked.outbox))?;
            report.fixed += ended.delivered;
            report.left += ended.left;
        }
    }
    Ok(())
}

/// Messages of a query that are put into the outbox, in batches.
pub(super) struct Enqueue<'a> {
    asked: &'a Asked<'a>,
    /// They really are, while it is this one's turn.
    turn: Option<&'a Turn>,
    rows: Vec<NewRow>,
    bytes: usize,
}

impl<'a> Enqueue<'a> {
    pub(super) fn new(asked: &'a Asked<'a>, turn: Option<&'a Turn>) -> Self {
        Self { asked, turn, rows: vec![], bytes: 0 }
    }

    /// Takes one that is missing.
    ///
    /// # Errors
    /// Its id cannot be one of a message; the database's.
    pub(super) fn add(&mut self, record: &Record, report: &mut Report) -> Result<(), Failure> {
        let bad = |what: String| Failure::new(&codes::BAD_QUERY, what);
        let Some(content) = Content::decode(&record.content) else {
            return Err(bad(format!("{}: its topic, key or payload cannot be read", id_text(record))));
        };
        let id = String::from_utf8(record.id.clone()).map_err(|_| bad("an id is not UTF-8".into()))?;
        let limits = [
            (id.len(), outhaul_core::outbox::ID_MAX_BYTES, "id"),
            (content.topic.len(), outhaul_core::outbox::TOPIC_MAX_BYTES, "topic"),
            (content.key.as_ref().map_or(0, String::len), outhaul_core::outbox::KEY_MAX_BYTES, "key"),
        ];
        if let Some((has, most, what)) = limits.into_iter().find(|(has, most, _)| has > most) {
            return Err(bad(format!("{id}: its {what} has {has} bytes, the outbox takes {most}")));
        }
        report.fixable += 1;
        if self.turn.is_none() {
            return Ok(());
        }
        self.bytes += content.payload.len();
        let (topic, key, payload) = (content.topic, content.key, content.payload.into());
        self.rows.push(NewRow { id: Some(id), topic, key, payload, ..NewRow::default() });
        if self.rows.len() >= BATCH.0 || self.bytes >= BATCH.1 { self.rest(report) } else { Ok(()) }
    }

    /// Stores what has gathered.
    ///
    /// # Errors
    /// The database's; earlier batches stay.
    pub(super) fn rest(&mut self, report: &mut Report) -> Result<(), Failure> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        if rows.is_empty() {
            return Ok(());
        }
        let storing = async {
            if let Some(turn) = self.turn {
                turn.keep().await?;
            }
            store_batch(self.asked.store, &rows).await
        };
        let stored = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(storing));
        let stored =
            stored.map_err(|f| f.while_doing(format_args!("{} messages before were enqueued", report.fixed)))?;
        report.fixed += stored.len() as u64;
        Ok(())
    }
}
