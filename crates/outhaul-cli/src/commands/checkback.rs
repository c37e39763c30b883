//! `outhaul checkback`: answers the check-backs of a producer group from the database, until told to stop.

use std::time::Duration;

use outhaul::transaction::{CheckBackAnswers, Counts, Health, RocketMqConfig, TransactionError, TransactionOptions};
use serde::Serialize;
use tokio::time::{MissedTickBehavior, interval};

use super::health_file;
use super::relay::Signals;
use crate::arguments::CheckBack;
use crate::config::{self, Config, Destination, Sources};
use crate::failure::{Blame, Exit, Failure, Outcome};
use crate::{codes, output, version};

/// Kind of the destinations whose brokers ask.
const KIND: &str = "rocketmq";
/// How often it looks whether it can answer, and writes so.
const LOOK: Duration = Duration::from_secs(1);

/// What the health file holds, and the last line of output.
#[derive(Debug, Serialize)]
struct State<'a> {
    healthy: bool,
    state: &'a str,
    group: &'a str,
    commits: u64,
    rollbacks: u64,
    unknowns: u64,
    foreign: u64,
    untold: u64,
}

impl<'a> State<'a> {
    const fn of(health: &'a Health, group: &'a str, counts: Counts) -> Self {
        let Counts { commits, rollbacks, unknowns, foreign, untold, .. } = counts;
        Self {
            healthy: health.healthy,
            state: health.text.as_str(),
            group,
            commits,
            rollbacks,
            unknowns,
            foreign,
            untold,
        }
    }
}

/// Answers until SIGTERM or SIGINT.
///
/// # Errors
/// It cannot start as configured.
pub async fn run(a: &CheckBack, json: bool) -> Outcome {
    let config = config::load(Sources { to: &a.to, ..a.source.sources() })?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let destination = destination(&config, a.destination.as_deref())?;
    let mut broker = RocketMqConfig::read(&destination.name, &destination.settings)?;
    if let Some(group) = &a.group {
        broker.producer_group.clone_from(group);
    }
    let group = broker.producer_group.clone();
    let mut options = TransactionOptions::of(broker, outbox.store.clone());
    options.plain_halfs = !a.named_only;
    options.retention = outbox.transactions.as_ref().map_or(options.retention, |plan| plan.retention);
    let mut signals =
        Signals::new().map_err(|e| Failure::new(&codes::SYSTEM, format!("signals cannot be received: {e}")))?;
    let answers = tokio::select! {
        started = CheckBackAnswers::start(options) => started.map_err(|e| failure(&e))?,
        signal = signals.next() => {
            tracing::info!(signal, "told to stop before the start");
            return Ok(Exit::Fine);
        }
    };
    tracing::info!(
        version = version::SHORT,
        outbox = outbox.name,
        destination = destination.name,
        group,
        masters = answers.masters(),
        "answering check-backs"
    );
    let file = a.health_file.as_deref();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told: Option<Health> = None;
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            signal = signals.next() => {
                tracing::info!(signal, "leaving the group");
                break;
            }
        }
        let health = answers.health();
        if told.as_ref().is_none_or(|told| told.healthy != health.healthy) {
            if health.healthy {
                tracing::info!("check-backs can be answered: {}", health.text);
            } else {
                tracing::warn!(code = "OUT-4042", "check-backs cannot be answered: {}", health.text);
            }
        }
        if let Some(file) = file {
            health_file::write(file, &State::of(&health, &group, answers.counts()));
        }
        told = Some(health);
    }
    if let Some(file) = file {
        // Whoever looks must not take it for alive.
        _ = std::fs::remove_file(file);
    }
    let counts = answers.counts();
    answers.stop().await;
    let stopped = Health { healthy: true, text: "stopped".into() };
    if json {
        output::json(&State::of(&stopped, &group, counts))?;
    } else {
        output::line(format_args!(
            "group {group}: {} commits, {} rollbacks, {} unknown",
            counts.commits, counts.rollbacks, counts.unknowns
        ))?;
    }
    Ok(Exit::Fine)
}

/// The one that was named, or the only one of the kind.
pub(super) fn destination<'a>(config: &'a Config, name: Option<&str>) -> Result<&'a Destination, Failure> {
    let all: Vec<&Destination> = config.destinations.iter().filter(|d| d.kind == KIND).collect();
    let names = || all.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, all.as_slice()) {
        (None, [only]) => Ok(only),
        (None, []) => Err(Failure::new(&codes::NOWHERE_TO_DELIVER, "no destination of kind rocketmq is configured")
            .remedy("add one to the configuration, or use `--to rocketmq://HOST:PORT`")),
        (None, _) => Err(Failure::new(&codes::UNKNOWN_DESTINATION, format!("there are several: {}", names()))
            .remedy("name one with `--destination NAME`")),
        (Some(name), all) => all.iter().copied().find(|d| d.name == name).ok_or_else(|| {
            let what = format!("no destination of kind rocketmq is named {name}; there are: {}", names());
            Failure::new(&codes::UNKNOWN_DESTINATION, what)
        }),
    }
}

fn failure(e: &TransactionError) -> Failure {
    if let TransactionError::Store(e) = e {
        return e.clone().into();
    }
    let blame = if matches!(e, TransactionError::Options(_)) { Blame::Usage } else { Blame::Failure };
    let text = e.to_string();
    let message = text.strip_prefix(e.code()).map_or(text.as_str(), str::trim_start).to_owned();
    Failure { code: e.code().into(), message, remedy: e.remedy().into(), blame }
}
