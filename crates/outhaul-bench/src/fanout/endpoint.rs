//! An HTTP-like endpoint: it stores a batch and answers some time later, between 1 ms and 2 s.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::child::SLOTS;
use crate::latency::number;

/// Answer times that a connection goes through again and again, so that each phase meets the same ones.
const TIMES: usize = 32;
const SHORTEST_MS: f64 = 1.0;
const LONGEST_MS: f64 = 2_000.0;

/// It ends when it is dropped.
pub struct Endpoint {
    pub address: SocketAddr,
    held: Arc<[AtomicU32]>,
    accepting: JoinHandle<()>,
}

impl Endpoint {
    /// Listens. `seed`: of the order of its answer times.
    pub async fn open(rows: usize, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let held: Arc<[AtomicU32]> = (0..rows).map(|_| AtomicU32::new(0)).collect();
        let stored = held.clone();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            for connection in 0u64.. {
                let Ok((stream, _)) = listener.accept().await else { return };
                let times = times(seed * 1_000 + connection % u64::from(SLOTS));
                connections.spawn(serve(stored.clone(), stream, times));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, held, accepting }
    }

    /// How often it holds each row.
    pub fn held(&self) -> Vec<u32> {
        self.held.iter().map(|n| n.load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Spaced evenly in the logarithm, in an order from the seed.
fn times(seed: u64) -> Vec<Duration> {
    let step = (LONGEST_MS / SHORTEST_MS).ln() / (TIMES as f64 - 1.0);
    let mut times: Vec<Duration> =
        (0..TIMES).map(|n| Duration::from_secs_f64(SHORTEST_MS * (step * n as f64).exp() / 1e3)).collect();
    let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for n in (1..TIMES).rev() {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        times.swap(n, (dice % (n as u64 + 1)) as usize);
    }
    times
}

async fn serve(held: Arc<[AtomicU32]>, stream: TcpStream, times: Vec<Duration>) {
    let _ = stream.set_nodelay(true);
    let mut lines = BufReader::new(stream).lines();
    let mut times = times.into_iter().cycle();
    while let Ok(Some(line)) = lines.next_line().await {
        if let Some(row) = number(&line).and_then(|n| held.get(n)) {
            row.fetch_add(1, Ordering::Relaxed);
        } else if line.is_empty() {
            tokio::time::sleep(times.next().unwrap_or_default()).await;
            if lines.get_mut().write_u8(1).await.is_err() {
                return;
            }
        }
    }
}
