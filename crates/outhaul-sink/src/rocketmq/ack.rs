//! What an acknowledgement of a broker proves, from its own settings (RocketMQ 4.9.4: `CommitLog`, `HAService`; 5.3.3:
//! `CommitLog.needHandleHA`, `calcNeedAckNums`, `MessageStoreConfig`).

use outhaul_core::receipt::AckLevel;
use rocketmq_remoting::command::Version;
use rocketmq_remoting::request::{BrokerConfig, SendStatus};

/// A broker's settings, as far as they bear on what an acknowledgement proves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Durability {
    /// fsync before the answer.
    sync_flush: bool,
    /// A buffer of the broker's own before the page cache: what is in it dies with the process.
    transient_pool: bool,
    /// Nodes that have the message when the answer comes, the master included.
    nodes: u32,
    /// DLedger: a majority.
    majority: bool,
    /// As the broker writes them.
    flush_disk_type: String,
    broker_role: String,
    five: bool,
}

impl Durability {
    pub(super) fn of(config: &BrokerConfig, version: Version) -> Self {
        let text = |key: &str| config.get(key).unwrap_or_default().trim().to_owned();
        let on = |key: &str| config.flag(key) == Some(true);
        let number = |key: &str, absent: i64| config.number(key).unwrap_or(absent).clamp(0, 1_000);
        let (flush_disk_type, broker_role) = (text("flushDiskType"), text("brokerRole"));
        let sync_master = broker_role == "SYNC_MASTER";
        let five = version.is_5();
        let nodes = if !sync_master {
            1
        } else if !five {
            2
        } else if on("enableControllerMode") {
            let waited_for = if on("allAckInSyncStateSet") { 1 } else { number("inSyncReplicas", 1) };
            waited_for.max(number("minInSyncReplicas", 1))
        } else if on("enableAutoInSyncReplicas") {
            // Lowered to this where replicas are missing.
            number("inSyncReplicas", 1).min(number("minInSyncReplicas", 1))
        } else {
            number("inSyncReplicas", 1)
        };
        Self {
            sync_flush: flush_disk_type == "SYNC_FLUSH",
            transient_pool: on("transientStorePoolEnable") && flush_disk_type != "SYNC_FLUSH" && broker_role != "SLAVE",
            nodes: u32::try_from(nodes).unwrap_or(1).max(1),
            majority: on("enableDLegerCommitLog"),
            flush_disk_type,
            broker_role,
            five,
        }
    }

    /// What SEND_OK proves.
    pub(super) fn level(&self) -> AckLevel {
        if self.majority {
            AckLevel::Quorum
        } else if self.nodes >= 2 {
            AckLevel::Replicated
        } else if self.sync_flush {
            AckLevel::Flushed
        } else {
            AckLevel::Received
        }
    }

    /// What an answer with this status proves. Where flush and replica both failed, the broker names only the replica.
    pub(super) fn level_of(&self, status: SendStatus) -> AckLevel {
        match status {
            SendStatus::Ok => self.level(),
            SendStatus::FlushDiskTimeout if self.nodes >= 2 => AckLevel::Replicated,
            SendStatus::FlushDiskTimeout | SendStatus::FlushSlaveTimeout | SendStatus::SlaveNotAvailable => {
                AckLevel::Received
            }
        }
    }

    /// Whether SEND_OK proves at least this. Two nodes that have it in memory are no flush.
    pub(super) fn meets(&self, least: AckLevel) -> bool {
        match least {
            AckLevel::Flushed => self.sync_flush || self.majority,
            _ => self.level() >= least,
        }
    }

    /// Whether an answer with this status does.
    pub(super) fn meets_with(&self, status: SendStatus, least: AckLevel) -> bool {
        match status {
            SendStatus::Ok => self.meets(least),
            SendStatus::FlushDiskTimeout => least != AckLevel::Flushed && self.level_of(status) >= least,
            SendStatus::FlushSlaveTimeout | SendStatus::SlaveNotAvailable => self.level_of(status) >= least,
        }
    }

    /// Whether its runtime information shows later that this level is reached: what is flushed. Not known of the buffer
    /// before the page cache.
    pub(super) fn can_show(&self, least: AckLevel) -> bool {
        least == AckLevel::Flushed && !self.transient_pool && !self.majority
    }

    /// The two settings that say most.
    pub(super) fn words(&self) -> String {
        let replicas = if self.five && self.broker_role == "SYNC_MASTER" {
            format!(", {} in-sync node{}", self.nodes, if self.nodes == 1 { "" } else { "s" })
        } else {
            String::new()
        };
        let pool = if self.transient_pool { ", transientStorePoolEnable" } else { "" };
        let majority = if self.majority { ", DLedger" } else { "" };
        format!("{}, {}{replicas}{pool}{majority}", self.flush_disk_type, self.broker_role)
    }

    /// What can be lost although it was acknowledged.
    pub(super) fn risk(&self) -> Option<&'static str> {
        match self.level() {
            _ if self.transient_pool && self.nodes < 2 && !self.majority => {
                Some("what is in its own buffer is lost when the broker's process ends (transientStorePoolEnable)")
            }
            AckLevel::Received | AckLevel::Unknown => {
                Some("a power cut of its machine loses what was not yet flushed (ASYNC_FLUSH)")
            }
            AckLevel::Flushed => None,
            AckLevel::Replicated if self.sync_flush => None,
            AckLevel::Replicated => Some("a power cut of both machines at once loses what was not yet flushed"),
            AckLevel::Quorum => None,
        }
    }

    /// The broker setting that has to be changed for this level.
    pub(super) fn remedy(&self, least: AckLevel) -> String {
        let restart = "in broker.conf and restart it (changed at run time it has no effect)";
        match least {
            AckLevel::Unknown | AckLevel::Received => "allow the account to read the broker's settings".into(),
            AckLevel::Flushed => format!("set flushDiskType=SYNC_FLUSH {restart}"),
            AckLevel::Replicated if self.five => {
                format!("set brokerRole=SYNC_MASTER and inSyncReplicas=2 {restart}, with a slave beside it")
            }
            AckLevel::Replicated => format!("set brokerRole=SYNC_MASTER {restart}, with a slave beside it"),
            AckLevel::Quorum => "only brokers that keep their commit log with DLedger \
                                 (enableDLegerCommitLog=true) acknowledge by majority"
                .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use AckLevel::{Flushed, Quorum, Received, Replicated};
    use rocketmq_remoting::ResponseCode;
    use rocketmq_remoting::request::{DURABILITY_KEYS, GetBrokerConfig, Request};

    use super::*;

    fn durability(version: Version, settings: &str) -> Durability {
        let request = GetBrokerConfig::of(DURABILITY_KEYS);
        let body = settings.replace(' ', "\n");
        let command = request.command().unwrap();
        let answer = rocketmq_remoting::Command::answer_to(&command, ResponseCode::Success, None).with_body(body);
        Durability::of(&request.answer(answer).unwrap(), version)
    }

    #[test]
    fn levels_follow_the_rules_of_each_version() {
        let async_ = "flushDiskType=ASYNC_FLUSH brokerRole=ASYNC_MASTER";
        let sync_master = "flushDiskType=ASYNC_FLUSH brokerRole=SYNC_MASTER";
        let both = "flushDiskType=SYNC_FLUSH brokerRole=SYNC_MASTER";
        for (settings, four, five) in [
            (async_.to_owned(), Received, Received),
            ("flushDiskType=SYNC_FLUSH brokerRole=ASYNC_MASTER".to_owned(), Flushed, Flushed),
            (sync_master.to_owned(), Replicated, Received),
            (both.to_owned(), Replicated, Flushed),
            (format!("{sync_master} inSyncReplicas=2"), Replicated, Replicated),
            (format!("{both} inSyncReplicas=2"), Replicated, Replicated),
            (format!("{async_} inSyncReplicas=2"), Received, Received),
            (format!("{sync_master} inSyncReplicas=2 enableAutoInSyncReplicas=true"), Replicated, Received),
            (
                format!("{sync_master} inSyncReplicas=2 minInSyncReplicas=2 enableAutoInSyncReplicas=true"),
                Replicated,
                Replicated,
            ),
            (format!("{sync_master} enableControllerMode=true allAckInSyncStateSet=true"), Replicated, Received),
            (
                format!("{sync_master} enableControllerMode=true allAckInSyncStateSet=true minInSyncReplicas=2"),
                Replicated,
                Replicated,
            ),
            (format!("{async_} enableDLegerCommitLog=true"), Quorum, Quorum),
            (String::new(), Received, Received),
        ] {
            let of = |version| durability(version, &settings).level();
            assert_eq!((of(Version::V4_9_4), of(Version::V5_1_1)), (four, five), "{settings}");
        }
    }

    #[test]
    fn a_weaker_status_proves_less() {
        let both = durability(Version::V4_9_4, "flushDiskType=SYNC_FLUSH brokerRole=SYNC_MASTER");
        let flush = durability(Version::V4_9_4, "flushDiskType=SYNC_FLUSH brokerRole=ASYNC_MASTER");
        for (status, of_both, of_flush) in [
            (SendStatus::Ok, Replicated, Flushed),
            (SendStatus::FlushDiskTimeout, Replicated, Received),
            (SendStatus::FlushSlaveTimeout, Received, Received),
            (SendStatus::SlaveNotAvailable, Received, Received),
        ] {
            assert_eq!((both.level_of(status), flush.level_of(status)), (of_both, of_flush), "{status:?}");
        }
    }

    #[test]
    fn two_nodes_without_a_flush_do_not_meet_flushed() {
        let replicated = durability(Version::V4_9_4, "flushDiskType=ASYNC_FLUSH brokerRole=SYNC_MASTER");
        let both = durability(Version::V4_9_4, "flushDiskType=SYNC_FLUSH brokerRole=SYNC_MASTER");
        assert!(replicated.meets(Replicated) && !replicated.meets(Flushed));
        assert!(both.meets(Replicated) && both.meets(Flushed) && !both.meets(Quorum));
        assert!(both.meets_with(SendStatus::FlushDiskTimeout, Replicated));
        assert!(!both.meets_with(SendStatus::FlushDiskTimeout, Flushed));
        assert!(!both.meets_with(SendStatus::SlaveNotAvailable, Flushed));
        assert!(both.meets_with(SendStatus::SlaveNotAvailable, Received));
    }

    #[test]
    fn the_remedy_names_the_setting() {
        let of = |version| durability(version, "flushDiskType=ASYNC_FLUSH brokerRole=ASYNC_MASTER");
        assert!(of(Version::V4_9_4).remedy(Flushed).contains("flushDiskType=SYNC_FLUSH"));
        assert!(!of(Version::V4_9_4).remedy(Replicated).contains("inSyncReplicas"));
        assert!(of(Version::V5_1_1).remedy(Replicated).contains("inSyncReplicas=2"));
        assert!(of(Version::V5_1_1).remedy(Quorum).contains("DLedger"));
        let pool = durability(Version::V4_9_4, "flushDiskType=ASYNC_FLUSH transientStorePoolEnable=true");
        assert!(!pool.can_show(Flushed) && pool.risk().unwrap().contains("process"));
    }
}
