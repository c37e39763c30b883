//! `outbox_transaction`: check-backs are judged, commits are ended, what was not ended goes into the outbox.

use std::sync::Arc;

use outhaul_core::transaction::{Answer, Finding, TransactionState, answer};
use outhaul_store::{EndedTransaction, FallBack, InitPlan, PayloadType, StoreErrorKind, StoreOptions};
use tokio::task::JoinSet;

use super::fixture::Fixture;
use crate::earlier;
use crate::servers::Flavour;

use Finding::{Buried, Open, Row};
use TransactionState::{Committed, Ended, RolledBack, Sent};

/// A day that has passed since the start of each transaction, which is no age of its commit.
const OLD_MS: u64 = 86_400_000;

/// What an application inserts first of all in its transaction.
fn insert(id: &str) -> String {
    format!(
        "INSERT INTO outbox_transaction (id, message_id, topic, msg_key, headers, payload) \
         VALUES ('{id}', 'message {id}', 'orders', 'k', '{{\"a\":\"1\"}}', 'payload')"
    )
}

fn begin(flavour: Flavour) -> &'static str {
    // SQLite: a transaction that takes the write lock later can be refused it.
    if flavour == Flavour::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" }
}

impl Fixture {
    async fn judged(&self, id: &str) -> Finding {
        self.store.judge(id).await.expect("judge")
    }

    async fn ended(&self, ids: &[&str]) -> u64 {
        let receipt = "broker-a:1".to_owned();
        let ended: Vec<EndedTransaction> =
            ids.iter().map(|id| EndedTransaction { id: (*id).to_owned(), receipt: receipt.clone() }).collect();
        self.store.end_transactions(&ended).await.expect("end_transactions")
    }

    /// Ids of messages that went into the outbox.
    async fn fell_back(&self, after_ms: u64) -> Vec<String> {
        let fell = self.store.fall_back(&FallBack { after_ms, limit: 100 }).await.expect("fall_back");
        assert_eq!(fell.refused, []);
        fell.sent
    }

    async fn states(&self) -> Vec<String> {
        let rows = self.database.query("SELECT id, state FROM outbox_transaction ORDER BY id").await;
        rows.into_iter().map(|row| row.into_iter().flatten().collect::<Vec<_>>().join(" ")).collect()
    }
}

/// A committed row is COMMIT; so is one that was ended, whose content is gone.
pub async fn a_committed_row_is_found(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.database.execute(&insert("a")).await;
    assert_eq!(f.judged("a").await, Row(Committed));
    assert_eq!(f.ended(&["a", "nobody"]).await, 1);
    assert_eq!(f.judged("a").await, Row(Ended));
    assert_eq!(f.ended(&["a"]).await, 0, "it was ended before");
    assert_eq!(f.ended(&[]).await, 0);
    let slim =
        "payload IS NULL AND msg_key IS NULL AND headers IS NULL AND receipt = 'broker-a:1' AND since_at IS NOT NULL";
    assert_eq!(f.database.query_u64(&format!("SELECT count(*) FROM outbox_transaction WHERE {slim}")).await, 1);
    assert_eq!(f.states().await, ["a ended"], "nothing was made for nobody");
}

/// Where there is no row, a tombstone keeps the business transaction from ever committing; found again, it is no COMMIT.
pub async fn a_tombstone_keeps_the_business_out(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    assert_eq!(f.judged("late").await, Buried);
    assert_eq!(f.judged("late").await, Row(RolledBack));
    let mut business = f.database.session().await;
    business.execute(begin(flavour)).await;
    let refused = business.try_execute(&insert("late")).await.expect_err("the tombstone stands there");
    assert!(["1062", "23505", "UNIQUE"].iter().any(|code| refused.contains(code)), "{refused}");
    business.execute("ROLLBACK").await;
    assert_eq!(f.ended(&["late"]).await, 0);
    assert!(f.fell_back(0).await.is_empty() && f.fell_back(0).await.is_empty());
    assert_eq!(f.states().await, ["late rolled_back"]);
}

/// T1: a transaction that is open is neither judged nor harmed, however many ask, and is judged when it has ended.
pub async fn an_open_transaction_is_not_judged(flavour: Flavour) {
    let f = Arc::new(Fixture::sharded(flavour).await);
    for (id, end, then) in [("held", "COMMIT", Row(Committed)), ("gone", "ROLLBACK", Buried)] {
        let mut business = f.database.session().await;
        business.execute(begin(flavour)).await;
        business.execute(&insert(id)).await;
        let mut asking = JoinSet::new();
        for _ in 0..6 {
            let f = f.clone();
            asking.spawn(async move { f.store.judge(id).await });
        }
        for judged in asking.join_all().await {
            // Open, or no answer at all: what matters is what the broker hears.
            assert_eq!(answer(judged.clone().ok()), Answer::Unknown, "{judged:?}");
        }
        assert_eq!(f.judged(id).await, Open);
        business.execute(end).await;
        assert_eq!(f.judged(id).await, then);
    }
}

/// Many that ask at once about a transaction that never began agree that it never will.
pub async fn many_judges_agree(flavour: Flavour) {
    let f = Arc::new(Fixture::sharded(flavour).await);
    for round in 0..5 {
        let id = format!("round {round}");
        let mut asking = JoinSet::new();
        for _ in 0..8 {
            let (f, id) = (f.clone(), id.clone());
            asking.spawn(async move { f.store.judge(&id).await.ok() });
        }
        let findings = asking.join_all().await;
        assert!(findings.iter().filter(|found| **found == Some(Buried)).count() <= 1, "{findings:?}");
        assert!(findings.iter().all(|found| answer(*found) != Answer::Commit), "{findings:?}");
        assert_eq!(f.judged(&round.to_string()).await, Buried, "another id");
        assert_eq!(f.judged(&id).await, Row(RolledBack));
    }
}

/// T4: a database that is not reached, an id that cannot be one, and a table that is not there are no findings.
pub async fn no_answer_is_no_finding(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    for id in ["", &"x".repeat(65), "a\0b"] {
        assert_eq!(f.store.judge(id).await.expect_err("no such id").kind, StoreErrorKind::Configuration);
    }
    f.database.execute("INSERT INTO outbox_transaction (id, state) VALUES ('strange', 'of a later build')").await;
    assert_eq!(f.store.judge("strange").await.expect_err("an unknown state").kind, StoreErrorKind::Corrupt);
    assert_eq!(f.states().await, ["strange of a later build"]);
    f.database.execute("DROP TABLE outbox_transaction").await;
    assert_eq!(f.store.judge("a").await.expect_err("no table").kind, StoreErrorKind::NotInitialised);
    f.store.close().await;
    assert_eq!(f.store.judge("a").await.expect_err("closed").kind, StoreErrorKind::Unavailable);
}

/// Ids of transactions compare by bytes.
pub async fn transaction_ids_compare_by_bytes(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    for id in ["a", "A", "a ", "\u{e4}", "e\u{301}", "\u{e9}"] {
        assert_eq!(f.judged(id).await, Buried, "{id:?}");
    }
    f.database.execute(&insert("b")).await;
    assert_eq!(f.judged("B").await, Buried);
    assert_eq!(f.ended(&["B", "b "]).await, 0);
    assert_eq!(f.ended(&["b"]).await, 1);
}

/// T3, D6: what committed and was not ended goes into the outbox, so long after it was first seen; its age is not that of
/// the transaction's start.
pub async fn what_was_not_ended_goes_into_the_outbox(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let mut long = f.database.session().await;
    long.execute(begin(flavour)).await;
    long.execute(&insert("long")).await;
    if f.writers_are_concurrent() {
        assert!(f.fell_back(0).await.is_empty(), "it is open");
    }
    long.execute("COMMIT").await;
    let start = if flavour == Flavour::Sqlite { "1" } else { "TIMESTAMP '2020-01-01 00:00:00'" };
    f.database.execute(&format!("UPDATE outbox_transaction SET created_at = {start}")).await;
    assert!(f.fell_back(OLD_MS).await.is_empty(), "seen");
    assert!(f.fell_back(OLD_MS).await.is_empty(), "and young");
    assert_eq!(f.fell_back(0).await, ["message long"]);
    assert!(f.fell_back(0).await.is_empty(), "once");
    let rows = f.read_all().await;
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!((row.id.as_str(), row.topic.as_str(), row.key.as_deref()), ("message long", "orders", Some("k")));
    assert_eq!(&row.payload[..], b"payload");
    let headers = row.headers.as_deref().unwrap_or_default().replace(' ', "");
    assert_eq!(headers, "{\"a\":\"1\"}");
    assert_eq!(f.judged("long").await, Row(Sent));
    assert_eq!(f.ended(&["long"]).await, 0);
    assert_eq!(f.states().await, ["long sent"]);
}

/// What was ended in time stays out of the outbox, also when it was seen before.
pub async fn what_was_ended_is_not_sent(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    for id in ["seen", "new"] {
        f.database.execute(&insert(id)).await;
        if id == "seen" {
            f.fell_back(OLD_MS).await;
        }
    }
    assert_eq!(f.ended(&["seen", "new"]).await, 2);
    assert!(f.fell_back(0).await.is_empty() && f.fell_back(0).await.is_empty());
    assert!(f.hot_ids().await.is_empty());
}

/// One that the outbox refuses waits and is named; the others go. When it can go it does.
pub async fn a_row_that_cannot_go_does_not_keep_others(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.database.execute("INSERT INTO outbox_transaction (id, payload) VALUES ('bad', 'no topic')").await;
    f.database.execute(&insert("good")).await;
    f.fell_back(OLD_MS).await;
    let fell = f.store.fall_back(&FallBack { after_ms: 0, limit: 100 }).await.expect("fall_back");
    assert_eq!(fell.sent, ["message good"]);
    assert_eq!(fell.refused.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["bad"]);
    assert!(!fell.refused[0].1.is_empty());
    assert!(f.fell_back(OLD_MS).await.is_empty(), "it waits again");
    f.database.execute("UPDATE outbox_transaction SET topic = 't' WHERE id = 'bad'").await;
    assert_eq!(f.fell_back(0).await, ["bad"], "the id of the transaction, where the message has none");
}

/// Whatever the type of the outbox's payload.
pub async fn the_payload_takes_the_outbox_type(flavour: Flavour) {
    for payload in [PayloadType::Text, PayloadType::Json] {
        let f = Fixture::with(flavour, InitPlan { payload, ..InitPlan::default() }, |_| {}).await;
        let json = insert("a").replace("'payload')", "'{\"a\": \"\u{e9}\"}')");
        f.database.execute(&json).await;
        f.fell_back(OLD_MS).await;
        assert_eq!(f.fell_back(0).await, ["message a"]);
        let text = String::from_utf8(f.read_all().await[0].payload.to_vec()).expect("text");
        assert_eq!(text.replace(' ', ""), "{\"a\":\"\u{e9}\"}");
        let bytes = f.bytes_sql(&[0xff, 0xfe]);
        f.database.execute(&insert("b").replace("'payload')", &format!("{bytes})"))).await;
        f.fell_back(OLD_MS).await;
        let fell = f.store.fall_back(&FallBack { after_ms: 0, limit: 100 }).await.expect("fall_back");
        if flavour != Flavour::Sqlite {
            assert_eq!((fell.sent.len(), fell.refused.len()), (0, 1), "not UTF-8: {fell:?}");
        }
    }
}

/// Several relays that look at once put each row into the outbox once, however it goes with the broker meanwhile.
pub async fn relays_fall_back_side_by_side(flavour: Flavour) {
    let f = Arc::new(Fixture::sharded(flavour).await);
    for n in 0..60 {
        f.database.execute(&insert(&format!("t{n:02}"))).await;
    }
    f.fell_back(OLD_MS).await;
    let mut looking = JoinSet::new();
    for _ in 0..3 {
        let store = f.another_store().await;
        looking.spawn(async move {
            let mut sent = Vec::new();
            // What another one holds is passed over; a conflict costs a try.
            for _ in 0..20 {
                let fell = store.fall_back(&FallBack { after_ms: 0, limit: 7 }).await.unwrap_or_default();
                assert_eq!(fell.refused, [], "one that is sent has no content to be sent again");
                sent.extend(fell.sent);
            }
            store.close().await;
            sent
        });
    }
    let ending: Vec<String> = (0..20).map(|n| format!("t{n:02}")).collect();
    let mut ended = 0;
    for ids in ending.chunks(5) {
        ended += f.ended(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let mut sent = looking.join_all().await.concat();
    let mut hot = f.hot_ids().await;
    sent.sort();
    hot.sort();
    assert_eq!(sent, hot);
    sent.dedup();
    assert_eq!(sent.len(), hot.len(), "once each");
    let states = f.states().await;
    let of = |state: &str| states.iter().filter(|s| s.ends_with(state)).count();
    assert_eq!(
        (of(" ended"), of(" sent")),
        (usize::try_from(ended).expect("few"), 60 - usize::try_from(ended).expect("few"))
    );
}

/// Old rows go, a few at a time; a committed one never does.
pub async fn old_transactions_go(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    for id in ["committed", "ended", "sent"] {
        f.database.execute(&insert(id)).await;
    }
    f.ended(&["ended"]).await;
    f.fell_back(OLD_MS).await;
    let hold = f.database.execute("UPDATE outbox_transaction SET topic = NULL WHERE id = 'committed'").await;
    assert_eq!(hold, 1);
    let fell = f.store.fall_back(&FallBack { after_ms: 0, limit: 100 }).await.expect("fall_back");
    assert_eq!(fell.sent, ["message sent"]);
    f.judged("buried").await;
    let prune = async |retention, limit| f.store.prune_transactions(retention, limit).await.expect("prune");
    assert_eq!(prune(OLD_MS, 100).await, 0);
    // The clocks of some servers count milliseconds.
    super::fixture::until("two went", async || prune(0, 2).await == 2).await;
    assert_eq!(prune(0, 100).await, 1);
    assert_eq!(prune(0, 100).await, 0);
    assert_eq!(f.states().await, ["committed committed"]);
}

/// Rows are found by the id of the transaction and by that of the message.
pub async fn transactions_are_found(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    f.database.execute(&insert("a")).await;
    for id in ["a", "message a"] {
        let found = f.store.find_transactions(id).await.expect("find_transactions");
        assert_eq!(found.len(), 1);
        let r = &found[0];
        assert_eq!((r.transaction.as_str(), r.message.as_str(), r.state), ("a", "message a", Committed));
        assert_eq!((r.topic.as_deref(), &r.receipt, r.since_us), (Some("orders"), &None, None));
        assert!(r.created_at_us > 1_600_000_000_000_000, "{r:?}");
    }
    f.ended(&["a"]).await;
    let r = f.store.find_transactions("a").await.expect("find_transactions").remove(0);
    assert_eq!((r.state, r.receipt.as_deref()), (Ended, Some("broker-a:1")));
    assert!(r.since_us.is_some_and(|us| us > r.created_at_us - 1_000_000), "{r:?}");
    assert_eq!(f.store.find_transactions("b").await.expect("find_transactions"), []);
}

/// An outbox has a name of its own, which stays.
pub async fn an_outbox_has_a_name(flavour: Flavour) {
    let f = Fixture::sharded(flavour).await;
    let origin = f.store.origin().await.expect("origin");
    assert_eq!(origin.len(), 36, "{origin}");
    f.store.init(&f.plan).await.expect("init again");
    assert_eq!(f.store.origin().await.expect("origin"), origin);
    let options = StoreOptions { table_prefix: "other_".into(), ..f.options.clone() };
    let other = outhaul_store::open(options).await.expect("open");
    other.init(&f.plan).await.expect("init");
    assert_ne!(other.origin().await.expect("origin"), origin);
    other.close().await;
    let earlier = Fixture::empty(flavour, |_| {}).await;
    earlier.database.execute(earlier::tables(flavour)).await;
    assert_eq!(earlier.store.origin().await.expect_err("no name").kind, StoreErrorKind::Outdated);
    earlier.store.upgrade().await.expect("upgrade");
    assert_eq!(earlier.store.origin().await.expect("origin").len(), 36);
    assert_eq!(earlier.judged("a").await, Buried);
}
