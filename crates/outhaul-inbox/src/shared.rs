//! What all queues of a daemon share: connections, the budget, what is known of each queue, and counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outhaul_store::inbox::Inbox;
use rocketmq_remoting::client::Consumer;
use rocketmq_remoting::message::MessageQueue;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::options::InboxOptions;

/// Bytes are counted in these, so that a budget fits a semaphore.
const UNIT_BYTES: usize = 1_024;
/// Trouble that lasts for so long makes the daemon unhealthy.
const PATIENCE: Duration = Duration::from_secs(15);

/// What a daemon has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that are in the table because of it.
    pub stored: u64,
    /// Messages that the table had already.
    pub duplicates: u64,
    /// Messages among the stored that nobody can handle as they are: dead rows.
    pub aside: u64,
    /// Offsets that a queue no longer had when they were to be read.
    pub lost: u64,
    /// Done rows that were deleted for their age.
    pub pruned: u64,
}

/// Whether messages come into the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// They do, or there are none.
    pub healthy: bool,
    /// Why not; or what is read.
    pub text: String,
    /// Queues that it reads.
    pub queues: usize,
    /// Messages that these queues have and the table has not, as far as pulls have told.
    pub behind: u64,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) stored: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) aside: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) pruned: AtomicU64,
}

/// Since when something is wrong, and what.
type Trouble = Option<(Instant, String)>;

/// What is known of a queue that is read.
#[derive(Debug, Default)]
struct Known {
    /// Where the table is, once this daemon knows.
    stored: Option<i64>,
    /// What the broker was told.
    told: Option<i64>,
    /// Where the queue ends.
    end: i64,
    pulling: Trouble,
    storing: Trouble,
}

/// What goes wrong, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Pulling,
    Storing,
}

pub(crate) struct Shared {
    pub(crate) options: InboxOptions,
    pub(crate) consumer: Consumer,
    pub(crate) inbox: Arc<dyn Inbox>,
    pub(crate) tally: Tally,
    budget: Arc<Semaphore>,
    units: usize,
    queues: Mutex<BTreeMap<MessageQueue, Known>>,
    group: Mutex<Trouble>,
    members: AtomicU64,
}

impl Shared {
    pub(crate) fn new(options: InboxOptions, consumer: Consumer, inbox: Arc<dyn Inbox>) -> Self {
        let units = (options.max_buffered_bytes / UNIT_BYTES).clamp(1, u32::MAX as usize >> 1);
        let nobody_yet = Some((Instant::now(), "the group is being joined".to_owned()));
        Self {
            options,
            consumer,
            inbox,
            tally: Tally::default(),
            budget: Arc::new(Semaphore::new(units)),
            units,
            queues: Mutex::default(),
            group: Mutex::new(nobody_yet),
            members: AtomicU64::new(0),
        }
    }

    /// Waits until so many bytes more may be kept. An answer that is larger than all of the budget takes all of it.
    pub(crate) async fn room(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, self.units);
        Arc::clone(&self.budget).acquire_many_owned(u32::try_from(units).unwrap_or(u32::MAX)).await.ok()
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<MessageQueue, Known>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn owned(&self, queue: &MessageQueue) {
        self.queues().insert(queue.clone(), Known::default());
    }

    pub(crate) fn given_up(&self, queue: &MessageQueue) {
        self.queues().remove(queue);
    }

    pub(crate) fn ends_at(&self, queue: &MessageQueue, end: i64) {
        if let Some(known) = self.queues().get_mut(queue) {
            known.end = end;
        }
    }

    pub(crate) fn stored(&self, queue: &MessageQueue, next_offset: i64) {
        if let Some(known) = self.queues().get_mut(queue) {
            known.stored = Some(next_offset);
        }
    }

    /// Something goes wrong with a queue. True: it is not the same as before.
    pub(crate) fn trouble(&self, queue: &MessageQueue, part: Part, text: &str) -> bool {
        let mut queues = self.queues();
        let Some(known) = queues.get_mut(queue) else { return false };
        let trouble = if part == Part::Pulling { &mut known.pulling } else { &mut known.storing };
        let new = trouble.as_ref().is_none_or(|(_, before)| before != text);
        let since = trouble.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *trouble = Some((since, text.to_owned()));
        new
    }

    pub(crate) fn well(&self, queue: &MessageQueue, part: Part) {
        if let Some(known) = self.queues().get_mut(queue) {
            *(if part == Part::Pulling { &mut known.pulling } else { &mut known.storing }) = None;
        }
    }

    /// How membership goes: the number of members, or what is wrong. True: that is not the same as before.
    pub(crate) fn group(&self, outcome: Result<usize, String>) -> bool {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(members) => {
                self.members.store(members as u64, Ordering::Relaxed);
                *group = None;
                false
            }
            Err(text) => {
                let new = group.as_ref().is_none_or(|(_, before)| *before != text);
                *group = Some((group.as_ref().map_or_else(Instant::now, |(since, _)| *since), text));
                new
            }
        }
    }

    /// Tells the broker where the table is, for its statistics. It is told again later if it does not answer.
    pub(crate) async fn tell(&self, queue: &MessageQueue) {
        let news = self.queues().get(queue).and_then(|known| known.stored.filter(|at| known.told != Some(*at)));
        let Some(offset) = news else { return };
        match self.consumer.commit(queue, offset).await {
            Ok(()) => {
                if let Some(known) = self.queues().get_mut(queue) {
                    known.told = Some(offset);
                }
            }
            Err(error) => tracing::debug!(%queue, %error, "the broker was not told the offset"),
        }
    }

    pub(crate) async fn tell_all(&self) {
        let queues: Vec<MessageQueue> = self.queues().keys().cloned().collect();
        for queue in queues {
            self.tell(&queue).await;
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Tally { stored, duplicates, aside, lost, pruned } = &self.tally;
        Counts { stored: of(stored), duplicates: of(duplicates), aside: of(aside), lost: of(lost), pruned: of(pruned) }
    }

    pub(crate) fn health(&self) -> Health {
        let lasting = |trouble: &Trouble| {
            trouble.as_ref().filter(|(since, _)| since.elapsed() >= PATIENCE).map(|(_, text)| text.clone())
        };
        let queues = self.queues();
        let behind = queues.values().map(|k| k.stored.map_or(0, |at| k.end.saturating_sub(at).max(0).unsigned_abs()));
        let behind = behind.sum();
        let of_group = lasting(&self.group.lock().unwrap_or_else(PoisonError::into_inner));
        let of_queue = || {
            queues.iter().find_map(|(queue, known)| {
                lasting(&known.storing).or_else(|| lasting(&known.pulling)).map(|text| format!("{queue}: {text}"))
            })
        };
        let trouble = of_group.or_else(of_queue);
        let members = self.members.load(Ordering::Relaxed);
        let well = match members {
            0 => "the group is being joined".to_owned(),
            members => format!("{} queues, one of {members} members", queues.len()),
        };
        Health { healthy: trouble.is_none(), text: trouble.unwrap_or(well), queues: queues.len(), behind }
    }
}
