//! `outhaul prune`: what is settled and older than the retention goes, small chunks are merged.

use outhaul_relay::{ExportError, PruneStep, Pruner};
use outhaul_store::PruneRequest;
use serde_json::json;

use super::{chosen, host, of_outbox, open, validate};
use crate::arguments::Prune;
use crate::failure::{Blame, Exit, Failure, Failures, Outcome};
use crate::{config, measure, output};

/// Chunks that one step touches at most: a transaction that no writer notices.
const STEP_CHUNKS: u32 = 1_000;
/// Steps after which it stops all the same: what is left is for the next run.
const MOST_STEPS: u32 = 1_000_000;

/// Prunes every outbox, or the one that was named.
///
/// # Errors
/// The database's, the export's, or the configuration's. Earlier steps stay done.
pub async fn run(a: &Prune, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    // One name for all runs on this host: a lease that an earlier run left behind does not keep this one waiting, and
    // two at the same time take turns, since each step locks the lease's row.
    let owner = format!("prune@{}", config.relay.instance.clone().unwrap_or_else(host));
    let (mut exit, mut failures) = (Exit::Fine, vec![]);
    for outbox in chosen(&config, a.which.outbox.as_deref())? {
        let store = open(outbox).await?;
        let retention_ms = a.retention.unwrap_or(config.relay.retention_ms);
        let request = PruneRequest {
            owner: owner.clone(),
            retention_ms,
            merge_after_ms: Some(config.relay.merge_after_ms),
            step: STEP_CHUNKS,
            exported: None,
        };
        let export = a.export.clone().or_else(|| config.relay.export.clone());
        let exports = export.is_some();
        let mut pruner = Pruner::new(&outbox.name, store.clone(), request, export);
        let mut total = PruneStep::default();
        for _ in 0..if a.once { 1 } else { MOST_STEPS } {
            let step = pruner.step().await.map_err(|e| of_outbox(e.into(), outbox))?;
            let ends = !step.pruned.ran || !step.pruned.more;
            add(&mut total, step);
            if ends {
                break;
            }
        }
        for held_back in validate::left_behind(&store, &config).await.unwrap_or_default() {
            eprintln!("{}: {held_back}", outbox.name);
        }
        store.close().await;
        if !total.pruned.ran {
            exit = Exit::Attention;
        }
        show(&outbox.name, &total, retention_ms, exports, json)?;
        failures.extend(total.failures.into_iter().map(|e| of_outbox(failure(&e), outbox)));
    }
    if failures.is_empty() { Ok(exit) } else { Err(Failures(failures)) }
}

pub(super) fn failure(e: &ExportError) -> Failure {
    Failure { code: e.code().into(), message: e.to_string(), remedy: e.remedy().into(), blame: Blame::Failure }
}

fn add(total: &mut PruneStep, step: PruneStep) {
    let (t, s) = (&mut total.pruned, &step.pruned);
    t.chunks += s.chunks;
    t.messages += s.messages;
    t.receipts += s.receipts;
    t.merged_chunks += s.merged_chunks;
    t.merged_receipts += s.merged_receipts;
    t.archived += s.archived;
    t.purged += s.purged;
    t.ran |= s.ran;
    t.more = s.more;
    total.exported += step.exported;
    total.files += step.files;
    total.failures.extend(step.failures);
}

/// `exports`: what goes is exported before.
fn show(outbox: &str, step: &PruneStep, retention_ms: u64, exports: bool, json: bool) -> Result<(), Failure> {
    let p = &step.pruned;
    if json {
        return output::json(&json!({
            "outbox": outbox, "ran": p.ran, "more": p.more, "retention_ms": retention_ms, "messages": p.messages,
            "chunks": p.chunks, "receipts": p.receipts, "merged_chunks": p.merged_chunks, "merged_receipts": p.merged_receipts,
            "exported": step.exported, "files": step.files, "archived": p.archived, "purged": p.purged,
        }));
    }
    if !p.ran {
        return output::line(format_args!(
            "{outbox}: another process, such as a running relay, prunes this database already; nothing was done"
        ));
    }
    let exported = if exports { format!("{} exported, {} files; ", step.exported, step.files) } else { String::new() };
    let archived = match (p.archived, p.purged) {
        (0, 0) => String::new(),
        (archived, purged) => format!("; {archived} rows archived, {purged} deleted from the archive"),
    };
    let more = if p.more { "; there is more to do" } else { "" };
    output::line(format_args!(
        "{outbox}: {exported}{} messages older than {} deleted ({} chunks, {} receipt rows); merged {} chunks, {} receipt rows{archived}{more}",
        p.messages,
        measure::span_text(retention_ms),
        p.chunks,
        p.receipts,
        p.merged_chunks,
        p.merged_receipts
    ))
}
