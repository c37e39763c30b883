//! A bare loop of this client's batch sends, in a process of its own: what the broker and the client take at most.

use std::time::Instant;

use rocketmq_remoting::client::{Producer, SendOptions};
use rocketmq_remoting::message::{BatchBuilder, MessageQueue};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::task::JoinSet;

use super::{BATCH, QUEUES, client, sealed};
use crate::measure::{peak_rss_kib, used};

/// What the child is told.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[arg(long)]
    namesrv: String,
    #[arg(long)]
    topic: String,
    #[arg(long)]
    rows: usize,
    #[arg(long)]
    payload_bytes: usize,
}

/// What sending took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sends {
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub peak_rss_mib: f64,
}

impl Sends {
    pub fn read(line: &Value) -> Self {
        let number = |name: &str| line[name].as_f64().unwrap_or_default();
        Self {
            seconds: number("seconds"),
            cpu_seconds: number("cpuSeconds"),
            peak_rss_mib: number("peakRssKib") / 1024.0,
        }
    }
}

/// Starts a child and waits for it.
pub async fn measure(namesrv: &str, topic: &str, rows: usize, payload_bytes: usize) -> Sends {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["sends", "--namesrv", namesrv, "--topic", topic, "--rows", &rows.to_string()]);
    command.args(["--payload-bytes", &payload_bytes.to_string()]).kill_on_drop(true);
    let output = command.output().await.expect("a process");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Sends::read(&serde_json::from_slice(&output.stdout).expect("its figures"))
}

/// Sends, one batch under way for each queue, and prints what it took.
pub async fn run(arguments: Arguments) {
    let client = client(&arguments.namesrv);
    let producer = Producer::new(&client, "outhaul-bench").expect("a producer");
    let queues = client.route(&arguments.topic).await.expect("a route").queues().to_vec();
    assert_eq!(queues.len(), usize::from(QUEUES));
    let (rows, bytes) = (arguments.rows, arguments.payload_bytes);
    let start = Instant::now();
    let mut lanes = JoinSet::new();
    for (lane, queue) in queues.into_iter().enumerate() {
        lanes.spawn(send(producer.clone(), queue, lane, rows, bytes));
    }
    while let Some(lane) = lanes.join_next().await {
        lane.expect("a lane");
    }
    let seconds = start.elapsed().as_secs_f64();
    let (pid, cpu) = (std::process::id(), used(std::process::id()).cpu.as_secs_f64());
    println!("{}", json!({ "seconds": seconds, "cpuSeconds": cpu, "peakRssKib": peak_rss_kib(pid) }));
}

async fn send(producer: Producer, queue: MessageQueue, lane: usize, rows: usize, bytes: usize) {
    let mine: Vec<usize> = (lane..rows).step_by(usize::from(QUEUES)).collect();
    for part in mine.chunks(BATCH) {
        let mut batch = BatchBuilder::new(1 << 20);
        for n in part {
            assert!(batch.push(&sealed(&queue.topic, *n, bytes)).expect("a message"), "a batch of this size fits");
        }
        let batch = batch.finish().expect("a batch");
        producer.send_batch(&queue, &batch, &SendOptions::default()).await.expect("an answer");
    }
}
