//! Membership of the group, and which queues are read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outhaul_store::inbox::{Inbox, InboxCounts, Place};
use outhaul_store::{StoreError, StoreErrorKind};
use rocketmq_remoting::client::{Client, Consumer, GroupMember, Start, Told, allocate};
use rocketmq_remoting::connection::describe;
use rocketmq_remoting::message::MessageQueue;
use rocketmq_remoting::request::ConsumerData;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};

use crate::error::InboxError;
use crate::options::{Begin, InboxOptions, Topic};
use crate::shared::{Counts, Health, Shared};
use crate::{prune, reader};

/// How often shares are computed anew, as Java's clients do.
const ROUND: Duration = Duration::from_secs(20);
/// The same after a round that failed, or in which the broker did not know this member yet.
const SOON: Duration = Duration::from_secs(1);
/// How old a route may be in a round.
const ROUTE_AGE: Duration = Duration::from_secs(5);
/// How often brokers are told where the table is.
const TELL: Duration = Duration::from_secs(5);
/// How long the first answers of brokers are waited for.
const JOIN_LIMIT: Duration = Duration::from_secs(10);
/// How long a transaction under way is waited for when a queue is given up.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(10);
/// So many topics that cannot be shared are named.
const FAILURES_NAMED: usize = 3;
/// Requests under way on one connection: every queue has one that waits at its broker.
const WINDOW: usize = 4_096;

/// Reads topics into a table, until it is stopped or dropped. Any number of processes may do it for one group.
pub struct InboxDaemon {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl std::fmt::Debug for InboxDaemon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxDaemon").field("group", &self.shared.options.group).finish_non_exhaustive()
    }
}

impl InboxDaemon {
    /// Opens the database, makes tables that are missing if it may, and joins the group. From then on queues are read.
    ///
    /// # Errors
    /// Any [`InboxError`].
    pub async fn start(options: InboxOptions) -> Result<Self, InboxError> {
        options.check()?;
        let inbox = outhaul_store::inbox::open(options.database.clone(), options.connections).await?;
        match Self::join(options, &inbox).await {
            Ok((shared, member)) => {
                let (stop, stopped) = watch::channel(false);
                let rounds = Rounds::new(Arc::clone(&shared));
                let task = tokio::spawn(rounds.run(member, stopped));
                Ok(Self { shared, stop, task })
            }
            Err(e) => {
                inbox.close().await;
                Err(e)
            }
        }
    }

    async fn join(options: InboxOptions, inbox: &Arc<dyn Inbox>) -> Result<(Arc<Shared>, GroupMember), InboxError> {
        match inbox.inspect().await {
            Err(e) if e.kind == StoreErrorKind::NotInitialised && options.create_tables => inbox.init().await?,
            other => other?,
        }
        inbox.inspect_places().await.map_err(|e| match e.kind {
            StoreErrorKind::NotInitialised => {
                StoreError::new(e.kind, format!("{}: run `outhaul init --inbox`", e.message))
            }
            _ => e,
        })?;
        let mut brokers = options.brokers.clone();
        brokers.client_id = None; // two copies with one name would take the same queues
        brokers.connection.window = WINDOW;
        let client = Client::new(brokers);
        let refused =
            |e: &rocketmq_remoting::Error| InboxError::Join { group: options.group.clone(), why: describe(e) };
        let consumer = Consumer::new(&client, &options.group).map_err(|e| refused(&e))?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let data = ConsumerData {
            group: options.group.clone(),
            subscriptions: options.topics.iter().map(|t| (t.name.clone(), t.tags.clone())).collect(),
            sub_version: i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
        };
        let member = GroupMember::join(&client, data, JOIN_LIMIT).await.map_err(|e| refused(&e))?;
        Ok((Arc::new(Shared::new(options, consumer, Arc::clone(inbox))), member))
    }

    /// Whether messages come into the table.
    pub fn health(&self) -> Health {
        self.shared.health()
    }

    /// What it has done.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// What waits in the table, and what is dead.
    ///
    /// # Errors
    /// The database's.
    pub async fn table(&self) -> Result<InboxCounts, StoreError> {
        self.shared.inbox.counts(&self.shared.options.consumer).await
    }

    /// Ends the transactions under way, tells the brokers where it is, and leaves the group, so that others take over at
    /// once.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        _ = self.task.await;
        self.shared.inbox.close().await;
    }
}

/// A queue that is read.
struct Owned {
    stop: watch::Sender<bool>,
    reader: JoinHandle<()>,
}

struct Rounds {
    shared: Arc<Shared>,
    owned: HashMap<MessageQueue, Owned>,
    /// Whether this member does what one does for all.
    leads: watch::Sender<bool>,
    _pruner: JoinSet<()>,
}

impl Drop for Rounds {
    fn drop(&mut self) {
        for owned in self.owned.values() {
            owned.reader.abort();
        }
    }
}

impl Rounds {
    fn new(shared: Arc<Shared>) -> Self {
        let (leads, led) = watch::channel(false);
        let mut pruner = JoinSet::new(); // dropped: aborted
        if let Some(retention) = shared.options.retention {
            pruner.spawn(prune::prune(Arc::clone(&shared), retention, led));
        }
        Self { shared, owned: HashMap::new(), leads, _pruner: pruner }
    }

    async fn run(mut self, mut member: GroupMember, mut stop: watch::Receiver<bool>) {
        let mut tell = interval(TELL);
        tell.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = Instant::now();
        loop {
            tokio::select! {
                _ = stop.changed() => break,
                () = sleep_until(due) => {}
                _ = tell.tick() => {
                    self.shared.tell_all().await;
                    continue;
                }
                told = member.told() => match told {
                    Some(Told::Changed) => {}
                    Some(Told::Reset { topic }) => {
                        tracing::warn!(
                            code = "OUT-5056", topic,
                            "an operator asks the group to take other offsets; the places are in inbox_queue and stay"
                        );
                        continue;
                    }
                    None => break,
                },
            }
            let outcome = tokio::select! {
                outcome = self.round(&member) => outcome,
                _ = stop.changed() => break,
            };
            due = Instant::now() + if outcome.is_ok() { ROUND } else { SOON };
            let text = outcome.as_ref().err().cloned().unwrap_or_default();
            if self.shared.group(outcome) {
                tracing::warn!(code = "OUT-5057", "queues are not shared anew, will be tried again: {text}");
            }
        }
        self.leads.send_replace(false);
        self.give_up(|_| true).await;
        member.leave().await;
    }

    /// Computes the share of every topic. One that fails keeps what it has.
    async fn round(&mut self, member: &GroupMember) -> Result<usize, String> {
        let shared = Arc::clone(&self.shared);
        let begun =
            shared.inbox.places(&shared.options.consumer).await.map_err(|e| format!("{} {e}", e.kind.code()))?;
        let (mut most, mut failures) = (0, Vec::new());
        for topic in &shared.options.topics {
            match self.share(member, topic, &begun).await {
                Ok(members) => most = most.max(members),
                Err(why) => failures.push(format!("{}: {why}", topic.name)),
            }
        }
        if failures.is_empty() {
            return Ok(most);
        }
        let more = failures.len().saturating_sub(FAILURES_NAMED);
        failures.truncate(FAILURES_NAMED);
        let text = failures.join("; ");
        Err(if more > 0 { format!("{text}; and {more} more topics") } else { text })
    }

    async fn share(&mut self, member: &GroupMember, topic: &Topic, begun: &[Place]) -> Result<usize, String> {
        let shared = Arc::clone(&self.shared);
        let client = shared.consumer.client();
        let told = |e: rocketmq_remoting::Error| describe(&e);
        let route = client.recent_route(&topic.name, ROUTE_AGE).await.map_err(told)?;
        let members = member.members(&topic.name).await.map_err(told)?;
        if !members.iter().any(|id| id == client.client_id()) {
            member.beat().await;
            return Err("the broker does not know this member yet".into());
        }
        if shared.options.topics.first() == Some(topic) {
            let leads = members.first().is_some_and(|id| id == client.client_id());
            self.leads.send_if_modified(|before| std::mem::replace(before, leads) != leads);
        }
        let mine = allocate(client.client_id(), &members, route.read_queues());
        self.begin(topic, route.read_queues(), &mine, begun).await?;
        let gone: Vec<MessageQueue> =
            self.owned.keys().filter(|q| q.topic == topic.name && !mine.contains(q)).cloned().collect();
        self.give_up(|queue| gone.contains(queue)).await;
        for queue in mine {
            if self.owned.get(&queue).is_some_and(|owned| !owned.reader.is_finished()) {
                continue;
            }
            tracing::info!(%queue, members = members.len(), "reading");
            shared.owned(&queue);
            let (stop, stopped) = watch::channel(false);
            let lane = self.owned.len();
            let reader =
                tokio::spawn(reader::read(Arc::clone(&shared), queue.clone(), topic.tags.clone(), lane, stopped));
            self.owned.insert(queue, Owned { stop, reader });
        }
        Ok(members.len())
    }

    /// Gives places to queues that have none: to all of a topic that was never read, as the options say; to a queue that
    /// came later at its beginning, since all that is in it came after the first start.
    async fn begin(
        &self,
        topic: &Topic,
        queues: &[MessageQueue],
        mine: &[MessageQueue],
        begun: &[Place],
    ) -> Result<(), String> {
        let shared = &self.shared;
        let prefix = format!("{}/", topic.name);
        let first = !begun.iter().any(|place| place.source.starts_with(&prefix));
        let (start, queues) = match shared.options.begin {
            Begin::End if first => (Start::Last, queues),
            Begin::Group if first => (Start::CommittedOrFirst, queues),
            _ if first => (Start::First, queues),
            _ => (Start::First, mine),
        };
        let mut places = Vec::new();
        for queue in queues {
            let source = queue.to_string();
            if !begun.iter().any(|place| place.source == source) {
                let next_offset = shared.consumer.offset_of(queue, start).await.map_err(|e| describe(&e))?;
                tracing::info!(%queue, next_offset, "begins");
                places.push(Place { source, next_offset, stored_at_ms: 0 });
            }
        }
        if places.is_empty() {
            return Ok(());
        }
        shared.inbox.begin(&shared.options.consumer, &places).await.map_err(|e| format!("{} {e}", e.kind.code()))
    }

    async fn give_up(&mut self, which: impl Fn(&MessageQueue) -> bool) {
        let queues: Vec<MessageQueue> = self.owned.keys().filter(|queue| which(queue)).cloned().collect();
        let leaving: Vec<(MessageQueue, Owned)> =
            queues.into_iter().filter_map(|queue| self.owned.remove_entry(&queue)).collect();
        for (_, owned) in &leaving {
            owned.stop.send_replace(true);
        }
        let until = Instant::now() + GIVE_UP_LIMIT;
        for (queue, mut owned) in leaving {
            tracing::info!(%queue, "given up");
            if timeout(until.saturating_duration_since(Instant::now()), &mut owned.reader).await.is_err() {
                owned.reader.abort(); // its transaction is undone, or stored: the place tells
                self.shared.given_up(&queue);
            }
        }
    }
}
