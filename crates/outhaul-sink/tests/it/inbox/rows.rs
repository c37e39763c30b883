//! What is in the table, and what it does to what comes.

use std::sync::Arc;

use outhaul_sink::{AckLevel, Outcome, Sink};
use outhaul_testkit::sink_suite::{Messages, Reader};

use super::{Inbox, delivered, send};

/// The same ids for two consumers of one table.
pub async fn consumers_do_not_meet(inbox: &Inbox) {
    let messages = Messages::default().many(20, 4);
    for consumer in ["points", "risk", "Risk"] {
        let sink = inbox.started(|config| config.consumer = consumer.into()).await;
        assert_eq!(delivered(&send(&sink, &messages).await), (20, 0), "{consumer}");
        sink.close().await;
    }
    for consumer in ["points", "risk", "Risk"] {
        assert_eq!(inbox.held_by(consumer).await.len(), 20, "{consumer}");
    }
}

/// What the consumer wrote into a row is not touched by a copy, not even by one with other content.
pub async fn a_row_that_is_there_stays_as_it_is(inbox: &Inbox) {
    let sink = inbox.started(|_| ()).await;
    let mut messages = Messages::default();
    let first = messages.many(6, 2);
    assert_eq!(sink.start().await.unwrap().level, AckLevel::Flushed);
    assert_eq!(delivered(&send(&sink, &first).await), (6, 0));
    let before = inbox.read().await;
    inbox.database.execute("UPDATE inbox_message SET attempts = 3, claimed_by = 'worker-1', last_error = 'late'").await;
    let changed = messages.of(|row| {
        row.id.clone_from(&first[0].id);
        row.topic = "another-topic".into();
        row.payload = bytes::Bytes::from_static(b"another payload");
    });
    let again: Vec<_> = first.iter().cloned().chain([changed]).collect();
    assert_eq!(delivered(&send(&sink, &again).await), (7, 7));
    assert_eq!(inbox.read().await, before);
    let sql =
        "SELECT count(*) FROM inbox_message WHERE attempts = 3 AND claimed_by = 'worker-1' AND last_error = 'late'";
    assert_eq!(inbox.database.query_u64(sql).await, 6);
    sink.close().await;
}

/// Two relays that believe to own the same shard (one of them is about to find out) deliver the same messages, in
/// different batches. Nothing fails but for a moment, and one copy is there.
pub async fn two_relays_at_the_same_time(inbox: &Inbox) {
    inbox.started(|_| ()).await.close().await; // the tables are there
    let messages = Arc::new(Messages::default().many(400, 16));
    let mut relays = Vec::new();
    for size in [7, 11, 30] {
        let sink = inbox.started(|_| ()).await;
        let messages = Arc::clone(&messages);
        relays.push(tokio::spawn(async move {
            let mut tries = 0;
            for batch in messages.chunks(size) {
                while let Some(bad) = send(&sink, batch).await.iter().find(|o| !matches!(o, Outcome::Delivered(_))) {
                    assert!(matches!(bad, Outcome::DestinationDown(_)), "{bad:?}");
                    tries += 1;
                    assert!(tries < 200, "it never succeeds: {bad:?}");
                }
            }
            sink.close().await;
        }));
    }
    for relay in relays {
        relay.await.unwrap();
    }
    assert_eq!(inbox.read().await.len(), messages.len());
}

/// Tables with a prefix are others.
pub async fn a_table_prefix(inbox: &Inbox) {
    let sink = inbox.started(|config| config.table_prefix = "Shop_".into()).await;
    assert_eq!(delivered(&send(&sink, &Messages::default().many(5, 2)).await), (5, 0));
    sink.close().await;
    let quoted = match inbox.database.flavour {
        outhaul_testkit::servers::Flavour::Postgres => "\"Shop_inbox_message\"",
        _ => "Shop_inbox_message",
    };
    assert_eq!(inbox.database.query_u64(&format!("SELECT count(*) FROM {quoted}")).await, 5);
}
