//! The store's own work beside the sending: marking the rows of a status table.

use std::sync::Arc;
use std::time::Duration;

use outhaul_store::Store;
use tokio::sync::watch;

use crate::stop::Asked;
use crate::watch::Pulse;

/// Between two steps while there is something to do.
const BUSY: Duration = Duration::from_millis(20);
/// Between two looks.
const QUIET: Duration = Duration::from_millis(100);
/// Waits after a failure, first and longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Goes on until it is told to stop now: while the relay drains there is still something to mark, and the rest is done
/// when the store is closed.
pub(crate) async fn run(outbox: String, store: Arc<dyn Store>, mut stop: watch::Receiver<Asked>, pulse: Arc<Pulse>) {
    let (mut wait, mut backoff, mut failures) = (pulse.first(QUIET), BACKOFF.0, 0u32);
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stop.wait_for(|a| *a == Asked::Now) => return,
        }
        pulse.works();
        #[cfg(feature = "failpoints")]
        crate::failpoint::reach(&outbox, "marking").await;
        match store.tend().await {
            Ok(more) => {
                (backoff, failures) = (BACKOFF.0, 0);
                wait = if more { BUSY } else { QUIET };
            }
            Err(e) => {
                failures += 1;
                if failures.is_power_of_two() {
                    let (code, remedy) = (e.kind.code(), e.kind.remedy());
                    tracing::warn!(outbox, code, failures, remedy, "marking what was sent: {}", e.message);
                }
                wait = backoff;
                backoff = (backoff * 2).min(BACKOFF.1);
            }
        }
        pulse.rests(wait);
    }
}
