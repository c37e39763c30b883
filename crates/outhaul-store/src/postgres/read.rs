//! Reading committed rows of the outbox.
//!
//! One statement answers a read: the page is cut by rows, a running sum over it cuts it by bytes, and payloads beyond
//! either limit are not taken out of their storage.
//!
//! Several shards lie in the index one behind the other, so that "the next rows by `seq` of all of them" would read and
//! sort everything that is there. After an answer that was cut a read therefore looks only at a stretch of `seq` from
//! the first row on; how long a stretch is, is learnt from the answers.
//!
//! Rows that are not due yet are passed over inside the server. How many there are is counted in a statement of its own,
//! which polls leave out most of the time while there are none.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};

use bytes::Bytes;
use outhaul_core::message::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::catalogue::Layout;
use super::link::{Slot, Statement, get};
use super::values::{Micros, Raw, signed, small, unsigned};
use crate::error::StoreError;
use crate::options::PayloadType;
use crate::row::RawRow;
use crate::store::{ReadPurpose, ReadRequest, ReadRows, StoreResult};

/// A stretch of `seq` is this many times the wanted rows at most: beyond it, sparse numbers cost a further read.
const STRETCH_FACTOR_MAX: i64 = 64;
/// The most that `max_message_bytes` may be here; with the headers, a row's sum must stay within 32 bits.
const MESSAGE_BYTES_MAX: i32 = 1 << 30;
/// Bytes of headers that count towards the limit of a read.
const HEADER_BYTES_MAX: i32 = 256 << 20;
/// While a count finds no row that is not due, this many reads go without one.
const READS_WITHOUT_COUNT: u32 = 100;
/// The most rows that are counted.
const COUNTED_MAX: u32 = 1_000_000;

/// What reads of one purpose know of the table.
pub(super) struct Stretch {
    backlog: AtomicBool,
    /// Numbers for each row found, at least 1.
    factor: AtomicI64,
    /// Reads until rows that are not due are counted again.
    until_count: AtomicU32,
}

impl Stretch {
    pub(super) const fn new() -> Self {
        Self { backlog: AtomicBool::new(true), factor: AtomicI64::new(2), until_count: AtomicU32::new(0) }
    }

    /// Length of the next stretch; None: read without one.
    fn next(&self, limit: i64) -> Option<i64> {
        let length = limit.saturating_mul(self.factor.load(Ordering::Relaxed));
        self.backlog.load(Ordering::Relaxed).then_some(length)
    }

    fn learn(&self, cut: bool, rows: &[Row]) {
        self.backlog.store(cut, Ordering::Relaxed);
        if let (Some(first), Some(last)) = (rows.first(), rows.last())
            && cut
        {
            let numbers = signed(last.seq.0.saturating_sub(first.seq.0));
            let factor = numbers / i64::try_from(rows.len()).unwrap_or(i64::MAX) + 1;
            self.factor.store(factor.clamp(1, STRETCH_FACTOR_MAX), Ordering::Relaxed);
        }
    }

    fn counts_now(&self) -> bool {
        let left = self.until_count.load(Ordering::Relaxed);
        self.until_count.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    fn counted(&self, scheduled: u32) {
        self.until_count.store(if scheduled == 0 { READS_WITHOUT_COUNT } else { 0 }, Ordering::Relaxed);
    }
}

/// A row of a page.
struct Found {
    row: Row,
    /// It crosses the limit of bytes.
    over: bool,
    /// There are rows beyond the stretch that was read.
    beyond: bool,
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

    /// A condition on rows of `o`: not due yet, or (`later` false) due. True where nothing is ever scheduled.
    fn due(&self, later: bool) -> String {
        let Some(c) = &self.available_at else { return (!later).to_string() };
        let now = if c.zoned { "now()" } else { "(now() AT TIME ZONE 'UTC')" };
        match later {
            true => format!("o.{} > {now}", c.name),
            false => format!("(o.{0} IS NULL OR o.{0} <= {now})", c.name),
        }
    }

    /// The columns of a page, named alike whatever the table calls them.
    fn page_columns(&self) -> String {
        let column = |name: &Option<String>| name.as_ref().map_or("NULL::text".to_owned(), |n| format!("o.{n}"));
        format!(
            "o.{seq} AS seq, {shard} AS shard, o.{id} AS id, o.{topic} AS topic, {key} AS key, {headers} AS headers, \
             o.{payload} AS payload, {created} AS created",
            seq = self.seq,
            shard = self.shard.as_ref().map_or("0::smallint".to_owned(), |s| format!("o.{s}::smallint")),
            id = self.id,
            topic = self.topic,
            key = column(&self.key),
            headers = column(&self.headers),
            payload = self.payload,
            created = self.created_at.as_ref().map_or("now()".to_owned(), |c| format!("o.{}", c.name)),
        )
    }

    /// The statement that sends a page (`page`: a query of [`Layout::page_columns`], in order, limited). $1: the most
    /// bytes of a payload, $2: the most bytes of all, unless the first row has more. The row that crosses the limit
    /// comes as a sign that there is one, without its payload. `beyond`: a condition that is sent along.
    fn sending(&self, page: &str, beyond: &str) -> String {
        format!(
            "SELECT seq::bigint, shard, {id}, {topic}, {key}, {headers}, size, created, \
               total > most, {beyond}, CASE WHEN size <= $1 AND total <= most THEN {payload} END \
             FROM (SELECT *, sum(counted) OVER page AS total, greatest(first_value(counted) OVER page, $2) AS most \
               FROM (SELECT *, CASE WHEN size <= $1 THEN size ELSE 0 END \
                   + least(coalesce(octet_length(headers::text), 0), {HEADER_BYTES_MAX}) AS counted \
                 FROM (SELECT *, coalesce({size}, 0) AS size FROM ({page}) page) sized) measured \
               WINDOW page AS (ORDER BY seq ROWS UNBOUNDED PRECEDING)) summed \
             WHERE total - counted <= most ORDER BY seq",
            id = self.text("id"),
            topic = self.text("topic"),
            key = self.text("key"),
            headers = self.text("headers"),
            size = self.payload_bytes("payload"),
            payload = self.payload_as_sent("payload"),
        )
    }

    /// One shard: $3 limit, $4 and $5 the ends of the range.
    fn one_range(&self, due: &str) -> String {
        let page = format!(
            "SELECT {} FROM {} o WHERE o.{seq} BETWEEN $4 AND $5 AND {due} ORDER BY o.{seq} LIMIT $3",
            self.page_columns(),
            self.table,
            seq = self.seq
        );
        self.sending(&page, "false")
    }

    /// One shard: $3 limit, $4 and $5 arrays of the ends of the ranges.
    fn several_ranges(&self, due: &str) -> String {
        let page = format!(
            "SELECT p.* FROM unnest($4, $5) r(f, l), LATERAL (SELECT {} FROM {} o WHERE o.{seq} BETWEEN r.f AND r.l \
             AND {due} ORDER BY o.{seq} LIMIT $3) p ORDER BY p.seq LIMIT $3",
            self.page_columns(),
            self.table,
            seq = self.seq
        );
        self.sending(&page, "false")
    }

    /// Several shards: $3 limit, $4 and $5 arrays of the ends of the ranges, $6 array of shards.
    fn all_there_is(&self, shard: &str, due: &str) -> String {
        let page = format!(
            "SELECT {} FROM unnest($4, $5) r(f, l) JOIN {} o ON o.{seq} BETWEEN r.f AND r.l AND o.{shard} = ANY ($6) \
             AND {due} ORDER BY o.{seq} LIMIT $3",
            self.page_columns(),
            self.table,
            seq = self.seq
        );
        self.sending(&page, "false")
    }

    /// As [`Layout::all_there_is`], within $7 numbers from the first row.
    fn a_stretch(&self, shard: &str, due: &str) -> String {
        let (table, seq) = (&self.table, &self.seq);
        let page = format!(
            "SELECT {columns} FROM low CROSS JOIN unnest($4, $5) r(f, l) JOIN {table} o \
               ON o.{seq} BETWEEN greatest(r.f, low.seq) AND least(r.l, low.seq + $7) AND o.{shard} = ANY ($6) AND {due} \
             ORDER BY o.{seq} LIMIT $3",
            columns = self.page_columns(),
        );
        let beyond = format!(
            "EXISTS (SELECT FROM low CROSS JOIN unnest($4, $5) r(f, l) JOIN {table} o \
               ON o.{seq} BETWEEN greatest(r.f, low.seq + $7 + 1) AND r.l AND o.{shard} = ANY ($6) AND {due})"
        );
        format!(
            "WITH low AS MATERIALIZED (SELECT min(x.seq) AS seq FROM unnest($6) s(n), unnest($4, $5) r(f, l), \
               LATERAL (SELECT o.{seq} AS seq FROM {table} o WHERE o.{shard} = s.n AND o.{seq} BETWEEN r.f AND r.l AND {due} \
               ORDER BY o.{seq} LIMIT 1) x) {}",
            self.sending(&page, &beyond)
        )
    }

    /// How many rows are not due: $1 and $2 arrays of the ends of the ranges, $3 array of shards.
    fn count_scheduled(&self) -> String {
        let shard = self.shard.as_ref().map_or("0 = ANY ($3)".to_owned(), |shard| format!("o.{shard} = ANY ($3)"));
        format!(
            "SELECT count(*) FROM (SELECT FROM unnest($1, $2) r(f, l) JOIN {} o ON o.{} BETWEEN r.f AND r.l AND {shard} \
             AND {} LIMIT {COUNTED_MAX}) later",
            self.table,
            self.seq,
            self.due(true)
        )
    }
}

impl PostgresStore {
    pub(super) async fn read_rows(&self, request: &ReadRequest) -> StoreResult<ReadRows> {
        let (slot, stretch) = match request.purpose {
            ReadPurpose::Poll => (&self.poll, &self.poll_stretch),
            ReadPurpose::Rescan => (&self.rescan, &self.rescan_stretch),
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
        let page = Page {
            limit,
            max_bytes: i64::try_from(request.max_bytes).unwrap_or(i64::MAX),
            shards: &shards,
            ranges: &ranges,
            stretch: if shards.len() > 1 { stretch.next(limit) } else { None },
            due: layout.due(false),
            count: layout.available_at.is_some() && stretch.counts_now(),
        };
        let (found, scheduled) = self.page(slot, &layout, &page).await?;
        if page.count {
            stretch.counted(scheduled);
        }
        let full = i64::try_from(found.len()).unwrap_or(i64::MAX) >= limit;
        let cut = full || found.last().is_some_and(|f| f.over || f.beyond);
        let rows: Vec<Row> = found.into_iter().filter(|f| !f.over).map(|f| f.row).collect();
        stretch.learn(cut, &rows);
        Ok(ReadRows { rows, cut, scheduled })
    }

    /// The row of a number, whether it is due or not.
    pub(super) async fn row_at(&self, slot: &Slot, layout: &Layout, shard: i16, seq: i64) -> StoreResult<Option<Row>> {
        let page = Page {
            limit: 1,
            max_bytes: i64::MAX,
            shards: &[shard],
            ranges: &[(seq, seq)],
            stretch: None,
            due: "true".into(),
            count: false,
        };
        Ok(self.page(slot, layout, &page).await?.0.into_iter().next().map(|f| f.row))
    }

    async fn page(&self, slot: &Slot, layout: &Layout, page: &Page<'_>) -> StoreResult<(Vec<Found>, u32)> {
        let max_message = i32::try_from(self.options.max_message_bytes).unwrap_or(i32::MAX).min(MESSAGE_BYTES_MAX);
        let (firsts, lasts): (Vec<i64>, Vec<i64>) = page.ranges.iter().copied().unzip();
        let one_range = layout.shard.is_none() && page.ranges.len() == 1;
        let (first, last) = page.ranges.first().copied().unwrap_or((0, -1));
        let sql = match (&layout.shard, page.stretch) {
            (None, _) if one_range => layout.one_range(&page.due),
            (None, _) => layout.several_ranges(&page.due),
            (Some(shard), None) => layout.all_there_is(shard, &page.due),
            (Some(shard), Some(_)) => layout.a_stretch(shard, &page.due),
        };
        let mut statement = Statement::new(&sql)
            .with(&max_message, Type::INT4)
            .with(&page.max_bytes, Type::INT8)
            .with(&page.limit, Type::INT8);
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
        let count = if page.count { layout.count_scheduled() } else { String::new() };
        let mut statements = vec![statement];
        if page.count {
            statements.push(
                Statement::new(&count)
                    .with(&firsts, Type::INT8_ARRAY)
                    .with(&lasts, Type::INT8_ARRAY)
                    .with(&page.shards, Type::INT2_ARRAY),
            );
        }
        let held = slot.take(&self.dialer).await?;
        let answers = held.link.read(&self.dialer.begin_read, &statements).await;
        let answers = held.give_back(answers)?;
        let limit = u64::from(max_message.unsigned_abs());
        let found = answers.first().into_iter().flatten().map(|row| found(row, limit)).collect::<StoreResult<_>>()?;
        let scheduled = match answers.get(1).and_then(|rows| rows.first()) {
            Some(row) => u32::try_from(get::<i64>(row, 0)?).unwrap_or(u32::MAX),
            None => 0,
        };
        Ok((found, scheduled))
    }
}

/// What one statement reads.
struct Page<'a> {
    limit: i64,
    max_bytes: i64,
    shards: &'a [i16],
    ranges: &'a [(i64, i64)],
    stretch: Option<i64>,
    /// Condition on the rows.
    due: String,
    /// Whether rows that are not due are counted.
    count: bool,
}

fn found(row: &tokio_postgres::Row, max_message_bytes: u64) -> StoreResult<Found> {
    let text = |column| Ok::<_, StoreError>(get::<Option<Raw<'_>>>(row, column)?.map(|t| t.0.to_vec()));
    let raw = RawRow {
        seq: unsigned(get(row, 0)?),
        shard: u16::try_from(get::<i16>(row, 1)?).unwrap_or_default(),
        id: text(2)?,
        topic: text(3)?,
        key: text(4)?,
        headers: text(5)?,
        payload_bytes: unsigned(get::<i32>(row, 6)?.into()),
        created_at_us: get::<Micros>(row, 7)?.0,
        payload: get::<Option<Raw<'_>>>(row, 10)?.map_or_else(Bytes::new, |p| Bytes::copy_from_slice(p.0)),
    };
    Ok(Found { over: get(row, 8)?, beyond: get(row, 9)?, row: raw.into_row(max_message_bytes) })
}
