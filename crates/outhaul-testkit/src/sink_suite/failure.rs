//! Refusals, dropped calls, and messages that come again.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use outhaul_core::message::{Defect, Message};
use outhaul_sink::Outcome;

use super::{Destination, Messages, assert_holds, by_slot, deliver, started};

/// A message that a store found undeliverable is not stored; it holds later ones of its key, and no others.
pub async fn a_defect_is_rejected_and_holds_its_key(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let first = messages.keyed("held");
    let broken = messages.of(|row| {
        row.key = Some("held".into());
        row.defect = Some(Defect::TooLarge { bytes: 5 << 20, limit: 4 << 20 });
        row.payload = bytes::Bytes::new();
    });
    let behind = messages.keyed("held");
    let other = messages.keyed("free");
    let lone = messages.of(|row| row.headers = Some("[1]".into()));
    let outcomes = outcomes(&*sink, &[&first, &broken, &behind, &other, &lone]).await;
    assert!(matches!(&outcomes[0], Outcome::Delivered(_)), "{outcomes:?}");
    assert!(matches!(&outcomes[1], Outcome::Rejected(r) if r.code.starts_with("OUT-")), "{outcomes:?}");
    assert!(matches!(&outcomes[2], Outcome::Retry { .. }), "{outcomes:?}");
    assert!(matches!(&outcomes[3], Outcome::Delivered(_)), "{outcomes:?}");
    assert!(matches!(&outcomes[4], Outcome::Rejected(_)), "{outcomes:?}");
    assert_holds(destination, &[first, other]).await;
    sink.close().await;
}

/// What the destination itself refuses (here: more than its columns take, where it has columns) holds its key.
pub async fn what_is_refused_holds_its_key(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let batch = [
        messages.keyed("held"),
        messages.of(|row| {
            row.key = Some("held".into());
            row.id = "long-".repeat(200);
        }),
        messages.keyed("held"),
        messages.keyed("free"),
        messages.keyed("held"),
    ];
    let outcomes = outcomes(&*sink, &batch.each_ref()).await;
    let delivered = |i: usize| matches!(&outcomes[i], Outcome::Delivered(_));
    assert!(delivered(0) && delivered(3), "{outcomes:?}");
    match &outcomes[1] {
        Outcome::Delivered(_) => {
            assert!(delivered(2) && delivered(4), "{outcomes:?}");
            assert_holds(destination, &batch).await;
        }
        Outcome::Rejected(reason) => {
            assert!(reason.code.starts_with("OUT-") && !reason.text.is_empty(), "{outcomes:?}");
            assert!([2, 4].iter().all(|i| matches!(&outcomes[*i], Outcome::Retry { .. })), "{outcomes:?}");
            let [first, _, second, free, third] = batch;
            assert_holds(destination, &[first.clone(), free.clone()]).await;
            // The operator skipped it: the rest of the key flows.
            let rest = [second.clone(), third.clone()];
            deliver(&*sink, &rest).await;
            assert_holds(destination, &[first, free, second, third]).await;
        }
        other => panic!("{other:?}"),
    }
    sink.close().await;
}

/// Calls that are dropped after any number of polls, as when their time limit is over; each batch is sent again.
pub async fn a_dropped_call_leaves_it_usable(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let mut all = Vec::new();
    for polls in (0..16).chain(0..16) {
        let batch = messages.many(40, 3);
        for (slot, of_slot) in by_slot(&*sink, &batch) {
            dropped_after(polls, sink.send(slot, &of_slot)).await;
        }
        deliver(&*sink, &batch).await;
        all.extend(batch);
    }
    assert_holds(destination, &all).await;
    sink.close().await;
}

/// Sent again after it was delivered: delivered.
pub async fn the_same_ids_again(destination: &dyn Destination) {
    let sink = started(destination).await;
    let messages = Messages::default().many(90, 9);
    deliver(&*sink, &messages).await;
    let (mut again, mut duplicates) = (0, 0);
    for (slot, batch) in by_slot(&*sink, &messages) {
        for outcome in sink.send(slot, &batch).await {
            let Outcome::Delivered(receipt) = outcome else { panic!("{outcome:?}") };
            again += 1;
            duplicates += usize::from(receipt.detail == "duplicate");
        }
    }
    let told = if destination.drops_copies() { messages.len() } else { 0 };
    assert_eq!((again, duplicates), (messages.len(), told));
    assert_holds(destination, &messages).await;
    sink.close().await;
}

/// A sink that was dropped without a farewell, with a call under way; the next process goes on.
pub async fn after_a_crash_it_goes_on(destination: &dyn Destination) {
    let mut messages = Messages::default();
    let mut all = Vec::new();
    for round in 0..4 {
        let sink = started(destination).await;
        let batch = messages.many(60, 5);
        let (done, under_way) = batch.split_at(30);
        deliver(&*sink, done).await;
        for (slot, of_slot) in by_slot(&*sink, under_way) {
            dropped_after(1 + round, sink.send(slot, &of_slot)).await;
        }
        drop(sink);
        let sink = started(destination).await;
        deliver(&*sink, under_way).await;
        all.extend(batch);
        sink.close().await;
    }
    assert_holds(destination, &all).await;
}

/// Start is called again after a destination was down, and a closed sink may be started again.
pub async fn started_and_closed_again_and_again(destination: &dyn Destination) {
    let sink = destination.sink().await;
    let mut messages = Messages::default();
    let mut all = Vec::new();
    for round in 0..5 {
        for _ in 0..=round {
            sink.start().await.expect("the sink starts");
        }
        let batch = messages.many(10, 2);
        deliver(&*sink, &batch).await;
        all.extend(batch);
        sink.close().await;
    }
    assert_holds(destination, &all).await;
}

/// Polls a future this many times at most and drops it then.
async fn dropped_after<T>(polls: usize, call: impl Future<Output = T>) -> Option<T> {
    let mut call = pin!(call);
    let mut left = polls;
    std::future::poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Outcomes of messages that are sent in one batch a slot, in the order of the messages.
async fn outcomes(sink: &dyn outhaul_sink::Sink, messages: &[&Arc<Message>]) -> Vec<Outcome> {
    let messages: Vec<Arc<Message>> = messages.iter().map(|m| Arc::clone(m)).collect();
    let mut all = std::collections::HashMap::new();
    for (slot, batch) in by_slot(sink, &messages) {
        let outcomes = sink.send(slot, &batch).await;
        assert_eq!(outcomes.len(), batch.len(), "one outcome a message");
        all.extend(batch.into_iter().map(|m| m.position).zip(outcomes));
    }
    messages.iter().map(|m| all.remove(&m.position).expect("an outcome")).collect()
}
