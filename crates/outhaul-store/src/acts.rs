//! Operators' acts as the database keeps them: ordered by one row a shard, carried out by the shard's owner, and kept.

use std::collections::BTreeMap;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
use std::sync::Arc;

use outhaul_core::act::{Act, ActNumber, ActState, Edit, PositionRange, Selector, Verb};
use outhaul_core::message::{Position, ShardId};
use outhaul_core::parked::{ParkedEntry, ParkedState};

/// Open acts that one look brings at most; the others come when these are done.
pub const OPEN_ACTS: u32 = 1_000;

/// An act as it is ordered.
#[derive(Clone, Debug)]
pub struct NewAct {
    /// What is to be done.
    pub verb: Verb,
    /// Where. None: all lanes of the shards.
    pub destination: Option<String>,
    /// In which shards: one row each.
    pub shards: Vec<ShardId>,
    /// Which messages.
    pub selector: Selector,
    /// Of the shards that are named here, at these positions only.
    pub ranges: BTreeMap<ShardId, PositionRange>,
    /// Id of the message, where it is about one: for the record.
    pub message_id: Option<String>,
    /// The content of an edit.
    pub edit: Option<Edit>,
    /// Who wants it, at most 255 characters.
    pub actor: String,
    /// Why, at most 1,000 characters.
    pub why: String,
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
impl NewAct {
    /// What is stored of one shard: the selector, and the position where it begins.
    pub(crate) fn of_shard(&self, shard: ShardId) -> (String, u64) {
        let range = self.ranges.get(&shard).copied().or(self.selector.range);
        let begins = range.map_or(0, |r| r.from.0);
        (Selector { range, ..self.selector.clone() }.encode(), begins)
    }
}

/// How far a replay has got in one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Its number.
    pub number: ActNumber,
    /// Shard.
    pub shard: ShardId,
    /// Who carries it out ([`crate::Store::take_replay`]).
    pub runner: String,
    /// Whether it is at the shard's end.
    pub ended: bool,
    /// What lies below was dealt with.
    pub next: Position,
    /// Messages delivered so far.
    pub done: u64,
    /// Messages left out so far, though they were selected.
    pub left: u64,
    /// At the end: code and text of why some were left out, or empty.
    pub note: String,
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
impl ReplayProgress {
    /// State, note and the expression for when it was over, given the one for the present.
    pub(crate) fn columns(&self, now: &'static str) -> (&'static str, &str, &'static str) {
        if self.ended {
            (ActState::Done.as_str(), cut(&self.note, NOTE_CHARS), now)
        } else {
            (ActState::Unfinished.as_str(), cut(&self.runner, NOTE_CHARS), "NULL")
        }
    }

    /// The condition under which it is written, given the expressions for the runner, the new state, position and numbers:
    /// while it is unfinished its note says who carries it out. The same end may be written twice.
    pub(crate) fn condition(runner: &str, [state, next, done, left]: [&str; 4]) -> String {
        let (unfinished, over) = (ActState::Unfinished.as_str(), ActState::Done.as_str());
        format!(
            "(state = '{unfinished}' AND note = {runner} OR state = '{over}' AND {state} = '{over}' AND next_position = {next} \
             AND messages_changed = {done} AND messages_left = {left})"
        )
    }
}

/// An act in one shard, as it is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActRecord {
    /// What, where, which, and how far it has got.
    pub act: Act,
    /// State.
    pub state: ActState,
    /// Id of the message, where it is about one.
    pub message_id: Option<String>,
    /// When it was ordered, microseconds since 1970-01-01 UTC, database clock.
    pub at_us: i64,
    /// Who ordered it.
    pub actor: String,
    /// Why.
    pub why: String,
    /// Code and text of what stood in its way, or empty.
    pub note: String,
    /// When it was over, microseconds since 1970-01-01 UTC, database clock.
    pub finished_at_us: Option<i64>,
}

/// Which acts to read.
#[derive(Clone, Debug)]
pub enum ActsWanted {
    /// Those with these numbers.
    Numbers(Vec<ActNumber>),
    /// Those that name the id of a message.
    MessageId(String),
    /// The newest so many.
    Newest(u32),
    /// Replays of a shard.
    Replays(ShardId),
}

/// What is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PauseStatus {
    /// Shard.
    pub shard: ShardId,
    /// Destination. None: all lanes of the shard.
    pub destination: Option<String>,
    /// The act.
    pub number: ActNumber,
    /// Since when, microseconds since 1970-01-01 UTC, database clock.
    pub since_us: i64,
    /// Who ordered it.
    pub actor: String,
    /// Why.
    pub why: String,
}

/// Which parked rows to list or count: those that everything named fits.
#[derive(Clone, Debug, Default)]
pub struct ParkedQuery {
    /// Destination; `-` for what no route names.
    pub destination: Option<String>,
    /// Shard.
    pub shard: Option<ShardId>,
    /// Key.
    pub key: Option<String>,
    /// Outbox id. There is no index on it.
    pub id: Option<String>,
    /// Code of the last failure.
    pub code: Option<String>,
    /// State.
    pub state: Option<ParkedState>,
    /// The row at this position.
    pub position: Option<Position>,
    /// Behind this row, by destination, shard and position.
    pub after: Option<(String, ShardId, Position)>,
}

/// A parked row without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedParked {
    /// The row.
    pub entry: ParkedEntry,
    /// Outbox id.
    pub id: String,
}

/// Parked rows of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedCount {
    /// Destination.
    pub destination: String,
    /// Shard.
    pub shard: ShardId,
    /// Code of the last failure.
    pub code: String,
    /// State.
    pub state: ParkedState,
    /// How many.
    pub count: u64,
}

/// A scheduled message to cancel.
#[derive(Clone, Debug)]
pub struct CancelRequest {
    /// Outbox id.
    pub id: String,
    /// Who wants it.
    pub actor: String,
    /// Why.
    pub why: String,
}

/// The columns of a row of `outbox_act`, in the order of [`ACT_COLUMNS`].
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) struct RawAct {
    pub(crate) number: u64,
    pub(crate) shard: u16,
    pub(crate) at_us: i64,
    pub(crate) actor: String,
    pub(crate) why: String,
    pub(crate) verb: String,
    pub(crate) destination: Option<String>,
    pub(crate) message_id: Option<String>,
    pub(crate) selector: String,
    pub(crate) content: Option<Vec<u8>>,
    pub(crate) state: String,
    pub(crate) next: u64,
    pub(crate) done: u64,
    pub(crate) left: u64,
    pub(crate) note: String,
    pub(crate) finished_at_us: Option<i64>,
}

/// The columns that [`RawAct`] is read from. Those after the number are plain names in every database.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) const ACT_COLUMNS: &str = "act_number, shard, created_at, actor, why, verb, destination, message_id, selector, \
                                      content, state, next_position, messages_changed, messages_left, note, finished_at";

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
impl RawAct {
    /// The act. None: of a kind that this build does not know; a newer relay sees to it.
    pub(crate) fn into_record(self) -> Option<ActRecord> {
        let act = Act {
            number: ActNumber(self.number),
            shard: ShardId(self.shard),
            verb: Verb::parse(&self.verb)?,
            destination: self.destination,
            selector: Selector::decode(&self.selector),
            edit: self.content.and_then(|bytes| Edit::decode(&bytes).ok()).map(Arc::new),
            next: Position(self.next),
            done: self.done,
            left: self.left,
        };
        Some(ActRecord {
            act,
            state: ActState::parse(&self.state)?,
            message_id: self.message_id,
            at_us: self.at_us,
            actor: self.actor,
            why: self.why,
            note: self.note,
            finished_at_us: self.finished_at_us,
        })
    }
}

/// The longest start of a text with at most so many characters: a column takes no more.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn cut(text: &str, characters: usize) -> &str {
    text.char_indices().nth(characters).map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// What the columns for who and why take, characters.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) const ACTOR_CHARS: usize = 255;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) const WHY_CHARS: usize = 1_000;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) const NOTE_CHARS: usize = 1_000;

/// The edits among acts, by position, in the order in which they were carried out: by rising number.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn edits_of(acts: Vec<ActRecord>) -> Vec<(Position, Arc<Edit>)> {
    let one = |r: ActRecord| Some((r.act.selector?.position?, r.act.edit?));
    acts.into_iter().filter(|r| r.act.done > 0).filter_map(one).collect()
}

/// Destinations and positions of messages that were edited, and by which act.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn edited_of(acts: &[ActRecord]) -> Vec<(String, Position, ActNumber)> {
    let one = |r: &ActRecord| Some((r.act.destination.clone()?, r.act.selector.as_ref()?.position?, r.act.number));
    acts.iter().filter(|r| r.act.done > 0).filter_map(one).collect()
}

/// # Errors
/// `Configuration`: an act must be about a shard.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub(crate) fn check_order(act: &NewAct) -> crate::store::StoreResult<()> {
    use crate::error::{StoreError, StoreErrorKind};
    if act.shards.is_empty() {
        return Err(StoreError::new(StoreErrorKind::Configuration, "an act about no shard"));
    }
    Ok(())
}
