//! How many requests may be under way to a broker: more while it answers quickly, fewer when it is busy or slow.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// What an answer says of the broker's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// Answered within this time.
    Answered(Duration),
    /// Flow control.
    Busy,
    /// Nothing can be said.
    Silent,
}

/// Additive increase, multiplicative decrease: one more place a window's worth of quick answers, half of them after a
/// SYSTEM_BUSY, a tenth less after a slow answer. At most one decrease in the time that an answer takes.
#[derive(Debug)]
pub(super) struct Window {
    most: f64,
    /// An answer that takes longer than this is slow: a part of the time after which the broker sheds load. So is only
    /// one that also takes twice as long as the quickest of late: where every answer takes long, it is not for the load.
    slow: Duration,
    state: Mutex<State>,
    freed: Notify,
}

#[derive(Debug)]
struct State {
    places: f64,
    taken: u32,
    lowered_at: Option<Instant>,
    /// The quickest answer of late, seconds: forgotten by a hundredth an answer.
    quickest: f64,
}

/// A place in the window.
pub(super) struct Place<'a> {
    window: &'a Window,
    since: Instant,
}

impl Window {
    pub(super) fn new(most: u32, slow: Duration) -> Self {
        let most = f64::from(most.max(1));
        let state = State { places: most.min(16.0), taken: 0, lowered_at: None, quickest: f64::INFINITY };
        Self { most, slow, state: Mutex::new(state), freed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place.
    pub(super) async fn enter(&self) -> Place<'_> {
        loop {
            let freed = self.freed.notified();
            {
                let mut state = self.state();
                if f64::from(state.taken) < state.places.floor().max(1.0) {
                    state.taken += 1;
                    return Place { window: self, since: Instant::now() };
                }
            }
            freed.await;
        }
    }

    /// Places that there are now.
    #[cfg(test)]
    pub(super) fn places(&self) -> f64 {
        self.state().places
    }

    fn learn(&self, load: Load, since: Instant) {
        let mut state = self.state();
        if let Load::Answered(time) = load {
            state.quickest = time.as_secs_f64().min(state.quickest * 1.01);
        }
        let factor = match load {
            Load::Busy => 0.5,
            Load::Answered(time) if time > self.slow && time.as_secs_f64() > 2.0 * state.quickest => 0.9,
            Load::Answered(_) => {
                state.places = (state.places + 1.0 / state.places).min(self.most);
                drop(state);
                self.freed.notify_one();
                return;
            }
            Load::Silent => return,
        };
        // Requests that were under way together tell of the same moment.
        if state.lowered_at.is_none_or(|at| at <= since) {
            state.places = (state.places * factor).max(1.0);
            state.lowered_at = Some(Instant::now());
        }
    }
}

impl Place<'_> {
    /// Since when it is held.
    pub(super) fn held(&self) -> Duration {
        self.since.elapsed()
    }

    /// Gives it back with what was learnt.
    pub(super) fn leave(self, load: Load) {
        self.window.learn(load, self.since);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        {
            let mut state = self.window.state();
            state.taken = state.taken.saturating_sub(1);
        }
        // One that waits: if the window is smaller now, it looks and waits on.
        self.window.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUICK: Load = Load::Answered(Duration::from_millis(1));

    #[tokio::test(start_paused = true)]
    async fn it_grows_by_one_and_shrinks_by_half() {
        let window = Window::new(64, Duration::from_millis(100));
        assert_eq!(window.places(), 16.0);
        for _ in 0..17 {
            window.enter().await.leave(QUICK);
        }
        assert!((17.0..17.1).contains(&window.places()), "{}", window.places());
        window.enter().await.leave(Load::Busy);
        assert!((8.5..8.6).contains(&window.places()));
        for _ in 0..10_000 {
            window.enter().await.leave(QUICK);
        }
        assert_eq!(window.places(), 64.0);
        for _ in 0..100 {
            tokio::time::advance(Duration::from_millis(1)).await;
            window.enter().await.leave(Load::Busy);
        }
        assert_eq!(window.places(), 1.0);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_of_one_moment_lower_it_once() {
        let window = Window::new(64, Duration::from_millis(100));
        window.enter().await.leave(QUICK);
        let window =
            Window { state: Mutex::new(State { places: 16.0, ..window.state.into_inner().unwrap() }), ..window };
        let mut places = Vec::new();
        for _ in 0..8 {
            places.push(window.enter().await);
        }
        tokio::time::advance(Duration::from_millis(5)).await;
        places.into_iter().for_each(|place| place.leave(Load::Busy));
        assert_eq!(window.places(), 8.0);
        let place = window.enter().await;
        tokio::time::advance(Duration::from_millis(200)).await;
        let held = place.held();
        place.leave(Load::Answered(held));
        assert!((7.1..7.3).contains(&window.places()));
    }

    #[tokio::test(start_paused = true)]
    async fn where_every_answer_takes_long_it_is_not_for_the_load() {
        let window = Window::new(64, Duration::from_millis(100));
        let answer = async |ms| {
            tokio::time::advance(Duration::from_millis(1)).await;
            window.enter().await.leave(Load::Answered(Duration::from_millis(ms)));
        };
        for _ in 0..2_000 {
            answer(400).await;
        }
        assert!(window.places() > 60.0, "{}", window.places());
        answer(900).await;
        assert!(window.places() < 60.0, "{}", window.places());
        // It learns that the network has become longer.
        for _ in 0..4_000 {
            answer(1_500).await;
        }
        assert!(window.places() > 60.0, "{}", window.places());
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_place_waits_for_one() {
        let window = std::sync::Arc::new(Window::new(1, Duration::from_millis(100)));
        let place = window.enter().await;
        let (other, waits) = (window.clone(), tokio::time::timeout(Duration::from_secs(1), window.enter()).await);
        assert!(waits.is_err());
        let waiting = tokio::spawn(async move { other.enter().await.leave(QUICK) });
        tokio::task::yield_now().await;
        drop(place);
        waiting.await.unwrap();
        // A dropped waiter leaves no hole.
        drop(window.enter().await);
    }
}
