//! The engine against real servers: kills, pauses, cut connections, two owners, and the numbered failures.

// Clippy knows tests by their attribute; here everything is one.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod acts;
mod bad_input;
mod barrier;
mod child;
mod collector;
mod engine;
mod export;
mod forgotten;
mod instances;
mod kill;
mod lanes;
mod limits;
mod outage;
mod replay;
mod rocketmq;
mod rows;
mod scene;
mod watch;
mod writers;

/// Runs a case on every database named, each as a test of its own.
macro_rules! on_each {
    ($case:ident: $($name:ident => $flavour:ident),+ $(,)?) => {
        mod $case {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    super::$case(outhaul_testkit::servers::Flavour::$flavour).await;
                }
            )+
        }
    };
    ($case:ident: all) => {
        crate::on_each!($case: sqlite => Sqlite, mariadb => MariaDb, mysql => MySql, postgres => Postgres);
    };
    ($case:ident: servers) => {
        crate::on_each!($case: mariadb => MariaDb, mysql => MySql, postgres => Postgres);
    };
}
pub(crate) use on_each;
