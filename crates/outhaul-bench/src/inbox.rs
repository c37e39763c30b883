//! `inbox`: what the row of the inbox adds to the transaction of an effect, and what a copy costs.

use std::time::Instant;

use outhaul::{Inbox, Statement, Transaction};
use outhaul_store::StoreOptions;

use crate::Db;
use crate::measure::percentile;
use crate::raw;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long)]
    db: Db,
    /// Transactions of each kind.
    #[arg(long, default_value_t = 3_000)]
    transactions: usize,
}

/// What is done in a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The effect without an inbox.
    Alone,
    /// The first copy of a message: its row and the effect.
    First,
    /// A second copy, which finds the row.
    Copy,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Alone, "effect alone"), (Kind::First, "first copy"), (Kind::Copy, "second copy")];

const TABLES: &str = "CREATE TABLE balance (id INTEGER PRIMARY KEY, points INTEGER NOT NULL); \
                      CREATE TABLE booking (id INTEGER PRIMARY KEY, balance INTEGER NOT NULL, points INTEGER NOT NULL)";

/// The effect: points are booked, and a balance rises.
fn effect(n: usize) -> [String; 2] {
    [
        format!("INSERT INTO booking (id, balance, points) VALUES ({n}, {}, 10)", n % 100),
        format!("UPDATE balance SET points = points + 10 WHERE id = {}", n % 100),
    ]
}

enum Client {
    MySql(Box<mysql_async::Conn>),
    Postgres(tokio_postgres::Client),
    Sqlite(rusqlite::Connection),
}

impl Client {
    async fn open(db: Db, url: &str) -> Self {
        match db {
            Db::Mariadb | Db::Mysql => {
                let options = mysql_async::Opts::from_url(url).expect("a URL");
                Self::MySql(Box::new(mysql_async::Conn::new(options).await.expect("a connection")))
            }
            Db::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(connection);
                Self::Postgres(client)
            }
            Db::Sqlite => {
                let connection = rusqlite::Connection::open(url.trim_start_matches("sqlite:")).expect("a file");
                // As any application with several connections has it; every commit reaches the disk.
                connection.pragma_update(None, "journal_mode", "wal").expect("write-ahead log");
                connection.pragma_update(None, "synchronous", "full").expect("synchronous");
                Self::Sqlite(connection)
            }
        }
    }

    /// One transaction of a kind, from BEGIN to COMMIT.
    async fn transact(&mut self, kind: Kind, id: &str, n: usize) {
        match self {
            Self::MySql(connection) => {
                let mut tx = connection.start_transaction(mysql_async::TxOpts::default()).await.expect("BEGIN");
                work(&mut tx, kind, id, n).await;
                tx.commit().await.expect("COMMIT");
            }
            Self::Postgres(client) => {
                let mut tx = client.transaction().await.expect("BEGIN");
                work(&mut tx, kind, id, n).await;
                tx.commit().await.expect("COMMIT");
            }
            Self::Sqlite(connection) => {
                let behaviour = rusqlite::TransactionBehavior::Immediate;
                let tx = connection.transaction_with_behavior(behaviour).expect("BEGIN");
                let first = kind == Kind::Alone || Inbox::new().first_blocking(&tx, "bench", id).expect("the inbox");
                assert_eq!(first, kind != Kind::Copy);
                if first {
                    effect(n).iter().for_each(|sql| _ = tx.execute(sql, []).expect("the effect"));
                }
                tx.commit().expect("COMMIT");
            }
        }
    }
}

async fn work<T: Transaction>(tx: &mut T, kind: Kind, id: &str, n: usize) {
    let first = kind == Kind::Alone || Inbox::new().first(tx, "bench", id).await.expect("the inbox");
    assert_eq!(first, kind != Kind::Copy);
    if first {
        for sql in effect(n) {
            tx.execute(Statement { sql, values: Vec::new(), repeats: false }).await.expect("the effect");
        }
    }
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let mut place = raw::place(arguments.db).await;
    let inbox = outhaul_store::inbox::open(StoreOptions::new(place.url.clone()), 1).await.expect("an inbox");
    inbox.init().await.expect("tables");
    place.raw.execute(TABLES).await;
    let balances: Vec<String> = (0..100).map(|n| format!("({n}, 0)")).collect();
    place.raw.execute(&format!("INSERT INTO balance (id, points) VALUES {}", balances.join(", "))).await;
    let mut client = Client::open(arguments.db, &place.url).await;
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for n in 0..arguments.transactions {
        let id = format!("message-{n}");
        for (at, (kind, _)) in KINDS.into_iter().enumerate() {
            let start = Instant::now();
            client.transact(kind, &id, n * 2 + at).await;
            times[at].push(start.elapsed().as_micros() as u64);
        }
    }
    println!(
        "{:?}: an INSERT and an UPDATE, {} transactions of each kind, in turn",
        arguments.db, arguments.transactions
    );
    for ((_, name), v) in KINDS.iter().zip(&mut times) {
        v.sort_unstable();
        println!(
            "{name:<16} P50 {:>7.3} ms  P99 {:>7.3} ms",
            percentile(v, 50.0) as f64 / 1e3,
            percentile(v, 99.0) as f64 / 1e3
        );
    }
    let median = |at: usize| percentile(&times[at], 50.0) as f64;
    println!("ratio of the medians {:.2}, of a second copy {:.2}", median(1) / median(0), median(2) / median(0));
    inbox.close().await;
    raw::remove(arguments.db, place).await;
}
