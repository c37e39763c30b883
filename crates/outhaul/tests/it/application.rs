//! An application: a connection by one of the drivers, and what it does in a transaction of its own.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use outhaul::{Dialect, Error, Event, Inbox, Outbox, Statement, Transaction, Value};
use outhaul_store::{InitPlan, StoreOptions};
use outhaul_testkit::servers::{self, Flavour, TestDatabase};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection, SqliteConnection};

/// How long a test waits for what must happen.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A crate that brings statements to a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    Sqlx,
    TokioPostgres,
    MysqlAsync,
    Rusqlite,
}

/// A connection.
pub enum Client {
    SqlxMySql(MySqlConnection),
    SqlxPostgres(PgConnection),
    SqlxSqlite(SqliteConnection),
    TokioPostgres(tokio_postgres::Client),
    MysqlAsync(Box<mysql_async::Conn>),
    Rusqlite(rusqlite::Connection),
}

/// What is done in a transaction.
pub trait Work: Sync {
    type Output: Send;

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<Self::Output, Error>;

    fn run_blocking(&self, tx: &rusqlite::Connection) -> Result<Self::Output, Error>;
}

/// How a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Commit,
    Rollback,
    /// Not at all: the connection is to be dropped now.
    Never,
}

/// A database with the tables of an outbox and an inbox.
pub async fn database(flavour: Flavour) -> TestDatabase {
    let database = servers::create(flavour).await;
    make_tables(&database.url, &InitPlan::default()).await;
    database
}

pub async fn make_tables(url: &str, plan: &InitPlan) {
    let store = outhaul_store::open(StoreOptions::new(url)).await.unwrap();
    store.init(plan).await.unwrap();
    store.close().await;
    let inbox = outhaul_store::inbox::open(StoreOptions::new(url), 1).await.unwrap();
    inbox.init().await.unwrap();
    inbox.close().await;
}

impl Client {
    pub async fn open(driver: Driver, database: &TestDatabase) -> Self {
        Self::open_at(driver, database.flavour, &database.url).await
    }

    pub async fn open_at(driver: Driver, flavour: Flavour, url: &str) -> Self {
        // sqlx without TLS and RSA has no way to give the server of the tests its default kind of password.
        let native = format!("{}?ssl-mode=DISABLED", url.replacen("outhaul:", "outhaul_native:", 1));
        match (driver, flavour) {
            (Driver::Sqlx, Flavour::MySql) => Self::SqlxMySql(MySqlConnection::connect(&native).await.unwrap()),
            (Driver::Sqlx, Flavour::MariaDb) => Self::SqlxMySql(MySqlConnection::connect(url).await.unwrap()),
            (Driver::Sqlx, Flavour::Postgres) => Self::SqlxPostgres(PgConnection::connect(url).await.unwrap()),
            (Driver::Sqlx, Flavour::Sqlite) => {
                let path = url.trim_start_matches("sqlite:");
                let options = SqliteConnectOptions::new().filename(path).busy_timeout(LIMIT);
                Self::SqlxSqlite(SqliteConnection::connect_with(&options).await.unwrap())
            }
            (Driver::TokioPostgres, _) => {
                let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                Self::TokioPostgres(client)
            }
            (Driver::MysqlAsync, _) => {
                let options = mysql_async::Opts::from_url(url).unwrap();
                Self::MysqlAsync(Box::new(mysql_async::Conn::new(options).await.unwrap()))
            }
            (Driver::Rusqlite, _) => {
                let connection = rusqlite::Connection::open(url.trim_start_matches("sqlite:")).unwrap();
                connection.busy_timeout(LIMIT).unwrap();
                Self::Rusqlite(connection)
            }
        }
    }

    /// Begins, works, ends. Work that fails is rolled back.
    pub async fn transact<W: Work>(&mut self, work: &W, end: End) -> Result<W::Output, Error> {
        macro_rules! asynchronous {
            ($begin:expr) => {{
                let mut tx = $begin.await.unwrap();
                let result = work.run(&mut tx).await;
                match (end, &result) {
                    (End::Never, _) => std::mem::forget(tx),
                    (End::Commit, Ok(_)) => tx.commit().await.unwrap(),
                    _ => tx.rollback().await.unwrap(),
                }
                result
            }};
        }
        match self {
            Self::SqlxMySql(connection) => asynchronous!(connection.begin()),
            Self::SqlxPostgres(connection) => asynchronous!(connection.begin()),
            Self::SqlxSqlite(connection) => asynchronous!(connection.begin_with("BEGIN IMMEDIATE")),
            Self::TokioPostgres(client) => asynchronous!(client.transaction()),
            Self::MysqlAsync(connection) => asynchronous!(connection.start_transaction(Default::default())),
            Self::Rusqlite(connection) => {
                let behaviour = rusqlite::TransactionBehavior::Immediate;
                let tx = connection.transaction_with_behavior(behaviour).unwrap();
                let result = work.run_blocking(&tx);
                match (end, &result) {
                    (End::Never, _) => std::mem::forget(tx),
                    (End::Commit, Ok(_)) => tx.commit().unwrap(),
                    _ => tx.rollback().unwrap(),
                }
                result
            }
        }
    }

    /// Runs a statement outside of any transaction.
    pub async fn execute(&mut self, sql: &str) {
        match self {
            Self::SqlxMySql(c) => _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(c).await.unwrap(),
            Self::SqlxPostgres(c) => _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(c).await.unwrap(),
            Self::SqlxSqlite(c) => _ = sqlx::raw_sql(AssertSqlSafe(sql)).execute(c).await.unwrap(),
            Self::TokioPostgres(c) => c.batch_execute(sql).await.unwrap(),
            Self::MysqlAsync(c) => c.query_drop(sql).await.unwrap(),
            Self::Rusqlite(c) => c.execute_batch(sql).unwrap(),
        }
    }
}

/// A statement without parameters.
pub fn plain(sql: impl Into<String>) -> Statement<'static> {
    Statement { sql: sql.into(), values: Vec::new(), repeats: true }
}

/// Enqueues, with business data beside it.
pub struct Enqueue<'a> {
    pub outbox: &'a Outbox,
    pub events: Vec<Event>,
}

impl Work for Enqueue<'_> {
    type Output = Vec<String>;

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<Vec<String>, Error> {
        match self.events.as_slice() {
            [event] => Ok(vec![self.outbox.enqueue(tx, event.clone()).await?]),
            events => self.outbox.enqueue_many(tx, events.to_vec()).await,
        }
    }

    fn run_blocking(&self, tx: &rusqlite::Connection) -> Result<Vec<String>, Error> {
        match self.events.as_slice() {
            [event] => Ok(vec![self.outbox.enqueue_blocking(tx, event.clone())?]),
            events => self.outbox.enqueue_many_blocking(tx, events.to_vec()),
        }
    }
}

/// Takes from an inbox what is old.
pub struct Prune<'a> {
    pub inbox: &'a Inbox,
    pub consumer: &'a str,
    pub older_than: Duration,
    pub from: Option<&'a str>,
}

impl Work for Prune<'_> {
    type Output = outhaul::PruneStep;

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<outhaul::PruneStep, Error> {
        self.inbox.prune(tx, self.consumer, self.older_than, self.from).await
    }

    fn run_blocking(&self, tx: &rusqlite::Connection) -> Result<outhaul::PruneStep, Error> {
        self.inbox.prune_blocking(tx, self.consumer, self.older_than, self.from)
    }
}

/// Applies a message once: its effect is a row, which nothing keeps from being inserted twice.
pub struct Apply<'a> {
    pub inbox: &'a Inbox,
    pub consumer: &'a str,
    pub id: &'a str,
    /// What the effect yields.
    pub result: u64,
}

impl Apply<'_> {
    fn effect(&self, dialect: Dialect) -> Statement<'_> {
        let parameters = match dialect {
            Dialect::MySql => "CAST(? AS BINARY), CAST(? AS BINARY), ?",
            Dialect::Postgres => "$1, $2, $3",
            Dialect::Sqlite => "?, ?, ?",
        };
        let values =
            vec![Value::Text(Some(self.consumer)), Value::Text(Some(self.id)), Value::Number(Some(self.result as i64))];
        Statement {
            sql: format!("INSERT INTO effect (consumer, id, result) VALUES ({parameters})"),
            values,
            repeats: true,
        }
    }
}

impl Work for Apply<'_> {
    type Output = outhaul::Once<u64, Option<u64>>;

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<Self::Output, Error> {
        self.inbox
            .once_kept(tx, self.consumer, self.id, async |tx| {
                let effect = self.effect(tx.dialect());
                tx.execute(effect).await?;
                Ok::<_, Error>(self.result)
            })
            .await
    }

    fn run_blocking(&self, tx: &rusqlite::Connection) -> Result<Self::Output, Error> {
        self.inbox.once_kept_blocking(tx, self.consumer, self.id, |tx| {
            let effect = self.effect(Dialect::Sqlite);
            tx.execute(&effect.sql, (self.consumer, self.id, self.result as i64)).unwrap();
            Ok::<_, Error>(self.result)
        })
    }
}

/// The table of [`Apply`]'s effects.
pub const EFFECTS: &str = "CREATE TABLE effect (consumer VARCHAR(255), id VARCHAR(64), result BIGINT)";
