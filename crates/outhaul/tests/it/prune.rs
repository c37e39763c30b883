//! Pruning goes in steps, by age, and not into the replay window.

use std::time::Duration;

use outhaul::Inbox;
use outhaul_testkit::servers::Flavour;

use crate::application::{Client, Driver, End, Prune, database};
use crate::by_each;

by_each!(what_is_old_goes_in_steps);

async fn what_is_old_goes_in_steps(driver: Driver, flavour: Flavour) {
    const DAY: Duration = Duration::from_secs(86_400);
    let database = database(flavour).await;
    let old = match flavour {
        Flavour::Sqlite => "(CAST(strftime('%s', 'now') AS INTEGER) - 864000) * 1000000",
        Flavour::Postgres => "now() - interval '10 days'",
        Flavour::MariaDb | Flavour::MySql => "now() - INTERVAL 10 DAY",
    };
    // Every third is old; another consumer's rows are all old.
    let values: Vec<String> = (0..1_600)
        .map(|n| if n % 3 == 0 { format!("('c', 'i{n:04}', {old})") } else { format!("('c', 'i{n:04}', DEFAULT)") })
        .chain((0..3).map(|n| format!("('d', 'i{n}', {old})")))
        .collect();
    let insert = "INSERT INTO inbox (consumer, id, processed_at) VALUES ";
    let values: Vec<String> = match flavour {
        // SQLite knows no DEFAULT among values.
        Flavour::Sqlite => {
            values.iter().map(|v| v.replace("DEFAULT", "CAST(strftime('%s', 'now') AS INTEGER) * 1000000")).collect()
        }
        _ => values,
    };
    database.execute(&format!("{insert}{}", values.join(", "))).await;
    let mut client = Client::open(driver, &database).await;
    let inbox = Inbox::new();
    let young = Prune { inbox: &inbox, consumer: "c", older_than: DAY, from: None };
    assert_eq!(client.transact(&young, End::Commit).await.unwrap_err().code(), "OUT-5010");
    let (mut steps, mut deleted, mut from) = (0, 0, None::<String>);
    loop {
        let work = Prune { inbox: &inbox, consumer: "c", older_than: 8 * DAY, from: from.as_deref() };
        let step = client.transact(&work, End::Commit).await.unwrap();
        assert!(step.deleted <= 500, "a small step");
        (steps, deleted) = (steps + 1, deleted + step.deleted);
        match step.next {
            Some(next) => from = Some(next),
            None => break,
        }
    }
    assert_eq!((steps, deleted), (4, 534));
    assert_eq!(database.query_u64("SELECT count(*) FROM inbox WHERE consumer = 'c'").await, 1_600 - 534);
    assert_eq!(database.query_u64("SELECT count(*) FROM inbox WHERE consumer = 'd'").await, 3);
    let narrow = Inbox::new().replay_window(Duration::ZERO);
    let work = Prune { inbox: &narrow, consumer: "d", older_than: DAY, from: None };
    assert_eq!(client.transact(&work, End::Commit).await.unwrap().deleted, 3);
}
