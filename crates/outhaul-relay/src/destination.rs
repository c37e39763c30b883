//! A destination while the relay runs: started before the first send, and again after it was down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use outhaul_core::config::LaneLimits;
use outhaul_core::lane::SendBatch;
use outhaul_sink::{Outcome, Reason, Sink};
use tokio::sync::Mutex;

/// A destination as the relay is given it.
#[derive(Clone)]
pub struct Destination {
    /// Name.
    pub name: String,
    /// Where it delivers.
    pub sink: Arc<dyn Sink>,
    /// Limits of its lanes.
    pub limits: LaneLimits,
}

/// What a destination has taken since the relay started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Name of the destination.
    pub destination: String,
    /// Messages that it acknowledged.
    pub delivered: u64,
    /// Messages of answered sends that it did not acknowledge, by whatever outcome.
    pub failed: u64,
}

/// A destination while the relay runs.
pub(crate) struct Runner {
    name: String,
    sink: Arc<dyn Sink>,
    started: AtomicBool,
    starting: Mutex<()>,
    delivered: AtomicU64,
    failed: AtomicU64,
}

impl Runner {
    pub(crate) fn new(destination: &Destination) -> Self {
        Self {
            name: destination.name.clone(),
            sink: destination.sink.clone(),
            started: AtomicBool::new(false),
            starting: Mutex::new(()),
            delivered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Sends a batch within its limit. One outcome a message, always.
    pub(crate) async fn send(&self, batch: &SendBatch) -> Vec<Outcome> {
        let limit = Duration::from_millis(batch.limit_ms);
        let all = |outcome: Outcome| vec![outcome; batch.messages.len()];
        let outcomes = tokio::time::timeout(limit, async {
            if let Err(down) = self.start().await {
                return all(Outcome::DestinationDown(down));
            }
            self.sink.send(batch.slot, &batch.messages).await
        })
        .await
        .unwrap_or_else(|_| {
            all(Outcome::Unknown(Reason::new("OUT-4003", format!("no answer within {} ms", batch.limit_ms))))
        });
        if outcomes.iter().any(|o| matches!(o, Outcome::DestinationDown(_))) {
            self.started.store(false, Ordering::Release);
        }
        let delivered = outcomes.iter().filter(|o| matches!(o, Outcome::Delivered(_))).count() as u64;
        self.delivered.fetch_add(delivered, Ordering::Relaxed);
        self.failed.fetch_add(batch.messages.len() as u64 - delivered, Ordering::Relaxed);
        outcomes
    }

    async fn start(&self) -> Result<(), Reason> {
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one_at_a_time = self.starting.lock().await;
        if self.started.load(Ordering::Acquire) {
            return Ok(());
        }
        match self.sink.start().await {
            Ok(info) => {
                tracing::info!(destination = self.name, ack_level = info.level.as_str(), "destination is ready");
                for warning in info.warnings {
                    tracing::warn!(destination = self.name, "{warning}");
                }
                self.started.store(true, Ordering::Release);
                Ok(())
            }
            Err(e) => Err(Reason::new(e.code, e.message)),
        }
    }

    pub(crate) fn delivered(&self) -> Delivered {
        Delivered {
            destination: self.name.clone(),
            delivered: self.delivered.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    pub(crate) async fn close(&self) {
        const CLOSE_LIMIT: Duration = Duration::from_secs(5);
        if tokio::time::timeout(CLOSE_LIMIT, self.sink.close()).await.is_err() {
            tracing::warn!(destination = self.name, "closing took longer than {CLOSE_LIMIT:?}");
        }
    }
}
