//! The sink: hands calls to the thread that writes.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_core::receipt::Outcome;
use tokio::sync::{Semaphore, oneshot};
use tracing::warn;

use super::config::FileConfig;
use super::outcome::{Failure, no_answer};
use super::worker::{Batch, Job, ROOM, Task, Worker};
use crate::codes::SinkCode;
use crate::sink::{Sink, SinkError, SinkInfo};

/// How long [`Sink::close`] waits for the disk.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// A file, or standard output.
///
/// A dropped call is safe: if its batch has not been begun, it is never written; if it has, it is written or cut off
/// as a whole, before anything else is.
pub struct FileSink {
    config: FileConfig,
    /// The queue of the running thread.
    jobs: Mutex<Option<SyncSender<Job>>>,
    /// Places in the queue: a job holds one until it is done, so the queue is never full.
    places: Arc<Semaphore>,
}

impl FileSink {
    /// A sink with these keys. Nothing is opened before [`Sink::start`].
    pub fn new(config: FileConfig) -> Self {
        Self { config, jobs: Mutex::new(None), places: Arc::new(Semaphore::new(ROOM)) }
    }

    /// Hands a task to the thread and waits for its answer. None: the thread ended without one.
    async fn ask<T>(&self, task: impl FnOnce(oneshot::Sender<T>) -> Task + Send) -> Result<Option<T>, Failure> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let Ok(place) = place else { return Ok(None) };
        let (reply, answer) = oneshot::channel();
        self.hand_over(Job { task: task(reply), place })?;
        Ok(answer.await.ok())
    }

    /// Puts a job into the queue; starts the thread if none runs.
    fn hand_over(&self, mut job: Job) -> Result<(), Failure> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..2 {
            let queue = match jobs.take() {
                Some(queue) => queue,
                None => spawn(self.config.clone())?,
            };
            match queue.try_send(job) {
                Ok(()) => {
                    *jobs = Some(queue);
                    return Ok(());
                }
                Err(std::sync::mpsc::TrySendError::Full(_)) => {
                    *jobs = Some(queue);
                    break;
                }
                Err(std::sync::mpsc::TrySendError::Disconnected(back)) => job = back,
            }
        }
        Err(Failure::new(SinkCode::WriterStopped, "the thread that writes the file does not take work"))
    }
}

fn spawn(config: FileConfig) -> Result<SyncSender<Job>, Failure> {
    let (queue, jobs) = sync_channel(ROOM);
    let name = "outhaul-file".to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(move || Worker::new(config).run(&jobs));
    match thread {
        Ok(_) => Ok(queue),
        Err(e) => Err(Failure::new(SinkCode::WriterStopped, format!("cannot start a thread: {e}"))),
    }
}

#[async_trait]
impl Sink for FileSink {
    fn slotting(&self) -> Slotting {
        Slotting::Single
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        let answer = self.ask(Task::Start).await?;
        let stopped = || Failure::new(SinkCode::WriterStopped, "the thread that writes the file has stopped");
        Ok(answer.unwrap_or_else(|| Err(stopped()))?)
    }

    async fn send(&self, _slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        if messages.is_empty() {
            return Vec::new();
        }
        let answer = self.ask(|reply| Task::Send(Batch { messages: messages.to_vec(), reply })).await;
        match answer {
            Ok(Some(outcomes)) => outcomes,
            Ok(None) => messages.iter().map(|_| no_answer()).collect(),
            Err(failure) => messages.iter().map(|_| failure.outcome()).collect(),
        }
    }

    async fn close(&self) {
        if tokio::time::timeout(CLOSE_LIMIT, self.ask(Task::Close)).await.is_err() {
            warn!(path = %self.config.path.display(), "the disk did not answer in time; the file was left open");
        }
    }
}
