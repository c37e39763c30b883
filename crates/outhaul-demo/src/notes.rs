//! What each worker of the order service notes while it works, for the inquest after its death.
//!
//! One append-only file a worker and process, one line a step, each written by one system call and never synced: what
//! was written survives the death of the process, not of the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::DemoError;

/// Now, microseconds since 1970-01-01 UTC.
pub(crate) fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_micros()).unwrap_or(i64::MAX))
}

/// Writes one worker's notes.
pub(crate) struct Notebook(File);

impl Notebook {
    /// The notes of a worker of the `process`-th process.
    pub(crate) fn open(folder: &Path, process: u32, worker: u32) -> Result<Self, DemoError> {
        let path = folder.join(format!("{process:04}-{worker}.txt"));
        File::options().create_new(true).append(true).open(&path).map(Self).map_err(DemoError::file(path))
    }

    /// The order's transaction is about to begin.
    pub(crate) fn begin(&mut self, id: &str) -> std::io::Result<()> {
        self.line(&format!("begin {id}\n"))
    }

    /// Its COMMIT has returned.
    pub(crate) fn committed(&mut self, id: &str) -> std::io::Result<()> {
        self.line(&format!("committed {id} {}\n", now_us()))
    }

    /// It was rolled back.
    pub(crate) fn declined(&mut self, id: &str) -> std::io::Result<()> {
        self.line(&format!("declined {id}\n"))
    }

    /// The event was handed to the network, for one service.
    pub(crate) fn sent(&mut self, id: &str, service: &str) -> std::io::Result<()> {
        self.line(&format!("sent {id} {service}\n"))
    }

    fn line(&mut self, line: &str) -> std::io::Result<()> {
        self.0.write_all(line.as_bytes())
    }
}

/// All notes of a run.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// When the COMMIT of each order returned, microseconds since 1970-01-01 UTC.
    pub(crate) committed_us: BTreeMap<String, i64>,
    /// Orders that were rolled back.
    pub(crate) declined: u64,
    /// The last order of every worker of every process, with the services that it was sent to: where a process was
    /// killed, this is what it was at.
    pub(crate) last: Vec<LastOrder>,
}

/// What a worker was at when its process ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LastOrder {
    /// Number of the process.
    pub(crate) process: u32,
    /// The order. Whether it was committed is for the database to say.
    pub(crate) id: String,
    /// Services that it was sent to.
    pub(crate) sent: BTreeSet<String>,
}

impl Notes {
    /// Reads all notes of a folder.
    pub(crate) fn read(folder: &Path) -> Result<Self, DemoError> {
        let mut notes = Self::default();
        for entry in std::fs::read_dir(folder).map_err(DemoError::file(folder))? {
            let path = entry.map_err(DemoError::file(folder))?.path();
            let text = std::fs::read_to_string(&path).map_err(DemoError::file(&path))?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let process = name.split_once('-').and_then(|(process, _)| process.parse().ok()).unwrap_or_default();
            notes.last.extend(notes_of_worker(&text, process, &mut notes.committed_us, &mut notes.declined));
        }
        notes.last.sort_by(|a, b| (a.process, &a.id).cmp(&(b.process, &b.id)));
        Ok(notes)
    }
}

fn notes_of_worker(
    text: &str,
    process: u32,
    committed_us: &mut BTreeMap<String, i64>,
    declined: &mut u64,
) -> Option<LastOrder> {
    let mut last = None;
    // A line without its end is the one that the kill cut short: the step was not noted.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let mut words = line.split(' ');
        let (Some(step), Some(id)) = (words.next(), words.next()) else { continue };
        match (step, words.next()) {
            ("begin", None) => last = Some(LastOrder { process, id: id.to_owned(), sent: BTreeSet::new() }),
            ("committed", Some(at)) => {
                committed_us.extend(at.parse().ok().map(|at| (id.to_owned(), at)));
            }
            ("declined", None) => *declined += 1,
            ("sent", Some(service)) => {
                if let Some(order) = last.as_mut().filter(|order: &&mut LastOrder| order.id == id) {
                    order.sent.insert(service.to_owned());
                }
            }
            _ => {}
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_order_is_the_one_that_a_kill_found() {
        let (mut committed, mut declined) = (BTreeMap::new(), 0);
        let text = "begin a\ncommitted a 5\nsent a points\nbegin b\ndeclined b\nbegin c\ncommitted c 9\nsent c inventory\nsent c poi";
        let last = notes_of_worker(text, 3, &mut committed, &mut declined).unwrap();
        assert_eq!(last, LastOrder { process: 3, id: "c".into(), sent: ["inventory".to_owned()].into() });
        assert_eq!(committed, [("a".to_owned(), 5), ("c".to_owned(), 9)].into());
        assert_eq!(declined, 1);
        assert_eq!(notes_of_worker("", 0, &mut committed, &mut declined), None);
    }
}
