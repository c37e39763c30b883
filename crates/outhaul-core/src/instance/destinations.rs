//! Destinations: when each is started, and what has to be found out before its lanes may send.
//!
//! A batch is begun after a start, and after the lane has found out what the destination remembers since. While a start
//! is under way nothing begins: it may renew connections, and nothing may slip over a renewed one unseen.

use super::{Command, Event, Instance, Mode, Phase, Ready};
use crate::allowance::Allowance;
use crate::config::{LaneLimits, Now};
use crate::destination::DestinationIndex;
use crate::message::{Epoch, Position, ShardId};
use crate::receipt::{AckLevel, Reason};
use crate::trouble::Trouble;

/// The most acknowledgements whose proof is asked for at a time.
const MOST_PROOFS: usize = 8_192;

/// A destination, for all shards.
#[derive(Debug)]
pub(super) struct Target {
    /// Number of the newest start that began.
    start: u64,
    state: State,
    /// Starts in a row that failed, or that did not last.
    failures: u32,
    /// The newest start failed: since when starts fail, microseconds of the wall clock, and why the newest did.
    trouble: Option<(i64, Reason)>,
    /// When the newest start was answered, microseconds of the monotonic clock.
    answered_at_us: u64,
    /// What its acknowledgements prove later.
    proves_later: Option<AckLevel>,
    prove_at_us: u64,
    look_at_us: u64,
    /// What the question for proof was about that is under way.
    asked: Option<Vec<Asked>>,
    /// What it may be sent.
    pub(super) allowance: Allowance,
}

/// An acknowledgement whose proof was asked for.
#[derive(Clone, Copy, Debug)]
struct Asked {
    shard: ShardId,
    epoch: Epoch,
    position: Position,
    serial: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be started at the time.
    Wanted(u64),
    Starting,
    Started,
}

impl Target {
    pub(super) fn new(limits: &LaneLimits) -> Self {
        Self {
            start: 0,
            state: State::Wanted(0),
            failures: 0,
            trouble: None,
            answered_at_us: 0,
            proves_later: None,
            prove_at_us: 0,
            look_at_us: 0,
            asked: None,
            allowance: Allowance::new(limits),
        }
    }

    /// The start after which may be sent. None: not now.
    pub(super) fn open(&self) -> Option<u64> {
        let open = self.start > 0 && self.trouble.is_none() && self.state != State::Starting;
        open.then_some(self.start)
    }

    /// Since when starts of it fail, microseconds of the wall clock, and why the newest did.
    pub(super) fn trouble(&self) -> Option<(i64, Reason)> {
        self.trouble.clone()
    }

    /// When it is to be asked for proof, and whether it is still the one that was started.
    pub(super) fn prove_deadline_us(&self, has_unproven: impl FnOnce(u64) -> bool) -> Option<u64> {
        let start = self.open().filter(|_| self.asked.is_none())?;
        let prove = self.proves_later.is_some() && has_unproven(start);
        Some(if prove { self.prove_at_us.min(self.look_at_us) } else { self.look_at_us })
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
        let look_ms = self.config.settings.look_ms;
        let mut jitter = self.jitter.clone();
        let Some(t) = self.target(destination).filter(|t| t.start == start && t.state == State::Starting) else {
            return;
        };
        t.answered_at_us = now.mono_us;
        let failed_since = t.trouble.take().map(|(since_us, _)| since_us);
        let (failed_before, since_us) = (failed_since.is_some(), failed_since.unwrap_or(now.wall_us));
        t.trouble = result.as_ref().err().map(|reason| (since_us, reason.clone()));
        t.state = match result {
            Ok(ready) => {
                t.proves_later = ready.proves_later;
                // Starts that come often must not put it off: a part that is back may be found by it alone.
                if t.look_at_us == 0 {
                    t.look_at_us = now.after_ms(look_ms);
                }
                State::Started
            }
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
                Ok(ready) => lane.on_started(start, ready.unchanged, now),
                Err(reason) => lane.on_not_started(reason),
            }
        }
    }

    /// What keeps it from delivering: one for each destination that it does not get on with.
    pub fn troubles(&self) -> Vec<Trouble> {
        let of = |index: DestinationIndex, name: &String| {
            let whole = self.targets.get(usize::from(index.0)).and_then(|t| t.trouble.as_ref());
            let lanes =
                || self.pipelines().filter_map(move |(shard, p)| Some((shard, p.lanes().get(usize::from(index.0))?)));
            let (shards, since_us, reason) = match whole {
                Some((since_us, reason)) => (lanes().map(|(shard, _)| shard).collect(), *since_us, reason),
                None => {
                    let held = || lanes().filter_map(|(shard, lane)| Some((shard, lane.trouble()?)));
                    let (_, (since_us, reason)) = held().min_by_key(|(_, (since_us, _))| *since_us)?;
                    (held().map(|(shard, _)| shard).collect(), since_us, reason)
                }
            };
            let (code, text) = (reason.code.to_owned(), reason.text.clone());
            Some(Trouble { destination: name.clone(), shards, since_us, code, text })
        };
        self.config.indexes().zip(self.names.iter()).filter_map(|(index, name)| of(index, name)).collect()
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
        self.drive_proofs(now);
    }

    fn drive_proofs(&mut self, now: Now) {
        for destination in self.config.indexes() {
            let Some(t) = self.targets.get_mut(usize::from(destination.0)) else { continue };
            let Some(start) = t.open().filter(|_| t.asked.is_none()) else { continue };
            let (prove, look) = (t.proves_later.is_some() && now.mono_us >= t.prove_at_us, now.mono_us >= t.look_at_us);
            if !prove && !look {
                continue;
            }
            // Lanes share the question evenly; what one leaves over is for the next round. A look is a question about
            // none: it is not put off by those about some.
            let running = self.shards.values().filter(|owned| matches!(owned.phase, Phase::Running(_))).count();
            let most = if look { 0 } else { MOST_PROOFS / running.max(1) };
            let (mut asked, mut receipts) = (Vec::new(), Vec::new());
            for (shard, owned) in self.shards.iter_mut().filter(|_| !look) {
                let Phase::Running(p) = &mut owned.phase else { continue };
                let epoch = p.epoch;
                let Some(lane) = p.lane_mut(destination) else { continue };
                for (position, serial, receipt) in lane.ask_unproven(start, most) {
                    asked.push(Asked { shard: *shard, epoch, position, serial });
                    receipts.push(receipt);
                }
            }
            if look {
                t.look_at_us = now.after_ms(self.config.settings.look_ms);
            } else {
                t.prove_at_us = now.after_ms(self.config.settings.prove_ms);
            }
            if look || !asked.is_empty() {
                t.asked = Some(asked);
                self.commands.push_back(Command::Prove { destination, start, receipts });
            }
        }
    }

    pub(super) fn on_proven(
        &mut self,
        now: Now,
        destination: DestinationIndex,
        start: u64,
        proven: Result<Vec<bool>, Reason>,
    ) {
        let Some(t) = self.target(destination) else { return };
        let Some(asked) = t.asked.take() else { return };
        if t.open() != Some(start) {
            return;
        }
        let Ok(proven) = proven else { return self.restart(now, destination, start) };
        if !proven.is_empty() && proven.iter().all(|p| *p) {
            t.prove_at_us = now.mono_us; // There may be more.
        }
        for (asked, _) in asked.into_iter().zip(proven).filter(|(_, proven)| *proven) {
            if let Some(lane) = self.lane(asked.shard, asked.epoch, destination) {
                lane.on_proven(asked.position, asked.serial, now);
            }
        }
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
                let Some(target) = self.targets.get(usize::from(destination.0)) else { continue };
                let Some(start) = target.open() else { continue };
                if !p.lane_mut(destination).is_some_and(|lane| lane.wants_verification(start, now)) {
                    continue;
                }
                let share = checkpoint.and_then(|c| c.shares.iter().find(|s| (s.shard, s.epoch) == (shard, epoch)));
                let recent = p.recent(destination, share);
                let Some(lane) = p.lane_mut(destination) else { continue };
                lane.begin_verification(start, target.proves_later, now);
                let (unproven_from, max_forgotten) = (lane.unproven_from(), config.limits.max_forgotten);
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
