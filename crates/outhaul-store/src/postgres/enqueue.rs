//! Inserting rows, as an application without a library would.

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::catalogue::Layout;
use super::link::{Statement, get};
use super::values::{Micros, Raw};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::PayloadType;
use crate::store::{NewRow, StoreResult};

/// Consecutive rows of one statement: all with an id, or all without, so that the column's DEFAULT gives it.
struct Batch<'a> {
    rows: &'a [NewRow],
    ids: Vec<&'a str>,
    topics: Vec<&'a str>,
    keys: Vec<Option<&'a str>>,
    headers: Vec<Option<&'a str>>,
    bytes: Vec<&'a [u8]>,
    texts: Vec<&'a str>,
    due: Vec<Option<Micros>>,
    sql: String,
}

impl Layout {
    /// $1 ids (empty without), $2 topics, $3 keys, $4 headers, $5 payloads, $6 times. Casts are to types without their
    /// length, since a cast to `varchar(n)` would cut off in silence.
    fn insert(&self, with_id: bool) -> String {
        let [id, topic, key, headers, payload] = &self.types;
        let mut columns = vec![self.topic.as_str(), self.payload.as_str()];
        let mut values = vec![format!("t::{topic}"), format!("p::{payload}")];
        if with_id {
            columns.push(&self.id);
            values.push(format!("i::{id}"));
        }
        if let Some(name) = &self.key {
            columns.push(name);
            values.push(format!("k::{key}"));
        }
        if let Some(name) = &self.headers {
            columns.push(name);
            values.push(format!("h::{headers}"));
        }
        if let Some(column) = &self.available_at {
            columns.push(&column.name);
            values.push(if column.zoned { "a".into() } else { "a AT TIME ZONE 'UTC'".into() });
        }
        let ids = if with_id { "$1" } else { "$1::text[]" };
        format!(
            "INSERT INTO {} ({}) SELECT {} FROM unnest({ids}, $2, $3, $4, $5, $6) WITH ORDINALITY r(i, t, k, h, p, a, place) \
             ORDER BY place RETURNING {}",
            self.table,
            columns.join(", "),
            values.join(", "),
            self.text(&self.id)
        )
    }
}

impl<'a> Batch<'a> {
    fn of(rows: &'a [NewRow], layout: &Layout) -> StoreResult<Self> {
        let with_id = rows.first().is_some_and(|r| r.id.is_some());
        let mut texts = Vec::new();
        let mut bytes = Vec::new();
        for row in rows {
            match layout.payload_type {
                PayloadType::Bytes => bytes.push(row.payload.as_ref()),
                _ => texts.push(std::str::from_utf8(&row.payload).map_err(|_| {
                    StoreError::new(StoreErrorKind::Other, "the payload is not UTF-8, and the column holds text")
                })?),
            }
        }
        Ok(Self {
            rows,
            ids: rows.iter().filter_map(|r| r.id.as_deref()).collect(),
            topics: rows.iter().map(|r| r.topic.as_str()).collect(),
            keys: rows.iter().map(|r| r.key.as_deref()).collect(),
            headers: rows.iter().map(|r| r.headers.as_deref()).collect(),
            bytes,
            texts,
            due: rows.iter().map(|r| r.available_at_us.map(Micros)).collect(),
            sql: layout.insert(with_id),
        })
    }

    fn statement(&self, payload: PayloadType) -> Statement<'_> {
        let statement = Statement::new(&self.sql)
            .with(&self.ids, Type::TEXT_ARRAY)
            .with(&self.topics, Type::TEXT_ARRAY)
            .with(&self.keys, Type::TEXT_ARRAY)
            .with(&self.headers, Type::TEXT_ARRAY);
        let statement = match payload {
            PayloadType::Bytes => statement.with(&self.bytes, Type::BYTEA_ARRAY),
            _ => statement.with(&self.texts, Type::TEXT_ARRAY),
        };
        statement.with(&self.due, Type::TIMESTAMPTZ_ARRAY)
    }
}

impl PostgresStore {
    pub(super) async fn insert_rows(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let layout = self.layout(&self.other).await?;
        refuse_what_has_no_column(rows, &layout)?;
        let batches: Vec<Batch<'_>> = rows
            .chunk_by(|a, b| a.id.is_some() == b.id.is_some())
            .map(|rows| Batch::of(rows, &layout))
            .collect::<StoreResult<_>>()?;
        let statements: Vec<Statement<'_>> = batches.iter().map(|b| b.statement(layout.payload_type)).collect();
        let held = self.other.take(&self.dialer).await?;
        // BEGIN is waited for: without it the batches would commit one by one.
        if let Err(failure) = held.link.begin(&self.dialer.begin_write, &[]).await {
            return held.give_back(Err(failure));
        }
        let result = held.link.run_and_commit(&statements).await;
        let answers = held.give_back(result)?;
        let mut ids = Vec::with_capacity(rows.len());
        for (batch, answer) in batches.iter().zip(&answers) {
            debug_assert_eq!(batch.rows.len(), answer.len());
            for row in answer {
                ids.push(String::from_utf8_lossy(get::<Raw<'_>>(row, 0)?.0).into_owned());
            }
        }
        Ok(ids)
    }
}

/// A key, headers or a time that the table has no column for would be lost in silence.
fn refuse_what_has_no_column(rows: &[NewRow], layout: &Layout) -> StoreResult<()> {
    for (given, there, what) in [
        (rows.iter().any(|r| r.key.is_some()), layout.key.is_some(), "keys"),
        (rows.iter().any(|r| r.headers.is_some()), layout.headers.is_some(), "headers"),
        (
            rows.iter().any(|r| r.available_at_us.is_some()),
            layout.available_at.is_some(),
            "times before which they wait",
        ),
    ] {
        if given && !there {
            let what = format!("rows have {what}, and the outbox table has no column for them");
            return Err(StoreError::new(StoreErrorKind::Configuration, what));
        }
    }
    Ok(())
}
