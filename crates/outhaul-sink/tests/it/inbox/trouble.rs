//! Connections and servers that fail while messages are on their way.

use std::sync::Arc;

use outhaul_core::message::Message;
use outhaul_sink::inbox::{InboxConfig, InboxSink};
use outhaul_sink::{Outcome, Sink};
use outhaul_testkit::proxy::{Direction, Proxy};
use outhaul_testkit::servers::OwnServer;
use outhaul_testkit::sink_suite::{Held, Messages, Reader};

use super::{CONSUMER, Inbox, failed, send};

fn assert_all(held: &[Held], messages: &[Arc<Message>]) {
    let ids = |h: &Held| h.id.clone();
    assert_eq!(held.iter().map(ids).collect::<Vec<_>>(), messages.iter().map(|m| m.id.clone()).collect::<Vec<_>>());
}

/// Sends until all is delivered, as the engine does: start, then the same batch.
async fn until_delivered(sink: &InboxSink, batch: &[Arc<Message>]) {
    for _ in 0..20 {
        if sink.start().await.is_ok() && send(sink, batch).await.iter().all(|o| matches!(o, Outcome::Delivered(_))) {
            return;
        }
    }
    panic!("not delivered after 20 tries");
}

/// The answers of the server end after any number of bytes: while it connects, before the COMMIT, after it.
pub async fn connections_that_are_cut_at_any_byte(inbox: &Inbox) {
    inbox.started(|_| ()).await.close().await;
    let proxy = Proxy::start(inbox.database.address()).await;
    let mut config = InboxConfig::new(inbox.database.url_at(proxy.address()), CONSUMER);
    config.connections = 1;
    let sink = InboxSink::new(config);
    sink.start().await.unwrap();
    let mut messages = Messages::default();
    let mut all = Vec::new();
    let mut failures = 0;
    for direction in [Direction::ToClient, Direction::ToServer] {
        for bytes in (0..400).step_by(29).chain((400..2000).step_by(200)) {
            let batch = messages.many(8, 3);
            let _trap = proxy.cut_after(direction, bytes);
            let outcomes = send(&sink, &batch).await;
            if !outcomes.iter().all(|o| matches!(o, Outcome::Delivered(_))) {
                failed(&outcomes);
                failures += 1;
            }
            proxy.disarm();
            until_delivered(&sink, &batch).await;
            all.extend(batch);
        }
    }
    assert!(failures > 10, "only {failures} cuts met a call");
    assert_all(&inbox.read().await, &all);
    sink.close().await;
}

/// The server has committed, its answer is held back, and the caller gives up: sent again, it is a duplicate.
pub async fn an_answer_that_never_comes(inbox: &Inbox) {
    inbox.started(|_| ()).await.close().await;
    let proxy = Proxy::start(inbox.database.address()).await;
    let mut config = InboxConfig::new(inbox.database.url_at(proxy.address()), CONSUMER);
    config.connections = 2;
    let sink = Arc::new(InboxSink::new(config));
    sink.start().await.unwrap();
    let mut messages = Messages::default();
    let mut all = messages.many(10, 4);
    until_delivered(&sink, &all).await;
    for _ in 0..3 {
        let batch = messages.many(10, 4);
        proxy.hold(Direction::ToClient);
        let before = proxy.counts().to_server_bytes;
        let call = tokio::spawn({
            let (sink, batch) = (Arc::clone(&sink), batch.clone());
            async move { send(&sink, &batch).await }
        });
        // The call has got as far as it can: something went to the server.
        proxy.wait_until(|counts| counts.to_server_bytes > before).await;
        assert!(!call.is_finished());
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        proxy.flow(Direction::ToClient);
        until_delivered(&sink, &batch).await;
        all.extend(batch);
    }
    assert_all(&inbox.read().await, &all);
    sink.close().await;
}

/// Killed, and stopped with its sockets open. What was acknowledged before stays.
pub async fn a_server_that_is_gone_for_a_while(inbox: &Inbox) {
    let server = OwnServer::start(inbox.database.flavour, &[]).await;
    let own = Inbox::of(server.database().await);
    let sink = own.started(|_| ()).await;
    let mut messages = Messages::default();
    let mut all = messages.many(50, 8);
    until_delivered(&sink, &all).await;

    server.kill9().await;
    let batch = messages.many(50, 8);
    for _ in 0..2 {
        let outcomes = send(&sink, &batch).await;
        // Every slot has a connection of its own, which may have been in another state.
        assert!(
            outcomes
                .iter()
                .all(|o| matches!(o, Outcome::DestinationDown(r) | Outcome::Unknown(r) if r.code.starts_with("OUT-1"))),
            "{outcomes:?}"
        );
        let error = sink.start().await.unwrap_err();
        assert!(error.passes, "{error}");
    }
    server.restart().await;
    until_delivered(&sink, &batch).await;
    all.extend(batch);

    server.pause().await;
    let batch = messages.many(50, 8);
    let call = tokio::spawn({
        let (sink, batch) = (Arc::clone(&sink), batch.clone());
        async move { send(&sink, &batch).await }
    });
    // Whenever its time limit comes: the runtime has had it in hand.
    tokio::task::yield_now().await;
    call.abort();
    let _ = call.await;
    server.resume().await;
    until_delivered(&sink, &batch).await;
    all.extend(batch);
    assert_all(&own.read().await, &all);
    sink.close().await;
}
