//! Operators' acts: ordered, looked for, carried out by checkpoints, and recorded; and what selects parked rows.

use std::collections::BTreeMap;

use outhaul_core::act::{Act, ActNumber, ActState, Edit, PauseWrite, Verb};
use outhaul_core::checkpoint::ShardCheckpoint;
use outhaul_core::chunk;
use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::parked::ParkedState;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{GUARD, Statement, get};
use super::parked::{ENTRY, entry};
use super::values::{clean, quoted, signed, small, unsigned};
use crate::acts::{
    ACT_COLUMNS, ACTOR_CHARS, ActRecord, ActsWanted, CancelRequest, ListedParked, NOTE_CHARS, NewAct, OPEN_ACTS,
    ParkedCount, ParkedQuery, PauseStatus, RawAct, ReplayProgress, WHY_CHARS, check_order, cut, edited_of,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::{Found, Recovery, StoreResult};

/// The present in microseconds since 1970-01-01 UTC, by the database's clock.
const NOW_US: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// SQL of one store for what checkpoints say of acts, made once.
pub(super) struct ActsSql {
    progress: String,
    original: String,
    end_pause: String,
    begin_pause: String,
}

impl ActsSql {
    pub(super) fn new(options: &StoreOptions) -> Self {
        let t = |name: &str| quoted(&options.table(name));
        let (act, pause, parked) = (t("outbox_act"), t("outbox_pause"), t("outbox_parked"));
        Self {
            progress: format!(
                "UPDATE {act} o SET state = t.st, next_position = t.n, messages_changed = t.d, messages_left = t.l, note = t.w, \
                   finished_at = CASE WHEN t.st = '{}' THEN NULL ELSE {NOW_US} END \
                 FROM unnest($1, $2, $3, $4, $5, $6, $7) t(a, s, st, n, d, l, w) \
                 WHERE o.act_number = t.a AND o.shard = t.s AND {GUARD}",
                ActState::Open.as_str()
            ),
            original: format!(
                "UPDATE {act} o SET original = t.m, original_payload = (SELECT p.oversize_payload FROM {parked} p \
                   WHERE p.destination = t.d AND p.shard = t.s AND p.position = t.p) \
                 FROM unnest($1, $2, $3, $4, $5) t(a, s, d, p, m) WHERE o.act_number = t.a AND o.shard = t.s AND {GUARD}"
            ),
            end_pause: format!(
                "DELETE FROM {pause} o USING unnest($1, $2) t(s, d) WHERE o.shard = t.s AND o.destination = t.d AND {GUARD}"
            ),
            begin_pause: format!(
                "INSERT INTO {pause} (shard, destination, act_number, since, actor, why) \
                 SELECT a.shard, t.d, a.act_number, {NOW_US}, a.actor, a.why FROM unnest($1, $2, $3) t(n, s, d) \
                 JOIN {act} a ON a.act_number = t.n AND a.shard = t.s WHERE {GUARD}"
            ),
        }
    }
}

/// How far acts have got, by column.
#[derive(Default)]
struct Progress {
    numbers: Vec<i64>,
    shards: Vec<i16>,
    states: Vec<&'static str>,
    next: Vec<i64>,
    done: Vec<i64>,
    left: Vec<i64>,
    notes: Vec<String>,
}

/// What edits have replaced, by column.
#[derive(Default)]
struct Originals {
    numbers: Vec<i64>,
    shards: Vec<i16>,
    destinations: Vec<String>,
    positions: Vec<i64>,
    messages: Vec<Vec<u8>>,
}

/// What a checkpoint says of acts, by column.
#[derive(Default)]
pub(super) struct ActsBatch {
    progress: Progress,
    originals: Originals,
    /// Shards and destinations whose pause ends, or is followed by another one.
    ended: (Vec<i16>, Vec<String>),
    begun: (Vec<i64>, Vec<i16>, Vec<String>),
}

impl ActsBatch {
    pub(super) fn of<'a>(shards: impl Iterator<Item = &'a ShardCheckpoint>, destinations: &[String]) -> Self {
        let mut batch = Self::default();
        // Of several about one lane the last one counts.
        let mut pauses: BTreeMap<(i16, String), Option<i64>> = BTreeMap::new();
        for (shard, write) in shards.flat_map(|s| s.acts.iter().map(|write| (small(s.shard), write))) {
            let number = signed(write.number.0);
            let p = &mut batch.progress;
            p.numbers.push(number);
            p.shards.push(shard);
            p.states.push(write.state.as_str());
            p.next.push(signed(write.next.0));
            p.done.push(signed(write.done));
            p.left.push(signed(write.left));
            p.notes.push(clean(cut(&write.note, NOTE_CHARS)));
            if let Some(original) = &write.original {
                let o = &mut batch.originals;
                o.numbers.push(number);
                o.shards.push(shard);
                o.destinations.push(clean(&original.destination));
                o.positions.push(signed(original.message.position.0));
                o.messages.push(chunk::encode(std::iter::once(original.message.as_ref()), destinations).bytes);
            }
            let place = |d: &Option<String>| (shard, clean(d.as_deref().unwrap_or_default()));
            match &write.pause {
                Some(PauseWrite::Pause(destination)) => _ = pauses.insert(place(destination), Some(number)),
                Some(PauseWrite::Resume(destination)) => _ = pauses.insert(place(destination), None),
                None => {}
            }
        }
        for ((shard, destination), begun) in pauses {
            batch.ended.0.push(shard);
            batch.ended.1.push(destination.clone());
            if let Some(number) = begun {
                batch.begun.0.push(number);
                batch.begun.1.push(shard);
                batch.begun.2.push(destination);
            }
        }
        batch
    }

    /// Before the statements of parked rows: what an edit replaces is kept first.
    pub(super) fn statements<'a>(&'a self, sql: &'a ActsSql, into: &mut Vec<Statement<'a>>) {
        let p = &self.progress;
        if !p.numbers.is_empty() {
            into.push(
                Statement::new(&sql.progress)
                    .with(&p.numbers, Type::INT8_ARRAY)
                    .with(&p.shards, Type::INT2_ARRAY)
                    .with(&p.states, Type::TEXT_ARRAY)
                    .with(&p.next, Type::INT8_ARRAY)
                    .with(&p.done, Type::INT8_ARRAY)
                    .with(&p.left, Type::INT8_ARRAY)
                    .with(&p.notes, Type::TEXT_ARRAY),
            );
        }
        let o = &self.originals;
        if !o.numbers.is_empty() {
            into.push(
                Statement::new(&sql.original)
                    .with(&o.numbers, Type::INT8_ARRAY)
                    .with(&o.shards, Type::INT2_ARRAY)
                    .with(&o.destinations, Type::TEXT_ARRAY)
                    .with(&o.positions, Type::INT8_ARRAY)
                    .with(&o.messages, Type::BYTEA_ARRAY),
            );
        }
        if !self.ended.0.is_empty() {
            let (shards, destinations) = &self.ended;
            into.push(
                Statement::new(&sql.end_pause).with(shards, Type::INT2_ARRAY).with(destinations, Type::TEXT_ARRAY),
            );
        }
        let (numbers, shards, destinations) = &self.begun;
        if !numbers.is_empty() {
            into.push(
                Statement::new(&sql.begin_pause)
                    .with(numbers, Type::INT8_ARRAY)
                    .with(shards, Type::INT2_ARRAY)
                    .with(destinations, Type::TEXT_ARRAY),
            );
        }
    }
}

fn shard_of(number: i16) -> ShardId {
    ShardId(u16::try_from(number).unwrap_or_default())
}

fn raw(row: &Row) -> StoreResult<RawAct> {
    Ok(RawAct {
        number: unsigned(get(row, 0)?),
        shard: shard_of(get(row, 1)?).0,
        at_us: get(row, 2)?,
        actor: get(row, 3)?,
        why: get(row, 4)?,
        verb: get(row, 5)?,
        destination: get(row, 6)?,
        message_id: get(row, 7)?,
        selector: get(row, 8)?,
        content: get(row, 9)?,
        state: get(row, 10)?,
        next: unsigned(get(row, 11)?),
        done: unsigned(get(row, 12)?),
        left: unsigned(get(row, 13)?),
        note: get(row, 14)?,
        finished_at_us: get(row, 15)?,
    })
}

fn records(rows: &[Row]) -> StoreResult<Vec<ActRecord>> {
    let mut found = Vec::with_capacity(rows.len());
    for row in rows {
        found.extend(raw(row)?.into_record());
    }
    Ok(found)
}

/// A query as parameters, each NULL where it is not asked for.
struct Conditions {
    destination: Option<String>,
    shard: Option<i16>,
    key: Option<String>,
    id: Option<String>,
    code: Option<String>,
    state: Option<&'static str>,
    position: Option<i64>,
    after: (Option<String>, i16, i64),
}

impl Conditions {
    const SQL: &'static str = "($1::text IS NULL OR destination = $1) AND ($2::smallint IS NULL OR shard = $2) \
         AND ($3::text IS NULL OR msg_key = $3) AND ($4::text IS NULL OR id = $4) AND ($5::text IS NULL OR error_code = $5) \
         AND ($6::text IS NULL OR state = $6) AND ($7::bigint IS NULL OR position = $7) \
         AND ($8::text IS NULL OR (destination, shard, position) > ($8, $9, $10))";

    fn of(query: &ParkedQuery) -> Self {
        let text = |t: &Option<String>| t.as_deref().map(clean);
        let (destination, shard, position) = query
            .after
            .as_ref()
            .map_or((None, 0, 0), |(d, shard, position)| (Some(clean(d)), small(*shard), signed(position.0)));
        Self {
            destination: text(&query.destination),
            shard: query.shard.map(small),
            key: text(&query.key),
            id: text(&query.id),
            code: text(&query.code),
            state: query.state.map(ParkedState::as_str),
            position: query.position.map(|p| signed(p.0)),
            after: (destination, shard, position),
        }
    }

    fn bind<'a>(&'a self, statement: Statement<'a>) -> Statement<'a> {
        statement
            .with(&self.destination, Type::TEXT)
            .with(&self.shard, Type::INT2)
            .with(&self.key, Type::TEXT)
            .with(&self.id, Type::TEXT)
            .with(&self.code, Type::TEXT)
            .with(&self.state, Type::TEXT)
            .with(&self.position, Type::INT8)
            .with(&self.after.0, Type::TEXT)
            .with(&self.after.1, Type::INT2)
            .with(&self.after.2, Type::INT8)
    }
}

impl PostgresStore {
    fn act_table(&self) -> String {
        quoted(&self.options.table("outbox_act"))
    }

    /// A row of the meta table counts acts: who orders one waits for who orders another, and for nobody else.
    fn counted(&self) -> String {
        let meta = quoted(&self.options.table("outbox_meta"));
        format!(
            "INSERT INTO {meta} AS m (name, value) VALUES ('acts', '1') \
             ON CONFLICT (name) DO UPDATE SET value = (m.value::bigint + 1)::text RETURNING value::bigint AS n"
        )
    }

    pub(super) async fn order_act(&self, act: &NewAct) -> StoreResult<ActNumber> {
        check_order(act)?;
        let sql = format!(
            "WITH counted AS ({}) INSERT INTO {} (act_number, shard, created_at, actor, why, verb, destination, message_id, selector, \
               content, next_position, state) SELECT c.n, t.s, {NOW_US}, $2, $3, $4, $5, $6, t.w, $8, t.b, '{}' \
             FROM counted c, unnest($1, $7, $9) t(s, w, b) RETURNING act_number",
            self.counted(),
            self.act_table(),
            act.verb.first_state().as_str()
        );
        let shards: Vec<i16> = act.shards.iter().map(|s| small(*s)).collect();
        let (actor, why) = (clean(cut(&act.actor, ACTOR_CHARS)), clean(cut(&act.why, WHY_CHARS)));
        let verb = act.verb.as_str();
        let of_shards =
            act.shards.iter().map(|s| act.of_shard(*s)).map(|(selector, begins)| (selector, signed(begins)));
        let (selectors, begins): (Vec<String>, Vec<i64>) = of_shards.unzip();
        let (destination, id) = (act.destination.as_deref().map(clean), act.message_id.as_deref().map(clean));
        let content = act.edit.as_ref().map(Edit::encode);
        let statement = Statement::new(&sql)
            .with(&shards, Type::INT2_ARRAY)
            .with(&actor, Type::TEXT)
            .with(&why, Type::TEXT)
            .with(&verb, Type::TEXT)
            .with(&destination, Type::TEXT)
            .with(&id, Type::TEXT)
            .with(&selectors, Type::TEXT_ARRAY)
            .with(&content, Type::BYTEA)
            .with(&begins, Type::INT8_ARRAY);
        Ok(ActNumber(self.write_counted(statement).await?.map_or(0, unsigned)))
    }

    /// One statement in a transaction; the first number that it returns.
    async fn write_counted(&self, statement: Statement<'_>) -> StoreResult<Option<i64>> {
        let held = self.other.take(&self.dialer).await?;
        if let Err(failure) = held.link.begin(&self.dialer.begin_write, &[]).await {
            return held.give_back(Err(failure));
        }
        let result = held.link.run_and_commit(&[statement]).await;
        let answers = held.give_back(result)?;
        answers.first().and_then(|rows| rows.first()).map(|row| get(row, 0)).transpose()
    }

    /// The cheaper question first: nearly always there is none.
    pub(super) async fn look_for_acts(&self, shards: &[ShardId]) -> StoreResult<Vec<Act>> {
        if shards.is_empty() {
            return Ok(Vec::new());
        }
        let list = shards.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let open = ActState::Open.as_str();
        let probe = format!(
            "{}; SELECT 1 FROM {} WHERE state = '{open}' AND shard IN ({list}) LIMIT 1; END",
            self.dialer.begin_probe,
            self.act_table()
        );
        let held = self.lease.take(&self.dialer).await?;
        let answer = held.link.has_row(&probe).await;
        if !held.give_back(answer)? {
            return Ok(Vec::new());
        }
        let sql = format!(
            "SELECT {ACT_COLUMNS} FROM {} WHERE state = '{open}' AND shard IN ({list}) ORDER BY act_number, shard LIMIT {OPEN_ACTS}",
            self.act_table()
        );
        let rows = self.select(&self.lease, Statement::new(&sql)).await?;
        Ok(records(&rows)?.into_iter().map(|r| r.act).collect())
    }

    pub(super) async fn act_records(&self, wanted: &ActsWanted) -> StoreResult<Vec<ActRecord>> {
        let select = |which: &str| {
            format!("SELECT {ACT_COLUMNS} FROM {} WHERE {which} ORDER BY act_number, shard", self.act_table())
        };
        let rows = match wanted {
            ActsWanted::Numbers(numbers) => {
                let (sql, numbers) = (select("act_number = ANY ($1)"), numbers.iter().map(|n| signed(n.0)));
                let numbers: Vec<i64> = numbers.collect();
                self.select(&self.other, Statement::new(&sql).with(&numbers, Type::INT8_ARRAY)).await?
            }
            ActsWanted::MessageId(id) => {
                let (sql, id) = (select("message_id = $1"), clean(id));
                self.select(&self.other, Statement::new(&sql).with(&id, Type::TEXT)).await?
            }
            ActsWanted::Newest(count) => {
                let newest = format!("(SELECT coalesce(max(act_number), 0) FROM {})", self.act_table());
                let sql = select(&format!("act_number > {newest} - {count}"));
                self.select(&self.other, Statement::new(&sql)).await?
            }
            ActsWanted::Replays(shard) => {
                let (begun, done) = (ActState::Unfinished.as_str(), ActState::Done.as_str());
                let replay = Verb::Replay.as_str();
                let sql = select(&format!("state IN ('{begun}', '{done}') AND shard = $1 AND verb = '{replay}'"));
                let number = small(*shard);
                self.select(&self.other, Statement::new(&sql).with(&number, Type::INT2)).await?
            }
        };
        records(&rows)
    }

    pub(super) async fn replay_taken(&self, number: ActNumber, runner: &str) -> StoreResult<bool> {
        let sql = format!(
            "UPDATE {} SET note = $2 WHERE act_number = $1 AND state = '{}' RETURNING 1::bigint",
            self.act_table(),
            ActState::Unfinished.as_str()
        );
        let (number, runner) = (signed(number.0), clean(cut(runner, NOTE_CHARS)));
        let statement = Statement::new(&sql).with(&number, Type::INT8).with(&runner, Type::TEXT);
        Ok(self.write_counted(statement).await?.is_some())
    }

    pub(super) async fn replay_kept(&self, p: &ReplayProgress) -> StoreResult<bool> {
        let (state, note, finished) = p.columns(NOW_US);
        let sql = format!(
            "UPDATE {} SET state = $3, next_position = $4, messages_changed = $5, messages_left = $6, note = $7, \
               finished_at = {finished} WHERE act_number = $1 AND shard = $2 AND {} RETURNING 1::bigint",
            self.act_table(),
            ReplayProgress::condition("$8", ["$3", "$4", "$5", "$6"])
        );
        let (number, shard, next) = (signed(p.number.0), small(p.shard), signed(p.next.0));
        let (done, left) = (signed(p.done), signed(p.left));
        let (note, runner) = (clean(note), clean(cut(&p.runner, NOTE_CHARS)));
        let statement = Statement::new(&sql)
            .with(&number, Type::INT8)
            .with(&shard, Type::INT2)
            .with(&state, Type::TEXT)
            .with(&next, Type::INT8)
            .with(&done, Type::INT8)
            .with(&left, Type::INT8)
            .with(&note, Type::TEXT)
            .with(&runner, Type::TEXT);
        Ok(self.write_counted(statement).await?.is_some())
    }

    pub(super) async fn pause_statuses(&self) -> StoreResult<Vec<PauseStatus>> {
        let sql = format!(
            "SELECT shard, destination, act_number, since, actor, why FROM {} ORDER BY shard, destination",
            quoted(&self.options.table("outbox_pause"))
        );
        let status = |row: &Row| {
            Ok(PauseStatus {
                shard: shard_of(get(row, 0)?),
                destination: Some(get::<String>(row, 1)?).filter(|d| !d.is_empty()),
                number: ActNumber(unsigned(get(row, 2)?)),
                since_us: get(row, 3)?,
                actor: get(row, 4)?,
                why: get(row, 5)?,
            })
        };
        self.select(&self.other, Statement::new(&sql)).await?.iter().map(status).collect()
    }

    /// Edits that were carried out in a shard: for one destination, or for all.
    pub(super) async fn edit_records(&self, shard: ShardId, destination: Option<&str>) -> StoreResult<Vec<ActRecord>> {
        let sql = format!(
            "SELECT {ACT_COLUMNS} FROM {} WHERE state = '{}' AND shard = $1 AND verb = '{}' \
               AND ($2::text IS NULL OR destination = $2) ORDER BY act_number",
            self.act_table(),
            ActState::Done.as_str(),
            Verb::Edit.as_str()
        );
        let (number, destination) = (small(shard), destination.map(clean));
        let statement = Statement::new(&sql).with(&number, Type::INT2).with(&destination, Type::TEXT);
        records(&self.select(&self.log, statement).await?)
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
            "SELECT {ENTRY}, id FROM {} WHERE {} ORDER BY destination, shard, position LIMIT {limit}",
            quoted(&self.options.table("outbox_parked")),
            Conditions::SQL
        );
        let conditions = Conditions::of(query);
        let rows = self.select(&self.other, conditions.bind(Statement::new(&sql))).await?;
        rows.iter().map(|row| Ok(ListedParked { entry: entry(row)?, id: get(row, 11)? })).collect()
    }

    pub(super) async fn parked_counts(&self, query: &ParkedQuery) -> StoreResult<Vec<ParkedCount>> {
        let sql = format!(
            "SELECT destination, shard, error_code, state, count(*) FROM {} WHERE {} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4",
            quoted(&self.options.table("outbox_parked")),
            Conditions::SQL
        );
        let conditions = Conditions::of(&ParkedQuery { id: None, position: None, after: None, ..query.clone() });
        let unknown =
            || StoreError::new(StoreErrorKind::Corrupt, "a parked row has a state that this build does not know");
        let count = |row: &Row| {
            Ok(ParkedCount {
                destination: get(row, 0)?,
                shard: shard_of(get(row, 1)?),
                code: get(row, 2)?,
                state: ParkedState::parse(get(row, 3)?).ok_or_else(unknown)?,
                count: unsigned(get(row, 4)?),
            })
        };
        self.select(&self.other, conditions.bind(Statement::new(&sql))).await?.iter().map(count).collect()
    }

    pub(super) async fn cancel_rows(&self, request: &CancelRequest) -> StoreResult<Vec<ActNumber>> {
        let layout = self.layout(&self.other).await?;
        let (Some(at), Some(scheduled)) = (layout.available(), layout.scheduled()) else { return Ok(Vec::new()) };
        let of_shard = layout.shard.as_ref().map_or("$2::smallint = 0".to_owned(), |s| format!("o.{s} = $2"));
        let sql = format!(
            "WITH gone AS (DELETE FROM {outbox} o WHERE {of_shard} AND o.{seq} = $1 AND o.{id}::text = $5 \
                 AND {scheduled} AND {at} > clock_timestamp() RETURNING 1), \
               counted AS (INSERT INTO {meta} AS m (name, value) SELECT 'acts', '1' FROM gone \
                 ON CONFLICT (name) DO UPDATE SET value = (m.value::bigint + 1)::text RETURNING value::bigint AS n) \
             INSERT INTO {act} (act_number, shard, created_at, actor, why, verb, message_id, selector, state, messages_changed, \
               finished_at, original) SELECT c.n, $2, {NOW_US}, $3, $4, '{verb}', $5, '{{}}', '{done}', 1, {NOW_US}, $6 FROM counted c \
             RETURNING act_number",
            outbox = layout.table,
            seq = layout.seq,
            id = layout.id,
            meta = quoted(&self.options.table("outbox_meta")),
            act = self.act_table(),
            verb = Verb::Cancel.as_str(),
            done = ActState::Done.as_str(),
        );
        let mut numbers = Vec::new();
        for found in self.find_hot(&request.id).await? {
            let Found::Hot { row, .. } = found else { continue };
            let (seq, shard) = (signed(row.seq.0), small(row.shard));
            let (actor, why) = (clean(cut(&request.actor, ACTOR_CHARS)), clean(cut(&request.why, WHY_CHARS)));
            let id = clean(&request.id);
            let message = Message::from_row(*row, Position(0), DestinationSet::EMPTY);
            let content = chunk::encode(std::iter::once(&message), &[]).bytes;
            let statement = Statement::new(&sql)
                .with(&seq, Type::INT8)
                .with(&shard, Type::INT2)
                .with(&actor, Type::TEXT)
                .with(&why, Type::TEXT)
                .with(&id, Type::TEXT)
                .with(&content, Type::BYTEA);
            numbers.extend(self.write_counted(statement).await?.map(|n| ActNumber(unsigned(n))));
        }
        Ok(numbers)
    }
}
