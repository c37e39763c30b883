//! The sink under test, with notes of what may stand at the broker without an acknowledgement.

use std::sync::Arc;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_sink::rocketmq::RocketMqSink;
use outhaul_sink::{Acknowledged, Finding, Outcome, Receipt, Sink, SinkError, SinkInfo, Verified};

use crate::collector::{Notes, UnderWay};

/// Notes the messages of every send that was not answered. All else is the sink's.
pub struct NotedSink {
    sink: RocketMqSink,
    notes: Arc<Notes>,
}

impl NotedSink {
    pub fn new(sink: RocketMqSink, notes: Arc<Notes>) -> Self {
        Self { sink, notes }
    }
}

#[async_trait]
impl Sink for NotedSink {
    fn slotting(&self) -> Slotting {
        self.sink.slotting()
    }

    fn recall(&self, memory: &str) {
        self.sink.recall(memory);
    }

    fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        self.sink.memory(kept)
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        self.sink.start().await
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let mut under_way = UnderWay::new(messages, &self.notes);
        let outcomes = self.sink.send(slot, messages).await;
        let unknown = messages.iter().zip(&outcomes).filter(|(_, outcome)| matches!(outcome, Outcome::Unknown(_)));
        under_way.ids = unknown.map(|(message, _)| message.id.as_str()).collect();
        outcomes
    }

    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        self.sink.verify(acknowledged).await
    }

    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        self.sink.prove(receipts).await
    }

    async fn examine(&self, topics: &[String]) -> Vec<Finding> {
        self.sink.examine(topics).await
    }

    async fn close(&self) {
        self.sink.close().await;
    }
}
