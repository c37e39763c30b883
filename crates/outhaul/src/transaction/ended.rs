//! Transactions that a broker has confirmed are ended in batches, beside everything else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outhaul_store::{EndedTransaction, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// What waits to be ended. Above it the next one waits, and goes without if that takes too long.
const WAITING_MAX: usize = 10_000;
/// Transactions of one statement.
const BATCH_MAX: usize = 500;
/// How long a batch gathers.
const GATHER: Duration = Duration::from_millis(50);
/// How long one waits for room.
const ROOM_LIMIT: Duration = Duration::from_millis(500);
/// Between two tries, and how many there are: a database that is away for longer costs duplicates.
const PAUSE: Duration = Duration::from_millis(500);
const TRIES: u32 = 60;
/// Limit of what is left at the end.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// A way to end transactions. Cheap to clone.
#[derive(Clone)]
pub(super) struct Ended {
    queue: mpsc::Sender<EndedTransaction>,
    pub(super) lost: Arc<AtomicU64>,
}

/// The task behind it.
pub(super) struct EndedTask(JoinHandle<()>);

impl Ended {
    pub(super) fn start(store: Arc<dyn Store>) -> (Self, EndedTask) {
        let (queue, mut waiting) = mpsc::channel::<EndedTransaction>(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let lost_of_task = lost.clone();
        let task = tokio::spawn(async move {
            let mut batch = Vec::with_capacity(BATCH_MAX);
            while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
                if batch.len() < BATCH_MAX && !waiting.is_closed() {
                    sleep(GATHER).await;
                    while batch.len() < BATCH_MAX
                        && let Ok(next) = waiting.try_recv()
                    {
                        batch.push(next);
                    }
                }
                if !end(store.as_ref(), &batch).await {
                    lost_of_task.fetch_add(batch.len() as u64, Ordering::Relaxed);
                }
                batch.clear();
            }
        });
        (Self { queue, lost }, EndedTask(task))
    }

    pub(super) async fn end(&self, transaction: &str, receipt: String) {
        let ended = EndedTransaction { id: transaction.to_owned(), receipt };
        if timeout(ROOM_LIMIT, self.queue.send(ended)).await.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl EndedTask {
    /// Waits until all is ended. Everybody else must have let go of their [`Ended`].
    pub(super) async fn stop(mut self) {
        if timeout(STOP_LIMIT, &mut self.0).await.is_err() {
            self.0.abort();
        }
    }
}

async fn end(store: &dyn Store, batch: &[EndedTransaction]) -> bool {
    for _ in 0..TRIES {
        match store.end_transactions(batch).await {
            Ok(_) => return true,
            Err(e) if e.kind.passes() => {
                tracing::debug!(error = %e, transactions = batch.len(), "transactions not ended yet");
                sleep(PAUSE).await;
            }
            Err(e) => {
                tracing::warn!(code = "OUT-5036", error = %e, "ended transactions are not marked: they may be delivered twice");
                return false;
            }
        }
    }
    tracing::warn!(
        code = "OUT-5036",
        transactions = batch.len(),
        "ended transactions are not marked: they may be delivered twice"
    );
    false
}
