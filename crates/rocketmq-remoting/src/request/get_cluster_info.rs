//! GET_BROKER_CLUSTER_INFO, of a name server. Source: `ClusterInfo` of RocketMQ 4.9.4.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{BrokerData, Request, answer};
use crate::code::RequestCode;
use crate::command::Command;
use crate::error::Error;

/// Asks for all brokers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetClusterInfo;

impl Request for GetClusterInfo {
    type Answer = ClusterInfo;
    const CODE: RequestCode = RequestCode::GetBrokerClusterInfo;

    fn command(&self) -> Result<Command, Error> {
        Ok(Command::request(Self::CODE))
    }

    fn answer(&self, answer: Command) -> Result<ClusterInfo, Error> {
        answer::success(Self::CODE, &answer)?;
        answer::json(Self::CODE, &answer)
    }
}

/// All brokers that are registered now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterInfo {
    /// Brokers by name.
    pub broker_addr_table: BTreeMap<String, BrokerData>,
    /// Names of brokers by cluster.
    pub cluster_addr_table: BTreeMap<String, Vec<String>>,
}

impl ClusterInfo {
    /// Addresses of all masters.
    pub fn masters(&self) -> impl Iterator<Item = (&str, &str)> {
        self.broker_addr_table.iter().filter_map(|(name, broker)| Some((name.as_str(), broker.master()?)))
    }
}
