//! Running the binary, and a database with a folder for each test.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use outhaul_testkit::servers::{Flavour, TestDatabase, create};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

/// Nothing here takes this long; what does is stuck.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Waits until it is so: brokers ask when they like to.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so().await {
        assert!(Instant::now() < until, "it never came to pass: {what}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// What a run of the program left.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The exit code was this one; otherwise everything is shown.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    pub fn lines(&self) -> Vec<&str> {
        self.stdout.lines().collect()
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// A folder that goes away, and a database.
pub struct Scene {
    pub database: TestDatabase,
    pub folder: Folder,
}

impl Scene {
    pub async fn new(flavour: Flavour) -> Self {
        Self { database: create(flavour).await, folder: Folder::new() }
    }

    /// A database with Outhaul's tables.
    pub async fn ready(flavour: Flavour) -> Self {
        let scene = Self::new(flavour).await;
        scene.run(&["init", "--db", scene.url()]).await.expect(0);
        scene
    }

    pub fn url(&self) -> &str {
        &self.database.url
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        self.folder.run(arguments, "", &[]).await
    }

    /// Runs `enqueue` with these lines.
    pub async fn enqueue(&self, lines: &str) -> Ran {
        self.folder.run(&["enqueue", "--db", self.url()], lines, &[]).await
    }

    /// Delivers everything to a file; what it holds after.
    pub async fn deliver(&self, file: &str) -> Vec<Value> {
        let to = format!("file:{}", self.folder.path(file).display());
        self.run(&["relay", "--db", self.url(), "--to", &to, "--until-empty"]).await.expect(0);
        self.folder.json_lines(file)
    }
}

/// A folder of a test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        let scratch = std::env::var_os("OUTHAUL_TEST_SCRATCH").map_or_else(std::env::temp_dir, PathBuf::from);
        let path = scratch.join(format!("cli-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A last line that is just being written is left out.
    pub fn json_lines(&self, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        let whole = |line: &&str| line.ends_with('\n') || serde_json::from_str::<Value>(line).is_ok();
        text.split_inclusive('\n').filter(whole).map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Runs the program in this folder until it ends by itself.
    pub async fn run(&self, arguments: &[&str], input: &str, variables: &[(&str, &str)]) -> Ran {
        let mut running = self.start(arguments, variables);
        let mut stdin = running.stdin.take().unwrap();
        let input = input.to_owned();
        // The program may end without reading all of it.
        let feeding = tokio::spawn(async move { _ = stdin.write_all(input.as_bytes()).await });
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let mut out = running.stdout.into_inner();
        let mut err = running.stderr.into_inner();
        let ended = timeout(LIMIT, async {
            let (o, e) = tokio::join!(out.read_to_string(&mut stdout), err.read_to_string(&mut stderr));
            o.and(e).unwrap();
            running.child.wait().await.unwrap()
        });
        let status = ended.await.unwrap_or_else(|_| panic!("{arguments:?} does not end"));
        feeding.await.unwrap();
        Ran { code: code(status), stdout, stderr }
    }

    /// Starts the program in this folder.
    pub fn start(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        self.start_program(env!("CARGO_BIN_EXE_outhaul").as_ref(), arguments, variables)
    }

    /// Starts another build of the program in this folder.
    pub fn start_program(&self, program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Running {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OUTHAUL__") {
                command.env_remove(name);
            }
        }
        let mut child = command
            .args(arguments)
            .envs(variables.iter().copied())
            .current_dir(&self.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Running {
            stdin: child.stdin.take(),
            stdout: BufReader::new(child.stdout.take().unwrap()).lines(),
            stderr: BufReader::new(child.stderr.take().unwrap()).lines(),
            child,
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0);
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

/// A program that runs.
pub struct Running {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    pub stdout: Lines<BufReader<ChildStdout>>,
    pub stderr: Lines<BufReader<ChildStderr>>,
}

impl Running {
    /// The next line of standard output.
    pub async fn line(&mut self) -> String {
        timeout(LIMIT, self.stdout.next_line()).await.expect("a line in time").unwrap().expect("a line")
    }

    /// Waits until the log says something.
    pub async fn says(&mut self, what: &str) -> String {
        let mut seen = vec![];
        let line = timeout(LIMIT, async {
            while let Some(line) = self.stderr.next_line().await.unwrap() {
                if line.contains(what) {
                    return Some(line);
                }
                seen.push(line);
            }
            None
        });
        match line.await {
            Ok(Some(line)) => line,
            _ => panic!("it never said {what:?}, but:\n{}", seen.join("\n")),
        }
    }

    /// Sends a signal by its number's name.
    pub async fn signal(&self, name: &str) {
        let pid = self.child.id().expect("it runs").to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().await.unwrap().success());
    }

    /// Waits for its end: exit code and the rest of the log.
    pub async fn end(mut self) -> Ran {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        let ended = timeout(LIMIT, async {
            let (mut out, mut err) = (self.stdout.into_inner(), self.stderr.into_inner());
            let (o, e) = tokio::join!(out.read_to_string(&mut stdout), err.read_to_string(&mut stderr));
            o.and(e).unwrap();
            self.child.wait().await.unwrap()
        });
        let status = ended.await.expect("it ends");
        Ran { code: code(status), stdout, stderr }
    }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(-1)
}

/// A test for each database that this build has.
macro_rules! on_every_database {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "sqlite")]
        mod sqlite { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Flavour::Sqlite).await; })* }
        $crate::program::on_every_server!($($name),*);
    };
}
pub(crate) use on_every_database;

/// A test for each database server that this build has.
macro_rules! on_every_server {
    ($($name:ident),* $(,)?) => {
        #[cfg(feature = "mysql")]
        mod mariadb { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Flavour::MariaDb).await; })* }
        #[cfg(feature = "mysql")]
        mod mysql { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Flavour::MySql).await; })* }
        #[cfg(feature = "postgres")]
        mod postgres { $(#[tokio::test(flavor = "multi_thread")] async fn $name() { super::$name(super::Flavour::Postgres).await; })* }
    };
}
pub(crate) use on_every_server;
