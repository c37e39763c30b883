//! Connections, transactions and pipelines.
//!
//! Nothing here outlives a transaction, so that a transaction pooler may stand in between: every statement is an unnamed
//! one whose parameter types are stated, settings are `SET LOCAL`, and no option travels with the connection. Statements
//! that do not need each other's results are sent together and answered in order: one round trip.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_core::Stream;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Config, NoTls, Row, SimpleQueryMessage};

use super::refusal::{ends_session, refuses_commit, refuses_content, store_error};
use super::tls;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{StoreOptions, Tls};
use crate::scan::{Cell, Pages};
use crate::store::StoreResult;

/// What a call waits for besides the server's own limit: then the server's word for it comes first.
const GRACE: Duration = Duration::from_millis(500);
/// A setting of this name, made with `SET LOCAL`, tells a statement that it runs inside the transaction it belongs to.
/// Statements that write before the answer to BEGIN is known ask for it: should BEGIN have failed, they would otherwise
/// run, and commit, by themselves.
pub(super) const GUARD: &str = "current_setting('outhaul.inside', true) = 'yes'";

/// One statement with its parameters and their types.
pub(super) struct Statement<'a> {
    sql: &'a str,
    parameters: Vec<(&'a (dyn ToSql + Sync), Type)>,
}

impl<'a> Statement<'a> {
    pub(super) const fn new(sql: &'a str) -> Self {
        Self { sql, parameters: Vec::new() }
    }

    pub(super) fn with(mut self, value: &'a (dyn ToSql + Sync), ty: Type) -> Self {
        self.parameters.push((value, ty));
        self
    }
}

/// How to connect, and how transactions begin.
pub(super) struct Dialer {
    config: Config,
    tls: Option<tokio_postgres_rustls::MakeRustlsConnect>,
    connect_limit: Duration,
    call_limit: Duration,
    /// `BEGIN` of a transaction that only reads. It is READ WRITE all the same: a standby refuses that, so that no
    /// read is ever answered by one, also behind a pooler that changed sides.
    pub(super) begin_read: String,
    /// The same for a question that is asked all the time and reads next to nothing.
    pub(super) begin_probe: String,
    /// `BEGIN` of a transaction that writes. It names no mode, so that `default_transaction_read_only` is obeyed.
    pub(super) begin_write: String,
    version: AtomicI32,
    closed: AtomicBool,
}

impl Dialer {
    pub(super) fn new(options: &StoreOptions) -> StoreResult<Self> {
        let configuration = |what: String| StoreError::new(StoreErrorKind::Configuration, what);
        let (url, tls) = tls_of(&options.url, &options.tls);
        let mut config: Config = url.parse().map_err(|e: tokio_postgres::Error| store_error(&e))?;
        if config.get_user().is_none() {
            return Err(configuration("the database URL names no user".into()));
        }
        if config.get_application_name().is_none() {
            config.application_name("outhaul");
        }
        if tls.required {
            config.ssl_mode(SslMode::Require);
        } else if !url.contains("sslmode=") {
            config.ssl_mode(SslMode::Disable); // never TLS without being told
        }
        config.connect_timeout(options.connect_timeout);
        if config.get_ssl_mode() != SslMode::Disable && tls.insecure {
            tracing::warn!("TLS without checking the server's certificate: for tests only");
        }
        let with_tls = config.get_ssl_mode() != SslMode::Disable;
        let limit = |d: Duration| d.as_millis().clamp(1, i32::MAX as u128);
        let statement_limit = limit(options.statement_timeout);
        // The table is nearly always empty, so the planner knows nothing of a backlog: for each page of one it would
        // collect and sort all that is left. With index scans alone it walks the primary key.
        // As few settings as will do: each of them costs the server a microsecond or more, at every poll.
        let settings = format!(
            "SET LOCAL statement_timeout = {statement_limit}; SET LOCAL lock_timeout = {}; SET LOCAL enable_seqscan = off; \
             SET LOCAL enable_bitmapscan = off; SET LOCAL jit = off",
            limit(options.lock_timeout)
        );
        Ok(Self {
            config,
            tls: if with_tls { Some(tls::connector(&tls)?) } else { None },
            connect_limit: options.connect_timeout,
            call_limit: options.statement_timeout + GRACE,
            begin_probe: format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL lock_timeout = {}; SET LOCAL enable_seqscan = off",
                limit(options.lock_timeout)
            ),
            begin_read: format!("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; {settings}"),
            // Arrays are joined to tables row by row, by the primary key, however large a table looks to the planner.
            begin_write: format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; {settings}; SET LOCAL enable_hashjoin = off; \
                 SET LOCAL enable_mergejoin = off; SET LOCAL idle_in_transaction_session_timeout = {statement_limit}; \
                 SET LOCAL TimeZone = 'UTC'; SET LOCAL outhaul.inside = 'yes'"
            ),
            version: AtomicI32::new(0),
            closed: AtomicBool::new(false),
        })
    }

    /// Version of the server that was connected to last, as `server_version_num`; 0: none yet.
    pub(super) fn version(&self) -> i32 {
        self.version.load(Ordering::Relaxed)
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub(super) async fn connect(&self) -> StoreResult<Link> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(StoreError::new(StoreErrorKind::Unavailable, "the store is closed"));
        }
        let connecting = async {
            let mut link = match &self.tls {
                Some(tls) => {
                    let (client, connection) = self.config.connect(tls.clone()).await.map_err(|e| store_error(&e))?;
                    let driver = tokio::spawn(async { end_of(connection.await) });
                    Link { client, driver, call_limit: self.call_limit }
                }
                None => {
                    let (client, connection) = self.config.connect(NoTls).await.map_err(|e| store_error(&e))?;
                    let driver = tokio::spawn(async { end_of(connection.await) });
                    Link { client, driver, call_limit: self.call_limit }
                }
            };
            self.greet(&mut link).await?;
            Ok(link)
        };
        timeout(self.connect_limit, connecting)
            .await
            .unwrap_or_else(|_| {
                Err(StoreError::new(
                    StoreErrorKind::Unavailable,
                    format!("no connection within {:?}", self.connect_limit),
                ))
            })
            .map_err(|e| e.while_doing("connecting"))
    }

    async fn greet(&self, link: &mut Link) -> StoreResult<()> {
        let sql = "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), \
                   current_setting('transaction_read_only')";
        let row = link.client.query_typed_one(sql, &[]).await.map_err(|e| store_error(&e))?;
        let (version, standby, read_only): (i32, bool, &str) = (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?);
        self.version.store(version, Ordering::Relaxed);
        if version < 120_000 {
            return Err(StoreError::new(StoreErrorKind::Unsupported, "PostgreSQL 12 or later is needed"));
        }
        if standby {
            return Err(StoreError::new(StoreErrorKind::ReadOnly, "the server is a standby (pg_is_in_recovery)"));
        }
        if read_only == "on" {
            let what = "transactions are read-only on this server (default_transaction_read_only)";
            return Err(StoreError::new(StoreErrorKind::ReadOnly, what));
        }
        Ok(())
    }
}

fn end_of(result: Result<(), tokio_postgres::Error>) {
    if let Err(error) = result {
        tracing::debug!("a connection to PostgreSQL ended: {}", store_error(&error));
    }
}

fn no_answer(limit: Duration) -> StoreError {
    StoreError::new(StoreErrorKind::Timeout, format!("no answer within {limit:?}"))
}

/// What the URL says of TLS in libpq's words that tokio-postgres does not know, and the URL without them. Where TLS is
/// used at all, certificate and name are always checked, so `require` and `verify-*` mean the same.
fn tls_of(url: &str, given: &Tls) -> (String, Tls) {
    let mut tls = given.clone();
    let Some((front, query)) = url.split_once('?') else { return (url.to_owned(), tls) };
    let mut rest = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslmode", "require" | "verify-ca" | "verify-full")) => tls.required = true,
            Some(("sslrootcert", file)) => tls.ca_file = tls.ca_file.or_else(|| Some(file.into())),
            _ => rest.push(pair),
        }
    }
    let mark = if rest.is_empty() { "" } else { "?" };
    (format!("{front}{mark}{}", rest.join("&")), tls)
}

/// The value of a column.
pub(super) fn get<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, column: usize) -> StoreResult<T> {
    row.try_get(column).map_err(|e| store_error(&e))
}

/// An open connection. Dropping it closes the socket at once; the server rolls back what was open.
pub(super) struct Link {
    client: Client,
    driver: JoinHandle<()>,
    call_limit: Duration,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;

/// Why a transaction did not come to its end.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: StoreError,
    /// The connection cannot be used any more.
    pub(super) session_over: bool,
    /// The server refused what a value holds, not the statement as such.
    pub(super) about_content: bool,
    /// The server says for certain that nothing was committed by the statement that failed.
    refused: bool,
}

impl Failure {
    fn new(error: &tokio_postgres::Error) -> Self {
        Self {
            error: store_error(error),
            session_over: ends_session(error),
            about_content: refuses_content(error),
            refused: refuses_commit(error),
        }
    }
}

impl From<StoreError> for Failure {
    /// An answer that cannot be read: the connection is given up.
    fn from(error: StoreError) -> Self {
        Self { error, session_over: true, about_content: false, refused: false }
    }
}

impl Link {
    /// Sends everything at once, then takes the answers in order. Returns the rows of each statement, or the first
    /// failure, when all have been answered.
    async fn pipeline(
        &self,
        first: Option<&str>,
        statements: &[Statement<'_>],
        last: Option<&str>,
    ) -> Result<Vec<Vec<Row>>, Failure> {
        let mut answers: Vec<Answer<'_>> = Vec::with_capacity(statements.len() + 2);
        let command =
            |sql| -> Answer<'_> { Box::pin(async move { self.client.batch_execute(sql).await.map(|()| Vec::new()) }) };
        answers.extend(first.map(command));
        for s in statements {
            answers.push(Box::pin(self.client.query_typed(s.sql, &s.parameters)));
        }
        answers.extend(last.map(command));
        // The first poll of each sends it, so their order is that of the answers.
        let mut done: Vec<Option<Result<Vec<Row>, tokio_postgres::Error>>> = Vec::with_capacity(answers.len());
        for answer in &mut answers {
            let first_poll = poll_fn(|cx| {
                Poll::Ready(match answer.as_mut().poll(cx) {
                    Poll::Ready(result) => Some(result),
                    Poll::Pending => None,
                })
            });
            done.push(first_poll.await);
        }
        let mut rows = Vec::with_capacity(statements.len());
        let mut failure: Option<Failure> = None;
        let count = answers.len();
        for (n, (answer, early)) in answers.into_iter().zip(done).enumerate() {
            let result = match early {
                Some(result) => result,
                None => answer.await,
            };
            match result {
                Ok(r) if (n > 0 || first.is_none()) && (n + 1 < count || last.is_none()) => rows.push(r),
                Ok(_) => {}
                Err(error) => {
                    let over = ends_session(&error);
                    let known = failure.get_or_insert_with(|| Failure::new(&error));
                    known.session_over |= over;
                    if over {
                        break; // nothing more will be answered
                    }
                }
            }
        }
        match failure {
            None => Ok(rows),
            Some(failure) => Err(failure),
        }
    }

    async fn within<T>(&self, what: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        timeout(self.call_limit, what).await.unwrap_or_else(|_| {
            Err(Failure { error: no_answer(self.call_limit), session_over: true, about_content: false, refused: false })
        })
    }

    /// Whether a transaction, sent as one text, answers with a row. One packet each way.
    pub(super) async fn has_row(&self, transaction: &str) -> Result<bool, Failure> {
        self.within(async {
            // What follows a failed statement is not executed: the transaction would stay open.
            let failed = |error| Failure { session_over: true, ..Failure::new(&error) };
            let messages = self.client.simple_query(transaction).await.map_err(failed)?;
            Ok(messages.iter().any(|m| matches!(m, SimpleQueryMessage::Row(_))))
        })
        .await
    }

    /// A transaction of statements that only read, in one round trip.
    pub(super) async fn read(&self, begin: &str, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        self.within(self.pipeline(Some(begin), statements, Some("END"))).await
    }

    /// A transaction in one round trip. Its statements must be right each by itself, in case that BEGIN fails. Whether
    /// it was committed is not told apart when the connection is lost: only for what may be done again.
    pub(super) async fn write(&self, begin: &str, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        self.within(self.pipeline(Some(begin), statements, Some("COMMIT"))).await
    }

    /// Runs a statement under a savepoint: inside the open transaction, which goes on when the server refuses what the
    /// statement holds. Then the inner result is the reason.
    pub(super) async fn attempt(&self, statement: Statement<'_>) -> Result<Result<Vec<Row>, String>, Failure> {
        self.run(&[Statement::new("SAVEPOINT attempt")]).await?;
        let failure = match self.within(self.pipeline(None, &[statement], None)).await {
            Ok(rows) => {
                self.run(&[Statement::new("RELEASE SAVEPOINT attempt")]).await?;
                return Ok(Ok(rows.into_iter().next().unwrap_or_default()));
            }
            Err(failure) => failure,
        };
        if failure.about_content && !failure.session_over {
            self.run(&[Statement::new("ROLLBACK TO SAVEPOINT attempt")]).await?;
            return Ok(Err(failure.error.message));
        }
        self.rolled_back(Err(failure)).await
    }

    /// Begins a transaction and runs statements in it, in one round trip. They must not write without [`GUARD`]. After
    /// a failure the transaction is over.
    pub(super) async fn begin(&self, begin: &str, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        let result = self.within(self.pipeline(Some(begin), statements, None)).await;
        self.rolled_back(result).await
    }

    /// Runs statements inside the open transaction. After a failure the transaction is over.
    pub(super) async fn run(&self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        let result = self.within(self.pipeline(None, statements, None)).await;
        self.rolled_back(result).await
    }

    async fn rolled_back<T>(&self, result: Result<T, Failure>) -> Result<T, Failure> {
        match result {
            Err(failure) if !failure.session_over => {
                let session_over = self.rollback().await.is_err();
                Err(Failure { session_over, ..failure })
            }
            other => other,
        }
    }

    /// Runs statements inside the open transaction and commits it. Whatever goes wrong without the server saying that
    /// the transaction is rolled back is `CommitUnknown`.
    pub(super) async fn run_and_commit(&self, statements: &[Statement<'_>]) -> Result<Vec<Vec<Row>>, Failure> {
        self.within(self.pipeline(None, statements, Some("COMMIT"))).await.map_err(|mut failure| {
            if !failure.refused {
                failure.error.kind = StoreErrorKind::CommitUnknown;
                failure.error = failure.error.while_doing("COMMIT");
                failure.session_over = true;
            }
            failure
        })
    }

    /// Runs a statement without parameters in a transaction that begins so, and hands its rows on as they come: the server
    /// sends no faster than they are taken. The transaction stays open behind it.
    pub(super) async fn stream(
        &self,
        begin: &str,
        sql: &str,
        cells: fn(&Row) -> StoreResult<Vec<Cell>>,
        pages: &mut Pages,
    ) -> StoreResult<()> {
        self.client.batch_execute(begin).await.map_err(|e| store_error(&e))?;
        let none: [(&(dyn ToSql + Sync), Type); 0] = [];
        let mut rows = std::pin::pin!(self.client.query_typed_raw(sql, none).await.map_err(|e| store_error(&e))?);
        while let Some(row) = poll_fn(|cx| rows.as_mut().poll_next(cx)).await {
            pages.push(cells(&row.map_err(|e| store_error(&e))?)?).await?;
        }
        Ok(())
    }

    /// Ends the open transaction without a trace.
    pub(super) async fn rollback(&self) -> Result<(), Failure> {
        self.within(self.pipeline(None, &[], Some("ROLLBACK"))).await.map(|_| ())
    }
}

/// A place for one connection, opened when it is needed.
pub(super) struct Slot(Mutex<Option<Link>>);

impl Slot {
    pub(super) const fn new() -> Self {
        Self(Mutex::const_new(None))
    }

    /// Waits for the place, connects if there is no connection in it.
    pub(super) async fn take(&self, dialer: &Dialer) -> StoreResult<Held<'_>> {
        let mut place = timeout(dialer.call_limit, self.0.lock())
            .await
            .map_err(|_| no_answer(dialer.call_limit).while_doing("waiting for a connection"))?;
        let link = match place.take() {
            Some(link) if !link.client.is_closed() => link,
            _ => dialer.connect().await?,
        };
        Ok(Held { place, link })
    }

    pub(super) async fn clear(&self) {
        drop(self.0.lock().await.take());
    }
}

/// A connection in use. It goes back to its place only by [`Held::give_back`]: a call that is dropped half-way, or
/// returns early, takes it along, and whatever was open is rolled back.
pub(super) struct Held<'a> {
    place: MutexGuard<'a, Option<Link>>,
    pub(super) link: Link,
}

impl Held<'_> {
    /// Puts the connection back if the result leaves it fit for use. No transaction may be open, unless the result is a
    /// failure.
    pub(super) fn give_back<T>(self, result: Result<T, Failure>) -> StoreResult<T> {
        let Self { mut place, link } = self;
        if result.as_ref().err().is_none_or(|failure| !failure.session_over) {
            *place = Some(link);
        }
        result.map_err(|failure| failure.error)
    }
}
