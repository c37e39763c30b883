//! Operators' acts: ordered, looked for, carried out by checkpoints, and recorded; and what selects parked rows.

use mysql_async::Row;
use outhaul_core::act::{Act, ActNumber, ActState, ActWrite, Edit, PauseWrite, Verb};
use outhaul_core::checkpoint::ShardCheckpoint;
use outhaul_core::chunk;
use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::parked::ParkedState;

use super::MySqlStore;
use super::parked::{ENTRY, entry};
use super::refusal::Failure;
use super::statement::Statement;
use super::values::{bytes_opt, hex, number, number_opt, quoted, text, text_opt};
use crate::acts::{
    ACT_COLUMNS, ACTOR_CHARS, ActRecord, ActsWanted, CancelRequest, ListedParked, NOTE_CHARS, NewAct, OPEN_ACTS,
    ParkedCount, ParkedQuery, PauseStatus, RawAct, ReplayProgress, WHY_CHARS, check_order, cut, edited_of,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::{Found, Recovery, StoreResult};

/// The present in microseconds since 1970-01-01 UTC, by the database's clock.
const NOW_US: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
/// The row of the meta table that counts acts: who orders one waits for who orders another, and for nobody else.
const COUNTER: &str = "acts";

/// The statements of a checkpoint that write what it says of acts. Before those of parked rows: what an edit replaces is
/// kept first.
pub(super) fn statements(
    options: &StoreOptions,
    shards: &[&ShardCheckpoint],
    destinations: &[String],
) -> Vec<Statement> {
    let (act, parked) = (quoted(&options.table("outbox_act")), quoted(&options.table("outbox_parked")));
    let pause = quoted(&options.table("outbox_pause"));
    let mut statements = Vec::new();
    for (shard, write) in shards.iter().flat_map(|s| s.acts.iter().map(|write| (s.shard, write))) {
        let of_act = format!("WHERE act_number = {} AND shard = {shard}", write.number);
        statements.push(progress(&act, &of_act, write));
        if let Some(original) = &write.original {
            let packed = chunk::encode(std::iter::once(original.message.as_ref()), destinations);
            let mut s = Statement::new(format!("UPDATE {act} SET original = "));
            s.push_bytes(packed.bytes).push(&format!(
                ", original_payload = (SELECT oversize_payload FROM {parked} WHERE destination = {} AND shard = {shard} \
                 AND `position` = {}) {of_act}",
                hex(original.destination.as_bytes()),
                original.message.position
            ));
            statements.push(s);
        }
        let (destination, begins) = match &write.pause {
            Some(PauseWrite::Pause(destination)) => (destination, true),
            Some(PauseWrite::Resume(destination)) => (destination, false),
            None => continue,
        };
        let destination = hex(destination.as_deref().unwrap_or_default().as_bytes());
        statements
            .push(Statement::new(format!("DELETE FROM {pause} WHERE shard = {shard} AND destination = {destination}")));
        if begins {
            statements.push(Statement::new(format!(
                "INSERT INTO {pause} (shard, destination, act_number, since, actor, why) \
                 SELECT shard, {destination}, act_number, {NOW_US}, actor, why FROM {act} {of_act}"
            )));
        }
    }
    statements
}

fn progress(act: &str, of_act: &str, write: &ActWrite) -> Statement {
    let finished = if write.state == ActState::Open { "NULL" } else { NOW_US };
    let mut s = Statement::new(format!(
        "UPDATE {act} SET state = '{}', next_position = {}, messages_changed = {}, messages_left = {}, finished_at = {finished}, \
         note = ",
        write.state.as_str(),
        write.next,
        write.done,
        write.left
    ));
    s.push_text(cut(&write.note, NOTE_CHARS)).push(&format!(" {of_act}"));
    s
}

fn raw(row: &mut Row) -> StoreResult<RawAct> {
    let us = |n: i128| i64::try_from(n).unwrap_or(i64::MAX);
    Ok(RawAct {
        number: number(row, 0)?,
        shard: number(row, 1)?,
        at_us: number(row, 2)?,
        actor: text(row, 3)?,
        why: text(row, 4)?,
        verb: text(row, 5)?,
        destination: text_opt(row, 6)?,
        message_id: text_opt(row, 7)?,
        selector: text(row, 8)?,
        content: bytes_opt(row, 9)?,
        state: text(row, 10)?,
        next: number(row, 11)?,
        done: number(row, 12)?,
        left: number(row, 13)?,
        note: text(row, 14)?,
        finished_at_us: number_opt(row, 15)?.map(us),
    })
}

fn records(rows: Vec<Row>) -> StoreResult<Vec<ActRecord>> {
    let mut found = Vec::with_capacity(rows.len());
    for mut row in rows {
        found.extend(raw(&mut row)?.into_record());
    }
    Ok(found)
}

/// The conditions of a query.
fn conditions(query: &ParkedQuery) -> String {
    let mut all = vec!["1 = 1".to_owned()];
    let text = |t: &String| hex(t.as_bytes());
    all.extend(query.destination.iter().map(|d| format!("destination = {}", text(d))));
    all.extend(query.shard.iter().map(|s| format!("shard = {s}")));
    // The index has the beginning of a key.
    all.extend(query.key.iter().map(|k| format!("msg_key = {}", text(k))));
    all.extend(query.id.iter().map(|i| format!("id = {}", text(i))));
    all.extend(query.code.iter().map(|c| format!("error_code = {}", super::values::literal(c))));
    all.extend(query.state.iter().map(|s| format!("state = '{}'", s.as_str())));
    all.extend(query.position.iter().map(|p| format!("`position` = {p}")));
    if let Some((destination, shard, position)) = &query.after {
        let d = text(destination);
        all.push(match (&query.destination, query.shard) {
            (Some(_), Some(_)) => format!("`position` > {position}"),
            _ => format!(
                "(destination > {d} OR (destination = {d} AND (shard > {shard} OR (shard = {shard} AND `position` > {position}))))"
            ),
        });
    }
    all.join(" AND ")
}

impl MySqlStore {
    fn act_table(&self) -> String {
        quoted(&self.options.table("outbox_act"))
    }

    /// Statements that count one act more.
    fn count_act(&self) -> Statement {
        let meta = quoted(&self.options.table("outbox_meta"));
        Statement::new(format!(
            "INSERT INTO {meta} (name, value) VALUES ('{COUNTER}', '1') ON DUPLICATE KEY UPDATE value = value + 1"
        ))
    }

    /// Its number, inside the same transaction.
    fn counted(&self) -> Statement {
        let meta = quoted(&self.options.table("outbox_meta"));
        Statement::new(format!("SELECT CAST(value AS UNSIGNED) FROM {meta} WHERE name = '{COUNTER}'"))
    }

    pub(super) async fn order_act(&self, act: &NewAct) -> StoreResult<ActNumber> {
        check_order(act)?;
        let mut held = self.other.take(&self.dialer).await?;
        let result = async {
            let link = &mut held.link;
            let answers =
                link.run_inside(&[Statement::new("START TRANSACTION"), self.count_act(), self.counted()]).await?;
            let row = answers.last().and_then(|a| a.rows.first());
            let act_number: u64 = row.map_or(Ok(0), |row| number(row, 0))?;
            let rows: Vec<Statement> =
                act.shards.iter().map(|shard| self.insert_act(act_number, *shard, act)).collect();
            link.run_inside(&rows).await?;
            link.commit().await?;
            Ok::<_, Failure>(ActNumber(act_number))
        }
        .await;
        held.give_back(result)
    }

    fn insert_act(&self, act_number: u64, shard: ShardId, act: &NewAct) -> Statement {
        let mut s = Statement::new(format!(
            "INSERT INTO {} (act_number, shard, created_at, actor, why, verb, destination, message_id, selector, content, \
             next_position, state) VALUES ({act_number}, {shard}, {NOW_US}, ",
            self.act_table()
        ));
        s.push_text(cut(&act.actor, ACTOR_CHARS)).push(", ").push_text(cut(&act.why, WHY_CHARS));
        s.push(&format!(", '{}', ", act.verb.as_str()));
        s.push_bytes_opt(act.destination.as_deref().map(str::as_bytes)).push(", ");
        s.push_bytes_opt(act.message_id.as_deref().map(str::as_bytes)).push(", ");
        let (selector, begins) = act.of_shard(shard);
        s.push_text(selector).push(", ");
        s.push_bytes_opt(act.edit.as_ref().map(Edit::encode).as_deref());
        s.push(&format!(", {begins}, '{}')", act.verb.first_state().as_str()));
        s
    }

    pub(super) async fn look_for_acts(&self, shards: &[ShardId]) -> StoreResult<Vec<Act>> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let shards = shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "SELECT {ACT_COLUMNS} FROM {} FORCE INDEX (by_state) WHERE state = '{}' AND shard IN ({shards}) \
             ORDER BY act_number, shard LIMIT {OPEN_ACTS}",
            self.act_table(),
            ActState::Open.as_str()
        );
        Ok(records(self.select(&self.lease, sql).await?)?.into_iter().map(|r| r.act).collect())
    }

    pub(super) async fn act_records(&self, wanted: &ActsWanted) -> StoreResult<Vec<ActRecord>> {
        let which = match wanted {
            ActsWanted::Numbers(numbers) if numbers.is_empty() => return Ok(Vec::new()),
            ActsWanted::Numbers(numbers) => {
                let list = numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                format!("act_number IN ({list})")
            }
            ActsWanted::MessageId(id) => format!("message_id = {}", hex(id.as_bytes())),
            ActsWanted::Newest(count) => {
                let newest = format!("(SELECT COALESCE(MAX(act_number), 0) FROM {})", self.act_table());
                format!("act_number + {count} > {newest}")
            }
            ActsWanted::Replays(shard) => {
                let (begun, done) = (ActState::Unfinished.as_str(), ActState::Done.as_str());
                let replay = Verb::Replay.as_str();
                format!("state IN ('{begun}', '{done}') AND shard = {shard} AND verb = '{replay}'")
            }
        };
        let sql = format!("SELECT {ACT_COLUMNS} FROM {} WHERE {which} ORDER BY act_number, shard", self.act_table());
        records(self.select(&self.other, sql).await?)
    }

    pub(super) async fn replay_taken(&self, number: ActNumber, runner: &str) -> StoreResult<bool> {
        let of_act = format!(" WHERE act_number = {} AND state = '{}'", number.0, ActState::Unfinished.as_str());
        let mut update = Statement::new(format!("UPDATE {} SET note = ", self.act_table()));
        update.push_text(cut(runner, NOTE_CHARS)).push(&of_act);
        let there = Statement::new(format!("SELECT COUNT(*) FROM {}{of_act}", self.act_table()));
        self.write_and_count(update, there).await
    }

    pub(super) async fn replay_kept(&self, p: &ReplayProgress) -> StoreResult<bool> {
        let (state, note, finished) = p.columns(NOW_US);
        let of_row = format!(" WHERE act_number = {} AND shard = {} AND ", p.number, p.shard);
        let mut update = Statement::new(format!(
            "UPDATE {} SET state = '{state}', next_position = {}, messages_changed = {}, messages_left = {}, \
             finished_at = {finished}, note = ",
            self.act_table(),
            p.next,
            p.done,
            p.left
        ));
        let runner = super::values::literal(cut(&p.runner, NOTE_CHARS));
        let [next, done, left] = [p.next.0, p.done, p.left].map(|n| n.to_string());
        let condition = ReplayProgress::condition(&runner, [&format!("'{state}'"), &next, &done, &left]);
        update.push_text(note).push(&of_row).push(&condition);
        let there = Statement::new(format!("SELECT COUNT(*) FROM {}{of_row}{condition}", self.act_table()));
        self.write_and_count(update, there).await
    }

    /// Runs both in one transaction; whether the second has counted anything. The rows that a change leaves as they were
    /// do not count as changed here.
    async fn write_and_count(&self, update: Statement, count: Statement) -> StoreResult<bool> {
        let mut held = self.other.take(&self.dialer).await?;
        let result = async {
            let link = &mut held.link;
            let answers = link.run_inside(&[Statement::new("START TRANSACTION"), update, count]).await?;
            let row = answers.last().and_then(|a| a.rows.first());
            let counted: u64 = row.map_or(Ok(0), |row| number(row, 0))?;
            link.commit().await?;
            Ok::<_, Failure>(counted > 0)
        }
        .await;
        held.give_back(result)
    }

    pub(super) async fn pause_statuses(&self) -> StoreResult<Vec<PauseStatus>> {
        let sql = format!(
            "SELECT shard, destination, act_number, since, actor, why FROM {} ORDER BY shard, destination",
            quoted(&self.options.table("outbox_pause"))
        );
        let status = |mut row: Row| {
            Ok(PauseStatus {
                shard: ShardId(number(&row, 0)?),
                destination: Some(text(&mut row, 1)?).filter(|d| !d.is_empty()),
                number: ActNumber(number(&row, 2)?),
                since_us: number(&row, 3)?,
                actor: text(&mut row, 4)?,
                why: text(&mut row, 5)?,
            })
        };
        self.select(&self.other, sql).await?.into_iter().map(status).collect()
    }

    /// Edits that were carried out in a shard: for one destination, or for all.
    pub(super) async fn edit_records(&self, shard: ShardId, destination: Option<&str>) -> StoreResult<Vec<ActRecord>> {
        let of = destination.map_or_else(String::new, |d| format!(" AND destination = {}", hex(d.as_bytes())));
        let sql = format!(
            "SELECT {ACT_COLUMNS} FROM {} FORCE INDEX (by_state) WHERE state = '{}' AND shard = {shard} AND verb = '{}'{of} \
             ORDER BY act_number",
            self.act_table(),
            ActState::Done.as_str(),
            Verb::Edit.as_str()
        );
        records(self.select(&self.log, sql).await?)
    }

    pub(super) async fn recover_acts(&self, shard: ShardId, recovery: &mut Recovery) -> StoreResult<()> {
        recovery.acts = self.look_for_acts(&[shard]).await?;
        let paused = self.pause_statuses().await?.into_iter().filter(|p| p.shard == shard);
        recovery.paused = paused.map(|p| p.destination).collect();
        recovery.edited = edited_of(&self.edit_records(shard, None).await?);
        Ok(())
    }

    pub(super) async fn parked_list(&self, query: &ParkedQuery, limit: u32) -> StoreResult<Vec<ListedParked>> {
        let sql = format!(
            "SELECT {ENTRY}, id FROM {} WHERE {} ORDER BY destination, shard, `position` LIMIT {limit}",
            quoted(&self.options.table("outbox_parked")),
            conditions(query)
        );
        let listed = |mut row: Row| {
            let id = text(&mut row, 11)?;
            Ok(ListedParked { entry: entry(&mut row)?, id })
        };
        self.select(&self.other, sql).await?.into_iter().map(listed).collect()
    }

    pub(super) async fn parked_counts(&self, query: &ParkedQuery) -> StoreResult<Vec<ParkedCount>> {
        let query = ParkedQuery { id: None, position: None, after: None, ..query.clone() };
        let sql = format!(
            "SELECT destination, shard, error_code, state, COUNT(*) FROM {} WHERE {} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
            quoted(&self.options.table("outbox_parked")),
            conditions(&query)
        );
        let unknown =
            || StoreError::new(StoreErrorKind::Corrupt, "a parked row has a state that this build does not know");
        let count = |mut row: Row| {
            Ok(ParkedCount {
                destination: text(&mut row, 0)?,
                shard: ShardId(number(&row, 1)?),
                code: text(&mut row, 2)?,
                state: ParkedState::parse(&text(&mut row, 3)?).ok_or_else(unknown)?,
                count: number(&row, 4)?,
            })
        };
        self.select(&self.other, sql).await?.into_iter().map(count).collect()
    }

    /// Rows are deleted one by one, by their place: a DELETE that searches would wait for open ones.
    pub(super) async fn cancel_rows(&self, request: &CancelRequest) -> StoreResult<Vec<ActNumber>> {
        let layout = self.layout(&self.other).await?;
        let (Some(at), Some(scheduled)) = (&layout.available_at, layout.scheduled()) else { return Ok(Vec::new()) };
        let mut numbers = Vec::new();
        for found in self.find_hot(&request.id).await? {
            let Found::Hot { row, .. } = found else { continue };
            let shard = row.shard;
            let of_shard = layout.shard.as_ref().map_or_else(String::new, |s| format!("{s} = {shard} AND "));
            let delete = Statement::new(format!(
                "DELETE FROM {} WHERE {of_shard}{} = {} AND {} = {} AND {scheduled} AND {at} > UTC_TIMESTAMP(6)",
                layout.table,
                layout.seq,
                row.seq,
                layout.id.bytes(""),
                hex(row.id.as_bytes()),
            ));
            let message = Message::from_row(*row, Position(0), DestinationSet::EMPTY);
            let mut held = self.other.take(&self.dialer).await?;
            let result = async {
                let link = &mut held.link;
                let answers = link.run_inside(&[Statement::new("START TRANSACTION"), delete]).await?;
                if answers.last().is_none_or(|a| a.affected == 0) {
                    link.rollback().await?;
                    return Ok(None);
                }
                let answers = link.run_inside(&[self.count_act(), self.counted()]).await?;
                let row = answers.last().and_then(|a| a.rows.first());
                let act_number: u64 = row.map_or(Ok(0), |row| number(row, 0))?;
                link.run_inside(&[self.insert_cancel(act_number, shard, request, &message)]).await?;
                link.commit().await?;
                Ok::<_, Failure>(Some(ActNumber(act_number)))
            }
            .await;
            numbers.extend(held.give_back(result)?);
        }
        Ok(numbers)
    }

    fn insert_cancel(&self, act_number: u64, shard: ShardId, request: &CancelRequest, message: &Message) -> Statement {
        let packed = chunk::encode(std::iter::once(message), &[]);
        let mut s = Statement::new(format!(
            "INSERT INTO {} (act_number, shard, created_at, actor, why, verb, message_id, selector, state, messages_changed, \
             finished_at, original) VALUES ({act_number}, {shard}, {NOW_US}, ",
            self.act_table()
        ));
        s.push_text(cut(&request.actor, ACTOR_CHARS)).push(", ").push_text(cut(&request.why, WHY_CHARS));
        s.push(&format!(", '{}', ", Verb::Cancel.as_str())).push_bytes(request.id.as_bytes());
        s.push(&format!(", '{{}}', '{}', 1, {NOW_US}, ", ActState::Done.as_str())).push_bytes(packed.bytes).push(")");
        s
    }
}
