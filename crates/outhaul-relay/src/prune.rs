//! Steps of pruning, each preceded by the export of what it deletes, where that is wanted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::message::ShardId;
use outhaul_store::{PruneRequest, Pruned, Store, StoreResult};
use tokio::time::Instant;

use crate::export::{Export, ExportError};

/// Stored bytes that are read at a time to be exported, unless a single chunk has more.
const READ_BYTES: usize = 4 << 20;
/// When an export that failed is tried again, if nothing else is said.
const RETRY: Duration = Duration::from_secs(60);

/// What a step did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PruneStep {
    /// In the database. `more`: there is something left to do now.
    pub pruned: Pruned,
    /// Messages that were put into files, or found in them, before they were deleted.
    pub exported: u64,
    /// Files that were written.
    pub files: u64,
    /// Why something was not exported, and so not pruned.
    pub failures: Vec<ExportError>,
}

/// Prunes an outbox step by step. What it exports it deletes in the same step.
pub struct Pruner {
    store: Arc<dyn Store>,
    request: PruneRequest,
    export: Option<Export>,
    /// Where the export goes on. It begins at shard 0 again when nothing is left to export.
    shard: ShardId,
    retry: Duration,
    /// Nothing is exported before.
    not_before: Option<Instant>,
    /// Whether something failed since the export began at shard 0.
    failed: bool,
    /// The newest failure that has not been mended.
    failure: Option<ExportError>,
}

impl Pruner {
    /// Prunes as the request says; `export`: into this folder goes what leaves the log, before it does.
    pub fn new(outbox: &str, store: Arc<dyn Store>, request: PruneRequest, export: Option<PathBuf>) -> Self {
        let export = export.map(|folder| Export::new(outbox, folder));
        Self { store, request, export, shard: ShardId(0), retry: RETRY, not_before: None, failed: false, failure: None }
    }

    /// An export that failed is tried again after this time, not after a minute.
    #[must_use]
    pub fn retry_after(self, retry: Duration) -> Self {
        Self { retry, ..self }
    }

    /// Why something is not pruned, as long as it is not.
    pub fn failure(&self) -> Option<&ExportError> {
        self.failure.as_ref()
    }

    /// One step: small, so that nobody else notices. After an export that failed, receipts go and chunks are
    /// merged, and it is tried again after a minute.
    ///
    /// # Errors
    /// The database's. What was exported and not deleted is found in its files by the next step that comes to it.
    pub async fn step(&mut self) -> StoreResult<PruneStep> {
        let mut step = PruneStep::default();
        let mut request = self.request.clone();
        if self.export.is_some() {
            request.exported = Some(vec![]);
            if self.not_before.is_none_or(|at| Instant::now() >= at) && !self.export(&mut request, &mut step).await? {
                return Ok(step);
            }
        }
        step.pruned = self.store.prune(&request).await?;
        step.pruned.more |= step.exported > 0;
        Ok(step)
    }

    /// Exports the next chunks and says so in the request. False: another runner prunes.
    async fn export(&mut self, request: &mut PruneRequest, step: &mut PruneStep) -> StoreResult<bool> {
        let Some(export) = &mut self.export else { return Ok(true) };
        loop {
            let found = self.store.prunable(&self.request, self.shard, READ_BYTES).await?;
            if !found.ran {
                return Ok(false);
            }
            let Some(shard) = found.chunks.first().map(|c| c.shard) else {
                self.shard = ShardId(0);
                if std::mem::take(&mut self.failed) {
                    self.not_before = Some(Instant::now() + self.retry);
                } else {
                    self.failure = None;
                }
                return Ok(true);
            };
            match export.write(found.chunks).await {
                Ok(written) => {
                    self.shard = shard;
                    (step.exported, step.files) = (written.messages, written.files);
                    request.exported = Some(vec![written.exported]);
                    return Ok(true);
                }
                Err(e) => {
                    let of_chunk = matches!(e, ExportError::Unreadable { .. });
                    self.failed = true;
                    self.failure = Some(e.clone());
                    step.failures.push(e);
                    match shard.0.checked_add(1) {
                        // The others go on.
                        Some(next) if of_chunk => self.shard = ShardId(next),
                        _ => {
                            (self.shard, self.failed) = (ShardId(0), false);
                            self.not_before = Some(Instant::now() + self.retry);
                            return Ok(true);
                        }
                    }
                }
            }
        }
    }
}
