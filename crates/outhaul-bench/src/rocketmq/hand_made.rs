//! The relay that teams write by hand: 200 pending rows by `created_at`, send, UPDATE … SENT by id. It keeps no order.

use std::time::Duration;

use rocketmq_remoting::client::{Client, Producer, SendOptions};
use rocketmq_remoting::message::{BatchBuilder, Message, MessageQueue};

use super::client;
use crate::raw::{self, PendingRow};

/// The hand-made relay's sender.
pub struct Sender {
    producer: Producer,
    queues: Vec<MessageQueue>,
    next: usize,
}

impl Sender {
    pub fn new(client: &Client, queues: Vec<MessageQueue>) -> Self {
        let producer = Producer::new(client, "outhaul-bench").expect("a producer");
        Self { producer, queues, next: 0 }
    }

    fn queue(&mut self) -> MessageQueue {
        self.next += 1;
        self.queues[self.next % self.queues.len()].clone()
    }

    fn message(queue: &MessageQueue, row: &PendingRow) -> Message {
        Message::new(queue.topic.as_str(), row.payload.clone())
            .and_then(|m| m.with_unique_key(&row.id.replace('-', "").to_uppercase()))
            .and_then(|m| m.with_keys([&row.id]))
            .and_then(|m| m.with_property("outhaul-id", &row.id))
            .expect("a message")
    }

    /// One batch message for all rows.
    pub async fn batch(&mut self, rows: &[PendingRow]) {
        let queue = self.queue();
        let mut batch = BatchBuilder::new(1 << 20);
        for row in rows {
            assert!(batch.push(&Self::message(&queue, row)).expect("a message"));
        }
        let batch = batch.finish().expect("a batch");
        self.producer.send_batch(&queue, &batch, &SendOptions::default()).await.expect("an answer");
    }

    /// A send for each row, one after the other.
    pub async fn each(&mut self, rows: &[PendingRow]) {
        for row in rows {
            let queue = self.queue();
            let message = Self::message(&queue, row);
            self.producer.send(&queue, &message, &SendOptions::default()).await.expect("an answer");
        }
    }
}

/// What the child is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long)]
    url: String,
    #[arg(long)]
    namesrv: String,
    #[arg(long)]
    topic: String,
    /// Wait between two polls, microseconds.
    #[arg(long)]
    wait_us: u64,
}

/// Delivers one batch a poll until standard input closes.
pub async fn run(arguments: Arguments) {
    let ends = tokio::spawn(crate::child::input_closes());
    let client = client(&arguments.namesrv);
    let queues = client.route(&arguments.topic).await.expect("a route").queues().to_vec();
    let mut sender = Sender::new(&client, queues);
    let mut raw = raw::connect(&arguments.url).await;
    while !ends.is_finished() {
        raw::article(raw.as_mut(), async |rows| sender.batch(rows).await).await;
        tokio::time::sleep(Duration::from_micros(arguments.wait_us)).await;
    }
}
