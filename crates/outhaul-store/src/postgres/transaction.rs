//! Rows of `outbox_transaction`: judged, ended, put into the outbox, pruned.
//!
//! Every call is one statement, or a short transaction that names rows which were seen committed, so that nothing waits
//! for an application's open transaction but the tombstone that would take its place; and that waits a quarter of a
//! second.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use outhaul_core::transaction::{Finding, TransactionState};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Dialer, Slot, Statement, get};
use super::values::{Micros, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{PayloadType, StoreOptions};
use crate::store::StoreResult;
use crate::transaction::{
    EndedTransaction, FallBack, FellBack, SPAN_MAX_MS, TransactionRecord, check_id, refuses_row, state_of,
};
use crate::version::ORIGIN;

const COMMITTED: &str = TransactionState::Committed.name();
/// Check-backs that are judged side by side.
const JUDGES: usize = 4;
/// How long a judge waits for a row that an open transaction has inserted.
const WAIT: Duration = Duration::from_millis(250);

/// Connections for transactions, which wait less for locks than others.
pub(super) struct Slots {
    dialer: Dialer,
    slots: [Slot; JUDGES],
    next: AtomicUsize,
}

impl Slots {
    pub(super) fn new(options: &StoreOptions) -> StoreResult<Self> {
        let dialer = Dialer::new(&StoreOptions { lock_timeout: WAIT.min(options.lock_timeout), ..options.clone() })?;
        Ok(Self { dialer, slots: [const { Slot::new() }; JUDGES], next: AtomicUsize::new(0) })
    }

    fn next(&self) -> &Slot {
        let n = self.next.fetch_add(1, Ordering::Relaxed) % JUDGES;
        self.slots.get(n).unwrap_or(&self.slots[0])
    }

    /// A transaction of one statement.
    async fn run(&self, statement: Statement<'_>) -> StoreResult<Vec<Row>> {
        let held = self.next().take(&self.dialer).await?;
        let result = held.link.write(&self.dialer.begin_write, &[statement]).await;
        Ok(held.give_back(result)?.into_iter().next().unwrap_or_default())
    }

    pub(super) async fn clear(&self) {
        self.dialer.close();
        for slot in &self.slots {
            slot.clear().await;
        }
    }
}

impl PostgresStore {
    fn transaction_table(&self) -> String {
        quoted(&self.options.table("outbox_transaction"))
    }

    pub(super) async fn own_origin(&self) -> StoreResult<String> {
        let sql = format!("SELECT value FROM {} WHERE name = $1", quoted(&self.options.table("outbox_meta")));
        let rows = self.transactions.run(Statement::new(&sql).with(&ORIGIN, Type::TEXT)).await?;
        let missing = || StoreError::new(StoreErrorKind::Outdated, "the meta table has no origin");
        get(rows.first().ok_or_else(missing)?, 0)
    }

    pub(super) async fn judged(&self, id: &str) -> StoreResult<Finding> {
        check_id(id)?;
        let table = self.transaction_table();
        let look = format!("SELECT state FROM {table} WHERE id = $1");
        let bury = format!(
            "INSERT INTO {table} (id, state, since_at) VALUES ($1, '{}', clock_timestamp()) ON CONFLICT (id) DO NOTHING \
             RETURNING state",
            TransactionState::RolledBack.name()
        );
        let seen = async || {
            let rows = self.transactions.run(Statement::new(&look).with(&id, Type::TEXT)).await?;
            rows.first().map(|row| state_of(get(row, 0)?)).transpose()
        };
        if let Some(state) = seen().await? {
            return Ok(Finding::Row(state));
        }
        // It waits for an open transaction that has inserted the row, and then does nothing if that commits.
        match self.transactions.run(Statement::new(&bury).with(&id, Type::TEXT)).await {
            Ok(rows) if !rows.is_empty() => return Ok(Finding::Buried),
            Ok(_) => {}
            Err(e) if e.kind == StoreErrorKind::Timeout => return Ok(Finding::Open),
            Err(e) => return Err(e),
        }
        match seen().await? {
            Some(state) => Ok(Finding::Row(state)),
            None => Err(StoreError::new(StoreErrorKind::Conflict, "the row of a transaction has just gone")),
        }
    }

    pub(super) async fn transactions_ended(&self, ended: &[EndedTransaction]) -> StoreResult<u64> {
        if ended.is_empty() {
            return Ok(0);
        }
        // Rows are locked in the order of their ids, whoever ends them.
        let sql = format!(
            "WITH e AS (SELECT t.id, e.r FROM unnest($1::text[], $2::text[]) e(i, r) JOIN {table} t ON t.id = e.i \
               WHERE t.state = '{COMMITTED}' ORDER BY t.id FOR UPDATE OF t) \
             UPDATE {table} t SET state = '{}', since_at = clock_timestamp(), receipt = e.r, msg_key = NULL, headers = NULL, \
               payload = NULL FROM e WHERE t.id = e.id RETURNING 1",
            TransactionState::Ended.name(),
            table = self.transaction_table()
        );
        let (ids, receipts): (Vec<&str>, Vec<String>) = ended.iter().map(|e| (e.id.as_str(), e.receipt())).unzip();
        let statement = Statement::new(&sql).with(&ids, Type::TEXT_ARRAY).with(&receipts, Type::TEXT_ARRAY);
        Ok(self.transactions.run(statement).await?.len() as u64)
    }

    async fn change(&self, sql: &str, ids: &[String]) -> StoreResult<u64> {
        if ids.is_empty() {
            return Ok(0);
        }
        Ok(self.transactions.run(Statement::new(sql).with(&ids, Type::TEXT_ARRAY)).await?.len() as u64)
    }

    pub(super) async fn fallen_back(&self, wanted: &FallBack) -> StoreResult<FellBack> {
        let table = self.transaction_table();
        let look = format!(
            "(SELECT id, false FROM {table} WHERE state = '{COMMITTED}' AND since_at IS NULL LIMIT $2) UNION ALL \
             (SELECT id, true FROM {table} WHERE state = '{COMMITTED}' \
               AND since_at <= clock_timestamp() - $1 * interval '1 millisecond' ORDER BY since_at LIMIT $2)"
        );
        let after = i64::try_from(wanted.after_ms.min(SPAN_MAX_MS)).unwrap_or(i64::MAX);
        let limit = i64::from(wanted.limit.max(1));
        let asked = Statement::new(&look).with(&after, Type::INT8).with(&limit, Type::INT8);
        let (mut new, mut due) = (Vec::new(), Vec::new());
        for row in self.select(&self.other, asked).await? {
            let id: String = get(&row, 0)?;
            if get(&row, 1)? { due.push(id) } else { new.push(id) }
        }
        let full = new.len().max(due.len()) as i64 >= limit;
        let see = format!(
            "UPDATE {table} SET since_at = clock_timestamp() WHERE id = ANY ($1) AND state = '{COMMITTED}' \
             AND since_at IS NULL RETURNING 1"
        );
        let mut fell = FellBack { seen: self.change(&see, &new).await?, more: full, ..FellBack::default() };
        let put_off = format!(
            "UPDATE {table} SET since_at = clock_timestamp() WHERE id = ANY ($1) AND state = '{COMMITTED}' RETURNING 1"
        );
        for id in due {
            match self.put_into_outbox(&id).await {
                Ok(message) => fell.sent.extend(message),
                Err(e) if refuses_row(&e) => {
                    fell.refused.push((id.clone(), e.message));
                    self.change(&put_off, &[id]).await?;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(fell)
    }

    /// In one statement. None: it is not committed any more, or somebody is about to end it.
    async fn put_into_outbox(&self, id: &str) -> StoreResult<Option<String>> {
        let layout = self.layout(&self.other).await?;
        let table = self.transaction_table();
        let [id_type, topic_type, key_type, headers_type, payload_type] = &layout.types;
        let payload = match layout.payload_type {
            PayloadType::Bytes => "payload".to_owned(),
            _ => format!("convert_from(payload, 'UTF8')::{payload_type}"),
        };
        let mut columns = vec![
            (layout.id.as_str(), format!("message::{id_type}")),
            (layout.topic.as_str(), format!("topic::{topic_type}")),
            (layout.payload.as_str(), payload),
        ];
        columns.extend(layout.key.as_deref().map(|key| (key, format!("msg_key::{key_type}"))));
        columns.extend(layout.headers.as_deref().map(|headers| (headers, format!("headers::text::{headers_type}"))));
        let (into, from): (Vec<&str>, Vec<String>) = columns.into_iter().unzip();
        for (column, given, name) in
            [("msg_key", layout.key.is_some(), "key"), ("headers", layout.headers.is_some(), "headers")]
        {
            if given {
                continue;
            }
            let sql = format!("SELECT {column} IS NOT NULL FROM {table} WHERE id = $1");
            let rows = self.select(&self.other, Statement::new(&sql).with(&id, Type::TEXT)).await?;
            if rows.first().map_or(Ok(false), |row| get(row, 0))? {
                let what = format!("it has {name}, and the outbox table no column for that");
                return Err(StoreError::new(StoreErrorKind::Configuration, what));
            }
        }
        let sql = format!(
            "WITH due AS (SELECT id, coalesce(message_id, id) AS message, topic, msg_key, headers, payload FROM {table} \
               WHERE id = $1 AND state = '{COMMITTED}' FOR UPDATE SKIP LOCKED), \
             sent AS (UPDATE {table} t SET state = '{}', since_at = clock_timestamp(), msg_key = NULL, headers = NULL, \
               payload = NULL FROM due WHERE t.id = due.id), \
             put AS (INSERT INTO {} ({}) SELECT {} FROM due) \
             SELECT message FROM due",
            TransactionState::Sent.name(),
            layout.table,
            into.join(", "),
            from.join(", ")
        );
        let rows = self.transactions.run(Statement::new(&sql).with(&id, Type::TEXT)).await?;
        rows.first().map(|row| get(row, 0)).transpose()
    }

    pub(super) async fn old_transactions_gone(&self, retention_ms: u64, limit: u32) -> StoreResult<u64> {
        let table = self.transaction_table();
        let sql = format!(
            "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE state = $1 \
               AND since_at < clock_timestamp() - $2 * interval '1 millisecond' ORDER BY since_at LIMIT $3 \
               FOR UPDATE SKIP LOCKED) RETURNING 1"
        );
        let after = i64::try_from(retention_ms.min(SPAN_MAX_MS)).unwrap_or(i64::MAX);
        let mut gone = 0;
        for state in [TransactionState::Ended, TransactionState::Sent, TransactionState::RolledBack] {
            let (name, left) = (state.name(), i64::from(limit.max(1)) - gone);
            let statement =
                Statement::new(&sql).with(&name, Type::TEXT).with(&after, Type::INT8).with(&left, Type::INT8);
            gone += self.transactions.run(statement).await?.len() as i64;
        }
        Ok(gone.unsigned_abs())
    }

    pub(super) async fn transactions_of(&self, id: &str) -> StoreResult<Vec<TransactionRecord>> {
        let sql = format!(
            "SELECT id, coalesce(message_id, id), state, topic, receipt, created_at, since_at FROM {} \
             WHERE id = $1 OR message_id = $1 ORDER BY created_at, id",
            self.transaction_table()
        );
        let rows = self.select(&self.other, Statement::new(&sql).with(&id, Type::TEXT)).await?;
        rows.iter().map(record).collect()
    }
}

fn record(row: &Row) -> StoreResult<TransactionRecord> {
    Ok(TransactionRecord {
        transaction: get(row, 0)?,
        message: get(row, 1)?,
        state: state_of(get(row, 2)?)?,
        topic: get(row, 3)?,
        receipt: get(row, 4)?,
        created_at_us: get::<Micros>(row, 5)?.0,
        since_us: get::<Option<Micros>>(row, 6)?.map(|us| us.0),
    })
}
