//! Consumers as processes of their own, killed with SIGKILL at the two places that matter.

use std::io::{BufRead, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use outhaul::Inbox;
use outhaul_testkit::servers::{Flavour, soak};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

use crate::application::{Apply, Client, Driver, EFFECTS, End, LIMIT, database};
use crate::by_each;

const URL: &str = "OUTHAUL_CHILD_URL";
const DRIVER: &str = "OUTHAUL_CHILD_DRIVER";
const BEFORE_COMMIT: &str = "before-commit";
const AFTER_COMMIT: &str = "after-commit";

by_each!(a_killed_process_leaves_nothing_half_done: sqlx_mysql => (Sqlx, MySql), sqlx_sqlite => (Sqlx, Sqlite),
    tokio_postgres => (TokioPostgres, Postgres), mysql_async_mariadb => (MysqlAsync, MariaDb), rusqlite => (Rusqlite, Sqlite));

async fn a_killed_process_leaves_nothing_half_done(driver: Driver, flavour: Flavour) {
    let messages = if soak() { 1_000 } else { 24 };
    let database = Arc::new(database(flavour).await);
    database.execute(EFFECTS).await;
    let mut workers = JoinSet::new();
    for consumer in ["points", "risk"] {
        for worker in 0..2 {
            let database = database.clone();
            workers.spawn(async move {
                let mut process = Process::start(&database.url, driver, flavour);
                for n in 0..messages {
                    // One of three is killed at each place; then the message is delivered again.
                    for fate in match (n + worker) % 3 {
                        0 => vec![BEFORE_COMMIT, "none"],
                        1 => vec![AFTER_COMMIT, "none"],
                        _ => vec!["none"],
                    } {
                        let said = process.ask(&format!("{consumer} m{n} {fate}")).await;
                        assert_eq!(said, if fate == "none" { "acknowledged" } else { fate });
                        if fate != "none" {
                            process.child.kill().await.unwrap();
                            process = Process::start(&database.url, driver, flavour);
                        }
                    }
                }
            });
        }
    }
    while let Some(worker) = workers.join_next().await {
        worker.unwrap();
    }
    let counted = database.query_u64("SELECT count(*) FROM (SELECT DISTINCT consumer, id FROM effect) d").await;
    assert_eq!((database.query_u64("SELECT count(*) FROM effect").await, counted), (messages * 2, messages * 2));
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(url: &str, driver: Driver, flavour: Flavour) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::consumer_process", "--nocapture"])
            .envs([(URL, url), (DRIVER, &format!("{driver:?} {flavour:?}"))])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, stdin, stdout: BufReader::new(stdout).lines() }
    }

    /// What it says of a message. The test harness of the child writes lines of its own.
    async fn ask(&mut self, line: &str) -> String {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let answer = async {
            loop {
                let line = self.stdout.next_line().await.unwrap().expect("the process goes on");
                if let Some(said) = line.split_once("said: ") {
                    return said.1.to_owned();
                }
            }
        };
        tokio::time::timeout(LIMIT, answer).await.expect("the process answers")
    }
}

/// Not a test unless it is started by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumer_process() {
    let (Ok(url), Ok(kinds)) = (std::env::var(URL), std::env::var(DRIVER)) else { return };
    let (driver, flavour) = match kinds.as_str() {
        "Sqlx MySql" => (Driver::Sqlx, Flavour::MySql),
        "Sqlx Sqlite" => (Driver::Sqlx, Flavour::Sqlite),
        "TokioPostgres Postgres" => (Driver::TokioPostgres, Flavour::Postgres),
        "MysqlAsync MariaDb" => (Driver::MysqlAsync, Flavour::MariaDb),
        "Rusqlite Sqlite" => (Driver::Rusqlite, Flavour::Sqlite),
        other => panic!("{other}"),
    };
    let say = |what: &str| {
        println!("said: {what}");
        std::io::stdout().flush().unwrap();
    };
    let mut client = Client::open_at(driver, flavour, &url).await;
    let inbox = Inbox::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let [consumer, id, fate] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let end = if fate == BEFORE_COMMIT { End::Never } else { End::Commit };
        for attempt in 0.. {
            match client.transact(&Apply { inbox: &inbox, consumer, id, result: 1 }, end).await {
                Ok(_) => break,
                Err(error) => assert!(error.is_retryable() && attempt < 100, "{error:?}"),
            }
        }
        if fate == "none" {
            say("acknowledged");
        } else {
            say(fate);
            tokio::time::sleep(Duration::from_secs(600)).await; // It is killed here.
        }
    }
}
