//! What the outbox knows: its table, its log, its transactions, and where its lanes stand.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::act::{PositionRange, Verb};
use outhaul_core::chunk;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::route::matches;
use outhaul_core::runs::Runs;
use outhaul_reconcile::{Expectation, Place, Record, Side, Verdict};
use outhaul_relay::replay::begin_of;
use outhaul_store::scan::{Cell, Wanted, scan};
use outhaul_store::{ActsWanted, Store, StoreError, StoreErrorKind, StoreOptions};

use super::window::CLOCK_MARGIN_MS;
use super::{Asked, pushed};
use crate::commands::{of_outbox, open};
use crate::config::Outbox;
use crate::failure::Failure;

/// Bytes of packed chunks that one read brings at most, or one chunk.
const READ_BYTES: usize = 1 << 20;
/// Acts that are looked at for skips and drops.
const ACTS: u32 = 10_000;

/// Topics that are noted at most.
pub(super) const TOPICS_MAX: usize = 10_000;

/// How far a place can tell of the past.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reach {
    /// What came there before may be gone, milliseconds since 1970-01-01 UTC.
    pub(super) begins_ms: Option<i64>,
}

/// What the log of an outbox held when it was read.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// By shard: where it begins, and from where on it was read.
    shards: HashMap<u16, (u64, u64)>,
    /// Something was pruned: what was created up to then may have been in it, milliseconds since 1970-01-01 UTC.
    pruned_ms: Option<i64>,
    /// Topics that were routed to the destination, up to [`TOPICS_MAX`].
    pub(super) topics: BTreeSet<String>,
}

impl Log {
    /// Whether a position was in the log, and is not any more.
    pub(super) fn was_pruned(&self, shard: u16, position: u64) -> bool {
        self.shards.get(&shard).is_some_and(|(begin, _)| position < *begin)
    }

    /// Whether a message of this time may have been in the log, and is not any more.
    pub(super) fn may_have_been_pruned(&self, at_ms: Option<i64>) -> bool {
        self.pruned_ms.is_some_and(|pruned| at_ms.is_none_or(|at| at <= pruned.saturating_add(CLOCK_MARGIN_MS)))
    }
}

/// A time of a row, milliseconds since 1970-01-01 UTC. Whole numbers are seconds, milliseconds or microseconds, whichever
/// makes a year between 1973 and 5138 of them.
pub(super) fn time_of(cell: &Cell) -> Option<i64> {
    match cell {
        Cell::Time(us) => Some(us.div_euclid(1_000)),
        Cell::Whole(n) if n.unsigned_abs() >= 100_000_000_000_000 => Some(n.div_euclid(1_000)),
        Cell::Whole(n) if n.unsigned_abs() >= 100_000_000_000 => Some(*n),
        Cell::Whole(n) => Some(n.saturating_mul(1_000)),
        Cell::Bytes(text) => {
            let text = std::str::from_utf8(text).ok()?.trim();
            let parsed = crate::timestamp::parse(text).or_else(|| crate::timestamp::parse(&format!("{text}Z")));
            parsed.map(|us| us.div_euclid(1_000))
        }
        Cell::Null => None,
    }
}

/// Options of a database whose rows are read for long.
pub(super) fn patient(options: &StoreOptions, limit_ms: u64) -> StoreOptions {
    StoreOptions { statement_timeout: Duration::from_millis(limit_ms), ..options.clone() }
}

/// What an outbox knows, as the sides of comparisons.
pub(super) struct Known<'a> {
    pub(super) asked: &'a Asked<'a>,
    pub(super) topic: Option<&'a str>,
    /// Messages with a delay of the broker's wait elsewhere than in the queue that they go to.
    pub(super) delays: bool,
}

/// Headers that make a broker hold a message back.
const DELAYS: [&str; 3] = ["\"delay-level\"", "\"deliver-at-ms\"", "\"delay-ms\""];

impl Known<'_> {
    /// What must be at a destination.
    pub(super) async fn expected_at(&self, destination: &str, side: &mut Side) -> Result<Log, Failure> {
        let asked = self.asked;
        // The table first: what is moved meanwhile is in the log then. An echo is no copy besides it.
        self.ids(asked.outbox, Wanted::Outbox, Some(destination), side).await?;
        self.transactions(side).await?;
        let log = self.log(asked.store, Part::Late, Some(destination), side).await?;
        for other in asked.config.outboxes.iter().filter(|o| o.name != asked.outbox.name) {
            self.ids(other, Wanted::Outbox, None, side).await?;
            let store = open(other).await?;
            let read = self.log_of_other(&store, side).await;
            store.close().await;
            read.map_err(|f| of_outbox(f, other))?;
        }
        Ok(log)
    }

    /// What is in the outbox, as what a query is compared with.
    pub(super) async fn actual(&self, side: &mut Side) -> Result<Log, Failure> {
        self.ids(self.asked.outbox, Wanted::Kept, None, side).await?;
        self.transactions(side).await?;
        self.log(self.asked.store, Part::Late, None, side).await
    }

    /// What the log held before what was read of it; and where it begins by now.
    pub(super) async fn earlier(&self, log: &mut Log, side: &mut Side) -> Result<(), Failure> {
        let part = Part::Early(log.shards.iter().map(|(shard, (_, from))| (*shard, *from)).collect());
        let early = self.log(self.asked.store, part, None, side).await?;
        for (shard, (begin, _)) in early.shards {
            log.shards.entry(shard).and_modify(|known| known.0 = known.0.max(begin)).or_insert((begin, begin));
        }
        log.pruned_ms = log.pruned_ms.max(early.pruned_ms);
        Ok(())
    }

    /// Transactional messages go to their broker without the log. Tables of an earlier version have none.
    async fn transactions(&self, side: &mut Side) -> Result<(), Failure> {
        self.ids(self.asked.outbox, Wanted::Transactions, None, side).await
    }

    /// Ids of a table. With a destination: those that the routes lead there are under way.
    async fn ids(
        &self,
        outbox: &Outbox,
        wanted: Wanted,
        destination: Option<&str>,
        side: &mut Side,
    ) -> Result<(), Failure> {
        let optional = matches!(wanted, Wanted::Transactions);
        let mut rows = scan(patient(&outbox.store, self.asked.a.limit), wanted)?;
        loop {
            let page = match rows.next().await {
                Err(e) if optional && e.kind == StoreErrorKind::NotInitialised => return Ok(()),
                page => page?,
            };
            let Some(page) = page else { return Ok(()) };
            for row in page {
                let mut cells = row.into_iter();
                let (id, at) = (cells.next().and_then(Cell::into_bytes), cells.next());
                let Some(id) = id.filter(|id| !id.is_empty()) else { continue };
                let at_ms = at.as_ref().and_then(time_of);
                let topic = cells.next().and_then(Cell::into_bytes).unwrap_or_default();
                let topic = String::from_utf8_lossy(&topic);
                let under_way = destination.is_some_and(|d| self.leads_to(&topic, d))
                    && self.asked.window.contains(at_ms)
                    && self.topic.is_none_or(|pattern| matches(pattern, &topic));
                let expectation = if under_way { Expectation::Pending } else { Expectation::Echo };
                pushed(self.asked, side, &Record { expectation, ..Record::new(id, at_ms) })?;
            }
        }
    }

    fn leads_to(&self, topic: &str, destination: &str) -> bool {
        self.asked.config.routes.iter().any(|r| r.goes_to(destination) && matches(&r.topic, topic))
    }

    async fn log_of_other(&self, store: &Arc<dyn Store>, side: &mut Side) -> Result<(), Failure> {
        self.log(store, Part::Other, None, side).await.map(drop)
    }

    /// Reads a part of a log. With a destination: what was routed there and is asked for must be there.
    async fn log(
        &self,
        store: &Arc<dyn Store>,
        part: Part,
        destination: Option<&str>,
        side: &mut Side,
    ) -> Result<Log, Failure> {
        let mut log = Log::default();
        for status in store.status().await? {
            let (shard, end) = (status.shard, status.log_end);
            let begin = store.read_log(shard, Position(0), 1).await?.first().map_or(end, |c| c.base.min(end));
            let whole = PositionRange { from: begin, to: end };
            let (from, to) = match &part {
                Part::Early(until) => (begin, until.get(&shard.0).map_or(begin, |until| Position(*until).max(begin))),
                // Up to its end as it is when it is reached: what was in the table before may be there by now.
                _ => match self.asked.window.read_from_ms() {
                    Some(from_ms) => {
                        (begin_of(store, shard, whole, from_ms.saturating_mul(1_000)).await?, Position(u64::MAX))
                    }
                    None => (begin, Position(u64::MAX)),
                },
            };
            self.chunks(store, shard, (from, to), (&part, destination), (side, &mut log.topics)).await?;
            // What was pruned meanwhile was perhaps not read.
            let first = store.read_log(shard, Position(0), 1).await?.into_iter().next();
            let begin = first.as_ref().map_or(end, |c| c.base).max(begin);
            if begin > Position(0) {
                let moved_ms = first.as_ref().map_or(self.asked.window.now_ms, |c| c.moved_at_us.div_euclid(1_000));
                log.pruned_ms = log.pruned_ms.max(Some(moved_ms));
            }
            log.shards.insert(shard.0, (begin.0, from.0));
        }
        Ok(log)
    }

    async fn chunks(
        &self,
        store: &Arc<dyn Store>,
        shard: ShardId,
        (mut next, to): (Position, Position),
        (part, destination): (&Part, Option<&str>),
        (side, topics): (&mut Side, &mut BTreeSet<String>),
    ) -> Result<(), Failure> {
        while next < to {
            let chunks = store.read_log(shard, next, READ_BYTES).await?;
            if chunks.is_empty() {
                return Ok(());
            }
            for c in &chunks {
                let damaged = |e: chunk::DecodeError| {
                    let what = format!("chunk at position {} of shard {}: {e}", c.base, c.shard);
                    StoreError::new(StoreErrorKind::Corrupt, what)
                };
                let names = chunk::destination_names(c.codec, &c.bytes).map_err(damaged)?;
                let index = destination.and_then(|d| names.iter().position(|name| name == d));
                let index = index.and_then(|n| u8::try_from(n).ok()).map(outhaul_core::destination::DestinationIndex);
                for m in chunk::decode(c.codec, &c.bytes, c.shard, c.base, &names).map_err(damaged)? {
                    if m.position < next || m.position >= to {
                        continue;
                    }
                    let routed = index.is_some_and(|d| m.destinations.contains(d));
                    if routed && !topics.contains(&m.topic) && topics.len() < TOPICS_MAX {
                        topics.insert(m.topic.clone());
                    }
                    let at_ms = Some(m.created_at_us.div_euclid(1_000));
                    let asked = matches!(part, Part::Late)
                        && self.asked.window.contains(at_ms)
                        && self.topic.is_none_or(|pattern| matches(pattern, &m.topic))
                        && (destination.is_none() || routed);
                    let record = Record {
                        expectation: match asked {
                            true if self.delays && m.headers.as_deref().is_some_and(delays) => Expectation::Pending,
                            true => Expectation::Must,
                            false => Expectation::Known,
                        },
                        place: Place::Log(shard.0, m.position.0),
                        ..Record::new(m.id, at_ms)
                    };
                    pushed(self.asked, side, &record)?;
                }
                next = Position(c.base.0 + u64::from(c.count)).max(next);
            }
        }
        Ok(())
    }
}

fn delays(headers: &str) -> bool {
    DELAYS.iter().any(|name| headers.contains(name))
}

/// Which part of a log.
enum Part {
    /// From the window on.
    Late,
    /// Before that, by shard.
    Early(BTreeMap<u16, u64>),
    /// Of another outbox, from the window on: known and not asked for.
    Other,
}

/// Where the lanes of a destination stand.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    name: String,
    /// By shard: what lies below was acknowledged, and proven where that is demanded, or is parked.
    settled: HashMap<u16, u64>,
    parked: HashMap<u16, Runs>,
    /// Shards in which an operator has given up something for the destination.
    given_up: HashSet<u16>,
}

impl Lanes {
    pub(super) async fn of(store: &Arc<dyn Store>, name: &str) -> Result<Self, Failure> {
        let mut lanes = Self { name: name.to_owned(), ..Self::default() };
        for status in store.status().await? {
            let shard = status.shard;
            let lane = status.lanes.lanes.iter().map(|(lane, _)| lane).find(|lane| lane.destination == name);
            lanes.settled.insert(shard.0, lane.map_or(0, |lane| lane.cursor.min(lane.proven).0));
            let mut from = Some(Position(0));
            while let Some(first) = from {
                let page = store.parked(shard, name, first).await?;
                from = page.last().map(|last| Position(last.position.0 + 1));
                let parked = lanes.parked.entry(shard.0).or_default();
                for entry in &page {
                    parked.insert(entry.position.0);
                }
            }
        }
        for record in store.acts(&ActsWanted::Newest(ACTS)).await? {
            let here = record.act.destination.as_deref().is_none_or(|d| d == name);
            if here && matches!(record.act.verb, Verb::Skip | Verb::Drop) {
                lanes.given_up.insert(record.act.shard.0);
            }
        }
        Ok(lanes)
    }

    /// What holds of either counts.
    pub(super) fn widen(&mut self, later: &Self) {
        for (shard, settled) in &mut self.settled {
            *settled = (*settled).min(later.settled.get(shard).copied().unwrap_or_default());
        }
        for (shard, parked) in &later.parked {
            let known = self.parked.entry(*shard).or_default();
            parked.iter().for_each(|run| known.insert_run(run));
        }
        self.given_up.extend(&later.given_up);
    }

    /// What is to be said of a message that is not at the destination.
    pub(super) fn verdict(
        &self,
        store: &Arc<dyn Store>,
        record: &Record,
        settled_before_ms: i64,
    ) -> Result<Verdict, Failure> {
        let Place::Log(shard, position) = record.place else { return Ok(Verdict::Pending) };
        if self.parked.get(&shard).is_some_and(|parked| parked.contains(position)) {
            return Ok(Verdict::Parked);
        }
        let unsettled = self.settled.get(&shard).is_none_or(|settled| position >= *settled);
        if unsettled || record.at_ms.is_some_and(|at| at >= settled_before_ms) {
            return Ok(Verdict::Pending);
        }
        if self.given_up.contains(&shard) {
            let asking = store.receipts_of(ShardId(shard), Position(position));
            let rows = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(asking))?;
            let acts = rows.iter().flat_map(|row| &row.acts).filter(|t| t.destination == self.name);
            let mut gave_up = acts.filter(|t| matches!(t.verb, Verb::Skip | Verb::Drop));
            if gave_up.any(|t| t.positions.contains(position)) {
                return Ok(Verdict::GivenUp);
            }
        }
        Ok(Verdict::Missing)
    }

    /// How what is parked is delivered, if anything is.
    pub(super) fn remedy(&self, destination: &str) -> Option<String> {
        let any = self.parked.values().any(|parked| !parked.is_empty());
        any.then(|| format!("outhaul parked redrive --destination {destination} --all --why TEXT"))
    }
}
