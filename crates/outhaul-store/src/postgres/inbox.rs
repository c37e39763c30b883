//! The `inbox_message` table of a consumer's PostgreSQL database.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::link::{Dialer, Failure, Link, Slot, Statement, get};
use super::values::quoted;
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{
    COUNT_MAX, Inbox, InboxCounts, InboxMessage, InboxOutcome, InboxPruned, PRUNE_ROWS, Place, Step, Taken, age_seconds,
};
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// The most connections of an inbox.
const CONNECTIONS_MAX: usize = 64;
/// What the columns take, characters.
const ID_MAX: usize = 64;
const TEXT_MAX: usize = 255;

/// An inbox in PostgreSQL.
pub struct PostgresInbox {
    dialer: Dialer,
    slots: Vec<Slot>,
    tables: [(String, String); 3],
    indexes: [String; 2],
    insert: String,
    step: String,
}

impl PostgresInbox {
    /// Opens the first connection; the others, up to `connections`, are opened as lanes need them.
    ///
    /// # Errors
    /// The URL cannot be used, or the server cannot be reached.
    pub async fn open(options: StoreOptions, connections: usize) -> Result<Self, StoreError> {
        let dialer = Dialer::new(&options)?;
        let slots: Vec<Slot> = (0..connections.clamp(1, CONNECTIONS_MAX)).map(|_| Slot::new()).collect();
        let message_table = quoted(&options.table("inbox_message"));
        let insert = format!(
            "INSERT INTO {message_table} (consumer, id, topic, msg_key, headers, payload, position, received_at) \
             SELECT $1, i, t, k, h::json, p, o, now() FROM unnest($2, $3, $4, $5, $6, $7) \
               WITH ORDINALITY m(i, t, k, h, p, o, place) ORDER BY place \
             ON CONFLICT (consumer, id) DO NOTHING RETURNING id"
        );
        // One statement, so that it is right whatever becomes of BEGIN. The rows are numbered in their order, and only
        // once the place has moved, which two that take the same step do one after the other.
        let step = format!(
            "WITH moved AS (UPDATE {} SET next_offset = $9, stored_at_ms = $10, updated_at = now() \
               WHERE consumer = $1 AND source = $11 AND next_offset = $12 RETURNING 1), \
             new AS (INSERT INTO {message_table} \
               (consumer, id, topic, msg_key, headers, payload, position, received_at, dead_at, last_error) \
               SELECT $1, i, t, k, h::json, p, o, now(), CASE WHEN w IS NOT NULL THEN now() END, w \
                 FROM unnest($2, $3, $4, $5, $6, $7, $8) WITH ORDINALITY m(i, t, k, h, p, o, w, place) \
                 WHERE EXISTS (SELECT 1 FROM moved) ORDER BY place \
               ON CONFLICT (consumer, id) DO NOTHING RETURNING 1) \
             SELECT (SELECT count(*) FROM moved), (SELECT count(*) FROM new)",
            quoted(&options.table("inbox_queue"))
        );
        let indexes = indexes(&options);
        let inbox = Self { dialer, slots, tables: tables(&options), indexes, insert, step };
        let first = inbox.slot(0)?.take(&inbox.dialer).await?;
        first.give_back(Ok(()))?;
        Ok(inbox)
    }

    fn slot(&self, lane: usize) -> StoreResult<&Slot> {
        let n = lane.checked_rem(self.slots.len()).unwrap_or_default();
        self.slots.get(n).ok_or_else(|| StoreError::new(StoreErrorKind::Configuration, "an inbox without a connection"))
    }

    /// One by one under savepoints: what the server refuses for its content is told apart from the rest.
    async fn one_by_one(
        &self,
        link: &Link,
        consumer: &str,
        batch: &[&InboxMessage],
    ) -> Result<Vec<InboxOutcome>, Failure> {
        link.begin(&self.dialer.begin_write, &[]).await?;
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut blocked: HashSet<&str> = HashSet::new();
        for message in batch {
            if message.key.as_deref().is_some_and(|key| blocked.contains(key)) {
                outcomes.push(InboxOutcome::Behind);
                continue;
            }
            let columns = Columns::of(std::iter::once(*message));
            match link.attempt(columns.bind(&self.insert, &consumer)).await? {
                Ok(rows) if rows.is_empty() => outcomes.push(InboxOutcome::Duplicate),
                Ok(_) => outcomes.push(InboxOutcome::Stored),
                Err(why) => {
                    outcomes.push(InboxOutcome::Refused(why));
                    blocked.extend(message.key.as_deref());
                }
            }
        }
        link.run_and_commit(&[]).await?;
        Ok(outcomes)
    }
}

/// What is open, in its order, and the same for each key. What is done is in neither.
fn indexes(options: &StoreOptions) -> [String; 2] {
    let (name, table) = (options.table("inbox_message"), quoted(&options.table("inbox_message")));
    let index = |end: &str, columns: &str, what: &str| {
        let name = quoted(&format!("{name}_{end}"));
        format!("CREATE INDEX IF NOT EXISTS {name} ON {table} ({columns}) WHERE {what}")
    };
    [
        index("open", "consumer, seq", "done_at IS NULL AND dead_at IS NULL"),
        index("open_of_key", "consumer, msg_key, seq", "done_at IS NULL"),
    ]
}

fn tables(options: &StoreOptions) -> [(String, String); 3] {
    let plain = options.table("inbox");
    let message = options.table("inbox_message");
    let queue = options.table("inbox_queue");
    let (plain_ddl, message_ddl) = (
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
  consumer varchar(255) COLLATE \"C\" NOT NULL,
  id varchar({ID_MAX}) COLLATE \"C\" NOT NULL,
  processed_at timestamptz(6) NOT NULL DEFAULT now(),
  result text,
  PRIMARY KEY (consumer, id)
)",
            quoted(&plain)
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
  seq bigint GENERATED BY DEFAULT AS IDENTITY NOT NULL,
  consumer varchar(255) COLLATE \"C\" NOT NULL,
  id varchar({ID_MAX}) COLLATE \"C\" NOT NULL,
  topic varchar({TEXT_MAX}) COLLATE \"C\" NOT NULL,
  msg_key varchar({TEXT_MAX}) COLLATE \"C\",
  headers json,
  payload bytea NOT NULL,
  position varchar(32) NOT NULL,
  received_at timestamptz(6) NOT NULL DEFAULT now(),
  claimed_by varchar(255) COLLATE \"C\",
  claimed_until timestamptz(6),
  attempts integer NOT NULL DEFAULT 0,
  done_at timestamptz(6),
  dead_at timestamptz(6),
  last_error text,
  PRIMARY KEY (consumer, id)
)",
            quoted(&message)
        ),
    );
    let queue_ddl = format!(
        "CREATE TABLE IF NOT EXISTS {} (
  consumer varchar(255) COLLATE \"C\" NOT NULL,
  source varchar(512) COLLATE \"C\" NOT NULL,
  next_offset bigint NOT NULL,
  stored_at_ms bigint NOT NULL DEFAULT 0,
  updated_at timestamptz(6) NOT NULL DEFAULT now(),
  PRIMARY KEY (consumer, source)
)",
        quoted(&queue)
    );
    [(plain, plain_ddl), (message, message_ddl), (queue, queue_ddl)]
}

/// Messages by column.
struct Columns<'a> {
    ids: Vec<&'a str>,
    topics: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    headers: Vec<Option<&'a str>>,
    payloads: Vec<&'a [u8]>,
    positions: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    fn of(messages: impl Iterator<Item = &'a InboxMessage> + Clone) -> Self {
        Self {
            ids: messages.clone().map(|m| m.id.as_str()).collect(),
            topics: messages.clone().map(|m| m.topic.as_str()).collect(),
            keys: messages.clone().map(|m| m.key.as_deref()).collect(),
            headers: messages.clone().map(|m| m.headers.as_deref()).collect(),
            payloads: messages.clone().map(|m| m.payload.as_ref()).collect(),
            positions: messages.map(|m| m.position.as_str()).collect(),
        }
    }

    fn bind<'s>(&'s self, sql: &'s str, consumer: &'s &str) -> Statement<'s> {
        Statement::new(sql)
            .with(consumer, Type::TEXT)
            .with(&self.ids, Type::TEXT_ARRAY)
            .with(&self.topics, Type::TEXT_ARRAY)
            .with(&self.keys, Type::TEXT_ARRAY)
            .with(&self.headers, Type::TEXT_ARRAY)
            .with(&self.payloads, Type::BYTEA_ARRAY)
            .with(&self.positions, Type::TEXT_ARRAY)
    }
}

/// What can be seen without asking the server. The rest is the server's to refuse.
fn refusal(message: &InboxMessage) -> Option<String> {
    for (name, text, limit) in [
        ("id", Some(&message.id), ID_MAX),
        ("topic", Some(&message.topic), TEXT_MAX),
        ("msg_key", message.key.as_ref(), TEXT_MAX),
        ("headers", message.headers.as_ref(), usize::MAX),
    ] {
        let Some(text) = text else { continue };
        if text.contains('\0') {
            return Some(format!("{name} holds the character NUL, which PostgreSQL does not store"));
        }
        if text.len() > limit && text.chars().count() > limit {
            return Some(format!("{name} is longer than {limit} characters"));
        }
    }
    None
}

#[async_trait]
impl Inbox for PostgresInbox {
    fn ddl(&self) -> String {
        self.tables.iter().map(|(_, ddl)| ddl).chain(&self.indexes).map(|ddl| format!("{ddl};\n")).collect()
    }

    async fn init(&self) -> Result<(), StoreError> {
        let held = self.slot(0)?.take(&self.dialer).await?;
        let lock = Statement::new(super::schema::INIT_LOCK);
        if let Err(failure) = held.link.begin(&self.dialer.begin_write, &[lock]).await {
            return held.give_back(Err(failure));
        }
        let upgrade = self.upgrade();
        let statements: Vec<Statement<'_>> = (self.tables.iter().map(|(_, ddl)| ddl))
            .chain(std::iter::once(&upgrade))
            .chain(&self.indexes)
            .map(|sql| Statement::new(sql))
            .collect();
        let result = held.link.run_and_commit(&statements).await;
        held.give_back(result).map(|_| ())
    }

    async fn inspect(&self) -> Result<(), StoreError> {
        let [_, (table, _), _] = &self.tables;
        let sql = "SELECT to_regclass($1) IS NOT NULL, has_table_privilege(to_regclass($1), 'SELECT') \
                   AND has_table_privilege(to_regclass($1), 'INSERT')";
        let name = quoted(table);
        let held = self.slot(0)?.take(&self.dialer).await?;
        let statement = Statement::new(sql).with(&name, Type::TEXT);
        let answers = held.link.read(&self.dialer.begin_read, &[statement]).await;
        let answers = held.give_back(answers)?;
        let row = answers.first().and_then(|rows| rows.first());
        let (there, allowed) = match row {
            Some(row) => (get(row, 0)?, get::<Option<bool>>(row, 1)?.unwrap_or(false)),
            None => (false, false),
        };
        let error = |kind, what: &str| Err(StoreError::new(kind, format!("{what} table {table}")));
        match (there, allowed) {
            (false, _) => error(StoreErrorKind::NotInitialised, "there is no"),
            (true, false) => error(StoreErrorKind::Permission, "no right to SELECT and INSERT on"),
            (true, true) => Ok(()),
        }
    }

    async fn deliver(
        &self,
        lane: usize,
        consumer: &str,
        messages: &[InboxMessage],
    ) -> Result<Vec<InboxOutcome>, StoreError> {
        let mut outcomes: Vec<Option<InboxOutcome>> = Vec::with_capacity(messages.len());
        let mut blocked: HashSet<&str> = HashSet::new();
        for message in messages {
            let refused = refusal(message).map(InboxOutcome::Refused);
            let behind =
                message.key.as_deref().is_some_and(|key| blocked.contains(key)).then_some(InboxOutcome::Behind);
            let outcome = behind.or(refused);
            if outcome.is_some() {
                blocked.extend(message.key.as_deref());
            }
            outcomes.push(outcome);
        }
        let batch: Vec<&InboxMessage> =
            messages.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_none()).map(|(m, _)| m).collect();
        if !batch.is_empty() {
            let stored = self.store(lane, consumer, &batch).await?;
            let open = outcomes.iter_mut().filter(|outcome| outcome.is_none());
            open.zip(stored).for_each(|(place, outcome)| *place = Some(outcome));
        }
        Ok(outcomes.into_iter().map(|o| o.unwrap_or_else(|| InboxOutcome::Refused("no answer".into()))).collect())
    }

    async fn inspect_places(&self) -> Result<(), StoreError> {
        self.inspect().await?;
        let [_, (message, _), (queue, _)] = &self.tables;
        let columns = format!("SELECT seq, dead_at FROM {} WHERE false", quoted(message));
        let rights = "SELECT to_regclass($1) IS NOT NULL, has_table_privilege(to_regclass($1), 'SELECT') \
                      AND has_table_privilege(to_regclass($1), 'INSERT') AND has_table_privilege(to_regclass($1), 'UPDATE')";
        let name = quoted(queue);
        let held = self.slot(0)?.take(&self.dialer).await?;
        let statements = [Statement::new(&columns), Statement::new(rights).with(&name, Type::TEXT)];
        let answers = held.link.read(&self.dialer.begin_read, &statements).await;
        let answers = held.give_back(answers).map_err(|e| e.while_doing("looking at the inbox tables"))?;
        let (there, allowed) = match answers.last().and_then(|rows| rows.first()) {
            Some(row) => (get(row, 0)?, get::<Option<bool>>(row, 1)?.unwrap_or(false)),
            None => (false, false),
        };
        match (there, allowed) {
            (false, _) => Err(StoreError::new(StoreErrorKind::NotInitialised, format!("there is no table {queue}"))),
            (true, false) => {
                let what = format!("no right to SELECT, INSERT and UPDATE on table {queue}");
                Err(StoreError::new(StoreErrorKind::Permission, what))
            }
            (true, true) => Ok(()),
        }
    }

    async fn places(&self, consumer: &str) -> Result<Vec<Place>, StoreError> {
        let [_, _, (queue, _)] = &self.tables;
        let sql = format!("SELECT source, next_offset, stored_at_ms FROM {} WHERE consumer = $1", quoted(queue));
        let held = self.slot(0)?.take(&self.dialer).await?;
        let statement = Statement::new(&sql).with(&consumer, Type::TEXT);
        let answers = held.link.read(&self.dialer.begin_read, &[statement]).await;
        let answers = held.give_back(answers)?;
        let place = |row: &tokio_postgres::Row| {
            Ok(Place { source: get(row, 0)?, next_offset: get(row, 1)?, stored_at_ms: get(row, 2)? })
        };
        answers.iter().flatten().map(place).collect()
    }

    async fn begin(&self, consumer: &str, places: &[Place]) -> Result<(), StoreError> {
        let [_, _, (queue, _)] = &self.tables;
        let sql = format!(
            "INSERT INTO {} (consumer, source, next_offset, stored_at_ms) SELECT $1, s, o, m \
             FROM unnest($2, $3, $4) u(s, o, m) ON CONFLICT DO NOTHING",
            quoted(queue)
        );
        let sources: Vec<&str> = places.iter().map(|p| p.source.as_str()).collect();
        let offsets: Vec<i64> = places.iter().map(|p| p.next_offset).collect();
        let times: Vec<i64> = places.iter().map(|p| p.stored_at_ms).collect();
        let held = self.slot(0)?.take(&self.dialer).await?;
        let statement = Statement::new(&sql)
            .with(&consumer, Type::TEXT)
            .with(&sources, Type::TEXT_ARRAY)
            .with(&offsets, Type::INT8_ARRAY)
            .with(&times, Type::INT8_ARRAY);
        let result = held.link.write(&self.dialer.begin_write, &[statement]).await;
        held.give_back(result).map(|_| ()).map_err(|e| e.while_doing("beginning queues"))
    }

    async fn take(&self, lane: usize, consumer: &str, step: &Step) -> Result<Taken, StoreError> {
        if let Some(why) = step.arrivals.iter().find_map(|arrival| refusal(&arrival.message)) {
            return Ok(Taken::Refused(why));
        }
        let columns = Columns::of(step.arrivals.iter().map(|arrival| &arrival.message));
        let dead: Vec<Option<&str>> = step.arrivals.iter().map(|arrival| arrival.dead.as_deref()).collect();
        let statement = columns
            .bind(&self.step, &consumer)
            .with(&dead, Type::TEXT_ARRAY)
            .with(&step.after, Type::INT8)
            .with(&step.stored_at_ms, Type::INT8)
            .with(&step.source, Type::TEXT)
            .with(&step.before, Type::INT8);
        let held = self.slot(lane)?.take(&self.dialer).await?;
        match held.link.write(&self.dialer.begin_write, &[statement]).await {
            Ok(answers) => {
                let (moved, new): (i64, i64) = match answers.first().and_then(|rows| rows.first()) {
                    Some(row) => (get(row, 0)?, get(row, 1)?),
                    None => (0, 0),
                };
                held.give_back(Ok(()))?;
                Ok(if moved == 1 { Taken::Stored { new: new.unsigned_abs() } } else { Taken::Elsewhere })
            }
            Err(failure) if failure.about_content && !failure.session_over => {
                held.give_back(Ok(Taken::Refused(failure.error.message))) // the COMMIT behind it has ended it
            }
            Err(failure) => held.give_back(Err(failure)).map_err(|e| e.while_doing("storing into the inbox")),
        }
    }

    async fn counts(&self, consumer: &str) -> Result<InboxCounts, StoreError> {
        let [_, (table, _), _] = &self.tables;
        let table = quoted(table);
        let open = "consumer = $1 AND done_at IS NULL AND dead_at IS NULL";
        let sql = format!(
            "SELECT (SELECT count(*) FROM (SELECT FROM {table} WHERE {open} LIMIT {COUNT_MAX}) w), \
             (SELECT count(*) FROM (SELECT FROM {table} WHERE consumer = $1 AND done_at IS NULL AND dead_at IS NOT NULL \
               LIMIT {COUNT_MAX}) d), \
             (SELECT greatest(0, extract(epoch FROM now() - received_at))::bigint FROM {table} WHERE {open} \
               ORDER BY seq LIMIT 1)"
        );
        let held = self.slot(0)?.take(&self.dialer).await?;
        let statement = Statement::new(&sql).with(&consumer, Type::TEXT);
        let answers = held.link.read(&self.dialer.begin_read, &[statement]).await;
        let answers = held.give_back(answers).map_err(|e| e.while_doing("counting the inbox"))?;
        let Some(row) = answers.first().and_then(|rows| rows.first()) else { return Ok(InboxCounts::default()) };
        let (waiting, dead, oldest): (i64, i64, Option<i64>) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        Ok(InboxCounts {
            waiting: waiting.unsigned_abs(),
            dead: dead.unsigned_abs(),
            oldest_seconds: oldest.unwrap_or_default().unsigned_abs(),
        })
    }

    async fn prune(&self, consumer: &str, older_than: Duration, from: Option<&str>) -> Result<InboxPruned, StoreError> {
        let [_, (table, _), _] = &self.tables;
        let table = quoted(table);
        // What is done is in no index of times, which every message would pay for: the primary key is walked along, and
        // rows are deleted by their exact ids.
        let is_old = "done_at < clock_timestamp() - $3::bigint * interval '1 second'";
        let sql = format!(
            "WITH step AS MATERIALIZED (SELECT id, {is_old} AS old FROM {table} WHERE consumer = $1 AND id > $2 \
               ORDER BY id LIMIT {PRUNE_ROWS}), \
             gone AS (DELETE FROM {table} WHERE consumer = $1 AND id = ANY (ARRAY(SELECT id FROM step WHERE old)) \
               AND {is_old} RETURNING 1) \
             SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM step), (SELECT max(id) FROM step)"
        );
        let (from, age) = (from.unwrap_or_default(), age_seconds(older_than));
        let held = self.slot(0)?.take(&self.dialer).await?;
        let statement = Statement::new(&sql).with(&consumer, Type::TEXT).with(&from, Type::TEXT).with(&age, Type::INT8);
        let answers = held.link.write(&self.dialer.begin_write, &[statement]).await;
        let answers = held.give_back(answers).map_err(|e| e.while_doing("pruning the inbox"))?;
        let Some(row) = answers.first().and_then(|rows| rows.first()) else { return Ok(InboxPruned::default()) };
        let (deleted, looked_at, last): (i64, i64, Option<String>) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        let whole = usize::try_from(looked_at).is_ok_and(|n| n >= PRUNE_ROWS);
        Ok(InboxPruned { deleted: deleted.unsigned_abs(), next: last.filter(|_| whole) })
    }

    async fn close(&self) {
        self.dialer.close();
        for slot in &self.slots {
            slot.clear().await;
        }
    }
}

impl PostgresInbox {
    /// What `inbox_message` of an earlier version lacks. Nobody writes meanwhile.
    fn upgrade(&self) -> String {
        let [_, (table, _), _] = &self.tables;
        let (name, table) = (quoted(table).replace('\'', "''"), quoted(table));
        format!(
            "DO $do$ BEGIN
               IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attname = 'dead_at') THEN
                 ALTER TABLE {table} ADD COLUMN dead_at timestamptz(6);
               END IF;
               IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attname = 'seq') THEN
                 ALTER TABLE {table} ADD COLUMN seq bigint;
                 UPDATE {table} t SET seq = n.seq FROM (SELECT consumer, id, row_number() OVER (ORDER BY received_at,
                   length(split_part(position, ':', 2)), split_part(position, ':', 2) COLLATE \"C\") seq FROM {table}) n
                   WHERE t.consumer = n.consumer AND t.id = n.id;
                 ALTER TABLE {table} ALTER COLUMN seq SET NOT NULL;
                 ALTER TABLE {table} ALTER COLUMN seq ADD GENERATED BY DEFAULT AS IDENTITY;
                 PERFORM setval(pg_get_serial_sequence('{name}', 'seq'), coalesce(max(seq), 0) + 1, false) FROM {table};
               END IF;
             END $do$"
        )
    }

    async fn store(&self, lane: usize, consumer: &str, batch: &[&InboxMessage]) -> StoreResult<Vec<InboxOutcome>> {
        let held = self.slot(lane)?.take(&self.dialer).await?;
        let columns = Columns::of(batch.iter().copied());
        // One statement, which is right by itself whatever becomes of BEGIN.
        let result = held.link.write(&self.dialer.begin_write, &[columns.bind(&self.insert, &consumer)]).await;
        match result {
            Ok(answers) => {
                let outcomes = stored(batch, answers.first().map_or(&[][..], Vec::as_slice));
                held.give_back(Ok(()))?;
                outcomes
            }
            Err(failure) if failure.about_content => {
                let result = self.one_by_one(&held.link, consumer, batch).await;
                held.give_back(result)
            }
            Err(failure) => held.give_back(Err(failure)),
        }
    }
}

/// The first of each id that came back was stored; the others were there, or are a second copy in this batch.
fn stored(batch: &[&InboxMessage], rows: &[tokio_postgres::Row]) -> StoreResult<Vec<InboxOutcome>> {
    let mut new: HashSet<&str> = rows.iter().map(|row| get(row, 0)).collect::<StoreResult<_>>()?;
    Ok(batch
        .iter()
        .map(|m| if new.remove(m.id.as_str()) { InboxOutcome::Stored } else { InboxOutcome::Duplicate })
        .collect())
}
