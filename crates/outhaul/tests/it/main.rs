//! The library against real databases, by every driver, with a real relay behind it.

// Clippy knows tests by their attribute; here everything is one.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod application;
mod delivery;
mod enqueue;
mod inbox;
mod kills;
mod prune;
mod refusals;
mod relay;
mod sessions;
mod transaction;

/// Runs a case by every driver on every database that it knows, each as a test of its own.
macro_rules! by_each {
    ($case:ident) => {
        crate::by_each!($case: sqlx_sqlite => (Sqlx, Sqlite), sqlx_mariadb => (Sqlx, MariaDb), sqlx_mysql => (Sqlx, MySql),
            sqlx_postgres => (Sqlx, Postgres), tokio_postgres => (TokioPostgres, Postgres),
            mysql_async_mariadb => (MysqlAsync, MariaDb), mysql_async_mysql => (MysqlAsync, MySql),
            rusqlite => (Rusqlite, Sqlite));
    };
    ($case:ident: $($name:ident => ($driver:ident, $flavour:ident)),+ $(,)?) => {
        mod $case {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    use crate::application::Driver;
                    super::$case(Driver::$driver, outhaul_testkit::servers::Flavour::$flavour).await;
                }
            )+
        }
    };
}
pub(crate) use by_each;
