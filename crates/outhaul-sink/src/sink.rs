//! The contract that every destination keeps.

use std::sync::Arc;

use async_trait::async_trait;
use outhaul_core::lane::Slotting;
use outhaul_core::message::{Message, Position, ShardId};
use outhaul_core::receipt::{AckLevel, Outcome, Receipt};

use crate::codes::SinkCode;

/// What a sink says of itself once it is connected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SinkInfo {
    /// What an acknowledgement proves, from the destination's own configuration.
    pub level: AckLevel,
    /// Sentences for the operator: what can be lost at this level, settings that do not fit.
    pub warnings: Vec<String>,
    /// Whether an acknowledgement reaches the demanded level only some time after it was given, so that
    /// [`Sink::prove`] has to be asked.
    pub proves_later: bool,
    /// No connection was made anew since the last [`Sink::start`] that succeeded: what was there then is there now, and
    /// lanes need not compare. Where in doubt, false.
    pub unchanged: bool,
}

/// A message that was acknowledged, by its receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// Number of the comparison that shows it, of this process alone: all that one comparison of a lane shows, page by
    /// page, has the same.
    pub comparison: u64,
    /// Shard of the lane.
    pub shard: ShardId,
    /// Position in the shard's log.
    pub position: Position,
    /// The outbox id.
    pub id: String,
    /// What the destination answered.
    pub receipt: Receipt,
}

/// What [`Sink::verify`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Of the messages shown, those that the destination no longer has although it acknowledged them, by rising
    /// position. Absence by expiry, trimming, compaction or consumption is not forgetting.
    pub forgotten: Vec<Position>,
    /// Whether older receipts have to be shown too, before anything is known for certain.
    pub older: bool,
}

/// One thing that was found out about a destination, for `outhaul validate`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about: `broker broker-a`, `topic Orders`.
    pub subject: String,
    /// One line without secrets.
    pub text: String,
    /// Whether something has to be done about it.
    pub attention: bool,
}

impl Finding {
    /// Something that is as it should be.
    pub fn fine(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into(), attention: false }
    }

    /// Something to be changed.
    pub fn attention(subject: impl Into<String>, text: impl Into<String>) -> Self {
        Self { subject: subject.into(), text: text.into(), attention: true }
    }
}

/// Why a sink cannot be made or started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {message}")]
pub struct SinkError {
    /// `OUT-nnnn`.
    pub code: &'static str,
    /// One line without secrets.
    pub message: String,
    /// Whether trying again later can help without anybody doing anything.
    pub passes: bool,
}

impl SinkError {
    /// An error of a code, with its line.
    pub fn of(code: SinkCode, message: impl Into<String>) -> Self {
        Self { code: code.code(), message: message.into(), passes: code.passes() }
    }
}

/// A destination.
///
/// The engine calls [`Sink::send`] for one batch of a slot at a time: the next one of the same slot only after the
/// answer, other slots at the same time. It drops the call when the send limit is over and counts every message of the
/// batch as Unknown; a sink must stay usable after a dropped call.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Which messages must wait for each other.
    fn slotting(&self) -> Slotting;

    /// What an earlier process of this destination kept ([`Sink::memory`]), before the first [`Sink::start`], and what
    /// other processes have kept since. Joins what is known already; what cannot be read is ignored.
    fn recall(&self, memory: &str) {
        let _ = memory;
    }

    /// What the next process has to know that the destination itself may not tell then, with the number of its version,
    /// which grows with every change. The engine keeps it in the outbox's database, and asks again every few seconds.
    /// Up to 1 MiB. None: nothing else than version `kept` had, or nothing at all (then [`Sink::recall`] is not called).
    fn memory(&self, kept: Option<u64>) -> Option<(u64, String)> {
        let _ = kept;
        None
    }

    /// Connects, looks at the destination, repairs what a crash may have left. Called before the first send, and again
    /// after a send was told that the destination is down; calls of `send` may still be under way then, none begins. It
    /// succeeds if anything can be sent: of a part that does not answer the sends to it tell. Limited as a send is.
    ///
    /// # Errors
    /// The destination does not answer (`passes`) or cannot be used as configured.
    async fn start(&self) -> Result<SinkInfo, SinkError>;

    /// As [`Sink::start`], for who only wants to know what it would say: makes nothing in the destination that is
    /// missing. What a start would make, [`Sink::examine`] tells.
    ///
    /// # Errors
    /// As [`Sink::start`].
    async fn look(&self) -> Result<SinkInfo, SinkError> {
        self.start().await
    }

    /// Delivers messages of one slot, in their order; one outcome a message, in their order. A message may only be
    /// attempted after all earlier ones of the same key in the batch were delivered: from the first that was not, later
    /// ones of its key are answered `Retry` without being sent.
    ///
    /// A call that began before a [`Sink::start`] sends nothing over a connection that this start, or anybody after it,
    /// has made: what the destination may have forgotten when the old one broke must be found out first. It answers
    /// `DestinationDown` for what is not sent, which brings about the next start.
    ///
    /// What belongs to a part of the destination that cannot take it, while others of the slot can, is answered `Held`.
    ///
    /// `Delivered` is said only when the destination has confirmed; its level is what the confirmation proves.
    async fn send(&self, slot: u32, messages: &[Arc<Message>]) -> Vec<Outcome>;

    /// Compares what the destination holds with what it acknowledged to a lane: its newest receipts, by rising position.
    /// Called for each lane after every [`Sink::start`], before the lane's next send, and again with older receipts as
    /// long as the answer asks for them (then without those that were shown before).
    ///
    /// # Errors
    /// It cannot be found out now (`passes`), or never.
    async fn verify(&self, acknowledged: &[Acknowledged]) -> Result<Verified, SinkError> {
        let _ = acknowledged;
        Ok(Verified::default())
    }

    /// Which of these acknowledgements have reached the demanded level by now, one answer each. Asked every 100 to
    /// 200 ms, all lanes together, while [`SinkInfo::proves_later`] and some have not. Asked with none every few seconds, of
    /// every sink, so that one to which nothing is sent notices that a connection was made anew.
    ///
    /// What a part of the destination holds that does not answer is answered `false`.
    ///
    /// # Errors
    /// A connection was made anew since the last [`Sink::start`], or nothing answers: the destination is started, and its
    /// memory compared, before it is asked again. What is not there any more must never count as proven.
    async fn prove(&self, receipts: &[Receipt]) -> Result<Vec<bool>, SinkError> {
        Ok(vec![true; receipts.len()])
    }

    /// What an operator should know before anything is delivered: the parts of the destination, their limits, these
    /// topics, rights. Called after [`Sink::start`] or
    /// [`Sink::look`]; delivers and changes nothing.
    async fn examine(&self, topics: &[String]) -> Vec<Finding> {
        let _ = topics;
        Vec::new()
    }

    /// Flushes and closes.
    async fn close(&self);
}
