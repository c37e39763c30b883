//! `outhaul inbox`: reads topics of RocketMQ into the table `inbox_message`, until told to stop.

use std::time::Duration;

use outhaul_inbox::{Begin, Counts, Health, InboxDaemon, InboxError, InboxOptions, Topic};
use outhaul_sink::rocketmq::RocketMqConfig;
use outhaul_store::inbox::{InboxCounts, Place};
use outhaul_store::{StoreError, StoreErrorKind};
use serde::Serialize;
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval};

use super::relay::Signals;
use super::{checkback, health_file};
use crate::arguments::{self, From};
use crate::config::{self, Inbox, Sources};
use crate::failure::{Blame, Exit, Failure, Failures, Outcome};
use crate::{codes, output, version};

/// How often it looks whether messages come in, and writes so.
const LOOK: Duration = Duration::from_secs(1);
/// So many looks pass between two counts of the table.
const LOOKS_PER_COUNT: u32 = 10;

/// What the health file holds, and the last line of output.
#[derive(Debug, Serialize)]
struct State<'a> {
    healthy: bool,
    state: &'a str,
    group: &'a str,
    consumer: &'a str,
    queues: usize,
    behind: u64,
    stored: u64,
    duplicates: u64,
    aside: u64,
    lost: u64,
    pruned: u64,
    waiting: u64,
    dead: u64,
    oldest_seconds: u64,
}

impl<'a> State<'a> {
    const fn of(inbox: &'a Inbox, health: &'a Health, counts: Counts, table: InboxCounts) -> Self {
        let Counts { stored, duplicates, aside, lost, pruned } = counts;
        let InboxCounts { waiting, dead, oldest_seconds } = table;
        Self {
            healthy: health.healthy,
            state: health.text.as_str(),
            group: inbox.group.as_str(),
            consumer: inbox.consumer.as_str(),
            queues: health.queues,
            behind: health.behind,
            stored,
            duplicates,
            aside,
            lost,
            pruned,
            waiting,
            dead,
            oldest_seconds,
        }
    }
}

/// Reads until SIGTERM or SIGINT.
///
/// # Errors
/// It cannot start as configured.
pub async fn run(a: &arguments::Inbox, json: bool) -> Outcome {
    let inbox = chosen(a)?;
    if a.status {
        return status(&inbox, json).await;
    }
    let mut signals =
        Signals::new().map_err(|e| Failure::new(&codes::SYSTEM, format!("signals cannot be received: {e}")))?;
    let daemon = tokio::select! {
        started = InboxDaemon::start(options(&inbox)?) => started.map_err(failure)?,
        signal = signals.next() => {
            tracing::info!(signal, "told to stop before the start");
            return Ok(Exit::Fine);
        }
    };
    tracing::info!(
        version = version::SHORT,
        inbox = inbox.name,
        group = inbox.group,
        consumer = inbox.consumer,
        topics = inbox.topics.join(", "),
        "reading into the inbox"
    );
    let file = a.health_file.as_deref();
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut told, mut table, mut since_count): (Option<Health>, _, _) =
        (None, InboxCounts::default(), LOOKS_PER_COUNT);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            signal = signals.next() => {
                tracing::info!(signal, "leaving the group");
                break;
            }
        }
        let health = daemon.health();
        if told.as_ref().is_none_or(|told| told.healthy != health.healthy) {
            if health.healthy {
                tracing::info!("messages can come in: {}", health.text);
            } else {
                tracing::warn!(code = "OUT-5057", "messages do not come in: {}", health.text);
            }
        }
        if let Some(file) = file {
            since_count += 1;
            if since_count >= LOOKS_PER_COUNT {
                since_count = 0;
                table = daemon.table().await.unwrap_or(table);
            }
            health_file::write(file, &State::of(&inbox, &health, daemon.counts(), table));
        }
        told = Some(health);
    }
    if let Some(file) = file {
        // Whoever looks must not take it for alive.
        _ = std::fs::remove_file(file);
    }
    let counts = daemon.counts();
    daemon.stop().await;
    let stopped = Health { healthy: true, text: "stopped".into(), queues: 0, behind: 0 };
    if json {
        output::json(&State::of(&inbox, &stopped, counts, table))?;
    } else {
        output::line(format_args!(
            "group {}: {} stored, {} duplicates, {} put aside, {} lost, {} pruned",
            inbox.group, counts.stored, counts.duplicates, counts.aside, counts.lost, counts.pruned
        ))?;
    }
    Ok(Exit::Fine)
}

/// What is in the tables.
async fn status(inbox: &Inbox, json: bool) -> Outcome {
    let store = outhaul_store::inbox::open(inbox.store.clone(), 1).await.map_err(of_store)?;
    let found = async {
        store.inspect_places().await?;
        Ok::<_, StoreError>((store.counts(&inbox.consumer).await?, store.places(&inbox.consumer).await?))
    };
    let found = found.await;
    store.close().await;
    let (counts, mut places) = found.map_err(of_store)?;
    places.sort_by(|a, b| a.source.cmp(&b.source));
    if json {
        let queues: Vec<_> = places
            .iter()
            .map(|Place { source, next_offset, stored_at_ms }| {
                json!({ "queue": source, "next_offset": next_offset, "stored_at_ms": stored_at_ms })
            })
            .collect();
        output::json(&json!({
            "inbox": inbox.name, "consumer": inbox.consumer, "waiting": counts.waiting, "dead": counts.dead,
            "oldest_seconds": counts.oldest_seconds, "queues": queues,
        }))?;
    } else {
        let head = format!(
            "{}: {} waiting, the oldest for {} s, {} dead",
            inbox.consumer, counts.waiting, counts.oldest_seconds, counts.dead
        );
        let queues = places.iter().map(|p| format!("{} next offset {}", p.source, p.next_offset));
        output::lines(std::iter::once(head).chain(queues))?;
    }
    Ok(if counts.dead > 0 { Exit::Attention } else { Exit::Fine })
}

/// The inbox that the command line describes or names.
fn chosen(a: &arguments::Inbox) -> Result<Inbox, Failures> {
    let to = a.to.as_slice();
    let config = config::load(Sources { to, inbox: true, ..a.source.sources() })?;
    if a.to.is_none() {
        return Ok(config.inbox(a.inbox.as_deref())?.clone());
    }
    let destination = checkback::destination(&config, None)?;
    let group = a.group.clone().unwrap_or_default();
    let standard = InboxOptions::new(
        RocketMqConfig::new("localhost:9876").client_options().map_err(Failure::from)?,
        config.outbox(None)?.store.clone(),
        "",
        "",
    );
    Ok(Inbox {
        name: destination.name.clone(),
        broker: RocketMqConfig::read(&destination.name, &destination.settings).map_err(Failure::from)?,
        store: standard.database.clone(),
        create_tables: standard.create_tables,
        connections: standard.connections,
        consumer: a.consumer.clone().unwrap_or_else(|| group.clone()),
        group,
        topics: a.topic.clone(),
        begin: match a.from {
            Some(From::End) => Begin::End,
            Some(From::Group) => Begin::Group,
            Some(From::Beginning) | None => Begin::Beginning,
        },
        block_key: true,
        max_batch: standard.max_batch,
        max_batch_bytes: standard.max_batch_bytes,
        memory_limit: standard.max_buffered_bytes,
        retention: standard.retention,
    })
}

pub(super) fn options(inbox: &Inbox) -> Result<InboxOptions, Failure> {
    let brokers = inbox.broker.client_options()?;
    let mut options = InboxOptions::new(brokers, inbox.store.clone(), &inbox.consumer, &inbox.group);
    options.topics = inbox.topics.iter().map(|text| Topic::parse(text)).collect();
    options.begin = inbox.begin;
    options.connections = inbox.connections;
    options.create_tables = inbox.create_tables;
    options.max_batch = inbox.max_batch;
    options.max_batch_bytes = inbox.max_batch_bytes;
    options.max_buffered_bytes = inbox.memory_limit;
    options.retention = inbox.retention;
    Ok(options)
}

/// With what to do about an inbox, where that is not what to do about an outbox.
fn of_store(e: StoreError) -> Failure {
    let remedy = match e.kind {
        StoreErrorKind::NotInitialised => {
            "run `outhaul init --inbox`, or hand the output of `outhaul init --inbox --print` to your DBA"
        }
        StoreErrorKind::Permission => {
            "grant its user SELECT, INSERT and UPDATE on inbox_message and inbox_queue, with `retention` DELETE on the first"
        }
        _ => return e.into(),
    };
    Failure::from(e).remedy(remedy)
}

pub(super) fn failure(e: InboxError) -> Failure {
    if let InboxError::Store(e) = e {
        return of_store(e);
    }
    let blame = if matches!(e, InboxError::Options(_)) { Blame::Usage } else { Blame::Failure };
    let text = e.to_string();
    let message = text.strip_prefix(e.code()).map_or(text.as_str(), str::trim_start).to_owned();
    Failure { code: e.code().into(), message, remedy: e.remedy().into(), blame }
}
