//! The sink: one lane of the inbox for each slot.

use std::sync::Arc;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::Message;
use outhaul_core::receipt::{AckLevel, Outcome};
use outhaul_store::inbox::{Inbox, InboxMessage, InboxOutcome, open};
use outhaul_store::{StoreError, StoreErrorKind};
use tokio::sync::Mutex;

use super::config::InboxConfig;
use super::outcome::{of_error, start_error};
use super::parts::{Deliver, deliver_all};
use crate::clock::now_us;
use crate::sink::{Finding, Sink, SinkError, SinkInfo};

/// Delivers into the `inbox_message` table of a database.
///
/// A dropped call is safe: its transaction is committed or undone by the server, and a message that was stored is a
/// duplicate when it is sent again.
pub struct InboxSink {
    config: InboxConfig,
    inbox: Mutex<Option<Arc<dyn Inbox>>>,
    /// Whose turn it is on each lane: several shards may send to one slot at the same time.
    turns: Box<[Mutex<()>]>,
}

impl InboxSink {
    /// A sink with these keys. Nothing is opened before [`Sink::start`].
    pub fn new(config: InboxConfig) -> Self {
        let turns = (0..config.lanes()).map(|_| Mutex::new(())).collect();
        Self { config, inbox: Mutex::new(None), turns }
    }

    /// The inbox, opened if it is not.
    async fn open(&self) -> Result<Arc<dyn Inbox>, StoreError> {
        let mut inbox = self.inbox.lock().await;
        if let Some(inbox) = &*inbox {
            return Ok(Arc::clone(inbox));
        }
        let opened = open(self.config.options(), self.turns.len()).await?;
        *inbox = Some(Arc::clone(&opened));
        Ok(opened)
    }

    async fn check(&self) -> Result<(), StoreError> {
        let inbox = self.open().await?;
        match inbox.inspect().await {
            Err(error) if error.kind == StoreErrorKind::NotInitialised && self.config.create_table => {
                inbox.init().await.map_err(|e| e.while_doing("making the inbox tables"))?;
                inbox.inspect().await
            }
            inspected => inspected,
        }
    }
}

/// One lane of the inbox.
struct Lane<'a> {
    inbox: &'a dyn Inbox,
    number: usize,
    consumer: &'a str,
}

#[async_trait]
impl Deliver for Lane<'_> {
    async fn deliver(&self, messages: &[InboxMessage]) -> Result<Vec<InboxOutcome>, StoreError> {
        self.inbox.deliver(self.number, self.consumer, messages).await
    }
}

#[async_trait]
impl Sink for InboxSink {
    fn slotting(&self) -> Slotting {
        Slotting::ByKey(self.config.lanes())
    }

    async fn start(&self) -> Result<SinkInfo, SinkError> {
        self.check().await.map_err(|e| start_error(&e))?;
        Ok(SinkInfo { level: AckLevel::Flushed, warnings: Vec::new(), ..SinkInfo::default() })
    }

    async fn look(&self) -> Result<SinkInfo, SinkError> {
        let inspected = match self.open().await {
            Ok(inbox) => inbox.inspect().await,
            Err(error) => Err(error),
        };
        match inspected {
            Err(error) if error.kind != StoreErrorKind::NotInitialised || !self.config.create_table => {
                Err(start_error(&error))
            }
            _ => Ok(SinkInfo { level: AckLevel::Flushed, ..SinkInfo::default() }),
        }
    }

    async fn examine(&self, _topics: &[String]) -> Vec<Finding> {
        let Ok(inbox) = self.open().await else { return Vec::new() };
        match inbox.inspect().await {
            Err(error) if error.kind == StoreErrorKind::NotInitialised && self.config.create_table => {
                let ddl = inbox.ddl();
                let ddl: Vec<&str> = ddl.split_whitespace().collect();
                let text = format!(
                    "{}: the relay makes what is missing at its start, for which its user needs the right to CREATE; or \
                     apply this by hand: {}",
                    error.message,
                    ddl.join(" ")
                );
                vec![Finding::attention("inbox tables", text)]
            }
            _ => Vec::new(),
        }
    }

    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome> {
        let number = slot as usize % self.turns.len().max(1);
        let Some(turn) = self.turns.get(number) else { return Vec::new() };
        let _turn = turn.lock().await;
        match self.open().await {
            Ok(inbox) => {
                let lane = Lane { inbox: &*inbox, number, consumer: &self.config.consumer };
                deliver_all(&lane, messages, now_us).await
            }
            Err(error) => messages.iter().map(|_| of_error(&error)).collect(),
        }
    }

    async fn close(&self) {
        let inbox = self.inbox.lock().await.take();
        if let Some(inbox) = inbox {
            inbox.close().await;
        }
    }
}
