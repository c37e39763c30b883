//! Rows of `outbox_transaction`: judged, ended, put into the outbox, pruned.
//!
//! An application's row is the first statement of its transaction, so it is locked until that ends. Nothing here waits
//! for it: reads take no locks, changes name rows that were seen committed, and whether somebody holds a row that is not
//! visible is asked with NOWAIT. Rows are named through JSON_TABLE, since IN waits for open neighbours.

use std::sync::atomic::{AtomicUsize, Ordering};

use mysql_async::Row;
use outhaul_core::transaction::{Finding, TransactionState};

use super::MySqlStore;
use super::link::{Answer, Link, Slot};
use super::refusal::Failure;
use super::statement::Statement;
use super::values::{NOW, bytes, literal, micros, micros_opt, number, quoted, text, text_opt};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::StoreResult;
use crate::transaction::{
    EndedTransaction, FallBack, FellBack, SPAN_MAX_MS, TransactionRecord, check_id, refuses_row, state_of,
};
use crate::version::ORIGIN;

const COMMITTED: &str = TransactionState::Committed.name();
/// Check-backs that are judged side by side.
const JUDGES: usize = 4;

/// Connections for transactions.
pub(super) struct Slots {
    slots: [Slot; JUDGES],
    next: AtomicUsize,
}

impl Slots {
    pub(super) const fn new() -> Self {
        Self { slots: [const { Slot::new() }; JUDGES], next: AtomicUsize::new(0) }
    }

    fn next(&self) -> &Slot {
        let n = self.next.fetch_add(1, Ordering::Relaxed) % JUDGES;
        self.slots.get(n).unwrap_or(&self.slots[0])
    }

    pub(super) async fn clear(&self) {
        for slot in &self.slots {
            slot.clear().await;
        }
    }
}

impl MySqlStore {
    fn transaction_table(&self) -> String {
        quoted(&self.options.table("outbox_transaction"))
    }

    pub(super) async fn own_origin(&self) -> StoreResult<String> {
        let meta = quoted(&self.options.table("outbox_meta"));
        let sql = format!("SELECT value FROM {meta} WHERE name = {}", literal(ORIGIN));
        let mut rows = self.select(self.transactions.next(), sql).await?;
        let missing = || StoreError::new(StoreErrorKind::Outdated, "the meta table has no origin");
        text(rows.first_mut().ok_or_else(missing)?, 0)
    }

    pub(super) async fn judged(&self, id: &str) -> StoreResult<Finding> {
        check_id(id)?;
        let mut held = self.transactions.next().take(&self.dialer).await?;
        let result = self.judge_on(&mut held.link, id).await;
        held.give_back(result)
    }

    async fn judge_on(&self, link: &mut Link, id: &str) -> Result<Finding, Failure> {
        let table = self.transaction_table();
        let row = |lock: &str| {
            let mut s = Statement::new(format!("SELECT state FROM {table} WHERE id = "));
            s.push_bytes(id).push(lock);
            s
        };
        if let Some(state) = state_in(link.run(&[row("")]).await?)? {
            return Ok(Finding::Row(state));
        }
        let now = if link.server.mariadb { " LOCK IN SHARE MODE NOWAIT" } else { " FOR SHARE NOWAIT" };
        match link.run(&[row(now)]).await {
            Ok(answers) => {
                if let Some(state) = state_in(answers)? {
                    return Ok(Finding::Row(state));
                }
            }
            Err(failure) => return open(failure),
        }
        let mut bury = Statement::new(format!("INSERT INTO {table} (id, state, since_at) VALUES ("));
        bury.push_bytes(id)
            .push(&format!(", '{}', {NOW}) ON DUPLICATE KEY UPDATE id = id", TransactionState::RolledBack.name()));
        match link.run(&[bury]).await {
            Ok(answers) if answers.first().is_some_and(|a| a.affected > 0) => return Ok(Finding::Buried),
            Ok(_) => {}
            Err(failure) => return open(failure),
        }
        match state_in(link.run(&[row("")]).await?)? {
            Some(state) => Ok(Finding::Row(state)),
            None => Err(Failure::new(StoreErrorKind::Conflict, "the row of a transaction has just gone", false)),
        }
    }

    pub(super) async fn transactions_ended(&self, ended: &[EndedTransaction]) -> StoreResult<u64> {
        if ended.is_empty() {
            return Ok(0);
        }
        let rows = ended.iter().map(|e| vec![e.id.clone(), e.receipt()]).collect();
        let set = format!(
            "t.state = '{}', t.since_at = {NOW}, t.receipt = j.receipt, t.msg_key = NULL, t.headers = NULL, t.payload = NULL",
            TransactionState::Ended.name()
        );
        let statement = self.change(rows, &set, &format!("t.state = '{COMMITTED}'"));
        let mut held = self.transactions.next().take(&self.dialer).await?;
        let result = held.link.run(&[statement]).await;
        Ok(held.give_back(result)?.first().map_or(0, |answer| answer.affected))
    }

    /// An UPDATE of rows by their ids, each looked up by itself.
    fn change(&self, rows: Vec<Vec<String>>, set: &str, only: &str) -> Statement {
        let mut s = Statement::new("UPDATE JSON_TABLE(");
        s.push_text(
            serde_json::Value::from(rows.into_iter().map(serde_json::Value::from).collect::<Vec<_>>()).to_string(),
        );
        s.push(&format!(
            ", '$[*]' COLUMNS (id VARCHAR(64) CHARACTER SET utf8mb4 PATH '$[0]', \
             receipt VARCHAR(255) CHARACTER SET utf8mb4 PATH '$[1]')) j \
             STRAIGHT_JOIN {} t ON t.id = CAST(j.id AS BINARY) SET {set} WHERE {only}",
            self.transaction_table()
        ));
        s
    }

    pub(super) async fn fallen_back(&self, wanted: &FallBack) -> StoreResult<FellBack> {
        let (table, limit) = (self.transaction_table(), wanted.limit.max(1));
        let looks = [
            format!("SELECT id FROM {table} WHERE state = '{COMMITTED}' AND since_at IS NULL LIMIT {limit}"),
            format!(
                "SELECT id FROM {table} WHERE state = '{COMMITTED}' AND since_at <= {NOW} - INTERVAL {} MICROSECOND \
                 ORDER BY since_at LIMIT {limit}",
                wanted.after_ms.min(SPAN_MAX_MS) * 1_000
            ),
        ];
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&looks.map(Statement::new)).await;
        let mut answers = held.give_back(result)?.into_iter();
        let new = ids(answers.next().unwrap_or_default())?;
        let due = ids(answers.next().unwrap_or_default())?;
        let full = new.len().max(due.len()) >= limit as usize;
        let mut fell = FellBack { seen: new.len() as u64, more: full, ..FellBack::default() };
        self.mark(new, "t.since_at IS NULL").await?;
        for id in due {
            match self.put_into_outbox(&id).await {
                Ok(message) => fell.sent.extend(message),
                Err(e) if refuses_row(&e) => {
                    fell.refused.push((id.clone(), e.message));
                    self.mark(vec![id], "TRUE").await?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(fell)
    }

    /// From now on their age counts.
    async fn mark(&self, ids: Vec<String>, only: &str) -> StoreResult<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let rows = ids.into_iter().map(|id| vec![id]).collect();
        let statement =
            self.change(rows, &format!("t.since_at = {NOW}"), &format!("t.state = '{COMMITTED}' AND {only}"));
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&[statement]).await;
        held.give_back(result).map(drop)
    }

    /// None: it is not committed any more, or somebody is about to end it.
    async fn put_into_outbox(&self, id: &str) -> StoreResult<Option<String>> {
        let layout = self.layout(&self.other).await?;
        let table = self.transaction_table();
        let by_id = |sql: String, tail: &str| {
            let mut s = Statement::new(format!("{sql} WHERE id = "));
            s.push_bytes(id).push(tail);
            s
        };
        let utf8 = "CONVERT(payload USING utf8mb4)";
        let is_text = format!("COALESCE(payload = CAST({utf8} AS BINARY), 0)");
        let look = format!(
            "SELECT COALESCE(message_id, id), msg_key IS NOT NULL, headers IS NOT NULL, {} FROM {table}",
            if layout.payload_is_text { &is_text } else { "1" }
        );
        let mut columns = vec![
            (layout.id.name.as_str(), "COALESCE(message_id, id)"),
            (layout.topic.as_str(), "topic"),
            (layout.payload.as_str(), if layout.payload_is_text { utf8 } else { "payload" }),
        ];
        columns.extend(layout.key.as_deref().map(|key| (key, "msg_key")));
        columns.extend(layout.headers.as_deref().map(|headers| (headers, "headers")));
        let (into, from): (Vec<&str>, Vec<&str>) = columns.into_iter().unzip();
        let insert =
            format!("INSERT INTO {} ({}) SELECT {} FROM {table}", layout.table, into.join(", "), from.join(", "));
        let sent = format!(
            "UPDATE {table} SET state = '{}', since_at = {NOW}, msg_key = NULL, headers = NULL, payload = NULL",
            TransactionState::Sent.name()
        );
        let take = [
            Statement::new("START TRANSACTION"),
            by_id(look, &format!(" AND state = '{COMMITTED}' FOR UPDATE SKIP LOCKED")),
        ];
        let mut held = self.other.take(&self.dialer).await?;
        let link = &mut held.link;
        let work = async {
            let Some(mut row) = link.run_inside(&take).await?.into_iter().flat_map(|a| a.rows).next() else {
                link.rollback().await?;
                return Ok(Ok(None));
            };
            let message = text(&mut row, 0)?;
            let given = [number::<u8>(&row, 1)? == 1, number::<u8>(&row, 2)? == 1];
            let refused = match given {
                [true, _] if layout.key.is_none() => Some("it has a key, and the outbox table no column for one"),
                [_, true] if layout.headers.is_none() => {
                    Some("it has headers, and the outbox table no column for them")
                }
                _ if number::<u8>(&row, 3)? != 1 => Some("the payload is not UTF-8, and the column holds text"),
                _ => None,
            };
            if let Some(why) = refused {
                link.rollback().await?;
                return Ok(Err(StoreError::new(StoreErrorKind::Configuration, why)));
            }
            link.run_inside(&[by_id(insert, ""), by_id(sent, "")]).await?;
            link.commit().await?;
            Ok(Ok(Some(message)))
        };
        let result: Result<StoreResult<Option<String>>, Failure> = work.await;
        held.give_back(result)?
    }

    pub(super) async fn old_transactions_gone(&self, retention_ms: u64, limit: u32) -> StoreResult<u64> {
        let table = self.transaction_table();
        let mut gone = 0;
        for state in [TransactionState::Ended, TransactionState::Sent, TransactionState::RolledBack] {
            // By name, so that it meets no row that it does not delete.
            let old = format!(
                "SELECT id FROM {table} WHERE state = '{}' AND since_at < {NOW} - INTERVAL {} MICROSECOND ORDER BY since_at LIMIT {}",
                state.name(),
                retention_ms.min(SPAN_MAX_MS) * 1_000,
                u64::from(limit.max(1)) - gone
            );
            let mut rows = self.select(&self.other, old).await?;
            let ids: Vec<String> = rows.iter_mut().map(|row| text(row, 0)).collect::<StoreResult<_>>()?;
            if ids.is_empty() {
                continue;
            }
            let mut s = Statement::new("DELETE t FROM JSON_TABLE(");
            s.push_text(serde_json::Value::from(ids).to_string()).push(&format!(
                ", '$[*]' COLUMNS (id VARCHAR(64) CHARACTER SET utf8mb4 PATH '$')) j STRAIGHT_JOIN {table} t \
                 ON t.id = CAST(j.id AS BINARY) WHERE t.state = '{}'",
                state.name()
            ));
            let mut held = self.other.take(&self.dialer).await?;
            let result = held.link.run(&[s]).await;
            gone += held.give_back(result)?.first().map_or(0, |answer| answer.affected);
        }
        Ok(gone)
    }

    pub(super) async fn transactions_of(&self, id: &str) -> StoreResult<Vec<TransactionRecord>> {
        let mut s = Statement::new(format!(
            "SELECT id, COALESCE(message_id, id), state, topic, receipt, created_at, since_at FROM {} WHERE id = ",
            self.transaction_table()
        ));
        s.push_bytes(id).push(" OR message_id = ").push_bytes(id).push(" ORDER BY created_at, id");
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&[s]).await;
        let rows = held.give_back(result)?.into_iter().flat_map(|answer| answer.rows);
        rows.map(record).collect()
    }
}

fn record(mut row: Row) -> StoreResult<TransactionRecord> {
    Ok(TransactionRecord {
        transaction: text(&mut row, 0)?,
        message: text(&mut row, 1)?,
        state: state_of(&text(&mut row, 2)?)?,
        topic: text_opt(&mut row, 3)?,
        receipt: text_opt(&mut row, 4)?,
        created_at_us: micros(&row, 5)?,
        since_us: micros_opt(&row, 6)?,
    })
}

/// A lock that another one holds is the answer; every other failure is none.
fn open(failure: Failure) -> Result<Finding, Failure> {
    let held = failure.error.kind == StoreErrorKind::Timeout && !failure.session_over;
    if held { Ok(Finding::Open) } else { Err(failure) }
}

fn state_in(answers: Vec<Answer>) -> StoreResult<Option<TransactionState>> {
    let row = answers.into_iter().flat_map(|answer| answer.rows).next();
    row.map(|mut row| state_of(&text(&mut row, 0)?)).transpose()
}

fn ids(answer: Answer) -> StoreResult<Vec<String>> {
    answer.rows.into_iter().map(|mut row| Ok(String::from_utf8_lossy(&bytes(&mut row, 0)?).into_owned())).collect()
}
