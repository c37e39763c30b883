//! What the demo can be asked for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

/// Options of the demo. Both runs together take a little more than twice `seconds`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Seconds of load in each of the two runs.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=3600))]
    pub seconds: u32,
    /// Orders per second, from 8 workers together. What the machine does not reach is not made up for.
    #[arg(long, value_name = "N", default_value_t = 1400, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// How often the order service is killed in each run, and the relay in the second.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub kills: u32,
    /// Seed of the moments of the kills and of the orders. Default: a new one, which is printed.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Folder for the databases, new or empty. Default: a new one in the current folder.
    #[arg(long, value_name = "FOLDER")]
    pub dir: Option<PathBuf>,
    /// Keep the folder: databases, logs, notes of the service.
    #[arg(long)]
    pub keep: bool,
    /// The `outhaul` binary whose `relay` is used. Default: this one.
    #[arg(long, value_name = "FILE")]
    pub relay_binary: Option<PathBuf>,
    /// Only one of the two runs.
    #[arg(long, value_name = "RUN", hide = true)]
    pub only: Option<Strategy>,
    /// The program that knows `demo-part`, where it is not the one that runs.
    #[arg(skip)]
    pub part_binary: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seconds: 20,
            rate: 1400,
            kills: 5,
            seed: None,
            dir: None,
            keep: false,
            relay_binary: None,
            only: None,
            part_binary: None,
        }
    }
}

/// How the order service gets its events out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Commit the order, then send the event to each downstream service.
    CommitThenSend,
    /// Insert the event in the order's transaction; the relay delivers it.
    Outhaul,
}

impl Strategy {
    /// The word for command lines and folders.
    pub const fn word(self) -> &'static str {
        match self {
            Self::CommitThenSend => "commit-then-send",
            Self::Outhaul => "outhaul",
        }
    }

    /// The words for people.
    pub const fn title(self) -> &'static str {
        match self {
            Self::CommitThenSend => "commit, then send",
            Self::Outhaul => "with Outhaul",
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_command_line() {
        #[derive(Debug, Parser)]
        struct CommandLine {
            #[command(flatten)]
            options: Options,
        }
        let parsed = CommandLine::try_parse_from(["demo"]).unwrap().options;
        assert_eq!(format!("{parsed:?}"), format!("{:?}", Options::default()));
    }
}
