//! What applications and relays agree on about a row of the outbox table: its columns, and what fits into them.

/// The most bytes of an id.
pub const ID_MAX_BYTES: usize = 64;
/// The most bytes of a topic.
pub const TOPIC_MAX_BYTES: usize = 255;
/// The most bytes of a key.
pub const KEY_MAX_BYTES: usize = 255;
/// Headers above this are not fetched and not kept, bytes: their row is parked with the reason. A message has to fit into
/// a chunk with them, and they take part in every limit on memory.
pub const HEADERS_MAX_BYTES: u64 = 1 << 20;
/// The default of `max_message_bytes`: the row of a payload above it is parked with the reason.
pub const MESSAGE_MAX_BYTES: u64 = 4 << 20;

/// The largest packet that is sent to a MySQL or MariaDB server, bytes, whatever it would take.
pub const PACKET_MAX_BYTES: u64 = 16 << 20;
/// Packets are kept this much below the server's limit, bytes: its header, and what the server adds.
pub const PACKET_RESERVE_BYTES: u64 = 64;

/// The most bytes of a payload and of headers that go through packets of this size: a row has to fit into one, and so
/// has the chunk that holds it.
pub const fn packet_limits(packet_bytes: u64) -> (u64, u64) {
    (packet_bytes / 16 * 13, packet_bytes / 8)
}

/// Type of the outbox's `payload` column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PayloadType {
    /// LONGBLOB, BYTEA, BLOB.
    #[default]
    Bytes,
    /// LONGTEXT, TEXT.
    Text,
    /// JSON, JSONB; TEXT on SQLite.
    Json,
}

/// What the outbox's columns are called in this database. The preset for tables that were made for Debezium's outbox
/// router is [`ColumnNames::debezium`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnNames {
    /// Default `seq`.
    pub seq: String,
    /// Default `shard`. None: the table has no such column, everything is shard 0.
    pub shard: Option<String>,
    /// Default `id`.
    pub id: String,
    /// Default `topic`.
    pub topic: String,
    /// Default `msg_key`. None: no keys.
    pub key: Option<String>,
    /// Default `headers`. None: no headers.
    pub headers: Option<String>,
    /// Default `payload`.
    pub payload: String,
    /// Default `created_at`. None: the time at which the relay read the row.
    pub created_at: Option<String>,
    /// Default `available_at`. None: no scheduled messages.
    pub available_at: Option<String>,
}

impl Default for ColumnNames {
    fn default() -> Self {
        Self {
            seq: "seq".into(),
            shard: Some("shard".into()),
            id: "id".into(),
            topic: "topic".into(),
            key: Some("msg_key".into()),
            headers: Some("headers".into()),
            payload: "payload".into(),
            created_at: Some("created_at".into()),
            available_at: Some("available_at".into()),
        }
    }
}

impl ColumnNames {
    /// The names that Debezium's outbox event router documents: id, aggregatetype, aggregateid, type, payload. Such a
    /// table has no `seq`: adopting it needs one ALTER TABLE, which `validate` prints.
    pub fn debezium() -> Self {
        Self {
            shard: None,
            topic: "aggregatetype".into(),
            key: Some("aggregateid".into()),
            headers: None,
            created_at: None,
            available_at: None,
            ..Self::default()
        }
    }
}
