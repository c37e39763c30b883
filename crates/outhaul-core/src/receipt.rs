//! What a destination answered, and where a lane stands: what a checkpoint stores of its lanes.

use crate::act::{ActNumber, Touched, Verb};
use crate::destination::DestinationIndex;
use crate::message::Position;
use crate::runs::{Run, Runs};
pub use crate::wire::DecodeError;
use crate::wire::{Reader, compress, decompress, put_bytes, put_i64, put_u64};

/// What an acknowledgement proves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AckLevel {
    /// The destination acknowledged and does not tell what that proves (a proxy, or no right to read its settings).
    Unknown,
    /// The destination has it, in memory at least: a power cut can lose it.
    #[default]
    Received,
    /// It is on stable storage of one node (fsync).
    Flushed,
    /// Two nodes or more have it.
    Replicated,
    /// A majority has it, durably.
    Quorum,
}

impl AckLevel {
    /// The word for it in configuration, output and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Received => "received",
            Self::Flushed => "flushed",
            Self::Replicated => "replicated",
            Self::Quorum => "quorum",
        }
    }

    /// The number that is stored.
    const fn code(self) -> u8 {
        match self {
            Self::Received => 0,
            Self::Flushed => 1,
            Self::Replicated => 2,
            Self::Quorum => 3,
            Self::Unknown => 4,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0 => Self::Received,
            1 => Self::Flushed,
            2 => Self::Replicated,
            3 => Self::Quorum,
            4 => Self::Unknown,
            _ => return None,
        })
    }
}

/// What a destination answered for one message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// When the answer came, microseconds since 1970-01-01 UTC, relay's clock.
    pub sent_at_us: i64,
    /// What the answer proves.
    pub level: AckLevel,
    /// How many times the message was sent, the successful one included.
    pub attempts: u32,
    /// What the destination calls it: a broker's message id, queue and offset, a file's offset. May be empty.
    pub detail: String,
}

/// Where a lane stands, as a checkpoint stores it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneState {
    /// Name of the destination.
    pub destination: String,
    /// Every position below it is settled: delivered, parked, or not routed here.
    pub cursor: Position,
    /// Every position below it has reached the demanded ack level. Equal to `cursor` where none is demanded, or where
    /// an acknowledgement proves it at once.
    pub proven: Position,
    /// Where acknowledgements reach the demanded level some time after they were given: what `proven` says.
    pub proof: Option<Proof>,
    /// Positions at or above the cursor that are settled already. They are not sent again.
    pub ahead: Runs,
}

/// What was proven after it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The level that acknowledgements from `from` up to [`LaneState::proven`] have reached.
    pub level: AckLevel,
    /// See `level`. What was acknowledged below it was not asked about.
    pub from: Position,
}

impl LaneState {
    /// The level that the acknowledgement of a position has reached, given the one that its receipt names.
    pub fn level(&self, position: Position, receipt: AckLevel) -> AckLevel {
        let proven = |proof: &Proof| proof.from <= position && position < self.proven;
        self.proof.filter(proven).map_or(receipt, |proof| proof.level.max(receipt))
    }
}

/// One receipt of a lane, as a checkpoint stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneReceipt {
    /// The message.
    pub position: Position,
    /// What was answered.
    pub receipt: Receipt,
}

/// A receipt row: all lanes of a shard as one checkpoint left them, with the receipts that were new.
///
/// Lanes of destinations that are no longer configured are carried along, so that their cursor is never lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptRow {
    /// The lanes, each with its new receipts by rising position.
    pub lanes: Vec<(LaneState, Vec<LaneReceipt>)>,
    /// What operators' acts have changed meanwhile. Older receipts of what was skipped, or of a destination that was dropped,
    /// do not count any more.
    pub acts: Vec<Touched>,
}

const RECEIPTS_V1: u8 = 1;
/// As the first, with the proof of each lane. Written only where one has it.
const RECEIPTS_V2: u8 = 2;
/// As the second, with what acts have changed. Written only where one has.
const RECEIPTS_V3: u8 = 3;
/// The most that a receipt row may unpack to.
const MAX_ROW_BYTES: usize = 256 << 20;

impl ReceiptRow {
    /// The smallest and largest position that has a receipt in this row, or was changed by an act.
    pub fn span(&self) -> Option<(Position, Position)> {
        let receipts = self.lanes.iter().flat_map(|(_, r)| r.iter().map(|r| r.position));
        let touched = self.acts.iter().flat_map(|t| t.positions.first().into_iter().chain(t.positions.last()));
        let (first, last) = receipts.chain(touched.map(Position)).fold((None, None), |(first, last), p| {
            (first.map_or(Some(p), |f: Position| Some(f.min(p))), last.max(Some(p)))
        });
        first.zip(last)
    }

    /// The bytes that are stored: a version byte, then compressed content.
    pub fn encode(&self) -> Vec<u8> {
        let version = match (self.acts.is_empty(), self.lanes.iter().any(|(s, _)| s.proof.is_some())) {
            (false, _) => RECEIPTS_V3,
            (true, true) => RECEIPTS_V2,
            (true, false) => RECEIPTS_V1,
        };
        let mut out = Vec::with_capacity(256);
        put_u64(&mut out, self.lanes.len() as u64);
        for (state, receipts) in &self.lanes {
            put_bytes(&mut out, state.destination.as_bytes());
            put_u64(&mut out, state.cursor.0);
            put_u64(&mut out, state.proven.0);
            if version >= RECEIPTS_V2 {
                out.push(state.proof.map_or(0, |proof| proof.level.code() + 1));
                state.proof.iter().for_each(|proof| put_u64(&mut out, proof.from.0));
            }
            put_runs(&mut out, state.cursor.0, &state.ahead);
            put_u64(&mut out, receipts.len() as u64);
            let (mut position, mut sent_at) = (0u64, 0i64);
            for r in receipts {
                put_u64(&mut out, r.position.0.wrapping_sub(position));
                put_i64(&mut out, r.receipt.sent_at_us.wrapping_sub(sent_at));
                out.push(r.receipt.level.code());
                put_u64(&mut out, u64::from(r.receipt.attempts));
                put_bytes(&mut out, r.receipt.detail.as_bytes());
                (position, sent_at) = (r.position.0, r.receipt.sent_at_us);
            }
        }
        if version == RECEIPTS_V3 {
            put_u64(&mut out, self.acts.len() as u64);
            for t in &self.acts {
                put_u64(&mut out, t.number.0);
                out.push(t.verb.code());
                put_bytes(&mut out, t.destination.as_bytes());
                put_runs(&mut out, 0, &t.positions);
            }
        }
        let mut bytes = vec![version];
        bytes.extend_from_slice(&compress(&out));
        bytes
    }

    /// Reads what [`ReceiptRow::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are not a receipt row of a version that this build knows.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (version, body) = bytes.split_first().ok_or(DecodeError { what: "receipt version", at: 0 })?;
        if !matches!(*version, RECEIPTS_V1..=RECEIPTS_V3) {
            return Err(DecodeError { what: "receipt version", at: 0 });
        }
        let content = decompress(body, MAX_ROW_BYTES, "receipts")?;
        let mut r = Reader::new(&content);
        let mut row = Self::default();
        for _ in 0..r.count("lane count")? {
            let destination = r.text("destination")?;
            let cursor = r.u64("cursor")?;
            let proven = r.u64("proven")?;
            let proof = match if *version >= RECEIPTS_V2 { r.u8("proof")? } else { 0 } {
                0 => None,
                n => {
                    let level = AckLevel::from_code(n - 1).ok_or_else(|| r.fail("proof"))?;
                    Some(Proof { level, from: Position(r.u64("proof")?) })
                }
            };
            let ahead = runs(&mut r, cursor)?;
            let count = r.count("receipt count")?;
            let mut receipts = Vec::with_capacity(count);
            let (mut position, mut sent_at) = (0u64, 0i64);
            for _ in 0..count {
                position = position.wrapping_add(r.u64("position")?);
                sent_at = sent_at.wrapping_add(r.i64("sent_at")?);
                let level = AckLevel::from_code(r.u8("ack level")?).ok_or_else(|| r.fail("ack level"))?;
                let attempts = u32::try_from(r.u64("attempts")?).map_err(|_| r.fail("attempts"))?;
                let detail = r.text("detail")?;
                receipts.push(LaneReceipt {
                    position: Position(position),
                    receipt: Receipt { sent_at_us: sent_at, level, attempts, detail },
                });
            }
            let state = LaneState { destination, cursor: Position(cursor), proven: Position(proven), proof, ahead };
            row.lanes.push((state, receipts));
        }
        for _ in 0..if *version == RECEIPTS_V3 { r.count("act count")? } else { 0 } {
            let number = ActNumber(r.u64("act number")?);
            let verb = Verb::from_code(r.u8("verb")?).ok_or_else(|| r.fail("verb"))?;
            let destination = r.text("destination")?;
            row.acts.push(Touched { number, verb, destination, positions: runs(&mut r, 0)? });
        }
        if r.at_end() { Ok(row) } else { Err(r.fail("end of receipts")) }
    }
}

fn put_runs(out: &mut Vec<u8>, mut before: u64, runs: &Runs) {
    put_u64(out, runs.run_count() as u64);
    for run in runs.iter() {
        put_u64(out, run.first.wrapping_sub(before));
        put_u64(out, run.last - run.first);
        before = run.last;
    }
}

fn runs(r: &mut Reader<'_>, mut before: u64) -> Result<Runs, DecodeError> {
    let mut runs = Runs::new();
    for _ in 0..r.count("run count")? {
        let first = before.wrapping_add(r.u64("run start")?);
        let last = first.checked_add(r.u64("run length")?).ok_or_else(|| r.fail("run length"))?;
        runs.insert_run(Run { first, last });
        before = last;
    }
    Ok(runs)
}

/// What a sink says of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination has it.
    Delivered(Receipt),
    /// Not now; try again, not before `after_ms` where the destination named a time.
    Retry {
        /// Why, without payload or secrets.
        reason: Reason,
        /// Milliseconds to wait at least.
        after_ms: Option<u64>,
    },
    /// It will never be taken as it is.
    Rejected(Reason),
    /// The destination as a whole does not answer or refuses everyone; says nothing about the message.
    DestinationDown(Reason),
    /// It was not sent, since the part of the destination that it belongs to cannot take it now; others may get on. Says
    /// nothing about the message: nothing is counted, and only its key waits.
    Held {
        /// Why, without payload or secrets.
        reason: Reason,
        /// Milliseconds to wait. None: that part is down; until the destination was started anew, which this asks for.
        after_ms: Option<u64>,
    },
    /// It may or may not have been stored: no answer within the limit, or a connection lost in between.
    Unknown(Reason),
}

/// Why something was not delivered: a code of the project's list and one line of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// `OUT-nnnn`.
    pub code: &'static str,
    /// One line, without payload, key values or secrets.
    pub text: String,
}

impl Reason {
    /// A reason from its code and text.
    pub fn new(code: &'static str, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

/// All that a sink says of one batch, by destination: used by engine and simulator alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchAnswer {
    /// Destination that was asked.
    pub destination: DestinationIndex,
    /// One outcome for each message of the batch, in its order.
    pub outcomes: Vec<Outcome>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_runs() -> impl Strategy<Value = Runs> {
        proptest::collection::vec((0..1000u64, 0..9u64), 0..9).prop_map(|v| {
            let mut runs = Runs::new();
            v.iter().for_each(|(a, n)| runs.insert_run(Run { first: *a, last: a + n }));
            runs
        })
    }

    fn touched() -> impl Strategy<Value = Touched> {
        (any::<u64>(), 0..6u8, ".{0,12}", some_runs()).prop_map(|(number, verb, destination, positions)| Touched {
            number: ActNumber(number),
            verb: Verb::from_code(verb).unwrap(),
            destination,
            positions,
        })
    }

    fn lane() -> impl Strategy<Value = (LaneState, Vec<LaneReceipt>)> {
        let receipt = (any::<u64>(), any::<i64>(), 0..5u8, any::<u32>(), ".{0,8}").prop_map(
            |(p, at, level, attempts, detail)| LaneReceipt {
                position: Position(p),
                receipt: Receipt { sent_at_us: at, level: AckLevel::from_code(level).unwrap(), attempts, detail },
            },
        );
        let runs = some_runs();
        let proof = proptest::option::of(
            (0..4u8, any::<u64>())
                .prop_map(|(level, from)| Proof { level: AckLevel::from_code(level).unwrap(), from: Position(from) }),
        );
        (".{0,12}", any::<u64>(), any::<u64>(), proof, runs, proptest::collection::vec(receipt, 0..9)).prop_map(
            |(destination, cursor, proven, proof, ahead, receipts)| {
                let state = LaneState { destination, cursor: Position(cursor), proven: Position(proven), proof, ahead };
                (state, receipts)
            },
        )
    }

    proptest! {
        #[test]
        fn reads_back_what_it_wrote(lanes in proptest::collection::vec(lane(), 0..5),
                                    acts in proptest::collection::vec(touched(), 0..3)) {
            let row = ReceiptRow { lanes, acts };
            prop_assert_eq!(ReceiptRow::decode(&row.encode()), Ok(row));
        }

        #[test]
        fn what_has_no_proof_is_written_as_it_always_was(lanes in proptest::collection::vec(lane(), 0..5)) {
            let without = |(s, r): (LaneState, _)| (LaneState { proof: None, ..s }, r);
            let row = ReceiptRow { lanes: lanes.into_iter().map(without).collect(), acts: vec![] };
            prop_assert_eq!(row.encode()[0], RECEIPTS_V1);
        }

        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ReceiptRow::decode(&bytes);
            for version in [RECEIPTS_V1, RECEIPTS_V2, RECEIPTS_V3] {
                let mut framed = vec![version];
                framed.extend(compress(&bytes));
                let _ = ReceiptRow::decode(&framed);
            }
        }
    }
}
