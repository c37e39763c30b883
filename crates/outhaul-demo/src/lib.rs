//! The demo: a shop whose order service is killed again and again, and a count of what its downstream services got.
//!
//! Two runs with the same load and the same seed. In the first the service commits an order and then sends the event
//! to three downstream services; in the second it inserts the event into the outbox in the order's own transaction and
//! `outhaul relay` delivers it. Service and relay are real processes that are killed with SIGKILL; every number is
//! counted in the databases afterwards.
//!
//! SQLite runs in WAL mode with `synchronous = NORMAL`: a commit then survives the death of every process, which is
//! what is killed here, though not a power cut.
//!
//! # What a program that offers the demo must do
//!
//! The demo starts its own executable again for the parts of the shop. So the program
//! 1. passes its arguments to [`part`] when the first of them is [`PART_COMMAND`], before anything else (no runtime, no
//!    log set-up), and ends with the exit code that comes back:
//!    `if args.next() == PART_COMMAND { return outhaul_demo::part(args.collect()); }`
//! 2. flattens [`Options`] into its command line and awaits [`run`] on a tokio runtime;
//! 3. prints the [`Outcome`] to standard output, as JSON or, with `Display`, as the table, and exits with failure
//!    unless [`Outcome::holds`].
//!
//! Children never outlive the demo: each reads its standard input and ends when that closes; the relay, which does not
//! do that, is started by a guard that does.

mod count;
mod database;
mod downstream;
mod error;
mod kills;
mod notes;
mod options;
mod order_service;
mod outcome;
mod progress;
mod relay_guard;
mod run;
mod scene;
mod shop;
mod stage;
mod stdin_end;

pub use error::DemoError;
pub use options::{Options, Strategy};
pub use outcome::{Cut, Downstream, Latency, Numbers, Outcome};
pub use run::run;

use std::process::ExitCode;

use clap::Parser;

/// The first argument of a process that is a part of the shop.
pub const PART_COMMAND: &str = "demo-part";

#[derive(Debug, Parser)]
#[command(name = PART_COMMAND, no_binary_name = true)]
enum Part {
    OrderService(order_service::Arguments),
    Downstream(downstream::Arguments),
    RelayGuard(relay_guard::Arguments),
}

/// Runs a part of the shop in this process: what follows [`PART_COMMAND`] on the command line. Blocks until the part
/// has ended, which it does at the latest some seconds after its standard input is closed.
pub fn part(args: Vec<String>) -> ExitCode {
    let done = match Part::try_parse_from(args) {
        Ok(Part::OrderService(arguments)) => order_service::serve(arguments),
        Ok(Part::Downstream(arguments)) => downstream::serve(arguments),
        Ok(Part::RelayGuard(arguments)) => return relay_guard::guard(arguments),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
