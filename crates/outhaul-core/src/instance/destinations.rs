//! Destinations: when each is started, and what has to be found out before its lanes may send.
//!
//! A batch is begun after a start, and after the lane has found out what the destination remembers since. While a start
//! is under way nothing begins: it may renew connections, and nothing may slip over a renewed one unseen.

use super::{Command, Event, Instance, Mode, Phase, Ready};
use crate::config::{LaneLimits, Now};
use crate::destination::DestinationIndex;
use crate::receipt::Reason;

/// A destination, for all shards.
#[derive(Debug, Default)]
pub(super) struct Target {
    /// Number of the newest start that began.
    start: u64,
    state: State,
    /// Starts in a row that failed, or that did not last.
    failures: u32,
    /// Whether the newest start failed.
    failing: bool,
    /// When the newest start was answered, microseconds of the monotonic clock.
    answered_at_us: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be started at the time.
    Wanted(u64),
    Starting,
    Started,
}

impl Default for State {
    fn default() -> Self {
        Self::Wanted(0)
    }
}

impl Target {
    /// The start after which may be sent. None: not now.
    pub(super) fn open(&self) -> Option<u64> {
        let open = self.start > 0 && !self.failing && self.state != State::Starting;
        open.then_some(self.start)
    }

    /// When it is to be started.
    pub(super) const fn deadline_us(&self) -> Option<u64> {
        match self.state {
            State::Wanted(at) => Some(at),
            State::Starting | State::Started => None,
        }
    }
}

impl Instance {
    fn limits(&self, destination: DestinationIndex) -> Option<&LaneLimits> {
        self.config.destinations.get(usize::from(destination.0)).map(|d| &d.limits)
    }

    pub(super) fn target(&mut self, destination: DestinationIndex) -> Option<&mut Target> {
        self.targets.get_mut(usize::from(destination.0))
    }

    /// A batch that was begun after this start was told that the destination is down: it is started anew. Slots that
    /// still get on are not held up until then; where it happens again and again, starts come less and less often.
    pub(super) fn restart(&mut self, now: Now, destination: DestinationIndex, start: u64) {
        let Some(backoff) = self.limits(destination).map(|l| l.breaker_backoff_ms) else { return };
        let mut jitter = self.jitter.clone();
        if let Some(t) = self.target(destination).filter(|t| t.start == start && t.state == State::Started) {
            let lasted = now.mono_us.saturating_sub(t.answered_at_us) > backoff.1.saturating_mul(2_000);
            t.failures = if lasted { 1 } else { t.failures.saturating_add(1) };
            t.state = State::Wanted(now.after_ms(jitter.backoff_ms(t.failures, backoff)));
        }
        self.jitter = jitter;
    }

    pub(super) fn on_started(
        &mut self,
        now: Now,
        destination: DestinationIndex,
        start: u64,
        result: Result<Ready, Reason>,
    ) {
        let Some(backoff) = self.limits(destination).map(|l| l.breaker_backoff_ms) else { return };
        let mut jitter = self.jitter.clone();
        let Some(t) = self.target(destination).filter(|t| t.start == start && t.state == State::Starting) else {
            return;
        };
        t.answered_at_us = now.mono_us;
        let failed_before = std::mem::replace(&mut t.failing, result.is_err());
        t.state = match result {
            Ok(_) => State::Started,
            Err(_) => {
                t.failures = t.failures.saturating_add(1);
                State::Wanted(now.after_ms(jitter.backoff_ms(t.failures, backoff)))
            }
        };
        self.jitter = jitter;
        let event = match &result {
            Ok(_) => failed_before.then_some(Event::Started { destination }),
            Err(reason) => (!failed_before).then(|| Event::NotStarted { destination, reason: reason.clone() }),
        };
        self.tell(event.into_iter().collect());
        for owned in self.shards.values_mut() {
            let Phase::Running(p) = &mut owned.phase else { continue };
            let Some(lane) = p.lane_mut(destination) else { continue };
            match &result {
                Ok(_) => lane.on_started(start),
                Err(reason) => lane.on_not_started(reason),
            }
        }
    }

    pub(super) fn drive_destinations(&mut self, now: Now) {
        if self.mode != Mode::Running || !self.pipelines().any(|(_, p)| !p.draining) {
            return;
        }
        for (index, destination) in self.config.indexes().zip(self.config.destinations.iter()) {
            let Some(target) = self.targets.get_mut(usize::from(index.0)) else { continue };
            if target.deadline_us().is_some_and(|at| now.mono_us >= at) {
                target.state = State::Starting;
                target.start += 1;
                let (start, limit_ms) = (target.start, destination.limits.send_limit_ms);
                self.commands.push_back(Command::Start { destination: index, start, limit_ms });
            }
        }
        self.drive_verifications(now);
    }

    fn drive_verifications(&mut self, now: Now) {
        let checkpoint = self.checkpoint.as_ref();
        for (shard, owned) in &mut self.shards {
            let (shard, epoch) = (*shard, owned.epoch);
            let Phase::Running(p) = &mut owned.phase else { continue };
            if p.draining {
                continue;
            }
            for (destination, config) in self.config.indexes().zip(self.config.destinations.iter()) {
                let Some(start) = self.targets.get(usize::from(destination.0)).and_then(Target::open) else { continue };
                if !p.lane_mut(destination).is_some_and(|lane| lane.wants_verification(start, now)) {
                    continue;
                }
                let share = checkpoint.and_then(|c| c.shares.iter().find(|s| (s.shard, s.epoch) == (shard, epoch)));
                let recent = p.recent(destination, share);
                let Some(lane) = p.lane_mut(destination) else { continue };
                lane.begin_verification(start);
                let (unproven_from, max_forgotten) = (None, config.limits.max_forgotten);
                self.commands.push_back(Command::Verify {
                    shard,
                    epoch,
                    destination,
                    start,
                    recent,
                    unproven_from,
                    max_forgotten,
                });
            }
        }
    }
}
