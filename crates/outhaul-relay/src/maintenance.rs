//! Pruning and merging, beside the sending and never a reason to send again.

use std::sync::Arc;
use std::time::Duration;

use outhaul_store::{PruneRequest, Store};
use tokio::sync::watch;

use crate::stop::Asked;

/// What the relay keeps tidy by itself. One instance at a time does it, under a lease of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Maintenance {
    /// Log and receipts older than this go, if every lane is past them. Default 7 days.
    pub retention: Duration,
    /// Small chunks and receipts of hours that ended this long ago are merged. Default 10 minutes.
    pub merge_after: Duration,
    /// Time between two looks. Default one minute.
    pub interval: Duration,
    /// Chunks touched in one transaction. Default 500.
    pub step: u32,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * 24 * 3600),
            merge_after: Duration::from_secs(600),
            interval: Duration::from_secs(60),
            step: 500,
        }
    }
}

pub(crate) async fn run(
    outbox: String,
    owner: String,
    store: Arc<dyn Store>,
    plan: Maintenance,
    mut stop: watch::Receiver<Asked>,
) {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let request = PruneRequest {
        owner,
        retention_ms: millis(plan.retention),
        merge_after_ms: Some(millis(plan.merge_after)),
        step: plan.step,
    };
    let mut wait = plan.interval;
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stop.wait_for(|a| *a != Asked::Nothing) => return,
        }
        wait = plan.interval;
        match store.prune(&request).await {
            Ok(done) => {
                if done.messages > 0 || done.merged_chunks > 0 {
                    tracing::info!(
                        outbox,
                        messages = done.messages,
                        chunks = done.chunks,
                        merged = done.merged_chunks,
                        "log pruned"
                    );
                }
                if done.more {
                    // Small steps with pauses: nobody else should notice.
                    wait = Duration::from_millis(100).min(plan.interval);
                }
            }
            Err(e) => tracing::warn!(outbox, code = e.kind.code(), remedy = e.kind.remedy(), "pruning: {}", e.message),
        }
    }
}
