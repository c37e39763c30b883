//! B3: a transaction pooler between relay and server.
//!
//! The pooler here is stricter than those in use: transactions of all clients go round over three server sessions, which
//! nothing cleans in between; a named statement or an option of the connection is a violation. The sessions are spoilt
//! beforehand with settings of somebody else.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outhaul_core::message::{Seq, ShardId};
use outhaul_store::{InitPlan, NewRow, PruneRequest, StoreOptions, inbox};
use outhaul_testkit::servers::{Flavour, OwnServer, Session};
use outhaul_testkit::store_suite::{AppRow, Fixture};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

const SESSIONS: usize = 3;

/// The messages that a stream has brought, whole ones only.
struct Messages {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl Messages {
    const fn new(stream: TcpStream) -> Self {
        Self { stream, bytes: Vec::new() }
    }

    /// Reads more. False: the other side has closed.
    async fn more(&mut self) -> bool {
        self.stream.read_buf(&mut self.bytes).await.is_ok_and(|n| n > 0)
    }

    /// Takes the next message, `tag` bytes before its length.
    fn next(&mut self, tag: usize) -> Option<Vec<u8>> {
        let length: [u8; 4] = self.bytes.get(tag..tag + 4)?.try_into().ok()?;
        let end = tag + u32::from_be_bytes(length) as usize;
        (self.bytes.len() >= end).then(|| self.bytes.drain(..end).collect())
    }

    async fn send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).await.is_ok()
    }
}

struct Pool {
    idle: Mutex<VecDeque<Messages>>,
    free: Semaphore,
    violations: Mutex<Vec<String>>,
    transactions: Mutex<u64>,
}

async fn start(server: SocketAddr, database: &str) -> (SocketAddr, Arc<Pool>) {
    let pool = Arc::new(Pool {
        idle: Mutex::default(),
        free: Semaphore::new(0),
        violations: Mutex::default(),
        transactions: Mutex::default(),
    });
    for _ in 0..SESSIONS {
        give_back(&pool, server_session(server, database).await);
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn({
        let pool = pool.clone();
        async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(serve(Messages::new(client), pool.clone()));
            }
        }
    });
    (address, pool)
}

/// A session on a server that asks for no password, past its greeting.
async fn server_session(server: SocketAddr, database: &str) -> Messages {
    let mut session = Messages::new(TcpStream::connect(server).await.unwrap());
    let parameters = format!("user\0outhaul\0database\0{database}\0client_encoding\0UTF8\0\0");
    let mut startup = (8 + parameters.len() as u32).to_be_bytes().to_vec();
    startup.extend(196_608u32.to_be_bytes());
    startup.extend(parameters.as_bytes());
    assert!(session.send(&startup).await);
    loop {
        while let Some(message) = session.next(1) {
            match message[0] {
                b'Z' => return session,
                b'E' => panic!("{}", String::from_utf8_lossy(&message)),
                _ => {}
            }
        }
        assert!(session.more().await);
    }
}

/// A session that is not in use, waited for in turn.
async fn take(pool: &Pool) -> Messages {
    pool.free.acquire().await.unwrap().forget();
    pool.idle.lock().unwrap().pop_front().expect("as many sessions as permits")
}

fn give_back(pool: &Pool, session: Messages) {
    pool.idle.lock().unwrap().push_back(session);
    pool.free.add_permits(1);
}

async fn serve(mut client: Messages, pool: Arc<Pool>) {
    let startup = loop {
        if let Some(startup) = client.next(0) {
            break startup;
        }
        if !client.more().await {
            return;
        }
    };
    if startup.windows(8).any(|w| w == b"options\0") {
        pool.violations.lock().unwrap().push("options in the startup message".into());
    }
    let mut greeting = b"R\0\0\0\x08\0\0\0\0".to_vec();
    let status = b"client_encoding\0UTF8\0";
    greeting.push(b'S');
    greeting.extend((4 + status.len() as u32).to_be_bytes());
    greeting.extend(status);
    greeting.extend(b"Z\0\0\0\x05I");
    if !client.send(&greeting).await {
        return;
    }
    loop {
        let Some(first) = client.next(1) else { if client.more().await { continue } else { return } };
        if first[0] == b'X' {
            return;
        }
        let server = take(&pool).await;
        *pool.transactions.lock().unwrap() += 1;
        match transaction(&mut client, server, first, &pool).await {
            Some(server) => give_back(&pool, server),
            None => return, // as a pooler that closes a session whose client is gone; the test keeps its clients
        }
    }
}

/// Carries messages until the server is idle and owes no answer.
async fn transaction(client: &mut Messages, mut server: Messages, first: Vec<u8>, pool: &Pool) -> Option<Messages> {
    let mut owed = 0u32;
    let mut next = Some(first);
    loop {
        while let Some(message) = next.take().or_else(|| client.next(1)) {
            match message[0] {
                b'Q' | b'S' => owed += 1,
                b'P' if message[5] != 0 => pool.violations.lock().unwrap().push("a named statement".into()),
                b'X' => return None,
                _ => {}
            }
            if !server.send(&message).await {
                return None;
            }
        }
        while let Some(message) = server.next(1) {
            if !client.send(&message).await {
                return None;
            }
            if message[0] == b'Z' {
                owed -= 1;
                if owed == 0 && message[5] == b'I' {
                    return Some(server);
                }
            }
        }
        let open = tokio::select! {
            open = server.more() => open,
            open = client.more() => open,
        };
        if !open {
            return None;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_nothing_needs_a_session() {
    let server = OwnServer::start(Flavour::Postgres, &[]).await;
    let database = server.database().await;
    let mut direct = database.session().await;
    let rules = direct.query_text("SHOW hba_file").await;
    std::fs::write(rules, "host all all 127.0.0.1/32 trust\n").unwrap();
    direct.execute("SELECT pg_reload_conf()").await;
    super::until(&mut direct, "SELECT count(*) > 0 FROM pg_hba_file_rules WHERE auth_method = 'trust'").await;
    // The reload has reached the server when it lets somebody in without a password.
    while Session::open(Flavour::Postgres, &database.url_as("outhaul", "wrong")).await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (address, pool) = start(server.address(), database.name()).await;

    let pooled = database.url_at(address);
    for _ in 0..SESSIONS {
        let mut spoiler = Session::open(Flavour::Postgres, &pooled).await.unwrap();
        spoiler
            .execute(
                "SET default_transaction_isolation = 'serializable'; SET TimeZone = 'Asia/Tokyo'; SET statement_timeout = '1h'; \
                 SET enable_indexscan = off; SET extra_float_digits = 0; SET bytea_output = 'escape'; SET DateStyle = 'German'",
            )
            .await;
    }
    let options = StoreOptions::new(pooled);
    let store = outhaul_store::open(options.clone()).await.unwrap();
    let plan = InitPlan { shards: 4, ..InitPlan::default() };
    store.init(&plan).await.unwrap();
    let f = Fixture { options: options.clone(), plan, store, database };
    f.store.inspect().await.unwrap();
    let mut owner = f.owner("one").await;
    for round in 0..5 {
        f.insert(&(0..20).map(|n| AppRow::nth(round * 100 + n)).collect::<Vec<_>>()).await;
        f.store.enqueue(&[NewRow { topic: "t".into(), ..NewRow::default() }]).await.unwrap();
        let (rows, resolved) = tokio::join!(f.read_all(), f.store.resolved(Seq(0)));
        assert_eq!(rows.len(), 21);
        assert!(resolved.unwrap() >= rows[0].seq);
        let age_us = f.database.query_u64("SELECT (extract(epoch FROM now()) * 1000000)::bigint").await as i64
            - rows[20].created_at_us;
        assert!((0..60_000_000).contains(&age_us), "{age_us}");
        owner.move_rows(f.store.as_ref(), &rows).await;
    }
    f.store.status().await.unwrap();
    assert_eq!(f.store.find("m1", None).await.unwrap().len(), 1);
    f.store
        .prune(&PruneRequest {
            owner: "one".into(),
            retention_ms: 0,
            merge_after_ms: Some(0),
            step: 100,
            exported: None,
        })
        .await
        .unwrap();
    assert_eq!(f.store.recover(ShardId(0)).await.unwrap().next_number, 5);

    let inbox = inbox::open(options, 2).await.unwrap();
    inbox.init().await.unwrap();
    inbox.inspect().await.unwrap();
    let message = inbox::InboxMessage {
        id: "a".into(),
        topic: "t".into(),
        key: None,
        headers: None,
        payload: "x".into(),
        position: "0:1".into(),
    };
    assert_eq!(inbox.deliver(0, "c", std::slice::from_ref(&message)).await.unwrap(), [inbox::InboxOutcome::Stored]);
    assert_eq!(inbox.deliver(1, "c", &[message]).await.unwrap(), [inbox::InboxOutcome::Duplicate]);

    assert_eq!(*pool.violations.lock().unwrap(), Vec::<String>::new());
    assert!(*pool.transactions.lock().unwrap() > 20);
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'outhaul'";
    assert_eq!(direct.query_u64(sessions).await, 0, "the store spoke only through the pooler");
}
