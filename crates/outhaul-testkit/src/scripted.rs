//! A destination whose answers a test writes beforehand, and which remembers all that it was given.
//!
//! ```
//! # use outhaul_testkit::scripted::{Answer, ScriptedSink};
//! let sink = ScriptedSink::single();
//! sink.script("id-1", [Answer::Retry { after_ms: None }, Answer::Down]); // the third send of id-1 is delivered
//! sink.script("id-2", [Answer::late()]);
//! ```
//!
//! It can forget what it has stored ([`ScriptedSink::forget`]): it then answers `verify` truthfully, by ids. With
//! [`ScriptedSink::proves_later`] its acknowledgements are proven by [`ScriptedSink::flush`] alone.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_sink::{AckLevel, Acknowledged, Outcome, Reason, Receipt, Sink, SinkError, SinkInfo, Verified};
use tokio::sync::{Notify, watch};

/// How long a test waits for a signal before it fails.
const SIGNAL_LIMIT: Duration = Duration::from_secs(30);
/// Code of all reasons that a script gives.
pub const CODE: &str = "OUT-9001";

/// What becomes of one send of one message.
#[derive(Clone, Debug, Default)]
pub enum Answer {
    /// Stored, and said so.
    #[default]
    Ok,
    /// Not stored: try again, not before `after_ms`.
    Retry {
        /// Milliseconds to wait at least.
        after_ms: Option<u64>,
    },
    /// Not stored: never will be.
    Rejected,
    /// Not stored: the whole destination is down.
    Down,
    /// Nobody knows.
    Unknown {
        /// Whether it was stored.
        stored: bool,
    },
    /// Stored, and the rest of the batch is dealt with, but the call returns only when the gate is opened.
    Late(Gate),
    /// Stored two times, as by a broker client that tries again by itself, and said so.
    Twice,
    /// The rest of the batch is dealt with, but the call never returns.
    Never {
        /// Whether it was stored.
        stored: bool,
    },
    /// The call panics. Nothing of its batch is stored from this message on.
    Panics,
}

impl Answer {
    /// [`Answer::Late`] with a gate that nobody holds: it stays closed until [`ScriptedSink::open_gates`].
    pub fn late() -> Self {
        Self::Late(Gate::default())
    }
}

/// What an answer can wait for. Once open it stays so.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    open: std::sync::atomic::AtomicBool,
    opened: Notify,
}

impl Gate {
    /// Lets all that wait go on.
    pub fn open(&self) {
        self.0.open.store(true, std::sync::atomic::Ordering::SeqCst);
        self.0.opened.notify_waiters();
    }

    async fn passed(&self) {
        let opened = self.0.opened.notified();
        tokio::pin!(opened);
        opened.as_mut().enable();
        if !self.0.open.load(std::sync::atomic::Ordering::SeqCst) {
            opened.await;
        }
    }
}

/// One send of one message.
#[derive(Clone, Debug)]
pub struct Received {
    /// Number of the call of `send`, from 1.
    pub call: u64,
    /// Slot that the caller named.
    pub slot: u32,
    /// How many times this message had been sent when the call began, this time included.
    pub attempt: u32,
    /// Whether the destination holds it because of this send.
    pub stored: bool,
    /// The message.
    pub message: Arc<Message>,
}

type Chooser = dyn Fn(&Message, u32) -> Option<Answer> + Send + Sync;

/// The destination. Clones are the same one.
#[derive(Clone)]
pub struct ScriptedSink {
    state: Arc<Shared>,
    slotting: Slotting,
}

struct Shared {
    script: Mutex<Script>,
    log: Mutex<Log>,
    /// Number of entries in the log.
    received: watch::Sender<usize>,
    /// Number of stored messages, copies included.
    stored: watch::Sender<usize>,
    /// Number of calls of `start` that were answered.
    starts: watch::Sender<usize>,
}

#[derive(Default)]
struct Script {
    level: AckLevel,
    by_id: HashMap<String, VecDeque<Answer>>,
    chooser: Option<Box<Chooser>>,
    otherwise: Answer,
    failing_starts: VecDeque<SinkError>,
    failing_verifications: VecDeque<SinkError>,
    proves_later: bool,
    gates: Vec<Gate>,
}

#[derive(Default)]
struct Log {
    calls: u64,
    entries: Vec<Received>,
    attempts: HashMap<(ShardId, Position, String), u32>,
    /// Slots with a call under way, each of a shard.
    under_way: HashSet<(ShardId, u32)>,
    overlaps: Vec<(ShardId, u32)>,
    most_under_way: usize,
    closes: usize,
    /// Entries whose message is not there any more.
    forgotten: HashSet<usize>,
    /// Entries below this one are on stable storage.
    flushed: usize,
    /// It has crashed so often, and had done so at the last start: in between no connection works.
    crashes: usize,
    connected_after: usize,
    /// Positions that `verify` was shown, call by call.
    verified: Vec<(ShardId, Vec<u64>)>,
    proofs: usize,
}

impl Log {
    const fn is_connected(&self) -> bool {
        self.crashes == self.connected_after
    }

    /// What is there, by its place.
    fn held(&self) -> impl Iterator<Item = (usize, &Received)> {
        self.entries.iter().enumerate().filter(|(n, r)| r.stored && !self.forgotten.contains(n))
    }
}

impl ScriptedSink {
    /// A destination with this slotting, which delivers everything at level `flushed` until told otherwise.
    pub fn new(slotting: Slotting) -> Self {
        let state = Shared {
            script: Mutex::new(Script { level: AckLevel::Flushed, ..Script::default() }),
            log: Mutex::default(),
            received: watch::Sender::new(0),
            stored: watch::Sender::new(0),
            starts: watch::Sender::new(0),
        };
        Self { state: Arc::new(state), slotting }
    }

    /// One slot.
    pub fn single() -> Self {
        Self::new(Slotting::Single)
    }

    /// `slots` slots by hash of the key.
    pub fn by_key(slots: u32) -> Self {
        Self::new(Slotting::ByKey(slots))
    }

    /// As a trait object.
    pub fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(self.clone())
    }

    /// The answers to the next sends of the message with this id, in order. Then it is answered as any other.
    pub fn script(&self, id: &str, answers: impl IntoIterator<Item = Answer>) {
        self.script_state().by_id.entry(id.to_owned()).or_default().extend(answers);
    }

    /// Asks a function for the answer to each send that has none by its id: message and how often it was sent, this
    /// time included. None: the answer of [`otherwise`](Self::otherwise).
    pub fn script_by(&self, chooser: impl Fn(&Message, u32) -> Option<Answer> + Send + Sync + 'static) {
        self.script_state().chooser = Some(Box::new(chooser));
    }

    /// The answer to all that no script names, from now on.
    pub fn otherwise(&self, answer: Answer) {
        self.script_state().otherwise = answer;
    }

    /// The level of deliveries from now on.
    pub fn level(&self, level: AckLevel) {
        self.script_state().level = level;
    }

    /// Lets the next call of `start` fail; calls of this add up.
    pub fn fail_start(&self, passes: bool) {
        let error = SinkError { code: CODE, message: "scripted".into(), passes };
        self.script_state().failing_starts.push_back(error);
    }

    /// Lets the next call of `verify` fail; calls of this add up.
    pub fn fail_verify(&self, passes: bool) {
        let error = SinkError { code: CODE, message: "scripted".into(), passes };
        self.script_state().failing_verifications.push_back(error);
    }

    /// Whether acknowledgements are proven only by [`flush`](Self::flush), from the next `start` on.
    pub fn proves_later(&self, later: bool) {
        self.script_state().proves_later = later;
    }

    /// What is stored by now is on stable storage.
    pub fn flush(&self) {
        let mut log = self.log();
        log.flushed = log.entries.len();
    }

    /// As if the power had been cut: what is stored and not flushed is not there any more. Returns the ids. Until the next
    /// `start` every send is answered as down, and nothing is proven.
    pub fn crash(&self) -> Vec<String> {
        let mut log = self.log();
        log.crashes += 1;
        let flushed = log.flushed;
        let lost: Vec<(usize, String)> =
            log.held().filter(|(n, _)| *n >= flushed).map(|(n, r)| (n, r.message.id.clone())).collect();
        log.forgotten.extend(lost.iter().map(|(n, _)| *n));
        lost.into_iter().map(|(_, id)| id).collect()
    }

    /// As if a copy of its storage had been put back: of these messages it has no copy any more.
    pub fn forget(&self, ids: &[&str]) {
        let mut log = self.log();
        let lost: Vec<usize> =
            log.held().filter(|(_, r)| ids.contains(&r.message.id.as_str())).map(|(n, _)| n).collect();
        log.forgotten.extend(lost);
    }

    /// Shards and positions that `verify` was shown, call by call.
    pub fn verified(&self) -> Vec<(ShardId, Vec<u64>)> {
        self.log().verified.clone()
    }

    /// Calls of `prove` that were answered.
    pub fn proofs(&self) -> usize {
        self.log().proofs
    }

    /// Opens the gates of all late answers that were given so far.
    pub fn open_gates(&self) {
        self.script_state().gates.drain(..).for_each(|gate| gate.open());
    }

    /// All sends of all messages so far, in the order in which they came.
    pub fn received(&self) -> Vec<Received> {
        self.log().entries.clone()
    }

    /// What the destination holds, copies included, in the order in which it was stored.
    pub fn stored(&self) -> Vec<Arc<Message>> {
        self.log().held().map(|(_, r)| Arc::clone(&r.message)).collect()
    }

    /// Ids of what the destination holds, as a consumer sees them that drops copies.
    pub fn stored_ids(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        let ids = self.stored().into_iter().map(|m| m.id.clone());
        ids.filter(|id| seen.insert(id.clone())).collect()
    }

    /// How many copies the destination holds beyond the first of each id.
    pub fn duplicates(&self) -> usize {
        let stored = self.stored();
        let distinct: HashSet<&str> = stored.iter().map(|m| m.id.as_str()).collect();
        stored.len() - distinct.len()
    }

    /// Slots of a shard that were sent a batch while another one was under way: empty, or the caller broke the
    /// contract. (A call that was dropped is not under way any more.)
    pub fn overlaps(&self) -> Vec<(ShardId, u32)> {
        self.log().overlaps.clone()
    }

    /// The most calls that were under way at the same time.
    pub fn most_under_way(&self) -> usize {
        self.log().most_under_way
    }

    /// Calls of `send` so far.
    pub fn calls(&self) -> u64 {
        self.log().calls
    }

    /// Calls of `start` that were answered, failed ones included.
    pub fn starts(&self) -> usize {
        *self.state.starts.borrow()
    }

    /// Calls of `close`.
    pub fn closes(&self) -> usize {
        self.log().closes
    }

    /// Waits until messages were sent `count` times in all.
    ///
    /// # Panics
    /// That does not happen within 30 s.
    pub async fn wait_received(&self, count: usize) {
        wait(&self.state.received, count, "sends").await;
    }

    /// Waits until `count` messages were stored, copies included.
    ///
    /// # Panics
    /// That does not happen within 30 s.
    pub async fn wait_stored(&self, count: usize) {
        wait(&self.state.stored, count, "stored messages").await;
    }

    /// Waits until `start` was answered `count` times.
    ///
    /// # Panics
    /// That does not happen within 30 s.
    pub async fn wait_starts(&self, count: usize) {
        wait(&self.state.starts, count, "starts").await;
    }

    fn script_state(&self) -> MutexGuard<'_, Script> {
        self.state.script.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.state.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a send, and the level if it is delivered.
    fn answer(&self, message: &Message, attempt: u32) -> (Answer, AckLevel) {
        let mut script = self.script_state();
        let by_id = script.by_id.get_mut(&message.id).and_then(VecDeque::pop_front);
        let chosen = by_id.or_else(|| script.chooser.as_ref().and_then(|choose| choose(message, attempt)));
        let answer = chosen.unwrap_or_else(|| script.otherwise.clone());
        if let Answer::Late(gate) = &answer {
            script.gates.push(gate.clone());
        }
        (answer, script.level)
    }

    /// Returns the place of the newest copy.
    fn record(&self, call: u64, slot: u32, attempt: u32, message: &Arc<Message>, copies: usize) -> usize {
        let entry = |stored| Received { call, slot, attempt, stored, message: Arc::clone(message) };
        let mut log = self.log();
        log.entries.push(entry(copies > 0));
        (1..copies).for_each(|_| log.entries.push(entry(true)));
        let entries = log.entries.len();
        drop(log);
        self.state.received.send_replace(entries);
        self.state.stored.send_modify(|n| *n += copies);
        entries - 1
    }

    /// Counts a call in, and out again when it returns, panics or is dropped.
    fn begin(&self, slot: u32, messages: &[Arc<Message>]) -> UnderWay {
        let shard = messages.first().map_or(ShardId(0), |m| m.shard);
        let mut log = self.log();
        log.calls += 1;
        if !log.under_way.insert((shard, slot)) {
            log.overlaps.push((shard, slot));
        }
        log.most_under_way = log.most_under_way.max(log.under_way.len());
        UnderWay { sink: self.clone(), shard, slot, call: log.calls }
    }

    fn attempt_of(&self, message: &Message) -> u32 {
        let mut log = self.log();
        let count = log.attempts.entry((message.shard, message.position, message.id.clone())).or_default();
        *count += 1;
        *count
    }
}

async fn wait(number: &watch::Sender<usize>, count: usize, what: &str) {
    let mut number = number.subscribe();
    let reached = tokio::time::timeout(SIGNAL_LIMIT, number.wait_for(|n| *n >= count)).await.is_ok();
    assert!(reached, "{} {what} of {count} within {SIGNAL_LIMIT:?}", *number.borrow());
}

struct UnderWay {
    sink: ScriptedSink,
    shard: ShardId,
    slot: u32,
    call: u64,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.sink.log().under_way.remove(&(self.shard, self.slot));
    }
}

fn reason() -> Reason {
    Reason::new(CODE, "scripted")
}

#[async_trait]
impl Sink for ScriptedSink {
    fn slotting(&self) -> Slotting {
        self.slotting
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        let (failure, level, proves_later) = {
            let mut script = self.script_state();
            (script.failing_starts.pop_front(), script.level, script.proves_later)
        };
        {
            let mut log = self.log();
            log.connected_after = log.crashes;
        }
        self.state.starts.send_modify(|n| *n += 1);
        failure.map_or_else(|| Ok(SinkInfo { level, proves_later, ..SinkInfo::default() }), Err)
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        if !self.log().is_connected() {
            return vec![Outcome::DestinationDown(reason()); messages.len()];
        }
        let under_way = self.begin(slot, messages);
        let call = under_way.call;
        let mut held_keys = HashSet::new();
        let mut outcomes = Vec::with_capacity(messages.len());
        let (mut gates, mut for_ever) = (Vec::new(), false);
        for message in messages {
            if message.key.as_ref().is_some_and(|key| held_keys.contains(key)) {
                outcomes.push(Outcome::Retry { reason: reason(), after_ms: None });
                continue;
            }
            let attempt = self.attempt_of(message);
            let (answer, level) = self.answer(message, attempt);
            let copies = match &answer {
                Answer::Twice => 2,
                Answer::Ok | Answer::Late(_) => 1,
                Answer::Unknown { stored } | Answer::Never { stored } => usize::from(*stored),
                Answer::Retry { .. } | Answer::Rejected | Answer::Down | Answer::Panics => 0,
            };
            let place = self.record(call, slot, attempt, message, copies);
            let outcome = match answer {
                Answer::Ok | Answer::Twice => delivered(level, place),
                Answer::Late(gate) => {
                    gates.push(gate);
                    delivered(level, place)
                }
                Answer::Retry { after_ms } => Outcome::Retry { reason: reason(), after_ms },
                Answer::Rejected => Outcome::Rejected(reason()),
                Answer::Down => Outcome::DestinationDown(reason()),
                Answer::Unknown { .. } => Outcome::Unknown(reason()),
                Answer::Never { .. } => {
                    for_ever = true;
                    Outcome::Unknown(reason())
                }
                Answer::Panics => panic!("scripted panic"),
            };
            if !matches!(outcome, Outcome::Delivered(_)) {
                held_keys.extend(message.key.clone());
            }
            outcomes.push(outcome);
        }
        for gate in gates {
            gate.passed().await;
        }
        if for_ever {
            std::future::pending::<()>().await;
        }
        outcomes
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        if let Some(error) = self.script_state().failing_verifications.pop_front() {
            return Err(error);
        }
        let mut log = self.log();
        let shard = acknowledged.first().map_or(ShardId(0), |a| a.shard);
        log.verified.push((shard, acknowledged.iter().map(|a| a.position.0).collect()));
        let held: HashSet<&str> = log.held().map(|(_, r)| r.message.id.as_str()).collect();
        let gone = acknowledged.iter().filter(|a| !held.contains(a.id.as_str()));
        let forgotten: Vec<Position> = gone.map(|a| a.position).collect();
        // It forgets from the end: older ones matter only if all of these are gone.
        let older = forgotten.len() == acknowledged.len();
        Ok(Verified { forgotten, older })
    }

    /// The receipt's detail is the place of its message.
    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        let mut log = self.log();
        if !log.is_connected() {
            return Err(SinkError { code: CODE, message: "connection lost".into(), passes: true });
        }
        log.proofs += 1;
        Ok(receipts.iter().map(|r| r.detail.parse::<usize>().is_ok_and(|n| n < log.flushed)).collect())
    }

    async fn close(&self) {
        self.log().closes += 1;
    }
}

fn delivered(level: AckLevel, place: usize) -> Outcome {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let sent_at_us = i64::try_from(since.as_micros()).unwrap_or(i64::MAX);
    Outcome::Delivered(Receipt { sent_at_us, level, attempts: 1, detail: place.to_string() })
}

#[cfg(test)]
mod tests;
