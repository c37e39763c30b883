//! Events into the outbox table.

use outhaul_core::outbox::{
    ColumnNames, HEADERS_MAX_BYTES, ID_MAX_BYTES, KEY_MAX_BYTES, MESSAGE_MAX_BYTES, PACKET_MAX_BYTES,
    PACKET_RESERVE_BYTES, PayloadType, TOPIC_MAX_BYTES, packet_limits,
};

use crate::driver::{Dialect, Transaction};
use crate::error::Error;
use crate::event::{Checked, Event, fresh_id, header_text, micros};
use crate::statement::{Statement, Value, quoted};

/// Rows of one INSERT: six parameters each stay far below what any of the databases takes (SQLite: 32,766).
const CHUNK_ROWS: usize = 500;
/// Bytes of one INSERT, unless a single row is larger.
const CHUNK_BYTES: usize = 512 << 10;
/// A MySQL server with a smaller packet limit than this is not expected: whether a message fits is asked only above.
const PACKET_EXPECTED_BYTES: u64 = 1 << 20;
/// The last moments that columns of time hold, microseconds since 1970-01-01 UTC: TIMESTAMP of MySQL, less the hour that
/// may be added to a time; elsewhere the end of the year 9999.
const LAST_MYSQL_US: i64 = (2_147_483_647 - 3_600) * 1_000_000;
const LAST_US: i64 = 253_402_300_799_000_000;

/// The outbox table of a database: puts events into it within the caller's transactions. Cheap to clone and to share.
#[derive(Clone, Debug)]
pub struct Outbox {
    prefix: String,
    table: String,
    columns: ColumnNames,
    payload: PayloadType,
    max_message_bytes: u64,
    traceparent: Option<fn() -> Option<String>>,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Outbox {
    /// The table `outbox` as `outhaul init` makes it.
    pub fn new() -> Self {
        Self {
            prefix: String::new(),
            table: "outbox".into(),
            columns: ColumnNames::default(),
            payload: PayloadType::Bytes,
            max_message_bytes: MESSAGE_MAX_BYTES,
            traceparent: None,
        }
    }

    /// What the names of the tables begin with: `table_prefix` of the relay.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Name of the table without the prefix: `outbox_table` of the relay.
    #[must_use]
    pub fn table(mut self, table: impl Into<String>) -> Self {
        self.table = table.into();
        self
    }

    /// What its columns are called. An event with a part that the table has no column for is refused.
    #[must_use]
    pub fn columns(mut self, columns: ColumnNames) -> Self {
        self.columns = columns;
        self
    }

    /// Type of its payload column: `outhaul init --payload`. Text and JSON take no other payloads, and a database may
    /// write JSON in its own way.
    #[must_use]
    pub fn payload_type(mut self, payload: PayloadType) -> Self {
        self.payload = payload;
        self
    }

    /// `max_message_bytes` of the relay, bytes. Default 4 MiB.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Where the header `traceparent` (W3C Trace Context) of events comes from that have none, for instance the span
    /// that OpenTelemetry says is current. A function and not a feature: OpenTelemetry's crates change their version
    /// every few months, and the application has the one that it uses. What it returns is left out unless it has the
    /// form of a traceparent.
    #[must_use]
    pub fn traceparent(mut self, current: fn() -> Option<String>) -> Self {
        self.traceparent = Some(current);
        self
    }

    /// Inserts an event within the caller's transaction and returns its id. It is delivered if and only if that commits.
    ///
    /// # Errors
    /// [`Error::Event`], [`Error::TooLarge`]: it could not be delivered; [`Error::NoTransaction`]. Nothing was written,
    /// and the transaction is as it was. Anything else is the database's word on the INSERT: roll back.
    pub async fn enqueue<T: Transaction + ?Sized>(&self, tx: &mut T, event: Event) -> Result<String, Error> {
        let ids = self.enqueue_many(tx, [event]).await?;
        Ok(ids.into_iter().next().unwrap_or_default())
    }

    /// Inserts events in their order, many with each statement, and returns their ids. All are looked at before the
    /// first is written.
    ///
    /// # Errors
    /// As [`enqueue`](Self::enqueue); events before the one that the database refused may be in the transaction.
    pub async fn enqueue_many<T: Transaction + ?Sized>(
        &self,
        tx: &mut T,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<String>, Error> {
        let dialect = tx.dialect();
        let rows = self.checked(dialect, events)?;
        if !tx.is_open() {
            return Err(Error::NoTransaction);
        }
        if dialect == Dialect::MySql && asks_for_packet(&rows) {
            let answer = tx.fetch(Statement::new("SELECT CAST(@@max_allowed_packet AS CHAR)")).await?;
            fit_into_packet(&rows, answer)?;
        }
        for chunk in chunks(&rows) {
            tx.execute(self.insert(dialect, chunk)).await?;
        }
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    /// Looks at events as the relay will.
    pub(crate) fn checked(
        &self,
        dialect: Dialect,
        events: impl IntoIterator<Item = Event>,
    ) -> Result<Vec<Checked>, Error> {
        events.into_iter().map(|event| self.check(dialect, event)).collect()
    }

    fn check(&self, dialect: Dialect, mut event: Event) -> Result<Checked, Error> {
        self.add_traceparent(&mut event);
        let id = event.id.unwrap_or_else(fresh_id);
        for (part, text, most) in [
            ("the id", Some(&id), ID_MAX_BYTES),
            ("the topic", Some(&event.topic), TOPIC_MAX_BYTES),
            ("the key", event.key.as_ref(), KEY_MAX_BYTES),
        ] {
            check_text(part, text.map(String::as_str), most)?;
        }
        let headers = header_text(&event.headers);
        at_most("the headers", headers.as_ref().map_or(0, String::len), HEADERS_MAX_BYTES)?;
        at_most("the payload", event.payload.len(), self.max_message_bytes)?;
        check_payload(self.payload, &event.payload)?;
        let available_at_us = event.available_at.map(|at| check_time(dialect, micros(at))).transpose()?.flatten();
        for (part, given, column) in [
            ("key", event.key.is_some(), &self.columns.key),
            ("headers", headers.is_some(), &self.columns.headers),
            ("time", available_at_us.is_some(), &self.columns.available_at),
        ] {
            if given && column.is_none() {
                return Err(Error::Event(format!("it has a {part}, and the table has no column for it")));
            }
        }
        Ok(Checked { id, topic: event.topic, key: event.key, headers, payload: event.payload, available_at_us })
    }

    fn add_traceparent(&self, event: &mut Event) {
        const NAME: &str = "traceparent";
        if self.columns.headers.is_none() || event.headers.iter().any(|(name, _)| name == NAME) {
            return;
        }
        let current = self.traceparent.and_then(|current| current()).filter(|value| is_traceparent(value));
        event.headers.extend(current.map(|value| (NAME.to_owned(), value)));
    }

    /// The INSERT of these rows.
    pub(crate) fn insert<'a>(&self, dialect: Dialect, rows: &'a [Checked]) -> Statement<'a> {
        let c = &self.columns;
        let due = c.available_at.as_deref().filter(|_| rows.iter().any(|row| row.available_at_us.is_some()));
        let names =
            [Some(c.id.as_str()), Some(&c.topic), c.key.as_deref(), c.headers.as_deref(), Some(&c.payload), due];
        let names: Vec<String> = names.into_iter().flatten().map(|name| quoted(dialect, name)).collect();
        let table = quoted(dialect, &format!("{}{}", self.prefix, self.table));
        let mut s = Statement::new(format!("INSERT INTO {table} ({}) VALUES ", names.join(", ")));
        s.repeats = rows.len() == 1;
        for (n, row) in rows.iter().enumerate() {
            s.push(if n == 0 { "(" } else { ", (" });
            s.name(dialect, Some(&row.id));
            s.push(", ");
            s.text(dialect, Some(&row.topic));
            if c.key.is_some() {
                s.push(", ");
                s.name(dialect, row.key.as_deref());
            }
            if c.headers.is_some() {
                s.push(", ");
                s.text(dialect, row.headers.as_deref());
                s.push(if dialect == Dialect::Postgres { "::json" } else { "" });
            }
            s.push(", ");
            self.payload(dialect, &mut s, &row.payload);
            if due.is_some() {
                s.push(", ");
                push_time(dialect, &mut s, row.available_at_us);
            }
            s.push(")");
        }
        s
    }

    fn payload<'a>(&self, dialect: Dialect, s: &mut Statement<'a>, payload: &'a [u8]) {
        match (self.payload, std::str::from_utf8(payload)) {
            (PayloadType::Text | PayloadType::Json, Ok(text)) => {
                s.text(dialect, Some(text));
                let json = self.payload == PayloadType::Json && dialect == Dialect::Postgres;
                s.push(if json { "::jsonb" } else { "" });
            }
            _ => s.value(dialect, ("", ""), Value::Bytes(payload)),
        }
    }
}

/// A time within the range that the column holds; none if it has passed so long ago that it means nothing.
fn check_time(dialect: Dialect, us: Option<i64>) -> Result<Option<i64>, Error> {
    let last = if dialect == Dialect::MySql { LAST_MYSQL_US } else { LAST_US };
    match us {
        Some(us) if us < 1_000_000 => Ok(None),
        Some(us) if us <= last => Ok(Some(us)),
        _ => Err(Error::Event("available_at is later than its column holds".into())),
    }
}

fn push_time<'a>(dialect: Dialect, s: &mut Statement<'a>, us: Option<i64>) {
    let value = Value::Number(us);
    match dialect {
        // A TIMESTAMP is written in the time zone of the session, where an hour in autumn stands for two. What would be
        // taken for the earlier one is written as an hour later: late, never early.
        Dialect::MySql => {
            const SECONDS: (&str, &str) = ("CAST(", " AS DECIMAL(26,6)) / 1000000");
            s.push("FROM_UNIXTIME(");
            s.value(dialect, SECONDS, value);
            s.push(" + IF(UNIX_TIMESTAMP(FROM_UNIXTIME(");
            s.value(dialect, SECONDS, value);
            s.push(")) < ");
            s.value(dialect, SECONDS, value);
            s.push(", 3600, 0))");
        }
        Dialect::Postgres => {
            s.value(dialect, ("'epoch'::timestamptz + ", "::bigint * interval '1 microsecond'"), value)
        }
        Dialect::Sqlite => s.value(dialect, ("", ""), value),
    }
}

fn check_text(part: &'static str, text: Option<&str>, most: usize) -> Result<(), Error> {
    let Some(text) = text else { return Ok(()) };
    if text.is_empty() {
        return Err(Error::Event(format!("{part} is empty")));
    }
    if text.contains('\0') {
        return Err(Error::Event(format!("{part} holds the character NUL, which not every database stores")));
    }
    at_most(part, text.len(), most as u64)
}

fn at_most(part: &'static str, bytes: usize, limit: u64) -> Result<(), Error> {
    let bytes = bytes as u64;
    if bytes > limit { Err(Error::TooLarge { part, bytes, limit }) } else { Ok(()) }
}

fn check_payload(column: PayloadType, payload: &[u8]) -> Result<(), Error> {
    if column == PayloadType::Bytes {
        return Ok(());
    }
    let Ok(text) = std::str::from_utf8(payload) else {
        return Err(Error::Event("the payload is not UTF-8, and its column holds text".into()));
    };
    if text.contains('\0') {
        return Err(Error::Event("the payload holds the character NUL, which a column of text may not".into()));
    }
    if column == PayloadType::Json {
        serde_json::from_str::<serde::de::IgnoredAny>(text)
            .map_err(|source| Error::Json { what: "the payload is not JSON, and its column is", source })?;
    }
    Ok(())
}

/// `version-trace-parent-flags`, in lower-case hexadecimal (W3C Trace Context, 3.2).
fn is_traceparent(value: &str) -> bool {
    let parts: Vec<&str> = value.split('-').collect();
    let hex = |part: &&str| part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    parts.iter().map(|part| part.len()).eq([2, 32, 16, 2]) && parts.iter().all(hex)
}

/// Rows that go together into one INSERT.
fn chunks(rows: &[Checked]) -> Vec<&[Checked]> {
    let mut chunks = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (n, row) in rows.iter().enumerate() {
        if n > from && (n - from >= CHUNK_ROWS || bytes + row.bytes() > CHUNK_BYTES) {
            chunks.extend(rows.get(from..n));
            (from, bytes) = (n, 0);
        }
        bytes += row.bytes();
    }
    chunks.extend(rows.get(from..).filter(|rest| !rest.is_empty()));
    chunks
}

fn asks_for_packet(rows: &[Checked]) -> bool {
    let (payload, headers) = packet_limits(PACKET_EXPECTED_BYTES - PACKET_RESERVE_BYTES);
    rows.iter().any(|row| {
        row.payload.len() as u64 > payload || row.headers.as_ref().is_some_and(|text| text.len() as u64 > headers)
    })
}

fn fit_into_packet(rows: &[Checked], answer: Vec<Option<Vec<u8>>>) -> Result<(), Error> {
    let text = answer.into_iter().flatten().next().unwrap_or_default();
    let packet: u64 = std::str::from_utf8(&text).ok().and_then(|n| n.parse().ok()).unwrap_or(PACKET_MAX_BYTES);
    let (payload, headers) = packet_limits(packet.min(PACKET_MAX_BYTES).saturating_sub(PACKET_RESERVE_BYTES));
    for row in rows {
        at_most("the payload", row.payload.len(), payload)?;
        at_most("the headers", row.headers.as_ref().map_or(0, String::len), headers)?;
    }
    Ok(())
}
