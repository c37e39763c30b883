//! The effect of a message happens once for each consumer, however its copies come and whoever is killed when.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outhaul::{Error, Inbox, Once, Transaction};
use outhaul_testkit::servers::{Flavour, TestDatabase, soak};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::application::{Apply, Client, Driver, EFFECTS, End, LIMIT, Work, database};
use crate::by_each;

const CONSUMERS: [&str; 2] = ["points", "risk"];
const WORKERS: u64 = 4;
/// A transaction that is asked to run again may be asked again; not for ever.
const TRIES: u32 = 500;

by_each!(copies_that_come_together_have_one_effect);

/// Each message comes to four workers of two consumers at the same time. One of sixteen is killed between effect and
/// commit, one of sixteen between commit and acknowledgement: the message is delivered to them again.
async fn copies_that_come_together_have_one_effect(driver: Driver, flavour: Flavour) {
    // In full by one driver of each database.
    let in_full = matches!((driver, flavour), (Driver::Sqlx, Flavour::MySql) | (Driver::MysqlAsync, Flavour::MariaDb))
        || matches!(driver, Driver::TokioPostgres | Driver::Rusqlite);
    let messages = match (soak(), in_full) {
        (true, _) => 10_000,
        (false, true) => 500,
        (false, false) => 100,
    };
    let database = Arc::new(database(flavour).await);
    database.execute(EFFECTS).await;
    let seen = Arc::new(Mutex::new(HashMap::<(&str, String), Vec<u64>>::new()));
    let mut workers = JoinSet::new();
    for consumer in CONSUMERS {
        let together = Arc::new(Barrier::new(usize::try_from(WORKERS).unwrap()));
        for worker in 0..WORKERS {
            let (database, seen, together) = (database.clone(), seen.clone(), together.clone());
            workers.spawn(async move {
                let mut worker = Worker { client: Client::open(driver, &database).await, driver, database, worker };
                let mut killed = 0;
                for n in 0..messages {
                    together.wait().await;
                    let id = format!("m{n}");
                    let (result, kills) = worker.deliver(consumer, &id, n).await;
                    killed += kills;
                    seen.lock().unwrap().entry((consumer, id)).or_default().push(result);
                }
                killed
            });
        }
    }
    let mut killed = 0;
    while let Some(worker) = workers.join_next().await {
        killed += worker.unwrap();
    }
    assert!(killed > messages / 4, "workers are killed: {killed}");
    let effects = database.query("SELECT consumer, id, max(result), count(*) FROM effect GROUP BY consumer, id").await;
    assert_eq!(effects.len() as u64, messages * 2, "nothing is missing");
    let seen = seen.lock().unwrap();
    for row in effects {
        let [consumer, id, result, count] = row.as_slice() else { panic!("four columns") };
        assert_eq!(count.as_deref(), Some("1"), "{id:?} was applied more than once by {consumer:?}");
        let consumer = CONSUMERS.into_iter().find(|c| Some(*c) == consumer.as_deref()).unwrap();
        let told = &seen[&(consumer, id.clone().unwrap())];
        let result: u64 = result.as_ref().unwrap().parse().unwrap();
        assert!(
            told.len() == 4 && told.iter().all(|t| *t == result),
            "every copy is told what the first had: {told:?}"
        );
    }
}

struct Worker {
    client: Client,
    driver: Driver,
    database: Arc<TestDatabase>,
    worker: u64,
}

impl Worker {
    /// Delivers a message until it is acknowledged: the result that was told, and how often the worker was killed.
    async fn deliver(&mut self, consumer: &str, id: &str, n: u64) -> (u64, u64) {
        let inbox = Inbox::new();
        let mut killed = 0;
        for attempt in 0..TRIES {
            let work = Apply { inbox: &inbox, consumer, id, result: n * 10 + self.worker };
            // Spread by number, worker and consumer; the second delivery is spared.
            let fate = (n * 7 + self.worker * 3 + consumer.len() as u64) % 16;
            let end = if fate == 0 && killed == 0 { End::Never } else { End::Commit };
            let told = self.client.transact(&work, end).await;
            if end == End::Never || (fate == 1 && killed == 0 && told.is_ok()) {
                killed += 1;
                self.client = Client::open(self.driver, &self.database).await;
                continue;
            }
            match told {
                Ok(Once::First(result) | Once::Seen(Some(result))) => return (result, killed),
                Ok(Once::Seen(None)) => panic!("{consumer} has no result of {id}"),
                Err(error) => assert!(error.is_retryable() && attempt + 1 < TRIES, "{error}: {error:?}"),
            }
        }
        unreachable!()
    }
}

by_each!(a_copy_waits_for_the_first: sqlx_mariadb => (Sqlx, MariaDb), sqlx_mysql => (Sqlx, MySql),
    sqlx_postgres => (Sqlx, Postgres), tokio_postgres => (TokioPostgres, Postgres),
    mysql_async_mariadb => (MysqlAsync, MariaDb), mysql_async_mysql => (MysqlAsync, MySql));

/// The second finds the first's row once that has committed, also when its own transaction began to read before; it takes
/// its place when that was rolled back.
async fn a_copy_waits_for_the_first(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    database.execute(EFFECTS).await;
    for (end, id) in [("COMMIT", "committed"), ("ROLLBACK", "rolled-back")] {
        let mut first = database.session().await;
        first.execute("BEGIN").await;
        first.execute(&format!("INSERT INTO inbox (consumer, id, result) VALUES ('c', '{id}', '41')")).await;
        let mut client = Client::open(driver, &database).await;
        let second = tokio::spawn(async move { client.transact(&ReadsFirst { id }, End::Commit).await });
        // It shows that it waits by nothing that a test could see on all databases.
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert!(!second.is_finished(), "it waits for the first");
        first.execute(end).await;
        let told = tokio::time::timeout(LIMIT, second).await.expect("it goes on").unwrap().unwrap();
        let expected = if end == "COMMIT" { Once::Seen(Some(41)) } else { Once::First(7) };
        assert_eq!(told, expected, "{end}");
    }
    assert_eq!(database.query_u64("SELECT count(*) FROM effect").await, 1);
}

/// Reads before it applies, so that a snapshot is taken where there are such.
struct ReadsFirst {
    id: &'static str,
}

impl Work for ReadsFirst {
    type Output = Once<u64, Option<u64>>;

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<Self::Output, Error> {
        tx.fetch(crate::application::plain("SELECT id FROM effect")).await?;
        Apply { inbox: &Inbox::new(), consumer: "c", id: self.id, result: 7 }.run(tx).await
    }

    fn run_blocking(&self, _: &rusqlite::Connection) -> Result<Self::Output, Error> {
        unreachable!("writers are serial in SQLite")
    }
}

by_each!(what_passes_is_said_to_pass);

/// A lock that is not given in time, and a transaction that cannot be serialised, are for the caller to run again.
async fn what_passes_is_said_to_pass(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    database.execute(EFFECTS).await;
    let mut first = database.session().await;
    first.execute(if flavour == Flavour::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }).await;
    first.execute("INSERT INTO inbox (consumer, id) VALUES ('c', 'i')").await;
    let mut client = Client::open(driver, &database).await;
    let work = First;
    let error = match &mut client {
        // Its BEGIN IMMEDIATE would fail before the library is asked.
        Client::Rusqlite(c) => {
            c.busy_timeout(std::time::Duration::ZERO).unwrap();
            let tx = c.transaction().unwrap();
            work.run_blocking(&tx).unwrap_err()
        }
        Client::SqlxSqlite(c) => {
            use sqlx::Connection;
            sqlx::query("PRAGMA busy_timeout = 0").execute(&mut *c).await.unwrap();
            let mut tx = c.begin().await.unwrap();
            work.run(&mut tx).await.unwrap_err()
        }
        client => {
            client
                .execute(match flavour {
                    Flavour::Postgres => "SET lock_timeout = '100ms'",
                    _ => "SET innodb_lock_wait_timeout = 1",
                })
                .await;
            client.transact(&work, End::Commit).await.unwrap_err()
        }
    };
    assert_eq!((error.code(), error.is_retryable()), ("OUT-5005", true), "{error:?}");
    first.execute("COMMIT").await;
    assert!(!client.transact(&work, End::Commit).await.unwrap());
    let apply = Apply { inbox: &Inbox::new(), consumer: "c", id: "i", result: 1 };
    assert_eq!(client.transact(&apply, End::Commit).await.unwrap(), Once::Seen(None), "nothing was kept with it");
    if flavour == Flavour::Postgres {
        client.execute("SET default_transaction_isolation = 'repeatable read'").await;
        first.execute("BEGIN").await;
        first.execute("INSERT INTO inbox (consumer, id) VALUES ('c', 'committed')").await;
        let second = tokio::spawn(async move {
            client.execute("SET lock_timeout = 0").await;
            client.transact(&ReadsFirst { id: "committed" }, End::Commit).await
        });
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        first.execute("COMMIT").await;
        assert_eq!(second.await.unwrap().unwrap_err().code(), "OUT-5005");
    }
    assert_eq!(database.query_u64("SELECT count(*) FROM effect").await, 0);
}

/// Asks and does nothing else.
struct First;

impl Work for First {
    type Output = bool;

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<bool, Error> {
        Inbox::new().first(tx, "c", "i").await
    }

    fn run_blocking(&self, tx: &rusqlite::Connection) -> Result<bool, Error> {
        Inbox::new().first_blocking(tx, "c", "i")
    }
}

by_each!(another_tables_duplicate_is_no_copy: sqlx_mariadb => (Sqlx, MariaDb), sqlx_mysql => (Sqlx, MySql),
    mysql_async_mariadb => (MysqlAsync, MariaDb), mysql_async_mysql => (MysqlAsync, MySql));

/// A trigger of the inbox runs into a primary key of its own: the message is not taken for applied.
async fn another_tables_duplicate_is_no_copy(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    database.execute(EFFECTS).await;
    database.execute("CREATE TABLE noted (n INTEGER PRIMARY KEY); INSERT INTO noted VALUES (1)").await;
    // Read once by the server, before any connection of the test has the table open.
    let trigger = "CREATE TRIGGER note BEFORE INSERT ON inbox FOR EACH ROW INSERT INTO noted VALUES (1)";
    let mut client = Client::open(driver, &database).await;
    client.execute(trigger).await;
    let work = Apply { inbox: &Inbox::new(), consumer: "c", id: "i", result: 1 };
    assert_eq!(client.transact(&work, End::Commit).await.unwrap_err().code(), "OUT-5008");
    assert_eq!(database.query_u64("SELECT count(*) FROM effect").await, 0);
    client.execute("DELETE FROM noted").await;
    assert_eq!(client.transact(&work, End::Commit).await.unwrap(), Once::First(1));
}

by_each!(ids_and_consumers_compare_by_bytes);

/// What differs by case, by spaces at the end or by how an accent is written is another message; and the result that is
/// kept has to be of the type that is read.
async fn ids_and_consumers_compare_by_bytes(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    database.execute(EFFECTS).await;
    let mut client = Client::open(driver, &database).await;
    let names = ["a", "A", "a ", "\u{e9}", "e\u{301}"];
    for consumer in names {
        for id in names {
            let work = Apply { inbox: &Inbox::new(), consumer, id, result: 1 };
            assert_eq!(client.transact(&work, End::Commit).await.unwrap(), Once::First(1), "{consumer:?} {id:?}");
            assert_eq!(client.transact(&work, End::Commit).await.unwrap(), Once::Seen(Some(1)), "{consumer:?} {id:?}");
        }
    }
    database.execute("UPDATE inbox SET result = '\"text\"'").await;
    let work = Apply { inbox: &Inbox::new(), consumer: "a", id: "a", result: 1 };
    assert_eq!(client.transact(&work, End::Commit).await.unwrap_err().code(), "OUT-5003");
}

/// The futures can be moved to another thread, with an effect that uses the driver's own calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_runs_on_any_thread() {
    use sqlx::Connection;
    let database = database(Flavour::Postgres).await;
    database.execute(EFFECTS).await;
    let url = database.url.clone();
    let once = tokio::spawn(async move {
        let mut connection = sqlx::PgConnection::connect(&url).await?;
        let mut tx = connection.begin().await?;
        let once = Inbox::new()
            .once(&mut *tx, "c", "i", async |tx| {
                sqlx::query("INSERT INTO effect (id) VALUES ($1)").bind("x").execute(tx).await?;
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(9)
            })
            .await?;
        tx.commit().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(once)
    });
    assert_eq!(once.await.unwrap().unwrap(), Once::First(9));
    assert_eq!(database.query_u64("SELECT count(*) FROM effect").await, 1);
}
