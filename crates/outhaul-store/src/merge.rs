//! What pruning and merging decide, without a database: which chunks and receipt rows of closed hours are joined, what
//! the joined ones hold, and below which position a shard's log may be pruned.
//!
//! A step of a store goes like this, for chunks (keys are base positions) and for receipt rows (keys are numbers):
//!
//! 1. read the mark ([`chunk_mark`], [`receipt_mark`]) from the meta table, 0 if there is none;
//! 2. read the [`Head`]s from the mark on, rising, at most [`step`] of them (receipt rows: without the newest);
//! 3. [`plan`]: for each of its groups read the rows, join them ([`join_chunks`], [`join_receipts`]), delete the
//!    sources and insert what became of them;
//! 4. write [`Plan::next_mark`] into the meta table.
//!
//! Merging stays within one hour, so that `moved_at` is never off by more.

use outhaul_core::act::Touched;
use outhaul_core::chunk::{self, EncodedChunk};
use outhaul_core::destination::MAX_DESTINATIONS;
use outhaul_core::message::{Epoch, Message, Position, ShardId};
use outhaul_core::receipt::ReceiptRow;
use outhaul_core::runs::Run;

use crate::store::StoredChunk;

/// The most that a chunk holds, bytes before compression, unless it is a single message.
pub const CHUNK_BYTES: usize = 4 << 20;
/// The most messages in a merged chunk, and the most receipts in a merged receipt row.
pub const MERGED_COUNT: usize = 20_000;
/// The most stored bytes that one step reads in order to join them.
const STEP_BYTES: u64 = 16 << 20;
const HOUR_US: i64 = 3_600_000_000;

/// Name in the meta table of where merging of a shard's chunks goes on.
pub fn chunk_mark(shard: ShardId) -> String {
    format!("merged_chunks_{shard}")
}

/// Name in the meta table of where merging of a shard's receipt rows goes on.
pub fn receipt_mark(shard: ShardId) -> String {
    format!("merged_receipts_{shard}")
}

/// How many heads a step reads: at least two, or it would never get on.
pub fn step(wanted: u32) -> u32 {
    wanted.max(2)
}

/// The position below which a shard's log may be pruned, given its newest receipt row: the smallest `proven` of all
/// its lanes. None: no lane, so nothing is known to be settled.
pub fn settled_below(newest: &ReceiptRow) -> Option<Position> {
    newest.lanes.iter().map(|(state, _)| state.proven).min()
}

/// What a plan needs to know of a chunk or receipt row, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// `base_position` of a chunk, `number` of a receipt row.
    pub key: u64,
    /// Messages of a chunk; 1 for a receipt row.
    pub count: u32,
    /// `moved_at` of a chunk, `created_at` of a receipt row: microseconds since 1970-01-01 UTC, database clock.
    pub at_us: i64,
    /// Stored bytes of `chunk` or `lanes`.
    pub bytes: u64,
}

/// What a step joins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Runs of keys, each of two rows or more, rising: what lies in one may be joined.
    pub groups: Vec<Run>,
    /// Whether there is more to look at, now.
    pub more: bool,
    next: u64,
    last_is_open: bool,
}

impl Plan {
    /// The mark for the next step. `last_joined` is what joining the last group returned as its last key.
    pub fn next_mark(&self, last_joined: Option<u64>) -> u64 {
        last_joined.filter(|_| self.last_is_open).unwrap_or(self.next)
    }
}

/// Plans a step over heads by rising key, from `mark` on. `filled`: the read was cut by its limit, more heads follow.
/// An hour is closed when it ended `merge_after_ms` before `now_us` (database clock).
pub fn plan(mark: u64, heads: &[Head], filled: bool, now_us: i64, merge_after_ms: u64) -> Plan {
    let after_us = i64::try_from(merge_after_ms).unwrap_or(i64::MAX).saturating_mul(1_000);
    let closed_before_us = now_us.saturating_sub(after_us).div_euclid(HOUR_US);
    let closed = heads.iter().take_while(|h| hour(h) < closed_before_us).count();
    let mut bytes = 0u64;
    let fits = heads
        .iter()
        .take(closed)
        .take_while(|h| {
            bytes = bytes.saturating_add(h.bytes);
            bytes <= STEP_BYTES
        })
        .count()
        .max(closed.min(2));
    let (looked_at, rest) = heads.split_at(fits);
    let mut groups: Vec<Vec<&Head>> = Vec::new();
    for head in looked_at {
        match groups.last_mut() {
            Some(group) if joins(group, head) => group.push(head),
            _ => groups.push(vec![head]),
        }
    }
    let open = fits < closed || (filled && rest.is_empty());
    let next = match (looked_at.last(), rest.first()) {
        (None, first) => first.map_or(mark, |h| h.key),
        (Some(last), _) if open => last.key,
        (Some(_), Some(first)) => first.key,
        (Some(last), None) => last.key.saturating_add(1),
    };
    let last_is_open = open && groups.last().is_some_and(|g| g.len() > 1);
    let groups = groups.iter().filter(|g| g.len() > 1).filter_map(|g| {
        let (first, last) = (g.first()?, g.last()?);
        Some(Run { first: first.key, last: last.key })
    });
    Plan { groups: groups.collect(), more: open, next, last_is_open }
}

fn hour(head: &Head) -> i64 {
    head.at_us.div_euclid(HOUR_US)
}

fn joins(group: &[&Head], head: &Head) -> bool {
    let Some(last) = group.last() else { return false };
    let count: u64 = group.iter().map(|h| u64::from(h.count)).sum();
    let bytes: u64 = group.iter().map(|h| h.bytes).sum();
    hour(last) == hour(head)
        && count + u64::from(head.count) <= MERGED_COUNT as u64
        && bytes + head.bytes <= CHUNK_BYTES as u64
}

/// A chunk that takes the place of several.
#[derive(Clone, Debug)]
pub struct JoinedChunk {
    /// The new chunk; its base is that of the first source.
    pub chunk: EncodedChunk,
    /// `moved_at` of the last source: retention counts from it.
    pub moved_at_us: i64,
    /// Base positions of the chunks to delete.
    pub sources: Vec<Position>,
}

/// Joins the chunks of one group of a plan. Returns the new chunks, each of two sources or more, and the base of the
/// last chunk as it will be. A chunk that cannot be read, or that does not follow on the one before it, is left alone;
/// no chunk grows above `max_bytes` (before compression) or the limits of this module.
pub fn join_chunks(group: &[StoredChunk], max_bytes: usize) -> (Vec<JoinedChunk>, Option<u64>) {
    let max_bytes = max_bytes.min(CHUNK_BYTES);
    let mut joined = Vec::new();
    let mut open = OpenChunk::default();
    let mut last = None;
    for stored in group {
        last = Some(stored.base.0);
        let Some(part) = unpack(stored) else {
            joined.extend(std::mem::take(&mut open).close());
            continue;
        };
        if !open.takes(stored, &part, max_bytes) {
            joined.extend(std::mem::take(&mut open).close());
        }
        open.add(stored, part);
        last = open.sources.first().map(|base| base.0);
    }
    joined.extend(open.close());
    (joined, last)
}

struct Unpacked {
    messages: Vec<Message>,
    names: Vec<String>,
    weight: usize,
}

fn unpack(stored: &StoredChunk) -> Option<Unpacked> {
    let names = chunk::destination_names(stored.codec, &stored.bytes).ok()?;
    let messages = chunk::decode(stored.codec, &stored.bytes, stored.shard, stored.base, &names).ok()?;
    let usable = messages.len() == stored.count as usize && !messages.is_empty() && names.len() <= MAX_DESTINATIONS;
    let weight = messages.iter().map(Message::weight).sum();
    usable.then_some(Unpacked { messages, names, weight })
}

#[derive(Default)]
struct OpenChunk {
    messages: Vec<Message>,
    names: Vec<String>,
    weight: usize,
    moved_at_us: i64,
    sources: Vec<Position>,
}

impl OpenChunk {
    fn takes(&self, stored: &StoredChunk, part: &Unpacked, max_bytes: usize) -> bool {
        let Some(first) = self.sources.first() else { return true };
        first.0.checked_add(self.messages.len() as u64) == Some(stored.base.0)
            && self.messages.len() + part.messages.len() <= MERGED_COUNT
            && self.weight + part.weight <= max_bytes
            && self.united(&part.names).len() <= MAX_DESTINATIONS
    }

    fn united(&self, others: &[String]) -> Vec<String> {
        let new = others.iter().filter(|name| !self.names.contains(name));
        self.names.iter().chain(new).cloned().collect()
    }

    fn add(&mut self, stored: &StoredChunk, part: Unpacked) {
        let names = self.united(&part.names);
        let index_of = |name: &String| names.iter().position(|n| n == name).and_then(|i| u8::try_from(i).ok());
        let moved: Vec<Option<u8>> = part.names.iter().map(index_of).collect();
        self.messages.extend(part.messages.into_iter().map(|mut message| {
            let indices = message.destinations.iter().filter_map(|d| *moved.get(usize::from(d.0))?);
            message.destinations = indices.map(outhaul_core::destination::DestinationIndex).collect();
            message
        }));
        self.names = names;
        self.weight += part.weight;
        self.moved_at_us = self.moved_at_us.max(stored.moved_at_us);
        self.sources.push(stored.base);
    }

    fn close(self) -> Option<JoinedChunk> {
        (self.sources.len() > 1).then(|| JoinedChunk {
            chunk: chunk::encode(self.messages.iter(), &self.names),
            moved_at_us: self.moved_at_us,
            sources: self.sources,
        })
    }
}

/// A receipt row as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredReceipts {
    /// Number.
    pub number: u64,
    /// Epoch under which it was written.
    pub epoch: Epoch,
    /// End of the log after its checkpoint.
    pub log_end: Position,
    /// When it was written, microseconds since 1970-01-01 UTC, database clock.
    pub created_at_us: i64,
    /// Column `lanes`: [`ReceiptRow::encode`].
    pub lanes: Vec<u8>,
}

/// A receipt row that takes the place of several. Number, epoch, log end and time are those of the last source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedReceipts {
    /// The new row.
    pub row: StoredReceipts,
    /// Positions of its first and last receipt: columns `from_position` and `to_position`.
    pub span: Option<(Position, Position)>,
    /// Numbers of the rows to delete, the last source's among them.
    pub sources: Vec<u64>,
}

/// Joins the receipt rows of one group of a plan. Returns the new rows, each of two sources or more, and the number of
/// the last row as it will be. A row that cannot be read is left alone.
///
/// Each lane stands where the last source that knows it has put it, and has the receipts of all, by rising position; what
/// acts have changed is joined too.
pub fn join_receipts(group: &[StoredReceipts]) -> (Vec<JoinedReceipts>, Option<u64>) {
    let mut joined = Vec::new();
    let mut open: Option<OpenReceipts> = None;
    for stored in group {
        let Ok(row) = ReceiptRow::decode(&stored.lanes) else {
            joined.extend(open.take().and_then(OpenReceipts::close));
            continue;
        };
        match &mut open {
            Some(o) if receipts_in(&o.row) + receipts_in(&row) <= MERGED_COUNT => o.add(stored, row),
            _ => {
                let first = OpenReceipts { last: stored.clone(), row, sources: vec![stored.number] };
                joined.extend(open.replace(first).and_then(OpenReceipts::close));
            }
        }
    }
    joined.extend(open.and_then(OpenReceipts::close));
    (joined, group.last().map(|stored| stored.number))
}

fn receipts_in(row: &ReceiptRow) -> usize {
    let runs = row.acts.iter().map(|t| t.positions.run_count());
    row.lanes.iter().map(|(_, receipts)| receipts.len()).chain(runs).sum()
}

struct OpenReceipts {
    last: StoredReceipts,
    row: ReceiptRow,
    sources: Vec<u64>,
}

impl OpenReceipts {
    fn add(&mut self, stored: &StoredReceipts, row: ReceiptRow) {
        for (state, receipts) in row.lanes {
            match self.row.lanes.iter_mut().find(|(s, _)| s.destination == state.destination) {
                Some((known, all)) => {
                    *known = state;
                    all.extend(receipts);
                }
                None => self.row.lanes.push((state, receipts)),
            }
        }
        for touched in row.acts {
            let same = |t: &&mut Touched| (t.number, &t.destination) == (touched.number, &touched.destination);
            match self.row.acts.iter_mut().find(same) {
                Some(known) => touched.positions.iter().for_each(|run| known.positions.insert_run(run)),
                None => self.row.acts.push(touched),
            }
        }
        self.last = stored.clone();
        self.sources.push(stored.number);
    }

    fn close(mut self) -> Option<JoinedReceipts> {
        if self.sources.len() < 2 {
            return None;
        }
        for (_, receipts) in &mut self.row.lanes {
            receipts.sort_by_key(|r| r.position); // stable: what was sent again stays in the order of its answers
        }
        let row = StoredReceipts { lanes: self.row.encode(), ..self.last };
        Some(JoinedReceipts { row, span: self.row.span(), sources: self.sources })
    }
}

#[cfg(test)]
mod tests;
