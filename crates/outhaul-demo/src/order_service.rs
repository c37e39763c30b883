//! The order service: one process, eight workers, one SQLite database.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};

use crate::database;
use crate::error::DemoError;
use crate::kills::Dice;
use crate::notes::Notebook;
use crate::options::Strategy;
use crate::scene::Scene;
use crate::shop::{Order, SERVICES, TOPIC, WORKERS};
use crate::stdin_end::StdinEnd;

/// How long the current orders may take once the service is told to end.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The longest wait for a downstream service's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A worker that is further behind its rate than this does not try to catch up.
const LATE_LIMIT: Duration = Duration::from_secs(1);
/// Time between two checkpoints of the write-ahead log. Done by a thread of its own, or each would hold up an order.
const WAL_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    strategy: Strategy,
    /// How many such processes there were before.
    #[arg(long)]
    process: u32,
    #[arg(long)]
    rate: u32,
    #[arg(long)]
    seed: u64,
    /// Ports of the downstream services.
    #[arg(long, value_delimiter = ',')]
    ports: Vec<u16>,
}

/// Takes orders until standard input closes.
pub(crate) fn serve(arguments: Arguments) -> Result<(), DemoError> {
    let end = StdinEnd::watch(END_LIMIT);
    let scene = Scene::at(arguments.folder.clone(), arguments.strategy);
    // SQLite has one writer. Workers queue for it here, where the next one starts at once, and not in SQLite, where
    // each sleeps and tries again; what is left there is waiting for the relay.
    let writer = Arc::new(Mutex::new(()));
    let checkpointer = database::open(&scene.orders())?;
    let mut threads = vec![];
    for number in 0..WORKERS {
        let worker = Worker::new(&arguments, &scene, number, Arc::clone(&writer), end.clone())?;
        threads.push(std::thread::spawn(move || {
            // One worker that cannot go on ends the service: it would only hide its part of the load.
            if let Err(error) = worker.work() {
                eprintln!("worker {number}: {error}");
                std::process::exit(1);
            }
        }));
    }
    while !end.wait(WAL_INTERVAL) {
        checkpointer
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            .map_err(DemoError::database("a checkpoint of the write-ahead log"))?;
    }
    for thread in threads {
        if thread.join().is_err() {
            std::process::exit(1);
        }
    }
    Ok(())
}

struct Worker {
    db: Connection,
    notes: Notebook,
    downstream: Vec<(&'static str, BufReader<TcpStream>)>,
    dice: Dice,
    writer: Arc<Mutex<()>>,
    end: StdinEnd,
    strategy: Strategy,
    name: String,
    interval: Duration,
    due: Instant,
}

impl Worker {
    fn new(
        arguments: &Arguments,
        scene: &Scene,
        number: u32,
        writer: Arc<Mutex<()>>,
        end: StdinEnd,
    ) -> Result<Self, DemoError> {
        let db = database::open(&scene.orders())?;
        db.pragma_update(None, "wal_autocheckpoint", 0).map_err(DemoError::database("setting up a worker"))?;
        let mut downstream = vec![];
        if arguments.strategy == Strategy::CommitThenSend {
            for (service, port) in SERVICES.iter().zip(&arguments.ports) {
                downstream.push((service.name, connect(*port).map_err(DemoError::process(service.name))?));
            }
        }
        let interval = Duration::from_secs(1) * WORKERS / arguments.rate;
        Ok(Self {
            db,
            notes: Notebook::open(&scene.notes(), arguments.process, number)?,
            downstream,
            dice: Dice::new(arguments.seed, u64::from(arguments.process * WORKERS + number)),
            writer,
            end,
            strategy: arguments.strategy,
            name: format!("order-{}-{number}", arguments.process),
            interval,
            due: Instant::now() + interval * number / WORKERS,
        })
    }

    fn work(mut self) -> Result<(), DemoError> {
        for number in 1u64.. {
            let now = Instant::now();
            if self.end.wait(self.due.saturating_duration_since(now)) {
                break;
            }
            self.due += self.interval;
            if self.due + LATE_LIMIT < now {
                self.due = now;
            }
            let (order, declined) = Order::random(format!("{}-{number}", self.name), &mut self.dice);
            let payload = serde_json::to_string(&order).map_err(|e| DemoError::process("an order")(e.into()))?;
            let note = DemoError::process("the notes");
            self.notes.begin(&order.id).map_err(note)?;
            let committed =
                self.transact(&order, declined, &payload).map_err(DemoError::database("taking an order"))?;
            let note = DemoError::process("the notes");
            if committed {
                self.notes.committed(&order.id).map_err(note)?;
                self.send(&order, &payload)?;
            } else {
                self.notes.declined(&order.id).map_err(note)?;
            }
        }
        Ok(())
    }

    /// The order's transaction; whether it was committed.
    fn transact(&mut self, order: &Order, declined: bool, payload: &str) -> rusqlite::Result<bool> {
        let _turn = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        order.insert(&tx)?;
        if self.strategy == Strategy::Outhaul {
            order.insert_event(&tx, payload)?;
        }
        if declined {
            tx.rollback()?;
        } else {
            tx.commit()?;
        }
        Ok(!declined)
    }

    /// Calls the downstream services one after the other and waits for each one's answer, as such code does.
    fn send(&mut self, order: &Order, payload: &str) -> Result<(), DemoError> {
        for (service, stream) in &mut self.downstream {
            let mut call = |notes: &mut Notebook| -> std::io::Result<()> {
                let line = serde_json::to_string(&(&order.id, TOPIC, &order.customer, payload))? + "\n";
                stream.get_mut().write_all(line.as_bytes())?;
                notes.sent(&order.id, service)?;
                let mut answer = String::new();
                stream.read_line(&mut answer)?;
                if answer == "ok\n" { Ok(()) } else { Err(std::io::Error::other("no answer")) }
            };
            call(&mut self.notes).map_err(DemoError::process(*service))?;
        }
        Ok(())
    }
}

fn connect(port: u16) -> std::io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.set_write_timeout(Some(ANSWER_LIMIT))?;
    Ok(BufReader::new(stream))
}
