//! The `inbox_message` table of a consumer's PostgreSQL database.

use std::collections::HashSet;

use async_trait::async_trait;
use tokio_postgres::types::Type;

use super::link::{Dialer, Failure, Link, Slot, Statement, get};
use super::values::quoted;
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{Inbox, InboxMessage, InboxOutcome};
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
    tables: [(String, String); 2],
    insert: String,
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
        let inbox = Self { dialer, slots, tables: tables(&options), insert };
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

fn tables(options: &StoreOptions) -> [(String, String); 2] {
    let plain = options.table("inbox");
    let message = options.table("inbox_message");
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
  last_error text,
  PRIMARY KEY (consumer, id)
)",
            quoted(&message)
        ),
    );
    [(plain, plain_ddl), (message, message_ddl)]
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
        self.tables.iter().map(|(_, ddl)| format!("{ddl};\n")).collect()
    }

    async fn init(&self) -> Result<(), StoreError> {
        let held = self.slot(0)?.take(&self.dialer).await?;
        let lock = Statement::new(super::schema::INIT_LOCK);
        if let Err(failure) = held.link.begin(&self.dialer.begin_write, &[lock]).await {
            return held.give_back(Err(failure));
        }
        let statements: Vec<Statement<'_>> = self.tables.iter().map(|(_, ddl)| Statement::new(ddl)).collect();
        let result = held.link.run_and_commit(&statements).await;
        held.give_back(result).map(|_| ())
    }

    async fn inspect(&self) -> Result<(), StoreError> {
        let [_, (table, _)] = &self.tables;
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

    async fn close(&self) {
        self.dialer.close();
        for slot in &self.slots {
            slot.clear().await;
        }
    }
}

impl PostgresInbox {
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
