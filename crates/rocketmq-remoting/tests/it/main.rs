//! Against real name servers and brokers, 4.9 and 5.x; see [`servers`].
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod admin;
mod cluster;
mod consume;
mod interop;
mod name_servers;
mod rights;
mod send;
mod servers;
mod tls;
mod transaction;

/// Makes a test for each generation of brokers of `async fn name(server: Server)`.
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        mod v4 { $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(crate::servers::Server::V4).await; })* }
        mod v5 { $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name(crate::servers::Server::V5).await; })* }
    };
}
pub(crate) use on_both;
