//! Chunks as lines, by the day on which a message was created.

use std::collections::BTreeMap;

use outhaul_core::chunk;
use outhaul_core::message::{Position, ShardId};
use outhaul_store::{Exported, StoreError, StoreErrorKind, StoredChunk};

use super::ExportError;
use super::line::push_line;

/// Bytes of lines after which no further chunk is taken.
const LINES_BYTES: usize = 16 << 20;
const DAY_US: i64 = 86_400_000_000;

/// The lines of one day.
#[derive(Default)]
pub(super) struct Day {
    pub(super) text: Vec<u8>,
    /// Where each line ends in `text`, and its message's position; rising.
    pub(super) lines: Vec<(usize, Position)>,
}

/// What goes into files at a time.
pub(super) struct Lines {
    pub(super) shard: ShardId,
    /// By days since 1970-01-01 UTC.
    pub(super) days: BTreeMap<i64, Day>,
    pub(super) messages: u64,
    /// What is covered.
    pub(super) exported: Exported,
}

impl Lines {
    /// Takes chunks of one shard, one at least. One that cannot be read ends it; the first one is an error then.
    pub(super) fn of(chunks: &[StoredChunk]) -> Result<Self, ExportError> {
        let shard = chunks.first().map_or(ShardId(0), |c| c.shard);
        let exported = Exported { shard, below: Position(0), moved_at_us: i64::MIN };
        let mut lines = Self { shard, days: BTreeMap::new(), messages: 0, exported };
        let mut bytes = 0;
        for chunk in chunks {
            match lines.take(chunk) {
                Ok(n) => bytes += n,
                Err(e) if lines.messages == 0 => return Err(e),
                Err(_) => break,
            }
            if bytes >= LINES_BYTES {
                break;
            }
        }
        Ok(lines)
    }

    /// Appends a chunk, all of it or nothing. Returns how many bytes it takes.
    fn take(&mut self, c: &StoredChunk) -> Result<usize, ExportError> {
        let corrupt = |why: String| {
            let what = format!("the chunk at {} of shard {}: {why}", c.base, c.shard);
            ExportError::Unreadable { error: StoreError::new(StoreErrorKind::Corrupt, what) }
        };
        let names = chunk::destination_names(c.codec, &c.bytes).map_err(|e| corrupt(e.to_string()))?;
        let messages = chunk::decode(c.codec, &c.bytes, c.shard, c.base, &names).map_err(|e| corrupt(e.to_string()))?;
        if messages.len() != c.count as usize || messages.is_empty() {
            return Err(corrupt(format!("it holds {} messages, not {}", messages.len(), c.count)));
        }
        let mut bytes = 0;
        for m in &messages {
            let day = self.days.entry(m.created_at_us.div_euclid(DAY_US)).or_default();
            let before = day.text.len();
            push_line(&mut day.text, m, &names);
            day.lines.push((day.text.len(), m.position));
            bytes += day.text.len() - before;
        }
        self.messages += messages.len() as u64;
        self.exported.below = Position(c.base.0.saturating_add(c.count.into()));
        self.exported.moved_at_us = self.exported.moved_at_us.max(c.moved_at_us);
        Ok(bytes)
    }
}
