//! How a demo ends when it cannot go on: nothing is left running, nothing of the user's is touched.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use outhaul_demo::{DemoError, Options, Strategy, run};

use super::{DEMO, fresh_folder, outhaul, short};

#[tokio::test]
async fn a_folder_that_holds_something_is_refused_and_left_alone() {
    let folder = fresh_folder("full");
    let mine = folder.join("mine");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(&mine, "precious").expect("a file");
    let error = run(Options { dir: Some(folder.clone()), ..short("unused") }).await.expect_err("must be refused");
    assert!(matches!(error, DemoError::NotEmpty(_)), "{error}");
    assert_eq!(std::fs::read_to_string(&mine).expect("the file"), "precious");
    std::fs::remove_dir_all(folder).expect("removing");
}

#[cfg(unix)]
#[tokio::test]
async fn a_relay_that_ends_by_itself_ends_the_demo() {
    let options = Options { only: Some(Strategy::Outhaul), relay_binary: Some("false".into()), ..short("false") };
    let folder = options.dir.clone().expect("a folder");
    let error = run(options).await.expect_err("must fail");
    assert!(matches!(&error, DemoError::Ended { who, .. } if who == "relay"), "{error}");
    assert!(!folder.exists(), "the folder must be gone");
}

/// The demo is killed, so that it can end nobody. Its order service and the guard of its relay have its standard
/// output: that ends when both of them are gone, and the guard goes after the relay.
#[test]
fn nothing_outlives_a_killed_demo() {
    let folder = fresh_folder("killed");
    let mut demo = Command::new(DEMO)
        .args(["--only", "outhaul", "--seconds", "600", "--kills", "0", "--rate", "100", "--dir"])
        .arg(&folder)
        .arg("--relay-binary")
        .arg(outhaul())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a demo");
    let mut lines = BufReader::new(demo.stderr.take().expect("standard error")).lines();
    assert!(lines.any(|line| line.expect("a line").starts_with("with Outhaul:")), "the run must begin");
    demo.kill().expect("killing");
    demo.wait().expect("its end");
    let mut said = String::new();
    demo.stdout.take().expect("standard output").read_to_string(&mut said).expect("the end of its children");
    assert_eq!(said, "");
    std::fs::remove_dir_all(folder).expect("removing");
}

/// What the guard guards here copies one named pipe to another: it answers as long as it lives.
#[cfg(unix)]
#[test]
fn what_is_guarded_is_gone_before_its_guard() {
    let folder = fresh_folder("guard");
    std::fs::create_dir(&folder).expect("a folder");
    let (question, answer) = (folder.join("question"), folder.join("answer"));
    assert!(Command::new("mkfifo").arg(&question).arg(&answer).status().expect("mkfifo").success());
    let mut guard = Command::new(DEMO)
        .args(["demo-part", "relay-guard", "--log"])
        .arg(folder.join("log"))
        .args(["--", "sh", "-c", "exec cat \"$0\" > \"$1\""])
        .args([&question, &answer])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a guard");
    // Opening waits for the other end, so that from here on it lives.
    let mut answer = File::open(answer).expect("the answer's end");
    let mut question = File::options().write(true).open(question).expect("the question's end");
    drop(guard.stdin.take());
    assert_eq!(guard.wait().expect("its end").code(), Some(99), "killed on request");
    let asked = question.write_all(b"still here");
    drop(question);
    let mut said = String::new();
    answer.read_to_string(&mut said).expect("the end of the answer");
    assert_eq!((asked.is_err(), said.as_str()), (true, ""), "it must be gone");
    std::fs::remove_dir_all(folder).expect("removing");
}
