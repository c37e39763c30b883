//! What only the database knows: looked up at a bounded rate, never because somebody asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::message::{Position, ShardId};
use outhaul_store::{ShardStatus, Store, StoreError};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Pulse, Watch};
use crate::stop::Asked;

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(10);
/// A look that took long is followed by a rest of so many times its length.
const REST: u32 = 50;
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(300);

/// What a look has shown.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Instant,
    pub(crate) shards: Vec<ShardStatus>,
    /// Where each shard's log begins, as far as it was looked up.
    pub(crate) log_starts: BTreeMap<ShardId, Position>,
}

/// Looks until it is told to stop.
pub(crate) async fn sampling(
    outbox: String,
    store: Arc<dyn Store>,
    shown: Watch,
    mut stop: watch::Receiver<Asked>,
    pulse: Arc<Pulse>,
) {
    let mut wait = pulse.first(Duration::from_millis(200));
    let (mut log_starts, mut turn, mut failures) = (BTreeMap::new(), 0usize, 0u32);
    loop {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = stop.wait_for(|a| *a != Asked::Nothing) => return,
        }
        pulse.works();
        #[cfg(feature = "failpoints")]
        crate::failpoint::reach(&outbox, "sampling").await;
        let began = Instant::now();
        match look(&store, &mut log_starts, &mut turn).await {
            Ok(shards) => {
                failures = 0;
                shown.keep_sample(Sample { at: began, shards, log_starts: log_starts.clone() });
            }
            Err(e) => {
                failures += 1;
                shown.counts().failed("sampling", e.kind.code());
                if failures.is_power_of_two() {
                    tracing::debug!(outbox, code = e.kind.code(), failures, "sampling: {}", e.message);
                }
            }
        }
        wait = (began.elapsed() * REST).clamp(EVERY, LONGEST);
        pulse.rests(wait);
    }
}

/// All shards, and where the log of one of them begins: each has its turn.
async fn look(
    store: &Arc<dyn Store>,
    starts: &mut BTreeMap<ShardId, Position>,
    turn: &mut usize,
) -> Result<Vec<ShardStatus>, StoreError> {
    let shards = store.status().await?;
    if !shards.is_empty() {
        *turn = (*turn + 1) % shards.len();
        if let Some(s) = shards.get(*turn) {
            let first = store.read_log(s.shard, Position(0), 1).await?.first().map(|chunk| chunk.base);
            starts.insert(s.shard, first.unwrap_or(s.log_end));
        }
    }
    Ok(shards)
}
