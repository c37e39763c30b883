//! What a destination still has of what it acknowledged to a lane: receipts from memory and from the database, newest
//! first, shown to the sink page by page as far as it asks for them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::chunk;
use outhaul_core::destination::DestinationIndex;
use outhaul_core::lane::{RecentReceipt, Verification};
use outhaul_core::message::{Position, ShardId};
use outhaul_core::receipt::{LaneReceipt, Reason};
use outhaul_core::runs::Runs;
use outhaul_sink::{Acknowledged, Sink};
use outhaul_store::{Store, StoreError};

/// Receipts that the sink is shown at a time.
const PAGE: usize = 4_096;
/// A read of receipts brings at most this much stored content, or one row.
const READ_BYTES: usize = 1 << 20;
/// A read of the log for the ids of a page brings at most this much stored content, or one chunk.
const LOG_BYTES: usize = 1 << 20;
/// One answer of the sink takes at most this long.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The whole of it takes at most this long.
const LIMIT: Duration = Duration::from_secs(600);
/// At most this many receipts are looked at beyond those that were forgotten.
const MOST_RECEIPTS: u64 = 4_000_000;
/// So often rows may be merged while they are read.
const MOST_MERGES: u32 = 16;

/// A lane that is looked at.
pub(crate) struct Look {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) names: Arc<[String]>,
    pub(crate) shard: ShardId,
    pub(crate) destination: DestinationIndex,
    pub(crate) recent: Vec<RecentReceipt>,
    pub(crate) unproven_from: Option<Position>,
    pub(crate) max_forgotten: u64,
}

/// Why a look did not come to an end.
pub(crate) enum Trouble {
    /// The database.
    Store(StoreError),
    /// The destination, or a limit.
    Other(Reason),
}

impl From<StoreError> for Trouble {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Look {
    /// Looks.
    pub(crate) async fn verify(self) -> Result<Verification, Trouble> {
        let late = || Trouble::Other(Reason::new("OUT-4017", format!("not found out within {} s", LIMIT.as_secs())));
        tokio::time::timeout(LIMIT, self.look()).await.unwrap_or_else(|_| Err(late()))
    }

    async fn look(mut self) -> Result<Verification, Trouble> {
        let mut found = Verification::default();
        let mut receipts = Receipts::new(std::mem::take(&mut self.recent), self.unproven_from);
        let mut asked_for_older = true;
        let mut left = MOST_RECEIPTS.saturating_add(self.max_forgotten);
        while left > 0 && (asked_for_older || receipts.more_unproven()) {
            receipts.fill(&self).await?;
            let page = receipts.take();
            if page.is_empty() {
                break;
            }
            left = left.saturating_sub(page.len() as u64);
            if let Some(from) = self.unproven_from {
                found.unproven.extend(page.iter().filter(|r| r.position >= from).cloned());
            }
            if asked_for_older {
                let verified = self.ask(page, &receipts.ids).await?;
                found.forgotten.extend(verified.forgotten);
                asked_for_older = verified.older;
                if found.forgotten.len() as u64 > self.max_forgotten {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Shows the sink a page.
    async fn ask(
        &self,
        page: Vec<LaneReceipt>,
        recent: &HashMap<Position, String>,
    ) -> Result<outhaul_sink::Verified, Trouble> {
        let ids = self.ids(&page, recent).await?;
        let mut acknowledged: Vec<Acknowledged> = page
            .into_iter()
            .filter_map(|LaneReceipt { position, receipt }| {
                // What the log does not have any more could not be sent again.
                let id = ids.get(&position)?.clone();
                Some(Acknowledged { shard: self.shard, position, id, receipt })
            })
            .collect();
        acknowledged.sort_by_key(|a| a.position);
        if acknowledged.is_empty() {
            return Ok(outhaul_sink::Verified { forgotten: Vec::new(), older: true });
        }
        let answer = tokio::time::timeout(CALL_LIMIT, self.sink.verify(&acknowledged)).await;
        let late = || Reason::new("OUT-4017", format!("no answer within {} s", CALL_LIMIT.as_secs()));
        let mut verified =
            answer.map_err(|_| Trouble::Other(late()))?.map_err(|e| Trouble::Other(Reason::new(e.code, e.message)))?;
        // Only what was asked for: a slip of a sink must not send anything else again.
        verified.forgotten.retain(|p| acknowledged.binary_search_by_key(p, |a| a.position).is_ok());
        Ok(verified)
    }

    /// The ids of a page's messages, chunk by chunk.
    async fn ids(
        &self,
        page: &[LaneReceipt],
        recent: &HashMap<Position, String>,
    ) -> Result<HashMap<Position, String>, Trouble> {
        let mut ids: HashMap<Position, String> = HashMap::with_capacity(page.len());
        let mut missing: Vec<Position> = Vec::new();
        for r in page {
            match recent.get(&r.position) {
                Some(id) => drop(ids.insert(r.position, id.clone())),
                None => missing.push(r.position),
            }
        }
        missing.sort_unstable();
        let mut missing: VecDeque<Position> = missing.into();
        while let Some(from) = missing.front().copied() {
            let chunks = self.store.read_log(self.shard, from, LOG_BYTES).await?;
            let mut end = from.0.saturating_add(1);
            for c in &chunks {
                let wanted = missing.iter().take_while(|p| p.0 < c.base.0 + u64::from(c.count));
                if wanted.count() == 0 {
                    continue;
                }
                let unpacked = chunk::decode(c.codec, &c.bytes, self.shard, c.base, &self.names).map_err(|e| {
                    let what = format!("chunk at position {} of shard {}: {e}", c.base, self.shard);
                    StoreError::new(outhaul_store::StoreErrorKind::Corrupt, what)
                })?;
                for m in unpacked {
                    while missing.front().is_some_and(|p| *p < m.position) {
                        missing.pop_front();
                    }
                    if missing.front() == Some(&m.position) {
                        missing.pop_front();
                        ids.insert(m.position, m.id);
                    }
                }
                end = end.max(c.base.0 + u64::from(c.count));
            }
            while missing.front().is_some_and(|p| p.0 < end) {
                missing.pop_front();
            }
        }
        Ok(ids)
    }
}

/// Receipts of a lane, newest first, each position once.
struct Receipts {
    /// Ids of messages that are in memory.
    ids: HashMap<Position, String>,
    pending: VecDeque<LaneReceipt>,
    seen: Runs,
    unproven_from: Option<Position>,
    /// The lowest row that was read.
    lowest: Option<u64>,
    merges: u32,
    /// There are no older ones.
    ended: bool,
    /// Older ones all lie below `unproven_from`.
    below_unproven: bool,
}

impl Receipts {
    fn new(recent: Vec<RecentReceipt>, unproven_from: Option<Position>) -> Self {
        let mut receipts = Self {
            ids: HashMap::new(),
            pending: VecDeque::new(),
            seen: Runs::new(),
            unproven_from,
            lowest: None,
            merges: 0,
            ended: false,
            below_unproven: unproven_from.is_none(),
        };
        for RecentReceipt { position, id, receipt } in recent.into_iter().rev() {
            if let Some(id) = id {
                receipts.ids.insert(position, id);
            }
            receipts.push(LaneReceipt { position, receipt });
        }
        receipts
    }

    /// The newest receipt of a position is the one that counts.
    fn push(&mut self, receipt: LaneReceipt) {
        if self.seen.insert(receipt.position.0) {
            self.pending.push_back(receipt);
        }
    }

    /// Whether there may be some that are not proven among those to come.
    fn more_unproven(&self) -> bool {
        let pending = || self.pending.iter().any(|r| self.unproven_from.is_some_and(|from| r.position >= from));
        (!self.ended && !self.below_unproven) || pending()
    }

    fn take(&mut self) -> Vec<LaneReceipt> {
        let count = self.pending.len().min(PAGE);
        self.pending.drain(..count).collect()
    }

    /// Reads on until there is a page, or nothing more.
    async fn fill(&mut self, look: &Look) -> Result<(), StoreError> {
        while self.pending.len() < PAGE && !self.ended {
            self.read(look).await?;
        }
        Ok(())
    }

    async fn read(&mut self, look: &Look) -> Result<(), StoreError> {
        let read = |below| look.store.receipts_below(look.shard, below, READ_BYTES);
        // The lowest one is read again: where it is gone, or holds more, rows below it were merged into another.
        let mut rows = read(self.lowest.map(|n| n.saturating_add(1))).await?;
        if let Some(lowest) = self.lowest {
            if rows.first().is_none_or(|r| r.number != lowest) {
                self.merges += 1;
                self.lowest = None;
                self.ended = self.merges > MOST_MERGES;
                return Ok(());
            }
            if rows.len() == 1 {
                rows.extend(read(self.lowest).await?);
            }
            self.ended = rows.len() == 1;
        } else {
            self.ended = rows.is_empty();
        }
        let name = look.names.get(usize::from(look.destination.0)).map_or("", String::as_str);
        for numbered in rows {
            self.lowest = Some(numbered.number);
            let Some((state, mut receipts)) = numbered.row.lanes.into_iter().find(|(s, _)| s.destination == name)
            else {
                // Lanes are carried from row to row: this one is younger than the row.
                self.ended = true;
                break;
            };
            // Stored by position, those of one position in the order of their answers.
            while let Some(receipt) = receipts.pop() {
                self.push(receipt);
            }
            let all_below =
                |from: Position| state.cursor <= from && state.ahead.last().is_none_or(|last| last < from.0);
            self.below_unproven |= self.unproven_from.is_some_and(all_below);
        }
        Ok(())
    }
}
