//! A table of the application's own with a status column.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mysql_async::Row as Columns;
use outhaul_core::outbox::packet_limits;

use super::link::{Dialer, Link, Slot};
use super::refusal::Failure;
use super::statement::Statement;
use super::values::{NOW, bytes_opt, number, number_opt, quoted, text, text_opt};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{Archive, ColumnNames, StatusTable, StoreOptions};
use crate::row::{ByteBudget, HEADERS_MAX_BYTES, RawRow, RowLimits};
use crate::status::{
    Condition, Fed, Fetched, Into, Mark, Place, Standing, Table, Wanted, columns_of, index_warning, not_unique,
};
use crate::store::{NewRow, StoreResult};

/// Rows that wait are counted up to here.
const COUNT_MAX: u32 = 100_000;
/// Rows whose content is asked for at once: a page's content is bounded by it and by `INLINE`.
const PAGE: usize = 200;
/// Payloads and headers up to this come with their page, bytes; larger ones by themselves.
const INLINE: u64 = 64 << 10;

pub(crate) struct MySqlStatusTable {
    options: StatusTable,
    store: StoreOptions,
    dialer: Dialer,
    poll: Slot,
    rescan: Slot,
    writer: Slot,
    other: Slot,
    archiver: Slot,
    kinds: Mutex<Option<Arc<Kinds>>>,
}

/// Types of columns that matter to a statement.
#[derive(Clone, Debug)]
struct Kinds {
    id: IdKind,
    created: TimeKind,
    sent: TimeKind,
    columns: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdKind {
    Number,
    Text,
    /// Bytes that are no text; as an id they are hexadecimal.
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimeKind {
    None,
    Time,
    /// A count of seconds, milliseconds or microseconds since 1970, told apart by its size.
    Number,
}

fn time_kind(column: Option<&str>) -> TimeKind {
    match column {
        None => TimeKind::None,
        Some("bigint" | "int" | "decimal") => TimeKind::Number,
        Some(_) => TimeKind::Time,
    }
}

/// Microseconds since 1970-01-01 UTC, as SQL.
fn micros(column: &str, kind: TimeKind) -> String {
    match kind {
        TimeKind::None => "NULL".into(),
        TimeKind::Time => format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {column})"),
        TimeKind::Number => format!(
            "CAST(CASE WHEN {column} >= 100000000000000 THEN {column} WHEN {column} >= 100000000000 THEN {column} * 1000 \
             ELSE {column} * 1000000 END AS SIGNED)"
        ),
    }
}

impl MySqlStatusTable {
    pub(crate) fn open(options: &StoreOptions, table: &StatusTable) -> StoreResult<Self> {
        Ok(Self {
            options: table.clone(),
            store: options.clone(),
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
        quoted(&self.options.table)
    }

    async fn ask(&self, slot: &Slot, statement: Statement) -> StoreResult<(Vec<Columns>, u64)> {
        let mut held = slot.take(&self.dialer).await?;
        let result = held.link.run(&[statement]).await;
        let answer = held.give_back(result)?.into_iter().next().unwrap_or_default();
        Ok((answer.rows, answer.affected))
    }

    /// The types of the columns, looked up once, and whenever they are asked for anew.
    async fn kinds(&self, anew: bool) -> StoreResult<Arc<Kinds>> {
        let known = self.kinds.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(kinds) = known.filter(|_| !anew) {
            return Ok(kinds);
        }
        let o = &self.options;
        let mut question = Statement::new(
            "SELECT column_name, LOWER(data_type) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ",
        );
        question.push_text(&o.table);
        let (rows, _) = self.ask(&self.other, question).await?;
        let mut columns = Vec::with_capacity(rows.len());
        for mut row in rows {
            columns.push((text(&mut row, 0)?, text(&mut row, 1)?));
        }
        let missing = |what: String| StoreError::new(StoreErrorKind::Configuration, what);
        if columns.is_empty() {
            return Err(missing(format!("there is no table {}", o.table)));
        }
        let of = |name: &String| {
            let found = columns.iter().find(|(column, _)| column.eq_ignore_ascii_case(name));
            found.map(|(_, ty)| ty.as_str()).ok_or_else(|| missing(format!("table {} has no column {name}", o.table)))
        };
        for name in [&o.topic, &o.payload, &o.status] {
            of(name)?;
        }
        for name in [&o.key, &o.headers].into_iter().flatten() {
            of(name)?;
        }
        let id = match of(&o.id)? {
            "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "decimal" => IdKind::Number,
            "binary" | "varbinary" | "blob" | "tinyblob" => IdKind::Bytes,
            _ => IdKind::Text,
        };
        let created = time_kind(o.created_at.as_ref().map(of).transpose()?);
        let sent = time_kind(o.sent_at.as_ref().map(of).transpose()?);
        let kinds = Arc::new(Kinds { id, created, sent, columns });
        *self.kinds.lock().unwrap_or_else(PoisonError::into_inner) = Some(kinds.clone());
        Ok(kinds)
    }

    /// An id as a value of its column: compared as the column's own type, so that the index serves.
    fn push_id(statement: &mut Statement, id: &str, kind: IdKind) {
        match kind {
            IdKind::Number => match id.parse::<i128>() {
                Ok(n) => _ = statement.push_number(n),
                Err(_) => _ = statement.push("NULL"),
            },
            IdKind::Text => _ = statement.push_text(id),
            IdKind::Bytes => match unhex(id) {
                Some(bytes) => _ = statement.push_bytes(bytes),
                None => _ = statement.push("NULL"),
            },
        }
    }

    fn id_shown(&self, kind: IdKind) -> String {
        let id = quoted(&self.options.id);
        match kind {
            IdKind::Bytes => format!("LOWER(HEX({id}))"),
            IdKind::Number | IdKind::Text => id,
        }
    }

    fn columns(&self, kinds: &Kinds, limits: RowLimits, inline: Option<u64>) -> String {
        let o = &self.options;
        let or_null = |column: &Option<String>| column.as_deref().map_or_else(|| "NULL".to_owned(), quoted);
        let (key, headers) = (or_null(&o.key), or_null(&o.headers));
        let (topic, payload) = (quoted(&o.topic), quoted(&o.payload));
        let size = |column: &str| format!("COALESCE(OCTET_LENGTH({column}), 0)");
        let small = inline.map_or_else(
            || {
                format!(
                    "{} <= {} AND {} <= {}",
                    size(&payload),
                    limits.message_bytes,
                    size(&headers),
                    limits.headers_bytes
                )
            },
            |inline| format!("{} + {} <= {inline}", size(&payload), size(&headers)),
        );
        let created = o.created_at.as_deref().map_or_else(|| "NULL".into(), |c| micros(&quoted(c), kinds.created));
        format!(
            "{}, {topic}, {key}, IF({small}, {headers}, NULL), {}, IF({small}, {payload}, NULL), {}, \
             COALESCE({created}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {NOW})), {small}",
            self.id_shown(kinds.id),
            size(&headers),
            size(&payload),
        )
    }

    fn limits(&self, link: &Link) -> RowLimits {
        let (payload, headers) = packet_limits(link.server.packet_bytes as u64);
        RowLimits {
            message_bytes: self.store.max_message_bytes.min(payload),
            headers_bytes: HEADERS_MAX_BYTES.min(headers),
        }
    }

    /// Rows with these ids, in any order, and whether each came with its content.
    async fn page(
        &self,
        link: &mut Link,
        kinds: &Kinds,
        ids: &[String],
        inline: Option<u64>,
    ) -> Result<Vec<(RawRow, bool)>, Failure> {
        let mut statement = Statement::new(format!(
            "SELECT {} FROM {} WHERE {} IN (",
            self.columns(kinds, self.limits(link), inline),
            self.table(),
            quoted(&self.options.id)
        ));
        push_ids(&mut statement, ids, kinds.id);
        statement.push(&format!(") AND {} = ", quoted(&self.options.status)));
        statement.push_text(&self.options.pending);
        let answer = link.run(&[statement]).await?.into_iter().next().unwrap_or_default();
        answer.rows.into_iter().map(|row| raw_row(row).map_err(Failure::from)).collect()
    }

    async fn fetch(
        &self,
        link: &mut Link,
        kinds: &Kinds,
        ids: &[String],
        max_bytes: usize,
    ) -> Result<Fetched, Failure> {
        let limits = self.limits(link);
        let mut budget = ByteBudget::new(max_bytes);
        let mut fetched = Fetched::default();
        for ids in ids.chunks(PAGE) {
            let page = self.page(link, kinds, ids, Some(INLINE)).await?;
            let mut by_id: HashMap<String, (RawRow, bool)> = HashMap::with_capacity(page.len());
            for (raw, whole) in page {
                let id = String::from_utf8_lossy(raw.id.as_deref().unwrap_or_default()).into_owned();
                by_id.insert(id, (raw, whole));
            }
            for id in ids {
                if let Some((mut raw, whole)) = by_id.remove(id) {
                    if !budget.takes(limits.fetched(raw.payload_bytes, raw.headers_bytes)) {
                        return Ok(fetched);
                    }
                    if !whole && limits.fetched(raw.payload_bytes, raw.headers_bytes) > 0 {
                        let alone = self.page(link, kinds, std::slice::from_ref(id), None).await?;
                        let Some((found, _)) = alone.into_iter().next() else { continue };
                        raw = found;
                    }
                    fetched.rows.push(raw.into_row(limits));
                }
                fetched.covered += 1;
            }
        }
        Ok(fetched)
    }

    /// None: there is no word for it.
    fn marking(&self, kinds: &Kinds, ids: &[String], mark: Mark) -> Option<Statement> {
        let o = &self.options;
        let (id, status) = (quoted(&o.id), quoted(&o.status));
        let mut s = Statement::new(format!("UPDATE {} SET {status} = ", self.table()));
        match mark {
            Mark::Sent => {
                s.push_text(&o.sent);
                if let Some(sent_at) = &o.sent_at {
                    let created = o.created_at.as_deref().filter(|_| kinds.created == TimeKind::Number).map(quoted);
                    let now = self.time(kinds.sent, created.as_deref());
                    s.push(&format!(", {} = {now}", quoted(sent_at)));
                }
            }
            Mark::Dead => _ = s.push_text(o.dead.as_ref()?),
        }
        // A TIMESTAMP may say of itself that every UPDATE changes it.
        if let Some(created) = &o.created_at {
            s.push(&format!(", {c} = {c}", c = quoted(created)));
        }
        s.push(&format!(" WHERE {id} IN ("));
        push_ids(&mut s, ids, kinds.id);
        s.push(&format!(") AND {status} IN (")).push_text(&o.pending);
        if let Some(dead) = o.dead.as_ref().filter(|_| mark == Mark::Sent) {
            s.push(", ").push_text(dead);
        }
        s.push(")");
        Some(s)
    }

    /// Columns of the outbox table, and what is put into each.
    fn feeding(&self, kinds: &Kinds, into: &ColumnNames) -> (String, String) {
        let o = &self.options;
        // What a client would read: text in UTF-8, whatever the column's own character set is.
        let as_read = |column: &str| {
            let binary = ["binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"];
            let is_text =
                kinds.columns.iter().any(|(c, ty)| c.eq_ignore_ascii_case(column) && !binary.contains(&&**ty));
            if is_text { format!("CONVERT({} USING utf8mb4)", quoted(column)) } else { quoted(column) }
        };
        let created = o.created_at.as_deref().map(quoted).map(|c| match kinds.created {
            TimeKind::None => NOW.to_owned(),
            TimeKind::Time => format!("COALESCE({c}, {NOW})"),
            number @ TimeKind::Number => format!("COALESCE(FROM_UNIXTIME({} / 1000000), {NOW})", micros(&c, number)),
        });
        let headers = o.headers.as_deref().map(|h| format!("CONVERT({} USING utf8mb4)", quoted(h)));
        let pairs = [
            (Some(&into.id), Some(self.id_shown(kinds.id))),
            (Some(&into.topic), Some(as_read(&o.topic))),
            (into.key.as_ref(), o.key.as_deref().map(as_read)),
            (into.headers.as_ref(), headers),
            (Some(&into.payload), Some(as_read(&o.payload))),
            (into.created_at.as_ref(), created),
        ];
        let (names, values): (Vec<String>, Vec<String>) =
            pairs.into_iter().filter_map(|(name, value)| Some((quoted(name?), value?))).unzip();
        (names.join(", "), values.join(", "))
    }

    async fn feed_on(&self, link: &mut Link, kinds: &Kinds, ids: &[String], into: &Into) -> Result<Fed, Failure> {
        let o = &self.options;
        let (id, status) = (quoted(&o.id), quoted(&o.status));
        let mut lease = Statement::new(format!("SELECT 1 FROM {} WHERE shard = 0 AND owner = ", quoted(&into.lease)));
        lease.push_bytes(into.owner.as_bytes()).push(&format!(" AND expires_at > {NOW} FOR UPDATE"));
        let mut locked = Statement::new(format!("SELECT {}, {status} = ", self.id_shown(kinds.id)));
        locked.push_text(&o.pending).push(&format!(" FROM {} WHERE {id} IN (", self.table()));
        push_ids(&mut locked, ids, kinds.id);
        locked.push(") FOR UPDATE SKIP LOCKED");
        let mut answers = link.run_inside(&[Statement::new("START TRANSACTION"), lease, locked]).await?;
        let locked = answers.pop().unwrap_or_default().rows;
        if answers.pop().is_none_or(|answer| answer.rows.is_empty()) {
            link.rollback().await?;
            return Ok(Fed::NotOwner);
        }
        let mut ours = HashSet::new();
        for mut row in locked {
            if number::<u8>(&row, 1).map_err(Failure::from)? != 0 {
                ours.insert(text(&mut row, 0).map_err(Failure::from)?);
            }
        }
        let others: Vec<String> = ids.iter().filter(|id| !ours.contains(*id)).cloned().collect();
        if !others.is_empty() {
            link.rollback().await?;
            return Ok(Fed::Held(others));
        }
        let (names, values) = self.feeding(kinds, &into.columns);
        let order = o.created_at.as_deref().map_or_else(|| id.clone(), |c| format!("{}, {id}", quoted(c)));
        let mut insert = Statement::new(format!(
            "INSERT INTO {} ({names}) SELECT {values} FROM {} WHERE {id} IN (",
            quoted(&into.outbox),
            self.table()
        ));
        push_ids(&mut insert, ids, kinds.id);
        insert.push(&format!(") ORDER BY {order}"));
        let statements: Vec<Statement> = std::iter::once(insert).chain(self.marking(kinds, ids, Mark::Sent)).collect();
        let answers = link.run_inside(&statements).await?;
        if answers.iter().any(|answer| answer.affected != ids.len() as u64) {
            link.rollback().await?;
            return Err(Failure::new(StoreErrorKind::Conflict, "rows to move have changed meanwhile", false));
        }
        link.commit().await?;
        Ok(Fed::Moved)
    }

    /// A time as a value of its column.
    fn time(&self, kinds: TimeKind, created: Option<&str>) -> String {
        match kinds {
            TimeKind::None => "NULL".into(),
            TimeKind::Time => NOW.into(),
            TimeKind::Number => {
                // As the table counts its other times.
                let now = format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {NOW})");
                let like = created.unwrap_or("0");
                format!(
                    "CASE WHEN {like} >= 100000000000000 THEN {now} WHEN {like} >= 100000000000 THEN {now} DIV 1000 ELSE {now} DIV 1000000 END"
                )
            }
        }
    }
}

fn push_ids(statement: &mut Statement, ids: &[String], kind: IdKind) {
    for (n, id) in ids.iter().enumerate() {
        if n > 0 {
            statement.push(", ");
        }
        MySqlStatusTable::push_id(statement, id, kind);
    }
}

/// Bytes of hexadecimal digits, or of a UUID.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let text = text.replace('-', "");
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

fn raw_row(mut row: Columns) -> StoreResult<(RawRow, bool)> {
    let raw = RawRow {
        seq: 0,
        shard: 0,
        id: bytes_opt(&mut row, 0)?,
        topic: bytes_opt(&mut row, 1)?,
        key: bytes_opt(&mut row, 2)?,
        headers: bytes_opt(&mut row, 3)?,
        headers_bytes: number(&row, 4)?,
        payload: bytes_opt(&mut row, 5)?.unwrap_or_default().into(),
        payload_bytes: number(&row, 6)?,
        created_at_us: number(&row, 7)?,
    };
    let whole = number::<u8>(&row, 8)? != 0;
    Ok((raw, whole))
}

#[async_trait]
impl Table for MySqlStatusTable {
    async fn inspect(&self) -> StoreResult<Condition> {
        let kinds = self.kinds(true).await?;
        let o = &self.options;
        let mut question = Statement::new(
            "SELECT index_name, non_unique, column_name FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = ",
        );
        question.push_text(&o.table).push(" ORDER BY index_name, seq_in_index");
        let (rows, _) = self.ask(&self.other, question).await?;
        let mut indexes: Vec<(String, bool, Vec<String>)> = Vec::new();
        for mut row in rows {
            let (name, unique, column) = (text(&mut row, 0)?, number::<u8>(&row, 1)? == 0, text_opt(&mut row, 2)?);
            let column = column.unwrap_or_default();
            match indexes.last_mut() {
                Some((last, _, columns)) if *last == name => columns.push(column),
                _ => indexes.push((name, unique, vec![column])),
            }
        }
        if !indexes.iter().any(|(_, unique, columns)| {
            *unique && matches!(&columns[..], [column] if column.eq_ignore_ascii_case(&o.id))
        }) {
            return Err(not_unique(o));
        }
        let columns: Vec<Vec<String>> = indexes.into_iter().map(|(_, _, columns)| columns).collect();
        let mut condition = Condition { warnings: index_warning(o, &columns).into_iter().collect(), is_large: false };
        let mut question = Statement::new(
            "SELECT COALESCE(table_rows, 0), COALESCE(LOWER(engine), '') FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ",
        );
        question.push_text(&o.table);
        let (rows, _) = self.ask(&self.other, question).await?;
        if let Some(mut row) = rows.into_iter().next() {
            let (count, engine) = (number_opt(&row, 0)?.unwrap_or(0), text(&mut row, 1)?);
            condition.is_large = count >= i128::from(crate::status::LARGE);
            if engine != "innodb" {
                condition.warnings.push(format!("table {} is kept by {engine}, which has no transactions", o.table));
            }
        }
        if let Some((_, ty)) = kinds.columns.iter().find(|(name, _)| name.eq_ignore_ascii_case(&o.status))
            && ty == "enum"
        {
            let mut question = Statement::new(
                "SELECT column_type FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ",
            );
            question.push_text(&o.table).push(" AND column_name = ").push_text(&o.status);
            let (rows, _) = self.ask(&self.other, question).await?;
            let words = rows.into_iter().next().map(|mut row| text(&mut row, 0)).transpose()?.unwrap_or_default();
            let mut wanted = [&o.pending, &o.sent].into_iter().chain(o.dead.as_ref());
            if let Some(word) = wanted.find(|word| !words.contains(&super::values::literal(word))) {
                let what = format!("column {} of table {} is {words}, which has no {word}", o.status, o.table);
                return Err(StoreError::new(StoreErrorKind::WrongSchema, what));
            }
        }
        Ok(condition)
    }

    async fn waiting(&self, wanted: &Wanted, limit: usize, rescan: bool) -> StoreResult<Vec<Place>> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let (id, status) = (quoted(&o.id), quoted(&o.status));
        let created = o.created_at.as_deref().map(quoted);
        let time = created.as_deref().map_or_else(|| "NULL".to_owned(), |c| format!("CAST({c} AS CHAR)"));
        let mut s = Statement::new(format!(
            "SELECT {}, {time} FROM {} WHERE {status} = ",
            self.id_shown(kinds.id),
            self.table()
        ));
        s.push_text(&o.pending);
        let at = |s: &mut Statement, time: &str| match kinds.created {
            TimeKind::Number => _ = s.push_number(time.parse::<i128>().unwrap_or(0)),
            _ => _ = s.push_text(time),
        };
        match (&created, wanted) {
            (None, Wanted::Timeless) => return Ok(Vec::new()),
            (None, Wanted::From(_)) => {}
            (None, Wanted::Behind(place)) => {
                s.push(&format!(" AND {id} > "));
                Self::push_id(&mut s, &place.id, kinds.id);
            }
            (Some(c), Wanted::Timeless) => _ = s.push(&format!(" AND {c} IS NULL")),
            (Some(c), Wanted::From(None) | Wanted::Behind(Place { created: None, .. })) => {
                s.push(&format!(" AND {c} IS NOT NULL"));
            }
            (Some(c), Wanted::From(Some(from))) => {
                s.push(&format!(" AND {c} >= "));
                at(&mut s, from);
            }
            (Some(c), Wanted::Behind(Place { created: Some(time), id: behind })) => {
                s.push(&format!(" AND {c} >= "));
                at(&mut s, time);
                s.push(&format!(" AND ({c} > "));
                at(&mut s, time);
                s.push(&format!(" OR {id} > "));
                Self::push_id(&mut s, behind, kinds.id);
                s.push(")");
            }
        }
        let order = created.map_or_else(|| id.clone(), |c| format!("{c}, {id}"));
        s.push(&format!(" ORDER BY {order} LIMIT {limit}"));
        let (rows, _) = self.ask(self.reader(rescan), s).await?;
        rows.into_iter().map(|mut row| Ok(Place { id: text(&mut row, 0)?, created: text_opt(&mut row, 1)? })).collect()
    }

    async fn rows(&self, ids: &[String], max_bytes: usize, rescan: bool) -> StoreResult<Fetched> {
        let kinds = self.kinds(false).await?;
        let mut held = self.reader(rescan).take(&self.dialer).await?;
        let result = self.fetch(&mut held.link, &kinds, ids, max_bytes).await;
        held.give_back(result)
    }

    async fn mark(&self, ids: &[String], mark: Mark) -> StoreResult<u64> {
        let kinds = self.kinds(false).await?;
        let Some(statement) = self.marking(&kinds, ids, mark) else { return Ok(0) };
        self.ask(&self.writer, statement).await.map(|(_, affected)| affected)
    }

    async fn feed(&self, ids: &[String], into: &Into) -> StoreResult<Fed> {
        let kinds = self.kinds(false).await?;
        let mut held = self.writer.take(&self.dialer).await?;
        let result = match self.feed_on(&mut held.link, &kinds, ids, into).await {
            Err(failure) if failure.about_content && !failure.session_over => match held.link.rollback().await {
                Ok(()) => Ok(Fed::Refused(failure.error.message)),
                Err(failure) => Err(failure),
            },
            other => other,
        };
        held.give_back(result)
    }

    async fn counts(&self) -> StoreResult<bool> {
        Ok(self.kinds(false).await?.id == IdKind::Number)
    }

    async fn insert(&self, rows: &[NewRow]) -> StoreResult<Vec<String>> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let mut statements = vec![Statement::new("START TRANSACTION")];
        let (mut ids, mut asked) = (Vec::with_capacity(rows.len()), Vec::new());
        for row in rows {
            let row = match (&row.id, kinds.id) {
                (None, IdKind::Text) => NewRow { id: Some(self.fresh_id().await?), ..row.clone() },
                _ => row.clone(),
            };
            let (columns, values) = columns_of(o, &row)?;
            let names: Vec<String> = columns.iter().map(|c| quoted(c)).collect();
            let created = o.created_at.as_deref().map(quoted);
            let mut s = Statement::new(format!("INSERT INTO {} ({}", self.table(), names.join(", ")));
            if let Some(created) = &created {
                s.push(&format!(", {created}"));
            }
            s.push(") VALUES (");
            for (n, (column, value)) in columns.iter().zip(values).enumerate() {
                if n > 0 {
                    s.push(", ");
                }
                if *column == o.id {
                    Self::push_id(&mut s, &String::from_utf8_lossy(&value), kinds.id);
                } else if *column == o.payload {
                    match String::from_utf8(value) {
                        Ok(text) => s.push_text(text),
                        Err(e) => s.push_bytes(e.into_bytes()),
                    };
                } else {
                    s.push_text(String::from_utf8_lossy(&value).into_owned());
                }
            }
            if created.is_some() {
                let now = match kinds.created {
                    TimeKind::Number => "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000",
                    _ => NOW,
                };
                s.push(&format!(", {now}"));
            }
            s.push(")");
            statements.push(s);
            if row.id.is_none() {
                statements.push(Statement::new("SELECT LAST_INSERT_ID()"));
                asked.push((ids.len(), statements.len() - 1));
            }
            ids.push(row.id.unwrap_or_default());
        }
        let mut held = self.writer.take(&self.dialer).await?;
        let result = async {
            let answers = held.link.run_inside(&statements).await?;
            held.link.commit().await?;
            Ok(answers)
        }
        .await;
        let mut answers = held.give_back(result)?;
        for (place, at) in asked {
            let row = answers.get_mut(at).and_then(|answer| answer.rows.first_mut());
            if let (Some(row), Some(id)) = (row, ids.get_mut(place)) {
                *id = text(row, 0)?;
            }
        }
        Ok(ids)
    }

    async fn make_archive(&self, archive: &Archive) -> StoreResult<()> {
        let s = format!("CREATE TABLE IF NOT EXISTS {} LIKE {}", quoted(&archive.table), self.table());
        self.ask(&self.other, Statement::new(s)).await.map(drop)
    }

    async fn archive(&self, archive: &Archive, limit: usize) -> StoreResult<u64> {
        let kinds = self.kinds(false).await?;
        let Some(before) = self.before(&self.options.table, archive.after, &kinds).await? else { return Ok(0) };
        let mut held = self.archiver.take(&self.dialer).await?;
        let result = self.archive_some(&mut held.link, archive, &kinds, &before, limit).await;
        held.give_back(result)
    }

    async fn purge(&self, archive: &Archive, after: Duration, limit: usize) -> StoreResult<u64> {
        let kinds = self.kinds(false).await?;
        let Some(before) = self.before(&archive.table, after, &kinds).await? else { return Ok(0) };
        let a = quoted(&archive.table);
        let s = Statement::new(format!("DELETE FROM {a} WHERE {before} LIMIT {limit}"));
        self.ask(&self.archiver, s).await.map(|(_, affected)| affected)
    }

    async fn find(&self, id: &str) -> StoreResult<Option<Standing>> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let mut held = self.other.take(&self.dialer).await?;
        let limits = self.limits(&held.link);
        let sent_at = o.sent_at.as_deref().map_or_else(|| "NULL".into(), |c| micros(&quoted(c), kinds.sent));
        let archive = o.archive.as_ref().map(|archive| quoted(&archive.table));
        let ask = |table: &str| {
            let columns = self.columns(&kinds, limits, None);
            let (status, id_column) = (quoted(&o.status), quoted(&o.id));
            let mut s =
                Statement::new(format!("SELECT {columns}, {status}, {sent_at} FROM {table} WHERE {id_column} = "));
            Self::push_id(&mut s, id, kinds.id);
            s.push(" LIMIT 1");
            s
        };
        let statements: Vec<Statement> =
            std::iter::once(self.table()).chain(archive).map(|table| ask(&table)).collect();
        let result = held.link.run(&statements).await;
        let rows = held.give_back(result)?.into_iter().flat_map(|answer| answer.rows).next();
        let Some(mut row) = rows else { return Ok(None) };
        let status = text(&mut row, 9)?;
        let sent_at_us = number_opt(&row, 10)?.and_then(|n| i64::try_from(n).ok());
        let (raw, _) = raw_row(row)?;
        Ok(Some(Standing { row: raw.into_row(limits), status, sent_at_us }))
    }

    async fn count(&self) -> StoreResult<(u64, Option<u64>)> {
        let kinds = self.kinds(false).await?;
        let o = &self.options;
        let status = quoted(&o.status);
        let mut s = Statement::new(format!("SELECT COUNT(*) FROM (SELECT 1 FROM {} WHERE {status} = ", self.table()));
        s.push_text(&o.pending).push(&format!(" LIMIT {COUNT_MAX}) w"));
        let (rows, _) = self.ask(&self.other, s).await?;
        let waiting = rows.first().map_or(Ok(0), |row| number(row, 0))?;
        let Some(created) = o.created_at.as_deref().filter(|_| waiting > 0).map(quoted) else {
            return Ok((waiting, None));
        };
        let mut s = Statement::new(format!(
            "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {NOW}) - {} FROM {} WHERE {status} = ",
            micros(&created, kinds.created),
            self.table()
        ));
        s.push_text(&o.pending).push(&format!(" ORDER BY {created} LIMIT 1"));
        let (rows, _) = self.ask(&self.other, s).await?;
        let age = rows.first().map_or(Ok(None), |row| number_opt(row, 0))?;
        Ok((waiting, age.map(|us| u64::try_from(us / 1_000).unwrap_or(0))))
    }

    async fn close(&self) {
        self.dialer.close();
        for slot in [&self.poll, &self.rescan, &self.writer, &self.other, &self.archiver] {
            slot.clear().await;
        }
    }
}

impl MySqlStatusTable {
    /// The condition of a row that was created so long ago. None: there is no such time.
    async fn before(&self, table: &str, after: Duration, kinds: &Kinds) -> StoreResult<Option<String>> {
        let Some(created) = self.options.created_at.as_deref().map(quoted) else { return Ok(None) };
        let seconds = after.as_secs();
        Ok(match kinds.created {
            TimeKind::None => None,
            TimeKind::Time => Some(format!("{created} < {NOW} - INTERVAL {seconds} SECOND")),
            TimeKind::Number => {
                let s = format!(
                    "SELECT {created}, UNIX_TIMESTAMP() FROM {} WHERE {created} IS NOT NULL LIMIT 1",
                    quoted(table)
                );
                let (rows, _) = self.ask(&self.other, Statement::new(s)).await?;
                let Some(row) = rows.first() else { return Ok(None) };
                let one = number_opt(row, 0)?.unwrap_or(0);
                let seconds = number::<i128>(row, 1)? - i128::from(seconds);
                let scale = if one >= 100_000_000_000_000 {
                    1_000_000
                } else if one >= 100_000_000_000 {
                    1_000
                } else {
                    1
                };
                Some(format!("{created} < {}", seconds * scale))
            }
        })
    }

    async fn archive_some(
        &self,
        link: &mut Link,
        archive: &Archive,
        kinds: &Kinds,
        before: &str,
        limit: usize,
    ) -> Result<u64, Failure> {
        let o = &self.options;
        let (id, status, table) = (quoted(&o.id), quoted(&o.status), self.table());
        let order = o.created_at.as_deref().map_or_else(|| id.clone(), |c| format!("{}, {id}", quoted(c)));
        let mut old = Statement::new(format!("SELECT {} FROM {table} WHERE {status} = ", self.id_shown(kinds.id)));
        old.push_text(&o.sent);
        old.push(&format!(" AND {before} ORDER BY {order} LIMIT {limit} FOR UPDATE SKIP LOCKED"));
        let answers = link.run_inside(&[Statement::new("START TRANSACTION"), old]).await?;
        let mut ids = Vec::new();
        for mut row in answers.into_iter().flat_map(|answer| answer.rows) {
            ids.push(text(&mut row, 0).map_err(Failure::from)?);
        }
        if ids.is_empty() {
            link.rollback().await?;
            return Ok(0);
        }
        let columns: Vec<String> = kinds.columns.iter().map(|(name, _)| quoted(name)).collect();
        let columns = columns.join(", ");
        let a = quoted(&archive.table);
        let named = |head: String| {
            let mut s = Statement::new(format!("{head} FROM {table} WHERE {id} IN ("));
            push_ids(&mut s, &ids, kinds.id);
            s.push(")");
            s
        };
        let statements = [named(format!("INSERT INTO {a} ({columns}) SELECT {columns}")), named("DELETE".into())];
        let answers = link.run_inside(&statements).await?;
        if answers.iter().any(|answer| answer.affected != ids.len() as u64) {
            link.rollback().await?;
            return Err(Failure::new(StoreErrorKind::Conflict, "rows to archive have changed meanwhile", false));
        }
        link.commit().await?;
        Ok(ids.len() as u64)
    }

    async fn fresh_id(&self) -> StoreResult<String> {
        let (rows, _) = self.ask(&self.other, Statement::new("SELECT UUID()")).await?;
        rows.into_iter().next().map_or_else(
            || Err(StoreError::new(StoreErrorKind::Other, "the server gave no UUID")),
            |mut row| text(&mut row, 0),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_bytes_are_hexadecimal() {
        assert_eq!(unhex("00ff10"), Some(vec![0, 255, 16]));
        assert_eq!([unhex("0"), unhex("0g"), unhex("\u{e9}")], [None, None, None]);
    }
}
