//! Scheduled messages beside what stops relays, what cancels them, and clocks of three time zones (S8).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outhaul_testkit::servers::{Flavour, Session};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::program::{Running, Scene, on_every_database};
use crate::writers::lines_reach;

on_every_database!(
    s8_each_comes_once_and_on_time_whoever_runs,
    s8_killed_relays_deliver_none_early_and_lose_none,
    s8_who_deletes_in_time_is_obeyed,
    s8_owners_side_by_side_keep_the_order,
    s8_what_lies_very_far_waits_and_disturbs_nothing,
);

const MS_US: i64 = 1_000;
/// Time zones of an application's session, of a relay, and of its successor.
const OFFSETS: [&str; 3] = ["+05:45", "-09:30", "+13:00"];
const ZONES: [&str; 3] = ["Asia/Kathmandu", "Pacific/Marquesas", "Pacific/Tongatapu"];

/// The clock of this machine, which is the database's too.
#[allow(clippy::disallowed_methods)]
fn now_us() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// A moment as an application writes it, to the millisecond.
fn moment(flavour: Flavour, at_us: i64) -> String {
    let seconds = format!("{}.{:03}", at_us / 1_000_000, at_us / MS_US % 1_000);
    match flavour {
        Flavour::Sqlite => format!("strftime('%Y-%m-%d %H:%M:%f', {seconds}, 'unixepoch')"),
        Flavour::Postgres => format!("to_timestamp({seconds})"),
        Flavour::MariaDb | Flavour::MySql => format!("FROM_UNIXTIME({seconds})"),
    }
}

/// Ids of this schedule by key, each with when it is due.
#[derive(Clone, Default)]
struct Plan(Vec<(String, String, i64)>);

impl Plan {
    /// `count` messages of seven keys, the first due at a time and then one every `every_ms`.
    fn new(count: usize, first_us: i64, every_ms: i64) -> Self {
        let one = |n| {
            let due_us = (first_us + i64::try_from(n).unwrap() * every_ms * MS_US) / MS_US * MS_US;
            (format!("s{n}"), format!("k{}", n % 7), due_us)
        };
        Self((0..count).map(one).collect())
    }

    fn due_us(&self, id: &str) -> i64 {
        self.0.iter().find(|(of, ..)| of == id).unwrap_or_else(|| panic!("{id} was never written")).2
    }

    fn ids(&self) -> BTreeSet<&str> {
        self.0.iter().map(|(id, ..)| id.as_str()).collect()
    }
}

/// When each line of a file was first seen.
struct Watch {
    seen: Arc<Mutex<Vec<(String, i64)>>>,
    task: JoinHandle<()>,
}

impl Watch {
    fn start(file: PathBuf) -> Self {
        let seen = Arc::<Mutex<Vec<(String, i64)>>>::default();
        let to = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                let text = tokio::fs::read_to_string(&file).await.unwrap_or_default();
                let at_us = now_us();
                let known = to.lock().unwrap().len();
                let whole = text.rfind('\n').map_or("", |end| &text[..end]);
                for line in whole.lines().skip(known) {
                    let line: Value = serde_json::from_str(line).unwrap();
                    to.lock().unwrap().push((line["id"].as_str().unwrap().to_owned(), at_us));
                }
                tokio::time::sleep(Duration::from_millis(10)).await; // a file gives no signal
            }
        });
        Self { seen, task }
    }

    /// Ids in the order in which they came, once it is certain that none came early.
    fn end(self, plan: &Plan) -> Vec<String> {
        self.task.abort();
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        let mut late_us = 0;
        let mut first = HashMap::new();
        for (id, at_us) in &seen {
            let due_us = plan.due_us(id);
            assert!(*at_us >= due_us, "{id} came {} us early", due_us - at_us);
            first.entry(id.clone()).or_insert(at_us - due_us);
        }
        for (_, by_us) in first {
            late_us = late_us.max(by_us);
        }
        println!("{} came, none early, the latest {} ms after it was due", seen.len(), late_us / MS_US);
        seen.into_iter().map(|(id, _)| id).collect()
    }
}

impl Scene {
    async fn with_shards(flavour: Flavour) -> Self {
        let scene = Self::new(flavour).await;
        let shards = if flavour == Flavour::Sqlite { "1" } else { "4" };
        scene.run(&["init", "--db", scene.url(), "--shards", shards]).await.expect(0);
        scene
    }

    async fn relay_in(&self, zone: &str) -> Running {
        let to = format!("file:{}", self.folder.path("out.jsonl").display());
        let mut relay = self.folder.start(&["relay", "--db", self.url(), "--to", &to], &[("TZ", zone)]);
        relay.says("database is ready").await;
        relay
    }

    async fn in_zone(&self, offset: &str) -> Session {
        let flavour = self.database.flavour;
        let mut session = self.database.session().await;
        match flavour {
            Flavour::Sqlite => {}
            // Of POSIX, where the sign means the opposite.
            Flavour::Postgres => {
                _ = session.execute(&format!("SET TIME ZONE INTERVAL '{offset}' HOUR TO MINUTE")).await
            }
            Flavour::MariaDb | Flavour::MySql => {
                session.execute(&format!("SET time_zone = '{offset}'")).await;
            }
        }
        session
    }

    /// Writes a plan, each third of it in a session of another time zone.
    async fn write(&self, plan: impl Iterator<Item = &(String, String, i64)>) {
        let mut sessions = vec![];
        for offset in OFFSETS {
            sessions.push(self.in_zone(offset).await);
        }
        for (n, (id, key, due_us)) in plan.enumerate() {
            let at = moment(self.database.flavour, *due_us);
            let insert = format!(
                "INSERT INTO outbox (id, topic, msg_key, payload, available_at) VALUES ('{id}', 't', '{key}', '1', {at})"
            );
            // SQLite has one writer at a time, and it may be a relay.
            while let Err(busy) = sessions[n % 3].try_execute(&insert).await {
                assert!(self.database.flavour == Flavour::Sqlite, "{busy}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

/// Where a row is, if it has not gone already.
async fn seq_of(session: &mut Session, id: &str) -> Option<u64> {
    let rows = session.query(&format!("SELECT seq FROM outbox WHERE id = '{id}'")).await;
    rows.first().map(|row| row[0].as_deref().unwrap().parse().unwrap())
}

async fn terminated(relay: Running) {
    relay.signal("TERM").await;
    relay.end().await.expect(0);
}

async fn killed(relay: Running) {
    relay.signal("KILL").await;
    relay.end().await;
}

/// The ids of each key came in the order in which they are due.
#[track_caller]
fn in_order(came: &[String], plan: &Plan) {
    let mut last = BTreeMap::<&str, i64>::new();
    let mut seen = BTreeSet::new();
    for id in came.iter().filter(|id| seen.insert(id.as_str())) {
        let (_, key, due_us) = plan.0.iter().find(|(of, ..)| of == id).unwrap();
        let before = last.insert(key, *due_us);
        assert!(before.is_none_or(|b| b <= *due_us), "{id} of {key} came after one that is due later: {came:?}");
    }
}

async fn s8_each_comes_once_and_on_time_whoever_runs(flavour: Flavour) {
    let scene = Scene::with_shards(flavour).await;
    let file = scene.folder.path("out.jsonl");
    let watch = Watch::start(file.clone());
    let one = scene.relay_in(ZONES[0]).await;
    let two = scene.relay_in(ZONES[1]).await;
    let plan = Plan::new(60, now_us() + 2_000 * MS_US, 75);
    // What is due last is written first.
    scene.write(plan.0.iter().rev()).await;
    lines_reach(&file, 10).await;
    terminated(one).await;
    lines_reach(&file, 20).await;
    let one = scene.relay_in(ZONES[2]).await;
    lines_reach(&file, 30).await;
    terminated(two).await;
    terminated(one).await;
    // Some become due while nobody runs.
    let alone_until_us = plan.due_us("s40");
    while now_us() < alone_until_us {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let last = scene.relay_in(ZONES[1]).await;
    lines_reach(&file, plan.0.len()).await;
    terminated(last).await;
    assert!(scene.deliver("out.jsonl").await.len() == plan.0.len(), "nothing is left over");
    tokio::time::sleep(Duration::from_millis(50)).await; // the watch sees the end of the file
    let came = watch.end(&plan);
    assert_eq!(came.len(), plan.0.len(), "each came once: {came:?}");
    assert_eq!(came.iter().map(String::as_str).collect::<BTreeSet<_>>(), plan.ids());
    in_order(&came, &plan);
}

/// What one owner locks to take it up is not in the way of another: a row that is passed over comes after later ones.
async fn s8_owners_side_by_side_keep_the_order(flavour: Flavour) {
    let scene = Scene::with_shards(flavour).await;
    let file = scene.folder.path("out.jsonl");
    let watch = Watch::start(file.clone());
    let relays = [scene.relay_in(ZONES[0]).await, scene.relay_in(ZONES[1]).await, scene.relay_in(ZONES[2]).await];
    let plan = Plan::new(500, now_us() + 4_000 * MS_US, 8);
    // At once: what is written after it was due may come before.
    let row = |(id, key, due_us): &(String, String, i64)| {
        format!("('{id}', 't', '{key}', '1', {})", moment(flavour, *due_us))
    };
    let rows: Vec<String> = plan.0.iter().map(row).collect();
    let insert = "INSERT INTO outbox (id, topic, msg_key, payload, available_at) VALUES";
    scene.database.execute(&format!("{insert} {}", rows.join(", "))).await;
    lines_reach(&file, plan.0.len()).await;
    for relay in relays {
        terminated(relay).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await; // the watch sees the end of the file
    let came = watch.end(&plan);
    assert_eq!(came.len(), plan.0.len(), "each came once");
    in_order(&came, &plan);
}

async fn s8_killed_relays_deliver_none_early_and_lose_none(flavour: Flavour) {
    let scene = Scene::with_shards(flavour).await;
    let file = scene.folder.path("out.jsonl");
    let watch = Watch::start(file.clone());
    let one = scene.relay_in(ZONES[0]).await;
    let two = scene.relay_in(ZONES[1]).await;
    let plan = Plan::new(40, now_us() + 1_500 * MS_US, 75);
    scene.write(plan.0.iter()).await;
    lines_reach(&file, 10).await;
    killed(one).await;
    lines_reach(&file, 15).await;
    killed(two).await;
    // From the file itself: the watch may not have seen yet what came with the kill.
    let before_kill: BTreeSet<String> =
        scene.folder.json_lines("out.jsonl").iter().map(|line| line["id"].as_str().unwrap().to_owned()).collect();
    let last = scene.relay_in(ZONES[2]).await;
    let seen = || {
        let seen = watch.seen.lock().unwrap();
        (seen.len(), seen.iter().map(|(id, _)| id.clone()).collect::<BTreeSet<_>>().len())
    };
    while let (lines, ids) = seen()
        && ids < plan.0.len()
    {
        lines_reach(&file, lines + 1).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    terminated(last).await;
    tokio::time::sleep(Duration::from_millis(50)).await; // the watch sees the end of the file
    let came = watch.end(&plan);
    assert_eq!(came.iter().map(String::as_str).collect::<BTreeSet<_>>(), plan.ids());
    let mut once = BTreeSet::new();
    let twice: Vec<&String> = came.iter().filter(|id| !once.insert(id.as_str())).collect();
    println!("{} came twice", twice.len());
    assert!(twice.iter().all(|id| before_kill.contains(*id)), "only what came before a kill may come again: {twice:?}");
    in_order(&came, &plan);
}

async fn s8_who_deletes_in_time_is_obeyed(flavour: Flavour) {
    let scene = Scene::with_shards(flavour).await;
    let file = scene.folder.path("out.jsonl");
    let watch = Watch::start(file.clone());
    let relays = [scene.relay_in(ZONES[0]).await, scene.relay_in(ZONES[1]).await];
    let mut sessions = vec![];
    for _ in 0..8 {
        sessions.push(scene.database.session().await);
    }
    let mut plan = Plan::new(60, now_us() + 2_500 * MS_US, 60);
    scene.write(plan.0.iter()).await;
    let now = if flavour == Flavour::Sqlite { "strftime('%Y-%m-%d %H:%M:%f', 'now')" } else { "CURRENT_TIMESTAMP(6)" };
    // One of them is put off, two are withdrawn by commands, the others by a DELETE about when they become due.
    let later_us = plan.due_us("s59") + 1_500 * MS_US;
    let seq = seq_of(&mut sessions[0], "s58").await.expect("it waits");
    let later = moment(flavour, later_us);
    let put_off = format!("UPDATE outbox SET available_at = {later} WHERE seq = {seq} AND available_at > {now}");
    assert_eq!(scene.database.execute(&put_off).await, 1, "there was time left");
    plan.0[58].2 = later_us / MS_US * MS_US;
    let mut gone = BTreeSet::new();
    for id in ["s56", "s57"] {
        scene.run(&["cancel", id, "--db", scene.url(), "--why", "withdrawn"]).await.expect(0);
        gone.insert(id.to_owned());
    }
    let mut deleting = vec![];
    for (off_ms, mut session) in [-400, -60, -20, -5, 0, 5, 20, 300].into_iter().zip(sessions) {
        let mine = plan.0[..56].iter().skip(deleting.len()).step_by(8).map(|(id, _, due_us)| (id.clone(), *due_us));
        let mine: Vec<(String, i64)> = mine.collect();
        deleting.push(tokio::spawn(async move {
            let mut deleted = vec![];
            for (id, due_us) in mine {
                let seq = seq_of(&mut session, &id).await;
                let wait_us = due_us + off_ms * MS_US - now_us();
                tokio::time::sleep(Duration::from_micros(u64::try_from(wait_us).unwrap_or(0))).await;
                // A transaction of a relay may be in the way: an application tries again.
                let delete = format!("DELETE FROM outbox WHERE seq = {} AND available_at > {now}", seq.unwrap_or(0));
                let mut rows = session.try_execute(&delete).await;
                for _ in 0..1_000 {
                    if rows.is_ok() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    rows = session.try_execute(&delete).await;
                }
                let rows = rows.unwrap();
                deleted.extend((rows == 1).then_some(id));
            }
            deleted
        }));
    }
    for deleted in deleting {
        gone.extend(deleted.await.unwrap());
    }
    lines_reach(&file, plan.0.len() - gone.len()).await;
    for relay in relays {
        terminated(relay).await;
    }
    assert_eq!(scene.deliver("out.jsonl").await.len(), plan.0.len() - gone.len(), "nothing is left over");
    tokio::time::sleep(Duration::from_millis(50)).await; // the watch sees the end of the file
    let came = watch.end(&plan);
    let delivered: BTreeSet<&str> = came.iter().map(String::as_str).collect();
    let kept: BTreeSet<&str> = plan.ids().into_iter().filter(|id| !gone.contains(*id)).collect();
    println!("{} withdrawn, {} delivered", gone.len(), delivered.len());
    assert_eq!(delivered, kept, "what was deleted never comes, everything else does");
    assert_eq!(came.len(), delivered.len(), "each came once: {came:?}");
    assert!(gone.len() > 2 && kept.len() > 2, "the race goes both ways");
}

async fn s8_what_lies_very_far_waits_and_disturbs_nothing(flavour: Flavour) {
    let scene = Scene::with_shards(flavour).await;
    let db = scene.url();
    let far: &[(&str, &str)] = match flavour {
        Flavour::Sqlite => &[("'9999-12-31 23:59:59.999'", "9999-12-31T23:59:59"), ("9223372036854775807", "")],
        Flavour::Postgres => {
            &[("'9999-12-31 23:59:59+05:45'", "9999-12-31T18:14:59"), ("'infinity'", ""), ("'294276-01-01'", "")]
        }
        Flavour::MariaDb | Flavour::MySql => &[("'2038-01-19 03:14:07'", "2038-01-19T03:14:07")],
    };
    let mut session = scene.in_zone("+00:00").await;
    for (n, (at, _)) in far.iter().enumerate() {
        let values = format!("('far{n}', 't', 'k', '1', {at})");
        session
            .execute(&format!("INSERT INTO outbox (id, topic, msg_key, payload, available_at) VALUES {values}"))
            .await;
    }
    let lines: String =
        (0..5).map(|n| format!("{{\"id\":\"now{n}\",\"topic\":\"t\",\"key\":\"k\",\"payload\":1}}\n")).collect();
    scene.enqueue(&lines).await.expect(0);
    let file = scene.folder.path("out.jsonl");
    let relay = scene.relay_in(ZONES[2]).await;
    lines_reach(&file, 5).await;
    let soon = Plan::new(1, now_us() + 1_000 * MS_US, 0);
    scene.write(soon.0.iter()).await;
    lines_reach(&file, 6).await;
    for (n, (_, shown)) in far.iter().enumerate() {
        let audit = scene.run(&["audit", &format!("far{n}"), "--db", db]).await;
        assert!(audit.stdout.contains(shown), "{shown}: {audit:?}");
        let why = ["--why", "it never comes"];
        scene.run(&["cancel", &format!("far{n}"), "--db", db, why[0], why[1]]).await.expect(0);
    }
    terminated(relay).await;
    let status = scene.run(&["status", "--db", db, "--json"]).await.expect(0).json();
    let scheduled: Vec<&Value> =
        status["outboxes"][0]["shards"].as_array().unwrap().iter().map(|shard| &shard["scheduled_rows"]).collect();
    assert!(scheduled.iter().all(|rows| **rows == json!(0)), "{status}");
    assert_eq!(scene.deliver("out.jsonl").await.len(), 6);
}
