//! A replay while it is carried out: one loop, in which every call is a task that ends in exactly one answer.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::instance::Ready;
use outhaul_core::lane::SendBatch;
use outhaul_core::message::{Message, Position};
use outhaul_core::receipt::{AckLevel, Outcome, Reason};
use outhaul_sink::Verified;
use outhaul_store::{ReplayProgress, StoreError, StoreErrorKind, StoreResult};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;

use super::proof::Proof;
use super::rate::{self, Rate};
use super::slots::Slots;
use super::source::{Page, Source};
use super::{LeftOut, Replay, ReplayError, ReplayShard, ReplayStand};
use crate::destination::Runner;
use crate::stop::{Asked, Stop};

/// How often it is stored how far it has got.
const KEEP_EVERY: Duration = Duration::from_secs(1);
/// Tries to store the last of it.
const LAST_KEEPS: u32 = 5;
/// How often the destination is asked for what was not proven when it was acknowledged.
const PROVE_EVERY: Duration = Duration::from_millis(150);
/// First and longest wait after a failed call of the database, milliseconds.
const STORE_BACKOFF_MS: (u64, u64) = (100, 5_000);
/// No wait is longer: it is looked again what there is to do.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

/// Carries a replay out, to its end or until it is told to stop. `stand` says how far it has got, `left_out` is told of
/// every message that is left out.
///
/// # Errors
/// Why it did not get to its end.
pub async fn replay(
    replay: Replay,
    stop: &Stop,
    stand: &watch::Sender<ReplayStand>,
    left_out: &(dyn Fn(&LeftOut) + Send + Sync),
) -> Result<ReplayStand, ReplayError> {
    let sink = Arc::new(Runner::new(&replay.destination, replay.store.clone()));
    let mut stand_now = ReplayStand::of(&replay.shards);
    let mut carrier = Carrier {
        sink: sink.clone(),
        rate: Rate::new(rate::slower(replay.selector.rate_milli, replay.destination.limits.rate_milli), Instant::now()),
        replay,
        stand,
        left_out,
        pruned: 0,
        notes: String::new(),
        calls: JoinSet::new(),
        doing: HashMap::new(),
        start: Start::due(),
        got_on_at: Instant::now(),
        waits_for: None,
    };
    let mut result = Ok(());
    for at in 0..carrier.replay.shards.len() {
        result = Box::pin(carrier.shard(at, stop)).await;
        stand_now = carrier.stand();
        if result.is_err() {
            break;
        }
    }
    carrier.calls.shutdown().await;
    sink.keep_memory().await;
    sink.close().await;
    result.map(|()| stand_now)
}

/// Where the destination stands: a start of it must have succeeded before anything is sent.
struct Start {
    /// Number of the newest.
    number: u64,
    /// Whether it succeeded and nothing has failed since that asks for another.
    ready: bool,
    under_way: bool,
    /// When the next one is due.
    at: Instant,
    failures: u32,
    /// The level that acknowledgements reach some time after they were given.
    proves_later: Option<AckLevel>,
}

impl Start {
    fn due() -> Self {
        Self { number: 0, ready: false, under_way: false, at: Instant::now(), failures: 0, proves_later: None }
    }
}

/// A replay, over all its shards.
struct Carrier<'a> {
    replay: Replay,
    sink: Arc<Runner>,
    rate: Rate,
    stand: &'a watch::Sender<ReplayStand>,
    left_out: &'a (dyn Fn(&LeftOut) + Send + Sync),
    pruned: u64,
    /// Why the newest message was left out.
    notes: String,
    calls: JoinSet<Answer>,
    /// What is under way: a call that panics is answered too.
    doing: HashMap<Id, Doing>,
    start: Start,
    /// When something was last settled or read.
    got_on_at: Instant,
    waits_for: Option<Reason>,
}

/// One shard while it is replayed.
struct Walk {
    at: usize,
    source: Source,
    slots: Slots,
    proof: Proof,
    comparisons: u64,
    comparing: bool,
    read_at: Position,
    reading: bool,
    read_failures: u32,
    read_again_at: Instant,
    proving: bool,
    prove_at: Instant,
    keeping: bool,
    changed: bool,
    keep_at: Instant,
    keep_failures: u32,
    /// Nothing new is begun; it ends with this once nothing is under way.
    ends: Option<ReplayError>,
    /// Its end is stored.
    over: bool,
}

/// A call that is under way.
enum Doing {
    Start,
    Verify,
    Send(u32, Vec<Arc<Message>>),
    Read,
    Prove(Vec<Position>),
    Keep { ended: bool },
}

/// How a call ended.
enum Answer {
    Started(Result<Ready, Reason>),
    Verified(Result<Verified, Reason>),
    /// None: not sent.
    Sent(Option<Vec<Outcome>>),
    Read(StoreResult<Page>),
    Proven(Result<Vec<bool>, Reason>),
    Kept(StoreResult<bool>),
}

impl Carrier<'_> {
    /// Replays one shard.
    async fn shard(&mut self, at: usize, stop: &Stop) -> Result<(), ReplayError> {
        let Some(shard) = self.replay.shards.get(at).copied() else { return Ok(()) };
        let now = Instant::now();
        let mut walk = Walk {
            at,
            source: self.replay.source(&shard),
            slots: Slots::new(self.replay.destination.sink.slotting()),
            proof: Proof::default(),
            comparisons: 0,
            comparing: false,
            read_at: shard.next,
            reading: false,
            read_failures: 0,
            read_again_at: now,
            proving: false,
            prove_at: now,
            keeping: false,
            changed: false,
            keep_at: now + KEEP_EVERY,
            keep_failures: 0,
            ends: None,
            over: false,
        };
        let mut asked = stop.watch();
        while !walk.over {
            match *asked.borrow_and_update() {
                Asked::Nothing => {}
                Asked::Drain => {
                    walk.ends.get_or_insert(ReplayError::Stopped);
                }
                Asked::Now => return Err(ReplayError::Stopped),
            }
            let now = Instant::now();
            self.give_up(&mut walk, now);
            if let Some(error) = walk.ends.clone().filter(|_| walk.slots.under_way() == 0 && !walk.keeping) {
                self.keep_last(&walk, &error).await;
                return Err(error);
            }
            self.drive(&mut walk, now);
            let until = self.wakes_at(&walk, now);
            tokio::select! {
                Some(answer) = self.calls.join_next_with_id() => self.on_answer(&mut walk, answer),
                () = tokio::time::sleep_until(until) => {}
                // Who could tell it to stop is there as long as it runs.
                _ = asked.changed() => {}
            }
            self.stand.send_replace(self.stand());
        }
        Ok(())
    }

    fn stand(&self) -> ReplayStand {
        let (pruned, waits_for) = (self.pruned, self.waits_for.clone());
        ReplayStand { pruned, waits_for, ..ReplayStand::of(&self.replay.shards) }
    }

    fn state(&mut self, walk: &Walk) -> Option<&mut ReplayShard> {
        self.replay.shards.get_mut(walk.at)
    }

    fn got_on(&mut self) {
        self.got_on_at = Instant::now();
        self.waits_for = None;
    }

    fn give_up(&self, walk: &mut Walk, now: Instant) {
        let (Some(limit), Some(reason)) = (self.replay.give_up_after, &self.waits_for) else { return };
        if now.duration_since(self.got_on_at) >= limit {
            walk.ends.get_or_insert(ReplayError::GivenUp(limit, reason.clone()));
        }
    }

    fn call(&mut self, doing: Doing, call: impl Future<Output = Answer> + Send + 'static) {
        let id = self.calls.spawn(call).id();
        self.doing.insert(id, doing);
    }

    /// Begins all that can begin now.
    fn drive(&mut self, walk: &mut Walk, now: Instant) {
        if walk.ends.is_some() {
            return;
        }
        let idle = walk.slots.under_way() == 0 && !walk.proving;
        if !self.start.ready && !self.start.under_way && idle && self.start.at <= now {
            self.begin_start();
        }
        let limits = &self.replay.destination.limits;
        let room = walk.slots.has_room(limits) && walk.proof.unproven() < limits.max_unproven;
        if !walk.reading && room && walk.read_at < walk.source.range.to && walk.read_again_at <= now {
            walk.reading = true;
            let (source, from) = (walk.source.clone(), walk.read_at);
            self.call(Doing::Read, async move { Answer::Read(source.page(from).await) });
        }
        if self.start.ready && self.start.at > now {
            self.begin_sends(walk, now);
        } else if self.start.ready {
            self.start.ready = false;
            self.drive(walk, now);
            return;
        }
        if self.start.ready && !walk.proving && walk.proof.unproven() > 0 && walk.prove_at <= now {
            walk.proving = true;
            let (positions, receipts) = walk.proof.asked();
            let (sink, start) = (self.sink.clone(), self.start.number);
            self.call(Doing::Prove(positions), async move { Answer::Proven(sink.prove(start, &receipts).await) });
        }
        let ended = walk.is_at_end();
        if !walk.keeping && (ended && walk.keep_failures == 0 || (ended || walk.changed) && walk.keep_at <= now) {
            (walk.keeping, walk.changed) = (true, false);
            if let Some(progress) = self.progress(walk, ended) {
                let store = self.replay.store.clone();
                self.call(Doing::Keep { ended }, async move { Answer::Kept(store.keep_replay(&progress).await) });
            }
        }
    }

    fn begin_start(&mut self) {
        self.start.number += 1;
        self.start.under_way = true;
        let (sink, number, limit_ms) =
            (self.sink.clone(), self.start.number, self.replay.destination.limits.send_limit_ms);
        self.call(Doing::Start, async move { Answer::Started(sink.start(number, limit_ms).await) });
    }

    fn begin_sends(&mut self, walk: &mut Walk, now: Instant) {
        loop {
            let available = self.rate.available(now);
            let limits = &self.replay.destination.limits;
            if available == 0 || limits.concurrency.is_some_and(|most| walk.slots.under_way() >= most) {
                return;
            }
            let Some((slot, messages)) = walk.slots.batch(available, limits, now) else { return };
            let limit_ms = limits.send_limit_ms;
            self.rate.take(messages.len(), now);
            let batch = SendBatch { slot, batch: 0, messages: messages.clone(), limit_ms, start: self.start.number };
            let sink = self.sink.clone();
            self.call(Doing::Send(slot, messages), async move { Answer::Sent(sink.send(&batch).await) });
        }
    }

    fn progress(&self, walk: &Walk, ended: bool) -> Option<ReplayProgress> {
        let shard = self.replay.shards.get(walk.at)?;
        Some(ReplayProgress {
            number: self.replay.number,
            shard: shard.shard,
            runner: self.replay.runner.clone(),
            ended,
            next: shard.next,
            done: shard.done,
            left: shard.left,
            note: if shard.left > 0 { self.notes.clone() } else { String::new() },
        })
    }

    fn wakes_at(&self, walk: &Walk, now: Instant) -> Instant {
        let mut at = now + LONGEST_WAIT;
        let mut or = |other: Option<Instant>| at = other.filter(|o| *o > now).map_or(at, |o| at.min(o));
        or((!self.start.under_way).then_some(self.start.at));
        or(Some(walk.read_again_at));
        or(self.rate.wakes_at(now).or_else(|| walk.slots.wakes_at()));
        or((walk.proof.unproven() > 0).then_some(walk.prove_at));
        or(Some(walk.keep_at));
        or(self.replay.give_up_after.map(|limit| self.got_on_at + limit));
        at
    }

    fn on_answer(&mut self, walk: &mut Walk, answer: Result<(Id, Answer), JoinError>) {
        let lost = |what: &str| Reason::new("OUT-4003", format!("{what} ended unexpectedly"));
        let not_read = || StoreError::new(StoreErrorKind::Other, "a call of the database ended unexpectedly");
        let id = answer.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let answer = answer.ok().map(|(_, answer)| answer);
        match (self.doing.remove(&id), answer) {
            (Some(Doing::Send(slot, messages)), answer) => {
                let outcomes = match answer {
                    Some(Answer::Sent(outcomes)) => outcomes,
                    _ => Some(vec![Outcome::Unknown(lost("a send")); messages.len()]),
                };
                self.on_sent(walk, slot, messages, outcomes);
            }
            (Some(Doing::Start), Some(Answer::Started(result))) => self.on_started(walk, result),
            (Some(Doing::Start), _) => self.on_started(walk, Err(lost("a start"))),
            (Some(Doing::Verify), Some(Answer::Verified(result))) => self.on_verified(walk, result),
            (Some(Doing::Verify), _) => self.on_verified(walk, Err(lost("a comparison"))),
            (Some(Doing::Read), Some(Answer::Read(result))) => self.on_read(walk, result),
            (Some(Doing::Read), _) => self.on_read(walk, Err(not_read())),
            (Some(Doing::Prove(asked)), Some(Answer::Proven(result))) => self.on_proven(walk, &asked, result),
            (Some(Doing::Prove(asked)), _) => self.on_proven(walk, &asked, Err(lost("a question"))),
            (Some(Doing::Keep { ended }), Some(Answer::Kept(result))) => self.on_kept(walk, ended, result),
            (Some(Doing::Keep { ended }), _) => self.on_kept(walk, ended, Err(not_read())),
            (None, _) => {}
        }
    }

    /// The destination is to be started anew, after a wait.
    fn start_again(&mut self, reason: Reason) {
        self.start.failures = self.start.failures.saturating_add(1);
        let wait = backoff(self.start.failures, self.replay.destination.limits.breaker_backoff_ms);
        (self.start.ready, self.start.at) = (false, Instant::now() + wait);
        self.waits_for = Some(reason);
    }

    fn on_started(&mut self, walk: &mut Walk, result: Result<Ready, Reason>) {
        self.start.under_way = false;
        let ready = match result {
            Ok(ready) => ready,
            Err(reason) => return self.start_again(reason),
        };
        self.start.proves_later = ready.proves_later;
        walk.comparisons += 1;
        let shown = walk.proof.shown(walk.comparisons, walk.source.shard);
        if ready.unchanged || shown.is_empty() {
            return self.is_ready(walk);
        }
        // What it has acknowledged and forgotten is found out first.
        (self.start.under_way, walk.comparing) = (true, true);
        let (sink, limit) = (self.sink.sink(), Duration::from_millis(self.sink.send_limit_ms()));
        self.call(Doing::Verify, async move {
            let late = || Reason::new("OUT-4003", format!("no answer within {limit:?}"));
            let verified = tokio::time::timeout(limit, sink.verify(&shown)).await;
            Answer::Verified(
                verified.map_err(|_| late()).and_then(|v| v.map_err(|e| Reason::new("OUT-4017", e.to_string()))),
            )
        });
    }

    fn on_verified(&mut self, walk: &mut Walk, result: Result<Verified, Reason>) {
        (self.start.under_way, walk.comparing) = (false, false);
        match result {
            Ok(verified) => {
                if let Some(first) = verified.forgotten.iter().min() {
                    self.go_back(walk, *first, verified.forgotten.len());
                }
                self.is_ready(walk);
            }
            Err(reason) => self.start_again(reason),
        }
    }

    fn is_ready(&mut self, walk: &mut Walk) {
        self.start.ready = true;
        // Nothing asks for another one now.
        self.start.at = Instant::now() + Duration::from_secs(365 * 86_400);
        walk.slots.try_all();
    }

    /// Everything from a position on is read and sent again. Nothing is under way.
    fn go_back(&mut self, walk: &mut Walk, to: Position, forgotten: usize) {
        let (shard, name) = (walk.source.shard, self.replay.destination.name.as_str());
        tracing::warn!(destination = name, %shard, count = forgotten, first = %to, code = "OUT-4015", "the destination does not have what it acknowledged: it is sent again");
        let taken_back = walk.proof.take_back(to);
        walk.slots = Slots::new(self.replay.destination.sink.slotting());
        walk.read_at = to;
        // A read that is under way is of no use any more.
        walk.reading = false;
        self.doing.retain(|_, doing| !matches!(doing, Doing::Read));
        walk.changed = true;
        if let Some(state) = self.state(walk) {
            state.next = to;
            state.done = state.done.saturating_sub(taken_back);
        }
    }

    fn on_sent(&mut self, walk: &mut Walk, slot: u32, messages: Vec<Arc<Message>>, outcomes: Option<Vec<Outcome>>) {
        let Some(outcomes) = outcomes else {
            walk.slots.answered(slot, messages, false);
            return;
        };
        let no_answer = || Outcome::Unknown(Reason::new("OUT-4003", "no answer for it"));
        let outcomes = outcomes.into_iter().chain(std::iter::repeat_with(no_answer));
        let (mut back, mut settled, mut wait_ms, mut anew) = (Vec::new(), false, 0, None);
        let mut why = None;
        for (message, outcome) in messages.into_iter().zip(outcomes) {
            let reason = match outcome {
                Outcome::Delivered(receipt) => {
                    walk.proof.acknowledged(&message, receipt, self.start.proves_later);
                    walk.slots.settle(&message);
                    self.state(walk).into_iter().for_each(|state| state.done += 1);
                    settled = true;
                    continue;
                }
                Outcome::Rejected(reason) => {
                    walk.slots.settle(&message);
                    let (shard, position, id) = (message.shard, message.position, message.id.clone());
                    self.leave(walk, LeftOut { shard, position, id, reason });
                    settled = true;
                    continue;
                }
                Outcome::Retry { reason, after_ms } => {
                    wait_ms = wait_ms.max(after_ms.unwrap_or_default());
                    reason
                }
                Outcome::Held { reason, after_ms } => {
                    wait_ms = wait_ms.max(after_ms.unwrap_or_default());
                    if after_ms.is_none() {
                        anew.get_or_insert(Anew::Later);
                    }
                    reason
                }
                Outcome::DestinationDown(reason) => {
                    anew = Some(Anew::Down);
                    reason
                }
                Outcome::Unknown(reason) => reason,
            };
            why.get_or_insert(reason);
            back.push(message);
        }
        if settled {
            self.got_on();
            walk.changed = true;
        }
        let failures = walk.slots.answered(slot, back, why.is_some() && !settled);
        if let Some(reason) = why {
            let now = Instant::now();
            let limits = &self.replay.destination.limits;
            let wait = if settled {
                backoff(1, limits.quick_backoff_ms)
            } else {
                backoff(failures, limits.breaker_backoff_ms)
            };
            walk.slots.wait(slot, now + wait.max(Duration::from_millis(wait_ms)));
            match anew {
                // Other slots may have said so before.
                Some(Anew::Down) if self.start.ready => self.start_again(reason),
                // Other slots go on meanwhile.
                Some(Anew::Later) => {
                    self.start.at = self.start.at.min(now + wait);
                    self.waits_for.get_or_insert(reason);
                }
                _ => {
                    self.waits_for.get_or_insert(reason);
                }
            }
        } else {
            self.start.failures = 0;
        }
        self.move_on(walk);
    }

    fn leave(&mut self, walk: &Walk, left: LeftOut) {
        self.notes = format!("{} {}", left.reason.code, left.reason.text);
        (self.left_out)(&left);
        self.state(walk).into_iter().for_each(|state| state.left += 1);
    }

    fn on_read(&mut self, walk: &mut Walk, result: StoreResult<Page>) {
        walk.reading = false;
        let page = match result {
            Ok(page) => page,
            Err(e) if e.kind.passes() => {
                walk.read_failures = walk.read_failures.saturating_add(1);
                walk.read_again_at = Instant::now() + backoff(walk.read_failures, STORE_BACKOFF_MS);
                return self.store_failed("reading the log", &e);
            }
            Err(e) => {
                walk.ends.get_or_insert(ReplayError::Store(e));
                return;
            }
        };
        walk.read_failures = 0;
        self.got_on_if_database();
        if page.pruned > 0 {
            let (shard, pruned) = (walk.source.shard, page.pruned);
            tracing::warn!(%shard, from = %walk.read_at, pruned, code = "OUT-4033", "the log does not hold these positions any more");
        }
        self.pruned += page.pruned;
        walk.read_at = page.next;
        walk.changed = true;
        page.left.into_iter().for_each(|left| self.leave(walk, left));
        page.messages.into_iter().for_each(|message| walk.slots.add(message));
        self.move_on(walk);
    }

    /// A call of the database has succeeded: if it was what it waited for, it does not any more.
    fn got_on_if_database(&mut self) {
        if self.waits_for.as_ref().is_some_and(|reason| reason.code.starts_with("OUT-1")) {
            self.got_on();
        }
    }

    fn store_failed(&mut self, doing: &str, e: &StoreError) {
        let (code, remedy) = (e.kind.code(), e.kind.remedy());
        tracing::warn!(code, remedy, "{doing}: {}", e.message);
        self.waits_for = Some(Reason::new(code, e.message.clone()));
    }

    fn on_proven(&mut self, walk: &mut Walk, asked: &[Position], result: Result<Vec<bool>, Reason>) {
        walk.proving = false;
        walk.prove_at = Instant::now() + PROVE_EVERY;
        match result {
            Ok(proven) => walk.proof.proven(asked, &proven),
            Err(reason) => self.start_again(reason),
        }
        walk.changed = true;
        self.move_on(walk);
    }

    /// What lies below the first message that is not settled and proven was dealt with.
    fn move_on(&mut self, walk: &Walk) {
        let first = walk.slots.first_open().into_iter().chain(walk.proof.first_unproven()).min();
        let next = first.unwrap_or(walk.read_at);
        self.state(walk).into_iter().for_each(|state| state.next = next);
    }

    fn on_kept(&mut self, walk: &mut Walk, ended: bool, result: StoreResult<bool>) {
        walk.keeping = false;
        match result {
            Ok(true) => {
                (walk.keep_failures, walk.keep_at) = (0, Instant::now() + KEEP_EVERY);
                walk.over = ended;
                self.got_on_if_database();
            }
            Ok(false) => {
                walk.ends.get_or_insert(ReplayError::Taken);
            }
            Err(e) if e.kind.passes() => {
                walk.keep_failures = walk.keep_failures.saturating_add(1);
                walk.keep_at = Instant::now() + backoff(walk.keep_failures, STORE_BACKOFF_MS);
                walk.changed = true;
                self.store_failed("storing how far the replay has got", &e);
            }
            Err(e) => {
                walk.ends.get_or_insert(ReplayError::Store(e));
            }
        }
    }

    /// It ends before its end: how far it has got is stored once more.
    async fn keep_last(&self, walk: &Walk, error: &ReplayError) {
        let Some(progress) = self.progress(walk, false).filter(|_| *error != ReplayError::Taken) else { return };
        for n in 1..=LAST_KEEPS {
            match self.replay.store.keep_replay(&progress).await {
                Ok(_) => return,
                Err(e) => tracing::warn!(code = e.kind.code(), "how far it has got is not stored: {}", e.message),
            }
            tokio::time::sleep(backoff(n, STORE_BACKOFF_MS)).await;
        }
    }
}

impl Walk {
    fn is_at_end(&self) -> bool {
        let read = self.read_at >= self.source.range.to && !self.reading;
        read && !self.comparing && self.slots.is_empty() && self.proof.unproven() == 0
    }
}

/// A start that an answer asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anew {
    /// Before anything else is sent.
    Down,
    /// After a wait; what goes elsewhere goes on.
    Later,
}

/// The wait after the `n`th failure in a row (from 1): doubles from the first to the longest, then between half of it
/// and all of it.
fn backoff(n: u32, (first_ms, longest_ms): (u64, u64)) -> Duration {
    let full = first_ms.saturating_mul(1 << n.saturating_sub(1).min(20)).clamp(1, longest_ms.max(1));
    // Every hasher of the standard library has keys of its own.
    let random = RandomState::new().build_hasher().finish();
    Duration::from_millis(full - random % (full / 2 + 1))
}
