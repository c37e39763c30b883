//! Tasks beside the engine: each is started anew when it ends by itself, panics, or hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{Stall, WatchLimits, tracker::NOT_MOVING};

/// Waits before a task is started anew, first and longest: doubled for each time that it does not get on.
const RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Where such a task says what it is at.
#[derive(Debug)]
pub(crate) struct Pulse {
    state: Mutex<State>,
    /// Steps that were done.
    steps: AtomicU64,
    /// The task before it did not get on.
    again: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Works(Instant),
    RestsUntil(Instant),
}

impl Pulse {
    fn new(again: bool) -> Self {
        Self { state: Mutex::new(State::Works(Instant::now())), steps: AtomicU64::new(0), again }
    }

    fn set(&self, state: State) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// The wait before the first step; none if the task before did not get on, so that it is soon seen whether this one does.
    pub(crate) fn first(&self, wait: Duration) -> Duration {
        let wait = if self.again { Duration::ZERO } else { wait };
        self.set(State::RestsUntil(Instant::now() + wait));
        wait
    }

    /// A step begins.
    pub(crate) fn works(&self) {
        self.set(State::Works(Instant::now()));
    }

    /// A step has ended, well or not; the next comes after this time.
    pub(crate) fn rests(&self, wait: Duration) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.set(State::RestsUntil(Instant::now() + wait));
    }

    /// Since when it should have gone on.
    fn stuck_since(&self) -> Instant {
        match *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Works(since) => since,
            State::RestsUntil(until) => until,
        }
    }
}

type Make = Box<dyn Fn(Arc<Pulse>) -> JoinHandle<()> + Send>;

/// Such a task, as the engine keeps it.
pub(crate) struct Beside {
    name: &'static str,
    make: Make,
    pulse: Arc<Pulse>,
    /// None: it waits to be started anew.
    task: Option<JoinHandle<()>>,
    restart_at: Instant,
    restarts: u32,
    /// Since when it has not got on, whatever was started anew.
    since: Option<Instant>,
    steps: u64,
}

impl Beside {
    pub(crate) fn start(name: &'static str, make: impl Fn(Arc<Pulse>) -> JoinHandle<()> + Send + 'static) -> Self {
        let pulse = Arc::new(Pulse::new(false));
        let task = Some(make(pulse.clone()));
        let make = Box::new(make);
        Self { name, make, pulse, task, restart_at: Instant::now(), restarts: 0, since: None, steps: 0 }
    }

    /// Sees to it: why it does not get on, if it does not. `stops`: it may end. `lost`: it was given up.
    pub(crate) fn look(
        &mut self,
        limits: WatchLimits,
        stops: bool,
        lost: &mut impl FnMut(&'static str),
    ) -> Option<Stall> {
        let now = Instant::now();
        let steps = self.pulse.steps.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.steps, steps) != steps {
            (self.since, self.restarts) = (None, 0);
        }
        if stops {
            return None;
        }
        let why = match &self.task {
            None if now >= self.restart_at => {
                self.pulse = Arc::new(Pulse::new(true));
                self.steps = 0;
                self.task = Some((self.make)(self.pulse.clone()));
                None
            }
            None => None,
            Some(task) if task.is_finished() => {
                self.give_up(now);
                lost(self.name);
                None
            }
            Some(task) => {
                let since = self.pulse.stuck_since();
                let late = now.saturating_duration_since(since);
                if late >= limits.answer.saturating_mul(1 << self.restarts.min(6)) {
                    task.abort();
                    self.since.get_or_insert(since);
                    self.give_up(now);
                    lost(self.name);
                    None
                } else {
                    (late >= limits.stall).then_some((since, "it does not come back"))
                }
            }
        };
        let (since, why) = match (self.since, why) {
            (Some(first), _) if now.saturating_duration_since(first) >= limits.stall => {
                (first, "it ended without an answer, or hung, and was started anew")
            }
            (_, Some((since, why))) => (since, why),
            _ => return None,
        };
        let age = now.saturating_duration_since(since);
        Some(Stall { part: self.name.to_owned(), age, code: NOT_MOVING, why: why.to_owned() })
    }

    fn give_up(&mut self, now: Instant) {
        self.task = None;
        self.since.get_or_insert(now);
        self.restart_at = now + RESTART.0.saturating_mul(1 << self.restarts.min(10)).min(RESTART.1);
        self.restarts = self.restarts.saturating_add(1);
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}
