//! Pruning and merging, beside the sending and never a reason to send again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::trouble::Trouble;
use outhaul_store::{PruneRequest, Store};
use tokio::sync::watch;

use crate::clock::wall_us;
use crate::export::ExportError;
use crate::prune::Pruner;
use crate::stop::Asked;
use crate::watch::{Pulse, Watch};

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
    /// What leaves the log is written into files in this folder before it does. Default: no.
    pub export: Option<PathBuf>,
}

impl Default for Maintenance {
    fn default() -> Self {
        Self {
            retention: Duration::from_secs(7 * 24 * 3600),
            merge_after: Duration::from_secs(600),
            interval: Duration::from_secs(60),
            step: 500,
            export: None,
        }
    }
}

/// Who is told how it goes.
pub(crate) struct Told {
    /// What keeps it from exporting, as long as it does.
    pub(crate) trouble: Arc<watch::Sender<Option<Trouble>>>,
    /// What is pruned is counted there.
    pub(crate) watch: Option<Watch>,
    /// What it is at.
    pub(crate) pulse: Arc<Pulse>,
}

/// Keeps one outbox tidy until it is told to stop.
pub(crate) async fn run(
    outbox: String,
    owner: String,
    store: Arc<dyn Store>,
    plan: Maintenance,
    mut stop: watch::Receiver<Asked>,
    told: Told,
) {
    let Told { trouble, watch, pulse } = told;
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let request = PruneRequest {
        owner,
        retention_ms: millis(plan.retention),
        merge_after_ms: Some(millis(plan.merge_after)),
        step: plan.step,
        exported: None,
    };
    let mut pruner = Pruner::new(&outbox, store, request, plan.export).retry_after(plan.interval);
    let mut wait = pulse.first(plan.interval);
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stop.wait_for(|a| *a != Asked::Nothing) => return,
        }
        pulse.works();
        #[cfg(feature = "failpoints")]
        crate::failpoint::reach(&outbox, "pruning").await;
        wait = plan.interval;
        match pruner.step().await {
            Ok(step) => {
                let done = &step.pruned;
                if let Some(watch) = &watch {
                    watch.counts().pruned(done.messages);
                }
                if done.archived > 0 || done.purged > 0 {
                    let (rows, purged) = (done.archived, done.purged);
                    tracing::info!(outbox, rows, purged, "rows of the status table archived");
                }
                if done.messages > 0 || done.merged_chunks > 0 {
                    tracing::info!(
                        outbox,
                        messages = done.messages,
                        chunks = done.chunks,
                        merged = done.merged_chunks,
                        exported = step.exported,
                        files = step.files,
                        "log pruned"
                    );
                }
                for e in &step.failures {
                    tracing::warn!(outbox, code = e.code(), remedy = e.remedy(), "pruning: {e}");
                }
                if done.more {
                    // Small steps with pauses: nobody else should notice.
                    wait = Duration::from_millis(100).min(plan.interval);
                }
            }
            Err(e) => tracing::warn!(outbox, code = e.kind.code(), remedy = e.kind.remedy(), "pruning: {}", e.message),
        }
        tell(&trouble, pruner.failure());
        pulse.rests(wait);
    }
}

fn tell(trouble: &watch::Sender<Option<Trouble>>, failure: Option<&ExportError>) {
    trouble.send_modify(|told| {
        let since_us = told.as_ref().map_or_else(wall_us, |t| t.since_us);
        *told = failure.map(|e| Trouble {
            destination: String::new(),
            shards: vec![],
            since_us,
            code: e.code().to_owned(),
            text: e.to_string(),
        });
    });
}
