//! A connection on a thread of its own, behind a bounded queue of work.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::refusal::{commit_refusal, refusal};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::StoreResult;

/// Calls that may wait for a thread; further ones wait for room.
const QUEUE: usize = 16;
/// Statements kept prepared on a connection.
const PREPARED: usize = 64;
/// Steps of SQLite's machine between two looks at the clock.
const STEPS_PER_LOOK: i32 = 1_000;
/// The write-ahead log is cut back to this when it starts anew, bytes.
const WAL_BYTES: i64 = 64 << 20;
/// How long after its limit a call is given up although its thread has not answered: it is inside the operating system.
const GRACE: Duration = Duration::from_millis(500);

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

const RUNNING: u8 = 0;
const COMMITTING: u8 = 1;
const GIVEN_UP: u8 = 2;

/// How long one try for the write lock takes; tries follow each other up to the lock limit.
const WRITE_LOCK_ASKED_EVERY: Duration = Duration::from_millis(5);

/// One call, as its caller and its thread see it.
pub(super) struct Call {
    deadline: Instant,
    /// How long a write may wait for the write lock.
    lock_limit: Duration,
    state: AtomicU8,
}

impl Call {
    /// Claims the right to COMMIT: from here on the caller no longer says "nothing was written" when it gives up.
    fn begin_commit(&self) -> StoreResult<()> {
        let given_up = |_| StoreError::new(StoreErrorKind::Timeout, "the caller has given up");
        self.pass(COMMITTING).map(drop).map_err(given_up)
    }

    /// Gives the call up. False: it is committing.
    fn give_up(&self) -> bool {
        self.pass(GIVEN_UP).is_ok()
    }

    fn pass(&self, to: u8) -> Result<u8, u8> {
        self.state.compare_exchange(RUNNING, to, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn is_over(&self) -> bool {
        match self.state.load(Ordering::SeqCst) {
            RUNNING => Instant::now() >= self.deadline,
            state => state == GIVEN_UP,
        }
    }
}

/// Gives the call up when its future is dropped.
struct Caller(Arc<Call>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

type Work = Box<dyn FnOnce(&mut Desk) + Send>;

/// A connection, seen from outside its thread.
pub(super) struct Session {
    queue: Mutex<Queue>,
    desk: DeskPlan,
    limit: Duration,
}

enum Queue {
    Idle,
    Open(mpsc::Sender<Work>, oneshot::Receiver<()>),
    Closed,
}

impl Session {
    pub(super) fn new(path: &Path, access: Access, options: &StoreOptions, name: &'static str) -> Self {
        let desk = DeskPlan { path: path.to_owned(), access, lock_timeout: options.lock_timeout, name };
        Self { queue: Mutex::new(Queue::Idle), desk, limit: options.statement_timeout + options.lock_timeout }
    }

    /// Makes the database file if there is none.
    pub(super) async fn create_file(&self) -> StoreResult<()> {
        let path = self.desk.path.clone();
        self.on_desk(move |_, _| {
            let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
            let made = Connection::open_with_flags(&path, flags).and_then(|c| c.close().map_err(|(_, e)| e));
            made.map_err(|e| refusal(e).while_doing("making the database file"))
        })
        .await
    }

    /// Runs a read transaction: all its statements see the same state.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.call(move |connection, _| {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Deferred).map_err(refusal)?;
            work(&tx) // dropped: rolled back
        })
        .await
    }

    /// Runs a write transaction, which holds the write lock from its start.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.call(move |connection, call| write(connection, call, work)).await
    }

    /// Runs work on the connection.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection, &Call) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.on_desk(move |desk, call| {
            let connection = desk.connection()?;
            let watched = Arc::clone(call);
            connection.progress_handler(STEPS_PER_LOOK, Some(move || watched.is_over())).map_err(refusal)?;
            let result = work(connection, call);
            desk.settle(&result);
            result
        })
        .await
    }

    async fn on_desk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk, &Arc<Call>) -> StoreResult<T> + Send + 'static,
    ) -> StoreResult<T> {
        let call = Arc::new(Call {
            deadline: Instant::now() + self.limit,
            lock_limit: self.desk.lock_timeout,
            state: AtomicU8::new(RUNNING),
        });
        let caller = Caller(Arc::clone(&call));
        let (reply, answer) = oneshot::channel();
        let job: Work = Box::new(move |desk| {
            if !call.is_over() {
                _ = reply.send(work(desk, &call)); // the caller may be gone
            }
        });
        let queue = self.queue()?;
        let asked = async {
            queue.send(job).await.map_err(|_| closed())?;
            answer.await.map_err(|_| StoreError::new(StoreErrorKind::Timeout, "the time limit ran out in the queue"))?
        };
        match tokio::time::timeout(self.limit + GRACE, asked).await {
            Ok(result) => result,
            Err(_) if caller.0.give_up() => {
                Err(StoreError::new(StoreErrorKind::Timeout, "the statement's time limit ran out"))
            }
            Err(_) => Err(StoreError::new(StoreErrorKind::CommitUnknown, "no answer to COMMIT within the time limit")),
        }
    }

    /// The queue of the thread, which starts with the first call, and anew should it ever have died.
    fn queue(&self) -> StoreResult<mpsc::Sender<Work>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        match &*queue {
            Queue::Closed => return Err(closed()),
            Queue::Open(sender, _) if !sender.is_closed() => return Ok(sender.clone()),
            Queue::Open(..) | Queue::Idle => {}
        }
        let (sender, mut work) = mpsc::channel::<Work>(QUEUE);
        let (running, ended) = oneshot::channel();
        let plan = self.desk.clone();
        let thread = std::thread::Builder::new().name(plan.name.into()).spawn(move || {
            let mut desk = Desk { plan, open: None };
            while let Some(job) = work.blocking_recv() {
                job(&mut desk);
            }
            drop(desk);
            drop(running);
        });
        thread.map_err(|e| StoreError::new(StoreErrorKind::Unavailable, format!("no thread for a connection: {e}")))?;
        *queue = Queue::Open(sender.clone(), ended);
        Ok(sender)
    }

    /// Ends the thread when it has done what waits, and waits until the connection is closed.
    pub(super) async fn close(&self) {
        let old = std::mem::replace(&mut *self.queue.lock().unwrap_or_else(PoisonError::into_inner), Queue::Closed);
        if let Queue::Open(sender, ended) = old {
            drop(sender);
            _ = tokio::time::timeout(self.limit, ended).await;
        }
    }
}

/// Runs a write transaction on a connection. BEGIN IMMEDIATE: the write lock is taken at once, or not within the lock
/// limit; so nothing inside waits.
pub(super) fn write<T>(
    connection: &mut Connection,
    call: &Call,
    work: impl FnOnce(&Transaction<'_>) -> StoreResult<T>,
) -> StoreResult<T> {
    let tx = begin(connection, call).map_err(refusal)?;
    let result = work(&tx)?;
    call.begin_commit()?;
    tx.commit().map_err(commit_refusal)?;
    Ok(result)
}

/// Takes the write lock. SQLite's own waiting asks less and less often, up to every 100 ms, and so hardly ever wins it
/// from an application's writers that come and go; a lease would be lost by it. This one asks every few milliseconds.
fn begin<'a>(connection: &'a Connection, call: &Call) -> rusqlite::Result<Transaction<'a>> {
    let until = Instant::now() + call.lock_limit;
    loop {
        let begun = Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
        if !begun.as_ref().is_err_and(is_busy) || call.is_over() || Instant::now() >= until {
            return begun;
        }
    }
}

fn is_busy(e: &rusqlite::Error) -> bool {
    e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy)
}

fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, "the store is closed")
}

#[derive(Clone)]
struct DeskPlan {
    path: PathBuf,
    access: Access,
    lock_timeout: Duration,
    name: &'static str,
}

/// What a thread works at: a connection that is opened when it is needed.
struct Desk {
    plan: DeskPlan,
    open: Option<(Connection, FileId)>,
}

impl Desk {
    /// The connection. Where the file was replaced (a restored backup), it is opened anew: the old connection would go
    /// on with a file that nobody else sees.
    fn connection(&mut self) -> StoreResult<&mut Connection> {
        let file = FileId::of(&self.plan.path)?;
        if self.open.as_ref().is_some_and(|(_, opened)| *opened != file) {
            self.open = None;
        }
        let (connection, _) = match self.open.take() {
            Some(open) => self.open.insert(open),
            None => self.open.insert((self.plan.connect()?, file)),
        };
        Ok(connection)
    }

    /// Closes a connection that must not be used again: one with a transaction left open, or whose file failed.
    fn settle<T>(&mut self, result: &StoreResult<T>) {
        use StoreErrorKind::{CommitUnknown, Corrupt, ReadOnly, Unavailable};
        let unfit = result.as_ref().is_err_and(|e| matches!(e.kind, Unavailable | CommitUnknown | Corrupt | ReadOnly));
        if unfit || self.open.as_ref().is_some_and(|(connection, _)| !connection.is_autocommit()) {
            self.open = None;
        }
    }
}

impl DeskPlan {
    /// Opens the file. A connection that closes last, or recovers a log, holds it alone for a moment, and SQLite does not
    /// wait for that in every case: asked again then, up to the lock limit.
    #[expect(clippy::disallowed_methods, reason = "the thread is the connection's own")]
    fn connect(&self) -> StoreResult<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let until = Instant::now() + self.lock_timeout;
        loop {
            match self.opened(flags) {
                Err(e) if is_busy(&e) && Instant::now() < until => std::thread::sleep(WRITE_LOCK_ASKED_EVERY),
                opened => return opened.map_err(|e| refusal(e).while_doing("opening the database")),
            }
        }
    }

    fn opened(&self, flags: OpenFlags) -> rusqlite::Result<Connection> {
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(match self.access {
            Access::Write => WRITE_LOCK_ASKED_EVERY,
            Access::Read => self.lock_timeout,
        })?;
        connection.set_prepared_statement_cache_capacity(PREPARED);
        match self.access {
            Access::Write => {
                // A property of the file. Where it cannot be set, `inspect` says so.
                let _mode: String =
                    connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
                connection.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES, |_| Ok(()))?;
                connection.pragma_update(None, "synchronous", "FULL")?;
            }
            Access::Read => connection.pragma_update(None, "query_only", true)?,
        }
        Ok(connection)
    }
}

/// Which file a path leads to at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileId(u64, u64);

impl FileId {
    fn of(path: &Path) -> StoreResult<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| {
            let (kind, why) = match e.kind() {
                std::io::ErrorKind::NotFound => (StoreErrorKind::NotInitialised, "there is no such database file"),
                std::io::ErrorKind::PermissionDenied => {
                    (StoreErrorKind::Permission, "the database file may not be read")
                }
                _ => (StoreErrorKind::Unavailable, "the database file cannot be read"),
            };
            StoreError::new(kind, why)
        })?;
        if metadata.is_dir() {
            return Err(StoreError::new(StoreErrorKind::Configuration, "the path names a folder, not a file"));
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt as _;
            Ok(Self(metadata.dev(), metadata.ino()))
        }
        #[cfg(not(unix))]
        Ok(Self(0, 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(limit: Duration) -> Call {
        Call { deadline: Instant::now() + limit, lock_limit: limit, state: AtomicU8::new(RUNNING) }
    }

    #[test]
    fn either_it_commits_or_it_is_given_up() {
        let given_up = call(Duration::from_secs(60));
        assert!(given_up.give_up() && given_up.is_over());
        assert_eq!(given_up.begin_commit().unwrap_err().kind, StoreErrorKind::Timeout);
        let committing = call(Duration::ZERO);
        assert!(committing.is_over());
        committing.begin_commit().unwrap();
        assert!(!committing.give_up() && !committing.is_over(), "a COMMIT that was begun is let end");
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("outhaul-session-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Connection::open(folder.join("t.db")).unwrap().execute_batch("CREATE TABLE IF NOT EXISTS t (x)").unwrap();
        folder
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_dropped_before_its_commit_is_not_written() {
        let folder = folder("dropped");
        let options = StoreOptions::new("sqlite:t.db");
        let session = Arc::new(Session::new(&folder.join("t.db"), Access::Write, &options, "t"));
        let (started, has_started) = oneshot::channel();
        let (go_on, may_go_on) = std::sync::mpsc::sync_channel(1);
        let writing = tokio::spawn({
            let session = Arc::clone(&session);
            async move {
                let work = move |tx: &Transaction<'_>| {
                    tx.execute_batch("INSERT INTO t VALUES (1)").map_err(refusal)?;
                    started.send(()).unwrap();
                    may_go_on.recv_timeout(Duration::from_secs(30)).unwrap();
                    Ok(())
                };
                session.write(work).await
            }
        });
        has_started.await.unwrap();
        writing.abort();
        assert!(writing.await.unwrap_err().is_cancelled());
        go_on.send(()).unwrap();
        let count =
            |tx: &Transaction<'_>| tx.query_row("SELECT count(*) FROM t", [], |row| row.get(0)).map_err(refusal);
        assert_eq!(session.read::<i64>(count).await.unwrap(), 0);
        session.close().await;
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_commit_is_durable() {
        let folder = folder("durable");
        let path = folder.join("t.db");
        let plan = |access| DeskPlan { path: path.clone(), access, lock_timeout: Duration::from_secs(1), name: "t" };
        let writer = plan(Access::Write).connect().unwrap();
        let pragma = |name: &str| writer.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(pragma("synchronous"), 2);
        let reader = plan(Access::Read).connect().unwrap();
        assert!(reader.execute_batch("INSERT INTO t VALUES (1)").is_err(), "a reader cannot write");
        drop((writer, reader));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "SQLite gives no signal that it was refused")]
    fn a_file_that_another_holds_alone_is_waited_for() {
        let folder = folder("held");
        let holder = Connection::open(folder.join("t.db")).unwrap();
        holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
        let plan =
            |lock_timeout| DeskPlan { path: folder.join("t.db"), access: Access::Write, lock_timeout, name: "t" };
        let refused = plan(Duration::from_millis(20)).connect().unwrap_err();
        assert_eq!(refused.kind, StoreErrorKind::Timeout, "not for ever");
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| plan(Duration::from_secs(60)).connect());
            std::thread::sleep(Duration::from_millis(100)); // many times as long as SQLite waits
            holder.execute_batch("COMMIT").unwrap();
            opened.join().unwrap().unwrap();
        });
        std::fs::remove_dir_all(folder).unwrap();
    }
}
