//! The benches, short: that they run to their end and print what they should. The figures mean nothing here.

use std::process::Command;

/// What it prints.
fn bench(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_outhaul-bench")).args(arguments).output().unwrap();
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {}\n{printed}\n{said}", output.status);
    printed.into_owned()
}

/// What is missing of a destination, and what is said of a bad one.
fn account(printed: &str, destination: &str) -> (u64, String) {
    let line = printed.lines().find(|line| line.starts_with(destination)).expect("a line for each");
    let line = line.replace("≥ ", "");
    let words: Vec<&str> = line.split_whitespace().collect();
    (words[7].parse().unwrap(), words[9..].join(" "))
}

/// One design of `fanout`: what it says of the bad ones, all of which caught up.
fn fanout(db: &str, design: &str) {
    let printed = bench(&["fanout", "--db", db, "--rate", "20", "--seconds", "1", "--designs", design]);
    for healthy in ["file-1", "file-2", "inbox-1", "inbox-2", "mq-1", "http-1", "http-2"] {
        let (missing, said) = account(&printed, healthy);
        assert!(missing == 0 && said.is_empty(), "{healthy}\n{printed}");
    }
    assert!(printed.contains(", 0 without a reason\n"), "{printed}");
    for (bad, trouble) in [("inbox-3", "down"), ("file-3", "rejects 1 %"), ("mq-2", "100 times slower")] {
        let (missing, said) = account(&printed, bad);
        assert!(missing == 0 && said.starts_with(&format!("{trouble} in (b), caught up after")), "{bad}\n{printed}");
    }
}

#[test]
fn fanout_outhaul() {
    fanout("postgres", "outhaul");
}

#[test]
fn fanout_in_turn() {
    fanout("mariadb", "in-turn");
}

#[test]
fn fanout_joined() {
    fanout("sqlite", "joined");
}

#[test]
fn scale() {
    let printed = bench(&["scale", "--seconds", "0.3", "--most", "2"]);
    let rates = printed.lines().filter(|line| line.split_whitespace().nth(4) == Some("0")).count();
    assert_eq!(rates, 5, "three steps of a shard's batch and two of an instance's\n{printed}");
    assert!(printed.contains("2 instances, 2 shards by topic"), "{printed}");
}

#[test]
fn status_table() {
    for db in ["sqlite", "mariadb", "mysql", "postgres"] {
        let sizes = ["--sent", "3000", "--pending", "450", "--backlog", "900", "--seconds", "1"];
        let printed = bench(&[&["status-table", "--db", db], &sizes[..]].concat());
        assert_eq!(printed.lines().filter(|line| line.starts_with("index ")).count(), 3, "{printed}");
        assert!(printed.contains("INSERT with the archiver") && !printed.contains(" 0 rows archived/s"), "{printed}");
        assert_eq!(printed.lines().filter(|line| line.starts_with("drain by ")).count(), 3, "{printed}");
    }
}

#[test]
fn audit() {
    for db in ["sqlite", "mariadb", "postgres"] {
        let printed = bench(&["audit", "--db", db, "--messages", "3000", "--searches", "20"]);
        assert!(printed.contains("with its time") && printed.contains("without a time"), "{printed}");
        assert!(printed.contains("every one was found"), "{printed}");
    }
}

#[test]
fn inbox() {
    for db in ["sqlite", "mariadb", "postgres"] {
        let printed = bench(&["inbox", "--db", db, "--transactions", "20"]);
        assert!(printed.contains("second copy") && printed.contains("ratio of the medians"), "{printed}");
    }
}

#[test]
fn reconcile() {
    let printed = bench(&["reconcile", "--ids", "20000", "--memory-mib", "1"]);
    assert_eq!(printed.matches(" 43 missing").count(), 2, "{printed}");
}

#[test]
fn transactional() {
    for (db, sink) in [("mariadb", "rocketmq4"), ("postgres", "rocketmq5")] {
        let printed = bench(&["transactional", "--db", db, "--sink", sink, "--messages", "20", "--senders", "1,4"]);
        assert_eq!(printed.matches("transactional message").count(), 2, "{printed}");
    }
}
