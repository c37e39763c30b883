//! A table of the application's own with a status column.

use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::message::Row;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, params_from_iter};

use super::names::{NOW_US, micros, path_of, quoted};
use super::refusal::refusal;
use super::session::{Access, Session};
use super::unsigned;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{Archive, StatusTable, StoreOptions};
use crate::row::{ByteBudget, RawRow, RowLimits};
use crate::status::{Condition, Fed, Fetched, Into, Mark, Place, Standing, Table, Wanted};
use crate::store::{NewRow, StoreResult};

/// Rows that wait are counted up to here.
const COUNT_MAX: u64 = 100_000;

pub(crate) struct SqliteStatusTable {
    sql: std::sync::Arc<Sql>,
    poll: Session,
    rescan: Session,
    writer: Session,
}

impl SqliteStatusTable {
    pub(crate) fn open(options: &StoreOptions, table: &StatusTable) -> StoreResult<Self> {
        let path = path_of(options)?;
        let session = |access, name| Session::new(&path, access, options, name);
        Ok(Self {
            sql: std::sync::Arc::new(Sql::new(table, options.max_message_bytes)),
            poll: session(Access::Read, "outhaul-poll"),
            rescan: session(Access::Read, "outhaul-rescan"),
            writer: session(Access::Write, "outhaul-mark"),
        })
    }

    const fn reader(&self, rescan: bool) -> &Session {
        if rescan { &self.rescan } else { &self.poll }
    }
}

/// Names and statements.
struct Sql {
    options: StatusTable,
    limits: RowLimits,
    table: String,
    id: String,
    status: String,
    created: Option<String>,
}

impl Sql {
    fn new(options: &StatusTable, max_message_bytes: u64) -> Self {
        Self {
            limits: RowLimits::new(max_message_bytes),
            table: quoted(&options.table),
            id: quoted(&options.id),
            status: quoted(&options.status),
            created: options.created_at.as_deref().map(quoted),
            options: options.clone(),
        }
    }

    /// The rows that wait, in order. A time is a literal as SQLite itself writes it (`quote`), so that what is compared
    /// has the type that the column holds.
    fn waiting(&self, wanted: &Wanted, limit: usize) -> Option<(String, Vec<Value>)> {
        let Self { table, id, status, .. } = self;
        let mut values = vec![text(&self.options.pending)];
        let (place, order, time) = match &self.created {
            None => {
                let which = match wanted {
                    Wanted::From(_) => String::new(),
                    Wanted::Behind(place) => {
                        values.push(text(&place.id));
                        format!(" AND {id} > ?2")
                    }
                    Wanted::Timeless => return None,
                };
                (which, id.clone(), "NULL".to_owned())
            }
            Some(created) => {
                let which = match wanted {
                    Wanted::Timeless => format!(" AND {created} IS NULL"),
                    Wanted::From(None) => format!(" AND {created} IS NOT NULL"),
                    Wanted::From(Some(from)) => format!(" AND {created} >= {}", literal(from)),
                    Wanted::Behind(Place { created: None, .. }) => format!(" AND {created} IS NOT NULL"),
                    Wanted::Behind(Place { created: Some(at), id: behind }) => {
                        values.push(text(behind));
                        let at = literal(at);
                        format!(" AND {created} >= {at} AND ({created} > {at} OR {id} > ?2)")
                    }
                };
                (which, format!("{created}, {id}"), format!("quote({created})"))
            }
        };
        let sql = format!(
            "SELECT {id}, CASE WHEN {time} = 'NULL' THEN NULL ELSE {time} END FROM {table} WHERE {status} = ?1{place} \
             ORDER BY {order} LIMIT {limit}"
        );
        Some((sql, values))
    }

    fn columns(&self) -> String {
        let or_null = |column: &Option<String>| column.as_deref().map_or_else(|| "NULL".to_owned(), quoted);
        let (key, headers) = (or_null(&self.options.key), or_null(&self.options.headers));
        let (topic, payload) = (quoted(&self.options.topic), quoted(&self.options.payload));
        let created =
            self.created.as_deref().map_or_else(|| NOW_US.to_owned(), |c| format!("coalesce({}, {NOW_US})", micros(c)));
        format!(
            "{}, {topic}, {key}, {headers}, coalesce(octet_length({headers}), 0), {payload}, \
             coalesce(octet_length({payload}), 0), {created}",
            self.id
        )
    }

    fn row(&self, row: &rusqlite::Row<'_>) -> rusqlite::Result<RawRow> {
        let payload_bytes = unsigned(row.get(6)?);
        let headers_bytes = unsigned(row.get(4)?);
        Ok(RawRow {
            seq: 0,
            shard: 0,
            id: bytes_of(row.get_ref(0)?),
            topic: bytes_of(row.get_ref(1)?),
            key: bytes_of(row.get_ref(2)?),
            headers: if headers_bytes <= self.limits.headers_bytes { bytes_of(row.get_ref(3)?) } else { None },
            headers_bytes,
            payload: match payload_bytes <= self.limits.message_bytes {
                true => bytes_of(row.get_ref(5)?).unwrap_or_default().into(),
                false => bytes::Bytes::new(),
            },
            payload_bytes,
            created_at_us: row.get(7)?,
        })
    }
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

/// A literal that SQLite has written itself; whatever else it might be becomes a text.
fn literal(quoted: &str) -> String {
    let number = quoted.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'-' | b'+' | b'.' | b'e' | b'E'));
    let inside = quoted.strip_prefix('\'').and_then(|q| q.strip_suffix('\''));
    match inside {
        _ if number && !quoted.is_empty() => quoted.to_owned(),
        Some(inside) => format!("'{}'", inside.replace("''", "'").replace('\'', "''")),
        None => format!("'{}'", quoted.replace('\'', "''")),
    }
}

fn bytes_of(value: ValueRef<'_>) -> Option<Vec<u8>> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(n) => Some(n.to_string().into()),
        ValueRef::Real(n) => Some(n.to_string().into()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes.to_vec()),
    }
}

/// The columns of a table, as a list.
fn columns_in(connection: &Connection, table: &str) -> StoreResult<String> {
    let mut statement = connection.prepare_cached("SELECT name FROM pragma_table_info(?1)").map_err(refusal)?;
    let names: Vec<String> = statement
        .query_map([table], |row| row.get::<_, String>(0).map(|name| quoted(&name)))
        .and_then(Iterator::collect)
        .map_err(refusal)?;
    Ok(names.join(", "))
}

/// A time so long ago, as a value like those of the column.
fn before(connection: &Connection, table: &str, column: &str, after: Duration) -> StoreResult<String> {
    let query = format!("SELECT typeof({column}) FROM {table} WHERE {column} IS NOT NULL LIMIT 1");
    let kind: Option<String> = connection.query_row(&query, [], |row| row.get(0)).optional().map_err(refusal)?;
    let seconds = after.as_secs();
    Ok(match kind.as_deref() {
        Some("integer") => format!("{NOW_US} - {}", after.as_micros()),
        _ => format!("strftime('%Y-%m-%d %H:%M:%f', 'now', '-{seconds} seconds')"),
    })
}

fn shown(value: ValueRef<'_>) -> String {
    String::from_utf8_lossy(&bytes_of(value).unwrap_or_default()).into_owned()
}

fn inspect(connection: &Connection, sql: &Sql) -> StoreResult<Condition> {
    let o = &sql.options;
    let missing = |what: String| StoreError::new(StoreErrorKind::Configuration, what);
    let mut statement = connection.prepare("SELECT name, pk FROM pragma_table_info(?1)").map_err(refusal)?;
    let columns: Vec<(String, i64)> = statement
        .query_map([&o.table], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .map_err(refusal)?;
    if columns.is_empty() {
        return Err(missing(format!("there is no table {}", o.table)));
    }
    let wanted = [&o.id, &o.topic, &o.payload, &o.status];
    let optional = [&o.key, &o.headers, &o.created_at, &o.sent_at];
    for name in wanted.into_iter().chain(optional.into_iter().flatten()) {
        if !columns.iter().any(|(column, _)| column.eq_ignore_ascii_case(name)) {
            return Err(missing(format!("table {} has no column {name}", o.table)));
        }
    }
    let mut statement = connection
        .prepare(
            "SELECT l.\"unique\", (SELECT group_concat(i.name) FROM (SELECT name FROM pragma_index_info(l.name) ORDER BY seqno) i) \
             FROM pragma_index_list(?1) l WHERE NOT l.partial",
        )
        .map_err(refusal)?;
    let indexes: Vec<(bool, String)> = statement
        .query_map([&o.table], |row| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default())))
        .and_then(Iterator::collect)
        .map_err(refusal)?;
    let key: Vec<&String> = columns.iter().filter(|(_, pk)| *pk > 0).map(|(name, _)| name).collect();
    let is_key = matches!(key[..], [name] if name.eq_ignore_ascii_case(&o.id));
    if !is_key && !indexes.iter().any(|(unique, columns)| *unique && columns.eq_ignore_ascii_case(&o.id)) {
        return Err(crate::status::not_unique(o));
    }
    let first: Vec<Vec<String>> =
        indexes.into_iter().map(|(_, columns)| columns.split(',').map(str::to_owned).collect()).collect();
    // An estimate that costs nothing: rows are rarely deleted.
    let rows: Option<i64> = connection
        .query_row(&format!("SELECT max(rowid) FROM {}", sql.table), [], |row| row.get(0))
        .optional()
        .ok()
        .flatten();
    let is_large = rows.is_some_and(|rows| unsigned(rows) >= crate::status::LARGE);
    Ok(Condition { warnings: crate::status::index_warning(o, &first).into_iter().collect(), is_large })
}

fn rows(connection: &Connection, sql: &Sql, ids: &[String], max_bytes: usize) -> StoreResult<Fetched> {
    let query = format!("SELECT {} FROM {} WHERE {} = ?1 AND {} = ?2", sql.columns(), sql.table, sql.id, sql.status);
    let mut statement = connection.prepare_cached(&query).map_err(refusal)?;
    let mut budget = ByteBudget::new(max_bytes);
    let mut fetched = Fetched::default();
    for id in ids {
        let found = statement.query_row([id, &sql.options.pending], |row| sql.row(row)).optional().map_err(refusal)?;
        if let Some(raw) = found {
            if !budget.takes(sql.limits.fetched(raw.payload_bytes, raw.headers_bytes)) {
                break;
            }
            fetched.rows.push(raw.into_row(sql.limits));
        }
        fetched.covered += 1;
    }
    Ok(fetched)
}

fn mark_rows(connection: &Connection, sql: &Sql, ids: &[String], mark: Mark) -> StoreResult<u64> {
    let (query, to) = match mark {
        Mark::Sent => {
            let sent_at = sql.options.sent_at.as_deref().map_or_else(String::new, |column| {
                // As the table writes its other times.
                let like = sql.created.as_deref().unwrap_or("NULL");
                let text = "strftime('%Y-%m-%d %H:%M:%f', 'now')";
                format!(", {} = CASE typeof({like}) WHEN 'integer' THEN {NOW_US} ELSE {text} END", quoted(column))
            });
            (format!("UPDATE {} SET {} = ?1{sent_at}", sql.table, sql.status), &sql.options.sent)
        }
        Mark::Dead => match &sql.options.dead {
            Some(dead) => (format!("UPDATE {} SET {} = ?1", sql.table, sql.status), dead),
            None => return Ok(0),
        },
    };
    let dead = sql.options.dead.as_ref().filter(|_| mark == Mark::Sent);
    let query = format!("{query} WHERE {} = ?2 AND {} IN (?3, ?4)", sql.id, sql.status);
    let mut statement = connection.prepare_cached(&query).map_err(refusal)?;
    let mut changed = 0;
    for id in ids {
        let pending = &sql.options.pending;
        changed += statement.execute([to, id, pending, dead.unwrap_or(pending)]).map_err(refusal)?;
    }
    Ok(changed as u64)
}

/// Nobody else writes meanwhile, so no row is held.
fn feed(tx: &Connection, sql: &Sql, ids: &[String], into: &Into) -> StoreResult<Fed> {
    let lease =
        format!("SELECT 1 FROM {} WHERE shard = 0 AND owner = ?1 AND expires_at > {NOW_US}", quoted(&into.lease));
    if tx.query_row(&lease, [&into.owner], |_| Ok(())).optional().map_err(refusal)?.is_none() {
        return Ok(Fed::NotOwner);
    }
    let o = &sql.options;
    let waits = format!("SELECT 1 FROM {} WHERE {} = ?1 AND {} = ?2", sql.table, sql.id, sql.status);
    let mut waits = tx.prepare_cached(&waits).map_err(refusal)?;
    let mut others = Vec::new();
    for id in ids {
        if !waits.exists([id, &o.pending]).map_err(refusal)? {
            others.push(id.clone());
        }
    }
    if !others.is_empty() {
        return Ok(Fed::Held(others));
    }
    let as_text = |column: &str| format!("CAST({} AS TEXT)", quoted(column));
    let created = sql.created.as_deref().map(|c| format!("coalesce({}, {NOW_US})", micros(c)));
    let pairs = [
        (Some(&into.columns.id), Some(as_text(&o.id))),
        (Some(&into.columns.topic), Some(as_text(&o.topic))),
        (into.columns.key.as_ref(), o.key.as_deref().map(as_text)),
        (into.columns.headers.as_ref(), o.headers.as_deref().map(as_text)),
        (Some(&into.columns.payload), Some(format!("coalesce({}, '')", quoted(&o.payload)))),
        (into.columns.created_at.as_ref(), created),
    ];
    let (names, values): (Vec<String>, Vec<String>) =
        pairs.into_iter().filter_map(|(name, value)| Some((quoted(name?), value?))).unzip();
    let insert = format!(
        "INSERT INTO {} ({}) SELECT {} FROM {} WHERE {} = ?1",
        quoted(&into.outbox),
        names.join(", "),
        values.join(", "),
        sql.table,
        sql.id
    );
    let mut insert = tx.prepare_cached(&insert).map_err(refusal)?;
    tx.execute_batch("SAVEPOINT feed").map_err(refusal)?;
    for id in ids {
        match insert.execute([id]) {
            Ok(_) => {}
            Err(e) if e.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
                tx.execute_batch("ROLLBACK TO feed; RELEASE feed").map_err(refusal)?;
                return Ok(Fed::Refused(e.to_string()));
            }
            Err(e) => return Err(refusal(e)),
        }
    }
    tx.execute_batch("RELEASE feed").map_err(refusal)?;
    match mark_rows(tx, sql, ids, Mark::Sent)? {
        n if n == ids.len() as u64 => Ok(Fed::Moved),
        _ => Err(StoreError::new(StoreErrorKind::Conflict, "rows to move have changed meanwhile")),
    }
}

#[async_trait]
impl Table for SqliteStatusTable {
    async fn inspect(&self) -> StoreResult<Condition> {
        let sql = self.sql.clone();
        self.poll.read(move |tx| inspect(tx, &sql)).await
    }

    async fn waiting(&self, wanted: &Wanted, limit: usize, rescan: bool) -> StoreResult<Vec<Place>> {
        let Some((query, values)) = self.sql.waiting(wanted, limit) else { return Ok(Vec::new()) };
        self.reader(rescan)
            .read(move |tx| {
                let mut statement = tx.prepare_cached(&query).map_err(refusal)?;
                let place = |row: &rusqlite::Row<'_>| Ok(Place { id: shown(row.get_ref(0)?), created: row.get(1)? });
                statement.query_map(params_from_iter(values), place).and_then(Iterator::collect).map_err(refusal)
            })
            .await
    }

    async fn rows(&self, ids: &[String], max_bytes: usize, rescan: bool) -> StoreResult<Fetched> {
        let (sql, ids) = (self.sql.clone(), ids.to_vec());
        self.reader(rescan).read(move |tx| rows(tx, &sql, &ids, max_bytes)).await
    }

    async fn mark(&self, ids: &[String], mark: Mark) -> StoreResult<u64> {
        let (sql, ids) = (self.sql.clone(), ids.to_vec());
        self.writer.write(move |tx| mark_rows(tx, &sql, &ids, mark)).await
    }

    async fn feed(&self, ids: &[String], into: &Into) -> StoreResult<Fed> {
        let (sql, ids, into) = (self.sql.clone(), ids.to_vec(), into.clone());
        self.writer.write(move |tx| feed(tx, &sql, &ids, &into)).await
    }

    async fn counts(&self) -> StoreResult<bool> {
        let sql = self.sql.clone();
        self.poll
            .read(move |tx| {
                let query = "SELECT upper(type) LIKE '%INT%' FROM pragma_table_info(?1) WHERE lower(name) = lower(?2)";
                let found = tx.query_row(query, [&sql.options.table, &sql.options.id], |row| row.get(0)).optional();
                Ok(found.map_err(refusal)?.unwrap_or(false))
            })
            .await
    }

    async fn insert(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        let (sql, rows) = (self.sql.clone(), rows.to_vec());
        self.writer
            .write(move |tx| {
                let o = &sql.options;
                let mut ids = Vec::with_capacity(rows.len());
                for row in &rows {
                    let (columns, mut values) = crate::status::columns_of(o, row)?;
                    let mut names: Vec<String> = columns.iter().map(|c| quoted(c)).collect();
                    let mut marks = vec!["?"; names.len()];
                    if let Some(created) = &o.created_at {
                        names.push(quoted(created));
                        marks.push("strftime('%Y-%m-%d %H:%M:%f', 'now')");
                    }
                    let query = format!(
                        "INSERT INTO {} ({}) VALUES ({}) RETURNING {}",
                        sql.table,
                        names.join(", "),
                        marks.join(", "),
                        sql.id
                    );
                    let values: Vec<Value> = values
                        .drain(..)
                        .map(|v| String::from_utf8(v).map_or_else(|e| Value::Blob(e.into_bytes()), Value::Text))
                        .collect();
                    let mut statement = tx.prepare_cached(&query).map_err(refusal)?;
                    let id = statement.query_row(params_from_iter(values), |row| Ok(shown(row.get_ref(0)?)));
                    ids.push(id.map_err(refusal)?);
                }
                Ok(ids)
            })
            .await
    }

    async fn make_archive(&self, archive: &Archive) -> StoreResult<()> {
        let (sql, name) = (self.sql.clone(), archive.table.clone());
        self.writer
            .write(move |tx| {
                let (a, o) = (quoted(&name), &sql.options);
                let mut statements = vec![
                    format!("CREATE TABLE IF NOT EXISTS {a} AS SELECT * FROM {} WHERE 0", sql.table),
                    format!(
                        "CREATE UNIQUE INDEX IF NOT EXISTS {} ON {a} ({})",
                        quoted(&format!("{name}_{}", o.id)),
                        sql.id
                    ),
                ];
                statements.extend(sql.created.as_ref().map(|created| {
                    let index = quoted(&format!("{name}_created"));
                    format!("CREATE INDEX IF NOT EXISTS {index} ON {a} ({created})")
                }));
                statements.iter().try_for_each(|s| tx.execute_batch(s).map_err(refusal))
            })
            .await
    }

    async fn archive(&self, archive: &Archive, limit: usize) -> StoreResult<u64> {
        let (sql, archive) = (self.sql.clone(), archive.clone());
        self.writer
            .write(move |tx| {
                let Some(created) = &sql.created else { return Ok(0) };
                let query = format!(
                    "SELECT {} FROM {} WHERE {} = ?1 AND {created} < {} ORDER BY {created}, {} LIMIT {limit}",
                    sql.id,
                    sql.table,
                    sql.status,
                    before(tx, &sql.table, created, archive.after)?,
                    sql.id
                );
                let mut statement = tx.prepare_cached(&query).map_err(refusal)?;
                let ids: Vec<Value> = statement
                    .query_map([&sql.options.sent], |row| row.get(0))
                    .and_then(Iterator::collect)
                    .map_err(refusal)?;
                let columns = columns_in(tx, &sql.options.table)?;
                let copy = format!(
                    "INSERT INTO {} ({columns}) SELECT {columns} FROM {} WHERE {} = ?1",
                    quoted(&archive.table),
                    sql.table,
                    sql.id
                );
                let mut copy = tx.prepare_cached(&copy).map_err(refusal)?;
                let delete = format!("DELETE FROM {} WHERE {} = ?1", sql.table, sql.id);
                let mut delete = tx.prepare_cached(&delete).map_err(refusal)?;
                for id in &ids {
                    copy.execute([id]).map_err(refusal)?;
                    delete.execute([id]).map_err(refusal)?;
                }
                Ok(ids.len() as u64)
            })
            .await
    }

    async fn purge(&self, archive: &Archive, after: Duration, limit: usize) -> StoreResult<u64> {
        let (sql, name) = (self.sql.clone(), archive.table.clone());
        self.writer
            .write(move |tx| {
                let Some(created) = &sql.created else { return Ok(0) };
                let a = quoted(&name);
                let query = format!(
                    "DELETE FROM {a} WHERE rowid IN (SELECT rowid FROM {a} WHERE {created} < {} ORDER BY {created} LIMIT {limit})",
                    before(tx, &a, created, after)?
                );
                tx.execute(&query, []).map(|n| n as u64).map_err(refusal)
            })
            .await
    }

    async fn find(&self, id: &str) -> StoreResult<Option<Standing>> {
        let (sql, id) = (self.sql.clone(), id.to_owned());
        self.poll
            .read(move |tx| {
                let sent_at = sql.options.sent_at.as_deref().map_or_else(|| "NULL".to_owned(), |c| micros(&quoted(c)));
                let look = |table: &str| {
                    let query = format!(
                        "SELECT {}, {}, {sent_at} FROM {table} WHERE {} = ?1",
                        sql.columns(),
                        sql.status,
                        sql.id
                    );
                    let mut statement = tx.prepare_cached(&query).map_err(refusal)?;
                    let found = statement.query_row([&id], |row| {
                        let (raw, status, sent_at_us) = (sql.row(row)?, shown(row.get_ref(8)?), row.get(9)?);
                        Ok((raw, status, sent_at_us))
                    });
                    found.optional().map_err(refusal)
                };
                let found = match (look(&sql.table)?, &sql.options.archive) {
                    (None, Some(archive)) => look(&quoted(&archive.table))?,
                    (found, _) => found,
                };
                Ok(found.map(|(raw, status, sent_at_us): (RawRow, String, Option<i64>)| {
                    let row: Row = raw.into_row(sql.limits);
                    Standing { row, status, sent_at_us }
                }))
            })
            .await
    }

    async fn count(&self) -> StoreResult<(u64, Option<u64>)> {
        let sql = self.sql.clone();
        self.poll
            .read(move |tx| {
                let Sql { table, status, .. } = &*sql;
                let query =
                    format!("SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {status} = ?1 LIMIT {COUNT_MAX})");
                let mut statement = tx.prepare_cached(&query).map_err(refusal)?;
                let waiting = unsigned(statement.query_row([&sql.options.pending], |row| row.get(0)).map_err(refusal)?);
                let Some(created) = sql.created.as_deref().filter(|_| waiting > 0) else { return Ok((waiting, None)) };
                let query = format!(
                    "SELECT {NOW_US} - {} FROM {table} WHERE {status} = ?1 ORDER BY {created} LIMIT 1",
                    micros(created)
                );
                let mut statement = tx.prepare_cached(&query).map_err(refusal)?;
                let age: Option<i64> = statement
                    .query_row([&sql.options.pending], |row| row.get(0))
                    .optional()
                    .map_err(refusal)?
                    .flatten();
                Ok((waiting, age.map(|us| unsigned(us) / 1_000)))
            })
            .await
    }

    async fn close(&self) {
        for session in [&self.poll, &self.rescan, &self.writer] {
            session.close().await;
        }
    }
}
