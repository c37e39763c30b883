//! One request at a time to a queue. What other slots have for it meanwhile goes together in the next.
//!
//! Under load that is one request, one write and one wake of the broker for many slots; with little to do nobody waits.
//! Who comes to the queue's turn sends for all that wait, and each gets its share of the answer. A call that ends early
//! takes what it has not sent out of the line; the next one has its turn then.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use rocketmq_remoting::message::{Message, MessageQueue};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

/// The queues of a broker to which somebody has something to send; `T` is what came of a request.
#[derive(Debug)]
pub(super) struct Turns<T>(Mutex<HashMap<MessageQueue, Arc<Turn<T>>>>);

#[derive(Debug)]
struct Turn<T> {
    one: Arc<Semaphore>,
    line: Mutex<Line<T>>,
}

#[derive(Debug)]
struct Line<T> {
    next: u64,
    waiting: VecDeque<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    number: u64,
    freight: Freight,
    answer: oneshot::Sender<Share<T>>,
}

/// Messages that are sent in one request, or not at all.
#[derive(Clone, Debug)]
pub(super) struct Freight {
    pub(super) messages: Arc<[Message]>,
    /// Bytes of a batch's body.
    pub(super) bytes: usize,
    /// Goes with nobody else's.
    pub(super) alone: bool,
    /// A request with it begins before this, …
    pub(super) latest: Instant,
    /// … and is given up at this time.
    pub(super) deadline: Instant,
}

/// What came of the request that a freight was in.
#[derive(Clone, Debug)]
pub(super) struct Share<T> {
    pub(super) of: T,
    /// Place of its first message in the request.
    pub(super) first: usize,
    /// Others' messages were in it.
    pub(super) together: bool,
}

/// What waiting for a queue comes to.
pub(super) enum Waited<T> {
    /// It is its turn: it sends for all.
    Lead(Lead<T>),
    /// Another one has sent it.
    Sent(Share<T>),
    /// The time to begin is over. It was not sent.
    Late,
    /// It was under way, and nobody says what came of it.
    Lost,
}

/// The queue's turn.
pub(super) struct Lead<T> {
    seat: Seat<T>,
    _turn: OwnedSemaphorePermit,
}

/// All that goes in a request.
pub(super) struct Load<T> {
    /// One's own first.
    pub(super) freights: Vec<Freight>,
    others: Vec<oneshot::Sender<Share<T>>>,
    _lead: Lead<T>,
}

/// A place in the line, until it is dropped.
struct Seat<T> {
    turns: Arc<Turns<T>>,
    queue: MessageQueue,
    turn: Arc<Turn<T>>,
    number: u64,
}

fn locked<X>(mutex: &Mutex<X>) -> MutexGuard<'_, X> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Turns<T> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Gets into the line of a queue and waits for its turn, or for somebody who sends it along.
    pub(super) async fn wait(self: &Arc<Self>, queue: &MessageQueue, freight: Freight) -> Waited<T> {
        let (latest, deadline) = (freight.latest, freight.deadline);
        let (seat, mut answer) = self.seat(queue, freight);
        let first = {
            let mut turn = pin!(seat.turn.one.clone().acquire_owned());
            timeout_at(
                latest,
                poll_fn(|context| match Pin::new(&mut answer).poll(context) {
                    Poll::Ready(share) => Poll::Ready(share.map_err(|_| None)),
                    Poll::Pending => turn.as_mut().poll(context).map(|turn| Err(turn.ok())),
                }),
            )
            .await
        };
        match first {
            Ok(Ok(share)) => Waited::Sent(share),
            // Its turn; unless one that had it before is sending this too.
            Ok(Err(Some(turn))) if seat.is_in_line() => Waited::Lead(Lead { seat, _turn: turn }),
            Err(_) if seat.withdraw() => Waited::Late,
            Ok(Err(Some(_))) | Err(_) => match timeout_at(deadline, answer).await {
                Ok(Ok(share)) => Waited::Sent(share),
                Ok(Err(_)) | Err(_) => Waited::Lost,
            },
            Ok(Err(None)) => Waited::Lost,
        }
    }

    fn seat(self: &Arc<Self>, queue: &MessageQueue, freight: Freight) -> (Seat<T>, oneshot::Receiver<Share<T>>) {
        let (answer, receiver) = oneshot::channel();
        let mut turns = locked(&self.0);
        let turn = match turns.get(queue) {
            Some(turn) => turn.clone(),
            None => {
                let line = Mutex::new(Line { next: 0, waiting: VecDeque::new() });
                let turn = Arc::new(Turn { one: Arc::new(Semaphore::new(1)), line });
                turns.insert(queue.clone(), turn.clone());
                turn
            }
        };
        let number = {
            let mut line = locked(&turn.line);
            let number = line.next;
            line.next += 1;
            line.waiting.push_back(Waiting { number, freight, answer });
            number
        };
        (Seat { turns: self.clone(), queue: queue.clone(), turn, number }, receiver)
    }
}

impl<T> Seat<T> {
    fn is_in_line(&self) -> bool {
        locked(&self.turn.line).waiting.iter().any(|w| w.number == self.number)
    }

    /// Takes it out of the line. False: it was taken already.
    fn withdraw(&self) -> bool {
        let mut line = locked(&self.turn.line);
        let before = line.waiting.len();
        line.waiting.retain(|w| w.number != self.number);
        line.waiting.len() < before
    }
}

impl<T> Drop for Seat<T> {
    fn drop(&mut self) {
        self.withdraw();
        let mut turns = locked(&self.turns.0);
        // The map's and this one.
        if Arc::strong_count(&self.turn) == 2 {
            turns.remove(&self.queue);
        }
    }
}

impl<T> Lead<T> {
    /// What goes now: its own and, within so many bytes, what others wait with. None: its own was taken out.
    pub(super) fn load(self, limit_bytes: usize) -> Option<Load<T>> {
        let now = Instant::now();
        let (mut freights, mut others) = (Vec::new(), Vec::new());
        {
            let mut line = locked(&self.seat.turn.line);
            let at = line.waiting.iter().position(|w| w.number == self.seat.number)?;
            let own = line.waiting.remove(at)?.freight;
            let (mut bytes, alone) = (own.bytes, own.alone);
            freights.push(own);
            let mut rest = VecDeque::new();
            for waiting in line.waiting.drain(..) {
                let Freight { bytes: more, alone: by_itself, latest, .. } = waiting.freight;
                let goes = !alone && !by_itself && bytes + more <= limit_bytes && latest > now;
                if goes && !waiting.answer.is_closed() {
                    bytes += more;
                    freights.push(waiting.freight);
                    others.push(waiting.answer);
                } else {
                    rest.push_back(waiting);
                }
            }
            line.waiting = rest;
        }
        Some(Load { freights, others, _lead: self })
    }
}

impl<T: Clone> Load<T> {
    /// When the request is given up.
    pub(super) fn deadline(&self) -> Instant {
        self.freights.iter().map(|f| f.deadline).min().unwrap_or_else(Instant::now)
    }

    /// Gives everybody its share; the own one is returned.
    pub(super) fn share(self, of: T) -> Share<T> {
        let together = !self.others.is_empty();
        let mut first = self.freights.first().map_or(0, |own| own.messages.len());
        for (freight, answer) in self.freights.iter().skip(1).zip(self.others) {
            // One that has gone does not want to know.
            let _ = answer.send(Share { of: of.clone(), first, together });
            first += freight.messages.len();
        }
        Share { of, first: 0, together }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn queue(queue_id: i32) -> MessageQueue {
        MessageQueue { topic: "t".into(), broker_name: "a".into(), queue_id }
    }

    fn freight(messages: usize, limit_ms: u64) -> Freight {
        let messages: Arc<[Message]> = (0..messages).map(|_| Message::new("t", "x").unwrap()).collect();
        let deadline = Instant::now() + Duration::from_millis(limit_ms);
        Freight { bytes: messages.len() * 10, messages, alone: false, latest: deadline, deadline }
    }

    async fn lead(turns: &Arc<Turns<u8>>, freight: Freight) -> Lead<u8> {
        match turns.wait(&queue(0), freight).await {
            Waited::Lead(lead) => lead,
            _ => panic!("it is nobody else's turn"),
        }
    }

    /// Calls that wait in this order.
    async fn waiting(turns: &Arc<Turns<u8>>, freights: Vec<Freight>) -> Vec<tokio::task::JoinHandle<Waited<u8>>> {
        let mut calls = Vec::new();
        for freight in freights {
            let turns = turns.clone();
            calls.push(tokio::spawn(async move { turns.wait(&queue(0), freight).await }));
            tokio::task::yield_now().await;
        }
        calls
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_meanwhile_goes_together() {
        let turns = Turns::new();
        let load = lead(&turns, freight(1, 1_000)).await.load(1_000).unwrap();
        let mut calls = waiting(&turns, vec![freight(2, 1_000), freight(3, 900), freight(4, 1_000)]).await;
        assert!(!load.share(1).together);
        // The first in the line has its turn, and takes the others along.
        let Waited::Lead(next) = calls.remove(0).await.unwrap() else { panic!("its turn") };
        let load = next.load(1_000).unwrap();
        assert_eq!(load.freights.iter().map(|f| f.messages.len()).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(load.deadline() - Instant::now(), Duration::from_millis(900));
        let own = load.share(7);
        assert_eq!((own.of, own.first, own.together), (7, 0, true));
        for (call, first) in calls.into_iter().zip([2, 5]) {
            let Waited::Sent(share) = call.await.unwrap() else { panic!("it was sent along") };
            assert_eq!((share.of, share.first, share.together), (7, first, true));
        }
        assert!(locked(&turns.0).is_empty(), "queues that nobody sends to are forgotten");
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_goes_next() {
        let turns = Turns::new();
        let busy = lead(&turns, freight(1, 1_000)).await;
        let alone = Freight { alone: true, ..freight(1, 1_000) };
        let calls = waiting(&turns, vec![freight(5, 1_000), freight(6, 1_000), alone, freight(4, 1_000)]).await;
        drop(busy);
        let mut loads = Vec::new();
        for call in calls {
            if let Waited::Lead(next) = call.await.unwrap() {
                let load = next.load(100).unwrap();
                loads.push(load.freights.iter().map(|f| f.messages.len()).collect::<Vec<_>>());
                load.share(0);
            }
        }
        assert_eq!(loads, [vec![5, 4], vec![6], vec![1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_ends_is_not_sent_by_another() {
        let turns = Turns::new();
        let busy = lead(&turns, freight(1, 1_000)).await;
        let mut calls = waiting(&turns, vec![freight(1, 1_000), freight(2, 1_000), freight(3, 1_000)]).await;
        // In the line, and at the head of it.
        for gone in [1, 0] {
            let call = calls.remove(gone);
            call.abort();
            let _ = call.await;
        }
        drop(busy);
        let Waited::Lead(last) = calls.remove(0).await.unwrap() else { panic!("its turn") };
        assert_eq!(last.load(1_000).unwrap().freights.len(), 1);
        assert!(locked(&turns.0).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_was_not_sent() {
        let turns = Turns::new();
        let busy = lead(&turns, freight(1, 1_000)).await.load(1_000).unwrap();
        assert!(matches!(turns.wait(&queue(0), freight(1, 300)).await, Waited::Late));
        // Another queue has nothing to do with it.
        assert!(matches!(turns.wait(&queue(1), freight(1, 300)).await, Waited::Lead(_)));
        busy.share(0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_under_way_with_a_call_that_ended_is_lost() {
        let turns = Turns::new();
        let busy = lead(&turns, freight(1, 1_000)).await;
        let mut calls = waiting(&turns, vec![freight(1, 1_000), freight(2, 1_000)]).await;
        drop(busy);
        let Waited::Lead(next) = calls.remove(0).await.unwrap() else { panic!("its turn") };
        let load = next.load(1_000).unwrap();
        drop(load);
        assert!(matches!(calls.remove(0).await.unwrap(), Waited::Lost));
    }
}
