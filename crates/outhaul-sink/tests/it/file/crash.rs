//! Processes that are killed while they write.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use bytes::Bytes;
use outhaul_sink::Sink;
use outhaul_sink::file::{FileConfig, FileSink, Fsync};
use outhaul_testkit::sink_suite::Messages;

use super::{Trail, ids, ids_of, read_all, sent};
use crate::sandbox::{again, inside};

#[tokio::test]
async fn a_torn_last_line_is_moved_away() {
    let long = format!("{{\"id\":\"{}", "x".repeat(200_000));
    for (before, whole, torn) in [
        ("", "", None),
        ("{}\n", "{}\n", None),
        ("{}\n{\"id\"", "{}\n", Some("{\"id\"")),
        ("{\"id\"", "", Some("{\"id\"")),
        ("\n{", "\n", Some("{")),
        (&*format!("{{}}\n{long}"), "{}\n", Some(&*long)),
        (&*long, "", Some(&*long)),
    ] {
        let trail = Trail::new(|_| ());
        fs::write(trail.path(), before).unwrap();
        let sink = FileSink::new(trail.config.clone());
        sink.start().await.unwrap();
        assert_eq!(fs::read_to_string(trail.path()).unwrap(), whole);
        let saved = fs::read_to_string(trail.folder.path().join("trail.jsonl.torn")).ok();
        assert_eq!(saved, torn.map(|t| format!("{t}\n")));
        sink.close().await;
    }
}

/// Each torn line is kept.
#[tokio::test]
async fn torn_lines_gather() {
    let trail = Trail::new(|_| ());
    for part in ["one", "two"] {
        fs::File::options().append(true).create(true).open(trail.path()).unwrap().write_all(part.as_bytes()).unwrap();
        let sink = FileSink::new(trail.config.clone());
        sink.start().await.unwrap();
        sink.close().await;
    }
    assert_eq!(fs::read_to_string(trail.folder.path().join("trail.jsonl.torn")).unwrap(), "one\ntwo\n");
}

/// A process that writes large batches is killed in the middle of it, again and again: what it had acknowledged is
/// there, in order, and every line is whole.
#[test]
fn killed_while_it_writes() {
    const TEST: &str = "file::crash::killed_while_it_writes";
    if let Some(folder) = inside() {
        return write_for_ever(FileConfig { fsync: Fsync::None, ..FileConfig::new(folder.join("trail.jsonl")) });
    }
    let mut torn = 0;
    for round in 0..40 {
        if torn == 3 {
            return;
        }
        let trail = Trail::new(|_| ());
        let mut child = again(TEST, trail.folder.path()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut acks = lines.filter_map(|line| line.strip_prefix("ack ").map(str::to_owned));
        let mut acknowledged: Vec<String> = acks.by_ref().take(1 + round % 2).collect();
        // A large write shows while it is under way.
        let length = || fs::metadata(trail.path()).unwrap().len();
        let before = length();
        while length() == before {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        }
        child.kill().unwrap();
        // What it said before counts as well.
        acknowledged.extend(acks);
        child.wait().unwrap();

        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let sink = FileSink::new(trail.config.clone());
            sink.start().await.unwrap();
            sink.close().await;
        });
        torn += usize::from(trail.folder.path().join("trail.jsonl.torn").exists());
        let held = read_all(trail.path());
        let mut batches = ids(&held);
        batches.retain(|id| acknowledged.iter().any(|a| a == id));
        assert_eq!(batches, acknowledged, "round {round}");
    }
    panic!("only {torn} of 40 kills met a write");
}

fn write_for_ever(config: FileConfig) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sink = FileSink::new(config);
        sink.start().await.unwrap();
        let mut messages = Messages::default();
        let payload = Bytes::from(format!("\"{}\"", "x".repeat(1_000_000)));
        for batch in 0u64.. {
            let all: Vec<_> = (0..20)
                .map(|i| {
                    messages.of(|row| {
                        row.payload = payload.clone();
                        row.id = format!("{batch}-{i}");
                    })
                })
                .collect();
            sent(&sink, &all).await.unwrap();
            println!("ack {}", ids_of(&all).last().unwrap());
            std::io::stdout().flush().unwrap();
        }
    });
}
