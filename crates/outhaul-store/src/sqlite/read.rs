//! Reading the outbox, and writing into it what `enqueue` is given.

use outhaul_core::message::{Row, Seq};
use outhaul_core::runs::Run;
use outhaul_core::schedule::{Scheduled, Upcoming};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::names::{NOW_US, Names};
use super::refusal::refusal;
use super::{SHARD, signed, unsigned};
use crate::row::{ByteBudget, RawRow, RowLimits};
use crate::store::{NewRow, ReadRequest, ReadRows, StoreResult};

/// Payloads and headers up to this come with their row; larger ones by themselves, once it is known that they fit. Bytes.
const INLINE_BYTES: u64 = 64 << 10;
/// Rows of one id that `find` looks at.
const SAME_ID: i64 = 100;

/// Rows of a request. The transaction is the snapshot that they all come from.
pub(super) fn rows(tx: &Transaction<'_>, names: &Names, request: &ReadRequest) -> StoreResult<ReadRows> {
    let limits = RowLimits::new(names.options.max_message_bytes);
    let inline = INLINE_BYTES.min(limits.message_bytes);
    let sql = format!(
        "SELECT {} FROM {} WHERE {seq} BETWEEN ?1 AND ?2{ordinary} ORDER BY {seq}",
        columns(names, INLINE_BYTES),
        names.outbox,
        seq = names.seq,
        ordinary = names.scheduled().map(|scheduled| format!(" AND NOT {scheduled}")).unwrap_or_default(),
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let mut answer = ReadRows::default();
    let mut budget = ByteBudget::new(request.max_bytes);
    for Run { first, last } in &request.ranges {
        let range = params![signed(*first), signed(*last), signed(inline)];
        let mut found = statement.query(range).map_err(refusal)?;
        while let Some(row) = found.next().map_err(refusal)? {
            let mut raw = raw_row(row).map_err(refusal)?;
            let fetched = limits.fetched(raw.payload_bytes, raw.headers_bytes);
            if answer.rows.len() >= request.limit as usize || !budget.takes(fetched) {
                answer.cut = true;
                return Ok(answer);
            }
            if raw.payload_bytes > inline && raw.payload_bytes <= limits.message_bytes {
                raw.payload = large(tx, names, &names.payload, raw.seq)?.unwrap_or_default().into();
            }
            if let Some(headers) = &names.headers
                && raw.headers_bytes > INLINE_BYTES
                && raw.headers_bytes <= limits.headers_bytes
            {
                raw.headers = large(tx, names, headers, raw.seq)?;
            }
            answer.rows.push(raw.into_row(limits));
        }
    }
    Ok(answer)
}

/// The columns of a row. `?3` is the size up to which a payload comes along, `headers_max` that of headers, bytes.
fn columns(names: &Names, headers_max: u64) -> String {
    let or_null = |column: &Option<String>| column.clone().unwrap_or_else(|| "NULL".to_owned());
    let Names { seq, id, topic, payload, .. } = names;
    let (key, headers) = (or_null(&names.key), or_null(&names.headers));
    let created_at = names.created_at_us();
    format!(
        "{seq}, {id}, {topic}, {key}, CASE WHEN octet_length({headers}) <= {headers_max} THEN {headers} END, \
         coalesce(octet_length({payload}), 0), CASE WHEN octet_length({payload}) <= ?3 THEN {payload} END, {created_at}, \
         coalesce(octet_length({headers}), 0)"
    )
}

fn raw_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<RawRow> {
    Ok(RawRow {
        seq: unsigned(row.get(0)?),
        shard: 0,
        id: bytes_of(row.get_ref(1)?),
        topic: bytes_of(row.get_ref(2)?),
        key: bytes_of(row.get_ref(3)?),
        headers: bytes_of(row.get_ref(4)?),
        headers_bytes: unsigned(row.get(8)?),
        payload_bytes: unsigned(row.get(5)?),
        payload: bytes_of(row.get_ref(6)?).unwrap_or_default().into(),
        created_at_us: row.get(7)?,
    })
}

/// The bytes of a value of any type: SQLite's columns hold what they were given.
fn bytes_of(value: ValueRef<'_>) -> Option<Vec<u8>> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(n) => Some(n.to_string().into()),
        ValueRef::Real(n) => Some(n.to_string().into()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes.to_vec()),
    }
}

/// A column of one row by itself.
fn large(connection: &Connection, names: &Names, column: &str, seq: u64) -> StoreResult<Option<Vec<u8>>> {
    let sql = format!("SELECT {column} FROM {} WHERE {} = ?", names.outbox, names.seq);
    let mut statement = connection.prepare_cached(&sql).map_err(refusal)?;
    statement.query_row([signed(seq)], |row| Ok(bytes_of(row.get_ref(0)?))).map_err(refusal)
}

/// Rows with an id, due or not.
pub(super) fn with_id(tx: &Transaction<'_>, names: &Names, id: &str) -> StoreResult<Vec<Row>> {
    let limits = RowLimits::new(names.options.max_message_bytes);
    // Compared as bytes, so that an id which was stored as a BLOB is found too.
    let sql = format!(
        "SELECT {} FROM {} WHERE CAST({} AS BLOB) = ?1 ORDER BY {} LIMIT ?2",
        columns(names, limits.headers_bytes),
        names.outbox,
        names.id,
        names.seq
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let found =
        statement.query_map(params![id.as_bytes(), SAME_ID, signed(limits.message_bytes)], raw_row).map_err(refusal)?;
    found.map(|raw| Ok(raw.map_err(refusal)?.into_row(limits))).collect()
}

/// When a row is due, if it is scheduled, microseconds since 1970-01-01 UTC.
pub(super) fn due_at_us(tx: &Transaction<'_>, names: &Names, seq: Seq) -> StoreResult<Option<i64>> {
    let (Some(at), Some(scheduled)) = (names.available_at_us(), names.scheduled()) else { return Ok(None) };
    let sql = format!("SELECT CASE WHEN {scheduled} THEN {at} END FROM {} WHERE {} = ?", names.outbox, names.seq);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    statement.query_row([signed(seq.0)], |row| row.get(0)).optional().map(Option::flatten).map_err(refusal)
}

/// The scheduled rows that are due soonest.
pub(super) fn upcoming(tx: &Transaction<'_>, names: &Names, ranges: &[Run], limit: usize) -> StoreResult<Upcoming> {
    let (Some(at), Some(scheduled)) = (names.available_at_us(), names.scheduled()) else {
        return Ok(Upcoming::default());
    };
    let within: Vec<String> =
        ranges.iter().map(|r| format!("{} BETWEEN {} AND {}", names.seq, signed(r.first), signed(r.last))).collect();
    let sql = format!(
        "SELECT {seq}, {at} AS due, {NOW_US} FROM {} WHERE ({}) AND {scheduled} ORDER BY due, {seq} LIMIT {limit}",
        names.outbox,
        within.join(" OR "),
        seq = names.seq
    );
    let mut statement = tx.prepare(&sql).map_err(refusal)?;
    let mut found = statement.query([]).map_err(refusal)?;
    let mut upcoming = Upcoming::default();
    while let Some(row) = found.next().map_err(refusal)? {
        let scheduled = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(i64, i64, i64)> {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        };
        let (seq, due_at_us, now_us) = scheduled(row).map_err(refusal)?;
        upcoming.now_us = now_us;
        upcoming.rows.push(Scheduled { shard: SHARD, seq: Seq(unsigned(seq)), due_at_us });
    }
    upcoming.cut = upcoming.rows.len() >= limit;
    Ok(upcoming)
}

/// Makes ordinary rows of scheduled ones that are due.
pub(super) fn make_ordinary(tx: &Transaction<'_>, names: &Names, ranges: &[Run]) -> StoreResult<()> {
    let (Some(column), Some(at), Some(scheduled)) = (&names.available_at, names.available_at_us(), names.scheduled())
    else {
        return Ok(());
    };
    let sql = format!(
        "UPDATE {} SET {column} = {} WHERE {} BETWEEN ? AND ? AND {scheduled} AND ({at}) <= {NOW_US}",
        names.outbox,
        names.created_at.as_deref().unwrap_or("NULL"),
        names.seq
    );
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    for Run { first, last } in ranges {
        statement.execute([signed(*first), signed(*last)]).map_err(refusal)?;
    }
    Ok(())
}

/// The largest `seq` that was ever given, 0 if none was.
pub(super) fn resolved(tx: &Transaction<'_>, names: &Names) -> StoreResult<Seq> {
    let counted: bool = tx
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence')")
        .and_then(|mut s| s.query_row([], |row| row.get(0)))
        .map_err(refusal)?;
    if !counted {
        return Ok(Seq(0));
    }
    let mut statement = tx.prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = ?").map_err(refusal)?;
    let largest: Option<i64> =
        statement.query_row([names.options.outbox()], |row| row.get(0)).optional().map_err(refusal)?;
    Ok(Seq(unsigned(largest.unwrap_or(0))))
}

/// Inserts rows and returns their ids.
pub(super) fn enqueue(tx: &Transaction<'_>, names: &Names, rows: &[NewRow]) -> StoreResult<Vec<String>> {
    rows.iter().map(|row| insert(tx, names, row)).collect()
}

/// Columns that are not given keep their defaults, so the statement names only what there is.
fn insert(tx: &Transaction<'_>, names: &Names, row: &NewRow) -> StoreResult<String> {
    use rusqlite::types::ToSqlOutput;
    let text = |text: &'_ str| ToSqlOutput::Owned(text.to_owned().into());
    let mut columns = vec![names.topic.as_str()];
    let mut values = vec![text(&row.topic)];
    let unmapped = |what: &str| {
        let why = format!("the outbox table has no column for {what}");
        crate::error::StoreError::new(crate::error::StoreErrorKind::Configuration, why)
    };
    let optional = [
        ("the key", names.key.as_deref(), row.key.as_deref().map(text)),
        ("headers", names.headers.as_deref(), row.headers.as_deref().map(text)),
        ("available_at", names.available_at.as_deref(), row.available_at_us.map(ToSqlOutput::from)),
        ("the id", Some(names.id.as_str()), row.id.as_deref().map(text)),
    ];
    for (what, column, value) in optional {
        if let Some(value) = value {
            columns.push(column.ok_or_else(|| unmapped(what))?);
            values.push(value);
        }
    }
    // A payload that is text is stored as text: it is what other readers of a TEXT column expect.
    columns.push(&names.payload);
    values.push(match std::str::from_utf8(&row.payload) {
        Ok(payload) if payload_is_text(tx, names)? => text(payload),
        _ => ToSqlOutput::Borrowed(ValueRef::Blob(&row.payload)),
    });
    let marks = vec!["?"; columns.len()].join(", ");
    let sql = format!("INSERT INTO {} ({}) VALUES ({marks}) RETURNING {}", names.outbox, columns.join(", "), names.id);
    let mut statement = tx.prepare_cached(&sql).map_err(refusal)?;
    let id = statement
        .query_row(rusqlite::params_from_iter(values), |row| Ok(bytes_of(row.get_ref(0)?)))
        .map_err(refusal)?;
    Ok(String::from_utf8_lossy(&id.unwrap_or_default()).into_owned())
}

pub(super) fn payload_is_text(connection: &Connection, names: &Names) -> StoreResult<bool> {
    let sql = "SELECT type FROM pragma_table_info(?1) WHERE name = ?2";
    let mut statement = connection.prepare_cached(sql).map_err(refusal)?;
    let asked = params![names.options.outbox(), names.options.columns.payload];
    let declared: Option<String> = statement.query_row(asked, |row| row.get(0)).optional().map_err(refusal)?;
    Ok(declared.is_some_and(|declared| !super::schema::holds_bytes(&declared)))
}
