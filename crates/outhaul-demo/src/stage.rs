//! The processes of one run, from the outside: started, killed, ended.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::PART_COMMAND;
use crate::downstream::{self, LISTENING};
use crate::error::DemoError;
use crate::relay_guard::KILLED;
use crate::scene::Scene;
use crate::shop::{SERVICES, Service};

/// Limit of a start and of a kill.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Limit of an order service's clean end: its own limit, and a little more.
const SERVICE_END_LIMIT: Duration = Duration::from_secs(8);
/// Limit of `relay --until-empty`.
const UNTIL_EMPTY_LIMIT: Duration = Duration::from_secs(30);
/// Lines of a log that an error shows.
const LOG_LINES: usize = 5;

/// One child.
struct Part {
    who: String,
    child: Child,
    log: PathBuf,
}

impl Part {
    /// Waits until it has ended by itself.
    async fn ends(&mut self, what: &str, limit: Duration) -> Result<ExitStatus, DemoError> {
        // Kept here, because waiting for a child closes the standard input that it still has, and that ends it.
        let _open = self.child.stdin.take();
        match timeout(limit, self.child.wait()).await {
            Ok(status) => status.map_err(DemoError::process(&self.who)),
            Err(_) => {
                Err(DemoError::TooSlow { what: what.to_owned(), seconds: limit.as_secs(), said: said(&self.log) })
            }
        }
    }

    /// Closes its standard input and waits for its end with an exit code.
    async fn close(&mut self, what: &str, limit: Duration, code: u8) -> Result<(), DemoError> {
        drop(self.child.stdin.take());
        let status = self.ends(what, limit).await?;
        if status.code() == Some(code.into()) { Ok(()) } else { Err(self.ended(status)) }
    }

    /// Waits until it has said on which port it listens.
    async fn listens(&mut self) -> Result<u16, DemoError> {
        let stdout = self.child.stdout.take().ok_or(std::io::ErrorKind::BrokenPipe);
        let stdout = stdout.map_err(|kind| DemoError::process(&self.who)(kind.into()))?;
        let mut line = String::new();
        match timeout(START_LIMIT, BufReader::new(stdout).read_line(&mut line)).await {
            Ok(read) => read.map_err(DemoError::process(&self.who))?,
            Err(_) => return Err(self.too_slow(&format!("the start of {}", self.who), START_LIMIT)),
        };
        match line.trim().strip_prefix(LISTENING).and_then(|port| port.parse().ok()) {
            Some(port) => Ok(port),
            None => {
                let status = self.ends(&format!("the start of {}", self.who), START_LIMIT).await?;
                Err(self.ended(status))
            }
        }
    }

    fn too_slow(&self, what: &str, limit: Duration) -> DemoError {
        DemoError::TooSlow { what: what.to_owned(), seconds: limit.as_secs(), said: said(&self.log) }
    }

    fn ended(&self, status: ExitStatus) -> DemoError {
        DemoError::Ended { who: self.who.clone(), how: status.to_string(), said: said(&self.log) }
    }

    /// Fails if it has ended.
    fn must_run(&mut self) -> Result<(), DemoError> {
        match self.child.try_wait().map_err(DemoError::process(&self.who))? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }
}

/// The end of a log, for an error.
fn said(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().rev().take(LOG_LINES).collect();
    lines.iter().rev().fold(String::new(), |all, line| all + "\n  " + line)
}

/// What to start processes with.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    /// The program that knows [`PART_COMMAND`].
    pub(crate) part: PathBuf,
    /// The program that knows `relay`.
    pub(crate) relay: PathBuf,
    /// Orders per second.
    pub(crate) rate: u32,
    /// Seed.
    pub(crate) seed: u64,
}

/// The processes of one run. Dropping it ends them all, though without waiting for that.
pub(crate) struct Stage<'a> {
    programs: &'a Programs,
    scene: &'a Scene,
    downstream: Vec<Part>,
    ports: Vec<u16>,
    service: Option<Part>,
    services: u32,
    relay: Option<Part>,
}

impl<'a> Stage<'a> {
    /// An empty stage.
    pub(crate) fn new(programs: &'a Programs, scene: &'a Scene) -> Self {
        Self { programs, scene, downstream: vec![], ports: vec![], service: None, services: 0, relay: None }
    }

    /// Seed of the demo.
    pub(crate) fn seed(&self) -> u64 {
        self.programs.seed
    }

    /// Starts the downstream services.
    pub(crate) async fn start_downstream(&mut self) -> Result<(), DemoError> {
        for service in &SERVICES {
            let part = self.spawn_downstream(service)?;
            self.downstream.push(part);
            if let Some(part) = self.downstream.last_mut() {
                let port = part.listens().await?;
                self.ports.push(port);
            }
        }
        Ok(())
    }

    fn spawn_downstream(&self, service: &Service) -> Result<Part, DemoError> {
        let mut command = self.part_command("downstream");
        command.args(["--name", service.name, "--database"]).arg(self.scene.downstream(service)).stdout(Stdio::piped());
        spawn(command, service.name, self.scene.log(service.name), true)
    }

    /// Starts the order service, again if it was there before.
    pub(crate) fn start_service(&mut self) -> Result<(), DemoError> {
        let mut command = self.part_command("order-service");
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        command.arg("--folder").arg(self.scene.folder());
        command.args(["--strategy", self.scene.strategy.word()]);
        command.args(["--process", &self.services.to_string(), "--rate", &self.programs.rate.to_string()]);
        command.args(["--seed", &self.programs.seed.to_string(), "--ports", &ports.join(",")]);
        self.service = Some(spawn(command, "order service", self.scene.log("order-service"), true)?);
        self.services += 1;
        Ok(())
    }

    /// Kills the order service with SIGKILL.
    pub(crate) async fn kill_service(&mut self) -> Result<(), DemoError> {
        let Some(service) = &mut self.service else { return Ok(()) };
        service.must_run()?;
        service.child.start_kill().map_err(DemoError::process("order service"))?;
        service.ends("killing the order service", START_LIMIT).await?;
        self.service = None;
        Ok(())
    }

    /// Lets the order service finish its current orders and end.
    pub(crate) async fn end_service(&mut self) -> Result<(), DemoError> {
        let Some(service) = &mut self.service else { return Ok(()) };
        service.close("the end of the order service", SERVICE_END_LIMIT, 0).await?;
        self.service = None;
        Ok(())
    }

    /// Starts the relay, again if it was there before.
    pub(crate) fn start_relay(&mut self) -> Result<(), DemoError> {
        self.relay = Some(self.spawn_relay(&[])?);
        Ok(())
    }

    /// Kills the relay with SIGKILL.
    pub(crate) async fn kill_relay(&mut self) -> Result<(), DemoError> {
        let Some(guard) = &mut self.relay else { return Ok(()) };
        guard.must_run()?;
        guard.close("killing the relay", START_LIMIT, KILLED).await?;
        self.relay = None;
        Ok(())
    }

    /// Runs the relay until it has delivered all that is there.
    pub(crate) async fn relay_until_empty(&mut self) -> Result<(), DemoError> {
        let guard = self.relay.insert(self.spawn_relay(&["--until-empty"])?);
        let status = guard.ends("`outhaul relay --until-empty`", UNTIL_EMPTY_LIMIT).await?;
        if !status.success() {
            return Err(guard.ended(status));
        }
        self.relay = None;
        Ok(())
    }

    /// Ends every process at once and waits until it is gone: after an error, so what they say no longer matters.
    pub(crate) async fn clear(&mut self) {
        for part in self.downstream.iter_mut().chain(&mut self.service) {
            // It may have ended by itself.
            let _killed = part.child.start_kill();
        }
        for part in self.relay.iter_mut().chain(&mut self.downstream).chain(&mut self.service) {
            drop(part.child.stdin.take());
            let _gone = part.ends("its end", START_LIMIT).await;
        }
    }

    fn spawn_relay(&self, more: &[&str]) -> Result<Part, DemoError> {
        let log = self.scene.log("relay");
        let mut command = self.part_command("relay-guard");
        command.arg("--log").arg(&log).arg("--").arg(&self.programs.relay);
        command.args(["relay", "-c"]).arg(self.scene.relay_config()).args(more);
        // Killing the guard would leave the relay behind: it ends through its standard input alone.
        spawn(command, "relay", log, false)
    }

    /// Fails if a process has ended that should run.
    pub(crate) fn all_must_run(&mut self) -> Result<(), DemoError> {
        self.downstream.iter_mut().chain(&mut self.service).chain(&mut self.relay).try_for_each(Part::must_run)
    }

    /// Lets the downstream services apply what they have and end.
    pub(crate) async fn end_downstream(&mut self) -> Result<(), DemoError> {
        for part in &mut self.downstream {
            drop(part.child.stdin.take());
        }
        for part in &mut self.downstream {
            let what = format!("the end of {}", part.who);
            part.close(&what, downstream::END_LIMIT + Duration::from_secs(3), 0).await?;
        }
        Ok(())
    }

    fn part_command(&self, part: &str) -> Command {
        let mut command = Command::new(&self.programs.part);
        command.arg(PART_COMMAND).arg(part);
        command
    }
}

/// Starts a child with a standard input that closes with this process, and its errors in a log. It gets a process group
/// of its own: an interrupt from the terminal would end the guard before it has ended the relay.
fn spawn(mut command: Command, who: &str, log: PathBuf, kill_on_drop: bool) -> Result<Part, DemoError> {
    let errors = File::options().create(true).append(true).open(&log).map_err(DemoError::file(&log))?;
    #[cfg(unix)]
    command.process_group(0);
    let child = command.stdin(Stdio::piped()).stderr(errors).kill_on_drop(kill_on_drop).spawn();
    Ok(Part { who: who.to_owned(), child: child.map_err(DemoError::process(who))?, log })
}
