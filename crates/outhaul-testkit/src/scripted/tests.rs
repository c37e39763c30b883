//! The scripted destination does what it is told.

use bytes::Bytes;
use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Row, Seq};

use super::*;

fn message(id: &str, key: &str) -> Arc<Message> {
    let row = Row {
        seq: Seq(1),
        shard: ShardId(0),
        id: id.into(),
        topic: "t".into(),
        key: Some(key.into()),
        headers: None,
        payload: Bytes::new(),
        created_at_us: 0,
        defect: None,
    };
    Arc::new(Message::from_row(row, Position(0), DestinationSet::EMPTY))
}

fn words(outcomes: &[Outcome]) -> Vec<&'static str> {
    let word = |o: &Outcome| match o {
        Outcome::Delivered(_) => "delivered",
        Outcome::Retry { .. } => "retry",
        Outcome::Rejected(_) => "rejected",
        Outcome::DestinationDown(_) => "down",
        Outcome::Held { .. } => "held",
        Outcome::Unknown(_) => "unknown",
    };
    outcomes.iter().map(word).collect()
}

#[tokio::test]
async fn answers_as_told_and_keeps_order_per_key() {
    let sink = ScriptedSink::single();
    sink.script("a", [Answer::Retry { after_ms: None }, Answer::Unknown { stored: true }]);
    sink.script("x", [Answer::Twice]);
    let batch = [message("a", "k"), message("b", "k"), message("x", "l")];
    assert_eq!(words(&sink.send(0, &batch).await), ["retry", "retry", "delivered"]);
    assert_eq!(words(&sink.send(0, &batch).await), ["unknown", "retry", "delivered"]);
    assert_eq!(words(&sink.send(0, &batch).await), ["delivered"; 3]);
    let attempts: Vec<_> = sink.received().iter().map(|r| (r.message.id.clone(), r.attempt)).collect();
    let expected = [("a", 1), ("x", 1), ("x", 1), ("a", 2), ("x", 2), ("a", 3), ("b", 1), ("x", 3)];
    assert_eq!(attempts, expected.map(|(id, n)| (id.to_owned(), n)));
    assert_eq!(sink.stored_ids(), ["x", "a", "b"]);
    assert_eq!(sink.duplicates(), 4);
    sink.wait_stored(7).await;
}

#[tokio::test]
async fn late_answers_wait_for_their_gate_and_dropped_calls_are_over() {
    let sink = ScriptedSink::single();
    sink.script("a", [Answer::late(), Answer::Never { stored: false }]);
    let batch = [message("a", "k")];
    let late = tokio::spawn({
        let (sink, batch) = (sink.clone(), batch.clone());
        async move { sink.send(0, &batch).await }
    });
    sink.wait_received(1).await;
    assert!(!late.is_finished());
    assert_eq!((sink.overlaps().len(), sink.most_under_way()), (0, 1));
    sink.open_gates();
    assert_eq!(words(&late.await.unwrap()), ["delivered"]);

    let never = tokio::spawn({
        let (sink, batch) = (sink.clone(), batch.clone());
        async move { sink.send(0, &batch).await }
    });
    sink.wait_received(2).await;
    sink.send(0, &[message("b", "k")]).await;
    assert_eq!(sink.overlaps(), [(ShardId(0), 0)]);
    never.abort();
    assert!(never.await.unwrap_err().is_cancelled());
    assert_eq!(words(&sink.send(0, &batch).await), ["delivered"]);
    assert_eq!(sink.overlaps().len(), 1);
}

#[tokio::test]
async fn panics_and_failing_starts() {
    let sink = ScriptedSink::single();
    sink.script_by(|m, attempt| (m.id == "a" && attempt == 1).then_some(Answer::Panics));
    sink.fail_start(true);
    assert!(sink.start().await.is_err_and(|e| e.passes));
    assert!(sink.start().await.is_ok());
    let batch = [message("a", "k")];
    let call = tokio::spawn({
        let (sink, batch) = (sink.clone(), batch.clone());
        async move { sink.send(0, &batch).await }
    });
    assert!(call.await.unwrap_err().is_panic());
    assert_eq!(words(&sink.send(0, &batch).await), ["delivered"]);
    sink.otherwise(Answer::Down);
    assert_eq!(words(&sink.send(0, &batch).await), ["down"]);
    assert_eq!(sink.starts(), 2);
}

#[tokio::test]
async fn it_forgets_what_is_not_flushed_and_says_so() {
    let sink = ScriptedSink::single();
    sink.proves_later(true);
    assert!(sink.start().await.unwrap().proves_later);
    let batch = [message("a", "k"), message("b", "k"), message("c", "k")];
    let mut shown = Vec::new();
    for (n, (m, outcome)) in batch.iter().zip(sink.send(0, &batch).await).enumerate() {
        let Outcome::Delivered(receipt) = outcome else { panic!("{outcome:?}") };
        let (shard, position, id) = (ShardId(0), Position(n as u64), m.id.clone());
        shown.push(Acknowledged { comparison: 1, shard, position, id, receipt });
        if n == 0 {
            sink.flush(); // All three: they were stored by one call.
        }
    }
    let receipts: Vec<Receipt> = shown.iter().map(|a| a.receipt.clone()).collect();
    assert_eq!(sink.prove(&receipts).await.unwrap(), [true; 3]);
    sink.send(0, &[message("d", "k")]).await;
    assert_eq!(sink.crash(), ["d"]);
    assert_eq!(words(&sink.send(0, &batch).await), ["down"; 3]);
    assert!(sink.prove(&receipts).await.is_err());
    sink.start().await.unwrap();
    sink.forget(&["b"]);
    assert_eq!(sink.stored_ids(), ["a", "c"]);
    let verified = sink.verify(&shown).await.unwrap();
    assert_eq!((verified.forgotten, verified.older), (vec![Position(1)], false));
    sink.fail_verify(true);
    assert!(sink.verify(&shown).await.is_err_and(|e| e.passes));
    sink.send(0, &[message("b", "k")]).await;
    assert_eq!(sink.verify(&shown).await.unwrap(), Verified::default());
    assert_eq!(sink.verified().len(), 2);
}
