//! What would be parked is refused, with its code, before anything is written; and the transaction goes on.

use std::time::{Duration, UNIX_EPOCH};

use outhaul::{ColumnNames, Error, Event, Inbox, Outbox, PayloadType, Transaction};
use outhaul_testkit::servers::{self, Flavour};
use sqlx::Connection;

use crate::application::{Apply, Client, Driver, EFFECTS, End, Work, database};
use crate::by_each;

/// Tries what is refused, then enqueues one that is not.
struct Refused;

impl Refused {
    fn cases() -> Vec<(&'static str, Outbox, Event)> {
        let outbox = Outbox::new();
        let json = outbox.clone().payload_type(PayloadType::Json);
        let debezium = outbox.clone().columns(ColumnNames { headers: None, ..ColumnNames::default() });
        let e = || Event::bytes("t", "x");
        vec![
            ("OUT-5001", outbox.clone(), Event::bytes("", "x")),
            ("OUT-5001", outbox.clone(), e().id("")),
            ("OUT-5001", outbox.clone(), e().key("")),
            ("OUT-5001", outbox.clone(), e().key("a\0b")),
            ("OUT-5001", outbox.clone(), e().available_at(UNIX_EPOCH + Duration::from_secs(300_000_000_000))),
            ("OUT-5001", debezium, e().header("a", "b")),
            ("OUT-5001", json.clone(), Event::bytes("t", [0xff])),
            ("OUT-5003", json, Event::bytes("t", "{")),
            ("OUT-5002", outbox.clone(), e().id("x".repeat(65))),
            ("OUT-5002", outbox.clone(), Event::bytes("x".repeat(256), "x")),
            ("OUT-5002", outbox.clone(), e().key("x".repeat(256))),
            // One more than fits, as MySQL writes it.
            ("OUT-5002", outbox.clone(), e().header("h", "v".repeat((1 << 20) - r#"{"h": ""}"#.len() + 1))),
            ("OUT-5002", outbox.clone(), Event::bytes("t", vec![0; (4 << 20) + 1])),
            ("OUT-5002", outbox.max_message_bytes(9), Event::bytes("t", "0123456789")),
        ]
    }

    fn judge(n: usize, code: &str, result: Result<impl std::fmt::Debug, Error>) {
        let error = result.expect_err(code);
        assert_eq!(error.code(), code, "case {n}: {error}");
        assert!(error.to_string().starts_with(code) && !error.remedy().is_empty());
    }
}

impl Work for Refused {
    type Output = ();

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<(), Error> {
        for (n, (code, outbox, event)) in Self::cases().into_iter().enumerate() {
            // A good one before it is not written either.
            Self::judge(n, code, outbox.enqueue_many(tx, [Event::bytes("t", "1"), event]).await);
        }
        for consumer_id in [("", "i"), ("c", ""), ("c", &"i".repeat(65)), (&"c".repeat(256), "i"), ("c", "a\0")] {
            Self::judge(100, "OUT-5009", Inbox::new().first(tx, consumer_id.0, consumer_id.1).await);
        }
        Outbox::new().enqueue(tx, Event::bytes("t", "good")).await?;
        Ok(())
    }

    fn run_blocking(&self, tx: &rusqlite::Connection) -> Result<(), Error> {
        for (n, (code, outbox, event)) in Self::cases().into_iter().enumerate() {
            Self::judge(n, code, outbox.enqueue_many_blocking(tx, [Event::bytes("t", "1"), event]));
        }
        Self::judge(100, "OUT-5009", Inbox::new().first_blocking(tx, "", "i"));
        Outbox::new().enqueue_blocking(tx, Event::bytes("t", "good"))?;
        Ok(())
    }
}

by_each!(what_would_be_parked_is_refused);

async fn what_would_be_parked_is_refused(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    let mut client = Client::open(driver, &database).await;
    client.transact(&Refused, End::Commit).await.unwrap();
    assert_eq!(database.query_u64("SELECT count(*) FROM outbox").await, 1);
    let payload = crate::delivery::delivered(&database.url, 1).await.remove(0).payload.clone();
    assert_eq!(&payload[..], b"good");
}

by_each!(a_table_that_is_not_there_has_its_code);

async fn a_table_that_is_not_there_has_its_code(driver: Driver, flavour: Flavour) {
    struct Nowhere;
    impl Work for Nowhere {
        type Output = [&'static str; 2];

        async fn run<T: Transaction>(&self, tx: &mut T) -> Result<Self::Output, Error> {
            let outbox = Outbox::new().enqueue(tx, Event::bytes("t", "x")).await.unwrap_err();
            Ok([outbox.code(), ""])
        }

        fn run_blocking(&self, tx: &rusqlite::Connection) -> Result<Self::Output, Error> {
            let outbox = Outbox::new().enqueue_blocking(tx, Event::bytes("t", "x")).unwrap_err();
            let inbox = Inbox::new().first_blocking(tx, "c", "i").unwrap_err();
            Ok([outbox.code(), if inbox.code() == "OUT-5006" { "" } else { "the inbox's differs" }])
        }
    }
    let database = servers::create(flavour).await;
    database.execute("CREATE TABLE other (id INTEGER)").await; // SQLite makes the file.
    let mut client = Client::open(driver, &database).await;
    assert_eq!(client.transact(&Nowhere, End::Rollback).await.unwrap(), ["OUT-5006", ""]);
}

by_each!(without_a_transaction_nothing_is_written: sqlx_sqlite => (Sqlx, Sqlite), sqlx_mariadb => (Sqlx, MariaDb),
    sqlx_postgres => (Sqlx, Postgres), mysql_async_mariadb => (MysqlAsync, MariaDb), mysql_async_mysql => (MysqlAsync, MySql),
    rusqlite => (Rusqlite, Sqlite));

/// A connection is refused outside of a transaction, and is as good as the transaction inside of one.
async fn without_a_transaction_nothing_is_written(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    let (outbox, inbox) = (Outbox::new(), Inbox::new());
    let event = || Event::bytes("t", "x");
    macro_rules! refused {
        ($connection:expr) => {{
            assert_eq!(outbox.enqueue($connection, event()).await.unwrap_err().code(), "OUT-5004");
            assert_eq!(inbox.first($connection, "c", "i").await.unwrap_err().code(), "OUT-5004");
        }};
    }
    macro_rules! inside {
        ($connection:expr) => {{
            refused!($connection);
            let mut tx = $connection.begin().await.unwrap();
            outbox.enqueue(&mut *tx, event()).await.unwrap();
            assert!(inbox.first(&mut *tx, "c", "i").await.unwrap());
            tx.commit().await.unwrap();
            refused!($connection);
        }};
    }
    match &mut Client::open(driver, &database).await {
        Client::SqlxMySql(c) => inside!(c),
        Client::SqlxPostgres(c) => inside!(c),
        Client::SqlxSqlite(c) => inside!(c),
        Client::MysqlAsync(c) => {
            use mysql_async::prelude::Queryable;
            c.query_drop("DO 1").await.unwrap();
            refused!(&mut **c);
            c.query_drop("START TRANSACTION").await.unwrap();
            outbox.enqueue(&mut **c, event()).await.unwrap();
            assert!(inbox.first(&mut **c, "c", "i").await.unwrap());
            assert!(!inbox.first(&mut **c, "c", "i").await.unwrap());
            c.query_drop("COMMIT").await.unwrap();
            refused!(&mut **c);
            c.query_drop("SET autocommit = 0").await.unwrap();
            outbox.enqueue(&mut **c, event()).await.unwrap();
            c.query_drop("ROLLBACK").await.unwrap();
        }
        Client::Rusqlite(c) => {
            assert_eq!(outbox.enqueue_blocking(c, event()).unwrap_err().code(), "OUT-5004");
            assert_eq!(inbox.first_blocking(c, "c", "i").unwrap_err().code(), "OUT-5004");
            c.execute_batch("BEGIN IMMEDIATE").unwrap();
            outbox.enqueue_blocking(c, event()).unwrap();
            assert!(inbox.first_blocking(c, "c", "i").unwrap());
            c.execute_batch("COMMIT").unwrap();
        }
        Client::TokioPostgres(_) => unreachable!("its transaction is the only thing that is taken"),
    }
    assert_eq!(database.query_u64("SELECT count(*) FROM outbox").await, 1);
    assert_eq!(database.query_u64("SELECT count(*) FROM inbox").await, 1);
}

/// A right that is missing has its code, and the application needs INSERT alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_application_needs_insert_and_nothing_else() {
    for flavour in Flavour::SERVERS {
        let mut database = database(flavour).await;
        database.execute(EFFECTS).await;
        let url = database.restricted_user(&["INSERT ON outbox", "SELECT ON inbox", "INSERT ON effect"]).await;
        let driver = if flavour == Flavour::Postgres { Driver::TokioPostgres } else { Driver::MysqlAsync };
        let mut client = Client::open_at(driver, flavour, &url).await;
        let enqueue = crate::application::Enqueue {
            outbox: &Outbox::new(),
            events: vec![Event::bytes("t", vec![1; 1 << 20]).key("k").header("h", "v").available_at(UNIX_EPOCH); 3],
        };
        client.transact(&enqueue, End::Commit).await.unwrap();
        let apply = Apply { inbox: &Inbox::new(), consumer: "c", id: "i", result: 1 };
        let error = client.transact(&apply, End::Commit).await.unwrap_err();
        assert_eq!(error.code(), "OUT-5007", "{flavour:?}: {error}");
        assert_eq!(database.query_u64("SELECT count(*) FROM outbox").await, 3);
    }
}
