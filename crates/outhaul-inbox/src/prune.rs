//! What was done long ago goes: in small steps, by one member of the group.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rocketmq_remoting::connection::Backoff;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::shared::Shared;

/// A step is followed by a pause of so many times as long as it took, so that handlers have the database.
const PAUSE_PER_STEP: u32 = 4;
/// The same after all of the table.
const PAUSE_PER_WALK: u32 = 3;
/// Bounds of the pause after a step, and after all of the table.
const STEP_PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(10));
const WALK_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));
/// A hundredth of the retention passes at least between two walks.
const WALKS_PER_RETENTION: u32 = 100;
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Prunes for ever, while `leads` is true: one member of a group does it for all. Two that both believe to lead do no harm.
pub(crate) async fn prune(shared: Arc<Shared>, retention: Duration, mut leads: watch::Receiver<bool>) {
    let between = (retention / WALKS_PER_RETENTION).clamp(WALK_PAUSE.0, WALK_PAUSE.1);
    while leads.wait_for(|leads| *leads).await.is_ok() {
        let begun = Instant::now();
        walk(&shared, retention, &leads).await;
        sleep(between.max(begun.elapsed() * PAUSE_PER_WALK)).await;
    }
}

/// Once through the table.
async fn walk(shared: &Shared, retention: Duration, leads: &watch::Receiver<bool>) {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let mut told = String::new();
    let mut from: Option<String> = None;
    while *leads.borrow() {
        let begun = Instant::now();
        match shared.inbox.prune(&shared.options.consumer, retention, from.as_deref()).await {
            Ok(step) => {
                backoff.reset();
                shared.tally.pruned.fetch_add(step.deleted, Relaxed);
                match step.next {
                    Some(next) => from = Some(next),
                    None => return,
                }
                sleep((begun.elapsed() * PAUSE_PER_STEP).clamp(STEP_PAUSE.0, STEP_PAUSE.1)).await;
            }
            Err(e) => {
                let text = format!("{} {e}", e.kind.code());
                if text != told {
                    tracing::warn!(code = "OUT-5059", "done rows are not pruned, will be tried again: {text}");
                    told = text;
                }
                sleep(backoff.pause()).await;
            }
        }
    }
}
