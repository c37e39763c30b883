//! `outhaul relay`: deliver, until told to stop.

use std::sync::Arc;
use std::time::Duration;

use outhaul_core::config::LaneLimits;
use outhaul_relay::watch::{Watch, WatchLimits};
use outhaul_relay::{Delivered, Maintenance, RelayError, Stop};
use outhaul_store::Store;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::reconcile::schedule::{END_LIMIT, Schedule};
use super::shared_sink::SharedSink;
use super::{of_outbox, owner, validate};
use crate::admin::{self, Admin};
use crate::arguments::Relay;
use crate::config::{Config, Outbox, Sources};
use crate::failure::{Blame, Exit, Failure, Failures, Outcome};
use crate::{codes, config, version};

/// Waits between tries to open a database that does not answer.
const OPEN_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// Tries with `--until-empty`: a script wants an answer.
const SCRIPT_TRIES: u32 = 5;

/// Runs the relay.
///
/// # Errors
/// It cannot start as configured, or ended before it was told to. A drain that was cut off is a failure, though nothing
/// is lost by it.
pub async fn run(a: &Relay) -> Outcome {
    let config = config::load(Sources { to: &a.to, ..a.source.sources() })?;
    if config.destinations.is_empty() || config.routes.is_empty() {
        let what =
            if config.destinations.is_empty() { "no destination is configured" } else { "no route is configured" };
        return Err(Failure::new(&codes::NOWHERE_TO_DELIVER, what).into());
    }
    let sinks = sinks(&config).await?;
    let stop = Stop::new();
    let told = Arc::new(watch::Sender::new(false));
    watch_signals(stop.clone(), told.clone())?;
    let names = |list: &mut dyn Iterator<Item = &str>| list.collect::<Vec<_>>().join(" ");
    tracing::info!(
        version = version::SHORT,
        outboxes = names(&mut config.outboxes.iter().map(|o| o.name.as_str())),
        destinations = names(&mut config.destinations.iter().map(|d| d.name.as_str())),
        "relay starts"
    );
    let watches: Vec<Watch> = config.outboxes.iter().map(|o| watch(&config, o)).collect();
    let address = a.admin.or(config.admin.listen);
    if let Some(address) = address {
        let admin = Admin::listen(address)?;
        tracing::info!(address = %admin.address, "admin server listens");
        admin.serve(watches.clone())?;
    }
    admin::supervise(watches.clone())?;
    // One run for each outbox: a database that is down does not keep the others from starting.
    let owner = owner(config.relay.instance.as_deref());
    let mut runs = JoinSet::new();
    for (outbox, shown) in config.outboxes.iter().zip(watches) {
        let (config, outbox, destinations) = (config.clone(), outbox.clone(), destinations(&config, &sinks));
        let sinks = sinks.clone();
        let (owner, stop, mut told, until_empty) = (owner.clone(), stop.clone(), told.subscribe(), a.until_empty);
        runs.spawn(async move {
            let places = (destinations, sinks, shown);
            Box::pin(one(&config, &outbox, places, owner, &stop, &mut told, until_empty)).await
        });
    }
    let failures = wait_for_all(&mut runs, || {
        told.send_replace(true);
        stop.drain();
    })
    .await;
    for sink in &sinks {
        sink.finish().await;
    }
    if !failures.is_empty() {
        return Err(Failures(failures));
    }
    if a.until_empty && *told.borrow() {
        return Err(Failure::new(&codes::NOT_EMPTY, "stopped by a signal before the outbox was empty").into());
    }
    tracing::info!("relay has stopped");
    Ok(Exit::Fine)
}

/// Waits for the runs of all outboxes. When one fails, the others are told to end too.
async fn wait_for_all(runs: &mut JoinSet<Result<Vec<(String, Delivered)>, Failure>>, end: impl Fn()) -> Vec<Failure> {
    let mut failures = vec![];
    while let Some(ended) = runs.join_next().await {
        let failure = match ended {
            Ok(Ok(all)) => {
                for (outbox, Delivered { destination, delivered, failed, forgotten }) in all {
                    tracing::info!(outbox, destination, delivered, failed, forgotten, "delivered");
                }
                continue;
            }
            Ok(Err(failure)) => failure,
            Err(e) => Failure::new(&codes::TASK_LOST, format!("the relay of an outbox ended unexpectedly: {e}")),
        };
        end();
        failures.push(failure);
    }
    failures
}

/// The sinks, in the order of the configuration. One that proves less than is demanded ends it; one that does not
/// answer is the lanes' matter.
async fn sinks(config: &Config) -> Result<Vec<Arc<SharedSink>>, Failures> {
    let mut sinks = vec![];
    let mut failures = vec![];
    for d in &config.destinations {
        let sink = config.sink(d)?;
        if d.require_ack.is_some() {
            match validate::start(d, &sink).await {
                Err(f) if validate::is_too_weak(&f) => failures.push(f),
                Err(f) => tracing::warn!(code = f.code, "{}: what it proves is looked at once it answers", f.message),
                Ok(_) => {}
            }
        }
        sinks.push(Arc::new(SharedSink::new(sink, d.require_ack)));
    }
    if failures.is_empty() { Ok(sinks) } else { Err(Failures(failures)) }
}

fn destinations(config: &Config, sinks: &[Arc<SharedSink>]) -> Vec<outhaul_relay::Destination> {
    config
        .destinations
        .iter()
        .zip(sinks)
        .map(|(d, sink)| outhaul_relay::Destination {
            name: d.name.clone(),
            sink: Arc::new(sink.handle()),
            limits: of_one_outbox(&d.limits, config.outboxes.len()),
            require_ack: d.require_ack,
        })
        .collect()
}

/// What one of several outboxes may send: each has its own lanes, and all of them one rate and one concurrency.
fn of_one_outbox(limits: &LaneLimits, outboxes: usize) -> LaneLimits {
    let share = |all: u64| (all / outboxes.max(1) as u64).max(1);
    let concurrency = limits.concurrency.map(|all| (all / outboxes.max(1)).max(1));
    LaneLimits { rate_milli: limits.rate_milli.map(share), concurrency, ..limits.clone() }
}

async fn one(
    config: &Config,
    outbox: &Outbox,
    (destinations, sinks, shown): (Vec<outhaul_relay::Destination>, Vec<Arc<SharedSink>>, Watch),
    owner: String,
    stop: &Stop,
    told: &mut watch::Receiver<bool>,
    until_empty: bool,
) -> Result<Vec<(String, Delivered)>, Failure> {
    let Some(store) = open(outbox, told, until_empty).await? else { return Ok(vec![]) };
    let relay = &config.relay;
    let maintenance = relay.prune.then(|| Maintenance {
        retention: Duration::from_millis(relay.retention_ms),
        merge_after: Duration::from_millis(relay.merge_after_ms),
        export: relay.export.clone(),
        ..Maintenance::default()
    });
    // A script that empties the outbox compares nothing.
    let schedule = (!until_empty).then(|| Schedule {
        config: config.clone(),
        outbox: outbox.clone(),
        store: store.clone(),
        sinks,
        owner: owner.clone(),
        stop: stop.clone(),
    });
    // It ends with the engine too, whatever made that end.
    let ends = watch::Sender::new(false);
    let told_or_ended = ends.subscribe();
    let comparing = schedule.map(|schedule| tokio::spawn(schedule.run(told_or_ended)));
    let engine = outhaul_relay::Outbox {
        name: outbox.name.clone(),
        store,
        destinations,
        routes: config.routes(),
        settings: relay.settings.clone(),
        owner,
        until_empty,
        shutdown_limit_ms: relay.shutdown_limit_ms,
        maintenance,
        transactions: outbox.transactions.clone(),
        watch: Some(shown),
    };
    let running = async {
        let mut running = std::pin::pin!(outhaul_relay::run(vec![engine], stop.clone()));
        tokio::select! {
            ended = &mut running => ended,
            _ = async { told.wait_for(|told| *told).await.is_ok() } => {
                ends.send_replace(true);
                running.await
            }
        }
    };
    let report = Box::pin(running).await.map_err(failure);
    ends.send_replace(true);
    if let Some(mut comparing) = comparing
        && tokio::time::timeout(END_LIMIT, &mut comparing).await.is_err()
    {
        comparing.abort();
    }
    let report = report?;
    Ok(report.outboxes.into_iter().flat_map(|(name, all)| all.into_iter().map(move |d| (name.clone(), d))).collect())
}

fn watch(config: &Config, outbox: &Outbox) -> Watch {
    let limit = |ms: u64| Duration::from_millis(ms);
    let statement =
        outbox.store.statement_timeout + outbox.store.connect_timeout + limit(config.relay.settings.lease_ttl_ms);
    let limits = WatchLimits::default();
    // A call that its own limits allow is never given up.
    let limits = WatchLimits { answer: limits.answer.max(statement * 2), ..limits };
    Watch::with_limits(&outbox.name, config.destinations.iter().map(|d| d.name.clone()).collect(), limits)
}

/// Opens the database, as soon as it answers. None: told to stop before.
async fn open(
    outbox: &Outbox,
    told: &mut watch::Receiver<bool>,
    until_empty: bool,
) -> Result<Option<Arc<dyn Store>>, Failure> {
    let opening = async {
        let mut wait = OPEN_BACKOFF.0;
        let mut tries = 0u32;
        loop {
            let error = match outhaul_store::open(outbox.store.clone()).await {
                Ok(store) if outbox.store.status.is_some() => return Ok(Some(store)),
                Ok(store) => match outhaul_store::refuse_unfinished_migration(&*store).await {
                    Ok(()) => return Ok(Some(store)),
                    Err(e) => {
                        store.close().await;
                        e
                    }
                },
                Err(e) => e,
            };
            tries += 1;
            if !error.kind.passes() || (until_empty && tries >= SCRIPT_TRIES) {
                return Err(of_outbox(error.into(), outbox));
            }
            if tries.is_power_of_two() {
                let (code, remedy) = (error.kind.code(), error.kind.remedy());
                tracing::warn!(outbox = outbox.name, code, tries, remedy, "database: {}", error.message);
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(OPEN_BACKOFF.1);
        }
    };
    tokio::select! {
        opened = opening => opened,
        _ = told.wait_for(|told| *told) => Ok(None),
    }
}

fn failure(e: RelayError) -> Failure {
    let (code, remedy) = (e.code(), e.remedy());
    let message = match e {
        RelayError::Store { outbox, error } => format!("outbox {outbox}: {}", error.message),
        // The code stands in front of the line already.
        other => {
            let text = other.to_string();
            text.strip_prefix(code).map_or_else(|| text.clone(), |rest| rest.trim_start().to_owned())
        }
    };
    Failure { code: code.into(), message, remedy: remedy.into(), blame: Blame::Failure }
}

/// The first SIGTERM or SIGINT drains and says so in `told`, the second stops at once.
pub(super) fn watch_signals(stop: Stop, told: Arc<watch::Sender<bool>>) -> Result<(), Failure> {
    let mut signals = Signals::new().map_err(|e| Failure::new(&codes::SYSTEM, format!("watching signals: {e}")))?;
    tokio::spawn(async move {
        let name = signals.next().await;
        tracing::info!(signal = name, "draining; a second signal stops at once");
        told.send_replace(true);
        stop.drain();
        let name = signals.next().await;
        tracing::warn!(signal = name, "stopping at once; what was in flight is sent again by the next owner");
        stop.now();
    });
    Ok(())
}

#[cfg(unix)]
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    pub(super) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
pub(super) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    pub(super) async fn next(&mut self) -> &'static str {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outboxes_share_the_limits_of_a_destination() {
        let limits = LaneLimits { rate_milli: Some(500_000), concurrency: Some(8), ..LaneLimits::default() };
        let of = |outboxes| of_one_outbox(&limits, outboxes);
        assert_eq!(of(1), limits);
        assert_eq!((of(3).rate_milli, of(3).concurrency), (Some(166_666), Some(2)));
        assert_eq!(of(9).concurrency, Some(1), "each must get on");
        assert_eq!(of_one_outbox(&LaneLimits::default(), 3), LaneLimits::default());
    }
}
