//! What holds `resolved` back, and what does not.

use outhaul_core::message::Seq;
use outhaul_store::InitPlan;
use outhaul_testkit::servers::{Flavour, OwnServer};
use outhaul_testkit::store_suite::{AppRow, Fixture};

use super::until;

async fn fixture() -> Fixture {
    Fixture::new(Flavour::Postgres).await
}

async fn resolved(f: &Fixture) -> u64 {
    f.store.resolved(Seq(0)).await.expect("resolved").0
}

#[tokio::test]
async fn a_number_given_inside_a_running_insert_is_open() {
    let f = fixture().await;
    f.insert_series(0..2).await;
    assert_eq!(resolved(&f).await, 2);
    let mut gate = f.database.session().await;
    gate.execute("SELECT pg_advisory_lock(7)").await;
    let mut app = f.database.session().await;
    // The numbers of the columns are made from left to right: seq first, then the payload waits for the gate.
    let insert = "INSERT INTO outbox (topic, payload) VALUES ('t', (SELECT ''::bytea FROM pg_advisory_lock(7)))";
    let running = tokio::spawn(async move { app.execute(insert).await });
    until(&mut gate, "SELECT last_value = 3 FROM outbox_seq_seq").await;
    f.insert_series(2..5).await;
    for _ in 0..3 {
        assert_eq!(resolved(&f).await, 2, "3 is inside a statement that runs");
    }
    gate.execute("SELECT pg_advisory_unlock(7)").await;
    running.await.unwrap();
    assert_eq!(resolved(&f).await, 6);
    assert_eq!(f.read_all().await.len(), 6);
}

#[tokio::test]
async fn a_transaction_that_never_touched_the_outbox_holds_nothing_back() {
    let f = fixture().await;
    f.database.execute("CREATE TABLE orders (n int)").await;
    let mut foreign = f.database.session().await;
    foreign
        .execute("BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO orders VALUES (1); SELECT count(*) FROM outbox")
        .await;
    f.insert_series(0..3).await;
    assert_eq!(resolved(&f).await, 3);
    // Nor does the table of the same name in another schema.
    f.database.execute("CREATE SCHEMA other; CREATE TABLE other.outbox (n int)").await;
    foreign.execute("INSERT INTO other.outbox VALUES (1)").await;
    f.insert_series(3..5).await;
    assert_eq!(resolved(&f).await, 5);
}

#[tokio::test]
async fn gaps_of_rollbacks_are_resolved() {
    let f = fixture().await;
    let mut session = f.database.session().await;
    session.execute(&format!("BEGIN; {}; ROLLBACK", f.insert_sql(&[AppRow::nth(0), AppRow::nth(1)]))).await;
    assert_eq!(resolved(&f).await, 2);
    session.execute(&format!("BEGIN; SAVEPOINT a; {}; ROLLBACK TO a", f.insert_sql(&[AppRow::nth(2)]))).await;
    f.insert_series([3]).await;
    assert_eq!(resolved(&f).await, 4, "what was rolled back to a savepoint holds no lock any more");
}

#[tokio::test]
async fn one_long_transaction_holds_back_only_what_is_above_it() {
    let f = fixture().await;
    f.insert_series(0..5).await;
    let mut long = f.database.session().await;
    long.execute(&format!("BEGIN; {}", f.insert_sql(&[AppRow::nth(5)]))).await;
    // The mark that was read before it began is not held back by it, though it holds the lock by now.
    f.insert_series(6..9).await;
    assert!(resolved(&f).await < 6);
    f.insert_series(9..12).await;
    assert!(resolved(&f).await < 6);
    long.execute("COMMIT").await;
    let mut short = f.database.session().await;
    short.execute(&format!("BEGIN; {}", f.insert_sql(&[AppRow::nth(12)]))).await;
    let now = resolved(&f).await;
    assert!((9..13).contains(&now), "{now}: the long one is gone, the short one came after its mark");
}

#[tokio::test]
async fn a_prepared_transaction_is_open_until_it_ends() {
    let server = OwnServer::start(Flavour::Postgres, &["max_prepared_transactions=5"]).await;
    let database = server.database().await;
    let store = outhaul_store::open(outhaul_store::StoreOptions::new(database.url.clone())).await.unwrap();
    store.init(&InitPlan::default()).await.unwrap();
    let insert = "INSERT INTO outbox (topic, payload) VALUES ('t', '')";
    let resolved = async || store.resolved(Seq(0)).await.unwrap().0;

    // Seen as a session's first, then as a prepared one.
    let mut session = database.session().await;
    session.execute(&format!("BEGIN; {insert}")).await;
    assert_eq!(resolved().await, 0);
    session.execute("PREPARE TRANSACTION 'a'").await;
    database.execute(insert).await;
    for _ in 0..3 {
        assert_eq!(resolved().await, 0);
    }
    // Prepared before the mark is read.
    session.execute("COMMIT PREPARED 'a'").await;
    session.execute(&format!("BEGIN; {insert}; PREPARE TRANSACTION 'b'")).await;
    assert_eq!(resolved().await, 1, "the mark of the first look");
    assert_eq!(resolved().await, 1);
    // One that begins after the mark holds nothing back that was there before.
    session.execute(&format!("BEGIN; {insert}; PREPARE TRANSACTION 'c'")).await;
    session.execute("ROLLBACK PREPARED 'b'").await;
    assert_eq!(resolved().await, 3);
    session.execute("COMMIT PREPARED 'c'").await;
    assert_eq!(resolved().await, 4);
}

#[tokio::test]
async fn a_cached_sequence_resolves_nothing_and_is_warned_about() {
    let f = fixture().await;
    f.insert_series(0..3).await;
    assert_eq!(resolved(&f).await, 3);
    f.database.execute("ALTER SEQUENCE outbox_seq_seq CACHE 20").await;
    assert_eq!(resolved(&f).await, 0);
    let warnings = f.store.inspect().await.unwrap().warnings;
    assert!(warnings.iter().any(|w| w.contains("CACHE 20")), "{warnings:?}");
}

#[tokio::test]
async fn numbers_of_a_restarted_sequence_are_not_resolved_by_the_old_mark() {
    let f = fixture().await;
    f.insert_series(0..10).await;
    assert_eq!(resolved(&f).await, 10);
    f.truncate().await;
    let mut open = f.database.session().await;
    open.execute(&format!("BEGIN; {}", f.insert_sql(&[AppRow::nth(0)]))).await;
    // It passes the old mark before anybody looks.
    f.insert_series(1..30).await;
    assert_eq!(resolved(&f).await, 0);
    open.execute("COMMIT").await;
    assert_eq!(resolved(&f).await, 30);
}
