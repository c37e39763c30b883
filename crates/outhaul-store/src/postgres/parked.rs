//! Parked rows as a checkpoint writes them, and as they are read again.

use bytes::Bytes;
use outhaul_core::checkpoint::ShardCheckpoint;
use outhaul_core::chunk;
use outhaul_core::destination::NO_ROUTE;
use outhaul_core::message::{Defect, Message, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::catalogue::Layout;
use super::link::{GUARD, Statement, get};
use super::values::{clean, quoted, signed, small, unsigned};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::PayloadType;
use crate::parked::folded;
use crate::store::{PARKED_PAGE_ROWS, StoreResult, StoredParked, behind_page};

/// The columns of an entry, in the order in which [`entry`] reads them.
pub(super) const ENTRY: &str = "destination, shard, position, msg_key, state, attempts, due_at, error_code, error_text, \
                                first_failed_at, last_failed_at";

/// SQL for the kinds of change.
pub(super) struct ParkedSql {
    remove: String,
    insert: String,
    insert_oversize: String,
    update: String,
    replace: String,
}

impl PostgresStore {
    pub(super) fn parked_sql(&self, layout: &Layout) -> ParkedSql {
        let parked = quoted(&self.options.table("outbox_parked"));
        let insert = format!(
            "INSERT INTO {parked} ({ENTRY}, id, codec, message, oversize_payload) \
             SELECT d, s, p, k, st, a, due, ec, et, ff, lf, i, co, m, "
        );
        let rows = "unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15) \
                    t(d, s, p, k, st, a, due, ec, et, ff, lf, i, co, m, q)";
        // As bytes: what the server holds, in the encoding in which it would be sent.
        let payload = match layout.payload_type {
            PayloadType::Bytes => format!("o.{}", layout.payload),
            _ => {
                let encoding = if layout.opaque_text { "SQL_ASCII" } else { "UTF8" };
                format!("convert_to(o.{}::text, '{encoding}')", layout.payload)
            }
        };
        let shard = layout.shard.as_ref().map_or("true".to_owned(), |s| format!("o.{s} = t.s"));
        ParkedSql {
            remove: format!(
                "DELETE FROM {parked} o USING unnest($1, $2, $3) t(d, s, p) \
                 WHERE o.destination = t.d AND o.shard = t.s AND o.position = t.p AND {GUARD}"
            ),
            insert: format!("{insert} NULL FROM {rows} WHERE {GUARD}"),
            insert_oversize: format!(
                "{insert} {payload} FROM {rows} LEFT JOIN {} o ON {shard} AND o.{} = t.q WHERE {GUARD}",
                layout.table, layout.seq
            ),
            update: format!(
                "UPDATE {parked} o SET state = st, attempts = a, due_at = due, \
                   error_code = CASE ec WHEN '' THEN o.error_code ELSE ec END, \
                   error_text = CASE ec WHEN '' THEN o.error_text ELSE et END, first_failed_at = ff, last_failed_at = lf \
                 FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) t(d, s, p, k, st, a, due, ec, et, ff, lf) \
                 WHERE o.destination = t.d AND o.shard = t.s AND o.position = t.p AND {GUARD}"
            ),
            replace: format!(
                "UPDATE {parked} o SET msg_key = t.k, codec = t.c, message = t.m, oversize_payload = NULL \
                 FROM unnest($1, $2, $3, $4, $5, $6) t(d, s, p, k, c, m) \
                 WHERE o.destination = t.d AND o.shard = t.s AND o.position = t.p AND {GUARD}"
            ),
        }
    }
}

/// Entries by column.
#[derive(Default)]
struct Entries {
    destinations: Vec<String>,
    shards: Vec<i16>,
    positions: Vec<i64>,
    keys: Vec<Option<String>>,
    states: Vec<&'static str>,
    attempts: Vec<i64>,
    due: Vec<i64>,
    codes: Vec<String>,
    texts: Vec<String>,
    first: Vec<i64>,
    last: Vec<i64>,
}

impl Entries {
    fn push(&mut self, e: &ParkedEntry) {
        self.destinations.push(clean(&e.destination));
        self.shards.push(small(e.shard));
        self.positions.push(signed(e.position.0));
        self.keys.push(e.key.as_deref().map(clean));
        self.states.push(e.state.as_str());
        self.attempts.push(e.attempts.into());
        self.due.push(e.due_at_us);
        self.codes.push(clean(&e.error_code));
        self.texts.push(clean(&e.error_text));
        self.first.push(e.first_failed_at_us);
        self.last.push(e.last_failed_at_us);
    }

    fn bind<'a>(&'a self, statement: Statement<'a>) -> Statement<'a> {
        statement
            .with(&self.destinations, Type::TEXT_ARRAY)
            .with(&self.shards, Type::INT2_ARRAY)
            .with(&self.positions, Type::INT8_ARRAY)
            .with(&self.keys, Type::TEXT_ARRAY)
            .with(&self.states, Type::TEXT_ARRAY)
            .with(&self.attempts, Type::INT8_ARRAY)
            .with(&self.due, Type::INT8_ARRAY)
            .with(&self.codes, Type::TEXT_ARRAY)
            .with(&self.texts, Type::TEXT_ARRAY)
            .with(&self.first, Type::INT8_ARRAY)
            .with(&self.last, Type::INT8_ARRAY)
    }
}

/// New rows by column.
#[derive(Default)]
struct Inserts {
    entries: Entries,
    ids: Vec<String>,
    codecs: Vec<i16>,
    messages: Vec<Vec<u8>>,
    seqs: Vec<i64>,
}

impl Inserts {
    fn push(&mut self, entry: &ParkedEntry, message: &Message, destinations: &[String]) {
        let packed = chunk::encode(std::iter::once(message), destinations);
        self.entries.push(entry);
        self.ids.push(clean(&message.id));
        self.codecs.push(packed.codec.into());
        self.messages.push(packed.bytes);
        self.seqs.push(signed(message.seq.0));
    }

    fn bind<'a>(&'a self, sql: &'a str) -> Statement<'a> {
        self.entries
            .bind(Statement::new(sql))
            .with(&self.ids, Type::TEXT_ARRAY)
            .with(&self.codecs, Type::INT2_ARRAY)
            .with(&self.messages, Type::BYTEA_ARRAY)
            .with(&self.seqs, Type::INT8_ARRAY)
    }
}

/// All changes of a checkpoint, each row's folded into one, so that few statements do it in any order.
#[derive(Default)]
pub(super) struct ParkedBatch {
    removed: (Vec<String>, Vec<i16>, Vec<i64>),
    inserts: Inserts,
    oversize: Inserts,
    updates: Entries,
    replaced: Replaced,
}

/// Key and content of rows that are updated, by column.
#[derive(Default)]
struct Replaced {
    destinations: Vec<String>,
    shards: Vec<i16>,
    positions: Vec<i64>,
    keys: Vec<Option<String>>,
    codecs: Vec<i16>,
    messages: Vec<Vec<u8>>,
}

impl Replaced {
    fn push(&mut self, entry: &ParkedEntry, message: &Message, destinations: &[String]) {
        let packed = chunk::encode(std::iter::once(message), destinations);
        self.destinations.push(clean(&entry.destination));
        self.shards.push(small(entry.shard));
        self.positions.push(signed(entry.position.0));
        self.keys.push(entry.key.as_deref().map(clean));
        self.codecs.push(packed.codec.into());
        self.messages.push(packed.bytes);
    }

    fn bind<'a>(&'a self, sql: &'a str) -> Statement<'a> {
        Statement::new(sql)
            .with(&self.destinations, Type::TEXT_ARRAY)
            .with(&self.shards, Type::INT2_ARRAY)
            .with(&self.positions, Type::INT8_ARRAY)
            .with(&self.keys, Type::TEXT_ARRAY)
            .with(&self.codecs, Type::INT2_ARRAY)
            .with(&self.messages, Type::BYTEA_ARRAY)
    }
}

impl ParkedBatch {
    pub(super) fn of<'a>(shards: impl Iterator<Item = &'a ShardCheckpoint>, destinations: &[String]) -> Self {
        let mut batch = Self::default();
        for ((destination, shard, position), change) in folded(shards) {
            if change.remove {
                batch.removed.0.push(clean(destination));
                batch.removed.1.push(small(shard));
                batch.removed.2.push(signed(position.0));
            }
            match (change.insert, change.entry.as_deref()) {
                (Some(message), Some(entry)) => {
                    let oversize = matches!(message.defect, Some(Defect::TooLarge { .. }));
                    let inserts = if oversize { &mut batch.oversize } else { &mut batch.inserts };
                    inserts.push(entry, message, destinations);
                }
                (None, Some(entry)) => {
                    batch.updates.push(entry);
                    if let Some(message) = change.replace {
                        batch.replaced.push(entry, message, destinations);
                    }
                }
                _ => {}
            }
        }
        batch
    }

    pub(super) fn statements<'a>(&'a self, sql: &'a ParkedSql, into: &mut Vec<Statement<'a>>) {
        if !self.removed.0.is_empty() {
            into.push(
                Statement::new(&sql.remove)
                    .with(&self.removed.0, Type::TEXT_ARRAY)
                    .with(&self.removed.1, Type::INT2_ARRAY)
                    .with(&self.removed.2, Type::INT8_ARRAY),
            );
        }
        if !self.inserts.ids.is_empty() {
            into.push(self.inserts.bind(&sql.insert));
        }
        if !self.oversize.ids.is_empty() {
            into.push(self.oversize.bind(&sql.insert_oversize));
        }
        if !self.updates.shards.is_empty() {
            into.push(self.updates.bind(Statement::new(&sql.update)));
        }
        if !self.replaced.shards.is_empty() {
            into.push(self.replaced.bind(&sql.replace));
        }
    }
}

/// Reads the columns of [`ENTRY`].
pub(super) fn entry(row: &Row) -> StoreResult<ParkedEntry> {
    let state: String = get(row, 4)?;
    let state = ParkedState::parse(&state).ok_or_else(|| {
        StoreError::new(StoreErrorKind::Corrupt, "a parked row has a state that this build does not know")
    })?;
    Ok(ParkedEntry {
        destination: get(row, 0)?,
        shard: ShardId(u16::try_from(get::<i16>(row, 1)?).unwrap_or_default()),
        position: Position(unsigned(get(row, 2)?)),
        key: get(row, 3)?,
        state,
        attempts: u32::try_from(get::<i64>(row, 5)?).unwrap_or(u32::MAX),
        due_at_us: get(row, 6)?,
        error_code: get(row, 7)?,
        error_text: get(row, 8)?,
        first_failed_at_us: get(row, 9)?,
        last_failed_at_us: get(row, 10)?,
    })
}

impl PostgresStore {
    /// What the lanes of a shard have parked: page by page along the primary key, one destination after the other.
    pub(super) async fn parked_of_lanes(&self, shard: ShardId) -> StoreResult<Vec<ParkedEntry>> {
        let table = quoted(&self.options.table("outbox_parked"));
        let next = format!("SELECT destination FROM {table} WHERE destination > $1 ORDER BY destination LIMIT 1");
        let (mut found, mut destination) = (Vec::new(), String::new());
        loop {
            let rows = self.select(&self.log, Statement::new(&next).with(&destination, Type::TEXT)).await?;
            let Some(row) = rows.first() else { return Ok(found) };
            destination = get(row, 0)?;
            let mut from = (destination != NO_ROUTE).then_some(Position(0));
            while let Some(first) = from {
                let page = self.parked_page(shard, &destination, first).await?;
                from = behind_page(&page);
                found.extend(page);
            }
        }
    }

    pub(super) async fn parked_page(
        &self,
        shard: ShardId,
        destination: &str,
        from: Position,
    ) -> StoreResult<Vec<ParkedEntry>> {
        let sql = format!(
            "SELECT {} FROM {} WHERE destination = $1 AND shard = $2 AND position >= $3 ORDER BY position \
             LIMIT {PARKED_PAGE_ROWS}",
            ENTRY.replace("error_text", "''::text"),
            quoted(&self.options.table("outbox_parked"))
        );
        let (number, first) = (small(shard), signed(from.0));
        let statement =
            Statement::new(&sql).with(&destination, Type::TEXT).with(&number, Type::INT2).with(&first, Type::INT8);
        self.select(&self.log, statement).await?.iter().map(entry).collect()
    }

    pub(super) async fn parked_with_content(
        &self,
        shard: ShardId,
        destination: &str,
        positions: &[Position],
        destinations: &[String],
    ) -> StoreResult<Vec<StoredParked>> {
        let sql = format!(
            "SELECT {ENTRY}, codec, message FROM {} WHERE destination = $1 AND shard = $2 AND position = ANY ($3) ORDER BY position",
            quoted(&self.options.table("outbox_parked"))
        );
        let (number, wanted) = (small(shard), positions.iter().map(|p| signed(p.0)).collect::<Vec<_>>());
        let statement = Statement::new(&sql)
            .with(&destination, Type::TEXT)
            .with(&number, Type::INT2)
            .with(&wanted, Type::INT8_ARRAY);
        let held = self.log.take(&self.dialer).await?;
        let answers = held.link.read(&self.dialer.begin_read, &[statement]).await;
        let rows = held.give_back(answers)?.into_iter().next().unwrap_or_default();
        rows.iter().map(|row| with_content(row, destinations)).collect()
    }

    pub(super) async fn parked_at(&self, shard: ShardId, position: Position) -> StoreResult<Vec<ParkedEntry>> {
        let sql = format!(
            "SELECT {ENTRY} FROM {} WHERE shard = $1 AND position = $2 ORDER BY destination",
            quoted(&self.options.table("outbox_parked"))
        );
        let (number, position) = (small(shard), signed(position.0));
        let statement = Statement::new(&sql).with(&number, Type::INT2).with(&position, Type::INT8);
        let held = self.other.take(&self.dialer).await?;
        let answers = held.link.read(&self.dialer.begin_read, &[statement]).await;
        held.give_back(answers)?.iter().flatten().map(entry).collect()
    }
}

fn with_content(row: &Row, destinations: &[String]) -> StoreResult<StoredParked> {
    let entry = entry(row)?;
    let codec = u8::try_from(get::<i16>(row, 11)?).unwrap_or(u8::MAX);
    let bytes = Bytes::copy_from_slice(get::<&[u8]>(row, 12)?);
    let corrupt = |why: String| {
        let what = format!("parked message {} of shard {}: {why}", entry.position, entry.shard);
        StoreError::new(StoreErrorKind::Corrupt, what)
    };
    let message = chunk::decode(codec, &bytes, entry.shard, entry.position, destinations)
        .map_err(|e| corrupt(e.to_string()))?
        .into_iter()
        .next()
        .ok_or_else(|| corrupt("no message in it".into()))?;
    Ok(StoredParked { entry, message })
}
