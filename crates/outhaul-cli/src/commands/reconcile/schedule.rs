//! Comparisons that a relay runs by itself, one instance at a time, slowly and within bounds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outhaul_reconcile::Room;
use outhaul_relay::Stop;
use outhaul_store::Store;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::Asked;
use super::kept::Kept;
use super::turn::{TTL, Turn};
use super::window::Window;
use crate::arguments::{Point, Reconcile as Call, Source, Which};
use crate::codes;
use crate::commands::shared_sink::SharedSink;
use crate::commands::{of_outbox, open};
use crate::config::{Config, Destination, Outbox, Reconcile};
use crate::failure::Failure;

/// Between two looks at what is due, at most.
const LOOK: Duration = Duration::from_secs(30);
/// Between two looks where another instance is at it, or the database did not answer.
const BUSY: Duration = Duration::from_secs(5);
/// The first wait after a failure; it doubles up to `every`.
const RETRY_MS: u64 = 60_000;
/// Ids after which the pace is looked at.
const STRIDE: u64 = 256;
/// Ids that are missing and named in what is kept.
const EXAMPLES: u32 = 5;
/// Longest text of a failure that is kept, characters.
const TEXT_MAX: usize = 500;

/// One at a time in this process, whichever outbox it is of.
static ONE: Semaphore = Semaphore::const_new(1);

/// What a comparison goes by that runs beside a relay's work.
pub(super) struct Beside {
    pub(super) stop: Stop,
    pub(super) room: Arc<Room>,
    sinks: Vec<Arc<SharedSink>>,
    /// It must end: the relay does, or another instance has taken over.
    halt: Arc<AtomicBool>,
    /// How long so many ids take at least.
    stride: Duration,
    read: AtomicU64,
    next: Mutex<Instant>,
}

impl Beside {
    /// The relay's own sink of a destination.
    pub(super) fn sink<'a>(&'a self, config: &Config, d: &Destination) -> Result<&'a SharedSink, Failure> {
        let at = config.destinations.iter().position(|known| known.name == d.name);
        let sink = at.and_then(|at| self.sinks.get(at)).map(AsRef::as_ref);
        sink.ok_or_else(|| Failure::new(&codes::NOTHING_THERE, format!("no destination {} is served", d.name)))
    }

    /// Another id was read: waits where that was too fast. In a task, whose thread is not given to others meanwhile.
    ///
    /// # Errors
    /// It must end.
    pub(super) fn pace(&self) -> Result<(), Failure> {
        if !(self.read.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(STRIDE) {
            return Ok(());
        }
        let now = Instant::now();
        let due = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            // What was not used is not made up for.
            *next = (*next).max(now) + self.stride;
            *next
        };
        let halted = || {
            let what = "it was stopped before its end: the relay ends, or another instance has taken over";
            if self.halt.load(Ordering::Relaxed) { Err(Failure::new(&codes::SCHEDULED_FAILED, what)) } else { Ok(()) }
        };
        halted()?;
        let wait = due.saturating_duration_since(now);
        if wait > self.stride.min(Duration::from_millis(20)) {
            tokio::task::block_in_place(|| {
                while Instant::now() < due {
                    halted()?;
                    let short = due.min(Instant::now() + Duration::from_millis(200));
                    tokio::runtime::Handle::current().block_on(tokio::time::sleep_until(short));
                }
                halted()
            })?;
        }
        Ok(())
    }
}

/// What the comparisons of one outbox need of its relay.
pub(in crate::commands) struct Schedule {
    pub(in crate::commands) config: Config,
    pub(in crate::commands) outbox: Outbox,
    pub(in crate::commands) store: Arc<dyn Store>,
    /// In the order of the configuration's destinations.
    pub(in crate::commands) sinks: Vec<Arc<SharedSink>>,
    pub(in crate::commands) owner: String,
    pub(in crate::commands) stop: Stop,
}

impl Schedule {
    /// Runs what is due, until it is told to end. A failure is kept, told, and tried again.
    pub(in crate::commands) async fn run(self, mut told: watch::Receiver<bool>) {
        let plans: Vec<&Reconcile> = self.config.reconciles.iter().filter(|plan| plan.is_of(&self.outbox)).collect();
        if plans.is_empty() {
            return;
        }
        let halt = Arc::new(AtomicBool::new(false));
        let ending = tokio::spawn({
            let (halt, mut told) = (halt.clone(), told.clone());
            async move {
                if told.wait_for(|told| *told).await.is_ok() {
                    halt.store(true, Ordering::Relaxed);
                }
            }
        });
        let all = async {
            loop {
                let mut wait = LOOK;
                for plan in &plans {
                    wait = wait.min(Box::pin(self.look(plan, &halt)).await);
                }
                tokio::time::sleep(wait).await;
            }
        };
        tokio::select! {
            () = all => {}
            _ = async { told.wait_for(|told| *told).await.is_ok() } => {}
        }
        ending.abort();
    }

    /// Runs one if it is due. When to look at it again.
    async fn look(&self, plan: &Reconcile, told: &AtomicBool) -> Duration {
        match self.due(plan).await {
            Ok(Some(wait)) => return wait,
            Ok(None) => {}
            Err(_) => return BUSY,
        }
        let Ok(_one) = ONE.acquire().await else { return LOOK };
        let halt = Arc::new(AtomicBool::new(told.load(Ordering::Relaxed)));
        let name = format!("reconcile:{}", plan.name);
        let turn = match Turn::take(&self.store, &name, &self.owner, halt.clone()).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(_)) | Err(_) => return BUSY,
        };
        // Another may have been through with it just before this one's turn began.
        if let Ok(None) = self.due(plan).await {
            Box::pin(self.once(plan, &halt)).await;
        }
        turn.give_back().await;
        BUSY.min(Duration::from_millis(plan.every_ms))
    }

    /// None: now.
    async fn due(&self, plan: &Reconcile) -> Result<Option<Duration>, Failure> {
        let Some(kept) = Kept::load(&self.store, plan).await? else { return Ok(None) };
        let doubled = RETRY_MS.saturating_mul(1 << kept.failures.saturating_sub(1).min(20));
        let wait_ms = if kept.failures > 0 { doubled.min(plan.every_ms) } else { plan.every_ms };
        let wait_ms = i64::try_from(wait_ms).unwrap_or(i64::MAX);
        let since_ms = now_ms().saturating_sub(kept.at_ms);
        // A clock that was wrong must not hold it up for ever.
        if since_ms >= wait_ms || since_ms < -wait_ms {
            return Ok(None);
        }
        Ok(Some(Duration::from_millis(u64::try_from(wait_ms - since_ms.max(0)).unwrap_or_default())))
    }

    /// Runs it, keeps its result, and tells it.
    async fn once(&self, plan: &Reconcile, halt: &Arc<AtomicBool>) {
        let begun = Instant::now();
        let compared = Box::pin(self.compare(plan, halt)).await;
        let mut kept = match compared {
            Ok(kept) => Kept { whole_at_ms: Some(now_ms()), ..kept },
            // Whoever has taken over keeps its own.
            Err(_) if halt.load(Ordering::Relaxed) => return,
            Err(f) => {
                let before = Kept::load(&self.store, plan).await.ok().flatten().unwrap_or_default();
                let text = f.message.split_whitespace().collect::<Vec<_>>().join(" ");
                let error = Some((f.code, text.chars().take(TEXT_MAX).collect()));
                Kept { error, failures: before.failures.saturating_add(1), ..before }
            }
        };
        kept.at_ms = now_ms();
        kept.by.clone_from(&self.owner);
        kept.took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        kept.event(plan).log(&self.outbox.name);
        if let Err(e) = kept.keep(&self.store, plan).await {
            let (outbox, code, remedy) = (&self.outbox.name, e.kind.code(), e.kind.remedy());
            tracing::warn!(outbox, code, remedy, "keeping the result of reconcile {}: {}", plan.name, e.message);
        }
    }

    async fn compare(&self, plan: &Reconcile, halt: &Arc<AtomicBool>) -> Result<Kept, Failure> {
        // Connections of its own: the relay's are never waited for.
        let store = open(&self.outbox).await?;
        let call = call(plan);
        let nanos = STRIDE.saturating_mul(1_000_000_000_000) / plan.rate_milli.max(1);
        let beside = Beside {
            stop: self.stop.clone(),
            room: Room::new(plan.temp_limit),
            sinks: self.sinks.clone(),
            halt: halt.clone(),
            stride: Duration::from_nanos(nanos),
            read: AtomicU64::new(0),
            next: Mutex::new(Instant::now()),
        };
        let result = async {
            let asked = Asked {
                store: &store,
                outbox: &self.outbox,
                config: &self.config,
                window: Window::of(&call)?,
                a: &call,
                json: false,
                beside: Some(beside),
            };
            let d = self.config.destinations.iter().find(|d| Some(&d.name) == plan.destination.as_ref());
            let report = match (d, &plan.query) {
                (Some(d), _) => Box::pin(asked.compared(d)).await?.0,
                (None, Some(sql)) => Box::pin(asked.asked_query(sql)).await?,
                (None, None) => return Err(Failure::new(&codes::NOTHING_TO_COMPARE, "it has no destination")),
            };
            Ok(report.kept())
        };
        let result = result.await;
        store.close().await;
        result.map_err(|f| of_outbox(f, &self.outbox))
    }
}

/// As the command would be called.
fn call(plan: &Reconcile) -> Call {
    let from_us = now_ms().saturating_sub(i64::try_from(plan.from_ms).unwrap_or(i64::MAX)).saturating_mul(1_000);
    Call {
        source: Source { config: None, db: None },
        which: Which { outbox: None },
        to_target: vec![],
        from: Some(Point::Time(from_us)),
        to: Point::Now,
        destination: plan.destination.clone(),
        query: plan.query.clone(),
        query_db: plan.query_db.clone(),
        topic: plan.topic.clone(),
        settle: plan.settle_ms,
        examples: Some(EXAMPLES),
        out: None,
        fix: plan.fix,
        yes: plan.fix,
        why: Some(format!("[[reconcile]] {}", plan.name)),
        actor: Some("schedule".into()),
        transactions: false,
        memory: plan.memory,
        temp: plan.temp.clone(),
        limit: plan.limit_ms,
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// How long an instance that ends waits for its comparison: one step of it.
pub(in crate::commands) const END_LIMIT: Duration = Duration::from_secs(5);

const _: () = assert!(BUSY.as_secs() < TTL.as_secs());
