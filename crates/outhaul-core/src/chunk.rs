//! A chunk of the log: consecutive messages of a shard in one compressed value.
//!
//! Codec 1: zstd of `count`, the names of the destinations, then the messages. Integers are LEB128, times are deltas.
//! A message's destinations are stored with it, so that a changed route never settles a backlog.

use bytes::Bytes;

use crate::destination::{DestinationIndex, DestinationSet};
use crate::filter;
use crate::message::{Defect, Message, Position, Seq, ShardId};
pub use crate::wire::DecodeError;
use crate::wire::{Reader, compress, decompress, put_bytes, put_i64, put_optional, put_u64};

/// The codec that this build writes.
pub const CODEC: u8 = 1;

/// The most that a chunk may unpack to.
const MAX_CHUNK_BYTES: usize = 256 << 20;

/// A chunk ready to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedChunk {
    /// Position of the first message.
    pub base: Position,
    /// Number of messages.
    pub count: u32,
    /// Smallest `created_at`, microseconds since 1970-01-01 UTC.
    pub first_created_at_us: i64,
    /// Largest `created_at`, microseconds since 1970-01-01 UTC.
    pub last_created_at_us: i64,
    /// How `bytes` is written.
    pub codec: u8,
    /// Filter of the ids, see [`crate::filter`].
    pub id_filter: Vec<u8>,
    /// The content.
    pub bytes: Vec<u8>,
}

/// Names of destinations by index, as chunks store them.
pub trait DestinationNames {
    /// The name of a destination.
    fn name(&self, index: DestinationIndex) -> &str;
    /// The index of a name, if the relay knows it.
    fn index(&self, name: &str) -> Option<DestinationIndex>;
}

impl DestinationNames for [String] {
    fn name(&self, index: DestinationIndex) -> &str {
        self.get(usize::from(index.0)).map_or("", String::as_str)
    }

    fn index(&self, name: &str) -> Option<DestinationIndex> {
        self.iter().position(|n| n == name).and_then(|i| u8::try_from(i).ok()).map(DestinationIndex)
    }
}

/// Packs messages into a chunk. They must be consecutive in position, of one shard, and at least one.
pub fn encode<'a>(messages: impl ExactSizeIterator<Item = &'a Message> + Clone, names: &[String]) -> EncodedChunk {
    let count = messages.len();
    let mut out = Vec::with_capacity(messages.clone().map(Message::weight).sum());
    put_u64(&mut out, count as u64);
    put_u64(&mut out, names.len() as u64);
    names.iter().for_each(|name| put_bytes(&mut out, name.as_bytes()));
    let (mut seq, mut created_at) = (0u64, 0i64);
    let (mut first_at, mut last_at) = (i64::MAX, i64::MIN);
    for m in messages.clone() {
        put_i64(&mut out, m.seq.0.wrapping_sub(seq) as i64);
        put_i64(&mut out, m.created_at_us.wrapping_sub(created_at));
        (seq, created_at) = (m.seq.0, m.created_at_us);
        first_at = first_at.min(m.created_at_us);
        last_at = last_at.max(m.created_at_us);
        put_bytes(&mut out, m.id.as_bytes());
        put_bytes(&mut out, m.topic.as_bytes());
        put_optional(&mut out, m.key.as_deref());
        put_optional(&mut out, m.headers.as_deref());
        put_u64(&mut out, m.destinations.iter().count() as u64);
        m.destinations.iter().for_each(|d| out.push(d.0));
        put_defect(&mut out, m.defect.as_ref());
        put_bytes(&mut out, &m.payload);
    }
    let ids: Vec<&str> = messages.clone().map(|m| m.id.as_str()).collect();
    EncodedChunk {
        base: messages.clone().next().map_or(Position(0), |m| m.position),
        count: u32::try_from(count).unwrap_or(u32::MAX),
        first_created_at_us: first_at,
        last_created_at_us: last_at,
        codec: CODEC,
        id_filter: filter::build(ids.into_iter()),
        bytes: compress(&out),
    }
}

/// Unpacks a chunk. Destinations that are not among `names` are left out of a message's set.
///
/// # Errors
/// The codec is not known, or the bytes are not what it writes.
pub fn decode(
    codec: u8,
    bytes: &[u8],
    shard: ShardId,
    base: Position,
    names: &[String],
) -> Result<Vec<Message>, DecodeError> {
    if codec != CODEC {
        return Err(DecodeError { what: "chunk codec", at: 0 });
    }
    let content = Bytes::from(decompress(bytes, MAX_CHUNK_BYTES, "chunk")?);
    let mut r = Reader::new(&content);
    let count = r.count("message count")?;
    let mut known = Vec::new();
    for _ in 0..r.count("destination count")? {
        known.push(names.index(&r.text("destination name")?));
    }
    let mut messages = Vec::with_capacity(count);
    let (mut seq, mut created_at_us) = (0u64, 0i64);
    for n in 0..count {
        seq = seq.wrapping_add(r.i64("seq")? as u64);
        created_at_us = created_at_us.wrapping_add(r.i64("created_at")?);
        let id = r.text("id")?;
        let topic = r.text("topic")?;
        let key = r.optional("key")?;
        let headers = r.optional("headers")?;
        let mut destinations = DestinationSet::EMPTY;
        for _ in 0..r.count("destinations of a message")? {
            let stored = usize::from(r.u8("destination")?);
            if let Some(index) = known.get(stored).ok_or_else(|| r.fail("destination"))? {
                destinations.insert(*index);
            }
        }
        let defect = defect(&mut r)?;
        let payload = r.bytes("payload")?;
        messages.push(Message {
            position: Position(base.0.checked_add(n as u64).ok_or_else(|| r.fail("position"))?),
            seq: Seq(seq),
            shard,
            id,
            topic,
            key,
            headers,
            payload: content.slice_ref(payload),
            created_at_us,
            destinations,
            defect,
        });
    }
    if r.at_end() { Ok(messages) } else { Err(r.fail("end of chunk")) }
}

/// The names of the destinations that a chunk's messages may name: what [`decode`] needs to lose none of them.
///
/// # Errors
/// As [`decode`].
pub fn destination_names(codec: u8, bytes: &[u8]) -> Result<Vec<String>, DecodeError> {
    if codec != CODEC {
        return Err(DecodeError { what: "chunk codec", at: 0 });
    }
    let content = decompress(bytes, MAX_CHUNK_BYTES, "chunk")?;
    let mut r = Reader::new(&content);
    r.count("message count")?;
    (0..r.count("destination count")?).map(|_| r.text("destination name")).collect()
}

const COLUMNS: [&str; 5] = ["id", "topic", "msg_key", "headers", "payload"];

fn put_defect(out: &mut Vec<u8>, defect: Option<&Defect>) {
    match defect {
        None => out.push(0),
        Some(Defect::NoTopic) => out.push(1),
        Some(Defect::NotUtf8(column)) => {
            out.push(2);
            out.push(COLUMNS.iter().position(|c| c == column).map_or(u8::MAX, |i| i as u8));
        }
        Some(Defect::BadHeaders(why)) => {
            out.push(3);
            put_bytes(out, why.as_bytes());
        }
        Some(Defect::TooLarge { bytes, limit }) => {
            out.push(4);
            put_u64(out, *bytes);
            put_u64(out, *limit);
        }
    }
}

fn defect(r: &mut Reader<'_>) -> Result<Option<Defect>, DecodeError> {
    Ok(Some(match r.u8("defect")? {
        0 => return Ok(None),
        1 => Defect::NoTopic,
        2 => Defect::NotUtf8(COLUMNS.get(usize::from(r.u8("column")?)).copied().unwrap_or("text")),
        3 => Defect::BadHeaders(r.text("defect")?),
        4 => Defect::TooLarge { bytes: r.u64("size")?, limit: r.u64("limit")? },
        _ => return Err(r.fail("defect")),
    }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message() -> impl Strategy<Value = Message> {
        let text = "[a-z\u{e9}]{0,9}";
        let defect = prop_oneof![
            Just(None),
            Just(Some(Defect::NoTopic)),
            Just(Some(Defect::NotUtf8("topic"))),
            text.prop_map(|w| Some(Defect::BadHeaders(w))),
            (any::<u64>(), any::<u64>()).prop_map(|(bytes, limit)| Some(Defect::TooLarge { bytes, limit })),
        ];
        let texts = (text, text, proptest::option::of(text), proptest::option::of(text));
        (any::<u64>(), texts, proptest::collection::vec(any::<u8>(), 0..40), any::<i64>(), 0..8u64, defect).prop_map(
            |(seq, (id, topic, key, headers), payload, created_at_us, dests, defect)| Message {
                position: Position(0),
                seq: Seq(seq),
                shard: ShardId(3),
                id,
                topic,
                key,
                headers,
                payload: payload.into(),
                created_at_us,
                destinations: (0..3u8).filter(|i| dests >> i & 1 == 1).map(DestinationIndex).collect(),
                defect,
            },
        )
    }

    proptest! {
        #[test]
        fn reads_back_what_it_wrote(mut messages in proptest::collection::vec(message(), 1..20), base in 0..u64::MAX / 2) {
            let names: Vec<String> = ["a", "b", "c"].map(String::from).into();
            messages.iter_mut().enumerate().for_each(|(i, m)| m.position = Position(base + i as u64));
            let chunk = encode(messages.iter(), &names);
            prop_assert_eq!(chunk.count as usize, messages.len());
            let back = decode(chunk.codec, &chunk.bytes, ShardId(3), chunk.base, &names).unwrap();
            prop_assert_eq!(&back, &messages);
            prop_assert_eq!(destination_names(chunk.codec, &chunk.bytes).unwrap(), names);
            // A relay whose destinations have another order, and one fewer, still finds those that it has.
            let other: Vec<String> = ["c", "a"].map(String::from).into();
            let back = decode(chunk.codec, &chunk.bytes, ShardId(3), chunk.base, &other).unwrap();
            for (m, b) in messages.iter().zip(&back) {
                prop_assert_eq!(m.destinations.contains(DestinationIndex(0)), b.destinations.contains(DestinationIndex(1)));
                prop_assert_eq!(m.destinations.contains(DestinationIndex(2)), b.destinations.contains(DestinationIndex(0)));
            }
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), codec in 0..3u8) {
            let _ = decode(codec, &bytes, ShardId(0), Position(0), &[]);
            let _ = destination_names(codec, &bytes);
            let _ = decode(CODEC, &compress(&bytes), ShardId(0), Position(u64::MAX), &[]);
        }
    }
}
