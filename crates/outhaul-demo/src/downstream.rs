//! A downstream service: an inbox, and a consumer that applies each event once in the service's own database.
//!
//! With "commit, then send" the events come by TCP from the order service, a JSON line each, and are answered `ok`
//! once they are in the inbox. With Outhaul the relay writes the inbox. The consumer is the same.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior, params};

use crate::database;
use crate::error::DemoError;
use crate::shop::{Order, Service};
use crate::stdin_end::StdinEnd;

/// How long what is in the inbox may take to be applied once the service is told to end.
pub(crate) const END_LIMIT: Duration = Duration::from_secs(15);
/// Events of one transaction, when storing and when applying.
const BATCH: u32 = 200;
/// Wait of the consumer between two batches: as long as it does not write, others can, who would otherwise find the
/// database locked each time they try.
const PAUSE: Duration = Duration::from_millis(10);
/// Connections at a time: eight workers, and those of killed processes whose end was not seen yet.
const MAX_CONNECTIONS: usize = 64;
/// Bytes of an event's line.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// What the first line on standard output begins with; the port follows.
pub(crate) const LISTENING: &str = "listening ";

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    name: String,
    #[arg(long)]
    database: PathBuf,
}

/// An event as it came, and where to answer.
struct Incoming {
    id: String,
    topic: String,
    key: String,
    payload: String,
    stored: SyncSender<()>,
}

/// Serves until standard input closes, all connections are closed and all events are applied.
pub(crate) fn serve(arguments: Arguments) -> Result<(), DemoError> {
    let end = StdinEnd::watch(END_LIMIT);
    let who = || DemoError::process(arguments.name.clone());
    let service = Service::named(&arguments.name).ok_or_else(|| who()(std::io::Error::other("no such service")))?;
    let writer = Arc::new(Mutex::new(()));
    let connections = Arc::new(AtomicUsize::new(0));
    let (sender, events) = sync_channel(MAX_CONNECTIONS);

    let mut inbox = database::open(&arguments.database)?;
    let turn = Arc::clone(&writer);
    std::thread::spawn(move || {
        if let Err(error) = fill_inbox(&mut inbox, service, &events, &turn) {
            eprintln!("{}: the inbox: {error}", service.name);
            std::process::exit(1);
        }
    });
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(who())?;
    let port = listener.local_addr().map_err(who())?.port();
    let open = Arc::clone(&connections);
    std::thread::spawn(move || accept(&listener, &sender, &open));
    println!("{LISTENING}{port}");

    let mut db = database::open(&arguments.database)?;
    loop {
        let told_to_end = end.wait(Duration::ZERO);
        let quiet = connections.load(Ordering::SeqCst) == 0;
        let applied = apply_some(&mut db, service, &writer).map_err(DemoError::database("applying events"))?;
        if applied == 0 && told_to_end && quiet {
            return Ok(());
        }
        std::thread::park_timeout(PAUSE);
    }
}

fn accept(listener: &TcpListener, sender: &SyncSender<Incoming>, open: &Arc<AtomicUsize>) {
    for stream in listener.incoming().map_while(Result::ok) {
        if open.fetch_add(1, Ordering::SeqCst) >= MAX_CONNECTIONS {
            open.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let (sender, open) = (sender.clone(), Arc::clone(open));
        std::thread::spawn(move || {
            // An error is the order service's death, which is what this is about.
            let _closed = receive(stream, &sender);
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn receive(mut answers: TcpStream, sender: &SyncSender<Incoming>) -> std::io::Result<()> {
    answers.set_nodelay(true)?;
    let mut lines = BufReader::new(answers.try_clone()?);
    let (stored, done) = sync_channel(1);
    loop {
        let mut line = String::new();
        lines.by_ref().take(MAX_LINE_BYTES).read_line(&mut line)?;
        if !line.ends_with('\n') {
            return Ok(());
        }
        let (id, topic, key, payload) = serde_json::from_str(&line)?;
        let event = Incoming { id, topic, key, payload, stored: stored.clone() };
        sender.send(event).map_err(|_| std::io::Error::other("the inbox is closed"))?;
        done.recv().map_err(|_| std::io::Error::other("the inbox is closed"))?;
        answers.write_all(b"ok\n")?;
    }
}

/// Stores what comes, with one commit for all that is there; then answers.
fn fill_inbox(
    db: &mut Connection,
    service: &Service,
    events: &Receiver<Incoming>,
    turn: &Mutex<()>,
) -> rusqlite::Result<()> {
    while let Ok(first) = events.recv() {
        let batch: Vec<Incoming> = std::iter::once(first).chain(events.try_iter().take(BATCH as usize - 1)).collect();
        {
            let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            {
                let mut add = tx.prepare_cached(
                    "INSERT INTO inbox_message (consumer, id, topic, msg_key, payload, position)
                     VALUES (?1, ?2, ?3, ?4, ?5, '') ON CONFLICT DO NOTHING",
                )?;
                for event in &batch {
                    add.execute(params![service.name, event.id, event.topic, event.key, event.payload.as_bytes()])?;
                }
            }
            tx.commit()?;
        }
        for event in batch {
            // The other end may be gone: the event is stored all the same.
            let _answered = event.stored.try_send(());
        }
    }
    Ok(())
}

/// Applies some events and marks them as done, in one transaction; how many.
fn apply_some(db: &mut Connection, service: &Service, turn: &Mutex<()>) -> rusqlite::Result<usize> {
    let any: bool = db
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM inbox_message WHERE consumer = ?1 AND done_at IS NULL)")?
        .query_row([service.name], |row| row.get(0))?;
    if !any {
        return Ok(0);
    }
    let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let events: Vec<(String, Vec<u8>)> = tx
        .prepare_cached("SELECT id, payload FROM inbox_message WHERE consumer = ?1 AND done_at IS NULL LIMIT ?2")?
        .query_map(params![service.name, BATCH], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (id, payload) in &events {
        // An event that cannot be read is not one of this shop's; it is counted as a phantom.
        if let Ok(order) = serde_json::from_slice::<Order>(payload) {
            service.apply(&tx, id, &order)?;
        }
        tx.prepare_cached(
            "UPDATE inbox_message SET done_at = CAST(unixepoch('subsec') * 1000000 AS INTEGER)
             WHERE consumer = ?1 AND id = ?2",
        )?
        .execute(params![service.name, id])?;
    }
    tx.commit()?;
    Ok(events.len())
}
