//! Sessions of MySQL and MariaDB that are set up strangely.

use std::time::{Duration, UNIX_EPOCH};

use outhaul::{Error, Event, Inbox, Once, Outbox, Transaction};
use outhaul_store::InitPlan;
use outhaul_testkit::servers::{Flavour, OwnServer};

use crate::application::{Apply, Client, Driver, EFFECTS, End, Enqueue, Work, database, make_tables};
use crate::by_each;

by_each!(strange_modes_change_nothing: sqlx_mariadb => (Sqlx, MariaDb), sqlx_mysql => (Sqlx, MySql),
    mysql_async_mariadb => (MysqlAsync, MariaDb), mysql_async_mysql => (MysqlAsync, MySql));

/// No sql_mode, no character set and no isolation of the session changes what is written, or what the inbox decides.
async fn strange_modes_change_nothing(driver: Driver, flavour: Flavour) {
    let database = database(flavour).await;
    database.execute(EFFECTS).await;
    let texts = ["\u{1f4e6}\\'\"`", "e\u{301} \u{e9}"];
    let setups = [
        "SET sql_mode = ''",
        "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,PAD_CHAR_TO_FULL_LENGTH'",
        "SET sql_mode = 'TRADITIONAL', time_zone = '+13:00', div_precision_increment = 0",
        "SET NAMES latin1",
        "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
        "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    ];
    let mut expected = Vec::new();
    for (n, setup) in setups.iter().enumerate() {
        let mut client = Client::open(driver, &database).await;
        client.execute(setup).await;
        for text in texts {
            let id = format!("{n}{text}");
            let event = Event::bytes(text, text).id(&id).key(text).header(text, text).available_at(UNIX_EPOCH);
            client.transact(&Enqueue { outbox: &Outbox::new(), events: vec![event] }, End::Commit).await.unwrap();
            let apply = Apply { inbox: &Inbox::new(), consumer: text, id: &id, result: 1 };
            assert_eq!(client.transact(&apply, End::Commit).await.unwrap(), Once::First(1), "{setup}");
            assert_eq!(client.transact(&apply, End::Commit).await.unwrap(), Once::Seen(Some(1)), "{setup}");
            let kept = client.transact(&Keeps { id: &id, text }, End::Rollback).await.unwrap();
            assert_eq!(kept, Some(text.to_owned()), "{setup}");
            expected.push((id, text));
        }
    }
    assert_eq!(database.query_u64("SELECT count(*) FROM effect").await, expected.len() as u64);
    for (message, (id, text)) in crate::delivery::delivered(&database.url, expected.len()).await.iter().zip(expected) {
        assert_eq!((message.id.as_str(), message.topic.as_str(), message.key.as_deref()), (&*id, text, Some(text)));
        assert_eq!((&message.payload[..], message.header_pairs()), (text.as_bytes(), vec![(text.into(), text.into())]));
    }
}

/// Keeps a text and reads it.
struct Keeps<'a> {
    id: &'a str,
    text: &'a str,
}

impl Work for Keeps<'_> {
    type Output = Option<String>;

    async fn run<T: Transaction>(&self, tx: &mut T) -> Result<Option<String>, Error> {
        let inbox = Inbox::new();
        assert!(inbox.first(tx, "keeps", self.id).await?);
        inbox.keep(tx, "keeps", self.id, &self.text).await?;
        inbox.kept(tx, "keeps", self.id).await
    }

    fn run_blocking(&self, _: &rusqlite::Connection) -> Result<Option<String>, Error> {
        unreachable!("sessions of MySQL")
    }
}

/// A server with small packets: what the relay would park is refused before. And a session in a time zone with a repeated
/// hour: an event of that hour is never due before its time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_packets_and_a_repeated_hour() {
    let server = OwnServer::start(Flavour::MariaDb, &["max_allowed_packet=2M"]).await;
    let database = server.database().await;
    make_tables(&database.url, &InitPlan::default()).await;
    let mut client = Client::open(Driver::MysqlAsync, &database).await;
    let outbox = Outbox::new();
    let limit = ((2 << 20) - 64) / 16 * 13;
    let of = |bytes: usize| vec![Event::bytes("t", vec![7; bytes]).id("large")];
    client.transact(&Enqueue { outbox: &outbox, events: of(limit) }, End::Commit).await.unwrap();
    let refused = client.transact(&Enqueue { outbox: &outbox, events: of(limit + 1) }, End::Commit).await;
    assert_eq!(refused.unwrap_err().code(), "OUT-5002");
    let headers = vec![Event::bytes("t", "x").header("h", "v".repeat(((2 << 20) - 64) / 8))];
    let refused = client.transact(&Enqueue { outbox: &outbox, events: headers }, End::Commit).await;
    assert_eq!(refused.unwrap_err().code(), "OUT-5002");
    assert_eq!(crate::delivery::delivered(&database.url, 1).await.len(), 1);

    // Summer time until 2026-10-25 01:00 UTC, then an hour less: 02:00 to 03:00 comes twice.
    const BACK: u64 = 1_792_890_000;
    database
        .execute(&format!(
            "INSERT INTO mysql.time_zone (Time_zone_id) VALUES (7001);
             INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES ('Test/Autumn', 7001);
             INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation)
               VALUES (7001, 0, 3600, 0, 'W'), (7001, 1, 7200, 1, 'S');
             INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id)
               VALUES (7001, {}, 1), (7001, {BACK}, 0)",
            BACK - 86_400 * 200
        ))
        .await;
    client.execute("SET time_zone = 'Test/Autumn'").await;
    let times: Vec<u64> = (0..24).map(|n| BACK - 7_200 + n * 600).collect();
    let events = times
        .iter()
        .map(|at| Event::bytes("t", "x").id(at.to_string()).available_at(UNIX_EPOCH + Duration::from_secs(*at)))
        .collect();
    client.transact(&Enqueue { outbox: &outbox, events }, End::Commit).await.unwrap();
    let rows = database.query("SELECT id, CAST(UNIX_TIMESTAMP(available_at) AS SIGNED) FROM outbox ORDER BY seq").await;
    let mut late = 0;
    for (at, row) in times.iter().zip(&rows) {
        let found: u64 = row[1].as_ref().unwrap().parse().unwrap();
        assert_eq!(row[0].as_ref().unwrap(), &at.to_string());
        assert!(found >= *at && found <= at + 3_600, "{at} became {found}");
        late += usize::from(found > *at);
    }
    assert!(late <= 6, "only in the hour that comes twice: {late}");
    assert_eq!(rows.len(), times.len());
}
