//! Real databases and brokers for tests.
//!
//! `./dev test` starts MariaDB, MySQL 8, PostgreSQL and RocketMQ and names them in environment variables; [`create`]
//! makes a fresh database on one of them, so that no test sees another one's rows. A test that stops or kills a server
//! takes an [`OwnServer`]. [`rocketmq`] is the same for brokers, and all that there is without the feature `servers`. A
//! missing variable is a failure with its remedy, never a skipped test.
//!
//! Everything here panics instead of returning errors, unless it says otherwise: a test has no use for them.

use std::env;
use std::path::PathBuf;

use uuid::Uuid;

#[cfg(feature = "servers")]
mod databases;
pub mod rocketmq;
mod script;

#[cfg(feature = "servers")]
pub use databases::{Flavour, OwnServer, Session, TestDatabase, create};

/// Whether this is the long run (`./dev soak`) and counts should be the full ones.
pub fn soak() -> bool {
    env::var_os("OUTHAUL_SOAK").is_some_and(|value| !value.is_empty() && value != "0")
}

fn random_name() -> String {
    format!("t_{}", Uuid::new_v4().simple())
}

/// A path for what a test leaves on disk. The test command deletes the whole folder at its end.
fn scratch(name: &str) -> PathBuf {
    env::var_os("OUTHAUL_TEST_SCRATCH").map_or_else(env::temp_dir, PathBuf::from).join(name)
}

fn variable(name: &str) -> String {
    match env::var(name) {
        Ok(value) if !value.is_empty() => value,
        _ => panic!(
            "{name} is not set: run `./dev test`, or `eval \"$(./dev servers env)\"` after `./dev servers start`"
        ),
    }
}
