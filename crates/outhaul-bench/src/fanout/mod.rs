//! `fanout`: ten destinations on real parts, all well and then with three bad ones: what the other seven feel of it.
//!
//! Beside Outhaul the design that suggests itself: a row is done when all ten have answered.

pub mod child;
mod destinations;
mod endpoint;
mod phases;
mod rival;
mod troubled;
mod verdict;

use std::time::Duration;

use crate::Db;

/// Longest wait for an answer, of lanes as of the rivals: well above the slowest endpoint's.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Database, of the outbox and of the three inboxes.
    #[arg(long, default_value = "mariadb")]
    db: Db,
    /// Transactions a second, one row each.
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// Seconds with all ten well, then as many with three bad ones; half as many while these recover.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// What is measured, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "outhaul,in-turn,joined")]
    designs: Vec<Design>,
}

/// How rows come to the destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Design {
    /// As it is.
    Outhaul,
    /// A loop that sends to one destination after the other.
    InTurn,
    /// A loop that sends to all and waits for all.
    Joined,
}

impl Design {
    const fn title(self) -> &'static str {
        match self {
            Self::Outhaul => "Outhaul",
            Self::InTurn => "One row, ten destinations one after the other",
            Self::Joined => "One row, ten destinations at once, all awaited",
        }
    }
}

/// Runs it.
pub async fn run(arguments: Arguments) {
    println!(
        "{:?}: {} single-row transactions a second to 3 files, 3 inbox databases, 2 topics of RocketMQ 4.9.4 and 2 HTTP-like endpoints that answer within 1 ms to 2 s. (a) {} s with all well; (b) as long with inbox-3 down, file-3 rejecting 1 % and mq-2 100 times slower; (c) {} s while these recover. Times from COMMIT to the acknowledgement; each relay is a process of its own",
        arguments.db,
        arguments.rate,
        arguments.seconds,
        phases::recovery_s(arguments.seconds)
    );
    for design in &arguments.designs {
        phases::run(&arguments, *design).await;
    }
}
