//! `transactional`: what a transactional message of RocketMQ costs beside the outbox, and beside a send after the commit.

use std::sync::Arc;
use std::time::Instant;

use outhaul::transaction::{Ending, Prepared, TransactionOptions, TransactionalSender};
use outhaul::{Event, Outbox, Statement, Transaction};
use outhaul_store::{InitPlan, StoreOptions};
use rocketmq_remoting::client::{Producer, SendOptions};
use rocketmq_remoting::message::{Message, MessageQueue};
use tokio::task::JoinSet;

use crate::Db;
use crate::measure::percentile;
use crate::raw;
use crate::rocketmq::{Broker, Topic};

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database.
    #[arg(long)]
    db: Db,
    /// Broker.
    #[arg(long)]
    sink: Broker,
    /// Messages of each kind and number of senders.
    #[arg(long, default_value_t = 3_000)]
    messages: usize,
    /// Senders side by side, each with a connection of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,16")]
    senders: Vec<usize>,
}

/// How an order is announced. All of them in turn by each sender, so that all meet the same load.
#[derive(Clone, Copy)]
enum Kind {
    /// Order and row of the outbox; a relay delivers later.
    Outbox,
    /// The order, and a send after its commit, which a crash in between loses.
    Plain,
    /// Half, row and order, commit as a request.
    Transactional,
}

const KINDS: [(Kind, &str); 3] =
    [(Kind::Outbox, "outbox row"), (Kind::Plain, "send after commit"), (Kind::Transactional, "transactional message")];

const PAYLOAD_BYTES: usize = 300;

enum Connection {
    MySql(Box<mysql_async::Conn>),
    Postgres(tokio_postgres::Client),
}

impl Connection {
    async fn open(db: Db, url: &str) -> Self {
        match db {
            Db::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(url, tokio_postgres::NoTls).await.expect("a connection");
                tokio::spawn(connection);
                Self::Postgres(client)
            }
            Db::Mariadb | Db::Mysql => {
                let options = mysql_async::Opts::from_url(url).expect("a URL");
                Self::MySql(Box::new(mysql_async::Conn::new(options).await.expect("a connection")))
            }
            Db::Sqlite => panic!("a file has one writer at a time: choose a server"),
        }
    }
}

/// What else is written in the transaction of an order, and what is left of it after.
enum Row {
    None,
    Outbox(Event),
    Half(Box<Prepared>),
}

/// What all senders of a run use.
struct Shop {
    sender: TransactionalSender,
    producer: Producer,
    queues: Vec<MessageQueue>,
    topic: String,
    outbox: Outbox,
}

impl Shop {
    async fn start(place: &raw::Place, namesrv: &str, topic: &Topic) -> Self {
        let group = topic.prefix.trim_end_matches('_');
        let options = TransactionOptions::new(namesrv, group, &place.url).expect("options");
        Self {
            sender: TransactionalSender::start(options).await.expect("a sender"),
            producer: Producer::new(&topic.client, "outhaul-bench").expect("a producer"),
            queues: topic.queues().await,
            topic: topic.name.clone(),
            outbox: Outbox::new(),
        }
    }

    /// An order of a number that no other has, from before the first statement until the application may go on.
    async fn order(&self, connection: &mut Connection, kind: Kind, n: usize) {
        let event = Event::bytes(&self.topic, raw::payload(n, PAYLOAD_BYTES)).key(format!("user-{}", n % 5_000));
        let row = match kind {
            Kind::Outbox => Row::Outbox(event),
            Kind::Plain => Row::None,
            Kind::Transactional => Row::Half(Box::new(self.sender.prepare(event).await.expect("a half"))),
        };
        let row = match connection {
            Connection::MySql(connection) => {
                let mut tx = connection.start_transaction(mysql_async::TxOpts::default()).await.expect("BEGIN");
                let row = self.write(&mut tx, row, n).await;
                tx.commit().await.expect("COMMIT");
                row
            }
            Connection::Postgres(client) => {
                let mut tx = client.transaction().await.expect("BEGIN");
                let row = self.write(&mut tx, row, n).await;
                tx.commit().await.expect("COMMIT");
                row
            }
        };
        match (kind, row) {
            (Kind::Plain, _) => self.send(n).await,
            (_, Row::Half(prepared)) => assert_eq!(prepared.committed().await, Ending::Confirmed),
            _ => {}
        }
    }

    async fn write<T: Transaction>(&self, tx: &mut T, row: Row, n: usize) -> Row {
        if let Row::Half(prepared) = &row {
            prepared.record(tx).await.expect("a row");
        }
        let sql = format!("INSERT INTO orders (id, user_id, status) VALUES ({n}, {}, 'CREATED')", n % 5_000);
        tx.execute(Statement { sql, values: Vec::new(), repeats: false }).await.expect("an order");
        match row {
            Row::Outbox(event) => {
                self.outbox.enqueue(tx, event).await.expect("a row");
                Row::None
            }
            row => row,
        }
    }

    async fn send(&self, n: usize) {
        let queue = &self.queues[n % self.queues.len()];
        let message = Message::new(queue.topic.as_str(), raw::payload(n, PAYLOAD_BYTES))
            .and_then(|m| m.with_unique_key(&format!("{n:032X}")))
            .expect("a message");
        self.producer.send(queue, &message, &SendOptions::default()).await.expect("an answer");
    }
}

/// So many senders, each with so many orders of each kind: how long each took, microseconds, sorted.
async fn measure(shop: &Arc<Shop>, db: Db, url: &str, senders: usize, each: usize, first: usize) -> [Vec<u64>; 3] {
    let mut running = JoinSet::new();
    for sender in 0..senders {
        let (shop, url) = (shop.clone(), url.to_owned());
        running.spawn(async move {
            let mut connection = Connection::open(db, &url).await;
            let mut times = [Vec::new(), Vec::new(), Vec::new()];
            for n in 0..each * KINDS.len() {
                let at = (n + sender) % KINDS.len();
                let number = first + sender * each * KINDS.len() + n;
                let begin = Instant::now();
                shop.order(&mut connection, KINDS[at].0, number).await;
                times[at].push(begin.elapsed().as_micros() as u64);
            }
            times
        });
    }
    let mut all = [Vec::new(), Vec::new(), Vec::new()];
    while let Some(times) = running.join_next().await {
        for (all, times) in all.iter_mut().zip(times.expect("a sender")) {
            all.extend(times);
        }
    }
    all.iter_mut().for_each(|times| times.sort_unstable());
    all
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    let mut place = raw::place(arguments.db).await;
    let store = outhaul_store::open(StoreOptions::new(place.url.clone())).await.expect("a store");
    store.init(&InitPlan::default()).await.expect("tables");
    store.close().await;
    place.raw.execute("CREATE TABLE orders (id BIGINT PRIMARY KEY, user_id BIGINT, status VARCHAR(16))").await;
    let namesrv = arguments.sink.namesrv();
    let topic = Topic::make(&namesrv).await;
    let shop = Arc::new(Shop::start(&place, &namesrv, &topic).await);
    let mut first = 0;
    for senders in arguments.senders {
        let each = (arguments.messages / senders).max(1);
        let warm_up = (each / 10).max(1);
        measure(&shop, arguments.db, &place.url, senders, warm_up, first).await;
        first += warm_up * senders * KINDS.len();
        let all = measure(&shop, arguments.db, &place.url, senders, each, first).await;
        first += each * senders * KINDS.len();
        println!(
            "{:?}, {}: {senders} senders, {} orders of each kind, in turn",
            arguments.db,
            arguments.sink.name(),
            each * senders
        );
        for ((_, name), times) in KINDS.iter().zip(&all) {
            let ratio = |percent| percentile(times, percent) as f64 / percentile(&all[0], percent) as f64;
            println!(
                "{name:<22} P50 {:>7.3} ms  P99 {:>7.3} ms  to the outbox row {:>5.2} {:>5.2}",
                percentile(times, 50.0) as f64 / 1e3,
                percentile(times, 99.0) as f64 / 1e3,
                ratio(50.0),
                ratio(99.0)
            );
        }
    }
    if let Some(shop) = Arc::into_inner(shop) {
        shop.sender.stop().await;
    }
    topic.delete().await;
    raw::remove(arguments.db, place).await;
}
