//! `outhaul prune`: what is settled and older than the retention goes, small chunks are merged.

use outhaul_store::{PruneRequest, Pruned};
use serde_json::json;

use super::{chosen, host, of_outbox, open};
use crate::arguments::Prune;
use crate::failure::{Exit, Outcome};
use crate::{config, measure, output};

/// Chunks that one step touches at most: a transaction that no writer notices.
const STEP_CHUNKS: u32 = 1_000;
/// Steps after which it stops all the same: what is left is for the next run.
const MOST_STEPS: u32 = 1_000_000;

/// Prunes every outbox, or the one that was named.
///
/// # Errors
/// The database's, or the configuration's. Earlier steps stay done.
pub async fn run(a: &Prune, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    // One name for all runs on this host: a lease that an earlier run left behind does not keep this one waiting, and
    // two at the same time take turns, since each step locks the lease's row.
    let owner = format!("prune@{}", config.relay.instance.clone().unwrap_or_else(host));
    let mut exit = Exit::Fine;
    for outbox in chosen(&config, a.which.outbox.as_deref())? {
        let store = open(outbox).await?;
        let request = PruneRequest {
            owner: owner.clone(),
            retention_ms: a.retention.unwrap_or(config.relay.retention_ms),
            merge_after_ms: Some(config.relay.merge_after_ms),
            step: STEP_CHUNKS,
        };
        let mut total = Pruned::default();
        for _ in 0..if a.once { 1 } else { MOST_STEPS } {
            let step = store.prune(&request).await.map_err(|e| of_outbox(e.into(), outbox))?;
            add(&mut total, &step);
            if !step.ran || !step.more {
                break;
            }
        }
        store.close().await;
        if !total.ran {
            exit = Exit::Attention;
        }
        show(&outbox.name, &total, request.retention_ms, json)?;
    }
    Ok(exit)
}

fn add(total: &mut Pruned, step: &Pruned) {
    total.chunks += step.chunks;
    total.messages += step.messages;
    total.receipts += step.receipts;
    total.merged_chunks += step.merged_chunks;
    total.merged_receipts += step.merged_receipts;
    total.ran |= step.ran;
    total.more = step.more;
}

fn show(outbox: &str, p: &Pruned, retention_ms: u64, json: bool) -> Result<(), crate::failure::Failure> {
    if json {
        return output::json(&json!({
            "outbox": outbox, "ran": p.ran, "more": p.more, "retention_ms": retention_ms, "messages": p.messages,
            "chunks": p.chunks, "receipts": p.receipts, "merged_chunks": p.merged_chunks, "merged_receipts": p.merged_receipts,
        }));
    }
    if !p.ran {
        return output::line(format_args!(
            "{outbox}: another process, such as a running relay, prunes this database already; nothing was done"
        ));
    }
    let more = if p.more { "; there is more to do" } else { "" };
    output::line(format_args!(
        "{outbox}: {} messages older than {} deleted ({} chunks, {} receipt rows); merged {} chunks, {} receipt rows{more}",
        p.messages,
        measure::span_text(retention_ms),
        p.chunks,
        p.receipts,
        p.merged_chunks,
        p.merged_receipts
    ))
}
