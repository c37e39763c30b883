//! Temporary files that go away by themselves.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tells the files of a process apart.
static NEXT: AtomicU64 = AtomicU64::new(0);
/// Names that are tried before it is given up.
const NAMES_MAX: u32 = 1_000;
/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;

/// How much all temporary files of a comparison may hold together.
#[derive(Debug)]
pub struct Room {
    most: u64,
    used: AtomicU64,
}

impl Room {
    /// So many bytes.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { most: bytes, used: AtomicU64::new(0) })
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used <= self.most {
            return Ok(());
        }
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        let what = format!("they would hold more than {} bytes", self.most);
        Err(io::Error::new(io::ErrorKind::StorageFull, what))
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A temporary file that is written once from its start to its end, and read afterwards at any place.
#[derive(Debug)]
pub(crate) struct Spool {
    file: File,
    /// Where its name is, if it still has one.
    named: Option<PathBuf>,
    buffer: Vec<u8>,
    written: u64,
    room: Option<Arc<Room>>,
}

impl Spool {
    /// Makes a file in a folder.
    pub(crate) fn make(folder: &Path, room: Option<Arc<Room>>) -> io::Result<Self> {
        for _ in 0..NAMES_MAX {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = folder.join(format!("outhaul-reconcile-{}-{number}.run", std::process::id()));
            match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => {
                    // Nobody finds what it holds, and it is gone with the process, also a killed one.
                    let named = if cfg!(unix) && std::fs::remove_file(&path).is_ok() { None } else { Some(path) };
                    return Ok(Self { file, named, buffer: Vec::new(), written: 0, room });
                }
                // A process of the same number left it.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(io::Error::new(e.kind(), format!("{}: {e}", folder.display()))),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{}: no name is free", folder.display())))
    }

    /// Bytes appended so far.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= WRITE_BYTES { self.flush() } else { Ok(()) }
    }

    /// Hands what was appended to the system. Nothing is read before that.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if let Some(room) = &self.room {
            room.take(self.buffer.len() as u64)?;
        }
        // Also what is written in part: the file is given up then, and with it all of it.
        let written = self.file.write_all(&self.buffer);
        if let (Err(_), Some(room)) = (&written, &self.room) {
            room.give_back(self.buffer.len() as u64);
        }
        written?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Reads from a place on, until the buffer is full or the file ends. Returns how much.
    pub(crate) fn read_at(&self, mut at: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at))?;
        let mut filled = 0;
        while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read(rest) {
                Ok(0) => break,
                Ok(n) => (filled, at) = (filled + n, at + n as u64),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if let Some(room) = &self.room {
            room.give_back(self.written);
        }
        if let Some(path) = &self.named {
            _ = std::fs::remove_file(path);
        }
    }
}
