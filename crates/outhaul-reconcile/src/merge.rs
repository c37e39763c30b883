//! The merge of sorted runs of both sides.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::io;

use crate::record::{Expectation, FIXED_BYTES, Record};
use crate::side::{SHARES, Sorted};
use crate::spool::Spool;

/// What is read of a run at once, bytes: at least, and at most.
const READ_BYTES: (usize, usize) = (8 << 10, 1 << 20);
/// Runs that are read at once, at most.
const FAN_IN_MAX: usize = 256;
/// Records of an id that are kept of each side; of further ones only their number.
const KEPT: usize = 8;

/// Runs that can be read at once with so much memory.
pub(crate) fn fan_in(memory: usize) -> usize {
    (memory / READ_BYTES.0).clamp(4, FAN_IN_MAX)
}

/// What one side has of an id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Half {
    /// How many records, those of [`Expectation::Echo`] not among them.
    pub count: u64,
    /// How many records of [`Expectation::Echo`].
    pub echoes: u64,
    /// Some of them, in no particular order: the first, and one of those that must be there if there is one.
    pub records: Vec<Record>,
    /// How many of each expectation, in their order.
    pub by_expectation: [u64; Expectation::COUNT],
}

impl Half {
    /// How many records of an expectation.
    pub fn of(&self, expectation: Expectation) -> u64 {
        self.by_expectation.get(expectation as usize).copied().unwrap_or_default()
    }

    /// Takes a record of the id.
    pub fn add(&mut self, record: Record) {
        let first_must = record.expectation == Expectation::Must && self.of(Expectation::Must) == 0;
        if let Some(count) = self.by_expectation.get_mut(record.expectation as usize) {
            *count += 1;
        }
        if record.expectation == Expectation::Echo {
            self.echoes += 1;
        } else {
            self.count += 1;
        }
        if self.records.len() >= KEPT && first_must {
            self.records.pop();
        }
        if self.records.len() < KEPT {
            self.records.push(record);
        }
    }
}

/// An id, and what both sides have of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The id.
    pub id: Vec<u8>,
    /// Of the expected side.
    pub expected: Half,
    /// Of the actual side.
    pub actual: Half,
}

/// A run that is being read.
struct Reader<'a> {
    spool: &'a Spool,
    side: u8,
    at: u64,
    end: u64,
    buffer: Vec<u8>,
    begin: usize,
    read_bytes: usize,
}

impl Reader<'_> {
    fn next(&mut self) -> io::Result<Option<Record>> {
        if !self.holds(FIXED_BYTES)? {
            return Ok(None);
        }
        let length = Record::length(self.buffer.get(self.begin..).unwrap_or_default())?;
        if !self.holds(length)? {
            let what = "a temporary file is shorter than what was written into it";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        let record = Record::read(self.buffer.get(self.begin..self.begin + length).unwrap_or_default())?;
        self.begin += length;
        Ok(Some(record))
    }

    /// Sees that so many bytes are in the buffer. False: the run ends before.
    fn holds(&mut self, bytes: usize) -> io::Result<bool> {
        let held = self.buffer.len() - self.begin;
        if held >= bytes {
            return Ok(true);
        }
        self.buffer.drain(..self.begin);
        self.begin = 0;
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let more = (bytes - held).max(self.read_bytes).min(left);
        // Not twice as much as is needed.
        self.buffer.reserve_exact(more);
        self.buffer.resize(held + more, 0);
        let n = self.spool.read_at(self.at, self.buffer.get_mut(held..).unwrap_or_default())?;
        self.at += n as u64;
        self.buffer.truncate(held + n);
        // What one large record needed is not kept for the small ones after it.
        if self.buffer.capacity() > 4 * self.read_bytes.max(self.buffer.len()) {
            self.buffer.shrink_to(self.read_bytes);
        }
        Ok(self.buffer.len() >= bytes)
    }
}

struct Head {
    record: Record,
    reader: usize,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Head {}
impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        self.record.id.cmp(&other.record.id).then(self.reader.cmp(&other.reader))
    }
}

/// Runs that are read together.
pub(crate) struct Sources<'a> {
    memory: usize,
    readers: Vec<Reader<'a>>,
    heads: BinaryHeap<Reverse<Head>>,
}

impl<'a> Sources<'a> {
    pub(crate) fn new(memory: usize) -> Self {
        Self { memory, readers: Vec::new(), heads: BinaryHeap::new() }
    }

    /// Adds a run, one of so many.
    pub(crate) fn add(
        &mut self,
        spool: Option<&'a Spool>,
        side: u8,
        (at, end): (u64, u64),
        of: usize,
    ) -> io::Result<()> {
        let Some(spool) = spool else { return Ok(()) };
        let read_bytes = (self.memory / of.max(1) / 2).clamp(READ_BYTES.0, READ_BYTES.1);
        self.readers.push(Reader { spool, side, at, end, buffer: Vec::new(), begin: 0, read_bytes });
        self.advance(self.readers.len() - 1)
    }

    fn advance(&mut self, reader: usize) -> io::Result<()> {
        if let Some(r) = self.readers.get_mut(reader)
            && let Some(record) = r.next()?
        {
            self.heads.push(Reverse(Head { record, reader }));
        }
        Ok(())
    }

    /// The next record by its id, and its side.
    pub(crate) fn next(&mut self) -> io::Result<Option<(u8, Record)>> {
        let Some(Reverse(Head { record, reader })) = self.heads.pop() else { return Ok(None) };
        self.advance(reader)?;
        Ok(Some((self.readers.get(reader).map_or(0, |r| r.side), record)))
    }
}

/// Walks through both sides by rising id, with a third of so much memory, in bytes, for what is read. Each id comes once.
///
/// # Errors
/// A temporary file cannot be read, or `each` has failed.
pub fn compare<E: From<io::Error>>(
    expected: &Sorted,
    actual: &Sorted,
    memory_bytes: usize,
    mut each: impl FnMut(Group) -> Result<(), E>,
) -> Result<(), E> {
    let of = expected.runs.len() + actual.runs.len();
    let mut sources = Sources::new(memory_bytes / SHARES);
    for (side, sorted) in [(0, expected), (1, actual)] {
        for run in &sorted.runs {
            sources.add(sorted.spool.as_ref(), side, *run, of)?;
        }
    }
    let mut group: Option<Group> = None;
    while let Some((side, record)) = sources.next()? {
        if group.as_ref().is_some_and(|g| g.id != record.id)
            && let Some(complete) = group.take()
        {
            each(complete)?;
        }
        let group = group.get_or_insert_with(|| Group { id: record.id.clone(), ..Group::default() });
        let half = if side == 0 { &mut group.expected } else { &mut group.actual };
        half.add(record);
    }
    group.map_or(Ok(()), each)
}
