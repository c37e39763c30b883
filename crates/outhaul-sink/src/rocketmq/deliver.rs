//! One call of `send`: from a slot's messages to requests, and from answers to outcomes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use outhaul_core::message::Message as OutboxMessage;
use outhaul_core::receipt::{AckLevel, Outcome, Reason};
use rocketmq_remoting::Error;
use rocketmq_remoting::client::{SendOptions, Sent};
use rocketmq_remoting::message::{BatchBuilder, Message, MessageError, MessageQueue, check_topic_for_sending};
use rocketmq_remoting::request::SendStatus;
use tokio::time::{Instant, sleep, timeout_at};

use super::broker::Broker;
use super::cluster::{Cluster, NoQueues, Snapshot};
use super::config::RocketMqConfig;
use super::envelope::{refused, seal};
use super::outcome::{Verdict, behind, judge, stored};
use super::plan::{Group, waves};
use super::queues::Queues;
use super::turn::{self, Freight, Waited};
use super::window::Load;
use crate::clock::now_us;
use crate::codes::SinkCode;

/// The most bytes of a batch, whatever the broker takes.
const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// The wait where the window is full: of a slow broker, which is not down.
const NO_PLACE_MS: u64 = 200;
/// The first wait after SYSTEM_BUSY; it doubles.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Where a message is to go.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Aim {
    Queue(MessageQueue),
    /// Nowhere, for the same reason as others with this number.
    Nowhere(usize),
}

/// A batch under way.
pub(super) struct Delivery<'a> {
    cluster: &'a Cluster,
    config: &'a RocketMqConfig,
    /// The least that an acknowledgement has to prove.
    demanded: Option<AckLevel>,
    messages: &'a [Arc<OutboxMessage>],
    /// As the call found them. What a later start looks at anew is not sent to before it was compared.
    brokers: Snapshot,
    deadline: Instant,
}

/// Outcomes by index.
type Settled = Vec<(usize, Outcome)>;

/// Messages of a queue that go in one request.
struct Parcel {
    indexes: Vec<usize>,
    messages: Arc<[Message]>,
    /// Bytes of a batch's body.
    bytes: usize,
    /// Goes with no other parcel.
    alone: bool,
}

/// What came of a request, for all who had something in it.
#[derive(Debug)]
pub(super) struct Carried {
    result: Result<Sent, Error>,
    began: Instant,
}

/// Delivers a batch; one outcome a message.
pub(super) async fn deliver(
    cluster: &Cluster,
    config: &RocketMqConfig,
    demanded: Option<AckLevel>,
    messages: &[Arc<OutboxMessage>],
) -> Vec<Outcome> {
    let deadline = Instant::now() + config.request_limit();
    Delivery { cluster, config, demanded, messages, brokers: cluster.snapshot(), deadline }.run().await
}

impl<'a> Delivery<'a> {
    async fn run(&self) -> Vec<Outcome> {
        let mut reasons: Vec<Outcome> = Vec::new();
        let aims = self.aims(&mut reasons).await;
        let key = |index: usize| self.messages.get(index).and_then(|m| m.key.as_deref());
        let waves = waves(aims.len(), |index| (aims.get(index).cloned().unwrap_or(Aim::Nowhere(0)), key(index)));
        let mut held: HashSet<&'a str> = HashSet::new();
        let mut outcomes: Vec<Option<Outcome>> = vec![None; self.messages.len()];
        for wave in waves {
            let groups = wave.into_iter().map(|group| self.group(group, &reasons, &held));
            let settled: Settled = all(groups).await.into_iter().flatten().collect();
            for (index, outcome) in settled {
                if !matches!(outcome, Outcome::Delivered(_)) {
                    held.extend(self.key(index));
                }
                if let Some(place) = outcomes.get_mut(index) {
                    *place = Some(outcome);
                }
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(behind)).collect()
    }

    fn key(&self, index: usize) -> Option<&'a str> {
        self.messages.get(index).and_then(|m| m.key.as_deref())
    }

    /// Where each message is to go.
    async fn aims(&self, reasons: &mut Vec<Outcome>) -> Vec<Aim> {
        let mut topics: HashMap<&str, Result<Arc<Queues>, Aim>> = HashMap::new();
        let mut aims = Vec::with_capacity(self.messages.len());
        for message in self.messages {
            let queues = match topics.get(message.topic.as_str()) {
                Some(known) => known.clone(),
                None => {
                    let found = self.queues(&message.topic).await.map_err(|outcome| {
                        reasons.push(outcome);
                        Aim::Nowhere(reasons.len() - 1)
                    });
                    topics.insert(&message.topic, found.clone());
                    found
                }
            };
            aims.push(match queues {
                Err(nowhere) => nowhere,
                Ok(queues) => match queues.of(message.key.as_deref(), message.position.0) {
                    Some(queue) => Aim::Queue(queue.clone()),
                    None => {
                        let topic = format!("{}{}", self.config.topic_prefix, message.topic);
                        let text = format!("topic {topic} has no queue that can be written to");
                        let reason = Reason::new(SinkCode::RocketMqTopic.code(), text);
                        reasons.push(Outcome::Retry { reason, after_ms: None });
                        Aim::Nowhere(reasons.len() - 1)
                    }
                },
            });
        }
        aims
    }

    async fn queues(&self, topic: &str) -> Result<Arc<Queues>, Outcome> {
        let topic = format!("{}{topic}", self.config.topic_prefix);
        if let Err(error) = check_topic_for_sending(&topic) {
            return Err(Outcome::Rejected(refused(&error)));
        }
        let found = timeout_at(self.deadline, self.cluster.queues(&topic, self.config)).await;
        let slow = || {
            let text = format!("no route of topic {topic} within {} ms", self.config.request_limit_ms);
            NoQueues::Down(Reason::new(SinkCode::RocketMqUnreachable.code(), text))
        };
        found.unwrap_or_else(|_| Err(slow())).map_err(|why| match why {
            NoQueues::Down(reason) => self.down(None, reason),
            NoQueues::Topic(reason) => Outcome::Retry { reason, after_ms: None },
        })
    }

    /// Delivers the messages of one queue, in their order.
    async fn group(&self, group: Group<Aim>, reasons: &[Outcome], held: &HashSet<&'a str>) -> Settled {
        let queue = match group.queue {
            Aim::Queue(queue) => queue,
            Aim::Nowhere(number) => {
                let outcome = reasons.get(number).cloned().unwrap_or_else(behind);
                return self.nowhere(group.indexes, &outcome, held);
            }
        };
        match self.brokers.broker(&queue.broker_name) {
            Ok(broker) => {
                let held = held.clone();
                let mut line = Line { delivery: self, queue, broker, held, settled: Vec::new(), created: false };
                line.run(group.indexes.into()).await;
                line.settled
            }
            Err(reason) => {
                let outcome = self.down(Some(&queue.broker_name), reason);
                self.nowhere(group.indexes, &outcome, held)
            }
        }
    }

    /// A broker, or (None) the way to a topic, is not there: the destination as a whole is down if nobody else is there.
    fn down(&self, broker: Option<&str>, reason: Reason) -> Outcome {
        match self.brokers.usable().any(|name| Some(name) != broker) {
            true => Outcome::Held { reason, after_ms: None },
            false => Outcome::DestinationDown(reason),
        }
    }

    /// One outcome for all. What is said of a message itself stays behind what is held.
    fn nowhere(&self, indexes: Vec<usize>, outcome: &Outcome, held: &HashSet<&'a str>) -> Settled {
        let mut held = held.clone();
        let mut settled = Vec::with_capacity(indexes.len());
        for index in indexes {
            let key = self.key(index);
            let is_held = key.is_some_and(|key| held.contains(key));
            let down = matches!(outcome, Outcome::DestinationDown(_) | Outcome::Held { .. });
            settled.push((index, if is_held && !down { behind() } else { outcome.clone() }));
            held.extend(key);
        }
        settled
    }
}

/// The messages of one queue on their way.
struct Line<'a, 'd> {
    delivery: &'d Delivery<'a>,
    queue: MessageQueue,
    broker: Arc<Broker>,
    held: HashSet<&'a str>,
    settled: Settled,
    /// Whether the topic was created in this call.
    created: bool,
}

/// How it goes on after a parcel.
enum After {
    /// With the next.
    Next,
    /// With these two before the next: the broker did not take them together.
    Halves(Parcel, Parcel),
    /// With the same again: what was in its way is gone.
    Again(Parcel),
    /// Not at all: this is said of the rest.
    Stop(Outcome),
}

impl<'a> Line<'a, '_> {
    async fn run(&mut self, mut todo: VecDeque<usize>) {
        // Parcels that are made already, the next one last.
        let mut made: Vec<Parcel> = Vec::new();
        loop {
            let parcel = match made.pop() {
                Some(parcel) => self.without_held(parcel),
                None => match self.next(&mut todo) {
                    Some(parcel) => parcel,
                    None => return,
                },
            };
            if parcel.indexes.is_empty() {
                continue;
            }
            match self.send(parcel).await {
                After::Next => {}
                After::Halves(first, second) => made.extend([second, first]),
                After::Again(parcel) => made.push(parcel),
                After::Stop(outcome) => {
                    let rest: Vec<usize> =
                        made.into_iter().rev().flat_map(|parcel| parcel.indexes).chain(todo.drain(..)).collect();
                    let rest = self.delivery.nowhere(rest, &outcome, &self.held);
                    self.settled.extend(rest);
                    return;
                }
            }
        }
    }

    fn settle(&mut self, index: usize, outcome: Outcome) {
        if !matches!(outcome, Outcome::Delivered(_)) {
            self.held.extend(self.delivery.key(index));
        }
        self.settled.push((index, outcome));
    }

    fn is_held(&self, index: usize) -> bool {
        self.delivery.key(index).is_some_and(|key| self.held.contains(key))
    }

    /// The next messages that can go together. What cannot go at all is settled.
    fn next(&mut self, todo: &mut VecDeque<usize>) -> Option<Parcel> {
        let limit = self.limit_bytes();
        let (mut bytes, mut indexes, mut messages) = (0, Vec::new(), Vec::new());
        while let Some(index) = todo.pop_front() {
            if self.is_held(index) {
                self.settle(index, behind());
                continue;
            }
            let Some(from) = self.delivery.messages.get(index) else { continue };
            let message = match seal(from, &self.queue.topic, &self.delivery.config.tag, &self.broker.facts) {
                Ok(message) => message,
                // What is said of it waits until those before it in its key are delivered.
                Err(_) if self.waits_for(&indexes, index) => {
                    todo.push_front(index);
                    break;
                }
                Err(reason) => {
                    self.settle(index, Outcome::Rejected(reason));
                    continue;
                }
            };
            let size = BatchBuilder::record_bytes(&message);
            let alone = message.is_delayed() || size > limit;
            if !indexes.is_empty() && (alone || bytes + size > limit) {
                todo.push_front(index);
                break;
            }
            bytes += size;
            indexes.push(index);
            messages.push(message);
            if alone {
                return Some(Parcel { alone: true, ..Parcel::new(indexes, messages) });
            }
        }
        (!indexes.is_empty()).then(|| Parcel::new(indexes, messages))
    }

    fn waits_for(&self, indexes: &[usize], index: usize) -> bool {
        let key = self.delivery.key(index);
        key.is_some() && indexes.iter().any(|i| self.delivery.key(*i) == key)
    }

    fn without_held(&mut self, parcel: Parcel) -> Parcel {
        let (mut indexes, mut messages) = (Vec::new(), Vec::new());
        for (index, message) in parcel.indexes.iter().zip(&*parcel.messages) {
            if self.is_held(*index) {
                self.settle(*index, behind());
            } else {
                indexes.push(*index);
                messages.push(message.clone());
            }
        }
        Parcel { alone: parcel.alone, ..Parcel::new(indexes, messages) }
    }

    /// Sends a parcel; while the broker is busy, again.
    async fn send(&mut self, parcel: Parcel) -> After {
        let mut pause = BUSY_PAUSE;
        let deadline = self.delivery.deadline;
        // What begins late would be cut off and sent a second time.
        let latest = deadline - self.delivery.config.request_limit() / 2;
        loop {
            let messages = parcel.messages.clone();
            let freight = Freight { messages, bytes: parcel.bytes, alone: parcel.alone, latest, deadline };
            let share = match self.carry(freight).await {
                Waited::Sent(share) => share,
                Waited::Late | Waited::Lead(_) => {
                    let reason = self.no_time("no place was free");
                    return self.stop(&parcel, Outcome::Held { reason, after_ms: Some(NO_PLACE_MS) });
                }
                Waited::Lost => return self.lost(&parcel),
            };
            let error = match &share.of.result {
                Ok(sent) => return self.stored(parcel, sent, share.first),
                Err(error) => error,
            };
            let verdict = judge(error, &self.broker.facts);
            let Verdict::Busy(reason) = verdict else {
                return self.failed(parcel, verdict, share.of.began, share.together).await;
            };
            if Instant::now() + pause >= latest {
                let outcome = self.down(reason);
                return self.stop(&parcel, outcome);
            }
            sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Sends a freight when it is the queue's turn, together with what others have for it; or another one does.
    async fn carry(&self, freight: Freight) -> Waited<Arc<Carried>> {
        let latest = freight.latest;
        let lead = match self.broker.turns.wait(&self.queue, freight).await {
            Waited::Lead(lead) => lead,
            waited => return waited,
        };
        let Ok(place) = timeout_at(latest, self.broker.window.enter()).await else { return Waited::Late };
        let Some(load) = lead.load(self.limit_bytes()) else { return Waited::Late };
        let began = Instant::now();
        let result = self.request(&load).await;
        match &result {
            Ok(_) => {
                let held = place.held();
                place.leave(Load::Answered(held));
                self.broker.answered();
            }
            Err(error) => {
                if matches!(error, Error::Refused { .. }) {
                    self.broker.answered();
                }
                let is_busy = matches!(judge(error, &self.broker.facts), Verdict::Busy(_));
                place.leave(if is_busy { Load::Busy } else { Load::Silent });
            }
        }
        Waited::Sent(load.share(Arc::new(Carried { result, began })))
    }

    fn limit_bytes(&self) -> usize {
        self.broker.facts.max_message_bytes.min(MAX_BATCH_BYTES)
    }

    /// The call that sent it along ended early, and nobody knows what came of it.
    fn lost(&mut self, parcel: &Parcel) -> After {
        let text = format!("broker {}: a request was given up before its answer", self.broker.facts.name);
        let reason = Reason::new(SinkCode::RocketMqUnanswered.code(), text);
        for index in &parcel.indexes {
            self.settle(*index, Outcome::Unknown(reason.clone()));
        }
        After::Stop(Outcome::Held { reason, after_ms: Some(NO_PLACE_MS) })
    }

    fn down(&self, reason: Reason) -> Outcome {
        self.delivery.down(Some(&self.queue.broker_name), reason)
    }

    fn no_time(&self, what: &str) -> Reason {
        let (name, ms) = (&self.broker.facts.name, self.delivery.config.request_limit_ms);
        Reason::new(SinkCode::RocketMqBusy.code(), format!("broker {name}: {what} within {ms} ms"))
    }

    async fn request(&self, load: &turn::Load<Arc<Carried>>) -> Result<Sent, Error> {
        let left = load.deadline().saturating_duration_since(Instant::now());
        let options = SendOptions { limit: Some(left), generation: Some(self.broker.generation), compression: None };
        let producer = &self.delivery.cluster.producer;
        let messages = || load.freights.iter().flat_map(|freight| &*freight.messages);
        if let (Some(message), None) = (messages().next(), messages().nth(1)) {
            return producer.send(&self.queue, message, &options).await;
        }
        let mut batch = BatchBuilder::new(MAX_BATCH_BYTES);
        batch.reserve(load.freights.iter().map(|freight| freight.bytes).sum());
        for message in messages() {
            if !batch.push(message)? {
                let bytes = BatchBuilder::record_bytes(message);
                return Err(MessageError::BodyTooLarge { bytes, limit_bytes: MAX_BATCH_BYTES }.into());
            }
        }
        producer.send_batch(&self.queue, &batch.finish()?, &options).await
    }

    /// It is stored: delivered, unless the answer is too weak. Then nothing more is sent there for a while, since what is
    /// wrong is the broker's, and the same is sent again.
    fn stored(&mut self, parcel: Parcel, sent: &Sent, first: usize) -> After {
        let weak = sent.answer.status != SendStatus::Ok;
        if weak && self.delivery.config.is_too_weak(sent.answer.status, &self.broker.facts, self.delivery.demanded) {
            let status = super::place::status_word(sent.answer.status);
            let text = format!("broker {}: stored with {status} only; it is sent again", self.broker.facts.name);
            let outcome = self.down(Reason::new(SinkCode::RocketMqWeakAck.code(), text));
            return self.stop(&parcel, outcome);
        }
        self.delivered(&parcel, sent, first);
        After::Next
    }

    /// `first`: place of its first message in the request.
    fn delivered(&mut self, parcel: &Parcel, sent: &Sent, first: usize) {
        let sent_at_us = now_us();
        let facts = &self.broker.facts;
        if sent.answer.status != SendStatus::Ok
            && let Some(messages) = self.broker.weakly_stored(parcel.indexes.len())
        {
            tracing::warn!(
                code = SinkCode::RocketMqWeakAck.code(),
                broker = facts.name,
                status = super::place::status_word(sent.answer.status),
                messages,
                "stored less safely than the broker is configured for; receipts tell which (told once a minute)"
            );
        }
        let delayed = parcel.messages.first().is_some_and(Message::is_delayed);
        let place = (&*self.queue.broker_name, &*self.queue.topic);
        let outcomes: Vec<(usize, Outcome)> = parcel
            .indexes
            .iter()
            .enumerate()
            .map(|(n, index)| (*index, stored(&sent.answer, first + n, place, delayed, facts, sent_at_us)))
            .collect();
        for (index, outcome) in outcomes {
            self.settle(index, outcome);
        }
    }

    /// It was not stored, or nobody knows: the request began at this time.
    async fn failed(&mut self, parcel: Parcel, verdict: Verdict, began: Instant, together: bool) -> After {
        match verdict {
            Verdict::Down(reason) | Verdict::Busy(reason) => {
                let outcome = self.down(reason);
                self.stop(&parcel, outcome)
            }
            Verdict::Unknown(reason) => {
                for index in parcel.indexes {
                    self.settle(index, Outcome::Unknown(reason.clone()));
                }
                // One that answers nobody would leave every message unanswered that is sent to it, and each silence counts
                // where the slot delivers to others.
                if self.broker.is_silent_since(began) {
                    self.delivery.cluster.lose(&self.broker, reason.clone());
                }
                // The rest would wait on the same silence, and was not sent: nothing counts against it.
                After::Stop(self.down(reason))
            }
            Verdict::Topic(reason) => {
                if self.delivery.config.create_topics && !std::mem::replace(&mut self.created, true) {
                    let topic = self.queue.topic.clone();
                    if self.delivery.cluster.create_on(&topic, self.delivery.config, &self.broker).await {
                        return After::Again(parcel);
                    }
                }
                self.stop(&parcel, Outcome::Retry { reason, after_ms: None })
            }
            // It may be others' messages that it did not take.
            Verdict::Message(_) | Verdict::Failed(_) if together => After::Again(Parcel { alone: true, ..parcel }),
            Verdict::Message(reason) | Verdict::Failed(reason) if parcel.indexes.len() > 1 => {
                tracing::debug!(code = reason.code, "{}; the batch is sent in halves", reason.text);
                parcel.halves()
            }
            Verdict::Message(reason) => {
                for index in parcel.indexes {
                    self.settle(index, Outcome::Rejected(reason.clone()));
                }
                After::Next
            }
            Verdict::Failed(reason) => {
                for index in parcel.indexes {
                    self.settle(index, Outcome::Unknown(reason.clone()));
                }
                After::Next
            }
        }
    }

    /// The same for this parcel and all that come after it.
    fn stop(&mut self, parcel: &Parcel, outcome: Outcome) -> After {
        let now = self.delivery.nowhere(parcel.indexes.clone(), &outcome, &self.held);
        for (index, outcome) in now {
            self.settle(index, outcome);
        }
        After::Stop(outcome)
    }
}

impl Parcel {
    fn new(indexes: Vec<usize>, messages: Vec<Message>) -> Self {
        let bytes = messages.iter().map(BatchBuilder::record_bytes).sum();
        Self { indexes, messages: messages.into(), bytes, alone: false }
    }

    /// Its two halves, each by itself.
    fn halves(self) -> After {
        let (first, second) = self.indexes.split_at(self.indexes.len() / 2);
        let (earlier, later) = self.messages.split_at(first.len());
        let half = |indexes: &[usize], messages: &[Message]| Self {
            alone: true,
            ..Self::new(indexes.to_vec(), messages.to_vec())
        };
        After::Halves(half(first, earlier), half(second, later))
    }
}

/// Waits for all, at the same time.
async fn all<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut running: Vec<Pin<Box<F>>> = futures.map(Box::pin).collect();
    let mut done: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        let mut waiting = false;
        for (future, result) in running.iter_mut().zip(&mut done) {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    done.into_iter().flatten().collect()
}
