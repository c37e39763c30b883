//! The relay inside of the application.

use std::path::PathBuf;
use std::time::Duration;

use outhaul::relay::{Relay, Settings, StoreOptions};
use outhaul::{Event, Outbox};
use outhaul_testkit::servers::{self, Flavour, TestDatabase};
use serde_json::json;

use crate::application::{Client, Driver, End, Enqueue, LIMIT};
use crate::by_each;

by_each!(what_is_enqueued_is_delivered_once: rusqlite => (Rusqlite, Sqlite), mysql_async => (MysqlAsync, MariaDb),
    sqlx_postgres => (Sqlx, Postgres));

/// Over clean stops and starts; and one that is dropped drains too.
async fn what_is_enqueued_is_delivered_once(driver: Driver, flavour: Flavour) {
    let database = servers::create(flavour).await;
    outhaul::relay::make_tables(StoreOptions::new(&database.url)).await.unwrap();
    let file = std::env::temp_dir().join(format!("outhaul-{}.jsonl", database.name().replace('/', "_")));
    let mut client = Client::open(driver, &database).await;
    let mut count = 0;
    for round in 0..3 {
        let relay = relay(&database, &file).start().await.unwrap();
        for _ in 0..5 {
            let events = (0..20).map(|n| Event::bytes("order-created", (count + n).to_string()).key("k")).collect();
            client.transact(&Enqueue { outbox: &Outbox::new(), events }, End::Commit).await.unwrap();
            count += 20;
        }
        wait_for_lines(&file, count).await;
        assert!(!relay.has_ended());
        if round == 1 { drop(relay) } else { relay.stop().await.unwrap() }
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let payloads: Vec<usize> = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["payload"].as_u64().unwrap() as usize)
        .collect();
    assert_eq!(payloads, (0..count).collect::<Vec<_>>(), "in order, and none twice");
    std::fs::remove_file(&file).unwrap();
}

fn relay(database: &TestDatabase, file: &PathBuf) -> Relay {
    let settings = Settings { lease_ttl_ms: 35_000, ..Settings::default() };
    Relay::new(&database.url)
        .destination("trail", "file", json!({ "path": file }))
        .route("order-*", ["trail"])
        .settings(settings)
        .instance("shop")
}

async fn wait_for_lines(file: &PathBuf, count: usize) {
    let waiting = async {
        while std::fs::read_to_string(file).map_or(0, |text| text.lines().count()) < count {
            tokio::time::sleep(Duration::from_millis(20)).await; // A file has no signal.
        }
    };
    tokio::time::timeout(LIMIT, waiting).await.expect("all lines arrive");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_run_is_refused_at_the_start() {
    let database = servers::create(Flavour::Sqlite).await;
    let code = async |relay: Relay| relay.start().await.map(|_| ()).unwrap_err().code();
    let new = || Relay::new(&database.url);
    assert_eq!(code(new().route("*", ["nowhere"])).await, "OUT-5011");
    let path = json!({ "path": "x" });
    let twice = new().destination("a", "file", path.clone()).destination("a", "file", path);
    assert_eq!(code(twice).await, "OUT-5011");
    assert_eq!(code(new().destination("a", "file", json!({ "pth": "x" }))).await, "OUT-2003");
    assert_eq!(code(new().destination("a", "kafka", json!({}))).await, "OUT-2001");
    assert_eq!(code(Relay::new("what")).await, "OUT-1013");
    // Without tables it starts, and ends.
    let relay = new().start().await.unwrap();
    let ended = async {
        while !relay.has_ended() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, ended).await.expect("it ends by itself");
    assert_eq!(relay.stop().await.unwrap_err().code(), "OUT-1007");
}
