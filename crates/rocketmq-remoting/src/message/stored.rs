//! Messages as brokers store and hand them out. Source: `MessageDecoder`, `MessageVersion` of RocketMQ 5.3.3.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::{Buf, Bytes};

use super::batch::take;
use super::compression::{Compression, CompressionError, decompress};
use super::{BatchedMessage, OffsetId, Properties, decode_batch, name, sys_flag};

/// Stored messages whose topic has one byte of length.
const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Stored messages whose topic has two bytes of length; 5.x.
const MAGIC_V2: u32 = 0xDAA3_20AB;

/// The most bytes that [`StoredMessage::body`] decompresses a body to: 32 MiB. A broker takes 4 MiB by default, of the
/// compressed body.
pub const DEFAULT_MAX_BODY_BYTES: usize = 32 * 1024 * 1024;

/// A stored message that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoredError {
    /// The bytes end within a record.
    #[error("the bytes end within a stored message")]
    Truncated,
    /// Neither of the two known formats.
    #[error("a stored message with magic number {0:#010X}")]
    Magic(u32),
    /// A part's length is negative or goes past the record's end.
    #[error("a stored message whose {0} has an impossible length")]
    Length(&'static str),
    /// A port above 65,535.
    #[error("a stored message with port {0}")]
    Port(i32),
    /// The body is not what was stored.
    #[error("the body's checksum is {actual:08X} and should be {expected:08X}")]
    Checksum {
        /// As stored beside the body.
        expected: u32,
        /// Of the body.
        actual: u32,
    },
    /// The body cannot be decompressed.
    #[error(transparent)]
    Compression(#[from] CompressionError),
}

/// A message that a broker has stored.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// The topic that it is stored in.
    pub topic: String,
    /// The queue.
    pub queue_id: i32,
    /// Its place in the queue.
    pub queue_offset: i64,
    /// Bytes from the beginning of the commit log.
    pub commit_log_offset: i64,
    /// The application's number.
    pub flag: i32,
    /// Bits of [`sys_flag`].
    pub sys_flag: i32,
    /// When the producer made it, by its own clock, in ms since 1970.
    pub born_at_ms: i64,
    /// The producer, as the broker saw it.
    pub born_host: SocketAddr,
    /// When the broker stored it, by its clock, in ms since 1970.
    pub stored_at_ms: i64,
    /// The broker, as it knows itself.
    pub store_host: SocketAddr,
    /// How often a consumer has given it back.
    pub reconsume_times: i32,
    /// Of a committed message: where its half was. 0 without.
    pub prepared_transaction_offset: i64,
    /// All properties.
    pub properties: Properties,
    /// CRC-32 of the stored body, 31 bits of it.
    pub body_checksum: u32,
    /// The body as it is stored: perhaps compressed. [`Self::body`] is what was sent.
    pub stored_body: Bytes,
}

impl StoredMessage {
    /// Takes one message off the front. On an error `bytes` is used up as far as the record was read.
    ///
    /// # Errors
    /// Any [`StoredError`] but those of bodies, which are not looked at here.
    pub fn read(bytes: &mut Bytes) -> Result<Self, StoredError> {
        let record_bytes =
            usize::try_from(i32_of(bytes)?).ok().and_then(|n| n.checked_sub(4)).ok_or(StoredError::Length("record"))?;
        if bytes.len() < record_bytes {
            return Err(StoredError::Truncated);
        }
        let mut record = bytes.split_to(record_bytes);
        let record = &mut record;
        let magic = i32_of(record)?.cast_unsigned();
        if !matches!(magic, MAGIC_V1 | MAGIC_V2) {
            return Err(StoredError::Magic(magic));
        }
        let body_checksum = i32_of(record)?.cast_unsigned();
        let queue_id = i32_of(record)?;
        let flag = i32_of(record)?;
        let queue_offset = i64_of(record)?;
        let commit_log_offset = i64_of(record)?;
        let sys_flag = i32_of(record)?;
        let born_at_ms = i64_of(record)?;
        let born_host = host_of(record, sys_flag & sys_flag::BORN_HOST_V6 != 0)?;
        let stored_at_ms = i64_of(record)?;
        let store_host = host_of(record, sys_flag & sys_flag::STORE_HOST_V6 != 0)?;
        let reconsume_times = i32_of(record)?;
        let prepared_transaction_offset = i64_of(record)?;
        let body_bytes = i32_of(record)?;
        let stored_body = take(record, i64::from(body_bytes), "body")?;
        let topic_bytes = if magic == MAGIC_V1 {
            i64::from(record.try_get_u8().map_err(|_| StoredError::Truncated)?)
        } else {
            i64::from(record.try_get_u16().map_err(|_| StoredError::Truncated)?)
        };
        let topic = take(record, topic_bytes, "topic")?;
        let properties_bytes = record.try_get_i16().map_err(|_| StoredError::Truncated)?;
        let properties = take(record, i64::from(properties_bytes), "properties")?;
        Ok(Self {
            topic: String::from_utf8_lossy(&topic).into_owned(),
            queue_id,
            queue_offset,
            commit_log_offset,
            flag,
            sys_flag,
            born_at_ms,
            born_host,
            stored_at_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            properties: Properties::parse(&String::from_utf8_lossy(&properties)),
            body_checksum,
            stored_body,
        })
    }

    /// Reads messages that follow each other without a gap, as pull and query answers hold them.
    ///
    /// # Errors
    /// The first one's.
    pub fn read_all(mut bytes: Bytes) -> Result<Vec<Self>, StoredError> {
        let mut messages = Vec::new();
        while bytes.has_remaining() {
            messages.push(Self::read(&mut bytes)?);
        }
        Ok(messages)
    }

    /// The body that was sent: checked, and decompressed to at most [`DEFAULT_MAX_BODY_BYTES`].
    ///
    /// # Errors
    /// [`StoredError::Checksum`], [`StoredError::Compression`].
    pub fn body(&self) -> Result<Bytes, StoredError> {
        self.body_within(DEFAULT_MAX_BODY_BYTES)
    }

    /// The same with another limit.
    ///
    /// # Errors
    /// As [`Self::body`].
    pub fn body_within(&self, limit_bytes: usize) -> Result<Bytes, StoredError> {
        // Java keeps 31 bits of it, so that it is never negative.
        let actual = crc32fast::hash(&self.stored_body) & 0x7FFF_FFFF;
        if actual != self.body_checksum {
            return Err(StoredError::Checksum { expected: self.body_checksum, actual });
        }
        Ok(match Compression::of(self.sys_flag)? {
            None => self.stored_body.clone(),
            Some(compression) => decompress(&self.stored_body, compression, limit_bytes)?.into(),
        })
    }

    /// Its id in this broker: duplicates differ in it.
    #[must_use]
    pub const fn offset_id(&self) -> OffsetId {
        OffsetId { store_host: self.store_host, commit_log_offset: self.commit_log_offset }
    }

    /// The id that its producer gave to it: the same for duplicates.
    #[must_use]
    pub fn unique_key(&self) -> Option<&str> {
        self.properties.get(name::UNIQUE_KEY)
    }

    /// Its keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.properties.get(name::KEYS).unwrap_or_default().split(' ').filter(|key| !key.is_empty())
    }

    /// Its tag.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.properties.get(name::TAGS)
    }

    /// The group whose producers are asked about a half message.
    #[must_use]
    pub fn producer_group(&self) -> Option<&str> {
        self.properties.get(name::PRODUCER_GROUP)
    }

    /// The messages of one that 5.x stored as a batch; `None` for any other.
    ///
    /// # Errors
    /// As [`Self::body`] and [`decode_batch`].
    pub fn unwrap_batch(&self) -> Result<Option<Vec<BatchedMessage>>, StoredError> {
        const BITS: i32 = sys_flag::NEED_UNWRAP | sys_flag::INNER_BATCH;
        if self.sys_flag & BITS == BITS { decode_batch(self.body()?).map(Some) } else { Ok(None) }
    }
}

/// Without body and values of properties: they are payload.
impl std::fmt::Debug for StoredMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoredMessage")
            .field("topic", &self.topic)
            .field("queue_id", &self.queue_id)
            .field("queue_offset", &self.queue_offset)
            .field("offset_id", &self.offset_id().to_string())
            .field("sys_flag", &self.sys_flag)
            .field("unique_key", &self.unique_key())
            .field("properties", &self.properties)
            .field("stored_body_bytes", &self.stored_body.len())
            .finish_non_exhaustive()
    }
}

fn i32_of(record: &mut Bytes) -> Result<i32, StoredError> {
    record.try_get_i32().map_err(|_| StoredError::Truncated)
}

fn i64_of(record: &mut Bytes) -> Result<i64, StoredError> {
    record.try_get_i64().map_err(|_| StoredError::Truncated)
}

fn host_of(record: &mut Bytes, v6: bool) -> Result<SocketAddr, StoredError> {
    let ip = if v6 {
        IpAddr::V6(Ipv6Addr::from_bits(record.try_get_u128().map_err(|_| StoredError::Truncated)?))
    } else {
        IpAddr::V4(Ipv4Addr::from_bits(record.try_get_u32().map_err(|_| StoredError::Truncated)?))
    };
    let port = i32_of(record)?;
    Ok(SocketAddr::new(ip, u16::try_from(port).map_err(|_| StoredError::Port(port))?))
}

#[cfg(test)]
#[path = "stored_tests.rs"]
mod tests;
