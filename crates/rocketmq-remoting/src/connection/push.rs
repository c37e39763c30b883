//! What brokers send by themselves.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::Connection;
use crate::code::RequestCode;
use crate::command::Command;

/// A request that a broker sent by itself, with the connection it came on.
#[derive(Debug)]
pub struct Push {
    /// The request. Its body is a copy of its own, not a part of the read buffer.
    pub command: Command,
    /// Where it came from. What answers a check-back goes the same way.
    pub connection: Connection,
    _room: Option<OwnedSemaphorePermit>,
}

/// Pushes of one kind, from all connections of a client, in the order of arrival. Dropping it ends the subscription.
#[derive(Debug)]
pub struct PushQueue {
    receiver: mpsc::Receiver<Push>,
}

impl PushQueue {
    /// Waits for the next one. `None` when every connection and the client are gone.
    pub async fn next(&mut self) -> Option<Push> {
        self.receiver.recv().await
    }
}

#[derive(Clone, Debug)]
struct Subscriber {
    sender: mpsc::Sender<Push>,
    room: Arc<Semaphore>,
}

/// Gives pushes to who listens, by request code. Never waits: a full queue drops the push, which is counted. Brokers
/// repeat what matters (a check-back comes again in the next round).
#[derive(Clone, Debug, Default)]
pub struct Pushes {
    subscribers: Arc<Mutex<HashMap<i32, Subscriber>>>,
}

/// What became of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    Taken,
    Dropped,
    NotServed,
}

/// Bytes are counted in these, so that a budget fits a semaphore.
const UNIT_BYTES: usize = 1_024;

impl Pushes {
    /// Codes that are dropped in silence when nobody listens, since they are one-way hints.
    const HINTS: [RequestCode; 2] = [RequestCode::CheckTransactionState, RequestCode::NotifyConsumerIdsChanged];

    /// Listens to pushes of this code: at most `pushes` wait, with bodies of at most `bytes` together. `None` if
    /// somebody listens already.
    #[must_use]
    pub fn subscribe(&self, code: RequestCode, pushes: usize, bytes: usize) -> Option<PushQueue> {
        let mut all = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        if all.get(&code.number()).is_some_and(|s| !s.sender.is_closed()) {
            return None;
        }
        let (sender, receiver) = mpsc::channel(pushes.max(1));
        let units = (bytes / UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        all.insert(code.number(), Subscriber { sender, room: Arc::new(Semaphore::new(units)) });
        Some(PushQueue { receiver })
    }

    /// Called by the reader of a connection; never waits.
    pub(super) fn deliver(&self, mut command: Command, connection: Connection) -> Delivery {
        let subscriber = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner).get(&command.code).cloned();
        let Some(subscriber) = subscriber else {
            let hint = Self::HINTS.contains(&command.request_code());
            return if hint { Delivery::Dropped } else { Delivery::NotServed };
        };
        let units = u32::try_from(command.body.len().div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let Ok(room) = subscriber.room.try_acquire_many_owned(units) else {
            return Delivery::Dropped;
        };
        // A small body would otherwise hold on to the whole read buffer for as long as it waits.
        command.body = bytes::Bytes::copy_from_slice(&command.body);
        match subscriber.sender.try_send(Push { command, connection, _room: Some(room) }) {
            Ok(()) => Delivery::Taken,
            Err(_) => Delivery::Dropped,
        }
    }
}
