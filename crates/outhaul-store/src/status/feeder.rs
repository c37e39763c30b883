//! Moves what waits in a status table into the outbox table, while applications insert into either.
//!
//! ```text
//! (status) ──first owner──▶ marking ──all marked──▶ feeding ──told──▶ finished (native)
//!     ▲                                                │
//!     └───────────── told, nothing is moved ───────────┘
//! ```
//!
//! - **marking**: what the log and the parked table hold from the time before is marked in the table, so that nothing of it
//!   is moved. It is delivered from where it is. Nothing is moved yet.
//!   The outbox table is not read either, nor before all that waits has been moved once.
//! - **feeding**: each poll of the outbox table first moves what waits, in its order, in transactions that insert the
//!   rows there and mark them here. A crash leaves a row in one of the two, never in both or none.
//!
//! Which it is stands in `outbox_meta`, with the end of the log at the beginning: positions above it are no rows of the
//! table that were not marked, whatever their ids. A transaction holds the lease of the shard while it moves, and a relay
//! that serves the table by marks refuses to begin once this has begun, so no row is read there and moved here.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outhaul_core::adopted::{Marks, Migration, Stage};
use outhaul_core::message::{Position, Row, Seq};
use outhaul_core::parked::ParkedState;

use super::table::{Fed, Into, Mark, Table, Wanted};
use super::{REST_FACTOR, REST_MAX, SHARD, lock, marker};
use crate::acts::ParkedQuery;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{StatusTable, StoreOptions};
use crate::store::{MARKS, MIGRATION, PARKED_PAGE_ROWS, ReadRequest, ReadRows, Recovery, Store, StoreResult};

/// Rows of one transaction.
const STEP: usize = 500;
/// Tries to find rows that nobody holds, for one poll.
const TRIES: usize = 5;
/// Between two polls while what waits cannot be moved, at least.
const STUCK_REST: Duration = Duration::from_millis(20);
/// How long one poll moves rows before it reads.
const MOVES_FOR: Duration = Duration::from_millis(200);
/// Content that is read to learn keys, bytes.
const KEYS_BYTES: usize = 16 << 20;
/// So long at most the outbox table is not read while what waited at the beginning is moved.
const DRAIN_MAX: Duration = Duration::from_secs(600);
/// The same where what is left of it is held by others.
const STUCK_MAX: Duration = Duration::from_secs(5);
/// What the outbox table refuses is tried again this often.
const REFUSED_FOR: Duration = Duration::from_secs(60);
/// The most such rows that are remembered.
const REFUSED_MAX: usize = 10_000;
/// The most rows that are remembered as moved and not read.
const FED_MAX: usize = 200_000;
/// Rows without a time are looked for this often.
const TIMELESS_EVERY: Duration = Duration::from_secs(1);

/// What a poll has done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moved {
    /// What waited was moved, but for what the outbox table refuses.
    All,
    /// There is more.
    Cut,
    /// What waits is held by others, or nothing may be moved yet.
    Stuck,
}

#[derive(Default)]
struct State {
    owner: String,
    migration: Option<Migration>,
    /// Lanes whose messages the log holds.
    lanes: Vec<String>,
    /// Below it all of the log was marked.
    marked: Option<Position>,
    /// Parked messages were marked up to this one.
    parked: Option<ParkedQuery>,
    /// Rows whose mark met a lock.
    left: Vec<(String, Mark)>,
    /// Rows that the outbox table refuses, and their keys.
    refused: HashMap<String, Option<String>>,
    refused_since: Option<Instant>,
    timeless_at: Option<Instant>,
    next: Option<Instant>,
    failures: u32,
    began: Option<Instant>,
    /// It is known of all rows in the outbox table whether they were moved there.
    is_sure: bool,
    /// What waited when this process began was moved.
    drained: bool,
    /// Rows that were moved, and were not read from the outbox table since.
    fed: HashSet<String>,
}

pub(super) struct Feeder {
    inner: Arc<dyn Store>,
    table: Arc<dyn Table>,
    options: StatusTable,
    into: Into,
    state: Mutex<State>,
    reading: tokio::sync::Mutex<()>,
}

impl Feeder {
    pub(super) fn new(
        inner: Arc<dyn Store>,
        table: Arc<dyn Table>,
        options: &StatusTable,
        store: &StoreOptions,
    ) -> Self {
        let into = Into {
            outbox: store.outbox(),
            columns: store.columns.clone(),
            lease: store.table("outbox_lease"),
            owner: String::new(),
        };
        Self {
            inner,
            table,
            options: options.clone(),
            into,
            state: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn is_owner(&self, owner: &str) {
        let mut state = lock(&self.state);
        if state.owner != owner {
            owner.clone_into(&mut state.owner);
        }
    }

    /// This process has the shard now.
    pub(super) async fn begin(&self, recovery: &Recovery) -> StoreResult<()> {
        let kept = self.inner.memory(MIGRATION).await?.and_then(|text| Migration::decode(&text));
        let migration = match kept {
            Some(kept) if kept.table != self.options.table && kept.stage != Stage::Finished => {
                let what = format!("rows of table {} are being moved, and that is not finished", kept.table);
                return Err(StoreError::new(StoreErrorKind::Migrating, what));
            }
            // Since it was finished nobody can have served the table by marks. What is stored stays: others may have begun to
            // serve the outbox table alone.
            Some(kept) if kept.table == self.options.table => {
                let stage = if kept.stage == Stage::Marking { Stage::Marking } else { Stage::Feeding };
                Migration { stage, ..kept }
            }
            _ => {
                // A log that was not written beside marks holds no row of the table, whatever its ids.
                let by_marks = self.inner.memory(MARKS).await?.is_some_and(|text| !text.is_empty());
                let until = if by_marks { recovery.log_end } else { Position(0) };
                self.keep(Migration { table: self.options.table.clone(), until, stage: Stage::Marking }).await?
            }
        };
        tracing::info!(
            table = migration.table,
            stage = migration.stage.word(),
            "rows of the table are moved into the outbox"
        );
        let mut state = lock(&self.state);
        let owner = std::mem::take(&mut state.owner);
        let lanes = recovery.lanes.lanes.iter().map(|(lane, _)| lane.destination.clone()).collect();
        *state = State { owner, migration: Some(migration), lanes, began: Some(Instant::now()), ..State::default() };
        Ok(())
    }

    async fn keep(&self, migration: Migration) -> StoreResult<Migration> {
        self.inner.keep_memory(MIGRATION, &migration.encode()).await?;
        Ok(migration)
    }

    fn stage(&self) -> Option<Stage> {
        lock(&self.state).migration.as_ref().map(|m| m.stage)
    }

    /// Whether what the log holds is marked, by what is stored.
    pub(super) async fn has_marked(&self) -> StoreResult<bool> {
        let kept = self.inner.memory(MIGRATION).await?.and_then(|text| Migration::decode(&text));
        Ok(kept.is_some_and(|m| m.stage != Stage::Marking))
    }

    /// A step of marking what was there before. True: there is more.
    pub(super) async fn step(&self) -> StoreResult<bool> {
        let (until, lanes, marked, parked) = {
            let state = lock(&self.state);
            match &state.migration {
                Some(m) if m.stage == Stage::Marking => {
                    (m.until, state.lanes.clone(), state.marked, state.parked.clone())
                }
                _ => return Ok(false),
            }
        };
        let marks = Marks::decode(&self.inner.memory(MARKS).await?.unwrap_or_default());
        let from = marked.unwrap_or_else(|| marks.lowest(lanes.iter().map(String::as_str), until));
        if from < until {
            let next = self.mark_log(from, until, &lanes, &marks).await?;
            lock(&self.state).marked = Some(next);
            return Ok(true);
        }
        let query = parked.unwrap_or_else(|| ParkedQuery { shard: Some(SHARD), ..ParkedQuery::default() });
        let page = self.inner.list_parked(&query, PARKED_PAGE_ROWS as u32).await?;
        if !page.is_empty() {
            let before = page.iter().filter(|p| p.entry.position < until);
            let (dead, others): (Vec<_>, Vec<_>) = before.partition(|p| p.entry.state == ParkedState::Dead);
            let ids = |parked: Vec<&crate::acts::ListedParked>| parked.into_iter().map(|p| p.id.clone()).collect();
            // Where there is no word for what is dead, it must not wait either.
            let word = if self.options.dead.is_some() { Mark::Dead } else { Mark::Sent };
            self.mark(ids(dead), word).await?;
            self.mark(ids(others), Mark::Sent).await?;
        }
        if let Some(last) = page.last().filter(|_| page.len() >= PARKED_PAGE_ROWS) {
            let after = Some((last.entry.destination.clone(), SHARD, last.entry.position));
            lock(&self.state).parked = Some(ParkedQuery { after, ..query });
            return Ok(true);
        }
        // What met a lock: one by one.
        let left = std::mem::take(&mut lock(&self.state).left);
        let waiting = left.len();
        for (id, mark) in left {
            self.mark(vec![id], mark).await?;
        }
        if let n @ 1.. = lock(&self.state).left.len() {
            let what = format!(
                "{n} of {waiting} rows that were sent before are held by somebody: nothing is moved until they are free"
            );
            return Err(StoreError::new(StoreErrorKind::Timeout, what));
        }
        let done = self.keep(Migration { table: self.options.table.clone(), until, stage: Stage::Feeding }).await?;
        lock(&self.state).migration = Some(done);
        tracing::info!(table = self.options.table, "what was sent before is marked: rows are moved from now on");
        Ok(false)
    }

    /// Marks the messages of some chunks. Returns how far it has come.
    async fn mark_log(
        &self,
        from: Position,
        until: Position,
        lanes: &[String],
        marks: &Marks,
    ) -> StoreResult<Position> {
        let chunks = self.inner.read_log(SHARD, from, marker::LOG_BYTES).await?;
        let mut next = until; // where there is nothing more, it was pruned
        let mut ids = Vec::new();
        for chunk in &chunks {
            next = Position(chunk.base.0 + u64::from(chunk.count));
            for m in marker::decoded(chunk, lanes)? {
                let unmarked = |lane: &String| marks.of(lane).unwrap_or_default() <= m.position;
                if m.position < until && lanes.iter().any(unmarked) {
                    ids.push(m.id);
                }
            }
        }
        self.mark(ids, Mark::Sent).await?;
        Ok(next.max(Position(from.0 + 1)))
    }

    async fn mark(&self, ids: Vec<String>, mark: Mark) -> StoreResult<()> {
        for batch in ids.chunks(marker::BATCH) {
            match self.table.mark(batch, mark).await {
                Ok(_) => {}
                Err(e) if matches!(e.kind, StoreErrorKind::Timeout | StoreErrorKind::Conflict) => {
                    lock(&self.state).left.extend(batch.iter().map(|id| (id.clone(), mark)));
                }
                Err(e) => return Err(e.while_doing("marking rows of the status table")),
            }
        }
        Ok(())
    }

    /// Reads the outbox table, with what waits in the other one moved there. Events of a key that come from both are in the
    /// order of their `created_at`, as far as one read brings them together: by their `seq` those that were moved would
    /// all be later. What was moved lies behind nothing that committed after it: if rows have come that were not moved, it is
    /// looked once more for such as had committed before them.
    pub(super) async fn read(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        if !request.shards.contains(&SHARD) {
            return self.inner.read(request).await;
        }
        // One read at a time: what one brings lies behind what another has moved.
        let _one = self.reading.lock().await;
        let mut moved = self.feed().await;
        if !self.has_drained(moved) {
            return Ok(ReadRows { rows: Vec::new(), cut: true });
        }
        let mut answer = self.inner.read(request).await?;
        self.remember(&answer).await?;
        let is_new = |row: &Row| !lock(&self.state).fed.contains(&row.id);
        if moved == Some(Moved::All) && !answer.cut && answer.rows.iter().any(is_new) {
            let before = lock(&self.state).fed.len();
            moved = self.feed().await;
            if lock(&self.state).fed.len() > before {
                let known: HashSet<Seq> = answer.rows.iter().map(|row| row.seq).collect();
                let again = self.inner.read(request).await?;
                let fed = |row: &Row| !known.contains(&row.seq) && lock(&self.state).fed.contains(&row.id);
                answer.rows.extend(again.rows.into_iter().filter(fed));
            }
        }
        answer.cut |= moved != Some(Moved::All);
        let fed: Vec<bool> = {
            let mut state = lock(&self.state);
            let fed = answer.rows.iter().map(|row| state.fed.remove(&row.id)).collect();
            if state.fed.len() > FED_MAX {
                state.fed.clear();
            }
            fed
        };
        if fed.contains(&true) && fed.contains(&false) {
            answer.rows = by_time(answer.rows, &fed);
        }
        Ok(answer)
    }

    /// Of what an earlier process left in the outbox table it is not known what it had moved there: the other table tells.
    async fn remember(&self, answer: &ReadRows) -> StoreResult<()> {
        if lock(&self.state).is_sure {
            return Ok(());
        }
        for row in &answer.rows {
            let is_known = lock(&self.state).fed.contains(&row.id);
            if !is_known && self.table.find(&row.id).await?.is_some() {
                lock(&self.state).fed.insert(row.id.clone());
            }
        }
        lock(&self.state).is_sure = !answer.cut;
        Ok(())
    }

    /// Whether the outbox table may be read: what waited when this process began comes before what was inserted there since.
    /// Not for ever: rows may come faster than they are moved.
    fn has_drained(&self, moved: Option<Moved>) -> bool {
        let mut state = lock(&self.state);
        let feeds = state.migration.as_ref().is_some_and(|m| m.stage != Stage::Marking);
        let after = |limit| state.began.is_some_and(|at| at.elapsed() >= limit);
        let is_over = match moved {
            Some(Moved::All) => feeds,
            // A process that was killed may hold some until the server notices.
            Some(Moved::Stuck) => feeds && after(STUCK_MAX),
            Some(Moved::Cut) | None => after(DRAIN_MAX),
        };
        state.drained |= is_over;
        state.drained
    }

    /// Moves what waits, before the outbox table is read. None: it failed, which is told.
    async fn feed(&self) -> Option<Moved> {
        let next = lock(&self.state).next;
        if let Some(next) = next {
            tokio::time::sleep_until(next.into()).await;
        }
        let began = Instant::now();
        let result = match self.stage() {
            Some(Stage::Feeding) => self.moves(began).await,
            _ => Ok(Moved::Stuck),
        };
        let mut state = lock(&self.state);
        let rest = match result {
            Ok(Moved::Cut) => Duration::ZERO,
            Ok(Moved::All) => began.elapsed() * REST_FACTOR,
            Ok(Moved::Stuck) => STUCK_REST.max(began.elapsed() * REST_FACTOR),
            Err(_) => REST_MAX,
        };
        state.next = Some(Instant::now() + rest.min(REST_MAX));
        match result {
            Ok(moved) => {
                state.failures = 0;
                Some(moved)
            }
            Err(e) => {
                state.failures += 1;
                if state.failures.is_power_of_two() {
                    let (code, remedy, failures) = (e.kind.code(), e.kind.remedy(), state.failures);
                    let table = &self.options.table;
                    tracing::warn!(
                        code,
                        failures,
                        remedy,
                        "moving rows of table {table} into the outbox: {}",
                        e.message
                    );
                }
                None
            }
        }
    }

    async fn moves(&self, began: Instant) -> StoreResult<Moved> {
        let most = self.options.batch.map_or(STEP, |n| (n as usize).clamp(1, STEP));
        loop {
            let (passed, timeless) = {
                let mut state = lock(&self.state);
                if state.refused_since.is_some_and(|at| at.elapsed() >= REFUSED_FOR) {
                    state.refused.clear();
                    state.refused_since = None;
                }
                let timeless = state.timeless_at.is_none_or(|at| at.elapsed() >= TIMELESS_EVERY);
                if timeless {
                    state.timeless_at = Some(Instant::now());
                }
                (state.refused.len(), timeless)
            };
            let limit = most + passed;
            let mut places = self.table.waiting(&Wanted::From(None), limit, false).await?;
            let full = places.len() >= limit;
            if timeless {
                places.extend(self.table.waiting(&Wanted::Timeless, limit, false).await?);
            }
            let mut ids: Vec<String> = places.into_iter().map(|place| place.id).collect();
            {
                let state = lock(&self.state);
                ids.retain(|id| !state.refused.contains_key(id));
            }
            ids.truncate(most);
            let wanted = ids.len();
            if wanted == 0 {
                return Ok(Moved::All);
            }
            let moved = self.move_some(ids).await?;
            let count = moved.len();
            lock(&self.state).fed.extend(moved);
            match count {
                0 => return Ok(Moved::Stuck),
                _ if count == wanted && !full => return Ok(Moved::All),
                _ if began.elapsed() >= MOVES_FOR => return Ok(Moved::Cut),
                _ => {}
            }
        }
    }

    /// Moves those of these rows that may be: nobody holds them, nor an earlier one of their key. Returns which.
    async fn move_some(&self, mut ids: Vec<String>) -> StoreResult<Vec<String>> {
        let refused: HashSet<Option<String>> = lock(&self.state).refused.values().cloned().collect();
        if refused.iter().any(Option::is_some) {
            ids = self.without(ids, &HashSet::new(), refused).await?;
        }
        for _ in 0..TRIES {
            if ids.is_empty() {
                break;
            }
            match self.table.feed(&ids, &self.to()).await? {
                Fed::Moved => return Ok(ids),
                Fed::NotOwner => break,
                Fed::Held(held) => ids = self.without(ids, &held.into_iter().collect(), HashSet::new()).await?,
                Fed::Refused(_) => return self.one_by_one(ids).await,
            }
        }
        Ok(Vec::new())
    }

    fn to(&self) -> Into {
        Into { owner: lock(&self.state).owner.clone(), ..self.into.clone() }
    }

    /// The outbox table refuses one of these.
    async fn one_by_one(&self, ids: Vec<String>) -> StoreResult<Vec<String>> {
        let keys = self.keys(&ids).await?;
        let mut blocked: HashSet<String> = HashSet::new();
        let mut moved = Vec::new();
        for id in ids {
            let Some(key) = keys.get(&id).cloned() else { continue };
            if key.as_ref().is_some_and(|key| blocked.contains(key)) {
                continue;
            }
            match self.table.feed(std::slice::from_ref(&id), &self.to()).await? {
                Fed::Moved => moved.push(id),
                Fed::NotOwner => return Ok(moved),
                Fed::Held(_) => blocked.extend(key),
                Fed::Refused(why) => {
                    let mut state = lock(&self.state);
                    if state.refused.len() >= REFUSED_MAX {
                        let what = format!(
                            "the outbox table refuses more than {REFUSED_MAX} rows of table {}",
                            self.options.table
                        );
                        return Err(StoreError::new(StoreErrorKind::Other, what));
                    }
                    tracing::warn!(
                        code = StoreErrorKind::Migrating.code(),
                        remedy = "correct the row, or set its status to one that does not wait; it is tried again every minute",
                        "row {id:?} of table {} cannot be moved into the outbox: {why}",
                        self.options.table
                    );
                    state.refused_since.get_or_insert_with(Instant::now);
                    state.refused.insert(id, key.clone());
                    drop(state);
                    blocked.extend(key);
                }
            }
        }
        Ok(moved)
    }

    /// Keys of those of these rows that wait, as far as their content fits.
    async fn keys(&self, ids: &[String]) -> StoreResult<HashMap<String, Option<String>>> {
        let fetched = self.table.rows(ids, KEYS_BYTES, false).await?;
        Ok(fetched.rows.into_iter().map(|row| (row.id, row.key)).collect())
    }

    /// These rows, but for those that are held and for later ones of their keys, and of the keys that are blocked.
    async fn without(
        &self,
        ids: Vec<String>,
        held: &HashSet<String>,
        blocked: HashSet<Option<String>>,
    ) -> StoreResult<Vec<String>> {
        if self.options.key.is_none() {
            return Ok(ids.into_iter().filter(|id| !held.contains(id)).collect());
        }
        let keys = self.keys(&ids).await?;
        let mut blocked: HashSet<String> = blocked.into_iter().flatten().collect();
        let mut free = Vec::with_capacity(ids.len());
        for id in ids {
            // Who waits no more, or was not looked at, is left out.
            let Some(key) = keys.get(&id) else { continue };
            if held.contains(&id) {
                blocked.extend(key.clone());
            } else if !key.as_ref().is_some_and(|key| blocked.contains(key)) {
                free.push(id);
            }
        }
        Ok(free)
    }
}

/// Rows of each key in the order of their times, where some were moved and some were not; those of either kind stay in
/// the order in which they are.
fn by_time(rows: Vec<Row>, fed: &[bool]) -> Vec<Row> {
    let mut of_key: HashMap<&[u8], [Vec<usize>; 2]> = HashMap::new();
    for (n, (row, fed)) in rows.iter().zip(fed).enumerate() {
        if let Some(key) = &row.key {
            let [moved, others] = of_key.entry(key.as_bytes()).or_default();
            if *fed { moved.push(n) } else { others.push(n) }
        }
    }
    let mut order: Vec<usize> = (0..rows.len()).collect();
    for [moved, others] in of_key.into_values().filter(|[moved, others]| !moved.is_empty() && !others.is_empty()) {
        let mut places: Vec<usize> = moved.iter().chain(&others).copied().collect();
        places.sort_unstable();
        let created = |n: &usize| rows.get(*n).map(|row| row.created_at_us);
        let (mut moved, mut others) = (moved.into_iter().peekable(), others.into_iter().peekable());
        for place in places {
            let first = match (moved.peek(), others.peek()) {
                (Some(a), Some(b)) if created(a) > created(b) => others.next(),
                (None, _) => others.next(),
                _ => moved.next(),
            };
            if let (Some(slot), Some(first)) = (order.get_mut(place), first) {
                *slot = first;
            }
        }
    }
    let mut rows: Vec<Option<Row>> = rows.into_iter().map(Some).collect();
    order.into_iter().filter_map(|n| rows.get_mut(n).and_then(Option::take)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_key_are_in_the_order_of_their_times() {
        // Each kind has its own order, also where a clock says otherwise.
        let of = |id: &str, key: Option<&str>, created_at_us| Row {
            seq: Seq(0),
            shard: SHARD,
            id: id.into(),
            topic: "t".into(),
            key: key.map(str::to_owned),
            headers: None,
            payload: bytes::Bytes::new(),
            created_at_us,
            defect: None,
        };
        let rows = vec![
            of("n1", Some("a"), 10),
            of("x1", Some("b"), 1),
            of("n2", Some("a"), 20),
            of("free", None, 5),
            of("f1", Some("a"), 10),
            of("f2", Some("a"), 15),
            of("f3", Some("a"), 5),
        ];
        let fed = [false, false, false, false, true, true, true];
        let ids: Vec<String> = by_time(rows, &fed).into_iter().map(|row| row.id).collect();
        assert_eq!(ids, ["f1", "x1", "n1", "free", "f2", "f3", "n2"]);
    }
}
