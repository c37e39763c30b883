//! Reading committed rows of the outbox.
//!
//! One statement answers a read. Payloads come along where all rows of the answer may have them within its bytes; larger
//! ones stay in their storage, and those that fit are fetched by a second statement once the sizes are known. (A running
//! sum inside the server would need no second one, and was measured to double the cost of every full read.)
//!
//! Several shards lie in the index one behind the other, so that "the next rows by `seq` of all of them" would read and
//! sort everything that is there. After an answer that was cut a read therefore looks only at a stretch of `seq` from
//! the first row on; how long a stretch is, is learnt from the answers.
//!
//! Scheduled rows are passed over inside the server.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use bytes::Bytes;
use outhaul_core::message::{Row, Seq, ShardId};
use outhaul_core::runs::Run;
use outhaul_core::schedule::{Scheduled, Upcoming};
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::catalogue::{Layout, TimeColumn};
use super::link::{Slot, Statement, get};
use super::values::{Micros, Raw, signed, small, unsigned};
use crate::error::StoreError;
use crate::options::PayloadType;
use crate::row::{HEADERS_MAX_BYTES, RawRow, RowLimits};
use crate::store::{ReadPurpose, ReadRequest, ReadRows, StoreResult};

/// A stretch of `seq` is this many times the wanted rows at most: beyond it, sparse numbers cost a further read.
const STRETCH_FACTOR_MAX: i64 = 64;

/// What reads of one purpose know of the table.
pub(super) struct Stretch {
    backlog: AtomicBool,
    /// Numbers for each row found, at least 1.
    factor: AtomicI64,
    /// The last read found nothing.
    idle: AtomicBool,
}

impl Stretch {
    pub(super) const fn new() -> Self {
        Self { backlog: AtomicBool::new(true), factor: AtomicI64::new(2), idle: AtomicBool::new(false) }
    }

    /// Length of the next stretch; None: read without one.
    fn next(&self, limit: i64) -> Option<i64> {
        let length = limit.saturating_mul(self.factor.load(Ordering::Relaxed));
        self.backlog.load(Ordering::Relaxed).then_some(length)
    }

    fn learn(&self, cut: bool, rows: &[Row]) {
        self.idle.store(rows.is_empty(), Ordering::Relaxed);
        self.backlog.store(cut, Ordering::Relaxed);
        if let (Some(first), Some(last)) = (rows.first(), rows.last())
            && cut
        {
            let numbers = signed(last.seq.0.saturating_sub(first.seq.0));
            let factor = numbers / i64::try_from(rows.len()).unwrap_or(i64::MAX) + 1;
            self.factor.store(factor.clamp(1, STRETCH_FACTOR_MAX), Ordering::Relaxed);
        }
    }
}

/// A row of a page.
struct Found {
    raw: RawRow,
    /// Headers and payload came along.
    whole: bool,
    /// There are rows beyond the stretch that was read.
    beyond: bool,
}

impl Found {
    /// Bytes that an answer with this row carries: its payload and its headers, where they are not too large.
    fn bytes(&self, limits: RowLimits) -> u64 {
        limits.fetched(self.raw.payload_bytes, self.raw.headers_bytes)
    }
}

/// The columns of a row as SQL, whatever the table calls them.
struct Columns {
    seq: String,
    shard: String,
    id: String,
    topic: String,
    key: String,
    headers: String,
    payload: String,
    created: String,
}

impl Columns {
    /// The columns of a page.
    fn of_page() -> Self {
        let [seq, shard, id, topic, key, headers, payload, created] =
            ["seq", "shard", "id", "topic", "key", "headers", "payload", "created"].map(str::to_owned);
        Self { seq, shard, id, topic, key, headers, payload, created }
    }
}

impl Layout {
    /// SQL for a text column as the server sends it: text, or bytes where the server would refuse to send it.
    pub(super) fn text(&self, expression: &str) -> String {
        if self.opaque_text {
            format!("convert_to({expression}::text, 'SQL_ASCII')")
        } else {
            format!("{expression}::text")
        }
    }

    fn payload_as_sent(&self, expression: &str) -> String {
        match self.payload_type {
            PayloadType::Bytes => expression.to_owned(),
            PayloadType::Text | PayloadType::Json => self.text(expression),
        }
    }

    /// Size of a payload in bytes, without taking it out of its storage where its type allows that.
    pub(super) fn payload_bytes(&self, expression: &str) -> String {
        match self.payload_type {
            PayloadType::Bytes => format!("octet_length({expression})"),
            PayloadType::Text | PayloadType::Json => format!("octet_length({expression}::text)"),
        }
    }

    /// When a row of `o` is to be delivered at the earliest. None: there is no such column.
    pub(super) fn available(&self) -> Option<String> {
        self.available_at.as_ref().map(TimeColumn::of_o)
    }

    /// A condition on rows of `o`: scheduled, true or false. None: rows cannot be.
    pub(super) fn scheduled(&self) -> Option<String> {
        let at = self.available()?;
        Some(match self.created_at.as_ref().map(TimeColumn::of_o) {
            Some(created) => format!("({at} IS NOT NULL AND ({created} IS NULL OR {at} > {created}))"),
            None => format!("({at} IS NOT NULL)"),
        })
    }

    /// When a row of `o` is due, if it is scheduled; NULL otherwise.
    pub(super) fn due_if_scheduled(&self) -> String {
        match (self.available(), self.scheduled()) {
            (Some(at), Some(scheduled)) => format!("CASE WHEN {scheduled} THEN {at} END"),
            _ => "NULL::timestamptz".to_owned(),
        }
    }

    /// A condition on rows of `o`: not scheduled.
    fn ordinary(&self) -> String {
        self.scheduled().map_or_else(|| "true".to_owned(), |scheduled| format!("NOT {scheduled}"))
    }

    /// $1 and $2 arrays of the ends of the ranges, $3 array of shards.
    fn of_ranges(&self) -> String {
        let shard = self.shard.as_ref().map_or("0 = ANY ($3)".to_owned(), |shard| format!("o.{shard} = ANY ($3)"));
        format!("FROM unnest($1, $2) r(f, l) JOIN {} o ON o.{} BETWEEN r.f AND r.l WHERE {shard}", self.table, self.seq)
    }

    /// The scheduled rows that are due soonest: $4 limit.
    fn ahead(&self) -> Option<String> {
        let (at, scheduled) = (self.available()?, self.scheduled()?);
        let shard = self.shard.as_ref().map_or("0::smallint".to_owned(), |shard| format!("o.{shard}::smallint"));
        Some(format!(
            "SELECT {shard}, o.{seq}::bigint, {at}, clock_timestamp() {from} AND {scheduled} AND {at} < 'infinity' \
             ORDER BY {at}, o.{seq} LIMIT $4",
            seq = self.seq,
            from = self.of_ranges()
        ))
    }

    /// Makes ordinary rows of those that are due and that nobody holds.
    fn make_ordinary(&self) -> Option<String> {
        let (column, at, scheduled) = (self.available_at.as_ref()?, self.available()?, self.scheduled()?);
        let created = self.created_at.as_ref().filter(|c| c.zoned == column.zoned);
        let (shard, same) = match &self.shard {
            Some(shard) => (format!(", o.{shard} AS shard"), format!(" AND o.{shard} = due.shard")),
            None => (String::new(), String::new()),
        };
        Some(format!(
            "WITH due AS (SELECT o.{seq} AS seq{shard} {from} AND {scheduled} AND {at} <= clock_timestamp() \
               FOR UPDATE OF o SKIP LOCKED) \
             UPDATE {table} o SET {name} = {to} FROM due WHERE o.{seq} = due.seq{same}",
            seq = self.seq,
            from = self.of_ranges(),
            table = self.table,
            name = column.name,
            to = created.map_or("NULL".to_owned(), |c| format!("o.{}", c.name)),
        ))
    }

    /// The columns of a row as SQL.
    fn columns(&self) -> Columns {
        let column = |name: &str| format!("o.{name}");
        let optional = |name: &Option<String>| name.as_deref().map_or("NULL::text".to_owned(), column);
        Columns {
            seq: column(&self.seq),
            shard: self.shard.as_ref().map_or("0::smallint".to_owned(), |s| format!("o.{s}::smallint")),
            id: column(&self.id),
            topic: column(&self.topic),
            key: optional(&self.key),
            headers: optional(&self.headers),
            payload: column(&self.payload),
            created: self.created_at.as_ref().map_or("now()".to_owned(), |c| column(&c.name)),
        }
    }

    /// What is sent of a row. $1: payloads and headers up to this size come along. `beyond`: a condition that is sent
    /// along.
    fn sent(&self, c: &Columns, beyond: &str) -> String {
        let size = self.payload_bytes(&c.payload);
        let (header_size, headers) = match self.headers {
            Some(_) => {
                let size = format!("octet_length({}::text)", c.headers);
                (size.clone(), format!("CASE WHEN {size} <= $1 THEN {} END", self.text(&c.headers)))
            }
            None => ("0".to_owned(), "NULL::text".to_owned()),
        };
        format!(
            "{}::bigint, {}, {}, {}, {}, {}, {size}, {header_size}, {beyond}, {headers}, CASE WHEN {size} <= $1 THEN {} END",
            c.seq,
            c.shard,
            self.text(&c.id),
            self.text(&c.topic),
            self.text(&c.key),
            c.created,
            self.payload_as_sent(&c.payload)
        )
    }

    /// The statement that sends a page: first the rows (`from`: everything from FROM to WHERE) are chosen, put in order
    /// and limited to $2, then what is sent is worked out for those alone.
    fn page_of(&self, from: &str, beyond: &str) -> String {
        let c = self.columns();
        let chosen = format!(
            "SELECT {} AS seq, {} AS shard, {} AS id, {} AS topic, {} AS key, {} AS headers, {} AS payload, {} AS created {from} \
             ORDER BY o.{} LIMIT $2",
            c.seq, c.shard, c.id, c.topic, c.key, c.headers, c.payload, c.created, self.seq
        );
        format!("SELECT {} FROM ({chosen}) page ORDER BY seq", self.sent(&Columns::of_page(), beyond))
    }

    /// Headers and payloads of rows named by $1 shards and $2 numbers, with their ids; a payload above $3 and headers
    /// above $4 stay there.
    fn contents(&self) -> String {
        let of = |column: &str| format!("o.{column}");
        let shard = self.shard.as_ref().map_or("true".to_owned(), |shard| format!("o.{shard} = r.s"));
        format!(
            "SELECT o.{seq}::bigint, {id}, {headers}, CASE WHEN {size} <= $3 THEN {payload} END \
             FROM unnest($1, $2) r(s, q) JOIN {table} o ON {shard} AND o.{seq} = r.q",
            id = self.text(&of(&self.id)),
            headers = self.headers.as_deref().map_or("NULL::text".to_owned(), |h| {
                format!("CASE WHEN octet_length({}::text) <= $4 THEN {} END", of(h), self.text(&of(h)))
            }),
            size = self.payload_bytes(&of(&self.payload)),
            payload = self.payload_as_sent(&of(&self.payload)),
            table = self.table,
            seq = self.seq
        )
    }

    /// One shard: $2 limit, $3 and $4 the ends of the range. Comes in order out of the index.
    fn one_range(&self, which: &str) -> String {
        format!(
            "SELECT {} FROM {} o WHERE o.{seq} BETWEEN $3 AND $4 AND {which} ORDER BY o.{seq} LIMIT $2",
            self.sent(&self.columns(), "false"),
            self.table,
            seq = self.seq
        )
    }

    /// One shard: $2 limit, $3 and $4 arrays of the ends of the ranges.
    fn several_ranges(&self, which: &str) -> String {
        let from = format!(
            "FROM unnest($3, $4) r(f, l), LATERAL (SELECT * FROM {} o WHERE o.{seq} BETWEEN r.f AND r.l AND {which} \
             ORDER BY o.{seq} LIMIT $2) o",
            self.table,
            seq = self.seq
        );
        self.page_of(&from, "false")
    }

    /// Several shards: $2 limit, $3 and $4 arrays of the ends of the ranges, $5 array of shards.
    fn all_there_is(&self, shard: &str, which: &str) -> String {
        let from = format!(
            "FROM unnest($3, $4) r(f, l) JOIN {} o ON o.{} BETWEEN r.f AND r.l AND o.{shard} = ANY ($5) AND {which}",
            self.table, self.seq
        );
        self.page_of(&from, "false")
    }

    /// As [`Layout::all_there_is`], within $6 numbers from the first row.
    fn a_stretch(&self, shard: &str, which: &str) -> String {
        let (table, seq) = (&self.table, &self.seq);
        let from = format!(
            "FROM low CROSS JOIN unnest($3, $4) r(f, l) JOIN {table} o \
               ON o.{seq} BETWEEN greatest(r.f, low.seq) AND least(r.l, low.seq + $6) AND o.{shard} = ANY ($5) AND {which}"
        );
        let first_of_each = |from: &str| {
            format!(
                "unnest($5) s(n), unnest($3, $4) r(f, l), LATERAL (SELECT o.{seq} AS seq FROM {table} o \
                 WHERE o.{shard} = s.n AND o.{seq} BETWEEN {from} AND r.l AND {which} ORDER BY o.{seq} LIMIT 1) x"
            )
        };
        let beyond = format!("EXISTS (SELECT FROM low, {})", first_of_each("greatest(r.f, low.seq + $6 + 1)"));
        format!(
            "WITH low AS MATERIALIZED (SELECT min(x.seq) AS seq FROM {}) {}",
            first_of_each("r.f"),
            self.page_of(&from, &beyond)
        )
    }

    /// Whether there is anything in a range, due or not.
    fn anything(&self, (first, last): (i64, i64), shards: &[i16]) -> String {
        let (table, seq) = (&self.table, &self.seq);
        match &self.shard {
            None => {
                format!("SELECT 1 FROM {table} o WHERE o.{seq} BETWEEN {first} AND {last} ORDER BY o.{seq} LIMIT 1")
            }
            Some(shard) => {
                let shards: Vec<String> = shards.iter().map(i16::to_string).collect();
                format!(
                    "SELECT 1 FROM {table} o WHERE o.{shard} = ANY ('{{{}}}') AND o.{seq} BETWEEN {first} AND {last} LIMIT 1",
                    shards.join(",")
                )
            }
        }
    }
}

impl PostgresStore {
    pub(super) async fn read_rows(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        let once = Stretch::new();
        let (slot, stretch) = match request.purpose {
            ReadPurpose::Poll => (&self.poll, &self.poll_stretch),
            ReadPurpose::Rescan => (&self.rescan, &self.rescan_stretch),
            ReadPurpose::Due => (&self.schedule, &once),
        };
        let layout = self.layout(slot).await?;
        let mut shards: Vec<i16> = request.shards.iter().map(|s| small(*s)).collect();
        shards.sort_unstable();
        shards.dedup();
        if layout.shard.is_none() && shards.first() != Some(&0) || shards.is_empty() {
            return Ok(ReadRows::default());
        }
        let limit = i64::from(request.limit.max(1));
        let ranges: Vec<(i64, i64)> = request.ranges.iter().map(|r| (signed(r.first), signed(r.last))).collect();
        let is_due = request.purpose == ReadPurpose::Due;
        if is_due && let Some(sql) = layout.make_ordinary() {
            let (firsts, lasts): (Vec<i64>, Vec<i64>) = ranges.iter().copied().unzip();
            let statement = Statement::new(&sql)
                .with(&firsts, Type::INT8_ARRAY)
                .with(&lasts, Type::INT8_ARRAY)
                .with(&shards, Type::INT2_ARRAY);
            let held = slot.take(&self.dialer).await?;
            if let Err(failure) = held.link.begin(&self.dialer.begin_write, &[]).await {
                return held.give_back(Err(failure));
            }
            let result = held.link.run_and_commit(&[statement]).await;
            held.give_back(result)?;
        }
        if let [range] = ranges.as_slice()
            && stretch.idle.load(Ordering::Relaxed)
            && !self.is_anything_there(slot, &layout, *range, &shards).await?
        {
            return Ok(ReadRows::default());
        }
        let page = Page {
            limit,
            // So that all rows may have theirs.
            inline_bytes: inline_bytes(request.max_bytes, request.limit, self.options.max_message_bytes),
            shards: &shards,
            ranges: &ranges,
            stretch: if shards.len() > 1 && !is_due { stretch.next(limit) } else { None },
            which: layout.ordinary(),
        };
        let mut found = self.page(slot, &layout, &page).await?;
        let full = i64::try_from(found.len()).unwrap_or(i64::MAX) >= limit;
        let mut cut = full || found.last().is_some_and(|f| f.beyond);
        let limits = self.row_limits();
        // What fits: the first row always does.
        let max_bytes = u64::try_from(request.max_bytes).unwrap_or(u64::MAX);
        let mut bytes = 0u64;
        let fits = found
            .iter()
            .take_while(|f| {
                let first = bytes == 0;
                bytes = bytes.saturating_add(f.bytes(limits));
                first || bytes <= max_bytes
            })
            .count();
        cut |= fits < found.len();
        found.truncate(fits);
        cut |= self.fetch_contents(slot, &layout, &mut found).await?;
        let rows: Vec<Row> = found.into_iter().map(|f| f.raw.into_row(limits)).collect();
        stretch.learn(cut, &rows);
        Ok(ReadRows { rows, cut })
    }

    pub(super) async fn upcoming(&self, shards: &[ShardId], ranges: &[Run], limit: usize) -> StoreResult<Upcoming> {
        let layout = self.layout(&self.schedule).await?;
        let shards: Vec<i16> = shards.iter().map(|s| small(*s)).collect();
        let Some(sql) = layout.ahead() else { return Ok(Upcoming::default()) };
        let (firsts, lasts): (Vec<i64>, Vec<i64>) = ranges.iter().map(|r| (signed(r.first), signed(r.last))).unzip();
        let most = i64::try_from(limit).unwrap_or(i64::MAX);
        let statement = Statement::new(&sql)
            .with(&firsts, Type::INT8_ARRAY)
            .with(&lasts, Type::INT8_ARRAY)
            .with(&shards, Type::INT2_ARRAY)
            .with(&most, Type::INT8);
        let mut upcoming = Upcoming::default();
        for row in &self.select(&self.schedule, statement).await? {
            upcoming.now_us = get::<Micros>(row, 3)?.0;
            let shard = ShardId(u16::try_from(get::<i16>(row, 0)?).unwrap_or_default());
            let (seq, due_at_us) = (Seq(unsigned(get(row, 1)?)), get::<Micros>(row, 2)?.0);
            upcoming.rows.push(Scheduled { shard, seq, due_at_us });
        }
        upcoming.cut = upcoming.rows.len() >= limit;
        Ok(upcoming)
    }

    /// A small part of the cost of a read, on both sides: what an idle relay asks.
    async fn is_anything_there(
        &self,
        slot: &Slot,
        layout: &Layout,
        range: (i64, i64),
        shards: &[i16],
    ) -> StoreResult<bool> {
        let sql = format!("{}; {}; END", self.dialer.begin_probe, layout.anything(range, shards));
        let held = slot.take(&self.dialer).await?;
        let answer = held.link.has_row(&sql).await;
        held.give_back(answer)
    }

    /// Fetches what did not come along and is wanted. True: a row is gone by now, and so are those after it from
    /// `found`.
    async fn fetch_contents(&self, slot: &Slot, layout: &Layout, found: &mut Vec<Found>) -> StoreResult<bool> {
        let limits = self.row_limits();
        let wanted = |f: &&Found| !f.whole && f.bytes(limits) > 0;
        let (shards, seqs): (Vec<i16>, Vec<i64>) = found
            .iter()
            .filter(wanted)
            .map(|f| (i16::try_from(f.raw.shard).unwrap_or(i16::MAX), signed(f.raw.seq)))
            .unzip();
        if seqs.is_empty() {
            return Ok(false);
        }
        let sql = layout.contents();
        let most = [limits.message_bytes, limits.headers_bytes].map(|n| i32::try_from(n).unwrap_or(i32::MAX));
        let statement = Statement::new(&sql)
            .with(&shards, Type::INT2_ARRAY)
            .with(&seqs, Type::INT8_ARRAY)
            .with(&most[0], Type::INT4)
            .with(&most[1], Type::INT4);
        let rows = self.select(slot, statement).await?;
        let mut contents = HashMap::with_capacity(rows.len());
        for row in &rows {
            contents.insert(unsigned(get(row, 0)?), row);
        }
        let mut kept = 0;
        for f in found.iter_mut() {
            if wanted(&&*f) {
                let Some(row) = contents.get(&f.raw.seq) else { break };
                if bytes_of(row, 1)? != f.raw.id {
                    break; // another row has taken over the number
                }
                f.raw.headers = bytes_of(row, 2)?;
                f.raw.payload = bytes_of(row, 3)?.map_or_else(Bytes::new, Bytes::from);
            }
            kept += 1;
        }
        let gone = kept < found.len();
        found.truncate(kept);
        Ok(gone)
    }

    /// The row of a number, whether it is due or not.
    pub(super) async fn row_at(&self, slot: &Slot, layout: &Layout, shard: i16, seq: i64) -> StoreResult<Option<Row>> {
        let page = Page {
            limit: 1,
            inline_bytes: inline_bytes(usize::MAX, 1, self.options.max_message_bytes),
            shards: &[shard],
            ranges: &[(seq, seq)],
            stretch: None,
            which: "true".into(),
        };
        let mut found = self.page(slot, layout, &page).await?;
        self.fetch_contents(slot, layout, &mut found).await?;
        Ok(found.into_iter().next().map(|f| f.raw.into_row(self.row_limits())))
    }

    fn row_limits(&self) -> RowLimits {
        RowLimits::new(self.options.max_message_bytes)
    }

    async fn page(&self, slot: &Slot, layout: &Layout, page: &Page<'_>) -> StoreResult<Vec<Found>> {
        let (firsts, lasts): (Vec<i64>, Vec<i64>) = page.ranges.iter().copied().unzip();
        let one_range = layout.shard.is_none() && page.ranges.len() == 1;
        let (first, last) = page.ranges.first().copied().unwrap_or((0, -1));
        let sql = match (&layout.shard, page.stretch) {
            (None, _) if one_range => layout.one_range(&page.which),
            (None, _) => layout.several_ranges(&page.which),
            (Some(shard), None) => layout.all_there_is(shard, &page.which),
            (Some(shard), Some(_)) => layout.a_stretch(shard, &page.which),
        };
        let mut statement = Statement::new(&sql).with(&page.inline_bytes, Type::INT4).with(&page.limit, Type::INT8);
        statement = if one_range {
            statement.with(&first, Type::INT8).with(&last, Type::INT8)
        } else {
            statement.with(&firsts, Type::INT8_ARRAY).with(&lasts, Type::INT8_ARRAY)
        };
        if layout.shard.is_some() {
            statement = statement.with(&page.shards, Type::INT2_ARRAY);
        }
        if let Some(length) = &page.stretch {
            statement = statement.with(length, Type::INT8);
        }
        self.select(slot, statement).await?.iter().map(found).collect()
    }
}

/// What one statement reads.
struct Page<'a> {
    limit: i64,
    /// Payloads and headers up to this size come along.
    inline_bytes: i32,
    shards: &'a [i16],
    ranges: &'a [(i64, i64)],
    stretch: Option<i64>,
    /// Condition on the rows.
    which: String,
}

fn inline_bytes(max_bytes: usize, limit: u32, max_message_bytes: u64) -> i32 {
    let each = (max_bytes as u64 / u64::from(limit.max(1))).min(max_message_bytes).min(HEADERS_MAX_BYTES);
    i32::try_from(each).unwrap_or(i32::MAX)
}

fn bytes_of(row: &tokio_postgres::Row, column: usize) -> StoreResult<Option<Vec<u8>>> {
    Ok(get::<Option<Raw<'_>>>(row, column)?.map(|raw| raw.0.to_vec()))
}

fn found(row: &tokio_postgres::Row) -> StoreResult<Found> {
    let bytes = |column| Ok::<_, StoreError>(get::<Option<i32>>(row, column)?.map_or(0, |n| unsigned(n.into())));
    let (payload_bytes, headers_bytes) = (bytes(6)?, bytes(7)?);
    let (headers, payload) = (bytes_of(row, 9)?, bytes_of(row, 10)?);
    let whole = (headers.is_some() || headers_bytes == 0) && (payload.is_some() || payload_bytes == 0);
    let raw = RawRow {
        seq: unsigned(get(row, 0)?),
        shard: u16::try_from(get::<i16>(row, 1)?).unwrap_or_default(),
        id: bytes_of(row, 2)?,
        topic: bytes_of(row, 3)?,
        key: bytes_of(row, 4)?,
        headers,
        headers_bytes,
        payload_bytes,
        created_at_us: get::<Micros>(row, 5)?.0,
        payload: payload.map_or_else(Bytes::new, Bytes::from),
    };
    Ok(Found { raw, whole, beyond: get(row, 8)? })
}
