//! A replay while it is carried out: every command of [`Replaying`] is a task that ends in exactly one input.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::config::DestinationConfig;
use outhaul_core::lane::SendBatch;
use outhaul_core::message::{Position, ShardId};
use outhaul_core::receipt::{Outcome, Reason};
use outhaul_core::replay::{
    Acknowledgement, Command, Config, Ending, Event, Input, LeftOut, Progress, ReplayStand, Replaying, StoreFailure,
};
use outhaul_sink::{Acknowledged, Sink};
use outhaul_store::{ReplayProgress, StoreError, StoreErrorKind};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};

use super::{Replay, ReplayError};
use crate::clock::Clock;
use crate::destination::Runner;
use crate::stop::{Asked, Stop};

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
    let sink = Arc::new(Runner::new(&replay.destination, replay.store.clone(), None));
    let mut carrier = Carrier {
        replay,
        sink: sink.clone(),
        left_out,
        calls: JoinSet::new(),
        lost: HashMap::new(),
        refused: None,
        comparisons: 0,
    };
    let result = Box::pin(carrier.carry(stop, stand)).await;
    carrier.calls.shutdown().await;
    sink.keep_memory().await;
    sink.close().await;
    result
}

/// What carries out what the core asks for.
struct Carrier<'a> {
    replay: Replay,
    sink: Arc<Runner>,
    left_out: &'a (dyn Fn(&LeftOut) + Send + Sync),
    /// What is under way, and a failure of the database that does not pass.
    calls: JoinSet<(Input, Option<StoreError>)>,
    /// The input of a call that panics.
    lost: HashMap<Id, Input>,
    refused: Option<StoreError>,
    comparisons: u64,
}

impl Carrier<'_> {
    async fn carry(&mut self, stop: &Stop, stand: &watch::Sender<ReplayStand>) -> Result<ReplayStand, ReplayError> {
        let clock = Clock::start();
        let mut machine = Replaying::new(self.config(), clock.now());
        let mut asked = stop.watch();
        let mut input = Input::Tick;
        loop {
            match *asked.borrow_and_update() {
                Asked::Nothing => {}
                // Told once or more often is the same.
                Asked::Drain => machine.handle(clock.now(), Input::Stop),
                Asked::Now => return Err(ReplayError::Stopped),
            }
            machine.handle(clock.now(), input);
            let mut ending = None;
            while let Some(command) = machine.next_command() {
                match command {
                    Command::Ended(with) => ending = Some(with),
                    command => self.begin(command),
                }
            }
            let stands = machine.stand();
            stand.send_replace(stands.clone());
            if let Some(ending) = ending {
                return self.result(ending, stands);
            }
            // While only an answer decides, one comes.
            let until = machine.deadline_us().map(|us| clock.at(us));
            input = tokio::select! {
                Some(answer) = self.calls.join_next_with_id() => self.answer(answer),
                () = tokio::time::sleep_until(until.unwrap_or_else(|| clock.at(0))), if until.is_some() => Input::Tick,
                // Who could tell it to stop is there as long as it runs.
                _ = asked.changed() => Input::Tick,
            };
        }
    }

    fn config(&self) -> Config {
        let destination = DestinationConfig {
            name: self.replay.destination.name.clone(),
            slotting: self.replay.destination.sink.slotting(),
            limits: self.replay.destination.limits.clone(),
        };
        // Every hasher of the standard library has keys of its own.
        let seed = RandomState::new().build_hasher().finish();
        let give_up_after_ms =
            self.replay.give_up_after.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let shards = self.replay.shards.clone();
        Config { give_up_after_ms, ..Config::new(destination, self.replay.selector.rate_milli, shards, seed) }
    }

    fn result(&mut self, ending: Ending, stand: ReplayStand) -> Result<ReplayStand, ReplayError> {
        match ending {
            Ending::Done => Ok(stand),
            Ending::Stopped => Err(ReplayError::Stopped),
            Ending::Taken => Err(ReplayError::Taken),
            Ending::GivenUp(reason) => Err(ReplayError::GivenUp(self.replay.give_up_after.unwrap_or_default(), reason)),
            Ending::Store(reason) => {
                let unknown = || StoreError::new(StoreErrorKind::Other, reason.text);
                Err(ReplayError::Store(self.refused.take().unwrap_or_else(unknown)))
            }
        }
    }

    fn answer(&mut self, answer: Result<(Id, (Input, Option<StoreError>)), JoinError>) -> Input {
        let id = answer.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let lost = self.lost.remove(&id).unwrap_or(Input::Tick);
        let Ok((_, (input, error))) = answer else { return lost };
        if let Some(error) = error {
            let (code, remedy) = (error.kind.code(), error.kind.remedy());
            let doing = match input {
                Input::Page(_) => "reading the log",
                _ => "storing how far the replay has got",
            };
            tracing::warn!(code, remedy, "{doing}: {}", error.message);
            if !error.kind.passes() {
                self.refused.get_or_insert(error);
            }
        }
        input
    }

    fn spawn(&mut self, lost: Input, call: impl Future<Output = Input> + Send + 'static) {
        let id = self.calls.spawn(async move { (call.await, None) }).id();
        self.lost.insert(id, lost);
    }

    /// A call of the database.
    fn ask<T: Send + 'static>(
        &mut self,
        input: fn(Result<T, StoreFailure>) -> Input,
        call: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) {
        let lost = StoreError::new(StoreErrorKind::Other, "a call of the database ended unexpectedly");
        let id = self
            .calls
            .spawn(async move {
                match call.await {
                    Ok(answer) => (input(Ok(answer)), None),
                    Err(error) => (input(Err(failure(&error))), Some(error)),
                }
            })
            .id();
        self.lost.insert(id, input(Err(failure(&lost))));
    }

    fn begin(&mut self, command: Command) {
        let sink = self.sink.clone();
        match command {
            Command::Start { start, limit_ms } => {
                let call = async move { Input::Started(sink.start(start, limit_ms).await) };
                self.spawn(Input::Started(Err(ended("a start"))), call);
            }
            Command::Verify { shard, shown, limit_ms } => {
                self.comparisons += 1;
                let call = verify(sink.sink(), acknowledged(self.comparisons, shard, shown), limit_ms);
                self.spawn(Input::Verified(Err(ended("a comparison"))), async move { Input::Verified(call.await) });
            }
            Command::Prove { start, receipts } => {
                let call = async move { Input::Proven(sink.prove(start, &receipts).await) };
                self.spawn(Input::Proven(Err(ended("a question"))), call);
            }
            Command::Send(batch) => self.send(batch),
            Command::Read { shard, from } => {
                let Some(place) = self.replay.shards.iter().find(|s| s.shard == shard) else { return };
                let source = self.replay.source(place);
                self.ask(Input::Page, async move { source.page(from).await });
            }
            Command::Keep(progress) => {
                let (store, progress) = (self.replay.store.clone(), self.progress(progress));
                self.ask(Input::Kept, async move { store.keep_replay(&progress).await });
            }
            Command::Event(event) => self.tell(event),
            Command::Ended(_) => {}
        }
    }

    fn send(&mut self, batch: SendBatch) {
        let (slot, number, messages) = (batch.slot, batch.batch, batch.messages.len());
        let outcomes = vec![Outcome::Unknown(ended("a send")); messages];
        let sink = self.sink.clone();
        self.spawn(Input::Answer { slot, batch: number, outcomes }, async move {
            match sink.send(&batch).await {
                Some(outcomes) => Input::Answer { slot, batch: number, outcomes },
                None => Input::NotSent { slot, batch: number },
            }
        });
    }

    fn progress(&self, progress: Progress) -> ReplayProgress {
        let Progress { shard, ended, next, done, left, note } = progress;
        let (number, runner) = (self.replay.number, self.replay.runner.clone());
        ReplayProgress { number, shard, runner, ended, next, done, left, note }
    }

    fn tell(&self, event: Event) {
        match event {
            Event::LeftOut(left) => (self.left_out)(&left),
            Event::Pruned { shard, from, positions } => {
                tracing::warn!(%shard, %from, pruned = positions, code = "OUT-4033", "the log does not hold these positions any more");
            }
            Event::Forgotten { shard, first, messages } => {
                let name = self.replay.destination.name.as_str();
                tracing::warn!(destination = name, %shard, count = messages, %first, code = "OUT-4015", "the destination does not have what it acknowledged: it is sent again");
            }
            _ => {}
        }
    }
}

fn ended(what: &str) -> Reason {
    Reason::new("OUT-4003", format!("{what} ended unexpectedly"))
}

fn failure(error: &StoreError) -> StoreFailure {
    StoreFailure { reason: Reason::new(error.kind.code(), error.message.clone()), passes: error.kind.passes() }
}

fn acknowledged(comparison: u64, shard: ShardId, shown: Vec<Acknowledgement>) -> Vec<Acknowledged> {
    let one = |Acknowledgement { position, id, receipt }| Acknowledged { comparison, shard, position, id, receipt };
    shown.into_iter().map(one).collect()
}

async fn verify(sink: Arc<dyn Sink>, shown: Vec<Acknowledged>, limit_ms: u64) -> Result<Vec<Position>, Reason> {
    let late = || Reason::new("OUT-4003", format!("no answer within {limit_ms} ms"));
    let verified = tokio::time::timeout(Duration::from_millis(limit_ms), sink.verify(&shown)).await;
    let verified = verified.map_err(|_| late())?.map_err(|e| Reason::new("OUT-4017", e.to_string()))?;
    Ok(verified.forgotten)
}
