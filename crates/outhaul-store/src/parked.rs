//! What a checkpoint does to parked rows, one change a row.

use std::borrow::Cow;
use std::collections::BTreeMap;

use outhaul_core::checkpoint::ShardCheckpoint;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedWrite};

/// What is left to do for one row, when all changes to it are folded into one. A removal comes first.
#[derive(Default)]
pub(crate) struct Change<'a> {
    pub(crate) remove: bool,
    pub(crate) insert: Option<&'a Message>,
    pub(crate) replace: Option<&'a Message>,
    pub(crate) entry: Option<Cow<'a, ParkedEntry>>,
}

impl<'a> Change<'a> {
    /// One that says nothing of what went wrong leaves what was said before.
    fn set(&mut self, entry: &'a ParkedEntry) {
        self.entry = Some(match self.entry.take() {
            Some(before) if entry.error_code.is_empty() => {
                let ParkedEntry { error_code, error_text, .. } = before.into_owned();
                Cow::Owned(ParkedEntry { error_code, error_text, ..entry.clone() })
            }
            _ => Cow::Borrowed(entry),
        });
    }
}

/// The changes of a checkpoint, by destination, shard and position.
pub(crate) fn folded<'a>(
    shards: impl Iterator<Item = &'a ShardCheckpoint>,
) -> BTreeMap<(&'a str, ShardId, Position), Change<'a>> {
    let mut changes: BTreeMap<_, Change<'a>> = BTreeMap::new();
    let place = |e: &'a ParkedEntry| (e.destination.as_str(), e.shard, e.position);
    for write in shards.flat_map(|s| &s.parked) {
        match write {
            ParkedWrite::Insert { entry, message } => {
                let change = changes.entry(place(entry)).or_default();
                change.insert = Some(message.as_ref());
                change.set(entry);
            }
            ParkedWrite::Update(entry) => changes.entry(place(entry)).or_default().set(entry),
            ParkedWrite::Replace { entry, message } => {
                let change = changes.entry(place(entry)).or_default();
                change.replace = Some(message.as_ref());
                change.set(entry);
            }
            ParkedWrite::Remove { destination, shard, position } => {
                changes.insert((destination, *shard, *position), Change { remove: true, ..Change::default() });
            }
        }
    }
    changes
}
