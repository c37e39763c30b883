//! From commands to calls, and from answers to inputs.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::act::ActNumber;
use outhaul_core::comparison::Comparison;
use outhaul_core::config::{Config, DestinationConfig, Settings};
use outhaul_core::destination::DestinationIndex;
use outhaul_core::instance::{CheckpointAnswer, Command, Event, Input, Instance, ReadKind, Recovered};
use outhaul_core::receipt::Reason;
use outhaul_core::route::Routes;
use outhaul_store::{LeaseRound, ReadPurpose, ReadRequest, Store, StoreError, StoreErrorKind};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinSet};
use tokio::time::Instant;

use crate::clock::Clock;
use crate::destination::{Delivered, Destination, Runner};
use crate::error::RelayError;
use crate::healing::{Look, Trouble, next_number};
use crate::log::{CHECKPOINT, Log};
use crate::maintenance::{self, Maintenance};
use crate::stop::{Asked, Stop};
use crate::transactions::{self, Transactions};
use crate::watch::{Beside, LOOK, Overdue, Part, Tracker, Watch, WatchLimits, sampling};
use crate::{acts, backlog, tending};

/// A read of the log brings at most this much stored content.
const LOG_READ_BYTES: usize = 1 << 20;
/// What a lease round is called in the log.
const LEASES: &str = "leases";
/// An internal task ended without an answer.
const TASK_LOST: &str = "OUT-4014";
/// Waits between tries to reach the database at the start.
const START_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// One outbox and where its messages go.
#[derive(Clone)]
pub struct Outbox {
    /// Name, for logs and output.
    pub name: String,
    /// Its database.
    pub store: Arc<dyn Store>,
    /// Destinations, at most [`outhaul_core::destination::MAX_DESTINATIONS`].
    pub destinations: Vec<Destination>,
    /// Routes, by the index of a destination in `destinations`.
    pub routes: Routes,
    /// Limits.
    pub settings: Settings,
    /// Owner name: must differ from that of every other process, also of an earlier one of the same instance.
    pub owner: String,
    /// Stop by itself once all that was committed before the start is settled.
    pub until_empty: bool,
    /// A drain that takes longer than this is cut off, milliseconds.
    pub shutdown_limit_ms: u64,
    /// Pruning and merging. None: somebody else does it (`outhaul prune`).
    pub maintenance: Option<Maintenance>,
    /// Transactional messages that the broker does not deliver. None: somebody else sees to them.
    pub transactions: Option<Transactions>,
    /// Who shows how it stands, and counts. None: nobody. It must have been made for these destinations.
    pub watch: Option<Watch>,
}

/// Limit of ending what is under way when the relay ends.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// What a relay did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Per outbox: its name and what each destination took.
    pub outboxes: Vec<(String, Vec<Delivered>)>,
}

/// Runs outboxes until they are told to stop, or (with `until_empty`) are empty.
///
/// # Errors
/// An outbox that cannot be used as it is; the others are drained first.
pub async fn run(outboxes: Vec<Outbox>, stop: Stop) -> Result<Report, RelayError> {
    let mut tasks = JoinSet::new();
    for outbox in outboxes {
        tasks.spawn(drive(outbox, stop.clone()));
    }
    let mut report = Report::default();
    let mut first_error = None;
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(part)) => report.outboxes.push(part),
            Ok(Err(e)) => {
                stop.drain();
                first_error.get_or_insert(e);
            }
            Err(panic) => {
                // A bug, but not one to stay silent with: the other outboxes end cleanly and the process shows it.
                stop.drain();
                if let Ok(reason) = panic.try_into_panic() {
                    std::panic::resume_unwind(reason);
                }
            }
        }
    }
    report.outboxes.sort_by(|a, b| a.0.cmp(&b.0));
    first_error.map_or(Ok(report), Err)
}

/// What a task had been asked, if it ends without an answer.
enum Asking {
    Leases,
    Recover(outhaul_core::message::ShardId, outhaul_core::message::Epoch),
    Read(outhaul_core::intake::ReadToken, ReadKind),
    Ahead,
    Resolve,
    Checkpoint,
    Confirm,
    Log(Lane),
    Parked(Lane, Vec<outhaul_core::message::Position>),
    Acts(Vec<(outhaul_core::message::ShardId, outhaul_core::message::Epoch)>),
    Find(outhaul_core::message::ShardId, outhaul_core::message::Epoch, ActNumber),
    Start(DestinationIndex, u64, Duration),
    Verify(Lane, u64),
    Prove(DestinationIndex, u64, Duration),
    Send(Lane, u32, u64, Duration),
}

/// Beyond the limit that a call to a destination has of its own, it is late.
const GRACE: Duration = Duration::from_secs(3);
/// What may read very much is given so many times as long.
const LONG: u32 = 60;

#[derive(Clone, Copy)]
struct Lane {
    shard: outhaul_core::message::ShardId,
    epoch: outhaul_core::message::Epoch,
    destination: DestinationIndex,
}

impl Asking {
    /// What it is called in the log, in metrics and by `/ready`.
    fn part(&self) -> Part {
        match self {
            Self::Leases => (LEASES, None),
            Self::Recover(..) => ("recovery", None),
            Self::Read(_, kind) => (read_name(*kind), None),
            Self::Ahead => ("scheduled messages", None),
            Self::Resolve => ("resolved mark", None),
            Self::Checkpoint => (CHECKPOINT, None),
            Self::Confirm => ("confirmation", None),
            Self::Log(_) => ("log", None),
            Self::Parked(..) => ("parked messages", None),
            Self::Acts(_) => ("acts", None),
            Self::Find(..) => ("messages of an act", None),
            Self::Start(destination, ..) => ("start", Some(*destination)),
            Self::Verify(lane, _) => ("receipts", Some(lane.destination)),
            Self::Prove(destination, ..) => ("proof", Some(*destination)),
            Self::Send(lane, ..) => ("send", Some(lane.destination)),
        }
    }

    /// How long it may be without an answer before it is named, and before it is given up.
    fn patience(&self, limits: WatchLimits) -> (Duration, Duration) {
        match self {
            Self::Recover(..) | Self::Verify(..) => (limits.stall, limits.answer.saturating_mul(LONG)),
            Self::Start(.., own) | Self::Prove(.., own) | Self::Send(.., own) => {
                (limits.stall.max(*own + GRACE), limits.answer.saturating_add(*own))
            }
            _ => (limits.stall, limits.answer),
        }
    }

    /// The input for a task that panicked or was cut off.
    fn unanswered(self) -> Input {
        let lost = || Reason::new("OUT-4014", "an internal task ended without an answer");
        match self {
            Self::Leases => Input::Leases(None),
            Self::Recover(shard, epoch) => Input::Recovered { shard, epoch, found: None },
            Self::Read(token, _) => Input::Rows { token, rows: None },
            Self::Ahead => Input::Ahead(None),
            Self::Resolve => Input::Resolved(None),
            Self::Checkpoint => Input::Checkpointed(CheckpointAnswer::Unknown),
            Self::Confirm => Input::Confirmed(None),
            Self::Log(Lane { shard, epoch, destination }) => Input::Log { shard, epoch, destination, messages: None },
            Self::Parked(Lane { shard, epoch, destination }, positions) => {
                Input::Parked { shard, epoch, destination, positions, messages: None }
            }
            Self::Acts(shards) => Input::Acts { shards, acts: None },
            Self::Find(shard, epoch, act) => Input::FoundParked { shard, epoch, act, found: None },
            Self::Start(destination, start, _) => Input::Started { destination, start, result: Err(lost()) },
            Self::Verify(Lane { shard, epoch, destination }, start) => {
                Input::Verified { shard, epoch, destination, start, found: Err(lost()) }
            }
            Self::Prove(destination, start, _) => Input::Proven { destination, start, proven: Err(lost()) },
            Self::Send(Lane { shard, epoch, destination }, slot, batch, _) => {
                Input::Answer { shard, epoch, destination, slot, batch, outcomes: Vec::new() }
            }
        }
    }
}

const fn read_name(kind: ReadKind) -> &'static str {
    match kind {
        ReadKind::Poll => "poll",
        ReadKind::Rescan => "rescan",
        ReadKind::Due => "due messages",
    }
}

/// A call that is under way.
struct Call {
    asking: Asking,
    since: Instant,
    task: AbortHandle,
}

/// The result of a call of the database, for the log.
type Said = Option<(&'static str, Result<(), StoreError>)>;

struct Engine {
    store: Arc<dyn Store>,
    settings: Settings,
    owner: String,
    digest: String,
    names: Arc<[String]>,
    runners: Vec<Arc<Runner>>,
    tasks: JoinSet<(Input, Said)>,
    asking: HashMap<Id, Call>,
    /// Answers that will not come: what was asked is told so.
    given_up: VecDeque<Input>,
    log: Log,
    watch: Option<Watch>,
    limits: WatchLimits,
    tracker: Tracker,
    /// When it is looked next whether everything moves.
    look_at: Instant,
    /// Tasks beside the engine.
    beside: Vec<Beside>,
    #[cfg(feature = "failpoints")]
    outbox: String,
    stopped: bool,
    /// Whether a lease round has succeeded: until then a failure that will not pass ends the relay.
    leased: bool,
    refused: Option<StoreError>,
    /// What keeps maintenance from exporting.
    maintenance: watch::Receiver<Option<outhaul_core::trouble::Trouble>>,
    /// Leases as they were when the tables were looked at, and as the newest round found them.
    shards: (usize, usize),
}

async fn drive(outbox: Outbox, stop: Stop) -> Result<(String, Vec<Delivered>), RelayError> {
    let settings = outbox.settings.clone();
    for d in &outbox.destinations {
        if settings.lease_ttl_ms <= d.limits.send_limit_ms {
            return Err(RelayError::LeaseTooShort {
                outbox: outbox.name,
                destination: d.name.clone(),
                lease_ttl_ms: settings.lease_ttl_ms,
                send_limit_ms: d.limits.send_limit_ms,
            });
        }
    }
    let mut asked = stop.watch();
    let _ended = Ended(outbox.watch.clone());
    let Some(leases) = wait_for_database(&outbox, &mut asked).await? else {
        return Ok((outbox.name, Vec::new()));
    };
    let shown = |at| outbox.watch.clone().map(|watch| (watch, at));
    let runners: Vec<Arc<Runner>> = outbox
        .destinations
        .iter()
        .enumerate()
        .map(|(at, d)| Arc::new(Runner::new(d, outbox.store.clone(), shown(at))))
        .collect();
    let destinations = outbox
        .destinations
        .iter()
        .map(|d| DestinationConfig { name: d.name.clone(), slotting: d.sink.slotting(), limits: d.limits.clone() })
        .collect();
    let (owner, routes) = (outbox.owner.clone(), outbox.routes.clone());
    let config = Config::new(owner, settings.clone(), destinations, routes, seed(&outbox.owner));
    let (names, digest) = (config.names(), config.digest());
    let mut instance = Instance::new(config);
    if outbox.watch.is_some() {
        instance.measure();
    }
    let (trouble, told) = watch::channel(None);
    let limits = outbox.watch.as_ref().map_or_else(WatchLimits::default, Watch::limits);
    let pauses = (
        Duration::from_micros(settings.poll_idle_us.max(settings.poll_quiet_us)),
        Duration::from_millis(settings.lease_interval_ms),
    );
    let mut engine = Engine {
        store: outbox.store.clone(),
        settings,
        owner: outbox.owner.clone(),
        digest,
        log: Log::new(&outbox.name, &names, outbox.watch.clone()),
        watch: outbox.watch.clone(),
        limits,
        tracker: Tracker::new(limits, names.to_vec(), pauses),
        look_at: Instant::now(),
        given_up: VecDeque::new(),
        beside: beside(&outbox, &stop, Arc::new(trouble)),
        #[cfg(feature = "failpoints")]
        outbox: outbox.name.clone(),
        names,
        runners,
        tasks: JoinSet::new(),
        asking: HashMap::new(),
        stopped: false,
        leased: false,
        refused: None,
        maintenance: told,
        shards: (leases, leases),
    };
    let clock = Clock::start();
    let first = if outbox.until_empty { Input::DrainWhenEmpty } else { Input::Tick };
    instance.handle(clock.now(), first);
    let mut ended = engine.turn(&mut instance, clock, asked, &outbox).await;
    engine.log.rest(true);
    if outbox.until_empty && ended.is_ok() {
        // Rows in a shard that there is not are no shard's: it is not empty, although every shard is.
        let looked = outbox.store.inspect().await;
        if let Some(error) = looked.map_or_else(|e| (!e.kind.passes()).then_some(e), |info| info.stray) {
            ended = Err(RelayError::Store { outbox: outbox.name.clone(), error });
        }
    }
    engine.beside.clear();
    // A task that cannot be ended is left to the end of the process.
    let left = tokio::time::timeout(CLOSE_LIMIT, engine.tasks.shutdown()).await;
    if left.is_err() {
        tracing::warn!(outbox = outbox.name, "internal tasks took longer than {CLOSE_LIMIT:?} to end");
    }
    for runner in &engine.runners {
        runner.close().await;
    }
    outbox.store.close().await;
    ended.map(|()| (outbox.name, engine.runners.iter().map(|r| r.delivered()).collect()))
}

/// Says at the end that the relay has ended, however that came.
struct Ended(Option<Watch>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(watch) = &self.0 {
            watch.ended();
        }
    }
}

/// Starts what runs beside the engine.
fn beside(
    outbox: &Outbox,
    stop: &Stop,
    trouble: Arc<watch::Sender<Option<outhaul_core::trouble::Trouble>>>,
) -> Vec<Beside> {
    let (name, owner, store, stop) = (outbox.name.clone(), outbox.owner.clone(), outbox.store.clone(), stop.clone());
    let mut tasks = Vec::new();
    if let Some(plan) = outbox.maintenance.clone() {
        let (name, store, stop, shown) = (name.clone(), store.clone(), stop.clone(), outbox.watch.clone());
        tasks.push(Beside::start("pruning", move |pulse| {
            let (name, owner, store, plan) = (name.clone(), owner.clone(), store.clone(), plan.clone());
            let told = maintenance::Told { trouble: trouble.clone(), watch: shown.clone(), pulse };
            tokio::spawn(maintenance::run(name, owner, store, plan, stop.watch(), told))
        }));
    }
    if let Some(plan) = outbox.transactions.clone() {
        let (name, store, stop) = (name.clone(), store.clone(), stop.clone());
        tasks.push(Beside::start("transactions", move |pulse| {
            tokio::spawn(transactions::run(name.clone(), store.clone(), plan.clone(), stop.watch(), pulse))
        }));
    }
    if outbox.store.tends() {
        let (name, store, stop) = (name.clone(), store.clone(), stop.clone());
        tasks.push(Beside::start("marking", move |pulse| {
            tokio::spawn(tending::run(name.clone(), store.clone(), stop.watch(), pulse))
        }));
    }
    if let Some(shown) = outbox.watch.clone() {
        tasks.push(Beside::start("sampling", move |pulse| {
            tokio::spawn(sampling(name.clone(), store.clone(), shown.clone(), stop.watch(), pulse))
        }));
    }
    tasks
}

fn seed(owner: &str) -> u64 {
    owner.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Waits until the database can be used: how many leases there are. None: told to stop before.
async fn wait_for_database(outbox: &Outbox, asked: &mut watch::Receiver<Asked>) -> Result<Option<usize>, RelayError> {
    let mut wait = START_BACKOFF.0;
    let mut failures = 0u32;
    loop {
        let error = match outbox.store.inspect().await {
            Ok(info) => {
                let (outbox, server, shards) = (outbox.name.as_str(), info.server.as_str(), info.shards);
                tracing::info!(outbox, server, shards, "database is ready");
                for warning in info.warnings {
                    tracing::warn!(outbox, "{warning}");
                }
                if let Some(stray) = info.stray {
                    let (code, remedy) = (stray.kind.code(), stray.kind.remedy());
                    tracing::warn!(outbox, code, remedy, "{}", stray.message);
                }
                return Ok(Some(info.leases));
            }
            Err(e) => e,
        };
        failures += 1;
        if let Some(watch) = &outbox.watch {
            watch.starting(format!("the database cannot be used: {} {}", error.kind.code(), error.message));
            watch.counts().failed("start", error.kind.code());
        }
        const SCRIPT_TRIES: u32 = 5;
        if !error.kind.passes()
            || error.kind == StoreErrorKind::ReadOnly
            || (outbox.until_empty && failures >= SCRIPT_TRIES)
        {
            return Err(RelayError::Store { outbox: outbox.name.clone(), error });
        }
        if failures.is_power_of_two() {
            tracing::warn!(
                outbox = outbox.name,
                code = error.kind.code(),
                failures,
                remedy = error.kind.remedy(),
                "database: {}",
                error.message
            );
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(START_BACKOFF.1),
            _ = asked.wait_for(|a| *a != Asked::Nothing) => return Ok(None),
        }
    }
}

impl Engine {
    /// Turns until the instance has stopped.
    async fn turn(
        &mut self,
        instance: &mut Instance,
        clock: Clock,
        mut asked: watch::Receiver<Asked>,
        outbox: &Outbox,
    ) -> Result<(), RelayError> {
        let mut drain_until: Option<tokio::time::Instant> = None;
        let limit = Duration::from_millis(outbox.shutdown_limit_ms);
        loop {
            #[cfg(feature = "failpoints")]
            crate::failpoint::reach(&self.outbox, "engine").await;
            while let Some(command) = instance.next_command() {
                self.begin(command);
            }
            if self.stopped {
                return Ok(());
            }
            if Instant::now() >= self.look_at {
                self.look(instance, clock);
            }
            let tick = instance.deadline_us(clock.now()).map(|us| clock.at(us));
            let input = if let Some(input) = self.given_up.pop_front() {
                input
            } else {
                tokio::select! {
                biased;
                changed = asked.changed() => match (changed, *asked.borrow_and_update()) {
                    (Ok(()), Asked::Drain) => {
                        drain_until.get_or_insert(tokio::time::Instant::now() + limit);
                        Input::Drain
                    }
                    (Ok(()), Asked::Nothing) => Input::Tick,
                    (Ok(()), Asked::Now) | (Err(_), _) => return Ok(()),
                },
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                () = sleep_until(drain_until) => return Err(self.drain_is_over(outbox)),
                () = sleep_until(tick) => Input::Tick,
                () = tokio::time::sleep_until(self.look_at) => Input::Tick,
                }
            };
            if let Some(error) = self.refused.take() {
                return Err(RelayError::Store { outbox: outbox.name.clone(), error });
            }
            let (before, now) = self.shards;
            if before != now {
                return Err(RelayError::ShardCount { outbox: outbox.name.clone(), before, now });
            }
            instance.handle(clock.now(), input);
            if let Some(watch) = &self.watch {
                watch.counts().taken(instance.waits_us());
            }
            self.log.rest(false);
        }
    }

    /// Looks whether everything moves, gives up what will not be answered any more, and tells how everything stands.
    fn look(&mut self, instance: &Instance, clock: Clock) {
        self.look_at = Instant::now() + LOOK;
        let (limits, work, now) = (self.limits, instance.work(), clock.now());
        let late = |a: &Call| a.since.elapsed() >= a.asking.patience(limits).1;
        let given_up: Vec<Id> = self.asking.iter().filter(|(_, a)| late(a)).map(|(id, _)| *id).collect();
        for id in given_up {
            let Some(Call { asking, task, since }) = self.asking.remove(&id) else { continue };
            task.abort();
            let why = format!("there was no answer for {} s: it was given up", since.elapsed().as_secs());
            self.lost(asking.part(), &why);
            self.given_up.push_back(asking.unanswered());
        }
        let shards = instance.view();
        let under_way = self.asking.values().map(|a| Overdue {
            part: a.asking.part(),
            since: a.since,
            stall: a.asking.patience(limits).0,
        });
        let (mut stalls, troubles) = self.tracker.look(&shards, &work, now.mono_us, under_way);
        let watch = self.watch.clone();
        let mut lost = |task: &'static str| {
            tracing::error!(
                code = TASK_LOST,
                task,
                "an internal task ended without an answer, or hung: it is started anew"
            );
            if let Some(watch) = &watch {
                watch.counts().lost(task);
            }
        };
        stalls.extend(self.beside.iter_mut().filter_map(|b| b.look(limits, work.draining, &mut lost)));
        self.log.stalls(&stalls);
        if let Some(watch) = &self.watch {
            watch.beat();
            watch.tell(shards, work, (now.mono_us, now.wall_us), (stalls, troubles));
        }
    }

    fn lost(&mut self, part: Part, why: &str) {
        tracing::error!(code = TASK_LOST, task = part.0, "an internal task ended without an answer: {why}");
        self.tracker.failed(part, TASK_LOST, why);
        if let Some(watch) = &self.watch {
            watch.counts().lost(part.0);
        }
    }

    fn drain_is_over(&self, outbox: &Outbox) -> RelayError {
        RelayError::ShutdownLimit {
            outbox: outbox.name.clone(),
            limit_ms: outbox.shutdown_limit_ms,
            database: self.log.database_failure(),
        }
    }

    fn ended(&mut self, ended: Result<(Id, (Input, Said)), tokio::task::JoinError>) -> Input {
        match ended {
            Ok((id, (input, said))) => {
                // What was given up is not wanted any more: it was told that there is no answer.
                let Some(asked) = self.asking.remove(&id) else { return Input::Tick };
                let part = asked.asking.part();
                match &said {
                    Some((_, Err(e))) => {
                        self.tracker.failed(part, e.kind.code(), &e.message);
                        if let Some(watch) = &self.watch {
                            watch.counts().failed(part.0, e.kind.code());
                        }
                    }
                    _ => self.tracker.answered(part),
                }
                if let Input::Leases(Some(report)) = &input {
                    self.shards.1 = report.leases.len();
                }
                match said {
                    Some((doing, Ok(()))) => {
                        self.leased |= doing == LEASES;
                        self.log.succeeded(doing);
                    }
                    // Later on only what cannot be waited for: the number of shards is being changed.
                    Some((LEASES, Err(e)))
                        if (!self.leased && !e.kind.passes()) || e.kind == StoreErrorKind::Resharding =>
                    {
                        self.refused = Some(e);
                    }
                    Some((doing, Err(e))) => self.log.failed(doing, &e),
                    None => {}
                }
                input
            }
            Err(e) => {
                let Some(asked) = self.asking.remove(&e.id()) else { return Input::Tick };
                self.lost(asked.asking.part(), &e.to_string());
                asked.asking.unanswered()
            }
        }
    }

    fn spawn(&mut self, asking: Asking, task: impl Future<Output = (Input, Said)> + Send + 'static) {
        #[cfg(feature = "failpoints")]
        let task = {
            let (outbox, place) = (self.outbox.clone(), asking.part().0);
            async move {
                crate::failpoint::reach(&outbox, place).await;
                task.await
            }
        };
        let task = self.tasks.spawn(task);
        self.asking.insert(task.id(), Call { asking, since: Instant::now(), task });
    }

    /// A call of the database: `input` makes the input of its answer.
    fn call<T: Send + 'static>(
        &mut self,
        asking: Asking,
        doing: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
        input: impl FnOnce(Option<T>) -> Input + Send + 'static,
    ) {
        self.spawn(asking, async move {
            match call.await {
                Ok(answer) => (input(Some(answer)), Some((doing, Ok(())))),
                Err(e) => (input(None), Some((doing, Err(e)))),
            }
        });
    }

    fn name(&self, destination: DestinationIndex) -> String {
        self.names.get(usize::from(destination.0)).cloned().unwrap_or_default()
    }

    fn begin(&mut self, command: Command) {
        let store = self.store.clone();
        match command {
            Command::Event(event) => {
                if let Event::Forgotten { destination, count, .. } = &event
                    && let Some(runner) = self.runners.get(usize::from(destination.0))
                {
                    runner.has_forgotten(*count);
                }
                self.log.event(&event);
            }
            Command::Stopped => self.stopped = true,
            Command::LeaseRound { renew, release, acquire, draining, leave, mut troubles } => {
                // First: of many troubles the last are not told.
                troubles.splice(0..0, self.maintenance.borrow().clone());
                troubles.splice(0..0, self.log.trouble());
                let round = LeaseRound {
                    owner: self.owner.clone(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    draining,
                    ttl_ms: self.settings.lease_ttl_ms,
                    renew,
                    release,
                    acquire,
                    leave,
                    troubles,
                    config: self.digest.clone(),
                };
                let call = async move { store.lease_round(&round).await };
                self.call(Asking::Leases, LEASES, call, Input::Leases);
            }
            Command::Recover { shard, epoch } => {
                let call = async move { store.recover(shard).await };
                self.call(Asking::Recover(shard, epoch), "recovery", call, move |found| Input::Recovered {
                    shard,
                    epoch,
                    found: found.map(|r| {
                        Box::new(Recovered {
                            log_end: r.log_end,
                            next_number: r.next_number,
                            lanes: r.lanes,
                            parked: r.parked,
                            acts: r.acts,
                            paused: r.paused,
                            edited: r.edited,
                        })
                    }),
                });
            }
            Command::Read { token, kind, shards, ranges, limit, max_bytes } => {
                let purpose = match kind {
                    ReadKind::Poll => ReadPurpose::Poll,
                    ReadKind::Rescan => ReadPurpose::Rescan,
                    ReadKind::Due => ReadPurpose::Due,
                };
                let watch = self.watch.clone();
                let request = ReadRequest { purpose, shards, ranges, limit, max_bytes };
                let call = async move {
                    let read = store.read(&request).await?;
                    if let Some(watch) = watch {
                        watch.counts().read(kind, read.rows.len());
                    }
                    Ok(read)
                };
                self.call(Asking::Read(token, kind), read_name(kind), call, move |read| Input::Rows {
                    token,
                    rows: read.map(|r| (r.rows, r.cut)),
                });
            }
            Command::LookAhead { shards, ranges, limit } => {
                let call = async move { store.look_ahead(&shards, &ranges, limit).await };
                self.call(Asking::Ahead, "scheduled messages", call, Input::Ahead);
            }
            Command::Resolve { seen } => {
                let call = async move { store.resolved(seen).await };
                self.call(Asking::Resolve, "resolved mark", call, Input::Resolved);
            }
            Command::Checkpoint(checkpoint) => {
                let watch = self.watch.clone();
                self.spawn(Asking::Checkpoint, async move {
                    let began = Instant::now();
                    let (answer, said) = match store.checkpoint(&checkpoint).await {
                        Ok(outcomes) => {
                            if let Some(watch) = watch {
                                watch.counts().checkpoint(&checkpoint, began.elapsed());
                            }
                            (CheckpointAnswer::Committed(outcomes), Ok(()))
                        }
                        Err(e) if e.kind == StoreErrorKind::CommitUnknown => (CheckpointAnswer::Unknown, Err(e)),
                        Err(e) => (CheckpointAnswer::NotWritten, Err(e)),
                    };
                    (Input::Checkpointed(answer), Some((CHECKPOINT, said)))
                });
            }
            Command::Confirm(checkpoint) => {
                let call = async move { store.checkpoint_applied(&checkpoint).await };
                self.call(Asking::Confirm, "confirmation", call, Input::Confirmed);
            }
            Command::ReadLog { shard, epoch, destination, from, edited } => {
                let names = self.names.clone();
                let name = self.name(destination);
                let call = async move {
                    let mut messages =
                        backlog::unpacked(&store.read_log(shard, from, LOG_READ_BYTES).await?, from, &names)?;
                    if edited {
                        acts::apply_edits(&mut messages, &store.edits(shard, &name).await?);
                    }
                    Ok(messages)
                };
                let lane = Lane { shard, epoch, destination };
                self.call(Asking::Log(lane), "log", call, move |messages| Input::Log {
                    shard,
                    epoch,
                    destination,
                    messages,
                });
            }
            Command::ReadParked { shard, epoch, destination, positions } => {
                let names = self.names.clone();
                let name = self.name(destination);
                let asked = positions.clone();
                let call = async move {
                    let parked = store.read_parked(shard, &name, &asked, &names).await?;
                    Ok(parked.into_iter().map(|p| Arc::new(p.message)).collect())
                };
                let lane = Lane { shard, epoch, destination };
                self.call(Asking::Parked(lane, positions.clone()), "parked messages", call, move |messages| {
                    Input::Parked { shard, epoch, destination, positions, messages }
                });
            }
            Command::ReadActs { shards } => {
                let wanted: Vec<_> = shards.iter().map(|(shard, _)| *shard).collect();
                let call = async move { store.open_acts(&wanted).await };
                self.call(Asking::Acts(shards.clone()), "acts", call, move |acts| Input::Acts { shards, acts });
            }
            Command::FindParked { shard, epoch, act, destination, selector, from, limit, content } => {
                let names = self.names.clone();
                let find = acts::Find { shard, destination, selector, from, limit, content };
                let call = async move { find.read(store.as_ref(), &names).await };
                self.call(Asking::Find(shard, epoch, act), "parked messages", call, move |found| Input::FoundParked {
                    shard,
                    epoch,
                    act,
                    found,
                });
            }
            Command::Start { destination, start, limit_ms } => {
                let Some(runner) = self.runners.get(usize::from(destination.0)).cloned() else { return };
                let limit = Duration::from_millis(limit_ms);
                self.spawn(Asking::Start(destination, start, limit), async move {
                    let result = runner.start(start, limit_ms).await;
                    if result.is_ok() {
                        keep_memory(runner);
                    }
                    (Input::Started { destination, start, result }, None)
                });
            }
            Command::Verify { shard, epoch, destination, start, recent, unproven_from, max_forgotten } => {
                let Some(runner) = self.runners.get(usize::from(destination.0)) else { return };
                let (names, sink, name) = (self.names.clone(), runner.sink(), self.name(destination));
                // What was answered later than a send before something was stored before it.
                let margin_ms = runner.send_limit_ms().saturating_mul(2);
                let comparison = Comparison::new(name, recent, unproven_from, max_forgotten, margin_ms);
                let look = Look { number: next_number(), store, sink, names, shard, comparison };
                let lane = Lane { shard, epoch, destination };
                self.spawn(Asking::Verify(lane, start), async move {
                    let (found, said) = match Box::pin(look.verify()).await {
                        Ok(found) => (Ok(found), Some(("receipts", Ok(())))),
                        Err(Trouble::Other(reason)) => (Err(reason), None),
                        Err(Trouble::Store(e)) => {
                            (Err(Reason::new(e.kind.code(), e.message.clone())), Some(("receipts", Err(e))))
                        }
                    };
                    (Input::Verified { shard, epoch, destination, start, found }, said)
                });
            }
            Command::Prove { destination, start, receipts } => {
                let Some(runner) = self.runners.get(usize::from(destination.0)).cloned() else { return };
                let limit = Duration::from_millis(runner.send_limit_ms());
                self.spawn(Asking::Prove(destination, start, limit), async move {
                    let proven = runner.prove(start, &receipts).await;
                    if receipts.is_empty() {
                        keep_memory(runner);
                    }
                    (Input::Proven { destination, start, proven }, None)
                });
            }
            Command::Send { shard, epoch, destination, batch } => {
                let Some(runner) = self.runners.get(usize::from(destination.0)).cloned() else { return };
                let (slot, number) = (batch.slot, batch.batch);
                let lane = Lane { shard, epoch, destination };
                let limit = Duration::from_millis(batch.limit_ms);
                self.spawn(Asking::Send(lane, slot, number, limit), async move {
                    let input = match runner.send(&batch).await {
                        Some(outcomes) => Input::Answer { shard, epoch, destination, slot, batch: number, outcomes },
                        None => Input::NotSent { shard, epoch, destination, slot, batch: number },
                    };
                    (input, None)
                });
            }
        }
    }
}

/// Beside all else: nothing waits for it.
fn keep_memory(runner: Arc<Runner>) {
    tokio::spawn(async move {
        // The next start waits for it.
        if tokio::time::timeout(CLOSE_LIMIT, runner.keep_memory()).await.is_err() {
            tracing::warn!("memory of a destination not kept within {CLOSE_LIMIT:?}");
        }
    });
}

async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
