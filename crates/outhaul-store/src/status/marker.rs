//! Marks the rows of a status table, beside the sending.
//!
//! Each lane's messages are marked in the order of the log, once its `proven` has passed them; those that are parked are
//! left as they are. What leaves the parked table is marked before the checkpoint that removes it: should that
//! checkpoint not be written, the message is still parked, and is delivered from there. What becomes dead is marked after
//! it, where the table has a word for it.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outhaul_core::act::Verb;
use outhaul_core::adopted::{Ledger, Marks};
use outhaul_core::checkpoint::{Checkpoint, ShardCheckpoint, ShardOutcome};
use outhaul_core::chunk;
use outhaul_core::destination::{DestinationIndex, DestinationSet};
use outhaul_core::message::Position;
use outhaul_core::parked::{ParkedState, ParkedWrite};

use super::table::{Mark, Table};
use super::{SHARD, lock};
use crate::acts::ParkedQuery;
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{MARKS, PARKED_PAGE_ROWS, Recovery, Store, StoreResult, StoredChunk};

/// Messages that one step looks at for a lane.
const STEP: u64 = 5_000;
/// Rows that one statement marks.
pub(super) const BATCH: usize = 1_000;
/// Rows whose marks met a lock, at most: beyond them lanes wait.
const LEFT_MAX: usize = 100_000;
/// Messages whose ids are in memory since they were moved; older ones are looked up in the log.
const RECENT_MAX: usize = 50_000;
/// Stored content of the log that is read at once.
pub(super) const LOG_BYTES: usize = 1 << 20;
/// Marks are stored this often, while they change.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// How long closing goes on marking.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// The messages that were moved last.
#[derive(Default)]
struct Recent {
    names: Arc<[String]>,
    first: u64,
    messages: VecDeque<(String, DestinationSet)>,
}

impl Recent {
    fn add(&mut self, names: &Arc<[String]>, shard: &ShardCheckpoint) {
        if self.first + self.messages.len() as u64 != shard.base.0 || *self.names != **names {
            *self = Self { names: names.clone(), first: shard.base.0, messages: VecDeque::new() };
        }
        self.messages.extend(shard.moved.iter().map(|m| (m.id.clone(), m.destinations)));
        while self.messages.len() > RECENT_MAX {
            self.messages.pop_front();
            self.first += 1;
        }
    }

    /// The messages of a destination in a range; None: they are not all here.
    fn of(&self, destination: &str, from: u64, to: u64) -> Option<Vec<(Position, String)>> {
        if from < self.first || to > self.first + self.messages.len() as u64 {
            return None;
        }
        let index = self.names.iter().position(|n| n == destination)?;
        let index = DestinationIndex(u8::try_from(index).ok()?);
        let skip = usize::try_from(from - self.first).ok()?;
        let within = (from..to).zip(self.messages.iter().skip(skip));
        let routed = within.filter(|(_, (_, destinations))| destinations.contains(index));
        Some(routed.map(|(position, (id, _))| (Position(position), id.clone())).collect())
    }
}

/// A dead message whose row is not marked yet.
#[derive(Clone)]
enum Died {
    /// By its id.
    Row(String),
    /// By its place among the parked ones.
    Parked(String, Position),
}

/// A row to mark.
#[derive(Clone)]
struct Wanting {
    id: String,
    mark: Mark,
    /// Its lane and position, where the lane's marks are about to pass it.
    place: Option<(String, Position)>,
}

#[derive(Default)]
struct State {
    marks: Marks,
    /// Lanes and how far they are, as of the newest checkpoint.
    lanes: BTreeMap<String, Position>,
    recent: Recent,
    died: Vec<Died>,
    /// All dead messages are looked through once, from behind this one on. None: they were.
    dead_from: Option<ParkedQuery>,
    /// Rows whose mark met a lock.
    left: Vec<Wanting>,
    kept_at: Option<Instant>,
    unkept: bool,
    /// Counts owners: what was worked out for an earlier one is dropped.
    epoch: u64,
}

pub(super) struct Marker {
    inner: Arc<dyn Store>,
    table: Arc<dyn Table>,
    ledger: Arc<Mutex<Ledger>>,
    marks_dead: bool,
    state: Mutex<State>,
}

impl Marker {
    pub(super) fn new(
        inner: Arc<dyn Store>,
        table: Arc<dyn Table>,
        ledger: Arc<Mutex<Ledger>>,
        marks_dead: bool,
    ) -> Self {
        Self { inner, table, ledger, marks_dead, state: Mutex::default() }
    }

    /// What is in the log and was not marked, and what is parked, becomes known to the ledger.
    pub(super) async fn learn(&self, recovery: &Recovery) -> StoreResult<()> {
        let marks = Marks::decode(&self.inner.memory(MARKS).await?.unwrap_or_default());
        let lanes: BTreeMap<String, Position> =
            recovery.lanes.lanes.iter().map(|(lane, _)| (lane.destination.clone(), lane.proven)).collect();
        let names: Vec<String> = lanes.keys().cloned().collect();
        let mut from = marks.lowest(lanes.keys().map(String::as_str), recovery.log_end);
        while from < recovery.log_end {
            let chunks = self.inner.read_log(SHARD, from, LOG_BYTES).await?;
            let Some(last) = chunks.last() else { break };
            let next = Position(last.base.0 + u64::from(last.count));
            for chunk in &chunks {
                let messages = decoded(chunk, &names)?;
                let mut ledger = lock(&self.ledger);
                for m in messages {
                    let unmarked = |d: DestinationIndex| {
                        let name = names.get(usize::from(d.0));
                        name.is_some_and(|name| marks.of(name).unwrap_or_default() <= m.position)
                    };
                    if m.destinations.iter().any(unmarked) {
                        ledger.know(&m.id);
                    }
                }
            }
            if next <= from {
                break;
            }
            from = next;
        }
        let mut query = ParkedQuery { shard: Some(SHARD), ..ParkedQuery::default() };
        loop {
            let page = self.inner.list_parked(&query, PARKED_PAGE_ROWS as u32).await?;
            let mut ledger = lock(&self.ledger);
            page.iter().for_each(|parked| ledger.know(&parked.id));
            drop(ledger);
            let Some(last) = page.last().filter(|_| page.len() >= PARKED_PAGE_ROWS) else { break };
            query.after = Some((last.entry.destination.clone(), SHARD, last.entry.position));
        }
        let dead = ParkedQuery { shard: Some(SHARD), state: Some(ParkedState::Dead), ..ParkedQuery::default() };
        let mut state = lock(&self.state);
        let epoch = state.epoch + 1;
        *state = State { marks, lanes, epoch, dead_from: self.marks_dead.then_some(dead), ..State::default() };
        Ok(())
    }

    /// Marks what a checkpoint is about to take out of the parked table.
    pub(super) async fn before(&self, checkpoint: &Checkpoint) -> StoreResult<()> {
        for shard in checkpoint.shards.iter().filter(|s| s.shard == SHARD) {
            let mut leaving: BTreeMap<&str, BTreeSet<Position>> = BTreeMap::new();
            for change in &shard.parked {
                if let ParkedWrite::Remove { destination, position, .. } = change {
                    leaving.entry(destination).or_default().insert(*position);
                }
            }
            for (destination, positions) in leaving {
                let skipped = |position: Position| {
                    shard.receipts.acts.iter().any(|t| {
                        t.verb == Verb::Skip && t.destination == destination && t.positions.contains(position.0)
                    })
                };
                let (mut sent, mut dead) = (Vec::new(), Vec::new());
                for (position, id) in self.ids_of_parked(destination, positions).await? {
                    // A row that an operator skipped must not wait any more: where there is no other word, it is one that was
                    // sent.
                    let is_dead = self.marks_dead && skipped(position);
                    if is_dead { dead.push(id) } else { sent.push(id) }
                }
                self.mark(placeless(sent, Mark::Sent)).await?;
                self.mark(placeless(dead, Mark::Dead)).await?;
            }
        }
        Ok(())
    }

    /// A checkpoint was written, or not.
    pub(super) fn after(&self, checkpoint: &Checkpoint, outcomes: impl Iterator<Item = Option<ShardOutcome>>) {
        for (shard, outcome) in checkpoint.shards.iter().zip(outcomes) {
            if shard.shard != SHARD || outcome != Some(ShardOutcome::Written) {
                continue;
            }
            lock(&self.ledger).logged(shard.moved.iter().map(|m| m.seq));
            let mut state = lock(&self.state);
            let state = &mut *state;
            state.recent.add(&checkpoint.destinations, shard);
            for (lane, _) in &shard.receipts.lanes {
                if state.marks.of(&lane.destination).is_none() && !state.lanes.contains_key(&lane.destination) {
                    // New: a lane's start is stored before its first message.
                    state.marks.set(&lane.destination, lane.proven);
                }
                state.lanes.insert(lane.destination.clone(), lane.proven);
            }
            if self.marks_dead {
                state.died.extend(shard.parked.iter().filter_map(|change| match change {
                    ParkedWrite::Insert { entry, message } if entry.state == ParkedState::Dead => {
                        Some(Died::Row(message.id.clone()))
                    }
                    ParkedWrite::Update(entry) | ParkedWrite::Replace { entry, .. }
                        if entry.state == ParkedState::Dead =>
                    {
                        Some(Died::Parked(entry.destination.clone(), entry.position))
                    }
                    _ => None,
                }));
            }
        }
    }

    /// Marks some of what there is to mark. True: there is more.
    pub(super) async fn step(&self) -> StoreResult<bool> {
        self.mark_left().await?;
        let mut more = self.mark_dead().await?;
        let (lanes, epoch) = {
            let state = lock(&self.state);
            (state.lanes.clone(), state.epoch)
        };
        for (destination, proven) in lanes {
            more |= self.mark_lane(&destination, proven, epoch).await?;
        }
        self.keep().await?;
        Ok(more)
    }

    async fn mark_lane(&self, destination: &str, proven: Position, epoch: u64) -> StoreResult<bool> {
        let (from, recent) = {
            let state = lock(&self.state);
            let from = state.marks.of(destination).unwrap_or_default();
            let to = proven.0.min(from.0.saturating_add(STEP));
            (from, state.recent.of(destination, from.0, to))
        };
        if from >= proven {
            return Ok(false);
        }
        let (to, messages) = match recent {
            Some(messages) => (Position(proven.0.min(from.0.saturating_add(STEP))), messages),
            None => self.messages_of(destination, from, proven).await?,
        };
        if !messages.is_empty() {
            let parked = self.parked_within(destination, from, to).await?;
            let sent = messages.into_iter().filter(|(p, _)| !parked.contains(p));
            let wanting = |(position, id)| {
                let place = Some((destination.to_owned(), position));
                Wanting { id, mark: Mark::Sent, place }
            };
            self.mark(sent.map(wanting).collect()).await?;
        }
        let mut state = lock(&self.state);
        if state.epoch == epoch {
            state.marks.set(destination, to);
            state.unkept = true;
        }
        Ok(to < proven)
    }

    /// A lane's messages from the log: up to where they were looked up, and those.
    async fn messages_of(
        &self,
        destination: &str,
        from: Position,
        proven: Position,
    ) -> StoreResult<(Position, Vec<(Position, String)>)> {
        let chunks = self.inner.read_log(SHARD, from, LOG_BYTES).await?;
        let names = [destination.to_owned()];
        let mut found = Vec::new();
        let mut to = proven; // where the log has nothing any more, there is nothing to mark
        for chunk in &chunks {
            to = Position((chunk.base.0 + u64::from(chunk.count)).min(proven.0));
            let routed = decoded(chunk, &names)?.into_iter().filter(|m| !m.destinations.is_empty());
            found.extend(routed.filter(|m| from <= m.position && m.position < proven).map(|m| (m.position, m.id)));
        }
        Ok((to.max(from), found))
    }

    async fn parked_within(&self, destination: &str, from: Position, to: Position) -> StoreResult<HashSet<Position>> {
        let (mut parked, mut first) = (HashSet::new(), from);
        loop {
            let page = self.inner.parked(SHARD, destination, first).await?;
            parked.extend(page.iter().map(|entry| entry.position).take_while(|p| *p < to));
            match page.last() {
                Some(last) if page.len() >= PARKED_PAGE_ROWS && last.position < to => {
                    first = Position(last.position.0 + 1);
                }
                _ => return Ok(parked),
            }
        }
    }

    async fn ids_of_parked(
        &self,
        destination: &str,
        mut positions: BTreeSet<Position>,
    ) -> StoreResult<Vec<(Position, String)>> {
        let mut ids = Vec::with_capacity(positions.len());
        while let Some(first) = positions.pop_first() {
            let before = first.0.checked_sub(1).map(|p| (destination.to_owned(), SHARD, Position(p)));
            let query = ParkedQuery {
                destination: Some(destination.to_owned()),
                shard: Some(SHARD),
                after: before,
                ..ParkedQuery::default()
            };
            let page = self.inner.list_parked(&query, (positions.len() + 1).min(PARKED_PAGE_ROWS) as u32).await?;
            for parked in page {
                if parked.entry.position == first || positions.remove(&parked.entry.position) {
                    ids.push((parked.entry.position, parked.id));
                }
            }
        }
        Ok(ids)
    }

    /// Marks rows, all in the same way, and forgets them; those that meet a lock are left for later.
    async fn mark(&self, rows: Vec<Wanting>) -> StoreResult<()> {
        for batch in rows.chunks(BATCH) {
            let Some(Wanting { mark, .. }) = batch.first() else { continue };
            let ids: Vec<String> = batch.iter().map(|row| row.id.clone()).collect();
            match self.table.mark(&ids, *mark).await {
                Ok(_) if *mark == Mark::Sent => lock(&self.ledger).marked(ids.iter().map(String::as_str)),
                Ok(_) => {}
                Err(e)
                    if matches!(e.kind, StoreErrorKind::Timeout | StoreErrorKind::Conflict)
                        && lock(&self.state).left.len() < LEFT_MAX =>
                {
                    tracing::debug!(code = e.kind.code(), "rows of the status table are locked: {}", e.message);
                    lock(&self.state).left.extend_from_slice(batch);
                }
                Err(e) => return Err(e.while_doing("marking rows of the status table")),
            }
        }
        Ok(())
    }

    /// One by one: the lock that one of them meets is not the others'.
    async fn mark_left(&self) -> StoreResult<()> {
        let left: Vec<Wanting> = lock(&self.state).left.iter().take(BATCH).cloned().collect();
        for row in left {
            // It stays among those that are left until it is marked: the marks that are kept must not pass it.
            let marked = self.table.mark(std::slice::from_ref(&row.id), row.mark).await;
            let mut state = lock(&self.state);
            let at = state.left.iter().position(|other| other.id == row.id && other.mark == row.mark);
            let Some(at) = at else { continue };
            let row = state.left.remove(at);
            match marked {
                Ok(_) if row.mark == Mark::Sent => {
                    drop(state);
                    lock(&self.ledger).marked([row.id.as_str()]);
                }
                Ok(_) => {}
                Err(e) => {
                    state.left.push(row); // behind the others
                    if !matches!(e.kind, StoreErrorKind::Timeout | StoreErrorKind::Conflict) {
                        return Err(e);
                    }
                }
            }
        }
        Ok(())
    }

    async fn mark_dead(&self) -> StoreResult<bool> {
        let (died, query, epoch) = {
            let state = lock(&self.state);
            (state.died.clone(), state.dead_from.clone(), state.epoch)
        };
        // They go once they are marked: a call may be dropped half-way.
        self.mark_died(&died).await?;
        {
            let mut state = lock(&self.state);
            if state.epoch == epoch {
                state.died.drain(..died.len());
            }
        }
        let Some(query) = query else { return Ok(false) };
        let page = self.inner.list_parked(&query, BATCH as u32).await?;
        let next = page.last().filter(|_| page.len() >= BATCH).map(|last| ParkedQuery {
            after: Some((last.entry.destination.clone(), SHARD, last.entry.position)),
            ..query
        });
        self.mark(placeless(page.into_iter().map(|parked| parked.id).collect(), Mark::Dead)).await?;
        let mut state = lock(&self.state);
        if state.epoch == epoch {
            state.dead_from = next;
        }
        Ok(state.dead_from.is_some())
    }

    async fn mark_died(&self, died: &[Died]) -> StoreResult<()> {
        let mut ids = Vec::new();
        for one in died {
            match one {
                Died::Row(id) => ids.push(id.clone()),
                Died::Parked(destination, position) => {
                    let found = self.ids_of_parked(destination, BTreeSet::from([*position])).await?;
                    ids.extend(found.into_iter().map(|(_, id)| id));
                }
            }
        }
        self.mark(placeless(ids, Mark::Dead)).await
    }

    /// Stores the marks, not too often.
    async fn keep(&self) -> StoreResult<()> {
        let text = {
            let mut state = lock(&self.state);
            let due = state.kept_at.is_none_or(|at| at.elapsed() >= KEEP_EVERY);
            if !state.unkept || !due {
                return Ok(());
            }
            state.kept_at = Some(Instant::now());
            let mut marks = state.marks.clone();
            for (destination, position) in state.left.iter().filter_map(|row| row.place.as_ref()) {
                if marks.of(destination).is_some_and(|mark| mark > *position) {
                    marks.set(destination, *position);
                }
            }
            // What is left is kept again once it is marked.
            state.unkept = !state.left.is_empty();
            marks.encode()
        };
        let kept = self.inner.keep_memory(MARKS, &text).await;
        if kept.is_err() {
            lock(&self.state).unkept = true;
        }
        kept
    }

    /// Every position below it has been marked, or is parked, as far as that was stored.
    pub(super) async fn marked_below(&self) -> StoreResult<Position> {
        let marks = Marks::decode(&self.inner.memory(MARKS).await?.unwrap_or_default());
        let shards = self.inner.status().await?;
        let Some(shard) = shards.into_iter().find(|s| s.shard == SHARD) else { return Ok(Position(0)) };
        let lanes: Vec<&str> = shard.lanes.lanes.iter().map(|(lane, _)| lane.destination.as_str()).collect();
        Ok(marks.lowest(lanes, shard.log_end))
    }

    /// The end of the process: marks what there is to mark, for a while.
    pub(super) async fn finish(&self) {
        let rest = async {
            while self.step().await? {}
            {
                let mut state = lock(&self.state);
                (state.kept_at, state.unkept) = (None, !state.lanes.is_empty());
            }
            self.keep().await
        };
        match tokio::time::timeout(FINISH_MAX, rest).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(e)) => tracing::debug!("marking rows at the end: {}", e.message),
        }
    }
}

fn placeless(ids: Vec<String>, mark: Mark) -> Vec<Wanting> {
    ids.into_iter().map(|id| Wanting { id, mark, place: None }).collect()
}

pub(super) fn decoded(chunk: &StoredChunk, names: &[String]) -> StoreResult<Vec<outhaul_core::message::Message>> {
    chunk::decode(chunk.codec, &chunk.bytes, chunk.shard, chunk.base, names)
        .map_err(|e| StoreError::new(StoreErrorKind::Corrupt, format!("a chunk of the log: {e}")))
}
