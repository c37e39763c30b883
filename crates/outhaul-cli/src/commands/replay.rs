//! `outhaul replay`: what the log still holds is delivered once more, beside whatever relays run.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outhaul_core::act::{ActNumber, ActState, PositionRange, Selector, Verb};
use outhaul_core::message::Position;
use outhaul_relay::Stop;
use outhaul_relay::replay::{
    Counted, LeftOut, Replay as Work, ReplayError, ReplayShard, ReplayStand, begin_of, replay,
};
use outhaul_sink::Sink;
use outhaul_store::{ActRecord, ActsWanted, NewAct, ShardStatus, Store};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::shared_sink::SharedSink;
use super::{act, of_outbox, open, owner, relay};
use crate::arguments::{Point, Replay};
use crate::config::{self, Config, Destination, Outbox};
use crate::failure::{Exit, Failure, Outcome};
use crate::measure::span_text;
use crate::{codes, output, timestamp};

/// Messages left out that are told one by one.
const MOST_TOLD: u64 = 100;
/// How often it is said how far it has got: to a person, and to a log.
const TELL_EVERY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Orders a replay, or goes on with one, and carries it out. Exit code 3 if something was left out, or was pruned.
///
/// # Errors
/// There is no such destination, shard, place or replay; it was stopped, or gave up; the database's.
pub async fn run(a: &Replay, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let result = Box::pin(on(&store, a, &config, outbox, json)).await;
    store.close().await;
    Ok(result.map_err(|f| of_outbox(f, outbox))?)
}

async fn on(store: &Arc<dyn Store>, a: &Replay, config: &Config, outbox: &Outbox, json: bool) -> Result<Exit, Failure> {
    let plan = match a.resume {
        Some(number) => resumed(store, ActNumber(number)).await?,
        None => planned(store, a, config).await?,
    };
    let destination = destination(config, &plan.destination)?;
    let sink = SharedSink::new(config.sink(destination)?, destination.require_ack);
    let begins_late = plan.begins_late;
    let mut work = Work {
        store: store.clone(),
        destination: outhaul_relay::Destination {
            name: destination.name.clone(),
            sink: Arc::new(sink.handle()),
            limits: destination.limits.clone(),
            require_ack: destination.require_ack,
        },
        names: config.destinations.iter().map(|d| d.name.clone()).collect(),
        routes: config.routes(),
        number: plan.number.unwrap_or_default(),
        runner: owner(config.relay.instance.as_deref()),
        selector: plan.selector,
        shards: plan.shards,
        give_up_after: a.give_up_after.map(Duration::from_millis),
    };
    warn(&work, destination, config).await?;
    let left = Told::default();
    if a.dry_run {
        let counted = work.count(&|l| left.tell(l)).await?;
        return Ok(show_count(&counted, &work, json)?.or_attention(begins_late));
    }
    usable(destination, &sink).await?;
    if plan.number.is_none() {
        work.number = store.order(&order(&work, a)).await?;
    }
    if !store.take_replay(work.number, &work.runner).await? {
        return Err(not_resumed(work.number, "it is over"));
    }
    eprintln!("replay {} into {}: it begins", work.number, destination.name);
    let (number, name) = (work.number, destination.name.clone());
    let stop = Stop::new();
    relay::watch_signals(stop.clone(), Arc::new(watch::Sender::new(false)))?;
    let stand = watch::Sender::new(ReplayStand::default());
    let telling = tokio::spawn(tell(format!("replay {number} into {name}"), stand.subscribe()));
    let ended = Box::pin(replay(work, &stop, &stand, &|l| left.tell(l))).await;
    telling.abort();
    sink.finish().await;
    left.rest();
    let stand = ended.map_err(|e| failure(e, number, outbox))?;
    Ok(show_end(store, number, &stand, json).await?.or_attention(begins_late))
}

fn order(work: &Work, a: &Replay) -> NewAct {
    NewAct {
        verb: Verb::Replay,
        destination: Some(work.destination.name.clone()),
        shards: work.shards.iter().map(|s| s.shard).collect(),
        selector: work.selector.clone(),
        ranges: work.shards.iter().map(|s| (s.shard, s.range)).collect::<BTreeMap<_, _>>(),
        message_id: None,
        edit: None,
        actor: act::actor(a.actor.as_deref()),
        why: a.why.clone().unwrap_or_default(),
    }
}

// ---- what is asked for ---------------------------------------------------------------------------------------------

/// What is to be replayed. No number: it is not ordered yet.
struct Plan {
    number: Option<ActNumber>,
    destination: String,
    selector: Selector,
    shards: Vec<ReplayShard>,
    /// Some of what is asked for is not in the log any more.
    begins_late: bool,
}

fn destination<'a>(config: &'a Config, name: &str) -> Result<&'a Destination, Failure> {
    let Some(found) = config.destinations.iter().find(|d| d.name == name) else {
        let what = format!("no destination {name} is configured; a replay delivers to one of the configuration");
        let names: Vec<&str> = config.destinations.iter().map(|d| d.name.as_str()).collect();
        let remedy = match names.is_empty() {
            true => "name a configuration file with destinations: `--config FILE`".to_owned(),
            false => format!("there are: {}", names.join(", ")),
        };
        return Err(Failure::new(&codes::NOTHING_THERE, what).remedy(remedy));
    };
    if config.routes.iter().any(|route| route.goes_to(name)) {
        return Ok(found);
    }
    let none = Failure::new(&codes::NOWHERE_TO_DELIVER, format!("no route leads to destination {name}"));
    Err(none.remedy(format!("add a [[route]] whose `to` names {name}: it says which topics belong there")))
}

async fn planned(store: &Arc<dyn Store>, a: &Replay, config: &Config) -> Result<Plan, Failure> {
    let name = a.destination.clone().unwrap_or_default();
    destination(config, &name)?;
    let bad = |what: String| Failure::new(&codes::BAD_VALUE, what);
    let from = a.from.unwrap_or(Point::Beginning);
    if from == Point::Now || a.to == Point::Beginning {
        return Err(bad("--from takes no `now`, and --to no `beginning`".into()));
    }
    let status = store.status().await?;
    let wanted = wanted(&status, a)?;
    let is_position = |p: Point| matches!(p, Point::Position(_));
    if wanted.len() > 1 && (is_position(from) || is_position(a.to)) {
        return Err(bad(format!(
            "a position is one of a shard, and there are {}: name it with --shard N",
            wanted.len()
        )));
    }
    let time = |p: Point| if let Point::Time(us) = p { Some(us) } else { None };
    let selector = Selector {
        key: a.key.clone(),
        topic: a.topic.clone(),
        rate_milli: a.rate.map_or(0, |n| n * 1_000),
        created_from_us: time(from),
        created_before_us: time(a.to),
        fill: a.fill,
        ..Selector::default()
    };
    let (mut shards, mut begins_late) = (Vec::new(), false);
    for s in wanted {
        let end = s.log_end;
        let checked = |p: u64, what: &str| {
            let beyond = || bad(format!("{what} {p} lies behind the end of the log of shard {}, {end}", s.shard));
            if p > end.0 { Err(beyond()) } else { Ok(Position(p)) }
        };
        let to = if let Point::Position(p) = a.to { checked(p, "--to")? } else { end };
        let first = match from {
            Point::Position(p) => checked(p, "--from")?,
            // What was pruned before is not part of what the log holds.
            _ => {
                let chunk = store.read_log(s.shard, Position(0), 1).await?.into_iter().next();
                let first = chunk.as_ref().map_or(end, |chunk| chunk.base.min(end));
                match (from, chunk) {
                    (Point::Time(us), chunk) => {
                        let begins_us = chunk.as_ref().map(|c| c.created_at_us.0);
                        if first > Position(0) && begins_us.is_none_or(|begins| begins > us) {
                            begins_late = true;
                            let begins = begins_us.map_or_else(
                                || "the log is empty: what was in it is not any more".to_owned(),
                                |us| {
                                    let oldest = timestamp::format_us(us);
                                    format!(
                                        "the log begins with messages of {oldest}: older ones are not in it any more"
                                    )
                                },
                            );
                            eprintln!("{} shard {}: {begins}", codes::REPLAY_PRUNED.code, s.shard);
                        }
                        begin_of(store, s.shard, PositionRange { from: first, to: to.max(first) }, us).await?
                    }
                    _ => first,
                }
            }
        };
        if to < first && is_position(a.to) && is_position(from) {
            return Err(bad(format!("--to {to} lies before --from {first}")));
        }
        let range = PositionRange { from: first, to: to.max(first) };
        shards.push(ReplayShard { shard: s.shard, range, next: first, done: 0, left: 0 });
        if a.to == Point::Now && s.lanes.lanes.iter().all(|(lane, _)| lane.destination != name) {
            eprintln!(
                "shard {}: the relay has no lane to {name} yet. What is moved into the log before it has one is in neither: \
                 start the relay with this configuration first, then replay",
                s.shard
            );
        }
    }
    Ok(Plan { number: None, destination: name, selector, shards, begins_late })
}

fn wanted<'a>(status: &'a [ShardStatus], a: &Replay) -> Result<Vec<&'a ShardStatus>, Failure> {
    if let Some(none) = a.shard.iter().find(|n| status.iter().all(|s| s.shard.0 != **n)) {
        let what = format!("there is no shard {none}: there are {}", status.len());
        return Err(Failure::new(&codes::NOTHING_THERE, what));
    }
    Ok(status.iter().filter(|s| a.shard.is_empty() || a.shard.contains(&s.shard.0)).collect())
}

fn not_resumed(number: ActNumber, why: &str) -> Failure {
    Failure::new(&codes::NOT_RESUMED, format!("there is no replay {number} to go on with: {why}"))
}

async fn resumed(store: &Arc<dyn Store>, number: ActNumber) -> Result<Plan, Failure> {
    let records = store.acts(&ActsWanted::Numbers(vec![number])).await?;
    let Some(first) = records.first() else { return Err(not_resumed(number, "no act has this number")) };
    if first.act.verb != Verb::Replay {
        return Err(not_resumed(number, &format!("it is a {}", first.act.verb.as_str())));
    }
    let open: Vec<&ActRecord> = records.iter().filter(|r| r.state == ActState::Unfinished).collect();
    let Some(one) = open.first() else { return Err(not_resumed(number, "it is over")) };
    let newer = || not_resumed(number, "a newer version ordered it, and this one cannot read what it is about");
    let shard = |r: &&ActRecord| {
        let range = r.act.selector.as_ref()?.range?;
        Some(ReplayShard { shard: r.act.shard, range, next: r.act.next, done: r.act.done, left: r.act.left })
    };
    let shards: Option<Vec<ReplayShard>> = open.iter().map(shard).collect();
    let selector = one.act.selector.clone().map(|s| Selector { range: None, ..s });
    Ok(Plan {
        number: Some(number),
        destination: one.act.destination.clone().ok_or_else(newer)?,
        selector: selector.ok_or_else(newer)?,
        shards: shards.ok_or_else(newer)?,
        begins_late: false,
    })
}

// ---- what is said before it begins ---------------------------------------------------------------------------------

/// Says what is not in the log any more, and what an inbox makes of messages that it may know.
async fn warn(work: &Work, d: &Destination, config: &Config) -> Result<(), Failure> {
    let begins = work.begins().await?;
    for s in work.shards.iter().filter(|s| s.next < s.range.to) {
        let begin = begins.iter().find(|(shard, ..)| *shard == s.shard);
        let at = begin.map_or(s.range.to, |(_, at, _)| *at);
        if at > s.next {
            let (shard, next, gone) = (s.shard, s.next, at.0 - s.next.0);
            eprintln!(
                "{} shard {shard}: the log does not hold positions {next} to {at} any more ({gone}): they are not replayed",
                codes::REPLAY_PRUNED.code
            );
        }
    }
    for pause in work.store.pauses().await? {
        let this = pause.destination.as_ref().is_none_or(|name| *name == d.name);
        if this && work.shards.iter().any(|s| s.shard == pause.shard) {
            let (shard, by, why) = (pause.shard, &pause.actor, &pause.why);
            eprintln!("shard {shard}: {} is paused for the relay by {by}: {why}. A replay sends all the same", d.name);
        }
    }
    let oldest = begins.iter().map(|(.., created_us)| *created_us).min();
    if let (Some(oldest), "inbox") = (oldest, d.kind.as_str()) {
        let oldest = timestamp::format_us(oldest.max(work.selector.created_from_us.unwrap_or(oldest)));
        eprintln!(
            "destination {} is an inbox: ids that its inbox_message still has are ignored, so that nothing happens twice; ids whose \
             rows were deleted are taken as new, and the consumer applies them again. The oldest messages are of {oldest}: see \
             that rows are kept for longer than that",
            d.name
        );
    }
    if config.relay.prune && work.selector.rate_milli > 0 {
        let positions: u64 = work.shards.iter().map(|s| s.range.to.0.saturating_sub(s.next.0)).sum();
        let at_most_ms = positions.saturating_mul(1_000_000) / work.selector.rate_milli;
        if at_most_ms > config.relay.retention_ms {
            let (takes, kept) = (span_text(at_most_ms), span_text(config.relay.retention_ms));
            eprintln!(
                "at this rate it takes up to {takes}, and the log is pruned after {kept}: the end may be gone before it is reached"
            );
        }
    }
    Ok(())
}

/// A destination that cannot be used as it is configured is told before anything is ordered. One that does not answer
/// is waited for.
pub(super) async fn usable(d: &Destination, sink: &SharedSink) -> Result<(), Failure> {
    match tokio::time::timeout(Duration::from_millis(d.limits.send_limit_ms), sink.start()).await {
        Ok(Err(e)) if !e.passes => Err(Failure::from(e).while_doing(format_args!("destination {}", d.name))),
        Ok(Err(e)) => {
            eprintln!("destination {} does not answer yet, and is waited for: {e}", d.name);
            Ok(())
        }
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

/// Tells what is left out, each of the first ones by itself.
#[derive(Default)]
struct Told(AtomicU64);

impl Told {
    fn tell(&self, left: &LeftOut) {
        if self.0.fetch_add(1, Ordering::Relaxed) < MOST_TOLD {
            let LeftOut { shard, position, id, reason } = left;
            let what = format!("left out: {id} (shard {shard} number {position}): {} {}", reason.code, reason.text);
            eprintln!("{}", output::plain(what));
        }
    }

    fn rest(&self) {
        let more = self.0.load(Ordering::Relaxed).saturating_sub(MOST_TOLD);
        if more > 0 {
            eprintln!("left out: {more} more");
        }
    }
}

// ---- what is said while it runs, and at the end --------------------------------------------------------------------

/// Says how far it has got, now and then.
async fn tell(what: String, stand: watch::Receiver<ReplayStand>) {
    let terminal = std::io::stderr().is_terminal();
    let every = if terminal { TELL_EVERY.0 } else { TELL_EVERY.1 };
    let mut before: Option<(Instant, u64, u64)> = None;
    loop {
        tokio::time::sleep(every).await;
        let (now, s) = (Instant::now(), stand.borrow().clone());
        let since = before.replace((now, s.positions_done, s.delivered));
        let of = |n: u64, then: u64, at: Instant| {
            n.saturating_sub(then) as f64 / now.duration_since(at).as_secs_f64().max(0.001)
        };
        let (at, positions, delivered) = since.unwrap_or((now.checked_sub(every).unwrap_or(now), 0, 0));
        let speed = of(s.positions_done, positions, at);
        let left = s.positions.saturating_sub(s.positions_done);
        let estimate =
            (speed >= 1.0).then(|| format!(", about {} left", span_text((left as f64 / speed * 1e3) as u64)));
        let waits = s.waits_for.as_ref().map(|r| format!("; it waits: {} {}", r.code, r.text)).unwrap_or_default();
        let line = format!(
            "{what}: {} of {} positions, {} delivered, {} left out, {:.0}/s{}{waits}",
            s.positions_done,
            s.positions,
            s.delivered,
            s.left,
            of(s.delivered, delivered, at),
            estimate.unwrap_or_default()
        );
        eprintln!("{line}");
    }
}

fn show_count(counted: &Counted, work: &Work, json: bool) -> Result<Exit, Failure> {
    let (first, last) = counted
        .created_us
        .map_or((None, None), |(first, last)| (Some(timestamp::format_us(first)), Some(timestamp::format_us(last))));
    let Counted { messages, bytes, left, pruned, .. } = counted;
    if json {
        output::json(&json!({
            "dry_run": true, "destination": work.destination.name, "messages": messages, "payload_bytes": bytes,
            "left": left, "pruned": pruned, "oldest": first, "newest": last,
        }))?;
    } else {
        let of = first.zip(last).map(|(first, last)| format!(", created {first} to {last}")).unwrap_or_default();
        output::line(format_args!(
            "{messages} messages would be sent to {} ({bytes} bytes of payload{of}), {left} left out; {pruned} positions are \
             pruned",
            work.destination.name
        ))?;
    }
    Ok(if *left > 0 || *pruned > 0 { Exit::Attention } else { Exit::Fine })
}

async fn show_end(store: &Arc<dyn Store>, number: ActNumber, stand: &ReplayStand, json: bool) -> Result<Exit, Failure> {
    let report = act::joined(store.acts(&ActsWanted::Numbers(vec![number])).await?);
    let left = report.iter().any(|r| r.left > 0);
    let pruned = stand.pruned;
    if json {
        output::json(&json!({ "acts": report, "positions": stand.positions, "pruned": pruned }))?;
    } else {
        output::lines(report.iter().map(act::ActReport::sentence))?;
        if pruned > 0 {
            eprintln!("{} {pruned} positions were pruned before they were reached", codes::REPLAY_PRUNED.code);
        }
    }
    Ok(if left || pruned > 0 { Exit::Attention } else { Exit::Fine })
}

pub(super) fn failure(error: ReplayError, number: ActNumber, outbox: &Outbox) -> Failure {
    let which = format!(" --outbox {}", outbox.name);
    let resume = format!("`outhaul replay --resume {number}{which}`");
    match error {
        ReplayError::Store(e) => {
            let remedy = format!("{}; then go on with {resume}", e.kind.remedy());
            Failure::from(e).while_doing(format_args!("replay {number}")).remedy(remedy)
        }
        ReplayError::Stopped => {
            let what = format!("replay {number} was stopped before its end; how far it has got is stored");
            Failure::new(&codes::REPLAY_STOPPED, what).remedy(format!("go on where it stopped with {resume}"))
        }
        ReplayError::Taken => Failure::new(
            &codes::REPLAY_TAKEN,
            format!("another process carries out replay {number} by now, or it is over"),
        ),
        ReplayError::GivenUp(limit, reason) => {
            let waited = span_text(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
            let what = format!("replay {number}: nothing has got on for {waited}: {} {}", reason.code, reason.text);
            Failure::new(&codes::REPLAY_GIVEN_UP, what)
                .remedy(format!("see to what the reason names, then go on with {resume}"))
        }
        other => Failure::new(&codes::REPLAY_STOPPED, other.to_string()).remedy(format!("go on with {resume}")),
    }
}
