//! What a lane that is behind reads from the log.

use std::sync::Arc;

use outhaul_core::chunk;
use outhaul_core::message::{Message, Position};
use outhaul_store::{StoreError, StoreErrorKind, StoreResult, StoredChunk};

/// The messages of chunks, from a position on. A chunk that cannot be read ends the answer; so the lane delivers what
/// lies before it, and the next read begins with it.
///
/// # Errors
/// `Corrupt`: the first chunk cannot be read.
pub(crate) fn unpacked(chunks: &[StoredChunk], from: Position, names: &[String]) -> StoreResult<Vec<Arc<Message>>> {
    let mut messages: Vec<Arc<Message>> = Vec::new();
    for c in chunks {
        match chunk::decode(c.codec, &c.bytes, c.shard, c.base, names) {
            Ok(unpacked) => messages.extend(unpacked.into_iter().filter(|m| m.position >= from).map(Arc::new)),
            Err(_) if !messages.is_empty() => break,
            Err(e) => {
                let what = format!("chunk at position {} of shard {}: {e}", c.base, c.shard);
                return Err(StoreError::new(StoreErrorKind::Corrupt, what));
            }
        }
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use outhaul_core::destination::DestinationSet;
    use outhaul_core::message::{Row, Seq, ShardId};

    use super::*;

    fn stored(positions: std::ops::Range<u64>) -> StoredChunk {
        let message = |n: u64| {
            let row = Row {
                seq: Seq(n),
                shard: ShardId(3),
                id: format!("m{n}"),
                topic: "t".into(),
                key: None,
                headers: None,
                payload: Vec::new().into(),
                created_at_us: 0,
                defect: None,
            };
            Message::from_row(row, Position(n), DestinationSet::EMPTY)
        };
        let messages: Vec<Message> = positions.map(message).collect();
        let packed = chunk::encode(messages.iter(), &[]);
        StoredChunk {
            shard: ShardId(3),
            base: packed.base,
            count: packed.count,
            codec: packed.codec,
            created_at_us: (0, 0),
            moved_at_us: 0,
            bytes: packed.bytes.into(),
        }
    }

    #[test]
    fn what_lies_before_a_damaged_chunk_is_read() {
        let damaged = StoredChunk { bytes: b"junk".to_vec().into(), ..stored(7..9) };
        let chunks = [stored(0..4), stored(4..7), damaged, stored(9..12)];
        let read = unpacked(&chunks, Position(2), &[]).unwrap();
        assert_eq!(read.iter().map(|m| m.position.0).collect::<Vec<_>>(), [2, 3, 4, 5, 6]);
        let error = unpacked(&chunks[2..], Position(7), &[]).unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::Corrupt);
        assert!(error.message.contains("position 7 of shard 3"), "{error}");
        assert_eq!(unpacked(&chunks[3..], Position(9), &[]).unwrap().len(), 3);
    }
}
