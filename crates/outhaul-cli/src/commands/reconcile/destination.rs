//! What a destination has.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use outhaul_reconcile::{Expectation, Place, Record, Side};
use outhaul_sink::file::FileConfig;
use outhaul_sink::inbox::InboxConfig;
use outhaul_store::StoreErrorKind;
use outhaul_store::scan::{Cell, Wanted, scan};
use serde::Deserialize;

use super::known::{Reach, patient, time_of};
use super::{Asked, pushed, queues};
use crate::codes;
use crate::config::Destination;
use crate::failure::Failure;
use crate::timestamp;

/// Longest line of a file, bytes.
const LINE_MAX_BYTES: u64 = 256 << 20;

/// Reads what a destination has, from the window on as far as the destination can be asked so.
pub(super) async fn read(
    asked: &Asked<'_>,
    d: &Destination,
    topics: &BTreeSet<String>,
    side: &mut Side,
) -> Result<Reach, Failure> {
    match d.kind.as_str() {
        "file" if d.can_be_read() => {
            let config = FileConfig::read(&d.name, &d.settings)?;
            tokio::task::block_in_place(|| files(asked, &config.path, side))?;
            Ok(Reach::default())
        }
        "inbox" => inbox(asked, &InboxConfig::read(&d.name, &d.settings)?, side).await,
        "rocketmq" => queues::read(asked, d, topics, side).await,
        kind => {
            let what = format!("what a destination of kind {kind} has cannot be read");
            Err(Failure::new(&codes::NOTHING_TO_COMPARE, what))
        }
    }
}

/// `SHARD:POSITION`.
pub(super) fn log_place(text: &str) -> Option<(u16, u64)> {
    let (shard, position) = text.split_once(':')?;
    Some((shard.parse().ok()?, position.parse().ok()?))
}

// ---- files -------------------------------------------------------------------------------------------------------

/// What is read of a line. A line may be cut off at the end of a file that is being written.
#[derive(Deserialize)]
struct Line {
    id: String,
    shard: Option<u16>,
    position: Option<u64>,
    created_at: Option<String>,
}

/// The file, and what was put aside of it (`PATH.YYYYMMDD-NNNN`).
fn files(asked: &Asked<'_>, path: &Path, side: &mut Side) -> Result<(), Failure> {
    let failed =
        |path: &Path, e: std::io::Error| Failure::new(&codes::INPUT_OUTPUT, format!("{}: {e}", path.display()));
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stem = format!("{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut all: Vec<PathBuf> = vec![];
    for entry in std::fs::read_dir(folder).map_err(|e| failed(folder, e))? {
        let name = entry.map_err(|e| failed(folder, e))?.file_name();
        let aside = name.to_string_lossy().strip_prefix(&stem).is_some_and(is_aside);
        all.extend(aside.then(|| folder.join(&name)));
    }
    all.sort();
    // Last: what is put aside meanwhile is read under one of its names, or twice; it is the same file then.
    let mut seen = BTreeSet::new();
    for (number, path) in all.iter().map(PathBuf::as_path).chain([path]).enumerate() {
        let file = match std::fs::File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
            Err(e) => return Err(failed(path, e)),
        };
        if !seen.insert(identity(&file, path)) {
            continue;
        }
        let mut input = BufReader::with_capacity(256 << 10, file);
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            let n = input.by_ref().take(LINE_MAX_BYTES).read_until(b'\n', &mut bytes).map_err(|e| failed(path, e))?;
            if n == 0 {
                break;
            }
            let Ok(read) = serde_json::from_slice::<Line>(&bytes) else {
                // Without its end it is still being written, or was when its writer was killed.
                if bytes.last() == Some(&b'\n') && !bytes.iter().all(u8::is_ascii_whitespace) {
                    let what = format!("{} line {line} is not one that Outhaul has written", path.display());
                    return Err(Failure::new(&codes::BAD_LINE, what));
                }
                continue;
            };
            if read.id.is_empty() {
                continue;
            }
            let at_ms = read.created_at.as_deref().and_then(timestamp::parse).map(|us| us.div_euclid(1_000));
            let record = Record {
                place: Place::Line(u32::try_from(number).unwrap_or(u32::MAX), line),
                log: read.shard.zip(read.position),
                expectation: of_window(asked, at_ms),
                ..Record::new(read.id, at_ms)
            };
            pushed(asked, side, &record)?;
        }
    }
    Ok(())
}

fn is_aside(rest: &str) -> bool {
    let (day, number) = rest.split_once('-').unwrap_or_default();
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    day.len() == 8 && digits(day) && digits(number)
}

#[cfg(unix)]
fn identity(file: &std::fs::File, path: &Path) -> (u64, u64, PathBuf) {
    use std::os::unix::fs::MetadataExt;
    let known = file.metadata().map(|m| (m.dev(), m.ino(), PathBuf::new()));
    known.unwrap_or_else(|_| (0, 0, path.to_owned()))
}

#[cfg(not(unix))]
fn identity(_: &std::fs::File, path: &Path) -> (u64, u64, PathBuf) {
    (0, 0, path.to_owned())
}

fn of_window(asked: &Asked<'_>, at_ms: Option<i64>) -> Expectation {
    if asked.window.contains(at_ms) { Expectation::Must } else { Expectation::Known }
}

// ---- inboxes -----------------------------------------------------------------------------------------------------

/// What was received, and what was applied: an applied one may have left `inbox_message` already.
async fn inbox(asked: &Asked<'_>, config: &InboxConfig, side: &mut Side) -> Result<Reach, Failure> {
    let options = patient(&config.options(), asked.a.limit);
    let consumer = &config.consumer;
    for (wanted, echo) in [(Wanted::InboxMessage(consumer.clone()), false), (Wanted::Inbox(consumer.clone()), true)] {
        let mut rows = scan(options.clone(), wanted)?;
        loop {
            let page = match rows.next().await {
                Err(e) if echo && matches!(e.kind, StoreErrorKind::NotInitialised | StoreErrorKind::Permission) => {
                    break;
                }
                page => page?,
            };
            let Some(page) = page else { break };
            for row in page {
                let mut cells = row.into_iter();
                let Some(id) = cells.next().and_then(Cell::into_bytes).filter(|id| !id.is_empty()) else { continue };
                let at_ms = cells.next().as_ref().and_then(time_of);
                let place = cells.next().and_then(Cell::into_bytes);
                let place = place.as_deref().and_then(|text| std::str::from_utf8(text).ok());
                let record = Record {
                    log: place.and_then(log_place),
                    expectation: if echo { Expectation::Echo } else { of_window(asked, at_ms) },
                    ..Record::new(id, at_ms)
                };
                pushed(asked, side, &record)?;
            }
        }
    }
    Ok(Reach::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_put_aside() {
        assert!(is_aside("20260301-0001") && is_aside("20260301-12345"));
        assert!(!is_aside("20260301") && !is_aside("2026031-0001") && !is_aside("bak") && !is_aside("20260301-x"));
        assert_eq!((log_place("3:9"), log_place("x"), log_place("3:")), (Some((3, 9)), None, None));
    }
}
