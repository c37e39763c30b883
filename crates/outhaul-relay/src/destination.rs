//! A destination while the relay runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outhaul_core::config::LaneLimits;
use outhaul_core::instance::Ready;
use outhaul_core::lane::SendBatch;
use outhaul_sink::{AckLevel, Outcome, Reason, Receipt, Sink, SinkInfo};
use outhaul_store::{Store, StoreError};
use tokio::time::Instant;

use crate::clock::wall_us;
use crate::repeats::Repeats;
use crate::watch::{DestinationCounts, Watch};

/// A destination as the relay is given it.
#[derive(Clone)]
pub struct Destination {
    /// Name.
    pub name: String,
    /// Where it delivers.
    pub sink: Arc<dyn Sink>,
    /// Limits of its lanes.
    pub limits: LaneLimits,
    /// The level that its acknowledgements must reach in the end. Needed where they reach it later
    /// ([`outhaul_sink::SinkInfo::proves_later`]); then None stands for `flushed`.
    pub require_ack: Option<AckLevel>,
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
    /// Messages that it acknowledged and forgot, and that were sent again.
    pub forgotten: u64,
}

/// A destination while the relay runs.
pub(crate) struct Runner {
    name: String,
    sink: Arc<dyn Sink>,
    require_ack: Option<AckLevel>,
    /// The newest start that has begun: what was to be sent after an earlier one is not sent any more.
    begun: AtomicU64,
    said: Mutex<Option<SinkInfo>>,
    send_limit_ms: u64,
    delivered: AtomicU64,
    failed: AtomicU64,
    forgotten: AtomicU64,
    /// Messages that were not delivered, by code.
    failures: Mutex<Repeats<&'static str>>,
    store: Arc<dyn Store>,
    watch: Option<(Watch, usize)>,
    memory: tokio::sync::Mutex<Memory>,
}

/// What the sink wants the next process to know, as far as the database has it.
#[derive(Debug, Default)]
struct Memory {
    recalled: bool,
    kept: Option<u64>,
}

impl Runner {
    /// `watch`: where it counts, and its index among the outbox's destinations.
    pub(crate) fn new(destination: &Destination, store: Arc<dyn Store>, watch: Option<(Watch, usize)>) -> Self {
        Self {
            name: destination.name.clone(),
            sink: destination.sink.clone(),
            require_ack: destination.require_ack,
            begun: AtomicU64::new(0),
            said: Mutex::new(None),
            send_limit_ms: destination.limits.send_limit_ms,
            delivered: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
            failures: Mutex::default(),
            store,
            watch,
            memory: tokio::sync::Mutex::default(),
        }
    }

    fn counts(&self) -> Option<&DestinationCounts> {
        self.watch.as_ref().and_then(|(watch, at)| watch.counts().destination(*at))
    }

    pub(crate) fn sink(&self) -> Arc<dyn Sink> {
        self.sink.clone()
    }

    /// Sends a batch within its limit. One outcome a message, always; None: another start has begun, nothing is sent.
    pub(crate) async fn send(&self, batch: &SendBatch) -> Option<Vec<Outcome>> {
        let limit = Duration::from_millis(batch.limit_ms);
        if self.begun.load(Ordering::SeqCst) != batch.start {
            return None;
        }
        let began = Instant::now();
        let sent = tokio::time::timeout(limit, self.sink.send(batch.slot, &batch.messages)).await;
        let outcomes = sent.unwrap_or_else(|_| {
            let reason = Reason::new("OUT-4003", format!("no answer within {} ms", batch.limit_ms));
            vec![Outcome::Unknown(reason); batch.messages.len()]
        });
        let delivered = outcomes.iter().filter(|o| matches!(o, Outcome::Delivered(_))).count() as u64;
        self.delivered.fetch_add(delivered, Ordering::Relaxed);
        self.failed.fetch_add(batch.messages.len() as u64 - delivered, Ordering::Relaxed);
        if let Some(counts) = self.counts() {
            counts.sent(batch, &outcomes, began.elapsed(), wall_us());
        }
        self.log_failures(&outcomes);
        Some(outcomes)
    }

    /// A message that is not delivered must not be visible in the database alone. (A destination that is down is logged
    /// when its breaker opens.)
    fn log_failures(&self, outcomes: &[Outcome]) {
        let reasons = outcomes.iter().filter_map(|o| match o {
            Outcome::Retry { reason, .. } | Outcome::Rejected(reason) | Outcome::Unknown(reason) => Some(reason),
            Outcome::Delivered(_) | Outcome::DestinationDown(_) | Outcome::Held { .. } => None,
        });
        let mut failed: Vec<(&Reason, u64)> = Vec::new();
        for reason in reasons {
            match failed.iter_mut().find(|(known, _)| known.code == reason.code) {
                Some((_, messages)) => *messages += 1,
                None => failed.push((reason, 1)),
            }
        }
        for (reason, messages) in failed {
            let code = reason.code;
            let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(messages) = failures.count(Instant::now(), code, messages) {
                tracing::warn!(destination = self.name, code, messages, "not delivered: {}", reason.text);
            }
        }
    }

    /// Tells the sink what earlier processes have kept for it. Without that it is not started.
    async fn recall(&self) -> Result<(), Reason> {
        let mut memory = self.memory.lock().await;
        if !memory.recalled {
            if self.sink.memory(None).is_some() {
                self.join_kept().await.map_err(|e| Reason::new(e.kind.code(), e.message))?;
            }
            memory.recalled = true;
        }
        Ok(())
    }

    async fn join_kept(&self) -> Result<(), StoreError> {
        if let Some(text) = self.store.memory(&self.name).await? {
            self.sink.recall(&text);
        }
        Ok(())
    }

    /// Keeps what the sink has learnt since. Another process may have kept something too: both are joined.
    pub(crate) async fn keep_memory(&self) {
        let mut memory = self.memory.lock().await;
        if self.sink.memory(memory.kept).is_none() {
            return;
        }
        let joined = async {
            self.join_kept().await?;
            let Some((version, text)) = self.sink.memory(memory.kept) else { return Ok(memory.kept) };
            self.store.keep_memory(&self.name, &text).await.map(|()| Some(version))
        };
        match joined.await {
            Ok(kept) => memory.kept = kept,
            Err(e) => {
                // It is tried again; a process that starts before knows a little less.
                tracing::warn!(destination = self.name, code = e.kind.code(), "memory not kept: {}", e.message);
            }
        }
    }

    pub(crate) async fn start(&self, start: u64, limit_ms: u64) -> Result<Ready, Reason> {
        self.begun.store(start, Ordering::SeqCst);
        self.recall().await?;
        // What it said before counts only if every start since has succeeded, and not for one that is cut off.
        let before = self.said.lock().unwrap_or_else(PoisonError::into_inner).take();
        let started = tokio::time::timeout(Duration::from_millis(limit_ms), self.sink.start()).await;
        let late = || Reason::new("OUT-4003", format!("not ready within {limit_ms} ms"));
        let result = started.map_err(|_| late()).and_then(|r| r.map_err(|e| Reason::new(e.code, e.message)));
        let info = result?;
        if let Some(counts) = self.counts() {
            counts.proves(info.level);
        }
        let unchanged = info.unchanged && before.is_some();
        let said = SinkInfo { unchanged: false, ..info };
        if before.as_ref() != Some(&said) {
            tracing::info!(destination = self.name, ack_level = said.level.as_str(), "destination is ready");
            for warning in &said.warnings {
                tracing::warn!(destination = self.name, "{warning}");
            }
        }
        let later = self.require_ack.unwrap_or(AckLevel::Flushed);
        let ready = Ready { proves_later: said.proves_later.then_some(later), unchanged };
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
        Ok(ready)
    }

    /// Which of these acknowledgements have reached the demanded level.
    pub(crate) async fn prove(&self, start: u64, receipts: &[Receipt]) -> Result<Vec<bool>, Reason> {
        if self.begun.load(Ordering::SeqCst) != start {
            return Err(Reason::new("OUT-4017", "started anew meanwhile"));
        }
        let late = || Reason::new("OUT-4003", format!("no answer within {} ms", self.send_limit_ms));
        let answer = tokio::time::timeout(Duration::from_millis(self.send_limit_ms), self.sink.prove(receipts)).await;
        let proven = answer.map_err(|_| late()).and_then(|r| r.map_err(|e| Reason::new(e.code, e.message)));
        // An answer that is missing is none.
        let proven = proven.map(|mut all| {
            all.resize(receipts.len(), false);
            all
        });
        if let Err(reason) = &proven {
            tracing::warn!(destination = self.name, code = reason.code, "it is started anew: {}", reason.text);
        }
        proven
    }

    pub(crate) const fn send_limit_ms(&self) -> u64 {
        self.send_limit_ms
    }

    pub(crate) fn has_forgotten(&self, count: u64) {
        self.forgotten.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn delivered(&self) -> Delivered {
        Delivered {
            destination: self.name.clone(),
            delivered: self.delivered.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            forgotten: self.forgotten.load(Ordering::Relaxed),
        }
    }

    pub(crate) async fn close(&self) {
        const CLOSE_LIMIT: Duration = Duration::from_secs(5);
        if tokio::time::timeout(CLOSE_LIMIT, self.sink.close()).await.is_err() {
            tracing::warn!(destination = self.name, "closing took longer than {CLOSE_LIMIT:?}");
        }
    }
}
