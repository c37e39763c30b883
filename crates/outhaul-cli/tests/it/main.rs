//! The real `outhaul` binary, against SQLite and real servers.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admin;
mod audit;
#[cfg(all(feature = "mysql", feature = "sqlite"))]
mod checkback;
mod command_line;
mod contract;
mod enqueue;
mod export;
#[cfg(feature = "sqlite")]
mod inbox;
mod inbox_brokers;
mod journey;
mod migrate;
mod operate;
mod program;
mod recipes;
mod reconcile;
mod reconcile_schedule;
mod relay;
mod replay;
mod reshard;
#[cfg(feature = "sqlite")]
mod rocketmq;
mod scheduled;
mod status_table;
#[cfg(feature = "postgres")]
mod transactional_recipe;
mod upgrade;
mod validate;
mod writers;
