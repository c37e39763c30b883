//! The design that suggests itself: 200 pending rows, send to all ten, UPDATE … SENT when all have answered.
//!
//! It is a good one of its kind: the same sinks, as many batches at a time to each, polls without a pause while rows come,
//! and it remembers which destinations have a row already, so that a failure of one repeats nothing at the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message, Position, Seq, ShardId};
use outhaul_sink::{Outcome, Sink};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::SEND_LIMIT;
use crate::latency::{key, number};
use crate::raw::{self, PendingRow};

/// Between two polls that found nothing.
const IDLE: Duration = Duration::from_micros(2_500);
/// After a poll whose rows all wait for somebody.
const STUCK: Duration = Duration::from_millis(50);

/// Delivers until it ends.
pub async fn run(url: &str, sinks: Vec<(String, Arc<dyn Sink>)>, joined: bool, ends: watch::Receiver<bool>) {
    for (name, sink) in &sinks {
        sink.start().await.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
    let mut raw = raw::connect(url).await;
    let all = (1u64 << sinks.len()) - 1;
    // By id, the destinations that have it.
    let mut have: HashMap<String, u64> = HashMap::new();
    while !*ends.borrow() {
        let mut rows = raw.pending().await;
        if rows.is_empty() {
            tokio::time::sleep(IDLE).await;
            continue;
        }
        let messages: Vec<Arc<Message>> = rows.iter().map(|row| Arc::new(message(row))).collect();
        let mut sending = JoinSet::new();
        for (n, (_, sink)) in sinks.iter().enumerate() {
            let has = |m: &&Arc<Message>| have.get(&m.id).is_some_and(|have| have & 1 << n != 0);
            let open: Vec<Arc<Message>> = messages.iter().filter(|m| !has(m)).cloned().collect();
            let sink = sink.clone();
            sending.spawn(async move { (n, send(&sink, open).await) });
            if !joined {
                note(&mut have, &mut sending).await;
            }
        }
        note(&mut have, &mut sending).await;
        rows.retain(|row| have.get(&row.id) == Some(&all));
        if rows.is_empty() {
            tokio::time::sleep(STUCK).await;
            continue;
        }
        raw.mark_sent(&rows).await;
        for row in &rows {
            have.remove(&row.id);
        }
    }
    for (_, sink) in &sinks {
        sink.close().await;
    }
}

async fn note(have: &mut HashMap<String, u64>, sending: &mut JoinSet<(usize, Vec<String>)>) {
    while let Some(sent) = sending.join_next().await {
        let (n, ids) = sent.expect("a send");
        for id in ids {
            *have.entry(id).or_default() |= 1 << n;
        }
    }
}

/// Sends to one destination, its slots at the same time; the ids that it has acknowledged.
async fn send(sink: &Arc<dyn Sink>, messages: Vec<Arc<Message>>) -> Vec<String> {
    let mut slots: HashMap<u32, Vec<Arc<Message>>> = HashMap::new();
    for message in messages {
        slots.entry(sink.slotting().slot(&message)).or_default().push(message);
    }
    let mut sending = JoinSet::new();
    for (slot, messages) in slots {
        let sink = sink.clone();
        sending.spawn(async move {
            let outcomes = tokio::time::timeout(SEND_LIMIT, sink.send(slot, &messages)).await.unwrap_or_default();
            (messages, outcomes)
        });
    }
    let (mut ids, mut down) = (Vec::new(), false);
    while let Some(sent) = sending.join_next().await {
        let (messages, outcomes) = sent.expect("a send");
        for (message, outcome) in messages.iter().zip(outcomes) {
            match outcome {
                Outcome::Delivered(_) => ids.push(message.id.clone()),
                Outcome::DestinationDown(_) => down = true,
                _ => {}
            }
        }
    }
    if down {
        _ = tokio::time::timeout(SEND_LIMIT, sink.start()).await; // It is sent to again whatever this says.
    }
    ids
}

fn message(row: &PendingRow) -> Message {
    let n = number(&row.id).expect("the id of a row");
    Message {
        position: Position(n as u64),
        seq: Seq(n as u64),
        shard: ShardId(0),
        id: row.id.clone(),
        topic: "order-created".into(),
        key: Some(key(n)),
        headers: None,
        payload: row.payload.clone().into(),
        created_at_us: 0,
        destinations: DestinationSet::EMPTY,
        defect: None,
    }
}
