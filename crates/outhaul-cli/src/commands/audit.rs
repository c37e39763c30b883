//! `outhaul audit ID`: what became of one message.

use std::collections::BTreeMap;
use std::sync::Arc;

use outhaul_core::act::{ActNumber, Touched, Verb};
use outhaul_core::chunk::DestinationNames;
use outhaul_core::message::Message;
use outhaul_core::parked::ParkedEntry;
use outhaul_core::receipt::{LaneState, Receipt};
use outhaul_core::route::matches;
use outhaul_core::transaction::TransactionState;
use outhaul_store::{ActRecord, ActsWanted, Store, StoreError, TransactionRecord};
use serde::Serialize;
use serde_json::json;

use super::act::{ActReport, joined};
use super::locate::{Place, locate};
use super::search::{Found, Wanted, search};
use super::{chosen, of_outbox, open};
use crate::arguments::Audit;
use crate::codes;
use crate::config::{self, Config};
use crate::failure::{Exit, Failure, Outcome};
use crate::output;
use crate::timestamp::{format_us, same_day, time_of_day};

#[derive(Debug, Serialize)]
struct Report {
    id: String,
    topic: String,
    key: Option<String>,
    created_at: String,
    /// Until when it waits in the outbox table: of a scheduled message alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    available_at: Option<String>,
    moved_at: Option<String>,
    /// What a status table says of it, where the log does not have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Marked>,
    shard: u16,
    position: Option<u64>,
    deliveries: Vec<Delivery>,
    /// What operators have done to it, or want done.
    acts: Vec<ActReport>,
    #[serde(skip)]
    times_us: (i64, Option<i64>),
}

#[derive(Debug, Serialize)]
struct Marked {
    value: String,
    sent_at: Option<String>,
}

#[derive(Debug, Serialize)]
struct Delivery {
    destination: String,
    state: &'static str,
    sent_at: Option<String>,
    ack_level: Option<&'static str>,
    receipt: Option<String>,
    attempts: u32,
    reason: Option<String>,
    #[serde(skip)]
    sent_at_us: i64,
}

/// Tells what became of a message; one object or line for each message of the id. Exit code 3 if a destination has it
/// among its dead. Without an id: of all messages that fit.
///
/// # Errors
/// No message has the id; a database's, or the configuration's.
pub async fn run(a: &Audit, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    match &a.id {
        Some(id) => of_id(&config, a, id, json).await,
        None => of_many(&config, a, json).await,
    }
}

async fn of_many(config: &Config, a: &Audit, json: bool) -> Outcome {
    let (mut found, mut attention) = (0usize, false);
    for outbox in chosen(config, a.which.outbox.as_deref())? {
        let wanted = Wanted {
            key: a.key.as_deref(),
            topic: a.topic.as_deref(),
            from_us: a.from,
            to_us: a.to,
            unsent: a.unsent,
            limit: (a.limit as usize).saturating_sub(found),
        };
        let store = open(outbox).await?;
        let told = async {
            let Found { places, more } = search(&store, &wanted).await?;
            Ok::<_, StoreError>((Box::pin(reports_of(&store, places, config)).await?, more))
        };
        let told = told.await.map_err(|e| of_outbox(e.into(), outbox));
        store.close().await;
        let (reports, more) = told?;
        found += reports.len();
        for report in reports {
            attention |= a.unsent || report.deliveries.iter().any(|d| d.state == "dead");
            if json {
                output::json(&report)?;
            } else {
                output::line(sentence(&report))?;
            }
        }
        if more {
            eprintln!("{}: there are more than these {}: --limit N, or a narrower question", outbox.name, a.limit);
        }
    }
    if found == 0 && !json {
        eprintln!("{}", if a.unsent { "nothing waits" } else { "no message fits" });
    }
    Ok(if attention { Exit::Attention } else { Exit::Fine })
}

async fn of_id(config: &Config, a: &Audit, id: &str, json: bool) -> Outcome {
    let mut dead = false;
    let (mut found, mut cancelled) = (0usize, 0usize);
    for outbox in chosen(config, a.which.outbox.as_deref())? {
        let store = open(outbox).await?;
        let located = async { reports_of(&store, locate(&store, id, a.around).await?, config).await };
        let reports = Box::pin(located).await.map_err(|e| of_outbox(e.into(), outbox));
        let acts = store.acts(&ActsWanted::MessageId(id.to_owned())).await.map_err(|e| of_outbox(e.into(), outbox));
        // There is no index on the message's id: what the outbox has is not looked for there too.
        let transactions = match &reports {
            Ok(reports) if reports.is_empty() => store.find_transactions(id).await,
            _ => Ok(vec![]),
        };
        store.close().await;
        for record in transactions.map_err(|e| of_outbox(e.into(), outbox))? {
            found += 1;
            if json {
                output::json(&of_transaction(&record))?;
            } else {
                output::line(transaction_sentence(&record))?;
            }
        }
        for act in joined(acts?).into_iter().filter(|act| act.verb == Verb::Cancel.as_str()) {
            cancelled += 1;
            if json {
                output::json(&json!({ "id": id, "cancelled": true, "acts": [act] }))?;
            } else {
                output::line(format_args!("{id} was cancelled on {} by {}: {}", act.at, act.actor, act.why))?;
            }
        }
        for report in reports? {
            found += 1;
            dead |= report.deliveries.iter().any(|d| d.state == "dead");
            if json {
                output::json(&report)?;
            } else {
                output::line(sentence(&report))?;
            }
        }
    }
    if found == 0 && cancelled == 0 {
        return Err(Failure::new(&codes::NOT_FOUND, format!("no message has the id {id:?}")).into());
    }
    if found > 1 {
        tracing::warn!(found, "several messages have this id");
    }
    Ok(if dead { Exit::Attention } else { Exit::Fine })
}

fn of_transaction(r: &TransactionRecord) -> serde_json::Value {
    json!({
        "id": r.message,
        "transaction": r.transaction,
        "topic": r.topic,
        "state": r.state.name(),
        "created_at": format_us(r.created_at_us),
        "since": r.since_us.map(format_us),
        "receipt": r.receipt,
    })
}

fn transaction_sentence(r: &TransactionRecord) -> String {
    let (id, at) = (&r.message, format_us(r.created_at_us));
    let since = r.since_us.map_or_else(|| "not yet".to_owned(), format_us);
    let topic = r.topic.as_deref().unwrap_or_default();
    let receipt = r.receipt.as_deref().unwrap_or("unknown");
    match r.state {
        TransactionState::Committed => format!(
            "{id} is a transactional message for {topic} whose transaction began on {at} and has committed; no broker has confirmed \
             it; first seen by a relay: {since}"
        ),
        TransactionState::Ended => {
            format!(
                "{id} is a transactional message for {topic}; its broker has confirmed it on {since} (half at {receipt})"
            )
        }
        TransactionState::Sent => {
            format!(
                "{id} is a transactional message for {topic} that went out by the outbox on {since}; the log there is pruned"
            )
        }
        TransactionState::RolledBack => {
            format!("{id} is a transaction that can never commit: a check-back came before its row, on {at}")
        }
    }
}

async fn reports_of(store: &Arc<dyn Store>, places: Vec<Place>, config: &Config) -> Result<Vec<Report>, StoreError> {
    let mut reports = vec![];
    for place in places {
        reports.push(match place {
            Place::Hot { row, due_at_us } => Report {
                available_at: due_at_us.map(format_us),
                id: row.id,
                topic: row.topic,
                key: row.key,
                created_at: format_us(row.created_at_us),
                moved_at: None,
                status: None,
                shard: row.shard.0,
                position: None,
                deliveries: vec![],
                acts: vec![],
                times_us: (row.created_at_us, None),
            },
            Place::Status { row, status, sent_at_us } => Report {
                available_at: None,
                id: row.id,
                topic: row.topic,
                key: row.key,
                created_at: format_us(row.created_at_us),
                moved_at: None,
                status: Some(Marked { value: status, sent_at: sent_at_us.map(format_us) }),
                shard: row.shard.0,
                position: None,
                deliveries: vec![],
                acts: vec![],
                times_us: (row.created_at_us, None),
            },
            Place::Logged { message, destinations, moved_at_us } => Report {
                deliveries: deliveries(store, &message, &destinations).await?,
                acts: acts(store, &message, &destinations, config).await?,
                id: message.id,
                topic: message.topic,
                key: message.key,
                created_at: format_us(message.created_at_us),
                available_at: None,
                moved_at: Some(format_us(moved_at_us)),
                status: None,
                shard: message.shard.0,
                position: Some(message.position.0),
                times_us: (message.created_at_us, Some(moved_at_us)),
            },
            Place::Parked { message, destinations } => Report {
                deliveries: deliveries(store, &message, &destinations).await?,
                acts: acts(store, &message, &destinations, config).await?,
                id: message.id,
                topic: message.topic,
                key: message.key,
                created_at: format_us(message.created_at_us),
                available_at: None,
                moved_at: None,
                status: None,
                shard: message.shard.0,
                position: Some(message.position.0),
                times_us: (message.created_at_us, None),
            },
        });
    }
    Ok(reports)
}

/// What operators have done to a message, and what they want done to it by its id. A cancelled one of the same id is
/// another message.
async fn acts(
    store: &Arc<dyn Store>,
    m: &Message,
    names: &[String],
    config: &Config,
) -> Result<Vec<ActReport>, StoreError> {
    let rows = store.receipts_of(m.shard, m.position).await?;
    let touched = rows.iter().flat_map(|row| &row.acts).filter(|t| t.positions.contains(m.position.0));
    let mut numbers: Vec<ActNumber> = touched.map(|t| t.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let of_position = |r: &ActRecord| {
        let position = r.act.selector.as_ref().and_then(|s| s.position);
        r.act.shard == m.shard && position == Some(m.position)
    };
    let mut records = store.acts(&ActsWanted::Numbers(numbers)).await?;
    let was_routed = |name: &Option<String>| m.destinations.iter().any(|d| Some(names.name(d)) == name.as_deref());
    // A drop names every position of the log.
    records.retain(|r| r.act.shard == m.shard && (r.act.verb != Verb::Drop || was_routed(&r.act.destination)));
    let replays = store.acts(&ActsWanted::Replays(m.shard)).await?;
    records.extend(replays.into_iter().filter(|r| covers(r, m, names, config)));
    let by_id = store.acts(&ActsWanted::MessageId(m.id.clone())).await?.into_iter().filter(of_position);
    for record in by_id {
        if records.iter().all(|r| r.act.number != record.act.number) {
            records.push(record);
        }
    }
    Ok(joined(records))
}

/// Whether a replay has come by a message and delivered it, or left it out: by its selection, and by what was, or is,
/// routed to its destination.
fn covers(record: &ActRecord, m: &Message, names: &[String], config: &Config) -> bool {
    let (Some(selector), Some(destination)) = (&record.act.selector, &record.act.destination) else { return false };
    let was_routed = m.destinations.iter().any(|d| names.name(d) == destination);
    let is_routed = config.routes.iter().any(|r| r.goes_to(destination) && matches(&r.topic, &m.topic));
    let routed = is_routed || was_routed || config.routes.is_empty();
    m.position < record.act.next && selector.fits(m) && routed && !(selector.fill && was_routed)
}

/// What each destination has of a message: those of its route first, then any other that says something of it.
async fn deliveries(store: &Arc<dyn Store>, m: &Message, names: &[String]) -> Result<Vec<Delivery>, StoreError> {
    let parked = store.parked_of(m.shard, m.position).await?;
    let mut receipts: BTreeMap<String, Receipt> = BTreeMap::new();
    let rows = store.receipts_of(m.shard, m.position).await?;
    let skips = rows.iter().flat_map(|row| &row.acts).filter(|t| t.verb == Verb::Skip);
    let of = |t: &&Touched| t.positions.contains(m.position.0);
    let skipped: Vec<String> = skips.filter(of).map(|t| t.destination.clone()).collect();
    let drops = rows.iter().flat_map(|row| &row.acts).filter(|t| t.verb == Verb::Drop);
    let dropped: Vec<String> = drops.filter(of).map(|t| t.destination.clone()).collect();
    for (lane, of_lane) in rows.into_iter().flat_map(|row| row.lanes) {
        for r in of_lane.into_iter().filter(|r| r.position == m.position) {
            // Sent more than once: the newest answer counts, and rows and receipts come in the order of the answers.
            receipts.insert(lane.destination.clone(), r.receipt);
        }
    }
    let status = store.status().await?.into_iter().find(|s| s.shard == m.shard);
    let lanes = status.map(|s| s.lanes.lanes).unwrap_or_default();
    let mut all: Vec<String> = m.destinations.iter().map(|d| names.name(d).to_owned()).collect();
    all.extend(receipts.keys().cloned());
    all.extend(parked.iter().map(|p| p.destination.clone()));
    all.extend(skipped.iter().cloned());
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|name| seen.insert(name.clone()));
    Ok(all
        .into_iter()
        .map(|name| {
            let entry = parked.iter().find(|p| p.destination == name);
            let lane = lanes.iter().map(|(state, _)| state).find(|s| s.destination == name);
            let is_settled = |s: &LaneState| m.position < s.cursor || s.ahead.contains(m.position.0);
            let settled = lane.map_or_else(|| receipts.contains_key(&name), is_settled);
            // What was proven after it was acknowledged stands with the lane, not with the receipt.
            if let (Some(lane), Some(receipt)) = (lane, receipts.get_mut(&name)) {
                receipt.level = lane.level(m.position, receipt.level);
            }
            let mut delivery = delivery(name.clone(), receipts.get(&name), entry, settled);
            if entry.is_none() && skipped.contains(&name) {
                delivery.state = "skipped";
            } else if entry.is_none() && dropped.contains(&name) && !receipts.contains_key(&name) {
                delivery.state = "dropped";
            }
            delivery
        })
        .collect())
}

fn delivery(destination: String, receipt: Option<&Receipt>, parked: Option<&ParkedEntry>, settled: bool) -> Delivery {
    let mut d = Delivery {
        destination,
        state: if settled { "settled" } else { "pending" },
        sent_at: None,
        ack_level: None,
        receipt: None,
        attempts: 0,
        reason: None,
        sent_at_us: 0,
    };
    if let Some(p) = parked {
        d.state = p.state.as_str();
        d.attempts = p.attempts;
        d.reason = Some(format!("{} {}", p.error_code, p.error_text).trim().to_owned()).filter(|r| !r.is_empty());
    }
    if let Some(r) = receipt {
        // A row that is still parked is a later try: an operator's, or after a broker forgot. What is not settled was
        // forgotten too, and is on its way again.
        if parked.is_none() && settled {
            d.state = "delivered";
        }
        d.sent_at = Some(format_us(r.sent_at_us));
        d.sent_at_us = r.sent_at_us;
        d.ack_level = Some(r.level.as_str());
        d.receipt = Some(r.detail.clone()).filter(|text| !text.is_empty());
        d.attempts = d.attempts.max(r.attempts);
    }
    d
}

/// One line that can be read aloud.
fn sentence(r: &Report) -> String {
    let day =
        |us: i64| format!("{} UTC", format_us(us).replace('T', " ").trim_end_matches("000Z").trim_end_matches('Z'));
    let (created, moved) = r.times_us;
    // Times of the same day need not say it again.
    let after =
        |us: i64| if same_day(created, us) { format!("at {}", time_of_day(us)) } else { format!("on {}", day(us)) };
    let key = r.key.as_ref().map(|k| format!(" with key {k}")).unwrap_or_default();
    let mut line = format!("{} of topic {}{key} was written on {}", r.id, r.topic, day(created));
    if let Some(Marked { value, sent_at }) = &r.status {
        let since = sent_at.as_ref().map(|at| format!(" since {at}")).unwrap_or_default();
        line.push_str(&format!(" and stands in its table as {value}{since}; the log does not have it"));
        return line;
    }
    let Some(position) = r.position else {
        line.push_str(&format!(", is in the outbox table (shard {}) and waits ", r.shard));
        line.push_str(&r.available_at.as_ref().map_or_else(|| "for the relay".to_owned(), |at| format!("until {at}")));
        return line;
    };
    match moved {
        Some(at) => line.push_str(&format!(" and moved {} as number {position} of shard {}", after(at), r.shard)),
        None => line.push_str(&format!(" and is number {position} of shard {}, whose log is pruned there", r.shard)),
    }
    for d in &r.deliveries {
        let times = |n: u32| if n == 1 { "1 attempt".to_owned() } else { format!("{n} attempts") };
        let why = d.reason.as_ref().map(|r| format!(": {r}")).unwrap_or_default();
        line.push_str(&format!("; {} ", d.destination));
        line.push_str(&match d.state {
            "delivered" => {
                let level = d.ack_level.map(|l| format!(", level {l}")).unwrap_or_default();
                let receipt = d.receipt.as_ref().map(|t| format!(", receipt {t}")).unwrap_or_default();
                format!(
                    "has it since {} after {}{level}{receipt}",
                    after(d.sent_at_us).trim_start_matches("at ").trim_start_matches("on "),
                    times(d.attempts)
                )
            }
            "settled" => "has settled it, its receipt has been pruned".to_owned(),
            "pending" => "does not have it yet".to_owned(),
            "retrying" => format!("will be tried again after {}{why}", times(d.attempts)),
            "skipped" => "was given up by an operator".to_owned(),
            "dropped" => "was dropped by an operator before it had got it".to_owned(),
            "waiting" => "waits behind an earlier message of its key".to_owned() + &why,
            _ => format!("has given up after {}{why}", times(d.attempts)),
        });
    }
    if r.deliveries.is_empty() {
        line.push_str("; no destination was to get it");
    }
    for act in &r.acts {
        line.push_str(&format!("; {}", act.story()));
    }
    line
}

#[cfg(test)]
mod tests {
    use outhaul_core::message::{Position, ShardId};
    use outhaul_core::parked::ParkedState;
    use outhaul_core::receipt::AckLevel;

    use super::*;

    fn parked(state: ParkedState) -> ParkedEntry {
        ParkedEntry {
            destination: "points".into(),
            shard: ShardId(0),
            position: Position(4),
            key: Some("k".into()),
            state,
            attempts: 10,
            due_at_us: 0,
            error_code: "OUT-4004".into(),
            error_text: "no answer".into(),
            first_failed_at_us: 0,
            last_failed_at_us: 0,
        }
    }

    #[test]
    fn states() {
        let receipt = Receipt { sent_at_us: 5, level: AckLevel::Flushed, attempts: 2, detail: "offset 7".into() };
        fn of(r: Option<&Receipt>, p: Option<&ParkedEntry>, settled: bool) -> &'static str {
            delivery("points".into(), r, p, settled).state
        }
        assert_eq!(of(None, None, false), "pending");
        assert_eq!(of(None, None, true), "settled");
        assert_eq!(of(Some(&receipt), None, true), "delivered");
        assert_eq!(of(Some(&receipt), None, false), "pending", "it was forgotten and is sent again");
        assert_eq!(of(None, Some(&parked(ParkedState::Waiting)), true), "waiting");
        assert_eq!(of(Some(&receipt), Some(&parked(ParkedState::Dead)), true), "dead");
    }

    #[test]
    fn a_line_to_read_aloud() {
        let receipt = Receipt {
            sent_at_us: 1_772_368_205_104_000,
            level: AckLevel::Flushed,
            attempts: 1,
            detail: "offset 7".into(),
        };
        let mut report = Report {
            id: "m1".into(),
            topic: "order-created".into(),
            key: Some("42".into()),
            created_at: String::new(),
            available_at: None,
            moved_at: None,
            status: None,
            shard: 0,
            position: Some(17),
            deliveries: vec![
                delivery("trail".into(), Some(&receipt), None, true),
                delivery("points".into(), None, Some(&parked(ParkedState::Dead)), true),
            ],
            acts: vec![],
            times_us: (1_772_368_205_000_000, Some(1_772_368_205_103_000)),
        };
        assert_eq!(
            sentence(&report),
            "m1 of topic order-created with key 42 was written on 2026-03-01 12:30:05.000 UTC and moved at 12:30:05.103 as \
             number 17 of shard 0; trail has it since 12:30:05.104 after 1 attempt, level flushed, receipt offset 7; points has \
             given up after 10 attempts: OUT-4004 no answer"
        );
        report.times_us.1 = None;
        assert!(
            sentence(&report).contains(" UTC and is number 17 of shard 0, whose log is pruned there; trail has it")
        );
        report.position = None;
        assert!(sentence(&report).ends_with("is in the outbox table (shard 0) and waits for the relay"));
    }
}
