//! What this build has.

use std::sync::OnceLock;

macro_rules! with {
    ($feature:literal, $name:literal) => {
        if cfg!(feature = $feature) { concat!(" ", $name) } else { "" }
    };
}

const SQLITE: &str = with!("sqlite", "sqlite");
const MYSQL: &str = with!("mysql", "mysql mariadb");
const POSTGRES: &str = with!("postgres", "postgres");

/// Databases of this build, each with a space in front.
const DATABASES: [&str; 3] = [SQLITE, MYSQL, POSTGRES];

/// Version of the program.
pub const SHORT: &str = env!("CARGO_PKG_VERSION");

/// Version, databases and destinations: `--version`.
pub fn long() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| {
        let destinations = outhaul_sink::registry::built().join(" ");
        format!("{SHORT}\ndatabases:{}\ndestinations: {destinations}", DATABASES.concat())
    })
}
