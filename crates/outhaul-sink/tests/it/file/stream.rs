//! Standard output and devices.

use std::process::Stdio;

use outhaul_sink::file::{FileConfig, FileSink};
use outhaul_sink::{AckLevel, Outcome, Sink, SinkCode};
use outhaul_testkit::sink_suite::Messages;

use super::{held, ids_of, sent};
use crate::sandbox::{Folder, again, inside};

#[tokio::test]
async fn a_device_that_is_always_full() {
    let sink = FileSink::new(FileConfig::new("/dev/full"));
    assert_eq!(sink.start().await.unwrap().level, AckLevel::Received);
    let mut messages = Messages::default();
    for _ in 0..3 {
        assert_eq!(sent(&sink, &messages.many(5, 2)).await, Err(SinkCode::DiskFull.code()));
    }
    sink.close().await;
}

#[tokio::test]
async fn a_device_that_takes_all() {
    let sink = FileSink::new(FileConfig::new("/dev/null"));
    sink.start().await.unwrap();
    sent(&sink, &Messages::default().many(1000, 2)).await.unwrap();
    sink.close().await;
}

#[test]
fn lines_on_standard_output() {
    const TEST: &str = "file::stream::lines_on_standard_output";
    let messages = Messages::default().many(2_000, 9);
    if inside().is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(async {
            let sink = outhaul_sink::make("stdout", "out", serde_json::json!({}), None).unwrap();
            let info = sink.start().await.unwrap();
            assert_eq!((info.level, info.warnings.len()), (AckLevel::Received, 1));
            println!();
            for batch in messages.chunks(300) {
                let outcomes = sink.send(0, batch).await;
                assert!(outcomes.iter().all(|o| matches!(o, Outcome::Delivered(_))), "{outcomes:?}");
            }
            sink.close().await;
        });
    }
    let folder = Folder::new();
    let output = again(TEST, folder.path()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let held: Vec<_> = text.lines().filter(|l| l.starts_with('{')).map(held).collect();
    assert_eq!(super::ids(&held), ids_of(&messages));
}
