//! A regular file that whole lines are appended to.

use std::fs::{self, File, Metadata, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tracing::{info, warn};

use super::config::{FileConfig, Fsync};
use super::outcome::Failure;
use super::rotation::{Rotation, folder, name_for};
use crate::codes::SinkCode;

/// How long to wait for a lock that another process holds. It holds it for one write and one flush.
const LOCK_LIMIT: Duration = Duration::from_secs(2);
/// How often a file may be replaced under our hands before a call gives up.
const REOPEN_LIMIT: u32 = 5;
/// Bytes looked at in one step when the end of the last whole line is searched, and copied in one step.
const BLOCK_BYTES: usize = 64 << 10;

/// The file at a path.
pub(super) struct Journal {
    path: PathBuf,
    fsync: Fsync,
    rotation: Rotation,
    open: Option<Open>,
    /// Whether lines were written that no flush has covered.
    unsynced: bool,
    /// Whether it was said that this file system has no locks.
    told_no_locks: bool,
}

struct Open {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
    /// Length at which the file was last seen to end with a whole line.
    whole: u64,
}

impl Journal {
    pub(super) fn new(config: &FileConfig) -> Self {
        Self {
            path: config.path.clone(),
            fsync: config.fsync,
            rotation: Rotation::of(config),
            open: None,
            unsynced: false,
            told_no_locks: false,
        }
    }

    /// Opens the file and repairs its end, or looks whether the open one can still be used.
    pub(super) fn check(&mut self) -> Result<(), Failure> {
        self.hold()?;
        self.release();
        Ok(())
    }

    /// Appends whole lines, brings them to stable storage if the policy says so, and tells the offset of the first.
    /// After an error, none of them is in the file, unless the file system refused to cut them off as well.
    pub(super) fn append(&mut self, lines: &[u8], now: SystemTime) -> Result<u64, Failure> {
        let file = self.hold()?;
        let result = self.append_held(file, lines, now);
        self.release();
        result
    }

    /// Brings to stable storage what was written since the last time.
    pub(super) fn sync(&mut self) -> Result<(), Failure> {
        let Some(open) = self.open.as_ref().filter(|_| self.unsynced) else { return Ok(()) };
        self.unsynced = false;
        let result = open.file.sync_data();
        // A kernel reports a failed write-back once for each open file: only a fresh one can be believed again.
        result.map_err(|e| {
            self.open = None;
            Failure::io("flush", &self.path, &e)
        })
    }

    /// Whether a flush is due some time.
    pub(super) const fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// Flushes, unless the policy leaves that to the operating system, and closes.
    pub(super) fn close(&mut self) -> Result<(), Failure> {
        let result = if self.fsync == Fsync::None { Ok(()) } else { self.sync() };
        self.open = None;
        result
    }

    fn append_held(&mut self, mut file: Metadata, lines: &[u8], now: SystemTime) -> Result<u64, Failure> {
        if self.rotation.is_due(&file, lines.len() as u64, now) {
            self.put_aside(&file)?;
            file = self.hold()?;
        }
        let Some(open) = self.open.as_mut() else {
            return Err(Failure::new(SinkCode::FileFailed, format!("{} is not open", self.path.display())));
        };
        let offset = file.len();
        let written = match open.file.write_all(lines) {
            Ok(()) if self.fsync == Fsync::Batch => {
                open.file.sync_data().map_err(|e| (true, Failure::io("flush", &self.path, &e)))
            }
            Ok(()) => Ok(()),
            Err(e) => Err((false, Failure::io("write to", &self.path, &e))),
        };
        match written {
            Ok(()) => {
                open.whole = offset + lines.len() as u64;
                self.unsynced |= self.fsync != Fsync::Batch;
                Ok(offset)
            }
            Err((reopen, failure)) => {
                // Nobody else writes while the lock is held, so all above `offset` is ours.
                let cut = open.file.set_len(offset);
                if let Err(e) = &cut {
                    warn!(path = %self.path.display(), error = %e, "could not cut off a batch that was not written");
                }
                if reopen || cut.is_err() {
                    self.open = None;
                }
                Err(failure)
            }
        }
    }

    /// Opens the file if need be, takes its lock, and leaves it ending with a whole line. It is the one at the path.
    fn hold(&mut self) -> Result<Metadata, Failure> {
        for _ in 0..REOPEN_LIMIT {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => self.reopen()?,
            };
            self.lock(&open.file)?;
            let at_path = match fs::metadata(&self.path) {
                Ok(found) if identity(&found) == open.identity => found,
                Ok(_) => continue, // put aside by somebody: go on in the file that stands at the path now
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(Failure::io("look at", &self.path, &e)),
            };
            if at_path.len() == open.whole {
                self.open = Some(open);
                return Ok(at_path);
            }
            let cut = self.cut_torn_line(&open.file, at_path.len())?;
            open.whole = cut;
            let at_path = if cut == at_path.len() {
                at_path
            } else {
                open.file.metadata().map_err(|e| Failure::io("look at", &self.path, &e))?
            };
            self.open = Some(open);
            return Ok(at_path);
        }
        let text = format!("{} is replaced again and again by another process", self.path.display());
        Err(Failure::new(SinkCode::FileBusy, text))
    }

    fn release(&self) {
        if let Some(open) = &self.open {
            // Without a lock to give back there is nothing to do; closing the file gives it back as well.
            let _ = open.file.unlock();
        }
    }

    fn reopen(&self) -> Result<Open, Failure> {
        let failed = |e| Failure::io("open", &self.path, &e);
        let file = File::options().read(true).append(true).create(true).open(&self.path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if !found.is_file() {
            let text = format!("{} is not a regular file", self.path.display());
            return Err(Failure::new(SinkCode::NotAFile, text));
        }
        // The name itself must outlive a power cut too.
        if self.fsync != Fsync::None {
            self.sync_folder()?;
        }
        Ok(Open { file, identity: identity(&found), whole: 0 })
    }

    fn sync_folder(&self) -> Result<(), Failure> {
        let folder = folder(&self.path);
        File::open(folder).and_then(|f| f.sync_all()).map_err(|e| Failure::io("flush the folder", folder, &e))
    }

    fn lock(&mut self, file: &File) -> Result<(), Failure> {
        let deadline = Instant::now() + LOCK_LIMIT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => pause(),
                Err(TryLockError::WouldBlock) => {
                    let limit = LOCK_LIMIT.as_secs();
                    let text = format!("{} is locked by another process for {limit} s", self.path.display());
                    return Err(Failure::new(SinkCode::FileBusy, text));
                }
                Err(TryLockError::Error(e)) => {
                    if !std::mem::replace(&mut self.told_no_locks, true) {
                        warn!(path = %self.path.display(), error = %e, "the file cannot be locked: no other relay may write it");
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Moves a last line without its newline to `PATH.torn`, and tells the length of what stays.
    fn cut_torn_line(&self, file: &File, len: u64) -> Result<u64, Failure> {
        let failed = |e| Failure::io("repair the end of", &self.path, &e);
        let whole = end_of_last_line(file, len).map_err(failed)?;
        if whole == len {
            return Ok(len);
        }
        let mut name = self.path.clone().into_os_string();
        name.push(".torn");
        let torn = PathBuf::from(name);
        save(file, whole..len, &torn).map_err(|e| Failure::io("save a torn line in", &torn, &e))?;
        file.set_len(whole).and_then(|()| file.sync_all()).map_err(failed)?;
        warn!(
            path = %self.path.display(), bytes = len - whole, saved = %torn.display(),
            "moved a last line away that was not written completely; it was never acknowledged"
        );
        Ok(whole)
    }

    /// Renames the file. Its lock is held.
    fn put_aside(&mut self, file: &Metadata) -> Result<(), Failure> {
        if self.fsync != Fsync::None {
            self.sync()?;
        }
        let failed = |e| Failure::io("put aside", &self.path, &e);
        let name = name_for(&self.path, file).map_err(failed)?;
        fs::rename(&self.path, &name).map_err(failed)?;
        (self.open, self.unsynced) = (None, false);
        info!(path = %self.path.display(), to = %name.display(), bytes = file.len(), "put the file aside");
        Ok(())
    }
}

fn identity(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

#[expect(clippy::disallowed_methods, reason = "runs on the sink's own thread, within LOCK_LIMIT")]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// The length of the part that ends with a newline.
fn end_of_last_line(file: &File, len: u64) -> io::Result<u64> {
    let mut end = len;
    let mut step = 1; // nearly always the last byte is the newline
    while end > 0 {
        let mut block = vec![0; step.min(usize::try_from(end).unwrap_or(usize::MAX))];
        let start = end - block.len() as u64;
        file.read_exact_at(&mut block, start)?;
        if let Some(at) = block.iter().rposition(|b| *b == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        (end, step) = (start, BLOCK_BYTES);
    }
    Ok(0)
}

/// Appends a part of a file to another one, with a newline, and flushes it.
fn save(from: &File, part: std::ops::Range<u64>, to: &Path) -> io::Result<()> {
    let mut to = File::options().append(true).create(true).open(to)?;
    let mut at = part.start;
    while at < part.end {
        let step = usize::try_from(part.end - at).unwrap_or(usize::MAX).min(BLOCK_BYTES);
        let mut block = vec![0; step];
        from.read_exact_at(&mut block, at)?;
        to.write_all(&block)?;
        at += step as u64;
    }
    to.write_all(b"\n")?;
    to.sync_all()
}
