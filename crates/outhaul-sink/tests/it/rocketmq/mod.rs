//! RocketMQ, on real brokers of both generations.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outhaul_core::destination::DestinationSet;
use outhaul_core::message::{Message, Position, Row, Seq, ShardId};
use outhaul_sink::rocketmq::{RocketMqConfig, RocketMqSink};
use outhaul_sink::{AckLevel, Acknowledged, Outcome, Receipt, Sink};
use outhaul_testkit::servers::rocketmq::{RocketMq, topic_name};
use outhaul_testkit::sink_suite::{Destination, Held, Reader};
use rocketmq_remoting::client::{Admin, Client, ClientOptions, Consumer, PullOptions, Where};
use rocketmq_remoting::message::{MessageQueue, StoredMessage, is_reserved};
use rocketmq_remoting::request::CreateTopic;

mod answers;
mod content;
mod demands;
mod forgotten;
mod missing;
mod topics;

/// Topics of one test, which begin with a prefix of its own.
struct Topics {
    namesrv: String,
    prefix: String,
}

impl Topics {
    fn shared(version: RocketMq) -> Self {
        Self::at(version.namesrv())
    }

    fn at(namesrv: impl Into<String>) -> Self {
        Self { namesrv: namesrv.into(), prefix: format!("{}-", topic_name()) }
    }

    fn config(&self) -> RocketMqConfig {
        let mut config = RocketMqConfig::new(&*self.namesrv);
        config.topic_prefix.clone_from(&self.prefix);
        config.create_topics = true;
        config.request_limit_ms = 5_000; // the machine is shared
        config
    }

    fn sink(&self, require_ack: Option<AckLevel>, change: impl FnOnce(&mut RocketMqConfig)) -> RocketMqSink {
        let mut config = self.config();
        change(&mut config);
        RocketMqSink::new(config, require_ack)
    }

    async fn started(&self, change: impl FnOnce(&mut RocketMqConfig)) -> RocketMqSink {
        let sink = self.sink(None, change);
        sink.start().await.expect("the sink starts");
        sink
    }

    fn client(&self) -> Client {
        Client::new(ClientOptions::new(&self.namesrv).unwrap().request_limit(Duration::from_secs(5)))
    }

    fn topic(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    async fn create(&self, name: &str, queues: u16) -> Vec<MessageQueue> {
        let client = self.client();
        let topic = self.topic(name);
        Admin::new(&client).create_topic(&CreateTopic::new(&*topic, queues), &Where::Everywhere).await.unwrap();
        client.route(&topic).await.unwrap().queues().to_vec()
    }

    /// All messages of a topic, queue after queue.
    async fn stored(&self, name: &str) -> Vec<StoredMessage> {
        let client = self.client();
        let consumer = Consumer::new(&client, "outhaul-test").unwrap();
        let Ok(route) = client.route(&self.topic(name)).await else { return Vec::new() };
        let mut all = Vec::new();
        for queue in route.read_queues() {
            all.extend(stored(&consumer, queue).await);
        }
        all
    }
}

/// All messages of a queue. The index lags a little behind acknowledgements on 5.x; a long poll would be answered only
/// every 5 s.
async fn stored(consumer: &Consumer, queue: &MessageQueue) -> Vec<StoredMessage> {
    let options = PullOptions { max_messages: 512, suspend: Duration::ZERO, ..PullOptions::default() };
    let (mut all, mut offset) = (Vec::new(), consumer.client().min_offset(queue).await.unwrap());
    let mut empty = 0;
    while empty < 3 {
        let answer = consumer.pull(queue, offset, &options).await.unwrap().answer;
        if answer.messages.is_empty() && answer.next_offset == offset {
            empty += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        offset = answer.next_offset;
        all.extend(answer.messages);
    }
    all
}

fn held(message: &StoredMessage, prefix: &str) -> Held {
    let get = |name| message.properties.get(name).map(str::to_owned);
    let left_over: serde_json::Value = get("outhaul-json").map_or_else(Default::default, |t| t.parse().unwrap());
    let member = |name: &str| left_over[name].as_str().map(str::to_owned);
    let properties = message.properties.iter().filter(|(name, _)| !is_reserved(name) && !name.starts_with("outhaul-"));
    let mut headers: Vec<(String, String)> = properties.map(|(n, v)| (n.to_owned(), v.to_owned())).collect();
    headers.extend(get("outhaul-trace").map(|v| ("outhaul-trace".to_owned(), v)));
    let odd = left_over["headers"].as_object().into_iter().flatten();
    headers.extend(odd.map(|(n, v)| (n.clone(), v.as_str().unwrap().to_owned())));
    Held {
        id: get("outhaul-id").or_else(|| member("id")).unwrap(),
        topic: message.topic.strip_prefix(prefix).unwrap().to_owned(),
        key: get("outhaul-key").or_else(|| member("key")),
        headers,
        payload: message.body().unwrap().to_vec(),
        place: get("outhaul-position").unwrap(),
        created_at_us: None,
    }
}

#[async_trait]
impl Reader for Topics {
    async fn read(&self) -> Vec<Held> {
        let mut all = self.stored("order-created").await;
        all.extend(self.stored("percent%_").await);
        all.iter().map(|m| held(m, &self.prefix)).collect()
    }
}

#[async_trait]
impl Destination for Topics {
    async fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(self.sink(None, |_| ()))
    }

    fn drops_copies(&self) -> bool {
        false
    }

    fn takes(&self, message: &Message) -> bool {
        let topic = message.topic.bytes().all(|b| b.is_ascii_alphanumeric() || b"%|_-".contains(&b));
        topic && message.topic.len() + self.prefix.len() <= 127 && !message.payload.is_empty()
    }
}

/// A message of shard 3 to the topic `orders`.
fn message(number: u64, change: impl FnOnce(&mut Row)) -> Arc<Message> {
    let mut row = Row {
        seq: Seq(number),
        shard: ShardId(3),
        id: format!("id-{number}"),
        topic: "orders".into(),
        key: Some(format!("key-{}", number % 7)),
        headers: None,
        payload: format!("{{\"number\": {number}}}").into(),
        created_at_us: 1_700_000_000_000_000,
        defect: None,
    };
    change(&mut row);
    Arc::new(Message::from_row(row, Position(number), DestinationSet::EMPTY))
}

fn many(numbers: std::ops::Range<u64>) -> Vec<Arc<Message>> {
    numbers.map(|n| message(n, |_| ())).collect()
}

/// Sends in order, each in its slot; outcomes by message.
async fn send(sink: &RocketMqSink, messages: &[Arc<Message>]) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; messages.len()];
    let slot = |m: &Message| sink.slotting().slot(m);
    let mut slots: Vec<u32> = messages.iter().map(|m| slot(m)).collect();
    slots.sort_unstable();
    slots.dedup();
    for s in slots {
        let of_slot: Vec<usize> = (0..messages.len()).filter(|i| slot(&messages[*i]) == s).collect();
        let batch: Vec<_> = of_slot.iter().map(|i| Arc::clone(&messages[*i])).collect();
        let answers = sink.send(s, &batch).await;
        assert_eq!(answers.len(), batch.len());
        of_slot.into_iter().zip(answers).for_each(|(i, answer)| outcomes[i] = Some(answer));
    }
    outcomes.into_iter().map(Option::unwrap).collect()
}

fn receipts(outcomes: &[Outcome]) -> Vec<Receipt> {
    let receipt = |o: &Outcome| match o {
        Outcome::Delivered(receipt) => receipt.clone(),
        other => panic!("{other:?}"),
    };
    outcomes.iter().map(receipt).collect()
}

async fn delivered(sink: &RocketMqSink, messages: &[Arc<Message>]) -> Vec<Receipt> {
    receipts(&send(sink, messages).await)
}

/// As one comparison shows them.
fn acknowledged(messages: &[Arc<Message>], receipts: &[Receipt]) -> Vec<Acknowledged> {
    static COMPARISONS: AtomicU64 = AtomicU64::new(1);
    let comparison = COMPARISONS.fetch_add(1, Ordering::Relaxed);
    let one = |(m, r): (&Arc<Message>, &Receipt)| Acknowledged {
        comparison,
        shard: m.shard,
        position: m.position,
        id: m.id.clone(),
        receipt: r.clone(),
    };
    messages.iter().zip(receipts).map(one).collect()
}

/// Word and code of an outcome.
fn word(outcome: &Outcome) -> (&'static str, &'static str) {
    match outcome {
        Outcome::Delivered(_) => ("delivered", ""),
        Outcome::Retry { reason, .. } => ("retry", reason.code),
        Outcome::Rejected(reason) => ("rejected", reason.code),
        Outcome::DestinationDown(reason) => ("down", reason.code),
        Outcome::Held { reason, after_ms: None } => ("held", reason.code),
        Outcome::Held { reason, .. } => ("wait", reason.code),
        Outcome::Unknown(reason) => ("unknown", reason.code),
    }
}

fn text(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Delivered(receipt) => &receipt.detail,
        Outcome::Retry { reason, .. }
        | Outcome::Held { reason, .. }
        | Outcome::Rejected(reason)
        | Outcome::DestinationDown(reason)
        | Outcome::Unknown(reason) => &reason.text,
    }
}

/// The conformance suite, and the cases of this folder's files that need nothing but the shared broker.
macro_rules! on {
    ($name:ident, $version:ident; $($theme:ident::$case:ident,)*) => {
        mod $name {
            use outhaul_testkit::servers::rocketmq::RocketMq;

            async fn make() -> super::Topics {
                super::Topics::shared(RocketMq::$version)
            }
            outhaul_testkit::sink_suite!(make());
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$theme::$case(RocketMq::$version).await;
                }
            )*
        }
    };
}

macro_rules! on_both {
    ($($name:ident, $version:ident;)*) => {
        $(on! { $name, $version;
            content::ids_keys_and_tags_are_those_that_tools_look_for,
            content::keys_go_where_java_sends_them,
            content::a_delay_is_kept_or_refused,
            content::a_batch_goes_in_few_requests,
            content::a_key_in_two_topics_stays_in_order,
            content::slots_that_share_a_queue_get_their_own_receipts,
            content::what_is_too_large_is_named,
            topics::an_unknown_topic_fails_and_is_not_created,
            topics::a_topic_that_may_not_be_written,
            topics::validate_tells_all_of_it,
            demands::what_cannot_be_proven_is_not_started,
            demands::the_barrier_proves_a_lone_message,
        })*
    };
}

on_both! {
    four, V4;
    five, V5;
}
