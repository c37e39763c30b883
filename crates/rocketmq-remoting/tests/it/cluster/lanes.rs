//! What a relay does: on each queue one batch after the other, again and again until it is acknowledged.

use std::time::Duration;

use rocketmq_remoting::Error;
use rocketmq_remoting::client::{Client, Producer, SendOptions};
use rocketmq_remoting::message::MessageQueue;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::send::{batch, read_all};
use crate::servers::{message, within};

/// Messages of a batch.
const BATCH: usize = 5;
/// Between batches, and between attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Lanes that run.
pub struct Lanes {
    client: Client,
    stop: watch::Sender<bool>,
    acknowledged: Vec<(MessageQueue, watch::Receiver<usize>)>,
    running: JoinSet<Lane>,
}

/// What became of one.
pub struct Lane {
    pub queue: MessageQueue,
    /// Batches.
    pub acknowledged: usize,
    /// Why attempts failed, and how many of these may have been done.
    pub failures: Vec<Error>,
    pub uncertain: usize,
    /// The offset after the last batch.
    end: i64,
}

impl Lane {
    pub fn assert_undisturbed(&self) {
        assert!(self.failures.is_empty(), "{}: {:?}", self.queue, self.failures);
    }
}

impl Lanes {
    pub fn start(client: &Client, queues: &[MessageQueue]) -> Self {
        let stop = watch::Sender::new(false);
        let mut lanes = Self { client: client.clone(), stop, acknowledged: Vec::new(), running: JoinSet::new() };
        for queue in queues {
            let (acknowledged, receiver) = watch::channel(0);
            lanes.acknowledged.push((queue.clone(), receiver));
            let producer = Producer::new(client, "it").unwrap();
            lanes.running.spawn(run(producer, queue.clone(), lanes.stop.subscribe(), acknowledged));
        }
        lanes
    }

    /// Waits until each lane to this broker has had so many more batches acknowledged.
    pub async fn advance(&mut self, broker: &str, batches: usize) {
        for (queue, acknowledged) in &mut self.acknowledged {
            if queue.broker_name == broker {
                let enough = *acknowledged.borrow() + batches;
                within(acknowledged.wait_for(|now| *now >= enough)).await.unwrap();
            }
        }
    }

    /// Lets each lane finish its batch. Every queue must have all of it, in order, and no more duplicates than attempts
    /// whose end is unknown explain.
    pub async fn finish(self) -> Vec<Lane> {
        self.stop.send_replace(true);
        let lanes = within(self.running.join_all()).await;
        for lane in &lanes {
            let stored = read_all(&self.client, &lane.queue, lane.end).await;
            let bodies = stored.iter().map(|m| String::from_utf8(m.body().unwrap().to_vec()).unwrap());
            let (mut next, mut duplicates) = (0, 0);
            for number in bodies.map(|body| body.parse::<usize>().unwrap()) {
                assert!(number <= next, "{}: {number} where {next} is missing", lane.queue);
                if number == next { next += 1 } else { duplicates += 1 }
            }
            assert_eq!(next, lane.acknowledged * BATCH, "{}", lane.queue);
            assert!(duplicates <= lane.uncertain * BATCH, "{}: {duplicates} duplicates", lane.queue);
        }
        lanes
    }
}

async fn run(
    producer: Producer,
    queue: MessageQueue,
    stop: watch::Receiver<bool>,
    acknowledged: watch::Sender<usize>,
) -> Lane {
    let mut lane = Lane { queue, acknowledged: 0, failures: Vec::new(), uncertain: 0, end: 0 };
    while !*stop.borrow() {
        let first = lane.acknowledged * BATCH;
        let numbers = (first..first + BATCH).map(|n| n.to_string());
        let batch = batch(numbers.map(|n| message(&lane.queue.topic, &n, n.as_str())));
        lane.end = loop {
            match producer.send_batch(&lane.queue, &batch, &SendOptions::default()).await {
                Ok(sent) => break sent.answer.queue_offset + BATCH as i64,
                Err(error) => {
                    lane.uncertain += usize::from(error.may_have_been_done());
                    lane.failures.push(error);
                }
            }
            sleep(PAUSE).await;
        };
        lane.acknowledged += 1;
        acknowledged.send_replace(lane.acknowledged);
        sleep(PAUSE).await;
    }
    lane
}
