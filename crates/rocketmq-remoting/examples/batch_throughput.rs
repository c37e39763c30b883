//! How many messages a second one connection takes in batches.
//!
//! ```text
//! cargo run --release -p rocketmq-remoting --example batch_throughput -- 127.0.0.1:9876 [messages] [queues] [per batch] [body bytes]
//! ```
//! One batch is in flight per queue, so that each queue keeps its order. The topic is created and deleted again.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rocketmq_remoting::client::{Admin, Client, ClientOptions, Producer, SendOptions, Where};
use rocketmq_remoting::message::{BatchBuilder, Message, MessageQueue};
use rocketmq_remoting::request::CreateTopic;
use tokio::task::JoinSet;

const BATCH_BYTES: usize = 1024 * 1024;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name_servers = arguments.next().ok_or("give the name servers: host:port;host:port")?;
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse());
    let (messages, queues, per_batch, body_bytes) = (number(1_000_000)?, number(4)?, number(200)?, number(300)?);

    let client = Client::new(ClientOptions::new(&name_servers)?.request_limit(Duration::from_secs(10)));
    let admin = Admin::new(&client);
    let topic = format!("batch_throughput_{}", std::process::id());
    admin.create_topic(&CreateTopic::new(&topic, u16::try_from(queues)?), &Where::Everywhere).await?;
    let producer = Producer::new(&client, "batch_throughput")?;
    let list = client.route(&topic).await?.queues().to_vec();

    let left = Arc::new(AtomicU64::new(messages));
    let began = Instant::now();
    let mut lanes = JoinSet::new();
    for queue in list {
        lanes.spawn(lane(producer.clone(), queue, left.clone(), per_batch, usize::try_from(body_bytes)?));
    }
    let mut waits_us = Vec::new();
    while let Some(lane) = lanes.join_next().await {
        waits_us.extend(lane??);
    }
    let took = began.elapsed();
    waits_us.sort_unstable();
    let at = |share: usize| waits_us.get(waits_us.len() * share / 100).copied().unwrap_or_default();
    println!(
        "{messages} messages of {body_bytes} B, {per_batch} a batch, {queues} queues: {:.0} messages/s; p50 {} us, p99 {} us a batch",
        messages as f64 / took.as_secs_f64(),
        at(50),
        at(99)
    );
    println!("{:?}", client.counters().values());
    admin.delete_topic(&topic, &Where::Everywhere).await?;
    Ok(())
}

/// Sends batches to one queue, one after the other, until nothing is left. Returns what each took, in microseconds.
async fn lane(
    producer: Producer,
    queue: MessageQueue,
    left: Arc<AtomicU64>,
    per_batch: u64,
    body_bytes: usize,
) -> Result<Vec<u64>, rocketmq_remoting::Error> {
    let mut took = Vec::new();
    loop {
        let before = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| Some(n.saturating_sub(per_batch)));
        let n = before.unwrap_or_default().min(per_batch);
        if n == 0 {
            return Ok(took);
        }
        let mut builder = BatchBuilder::new(BATCH_BYTES);
        for _ in 0..n {
            let key = format!("{:016x}{:016x}", took.len(), builder.count());
            let message = Message::new(queue.topic.as_str(), vec![b'x'; body_bytes])?.with_unique_key(&key)?;
            builder.push(&message)?;
        }
        let batch = builder.finish()?;
        let began = Instant::now();
        producer.send_batch(&queue, &batch, &SendOptions::default()).await?;
        took.push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
}
