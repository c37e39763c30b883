//! `outhaul status`: where every shard and lane stands, straight from the tables.

use std::sync::Arc;

use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::Position;
use outhaul_core::receipt::{LaneReceipt, LaneState};
use outhaul_core::trouble::Trouble;
use outhaul_store::{InstanceStatus, PauseStatus, ShardStatus, Store, StoreError, StoreErrorKind};
use serde::Serialize;

use super::reconcile::kept::{self, Scheduled};
use super::{chosen, of_outbox, open};
use crate::arguments::Status;
use crate::codes;
use crate::config::{Config, Outbox};
use crate::failure::{Exit, Failure, Failures, Outcome};
use crate::{config, measure, output, timestamp};

/// The one mode that tables of this version have.
const MODE: &str = "move";

#[derive(Debug, Serialize)]
struct Report {
    outboxes: Vec<OutboxReport>,
}

#[derive(Debug, Serialize)]
struct OutboxReport {
    name: String,
    mode: String,
    shards: Vec<ShardReport>,
    instances: Vec<InstanceReport>,
    /// Whether all owners of shards have the same routes and destinations.
    same_configuration: bool,
    /// What relays have compared by the schedule.
    reconcile: Vec<Scheduled>,
}

/// A relay process, as its last heartbeat shows it.
#[derive(Debug, Serialize)]
struct InstanceReport {
    name: String,
    version: String,
    draining: bool,
    heartbeat_ms: u64,
    config: String,
    /// What keeps it from something else than delivering.
    trouble: Option<TroubleReport>,
}

#[derive(Debug, Serialize)]
struct TroubleReport {
    since: String,
    code: String,
    text: String,
}

#[derive(Debug, Serialize)]
struct ShardReport {
    shard: u16,
    owner: Option<String>,
    epoch: u64,
    hot_rows: u64,
    oldest_hot_ms: Option<u64>,
    scheduled_rows: u64,
    next_due_ms: Option<i64>,
    log_end: u64,
    lanes: Vec<LaneReport>,
}

#[derive(Debug, Serialize)]
struct LaneReport {
    destination: String,
    kind: Option<String>,
    state: LaneWord,
    ack_level: Option<&'static str>,
    cursor: Option<u64>,
    lag: u64,
    oldest_unsent_ms: Option<u64>,
    parked: ParkedReport,
    last_error: Option<String>,
    /// Since when its owner does not get on with the destination.
    down_since: Option<String>,
    /// Why nothing new is begun in it.
    paused: Option<PauseReport>,
    /// The destination's rate, by the configuration.
    rate: Option<String>,
}

impl LaneReport {
    /// Nobody delivers to it, and what it has not settled is kept.
    fn is_left_behind(&self) -> bool {
        self.state == LaneWord::NotConfigured && self.lag > 0
    }
}

/// A pause of a lane, or of its shard.
#[derive(Clone, Debug, Serialize)]
struct PauseReport {
    since: String,
    by: String,
    why: String,
}

/// What a lane does, as far as the tables show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum LaneWord {
    /// Everything in the log is settled.
    Idle,
    /// There is something to deliver, and the shard has an owner.
    Delivering,
    /// Its owner does not get on with the destination, or a part of it; tried again by itself.
    Down,
    /// An operator has paused it, or its shard.
    Paused,
    /// There is something to deliver, and the shard has no owner.
    Unowned,
    /// The configuration has the destination, no checkpoint has it yet.
    New,
    /// Checkpoints have it, the configuration does not.
    NotConfigured,
    /// Messages that no route names.
    NoRoute,
}

#[derive(Debug, Default, Serialize)]
struct ParkedReport {
    retrying: u64,
    waiting: u64,
    dead: u64,
}

/// Shows the outboxes; exit code 3 if a message is dead, a lane is down, a destination that is not configured any more
/// holds back the log, what is to be pruned cannot be exported, instances have different configurations, or a comparison of
/// the schedule has found something or failed.
///
/// # Errors
/// A database's, or the configuration's.
pub async fn run(a: &Status, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let mut report = Report { outboxes: vec![] };
    let mut failures = vec![];
    for outbox in chosen(&config, a.which.outbox.as_deref())? {
        // One database that is down does not hide the others.
        match look_at(&config, outbox).await {
            Ok((read, stray)) => {
                report.outboxes.push(read);
                failures.extend(stray.map(|e| of_outbox(e.into(), outbox)));
            }
            Err(e) => failures.push(e),
        }
    }
    if json {
        output::json(&report)?;
    } else if !report.outboxes.is_empty() {
        output::lines(table(&report))?;
    }
    if !failures.is_empty() {
        return Err(Failures(failures));
    }
    let lanes = report.outboxes.iter().flat_map(|o| &o.shards).flat_map(|s| &s.lanes);
    let wants = |l: &LaneReport| l.parked.dead > 0 || l.down_since.is_some() || l.is_left_behind();
    let troubled = report.outboxes.iter().flat_map(|o| &o.instances).any(|i| i.trouble.is_some());
    let differ = report.outboxes.iter().any(|o| !o.same_configuration);
    let found = report.outboxes.iter().flat_map(|o| &o.reconcile).any(Scheduled::needs_attention);
    Ok(if differ || troubled || found || lanes.into_iter().any(wants) { Exit::Attention } else { Exit::Fine })
}

/// An outbox, and what is said of rows that no shard holds.
type Read = (OutboxReport, Option<StoreError>);

async fn look_at(config: &Config, outbox: &Outbox) -> Result<Read, Failure> {
    let store = open(outbox).await?;
    let read = read(config, outbox, &store).await.map_err(|e| of_outbox(e.into(), outbox));
    store.close().await;
    read
}

async fn read(config: &Config, outbox: &Outbox, store: &Arc<dyn Store>) -> Result<Read, StoreError> {
    let (mode, stray) = match store.inspect().await {
        Ok(info) => (info.mode, info.stray),
        // It looks for the relay's rights; who only reads needs no more than SELECT, and what is not readable says so below.
        Err(e) if e.kind == StoreErrorKind::Permission => (MODE.to_owned(), None),
        Err(e) => return Err(e),
    };
    let instances = match store.instances().await {
        Ok(instances) => instances,
        Err(e) if e.kind == StoreErrorKind::Permission => vec![],
        Err(e) => return Err(e),
    };
    let pauses = match store.pauses().await {
        Ok(pauses) => pauses,
        Err(e) if e.kind == StoreErrorKind::Permission => vec![],
        Err(e) => return Err(e),
    };
    let mut shards = vec![];
    for s in store.status().await? {
        let mut lanes = vec![];
        for (state, receipts) in &s.lanes.lanes {
            let level = level(store, &s, state, receipts).await?;
            lanes.push(lane(config, &s, state, level));
        }
        lanes.extend(lanes_without_state(config, &s));
        tell_troubles(&s, &instances, &mut lanes);
        tell_pauses(&s, &pauses, &mut lanes);
        shards.push(ShardReport {
            shard: s.shard.0,
            owner: s.owner,
            epoch: s.epoch.0,
            hot_rows: s.hot_rows,
            oldest_hot_ms: s.oldest_hot_ms,
            scheduled_rows: s.scheduled_rows,
            next_due_ms: s.next_due_ms,
            log_end: s.log_end.0,
            lanes,
        });
    }
    let instances: Vec<InstanceReport> = instances
        .into_iter()
        .map(|i| InstanceReport {
            name: i.owner,
            version: i.version,
            draining: i.draining,
            heartbeat_ms: i.heartbeat_ms,
            config: i.config,
            trouble: i.troubles.into_iter().find(|t| t.destination.is_empty()).map(|t| TroubleReport {
                since: timestamp::format_us(t.since_us),
                code: t.code,
                text: t.text,
            }),
        })
        .collect();
    let same_configuration = have_the_same(&shards, &instances);
    let reconcile = match kept::all(config, outbox, store).await {
        Ok(all) => all,
        Err(e) if e.kind == StoreErrorKind::Permission => vec![],
        Err(e) => return Err(e),
    };
    let name = outbox.name.clone();
    Ok((OutboxReport { name, mode, shards, instances, same_configuration, reconcile }, stray))
}

/// Whether all owners of shards have the same configuration, as far as they tell.
fn have_the_same(shards: &[ShardReport], instances: &[InstanceReport]) -> bool {
    let owns = |i: &&InstanceReport| shards.iter().any(|s| s.owner.as_ref() == Some(&i.name));
    let mut told = instances.iter().filter(owns).map(|i| i.config.as_str()).filter(|c| !c.is_empty());
    let first = told.next();
    told.all(|other| Some(other) == first)
}

/// What the shard's owner says keeps it from delivering. One whose lease has run out is not asked any more.
fn tell_troubles(s: &ShardStatus, instances: &[InstanceStatus], lanes: &mut [LaneReport]) {
    let Some(owner) = s.owner.as_ref().and_then(|owner| instances.iter().find(|i| i.owner == *owner)) else { return };
    for lane in lanes {
        let of_lane = |t: &&Trouble| t.destination == lane.destination && t.shards.contains(&s.shard);
        if let Some(trouble) = owner.troubles.iter().find(of_lane) {
            lane.state = LaneWord::Down;
            lane.down_since = Some(timestamp::format_us(trouble.since_us));
            lane.last_error = Some(format!("{} {}", trouble.code, trouble.text));
        }
    }
}

/// What operators have paused: the lane itself comes before its shard.
fn tell_pauses(s: &ShardStatus, pauses: &[PauseStatus], lanes: &mut [LaneReport]) {
    for lane in lanes.iter_mut().filter(|l| l.state != LaneWord::NoRoute) {
        let of = |name: Option<&str>| pauses.iter().find(|p| p.shard == s.shard && p.destination.as_deref() == name);
        if let Some(pause) = of(Some(&lane.destination)).or_else(|| of(None)) {
            lane.state = LaneWord::Paused;
            lane.paused = Some(PauseReport {
                since: timestamp::format_us(pause.since_us),
                by: pause.actor.clone(),
                why: pause.why.clone(),
            });
        }
    }
}

/// The level of the lane's newest receipt: that of the newest row, or of the row that has the last settled position.
async fn level(
    store: &Arc<dyn Store>,
    shard: &ShardStatus,
    state: &LaneState,
    newest: &[LaneReceipt],
) -> Result<Option<&'static str>, StoreError> {
    if let Some(last) = newest.last() {
        return Ok(Some(state.level(last.position, last.receipt.level).as_str()));
    }
    let Some(before) = state.cursor.0.checked_sub(1) else { return Ok(None) };
    let rows = store.receipts_of(shard.shard, Position(before)).await?;
    let of_lane = rows.iter().flat_map(|row| &row.lanes).filter(|(lane, _)| lane.destination == state.destination);
    let last = of_lane
        .flat_map(|(_, receipts)| receipts)
        .filter(|r| r.position.0 == before)
        .max_by_key(|r| r.receipt.sent_at_us);
    Ok(last.map(|r| state.level(r.position, r.receipt.level).as_str()))
}

fn lane(config: &Config, s: &ShardStatus, state: &LaneState, ack_level: Option<&'static str>) -> LaneReport {
    let ahead: u64 = state.ahead.iter().map(|run| run.last - run.first + 1).sum();
    let lag = s.log_end.0.saturating_sub(state.cursor.0).saturating_sub(ahead);
    let configured = config.destinations.iter().find(|d| d.name == state.destination);
    let kind = configured.map(|d| d.kind.clone());
    let state_word = if kind.is_none() && !config.destinations.is_empty() {
        LaneWord::NotConfigured
    } else if lag == 0 {
        LaneWord::Idle
    } else if s.owner.is_some() {
        LaneWord::Delivering
    } else {
        LaneWord::Unowned
    };
    LaneReport {
        kind,
        rate: configured.and_then(|d| d.limits.rate_milli).map(measure::rate_text),
        state: state_word,
        ack_level,
        cursor: Some(state.cursor.0),
        lag,
        ..lane_of(s, &state.destination)
    }
}

/// What is known of a destination besides its cursor.
fn lane_of(s: &ShardStatus, destination: &str) -> LaneReport {
    let of = |list: &[(String, u64)]| list.iter().find(|(name, _)| name == destination).map(|(_, ms)| *ms);
    let parked = s.parked.iter().find(|(name, ..)| name == destination);
    LaneReport {
        destination: destination.to_owned(),
        kind: None,
        state: LaneWord::New,
        ack_level: None,
        cursor: None,
        lag: 0,
        oldest_unsent_ms: of(&s.oldest_unsent_ms),
        parked: parked
            .map(|(_, retrying, waiting, dead)| ParkedReport { retrying: *retrying, waiting: *waiting, dead: *dead })
            .unwrap_or_default(),
        last_error: s.last_errors.iter().find(|(name, _)| name == destination).map(|(_, text)| text.clone()),
        down_since: None,
        paused: None,
        rate: None,
    }
}

/// Destinations that have no lane in the newest checkpoint: new ones, and those under which something is parked.
fn lanes_without_state(config: &Config, s: &ShardStatus) -> Vec<LaneReport> {
    let stored = |name: &str| s.lanes.lanes.iter().any(|(state, _)| state.destination == name);
    let new = config
        .destinations
        .iter()
        .filter(|d| !stored(&d.name))
        .map(|d| LaneReport { kind: Some(d.kind.clone()), ..lane_of(s, &d.name) });
    let parked =
        s.parked.iter().filter(|(name, ..)| !stored(name) && config.destinations.iter().all(|d| d.name != *name)).map(
            |(name, ..)| {
                let state = if name == NO_ROUTE { LaneWord::NoRoute } else { LaneWord::NotConfigured };
                LaneReport { state, ..lane_of(s, name) }
            },
        );
    new.chain(parked).collect()
}

fn table(report: &Report) -> Vec<String> {
    let mut rows = vec![
        [
            "OUTBOX",
            "SHARD",
            "OWNER",
            "HOT",
            "LOG END",
            "DESTINATION",
            "STATE",
            "ACK",
            "CURSOR",
            "LAG",
            "OLDEST",
            "PARKED",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let mut notes = vec![];
    let dash = || "-".to_owned();
    for o in &report.outboxes {
        if !o.same_configuration {
            let other = &codes::OTHER_CONFIGURATION;
            notes.push(format!(
                "{} {}: instances have different routes or destinations; {}",
                other.code, o.name, other.remedy
            ));
        }
        notes.extend(o.reconcile.iter().map(|scheduled| scheduled.line(&o.name)));
        for i in &o.instances {
            let note = |t: &TroubleReport| format!("{} {} since {}: {} {}", o.name, i.name, t.since, t.code, t.text);
            notes.extend(i.trouble.as_ref().map(note));
        }
        for s in &o.shards {
            if s.scheduled_rows > 0 {
                let next = s.next_due_ms.map_or_else(dash, |ms| match u64::try_from(ms) {
                    Ok(ms) => format!("the next in {}", measure::span_text(ms)),
                    Err(_) => format!("the next was due {} ago", measure::span_text(ms.unsigned_abs())),
                });
                notes.push(format!("{} shard {}: {} scheduled, {next}", o.name, s.shard, s.scheduled_rows));
            }
            let hot = s
                .oldest_hot_ms
                .filter(|_| s.hot_rows > 0)
                .map_or_else(|| s.hot_rows.to_string(), |ms| format!("{} ({})", s.hot_rows, measure::span_text(ms)));
            let head =
                [o.name.clone(), s.shard.to_string(), s.owner.clone().unwrap_or_else(dash), hot, s.log_end.to_string()];
            if s.lanes.is_empty() {
                rows.push(head.into_iter().chain((0..7).map(|_| dash())).collect());
                continue;
            }
            for l in &s.lanes {
                let p = &l.parked;
                let parked = if p.retrying + p.waiting + p.dead == 0 {
                    "0".to_owned()
                } else {
                    format!("{} retrying, {} waiting, {} dead", p.retrying, p.waiting, p.dead)
                };
                let word =
                    serde_json::to_value(l.state).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
                let held_back = l.rate.as_ref().filter(|_| l.state == LaneWord::Delivering);
                let limit = held_back.map_or_else(String::new, |rate| format!(", at most {rate}"));
                let lane = [
                    l.destination.clone(),
                    word.replace('_', " ") + &limit,
                    l.ack_level.map_or_else(dash, str::to_owned),
                    l.cursor.map_or_else(dash, |c| c.to_string()),
                    l.lag.to_string(),
                    l.oldest_unsent_ms.map_or_else(dash, measure::span_text),
                    parked,
                ];
                rows.push(head.iter().cloned().chain(lane).collect());
                let since = l.down_since.as_ref().map_or_else(String::new, |at| format!(" down since {at}"));
                let note = |e| format!("{} shard {} {}{since}: {e}", o.name, s.shard, l.destination);
                notes.extend(l.last_error.as_ref().map(note));
                if l.is_left_behind() {
                    notes.push(format!(
                        "{} shard {}: {} is not configured; the log is kept from its cursor on, and reshard refuses: put it \
                         back into the configuration until it is settled, or `outhaul destination drop {}`",
                        o.name, s.shard, l.destination, l.destination
                    ));
                }
                let paused = |p: &PauseReport| {
                    format!(
                        "{} shard {} {} paused since {} by {}: {}",
                        o.name, s.shard, l.destination, p.since, p.by, p.why
                    )
                };
                notes.extend(l.paused.as_ref().map(paused));
            }
        }
    }
    let mut lines = aligned(&rows);
    lines.extend(notes);
    lines
}

/// Columns side by side, each as wide as its widest cell.
fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let cells: Vec<String> = row.iter().zip(&widths).map(|(c, w)| format!("{c:w$}")).collect();
            cells.join("  ").trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use outhaul_core::message::{Epoch, ShardId};
    use outhaul_core::receipt::ReceiptRow;
    use outhaul_core::runs::{Run, Runs};

    use super::*;

    fn config(file: &str) -> Config {
        let folder = std::env::temp_dir().join(format!("outhaul-status-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("outhaul.toml");
        std::fs::write(&path, file).unwrap();
        let config = config::load(config::Sources { file: Some(&path), ..Default::default() }).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
        config
    }

    fn shard() -> ShardStatus {
        let mut ahead = Runs::new();
        ahead.insert_run(Run { first: 6, last: 7 });
        let behind =
            LaneState { destination: "a".into(), cursor: Position(5), proven: Position(5), proof: None, ahead };
        let gone = LaneState {
            destination: "gone".into(),
            cursor: Position(10),
            proven: Position(10),
            ..LaneState::default()
        };
        ShardStatus {
            shard: ShardId(0),
            owner: None,
            epoch: Epoch(3),
            hot_rows: 2,
            oldest_hot_ms: Some(1_500),
            scheduled_rows: 0,
            next_due_ms: None,
            log_end: Position(10),
            lanes: ReceiptRow { lanes: vec![(behind, vec![]), (gone, vec![])], ..ReceiptRow::default() },
            oldest_unsent_ms: vec![("a".into(), 90_000)],
            parked: vec![("-".into(), 0, 0, 4), ("a".into(), 1, 2, 0)],
            last_errors: vec![("a".into(), "no answer".into())],
        }
    }

    #[test]
    fn lanes_old_new_gone_and_without_a_route() {
        let two = "[[outbox]]\nurl = \"x.db\"\n[[destination]]\nname = \"a\"\nkind = \"stdout\"\n[[destination]]\nname = \"b\"\nkind = \"stdout\"\n";
        let (c, s) = (config(two), shard());
        let mut lanes: Vec<LaneReport> = s.lanes.lanes.iter().map(|(l, _)| lane(&c, &s, l, None)).collect();
        lanes.extend(lanes_without_state(&c, &s));
        let words: Vec<(&str, LaneWord, u64)> =
            lanes.iter().map(|l| (l.destination.as_str(), l.state, l.lag)).collect();
        assert_eq!(
            words,
            [
                ("a", LaneWord::Unowned, 3),
                ("gone", LaneWord::NotConfigured, 0),
                ("b", LaneWord::New, 0),
                ("-", LaneWord::NoRoute, 0)
            ]
        );
        assert_eq!((lanes[0].parked.waiting, lanes[3].parked.dead, lanes[0].oldest_unsent_ms), (2, 4, Some(90_000)));
        let shards = vec![ShardReport {
            shard: 0,
            owner: None,
            epoch: 3,
            hot_rows: 2,
            oldest_hot_ms: Some(1_500),
            scheduled_rows: 0,
            next_due_ms: None,
            log_end: 10,
            lanes,
        }];
        let (name, mode) = ("main".into(), "move".into());
        let text = table(&Report {
            outboxes: vec![OutboxReport {
                name,
                mode,
                shards,
                instances: vec![],
                same_configuration: false,
                reconcile: vec![],
            }],
        });
        assert_eq!(text.len(), 7, "{text:#?}");
        assert!(text[5].starts_with("OUT-4021 main: "), "{text:#?}");
        assert!(text[1].contains("2 (1s)") && text[1].contains("1 retrying, 2 waiting, 0 dead"), "{text:#?}");
        assert_eq!(text[6], "main shard 0 a: no answer");
    }

    #[test]
    fn an_owner_tells_what_is_down() {
        let mut s = shard();
        let mut lanes: Vec<LaneReport> =
            s.lanes.lanes.iter().map(|(l, _)| lane(&config("[[outbox]]\nurl = \"x.db\"\n"), &s, l, None)).collect();
        let trouble = Trouble {
            destination: "gone".into(),
            shards: vec![ShardId(0)],
            since_us: 0,
            code: "OUT-2030".into(),
            text: "no route".into(),
        };
        let elsewhere = Trouble { destination: "a".into(), shards: vec![ShardId(1)], ..trouble.clone() };
        let instance = InstanceStatus {
            owner: "one".into(),
            version: "1".into(),
            draining: false,
            heartbeat_ms: 10,
            config: String::new(),
            troubles: vec![elsewhere, trouble],
        };
        tell_troubles(&s, std::slice::from_ref(&instance), &mut lanes);
        assert!(lanes.iter().all(|l| l.state != LaneWord::Down), "the shard has no owner");
        s.owner = Some("one".into());
        tell_troubles(&s, &[instance], &mut lanes);
        let down: Vec<&str> =
            lanes.iter().filter(|l| l.state == LaneWord::Down).map(|l| l.destination.as_str()).collect();
        assert_eq!(down, ["gone"]);
        assert_eq!(lanes[1].last_error.as_deref(), Some("OUT-2030 no route"));
        assert_eq!(lanes[1].down_since.as_deref(), Some("1970-01-01T00:00:00.000000Z"));
    }

    #[test]
    fn a_lane_with_a_rate_says_so_while_it_has_something_to_deliver() {
        let limited = "[[outbox]]\nurl = \"x.db\"\n[[destination]]\nname = \"a\"\nkind = \"stdout\"\nrate = 0.5\n";
        let (c, mut s) = (config(limited), shard());
        s.owner = Some("one".into());
        let lanes: Vec<LaneReport> = s.lanes.lanes.iter().map(|(l, _)| lane(&c, &s, l, None)).collect();
        assert_eq!([&lanes[0].rate, &lanes[1].rate].map(Option::as_deref), [Some("0.5/s"), None]);
        let shard = ShardReport {
            shard: 0,
            owner: s.owner,
            epoch: 3,
            hot_rows: 0,
            oldest_hot_ms: None,
            scheduled_rows: 0,
            next_due_ms: None,
            log_end: 10,
            lanes,
        };
        let (name, mode) = ("main".into(), "move".into());
        let outbox = OutboxReport {
            name,
            mode,
            shards: vec![shard],
            instances: vec![],
            same_configuration: true,
            reconcile: vec![],
        };
        let text = table(&Report { outboxes: vec![outbox] });
        assert!(text[1].contains("delivering, at most 0.5/s"), "{text:#?}");
    }

    #[test]
    fn what_keeps_an_instance_from_exporting_is_a_line() {
        let trouble =
            |text: &str| Some(TroubleReport { since: "2026-03-01".into(), code: "OUT-4019".into(), text: text.into() });
        let instance = |name: &str, trouble| InstanceReport {
            name: name.into(),
            version: "1".into(),
            draining: false,
            heartbeat_ms: 1,
            config: String::new(),
            trouble,
        };
        let instances = vec![instance("one", None), instance("two", trouble("exporting to /x: full"))];
        let outbox = OutboxReport {
            name: "main".into(),
            mode: MODE.into(),
            shards: vec![],
            instances,
            same_configuration: true,
            reconcile: vec![],
        };
        let lines = table(&Report { outboxes: vec![outbox] });
        assert_eq!(lines[1..], ["main two since 2026-03-01: OUT-4019 exporting to /x: full"]);
    }
}
