//! A test that needs a process of its own runs twice: outside it starts this program again with itself as the only
//! test, in other surroundings; inside it does its work.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// Names the folder of a test that runs inside.
const INSIDE: &str = "OUTHAUL_TEST_INSIDE";

/// An empty folder that goes away with this value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let scratch = std::env::var_os("OUTHAUL_TEST_SCRATCH").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = scratch.join(format!("outhaul-sink-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The folder to work in, if this is the inside.
pub fn inside() -> Option<PathBuf> {
    std::env::var_os(INSIDE).map(PathBuf::from)
}

/// This program, to run `test` alone, inside.
pub fn again(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, folder);
    command
}

/// Runs `test` on a file system of `size` (as tmpfs takes it) that only it sees.
pub fn on_a_small_disk(test: &str, size: &str) {
    let folder = Folder::new();
    let program = again(test, folder.path());
    let mut command = Command::new("unshare");
    if !is_root() {
        command.arg("--map-root-user");
    }
    let script = format!("mount -t tmpfs -o size={size} outhaul \"${INSIDE}\" && exec \"$@\"");
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    run(command, &program, "run the tests as root, or allow unprivileged user namespaces");
}

/// Runs `test` with a limit on the size of files, which it may raise.
pub fn with_a_file_size_limit(test: &str, kib: u32) {
    let folder = Folder::new();
    let program = again(test, folder.path());
    let mut command = Command::new("bash");
    // Without the trap, the signal for the limit would end the process instead of the write.
    command.args(["-c", &format!("trap '' XFSZ; ulimit -S -f {kib}; exec \"$@\""), "bash"]);
    run(command, &program, "bash is needed");
}

fn run(mut command: Command, program: &Command, remedy: &str) {
    command.arg(program.get_program()).args(program.get_args()).stdin(Stdio::null());
    command.envs(program.get_envs().map(|(name, value)| (name, value.unwrap_or(OsStr::new("")))));
    let output = command.output().expect("the program runs");
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "({remedy})\n{out}\n{err}");
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0\n"))
}
