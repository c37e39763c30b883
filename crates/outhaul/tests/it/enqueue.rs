//! The row is there if and only if the transaction commits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outhaul::{Event, Outbox};
use outhaul_testkit::servers::Flavour;

use crate::application::{Client, Driver, End, Enqueue, database};
use crate::by_each;

by_each!(a_row_is_there_if_and_only_if_it_commits);

async fn a_row_is_there_if_and_only_if_it_commits(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    let mut client = Client::open(driver, &database).await;
    let outbox = Outbox::new();
    for end in [End::Commit, End::Rollback] {
        for events in [vec![Event::bytes("t", "one")], (0..1_203).map(|n| Event::bytes("t", n.to_string())).collect()] {
            let before = database.query_u64("SELECT count(*) FROM outbox").await;
            let wanted = if end == End::Commit { events.len() as u64 } else { 0 };
            let ids = client.transact(&Enqueue { outbox: &outbox, events: events.clone() }, end).await.unwrap();
            let after = database.query_u64("SELECT count(*) FROM outbox").await;
            assert_eq!((ids.len(), after - before), (events.len(), wanted), "{end:?}");
            assert!(ids.is_sorted(), "ids rise with time");
        }
    }
    // A connection that is dropped in the middle is a rollback.
    let before = database.query_u64("SELECT count(*) FROM outbox").await;
    client.transact(&Enqueue { outbox: &outbox, events: vec![Event::bytes("t", "x")] }, End::Never).await.unwrap();
    drop(client);
    let mut client = Client::open(driver, &database).await;
    client.transact(&Enqueue { outbox: &outbox, events: vec![Event::bytes("t", "y")] }, End::Commit).await.unwrap();
    assert_eq!(database.query_u64("SELECT count(*) FROM outbox").await, before + 1);
    assert_eq!(database.query_u64("SELECT count(*) FROM outbox WHERE available_at IS NOT NULL").await, 0);
}

by_each!(a_prefix_names_other_tables);

async fn a_prefix_names_other_tables(driver: Driver, flavour: Flavour) {
    let database = outhaul_testkit::servers::create(flavour).await;
    let mut options = outhaul_store::StoreOptions::new(database.url.clone());
    options.table_prefix = "shop_".into();
    options.outbox_table = "events".into();
    let store = outhaul_store::open(options).await.unwrap();
    store.init(&outhaul_store::InitPlan::default()).await.unwrap();
    let outbox = Outbox::new().prefix("shop_").table("events");
    let mut client = Client::open(driver, &database).await;
    client.transact(&Enqueue { outbox: &outbox, events: vec![Event::bytes("t", "x")] }, End::Commit).await.unwrap();
    assert_eq!(database.query_u64("SELECT count(*) FROM shop_events").await, 1);
}

by_each!(a_time_is_the_same_moment_in_the_table);

/// Whatever the time zone of the session; a moment that has passed long ago is none.
async fn a_time_is_the_same_moment_in_the_table(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    let mut client = Client::open(driver, &database).await;
    match flavour {
        Flavour::Sqlite => {}
        Flavour::Postgres => client.execute("SET TIME ZONE 'Asia/Kathmandu'").await,
        Flavour::MariaDb | Flavour::MySql => client.execute("SET time_zone = '-11:30', sql_mode = 'ANSI'").await,
    }
    let at = UNIX_EPOCH + Duration::from_micros(1_900_000_000_123_457);
    let events = vec![
        Event::bytes("t", "a").id("a").available_at(at),
        Event::bytes("t", "b").id("b"),
        Event::bytes("t", "c").id("c").available_at(UNIX_EPOCH - Duration::from_secs(1)),
        Event::bytes("t", "d").id("d").available_at(SystemTime::now() - Duration::from_secs(5)),
    ];
    client.transact(&Enqueue { outbox: &Outbox::new(), events }, End::Commit).await.unwrap();
    let micros = match flavour {
        Flavour::Sqlite => "available_at",
        Flavour::Postgres => "CAST(extract(epoch FROM available_at) * 1000000 AS bigint)",
        Flavour::MariaDb | Flavour::MySql => "CAST(UNIX_TIMESTAMP(available_at) * 1000000 AS UNSIGNED)",
    };
    let found = database.query_u64(&format!("SELECT {micros} FROM outbox WHERE topic = 't' ORDER BY seq")).await;
    assert_eq!(found, 1_900_000_000_123_457);
    assert_eq!(database.query_u64("SELECT count(*) FROM outbox WHERE available_at IS NULL").await, 2);
    assert_eq!(database.query_u64("SELECT count(*) FROM outbox WHERE available_at < created_at").await, 1);
}
