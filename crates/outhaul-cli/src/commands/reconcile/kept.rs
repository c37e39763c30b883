//! The last result of a comparison of the schedule, in `outbox_meta`: for the next instance, and for `outhaul status`.

use std::sync::Arc;

use outhaul_relay::ReconcileReport;
use outhaul_store::{Store, StoreResult};
use serde::{Deserialize, Serialize};

use crate::config::{Config, Outbox, Reconcile};
use crate::{codes, timestamp};

/// A result. Times are milliseconds since 1970-01-01 UTC by the clock of whoever ran it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(in crate::commands) struct Kept {
    /// When it ended.
    pub(super) at_ms: i64,
    /// What ran it.
    pub(super) by: String,
    pub(super) took_ms: u64,
    pub(super) checked: u64,
    pub(super) missing: u64,
    pub(super) fixed: u64,
    pub(super) duplicate: u64,
    pub(super) stray: u64,
    pub(super) pending: u64,
    pub(super) parked: u64,
    pub(super) unknown: u64,
    /// The first ids that are missing.
    pub(super) examples: Vec<String>,
    /// Why it came to no end: code and text. The figures are those of the last one that did.
    pub(super) error: Option<(String, String)>,
    /// Failures in a row.
    pub(super) failures: u32,
    /// When one last came to its end, if any did.
    pub(super) whole_at_ms: Option<i64>,
}

/// Its name among what destinations keep. Their names hold no colon.
fn name_of(plan: &Reconcile) -> String {
    format!("reconcile:{}", plan.name)
}

impl Kept {
    /// The last one. None: there is none yet, or it cannot be read and is replaced by the next.
    pub(super) async fn load(store: &Arc<dyn Store>, plan: &Reconcile) -> StoreResult<Option<Self>> {
        Ok(store.memory(&name_of(plan)).await?.and_then(|text| serde_json::from_str(&text).ok()))
    }

    pub(super) async fn keep(&self, store: &Arc<dyn Store>, plan: &Reconcile) -> StoreResult<()> {
        let text = serde_json::to_string(self).unwrap_or_default();
        store.keep_memory(&name_of(plan), &text).await
    }

    /// The event.
    pub(super) fn event(&self, plan: &Reconcile) -> ReconcileReport {
        ReconcileReport {
            destination: plan.name.clone(),
            at_us: self.at_ms.saturating_mul(1_000),
            checked: self.checked,
            missing: self.missing,
            fixed: self.fixed,
            duplicate: self.duplicate,
            stray: self.stray,
            error: self.error.clone(),
        }
    }
}

/// A comparison of the schedule, as `status` shows it.
#[derive(Debug, Serialize)]
pub(in crate::commands) struct Scheduled {
    name: String,
    /// When it last ended. None: it has not run yet.
    at: Option<String>,
    by: Option<String>,
    took_ms: u64,
    /// When one last came to its end: the figures are its.
    whole_at: Option<String>,
    checked: u64,
    missing: u64,
    fixed: u64,
    duplicate: u64,
    stray: u64,
    pending: u64,
    parked: u64,
    unknown: u64,
    examples: Vec<String>,
    error: Option<String>,
}

impl Scheduled {
    /// Something is missing or stray, or the last one came to no end.
    pub(in crate::commands) fn needs_attention(&self) -> bool {
        self.missing > self.fixed || self.stray > 0 || self.error.is_some()
    }

    /// A line for people.
    pub(in crate::commands) fn line(&self, outbox: &str) -> String {
        let head = format!("{outbox} reconcile {}", self.name);
        let Some(at) = &self.at else { return format!("{head}: has not run yet") };
        let mut line = match &self.error {
            Some(error) => format!("{} {head} at {at}: {error}", codes::SCHEDULED_FAILED.code),
            None if self.needs_attention() => format!("{} {head} at {at}:", codes::SCHEDULED_FOUND.code),
            None => format!("{head} at {at}:"),
        };
        if let Some(whole) = &self.whole_at {
            if self.error.is_some() {
                line.push_str(&format!("; the last that came to its end, at {whole}:"));
            }
            line.push_str(&format!(" {} checked, {} missing", self.checked, self.missing));
            for (n, what) in [(self.fixed, "mended"), (self.duplicate, "duplicate"), (self.stray, "stray")] {
                if n > 0 {
                    line.push_str(&format!(", {n} {what}"));
                }
            }
            if self.missing > self.fixed && !self.examples.is_empty() {
                line.push_str(&format!(": {}", self.examples.join(", ")));
            }
        }
        line
    }
}

/// The last results of an outbox's comparisons.
///
/// # Errors
/// The database's.
pub(in crate::commands) async fn all(
    config: &Config,
    outbox: &Outbox,
    store: &Arc<dyn Store>,
) -> StoreResult<Vec<Scheduled>> {
    let mut all = vec![];
    for plan in config.reconciles.iter().filter(|plan| plan.is_of(outbox)) {
        let kept = Kept::load(store, plan).await?;
        let ran = kept.is_some();
        let kept = kept.unwrap_or_default();
        let text = |ms: i64| timestamp::format_us(ms.saturating_mul(1_000));
        all.push(Scheduled {
            name: plan.name.clone(),
            at: ran.then(|| text(kept.at_ms)),
            by: ran.then_some(kept.by),
            took_ms: kept.took_ms,
            whole_at: kept.whole_at_ms.map(text),
            checked: kept.checked,
            missing: kept.missing,
            fixed: kept.fixed,
            duplicate: kept.duplicate,
            stray: kept.stray,
            pending: kept.pending,
            parked: kept.parked,
            unknown: kept.unknown,
            examples: kept.examples,
            error: kept.error.map(|(code, text)| format!("{code} {text}")),
        });
    }
    Ok(all)
}
