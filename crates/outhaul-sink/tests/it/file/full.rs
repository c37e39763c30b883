//! No space left: nothing is lost, no line is torn, and it goes on when there is space again.

use std::path::Path;
use std::process::Command;

use outhaul_sink::file::{FileConfig, FileSink, Fsync};
use outhaul_sink::{Sink, SinkCode};
use outhaul_testkit::sink_suite::Messages;

use super::{ids, ids_of, read_all, sent};
use crate::sandbox::{inside, on_a_small_disk, with_a_file_size_limit};

#[test]
fn a_disk_that_is_full() {
    let Some(folder) = inside() else {
        return on_a_small_disk("file::full::a_disk_that_is_full", "400k");
    };
    for fsync in [Fsync::Batch, Fsync::Interval, Fsync::None] {
        let filler = folder.join("filler");
        std::fs::write(&filler, vec![0; 200 << 10]).unwrap();
        fills_and_goes_on(&folder, fsync, || std::fs::remove_file(&filler).unwrap());
        std::fs::remove_file(folder.join("trail.jsonl")).unwrap();
    }
}

#[test]
fn a_limit_on_the_size_of_files() {
    let Some(folder) = inside() else {
        return with_a_file_size_limit("file::full::a_limit_on_the_size_of_files", 150);
    };
    fills_and_goes_on(&folder, Fsync::Batch, || {
        let process = std::process::id().to_string();
        let raised = Command::new("prlimit").args(["--pid", &process, "--fsize=unlimited:"]).status().unwrap();
        assert!(raised.success());
    });
}

fn fills_and_goes_on(folder: &Path, fsync: Fsync, make_space: impl FnOnce()) {
    let config = FileConfig { fsync, ..FileConfig::new(folder.join("trail.jsonl")) };
    let path = config.path.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sink = FileSink::new(config);
        sink.start().await.unwrap();
        let mut messages = Messages::default();
        let mut acknowledged = Vec::new();
        let refused = loop {
            let batch = messages.many(150, 10);
            match sent(&sink, &batch).await {
                Ok(()) => acknowledged.extend(batch),
                Err(code) => {
                    assert_eq!(code, SinkCode::DiskFull.code());
                    break batch;
                }
            }
            assert!(acknowledged.len() < 10_000, "it is never full");
        };
        assert!(!acknowledged.is_empty(), "nothing fitted");
        for _ in 0..3 {
            assert_eq!(ids(&read_all(&path)), ids_of(&acknowledged), "a batch that was not written is cut off");
            // As the engine does: start, then the same batch again.
            let _ = sink.start().await;
            assert_eq!(sent(&sink, &refused).await, Err(SinkCode::DiskFull.code()));
        }
        make_space();
        sink.start().await.unwrap();
        sent(&sink, &refused).await.unwrap();
        acknowledged.extend(refused);
        let batch = messages.many(20, 4);
        sent(&sink, &batch).await.unwrap();
        acknowledged.extend(batch);
        sink.close().await;
        assert_eq!(ids(&read_all(&path)), ids_of(&acknowledged));
        assert!(!path.with_extension("jsonl.torn").exists());
    });
}
