//! How every child learns that it has to end: its standard input closes, because the demo closed it or is gone.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// The end of standard input, for any number of threads.
#[derive(Clone, Default)]
pub(crate) struct StdinEnd(Arc<(Mutex<bool>, Condvar)>);

impl StdinEnd {
    /// Starts to watch. A process that still runs `limit` after the end is ended with exit code 1, so that no child
    /// outlives the demo for long whatever it is doing.
    pub(crate) fn watch(limit: Duration) -> Self {
        let end = Self::default();
        let watcher = end.clone();
        std::thread::spawn(move || {
            let mut stdin = std::io::stdin().lock();
            let mut ignored = [0; 256];
            while stdin.read(&mut ignored).is_ok_and(|n| n > 0) {}
            let (reached, changed) = &*watcher.0;
            *reached.lock().unwrap_or_else(PoisonError::into_inner) = true;
            changed.notify_all();
            let never = Condvar::new();
            let guard = Mutex::new(());
            let guard = guard.lock().unwrap_or_else(PoisonError::into_inner);
            let _over = never.wait_timeout_while(guard, limit, |()| true);
            eprintln!("still running {} s after the end of standard input", limit.as_secs());
            std::process::exit(1);
        });
        end
    }

    /// Waits for the end, for `limit` at most; whether it is reached.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        let (reached, changed) = &*self.0;
        let reached = reached.lock().unwrap_or_else(PoisonError::into_inner);
        if limit.is_zero() {
            return *reached;
        }
        *changed.wait_timeout_while(reached, limit, |reached| !*reached).unwrap_or_else(PoisonError::into_inner).0
    }
}
