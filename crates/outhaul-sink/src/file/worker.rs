//! The thread that writes.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use outhaul_core::message::Message;
use outhaul_core::receipt::{AckLevel, Outcome, Receipt};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tracing::{error, warn};

use super::config::{FileConfig, Fsync};
use super::journal::Journal;
use super::line::push_line;
use super::outcome::{Failure, behind, rejected};
use super::stream::Stream;
use crate::clock::now_us;
use crate::codes::SinkCode;
use crate::sink::SinkInfo;

/// How many calls may wait for the thread. More wait in front of the queue.
pub(super) const ROOM: usize = 16;
/// Above this many bytes, no further batch joins a write. One batch may be larger.
const WRITE_BYTES: usize = 8 << 20;

/// A call, with the place it takes in the queue.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) place: OwnedSemaphorePermit,
}

pub(super) enum Task {
    Start(oneshot::Sender<Result<SinkInfo, Failure>>),
    Send(Batch),
    Close(oneshot::Sender<()>),
}

/// A call of `send`.
pub(super) struct Batch {
    pub(super) messages: Vec<Arc<Message>>,
    pub(super) reply: oneshot::Sender<Vec<Outcome>>,
}

/// What the thread holds.
pub(super) struct Worker {
    config: FileConfig,
    output: Option<Output>,
    lines: Vec<u8>,
    /// When the next flush is due, with `fsync = "interval"`.
    flush_at: Option<Instant>,
    /// A flush that failed after its lines were acknowledged: the next send says so.
    flush_failed: Option<Failure>,
}

enum Output {
    Journal(Journal),
    Stream(Stream),
}

impl Worker {
    pub(super) const fn new(config: FileConfig) -> Self {
        Self { config, output: None, lines: Vec::new(), flush_at: None, flush_failed: None }
    }

    /// Works until nobody can call any more.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        while let Some(job) = self.next(jobs) {
            let mut next = Some(job);
            while let Some(Job { task, place }) = next.take() {
                match task {
                    Task::Start(reply) => drop(reply.send(self.start())),
                    Task::Close(reply) => {
                        self.close();
                        let _ = reply.send(());
                    }
                    Task::Send(batch) => next = self.write_with_others(batch, place, jobs),
                }
            }
        }
        self.close();
    }

    /// Waits for a call, and flushes meanwhile when that is due.
    fn next(&mut self, jobs: &Receiver<Job>) -> Option<Job> {
        loop {
            let Some(due) = self.flush_at else { return jobs.recv().ok() };
            match jobs.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(job) => {
                    if due <= Instant::now() {
                        self.flush();
                    }
                    return Some(job);
                }
                Err(RecvTimeoutError::Timeout) => self.flush(),
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    fn start(&mut self) -> Result<SinkInfo, Failure> {
        self.flush_failed = None;
        if let Output::Journal(journal) = self.output()? {
            journal.check()?;
        }
        Ok(self.info())
    }

    fn close(&mut self) {
        self.flush_at = None;
        if let Some(Output::Journal(mut journal)) = self.output.take()
            && let Err(failure) = journal.close()
        {
            error!(code = failure.code.code(), "{}", failure.text);
        }
    }

    fn output(&mut self) -> Result<&mut Output, Failure> {
        let output = match self.output.take() {
            Some(output) => output,
            None => open(&self.config)?,
        };
        Ok(self.output.insert(output))
    }

    fn info(&self) -> SinkInfo {
        let interval_ms = self.config.fsync_interval_ms;
        let (level, warning) = match (&self.output, self.config.fsync) {
            (Some(Output::Stream(_)), _) => {
                (AckLevel::Received, Some("a line counts as delivered when the reader's pipe has it".to_owned()))
            }
            (_, Fsync::Batch) => (AckLevel::Flushed, None),
            (_, Fsync::Interval) => (
                AckLevel::Received,
                Some(format!("a power cut can lose what was delivered within {interval_ms} ms before it")),
            ),
            (_, Fsync::None) => (
                AckLevel::Received,
                Some("a power cut can lose what the operating system had not yet flushed".to_owned()),
            ),
        };
        SinkInfo { level, warnings: warning.into_iter().collect(), ..SinkInfo::default() }
    }

    /// Writes a batch together with those that wait behind it, and gives back the call that comes after them.
    fn write_with_others(&mut self, batch: Batch, place: OwnedSemaphorePermit, jobs: &Receiver<Job>) -> Option<Job> {
        self.lines.clear();
        let mut written = vec![(self.prepare(batch), place)];
        let mut after = None;
        while self.lines.len() < WRITE_BYTES && written.len() < ROOM {
            match jobs.try_recv() {
                Ok(Job { task: Task::Send(batch), place }) => written.push((self.prepare(batch), place)),
                Ok(other) => {
                    after = Some(other);
                    break;
                }
                Err(_) => break,
            }
        }
        let result = self.write();
        let level = self.info().level;
        let sent_at_us = now_us();
        for (prepared, place) in written {
            drop(place);
            if let Some(prepared) = prepared {
                prepared.answer(&result, level, sent_at_us);
            }
        }
        if self.lines.capacity() > 2 * WRITE_BYTES {
            self.lines = Vec::new();
        }
        after
    }

    fn write(&mut self) -> Result<u64, Failure> {
        if self.lines.is_empty() {
            return Ok(0);
        }
        if let Some(failure) = self.flush_failed.take() {
            return Err(failure);
        }
        let lines = std::mem::take(&mut self.lines);
        let result = match self.output() {
            Ok(Output::Journal(journal)) => journal.append(&lines, SystemTime::now()),
            Ok(Output::Stream(stream)) => stream.append(&lines),
            Err(failure) => Err(failure),
        };
        self.lines = lines;
        self.plan_flush();
        result
    }

    fn plan_flush(&mut self) {
        let unsynced = matches!(&self.output, Some(Output::Journal(journal)) if journal.is_unsynced());
        if unsynced && self.config.fsync == Fsync::Interval {
            let interval = Duration::from_millis(self.config.fsync_interval_ms);
            self.flush_at.get_or_insert_with(|| Instant::now() + interval);
        }
    }

    fn flush(&mut self) {
        self.flush_at = None;
        let Some(Output::Journal(journal)) = &mut self.output else { return };
        if let Err(failure) = journal.sync() {
            warn!(code = failure.code.code(), "{}; lines that were acknowledged may be lost", failure.text);
            self.flush_failed = Some(failure);
        }
    }

    /// Makes the lines of a batch. None: its caller has gone, nothing is written.
    fn prepare(&mut self, batch: Batch) -> Option<Prepared> {
        let Batch { messages, reply } = batch;
        if reply.is_closed() {
            return None;
        }
        let mut lines = Vec::with_capacity(messages.len());
        let mut held_keys: HashSet<&str> = HashSet::new();
        for message in &messages {
            let key = message.key.as_deref();
            if !held_keys.is_empty() && key.is_some_and(|k| held_keys.contains(k)) {
                lines.push(Err(behind()));
                continue;
            }
            let start = self.lines.len();
            let refusal = match &message.defect {
                Some(defect) => Some(rejected(defect)),
                None if push_line(&mut self.lines, message) => None,
                None => Some(rejected("headers are not a JSON object of strings")),
            };
            if let Some(refusal) = refusal {
                held_keys.extend(key);
                lines.push(Err(refusal));
            } else {
                lines.push(Ok(start as u64));
            }
        }
        Some(Prepared { lines, reply })
    }
}

/// A batch whose lines are in the buffer.
struct Prepared {
    /// For each message where its line begins in the buffer, or why it has none.
    lines: Vec<Result<u64, Outcome>>,
    reply: oneshot::Sender<Vec<Outcome>>,
}

impl Prepared {
    fn answer(self, result: &Result<u64, Failure>, level: AckLevel, sent_at_us: i64) {
        let outcome = |line: Result<u64, Outcome>| match (line, result) {
            (Err(refusal), _) => refusal,
            (Ok(_), Err(failure)) => failure.outcome(),
            (Ok(start), Ok(offset)) => {
                let detail = (offset + start).to_string();
                Outcome::Delivered(Receipt { sent_at_us, level, attempts: 1, detail })
            }
        };
        // Nobody waits for it any more: the lines are in the file, and will be sent again.
        let _ = self.reply.send(self.lines.into_iter().map(outcome).collect());
    }
}

fn open(config: &FileConfig) -> Result<Output, Failure> {
    if config.is_stdout() {
        return Ok(Output::Stream(Stream::stdout()?));
    }
    let path = &config.path;
    match fs::metadata(path).map(|m| m.file_type()) {
        Ok(kind) if kind.is_char_device() => Ok(Output::Stream(Stream::device(path)?)),
        // Opening a pipe would wait for its reader, for ever perhaps.
        Ok(kind) if !kind.is_file() => {
            Err(Failure::new(SinkCode::NotAFile, format!("{} is not a regular file", path.display())))
        }
        _ => Ok(Output::Journal(Journal::new(config))),
    }
}
