//! Scheduled rows: found by when they are due, and made ordinary once they are.

use std::time::{Duration, Instant};

use outhaul_core::runs::{Run, Runs};
use outhaul_core::schedule::Upcoming;
use outhaul_store::{CancelRequest, NewRow, ReadPurpose, ReadRequest};

use super::fixture::Fixture;
use crate::servers::Flavour;

const SECOND_US: i64 = 1_000_000;
const HOUR_US: i64 = 3_600 * SECOND_US;
/// Within this a row that is due must have become one.
const LIMIT: Duration = Duration::from_secs(60);

fn row(id: &str, available_at_us: i64) -> NewRow {
    NewRow { id: Some(id.into()), topic: "t".into(), available_at_us: Some(available_at_us), ..NewRow::default() }
}

async fn ahead(f: &Fixture, limit: usize) -> Upcoming {
    let all = [Run { first: 0, last: u64::MAX }];
    f.store.look_ahead(&f.shards(), &all, limit).await.expect("look_ahead")
}

/// The database's clock, by a row that lies far ahead.
async fn now_us(f: &Fixture) -> i64 {
    ahead(f, 1).await.now_us
}

async fn ids_of(f: &Fixture, purpose: ReadPurpose) -> Vec<String> {
    let rows = f.read(&ReadRequest { purpose, ..f.everything() }).await.rows;
    rows.into_iter().map(|r| r.id).collect()
}

async fn seq_of(f: &Fixture, id: &str) -> u64 {
    f.hot().await.into_iter().find(|(_, of)| of == id).expect("a row").0
}

async fn cancel(f: &Fixture, id: &str) -> usize {
    let request = CancelRequest { id: id.into(), actor: "an operator".into(), why: "wrong".into() };
    f.store.cancel(&request).await.expect("cancel").len()
}

/// A table with a row far ahead, and what the database's clock says.
async fn with_a_clock(flavour: Flavour) -> (Fixture, i64) {
    let f = Fixture::sharded(flavour).await;
    f.store.enqueue(&[row("far", 2_000_000_000 * SECOND_US)]).await.expect("enqueue");
    let now_us = now_us(&f).await;
    (f, now_us)
}

/// A look shows the rows that are due soonest, of its shards and ranges, and none that has no time of its own.
pub async fn the_soonest_are_found(flavour: Flavour) {
    let (f, now) = with_a_clock(flavour).await;
    let rows =
        [row("b", now + 2 * HOUR_US), row("a", now + HOUR_US), row("past", now - HOUR_US), row("c", now + 2 * HOUR_US)];
    f.store.enqueue(&rows).await.expect("enqueue");
    f.insert_series(0..3).await;
    let found = ahead(&f, 100).await;
    let (a, b, c, far) = (seq_of(&f, "a").await, seq_of(&f, "b").await, seq_of(&f, "c").await, seq_of(&f, "far").await);
    assert_eq!(found.rows.iter().map(|r| r.seq.0).collect::<Vec<_>>(), [a, b, c, far]);
    assert_eq!(found.rows[0].due_at_us, now + HOUR_US);
    assert!(!found.cut && found.now_us >= now);
    let two = ahead(&f, 2).await;
    assert_eq!((two.rows.iter().map(|r| r.seq.0).collect::<Vec<_>>(), two.cut), (vec![a, b], true));
    let ranges = [Run { first: c, last: c }, Run { first: u64::MAX - 1, last: u64::MAX }];
    let one = f.store.look_ahead(&f.shards(), &ranges, 100).await.expect("look_ahead");
    assert!(one.rows.iter().any(|r| r.seq.0 == c) && one.rows.iter().all(|r| r.seq.0 != far));
    let mut polled = ids_of(&f, ReadPurpose::Poll).await;
    polled.sort();
    assert_eq!(polled, ["m0", "m1", "m2", "past"]);
}

/// Rows become ordinary once they are due by the database's clock and not before; from then on they cannot be cancelled.
pub async fn a_row_is_handed_out_once_it_is_due(flavour: Flavour) {
    let (f, now) = with_a_clock(flavour).await;
    let due = now + 2 * SECOND_US;
    f.store.enqueue(&[row("a", due), row("b", now + HOUR_US)]).await.expect("enqueue");
    assert_eq!(cancel(&f, "b").await, 1, "there is time left");
    let began = Instant::now();
    let handed = loop {
        let handed = ids_of(&f, ReadPurpose::Due).await;
        if !handed.is_empty() {
            break handed;
        }
        assert!(ids_of(&f, ReadPurpose::Poll).await.is_empty() && began.elapsed() < LIMIT);
    };
    assert!(now_us(&f).await >= due, "not before it is due");
    assert_eq!(handed, ["a"]);
    assert_eq!((ids_of(&f, ReadPurpose::Due).await, ids_of(&f, ReadPurpose::Poll).await), (handed.clone(), handed));
    assert_eq!(cancel(&f, "a").await, 0, "it may be sent by now");
    assert_eq!(ahead(&f, 100).await.rows.len(), 1, "only the one far ahead waits");
}

/// A row that somebody else holds is neither waited for nor handed out: whoever commits first wins.
pub async fn a_row_that_is_held_is_passed_over(flavour: Flavour) {
    let (f, now) = with_a_clock(flavour).await;
    if !f.writers_are_concurrent() {
        return;
    }
    let due = now + SECOND_US;
    f.store.enqueue(&[row("a", due), row("b", due), row("c", due)]).await.expect("enqueue");
    let (a, b) = (seq_of(&f, "a").await, seq_of(&f, "b").await);
    let (mut deletes, mut regrets) = (f.database.session().await, f.database.session().await);
    deletes.execute(&format!("BEGIN; DELETE FROM outbox WHERE seq = {a}")).await;
    regrets.execute(&format!("BEGIN; DELETE FROM outbox WHERE seq = {b}")).await;
    let began = Instant::now();
    while ids_of(&f, ReadPurpose::Due).await.is_empty() {
        assert!(began.elapsed() < LIMIT);
    }
    assert_eq!(ids_of(&f, ReadPurpose::Due).await, ["c"]);
    deletes.execute("COMMIT").await;
    regrets.execute("ROLLBACK").await;
    assert_eq!(ids_of(&f, ReadPurpose::Due).await, ["b", "c"]);
    assert_eq!(f.hot_ids().await, ["far", "b", "c"]);
}

/// Owners of different shards that make rows ordinary at the same time do not pass over each other's, not even for the
/// moment in which a statement looks at the row behind its own.
pub async fn owners_that_claim_at_once_pass_over_nothing(flavour: Flavour) {
    const ROWS: usize = 800;
    const STEP: usize = 10;
    let (f, now) = with_a_clock(flavour).await;
    if !f.writers_are_concurrent() {
        return;
    }
    let due = now + SECOND_US;
    // Neighbours are of one key, so that an owner asks for runs.
    let of_key = |n: usize| NewRow { key: Some(format!("k{}", n / 3)), ..row(&format!("s{n}"), due) };
    f.store.enqueue(&(0..ROWS).map(of_key).collect::<Vec<_>>()).await.expect("enqueue");
    let mut claims = Vec::new();
    for shard in f.shards() {
        let (store, all) = (f.another_store().await, [Run { first: 0, last: u64::MAX }]);
        let found = store.look_ahead(&[shard], &all, ROWS + 1).await.expect("look_ahead").rows;
        let seqs: Vec<u64> = found.iter().filter(|r| r.due_at_us == due).map(|r| r.seq.0).collect();
        let everything = f.everything();
        claims.push(async move {
            for step in seqs.chunks(STEP) {
                let mut runs = Runs::new();
                for seq in step {
                    runs.insert(*seq);
                }
                let ranges = runs.iter().collect();
                let request =
                    ReadRequest { purpose: ReadPurpose::Due, shards: vec![shard], ranges, ..everything.clone() };
                let rows = store.read(&request).await.expect("read").rows;
                assert_eq!(rows.iter().map(|r| r.seq.0).collect::<Vec<_>>(), step, "of shard {shard}");
            }
            store.close().await;
            seqs.len()
        });
    }
    let began = Instant::now();
    while now_us(&f).await <= due {
        assert!(began.elapsed() < LIMIT);
    }
    let claims: Vec<_> = claims.into_iter().map(tokio::spawn).collect();
    let mut claimed = 0;
    for claim in claims {
        claimed += claim.await.expect("a claim");
    }
    assert_eq!(claimed, ROWS);
}

/// What a session's time zone is does not matter.
pub async fn a_session_may_have_any_time_zone(flavour: Flavour) {
    let (f, _) = with_a_clock(flavour).await;
    let mut session = f.database.session().await;
    let (zone, in_an_hour) = match flavour {
        Flavour::Sqlite => ("", "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hour')"),
        Flavour::Postgres => ("SET timezone = 'Asia/Kathmandu'; ", "now() + interval '1 hour'"),
        _ => ("SET time_zone = '+05:45'; ", "CURRENT_TIMESTAMP(6) + INTERVAL 1 HOUR"),
    };
    let sql = "INSERT INTO outbox (id, topic, payload, available_at) VALUES ('zoned', 't', '1', ";
    session.execute(&format!("{zone}{sql}{in_an_hour})")).await;
    let found = ahead(&f, 1).await;
    let left_us = found.rows[0].due_at_us - found.now_us;
    assert!((HOUR_US - 600 * SECOND_US..=HOUR_US).contains(&left_us), "{left_us}");
}
