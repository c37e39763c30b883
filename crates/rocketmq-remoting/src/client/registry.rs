//! Registered with every master of the cluster, and kept so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{Client, left};
use crate::connection::{Address, Channel, describe};
use crate::error::Error;
use crate::request::GetClusterInfo;

/// A broker that has not been in the cluster for so many rounds is not kept connected any more.
const ROUNDS_TO_FORGET: u32 = 20;
/// Limit of saying good-bye to each broker.
pub(super) const UNREGISTER_LIMIT: Duration = Duration::from_secs(1);

/// Masters to which the client's groups are told.
#[derive(Debug)]
pub(super) struct Registry {
    client: Client,
    /// Masters that are kept connected, with the rounds since the cluster last named them.
    masters: Mutex<HashMap<Address, (Channel, u32)>>,
}

impl Registry {
    pub(super) fn new(client: &Client) -> Self {
        Self { client: client.clone(), masters: Mutex::default() }
    }

    /// Channels to all masters.
    pub(super) fn channels(&self) -> Vec<Channel> {
        let masters = self.masters.lock().unwrap_or_else(PoisonError::into_inner);
        masters.values().map(|(channel, _)| channel.clone()).collect()
    }

    /// The masters that are connected, in order.
    pub(super) fn connected(&self) -> Vec<Address> {
        let masters = self.masters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut addresses: Vec<_> =
            masters.iter().filter(|(_, (channel, _))| channel.status().connected).map(|(a, _)| a.clone()).collect();
        addresses.sort();
        addresses
    }

    /// Keeps no master connected any more.
    pub(super) fn release(&self) {
        for (channel, _) in self.masters.lock().unwrap_or_else(PoisonError::into_inner).values() {
            channel.release();
        }
    }

    /// Channels to masters that were not known before, kept connected from now on.
    async fn discover(&self) -> Result<Vec<Channel>, Error> {
        let info = self.client.ask_name_servers(&GetClusterInfo).await?;
        let named = super::admin::masters(&info);
        let mut masters = self.masters.lock().unwrap_or_else(PoisonError::into_inner);
        for (channel, rounds) in masters.values_mut() {
            *rounds += 1;
            if *rounds == ROUNDS_TO_FORGET {
                channel.release();
            }
        }
        masters.retain(|_, (_, rounds)| *rounds < ROUNDS_TO_FORGET);
        let mut new = Vec::new();
        for (_, address) in named {
            let channel = self.client.channel(&address);
            if masters.insert(address, (channel.clone(), 0)).is_none() {
                channel.keep_connected();
                new.push(channel);
            }
        }
        Ok(new)
    }

    pub(super) async fn first_round(&self, deadline: Instant) -> Result<(), Error> {
        let mut beats = JoinSet::new();
        for channel in self.discover().await? {
            beats.spawn(async move { channel.heartbeat(left(deadline)).await.map(drop) });
        }
        if beats.is_empty() {
            return Err(Error::Route { topic: "(all)".into(), problem: "the name servers know no master" });
        }
        let mut accepted = 0;
        let mut failure = None;
        while let Some(beat) = beats.join_next().await {
            match beat {
                Ok(Ok(())) => accepted += 1,
                Ok(Err(error)) => failure = Some(error),
                Err(_) => {}
            }
        }
        if accepted > 0 { Ok(()) } else { Err(failure.unwrap_or(Error::Closed)) }
    }

    /// Looks for new masters, for ever. Their heartbeats are their channels' business.
    pub(super) async fn keep(self: Arc<Self>, every: Duration) {
        loop {
            tokio::time::sleep(every).await;
            match self.discover().await {
                Ok(new) => {
                    for channel in new {
                        if let Err(error) = channel.heartbeat(self.client.options().request_limit).await {
                            let address = channel.address();
                            tracing::warn!(%address, error = describe(&error), "group not registered yet");
                        }
                    }
                }
                Err(error) => tracing::warn!(error = describe(&error), "masters of the cluster are not known anew"),
            }
        }
    }
}
