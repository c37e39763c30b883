//! The `outhaul` command.
//!
//! Data goes to standard output, everything else to standard error. Exit codes: 0 done, 1 failed, 2 wrong call or
//! configuration, 3 found something that needs attention.

mod admin;
mod arguments;
mod codes;
mod commands;
mod config;
mod failure;
mod journal;
mod measure;
mod output;
mod timestamp;
mod version;

use std::process::ExitCode;

use clap::Parser;

use self::arguments::{Arguments, Command};
use self::failure::{Exit, Failure, Failures, Outcome};

/// Rows are made by one thread and let go by others, many thousands a second: a third less CPU than with the allocator of
/// glibc (`outhaul-bench drain`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // The demo starts this program again for the parts of its shop.
    #[cfg(feature = "sqlite")]
    if std::env::args_os().nth(1).is_some_and(|first| first == outhaul_demo::PART_COMMAND) {
        return outhaul_demo::part(std::env::args_os().skip(2).map(|a| a.to_string_lossy().into_owned()).collect());
    }
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(Exit::Fine) => ExitCode::SUCCESS,
        Ok(Exit::Attention) => ExitCode::from(3),
        Err(failures) => {
            failures.report(arguments.global.json);
            ExitCode::from(failures.exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Outcome {
    let standard_level = if matches!(arguments.command, Command::Relay(_) | Command::Checkback(_) | Command::Inbox(_)) {
        "info"
    } else {
        "warn"
    };
    journal::start(&arguments.global, standard_level)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failures::from(Failure::new(&codes::SYSTEM, format!("starting the runtime: {e}"))))?;
    let outcome = runtime.block_on(commands::run(arguments));
    // A thread that still reads standard input must not keep the process.
    runtime.shutdown_background();
    outcome
}
