//! Acts: ordered by a row in the database, carried out by the relay that owns the shard, from whatever machine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::act::{ActNumber, ActState};
use outhaul_core::message::ShardId;
use outhaul_store::{ActRecord, ActsWanted, InstanceStatus, NewAct, Store, StoreError, StoreErrorKind};
use serde::Serialize;

use crate::arguments::Ordering;
use crate::failure::{Exit, Failure};
use crate::{codes, output, timestamp};

/// Between two looks at how far it has got.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// An act in all its shards.
#[derive(Debug, Serialize)]
pub struct ActReport {
    pub number: u64,
    pub at: String,
    pub actor: String,
    pub why: String,
    pub verb: &'static str,
    pub destination: Option<String>,
    /// Id of the message, where it is about one.
    pub id: Option<String>,
    pub key: Option<String>,
    pub reason: Option<String>,
    /// Pattern of the topics, of a replay.
    pub topic: Option<String>,
    /// `open`, `done` or `refused`: open as long as one shard is, then refused if one shard is. A replay is `unfinished`
    /// until it is done.
    pub state: &'static str,
    pub shards: Vec<u16>,
    pub changed: u64,
    pub left: u64,
    pub note: Option<String>,
    pub finished_at: Option<String>,
}

/// Who orders it.
pub fn actor(named: Option<&str>) -> String {
    let named_user =
        || ["USER", "LOGNAME", "USERNAME"].iter().find_map(|v| std::env::var(v).ok().filter(|u| !u.is_empty()));
    let user = || named_user().or_else(user_of_process);
    let named = named.map(str::to_owned).filter(|n| !n.trim().is_empty());
    named.or_else(|| user().map(|user| format!("{user}@{}", super::host()))).unwrap_or_else(super::host)
}

/// The user as whom this process runs, where no variable names it: services and containers set none.
fn user_of_process() -> Option<String> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let uid = status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?;
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let mut fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let name = fields.find(|user| user.get(2) == Some(&uid)).map(|user| user[0].to_owned());
    Some(name.unwrap_or_else(|| format!("uid {uid}")))
}

/// Records of shards, joined to acts by rising number.
pub fn joined(records: Vec<ActRecord>) -> Vec<ActReport> {
    let mut by_number: BTreeMap<ActNumber, Vec<ActRecord>> = BTreeMap::new();
    for record in records {
        by_number.entry(record.act.number).or_default().push(record);
    }
    by_number.into_values().filter_map(|of_shards| join(&of_shards)).collect()
}

fn join(of_shards: &[ActRecord]) -> Option<ActReport> {
    let first = of_shards.first()?;
    let has = |state: ActState| of_shards.iter().any(|r| r.state == state);
    let state = [ActState::Open, ActState::Unfinished, ActState::Refused]
        .into_iter()
        .find(|s| has(*s))
        .unwrap_or(ActState::Done);
    let over = !matches!(state, ActState::Open | ActState::Unfinished);
    let finished = if over { of_shards.iter().filter_map(|r| r.finished_at_us).max() } else { None };
    // Of what is unfinished the note says who carries it out.
    let note = |r: &&ActRecord| r.state == state && !r.note.is_empty();
    let note = of_shards.iter().find(note).or_else(|| of_shards.iter().find(|r| !r.note.is_empty()));
    let said = |r: &ActRecord| match r.state {
        ActState::Unfinished => format!("carried out by {}", r.note),
        _ => r.note.clone(),
    };
    let selector = first.act.selector.clone().unwrap_or_default();
    Some(ActReport {
        number: first.act.number.0,
        at: timestamp::format_us(first.at_us),
        actor: first.actor.clone(),
        why: first.why.clone(),
        verb: first.act.verb.as_str(),
        destination: first.act.destination.clone(),
        id: first.message_id.clone(),
        key: selector.key,
        reason: selector.code,
        topic: selector.topic,
        state: state.as_str(),
        shards: of_shards.iter().map(|r| r.act.shard.0).collect(),
        changed: of_shards.iter().map(|r| r.act.done).sum(),
        left: of_shards.iter().map(|r| r.act.left).sum(),
        note: note.map(said),
        finished_at: finished.map(timestamp::format_us),
    })
}

impl ActReport {
    /// One line that can be read aloud.
    pub fn sentence(&self) -> String {
        let mut line = format!("act {}: {}", self.number, self.verb);
        match (&self.id, &self.destination) {
            (Some(id), Some(destination)) => line.push_str(&format!(" {id} at {destination}")),
            (Some(id), None) => line.push_str(&format!(" {id}")),
            (None, Some(destination)) => line.push_str(&format!(" {destination}")),
            (None, None) => {}
        }
        for (what, value) in [("topic", &self.topic), ("key", &self.key), ("reason", &self.reason)] {
            line.push_str(&value.as_ref().map(|v| format!(", {what} {v}")).unwrap_or_default());
        }
        if self.destination.is_none() && self.id.is_none() || matches!(self.verb, "pause" | "resume") {
            let shards: Vec<String> = self.shards.iter().map(u16::to_string).collect();
            line.push_str(&format!(", shard {}", shards.join(" ")));
        }
        line.push_str(&format!(": {}", self.state));
        if matches!(self.verb, "redrive" | "skip" | "edit") {
            line.push_str(&format!(", {} changed", self.changed));
        }
        if self.verb == "drop" {
            line.push_str(&format!(", {} parked given up", self.changed));
        }
        if self.verb == "replay" {
            line.push_str(&format!(", {} delivered", self.changed));
        }
        if self.left > 0 && self.verb == "replay" {
            line.push_str(&format!(", {} left out", self.left));
        } else if self.left > 0 {
            line.push_str(&format!(", {} left as they were", self.left));
        }
        line.push_str(&self.note.as_ref().map(|n| format!(" ({n})")).unwrap_or_default());
        line
    }

    /// With who ordered it, when and why.
    pub fn story(&self) -> String {
        format!("{}; ordered {} by {}: {}", self.sentence(), self.at, self.actor, self.why)
    }
}

/// Orders acts, waits for them within the limit, and shows how far they have got. Exit code 3 if one was refused, or has
/// left something as it was.
///
/// # Errors
/// The database's.
pub async fn order(store: &Arc<dyn Store>, acts: &[NewAct], ordering: &Ordering, json: bool) -> Result<Exit, Failure> {
    refuse_beside_earlier_relays(store).await?;
    let mut numbers = Vec::new();
    for act in acts {
        numbers.push(store.order(act).await?);
    }
    let shards: BTreeSet<ShardId> = acts.iter().flat_map(|a| a.shards.iter().copied()).collect();
    let (reports, owned) = follow(store, numbers, &shards, Duration::from_millis(ordering.wait)).await?;
    if json {
        output::json(&serde_json::json!({ "acts": reports }))?;
    } else {
        output::lines(reports.iter().map(ActReport::sentence))?;
        if reports.iter().any(|r| r.state == "open") {
            tell_open(owned);
        }
    }
    let wants = |r: &ActReport| r.state == "refused" || r.left > 0;
    Ok(if reports.iter().any(wants) { Exit::Attention } else { Exit::Fine })
}

/// A relay of the first version heeds no act, and cannot read what one has changed: it would neither keep a pause nor be
/// able to take over the shard.
async fn refuse_beside_earlier_relays(store: &Arc<dyn Store>) -> Result<(), Failure> {
    const ALIVE_MS: u64 = 60_000;
    let earlier = |i: &InstanceStatus| i.heartbeat_ms < ALIVE_MS && i.config.is_empty() && !i.draining;
    match store.instances().await {
        Ok(all) => match all.into_iter().find(earlier) {
            None => Ok(()),
            Some(i) => {
                let what =
                    format!("relay {} is of an earlier version ({}), which does not heed acts", i.owner, i.version);
                Err(Failure::new(&codes::EARLIER_RELAYS, what))
            }
        },
        // Who may not read it orders all the same.
        Err(e) if e.kind == StoreErrorKind::Permission => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// What is to be said of acts that are not carried out yet.
fn tell_open(owned: bool) {
    let text = if owned {
        "it goes on: `outhaul acts` shows how far it has got"
    } else {
        "no relay owns the shard now: it is carried out as soon as one does; `outhaul acts` shows it"
    };
    eprintln!("{text}");
}

/// Waits until the acts are over, or the limit has passed, or nobody owns what is left to do. Returns where they stand, and
/// whether all shards that have something left are owned.
async fn follow(
    store: &Arc<dyn Store>,
    numbers: Vec<ActNumber>,
    shards: &BTreeSet<ShardId>,
    limit: Duration,
) -> Result<(Vec<ActReport>, bool), StoreError> {
    let until = tokio::time::Instant::now() + limit;
    let wanted = ActsWanted::Numbers(numbers);
    let free = |of: Vec<outhaul_store::ShardStatus>| -> BTreeSet<ShardId> {
        of.into_iter().filter(|s| s.owner.is_none() && shards.contains(&s.shard)).map(|s| s.shard).collect()
    };
    let unowned = free(store.status().await?);
    loop {
        let records = store.acts(&wanted).await?;
        let mut open = records.iter().filter(|r| r.state == ActState::Open).map(|r| r.act.shard).peekable();
        let over = open.peek().is_none();
        let only_unowned = open.all(|shard| unowned.contains(&shard));
        if over || only_unowned || tokio::time::Instant::now() >= until {
            return Ok((joined(records), over || !only_unowned));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
