use std::collections::BTreeMap;

use bytes::Bytes;
use outhaul_core::chunk::{self, EncodedChunk};
use outhaul_core::destination::{DestinationIndex, DestinationSet};
use outhaul_core::message::{Message, Position, Row, Seq, ShardId};
use serde_json::Value;

use super::*;

const DAY_US: i64 = 86_400_000_000;
/// 2024-02-29, an hour before midnight.
const LATE_US: i64 = 1_709_247_600_000_000;

/// A folder that goes away.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("outhaul-export-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Name and content of every file.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap());
        entries.map(|e| (e.file_name().into_string().unwrap(), std::fs::read(e.path()).unwrap())).collect()
    }

    /// Ids and positions over all files, sorted by position.
    fn exported(&self) -> Vec<(u64, String)> {
        let mut all = Vec::new();
        for (name, content) in self.files() {
            assert!(name.ends_with(".jsonl.zst"), "{name}");
            let text = String::from_utf8(zstd::decode_all(content.as_slice()).unwrap()).unwrap();
            for line in text.lines() {
                let value: Value = serde_json::from_str(line).unwrap();
                all.push((value["position"].as_u64().unwrap(), value["id"].as_str().unwrap().to_owned()));
            }
        }
        all.sort();
        all
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn message(position: u64, story: &str, created_at_us: i64) -> Message {
    let row = Row {
        seq: Seq(position),
        shard: ShardId(3),
        id: format!("{story}{position}"),
        topic: "t".into(),
        key: None,
        headers: None,
        payload: Bytes::from(position.to_string()),
        created_at_us,
        defect: None,
    };
    Message::from_row(row, Position(position), [DestinationIndex(0)].into_iter().collect::<DestinationSet>())
}

/// A chunk of messages of which the odd ones were created a day later.
fn chunk_of(positions: std::ops::Range<u64>, story: &str) -> StoredChunk {
    let day = |p: u64| if p % 2 == 1 { DAY_US } else { 0 };
    let messages: Vec<Message> = positions.map(|p| message(p, story, LATE_US + p as i64 + day(p))).collect();
    let EncodedChunk { base, count, codec, bytes, .. } = chunk::encode(messages.iter(), &["mq".to_owned()]);
    let created_at_us = (0, 0);
    StoredChunk { shard: ShardId(3), base, count, codec, created_at_us, moved_at_us: 7, bytes: bytes.into() }
}

fn positions(n: std::ops::Range<u64>, story: &str) -> Vec<(u64, String)> {
    n.map(|p| (p, format!("{story}{p}"))).collect()
}

#[test]
fn a_file_a_day_with_its_place_in_its_name() {
    let place = Place::new();
    let written = write(&place.0, "main", &[chunk_of(0..4, "m"), chunk_of(4..10, "m")]).unwrap();
    let exported = Exported { shard: ShardId(3), below: Position(10), moved_at_us: 7 };
    assert_eq!(written, Written { exported, messages: 10, files: 2 });
    let files = place.files();
    let starts: Vec<&str> = files.keys().map(|name| name.split_at(name.len() - 27).0).collect();
    let expected =
        ["main.shard-03.2024-02-29.000000000000-000000000008", "main.shard-03.2024-03-01.000000000001-000000000009"];
    assert_eq!(starts, expected);
    assert_eq!(place.exported(), positions(0..10, "m"));
}

/// A crash between the file and the delete: the next one may find more, or chunks that were merged since.
#[test]
fn what_is_in_a_file_already_is_not_written_again() {
    let place = Place::new();
    write(&place.0, "main", &[chunk_of(0..4, "m")]).unwrap();
    let before = place.files();
    assert_eq!(write(&place.0, "main", &[chunk_of(0..4, "m")]).unwrap().files, 0);
    assert_eq!(place.files(), before);
    let written = write(&place.0, "main", &[chunk_of(0..10, "m")]).unwrap();
    assert_eq!((written.exported.below, written.files), (Position(10), 2));
    assert!(before.iter().all(|(name, content)| place.files().get(name) == Some(content)), "files stay as they are");
    assert_eq!(place.exported(), positions(0..10, "m"), "each once");
    // One that exports less finds it in the middle.
    assert_eq!(write(&place.0, "main", &[chunk_of(2..7, "m")]).unwrap().files, 0);
}

#[test]
fn files_of_others_stay_as_they_are() {
    let place = Place::new();
    // Of tables that were made anew: the same positions, other messages. And of another outbox.
    write(&place.0, "main", &[chunk_of(0..4, "old")]).unwrap();
    write(&place.0, "main.shard-03", &[chunk_of(0..4, "other")]).unwrap();
    let before = place.files();
    assert_eq!(write(&place.0, "main", &[chunk_of(0..4, "new")]).unwrap().files, 2);
    assert!(before.iter().all(|(name, content)| place.files().get(name) == Some(content)));
    let all = [positions(0..4, "new"), positions(0..4, "old"), positions(0..4, "other")].concat();
    let mut all: Vec<_> = all;
    all.sort();
    assert_eq!(place.exported(), all);
}

#[test]
fn a_damaged_file_counts_for_nothing() {
    let place = Place::new();
    write(&place.0, "main", &[chunk_of(0..6, "m")]).unwrap();
    for (name, content) in place.files() {
        std::fs::write(place.0.join(name), &content[..content.len() - 5]).unwrap();
    }
    assert_eq!(write(&place.0, "main", &[chunk_of(0..6, "m")]).unwrap().files, 2);
    assert_eq!(place.exported(), positions(0..6, "m"), "the same names, whole again");
}

#[test]
fn what_a_killed_process_left_goes_later() {
    let place = Place::new();
    let (old, new) = (place.0.join(".main.x.jsonl.zst.7-0.part"), place.0.join(".main.y.jsonl.zst.7-0.part"));
    for path in [&old, &new] {
        std::fs::write(path, "half").unwrap();
    }
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(48 * 3600);
    std::fs::File::options().write(true).open(&old).unwrap().set_modified(long_ago).unwrap();
    write(&place.0, "main", &[chunk_of(0..1, "m")]).unwrap();
    assert!(!old.exists() && new.exists(), "another process may still be writing it");
}

#[test]
fn an_unreadable_chunk_keeps_what_is_before_it() {
    let place = Place::new();
    let bad = StoredChunk { bytes: Bytes::from_static(b"damaged"), ..chunk_of(4..6, "m") };
    let written = write(&place.0, "main", &[chunk_of(0..4, "m"), bad.clone(), chunk_of(6..8, "m")]).unwrap();
    assert_eq!(written.exported.below, Position(4));
    let miscounted = StoredChunk { count: 3, ..chunk_of(4..6, "m") };
    for chunk in [bad, miscounted] {
        let error = write(&place.0, "main", &[chunk]).unwrap_err();
        assert_eq!(error.code(), "OUT-1012");
        assert!(error.to_string().contains("the chunk at 4 of shard 3: "), "{error}");
    }
    assert_eq!(place.exported(), positions(0..4, "m"));
}

#[tokio::test]
async fn a_folder_that_is_not_there() {
    let missing = std::env::temp_dir().join(format!("outhaul-export-{}", uuid::Uuid::new_v4()));
    let error = Export::new("main", missing.clone()).write(vec![chunk_of(0..2, "m")]).await.unwrap_err();
    assert_eq!(error.code(), "OUT-4019");
    assert!(error.to_string().contains(missing.to_str().unwrap()), "{error}");
}
