//! GET_BROKER_CONFIG. Source: `AdminBrokerProcessor`, `MixAll.properties2String` of RocketMQ 4.9.4.

use std::collections::BTreeMap;

use super::{Request, answer};
use crate::code::RequestCode;
use crate::command::{Command, Version};
use crate::error::Error;

/// The settings that tell what an acknowledgement proves and what a broker takes (rocketmq.md B.7). Each version knows a
/// part of them.
pub const DURABILITY_KEYS: &[&str] = &[
    "allAckInSyncStateSet",
    "autoCreateTopicEnable",
    "brokerClusterName",
    "brokerId",
    "brokerName",
    "brokerRole",
    "enableAutoInSyncReplicas",
    "enableControllerMode",
    "enableDLegerCommitLog",
    "enableSlaveActingMaster",
    "fileReservedTime",
    "flushDiskType",
    "inSyncReplicas",
    "maxMessageSize",
    "messageDelayLevel",
    "minInSyncReplicas",
    "rejectTransactionMessage",
    "slaveTimeout",
    "syncFlushTimeout",
    "timerMaxDelaySec",
    "timerWheelEnable",
    "transRocksDBEnable",
    "transWriteOriginTransHalfEnable",
    "transactionCheckInterval",
    "transactionCheckMax",
    "transactionTimeOut",
    "transientStorePoolEnable",
    "waitTimeMillsInSendQueue",
];

/// Asks a broker for some of its settings. Any valid account may.
///
/// The answer on the wire has all settings, among them on 5.x passwords in clear text. Only what was asked for is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetBrokerConfig {
    /// Names of the settings.
    pub keys: Vec<String>,
}

impl GetBrokerConfig {
    /// Asks for these settings.
    #[must_use]
    pub fn of(keys: &[&str]) -> Self {
        Self { keys: keys.iter().map(|key| (*key).to_owned()).collect() }
    }
}

impl Request for GetBrokerConfig {
    type Answer = BrokerConfig;
    const CODE: RequestCode = RequestCode::GetBrokerConfig;

    fn command(&self) -> Result<Command, Error> {
        Ok(Command::request(Self::CODE))
    }

    fn answer(&self, answer: Command) -> Result<BrokerConfig, Error> {
        answer::success(Self::CODE, &answer)?;
        let body = String::from_utf8_lossy(&answer.body);
        let values = body
            .lines()
            .filter_map(|line| line.split_once('='))
            .filter(|(key, _)| self.keys.iter().any(|wanted| wanted == key))
            .map(|(key, value)| (key.to_owned(), value.trim_end_matches('\r').to_owned()))
            .collect();
        Ok(BrokerConfig { values, broker_version: answer.version() })
    }
}

/// Settings of a broker, of those that were asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct BrokerConfig {
    values: BTreeMap<String, String>,
    /// The version of the broker that answered.
    pub broker_version: Version,
}

impl BrokerConfig {
    /// A setting; `None` if this version does not have it, or it was not asked for.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// A setting that is `true` or `false`.
    #[must_use]
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.get(key)?.parse().ok()
    }

    /// A setting that is a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<i64> {
        self.get(key)?.parse().ok()
    }

    /// All that are there.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// Names only: whoever asked for a password need not find it in a log.
impl std::fmt::Debug for BrokerConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokerConfig")
            .field("broker_version", &self.broker_version)
            .field("keys", &self.values.keys())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::ResponseCode;

    #[test]
    fn only_what_was_asked_for_is_kept_and_no_value_is_shown() {
        assert!(DURABILITY_KEYS.is_sorted());
        let request =
            GetBrokerConfig::of(&["flushDiskType", "syncFlushTimeout", "messageDelayLevel", "absent", "pass"]);
        let body = "flushDiskType=ASYNC_FLUSH\r\nsyncFlushTimeout=5000\ninnerClientAuthenticationCredentials={\"k\":\"hidden\"}\n\
                    messageDelayLevel=1s 5s\nbroken line\npass=a=b\n";
        let command = request.command().unwrap();
        let config = request.answer(Command::answer_to(&command, ResponseCode::Success, None).with_body(body)).unwrap();
        assert_eq!(config.get("flushDiskType"), Some("ASYNC_FLUSH"));
        assert_eq!(config.number("syncFlushTimeout"), Some(5_000));
        assert_eq!(config.get("messageDelayLevel"), Some("1s 5s"));
        assert_eq!(config.get("pass"), Some("a=b"));
        assert_eq!(config.get("absent"), None);
        assert_eq!(config.get("innerClientAuthenticationCredentials"), None);
        let text = format!("{config:?}");
        assert!(!text.contains("hidden") && !text.contains("a=b"), "{text}");
    }
}
