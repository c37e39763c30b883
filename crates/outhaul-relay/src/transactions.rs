//! Transactional messages that the broker did not deliver go out by the outbox.

use std::sync::Arc;
use std::time::Duration;

use outhaul_store::{FallBack, FellBack, Store, StoreResult};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::stop::Asked;
use crate::watch::Pulse;

/// What the relay does about transactions. Every instance may do it, since a row goes into the outbox in one transaction
/// that compares its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transactions {
    /// What committed goes into the outbox if it has not been ended this long after a relay first saw it. Default two
    /// minutes.
    pub fallback_after: Duration,
    /// Rows stay this long after their transaction has ended, been sent or rolled back. Longer than any broker may ask.
    /// Default 7 days.
    pub retention: Duration,
    /// Time between two looks. Default 10 s, at most a quarter of `fallback_after`.
    pub interval: Duration,
    /// Rows of one step. Default 500.
    pub step: u32,
}

impl Default for Transactions {
    fn default() -> Self {
        Self {
            fallback_after: Duration::from_secs(120),
            retention: Duration::from_secs(7 * 24 * 3600),
            interval: Duration::from_secs(10),
            step: 500,
        }
    }
}

/// Between two looks for old rows.
const PRUNE_EVERY: Duration = Duration::from_secs(60);
/// Between two steps of one look: nobody else should notice.
const REST: Duration = Duration::from_millis(100);
/// The shortest time between two looks.
const INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Looks until it is told to stop.
pub(crate) async fn run(
    outbox: String,
    store: Arc<dyn Store>,
    plan: Transactions,
    mut stop: watch::Receiver<Asked>,
    pulse: Arc<Pulse>,
) {
    let interval = plan.interval.min(plan.fallback_after / 4).max(INTERVAL_MIN);
    let wanted = FallBack { after_ms: millis(plan.fallback_after), limit: plan.step.max(1) };
    let (mut wait, mut prune_at) = (pulse.first(interval), Instant::now());
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stop.wait_for(|a| *a != Asked::Nothing) => return,
        }
        pulse.works();
        #[cfg(feature = "failpoints")]
        crate::failpoint::reach(&outbox, "transactions").await;
        wait = interval;
        match store.fall_back(&wanted).await {
            Ok(fell) => {
                tell(&outbox, &fell);
                if fell.more {
                    wait = REST.min(interval);
                }
            }
            Err(e) => failed(&outbox, Err(e)),
        }
        if Instant::now() >= prune_at {
            prune_at = Instant::now() + PRUNE_EVERY;
            let gone = store.prune_transactions(millis(plan.retention), plan.step).await;
            if gone.as_ref().is_ok_and(|gone| *gone >= u64::from(plan.step)) {
                prune_at = Instant::now(); // there is more
            }
            failed(&outbox, gone.map(drop));
        }
        pulse.rests(wait);
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

fn tell(outbox: &str, fell: &FellBack) {
    if let Some(first) = fell.sent.first() {
        let (code, count) = ("OUT-4040", fell.sent.len());
        tracing::warn!(outbox, code, count, id = %first, "transactional messages that the broker has not confirmed go out by the outbox");
    }
    if let Some((transaction, why)) = fell.refused.first() {
        let (code, count) = ("OUT-4041", fell.refused.len());
        tracing::warn!(outbox, code, count, %transaction, "the outbox refuses transactional messages: {why}");
    }
}

fn failed(outbox: &str, result: StoreResult<()>) {
    if let Err(e) = result {
        tracing::warn!(outbox, code = e.kind.code(), remedy = e.kind.remedy(), "transactions: {}", e.message);
    }
}
