//! The file.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use outhaul_core::message::Message;
use outhaul_sink::file::{FileConfig, FileSink, Fsync};
use outhaul_sink::{Outcome, Sink};
use outhaul_testkit::sink_suite::{Destination, Held, Messages, Reader};
use serde_json::value::RawValue;

use crate::sandbox::Folder;

mod broken;
mod crash;
mod full;
mod rotation;
mod shared;
mod stream;

/// A file in a folder of its own.
struct Trail {
    folder: Folder,
    config: FileConfig,
}

impl Trail {
    fn new(change: impl FnOnce(&mut FileConfig)) -> Self {
        let folder = Folder::new();
        let mut config = FileConfig::new(folder.path().join("trail.jsonl"));
        change(&mut config);
        Self { folder, config }
    }

    fn path(&self) -> &Path {
        &self.config.path
    }
}

#[async_trait]
impl Reader for Trail {
    async fn read(&self) -> Vec<Held> {
        read_all(self.path())
    }
}

#[async_trait]
impl Destination for Trail {
    async fn sink(&self) -> Arc<dyn Sink> {
        Arc::new(FileSink::new(self.config.clone()))
    }

    fn drops_copies(&self) -> bool {
        false
    }
}

mod flushed {
    async fn make() -> super::Trail {
        super::Trail::new(|_| ())
    }
    outhaul_testkit::sink_suite!(make());
}

mod flushed_now_and_then {
    async fn make() -> super::Trail {
        super::Trail::new(|config| {
            config.fsync = super::Fsync::Interval;
            config.fsync_interval_ms = 1;
        })
    }
    outhaul_testkit::sink_suite!(make());
}

mod rotated_and_never_flushed {
    async fn make() -> super::Trail {
        super::Trail::new(|config| {
            config.fsync = super::Fsync::None;
            config.rotate_bytes = 4096;
            config.rotate_daily = true;
        })
    }
    outhaul_testkit::sink_suite!(make());
}

/// The files of a path, those that were put aside first.
fn files(path: &Path) -> Vec<PathBuf> {
    let base = path.file_name().unwrap().to_str().unwrap();
    let folder = path.parent().unwrap();
    let names = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let aside = format!("{base}.");
    let mut names: Vec<String> = names.filter(|n| n.starts_with(&aside) && !n.ends_with(".torn")).collect();
    names.sort();
    names.into_iter().map(|n| folder.join(n)).chain(path.exists().then(|| path.to_owned())).collect()
}

/// All messages of all files of a path. Every line is whole.
fn read_all(path: &Path) -> Vec<Held> {
    files(path).iter().flat_map(|file| read_one(file)).collect()
}

fn read_one(file: &Path) -> Vec<Held> {
    let text = String::from_utf8(std::fs::read(file).unwrap()).expect("UTF-8");
    assert!(text.is_empty() || text.ends_with('\n'), "{} ends in the middle of a line", file.display());
    text.lines().map(held).collect()
}

fn held(line: &str) -> Held {
    let mut members: HashMap<String, Box<RawValue>> =
        serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let mut member = |name: &str| members.remove(name).map(|raw| raw.get().to_owned());
    let mut needed = |name: &str| member(name).unwrap_or_else(|| panic!("no {name}: {line}"));
    let text = |json: String| serde_json::from_str::<String>(&json).unwrap();
    let headers: BTreeMap<String, String> = serde_json::from_str(&needed("headers")).unwrap();
    let mut held = Held {
        id: text(needed("id")),
        topic: text(needed("topic")),
        key: serde_json::from_str(&needed("key")).unwrap(),
        headers: headers.into_iter().collect(),
        payload: Vec::new(),
        place: format!("{}:{}", needed("shard"), needed("position")),
        created_at_us: Some(micros(&text(needed("created_at")))),
    };
    held.payload = match (member("payload"), member("payload_base64")) {
        (Some(json), None) => json.into_bytes(),
        (None, Some(encoded)) => base64::engine::general_purpose::STANDARD.decode(text(encoded)).unwrap(),
        _ => panic!("one payload: {line}"),
    };
    assert!(members.is_empty(), "{members:?}");
    held
}

/// Microseconds since 1970 of `2025-01-31T23:59:59.000001Z`.
fn micros(text: &str) -> i64 {
    let n = |range: std::ops::Range<usize>| text[range].parse::<i64>().unwrap();
    assert_eq!((text.len(), &text[10..11], &text[26..]), (27, "T", "Z"), "{text}");
    let leap = |y: i64| i64::from(y % 4 == 0 && (y % 100 != 0 || y % 400 == 0));
    let years: i64 = (1970..n(0..4)).map(|y| 365 + leap(y)).sum();
    let lengths = [31, 28 + leap(n(0..4)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let days = years + lengths[..n(5..7) as usize - 1].iter().sum::<i64>() + n(8..10) - 1;
    (((days * 24 + n(11..13)) * 60 + n(14..16)) * 60 + n(17..19)) * 1_000_000 + n(20..26)
}

/// The ids that a file holds, in order.
fn ids(held: &[Held]) -> Vec<&str> {
    held.iter().map(|h| h.id.as_str()).collect()
}

fn ids_of(messages: &[Arc<Message>]) -> Vec<&str> {
    messages.iter().map(|m| m.id.as_str()).collect()
}

/// Whether a batch was delivered, or the code with which the destination is down. Never something in between.
async fn sent(sink: &dyn Sink, batch: &[Arc<Message>]) -> Result<(), &'static str> {
    let outcomes = sink.send(0, batch).await;
    assert_eq!(outcomes.len(), batch.len());
    if outcomes.iter().all(|o| matches!(o, Outcome::Delivered(_))) {
        return Ok(());
    }
    let code = |o: &Outcome| match o {
        Outcome::DestinationDown(reason) => reason.code,
        other => panic!("{other:?}"),
    };
    let first = code(&outcomes[0]);
    assert!(outcomes.iter().all(|o| code(o) == first));
    Err(first)
}

/// The offset in a receipt is where the line begins.
#[tokio::test]
async fn a_receipt_tells_where_the_line_is() {
    let trail = Trail::new(|_| ());
    let sink = FileSink::new(trail.config.clone());
    sink.start().await.unwrap();
    let messages = Messages::default().many(30, 3);
    let mut offsets = Vec::new();
    for batch in messages.chunks(7) {
        for outcome in sink.send(0, batch).await {
            let Outcome::Delivered(receipt) = outcome else { panic!("{outcome:?}") };
            offsets.push(receipt.detail.parse::<usize>().unwrap());
        }
    }
    let text = std::fs::read_to_string(trail.path()).unwrap();
    for (message, offset) in messages.iter().zip(offsets) {
        assert_eq!(held(text[offset..].lines().next().unwrap()).id, message.id);
    }
    sink.close().await;
}
