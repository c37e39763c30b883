//! A table of the application's own with a status column.
//!
//! Ids and times travel as text and are cast to the columns' own types, so that the indexes serve whatever those are.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::types::{ToSql, Type};

use super::link::{Dialer, Failure, GUARD, Link, Slot, Statement, get};
use super::values::{Raw, clean, quoted, unsigned};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{Archive, ColumnNames, StatusTable, StoreOptions};
use crate::row::{ByteBudget, RawRow, RowLimits};
use crate::status::{
    Condition, Fed, Fetched, Into, Mark, Place, Standing, Table, Wanted, columns_of, index_warning, not_unique,
};
use crate::store::{NewRow, StoreResult};

/// Rows that wait are counted up to here.
const COUNT_MAX: i64 = 100_000;
/// Rows whose content is asked for at once: a page's content is bounded by it and by `INLINE`.
const PAGE: usize = 200;
/// Payloads and headers up to this come with their page, bytes; larger ones by themselves.
const INLINE: u64 = 64 << 10;
/// The present, in microseconds since 1970-01-01 UTC.
const NOW_US: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

pub(crate) struct PostgresStatusTable {
    options: StatusTable,
    limits: RowLimits,
    dialer: Dialer,
    poll: Slot,
    rescan: Slot,
    writer: Slot,
    other: Slot,
    archiver: Slot,
    kinds: Mutex<Option<Arc<Kinds>>>,
}

/// The columns' types.
#[derive(Clone, Debug)]
struct Kinds {
    columns: HashMap<String, String>,
}

impl Kinds {
    fn of(&self, column: &str) -> &str {
        self.columns.get(column).map_or("text", String::as_str)
    }

    fn counts(&self, column: &str) -> bool {
        matches!(self.of(column), "bigint" | "integer" | "numeric")
    }

    /// Microseconds since 1970-01-01 UTC, as SQL.
    fn micros(&self, column: &str) -> String {
        let c = quoted(column);
        if self.counts(column) {
            // Seconds, milliseconds or microseconds, told apart by their size.
            return format!(
                "(CASE WHEN {c} >= 100000000000000 THEN {c} WHEN {c} >= 100000000000 THEN {c}::bigint * 1000 ELSE {c}::bigint * 1000000 END)::bigint"
            );
        }
        let at = if self.of(column) == "timestamp without time zone" { format!("({c} AT TIME ZONE 'UTC')") } else { c };
        format!("(extract(epoch FROM {at}) * 1000000)::bigint")
    }

    /// The present as a value of this column; `like`: the column whose numbers show in what they count.
    fn now(&self, column: &str, like: &str) -> String {
        match self.of(column) {
            "timestamp without time zone" => "(clock_timestamp() AT TIME ZONE 'UTC')".into(),
            ty if self.counts(column) => format!(
                "(CASE WHEN {like} >= 100000000000000 THEN {NOW_US} WHEN {like} >= 100000000000 THEN {NOW_US} / 1000 ELSE {NOW_US} / 1000000 END)::{ty}"
            ),
            _ => "clock_timestamp()".into(),
        }
    }
}

impl PostgresStatusTable {
    pub(crate) fn open(options: &StoreOptions, table: &StatusTable) -> StoreResult<Self> {
        Ok(Self {
            options: table.clone(),
            limits: RowLimits::new(options.max_message_bytes),
            dialer: Dialer::new(options)?,
            poll: Slot::new(),
            rescan: Slot::new(),
            writer: Slot::new(),
            other: Slot::new(),
            archiver: Slot::new(),
            kinds: Mutex::default(),
        })
    }

    const fn reader(&self, rescan: bool) -> &Slot {
        if rescan { &self.rescan } else { &self.poll }
    }

    fn table(&self) -> String {
        schema_quoted(&self.options.table)
    }

    /// The condition of a row that was created so long ago. None: there is no such time.
    async fn before(&self, table: &str, after: Duration, kinds: &Kinds) -> StoreResult<Option<String>> {
        let Some(column) = self.options.created_at.as_deref() else { return Ok(None) };
        let (created, seconds) = (quoted(column), after.as_secs());
        if !kinds.counts(column) {
            let now = kinds.now(column, "0");
            return Ok(Some(format!("{created} < {now} - interval '{seconds} seconds'")));
        }
        let sql = format!(
            "SELECT {created}::bigint, extract(epoch FROM now())::bigint FROM {table} WHERE {created} IS NOT NULL LIMIT 1"
        );
        let rows = self.ask(&self.other, &sql, &[]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let (one, now): (i64, i64) = (get(row, 0)?, get(row, 1)?);
        let scale = if one >= 100_000_000_000_000 {
            1_000_000
        } else if one >= 100_000_000_000 {
            1_000
        } else {
            1
        };
        let then = now.saturating_sub(i64::try_from(seconds).unwrap_or(i64::MAX)).saturating_mul(scale);
        Ok(Some(format!("{created} < {then}")))
    }

    async fn ask(
        &self,
        slot: &Slot,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> StoreResult<Vec<tokio_postgres::Row>> {
        let held = slot.take(&self.dialer).await?;
        let result = held.link.read(&self.dialer.begin_read, &[statement(sql, values)]).await;
        Ok(held.give_back(result)?.into_iter().next().unwrap_or_default())
    }

    async fn write(&self, sql: &str, values: &[(&(dyn ToSql + Sync), Type)]) -> StoreResult<Vec<tokio_postgres::Row>> {
        self.write_by(&self.writer, sql, values).await
    }

    async fn write_by(
        &self,
        slot: &Slot,
        sql: &str,
        values: &[(&(dyn ToSql + Sync), Type)],
    ) -> StoreResult<Vec<tokio_postgres::Row>> {
        let held = slot.take(&self.dialer).await?;
        let result = held.link.write(&self.dialer.begin_write, &[statement(sql, values)]).await;
        Ok(held.give_back(result)?.into_iter().next().unwrap_or_default())
    }

    /// The types of the columns, looked up once, and whenever they are asked for anew.
    async fn kinds(&self, anew: bool) -> StoreResult<Arc<Kinds>> {
        let known = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(kinds) = known.filter(|_| !anew) {
            return Ok(kinds);
        }
        let o = &self.options;
        let sql = "SELECT a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL) \
                   FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
                   WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped";
        let table = self.table();
        let rows = self.ask(&self.other, sql, &[(&table, Type::TEXT)]).await?;
        let columns: HashMap<String, String> =
            rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<StoreResult<_>>()?;
        let missing = |what: String| StoreError::new(StoreErrorKind::Configuration, what);
        if columns.is_empty() {
            return Err(missing(format!("there is no table {}", o.table)));
        }
        let wanted = [&o.id, &o.topic, &o.payload, &o.status];
        let optional = [&o.key, &o.headers, &o.created_at, &o.sent_at];
        for name in wanted.into_iter().chain(optional.into_iter().flatten()) {
            if !columns.contains_key(name) {
                return Err(missing(format!("table {} has no column {name}", o.table)));
            }
        }
        let kinds = Arc::new(Kinds { columns });
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = Some(kinds.clone());
        Ok(kinds)
    }

    /// A status as a value of its column.
    fn status(&self, kinds: &Kinds, parameter: &str) -> String {
        format!("{parameter}::text::{}", kinds.of(&self.options.status))
    }

    fn columns(&self, kinds: &Kinds, inline: Option<u64>) -> String {
        let o = &self.options;
        let as_text = |column: &Option<String>| {
            column.as_deref().map_or_else(|| "NULL::text".to_owned(), |c| format!("{}::text", quoted(c)))
        };
        let (key, headers) = (as_text(&o.key), as_text(&o.headers));
        let payload = match kinds.of(&o.payload) {
            "bytea" => quoted(&o.payload),
            _ => format!("{}::text", quoted(&o.payload)),
        };
        let size = |what: &str| format!("coalesce(octet_length({what}), 0)::bigint");
        let small = match inline {
            Some(inline) => format!("({} + {} <= {inline})", size(&payload), size(&headers)),
            None => format!(
                "({} <= {} AND {} <= {})",
                size(&payload),
                self.limits.message_bytes,
                size(&headers),
                self.limits.headers_bytes
            ),
        };
        let created = o.created_at.as_deref().map_or_else(|| "NULL".to_owned(), |c| kinds.micros(c));
        format!(
            "{id}::text, {topic}::text, {key}, CASE WHEN {small} THEN {headers} END, {}, CASE WHEN {small} THEN {payload} END, {}, \
             coalesce({created}, {NOW_US}), {small}",
            size(&headers),
            size(&payload),
            id = quoted(&o.id),
            topic = quoted(&o.topic),
        )
    }

    /// The statement, and the new status. None: there is no word for it.
    fn marking(&self, kinds: &Kinds, mark: Mark) -> Option<(String, &String)> {
        let o = &self.options;
        let to = match mark {
            Mark::Sent => &o.sent,
            Mark::Dead => o.dead.as_ref()?,
        };
        let like = o.created_at.as_deref().filter(|c| kinds.counts(c)).map_or_else(|| "0".to_owned(), quoted);
        let sent_at = match (&o.sent_at, mark) {
            (Some(column), Mark::Sent) => format!(", {} = {}", quoted(column), kinds.now(column, &like)),
            _ => String::new(),
        };
        let status = quoted(&o.status);
        let sql = format!(
            "UPDATE {} SET {status} = {}{sent_at} WHERE {} = ANY ($2::text[]::{}[]) AND {status} IN ({}, {}) AND {GUARD} RETURNING 1",
            self.table(),
            self.status(kinds, "$1"),
            quoted(&o.id),
            kinds.of(&o.id),
            self.status(kinds, "$3"),
            self.status(kinds, "$4"),
        );
        Some((sql, to))
    }

    /// What [`Self::marking`]'s statement takes.
    fn marked<'a>(&'a self, ids: &'a &'a [String], to: &'a String, mark: Mark) -> [(&'a (dyn ToSql + Sync), Type); 4] {
        let o = &self.options;
        let dead = o.dead.as_ref().filter(|_| mark == Mark::Sent).unwrap_or(&o.pending);
        [(to, Type::TEXT), (ids, Type::TEXT_ARRAY), (&o.pending, Type::TEXT), (dead, Type::TEXT)]
    }

    /// Columns of the outbox table, and what is put into each. `payload`: the type of its payload.
    fn feeding(&self, kinds: &Kinds, into: &ColumnNames, payload: &str) -> (String, String) {
        let o = &self.options;
        let as_text = |column: &str| format!("{}::text", quoted(column));
        let content = match (kinds.of(&o.payload), payload) {
            ("bytea", "bytea") => format!("coalesce({}, '\\x')", quoted(&o.payload)),
            ("bytea", ty) => format!("convert_from(coalesce({}, '\\x'), 'UTF8')::{ty}", quoted(&o.payload)),
            (_, "bytea") => format!("convert_to(coalesce({}::text, ''), 'UTF8')", quoted(&o.payload)),
            (_, ty) => format!("coalesce({}::text, '')::{ty}", quoted(&o.payload)),
        };
        let created = o.created_at.as_deref().map(|c| match kinds.of(c) {
            "timestamp with time zone" => format!("coalesce({}, clock_timestamp())", quoted(c)),
            "timestamp without time zone" => format!("coalesce({} AT TIME ZONE 'UTC', clock_timestamp())", quoted(c)),
            _ => format!("coalesce(to_timestamp({} / 1000000.0), clock_timestamp())", kinds.micros(c)),
        });
        let pairs = [
            (Some(&into.id), Some(as_text(&o.id))),
            (Some(&into.topic), Some(as_text(&o.topic))),
            (into.key.as_ref(), o.key.as_deref().map(as_text)),
            (into.headers.as_ref(), o.headers.as_deref().map(|h| format!("{}::text::json", quoted(h)))),
            (Some(&into.payload), Some(content)),
            (into.created_at.as_ref(), created),
        ];
        let (names, values): (Vec<String>, Vec<String>) =
            pairs.into_iter().filter_map(|(name, value)| Some((quoted(name?), value?))).unzip();
        (names.join(", "), values.join(", "))
    }

    async fn feed_on(&self, link: &Link, kinds: &Kinds, ids: &[String], into: &Into) -> Result<Fed, Failure> {
        let o = &self.options;
        let (id, id_type, table) = (quoted(&o.id), kinds.of(&o.id), self.table());
        let outbox = quoted(&into.outbox);
        let lease = format!(
            "SELECT 1 FROM {} WHERE shard = 0 AND owner = $1 AND expires_at > clock_timestamp() FOR UPDATE",
            quoted(&into.lease)
        );
        let locked = format!(
            "SELECT {id}::text FROM {table} WHERE {id} = ANY ($1::text[]::{id_type}[]) AND {} = {} FOR UPDATE SKIP LOCKED",
            quoted(&o.status),
            self.status(kinds, "$2")
        );
        let payload =
            "SELECT format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = to_regclass($1) AND attname = $2";
        let statements = [
            Statement::new(&lease).with(&into.owner, Type::TEXT),
            Statement::new(&locked).with(&ids, Type::TEXT_ARRAY).with(&o.pending, Type::TEXT),
            Statement::new(payload).with(&outbox, Type::TEXT).with(&into.columns.payload, Type::TEXT),
        ];
        let mut answers = link.begin(&self.dialer.begin_write, &statements).await?.into_iter();
        let (lease, locked, payload) = (
            answers.next().unwrap_or_default(),
            answers.next().unwrap_or_default(),
            answers.next().unwrap_or_default(),
        );
        if lease.is_empty() {
            link.rollback().await?;
            return Ok(Fed::NotOwner);
        }
        let ours: HashSet<String> =
            locked.iter().map(|row| get(row, 0)).collect::<StoreResult<_>>().map_err(Failure::from)?;
        let others: Vec<String> = ids.iter().filter(|id| !ours.contains(*id)).cloned().collect();
        if !others.is_empty() {
            link.rollback().await?;
            return Ok(Fed::Held(others));
        }
        let payload: String =
            payload.first().map_or_else(|| Ok("bytea".into()), |row| get(row, 0)).map_err(Failure::from)?;
        let (names, values) = self.feeding(kinds, &into.columns, &payload);
        let order = o.created_at.as_deref().map_or_else(|| id.clone(), |c| format!("{}, {id}", quoted(c)));
        let insert = format!(
            "INSERT INTO {outbox} ({names}) SELECT {values} FROM {table} WHERE {id} = ANY ($1::text[]::{id_type}[]) AND {GUARD} \
             ORDER BY {order} RETURNING 1"
        );
        let Some((update, to)) = self.marking(kinds, Mark::Sent) else { return Ok(Fed::NotOwner) };
        let values = self.marked(&ids, to, Mark::Sent);
        let statements = [Statement::new(&insert).with(&ids, Type::TEXT_ARRAY), statement(&update, &values)];
        let answers = link.run(&statements).await?;
        if answers.iter().any(|rows| rows.len() != ids.len()) {
            link.rollback().await?;
            return Err(StoreError::new(StoreErrorKind::Conflict, "rows to move have changed meanwhile").into());
        }
        link.run_and_commit(&[]).await?;
        Ok(Fed::Moved)
    }

    async fn page(
        &self,
        slot: &Slot,
        kinds: &Kinds,
        ids: &[String],
        inline: Option<u64>,
    ) -> StoreResult<Vec<(RawRow, bool)>> {
        let o = &self.options;
        let sql = format!(
            "SELECT {} FROM {} WHERE {} = ANY ($1::text[]::{}[]) AND {} = {}",
            self.columns(kinds, inline),
            self.table(),
            quoted(&o.id),
            kinds.of(&o.id),
            quoted(&o.status),
            self.status(kinds, "$2")
        );
        let rows = self.ask(slot, &sql, &[(&ids, Type::TEXT_ARRAY), (&o.pending, Type::TEXT)]).await?;
        rows.iter().map(raw_row).collect()
    }
}

fn statement<'a>(sql: &'a str, values: &[(&'a (dyn ToSql + Sync), Type)]) -> Statement<'a> {
    values.iter().fold(Statement::new(sql), |s, (value, ty)| s.with(*value, ty.clone()))
}

/// The name of a table in quotes; a schema may stand before it.
fn schema_quoted(name: &str) -> String {
    name.split('.').map(quoted).collect::<Vec<_>>().join(".")
}

fn raw_row(row: &tokio_postgres::Row) -> StoreResult<(RawRow, bool)> {
    let bytes = |column| Ok::<_, StoreError>(get::<Option<Raw<'_>>>(row, column)?.map(|raw| raw.0.to_vec()));
    let raw = RawRow {
        seq: 0,
        shard: 0,
        id: bytes(0)?,
        topic: bytes(1)?,
        key: bytes(2)?,
        headers: bytes(3)?,
        headers_bytes: unsigned(get(row, 4)?),
        payload: bytes(5)?.unwrap_or_default().into(),
        payload_bytes: unsigned(get(row, 6)?),
        created_at_us: get(row, 7)?,
    };
    Ok((raw, get(row, 8)?))
}

#[async_trait]
impl Table for PostgresStatusTable {
    async fn inspect(&self) -> StoreResult<Condition> {
        let kinds = self.kinds(true).await?;
        let o = &self.options;
        let table = self.table();
        let sql = "SELECT i.indisunique AND i.indpred IS NULL, i.indpred IS NULL OR i.indisprimary, \
                   (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(i.indkey) WITH ORDINALITY k(number, place) \
                    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number) \
                   FROM pg_index i WHERE i.indrelid = to_regclass($1) AND i.indisvalid";
        let rows = self.ask(&self.other, sql, &[(&table, Type::TEXT)]).await?;
        let mut indexes: Vec<Vec<String>> = Vec::new();
        let mut unique = false;
        for row in &rows {
            let (is_unique, columns): (bool, Option<Vec<String>>) = (get(row, 0)?, get(row, 2)?);
            let columns = columns.unwrap_or_default();
            unique |= is_unique && matches!(&columns[..], [column] if *column == o.id);
            indexes.push(columns);
        }
        if !unique {
            return Err(not_unique(o));
        }
        let mut condition = Condition { warnings: index_warning(o, &indexes).into_iter().collect(), is_large: false };
        let sql = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass($1)";
        let rows = self.ask(&self.other, sql, &[(&table, Type::TEXT)]).await?;
        let count: i64 = rows.first().map_or(Ok(0), |row| get(row, 0))?;
        condition.is_large = unsigned(count) >= crate::status::LARGE;
        // An enumeration refuses words that it has not: better now than at the first mark.
        for word in [&o.pending, &o.sent].into_iter().chain(o.dead.as_ref()) {
            let sql = format!("SELECT {} IS NULL", self.status(&kinds, "$1"));
            self.ask(&self.other, &sql, &[(word, Type::TEXT)]).await.map_err(|e| {
                let what = format!("column {} of table {} has no {word}: {}", o.status, o.table, e.message);
                if e.kind.passes() && e.kind != StoreErrorKind::Other {
                    e
                } else {
                    StoreError::new(StoreErrorKind::WrongSchema, what)
                }
            })?;
        }
        Ok(condition)
    }

    async fn waiting(&self, wanted: &Wanted, limit: usize, rescan: bool) -> StoreResult<Vec<Place>> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let id = quoted(&o.id);
        let id_type = kinds.of(&o.id).to_owned();
        let created = o.created_at.as_deref().map(|c| (quoted(c), kinds.of(c).to_owned()));
        let mut values: Vec<(&(dyn ToSql + Sync), Type)> = vec![(&o.pending, Type::TEXT)];
        let which = match (&created, wanted) {
            (None, Wanted::Timeless) => return Ok(Vec::new()),
            (None, Wanted::From(_)) => String::new(),
            (None, Wanted::Behind(place)) => {
                values.push((&place.id, Type::TEXT));
                format!(" AND {id} > $2::text::{id_type}")
            }
            (Some((c, _)), Wanted::Timeless) => format!(" AND {c} IS NULL"),
            (Some((c, _)), Wanted::From(None) | Wanted::Behind(Place { created: None, .. })) => {
                format!(" AND {c} IS NOT NULL")
            }
            (Some((c, ty)), Wanted::From(Some(from))) => {
                values.push((from, Type::TEXT));
                format!(" AND {c} >= $2::text::{ty}")
            }
            (Some((c, ty)), Wanted::Behind(Place { created: Some(at), id: behind })) => {
                values.push((at, Type::TEXT));
                values.push((behind, Type::TEXT));
                format!(" AND {c} >= $2::text::{ty} AND ({c}, {id}) > ($2::text::{ty}, $3::text::{id_type})")
            }
        };
        let (time, order) = match &created {
            None => ("NULL::text".to_owned(), id.clone()),
            Some((c, _)) => (format!("{c}::text"), format!("{c}, {id}")),
        };
        let sql = format!(
            "SELECT {id}::text, {time} FROM {} WHERE {} = {}{which} ORDER BY {order} LIMIT {limit}",
            self.table(),
            quoted(&o.status),
            self.status(&kinds, "$1")
        );
        let rows = self.ask(self.reader(rescan), &sql, &values).await?;
        rows.iter().map(|row| Ok(Place { id: get(row, 0)?, created: get(row, 1)? })).collect()
    }

    async fn rows(&self, ids: &[String], max_bytes: usize, rescan: bool) -> StoreResult<Fetched> {
        let kinds = self.kinds(false).await?;
        let slot = self.reader(rescan);
        let mut budget = ByteBudget::new(max_bytes);
        let mut fetched = Fetched::default();
        for ids in ids.chunks(PAGE) {
            let page = self.page(slot, &kinds, ids, Some(INLINE)).await?;
            let mut by_id: HashMap<String, (RawRow, bool)> = HashMap::with_capacity(page.len());
            for (raw, whole) in page {
                let id = String::from_utf8_lossy(raw.id.as_deref().unwrap_or_default()).into_owned();
                by_id.insert(id, (raw, whole));
            }
            for id in ids {
                if let Some((mut raw, whole)) = by_id.remove(id) {
                    let bytes = self.limits.fetched(raw.payload_bytes, raw.headers_bytes);
                    if !budget.takes(bytes) {
                        return Ok(fetched);
                    }
                    if !whole && bytes > 0 {
                        let alone = self.page(slot, &kinds, std::slice::from_ref(id), None).await?;
                        let Some((found, _)) = alone.into_iter().next() else { continue };
                        raw = found;
                    }
                    fetched.rows.push(raw.into_row(self.limits));
                }
                fetched.covered += 1;
            }
        }
        Ok(fetched)
    }

    async fn mark(&self, ids: &[String], mark: Mark) -> StoreResult<u64> {
        let kinds = self.kinds(false).await?;
        let Some((sql, to)) = self.marking(&kinds, mark) else { return Ok(0) };
        let values = self.marked(&ids, to, mark);
        Ok(self.write(&sql, &values.each_ref().map(|(value, ty)| (*value, ty.clone()))).await?.len() as u64)
    }

    async fn feed(&self, ids: &[String], into: &Into) -> StoreResult<Fed> {
        let kinds = self.kinds(false).await?;
        let held = self.writer.take(&self.dialer).await?;
        let result = match self.feed_on(&held.link, &kinds, ids, into).await {
            Err(failure) if failure.about_content && !failure.session_over => Ok(Fed::Refused(failure.error.message)),
            other => other,
        };
        held.give_back(result)
    }

    async fn counts(&self) -> StoreResult<bool> {
        let kinds = self.kinds(false).await?;
        Ok(kinds.counts(&self.options.id) || kinds.of(&self.options.id) == "smallint")
    }

    async fn insert(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let mut statements = Vec::with_capacity(rows.len());
        for row in rows {
            let id_is_given = row.id.is_some() || matches!(kinds.of(&o.id), "bigint" | "integer" | "smallint" | "uuid");
            let row = match id_is_given {
                true => row.clone(),
                false => {
                    let made =
                        self.ask(&self.other, "SELECT md5(random()::text || clock_timestamp()::text)::uuid::text", &[]);
                    let id = made.await?.first().map(|row| get::<String>(row, 0)).transpose()?;
                    NewRow { id, ..row.clone() }
                }
            };
            let (columns, values) = columns_of(o, &row)?;
            let (mut names, mut places) = (Vec::new(), Vec::new());
            for (n, column) in columns.iter().enumerate() {
                names.push(quoted(column));
                places.push(match kinds.of(column) {
                    "bytea" => format!("${}::bytea", n + 1),
                    ty => format!("convert_from(${}::bytea, 'UTF8')::{ty}", n + 1),
                });
            }
            if let Some(created) = &o.created_at {
                names.push(quoted(created));
                places.push(kinds.now(created, "100000000000"));
            }
            let sql = format!(
                "INSERT INTO {} ({}) SELECT {} WHERE {GUARD} RETURNING {}::text",
                self.table(),
                names.join(", "),
                places.join(", "),
                quoted(&o.id)
            );
            let values: Vec<Vec<u8>> = columns
                .iter()
                .zip(values)
                .map(|(column, value)| match kinds.of(column) {
                    "bytea" => value,
                    _ => clean(&String::from_utf8_lossy(&value)).into_bytes(),
                })
                .collect();
            statements.push((sql, values));
        }
        let prepared: Vec<Statement<'_>> = statements
            .iter()
            .map(|(sql, values)| values.iter().fold(Statement::new(sql), |s, value| s.with(value, Type::BYTEA)))
            .collect();
        let held = self.writer.take(&self.dialer).await?;
        let result = held.link.write(&self.dialer.begin_write, &prepared).await;
        let answers = held.give_back(result)?;
        answers
            .iter()
            .map(|rows| {
                rows.first().map_or_else(
                    || Err(StoreError::new(StoreErrorKind::Other, "a row was not inserted")),
                    |row| get(row, 0),
                )
            })
            .collect()
    }

    async fn make_archive(&self, archive: &Archive) -> StoreResult<()> {
        let sql = format!(
            "CREATE TABLE IF NOT EXISTS {} (LIKE {} INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING INDEXES)",
            schema_quoted(&archive.table),
            self.table()
        );
        self.write(&sql, &[]).await.map(drop)
    }

    async fn archive(&self, archive: &Archive, limit: usize) -> StoreResult<u64> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let Some(before) = self.before(&self.table(), archive.after, &kinds).await? else { return Ok(0) };
        let (id, table) = (quoted(&o.id), self.table());
        let order = o.created_at.as_deref().map_or_else(|| id.clone(), |c| format!("{}, {id}", quoted(c)));
        let mut names: Vec<String> = kinds.columns.keys().map(|name| quoted(name)).collect();
        names.sort_unstable();
        let names = names.join(", ");
        let sql = format!(
            "WITH old AS (SELECT {id} FROM {table} WHERE {} = {} AND {before} AND {GUARD} ORDER BY {order} LIMIT {limit} FOR UPDATE SKIP LOCKED), \
             gone AS (DELETE FROM {table} t USING old WHERE t.{id} = old.{id} RETURNING t.*), \
             kept AS (INSERT INTO {} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM gone RETURNING 1) \
             SELECT count(*) FROM kept",
            quoted(&o.status),
            self.status(&kinds, "$1"),
            schema_quoted(&archive.table)
        );
        let rows = self.write_by(&self.archiver, &sql, &[(&o.sent, Type::TEXT)]).await?;
        rows.first().map_or(Ok(0), |row| get::<i64>(row, 0)).map(unsigned)
    }

    async fn purge(&self, archive: &Archive, after: Duration, limit: usize) -> StoreResult<u64> {
        let kinds = self.kinds(false).await?;
        let a = schema_quoted(&archive.table);
        let Some(before) = self.before(&a, after, &kinds).await? else { return Ok(0) };
        let sql = format!(
            "WITH gone AS (DELETE FROM {a} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {a} WHERE {before} LIMIT {limit})) AND {GUARD} RETURNING 1) \
             SELECT count(*) FROM gone"
        );
        let rows = self.write_by(&self.archiver, &sql, &[]).await?;
        rows.first().map_or(Ok(0), |row| get::<i64>(row, 0)).map(unsigned)
    }

    async fn find(&self, id: &str) -> StoreResult<Option<Standing>> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let sent_at = o.sent_at.as_deref().map_or_else(|| "NULL::bigint".to_owned(), |c| kinds.micros(c));
        let id = clean(id);
        let archive = o.archive.as_ref().map(|archive| schema_quoted(&archive.table));
        let mut rows = Vec::new();
        for table in std::iter::once(self.table()).chain(archive) {
            let sql = format!(
                "SELECT {}, {}::text, {sent_at} FROM {table} WHERE {} = $1::text::{} LIMIT 1",
                self.columns(&kinds, None),
                quoted(&o.status),
                quoted(&o.id),
                kinds.of(&o.id)
            );
            // An id that is none of this type is no error: there is no such row.
            let is_no_id =
                |e: &StoreError| e.message.contains("invalid input syntax") || e.message.contains("out of range");
            rows = match self.ask(&self.other, &sql, &[(&id, Type::TEXT)]).await {
                Err(e) if e.kind == StoreErrorKind::Other && is_no_id(&e) => Vec::new(),
                found => found?,
            };
            if !rows.is_empty() {
                break;
            }
        }
        let Some(row) = rows.first() else { return Ok(None) };
        let (raw, _) = raw_row(row)?;
        let status: Option<String> = get(row, 9)?;
        let sent_at_us = get(row, 10)?;
        Ok(Some(Standing { row: raw.into_row(self.limits), status: status.unwrap_or_default(), sent_at_us }))
    }

    async fn count(&self) -> StoreResult<(u64, Option<u64>)> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let (table, status) = (self.table(), quoted(&o.status));
        let pending = self.status(&kinds, "$1");
        let sql =
            format!("SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {status} = {pending} LIMIT {COUNT_MAX}) w");
        let rows = self.ask(&self.other, &sql, &[(&o.pending, Type::TEXT)]).await?;
        let waiting = unsigned(rows.first().map_or(Ok(0), |row| get(row, 0))?);
        let Some(created) = o.created_at.as_deref().filter(|_| waiting > 0) else { return Ok((waiting, None)) };
        let sql = format!(
            "SELECT {NOW_US} - {} FROM {table} WHERE {status} = {pending} ORDER BY {} LIMIT 1",
            kinds.micros(created),
            quoted(created)
        );
        let rows = self.ask(&self.other, &sql, &[(&o.pending, Type::TEXT)]).await?;
        let age: Option<i64> = rows.first().map_or(Ok(None), |row| get(row, 0))?;
        Ok((waiting, age.map(|us| unsigned(us) / 1_000)))
    }

    async fn close(&self) {
        self.dialer.close();
        for slot in [&self.poll, &self.rescan, &self.writer, &self.other, &self.archiver] {
            slot.clear().await;
        }
    }
}
