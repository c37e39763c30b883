//! One id of one side, and its bytes in a run.

use std::io;

use crate::{CONTENT_MAX_BYTES, ID_MAX_BYTES};

/// What is expected of the other side, or known of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Expectation {
    /// The other side must have it.
    #[default]
    Must = 0,
    /// The other side may have it already or not: it is under way, or too young.
    Pending = 1,
    /// It is set aside, with its reason, before it came there.
    Parked = 2,
    /// Not asked for, and known: an actual record of it is no stray.
    Known = 3,
    /// An operator gave it up: the other side may lack it.
    GivenUp = 4,
    /// Of an actual record: it shows that the id is there, and is no copy besides another record of it. Never a stray.
    Echo = 5,
}

impl Expectation {
    /// How many there are.
    pub const COUNT: usize = 6;

    fn from_code(code: u8) -> io::Result<Self> {
        let all = [Self::Must, Self::Pending, Self::Parked, Self::Known, Self::GivenUp, Self::Echo];
        all.into_iter().find(|e| *e as u8 == code).ok_or_else(damaged)
    }
}

/// Where a record was found; what the numbers mean is up to its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// Nowhere in particular.
    #[default]
    None,
    /// A position of a shard's log.
    Log(u16, u64),
    /// A line of a file, from 1, with the number of the file.
    Line(u32, u64),
    /// An offset of a queue, with the number of the queue in the source's list.
    Queue(u32, u64),
}

/// One id of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The id, 1 to [`ID_MAX_BYTES`] bytes.
    pub id: Vec<u8>,
    /// When, milliseconds since 1970-01-01 UTC. None: nobody knows.
    pub at_ms: Option<i64>,
    /// Where it was found.
    pub place: Place,
    /// Where the log has it, as the place itself says; None: it does not say.
    pub log: Option<(u16, u64)>,
    /// Of an expected record: what is expected. Of an actual one: [`Expectation::Known`] means that it is not asked for.
    pub expectation: Expectation,
    /// What is carried along, up to [`CONTENT_MAX_BYTES`].
    pub content: Vec<u8>,
}

/// Milliseconds that stand for "nobody knows".
const NO_TIME: i64 = i64::MIN;
/// The bytes of a record besides id and content.
pub(crate) const FIXED_BYTES: usize = 2 + 4 + 1 + 8 + 1 + 4 + 8 + 1 + 2 + 8;

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a temporary file does not hold what was written into it")
}

impl Record {
    /// An id that the other side must have.
    pub fn new(id: impl Into<Vec<u8>>, at_ms: Option<i64>) -> Self {
        Self { id: id.into(), at_ms, ..Self::default() }
    }

    /// Appends it: length of the id, length of the content, the fixed part, the id, the content.
    pub(crate) fn push_to(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let refused = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        if self.id.is_empty() || self.id.len() > ID_MAX_BYTES {
            return refused(format!("an id of {} bytes: it must have 1 to {ID_MAX_BYTES}", self.id.len()));
        }
        if self.content.len() > CONTENT_MAX_BYTES {
            return refused(format!("content of {} bytes: it may have {CONTENT_MAX_BYTES}", self.content.len()));
        }
        let (kind, a, b) = match self.place {
            Place::None => (0u8, 0, 0),
            Place::Log(shard, position) => (1, u32::from(shard), position),
            Place::Line(file, line) => (2, file, line),
            Place::Queue(queue, offset) => (3, queue, offset),
        };
        let (has_log, shard, position) = self.log.map_or((0u8, 0, 0), |(s, p)| (1, s, p));
        out.extend_from_slice(&(self.id.len() as u16).to_le_bytes());
        out.extend_from_slice(&(self.content.len() as u32).to_le_bytes());
        out.push(self.expectation as u8);
        out.extend_from_slice(&self.at_ms.unwrap_or(NO_TIME).to_le_bytes());
        out.push(kind);
        out.extend_from_slice(&a.to_le_bytes());
        out.extend_from_slice(&b.to_le_bytes());
        out.push(has_log);
        out.extend_from_slice(&shard.to_le_bytes());
        out.extend_from_slice(&position.to_le_bytes());
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.content);
        Ok(())
    }

    /// Length of a record whose fixed part begins here.
    pub(crate) fn length(fixed: &[u8]) -> io::Result<usize> {
        let id = usize::from(u16::from_le_bytes(part(fixed, 0)?));
        let content = u32::from_le_bytes(part(fixed, 2)?) as usize;
        if id > ID_MAX_BYTES || content > CONTENT_MAX_BYTES {
            return Err(damaged());
        }
        Ok(FIXED_BYTES + id + content)
    }

    /// The id of a record that begins here.
    pub(crate) fn id_at(bytes: &[u8]) -> &[u8] {
        let length = part(bytes, 0).map_or(0, |raw| usize::from(u16::from_le_bytes(raw)));
        bytes.get(FIXED_BYTES..FIXED_BYTES + length).unwrap_or_default()
    }

    /// Reads a whole record.
    pub(crate) fn read(bytes: &[u8]) -> io::Result<Self> {
        let id_end = FIXED_BYTES + usize::from(u16::from_le_bytes(part(bytes, 0)?));
        let at_ms = i64::from_le_bytes(part(bytes, 7)?);
        let (a, b) = (u32::from_le_bytes(part(bytes, 16)?), u64::from_le_bytes(part(bytes, 20)?));
        let [expectation] = part(bytes, 6)?;
        let [kind] = part(bytes, 15)?;
        let [has_log] = part(bytes, 28)?;
        Ok(Self {
            id: bytes.get(FIXED_BYTES..id_end).ok_or_else(damaged)?.to_vec(),
            at_ms: Some(at_ms).filter(|ms| *ms != NO_TIME),
            place: match kind {
                0 => Place::None,
                1 => Place::Log(u16::try_from(a).map_err(|_| damaged())?, b),
                2 => Place::Line(a, b),
                3 => Place::Queue(a, b),
                _ => return Err(damaged()),
            },
            log: (has_log == 1).then_some((u16::from_le_bytes(part(bytes, 29)?), u64::from_le_bytes(part(bytes, 31)?))),
            expectation: Expectation::from_code(expectation)?,
            content: bytes.get(id_end..).ok_or_else(damaged)?.to_vec(),
        })
    }
}

fn part<const N: usize>(bytes: &[u8], at: usize) -> io::Result<[u8; N]> {
    bytes.get(at..at + N).and_then(|raw| raw.try_into().ok()).ok_or_else(damaged)
}
