//! A destination as several outboxes of one relay use it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_core::receipt::AckLevel;
use outhaul_sink::{Acknowledged, Finding, Outcome, Receipt, Sink, SinkError, SinkInfo, Verified};
use tokio::sync::Mutex;

use crate::codes;

/// Limit of closing.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// One sink for all outboxes: it is started once, whichever asks first, and again after it was down; it is closed when
/// the last of them has ended. Where a level is demanded, it does not start while it proves less.
pub struct SharedSink {
    sink: Arc<dyn Sink>,
    least: Option<AckLevel>,
    /// What it said at its start; None: not started, or down since.
    started: Mutex<Option<SinkInfo>>,
}

impl SharedSink {
    /// The sink, with the least that it must prove.
    pub fn new(sink: Arc<dyn Sink>, least: Option<AckLevel>) -> Self {
        Self { sink, least, started: Mutex::new(None) }
    }

    /// Closes the sink itself: what [`Sink::close`] leaves to the end of all outboxes.
    pub async fn finish(&self) {
        if tokio::time::timeout(CLOSE_LIMIT, self.sink.close()).await.is_err() {
            tracing::warn!("closing a destination took longer than {CLOSE_LIMIT:?}");
        }
    }
}

#[async_trait]
impl Sink for SharedSink {
    fn slotting(&self) -> Slotting {
        self.sink.slotting()
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        let mut started = self.started.lock().await;
        if let Some(info) = started.as_ref() {
            return Ok(info.clone());
        }
        let info = self.sink.start().await?;
        if let Some(least) = self.least.filter(|least| info.level < *least && !info.proves_later) {
            let message = format!("require_ack is {}, but it proves only {}", least.as_str(), info.level.as_str());
            return Err(SinkError { code: codes::ACK_TOO_WEAK.code, message, passes: false });
        }
        *started = Some(info.clone());
        Ok(info)
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let outcomes = self.sink.send(slot, messages).await;
        if outcomes.iter().any(|o| matches!(o, Outcome::DestinationDown(_))) {
            *self.started.lock().await = None;
        }
        outcomes
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        self.sink.verify(acknowledged).await
    }

    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        self.sink.prove(receipts).await
    }

    async fn examine(&self, topics: &[String]) -> Vec<Finding> {
        self.sink.examine(topics).await
    }

    /// Nothing: another outbox may still deliver.
    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use outhaul_sink::Reason;

    use super::*;

    #[derive(Default)]
    struct Counting {
        starts: AtomicU32,
        closes: AtomicU32,
        down: AtomicBool,
    }

    #[async_trait]
    impl Sink for Counting {
        fn slotting(&self) -> Slotting {
            Slotting::Single
        }
        async fn start(&self) -> Result<SinkInfo, SinkError> {
            self.starts.fetch_add(1, Ordering::SeqCst);
            Ok(SinkInfo { level: AckLevel::Flushed, warnings: vec![], ..SinkInfo::default() })
        }
        async fn send(&self, _slot: u32, _messages: &[Arc<Message>]) -> Vec<Outcome> {
            if self.down.load(Ordering::SeqCst) {
                return vec![Outcome::DestinationDown(Reason::new("OUT-2006", "full"))];
            }
            vec![]
        }
        async fn close(&self) {
            self.closes.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn it_is_started_once_for_all_and_again_after_it_was_down() {
        let inner = Arc::new(Counting::default());
        let shared = SharedSink::new(inner.clone(), Some(AckLevel::Flushed));
        let starts = || inner.starts.load(Ordering::SeqCst);
        shared.start().await.unwrap();
        shared.start().await.unwrap();
        shared.send(0, &[]).await;
        shared.start().await.unwrap();
        assert_eq!(starts(), 1);
        inner.down.store(true, Ordering::SeqCst);
        shared.send(0, &[]).await;
        shared.start().await.unwrap();
        assert_eq!(starts(), 2);
        shared.close().await;
        assert_eq!(inner.closes.load(Ordering::SeqCst), 0, "another outbox may still deliver");
        shared.finish().await;
        assert_eq!(inner.closes.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn one_that_proves_too_little_does_not_start() {
        let shared = SharedSink::new(Arc::new(Counting::default()), Some(AckLevel::Replicated));
        for _ in 0..2 {
            assert_eq!(shared.start().await.unwrap_err().code, "OUT-3018");
        }
    }
}
