//! How a running relay is told to stop.

use std::sync::Arc;

use tokio::sync::watch;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Asked {
    Nothing,
    Drain,
    Now,
}

/// Tells a relay to stop. Clones tell the same relay.
#[derive(Clone, Debug)]
pub struct Stop(Arc<watch::Sender<Asked>>);

impl Default for Stop {
    fn default() -> Self {
        Self::new()
    }
}

impl Stop {
    /// A handle that has told nothing yet.
    pub fn new() -> Self {
        Self(Arc::new(watch::Sender::new(Asked::Nothing)))
    }

    /// Drain: begin no more sends, wait for those under way, write the last checkpoint, release the shards. Nothing is
    /// sent twice because of it.
    pub fn drain(&self) {
        self.ask(Asked::Drain);
    }

    /// Stop at once. Nothing is lost; what was acknowledged since the last checkpoint is sent again by the next owner,
    /// which must wait for the leases to expire.
    pub fn now(&self) {
        self.ask(Asked::Now);
    }

    fn ask(&self, asked: Asked) {
        self.0.send_if_modified(|a| std::mem::replace(a, asked.max(*a)) < asked);
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Asked> {
        self.0.subscribe()
    }
}
