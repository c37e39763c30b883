//! `outhaul enqueue`: messages from JSON Lines into the outbox table.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outhaul_store::{NewRow, Store, StoreErrorKind};
use serde_json::json;
use tokio::sync::mpsc;

use super::locate::locate;
use super::message_line;
use super::{of_outbox, open};
use crate::arguments::Enqueue;
use crate::codes;
use crate::failure::{Exit, Failure, Outcome};
use crate::{config, output};

/// Lines read ahead of the database.
const AHEAD_LINES: usize = 256;
/// Bytes of one transaction, unless a single message is larger.
const BATCH_BYTES: usize = 1 << 20;
/// What a row counts besides its payload.
const ROW_BYTES: usize = 200;
/// Tries of a batch that a deadlock or a lock kept out: nothing was stored then.
const TRIES: u32 = 4;
/// How often, and how far apart, it is asked whether a batch is there after all.
const LOOKS: u32 = 10;
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// A line of the input.
struct Line {
    /// Number, from 1.
    number: u64,
    /// The row, or what is wrong with the line. None: it is left out.
    row: Result<Option<NewRow>, String>,
}

/// Stores the lines, in transactions, and prints an id for each once it is stored.
///
/// # Errors
/// A line that cannot be enqueued ends it, after everything before it was stored; so does a failure of the database.
pub async fn run(a: &Enqueue, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let store = open(outbox).await?;
    let limit_bytes = outbox.store.max_message_bytes;
    let (to_us, mut lines) = mpsc::channel(AHEAD_LINES);
    let file = a.file.clone();
    // Reading blocks, and a pipe may stay silent for ever: a thread of its own, which the process does not wait for.
    std::thread::spawn(move || {
        if let Err(e) = read_lines(file, limit_bytes, &to_us) {
            let _ = to_us.blocking_send(Err(e));
        }
    });
    let result = store_lines(&store, &mut lines, a.batch as usize, json).await;
    store.close().await;
    result.map_err(|e| of_outbox(e, outbox))?;
    Ok(Exit::Fine)
}

/// A line, or why there are no more.
type FromInput = Result<Line, Failure>;

fn read_lines(file: Option<PathBuf>, limit_bytes: u64, to: &mpsc::Sender<FromInput>) -> Result<(), Failure> {
    let failed =
        |what: &dyn std::fmt::Display, e: std::io::Error| Failure::new(&codes::INPUT_OUTPUT, format!("{what}: {e}"));
    let name = file.as_ref().map_or_else(|| "standard input".to_owned(), |f| f.display().to_string());
    let input: Box<dyn Read> = match &file {
        Some(path) => Box::new(std::fs::File::open(path).map_err(|e| failed(&path.display(), e))?),
        None => Box::new(std::io::stdin()),
    };
    let mut input = BufReader::with_capacity(64 << 10, input);
    // Escapes and base64 make a line longer than its payload.
    let longest = limit_bytes.saturating_mul(2).saturating_add(1 << 20);
    let mut bytes = vec![];
    for number in 1.. {
        bytes.clear();
        let n = input.by_ref().take(longest + 1).read_until(b'\n', &mut bytes).map_err(|e| failed(&name, e))?;
        if n == 0 {
            break;
        }
        let row = if n as u64 > longest {
            Err(format!("it is longer than {longest} bytes"))
        } else if bytes.iter().all(u8::is_ascii_whitespace) {
            continue;
        } else {
            message_line::read(&bytes, limit_bytes)
        };
        let last = row.is_err();
        if to.blocking_send(Ok(Line { number, row })).is_err() || last {
            break;
        }
    }
    Ok(())
}

async fn store_lines(
    store: &Arc<dyn Store>,
    lines: &mut mpsc::Receiver<FromInput>,
    most_rows: usize,
    json: bool,
) -> Result<(), Failure> {
    let (mut stored, mut left_out) = (0u64, 0u64);
    let mut held = None;
    loop {
        let first = match held.take() {
            Some(line) => Some(line),
            None => lines.recv().await,
        };
        let Some(first) = first else {
            if left_out > 0 {
                eprintln!(
                    "{left_out} lines were left out: their messages could not be delivered as they were (`defect`)"
                );
            }
            return Ok(());
        };
        let batch = Batch::gather(first, lines, most_rows);
        left_out += batch.left_out;
        if !batch.rows.is_empty() {
            let ids = store_batch(store, &batch.rows).await.map_err(|f| f.while_doing(batch.place(stored)))?;
            stored += ids.len() as u64;
            if json {
                output::lines(ids.iter().map(|id| json!({ "id": id })))?;
            } else {
                output::lines(&ids)?;
            }
        }
        if let Some(mut failure) = batch.ends {
            failure.message = format!("{}; {stored} messages before it were stored", failure.message);
            return Err(failure);
        }
        held = batch.held;
    }
}

/// What goes into one transaction.
#[derive(Default)]
struct Batch {
    rows: Vec<NewRow>,
    /// Lines that are not stored.
    left_out: u64,
    /// Numbers of the first and the last line.
    lines: (u64, u64),
    /// A line that did not fit any more.
    held: Option<FromInput>,
    /// Why there is no line after.
    ends: Option<Failure>,
}

impl Batch {
    /// What is there already: a slow pipe's lines are stored at once, a file's in large transactions.
    fn gather(first: FromInput, lines: &mut mpsc::Receiver<FromInput>, most_rows: usize) -> Self {
        let mut batch = Self::default();
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(line) = next.take() {
            let (number, row) = match line {
                Ok(Line { number, row: Ok(Some(row)) }) => (number, row),
                Ok(Line { row: Ok(None), .. }) => {
                    batch.left_out += 1;
                    next = lines.try_recv().ok();
                    continue;
                }
                Ok(Line { number, row: Err(why) }) => {
                    batch.ends = Some(Failure::new(&codes::BAD_LINE, format!("line {number}: {why}")));
                    break;
                }
                Err(failure) => {
                    batch.ends = Some(failure);
                    break;
                }
            };
            bytes += row.payload.len() + ROW_BYTES;
            if !batch.rows.is_empty() && bytes > BATCH_BYTES {
                batch.held = Some(Ok(Line { number, row: Ok(Some(row)) }));
                break;
            }
            batch.lines = (if batch.rows.is_empty() { number } else { batch.lines.0 }, number);
            batch.rows.push(row);
            if batch.rows.len() < most_rows {
                next = lines.try_recv().ok();
            }
        }
        batch
    }

    fn place(&self, stored: u64) -> String {
        match self.lines {
            (first, last) if first == last => format!("line {first} ({stored} messages before it were stored)"),
            (first, last) => format!("lines {first} to {last} ({stored} messages before them were stored)"),
        }
    }
}

/// Stores rows in one transaction; their ids.
///
/// # Errors
/// Nothing was stored, or nobody knows.
pub(super) async fn store_batch(store: &Arc<dyn Store>, rows: &[NewRow]) -> Result<Vec<String>, Failure> {
    let mut tries = 0;
    loop {
        tries += 1;
        match store.enqueue(rows).await {
            Ok(ids) => return Ok(ids),
            Err(e) if e.kind == StoreErrorKind::CommitUnknown => return settle(store, rows).await,
            Err(e) if matches!(e.kind, StoreErrorKind::Conflict | StoreErrorKind::Timeout) && tries < TRIES => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Asks whether a batch whose COMMIT was not answered is there. It is one transaction: one of its rows stands for all.
async fn settle(store: &Arc<dyn Store>, rows: &[NewRow]) -> Result<Vec<String>, Failure> {
    let ids: Vec<String> = rows.iter().filter_map(|r| r.id.clone()).collect();
    let unknown = || {
        let list = match ids.as_slice() {
            [] | [_] => ids.concat(),
            [first, .., last] => format!("{first} to {last}"),
        };
        Failure::new(&codes::BATCH_UNKNOWN, format!("the answer to COMMIT was lost; stored or not: {list}"))
    };
    let Some(first) = ids.first() else { return Err(unknown()) };
    for _ in 0..LOOKS {
        if locate(store, first, None).await.is_ok_and(|places| !places.is_empty()) {
            return Ok(ids);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Err(unknown())
}
