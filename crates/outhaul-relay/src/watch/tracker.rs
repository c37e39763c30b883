//! Whether what should move does.
//!
//! Nothing rests on a task being alive. What is looked at: calls without an answer, calls that fail again and again, what
//! was to be done and was not, and lanes that have something to deliver and settle nothing.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use outhaul_core::destination::DestinationIndex;
use outhaul_core::instance::{ShardView, WorkView};
use outhaul_core::lane::LaneView;
use outhaul_core::message::ShardId;
use tokio::time::Instant;

use super::{Stall, WatchLimits};

/// Something that should move does not.
pub(crate) const NOT_MOVING: &str = "OUT-4022";
/// Troubles that are told at a time.
const MOST_TOLD: usize = 64;
/// A failure that is not repeated for this long is over: nobody asks any more.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(10);

/// What a call is about: its name, and its destination if it is to one.
pub(crate) type Part = (&'static str, Option<DestinationIndex>);

/// A call that is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overdue {
    pub(crate) part: Part,
    pub(crate) since: Instant,
    /// How long it may take before it is named.
    pub(crate) stall: Duration,
}

#[derive(Debug)]
struct Failing {
    since: Instant,
    newest: Instant,
    code: &'static str,
    why: String,
}

/// What the engine remembers from look to look.
#[derive(Debug)]
pub(crate) struct Tracker {
    limits: WatchLimits,
    names: Vec<String>,
    failing: HashMap<Part, Failing>,
    polled: Instant,
    leased: Instant,
    /// The longest pause between two polls and between two lease rounds.
    pauses: (Duration, Duration),
    not_running: HashMap<ShardId, Instant>,
    unowned: HashMap<ShardId, Instant>,
    lanes: HashMap<(ShardId, DestinationIndex), (u64, Instant)>,
}

impl Tracker {
    pub(crate) fn new(limits: WatchLimits, names: Vec<String>, pauses: (Duration, Duration)) -> Self {
        let now = Instant::now();
        Self {
            limits,
            names,
            failing: HashMap::new(),
            polled: now,
            leased: now,
            pauses,
            not_running: HashMap::new(),
            unowned: HashMap::new(),
            lanes: HashMap::new(),
        }
    }

    /// A call was answered.
    pub(crate) fn answered(&mut self, part: Part) {
        match part.0 {
            POLL => self.polled = Instant::now(),
            LEASES => self.leased = Instant::now(),
            _ => {}
        }
        if !self.failing.is_empty() {
            self.failing.remove(&part);
        }
    }

    /// A call failed, was lost, or was given up.
    pub(crate) fn failed(&mut self, part: Part, code: &'static str, why: &str) {
        let now = Instant::now();
        let new = || Failing { since: now, newest: now, code, why: String::new() };
        let failing = self.failing.entry(part).or_insert_with(new);
        (failing.newest, failing.code, failing.why) = (now, code, why.to_owned());
    }

    /// What does not move, and what is down without anything waiting for it.
    pub(crate) fn look(
        &mut self,
        shards: &[ShardView],
        work: &WorkView,
        mono_us: u64,
        under_way: impl Iterator<Item = Overdue>,
    ) -> (Vec<Stall>, Vec<String>) {
        let now = Instant::now();
        let stall = self.limits.stall;
        let mut found = Found::default();
        self.failing.retain(|_, f| now.saturating_duration_since(f.newest) < FORGOTTEN_AFTER);
        for call in under_way {
            let age = now.saturating_duration_since(call.since);
            if age >= call.stall {
                found.add(self.name(call.part), age, NOT_MOVING, "there is no answer".into());
            }
        }
        for (part, f) in &self.failing {
            let age = now.saturating_duration_since(f.since);
            if age >= stall {
                found.add(self.name(*part), age, f.code, f.why.clone());
            }
        }
        self.overdue(work, now, &mut found);
        self.stored(shards, mono_us, &mut found);
        let mut idle: Vec<ShardId> = shards.iter().filter(|s| !s.running).map(|s| s.shard).collect();
        for (shard, age) in held(&mut self.not_running, &mut idle, now) {
            if age >= stall {
                found.add(format!("shard {shard}"), age, NOT_MOVING, "it is being recovered".into());
            }
        }
        let mut unowned = if work.draining { vec![] } else { work.unowned.clone() };
        for (shard, age) in held(&mut self.unowned, &mut unowned, now) {
            if age >= stall {
                found.add(format!("shard {shard}"), age, NOT_MOVING, "it has no owner".into());
            }
        }
        if work.draining {
            found.add("relay".into(), Duration::ZERO, NOT_MOVING, "it is being stopped".into());
        }
        let troubles = self.lanes(shards, work, now, &mut found);
        (found.stalls, troubles)
    }

    fn name(&self, (part, destination): Part) -> String {
        let name = destination.and_then(|d| self.names.get(usize::from(d.0)));
        name.map_or_else(|| part.to_owned(), |name| format!("{part} to {name}"))
    }

    /// What has to be done again and again.
    fn overdue(&mut self, work: &WorkView, now: Instant, found: &mut Found) {
        if !work.polls {
            self.polled = now;
        }
        if !work.leases {
            self.leased = now;
        }
        let limits = [(POLL, self.polled, self.pauses.0), (LEASES, self.leased, self.pauses.1)];
        for (part, last, pause) in limits {
            let age = now.saturating_duration_since(last);
            if age >= self.limits.stall.saturating_add(pause) {
                found.add(part.to_owned(), age, NOT_MOVING, "none was answered".into());
            }
        }
    }

    /// What was read or delivered and is not stored.
    fn stored(&self, shards: &[ShardView], mono_us: u64, found: &mut Found) {
        let waits = |s: &ShardView| Some((mono_us.saturating_sub(s.unstored_since_us?), s.shard));
        let Some((age_us, shard)) = shards.iter().filter_map(waits).max() else { return };
        let age = Duration::from_micros(age_us);
        if age >= self.limits.stall {
            let why = format!("what was read or delivered in shard {shard} is not stored");
            found.add("checkpoint".into(), age, NOT_MOVING, why);
        }
    }

    /// Lanes that have something to deliver and settle nothing.
    fn lanes(&mut self, shards: &[ShardView], work: &WorkView, now: Instant, found: &mut Found) -> Vec<String> {
        let mut troubles = vec![];
        let mut seen = HashMap::new();
        for (shard, lane) in shards.iter().flat_map(|s| s.lanes.iter().map(move |lane| (s, lane))) {
            let at = usize::from(lane.destination.0);
            let down = work.down.get(at).and_then(Option::as_ref).or(lane.trouble.as_ref());
            let limited = work.limited.get(at).copied().unwrap_or(false);
            let key = (shard.shard, lane.destination);
            let excused = lane.unsettled == 0 || lane.paused || shard.draining || (limited && down.is_none());
            let since = match self.lanes.get(&key) {
                Some((settled, since)) if *settled == lane.settled && !excused => *since,
                _ => now,
            };
            seen.insert(key, (lane.settled, since));
            let age = now.saturating_duration_since(since);
            let name = self.names.get(at).map_or("?", String::as_str);
            let part = format!("lane {name} of shard {}", shard.shard);
            if age >= self.limits.stall {
                let (code, why) = why(shard, lane, down.map(|(_, reason)| reason));
                found.add(part, age, code, why);
            } else if let Some((_, reason)) = down
                && troubles.len() < MOST_TOLD
            {
                troubles.push(format!("{part}: {} {}", reason.code, reason.text));
            }
        }
        self.lanes = seen;
        troubles
    }
}

pub(crate) const POLL: &str = "poll";
pub(crate) const LEASES: &str = "leases";

/// Since when each of these has been in this state. What is in it no more is forgotten.
fn held<K: Copy + Eq + Hash>(since: &mut HashMap<K, Instant>, now_in: &mut Vec<K>, now: Instant) -> Vec<(K, Duration)> {
    since.retain(|key, _| now_in.contains(key));
    now_in.drain(..).map(|key| (key, now.saturating_duration_since(*since.entry(key).or_insert(now)))).collect()
}

/// Why a lane does not move, as far as is known.
fn why(shard: &ShardView, lane: &LaneView, down: Option<&outhaul_core::receipt::Reason>) -> (&'static str, String) {
    let waits = format!("{} messages wait", lane.unsettled);
    if let Some(reason) = down {
        return (reason.code, format!("{waits}: the destination is down: {}", reason.text));
    }
    if !shard.proven_owner {
        return (NOT_MOVING, format!("{waits}: no checkpoint of this owner has committed yet"));
    }
    if !lane.verified {
        return (NOT_MOVING, format!("{waits}: it is being found out what the destination remembers"));
    }
    let last =
        lane.last_error.as_ref().map_or_else(String::new, |r| format!("; the last failure: {} {}", r.code, r.text));
    let doing = match lane.in_flight {
        0 if lane.unproven > 0 => format!("{} acknowledgements wait for their proof", lane.unproven),
        0 => "nothing is under way".to_owned(),
        n => format!("{n} batches are under way without an answer"),
    };
    (lane.last_error.as_ref().map_or(NOT_MOVING, |r| r.code), format!("{waits}: {doing}{last}"))
}

#[derive(Default)]
struct Found {
    stalls: Vec<Stall>,
}

impl Found {
    /// The first thing that is said of a part counts, and there is an end to them.
    fn add(&mut self, part: String, age: Duration, code: &'static str, why: String) {
        if self.stalls.len() < MOST_TOLD && self.stalls.iter().all(|s| s.part != part) {
            self.stalls.push(Stall { part, age, code, why });
        }
    }
}
