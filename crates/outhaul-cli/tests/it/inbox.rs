//! `outhaul inbox`: from a real relay over RocketMQ into a table, and handlers that use the printed statements.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outhaul_testkit::proxy::{Fate, Proxy};
use outhaul_testkit::servers::rocketmq::{OwnRocketMq, Part, RocketMq, topic_name};
use outhaul_testkit::servers::{Flavour, Session, TestDatabase, create, soak};
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Producer, SendOptions, Where};
use rocketmq_remoting::message::{Message, MessageQueue};
use rocketmq_remoting::request::CreateTopic;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::program::{Folder, LIMIT, Running, Scene};

/// How long all effects may take. A soak run has more of them.
fn patience() -> Duration {
    if soak() { Duration::from_secs(540) } else { Duration::from_secs(120) }
}

/// Waits until it is so.
pub async fn eventually(what: &str, limit: Duration, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + limit;
    while !is_so().await {
        assert!(Instant::now() < until, "it never came to pass: {what}");
        sleep(Duration::from_millis(50)).await;
    }
}

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

pub async fn topic_with(namesrv: &str, queues: u16) -> (Client, String) {
    let client = Client::new(ClientOptions::new(namesrv).unwrap());
    let topic = topic_name();
    Admin::new(&client).create_topic(&CreateTopic::new(&topic, queues), &Where::Everywhere).await.unwrap();
    eventually("the topic has a route", LIMIT, async || client.refresh_route(&topic).await.is_ok()).await;
    (client, topic)
}

/// A consumer's database, and a folder with a configuration that reads a topic into it.
pub struct Service {
    pub database: Arc<TestDatabase>,
    pub folder: Folder,
}

impl Service {
    pub async fn new(flavour: Flavour, namesrv: &str, topic: &str, more: &str) -> Self {
        Self::with(create(flavour).await, namesrv, topic, more)
    }

    pub fn with(database: TestDatabase, namesrv: &str, topic: &str, more: &str) -> Self {
        let folder = Folder::new();
        let config = format!(
            "[[inbox]]\nname = \"points\"\nurl = \"{}\"\nnamesrv = [\"{namesrv}\"]\ngroup = \"{}\"\n\
             topics = [\"{topic}\"]\n{more}\n",
            database.url,
            topic_name()
        );
        folder.write("outhaul.toml", &config);
        Self { database: Arc::new(database), folder }
    }

    pub async fn start(&self, health: &str) -> Running {
        let mut running = self.folder.start(&["inbox", "--health-file", health, "--json"], &[]);
        running.says("reading into the inbox").await;
        running
    }

    pub async fn statements(&self) -> Value {
        let page = self.folder.run(&["contract", "--inbox", "points", "--json"], "", &[]).await.expect(0).json();
        let mut all: Vec<Value> = page["sql"].as_object().unwrap().values().cloned().collect();
        assert_eq!(all.len(), 1, "{page}");
        all.remove(0)
    }

    pub async fn count(&self, sql: &str) -> u64 {
        let mut session = match Session::open(self.database.flavour, &self.database.url).await {
            Ok(session) => session,
            Err(_) => return 0,
        };
        let rows = session.try_query(sql).await.unwrap_or_default();
        rows.first().and_then(|row| row[0].as_ref()).and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    pub async fn ids(&self) -> Vec<String> {
        let rows = self.database.query("SELECT id FROM inbox_message ORDER BY seq").await;
        rows.into_iter().map(|row| row[0].clone().unwrap()).collect()
    }

    pub fn health(&self, file: &str) -> Value {
        self.folder.json_lines(file).pop().unwrap_or_default()
    }
}

pub fn statement(sql: &Value, name: &str) -> String {
    let text = sql[name].as_str().unwrap_or_else(|| panic!("no statement {name}: {sql}"));
    text.trim_end_matches(';').to_owned()
}

/// A service's worker: takes messages by the printed statements, fails now and then, and is killed now and then. In one
/// transaction with the effect, or by claims.
struct Handler {
    database: Arc<TestDatabase>,
    sql: Value,
    dice: Dice,
    by_claims: bool,
    stop: Arc<AtomicBool>,
}

impl Handler {
    fn text(&self, name: &str, id: &str, claim: &str) -> String {
        statement(&self.sql, name)
            .replace(":id", &format!("'{id}'"))
            .replace(":claim", &format!("'{claim}'"))
            .replace(":error", "'a random failure'")
    }

    async fn run(mut self) {
        let mut number = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let Ok(mut session) = Session::open(self.database.flavour, &self.database.url).await else { continue };
            // An error of the database, or a kill: the connection is gone with what was open.
            while !self.stop.load(Ordering::Relaxed) {
                number += 1;
                match self.one(&mut session, number).await {
                    Ok(true) => {}
                    Ok(false) => sleep(Duration::from_millis(20)).await,
                    Err(_) => break,
                }
            }
        }
    }

    async fn begin(&self, session: &mut Session) -> Result<(), String> {
        if self.sql["isolation"].is_string() {
            session.try_execute(&statement(&self.sql, "isolation")).await?;
        }
        session.try_execute(&statement(&self.sql, "begin")).await.map(drop)
    }

    /// One message. False: there was none. An error is the end of the session.
    async fn one(&mut self, session: &mut Session, number: u64) -> Result<bool, String> {
        self.begin(session).await?;
        let rows = session.try_query(&statement(&self.sql, "next")).await?;
        let Some(row) = rows.first() else {
            session.try_execute("ROLLBACK").await?;
            return Ok(false);
        };
        let (id, key) = (row[0].clone().unwrap(), row[2].clone().unwrap());
        let claim = format!("{:?}-{number}-{}", std::ptr::from_ref(self), self.dice.0);
        let (mut done, mut failed) = ("done", "failed");
        if self.by_claims {
            (done, failed) = ("done_claimed", "failed_claimed");
            if session.try_execute(&self.text("claim", &id, &claim)).await? != 1 {
                return Err("a claim of a row that is locked changes it".into());
            }
            session.try_execute("COMMIT").await?;
            self.begin(session).await?;
        }
        let effect = format!("INSERT INTO effect (id, msg_key) VALUES ('{id}', '{key}')");
        session.try_execute(&effect).await?;
        match self.dice.below(100) {
            0..3 => {
                session.try_execute("ROLLBACK").await?;
                session.try_execute(&self.text(failed, &id, &claim)).await?;
                return Ok(true);
            }
            // Killed. Its claim would last for a minute: killed before it, then.
            3..6 if !self.by_claims => return Err("killed".into()),
            _ => {}
        }
        if session.try_execute(&self.text(done, &id, &claim)).await? == 1 {
            if self.dice.below(100) < 3 && !self.by_claims {
                return Err("killed".into());
            }
            session.try_execute("COMMIT").await?;
        } else {
            session.try_execute("ROLLBACK").await?;
        }
        Ok(true)
    }
}

async fn effect_table(database: &TestDatabase) {
    let seq = match database.flavour {
        Flavour::Sqlite => "INTEGER PRIMARY KEY AUTOINCREMENT",
        Flavour::MariaDb | Flavour::MySql => "BIGINT AUTO_INCREMENT PRIMARY KEY",
        Flavour::Postgres => "bigserial PRIMARY KEY",
    };
    database.execute(&format!("CREATE TABLE effect (seq {seq}, id varchar(64), msg_key varchar(64))")).await;
}

/// Messages of a relay come into the table while daemons are killed and stopped, and handlers fail and are killed: each
/// effect once, those of a key in order.
async fn effects_happen_once(flavour: Flavour, version: RocketMq, messages: u64) {
    let messages = if soak() { messages * 40 } else { messages };
    let (_client, topic) = topic_with(&version.namesrv(), 8).await;
    let service = Service::new(flavour, &version.namesrv(), &topic, "").await;
    let mut first = service.start("h1").await;
    let second = service.start("h2").await;
    effect_table(&service.database).await;
    let sql = service.statements().await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut handlers = tokio::task::JoinSet::new();
    for (seed, by_claims) in [(1, false), (2, false), (3, true)] {
        let (database, sql, stop) = (Arc::clone(&service.database), sql.clone(), Arc::clone(&stop));
        handlers.spawn(Handler { database, sql, dice: Dice(seed), by_claims, stop }.run());
    }

    let shop = Scene::ready(Flavour::Sqlite).await;
    let keys = messages / 15;
    let line =
        |n: u64| format!("{{\"id\":\"m{n:06}\",\"topic\":\"{topic}\",\"key\":\"k{}\",\"payload\":{n}}}\n", n % keys);
    let to = format!("rocketmq://{}", version.namesrv());
    let relay = ["relay", "--db", shop.url(), "--to", &to, "--until-empty"];
    let half = messages / 2;
    shop.enqueue(&(0..half).map(line).collect::<String>()).await.expect(0);
    shop.run(&relay).await.expect(0);
    let effects = async || service.count("SELECT count(*) FROM effect").await;
    eventually("a third of the effects", patience(), async || effects().await > messages / 3).await;
    first.child.kill().await.unwrap();
    shop.enqueue(&(half..messages).map(line).collect::<String>()).await.expect(0);
    shop.run(&relay).await.expect(0);
    let third = service.start("h3").await;
    eventually("two thirds of the effects", patience(), async || effects().await > messages * 2 / 3).await;
    second.signal("TERM").await;
    let counts = second.end().await.expect(0).json();
    assert!(counts["stored"].as_u64() > Some(0), "{counts}");
    eventually("all effects", patience(), async || effects().await >= messages).await;
    stop.store(true, Ordering::Relaxed);
    handlers.join_all().await;
    third.signal("TERM").await;
    third.end().await.expect(0);

    let rows = service.database.query("SELECT id, msg_key FROM effect ORDER BY seq").await;
    let mut seen: std::collections::HashMap<String, Vec<String>> = std::collections::HashMap::new();
    for row in rows {
        seen.entry(row[1].clone().unwrap()).or_default().push(row[0].clone().unwrap());
    }
    for key in 0..keys {
        let expected: Vec<String> = (0..messages).filter(|n| n % keys == key).map(|n| format!("m{n:06}")).collect();
        assert_eq!(seen.get(&format!("k{key}")), Some(&expected), "each once, in order");
    }
    assert_eq!(service.count("SELECT count(*) FROM inbox_message").await, messages);
    let status = service.folder.run(&["inbox", "--status", "--json"], "", &[]).await.expect(0).json();
    assert_eq!((&status["waiting"], &status["dead"]), (&0.into(), &0.into()), "{status}");
    let read: i64 = status["queues"].as_array().unwrap().iter().map(|q| q["next_offset"].as_i64().unwrap()).sum();
    assert!(read >= i64::try_from(messages).unwrap(), "{status}");
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn effects_happen_once_mariadb_rocketmq_4() {
    effects_happen_once(Flavour::MariaDb, RocketMq::V4, 600).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn effects_happen_once_postgres_rocketmq_5() {
    effects_happen_once(Flavour::Postgres, RocketMq::V5, 600).await;
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn effects_happen_once_mysql_rocketmq_5() {
    effects_happen_once(Flavour::MySql, RocketMq::V5, 300).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effects_happen_once_sqlite_rocketmq_4() {
    effects_happen_once(Flavour::Sqlite, RocketMq::V4, 150).await;
}

pub async fn send(client: &Client, queue: &MessageQueue, message: Message) {
    let producer = Producer::new(client, "outhaul-test").unwrap();
    producer.send(queue, &message, &SendOptions::default()).await.unwrap();
}

pub fn message(topic: &str, properties: &[(&str, &str)]) -> Message {
    let message = Message::new(topic, "payload").unwrap();
    properties.iter().fold(message, |message, (name, value)| match *name {
        "UNIQ_KEY" => message.with_unique_key(value).unwrap(),
        _ => message.with_property(name, value).unwrap(),
    })
}

/// What does not fit is a dead row that holds back its key and nothing else, until it is skipped. A place that an operator
/// sets back is obeyed while the daemon runs, and what is there is not stored again.
async fn what_does_not_fit_is_put_aside(flavour: Flavour) {
    let version = RocketMq::V4;
    let (client, topic) = topic_with(&version.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let long = "x".repeat(80);
    for properties in [
        &[("outhaul-id", "a1"), ("outhaul-key", "a"), ("outhaul-position", "0:7"), ("UNIQ_KEY", "U1")][..],
        &[("outhaul-id", &long), ("outhaul-key", "a"), ("UNIQ_KEY", "U2")],
        &[("outhaul-id", "a3"), ("outhaul-key", "a"), ("UNIQ_KEY", "U3")],
        &[("outhaul-id", "b1"), ("outhaul-key", "b"), ("UNIQ_KEY", "U4"), ("color", "red")],
        &[("UNIQ_KEY", "U5")],
    ] {
        send(&client, &queue, message(&topic, properties)).await;
    }
    let service = Service::new(flavour, &version.namesrv(), &topic, "max_batch = 3").await;
    let daemon = service.start("health").await;
    eventually("all are there", LIMIT, async || service.count("SELECT count(*) FROM inbox_message").await == 5).await;
    let ids = service.ids().await;
    assert_eq!((&ids[0], &ids[2..]), (&"a1".to_owned(), &["a3".into(), "b1".into(), "U5".into()][..]));
    let dead = service.database.query("SELECT last_error, headers FROM inbox_message WHERE dead_at IS NOT NULL").await;
    let (why, headers) = (dead[0][0].clone().unwrap(), dead[0][1].clone().unwrap());
    assert!(dead.len() == 1 && why.starts_with("OUT-5054 ") && why.contains("offset 1"), "{dead:?}");
    assert!(headers.contains(&long), "{headers}");
    let positions = service.database.query("SELECT position FROM inbox_message ORDER BY seq").await;
    assert_eq!((positions[0][0].as_deref(), positions[4][0].as_deref()), (Some("0:7"), Some("0:4")));
    let status = service.folder.run(&["inbox", "--status"], "", &[]).await.expect(3).stdout;
    assert!(status.contains("4 waiting") && status.contains("1 dead"), "{status}");

    let sql = service.statements().await;
    let mut session = service.database.session().await;
    let take_all = async |session: &mut Session| {
        let mut taken = vec![];
        while let Some(row) = session.query(&statement(&sql, "next")).await.first() {
            let id = row[0].clone().unwrap();
            assert_eq!(session.execute(&statement(&sql, "done").replace(":id", &format!("'{id}'"))).await, 1);
            taken.push(id);
        }
        taken
    };
    assert_eq!(take_all(&mut session).await, ["a1", "b1", "U5"], "a3 waits behind the dead one");
    let listed = session.query(&statement(&sql, "dead")).await;
    let id = listed[0][0].clone().unwrap();
    assert_eq!((listed.len(), &id), (1, &ids[1]));
    assert_eq!(session.execute(&statement(&sql, "skip").replace(":id", &format!("'{id}'"))).await, 1);
    assert_eq!(take_all(&mut session).await, ["a3"]);

    session.execute("UPDATE inbox_queue SET next_offset = 0").await;
    send(&client, &queue, message(&topic, &[("outhaul-id", "a4"), ("outhaul-key", "a"), ("UNIQ_KEY", "U6")])).await;
    eventually("it has read again", LIMIT, async || service.health("health")["duplicates"] == 5).await;
    eventually("the new one is there", LIMIT, async || service.ids().await.len() == 6).await;
    assert_eq!(take_all(&mut session).await, ["a4"]);
    session.execute("UPDATE inbox_message SET done_at = NULL WHERE id = 'a4'").await;
    for attempt in 1..=10 {
        session.execute("UPDATE inbox_message SET claimed_until = NULL").await;
        let failed = statement(&sql, "failed").replace(":id", "'a4'").replace(":error", "'no'");
        assert_eq!(session.execute(&failed).await, 1, "{attempt}");
        assert!(session.query(&statement(&sql, "next")).await.is_empty(), "it pauses, or is dead");
    }
    let dead = session.query(&statement(&sql, "dead")).await;
    assert_eq!((dead[0][3].as_deref(), dead[0][4].as_deref()), (Some("10"), Some("no")));
    assert_eq!(session.execute(&statement(&sql, "redrive").replace(":id", "'a4'")).await, 1);
    assert_eq!(take_all(&mut session).await, ["a4"]);
    assert_eq!(session.execute(&statement(&sql, "prune")).await, 0, "nothing is old");
    session
        .execute(&match flavour {
            Flavour::Sqlite => "UPDATE inbox_message SET done_at = 1".to_owned(),
            _ => "UPDATE inbox_message SET done_at = '2020-01-01'".to_owned(),
        })
        .await;
    assert_eq!(session.execute(&statement(&sql, "prune")).await, 6);
    daemon.signal("TERM").await;
    daemon.end().await.expect(0);
}

crate::program::on_every_database!(what_does_not_fit_is_put_aside);

/// While the database is away messages wait at the broker; a COMMIT whose answer is lost is not done twice; nothing is
/// out of order.
async fn a_database_that_goes_away(flavour: Flavour) {
    let version = RocketMq::V5;
    let (client, topic) = topic_with(&version.namesrv(), 1).await;
    let queue = client.route(&topic).await.unwrap().queues()[0].clone();
    let database = create(flavour).await;
    let proxy = Proxy::start(database.address()).await;
    let (folder, group) = (Folder::new(), topic_name());
    let (url, to) = (database.url_at(proxy.address()), format!("rocketmq://{}", version.namesrv()));
    let arguments = ["inbox", "--db", &url, "--to", &to, "--topic", &topic, "--group", &group, "--from", "end"];
    let some = async |from: u32, to: u32| {
        for n in from..to {
            send(&client, &queue, message(&topic, &[("outhaul-id", &format!("m{n:03}")), ("outhaul-key", "k")])).await;
        }
    };
    some(900, 903).await;
    let mut daemon = folder.start(&arguments, &[]);
    daemon.says("begins").await;
    let count = async || database.query_u64("SELECT count(*) FROM inbox_message").await;
    some(0, 20).await;
    eventually("the first are there", LIMIT, async || count().await == 20).await;
    let trap = proxy.trap(flavour.commit_bytes(), Fate::AnswerLost);
    some(20, 40).await;
    trap.sprung().await;
    eventually("the next are there", LIMIT, async || count().await == 40).await;
    proxy.refuse().await;
    proxy.cut_all().await;
    some(40, 60).await;
    daemon.says("will be tried again").await;
    proxy.accept().await;
    eventually("all are there", LIMIT, async || count().await == 60).await;
    daemon.signal("TERM").await;
    let said = daemon.end().await.expect(0).stdout;
    assert!(said.contains("0 duplicates, 0 put aside, 0 lost"), "{said}");
    let rows = database.query("SELECT id FROM inbox_message ORDER BY seq").await;
    let ids: Vec<String> = rows.into_iter().map(|row| row[0].clone().unwrap()).collect();
    assert_eq!(ids, (0..60).map(|n| format!("m{n:03}")).collect::<Vec<_>>());
}

#[cfg(feature = "mysql")]
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_mariadb() {
    a_database_that_goes_away(Flavour::MariaDb).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_postgres() {
    a_database_that_goes_away(Flavour::Postgres).await;
}

/// Three members share eight queues; a broker that is killed comes back; a member that goes leaves its queues to the
/// others.
#[cfg(feature = "postgres")]
async fn members_share_queues_and_brokers_come_back(version: RocketMq) {
    let broker = OwnRocketMq::start(version, &[]).await;
    let (client, topic) = topic_with(broker.namesrv(), 8).await;
    let service = Service::new(Flavour::Postgres, broker.namesrv(), &topic, "").await;
    let count = async || service.count("SELECT count(*) FROM inbox_message").await;
    let some = async |from: u64, to: u64| {
        let producer = Producer::new(&client, "outhaul-test").unwrap();
        let queues = client.route(&topic).await.unwrap().queues().to_vec();
        for n in from..to {
            let queue = &queues[n as usize % queues.len()];
            let message = message(&topic, &[("outhaul-id", &format!("m{n:03}"))]);
            let until = Instant::now() + LIMIT;
            while let Err(e) = producer.send(queue, &message, &SendOptions::default()).await {
                assert!(Instant::now() < until, "{e}");
                sleep(Duration::from_millis(200)).await;
            }
        }
    };
    let shares = |files: &[&str]| -> Vec<u64> {
        let mut shares: Vec<u64> =
            files.iter().map(|file| service.health(file)["queues"].as_u64().unwrap_or_default()).collect();
        shares.sort_unstable();
        shares
    };
    let first = service.start("h1").await;
    eventually("one has all", LIMIT, async || shares(&["h1"]) == [8]).await;
    let (second, third) = (service.start("h2").await, service.start("h3").await);
    eventually("three have their shares", LIMIT, async || shares(&["h1", "h2", "h3"]) == [2, 3, 3]).await;
    some(0, 80).await;
    eventually("all are there", LIMIT, async || count().await == 80).await;
    broker.kill9(&[Part::BrokerA]).await;
    broker.restart(&[Part::BrokerA]).await;
    some(80, 160).await;
    eventually("all are there after the restart", LIMIT * 2, async || count().await >= 160).await;
    eventually("and shared again", LIMIT, async || shares(&["h1", "h2", "h3"]) == [2, 3, 3]).await;
    third.signal("TERM").await;
    third.end().await.expect(0);
    eventually("two share what the third had", LIMIT, async || shares(&["h1", "h2"]) == [4, 4]).await;
    some(160, 176).await;
    eventually("all are there", LIMIT, async || count().await >= 176).await;
    for daemon in [first, second] {
        daemon.signal("TERM").await;
        daemon.end().await.expect(0);
    }
    let mut ids = service.ids().await;
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), count().await), (176, 176));
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn members_share_queues_and_brokers_come_back_4() {
    Box::pin(members_share_queues_and_brokers_come_back(RocketMq::V4)).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn members_share_queues_and_brokers_come_back_5() {
    Box::pin(members_share_queues_and_brokers_come_back(RocketMq::V5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_named() {
    let folder = Folder::new();
    let run = async |arguments: &[&str]| folder.run(arguments, "", &[]).await.expect(2).stderr;
    folder.write("outhaul.toml", "[[outbox]]\nurl = \"sqlite:x.db\"\n");
    assert!(run(&["inbox"]).await.contains("OUT-5058"));
    folder.write("outhaul.toml", "[[inbox]]\nurl = \"sqlite:x.db\"\ngroup = \"g\"\ntopics = [\"t\"]\n");
    let neither = run(&["inbox"]).await;
    assert!(neither.contains("OUT-3004") && neither.contains("namesrv"), "{neither}");
    let keys = "[[inbox]]\nurl = \"sqlite:x.db\"\ngroup = \"g\"\nnamesrv = [\"127.0.0.1:9\"]\n";
    folder.write("outhaul.toml", &format!("{keys}topics = [\"a\", \"a:b\"]\n"));
    let twice = run(&["inbox"]).await;
    assert!(twice.contains("OUT-5051") && twice.contains("twice"), "{twice}");
    folder.write("outhaul.toml", &format!("{keys}topics = [\"a\"]\n"));
    let no_outbox = run(&["relay"]).await;
    assert!(no_outbox.contains("OUT-3007"), "{no_outbox}");
    let no_tables = folder.run(&["inbox", "--status"], "", &[]).await.expect(1).stderr;
    assert!(no_tables.contains("OUT-1007") && no_tables.contains("outhaul init --inbox"), "{no_tables}");
    folder.run(&["init", "--inbox"], "", &[]).await.expect(0);
    let away = folder.run(&["inbox"], "", &[]).await.expect(1).stderr;
    assert!(away.contains("OUT-5050"), "{away}");
    let text = folder.run(&["contract", "--inbox", "inbox"], "", &[]).await.expect(0).stdout;
    for part in ["Topics: a", "UNIQ_KEY", "-- SQLite", "-- done_claimed", "BEGIN IMMEDIATE"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
