//! The `inbox_message` table of a consumer's MySQL or MariaDB database.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;

use super::checkpoint::batched;
use super::link::{Dialer, Link, Slot};
use super::refusal::Failure;
use super::schema::TABLE_END;
use super::statement::Statement;
use super::values::{NOW, bytes, literal, number, number_opt, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{
    Arrival, COUNT_MAX, Inbox, InboxCounts, InboxMessage, InboxOutcome, InboxPruned, PRUNE_ROWS, Place, Step, Taken,
    age_seconds,
};
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
    tables: [(String, String); 3],
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
        let [_, (table, _), _] = &self.tables;
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
        let [_, (table, _), _] = &self.tables;
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
        let rows = batch.iter().map(|m| values(consumer, m)); // numbered in this order
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

impl MySqlInbox {
    /// One transaction. Two that take the same step meet at the row of the place.
    async fn step(&self, link: &mut Link, consumer: &str, step: &Step) -> Result<Taken, Failure> {
        let [_, (table, _), (queue, _)] = &self.tables;
        let mut place = Statement::new(format!(
            "UPDATE {} SET next_offset = {}, stored_at_ms = {}, updated_at = {NOW} WHERE consumer = ",
            quoted(queue),
            step.after,
            step.stored_at_ms
        ));
        place.push_bytes(consumer).push(" AND source = ").push_bytes(step.source.as_bytes());
        place.push(&format!(" AND next_offset = {}", step.before));
        let head = format!(
            "INSERT INTO {} (consumer, id, topic, msg_key, headers, payload, `position`, received_at, dead_at, last_error) \
             VALUES ",
            quoted(table)
        );
        let rows = step.arrivals.iter().map(|arrival| arrival_values(consumer, arrival));
        let mut statements = vec![Statement::new("START TRANSACTION"), place];
        statements.extend(batched(&head, AS_IT_WAS, rows, link.server.packet_bytes));
        let answers = link.run_inside(&statements).await?;
        if answers.get(1).is_none_or(|a| a.affected != 1) {
            link.rollback().await?;
            return Ok(Taken::Elsewhere);
        }
        link.commit().await?;
        Ok(Taken::Stored { new: answers.iter().skip(2).map(|a| a.affected).sum() })
    }

    /// By the index of what is done, which is in the order of its time. Looked up without a lock, deleted by exact numbers.
    async fn prune_step(&self, link: &mut Link, consumer: &str, older_than: Duration) -> Result<InboxPruned, Failure> {
        let [_, (table, _), _] = &self.tables;
        let table = quoted(table);
        let is_old = format!("done_at < {NOW} - INTERVAL {} SECOND", age_seconds(older_than));
        let mut look = Statement::new(format!("SELECT seq FROM {table} FORCE INDEX (open) WHERE consumer = "));
        look.push_bytes(consumer).push(&format!(" AND {is_old} ORDER BY done_at LIMIT {PRUNE_ROWS}"));
        let rows = link.run(&[look]).await?.into_iter().flat_map(|a| a.rows);
        let old: Vec<String> = rows.map(|row| Ok(number::<u64>(&row, 0)?.to_string())).collect::<StoreResult<_>>()?;
        // Also if there are none: whether it may is to be known before the first is old.
        let which = if old.is_empty() { "1 = 0".to_owned() } else { format!("seq IN ({})", old.join(", ")) };
        // Never by a scan, which would wait for rows that handlers hold. Only this form of DELETE takes a hint.
        let delete = format!("DELETE m FROM {table} m FORCE INDEX (PRIMARY) WHERE {which} AND {is_old}");
        let answers = link.run(&[Statement::new(delete)]).await?;
        let deleted = answers.first().map_or(0, |a| a.affected);
        Ok(InboxPruned { deleted, next: (old.len() == PRUNE_ROWS).then(String::new) })
    }

    /// What `inbox_message` of an earlier version lacks. Nobody writes meanwhile.
    async fn upgrade(&self, link: &mut Link) -> Result<(), Failure> {
        let [_, (table, _), _] = &self.tables;
        let look = Statement::new(format!(
            "SELECT column_name, extra FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = \
             {} AND column_name IN ('seq', 'dead_at')",
            literal(table)
        ));
        let (mut numbered, mut seq, mut dead) = (false, false, false);
        for mut row in link.run(&[look]).await?.into_iter().flat_map(|a| a.rows) {
            match bytes(&mut row, 0)?.as_slice() {
                b"dead_at" => dead = true,
                _ => {
                    seq = true;
                    numbered = bytes(&mut row, 1)?.starts_with(b"auto_increment");
                }
            }
        }
        if numbered && dead {
            return Ok(());
        }
        let table = quoted(table);
        let mut steps = vec![format!("LOCK TABLES {table} WRITE")];
        if !seq {
            steps.push(format!("ALTER TABLE {table} ADD COLUMN seq BIGINT UNSIGNED NULL FIRST"));
        }
        if !dead {
            steps.push(format!("ALTER TABLE {table} ADD COLUMN dead_at TIMESTAMP(6) NULL DEFAULT NULL AFTER done_at"));
        }
        if !numbered {
            steps.push("SET @outhaul_seq = 0".into());
            steps.push(format!(
                "UPDATE {table} SET seq = (@outhaul_seq := @outhaul_seq + 1), received_at = received_at ORDER BY \
                 received_at, CAST(SUBSTRING_INDEX(`position`, ':', -1) AS UNSIGNED)"
            ));
            steps.push(format!(
                "ALTER TABLE {table} DROP PRIMARY KEY, MODIFY seq BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, ADD PRIMARY \
                 KEY (seq), {}",
                KEYS.map(|key| format!("ADD {key}")).join(", ")
            ));
        }
        let mut result = Ok(());
        for step in steps {
            result = link.run(&[Statement::new(step)]).await.map(|_| ());
            if result.is_err() {
                break;
            }
        }
        // Locks of a connection that is lost are gone with it.
        let unlocked = match &result {
            Err(failure) if failure.session_over => Ok(()),
            _ => link.run(&[Statement::new("UNLOCK TABLES")]).await.map(|_| ()),
        };
        result.and(unlocked)
    }
}

fn arrival_values(consumer: &str, Arrival { message: m, dead }: &Arrival) -> Statement {
    let mut s = Statement::new("(");
    s.push_bytes(consumer).push(", ").push_bytes(m.id.as_bytes()).push(", ").push_text(&m.topic).push(", ");
    s.push_bytes_opt(m.key.as_deref().map(str::as_bytes)).push(", ").push_text_opt(m.headers.as_deref()).push(", ");
    s.push_bytes(m.payload.to_vec()).push(", ").push_text(&m.position).push(&format!(", {NOW}, "));
    s.push(if dead.is_some() { NOW } else { "NULL" }).push(", ").push_text_opt(dead.as_deref()).push(")");
    s
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

/// The keys of `inbox_message` besides its primary key: the id, what is open in its order, and the same for each key.
const KEYS: [&str; 3] = [
    "UNIQUE KEY message (consumer, id)",
    "KEY open (consumer, done_at, dead_at, seq)",
    "KEY open_of_key (consumer, msg_key, done_at, seq)",
];

fn tables(options: &StoreOptions) -> [(String, String); 3] {
    let (plain, message) = (options.table("inbox"), options.table("inbox_message"));
    let queue = options.table("inbox_queue");
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
  seq BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
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
  dead_at TIMESTAMP(6) NULL DEFAULT NULL,
  last_error TEXT NULL,
  PRIMARY KEY (seq),
  {}
) {TABLE_END}",
        quoted(&message),
        KEYS.join(",\n  ")
    );
    let queue_ddl = format!(
        "CREATE TABLE IF NOT EXISTS {} (
  consumer VARBINARY(255) NOT NULL,
  source VARBINARY(512) NOT NULL,
  next_offset BIGINT NOT NULL,
  stored_at_ms BIGINT NOT NULL DEFAULT 0,
  updated_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6),
  PRIMARY KEY (consumer, source)
) {TABLE_END}",
        quoted(&queue)
    );
    [(plain, plain_ddl), (message, message_ddl), (queue, queue_ddl)]
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
        let mut result = held.link.run(&statements).await.map(|_| ());
        if result.is_ok() {
            result = self.upgrade(&mut held.link).await;
        }
        held.give_back(result).map_err(|e| e.while_doing("making the inbox tables"))
    }

    async fn inspect(&self) -> Result<(), StoreError> {
        let [_, (table, _), _] = &self.tables;
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

    async fn inspect_places(&self) -> Result<(), StoreError> {
        self.inspect().await?;
        let [_, (message, _), (queue, _)] = &self.tables;
        let (message, queue) = (quoted(message), quoted(queue));
        let probes = [
            format!("SELECT seq, dead_at FROM {message} WHERE 1 = 0"),
            format!("INSERT INTO {queue} SELECT * FROM {queue} WHERE 1 = 0"),
            format!("UPDATE {queue} SET next_offset = 0 WHERE 1 = 0"),
        ];
        let mut held = self.slot(0)?.take(&self.dialer).await?;
        let result = held.link.run(&probes.map(Statement::new)).await;
        held.give_back(result).map(|_| ()).map_err(|e| e.while_doing("looking at the inbox tables"))
    }

    async fn places(&self, consumer: &str) -> Result<Vec<Place>, StoreError> {
        let [_, _, (queue, _)] = &self.tables;
        let mut look = Statement::new(format!(
            "SELECT source, next_offset, stored_at_ms FROM {} WHERE consumer = ",
            quoted(queue)
        ));
        look.push_bytes(consumer);
        let mut held = self.slot(0)?.take(&self.dialer).await?;
        let result = held.link.run(&[look]).await;
        let answers = held.give_back(result).map_err(|e| e.while_doing("reading inbox_queue"))?;
        let place = |mut row: mysql_async::Row| {
            Ok(Place {
                source: String::from_utf8_lossy(&bytes(&mut row, 0)?).into_owned(),
                next_offset: number(&row, 1)?,
                stored_at_ms: number(&row, 2)?,
            })
        };
        answers.into_iter().flat_map(|a| a.rows).map(place).collect()
    }

    async fn begin(&self, consumer: &str, places: &[Place]) -> Result<(), StoreError> {
        if places.is_empty() {
            return Ok(());
        }
        let [_, _, (queue, _)] = &self.tables;
        let mut insert = Statement::new(format!(
            "INSERT INTO {} (consumer, source, next_offset, stored_at_ms, updated_at) VALUES ",
            quoted(queue)
        ));
        for (n, place) in places.iter().enumerate() {
            insert.push(if n == 0 { "(" } else { ", (" }).push_bytes(consumer).push(", ");
            insert
                .push_bytes(place.source.as_bytes())
                .push(&format!(", {}, {}, {NOW})", place.next_offset, place.stored_at_ms));
        }
        insert.push(" ON DUPLICATE KEY UPDATE source = source");
        let mut held = self.slot(0)?.take(&self.dialer).await?;
        let result = held.link.run(&[insert]).await;
        held.give_back(result).map(|_| ()).map_err(|e| e.while_doing("beginning queues"))
    }

    async fn take(&self, lane: usize, consumer: &str, step: &Step) -> Result<Taken, StoreError> {
        let mut held = self.slot(lane)?.take(&self.dialer).await?;
        let result = match self.step(&mut held.link, consumer, step).await {
            Err(failure) if failure.about_content && !failure.session_over => Ok(Taken::Refused(failure.error.message)),
            other => other,
        };
        held.give_back(result).map_err(|e| e.while_doing("storing into the inbox"))
    }

    async fn counts(&self, consumer: &str) -> Result<InboxCounts, StoreError> {
        let [_, (table, _), _] = &self.tables;
        let table = quoted(table);
        let mut count = Statement::new("SELECT (SELECT count(*) FROM (SELECT 1 FROM ");
        count.push(&table).push(" WHERE consumer = ").push_bytes(consumer);
        count.push(&format!(
            " AND done_at IS NULL AND dead_at IS NULL LIMIT {COUNT_MAX}) w), (SELECT count(*) FROM (SELECT 1 FROM "
        ));
        count.push(&table).push(" WHERE consumer = ").push_bytes(consumer);
        count.push(&format!(
            " AND done_at IS NULL AND dead_at IS NOT NULL LIMIT {COUNT_MAX}) d), (SELECT GREATEST(0, \
             TIMESTAMPDIFF(SECOND, received_at, {NOW})) FROM "
        ));
        count.push(&table).push(" FORCE INDEX (open) WHERE consumer = ").push_bytes(consumer);
        count.push(" AND done_at IS NULL AND dead_at IS NULL ORDER BY seq LIMIT 1)");
        let mut held = self.slot(0)?.take(&self.dialer).await?;
        let result = held.link.run(&[count]).await;
        let answers = held.give_back(result).map_err(|e| e.while_doing("counting the inbox"))?;
        let Some(row) = answers.into_iter().flat_map(|a| a.rows).next() else { return Ok(InboxCounts::default()) };
        Ok(InboxCounts {
            waiting: number(&row, 0)?,
            dead: number(&row, 1)?,
            oldest_seconds: number_opt(&row, 2)?.and_then(|n| u64::try_from(n).ok()).unwrap_or_default(),
        })
    }

    async fn prune(
        &self,
        consumer: &str,
        older_than: Duration,
        _from: Option<&str>,
    ) -> Result<InboxPruned, StoreError> {
        let mut held = self.slot(0)?.take(&self.dialer).await?;
        let result = self.prune_step(&mut held.link, consumer, older_than).await;
        held.give_back(result).map_err(|e| e.while_doing("pruning the inbox"))
    }

    async fn close(&self) {
        self.dialer.close();
        for slot in &self.slots {
            slot.clear().await;
        }
    }
}
