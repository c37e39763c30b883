//! Several writers of one file.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use outhaul_core::message::ShardId;
use outhaul_sink::file::FileSink;
use outhaul_sink::{Sink, SinkCode};
use outhaul_testkit::sink_suite::Messages;

use super::{Trail, ids, ids_of, read_all, sent};

/// Sinks of several processes (here: each with its own open file) append to the same file, and put it aside under each
/// other's hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_writers() {
    for rotate_bytes in [0, 4096] {
        let trail = Trail::new(|config| {
            config.rotate_bytes = rotate_bytes;
            config.fsync = outhaul_sink::file::Fsync::None;
        });
        let mut writers = Vec::new();
        let mut expected = HashMap::new();
        for shard in 0..4u16 {
            let sink = FileSink::new(trail.config.clone());
            let mut messages = Messages::default();
            let of_shard: Vec<_> = (0..400)
                .map(|i| {
                    messages.of(|row| {
                        row.shard = ShardId(shard);
                        row.id = format!("{shard}-{i}");
                    })
                })
                .collect();
            let own: Vec<Arc<_>> = of_shard.clone();
            expected.insert(shard, of_shard);
            writers.push(tokio::spawn(async move {
                sink.start().await.unwrap();
                for batch in own.chunks(8) {
                    // A writer may wait too long for the others on a busy disk: then nothing of its batch is written.
                    while let Err(code) = sent(&sink, batch).await {
                        assert_eq!(code, "OUT-2008");
                    }
                }
                sink.close().await;
            }));
        }
        for writer in writers {
            writer.await.unwrap();
        }
        let held = read_all(trail.path());
        for (shard, messages) in expected {
            let of_shard: Vec<_> = held.iter().filter(|h| h.place.starts_with(&format!("{shard}:"))).cloned().collect();
            assert_eq!(ids(&of_shard), ids_of(&messages));
        }
    }
}

/// A process that stopped in the middle of a write holds its lock; nothing is written past it.
#[tokio::test]
async fn a_lock_that_is_not_given_back() {
    let trail = Trail::new(|_| ());
    let sink = FileSink::new(trail.config.clone());
    sink.start().await.unwrap();
    let messages = Messages::default().many(3, 1);
    let holder = File::open(trail.path()).unwrap();
    holder.lock().unwrap();
    assert_eq!(sent(&sink, &messages).await, Err(SinkCode::FileBusy.code()));
    holder.unlock().unwrap();
    sent(&sink, &messages).await.unwrap();
    assert_eq!(ids(&read_all(trail.path())), ids_of(&messages));
    sink.close().await;
}
