//! What a destination still has of what it acknowledged to a lane: the reads and calls of a [`Comparison`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outhaul_core::chunk;
use outhaul_core::comparison::{Comparison, Step};
use outhaul_core::lane::Verification;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::receipt::{LaneReceipt, Reason};
use outhaul_sink::{Acknowledged, Sink, Verified};
use outhaul_store::{Store, StoreError};

/// A read of receipts brings at most this much stored content, or one row.
const READ_BYTES: usize = 1 << 20;
/// A read of the log for the ids of a page brings at most this much stored content, or one chunk.
const LOG_BYTES: usize = 1 << 20;
/// One answer of the sink takes at most this long.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// The whole of it takes at most this long.
const LIMIT: Duration = Duration::from_secs(600);

/// A lane that is looked at.
pub(crate) struct Look {
    /// See [`Acknowledged::comparison`].
    pub(crate) number: u64,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) names: Arc<[String]>,
    pub(crate) shard: ShardId,
    pub(crate) comparison: Comparison,
}

static NEXT_LOOK: AtomicU64 = AtomicU64::new(1);

/// A number for [`Look::number`].
pub(crate) fn next_number() -> u64 {
    NEXT_LOOK.fetch_add(1, Ordering::Relaxed)
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
        loop {
            match self.comparison.step() {
                Step::Done(found) => return Ok(found),
                Step::Read(below) => {
                    let rows = self.store.receipts_below(self.shard, below, READ_BYTES).await?;
                    self.comparison.on_rows(rows.into_iter().map(|r| (r.number, r.row)).collect());
                }
                Step::Show(page) => {
                    let Verified { forgotten, older } = self.ask(page).await?;
                    self.comparison.on_compared(&forgotten, older);
                }
            }
        }
    }

    /// Shows the sink a page.
    async fn ask(&self, page: Vec<LaneReceipt>) -> Result<Verified, Trouble> {
        let mut ids = self.ids(&page).await?;
        let acknowledged: Vec<Acknowledged> = page
            .into_iter()
            .filter_map(|LaneReceipt { position, receipt }| {
                // What the log does not have any more could not be sent again.
                let id = ids.remove(&position)?;
                Some(Acknowledged { comparison: self.number, shard: self.shard, position, id, receipt })
            })
            .collect();
        if acknowledged.is_empty() {
            return Ok(Verified::default());
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
    async fn ids(&self, page: &[LaneReceipt]) -> Result<HashMap<Position, String>, Trouble> {
        let mut ids: HashMap<Position, String> = HashMap::with_capacity(page.len());
        let mut missing: Vec<Position> = Vec::new();
        for r in page {
            match self.comparison.id(r.position) {
                Some(id) => drop(ids.insert(r.position, id.to_owned())),
                None => missing.push(r.position),
            }
        }
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
