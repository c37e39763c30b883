//! What Outhaul's tests share.

pub mod proxy;
#[cfg(feature = "servers")]
pub mod servers;
pub mod sink_suite;
pub mod store_suite;
