//! Administration: topics, groups, settings, single messages.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Client, left};
use crate::code::ResponseCode;
use crate::connection::{Address, describe};
use crate::error::Error;
use crate::message::{OffsetId, StoredMessage};
use crate::request::{
    BrokerConfig, ClusterInfo, CreateSubscriptionGroup, CreateTopic, DeleteTopicInBroker, DeleteTopicInNameServer,
    GetBrokerConfig, GetClusterInfo, GetRuntimeInfo, QueryMessage, Request, ResumeHalf, RuntimeInfo,
    UpdateBrokerConfig, ViewMessage,
};

/// Pause between looks for a new topic at the name servers, where it appears 2 to 21 ms after the brokers' answers.
const ROUTE_POLL: Duration = Duration::from_millis(10);

/// Administrative calls. With ACL most need an administrator's account. Cheap to clone.
///
/// Each call has the client's [`super::ClientOptions::request_limit`], for each broker.
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

/// Brokers that an administrative call goes to; of each broker name the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Where {
    /// Every master that the name servers know.
    Everywhere,
    /// The masters of this cluster.
    Cluster(String),
    /// These.
    Brokers(Vec<Address>),
}

/// A master, as the name servers know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Master {
    /// Its cluster.
    pub cluster: String,
    /// Its name, which it shares with its slaves.
    pub broker_name: String,
    /// Where it listens.
    pub address: Address,
}

/// Name and address of each master.
pub(super) fn masters(info: &ClusterInfo) -> Vec<(&str, Address)> {
    info.masters()
        .filter_map(|(name, text)| match text.parse() {
            Ok(address) => Some((name, address)),
            Err(_) => {
                tracing::warn!(broker = name, address = text, "an address that is none");
                None
            }
        })
        .collect()
}

impl Admin {
    /// Administrative calls with this client.
    #[must_use]
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone() }
    }

    /// All brokers that the name servers know.
    ///
    /// # Errors
    /// Why no name server could be asked.
    pub async fn cluster_info(&self) -> Result<ClusterInfo, Error> {
        self.client.ask_name_servers(&GetClusterInfo).await
    }

    /// All masters, or those of one cluster, in order of their names.
    ///
    /// # Errors
    /// As [`Self::cluster_info`].
    pub async fn masters(&self, cluster: Option<&str>) -> Result<Vec<Master>, Error> {
        let info = self.cluster_info().await?;
        let cluster_of = |name: &str| info.broker_addr_table.get(name).map(|b| b.cluster.clone()).unwrap_or_default();
        Ok(masters(&info)
            .into_iter()
            .map(|(name, address)| Master { cluster: cluster_of(name), broker_name: name.to_owned(), address })
            .filter(|master| cluster.is_none_or(|cluster| master.cluster == cluster))
            .collect())
    }

    async fn brokers(&self, place: &Where) -> Result<Vec<Address>, Error> {
        let cluster = match place {
            Where::Brokers(addresses) => return Ok(addresses.clone()),
            Where::Everywhere => None,
            Where::Cluster(name) => Some(name.as_str()),
        };
        Ok(self.masters(cluster).await?.into_iter().map(|master| master.address).collect())
    }

    async fn ask<R: Request>(&self, broker: &Address, request: &R) -> Result<R::Answer, Error> {
        self.client.channel(broker).request(request, self.client.options().request_limit).await
    }

    /// Asks all brokers at once. The first failure is the result, after all have answered or failed.
    async fn ask_all<R>(&self, brokers: &[Address], request: &R) -> Result<(), Error>
    where
        R: Request + Clone + Send + Sync + 'static,
        R::Answer: Send,
    {
        let mut asking = JoinSet::new();
        for broker in brokers {
            let (channel, request) = (self.client.channel(broker), request.clone());
            let limit = self.client.options().request_limit;
            asking.spawn(async move { channel.request(&request, limit).await.map(drop) });
        }
        let mut failure = None;
        while let Some(done) = asking.join_next().await {
            if let Ok(Err(error)) = done {
                failure.get_or_insert(error);
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Some settings of a broker, [`crate::request::DURABILITY_KEYS`] for instance. Any valid account may.
    ///
    /// # Errors
    /// As [`crate::connection::Channel::request`].
    pub async fn broker_config(&self, broker: &Address, keys: &[&str]) -> Result<BrokerConfig, Error> {
        self.ask(broker, &GetBrokerConfig::of(keys)).await
    }

    /// Changes settings of a running broker, which does not check them; some take effect only at its next start.
    ///
    /// # Errors
    /// As [`crate::connection::Channel::request`].
    pub async fn update_broker_config(&self, broker: &Address, settings: &[(&str, &str)]) -> Result<(), Error> {
        let settings = settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.ask(broker, &UpdateBrokerConfig { settings }).await.map(drop)
    }

    /// Counters and positions of a broker; [`RuntimeInfo::flushed_at_least`] is the flush barrier. Any valid account may.
    ///
    /// # Errors
    /// As [`crate::connection::Channel::request`]. 4.9.4 refuses with SYSTEM_ERROR in the first second after its start.
    pub async fn runtime_info(&self, broker: &Address) -> Result<RuntimeInfo, Error> {
        self.ask(broker, &GetRuntimeInfo).await
    }

    /// Creates a topic on these brokers, or changes it, and waits until the name servers know it there. This is the only
    /// way by which this crate creates one: a send to a topic that does not exist fails.
    ///
    /// # Errors
    /// The first broker's that failed; others may have it then. [`Error::Route`] if there is no broker to ask, or the
    /// name servers do not know it within the client's request limit.
    pub async fn create_topic(&self, topic: &CreateTopic, place: &Where) -> Result<(), Error> {
        let brokers = self.brokers(place).await?;
        if brokers.is_empty() {
            return Err(Error::Route { topic: topic.topic.clone(), problem: "no broker to create it on" });
        }
        self.ask_all(&brokers, topic).await?;
        let deadline = Instant::now() + self.client.options().request_limit;
        loop {
            match self.client.refresh_route(&topic.topic).await {
                Ok(route) => {
                    let masters: Vec<&Address> = route.brokers().filter_map(|name| route.master(name)).collect();
                    if brokers.iter().all(|broker| masters.contains(&broker)) {
                        return Ok(());
                    }
                }
                Err(error) if error.refused_with() == Some(ResponseCode::TopicNotExist) => {}
                Err(error) => return Err(error),
            }
            if left(deadline).is_zero() {
                let problem = "the brokers have it, but the name servers do not know it yet";
                return Err(Error::Route { topic: topic.topic.clone(), problem });
            }
            sleep(ROUTE_POLL).await;
        }
    }

    /// Deletes a topic with all of its messages, on these brokers and then on every name server.
    ///
    /// # Errors
    /// The first failure.
    pub async fn delete_topic(&self, topic: &str, place: &Where) -> Result<(), Error> {
        let brokers = self.brokers(place).await?;
        self.ask_all(&brokers, &DeleteTopicInBroker { topic: topic.to_owned() }).await?;
        let request = DeleteTopicInNameServer { topic: topic.to_owned() };
        for name_server in self.client.name_servers() {
            name_server.request(&request, self.client.options().route_limit).await?;
        }
        self.client.forget_route(topic);
        Ok(())
    }

    /// Creates a consumer group on these brokers, or changes it.
    ///
    /// # Errors
    /// The first failure; [`Error::Route`] if there is no broker to ask.
    pub async fn create_group(&self, group: &CreateSubscriptionGroup, place: &Where) -> Result<(), Error> {
        let brokers = self.brokers(place).await?;
        if brokers.is_empty() {
            return Err(Error::Route { topic: group.group.clone(), problem: "no broker to create the group on" });
        }
        self.ask_all(&brokers, group).await
    }

    /// The message with this offset id, asked of the broker that the id names.
    ///
    /// # Errors
    /// As [`Self::view_message_at`].
    pub async fn view_message(&self, id: OffsetId) -> Result<StoredMessage, Error> {
        self.view_message_at(&broker_of(id)?, id.commit_log_offset).await
    }

    /// The message at this place of a broker's commit log.
    ///
    /// # Errors
    /// As [`crate::connection::Channel::request`]; refused with SYSTEM_ERROR if no message begins there.
    pub async fn view_message_at(&self, broker: &Address, commit_log_offset: i64) -> Result<StoredMessage, Error> {
        self.ask(broker, &ViewMessage { commit_log_offset }).await
    }

    /// A topic's messages with this key or unique key, on all of its masters, stored within these times (ms since
    /// 1970), the oldest first; at most `max_messages` of each broker, whose own limit is 64. Brokers index a message
    /// some milliseconds after they stored it.
    ///
    /// # Errors
    /// As [`Client::route`] and [`crate::connection::Channel::request`], of any master.
    pub async fn query_by_key(
        &self,
        topic: &str,
        key: &str,
        from_ms: i64,
        to_ms: i64,
        max_messages: i32,
    ) -> Result<Vec<StoredMessage>, Error> {
        let route = self.client.route(topic).await?;
        let request = QueryMessage { topic: topic.to_owned(), key: key.to_owned(), max_messages, from_ms, to_ms };
        let mut found = Vec::new();
        for master in route.brokers().filter_map(|name| route.master(name)) {
            found.extend(self.ask(master, &request).await?);
        }
        found.sort_by_key(|message| (message.stored_at_ms, message.commit_log_offset));
        Ok(found)
    }

    /// Puts a half message back that was given up after too many checks. `id` is that of its copy in
    /// TRANS_CHECK_MAX_TIME_TOPIC. Done twice, there are two halfs.
    ///
    /// # Errors
    /// As [`crate::connection::Channel::request`].
    pub async fn resume_half(&self, id: OffsetId) -> Result<(), Error> {
        let broker = broker_of(id)?;
        let resumed = self.ask(&broker, &ResumeHalf { offset_id: id }).await;
        if let Err(error) = &resumed {
            tracing::warn!(%broker, error = describe(error), "half message not resumed");
        }
        resumed.map(drop)
    }
}

fn broker_of(id: OffsetId) -> Result<Address, Error> {
    let text = id.store_host.to_string();
    text.parse().map_err(|_| Error::Connect {
        address: text,
        source: std::io::Error::new(std::io::ErrorKind::InvalidInput, "the id names no broker"),
    })
}
