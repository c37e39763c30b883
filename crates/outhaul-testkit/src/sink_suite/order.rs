//! Order, and one outcome a message.

use std::sync::Arc;

use outhaul_core::message::ShardId;
use outhaul_sink::Outcome;

use super::{Destination, Messages, assert_holds, by_slot, deliver, started};

/// Batch after batch, all is there in order.
pub async fn a_slot_is_in_order(destination: &dyn Destination) {
    let sink = started(destination).await;
    let messages = Messages::default().many(600, 7);
    for batch in messages.chunks(50) {
        deliver(&*sink, batch).await;
    }
    assert_holds(destination, &messages).await;
    sink.close().await;
}

/// Slots that are sent at the same time, each batch after the other.
pub async fn slots_are_in_order_at_the_same_time(destination: &dyn Destination) {
    let sink = started(destination).await;
    let messages = Messages::default().many(800, 40);
    let slots = by_slot(&*sink, &messages).into_iter().map(|(slot, of_slot)| {
        let sink = Arc::clone(&sink);
        tokio::spawn(async move {
            for batch in of_slot.chunks(25) {
                let outcomes = sink.send(slot, batch).await;
                assert_eq!(outcomes.len(), batch.len());
                assert!(outcomes.iter().all(|o| matches!(o, Outcome::Delivered(_))), "{outcomes:?}");
            }
        })
    });
    for slot in slots.collect::<Vec<_>>() {
        slot.await.expect("a slot");
    }
    assert_holds(destination, &messages).await;
    sink.close().await;
}

/// Several shards, each with a lane of its own to the one sink, name the same slots at the same time.
pub async fn shards_share_a_slot(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let mut all = Vec::new();
    let mut lanes = Vec::new();
    for shard in 0..6u16 {
        let of_shard: Vec<_> = (0..60)
            .map(|i| {
                messages.of(|row| {
                    row.shard = ShardId(shard);
                    row.key = Some(format!("shard-{shard}-key-{}", i % 4));
                })
            })
            .collect();
        all.extend(of_shard.clone());
        let sink = Arc::clone(&sink);
        lanes.push(tokio::spawn(async move {
            for batch in of_shard.chunks(6) {
                deliver(&*sink, batch).await;
            }
        }));
    }
    for lane in lanes {
        lane.await.expect("a lane");
    }
    assert_holds(destination, &all).await;
    sink.close().await;
}

/// The level of a delivery is the one that the sink announced, and every message has its own outcome.
pub async fn a_batch_of_one_and_of_many(destination: &dyn Destination) {
    let sink = destination.sink().await;
    let level = sink.start().await.expect("the sink starts").level;
    let messages = Messages::default().many(5_001, 100);
    let (one, many) = messages.split_at(1);
    for batch in [one, many] {
        for (slot, batch) in by_slot(&*sink, batch) {
            let outcomes = sink.send(slot, &batch).await;
            assert_eq!(outcomes.len(), batch.len());
            for outcome in outcomes {
                let Outcome::Delivered(receipt) = outcome else { panic!("{outcome:?}") };
                assert_eq!((receipt.level, receipt.attempts), (level, 1));
                assert!(receipt.sent_at_us > 1_600_000_000_000_000);
            }
        }
    }
    assert_holds(destination, &messages).await;
    sink.close().await;
}

/// Nothing to send is nothing to answer.
pub async fn a_batch_of_none(destination: &dyn Destination) {
    let sink = started(destination).await;
    assert!(sink.send(0, &[]).await.is_empty());
    assert_holds(destination, &[]).await;
    sink.close().await;
}
