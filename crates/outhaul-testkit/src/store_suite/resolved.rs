//! `resolved`: never above what an open transaction may hold, and in the end not below what is settled.

use outhaul_core::message::Seq;

use super::fixture::{AppRow, Fixture, until};
use crate::servers::{Flavour, Session};

async fn insert_and_stay_open(f: &Fixture, row: AppRow) -> (Session, Seq) {
    let mut session = f.database.session().await;
    session.execute(&format!("BEGIN;{}", f.insert_sql(std::slice::from_ref(&row)))).await;
    let sql = format!("SELECT seq FROM {} WHERE id = '{}'", f.options.outbox(), row.id.unwrap_or_default());
    let seq = Seq(session.query_u64(&sql).await);
    (session, seq)
}

async fn resolved(f: &Fixture) -> Seq {
    let seen = f.read_all().await.last().map_or(Seq(0), |row| row.seq);
    f.store.resolved(seen).await.expect("resolved")
}

/// What an open transaction holds is not resolved, however often one asks; once it has ended, it is.
pub async fn nothing_open_is_resolved(flavour: Flavour) {
    for end in ["COMMIT", "ROLLBACK"] {
        let f = Fixture::sharded(flavour).await;
        f.insert_series(0..3).await;
        let (mut session, held) = insert_and_stay_open(&f, AppRow::nth(3)).await;
        let mut last = held;
        for n in 4..9 {
            if f.writers_are_concurrent() {
                f.insert_series([n]).await;
                last = Seq(last.0 + 1);
            }
            let resolved = resolved(&f).await;
            assert!(resolved < held, "{resolved} is resolved, {held} is open");
        }
        session.execute(end).await;
        if end == "ROLLBACK" {
            f.insert_series([9]).await; // SQLite gives the number again, and has nothing else to resolve
        }
        until("all is resolved", async || resolved(&f).await >= last).await;
    }
}

/// Without any open transaction everything that was committed or rolled back is resolved before long.
pub async fn what_has_ended_is_resolved(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    assert_eq!(resolved(&f).await, Seq(0));
    f.insert_series(0..10).await;
    f.database.execute(&format!("BEGIN;{}ROLLBACK", f.insert_sql(&[AppRow::nth(10)]))).await;
    f.insert_series(11..13).await;
    let last = f.read_all().await.last().map(|row| row.seq).expect("a row");
    until("all is resolved", async || resolved(&f).await >= last).await;
    f.owner("one").await.move_all(&f).await;
    assert!(f.store.resolved(last).await.expect("resolved") >= last, "an empty table takes nothing back");
}

/// B5: after a TRUNCATE, what was resolved before says nothing of the numbers that are given again.
pub async fn a_sequence_that_starts_again_resolves_anew(flavour: Flavour) {
    let f = Fixture::new(flavour).await;
    f.insert_series(0..10).await;
    let last = f.read_all().await.last().map(|row| row.seq).expect("a row");
    until("all is resolved", async || resolved(&f).await >= last).await;
    f.truncate().await;
    f.insert_series(10..12).await;
    let (mut session, held) = insert_and_stay_open(&f, AppRow::nth(12)).await;
    assert!(held < last, "the sequence has not started again");
    for _ in 0..5 {
        let resolved = resolved(&f).await;
        assert!(resolved < held, "{resolved} is resolved, {held} is open");
    }
    session.execute("COMMIT").await;
    until("all is resolved", async || resolved(&f).await >= held).await;
}
