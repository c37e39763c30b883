//! The contract of `Sink`, case by case: every destination passes all of it.
//!
//! A destination's tests say `outhaul_testkit::sink_suite!(make());`, where `make` is an async function that gives a
//! fresh, empty [`Destination`], and get one `#[tokio::test]` a case. A new case is a `pub async fn` in one of the
//! themes, and its name in the list below.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message, Position, Row, Seq, ShardId};
use outhaul_sink::{Outcome, Sink};

pub mod content;
pub mod failure;
pub mod order;

/// One `#[tokio::test]` for each case of the suite.
#[macro_export]
macro_rules! sink_suite {
    ($make:expr) => {
        $crate::sink_suite!(@cases $make;
            order::a_slot_is_in_order,
            order::slots_are_in_order_at_the_same_time,
            order::shards_share_a_slot,
            order::a_batch_of_one_and_of_many,
            order::a_batch_of_none,
            content::anything_comes_back_as_it_was,
            content::an_empty_key_is_not_the_same_as_none,
            content::a_large_message,
            content::ids_and_keys_compare_by_bytes,
            failure::a_defect_is_rejected_and_holds_its_key,
            failure::what_is_refused_holds_its_key,
            failure::a_dropped_call_leaves_it_usable,
            failure::the_same_ids_again,
            failure::after_a_crash_it_goes_on,
            failure::started_and_closed_again_and_again,
        );
    };
    (@cases $make:expr; $($theme:ident::$case:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let destination = $make.await;
                $crate::sink_suite::$theme::$case(&destination).await;
            }
        )*
    };
}

/// What a destination holds, read back without the sink.
#[async_trait]
pub trait Reader: Send + Sync {
    /// All of it, in the order in which a consumer gets it, copies included.
    async fn read(&self) -> Vec<Held>;
}

/// A place to deliver to, of one test alone.
#[async_trait]
pub trait Destination: Reader {
    /// A sink that delivers to it, as a new process would make one; not started.
    async fn sink(&self) -> Arc<dyn Sink>;

    /// Whether it keeps one copy of a message that is sent again.
    fn drops_copies(&self) -> bool;

    /// Whether it can hold such a message at all. What it cannot hold must be refused for good, with a reason.
    fn takes(&self, message: &Message) -> bool {
        let _ = message;
        true
    }
}

/// A message as a destination holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Id.
    pub id: String,
    /// Topic.
    pub topic: String,
    /// Key.
    pub key: Option<String>,
    /// Headers, by name.
    pub headers: Vec<(String, String)>,
    /// Payload.
    pub payload: Vec<u8>,
    /// `SHARD:POSITION`.
    pub place: String,
    /// `created_at` in microseconds since 1970-01-01 UTC, where the destination keeps it.
    pub created_at_us: Option<i64>,
}

/// Messages for one run of a case, with ids and positions of their own.
#[derive(Debug, Default)]
pub struct Messages {
    next: u64,
}

impl Messages {
    /// A message with a key and a small payload.
    pub fn keyed(&mut self, key: &str) -> Arc<Message> {
        self.of(|row| row.key = Some(key.to_owned()))
    }

    /// This many messages over this many keys.
    pub fn many(&mut self, count: usize, keys: usize) -> Vec<Arc<Message>> {
        (0..count).map(|i| self.keyed(&format!("key-{}", i % keys.max(1)))).collect()
    }

    /// A message of a row that the caller changes: without key, headers or defect.
    pub fn of(&mut self, change: impl FnOnce(&mut Row)) -> Arc<Message> {
        let number = self.next;
        self.next += 1;
        let mut row = Row {
            seq: Seq(number),
            shard: ShardId(0),
            id: format!("id-{number}"),
            topic: "order-created".into(),
            key: None,
            headers: None,
            payload: Bytes::from(format!("{{\"number\": {number}}}")),
            created_at_us: 1_700_000_000_000_000 + number as i64,
            defect: None,
        };
        change(&mut row);
        Arc::new(Message::from_row(row, Position(number), DestinationSet::EMPTY))
    }
}

/// Starts a sink.
async fn started(destination: &dyn Destination) -> Arc<dyn Sink> {
    let sink = destination.sink().await;
    sink.start().await.expect("the sink starts");
    sink
}

/// Sends a batch, each message in its slot, one call a slot after the other; all must be delivered. As a lane does, it
/// sends again from the first one that was not stored for a reason that passes (a lock, a busy machine).
async fn deliver(sink: &dyn Sink, messages: &[Arc<Message>]) {
    const TRIES: u32 = 100;
    for (slot, batch) in by_slot(sink, messages) {
        let mut rest = batch.as_slice();
        for n in 1.. {
            let outcomes = sink.send(slot, rest).await;
            assert_eq!(outcomes.len(), rest.len(), "one outcome a message");
            let Some(failed) = outcomes.iter().position(|o| !matches!(o, Outcome::Delivered(_))) else { break };
            let passes =
                matches!(outcomes[failed], Outcome::Retry { .. } | Outcome::Held { .. } | Outcome::DestinationDown(_));
            assert!(passes && n < TRIES, "{:?}", outcomes[failed]);
            let stored_behind = outcomes[failed..].iter().any(|o| matches!(o, Outcome::Delivered(_)));
            assert!(!stored_behind, "one behind it was stored: {outcomes:?}");
            rest = &rest[failed..];
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

/// Messages by their slot, slots by number.
fn by_slot(sink: &dyn Sink, messages: &[Arc<Message>]) -> Vec<(u32, Vec<Arc<Message>>)> {
    let mut slots: Vec<(u32, Vec<Arc<Message>>)> = Vec::new();
    for message in messages {
        let slot = sink.slotting().slot(message);
        match slots.iter_mut().find(|(s, _)| *s == slot) {
            Some((_, batch)) => batch.push(Arc::clone(message)),
            None => slots.push((slot, vec![Arc::clone(message)])),
        }
    }
    slots.sort_by_key(|(slot, _)| *slot);
    slots
}

/// What a destination must hold of a message.
fn expected(message: &Message, held: &Held) -> Held {
    let mut headers = message.header_pairs();
    headers.sort();
    Held {
        id: message.id.clone(),
        topic: message.topic.clone(),
        key: message.key.clone(),
        headers,
        payload: message.payload.to_vec(),
        place: format!("{}:{}", message.shard, message.position),
        created_at_us: held.created_at_us.map(|_| message.created_at_us),
    }
}

/// Asserts that the destination holds exactly these messages, in order per key after copies are dropped, and no copies
/// where it drops them.
async fn assert_holds(destination: &dyn Destination, messages: &[Arc<Message>]) {
    let held = destination.read().await;
    let mut seen = HashSet::new();
    let first: Vec<&Held> = held.iter().filter(|h| seen.insert(h.id.clone())).collect();
    if destination.drops_copies() {
        assert_eq!(first.len(), held.len(), "copies");
    }
    let sent: HashMap<&str, &Message> = messages.iter().map(|m| (m.id.as_str(), &**m)).collect();
    for held in &held {
        let message = sent.get(held.id.as_str()).unwrap_or_else(|| panic!("{} was not sent", held.id));
        let mut held = held.clone();
        held.headers.sort();
        assert_eq!(held, expected(message, &held));
    }
    let mut order: HashMap<&Option<String>, Vec<&str>> = HashMap::new();
    for message in messages {
        order.entry(&message.key).or_default().push(&message.id);
    }
    for (key, sent) in order {
        let mut got: Vec<&str> = first.iter().filter(|h| h.key == *key).map(|h| h.id.as_str()).collect();
        let mut sent = sent;
        if key.is_none() {
            // No order is promised without a key.
            got.sort_unstable();
            sent.sort_unstable();
        }
        assert_eq!(got, sent, "{key:?}");
    }
}
