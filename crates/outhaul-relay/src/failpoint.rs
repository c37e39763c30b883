//! Places at which a test makes an internal task hang or panic. Compiled only with the feature `failpoints`; without it
//! reaching one is nothing.
//!
//! A place is named by the outbox and by what the task does, as logs and `/ready` call it (`poll`, `checkpoint`, `send`).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// What happens to who reaches the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It never goes on, until the place is cleared.
    Hang,
    /// It panics.
    Panic,
}

/// What happens, by outbox and place.
type Places = HashMap<(String, String), watch::Sender<Option<Failure>>>;

static PLACES: Mutex<Option<Places>> = Mutex::new(None);

fn places() -> MutexGuard<'static, Option<Places>> {
    PLACES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on this happens at the place. None: nothing any more, and who hangs there goes on.
pub fn set(outbox: &str, place: &str, failure: Option<Failure>) {
    let mut places = places();
    let place = places.get_or_insert_default().entry((outbox.to_owned(), place.to_owned()));
    place.or_insert_with(|| watch::Sender::new(None)).send_replace(failure);
}

/// A task is at the place.
#[allow(clippy::panic)]
pub(crate) async fn reach(outbox: &str, place: &str) {
    let found = places().as_ref().and_then(|p| p.get(&(outbox.to_owned(), place.to_owned())).map(|s| s.subscribe()));
    let Some(mut failure) = found else { return };
    let wanted = *failure.borrow_and_update();
    match wanted {
        None => {}
        Some(Failure::Hang) => _ = failure.wait_for(Option::is_none).await,
        Some(Failure::Panic) => panic!("failpoint {place}"),
    }
}

/// Nothing happens at the place any more, but who hangs there goes on hanging as long as what is returned is kept.
pub fn forget(outbox: &str, place: &str) -> impl Drop + use<> {
    struct Hung(#[allow(dead_code)] Option<watch::Sender<Option<Failure>>>);
    impl Drop for Hung {
        fn drop(&mut self) {}
    }
    Hung(places().as_mut().and_then(|p| p.remove(&(outbox.to_owned(), place.to_owned()))))
}
