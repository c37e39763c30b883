//! Folders that are missing or read-only, files that somebody else moves or cuts.

use std::fs;
use std::io::Write as _;
use std::process::Command;

use outhaul_sink::file::{FileConfig, FileSink};
use outhaul_sink::{Sink, SinkCode};
use outhaul_testkit::sink_suite::Messages;

use super::{Trail, ids, ids_of, read_all, read_one, sent};
use crate::sandbox::{inside, on_a_small_disk};

async fn start_code(sink: &FileSink) -> (&'static str, bool) {
    let error = sink.start().await.unwrap_err();
    (error.code, error.passes)
}

#[tokio::test]
async fn a_folder_that_is_missing() {
    let trail = Trail::new(|_| ());
    let folder = trail.folder.path().join("missing");
    let sink = FileSink::new(FileConfig::new(folder.join("trail.jsonl")));
    assert_eq!(start_code(&sink).await, (SinkCode::FolderMissing.code(), false));
    let mut messages = Messages::default();
    let first = messages.many(3, 1);
    assert_eq!(sent(&sink, &first).await, Err(SinkCode::FolderMissing.code()));
    fs::create_dir(&folder).unwrap();
    sink.start().await.unwrap();
    sent(&sink, &first).await.unwrap();
    // Removed while it runs, and made again.
    fs::remove_dir_all(&folder).unwrap();
    let second = messages.many(3, 1);
    assert_eq!(sent(&sink, &second).await, Err(SinkCode::FolderMissing.code()));
    fs::create_dir(&folder).unwrap();
    sent(&sink, &second).await.unwrap();
    assert_eq!(ids(&read_all(&folder.join("trail.jsonl"))), ids_of(&second));
    sink.close().await;
}

#[tokio::test]
async fn a_path_that_is_no_file() {
    let trail = Trail::new(|_| ());
    let folder = trail.folder.path();
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::write(folder.join("file"), "").unwrap();
    for path in [folder.to_owned(), pipe, folder.join("file").join("below"), folder.join("n".repeat(300))] {
        let sink = FileSink::new(FileConfig::new(&path));
        assert_eq!(start_code(&sink).await, (SinkCode::NotAFile.code(), false), "{}", path.display());
    }
}

#[test]
fn a_file_system_that_is_read_only() {
    let Some(folder) = inside() else {
        return on_a_small_disk("file::broken::a_file_system_that_is_read_only", "400k");
    };
    let mount = |how: &str| {
        let status = Command::new("mount").args(["-o", how]).arg(&folder).status().unwrap();
        assert!(status.success());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let sink = FileSink::new(FileConfig::new(folder.join("trail.jsonl")));
        let messages = Messages::default().many(5, 2);
        mount("remount,ro");
        assert_eq!(start_code(&sink).await, (SinkCode::NotPermitted.code(), false));
        assert_eq!(sent(&sink, &messages).await, Err(SinkCode::NotPermitted.code()));
        mount("remount,rw");
        sink.start().await.unwrap();
        sent(&sink, &messages).await.unwrap();
        assert_eq!(ids(&read_all(&folder.join("trail.jsonl"))), ids_of(&messages));
        sink.close().await;
    });
}

/// As `logrotate` does it, with its two ways, and as an operator with an editor does it.
#[tokio::test]
async fn a_file_that_others_touch() {
    let trail = Trail::new(|_| ());
    let sink = FileSink::new(trail.config.clone());
    sink.start().await.unwrap();
    let mut messages = Messages::default();
    let moved = messages.many(4, 2);
    sent(&sink, &moved).await.unwrap();
    let aside = trail.folder.path().join("moved");
    fs::rename(trail.path(), &aside).unwrap();

    let emptied = messages.many(4, 2);
    sent(&sink, &emptied).await.unwrap();
    assert_eq!(ids(&read_one(&aside)), ids_of(&moved));
    assert_eq!(ids(&read_one(trail.path())), ids_of(&emptied));
    fs::File::options().write(true).open(trail.path()).unwrap().set_len(0).unwrap();

    let mut kept = messages.many(4, 2);
    sent(&sink, &kept).await.unwrap();
    assert_eq!(ids(&read_one(trail.path())), ids_of(&kept));
    let mut other = fs::File::options().append(true).open(trail.path()).unwrap();
    other.write_all(b"{\"half\": ").unwrap();

    let last = messages.many(4, 2);
    sent(&sink, &last).await.unwrap();
    kept.extend(last);
    assert_eq!(ids(&read_one(trail.path())), ids_of(&kept));
    sink.close().await;
}
