//! A destination as several outboxes of one relay use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_core::receipt::AckLevel;
use outhaul_sink::{Acknowledged, Finding, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo, Verified};
use tokio::sync::Mutex;

use crate::codes;

/// Limit of closing.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// One sink for all outboxes, each with a handle of its own: it is started once, whichever asks first, and again after it
/// was down; it is closed when the last of them has ended. Where a level is demanded, it does not start while it proves
/// less.
///
/// A start for one outbox may renew connections under the others. What they send then is answered as down, unsent: so
/// each of them starts too, and finds out first what the destination still has. A question that fails counts as down.
pub struct SharedSink {
    shared: Arc<Shared>,
    /// The start that this handle knows.
    known: AtomicU64,
}

struct Shared {
    sink: Arc<dyn Sink>,
    least: Option<AckLevel>,
    /// The newest start that has begun, and the newest that has, or may have, changed something.
    begun: AtomicU64,
    changed: AtomicU64,
    /// The newest start that has succeeded.
    succeeded: AtomicU64,
    /// The newest start since which something failed: it has to be started anew.
    failed: AtomicU64,
    /// What the sink said at the newest start; None: it did not succeed.
    started: Mutex<Option<SinkInfo>>,
}

impl SharedSink {
    /// The sink, with the least that it must prove.
    pub fn new(sink: Arc<dyn Sink>, least: Option<AckLevel>) -> Self {
        let shared = Shared {
            sink,
            least,
            begun: AtomicU64::new(0),
            changed: AtomicU64::new(0),
            succeeded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            started: Mutex::new(None),
        };
        Self { shared: Arc::new(shared), known: AtomicU64::new(0) }
    }

    /// The same sink for another outbox.
    pub fn handle(&self) -> Self {
        Self { shared: self.shared.clone(), known: AtomicU64::new(0) }
    }

    /// Closes the sink itself: what [`Sink::close`] leaves to the end of all outboxes.
    pub async fn finish(&self) {
        if tokio::time::timeout(CLOSE_LIMIT, self.shared.sink.close()).await.is_err() {
            tracing::warn!("closing a destination took longer than {CLOSE_LIMIT:?}");
        }
    }

    /// The start that this handle knows, if no other has begun since.
    fn current(&self) -> Option<u64> {
        let known = self.known.load(Ordering::SeqCst);
        (known == self.shared.begun.load(Ordering::SeqCst)).then_some(known)
    }

    /// Counts as failed after this start, unless it says that it went well; also if it is cut off.
    fn asking(&self, start: u64) -> Asking<'_> {
        Asking { shared: &self.shared, start, went_well: false }
    }

    fn outdated() -> SinkError {
        let message = "it was started anew for another outbox".to_owned();
        SinkError { code: codes::NOT_VERIFIED.code, message, passes: true }
    }
}

struct Asking<'a> {
    shared: &'a Shared,
    start: u64,
    went_well: bool,
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.went_well {
            self.shared.failed.fetch_max(self.start, Ordering::SeqCst);
        }
    }
}

#[async_trait]
impl Sink for SharedSink {
    fn slotting(&self) -> Slotting {
        self.shared.sink.slotting()
    }

    fn recall(&self, memory: &str) {
        self.shared.sink.recall(memory);
    }

    fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        self.shared.sink.memory(kept)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        let mut started = self.shared.started.lock().await;
        let begun = self.shared.begun.load(Ordering::SeqCst);
        if let Some(info) = started.as_ref().filter(|_| self.shared.failed.load(Ordering::SeqCst) < begun) {
            let known = self.known.swap(begun, Ordering::SeqCst);
            let unchanged = known > 0 && known >= self.shared.changed.load(Ordering::SeqCst);
            return Ok(SinkInfo { unchanged, ..info.clone() });
        }
        *started = None;
        let start = self.shared.begun.fetch_add(1, Ordering::SeqCst) + 1;
        // Until it has said otherwise, and for good if it fails or is cut off.
        let before = self.shared.changed.swap(start, Ordering::SeqCst);
        let mut info = self.shared.sink.start().await?;
        let weak = |least: &AckLevel| info.level < *least && !info.proves_later;
        if let Some(least) = self.shared.least.filter(weak) {
            let message = format!("require_ack is {}, but it proves only {}", least.as_str(), info.level.as_str());
            return Err(SinkError { code: codes::ACK_TOO_WEAK.code, message, passes: false });
        }
        if self.shared.succeeded.swap(start, Ordering::SeqCst) == start - 1 && info.unchanged {
            self.shared.changed.store(before, Ordering::SeqCst);
        }
        *started = Some(info.clone());
        let known = self.known.swap(start, Ordering::SeqCst);
        info.unchanged = known > 0 && known >= self.shared.changed.load(Ordering::SeqCst);
        Ok(info)
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let Some(start) = self.current() else {
            let SinkError { code, message, .. } = Self::outdated();
            return vec![Outcome::DestinationDown(Reason::new(code, message)); messages.len()];
        };
        let outcomes = self.shared.sink.send(slot, messages).await;
        let wants_start = |o: &Outcome| matches!(o, Outcome::DestinationDown(_) | Outcome::Held { after_ms: None, .. });
        if outcomes.iter().any(wants_start) {
            self.shared.failed.fetch_max(start, Ordering::SeqCst);
        }
        outcomes
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        let mut asking = self.asking(self.current().ok_or_else(Self::outdated)?);
        let verified = self.shared.sink.verify(acknowledged).await;
        asking.went_well = verified.is_ok();
        verified
    }

    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        let mut asking = self.asking(self.current().ok_or_else(Self::outdated)?);
        let proven = self.shared.sink.prove(receipts).await;
        asking.went_well = proven.is_ok();
        proven
    }

    async fn examine(&self, topics: &[String]) -> Vec<Finding> {
        self.shared.sink.examine(topics).await
    }

    /// Nothing: another outbox may still deliver.
    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use outhaul_core::message::{Position, Row, Seq, ShardId};

    use super::*;

    #[derive(Default)]
    struct Counting {
        starts: AtomicU32,
        closes: AtomicU32,
        down: AtomicBool,
        asked_in_vain: AtomicBool,
        same: AtomicBool,
    }

    #[async_trait]
    impl Sink for Counting {
        fn slotting(&self) -> Slotting {
            Slotting::Single
        }
        async fn start(&self) -> Result<SinkInfo, SinkError> {
            self.starts.fetch_add(1, Ordering::SeqCst);
            let unchanged = self.same.load(Ordering::SeqCst);
            Ok(SinkInfo { level: AckLevel::Flushed, unchanged, ..SinkInfo::default() })
        }
        async fn send(&self, _slot: u32, _messages: &[Arc<Message>]) -> Vec<Outcome> {
            if self.down.load(Ordering::SeqCst) {
                return vec![Outcome::DestinationDown(Reason::new("OUT-2006", "full"))];
            }
            vec![]
        }
        async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
            Ok(Verified { forgotten: acknowledged.iter().map(|a| a.position).collect(), older: false })
        }
        async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
            if self.asked_in_vain.load(Ordering::SeqCst) {
                let message = "another connection".to_owned();
                return Err(SinkError { code: codes::NOT_VERIFIED.code, message, passes: true });
            }
            if self.down.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(vec![false; receipts.len()])
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
    async fn what_a_start_for_another_outbox_may_have_renewed_is_not_sent_to_before_the_own_start() {
        let inner = Arc::new(Counting::default());
        let one = SharedSink::new(inner.clone(), None);
        let other = one.handle();
        let row = Row {
            seq: Seq(1),
            shard: ShardId(0),
            id: "m1".into(),
            topic: "t".into(),
            key: None,
            headers: None,
            payload: Default::default(),
            created_at_us: 0,
            defect: None,
        };
        let message = Arc::new(Message::from_row(row, Position(0), Default::default()));
        let is_down = |outcomes: Vec<Outcome>| matches!(outcomes.as_slice(), [Outcome::DestinationDown(_)]);
        one.start().await.unwrap();
        other.start().await.unwrap();
        inner.down.store(true, Ordering::SeqCst);
        assert!(is_down(one.send(0, std::slice::from_ref(&message)).await));
        inner.down.store(false, Ordering::SeqCst);
        one.start().await.unwrap();
        assert!(is_down(other.send(0, std::slice::from_ref(&message)).await), "it does not know of the start");
        assert!(other.verify(&[]).await.is_err_and(|e| e.passes) && other.prove(&[]).await.is_err());
        other.start().await.unwrap();
        assert_eq!(inner.starts.load(Ordering::SeqCst), 2, "one start for both");
        assert!(other.send(0, &[message]).await.is_empty() && one.send(0, &[]).await.is_empty());
    }

    #[tokio::test]
    async fn comparing_and_proving_are_the_sinks_own() {
        let shared = SharedSink::new(Arc::new(Counting::default()), None);
        shared.start().await.unwrap();
        let (id, receipt) = ("m1".to_owned(), Receipt::default());
        let shown =
            Acknowledged { comparison: 1, shard: ShardId(0), position: Position(7), id, receipt: receipt.clone() };
        assert_eq!(shared.verify(&[shown]).await.unwrap().forgotten, [Position(7)]);
        assert_eq!(shared.prove(&[receipt]).await.unwrap(), [false]);
    }

    #[tokio::test]
    async fn a_question_that_fails_or_is_cut_off_starts_it_anew_for_all() {
        let inner = Arc::new(Counting::default());
        let one = SharedSink::new(inner.clone(), None);
        let other = one.handle();
        let starts = || inner.starts.load(Ordering::SeqCst);
        one.start().await.unwrap();
        other.start().await.unwrap();
        inner.asked_in_vain.store(true, Ordering::SeqCst);
        assert!(one.prove(&[]).await.is_err());
        inner.asked_in_vain.store(false, Ordering::SeqCst);
        assert!(!one.start().await.unwrap().unchanged && starts() == 2);
        assert!(other.prove(&[]).await.is_err(), "it does not know of the start");
        assert!(!other.start().await.unwrap().unchanged && starts() == 2, "one start for both");

        inner.down.store(true, Ordering::SeqCst);
        assert!(tokio::time::timeout(Duration::from_millis(1), other.prove(&[])).await.is_err());
        inner.down.store(false, Ordering::SeqCst);
        inner.same.store(true, Ordering::SeqCst);
        assert!(other.start().await.unwrap().unchanged && starts() == 3, "nothing has changed, says the sink");
        assert!(one.start().await.unwrap().unchanged && starts() == 3, "nor for who knew the start before");
        assert!(!one.handle().start().await.unwrap().unchanged, "who is new compares");
    }

    #[tokio::test]
    async fn one_that_proves_too_little_does_not_start() {
        let shared = SharedSink::new(Arc::new(Counting::default()), Some(AckLevel::Replicated));
        for _ in 0..2 {
            assert_eq!(shared.start().await.unwrap_err().code, "OUT-3018");
        }
    }
}
