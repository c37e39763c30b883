//! Membership of a consumer group: who else is in it, and which queues fall to whom.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::Client;
use super::registry::{Registry, UNREGISTER_LIMIT};
use crate::code::RequestCode;
use crate::connection::{Address, PushQueue, describe};
use crate::error::Error;
use crate::message::MessageQueue;
use crate::request::{ConsumerData, GetConsumerList, UnregisterClient};

/// Pushes that wait: one says as much as many.
const MAX_PUSHES: usize = 16;
const MAX_PUSH_BYTES: usize = 1024 * 1024;

/// A client's membership of a consumer group, at every master of the cluster.
///
/// Brokers tell nobody which queues are whose: each member asks who is in the group and computes its share
/// ([`allocate`]). Two members that asked at different times can both believe that a queue is theirs.
#[derive(Debug)]
pub struct GroupMember {
    client: Client,
    group: String,
    registry: Arc<Registry>,
    keeper: JoinHandle<()>,
    changes: PushQueue,
    resets: PushQueue,
}

/// What a broker tells a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// Somebody came or went: NOTIFY_CONSUMER_IDS_CHANGED.
    Changed,
    /// An operator wants the group to take other offsets: RESET_CONSUMER_CLIENT_OFFSET (`mqadmin resetOffsetByTime`). The
    /// broker does not wait for an answer.
    Reset {
        /// The topic, as far as the broker named one.
        topic: String,
    },
}

impl GroupMember {
    /// Registers with every master of the cluster, and waits until each has accepted it or failed, within `limit`; one
    /// that accepted is enough. Masters that come later are registered too, and each again after a reconnect.
    ///
    /// A client can have one membership at a time.
    ///
    /// # Errors
    /// As [`super::TransactionalProducer::start`].
    pub async fn join(client: &Client, data: ConsumerData, limit: Duration) -> Result<Self, Error> {
        let deadline = Instant::now() + limit;
        let listen = |code| client.pushes().subscribe(code, MAX_PUSHES, MAX_PUSH_BYTES).ok_or(Error::Closed);
        let changes = listen(RequestCode::NotifyConsumerIdsChanged)?;
        let resets = listen(RequestCode::ResetConsumerClientOffset)?;
        let group = data.group.clone();
        client.inner.groups.consume(data);
        let registry = Arc::new(Registry::new(client));
        let keeper = tokio::spawn(registry.clone().keep(client.options().connection.heartbeat_every));
        let this = Self { client: client.clone(), group, registry, keeper, changes, resets };
        this.registry.first_round(deadline).await?;
        Ok(this)
    }

    /// Ids of all members, sorted, as one broker of the topic knows them: the first by name that answers, so that all
    /// members ask the same one.
    ///
    /// # Errors
    /// As [`Client::route`]; why no master of the topic answered.
    pub async fn members(&self, topic: &str) -> Result<Vec<String>, Error> {
        let route = self.client.route(topic).await?;
        let mut failure = Error::Route { topic: topic.to_owned(), problem: "its route has no master now" };
        for name in route.brokers() {
            let Some(address) = route.master(name) else { continue };
            let ask = GetConsumerList { group: self.group.clone(), broker_name: None };
            match self.client.channel(address).request(&ask, self.client.options().request_limit).await {
                Ok(mut members) => {
                    members.sort_by(|a, b| a.encode_utf16().cmp(b.encode_utf16())); // as Java's String.compareTo
                    members.dedup();
                    return Ok(members);
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Waits for what a broker tells. `None` when the client is gone.
    pub async fn told(&mut self) -> Option<Told> {
        tokio::select! {
            push = self.changes.next() => push.map(|_| Told::Changed),
            push = self.resets.next() => {
                push.map(|push| Told::Reset { topic: push.command.ext.get("topic").unwrap_or_default().to_owned() })
            }
        }
    }

    /// Sends a heartbeat to every master now.
    pub async fn beat(&self) {
        let limit = self.client.options().request_limit;
        let mut beats = JoinSet::new();
        for channel in self.registry.channels() {
            beats.spawn(async move { channel.heartbeat(limit).await.map(drop) });
        }
        beats.join_all().await;
    }

    /// The masters that it is registered with at the moment.
    #[must_use]
    pub fn registered_with(&self) -> Vec<Address> {
        self.registry.connected()
    }

    /// Tells all brokers that this member leaves, so that the others share its queues at once.
    pub async fn leave(self) {
        self.keeper.abort();
        self.client.inner.groups.stop_consuming();
        let mut leaving = JoinSet::new();
        for channel in self.registry.channels().into_iter().filter(|c| c.status().connected) {
            let leave = UnregisterClient {
                client_id: self.client.client_id().to_owned(),
                producer_group: None,
                consumer_group: Some(self.group.clone()),
            };
            leaving.spawn(async move {
                if let Err(error) = channel.request(&leave, UNREGISTER_LIMIT).await {
                    tracing::debug!(address = %channel.address(), error = describe(&error), "not unregistered");
                }
            });
        }
        leaving.join_all().await;
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        self.keeper.abort();
        self.client.inner.groups.stop_consuming();
        self.registry.release();
    }
}

/// A member's share of a topic's queues: neighbours in the sorted list, shares that differ by one at most, the first
/// members having the larger ones. None if it is not in the list. Source: `AllocateMessageQueueAveragely` of RocketMQ
/// 4.9.4.
#[must_use]
pub fn allocate(me: &str, members: &[String], queues: &[MessageQueue]) -> Vec<MessageQueue> {
    let Some(at) = members.iter().position(|member| member == me) else { return Vec::new() };
    let mut queues = queues.to_vec();
    queues.sort();
    let (share, rest) = (queues.len() / members.len(), queues.len() % members.len());
    let begin = at * share + at.min(rest);
    queues.into_iter().skip(begin).take(share + usize::from(at < rest)).collect()
}

impl super::Groups {
    fn consume(&self, data: ConsumerData) {
        *self.consumer.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(data);
    }

    fn stop_consuming(&self) {
        *self.consumer.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queues(count: usize) -> Vec<MessageQueue> {
        let queue = |n| MessageQueue { topic: "t".into(), broker_name: "b".into(), queue_id: n };
        (0..count).rev().map(|n| queue(i32::try_from(n).unwrap())).collect()
    }

    fn shares(members: usize, count: usize) -> Vec<Vec<i32>> {
        let members: Vec<String> = (0..members).map(|n| format!("m{n}")).collect();
        let of = |me| allocate(me, &members, &queues(count)).iter().map(|q| q.queue_id).collect();
        members.iter().map(|me| of(me)).collect()
    }

    /// The cases of Java's `AllocateMessageQueueAveragely`: `range` and `startIndex` of it.
    #[test]
    fn shares_are_javas() {
        assert_eq!(shares(3, 8), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7]]);
        assert_eq!(shares(2, 4), [vec![0, 1], vec![2, 3]]);
        assert_eq!(shares(3, 2), [vec![0], vec![1], vec![]]);
        assert_eq!(shares(1, 3), [vec![0, 1, 2]]);
        assert!(allocate("stranger", &["m0".into()], &queues(3)).is_empty());
    }

    #[test]
    fn every_queue_is_somebodys_and_nobody_elses() {
        for (members, count) in (1..7).flat_map(|m| (0..20).map(move |c| (m, c))) {
            let mut all: Vec<i32> = shares(members, count).into_iter().flatten().collect();
            all.sort_unstable();
            assert_eq!(all, (0..i32::try_from(count).unwrap()).collect::<Vec<_>>(), "{members} {count}");
        }
    }
}
