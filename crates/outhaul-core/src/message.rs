//! What a relay carries: one outbox row, from the moment it was read.

use std::fmt;

use bytes::Bytes;

use crate::destination::DestinationSet;

/// The `seq` of a row in the outbox table: unique while the row is there, given by the database in the order of the
/// INSERTs, not of the COMMITs. It may jump, and after a TRUNCATE or a restore it may start again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// The number of a message in its shard's log: from 0, in the order in which messages were moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

/// A shard: the unit of ownership. Its number is computed by the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId(pub u16);

/// The fencing number of a lease. It grows by one each time that a shard changes hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

macro_rules! display_number {
    ($($t:ty),*) => {$(
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.fmt(f) }
        }
    )*};
}
display_number!(Seq, Position, ShardId, Epoch);

/// Why a row cannot be delivered as it stands. It is moved like any other row, and parked as `dead` with this reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Defect {
    /// `topic` is NULL or empty.
    NoTopic,
    /// The named column holds bytes that are not UTF-8; the text in the message has replacement characters.
    NotUtf8(&'static str),
    /// `headers` is not a JSON object whose values are strings, or is larger than a store fetches.
    BadHeaders(String),
    /// The payload is larger than `max_message_bytes`. It was not fetched; the parked row is filled inside the server.
    TooLarge {
        /// Size of the payload in bytes.
        bytes: u64,
        /// The limit that it exceeds, in bytes.
        limit: u64,
    },
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoTopic => f.write_str("the row has no topic"),
            Self::NotUtf8(column) => write!(f, "column {column} is not valid UTF-8"),
            Self::BadHeaders(why) => write!(f, "the headers cannot be used: {why}"),
            Self::TooLarge { bytes, limit } => {
                write!(f, "the payload has {bytes} bytes, max_message_bytes is {limit}")
            }
        }
    }
}

/// A row as a store's poll hands it over.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// `seq` of the row.
    pub seq: Seq,
    /// Shard that the database computed.
    pub shard: ShardId,
    /// `id`: at most 64 bytes, unique in intent; two rows with one id are both delivered.
    pub id: String,
    /// `topic`.
    pub topic: String,
    /// `msg_key`: messages with the same key are delivered in order. None: no order is promised.
    pub key: Option<String>,
    /// `headers` as stored: the text of a JSON object of strings.
    pub headers: Option<String>,
    /// `payload`. Empty when it was too large to be fetched.
    pub payload: Bytes,
    /// `created_at` in microseconds since 1970-01-01 UTC, by the database's clock.
    pub created_at_us: i64,
    /// What is wrong with the row, if the store could tell.
    pub defect: Option<Defect>,
}

impl Row {
    /// Bytes that this row takes in memory, roughly: what limits on memory count.
    pub fn weight(&self) -> usize {
        row_weight(&self.id, &self.topic, self.key.as_deref(), self.headers.as_deref(), &self.payload)
    }
}

fn row_weight(id: &str, topic: &str, key: Option<&str>, headers: Option<&str>, payload: &Bytes) -> usize {
    const FIXED: usize = 200; // the structure itself and the allocators' overhead
    FIXED + id.len() + topic.len() + key.map_or(0, str::len) + headers.map_or(0, str::len) + payload.len()
}

/// A message: a row with its place in the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Number in the shard's log. Provisional until the checkpoint that moves the row has committed.
    pub position: Position,
    /// `seq` of the row it came from.
    pub seq: Seq,
    /// Shard.
    pub shard: ShardId,
    /// Outbox id, the same on every delivery.
    pub id: String,
    /// Topic as written by the application.
    pub topic: String,
    /// Key, if any.
    pub key: Option<String>,
    /// Headers as stored: the text of a JSON object of strings.
    pub headers: Option<String>,
    /// Payload.
    pub payload: Bytes,
    /// `created_at`, microseconds since 1970-01-01 UTC, database clock.
    pub created_at_us: i64,
    /// Destinations that the routes named when the row was read. Stored with the message in the log.
    pub destinations: DestinationSet,
    /// What makes the message undeliverable, if anything.
    pub defect: Option<Defect>,
}

impl Message {
    /// Makes a message of a row: `headers` are checked here, so that no sink meets a bad one.
    pub fn from_row(row: Row, position: Position, destinations: DestinationSet) -> Self {
        let defect = row.defect.or_else(|| {
            if row.topic.is_empty() {
                return Some(Defect::NoTopic);
            }
            row.headers.as_deref().and_then(|text| parse_headers(text).err()).map(Defect::BadHeaders)
        });
        Self {
            position,
            seq: row.seq,
            shard: row.shard,
            id: row.id,
            topic: row.topic,
            key: row.key,
            headers: row.headers,
            payload: row.payload,
            created_at_us: row.created_at_us,
            destinations,
            defect,
        }
    }

    /// The headers as pairs, in the order in which they stand. Empty if there are none or they are not well formed
    /// (then [`Message::defect`] says so).
    pub fn header_pairs(&self) -> Vec<(String, String)> {
        self.headers.as_deref().and_then(|text| parse_headers(text).ok()).unwrap_or_default()
    }

    /// Bytes that this message takes in memory, roughly: what limits on memory count.
    pub fn weight(&self) -> usize {
        row_weight(&self.id, &self.topic, self.key.as_deref(), self.headers.as_deref(), &self.payload)
    }
}

/// The most of a header's name that a reason repeats, characters.
const NAME_SHOWN: usize = 200;

/// Parses a JSON object whose values are all strings. A repeated name keeps its last value.
///
/// # Errors
/// One line that says what is wrong, without any value.
pub fn parse_headers(text: &str) -> Result<Vec<(String, String)>, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|e| format!("not JSON (column {})", e.column()))?;
    let serde_json::Value::Object(map) = value else {
        return Err("not an object".into());
    };
    map.into_iter()
        .map(|(name, value)| match value {
            serde_json::Value::String(s) => Ok((name, s)),
            _ => Err(match name.char_indices().nth(NAME_SHOWN) {
                None => format!("the value of {name:?} is not a string"),
                Some((end, _)) => {
                    let start = name.get(..end).unwrap_or_default();
                    format!("the value of {start:?}... is not a string ({} bytes of name)", name.len())
                }
            }),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_must_be_an_object_of_strings() {
        assert_eq!(parse_headers(r#"{"a":"1"}"#).unwrap(), [("a".to_owned(), "1".to_owned())]);
        for bad in ["", "[]", "\"x\"", r#"{"a":1}"#, r#"{"a":null}"#, r#"{"a""#] {
            assert!(parse_headers(bad).is_err(), "{bad}");
        }
        let why = parse_headers(&format!("{{\"{}\":1}}", "\u{e9}".repeat(100_000))).unwrap_err();
        assert!(why.contains("\u{e9}\u{e9}") && why.chars().count() < 300, "{} characters", why.chars().count());
    }
}
