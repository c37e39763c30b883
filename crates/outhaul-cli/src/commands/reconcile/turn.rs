//! Whose turn it is: one process at a time enqueues from queries, or runs a comparison of the schedule.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul_store::Store;
use tokio::task::JoinHandle;

use crate::codes;
use crate::failure::Failure;

/// How long a turn lasts that nobody renews.
pub(super) const TTL: Duration = Duration::from_secs(30);
/// Enqueueing what queries find missing.
pub(super) const FIX: &str = "reconcile-fix";

/// A turn, renewed in the background until it is given back or dropped.
pub(super) struct Turn {
    store: Arc<dyn Store>,
    name: String,
    owner: String,
    lost: Arc<AtomicBool>,
    renewing: JoinHandle<()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

fn ttl_ms() -> u64 {
    TTL.as_millis() as u64
}

impl Turn {
    /// Takes it. The other result: who has it. `lost` is set as soon as it is known that another has it.
    ///
    /// # Errors
    /// The database's.
    pub(super) async fn take(
        store: &Arc<dyn Store>,
        name: &str,
        owner: &str,
        lost: Arc<AtomicBool>,
    ) -> Result<Result<Self, String>, Failure> {
        if let Some(holder) = store.turn(name, owner, ttl_ms()).await? {
            return Ok(Err(holder));
        }
        let renewing = tokio::spawn({
            let (store, name, owner, lost) = (store.clone(), name.to_owned(), owner.to_owned(), lost.clone());
            async move {
                let mut renewed = tokio::time::Instant::now();
                loop {
                    tokio::time::sleep(TTL / 6).await;
                    let asked = tokio::time::Instant::now();
                    match tokio::time::timeout(TTL / 3, store.turn(&name, &owner, ttl_ms())).await {
                        Ok(Ok(None)) => renewed = asked,
                        Ok(Ok(Some(_))) => break,
                        // It holds as long as it was taken for, and not longer.
                        Ok(Err(_)) | Err(_) if renewed.elapsed() < TTL / 2 => {}
                        Ok(Err(_)) | Err(_) => break,
                    }
                }
                lost.store(true, Ordering::Relaxed);
            }
        });
        Ok(Ok(Self { store: store.clone(), name: name.to_owned(), owner: owner.to_owned(), lost, renewing }))
    }

    /// Takes the turn of enqueueing what queries find.
    ///
    /// # Errors
    /// Another has it; the database's.
    pub(super) async fn fix(store: &Arc<dyn Store>, owner: &str) -> Result<Self, Failure> {
        let taken = Self::take(store, FIX, owner, Arc::default()).await?;
        taken.map_err(|holder| Failure::new(&codes::FIX_UNDER_WAY, format!("{holder} is at it")))
    }

    /// It is still this one's, for the whole time of a turn from now on.
    ///
    /// # Errors
    /// It is another's by now; the database's.
    pub(super) async fn keep(&self) -> Result<(), Failure> {
        let holder = self.store.turn(&self.name, &self.owner, ttl_ms()).await?;
        if holder.is_some() || self.lost.load(Ordering::Relaxed) {
            let what = format!("{} took over meanwhile", holder.as_deref().unwrap_or("another process"));
            return Err(Failure::new(&codes::FIX_UNDER_WAY, what));
        }
        Ok(())
    }

    /// Lets the next one begin at once. Where this fails, it runs out by itself.
    pub(super) async fn give_back(self) {
        self.renewing.abort();
        if !self.lost.load(Ordering::Relaxed) {
            _ = self.store.turn(&self.name, &self.owner, 0).await;
        }
    }
}
