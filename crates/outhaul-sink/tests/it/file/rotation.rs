//! Files that are put aside.

use std::fs;
use std::time::{Duration, UNIX_EPOCH};

use outhaul_sink::Sink;
use outhaul_sink::file::FileSink;
use outhaul_testkit::sink_suite::Messages;

use super::{Trail, files, ids, ids_of, read_all, read_one, sent};

#[tokio::test]
async fn by_size() {
    let trail = Trail::new(|config| config.rotate_bytes = 8192);
    let sink = FileSink::new(trail.config.clone());
    sink.start().await.unwrap();
    let messages = Messages::default().many(500, 10);
    for batch in messages.chunks(10) {
        sent(&sink, batch).await.unwrap();
    }
    let files = files(trail.path());
    assert!(files.len() > 8, "{files:?}");
    for file in &files {
        let bytes = fs::metadata(file).unwrap().len();
        assert!((1..=8192).contains(&bytes), "{bytes}");
    }
    assert_eq!(ids(&read_all(trail.path())), ids_of(&messages));
    // A batch that is larger than the limit has a file to itself.
    let large = Messages::default().many(200, 10);
    sent(&sink, &large).await.unwrap();
    assert_eq!(ids(&read_one(trail.path())), ids_of(&large));
    sink.close().await;
}

#[tokio::test]
async fn by_day() {
    let trail = Trail::new(|config| config.rotate_daily = true);
    let mut messages = Messages::default();
    let mut all = Vec::new();
    // 2024-02-28T23:59:59, 2024-02-29T00:00:00, and that day once more, as after a clock was set back.
    for seconds in [1_709_164_799, 1_709_164_800, 1_709_200_000] {
        let sink = FileSink::new(trail.config.clone());
        sink.start().await.unwrap();
        for _ in 0..2 {
            let batch = messages.many(5, 2);
            sent(&sink, &batch).await.unwrap();
            all.extend(batch);
        }
        sink.close().await;
        let file = fs::File::options().append(true).open(trail.path()).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }
    let sink = FileSink::new(trail.config.clone());
    sink.start().await.unwrap();
    let today = messages.many(5, 2);
    sent(&sink, &today).await.unwrap();
    assert_eq!(ids(&read_one(trail.path())), ids_of(&today));
    all.extend(today);
    let names: Vec<_> =
        files(trail.path()).iter().map(|f| f.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let expected =
        ["trail.jsonl.20240228-0001", "trail.jsonl.20240229-0001", "trail.jsonl.20240229-0002", "trail.jsonl"];
    assert_eq!(names, expected);
    assert_eq!(ids(&read_all(trail.path())), ids_of(&all));
    sink.close().await;
}
