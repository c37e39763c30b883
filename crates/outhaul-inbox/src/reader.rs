//! One queue: a task pulls ahead, this one stores.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use outhaul_store::inbox::{Arrival, Place, Step, Taken};
use rocketmq_remoting::client::{PullOptions, Start};
use rocketmq_remoting::connection::{Backoff, describe};
use rocketmq_remoting::message::MessageQueue;
use rocketmq_remoting::request::Subscription;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::task::JoinSet;

use crate::arrival::{arrivals, aside};
use crate::place::{OVERLAP_MS, Verdict, judge, resume};
use crate::shared::{Part, Shared};

/// Pulls that wait to be stored, of one queue.
const AHEAD: usize = 2;
/// The most messages of one pull; brokers have limits of their own, 32 by default.
const PULL_MESSAGES: u16 = 256;
/// How long a broker holds a pull that finds nothing.
const SUSPEND: Duration = Duration::from_secs(15);
/// After an answer that says nothing.
const PAUSE: Duration = Duration::from_millis(200);
const BACKOFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// What one pull brought.
struct Pulled {
    before: i64,
    after: i64,
    stored_at_ms: i64,
    /// Each with its offset.
    arrivals: Vec<(i64, Arrival)>,
    bytes: usize,
    news: Option<News>,
    _room: Option<OwnedSemaphorePermit>,
}

/// What has to be told once the place has moved.
#[derive(Clone, Copy)]
enum News {
    Lost,
    Shorter { end: i64 },
}

enum End {
    Stopped,
    /// The table is not where it was believed to be.
    Elsewhere,
    Trouble(String),
}

/// Reads a queue until told to stop.
pub(crate) async fn read(
    shared: Arc<Shared>,
    queue: MessageQueue,
    tags: Subscription,
    lane: usize,
    mut stop: watch::Receiver<bool>,
) {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let mut at = None;
    while !*stop.borrow() {
        match session(&shared, &queue, &tags, lane, &mut stop, &mut at).await {
            End::Stopped => break,
            End::Elsewhere => {
                tracing::debug!(%queue, "the place has been moved by somebody else");
                backoff.reset();
            }
            End::Trouble(text) => {
                if shared.trouble(&queue, Part::Storing, &text) {
                    let code = text.get(..8).filter(|code| code.starts_with("OUT-")).unwrap_or("OUT-5057");
                    tracing::warn!(code, %queue, "not stored, will be tried again: {text}");
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            _ = stop.changed() => {}
        }
    }
    shared.tell(&queue).await;
    shared.given_up(&queue);
}

/// From the place that the table has, until something is not as believed.
async fn session(
    shared: &Arc<Shared>,
    queue: &MessageQueue,
    tags: &Subscription,
    lane: usize,
    stop: &mut watch::Receiver<bool>,
    told: &mut Option<i64>,
) -> End {
    let source = queue.to_string();
    let places = match shared.inbox.places(&shared.options.consumer).await {
        Ok(places) => places,
        Err(e) => return End::Trouble(format!("{} {e}", e.kind.code())),
    };
    let Some(place) = places.into_iter().find(|place| place.source == source) else {
        return End::Trouble("its row of inbox_queue is gone".into());
    };
    if told.is_some_and(|told| told != place.next_offset) {
        tracing::info!(%queue, next_offset = place.next_offset, "goes on where the table is");
    }
    *told = Some(place.next_offset);
    shared.stored(queue, place.next_offset);
    let mut writer = Writer { shared, queue, lane, at: place.next_offset };
    let (sender, mut receiver) = mpsc::channel(AHEAD);
    let mut puller = JoinSet::new(); // dropped: aborted
    puller.spawn(pull_ahead(Arc::clone(shared), queue.clone(), tags.clone(), place, sender));
    let mut kept = None;
    loop {
        let first = match kept.take() {
            Some(pulled) => pulled,
            None => tokio::select! {
                biased;
                _ = stop.changed() => return End::Stopped,
                pulled = receiver.recv() => match pulled {
                    Some(pulled) => pulled,
                    None => return End::Trouble("its puller has ended".into()),
                },
            },
        };
        let mut group = vec![first];
        let size = |group: &[Pulled]| {
            let count: usize = group.iter().map(|p| p.arrivals.len()).sum();
            (count, group.iter().map(|p| p.bytes).sum::<usize>())
        };
        while group.iter().all(|p| p.news.is_none()) {
            let Ok(next) = receiver.try_recv() else { break };
            let (count, bytes) = size(&group);
            let fits = count + next.arrivals.len() <= shared.options.max_batch
                && bytes + next.bytes <= shared.options.max_batch_bytes;
            if next.news.is_some() || !fits {
                kept = Some(next);
                break;
            }
            group.push(next);
        }
        if let Err(end) = writer.store(group).await {
            return end;
        }
        *told = Some(writer.at);
        shared.well(queue, Part::Storing);
        if *stop.borrow() {
            return End::Stopped;
        }
    }
}

/// Stores what was read, in order.
struct Writer<'a> {
    shared: &'a Arc<Shared>,
    queue: &'a MessageQueue,
    lane: usize,
    /// Where the table is.
    at: i64,
}

impl Writer<'_> {
    async fn store(&mut self, group: Vec<Pulled>) -> Result<(), End> {
        let Some(last) = group.last() else { return Ok(()) };
        let (after, news) = (last.after, group.iter().find_map(|p| p.news));
        let stored_at_ms = group.iter().map(|p| p.stored_at_ms).max().unwrap_or_default();
        if group.first().is_none_or(|p| p.before != self.at) {
            return Err(End::Elsewhere);
        }
        let before = self.at;
        // The room that they take is given back when they are stored.
        let mut rooms = Vec::with_capacity(group.len());
        let mut arrivals = Vec::new();
        for pulled in group {
            arrivals.extend(pulled.arrivals);
            rooms.push(pulled._room);
        }
        if let Err(why) = self.step(after, stored_at_ms, arrivals.iter().map(|(_, a)| a.clone()).collect()).await? {
            tracing::info!(queue = %self.queue, why, "the table refuses a message, each is stored by itself");
            self.one_by_one(after, stored_at_ms, &arrivals).await?;
        }
        match news {
            Some(News::Lost) => {
                let lost = after.saturating_sub(before).max(0).unsigned_abs();
                self.shared.tally.lost.fetch_add(lost, Relaxed);
                tracing::error!(
                    code = "OUT-5052", queue = %self.queue, from = before, to = after,
                    "the queue does not have {lost} offsets any more: what was in them was deleted before it was read"
                );
            }
            Some(News::Shorter { end }) => tracing::error!(
                code = "OUT-5053", queue = %self.queue, place = before, end, to = after,
                "the queue ends before what was read from it: its topic was made anew, or its broker has lost messages"
            ),
            None => {}
        }
        Ok(())
    }

    /// The inner error: why the table refuses one of the messages.
    async fn step(&mut self, after: i64, stored_at_ms: i64, arrivals: Vec<Arrival>) -> Result<Result<(), String>, End> {
        let (count, dead) = (arrivals.len() as u64, arrivals.iter().filter(|a| a.dead.is_some()).count() as u64);
        let step = Step { source: self.queue.to_string(), before: self.at, after, stored_at_ms, arrivals };
        let shared = self.shared;
        match shared.inbox.take(self.lane, &shared.options.consumer, &step).await {
            Ok(Taken::Stored { new }) => {
                self.at = after;
                shared.stored(self.queue, after);
                shared.tally.stored.fetch_add(new, Relaxed);
                shared.tally.duplicates.fetch_add(count.saturating_sub(new), Relaxed);
                if dead > 0 {
                    shared.tally.aside.fetch_add(dead, Relaxed);
                    tracing::warn!(
                        code = "OUT-5054", queue = %self.queue, from = step.before, to = after,
                        "{dead} messages that nobody can handle as they are were put aside as dead"
                    );
                }
                Ok(Ok(()))
            }
            Ok(Taken::Elsewhere) => Err(End::Elsewhere),
            Ok(Taken::Refused(why)) => Ok(Err(why)),
            Err(e) => Err(End::Trouble(format!("{} {e}", e.kind.code()))),
        }
    }

    async fn one_by_one(&mut self, after: i64, stored_at_ms: i64, arrivals: &[(i64, Arrival)]) -> Result<(), End> {
        for (n, (offset, arrival)) in arrivals.iter().enumerate() {
            let next = arrivals.get(n + 1).map_or(after, |(next, _)| *next);
            let Err(why) = self.step(next, stored_at_ms, vec![arrival.clone()]).await? else { continue };
            let kept = aside(self.queue, arrival, &why, *offset, false);
            if self.step(next, stored_at_ms, vec![kept]).await?.is_ok() {
                continue;
            }
            let bare = aside(self.queue, arrival, &why, *offset, true);
            if let Err(why) = self.step(next, stored_at_ms, vec![bare]).await? {
                let what = format!("OUT-5055 the table refuses the message at offset {offset} in every form: {why}");
                return Err(End::Trouble(what));
            }
        }
        Ok(())
    }
}

/// Pulls from a place on, for ever.
async fn pull_ahead(
    shared: Arc<Shared>,
    queue: MessageQueue,
    tags: Subscription,
    place: Place,
    sender: mpsc::Sender<Pulled>,
) {
    let options = PullOptions { subscription: tags, max_messages: PULL_MESSAGES, suspend: SUSPEND };
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    let Place { next_offset: mut at, mut stored_at_ms, .. } = place;
    loop {
        let verdict = match shared.consumer.pull_from_master(&queue, at, &options).await {
            Ok(pulled) => {
                shared.ends_at(&queue, pulled.answer.max_offset);
                judge(at, pulled.answer)
            }
            Err(error) => {
                let text = describe(&error);
                if shared.trouble(&queue, Part::Pulling, &text) {
                    tracing::warn!(code = "OUT-5057", %queue, "not read, will be tried again: {text}");
                }
                tokio::time::sleep(backoff.pause()).await;
                continue;
            }
        };
        shared.well(&queue, Part::Pulling);
        backoff.reset();
        let (messages, to, news) = match verdict {
            Verdict::Stay => {
                tokio::time::sleep(PAUSE).await; // a long poll has taken its time; what takes none must not spin
                continue;
            }
            Verdict::Go { messages, to } => (messages, to, None),
            Verdict::Lost { to } => (Vec::new(), to, Some(News::Lost)),
            Verdict::Shorter { first, end } => {
                let found = match stored_at_ms {
                    0 => Ok(first),
                    at_ms => shared.consumer.offset_of(&queue, Start::AtMs(at_ms - OVERLAP_MS)).await,
                };
                match found {
                    Ok(found) => (Vec::new(), resume(found, first, end), Some(News::Shorter { end })),
                    Err(error) => {
                        tracing::debug!(%queue, error = describe(&error), "no offset for the time");
                        tokio::time::sleep(backoff.pause()).await;
                        continue;
                    }
                }
            }
        };
        let bytes = messages.iter().map(|m| m.stored_body.len() + m.properties.encoded_bytes()).sum();
        let room = shared.room(bytes).await;
        stored_at_ms = messages.iter().map(|m| m.stored_at_ms).fold(stored_at_ms, i64::max);
        let each = messages.iter().flat_map(|m| {
            let offsets = m.queue_offset..;
            offsets.zip(arrivals(&queue, m))
        });
        let pulled = Pulled { before: at, after: to, stored_at_ms, arrivals: each.collect(), bytes, news, _room: room };
        at = to;
        if sender.send(pulled).await.is_err() {
            return;
        }
    }
}
