//! Tables as the previous version left them: what `outhaul init` of commit 551c3e1 made, and what its relay wrote.
//!
//! Four shards (SQLite: one), the destination `file`. `m0` to `m39` with the keys `k0` to `k4` are delivered. `bad` is parked as
//! dead since its headers cannot be read, `behind` waits behind it. `hot0` to `hot4` with one key, and `later`, scheduled for
//! 2037, are in the outbox table. All relays have ended.

use crate::servers::Flavour;

/// The statements that make them in an empty database.
pub const fn tables(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Sqlite => include_str!("earlier/sqlite.sql"),
        Flavour::MariaDb => include_str!("earlier/mariadb.sql"),
        Flavour::MySql => include_str!("earlier/mysql.sql"),
        Flavour::Postgres => include_str!("earlier/postgres.sql"),
    }
}
