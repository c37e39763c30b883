//! `outhaul parked`: messages that could not be delivered, and what is done about them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use outhaul_core::act::{self as core_act, Selector, Verb};
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Position, ShardId, parse_headers};
use outhaul_core::parked::ParkedState;
use outhaul_store::{ListedParked, NewAct, ParkedQuery, Store, StoreError};
use serde::Serialize;
use serde_json::json;

use super::{act, chosen, of_outbox, open};
use crate::arguments::{Edit, Ordering, Parked, ParkedList, Redrive, Selection, State};
use crate::failure::{Exit, Failure, Outcome};
use crate::{codes, config, output, timestamp};

/// Rows that are read at a time.
const PAGE: u32 = 1_000;
/// Parked rows of one id, at most: one for each destination, and an id may be there twice.
const OF_ONE_ID: u32 = 1_000;

/// Runs what `parked` is asked for.
///
/// # Errors
/// Nothing that is parked fits; the database's, or the configuration's.
pub async fn run(a: &Parked, json: bool) -> Outcome {
    match a {
        Parked::List(a) => list(a, json).await,
        Parked::Redrive(a) => select(a, Verb::Redrive, json).await,
        Parked::Skip(a) => select(a, Verb::Skip, json).await,
        Parked::Edit(a) => edit(a, json).await,
    }
}

fn query(selection: &Selection) -> ParkedQuery {
    ParkedQuery {
        destination: selection.destination.clone(),
        key: selection.key.clone(),
        id: selection.id.clone(),
        code: selection.reason.clone(),
        ..ParkedQuery::default()
    }
}

// ---- list ----------------------------------------------------------------------------------------------------------

#[derive(Debug, Serialize)]
struct CountReport {
    destination: String,
    reason: String,
    state: &'static str,
    count: u64,
}

#[derive(Debug, Serialize)]
struct MessageReport {
    id: String,
    destination: String,
    shard: u16,
    position: u64,
    key: Option<String>,
    state: &'static str,
    attempts: u32,
    due_at: Option<String>,
    reason: String,
    text: String,
    first_failed_at: String,
    last_failed_at: String,
}

impl From<ListedParked> for MessageReport {
    fn from(p: ListedParked) -> Self {
        let e = p.entry;
        Self {
            id: p.id,
            destination: e.destination,
            shard: e.shard.0,
            position: e.position.0,
            key: e.key,
            state: e.state.as_str(),
            attempts: e.attempts,
            due_at: (e.state == ParkedState::Retrying).then(|| timestamp::format_us(e.due_at_us)),
            reason: e.error_code,
            text: e.error_text,
            first_failed_at: timestamp::format_us(e.first_failed_at_us),
            last_failed_at: timestamp::format_us(e.last_failed_at_us),
        }
    }
}

async fn list(a: &ParkedList, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let mut dead = 0;
    for outbox in chosen(&config, a.which.outbox.as_deref())? {
        let store = open(outbox).await?;
        let read = read_list(&store, a).await.map_err(|e| of_outbox(e.into(), outbox));
        store.close().await;
        let (counts, messages, more) = read?;
        dead += counts.iter().filter(|c| c.state == ParkedState::Dead.as_str()).map(|c| c.count).sum::<u64>();
        if json {
            output::json(&json!({ "outbox": outbox.name, "counts": counts, "messages": messages, "more": more }))?;
            continue;
        }
        let count =
            |c: &CountReport| format!("{}: {} {} at {}, {}", outbox.name, c.count, c.state, c.destination, c.reason);
        if counts.is_empty() {
            eprintln!("{}: nothing that is parked fits", outbox.name);
        }
        output::lines(counts.iter().map(count))?;
        output::lines(messages.iter().map(line))?;
        if more {
            eprintln!("there are more: `--limit` raises how many are listed");
        }
    }
    Ok(if dead > 0 { Exit::Attention } else { Exit::Fine })
}

fn line(m: &MessageReport) -> String {
    let key = m.key.as_ref().map(|k| format!(" key {k}")).unwrap_or_default();
    format!(
        "{}  {}  shard {} number {}{key}  {} after {}  {} {}",
        m.id, m.destination, m.shard, m.position, m.state, m.attempts, m.reason, m.text
    )
}

async fn read_list(
    store: &Arc<dyn Store>,
    a: &ParkedList,
) -> Result<(Vec<CountReport>, Vec<MessageReport>, bool), StoreError> {
    let state = a.state.map(|s| match s {
        State::Retrying => ParkedState::Retrying,
        State::Waiting => ParkedState::Waiting,
        State::Dead => ParkedState::Dead,
    });
    let query = ParkedQuery { shard: a.shard.map(ShardId), state, ..query(&a.selection) };
    let mut messages: Vec<MessageReport> = Vec::new();
    let mut after = None;
    let mut more = false;
    while !more {
        let left = a.limit.saturating_sub(u32::try_from(messages.len()).unwrap_or(u32::MAX));
        // One more than wanted, to know whether there is more.
        let page = left.saturating_add(1).min(PAGE);
        let rows = store.list_parked(&ParkedQuery { after: after.take(), ..query.clone() }, page).await?;
        let full = rows.len() == page as usize;
        for row in rows {
            more = messages.len() >= a.limit as usize;
            if more {
                break;
            }
            after = Some((row.entry.destination.clone(), row.entry.shard, row.entry.position));
            messages.push(row.into());
        }
        if !full {
            break;
        }
    }
    let mut counts: BTreeMap<(String, String, &'static str), u64> = BTreeMap::new();
    if a.selection.id.is_none() {
        for c in store.count_parked(&query).await? {
            *counts.entry((c.destination, c.code, c.state.as_str())).or_default() += c.count;
        }
    } else {
        for m in &messages {
            *counts.entry((m.destination.clone(), m.reason.clone(), m.state)).or_default() += 1;
        }
    }
    let report = |((destination, reason, state), count)| CountReport { destination, reason, state, count };
    Ok((counts.into_iter().map(report).collect(), messages, more))
}

// ---- redrive and skip ----------------------------------------------------------------------------------------------

/// What an act is to be about: destination, shards, and the position where it is about one message.
struct Target {
    destination: String,
    shards: Vec<ShardId>,
    position: Option<Position>,
    /// It is one message, which waits behind another of its key: it goes when that has gone.
    waits: bool,
}

async fn select(a: &Redrive, verb: Verb, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let result = async {
        let targets = targets(&store, &a.selection).await?;
        let parts: usize = targets.iter().map(|t| t.shards.len()).sum();
        // The limit is for all shards together; each keeps its part of it.
        let rate_milli = a.rate.map_or(0, |n| (n * 1_000).div_ceil(parts.max(1) as u64));
        let selector = Selector {
            key: a.selection.key.clone(),
            code: a.selection.reason.clone(),
            rate_milli,
            ..Selector::default()
        };
        let waits = verb == Verb::Redrive && targets.iter().any(|t| t.waits);
        let acts = targets.into_iter().map(|t| NewAct {
            selector: Selector { position: t.position, ..selector.clone() },
            message_id: a.selection.id.clone(),
            ..new_act(verb, t, &a.ordering)
        });
        let exit = act::order(&store, &acts.collect::<Vec<_>>(), &a.ordering, json).await?;
        if waits {
            eprintln!("it waits behind an earlier message of its key, and goes when that is redriven or skipped: `parked list --key`");
        }
        Ok(exit.or_attention(waits))
    }
    .await;
    store.close().await;
    Ok(result.map_err(|f: Failure| of_outbox(f, outbox))?)
}

fn new_act(verb: Verb, target: Target, ordering: &Ordering) -> NewAct {
    NewAct {
        verb,
        destination: Some(target.destination),
        shards: target.shards,
        selector: Selector::default(),
        ranges: BTreeMap::new(),
        message_id: None,
        edit: None,
        actor: act::actor(ordering.actor.as_deref()),
        why: ordering.why.clone(),
    }
}

/// Where there is something that fits: by destination, or each message of an id by itself.
async fn targets(store: &Arc<dyn Store>, selection: &Selection) -> Result<Vec<Target>, Failure> {
    let query = query(selection);
    let mut targets = Vec::new();
    if selection.id.is_some() {
        for row in store.list_parked(&query, OF_ONE_ID).await? {
            let (destination, position) = (row.entry.destination, Some(row.entry.position));
            let waits = row.entry.state == ParkedState::Waiting;
            targets.push(Target { destination, shards: vec![row.entry.shard], position, waits });
        }
    } else {
        let mut shards: BTreeMap<String, BTreeSet<ShardId>> = BTreeMap::new();
        for c in store.count_parked(&query).await? {
            shards.entry(c.destination).or_default().insert(c.shard);
        }
        let target = |(destination, shards): (String, BTreeSet<ShardId>)| Target {
            destination,
            shards: shards.into_iter().collect(),
            position: None,
            waits: false,
        };
        targets.extend(shards.into_iter().map(target));
    }
    if targets.is_empty() {
        return Err(Failure::new(&codes::NOTHING_PARKED, "nothing that is parked fits"));
    }
    Ok(targets)
}

// ---- edit ----------------------------------------------------------------------------------------------------------

async fn edit(a: &Edit, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let content = content(a, outbox.store.max_message_bytes)?;
    let store = open(outbox).await?;
    let result = async {
        let (destination, id) = (a.destination.clone(), Some(a.id.clone()));
        let mut targets = targets(&store, &Selection { destination, key: None, id, reason: None }).await?;
        targets.retain(|t| t.destination != NO_ROUTE);
        if targets.is_empty() {
            let what = format!("{} is parked under - alone, since no route names its topic", a.id);
            return Err(Failure::new(&codes::EDIT_WITHOUT_ROUTE, what));
        }
        let acts = targets.into_iter().map(|t| NewAct {
            selector: Selector { position: t.position, ..Selector::default() },
            message_id: Some(a.id.clone()),
            edit: Some(content.clone()),
            ..new_act(Verb::Edit, t, &a.ordering)
        });
        act::order(&store, &acts.collect::<Vec<_>>(), &a.ordering, json).await
    }
    .await;
    store.close().await;
    Ok(result.map_err(|f| of_outbox(f, outbox))?)
}

fn content(a: &Edit, max_bytes: u64) -> Result<core_act::Edit, Failure> {
    let bad = |what: String| Failure::new(&codes::BAD_VALUE, what);
    if let Some(headers) = &a.headers {
        parse_headers(headers).map_err(|why| bad(format!("--headers: {why}")))?;
    }
    let payload = match (&a.payload, &a.payload_file) {
        (Some(text), _) => Some(Bytes::from(text.clone())),
        (None, Some(path)) => {
            let failed = |e| Failure::new(&codes::INPUT_OUTPUT, format!("{}: {e}", path.display()));
            Some(Bytes::from(std::fs::read(path).map_err(failed)?))
        }
        (None, None) => None,
    };
    if payload.as_ref().is_some_and(|p| p.len() as u64 > max_bytes) {
        return Err(bad(format!("the payload is larger than max_message_bytes, {max_bytes}")));
    }
    if a.new_key.as_ref().is_some_and(|key| key.len() > 255) {
        return Err(bad("--new-key: a key has at most 255 bytes".into()));
    }
    let headers = if a.no_headers { Some(None) } else { a.headers.clone().map(Some) };
    let key = if a.no_key { Some(None) } else { a.new_key.clone().map(Some) };
    Ok(core_act::Edit { payload, headers, key })
}
