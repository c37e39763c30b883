//! The brokers, as the last start saw them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outhaul_core::receipt::Reason;
use rocketmq_remoting::client::{Admin, Client, Master, Producer, Where};
use rocketmq_remoting::connection::Channel;
use rocketmq_remoting::request::{CreateTopic, GetRoute};
use rocketmq_remoting::{Error, ResponseCode};
use tokio::task::JoinSet;

use super::broker::Broker;
use super::config::{OnMissingBroker, RocketMqConfig};
use super::outcome::{describe, start_error};
use super::queues::{Queues, Topics};
use crate::codes::SinkCode;
use crate::sink::SinkError;

/// How long a start waits at first for a broker that could not be used last time and is connected now. It doubles each
/// time, so that one that is only slow, or far away, is not given up for ever.
const DEAD_BROKER_WAIT: Duration = Duration::from_millis(150);
/// How long a start waits for one that answered last time.
const KNOWN_BROKER_WAIT: Duration = Duration::from_millis(600);
/// How long a start waits for a name server where brokers are known.
const NAME_SERVER_WAIT: Duration = Duration::from_millis(300);
/// How long a look at what has changed waits for name servers and connections.
const LOOK_WAIT: Duration = Duration::from_millis(150);

/// The client and what it knows.
pub(super) struct Cluster {
    pub(super) client: Client,
    pub(super) producer: Producer,
    pub(super) admin: Admin,
    topics: Topics,
    /// By name; copied when it changes, so that a call of send sees it as it was when the call began.
    brokers: Mutex<Arc<BTreeMap<String, Entry>>>,
    creating: tokio::sync::Mutex<()>,
    /// Comparisons that are under way, by their number.
    comparisons: Mutex<BTreeMap<u64, Compared>>,
}

/// The brokers at one moment.
#[derive(Clone, Debug)]
pub(super) struct Snapshot(Arc<BTreeMap<String, Entry>>);

impl Snapshot {
    /// A broker that can be used, or why it cannot.
    pub(super) fn broker(&self, name: &str) -> Result<Arc<Broker>, Reason> {
        match self.0.get(name) {
            Some(entry) => entry.broker.clone(),
            None => Err(Reason::new(
                SinkCode::RocketMqUnreachable.code(),
                format!(
                    "broker {name} is not listed by the name servers (yet, or any more); its keys wait for it, unless \
                     on_missing_broker = \"rehash\""
                ),
            )),
        }
    }

    /// The names of those that can be used.
    pub(super) fn usable(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, entry)| entry.broker.is_ok()).map(|(name, _)| name.as_str())
    }
}

/// What a comparison has found out so far.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Receipts that were shown.
    pub(super) shown: usize,
    /// Whether a broker has all that it acknowledged, as far as receipts were shown.
    pub(super) all_there: BTreeMap<String, bool>,
}

#[derive(Clone, Debug)]
struct Entry {
    master: Master,
    /// Err: why it cannot be used.
    broker: Result<Arc<Broker>, Reason>,
    /// The last that could.
    before: Option<Arc<Broker>>,
    /// It did not answer on the connection of `before`, which is still there: it is not waited for again before it has
    /// answered somebody who has time ([`Cluster::is_as_looked_at`]).
    silent: bool,
    /// Looks in a row that it did not stand.
    failures: u32,
}

impl Entry {
    /// How long it is waited for where others are held up by that.
    fn patience(&self, most: Duration) -> Duration {
        DEAD_BROKER_WAIT.saturating_mul(1 << self.failures.min(8)).min(most)
    }

    /// Whether a start need not look at it: what is known of it has not changed.
    fn stays_away(&self, channel: &Channel) -> bool {
        let status = channel.status();
        let same = |before: &Arc<Broker>| before.generation == status.generation;
        // Not connected: its channel goes on trying by itself.
        self.broker.is_err() && (!status.connected || (self.silent && self.before.as_ref().is_some_and(same)))
    }
}

/// What a start found.
#[derive(Debug, Default)]
pub(super) struct Looked {
    /// All that can be used.
    pub(super) up: Vec<Arc<Broker>>,
    /// Those of `up` that were not looked at before, or over another connection.
    pub(super) new: Vec<Arc<Broker>>,
    /// Sentences on those that cannot be used and could before.
    pub(super) lost: Vec<String>,
}

/// Why a topic has no queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoQueues {
    /// Somebody has to be up again.
    Down(Reason),
    /// The topic is not there.
    Topic(Reason),
}

impl Cluster {
    pub(super) fn new(config: &RocketMqConfig) -> Result<Self, SinkError> {
        let client = Client::new(config.client_options()?);
        let producer = Producer::new(&client, &config.producer_group)
            .map_err(|e| SinkError::of(SinkCode::Settings, format!("`producer_group`: {e}")))?;
        Ok(Self {
            admin: Admin::new(&client),
            client,
            producer,
            topics: Topics::new(config.on_missing_broker, &config.cluster),
            brokers: Mutex::default(),
            creating: tokio::sync::Mutex::default(),
            comparisons: Mutex::default(),
        })
    }

    fn brokers(&self) -> MutexGuard<'_, Arc<BTreeMap<String, Entry>>> {
        self.brokers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Comparisons that are under way, by their number.
    pub(super) fn comparisons(&self) -> MutexGuard<'_, BTreeMap<u64, Compared>> {
        self.comparisons.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next process has to know.
    pub(super) fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        self.topics.memory(kept)
    }

    /// What an earlier process knew.
    pub(super) fn recall(&self, memory: &str) {
        self.topics.recall(memory);
    }

    /// Topics that were delivered to, or that receipts told of.
    pub(super) fn known_topics(&self, most: usize) -> Vec<String> {
        self.topics.names(most)
    }

    /// The brokers as they are now.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot(self.brokers().clone())
    }

    /// Looks at every master: those that are connected as before stay as they are.
    pub(super) async fn look(&self, config: &RocketMqConfig) -> Result<Looked, SinkError> {
        let masters = self.masters(config).await?;
        let known = self.brokers().clone();
        let stays_away = |master: &Master| {
            let entry = known.get(&master.broker_name);
            entry.is_some_and(|e| e.stays_away(&self.client.channel(&master.address)))
        };
        let (away, masters): (Vec<Master>, Vec<Master>) = masters.into_iter().partition(stays_away);
        let mut looked = Looked::default();
        let mut failure = self.look_at(masters, &known, config, &mut looked).await;
        if looked.up.is_empty() {
            // Nobody is held up by waiting for the others.
            failure = self.look_at(away, &known, config, &mut looked).await.or(failure);
        }
        looked.up.sort_by(|a, b| a.facts.name.cmp(&b.facts.name));
        looked.new.sort_by(|a, b| a.facts.name.cmp(&b.facts.name));
        match failure {
            Some(failure) if looked.up.is_empty() => Err(failure),
            _ => Ok(looked),
        }
    }

    /// Looks at these, all at the same time. Returns why one of them cannot be used.
    async fn look_at(
        &self,
        masters: Vec<Master>,
        known: &BTreeMap<String, Entry>,
        config: &RocketMqConfig,
        looked: &mut Looked,
    ) -> Option<SinkError> {
        let mut looking = JoinSet::new();
        let most_wait = config.request_limit().mul_f64(0.8);
        let holds_up_others = known.values().any(|e| e.broker.is_ok());
        for master in masters {
            let channel = self.client.channel(&master.address);
            let entry = known.get(&master.broker_name);
            let before = entry.and_then(|e| e.before.clone());
            let silent = entry.is_some_and(|e| e.silent);
            let limit = match entry {
                Some(Entry { broker: Ok(_), .. }) => KNOWN_BROKER_WAIT.min(most_wait),
                Some(entry) if holds_up_others => entry.patience(most_wait),
                Some(_) | None => most_wait,
            };
            let most = config.max_in_flight;
            looking.spawn(async move {
                let broker = Broker::look(&master, channel, before, silent, most, limit).await;
                (master, broker)
            });
        }
        let mut failure = None;
        while let Some(done) = looking.join_next().await {
            let Ok((master, broker)) = done else { continue };
            let before = known.get(&master.broker_name);
            match &broker {
                Ok(broker) => {
                    let same = |e: &Entry| e.broker.as_ref().is_ok_and(|b| Arc::ptr_eq(b, broker));
                    if !before.is_some_and(same) {
                        looked.new.push(broker.clone());
                    }
                    looked.up.push(broker.clone());
                }
                Err(error) => {
                    let what = format!("broker {} at {}", master.broker_name, master.address);
                    if before.is_none_or(|e| e.broker.is_ok()) {
                        looked.lost.push(format!("{what} cannot be used: {}", describe(error)));
                    }
                    failure = Some(start_error(&what, error));
                }
            }
            self.keep(master, broker);
        }
        failure
    }

    /// Whether all is as the last start saw it. A connection that is being made counts as before: it is another one only
    /// once it is there.
    ///
    /// # Errors
    /// A connection was renewed, or a broker can be used that could not: what it has must be verified first.
    pub(super) async fn is_as_looked_at(&self, config: &RocketMqConfig) -> Result<(), SinkError> {
        let cluster = Some(&*config.cluster).filter(|name| !name.is_empty());
        let listed = tokio::time::timeout(LOOK_WAIT, self.admin.masters(cluster)).await;
        let known = self.brokers().clone();
        let mut masters = listed.ok().and_then(Result::ok).unwrap_or_default();
        masters.retain(|m| !known.contains_key(&m.broker_name));
        // The broker that was looked at, and what has changed: Err for one that did not answer.
        let mut looking: JoinSet<Option<(String, Result<SinkError, ()>)>> = JoinSet::new();
        for Entry { master, broker, .. } in known.values().cloned() {
            match broker {
                Ok(broker) => drop(looking.spawn(async move {
                    let error = broker.connection(LOOK_WAIT).await.err()?;
                    let renewed = matches!(error, Error::Reconnected { .. });
                    let name = &broker.facts.name;
                    renewed.then(|| (name.clone(), Ok(start_error(&format!("broker {name}"), &error))))
                })),
                Err(_) => masters.push(master),
            }
        }
        for master in masters {
            let (channel, most) = (self.client.channel(&master.address), config.max_in_flight);
            let entry = known.get(&master.broker_name).filter(|_| channel.status().connected);
            let wait = entry.map_or(LOOK_WAIT, |entry| entry.patience(config.request_limit().mul_f64(0.8)));
            looking.spawn(async move {
                let looked = Broker::look(&master, channel, None, false, most, wait).await;
                let what = format!("broker {} at {} can be used again", master.broker_name, master.address);
                let back = SinkError::of(SinkCode::RocketMqUnreachable, what);
                Some((master.broker_name, looked.map(|_| back).map_err(|_| ())))
            });
        }
        let mut result = Ok(());
        while let Some(done) = looking.join_next().await {
            let Ok(Some((name, found))) = done else { continue };
            if let Some(entry) = Arc::make_mut(&mut self.brokers()).get_mut(&name) {
                match found {
                    Ok(_) => entry.silent = false,
                    Err(()) => entry.failures = entry.failures.saturating_add(1),
                }
            }
            if let Ok(changed) = found {
                result = Err(changed);
            }
        }
        result
    }

    fn keep(&self, master: Master, broker: Result<Arc<Broker>, Error>) {
        let mut brokers = self.brokers();
        let before = brokers.get(&master.broker_name).and_then(|e| e.before.clone());
        let entry = match broker {
            Ok(broker) => {
                Entry { master, before: Some(broker.clone()), broker: Ok(broker), silent: false, failures: 0 }
            }
            Err(error) => {
                let (silent, failures) =
                    brokers.get(&master.broker_name).map_or((false, 0), |e| (e.silent, e.failures.saturating_add(1)));
                let error = start_error(&format!("broker {}", master.broker_name), &error);
                Entry { master, before, broker: Err(Reason::new(error.code, error.message)), silent, failures }
            }
        };
        Arc::make_mut(&mut brokers).insert(entry.master.broker_name.clone(), entry);
    }

    /// The masters that the name servers list, and those that they listed before.
    async fn masters(&self, config: &RocketMqConfig) -> Result<Vec<Master>, SinkError> {
        let cluster = Some(&*config.cluster).filter(|name| !name.is_empty());
        let mut masters: BTreeMap<String, Master> =
            self.brokers().iter().map(|(name, entry)| (name.clone(), entry.master.clone())).collect();
        // Where brokers are known, a name server that hangs must not hold up what is sent to them.
        let asking = self.admin.masters(cluster);
        let listed = if masters.is_empty() {
            asking.await
        } else {
            let request = rocketmq_remoting::RequestCode::GetBrokerClusterInfo;
            let late = |_| Err(Error::TimedOut { request, after: NAME_SERVER_WAIT, sent: true });
            tokio::time::timeout(NAME_SERVER_WAIT, asking).await.unwrap_or_else(late)
        };
        match listed {
            Ok(listed) => {
                if config.on_missing_broker == OnMissingBroker::Rehash {
                    masters.retain(|name, _| listed.iter().any(|m| m.broker_name == *name) || !self.forget(name));
                }
                masters.extend(listed.into_iter().map(|m| (m.broker_name.clone(), m)));
            }
            Err(error) if masters.is_empty() => {
                return Err(start_error(&format!("name servers {}", config.namesrv.join(", ")), &error));
            }
            // The brokers themselves may well be there.
            Err(error) => tracing::warn!(error = describe(&error), "no name server answers; brokers as last known"),
        }
        if masters.is_empty() {
            let of = cluster.map(|name| format!(" of cluster {name}")).unwrap_or_default();
            let what = format!("name servers {} list no master{of}", config.namesrv.join(", "));
            return Err(SinkError::of(SinkCode::RocketMqUnreachable, what));
        }
        Ok(masters.into_values().collect())
    }

    /// A broker that can be used, or why it cannot.
    pub(super) fn broker(&self, name: &str) -> Result<Arc<Broker>, Reason> {
        self.snapshot().broker(name)
    }

    /// A broker that nobody lists and nobody waits for is let go, unless it still answers. Returns whether it was.
    fn forget(&self, name: &str) -> bool {
        let mut brokers = self.brokers();
        let Some(entry) = brokers.get(name).filter(|entry| entry.broker.is_err()) else { return false };
        self.client.channel(&entry.master.address).release();
        Arc::make_mut(&mut brokers).remove(name);
        true
    }

    /// A broker turned out to be of no use: nothing is sent to it before the next start.
    pub(super) fn lose(&self, lost: &Arc<Broker>, reason: Reason) {
        let mut brokers = self.brokers();
        let same = |entry: &Entry| entry.broker.as_ref().is_ok_and(|broker| Arc::ptr_eq(broker, lost));
        if brokers.get(&lost.facts.name).is_some_and(same)
            && let Some(entry) = Arc::make_mut(&mut brokers).get_mut(&lost.facts.name)
        {
            (entry.broker, entry.silent) = (Err(reason), true);
        }
    }

    /// One broker that is known and cannot be used, if there is any.
    fn missing(&self) -> Option<String> {
        self.brokers().iter().find(|(_, entry)| entry.broker.is_err()).map(|(name, _)| name.clone())
    }

    /// The queues of a topic; creates it where that is wanted.
    pub(super) async fn queues(&self, topic: &str, config: &RocketMqConfig) -> Result<Arc<Queues>, NoQueues> {
        let error = match self.client.route(topic).await {
            Ok(route) => {
                let queues = self.topics.queues(&route);
                if queues.iter().next().is_some() {
                    return Ok(queues);
                }
                // Closed for writing, by what is remembered: perhaps it was opened again.
                match self.client.refresh_route(topic).await {
                    Ok(route) => return Ok(self.topics.queues(&route)),
                    Err(error) => error,
                }
            }
            Err(error) => error,
        };
        if error.refused_with() != Some(ResponseCode::TopicNotExist) {
            let failed = start_error(&format!("route of topic {topic}"), &error);
            return Err(NoQueues::Down(Reason::new(failed.code, failed.message)));
        }
        // All of its brokers may be away: then nobody lists it, and it must not come into being somewhere else.
        if let Some(queues) = self.topics.remembered(topic) {
            let up = self.snapshot();
            if queues.iter().any(|queue| up.broker(&queue.broker_name).is_err()) {
                return Ok(Arc::new(queues));
            }
        }
        if config.create_topics {
            return self.create(topic, config).await;
        }
        let reason = |text: String| Reason::new(SinkCode::RocketMqTopic.code(), text);
        match self.missing() {
            // What a name server says of a topic whose only broker is down is the same.
            Some(broker) => Err(NoQueues::Down(reason(format!(
                "no name server lists topic {topic}; broker {broker}, which may have it, is down"
            )))),
            None => Err(NoQueues::Topic(reason(format!("topic {topic} does not exist")))),
        }
    }

    /// Creates a topic on every broker of the cluster.
    pub(super) async fn create(&self, topic: &str, config: &RocketMqConfig) -> Result<Arc<Queues>, NoQueues> {
        let _one_at_a_time = self.creating.lock().await;
        let up: Vec<_> = self.brokers().values().filter_map(|e| e.broker.as_ref().ok().cloned()).collect();
        if let Ok(route) = self.client.route(topic).await
            && up.iter().all(|b| route.as_told().queue_datas.iter().any(|data| data.broker_name == b.facts.name))
        {
            return Ok(self.topics.queues(&route));
        }
        if let Some(broker) = self.missing() {
            let text = format!("topic {topic} is created once broker {broker}, which may have it, is back");
            return Err(NoQueues::Down(Reason::new(SinkCode::RocketMqTopic.code(), text)));
        }
        // One that was started a moment ago knows no topic yet, and creating one that is there changes its queues.
        if let Some(silent) = self.silent_name_server(topic).await {
            let text = format!("topic {topic} is created once name server {silent}, which may know it, answers");
            return Err(NoQueues::Down(Reason::new(SinkCode::RocketMqTopic.code(), text)));
        }
        let place = Where::Brokers(up.iter().map(|b| b.address.clone()).collect());
        let create = CreateTopic::new(topic, config.queues);
        match self.admin.create_topic(&create, &place).await {
            Ok(()) => tracing::info!(topic, queues = config.queues, brokers = up.len(), "topic created"),
            Err(error) => {
                let failed = start_error(&format!("creating topic {topic}"), &error);
                let reason = Reason::new(failed.code, failed.message);
                // What a broker refuses is the topic's matter; that it does not answer is not.
                let refused = matches!(error, Error::Refused { .. } | Error::Message(_) | Error::Unsendable(_));
                return Err(if refused { NoQueues::Topic(reason) } else { NoQueues::Down(reason) });
            }
        }
        match self.client.route(topic).await {
            Ok(route) => Ok(self.topics.queues(&route)),
            Err(error) => {
                let failed = start_error(&format!("route of topic {topic}"), &error);
                Err(NoQueues::Down(Reason::new(failed.code, failed.message)))
            }
        }
    }

    /// A name server that does not say that there is no such topic.
    async fn silent_name_server(&self, topic: &str) -> Option<String> {
        for channel in self.client.name_servers() {
            let asked = channel.request(&GetRoute { topic: topic.to_owned() }, NAME_SERVER_WAIT).await;
            if asked.err().and_then(|error| error.refused_with()) != Some(ResponseCode::TopicNotExist) {
                return Some(channel.address().to_string());
            }
        }
        None
    }

    /// Creates a topic on a broker that does not have it although others do: its store was put back, or it is new.
    pub(super) async fn create_on(&self, topic: &str, config: &RocketMqConfig, broker: &Broker) -> bool {
        let _one_at_a_time = self.creating.lock().await;
        let create = CreateTopic::new(topic, config.queues);
        let place = Where::Brokers(vec![broker.address.clone()]);
        match self.admin.create_topic(&create, &place).await {
            Ok(()) => {
                tracing::warn!(topic, broker = broker.facts.name, "topic created where it was missing");
                true
            }
            Err(error) => {
                tracing::warn!(topic, broker = broker.facts.name, error = describe(&error), "topic not created");
                false
            }
        }
    }

    /// All brokers by name: those that can be used, and why others cannot.
    pub(super) fn all(&self) -> Vec<(String, Result<Arc<Broker>, Reason>)> {
        self.brokers().iter().map(|(name, entry)| (name.clone(), entry.broker.clone())).collect()
    }

    /// A receipt tells of a queue whose broker may not be listed now.
    pub(super) fn remember(&self, topic: &str, broker: &str, queue_id: i32, policy: OnMissingBroker) {
        if policy == OnMissingBroker::Wait {
            self.topics.remember(topic, broker, queue_id);
        }
    }
}
