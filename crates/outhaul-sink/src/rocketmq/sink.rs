//! The sink.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_core::receipt::{AckLevel, Outcome, Reason, Receipt};

use super::barrier::prove;
use super::broker::Broker;
use super::cluster::Cluster;
use super::config::RocketMqConfig;
use super::deliver::deliver;
use super::examine::examine;
use super::verify::verify;
use crate::codes::SinkCode;
use crate::sink::{Acknowledged, Finding, Sink, SinkError, SinkInfo, Verified};

/// Delivers to RocketMQ.
///
/// A dropped call is safe: what it had sent may be stored, and is sent again under the same UNIQ_KEY.
pub struct RocketMqSink {
    config: RocketMqConfig,
    require_ack: Option<AckLevel>,
    cluster: Mutex<Option<Arc<Cluster>>>,
    starting: tokio::sync::Mutex<()>,
    /// A start has begun that did not succeed: what it saw anew the next one takes for known.
    unfinished: AtomicBool,
}

impl RocketMqSink {
    /// A sink with these keys, and the least that an acknowledgement has to prove. Nothing is opened before
    /// [`Sink::start`].
    pub fn new(config: RocketMqConfig, require_ack: Option<AckLevel>) -> Self {
        Self {
            config,
            require_ack,
            cluster: Mutex::default(),
            starting: tokio::sync::Mutex::default(),
            unfinished: AtomicBool::new(false),
        }
    }

    fn cluster(&self) -> Option<Arc<Cluster>> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn cluster_or_new(&self) -> Result<Arc<Cluster>, SinkError> {
        let mut cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        match &*cluster {
            Some(cluster) => Ok(cluster.clone()),
            None => {
                let made = Arc::new(Cluster::new(&self.config)?);
                *cluster = Some(made.clone());
                Ok(made)
            }
        }
    }

    fn started(&self) -> Result<Arc<Cluster>, SinkError> {
        self.cluster().ok_or_else(|| SinkError::of(SinkCode::RocketMqUnreachable, "not started"))
    }

    /// Whether a broker proves what is demanded only some time after its answer.
    ///
    /// # Errors
    /// It never does: the setting to change.
    fn proves_later(&self, broker: &Broker) -> Result<bool, String> {
        let Some(least) = self.require_ack.filter(|least| !broker.facts.meets(*least)) else { return Ok(false) };
        let facts = &broker.facts;
        let what = format!("broker {} at {}", facts.name, broker.address);
        let Some(durability) = &facts.durability else {
            let why = facts.untold.as_deref().unwrap_or("it has no flushDiskType");
            return Err(format!("{what} does not tell its settings ({why})"));
        };
        if self.config.is_proven_later(durability, least) {
            return Ok(true);
        }
        let or = if durability.can_show(least) { ", or leave flush_barrier on" } else { "" };
        Err(format!(
            "{what} ({}) proves `{}`, `{}` is demanded: {}{or}",
            durability.words(),
            facts.level().as_str(),
            least.as_str(),
            durability.remedy(least)
        ))
    }

    fn warnings(&self, new: &[Arc<Broker>]) -> Vec<String> {
        let mut warnings = Vec::new();
        for broker in new {
            let facts = &broker.facts;
            let later = self.proves_later(broker) == Ok(true);
            match &facts.durability {
                _ if later => {}
                Some(durability) => warnings.extend(durability.risk().map(|risk| {
                    let (words, level) = (durability.words(), facts.level().as_str());
                    format!("broker {} ({words}): an acknowledgement proves `{level}`; {risk}", facts.name)
                })),
                None => warnings.push(format!(
                    "broker {} does not tell its settings{}: what an acknowledgement proves is unknown",
                    facts.name,
                    facts.untold.as_ref().map(|why| format!(" ({why})")).unwrap_or_default()
                )),
            }
        }
        if self.config.tls_insecure && !new.is_empty() {
            warnings.push("tls_insecure: any certificate is accepted, anybody in between can read and change".into());
        }
        warnings
    }
}

#[async_trait]
impl Sink for RocketMqSink {
    fn slotting(&self) -> Slotting {
        Slotting::ByJavaHash(self.config.slots)
    }

    fn recall(&self, memory: &str) {
        if let Ok(cluster) = self.cluster_or_new() {
            cluster.recall(memory);
        }
    }

    fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        self.cluster_or_new().ok()?.memory(kept)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        let _one_at_a_time = self.starting.lock().await;
        let cluster = self.cluster_or_new()?;
        let unfinished = self.unfinished.swap(true, Ordering::SeqCst);
        let looked = cluster.look(&self.config).await?;
        let (mut proves_later, mut too_weak) = (false, Vec::new());
        for broker in &looked.up {
            match self.proves_later(broker) {
                Ok(later) => proves_later |= later,
                Err(why) => too_weak.push(why),
            }
        }
        if !too_weak.is_empty() {
            return Err(SinkError::of(SinkCode::AckTooWeak, too_weak.join("; ")));
        }
        let mut warnings = self.warnings(&looked.new);
        warnings.extend(looked.lost);
        let level = looked.up.iter().map(|broker| broker.facts.level()).min().unwrap_or_default();
        // What is connected as before has forgotten nothing; to what is not connected nothing is sent.
        let unchanged = looked.new.is_empty() && !unfinished;
        self.unfinished.store(false, Ordering::SeqCst);
        Ok(SinkInfo { level, warnings, proves_later, unchanged })
    }

    async fn send(&self, _slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        if messages.is_empty() {
            return Vec::new();
        }
        match self.started() {
            Ok(cluster) => deliver(&cluster, &self.config, self.require_ack, messages).await,
            Err(error) => {
                let down = Outcome::DestinationDown(Reason::new(error.code, error.message));
                vec![down; messages.len()]
            }
        }
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        verify(&*self.started()?, &self.config, acknowledged).await
    }

    /// Receipts of before the last start must have been verified since: only then is it certain that what stands in the
    /// log below the flushed bound is theirs.
    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        if receipts.is_empty() {
            return self.started()?.is_as_looked_at(&self.config).await.map(|()| Vec::new());
        }
        prove(&*self.started()?, &self.config, self.require_ack, receipts).await
    }

    async fn examine(&self, topics: &[String]) -> Vec<Finding> {
        match self.cluster() {
            Some(cluster) => examine(&cluster, &self.config, self.require_ack, topics).await,
            None => Vec::new(),
        }
    }

    async fn close(&self) {
        let cluster = self.cluster.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(cluster);
    }
}
