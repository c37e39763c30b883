//! Operators' acts: ordered, looked for, carried out by checkpoints, and recorded; and what selects parked rows.

use outhaul_core::act::{Act, ActNumber, ActState, Original, PauseWrite, Verb};
use outhaul_core::checkpoint::ShardCheckpoint;
use outhaul_core::chunk;
use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::parked::ParkedState;
use rusqlite::types::{Type, Value};
use rusqlite::{Row, Transaction, params, params_from_iter};

use super::log::{ENTRY, entry};
use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::{SHARD, read, signed, unsigned};
use crate::acts::{
    ACT_COLUMNS, ACTOR_CHARS, ActRecord, ActsWanted, CancelRequest, ListedParked, NOTE_CHARS, NewAct, OPEN_ACTS,
    ParkedCount, ParkedQuery, PauseStatus, RawAct, ReplayProgress, WHY_CHARS, cut, edited_of,
};
use crate::store::StoreResult;

/// The number for the next act.
fn next_number(tx: &Transaction<'_>, names: &Names) -> StoreResult<u64> {
    let sql = format!("SELECT coalesce(max(act_number), 0) + 1 FROM {}", names.act);
    tx.query_row(&sql, [], |row| Ok(unsigned(row.get(0)?))).map_err(refusal)
}

pub(super) fn order(tx: &Transaction<'_>, names: &Names, act: &NewAct) -> StoreResult<ActNumber> {
    let number = next_number(tx, names)?;
    let sql = format!(
        "INSERT INTO {} (act_number, shard, created_at, actor, why, verb, destination, message_id, selector, content, \
         next_position, state) VALUES (?, ?, {NOW_US}, ?, ?, ?, ?, ?, ?, ?, ?, '{}')",
        names.act,
        act.verb.first_state().as_str()
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    for shard in &act.shards {
        let (selector, begins) = act.of_shard(*shard);
        let values = params![
            signed(number),
            shard.0,
            cut(&act.actor, ACTOR_CHARS),
            cut(&act.why, WHY_CHARS),
            act.verb.as_str(),
            act.destination,
            act.message_id,
            selector,
            act.edit.as_ref().map(outhaul_core::act::Edit::encode),
            signed(begins),
        ];
        statement.execute(values).map_err(|e| refusal(e).while_doing("ordering an act"))?;
    }
    Ok(ActNumber(number))
}

fn raw(row: &Row<'_>) -> rusqlite::Result<RawAct> {
    Ok(RawAct {
        number: unsigned(row.get(0)?),
        shard: row.get(1)?,
        at_us: row.get(2)?,
        actor: row.get(3)?,
        why: row.get(4)?,
        verb: row.get(5)?,
        destination: row.get(6)?,
        message_id: row.get(7)?,
        selector: row.get(8)?,
        content: row.get(9)?,
        state: row.get(10)?,
        next: unsigned(row.get(11)?),
        done: unsigned(row.get(12)?),
        left: unsigned(row.get(13)?),
        note: row.get(14)?,
        finished_at_us: row.get(15)?,
    })
}

fn select(tx: &Transaction<'_>, names: &Names, which: &str, values: Vec<Value>) -> StoreResult<Vec<ActRecord>> {
    let sql = format!("SELECT {ACT_COLUMNS} FROM {} WHERE {which}", names.act);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let rows = statement.query_map(params_from_iter(values), raw).map_err(refusal)?;
    let rows = rows.collect::<rusqlite::Result<Vec<RawAct>>>().map_err(refusal)?;
    Ok(rows.into_iter().filter_map(RawAct::into_record).collect())
}

pub(super) fn open(tx: &Transaction<'_>, names: &Names) -> StoreResult<Vec<Act>> {
    let which = format!("state = '{}' AND shard = 0 ORDER BY act_number LIMIT {OPEN_ACTS}", ActState::Open.as_str());
    Ok(select(tx, names, &which, vec![])?.into_iter().map(|r| r.act).collect())
}

/// Edits that were carried out: for one destination, or for all.
pub(super) fn edits(tx: &Transaction<'_>, names: &Names, destination: Option<&str>) -> StoreResult<Vec<ActRecord>> {
    let of = if destination.is_some() { " AND destination = ?" } else { "" };
    let (done, edit) = (ActState::Done.as_str(), Verb::Edit.as_str());
    let which = format!("state = '{done}' AND shard = 0 AND verb = '{edit}'{of} ORDER BY act_number");
    select(tx, names, &which, destination.map(|d| Value::from(d.to_owned())).into_iter().collect())
}

pub(super) fn records(tx: &Transaction<'_>, names: &Names, wanted: &ActsWanted) -> StoreResult<Vec<ActRecord>> {
    match wanted {
        ActsWanted::Numbers(numbers) => {
            let mut found = Vec::new();
            for number in numbers {
                let which = "act_number = ? ORDER BY act_number, shard";
                found.extend(select(tx, names, which, vec![Value::from(signed(number.0))])?);
            }
            Ok(found)
        }
        ActsWanted::MessageId(id) => {
            select(tx, names, "message_id = ? ORDER BY act_number, shard", vec![Value::from(id.clone())])
        }
        ActsWanted::Newest(count) => {
            let which = format!(
                "act_number > (SELECT coalesce(max(act_number), 0) - {count} FROM {}) ORDER BY act_number, shard",
                names.act
            );
            select(tx, names, &which, vec![])
        }
        ActsWanted::Replays(shard) => {
            let (begun, done, replay) = (ActState::Unfinished.as_str(), ActState::Done.as_str(), Verb::Replay.as_str());
            let which =
                format!("state IN ('{begun}', '{done}') AND shard = ? AND verb = '{replay}' ORDER BY act_number");
            select(tx, names, &which, vec![Value::from(shard.0)])
        }
    }
}

pub(super) fn take_replay(tx: &Transaction<'_>, names: &Names, number: ActNumber, runner: &str) -> StoreResult<bool> {
    let sql = format!(
        "UPDATE {} SET note = ? WHERE act_number = ? AND state = '{}'",
        names.act,
        ActState::Unfinished.as_str()
    );
    let values = params![cut(runner, NOTE_CHARS), signed(number.0)];
    tx.prepare_cached(&sql).and_then(|mut s| s.execute(values)).map(|rows| rows > 0).map_err(refusal)
}

pub(super) fn keep_replay(tx: &Transaction<'_>, names: &Names, p: &ReplayProgress) -> StoreResult<bool> {
    let (state, note, finished) = p.columns(NOW_US);
    let sql = format!(
        "UPDATE {} SET state = ?1, next_position = ?2, messages_changed = ?3, messages_left = ?4, note = ?5, \
         finished_at = {finished} WHERE act_number = ?6 AND shard = ?7 AND {}",
        names.act,
        ReplayProgress::condition("?8", ["?1", "?2", "?3", "?4"])
    );
    let (next, done, left, number) = (signed(p.next.0), signed(p.done), signed(p.left), signed(p.number.0));
    let values = params![state, next, done, left, note, number, p.shard.0, cut(&p.runner, NOTE_CHARS)];
    tx.prepare_cached(&sql).and_then(|mut s| s.execute(values)).map(|rows| rows > 0).map_err(refusal)
}

pub(super) fn pauses(tx: &Transaction<'_>, names: &Names) -> StoreResult<Vec<PauseStatus>> {
    let sql = format!(
        "SELECT shard, destination, act_number, since, actor, why FROM {} ORDER BY shard, destination",
        names.pause
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let rows = statement.query_map([], |row| {
        Ok(PauseStatus {
            shard: ShardId(row.get(0)?),
            destination: Some(row.get::<_, String>(1)?).filter(|d| !d.is_empty()),
            number: ActNumber(unsigned(row.get(2)?)),
            since_us: row.get(3)?,
            actor: row.get(4)?,
            why: row.get(5)?,
        })
    });
    rows.and_then(Iterator::collect).map_err(refusal)
}

type RecoveredActs = (Vec<Act>, Vec<Option<String>>, Vec<(String, Position, ActNumber)>);

pub(super) fn recover(tx: &Transaction<'_>, names: &Names) -> StoreResult<RecoveredActs> {
    let paused = pauses(tx, names)?.into_iter().map(|p| p.destination).collect();
    Ok((open(tx, names)?, paused, edited_of(&edits(tx, names, None)?)))
}

/// What a checkpoint says of acts. Before the parked rows: what an edit replaces is kept first.
pub(super) fn write(
    tx: &Transaction<'_>,
    names: &Names,
    shard: &ShardCheckpoint,
    destinations: &[String],
) -> StoreResult<()> {
    let sql = format!(
        "UPDATE {} SET state = ?, next_position = ?, messages_changed = ?, messages_left = ?, note = ?, \
         finished_at = iif(?1 = '{}', NULL, {NOW_US}) WHERE act_number = ? AND shard = ?",
        names.act,
        ActState::Open.as_str()
    );
    for write in &shard.acts {
        let (number, at) = (signed(write.number.0), signed(write.next.0));
        let (done, left, note) = (signed(write.done), signed(write.left), cut(&write.note, NOTE_CHARS));
        let values = params![write.state.as_str(), at, done, left, note, number, shard.shard.0];
        tx.prepare_cached(&sql).and_then(|mut s| s.execute(values)).map_err(refusal)?;
        if let Some(original) = &write.original {
            keep_original(tx, names, number, shard.shard, original, destinations)?;
        }
        if let Some(pause) = &write.pause {
            write_pause(tx, names, number, shard.shard, pause)?;
        }
    }
    Ok(())
}

fn keep_original(
    tx: &Transaction<'_>,
    names: &Names,
    number: i64,
    shard: ShardId,
    original: &Original,
    destinations: &[String],
) -> StoreResult<()> {
    let packed = chunk::encode(std::iter::once(original.message.as_ref()), destinations);
    let sql = format!(
        "UPDATE {} SET original = ?, original_payload = (SELECT oversize_payload FROM {} WHERE destination = ? AND shard = ? \
         AND position = ?) WHERE act_number = ? AND shard = ?",
        names.act, names.parked
    );
    let position = signed(original.message.position.0);
    let values = params![packed.bytes, original.destination, shard.0, position, number, shard.0];
    tx.prepare_cached(&sql).and_then(|mut s| s.execute(values)).map(drop).map_err(refusal)
}

fn write_pause(
    tx: &Transaction<'_>,
    names: &Names,
    number: i64,
    shard: ShardId,
    pause: &PauseWrite,
) -> StoreResult<()> {
    let (destination, begins) = match pause {
        PauseWrite::Pause(destination) => (destination, true),
        PauseWrite::Resume(destination) => (destination, false),
    };
    let destination = destination.as_deref().unwrap_or_default();
    let sql = format!("DELETE FROM {} WHERE shard = ? AND destination = ?", names.pause);
    tx.prepare_cached(&sql).and_then(|mut s| s.execute(params![shard.0, destination])).map_err(refusal)?;
    if begins {
        let sql = format!(
            "INSERT INTO {} (shard, destination, act_number, since, actor, why) SELECT shard, ?, act_number, {NOW_US}, actor, why \
             FROM {} WHERE act_number = ? AND shard = ?",
            names.pause, names.act
        );
        let values = params![destination, number, shard.0];
        tx.prepare_cached(&sql).and_then(|mut s| s.execute(values)).map_err(refusal)?;
    }
    Ok(())
}

/// The conditions of a query, and their values.
fn conditions(query: &ParkedQuery) -> (String, Vec<Value>) {
    let mut sql = String::from("1 = 1");
    let mut values: Vec<Value> = Vec::new();
    let mut and = |condition: &str, value: Value| {
        sql.push_str(&format!(" AND {condition}"));
        values.push(value);
    };
    let text = |t: &String| Value::from(t.clone());
    query.destination.iter().for_each(|d| and("destination = ?", text(d)));
    query.shard.iter().for_each(|s| and("shard = ?", Value::from(s.0)));
    query.key.iter().for_each(|k| and("msg_key = ?", text(k)));
    query.id.iter().for_each(|i| and("id = ?", text(i)));
    query.code.iter().for_each(|c| and("error_code = ?", text(c)));
    query.state.iter().for_each(|s| and("state = ?", Value::from(s.as_str().to_owned())));
    query.position.iter().for_each(|p| and("position = ?", Value::from(signed(p.0))));
    if let Some((destination, shard, position)) = &query.after {
        if query.destination.is_some() && query.shard.is_some() {
            and("position > ?", Value::from(signed(position.0)));
        } else {
            sql.push_str(" AND (destination, shard, position) > (?, ?, ?)");
            values.extend([text(destination), Value::from(shard.0), Value::from(signed(position.0))]);
        }
    }
    (sql, values)
}

pub(super) fn list_parked(
    tx: &Transaction<'_>,
    names: &Names,
    query: &ParkedQuery,
    limit: u32,
) -> StoreResult<Vec<ListedParked>> {
    let (which, values) = conditions(query);
    let sql = format!(
        "SELECT {ENTRY}, id FROM {} WHERE {which} ORDER BY destination, shard, position LIMIT {limit}",
        names.parked
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let listed = |row: &Row<'_>| Ok(ListedParked { entry: entry(row)?, id: row.get(11)? });
    statement.query_map(params_from_iter(values), listed).and_then(Iterator::collect).map_err(refusal)
}

pub(super) fn count_parked(tx: &Transaction<'_>, names: &Names, query: &ParkedQuery) -> StoreResult<Vec<ParkedCount>> {
    let (which, values) = conditions(&ParkedQuery { id: None, position: None, after: None, ..query.clone() });
    let sql = format!(
        "SELECT destination, shard, error_code, state, count(*) FROM {} WHERE {which} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
        names.parked
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let unknown = || rusqlite::Error::InvalidColumnType(3, "state".into(), Type::Text);
    let count = |row: &Row<'_>| {
        Ok(ParkedCount {
            destination: row.get(0)?,
            shard: ShardId(row.get(1)?),
            code: row.get(2)?,
            state: ParkedState::parse(&row.get::<_, String>(3)?).ok_or_else(unknown)?,
            count: unsigned(row.get(4)?),
        })
    };
    statement.query_map(params_from_iter(values), count).and_then(Iterator::collect).map_err(refusal)
}

pub(super) fn cancel(tx: &Transaction<'_>, names: &Names, request: &CancelRequest) -> StoreResult<Vec<ActNumber>> {
    let (Some(at), Some(scheduled)) = (names.available_at_us(), names.scheduled()) else { return Ok(vec![]) };
    let mut numbers = Vec::new();
    for row in read::with_id(tx, names, &request.id)? {
        let sql = format!("DELETE FROM {} WHERE {} = ? AND {scheduled} AND ({at}) > {NOW_US}", names.outbox, names.seq);
        if tx.prepare_cached(&sql).and_then(|mut s| s.execute([signed(row.seq.0)])).map_err(refusal)? == 0 {
            continue;
        }
        let message = Message::from_row(row, Position(0), DestinationSet::EMPTY);
        let packed = chunk::encode(std::iter::once(&message), &[]);
        let number = next_number(tx, names)?;
        let sql = format!(
            "INSERT INTO {} (act_number, shard, created_at, actor, why, verb, message_id, selector, state, messages_changed, \
             finished_at, original) VALUES (?, ?, {NOW_US}, ?, ?, ?, ?, '{{}}', ?, 1, {NOW_US}, ?)",
            names.act
        );
        let (actor, why) = (cut(&request.actor, ACTOR_CHARS), cut(&request.why, WHY_CHARS));
        let (verb, done) = (Verb::Cancel.as_str(), ActState::Done.as_str());
        let values = params![signed(number), SHARD.0, actor, why, verb, request.id, done, packed.bytes];
        tx.prepare_cached(&sql).and_then(|mut s| s.execute(values)).map_err(refusal)?;
        numbers.push(ActNumber(number));
    }
    Ok(numbers)
}
