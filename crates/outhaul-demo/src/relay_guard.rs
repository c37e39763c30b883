//! Starts the relay and ends with it, or ends it: the relay does not watch its standard input, so this does.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use crate::stdin_end::StdinEnd;

/// How often to look whether the relay has ended by itself.
const LOOK: Duration = Duration::from_millis(20);
/// How long a killed relay may take to be gone.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Exit code after the relay was killed on request: not one that the relay ends with.
pub(crate) const KILLED: u8 = 99;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// File for what the relay says.
    #[arg(long)]
    log: PathBuf,
    /// The relay's command line.
    #[arg(required = true, last = true)]
    command: Vec<String>,
}

/// Runs the command until it ends, whose exit code it returns, or until standard input closes: then kills it with
/// SIGKILL and returns [`KILLED`].
pub(crate) fn guard(arguments: Arguments) -> ExitCode {
    let end = StdinEnd::watch(END_LIMIT);
    match run(&arguments, &end) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{}: {error}", arguments.log.display());
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments, end: &StdinEnd) -> std::io::Result<ExitCode> {
    let log = File::options().create(true).append(true).open(&arguments.log)?;
    let (program, rest) = arguments.command.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    let mut relay =
        Command::new(program).args(rest).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn()?;
    loop {
        if end.wait(LOOK) {
            relay.kill()?;
            relay.wait()?;
            return Ok(ExitCode::from(KILLED));
        }
        if let Some(status) = relay.try_wait()? {
            return Ok(status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .map_or(ExitCode::FAILURE, ExitCode::from));
        }
    }
}
