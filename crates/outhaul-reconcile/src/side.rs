//! One side: what is pushed is sorted piece by piece into runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::merge::{Sources, fan_in};
use crate::record::Record;
use crate::spool::{Room, Spool};

/// Least memory of a side, bytes.
pub const MEMORY_MIN_BYTES: usize = 64 << 10;
/// Parts of a comparison that take memory: two sides, and the merge.
pub(crate) const SHARES: usize = 3;
/// Most memory of a side, bytes: places in its buffer are numbers of 32 bits.
const MEMORY_MAX_BYTES: usize = 2 << 30;
/// What a record costs in the list that is sorted, bytes.
const ENTRY_BYTES: usize = size_of::<(u64, u32)>();

/// A side that is being read.
#[derive(Debug)]
pub struct Side {
    folder: PathBuf,
    memory: usize,
    /// Records, one behind the other.
    buffer: Vec<u8>,
    /// For each: eight bytes of its id, once it is sorted, and where it begins.
    entries: Vec<(u64, u32)>,
    /// How many bytes all ids in the buffer begin with in common.
    common: usize,
    spool: Option<Spool>,
    runs: Vec<(u64, u64)>,
    records: u64,
    room: Option<Arc<Room>>,
}

/// A side that is complete.
#[derive(Debug)]
pub struct Sorted {
    /// In how many runs, and which part of the file each is.
    pub(crate) spool: Option<Spool>,
    pub(crate) runs: Vec<(u64, u64)>,
    records: u64,
    room: Option<Arc<Room>>,
}

impl Side {
    /// A side whose runs lie in a folder, of a comparison that takes up to so much memory, in bytes, of which a side
    /// has a third until it is finished.
    pub fn new(folder: &Path, memory_bytes: usize) -> Self {
        // Allocators keep what was given back for a while: the next side, and the merge, have their own share then.
        let memory_bytes = memory_bytes / SHARES;
        Self {
            folder: folder.to_owned(),
            memory: memory_bytes.clamp(MEMORY_MIN_BYTES, MEMORY_MAX_BYTES),
            buffer: Vec::new(),
            entries: Vec::new(),
            common: 0,
            spool: None,
            runs: Vec::new(),
            records: 0,
            room: None,
        }
    }

    /// The same, whose temporary files share this room with those of others. Where it is used up, it fails with
    /// `StorageFull`.
    #[must_use]
    pub fn within(self, room: Arc<Room>) -> Self {
        Self { room: Some(room), ..self }
    }

    /// Takes a record.
    ///
    /// # Errors
    /// `InvalidInput`: its id or content is too long, or the id is empty; nothing was taken. Others: a temporary file cannot
    /// be made or written.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        // Room is taken once, so that it never has to be copied: what is not used is no memory yet.
        if self.buffer.capacity() == 0 {
            self.buffer.reserve_exact(self.memory / 5 * 4);
            self.entries.reserve_exact(self.memory / 5 / ENTRY_BYTES);
        }
        let begin = self.buffer.len();
        record.push_to(&mut self.buffer)?;
        let full = self.buffer.len() > self.memory / 5 * 4 || self.entries.len() == self.entries.capacity();
        if full && begin > 0 {
            let kept = self.buffer.split_off(begin);
            self.write_run()?;
            self.buffer.extend_from_slice(&kept);
        }
        let begin = self.buffer.len()
            - Record::length(self.buffer.get(begin..).unwrap_or(&self.buffer)).unwrap_or(self.buffer.len());
        self.common = match self.entries.first() {
            None => record.id.len(),
            Some((_, first)) => {
                let first = Record::id_at(self.buffer.get(*first as usize..).unwrap_or_default());
                let pairs = first.iter().zip(&record.id).take(self.common);
                pairs.take_while(|(a, b)| a == b).count()
            }
        };
        self.entries.push((0, begin as u32));
        self.records += 1;
        Ok(())
    }

    /// Records taken.
    pub const fn len(&self) -> u64 {
        self.records
    }

    /// Whether none was taken.
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    fn write_run(&mut self) -> io::Result<()> {
        if self.entries.is_empty() {
            return Ok(());
        }
        let (buffer, common) = (&self.buffer, self.common);
        let id = |at: u32| Record::id_at(buffer.get(at as usize..).unwrap_or_default());
        // Behind what all have in common eight bytes nearly always decide, without a look at the ids themselves.
        for (key, at) in &mut self.entries {
            let mut eight = [0u8; 8];
            let rest = id(*at).get(common..).unwrap_or_default();
            eight.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            *key = u64::from_be_bytes(eight);
        }
        self.entries.sort_unstable_by(|(a, at), (b, bt)| a.cmp(b).then_with(|| id(*at).cmp(id(*bt))));
        let spool = match &mut self.spool {
            Some(spool) => spool,
            empty => empty.insert(Spool::make(&self.folder, self.room.clone())?),
        };
        let begin = spool.len();
        for (_, at) in &self.entries {
            let record = buffer.get(*at as usize..).unwrap_or_default();
            spool.append(record.get(..Record::length(record)?).unwrap_or_default())?;
        }
        self.runs.push((begin, spool.len()));
        self.buffer.clear();
        self.entries.clear();
        Ok(())
    }

    /// Sorts and writes the rest. Its memory is given back.
    ///
    /// # Errors
    /// A temporary file cannot be made or written.
    pub fn finish(mut self) -> io::Result<Sorted> {
        self.write_run()?;
        (self.buffer, self.entries) = (Vec::new(), Vec::new());
        if let Some(spool) = &mut self.spool {
            spool.flush()?;
        }
        let mut sorted = Sorted {
            spool: self.spool.take(),
            runs: std::mem::take(&mut self.runs),
            records: self.records,
            room: self.room,
        };
        // As many runs as can be read at once with this memory: the rest is merged before.
        while sorted.runs.len() > fan_in(self.memory) / 2 {
            sorted = sorted.merged(&self.folder, self.memory)?;
        }
        Ok(sorted)
    }
}

impl Sorted {
    /// Records.
    pub const fn len(&self) -> u64 {
        self.records
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.records == 0
    }

    /// The same in fewer and longer runs.
    fn merged(self, folder: &Path, memory: usize) -> io::Result<Self> {
        let mut spool = Spool::make(folder, self.room.clone())?;
        let mut runs = Vec::new();
        for some in self.runs.chunks(fan_in(memory)) {
            let begin = spool.len();
            let mut sources = Sources::new(memory);
            for run in some {
                sources.add(self.spool.as_ref(), 0, *run, some.len())?;
            }
            let mut bytes = Vec::new();
            while let Some((_, record)) = sources.next()? {
                bytes.clear();
                record.push_to(&mut bytes)?;
                spool.append(&bytes)?;
            }
            runs.push((begin, spool.len()));
        }
        spool.flush()?;
        Ok(Self { spool: Some(spool), runs, records: self.records, room: self.room })
    }
}
