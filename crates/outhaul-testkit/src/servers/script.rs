//! The scripts that start servers, as tests call them.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::{random_name, scratch, variable};

/// Limit of one act: a first start fetches the server's files and takes seconds, a stop at most one minute.
const ACT_LIMIT: Duration = Duration::from_secs(300);

/// One of the scripts and the folder of one server of its, which is killed and deleted when this is dropped.
#[derive(Debug)]
pub(super) struct Script {
    path: PathBuf,
    folder: PathBuf,
}

impl Script {
    /// Made before the server is started, so that a failed start is tidied up too.
    pub(super) fn new(path_variable: &str, kind: &str) -> Self {
        Self { path: variable(path_variable).into(), folder: scratch(&format!("own-{kind}-{}", random_name())) }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs `VERB... FOLDER REST...`; the last line that it printed.
    pub(super) async fn run(&self, verb: &[&str], rest: &[&str]) -> String {
        let mut command = tokio::process::Command::new(&self.path);
        command.args(verb).arg(&self.folder).args(rest).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = tokio::time::timeout(ACT_LIMIT, command.output()).await;
        let output = output.expect("the service script did not end in time").expect("the service script runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{} {}: {said}", verb.join(" "), rest.join(" "));
        String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned()
    }

    /// Removes the server when this process has ended, however it ends: a shell waits for the other end of its pipe to be
    /// closed, in a process group of its own, so that no Ctrl-C meets it.
    pub(super) fn remove_after_this_process(&self) {
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "read -r _; exec \"$0\" remove \"$1\""]).arg(&self.path).arg(&self.folder).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        std::mem::forget(command.spawn().expect("a shell")); // dropping it would close the pipe
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        if self.folder.join("service").exists() {
            let mut command = std::process::Command::new(&self.path);
            command.arg("remove").arg(&self.folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            _ = command.status();
        } else {
            _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}
