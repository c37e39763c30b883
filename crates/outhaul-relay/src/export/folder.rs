//! The files of a folder: written whole or not at all, never over other content.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use outhaul_core::message::{Position, ShardId};
use outhaul_sink::file::push_rfc3339;
use xxhash_rust::xxh3::xxh3_64;
use zstd::stream::{read::Decoder, write::Encoder};

use super::ExportError;
use super::days::{Day, Lines};

const DAY_US: i64 = 86_400_000_000;
const END: &str = ".jsonl.zst";
/// The end of a name while the file is being written.
const UNFINISHED: &str = ".part";
/// What a process that was killed has left unfinished goes after this time.
const LEFT_BEHIND: Duration = Duration::from_secs(24 * 3600);
/// Names that are tried for an unfinished file.
const NAMES: u32 = 1_000;

/// A folder for the exported files of an outbox.
pub(super) struct Folder<'a> {
    pub(super) path: &'a Path,
    pub(super) outbox: &'a str,
}

impl Folder<'_> {
    /// Sees to it that every line stands in a file that is on the disk. Returns how many files were written.
    pub(super) fn keep(&self, lines: &Lines) -> Result<u64, ExportError> {
        let names = self.names()?;
        let mut written = 0;
        for (day, content) in &lines.days {
            let start = self.start(lines.shard, *day);
            let rest = without(content, self.covered(content, &names, &start));
            if rest.lines.is_empty() {
                continue;
            }
            self.write(&start, &rest)?;
            written += 1;
        }
        // Also where nothing is new: who wrote a file that is there may have been killed right after.
        self.sync()?;
        Ok(written)
    }

    /// What the names begin with: outbox, shard, day.
    fn start(&self, shard: ShardId, day: i64) -> String {
        let mut date = Vec::new();
        push_rfc3339(&mut date, day.saturating_mul(DAY_US));
        let date = String::from_utf8_lossy(&date);
        format!("{}.shard-{:02}.{}.", self.outbox, shard.0, date.split('T').next().unwrap_or_default())
    }

    /// The names of all files; unfinished ones that are old are removed.
    fn names(&self) -> Result<Vec<String>, ExportError> {
        let failed = |e: io::Error| ExportError::of(self.path, &e);
        let mut names = Vec::new();
        for entry in fs::read_dir(self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(END) {
                names.push(name);
            } else if name.starts_with(&format!(".{}.", self.outbox)) && name.ends_with(UNFINISHED) {
                let age = entry.metadata().and_then(|m| m.modified()).map(|at| SystemTime::now().duration_since(at));
                if matches!(age, Ok(Ok(age)) if age > LEFT_BEHIND) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        Ok(names)
    }

    /// Which lines stand in a file already: they were exported, and their rows not deleted, by a process that ended
    /// before or by one that still runs. By line.
    fn covered(&self, day: &Day, names: &[String], start: &str) -> Vec<bool> {
        let mut covered = vec![false; day.lines.len()];
        let (Some((_, first)), Some((_, last))) = (day.lines.first(), day.lines.last()) else { return covered };
        let overlaps = |name: &&String| {
            name.strip_prefix(start).and_then(span).is_some_and(|(from, to)| from <= *last && to >= *first)
        };
        let mut found = names.iter().filter(overlaps).peekable();
        if found.peek().is_none() {
            return covered;
        }
        let ours: HashMap<&[u8], usize> = each(day).enumerate().map(|(n, (line, _))| (line, n)).collect();
        for name in found {
            // One that cannot be read to its end counts for nothing.
            for n in there(&self.path.join(name), &ours).unwrap_or_default() {
                if let Some(line) = covered.get_mut(n) {
                    *line = true;
                }
            }
        }
        covered
    }

    /// Writes a file under a name of its own, reads it back, and gives it its name. The name holds a checksum of the
    /// content: what has this name already is the same.
    fn write(&self, start: &str, day: &Day) -> Result<(), ExportError> {
        let (Some((_, first)), Some((_, last))) = (day.lines.first(), day.lines.last()) else { return Ok(()) };
        let name = format!("{start}{:012}-{:012}.{:016x}{END}", first.0, last.0, xxh3_64(&day.text));
        let (mut file, unfinished) = self.unfinished(&name)?;
        let result = self.fill(&mut file, &unfinished, &day.text).and_then(|()| {
            let path = self.path.join(&name);
            fs::rename(&unfinished, &path).map_err(|e| ExportError::of(&path, &e))
        });
        if result.is_err() {
            // What cannot be removed now goes as what a killed process left.
            let _ = fs::remove_file(&unfinished);
        }
        result
    }

    fn fill(&self, file: &mut File, path: &Path, text: &[u8]) -> Result<(), ExportError> {
        let failed = |e: io::Error| ExportError::of(path, &e);
        compress(file, text).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        if same(path, text).map_err(failed)? {
            Ok(())
        } else {
            Err(ExportError::ReadBack { path: path.display().to_string() })
        }
    }

    /// A new file that nobody else has open.
    fn unfinished(&self, name: &str) -> Result<(File, PathBuf), ExportError> {
        let mut n = 0;
        loop {
            let path = self.path.join(format!(".{name}.{}-{n}{UNFINISHED}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && n < NAMES => n += 1,
                Err(e) => return Err(ExportError::of(self.path, &e)),
            }
        }
    }

    /// Whether a file can be written, read back and taken away.
    pub(super) fn try_out(&self) -> Result<(), ExportError> {
        let (mut file, path) = self.unfinished(self.outbox)?;
        let tried = self.fill(&mut file, &path, b"{}\n").and_then(|()| self.sync());
        std::fs::remove_file(&path).map_err(|e| ExportError::of(&path, &e))?;
        tried
    }

    fn sync(&self) -> Result<(), ExportError> {
        let synced = if cfg!(unix) { File::open(self.path).and_then(|folder| folder.sync_all()) } else { Ok(()) };
        synced.map_err(|e| ExportError::of(self.path, &e))
    }
}

fn compress(file: &mut File, text: &[u8]) -> io::Result<()> {
    let mut encoder = Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
    encoder.include_checksum(true)?;
    encoder.write_all(text)?;
    encoder.finish()?.flush()
}

/// Whether a file holds this text and nothing else.
fn same(path: &Path, text: &[u8]) -> io::Result<bool> {
    let mut content = Decoder::new(File::open(path)?)?;
    let mut left = text;
    let mut buffer = [0; 16 << 10];
    loop {
        let n = match content.read(&mut buffer) {
            Ok(0) => return Ok(left.is_empty()),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            // The disk says nothing and the content is damaged: that is what is looked for.
            Err(_) => return Ok(false),
        };
        match (left.split_at_checked(n), buffer.get(..n)) {
            (Some((expected, rest)), Some(found)) if expected == found => left = rest,
            _ => return Ok(false),
        }
    }
}

/// First and last position of `FIRST-LAST.CHECKSUM.jsonl.zst`.
fn span(rest: &str) -> Option<(Position, Position)> {
    let (positions, _) = rest.strip_suffix(END)?.split_once('.')?;
    let (first, last) = positions.split_once('-')?;
    Some((Position(first.parse().ok()?), Position(last.parse().ok()?)))
}

/// Lines with their newline, and positions.
fn each(day: &Day) -> impl Iterator<Item = (&[u8], Position)> {
    let mut from = 0;
    day.lines.iter().map(move |&(to, position)| {
        let line = day.text.get(from..to).unwrap_or_default();
        from = to;
        (line, position)
    })
}

/// Which of our lines a file holds.
fn there(path: &Path, ours: &HashMap<&[u8], usize>) -> io::Result<Vec<usize>> {
    let longest = ours.keys().map(|line| line.len()).max().unwrap_or_default();
    let mut content = BufReader::new(Decoder::new(File::open(path)?)?);
    let mut found = Vec::new();
    let (mut line, mut whole) = (Vec::new(), true);
    loop {
        line.clear();
        let n = content.by_ref().take(longest as u64 + 1).read_until(b'\n', &mut line)?;
        if n == 0 {
            return Ok(found);
        }
        if whole && let Some(n) = ours.get(line.as_slice()) {
            found.push(*n);
        }
        whole = line.ends_with(b"\n");
    }
}

/// A day without the lines that are covered.
fn without(day: &Day, covered: Vec<bool>) -> Day {
    let mut rest = Day::default();
    for ((line, position), covered) in each(day).zip(covered) {
        if !covered {
            rest.text.extend_from_slice(line);
            rest.lines.push((rest.text.len(), position));
        }
    }
    rest
}
