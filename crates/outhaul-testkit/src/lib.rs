//! What Outhaul's tests share.

pub mod detour;
#[cfg(feature = "servers")]
pub mod earlier;
pub mod proxy;
pub mod scripted;
#[cfg(any(feature = "rocketmq", feature = "servers"))]
pub mod servers;
pub mod simulator;
pub mod sink_suite;
#[cfg(feature = "servers")]
pub mod store_suite;
pub mod transaction_model;
