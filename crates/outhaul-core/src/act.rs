//! Acts: what operators tell the relay to do with parked messages, lanes and shards.
//!
//! An act is a row of `outbox_act` for each shard that it is about. The shard's owner reads what is open, carries it out
//! and writes how far it has got in the checkpoint that stores what was changed. So an act is done once or, after a crash,
//! goes on where the last checkpoint left it; and the row is the record of who did what, when and why.
//!
//! A replay is recorded the same way, and is carried out by the command that ordered it: owners do not see it.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::message::{Defect, Message, Position, ShardId, parse_headers};
use crate::parked::ParkedEntry;
use crate::route::matches;
use crate::runs::{Run, Runs};
pub use crate::wire::DecodeError;
use crate::wire::{Reader, put_bytes};

/// The number of an act, rising.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActNumber(pub u64);

impl fmt::Display for ActNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Parked messages are due now, with attempts counted anew.
    Redrive,
    /// Parked messages are settled without being delivered.
    Skip,
    /// A parked message gets other content, and is due.
    Edit,
    /// Nothing new is begun in a lane, or in all lanes of a shard.
    Pause,
    /// The end of a pause.
    Resume,
    /// A scheduled message is taken out of the outbox table before it is due.
    Cancel,
    /// What the log holds is delivered once more, by the command that ordered it.
    Replay,
    /// A destination that is not configured any more is given up: its cursor, what waits for it, what is parked for it.
    Drop,
}

impl Verb {
    const ALL: [Self; 8] =
        [Self::Redrive, Self::Skip, Self::Edit, Self::Pause, Self::Resume, Self::Cancel, Self::Replay, Self::Drop];

    /// The word for it in tables, output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Redrive => "redrive",
            Self::Skip => "skip",
            Self::Edit => "edit",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Cancel => "cancel",
            Self::Replay => "replay",
            Self::Drop => "drop",
        }
    }

    /// Reads [`Verb::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.as_str() == word)
    }

    /// The state in which it is ordered.
    pub const fn first_state(self) -> ActState {
        match self {
            Self::Replay => ActState::Unfinished,
            _ => ActState::Open,
        }
    }

    /// The number that is stored.
    pub(crate) const fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|v| v.code() == code)
    }
}

/// How far an act has got in a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActState {
    /// Not done yet, or not to its end.
    Open,
    /// The same, where a command carries it out: it is nothing to the owners of the shards, also of earlier versions.
    Unfinished,
    /// Done.
    Done,
    /// Its owner cannot do it.
    Refused,
}

impl ActState {
    /// The word for it in tables and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Unfinished => "unfinished",
            Self::Done => "done",
            Self::Refused => "refused",
        }
    }

    /// Reads [`ActState::as_str`].
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Open, Self::Unfinished, Self::Done, Self::Refused].into_iter().find(|s| s.as_str() == word)
    }
}

/// Positions from one on, below another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PositionRange {
    /// The first.
    pub from: Position,
    /// The first that is not meant any more.
    pub to: Position,
}

impl PositionRange {
    /// Whether a position is one of them.
    pub fn contains(self, position: Position) -> bool {
        self.from <= position && position < self.to
    }

    /// How many there are.
    pub const fn len(self) -> u64 {
        self.to.0.saturating_sub(self.from.0)
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Which parked messages of a destination, or which of the log: those that everything named fits. Nothing named: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// The one at this position.
    pub position: Option<Position>,
    /// Those of this key.
    pub key: Option<String>,
    /// Those whose last failure has this code.
    pub code: Option<String>,
    /// At most so many in a thousand seconds, in each shard; of a replay, in all. 0: as fast as it goes.
    pub rate_milli: u64,
    /// Those at these positions of the shard's log.
    pub range: Option<PositionRange>,
    /// Those whose topic matches this pattern.
    pub topic: Option<String>,
    /// Those that were created at this time or later, microseconds since 1970-01-01 UTC.
    pub created_from_us: Option<i64>,
    /// Those that were created before this time, microseconds since 1970-01-01 UTC.
    pub created_before_us: Option<i64>,
    /// Those that were not routed to the destination when they were moved.
    pub fill: bool,
    /// Those at these positions of the shard's log: at most [`SELECTED_RUNS_MAX`] runs. Empty: all.
    pub positions: Runs,
}

/// Runs of positions that a selector can name: the column holds 64 KiB.
pub const SELECTED_RUNS_MAX: usize = 1_000;

impl Selector {
    /// As the table stores it: compact JSON.
    pub fn encode(&self) -> String {
        let mut map = Map::new();
        let mut put = |name: &str, value: Option<Value>| drop(value.map(|v| map.insert(name.to_owned(), v)));
        put("position", self.position.map(|p| json!(p.0)));
        put("key", self.key.as_ref().map(|k| json!(k)));
        put("reason", self.code.as_ref().map(|c| json!(c)));
        put("rate_milli", (self.rate_milli > 0).then(|| json!(self.rate_milli)));
        put("from", self.range.map(|r| json!(r.from.0)));
        put("to", self.range.map(|r| json!(r.to.0)));
        put("topic", self.topic.as_ref().map(|t| json!(t)));
        put("created_from_us", self.created_from_us.map(|us| json!(us)));
        put("created_before_us", self.created_before_us.map(|us| json!(us)));
        put("fill", self.fill.then_some(Value::Bool(true)));
        let runs = || self.positions.iter().map(|run| json!([run.first, run.last])).collect::<Vec<_>>();
        put("positions", (!self.positions.is_empty()).then(|| Value::Array(runs())));
        Value::Object(map).to_string()
    }

    /// Reads [`Selector::encode`]. None: it is not one, or names something that this build does not know: to go by the
    /// rest would select more than was meant.
    pub fn decode(text: &str) -> Option<Self> {
        let Ok(Value::Object(map)) = serde_json::from_str(text) else { return None };
        let mut selector = Self::default();
        let (mut from, mut to) = (None, None);
        for (name, value) in map {
            match name.as_str() {
                "position" => selector.position = Some(Position(value.as_u64()?)),
                "key" => selector.key = Some(value.as_str()?.to_owned()),
                "reason" => selector.code = Some(value.as_str()?.to_owned()),
                "rate_milli" => selector.rate_milli = value.as_u64()?,
                "from" => from = Some(Position(value.as_u64()?)),
                "to" => to = Some(Position(value.as_u64()?)),
                "topic" => selector.topic = Some(value.as_str()?.to_owned()),
                "created_from_us" => selector.created_from_us = Some(value.as_i64()?),
                "created_before_us" => selector.created_before_us = Some(value.as_i64()?),
                "fill" => selector.fill = value.as_bool()?,
                "positions" => selector.positions = runs_of(&value)?,
                _ => return None,
            }
        }
        selector.range = match (from, to) {
            (None, None) => None,
            (Some(from), Some(to)) => Some(PositionRange { from, to }),
            _ => return None,
        };
        Some(selector)
    }

    /// Whether a message of the log is meant, whatever it has of a destination.
    pub fn fits(&self, message: &Message) -> bool {
        let created = message.created_at_us;
        self.position.is_none_or(|p| p == message.position)
            && self.range.is_none_or(|r| r.contains(message.position))
            && self.key.as_ref().is_none_or(|key| message.key.as_ref() == Some(key))
            && self.topic.as_ref().is_none_or(|pattern| matches(pattern, &message.topic))
            && self.created_from_us.is_none_or(|from| from <= created)
            && self.created_before_us.is_none_or(|before| created < before)
            && (self.positions.is_empty() || self.positions.contains(message.position.0))
    }
}

/// Reads runs of positions. None: they are none, or more than a selector can name.
fn runs_of(value: &Value) -> Option<Runs> {
    let all = value.as_array().filter(|all| (1..=SELECTED_RUNS_MAX).contains(&all.len()))?;
    let mut runs = Runs::new();
    for run in all {
        let [first, last] = run.as_array()?.as_slice() else { return None };
        let (first, last) = (first.as_u64()?, last.as_u64()?);
        if first > last {
            return None;
        }
        runs.insert_run(Run { first, last });
    }
    Some(runs)
}

/// Other content for a message. What is None stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edit {
    /// Payload.
    pub payload: Option<Bytes>,
    /// Headers: the text of a JSON object of strings, or none at all.
    pub headers: Option<Option<String>>,
    /// Key, or none at all. The message stays in its shard.
    pub key: Option<Option<String>>,
}

const EDIT_V1: u8 = 1;

impl Edit {
    /// The bytes that are stored.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![EDIT_V1];
        let mut put = |part: Option<Option<&[u8]>>| match part {
            None => out.push(0),
            Some(None) => out.push(1),
            Some(Some(bytes)) => {
                out.push(2);
                put_bytes(&mut out, bytes);
            }
        };
        put(self.payload.as_ref().map(|p| Some(p.as_ref())));
        for part in [&self.headers, &self.key] {
            put(part.as_ref().map(|text| text.as_deref().map(str::as_bytes)));
        }
        out
    }

    /// Reads [`Edit::encode`].
    ///
    /// # Errors
    /// The bytes are not an edit of a version that this build knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        if r.u8("edit version")? != EDIT_V1 {
            return Err(DecodeError { what: "edit version", at: 0 });
        }
        let payload = match r.u8("payload")? {
            0 => None,
            2 => Some(Bytes::copy_from_slice(r.bytes("payload")?)),
            _ => return Err(r.fail("payload")),
        };
        let mut text = |what| {
            Ok(match r.u8(what)? {
                0 => None,
                1 => Some(None),
                2 => Some(Some(r.text(what)?)),
                _ => return Err(r.fail(what)),
            })
        };
        let edit = Self { payload, headers: text("headers")?, key: text("key")? };
        if r.at_end() { Ok(edit) } else { Err(r.fail("end of edit")) }
    }

    /// The message with the other content. What was wrong with a part that is replaced is wrong no more.
    pub fn apply(&self, message: &Message) -> Message {
        let mended = |d: &Defect| match d {
            Defect::TooLarge { .. } => self.payload.is_some(),
            Defect::BadHeaders(_) | Defect::NotUtf8("headers") => self.headers.is_some(),
            Defect::NotUtf8("msg_key") => self.key.is_some(),
            _ => false,
        };
        let mut edited = message.clone();
        if let Some(payload) = &self.payload {
            edited.payload = payload.clone();
        }
        if let Some(headers) = &self.headers {
            edited.headers.clone_from(headers);
        }
        if let Some(key) = &self.key {
            edited.key.clone_from(key);
        }
        let headers = edited.headers.as_deref();
        edited.defect = edited
            .defect
            .filter(|d| !mended(d))
            .or_else(|| headers.and_then(|text| parse_headers(text).err()).map(Defect::BadHeaders));
        edited
    }
}

/// An act that is open, for one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// Number.
    pub number: ActNumber,
    /// Shard.
    pub shard: ShardId,
    /// What is done.
    pub verb: Verb,
    /// Where: by name; `-` for what no route names. None: all lanes of the shard, for a pause or its end.
    pub destination: Option<String>,
    /// Which messages. None: not readable by this build.
    pub selector: Option<Selector>,
    /// The content of an edit.
    pub edit: Option<Arc<Edit>>,
    /// What lies below was dealt with.
    pub next: Position,
    /// Messages that it has changed.
    pub done: u64,
    /// Messages that it left as they were, though they were selected.
    pub left: u64,
}

/// A parked message that an act has selected.
#[derive(Clone, Debug, PartialEq)]
pub struct FoundParked {
    /// The row.
    pub entry: ParkedEntry,
    /// Its content, where that was asked for.
    pub message: Option<Arc<Message>>,
}

/// What a checkpoint writes of an act.
#[derive(Clone, Debug, PartialEq)]
pub struct ActWrite {
    /// Number.
    pub number: ActNumber,
    /// State.
    pub state: ActState,
    /// What lies below was dealt with.
    pub next: Position,
    /// Messages changed so far.
    pub done: u64,
    /// Messages left as they were so far.
    pub left: u64,
    /// Code and text of what stood in its way, or empty.
    pub note: String,
    /// What an edit has replaced: kept with the act, with a payload that was too large to be fetched.
    pub original: Option<Original>,
    /// What it changes of what is paused.
    pub pause: Option<PauseWrite>,
}

/// A message as it was before an edit.
#[derive(Clone, Debug, PartialEq)]
pub struct Original {
    /// Destination under which it is parked.
    pub destination: String,
    /// The message.
    pub message: Arc<Message>,
}

/// A change of what is paused. The destination None means all lanes of the shard; who and why are the act's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PauseWrite {
    /// Paused from now on.
    Pause(Option<String>),
    /// Not paused any more.
    Resume(Option<String>),
}

/// Messages that an act has changed, as a receipt row tells of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touched {
    /// Number.
    pub number: ActNumber,
    /// What was done.
    pub verb: Verb,
    /// Destination under which they were parked.
    pub destination: String,
    /// Their positions.
    pub positions: Runs,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::destination::DestinationSet;
    use crate::message::{Row, Seq};

    fn runs(all: impl IntoIterator<Item = u64>) -> Runs {
        let mut runs = Runs::new();
        for n in all {
            runs.insert(n);
        }
        runs
    }

    fn edit() -> impl Strategy<Value = Edit> {
        let text = || proptest::option::of(proptest::option::of(".{0,9}"));
        let payload = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from));
        (payload, text(), text()).prop_map(|(payload, headers, key)| Edit { payload, headers, key })
    }

    proptest! {
        #[test]
        fn an_edit_reads_back(edit in edit()) {
            prop_assert_eq!(Edit::decode(&edit.encode()), Ok(edit));
        }

        #[test]
        fn a_selector_reads_back(position in any::<Option<u64>>(), key in any::<Option<String>>(),
                                 code in any::<Option<String>>(), rate_milli in any::<u64>(),
                                 range in any::<Option<(u64, u64)>>(), topic in any::<Option<String>>(),
                                 created in any::<(Option<i64>, Option<i64>)>(), fill in any::<bool>(),
                                 positions in proptest::collection::vec(any::<u64>(), 0..9)) {
            let range = range.map(|(from, to)| PositionRange { from: Position(from), to: Position(to) });
            let (created_from_us, created_before_us) = created;
            let position = position.map(Position);
            let positions = runs(positions);
            let selector =
                Selector { position, key, code, rate_milli, range, topic, created_from_us, created_before_us, fill, positions };
            prop_assert_eq!(Selector::decode(&selector.encode()), Some(selector));
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60), text in ".{0,60}") {
            let _ = Edit::decode(&bytes);
            let _ = Selector::decode(&text);
        }
    }

    #[test]
    fn what_is_not_known_selects_nothing() {
        assert_eq!(Selector::decode("{}"), Some(Selector::default()));
        for text in [
            "",
            "[]",
            r#"{"older_than":7}"#,
            r#"{"key":1}"#,
            r#"{"from":1}"#,
            r#"{"fill":1}"#,
            r#"{"positions":[]}"#,
            r#"{"positions":[[2,1]]}"#,
        ] {
            assert_eq!(Selector::decode(text), None, "{text}");
        }
        assert!(
            Verb::ALL.into_iter().all(|v| Verb::parse(v.as_str()) == Some(v) && Verb::from_code(v.code()) == Some(v))
        );
    }

    fn message(defect: Option<Defect>) -> Message {
        let row = Row {
            seq: Seq(1),
            shard: ShardId(0),
            id: "m".into(),
            topic: "t".into(),
            key: Some("k".into()),
            headers: None,
            payload: Bytes::from_static(b"p"),
            created_at_us: 70,
            defect,
        };
        Message::from_row(row, Position(4), DestinationSet::EMPTY)
    }

    #[test]
    fn a_message_of_the_log_fits_where_everything_named_does() {
        let all = Selector::default;
        let range = |from, to| Some(PositionRange { from: Position(from), to: Position(to) });
        for (selector, fits) in [
            (all(), true),
            (Selector { range: range(4, 5), ..all() }, true),
            (Selector { range: range(0, 4), ..all() }, false),
            (Selector { range: range(5, 9), ..all() }, false),
            (Selector { key: Some("k".into()), ..all() }, true),
            (Selector { key: Some("K".into()), ..all() }, false),
            (Selector { topic: Some("t*".into()), ..all() }, true),
            (Selector { topic: Some("u*".into()), ..all() }, false),
            (Selector { created_from_us: Some(70), created_before_us: Some(71), ..all() }, true),
            (Selector { created_from_us: Some(71), ..all() }, false),
            (Selector { created_before_us: Some(70), ..all() }, false),
            (Selector { range: range(4, 5), topic: Some("u".into()), ..all() }, false),
            (Selector { positions: runs([4, 9]), ..all() }, true),
            (Selector { positions: runs([3, 5]), ..all() }, false),
        ] {
            assert_eq!(selector.fits(&message(None)), fits, "{selector:?}");
        }
        assert_eq!((range(4, 9).unwrap().len(), range(9, 4).unwrap().is_empty()), (5, true));
    }

    /// A relay of an earlier version takes what is `open` and nothing else.
    #[test]
    fn a_replay_is_nothing_to_owners() {
        for verb in Verb::ALL {
            assert_eq!(verb.first_state() == ActState::Open, verb != Verb::Replay, "{verb:?}");
            assert_eq!(ActState::parse(verb.first_state().as_str()), Some(verb.first_state()));
        }
    }

    #[test]
    fn an_edit_mends_what_it_replaces_and_nothing_else() {
        let payload = Edit { payload: Some(Bytes::from_static(b"q")), ..Edit::default() };
        let edited = payload.apply(&message(Some(Defect::TooLarge { bytes: 9, limit: 1 })));
        assert_eq!((edited.payload.as_ref(), edited.defect, edited.key.as_deref()), (&b"q"[..], None, Some("k")));
        let bad = Defect::NotUtf8("headers");
        assert_eq!(payload.apply(&message(Some(bad.clone()))).defect, Some(bad.clone()));
        let headers = Edit { headers: Some(None), key: Some(Some("l".into())), ..Edit::default() };
        let edited = headers.apply(&message(Some(bad)));
        assert_eq!((edited.defect, edited.key.as_deref(), edited.payload.as_ref()), (None, Some("l"), &b"p"[..]));
        let bad = Edit { headers: Some(Some("[]".into())), ..Edit::default() };
        assert!(matches!(bad.apply(&message(None)).defect, Some(Defect::BadHeaders(_))));
        assert_eq!(bad.apply(&message(Some(Defect::NoTopic))).defect, Some(Defect::NoTopic));
    }
}
