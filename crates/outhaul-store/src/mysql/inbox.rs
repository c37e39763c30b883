//! The `inbox_message` table of a consumer's MySQL or MariaDB database.

use std::collections::HashSet;

use async_trait::async_trait;

use super::checkpoint::batched;
use super::link::{Dialer, Link, Slot};
use super::refusal::Failure;
use super::schema::TABLE_END;
use super::statement::Statement;
use super::values::{NOW, bytes, literal, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{Inbox, InboxMessage, InboxOutcome};
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// The most connections of an inbox.
const CONNECTIONS_MAX: usize = 64;
/// What the columns take: bytes of an id and a key, characters of a topic.
const ID_MAX: usize = 64;
const TEXT_MAX: usize = 255;
const COLUMNS: &str = "(consumer, id, topic, msg_key, headers, payload, `position`, received_at)";

/// An inbox in MySQL or MariaDB.
pub struct MySqlInbox {
    dialer: Dialer,
    slots: Vec<Slot>,
    tables: [(String, String); 2],
}

impl MySqlInbox {
    /// Opens the first connection; the others, up to `connections`, are opened as lanes need them.
    ///
    /// # Errors
    /// The URL cannot be used, or the server cannot be reached.
    pub async fn open(options: StoreOptions, connections: usize) -> Result<Self, StoreError> {
        let dialer = Dialer::new(&options)?;
        let slots = (0..connections.clamp(1, CONNECTIONS_MAX)).map(|_| Slot::new()).collect();
        let inbox = Self { dialer, slots, tables: tables(&options) };
        let first = inbox.slot(0)?.take(&inbox.dialer).await?;
        first.give_back(Ok(()))?;
        Ok(inbox)
    }

    fn slot(&self, lane: usize) -> StoreResult<&Slot> {
        let n = lane.checked_rem(self.slots.len()).unwrap_or_default();
        self.slots.get(n).ok_or_else(|| StoreError::new(StoreErrorKind::Configuration, "an inbox without a connection"))
    }

    fn insert(&self) -> String {
        let [_, (table, _)] = &self.tables;
        format!("INSERT INTO {} {COLUMNS} VALUES ", quoted(table))
    }

    async fn store(&self, lane: usize, consumer: &str, batch: &[&InboxMessage]) -> StoreResult<Vec<InboxOutcome>> {
        let mut held = self.slot(lane)?.take(&self.dialer).await?;
        let link = &mut held.link;
        let result = match self.all_at_once(link, consumer, batch).await {
            Ok(Some(outcomes)) => Ok(outcomes),
            Ok(None) => self.one_by_one(link, consumer, batch).await,
            Err(failure) if failure.about_content && !failure.session_over => {
                self.one_by_one(link, consumer, batch).await
            }
            Err(failure) => Err(failure),
        };
        held.give_back(result)
    }

    /// In few statements: which ids are there, then all rows. None: rolled back, since another lane came in between and
    /// it cannot be told whose rows are new.
    async fn all_at_once(
        &self,
        link: &mut Link,
        consumer: &str,
        batch: &[&InboxMessage],
    ) -> Result<Option<Vec<InboxOutcome>>, Failure> {
        let [_, (table, _)] = &self.tables;
        let packet = link.server.packet_bytes;
        let mut look = Statement::new(format!("SELECT id FROM {} WHERE consumer = ", quoted(table)));
        look.push_bytes(consumer).push(" AND id IN (");
        let ids = batch.iter().map(|m| {
            let mut id = Statement::default();
            id.push_bytes(m.id.as_bytes());
            id
        });
        let mut statements = vec![Statement::new("START TRANSACTION")];
        statements.extend(batched(&look.text(), ")", ids, packet));
        let inserts_from = statements.len();
        let mut sorted = batch.to_vec();
        sorted.sort_by(|a, b| a.id.cmp(&b.id)); // two lanes that bring the same ids lock them in the same order
        let rows = sorted.iter().map(|m| values(consumer, m));
        statements.extend(batched(&self.insert(), AS_IT_WAS, rows, packet));
        let mut answers = link.run_inside(&statements).await?;
        let inserted: u64 = answers.split_off(inserts_from).iter().map(|a| a.affected).sum();
        let mut known: HashSet<Vec<u8>> = HashSet::new();
        for mut row in answers.into_iter().flat_map(|a| a.rows) {
            known.insert(bytes(&mut row, 0)?);
        }
        let outcomes: Vec<InboxOutcome> = batch
            .iter()
            .map(
                |m| if known.insert(m.id.as_bytes().to_vec()) { InboxOutcome::Stored } else { InboxOutcome::Duplicate },
            )
            .collect();
        let stored = outcomes.iter().filter(|o| **o == InboxOutcome::Stored).count();
        if inserted != stored as u64 {
            link.rollback().await?;
            return Ok(None);
        }
        link.commit().await?;
        Ok(Some(outcomes))
    }

    /// One by one: what the server refuses for its content is told apart from the rest. A statement that fails takes
    /// back nothing but itself.
    async fn one_by_one(
        &self,
        link: &mut Link,
        consumer: &str,
        batch: &[&InboxMessage],
    ) -> Result<Vec<InboxOutcome>, Failure> {
        link.run(&[Statement::new("START TRANSACTION")]).await?;
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut blocked: HashSet<&str> = HashSet::new();
        for message in batch {
            if message.key.as_deref().is_some_and(|key| blocked.contains(key)) {
                outcomes.push(InboxOutcome::Behind);
                continue;
            }
            let mut insert = Statement::new(self.insert());
            insert.append(values(consumer, message)).push(AS_IT_WAS);
            match link.run(&[insert]).await {
                Ok(answers) if answers.first().is_some_and(|a| a.affected > 0) => outcomes.push(InboxOutcome::Stored),
                Ok(_) => outcomes.push(InboxOutcome::Duplicate),
                Err(failure) if failure.about_content && !failure.session_over => {
                    outcomes.push(InboxOutcome::Refused(failure.error.message));
                    blocked.extend(message.key.as_deref());
                }
                Err(failure) if failure.session_over => return Err(failure),
                Err(failure) => {
                    let session_over = link.rollback().await.is_err();
                    return Err(Failure { session_over, ..failure });
                }
            }
        }
        link.commit().await?;
        Ok(outcomes)
    }
}

/// A row that is there stays as it is, and counts as 0 changed rows.
const AS_IT_WAS: &str = " ON DUPLICATE KEY UPDATE id = id";

fn values(consumer: &str, m: &InboxMessage) -> Statement {
    let mut s = Statement::new("(");
    s.push_bytes(consumer).push(", ").push_bytes(m.id.as_bytes()).push(", ").push_text(&m.topic).push(", ");
    s.push_bytes_opt(m.key.as_deref().map(str::as_bytes)).push(", ").push_text_opt(m.headers.as_deref()).push(", ");
    s.push_bytes(m.payload.to_vec()).push(", ").push_text(&m.position).push(&format!(", {NOW})"));
    s
}

fn tables(options: &StoreOptions) -> [(String, String); 2] {
    let (plain, message) = (options.table("inbox"), options.table("inbox_message"));
    let plain_ddl = format!(
        "CREATE TABLE IF NOT EXISTS {} (
  consumer VARBINARY(255) NOT NULL,
  id VARBINARY({ID_MAX}) NOT NULL,
  processed_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  result LONGTEXT NULL,
  PRIMARY KEY (consumer, id)
) {TABLE_END}",
        quoted(&plain)
    );
    let message_ddl = format!(
        "CREATE TABLE IF NOT EXISTS {} (
  consumer VARBINARY(255) NOT NULL,
  id VARBINARY({ID_MAX}) NOT NULL,
  topic VARCHAR({TEXT_MAX}) NOT NULL,
  msg_key VARBINARY({TEXT_MAX}) NULL,
  headers JSON NULL,
  payload LONGBLOB NOT NULL,
  `position` VARCHAR(32) NOT NULL,
  received_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  claimed_by VARCHAR(255) NULL,
  claimed_until TIMESTAMP(6) NULL DEFAULT NULL,
  attempts INT UNSIGNED NOT NULL DEFAULT 0,
  done_at TIMESTAMP(6) NULL DEFAULT NULL,
  last_error TEXT NULL,
  PRIMARY KEY (consumer, id)
) {TABLE_END}",
        quoted(&message)
    );
    [(plain, plain_ddl), (message, message_ddl)]
}

/// What can be seen without asking the server. The rest is the server's to refuse.
fn refusal(message: &InboxMessage) -> Option<String> {
    for (name, text, limit) in [("id", Some(&message.id), ID_MAX), ("msg_key", message.key.as_ref(), TEXT_MAX)] {
        if text.is_some_and(|text| text.len() > limit) {
            return Some(format!("{name} is longer than {limit} bytes"));
        }
    }
    (message.topic.chars().count() > TEXT_MAX).then(|| format!("topic is longer than {TEXT_MAX} characters"))
}

#[async_trait]
impl Inbox for MySqlInbox {
    fn ddl(&self) -> String {
        self.tables.iter().map(|(_, ddl)| format!("{ddl};\n")).collect()
    }

    async fn init(&self) -> Result<(), StoreError> {
        let mut held = self.slot(0)?.take(&self.dialer).await?;
        let statements: Vec<Statement> = self.tables.iter().map(|(_, ddl)| Statement::new(ddl)).collect();
        let result = held.link.run(&statements).await;
        held.give_back(result).map(|_| ()).map_err(|e| e.while_doing("making the inbox tables"))
    }

    async fn inspect(&self) -> Result<(), StoreError> {
        let [_, (table, _)] = &self.tables;
        let mut held = self.slot(0)?.take(&self.dialer).await?;
        let there = format!(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {}",
            literal(table)
        );
        let there = match held.link.run(&[Statement::new(there)]).await {
            Ok(answers) => answers.first().is_some_and(|a| !a.rows.is_empty()),
            Err(failure) => return held.give_back(Err(failure)),
        };
        if !there {
            held.give_back(Ok(()))?;
            return Err(StoreError::new(StoreErrorKind::NotInitialised, format!("there is no table {table}")));
        }
        // They change nothing, and fail where this user may not do it or nobody may.
        let table = quoted(table);
        let probes = [
            format!("INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0"),
            format!("UPDATE {table} SET id = id WHERE 1 = 0"), // needed to leave a row that is there as it is
        ];
        let result = held.link.run(&probes.map(Statement::new)).await;
        held.give_back(result).map(|_| ()).map_err(|e| e.while_doing("looking at the inbox table"))
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
            let stored =
                self.store(lane, consumer, &batch).await.map_err(|e| e.while_doing("delivering to the inbox"))?;
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
