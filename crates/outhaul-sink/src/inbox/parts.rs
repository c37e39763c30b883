//! A batch on its way into an inbox: which messages go in one call, and what became of each.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use outhaul_core::message::Message;
use outhaul_core::receipt::Outcome;
use outhaul_store::inbox::{InboxMessage, InboxOutcome};
use outhaul_store::{StoreError, StoreErrorKind};

use super::outcome::{behind, miscounted, of_answer, of_error, rejected, too_large};

/// How often a batch is tried again at once after a deadlock.
const CONFLICT_TRIES: u32 = 3;

/// Stores messages in one transaction.
#[async_trait]
pub(super) trait Deliver: Sync {
    async fn deliver(&self, messages: &[InboxMessage]) -> Result<Vec<InboxOutcome>, StoreError>;
}

/// Delivers a batch, in halves where the server finds it too large as a whole.
pub(super) async fn deliver_all(to: &impl Deliver, messages: &[Arc<Message>], now_us: fn() -> i64) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; messages.len()];
    let mut held_keys: HashSet<&str> = HashSet::new();
    // Parts that are still to be delivered, the next one last. Each halving adds one; there is no end to a part of one.
    let mut todo: Vec<Range<usize>> = std::iter::once(0..messages.len()).collect();
    while let Some(part) = todo.pop() {
        let batch = choose(messages, part.clone(), &mut held_keys, &mut outcomes);
        if batch.is_empty() {
            continue;
        }
        match deliver_part(to, messages, &batch).await {
            Ok(answers) if answers.len() == batch.len() => {
                let sent_at_us = now_us();
                for (index, answer) in batch.into_iter().zip(answers) {
                    settle(messages, index, of_answer(answer, sent_at_us), &mut held_keys, &mut outcomes);
                }
            }
            Ok(_) => return fill(outcomes, &miscounted()),
            Err(error) if error.kind == StoreErrorKind::TooLarge => match batch.as_slice() {
                [index] => settle(messages, *index, too_large(&error), &mut held_keys, &mut outcomes),
                _ => {
                    let middle = batch.get(batch.len() / 2).copied().unwrap_or(part.end);
                    todo.extend([middle..part.end, part.start..middle]);
                }
            },
            Err(error) => return fill(outcomes, &of_error(&error)),
        }
    }
    fill(outcomes, &miscounted())
}

/// The messages of a part that can go now. What cannot has its outcome afterwards.
fn choose<'a>(
    messages: &'a [Arc<Message>],
    part: Range<usize>,
    held_keys: &mut HashSet<&'a str>,
    outcomes: &mut [Option<Outcome>],
) -> Vec<usize> {
    let mut batch = Vec::with_capacity(part.len());
    for index in part {
        let Some(message) = messages.get(index) else { continue };
        if outcomes.get(index).is_none_or(Option::is_some) {
            continue; // settled before its part was halved
        }
        if message.key.as_deref().is_some_and(|key| held_keys.contains(key)) {
            settle(messages, index, behind(), held_keys, outcomes);
        } else if let Some(defect) = &message.defect {
            settle(messages, index, rejected(defect), held_keys, outcomes);
        } else {
            batch.push(index);
        }
    }
    batch
}

fn settle<'a>(
    messages: &'a [Arc<Message>],
    index: usize,
    outcome: Outcome,
    held_keys: &mut HashSet<&'a str>,
    outcomes: &mut [Option<Outcome>],
) {
    if !matches!(outcome, Outcome::Delivered(_)) {
        held_keys.extend(messages.get(index).and_then(|m| m.key.as_deref()));
    }
    if let Some(place) = outcomes.get_mut(index) {
        *place = Some(outcome);
    }
}

fn fill(outcomes: Vec<Option<Outcome>>, with: &Outcome) -> Vec<Outcome> {
    outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| with.clone())).collect()
}

async fn deliver_part(
    to: &impl Deliver,
    messages: &[Arc<Message>],
    batch: &[usize],
) -> Result<Vec<InboxOutcome>, StoreError> {
    let rows: Vec<InboxMessage> = batch.iter().filter_map(|index| messages.get(*index)).map(|m| row(m)).collect();
    let mut tries = 0;
    loop {
        match to.deliver(&rows).await {
            Err(error) if error.kind == StoreErrorKind::Conflict && tries < CONFLICT_TRIES => tries += 1,
            answer => return answer,
        }
    }
}

fn row(message: &Message) -> InboxMessage {
    InboxMessage {
        id: message.id.clone(),
        topic: message.topic.clone(),
        key: message.key.clone(),
        headers: message.headers.clone(),
        payload: message.payload.clone(),
        position: format!("{}:{}", message.shard, message.position),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use bytes::Bytes;
    use outhaul_core::destination::DestinationSet;
    use outhaul_core::message::{Defect, Position, Row, Seq, ShardId};
    use outhaul_core::receipt::Receipt;

    use super::*;

    /// A database with a packet limit, which refuses ids that begin with `bad`, and fails as told before anything else.
    #[derive(Default)]
    struct Model {
        packet_bytes: usize,
        failures: Mutex<Vec<StoreErrorKind>>,
        stored: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Deliver for Model {
        async fn deliver(&self, messages: &[InboxMessage]) -> Result<Vec<InboxOutcome>, StoreError> {
            if let Some(kind) = self.failures.lock().unwrap().pop() {
                return Err(StoreError::new(kind, "as told"));
            }
            if messages.iter().map(|m| m.payload.len()).sum::<usize>() > self.packet_bytes {
                return Err(StoreError::new(StoreErrorKind::TooLarge, "packet"));
            }
            let mut stored = self.stored.lock().unwrap();
            let answer = |m: &InboxMessage| {
                if m.id.starts_with("bad") {
                    return InboxOutcome::Refused("bad id".into());
                }
                stored.push(m.id.clone());
                InboxOutcome::Stored
            };
            Ok(messages.iter().map(answer).collect())
        }
    }

    fn message(id: &str, key: &str, bytes: usize) -> Arc<Message> {
        let row = Row {
            seq: Seq(1),
            shard: ShardId(0),
            id: id.into(),
            topic: "t".into(),
            key: Some(key.into()),
            headers: None,
            payload: Bytes::from(vec![b'x'; bytes]),
            created_at_us: 0,
            defect: None,
        };
        Arc::new(Message::from_row(row, Position(0), DestinationSet::EMPTY))
    }

    async fn words(model: &Model, messages: &[Arc<Message>]) -> Vec<&'static str> {
        let word = |o| match o {
            Outcome::Delivered(Receipt { .. }) => "delivered",
            Outcome::Retry { .. } => "retry",
            Outcome::Rejected(_) => "rejected",
            Outcome::DestinationDown(_) => "down",
            Outcome::Held { .. } => "held",
            Outcome::Unknown(_) => "unknown",
        };
        deliver_all(model, messages, || 5).await.into_iter().map(word).collect()
    }

    #[tokio::test]
    async fn a_batch_over_the_packet_limit_goes_in_order_in_halves() {
        let model = Model { packet_bytes: 100, ..Model::default() };
        let mut batch: Vec<_> = (0..13).map(|i| message(&format!("m{i}"), &format!("k{}", i % 3), 40)).collect();
        batch.insert(5, message("huge", "k1", 101));
        let outcomes = words(&model, &batch).await;
        // m7 and m10 have the key of the huge one and come after it.
        for (m, outcome) in batch.iter().zip(&outcomes) {
            let expected = match m.id.as_str() {
                "huge" => "rejected",
                "m7" | "m10" => "retry",
                _ => "delivered",
            };
            assert_eq!(*outcome, expected, "{}", m.id);
        }
        let stored = model.stored.lock().unwrap().clone();
        let expected = batch.iter().map(|m| m.id.clone()).filter(|id| !["huge", "m7", "m10"].contains(&id.as_str()));
        assert_eq!(stored, expected.collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_defect_holds_its_key_only() {
        let model = Model { packet_bytes: 100, ..Model::default() };
        let mut broken = Message::clone(&message("b", "k", 1));
        broken.defect = Some(Defect::NoTopic);
        let batch = [message("a", "k", 1), Arc::new(broken), message("c", "k", 1), message("d", "l", 1)];
        assert_eq!(words(&model, &batch).await, ["delivered", "rejected", "retry", "delivered"]);
        assert_eq!(*model.stored.lock().unwrap(), ["a", "d"]);
    }

    #[tokio::test]
    async fn errors_are_for_all_that_were_not_settled() {
        for (failures, expected) in [
            (vec![StoreErrorKind::Conflict; 3], ["delivered", "delivered"]),
            (vec![StoreErrorKind::Conflict; 4], ["down", "down"]),
            (vec![StoreErrorKind::CommitUnknown], ["unknown", "unknown"]),
            (vec![StoreErrorKind::Unavailable], ["down", "down"]),
            (vec![StoreErrorKind::Unavailable, StoreErrorKind::TooLarge], ["down", "down"]),
        ] {
            let model = Model { packet_bytes: 100, failures: Mutex::new(failures), ..Model::default() };
            assert_eq!(words(&model, &[message("a", "k", 1), message("b", "k", 1)]).await, expected);
        }
    }
}
