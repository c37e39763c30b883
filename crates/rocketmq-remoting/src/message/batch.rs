//! Several messages in one request, stored together or not at all.
//!
//! A record is: length of it all i32, magic i32 (0), checksum i32 (0), flag i32, length i32 and body, length i16 and
//! properties. Source: `MessageDecoder.encodeMessage`, `MessageBatch` of RocketMQ 4.9.4.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Message, MessageError, Properties, StoredError};

/// Messages that are sent together: one topic, one queue, all wait for the flush or none does.
#[derive(Clone, PartialEq, Eq)]
pub struct Batch {
    topic: String,
    wait_stored: bool,
    count: usize,
    body: Bytes,
}

impl Batch {
    /// Their topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Whether the answer waits for flush and replica.
    #[must_use]
    pub const fn waits_stored(&self) -> bool {
        self.wait_stored
    }

    /// How many there are; at least one.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// All of them, encoded.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("topic", &self.topic)
            .field("count", &self.count)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Collects the messages of a batch, up to a number of bytes.
#[derive(Debug)]
pub struct BatchBuilder {
    limit_bytes: usize,
    first: Option<(String, bool)>,
    count: usize,
    body: BytesMut,
}

impl BatchBuilder {
    /// An empty one. `limit_bytes` counts the encoded records: at most the broker's `maxMessageSize`, and 1 MiB serves
    /// well.
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, first: None, count: 0, body: BytesMut::new() }
    }

    /// Makes room for so many bytes of encoded records at once, so that nothing is copied as they come.
    pub fn reserve(&mut self, bytes: usize) {
        self.body.reserve(bytes.min(self.limit_bytes));
    }

    /// Bytes that a message takes in a batch.
    #[must_use]
    pub fn record_bytes(message: &Message) -> usize {
        22 + message.body().len() + message.properties().encoded_bytes()
    }

    /// Adds a message; false if it does not fit any more, and then nothing has changed.
    ///
    /// # Errors
    /// [`MessageError::BodyTooLarge`] if it would not fit into an empty batch either; [`MessageError::MixedBatch`],
    /// [`MessageError::DelayedInBatch`], [`MessageError::NoUniqueKey`], [`MessageError::PropertiesTooLarge`].
    pub fn push(&mut self, message: &Message) -> Result<bool, MessageError> {
        if message.unique_key().is_none() {
            return Err(MessageError::NoUniqueKey);
        }
        if message.is_delayed() {
            return Err(MessageError::DelayedInBatch);
        }
        if self.first.as_ref().is_some_and(|(topic, wait)| topic != message.topic() || *wait != message.waits_stored())
        {
            return Err(MessageError::MixedBatch);
        }
        let record_bytes = Self::record_bytes(message);
        if record_bytes > self.limit_bytes {
            return Err(MessageError::BodyTooLarge {
                bytes: message.body().len(),
                limit_bytes: self.limit_bytes.saturating_sub(record_bytes - message.body().len()),
            });
        }
        if self.body.len() + record_bytes > self.limit_bytes {
            return Ok(false);
        }
        let properties = message.properties().encode()?;
        let too_large = |_| MessageError::BodyTooLarge { bytes: message.body().len(), limit_bytes: i32::MAX as usize };
        let (total, body) =
            (i32::try_from(record_bytes).map_err(too_large)?, i32::try_from(message.body().len()).map_err(too_large)?);
        let properties_bytes = i16::try_from(properties.len())
            .map_err(|_| MessageError::PropertiesTooLarge { bytes: properties.len() })?;
        self.body.reserve(record_bytes);
        self.body.put_i32(total);
        self.body.put_i32(0); // magic: not looked at
        self.body.put_i32(0); // checksum: the broker computes it
        self.body.put_i32(message.flag());
        self.body.put_i32(body);
        self.body.put_slice(message.body());
        self.body.put_i16(properties_bytes);
        self.body.put_slice(properties.as_bytes());
        self.count += 1;
        self.first.get_or_insert_with(|| (message.topic().to_owned(), message.waits_stored()));
        Ok(true)
    }

    /// How many messages there are so far.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the records so far.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// The batch.
    ///
    /// # Errors
    /// [`MessageError::BatchEmpty`].
    pub fn finish(self) -> Result<Batch, MessageError> {
        let (topic, wait_stored) = self.first.ok_or(MessageError::BatchEmpty)?;
        Ok(Batch { topic, wait_stored, count: self.count, body: self.body.freeze() })
    }
}

/// One message of a batch, as it is read back.
#[derive(Clone, PartialEq, Eq)]
pub struct BatchedMessage {
    /// The application's number.
    pub flag: i32,
    /// Its properties.
    pub properties: Properties,
    /// Its body.
    pub body: Bytes,
}

impl std::fmt::Debug for BatchedMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchedMessage")
            .field("properties", &self.properties)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Takes the body of a batch apart: of a request, or of a stored message with [`super::sys_flag::INNER_BATCH`].
///
/// # Errors
/// [`StoredError::Truncated`] or [`StoredError::Length`] if the bytes are no batch.
pub fn decode_batch(mut body: Bytes) -> Result<Vec<BatchedMessage>, StoredError> {
    let mut messages = Vec::new();
    while body.has_remaining() {
        let total = body.try_get_i32().map_err(|_| StoredError::Truncated)?;
        let record_bytes = usize::try_from(total).ok().filter(|n| *n >= 22).ok_or(StoredError::Length("record"))?;
        if body.len() < record_bytes - 4 {
            return Err(StoredError::Truncated);
        }
        let mut record = body.split_to(record_bytes - 4);
        // Enough for magic, checksum, flag and one length: 22 bytes at least.
        let _magic_and_checksum = record.try_get_i64().map_err(|_| StoredError::Truncated)?;
        let flag = record.try_get_i32().map_err(|_| StoredError::Truncated)?;
        let body_bytes = record.try_get_i32().map_err(|_| StoredError::Truncated)?;
        let message_body = take(&mut record, i64::from(body_bytes), "body")?;
        let properties_bytes = record.try_get_i16().map_err(|_| StoredError::Truncated)?;
        let properties = take(&mut record, i64::from(properties_bytes), "properties")?;
        messages.push(BatchedMessage {
            flag,
            properties: Properties::parse(&String::from_utf8_lossy(&properties)),
            body: message_body,
        });
    }
    Ok(messages)
}

/// The next `bytes` of a record.
pub(super) fn take(record: &mut Bytes, bytes: i64, what: &'static str) -> Result<Bytes, StoredError> {
    let bytes = usize::try_from(bytes).map_err(|_| StoredError::Length(what))?;
    if bytes > record.len() { Err(StoredError::Length(what)) } else { Ok(record.split_to(bytes)) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(topic: &str, key: &str, body: &str) -> Message {
        Message::new(topic, body.to_owned()).unwrap().with_unique_key(key).unwrap()
    }

    #[test]
    fn a_record_is_laid_out_as_message_decoder_reads_it() {
        let mut builder = BatchBuilder::new(1_000);
        let message = message("T", "k", "ab").with_flag(7);
        assert!(builder.push(&message).unwrap());
        let batch = builder.finish().unwrap();
        let mut expected = vec![0, 0, 0, 35, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 2, b'a', b'b', 0, 11];
        expected.extend_from_slice(b"UNIQ_KEY\x01k\x02");
        assert_eq!(batch.body(), &expected);
        assert_eq!(BatchBuilder::record_bytes(&message), expected.len());
    }

    #[test]
    fn a_batch_is_uniform_and_bounded() {
        let mut builder = BatchBuilder::new(80);
        assert_eq!(builder.push(&Message::new("T", "x").unwrap()), Err(MessageError::NoUniqueKey));
        assert_eq!(
            builder.push(&message("T", "k", "x").with_delay_level(1).unwrap()),
            Err(MessageError::DelayedInBatch)
        );
        assert_eq!(builder.push(&message("T", "k", "x").with_deliver_at_ms(1)), Err(MessageError::DelayedInBatch));
        assert_eq!(
            builder.push(&message("T", "k", &"x".repeat(48))),
            Err(MessageError::BodyTooLarge { bytes: 48, limit_bytes: 47 })
        );
        assert_eq!(builder.push(&message("T", "k", "x")), Ok(true));
        assert_eq!(builder.push(&message("U", "k", "x")), Err(MessageError::MixedBatch));
        assert_eq!(builder.push(&message("T", "k", "x").with_wait_stored(false)), Err(MessageError::MixedBatch));
        assert_eq!(builder.push(&message("T", "k", "x")), Ok(true));
        assert_eq!(builder.push(&message("T", "k", "x")), Ok(false));
        assert_eq!((builder.count(), builder.bytes()), (2, 68));
        assert_eq!(builder.finish().unwrap().count(), 2);
        assert_eq!(BatchBuilder::new(80).finish(), Err(MessageError::BatchEmpty));
    }

    proptest! {
        #[test]
        fn round_trip(list in prop::collection::vec(("[a-z0-9]{1,9}", prop::collection::vec(any::<u8>(), 1..40), any::<i32>()), 1..10)) {
            let mut builder = BatchBuilder::new(1 << 20);
            for (key, body, flag) in &list {
                let message = Message::new("T", body.clone()).unwrap().with_unique_key(key).unwrap().with_flag(*flag);
                prop_assert!(builder.push(&message).unwrap());
            }
            let back = decode_batch(builder.finish().unwrap().body().clone()).unwrap();
            prop_assert_eq!(back.len(), list.len());
            for (message, (key, body, flag)) in back.iter().zip(&list) {
                prop_assert_eq!(message.properties.get("UNIQ_KEY"), Some(key.as_str()));
                prop_assert_eq!(&message.body, body);
                prop_assert_eq!(message.flag, *flag);
            }
        }

        #[test]
        fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_batch(bytes.into());
        }

        #[test]
        fn any_record_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 22..60), length in 0u8..70) {
            bytes[..4].copy_from_slice(&[0, 0, 0, length]);
            bytes[16..19].copy_from_slice(&[0, 0, 0]);
            let _ = decode_batch(bytes.into());
        }
    }
}
