//! What leaves the log is kept in files before: zstd-compressed JSON Lines, one file or more for each day on which
//! messages were created.
//!
//! A file is written under another name, synced, read back and compared with the messages, renamed, and the folder
//! synced; only then may the rows be deleted. A crash in between leaves rows that are in files already: the next one
//! who exports them, whoever that is, finds their lines there and writes only what is missing.

mod days;
mod folder;
mod line;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use outhaul_store::{Exported, StoreError, StoredChunk};
use tokio::sync::oneshot;

use days::Lines;
use folder::Folder;

/// Writing one batch of files takes at most this long.
const LIMIT: Duration = Duration::from_secs(60);

/// Why messages cannot be exported. They stay in the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The folder, or a file in it, cannot be used: it is not there, a right is missing, the disk is full or hangs.
    #[error("exporting to {path}: {text}")]
    Folder {
        /// Folder or file.
        path: String,
        /// What the system said.
        text: String,
    },
    /// A file does not hold what was written into it.
    #[error("exporting to {path}: what is read back is not what was written")]
    ReadBack {
        /// The file.
        path: String,
    },
    /// A chunk of the log cannot be read.
    #[error("exporting: {}", error.message)]
    Unreadable {
        /// Which, and why.
        error: StoreError,
    },
}

impl ExportError {
    fn of(path: &Path, e: &io::Error) -> Self {
        Self::Folder { path: path.display().to_string(), text: e.to_string() }
    }

    /// Code of the error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Folder { .. } => "OUT-4019",
            Self::ReadBack { .. } => "OUT-4020",
            Self::Unreadable { error } => error.kind.code(),
        }
    }

    /// One line on what to do.
    pub const fn remedy(&self) -> &'static str {
        match self {
            Self::Folder { .. } => {
                "make the folder, give the right to write in it, or free space; nothing is pruned until then, and it is tried \
                 again by itself"
            }
            Self::ReadBack { .. } => "look at the disk and the file system; nothing of it was pruned",
            Self::Unreadable { error } => error.kind.remedy(),
        }
    }
}

/// What was exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// What may be deleted now.
    pub exported: Exported,
    /// Messages that are in files, also those that were there already.
    pub messages: u64,
    /// Files that were written.
    pub files: u64,
}

/// Writes what is pruned from an outbox into a folder.
pub(crate) struct Export {
    folder: PathBuf,
    outbox: String,
    /// Work that ran into the limit and may still be going on.
    hung: Option<oneshot::Receiver<Result<Written, ExportError>>>,
}

impl Export {
    pub(crate) fn new(outbox: &str, folder: PathBuf) -> Self {
        Self { folder, outbox: outbox.to_owned(), hung: None }
    }

    /// Sees to it that chunks of one shard, at least one of them, are in files on the disk. Chunks are unpacked one by one
    /// and lines are held up to 16 MiB, or those of one chunk.
    ///
    /// # Errors
    /// Nothing may be deleted; files that were finished stay.
    pub(crate) async fn write(&mut self, chunks: Vec<StoredChunk>) -> Result<Written, ExportError> {
        if let Some(hung) = &mut self.hung {
            if matches!(hung.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                return Err(hangs(&self.folder));
            }
            self.hung = None;
        }
        let (path, outbox) = (self.folder.clone(), self.outbox.clone());
        let mut answered = begin(&self.folder, move || write(&path, &outbox, &chunks))?;
        match tokio::time::timeout(LIMIT, &mut answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(no_answer(&self.folder)),
            Err(_) => {
                let error = hangs(&self.folder);
                self.hung = Some(answered);
                Err(error)
            }
        }
    }
}

/// Sees whether files can be written into a folder and read back, by one that is taken away again.
///
/// # Errors
/// They cannot, or it did not answer within 60 s.
pub async fn check_folder(folder: &Path) -> Result<(), ExportError> {
    let path = folder.to_path_buf();
    let answered = begin(folder, move || Folder { path: &path, outbox: "check" }.try_out())?;
    match tokio::time::timeout(LIMIT, answered).await {
        Ok(answer) => answer.unwrap_or_else(|_| Err(no_answer(folder))),
        Err(_) => Err(hangs(folder)),
    }
}

/// Work on a folder, on a thread of its own: a file system that hangs must not keep the process from ending.
fn begin<T: Send + 'static>(
    folder: &Path,
    work: impl FnOnce() -> Result<T, ExportError> + Send + 'static,
) -> Result<oneshot::Receiver<Result<T, ExportError>>, ExportError> {
    let (answer, answered) = oneshot::channel();
    let work = move || drop(answer.send(work()));
    let named = std::thread::Builder::new().name("export".into());
    named.spawn(work).map_err(|e| ExportError::of(folder, &e))?;
    Ok(answered)
}

fn hangs(folder: &Path) -> ExportError {
    let text = format!("it does not answer within {} s", LIMIT.as_secs());
    ExportError::Folder { path: folder.display().to_string(), text }
}

fn no_answer(folder: &Path) -> ExportError {
    ExportError::Folder { path: folder.display().to_string(), text: "the export ended without an answer".into() }
}

fn write(path: &Path, outbox: &str, chunks: &[StoredChunk]) -> Result<Written, ExportError> {
    let lines = Lines::of(chunks)?;
    let files = Folder { path, outbox }.keep(&lines)?;
    Ok(Written { exported: lines.exported, messages: lines.messages, files })
}
