//! Databases.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use outhaul_store::DatabaseKind;
use uuid::Uuid;

use super::{random_name, scratch, variable};

mod own;
mod session;
#[cfg(test)]
mod tests;

pub use own::OwnServer;
pub use session::Session;

/// Limit of what is tidied up when a test ends. What is left over does no harm.
const DROP_LIMIT: Duration = Duration::from_secs(5);

/// A database product that Outhaul is tested on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flavour {
    /// A file of its own for each database.
    Sqlite,
    /// MariaDB.
    MariaDb,
    /// Oracle's MySQL 8.
    MySql,
    /// PostgreSQL.
    Postgres,
}

impl Flavour {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sqlite, Self::MariaDb, Self::MySql, Self::Postgres];

    /// Those that are servers.
    pub const SERVERS: [Self; 3] = [Self::MariaDb, Self::MySql, Self::Postgres];

    /// The store that serves it.
    pub const fn kind(self) -> DatabaseKind {
        match self {
            Self::Sqlite => DatabaseKind::Sqlite,
            Self::MariaDb | Self::MySql => DatabaseKind::MySql,
            Self::Postgres => DatabaseKind::Postgres,
        }
    }

    /// As the service script, folder names and messages write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::MariaDb => "mariadb",
            Self::MySql => "mysql",
            Self::Postgres => "postgres",
        }
    }

    /// The last bytes of a COMMIT in its protocol, for [`Proxy::trap`](crate::proxy::Proxy::trap). A client that spells
    /// it otherwise, or prepares it, is not met by this.
    pub const fn commit_bytes(self) -> &'static [u8] {
        match self {
            Self::Sqlite => b"",
            Self::MariaDb | Self::MySql => b"\x03COMMIT",
            Self::Postgres => b"COMMIT\0",
        }
    }

    const fn variable(self) -> &'static str {
        match self {
            Self::Sqlite => "",
            Self::MariaDb => "OUTHAUL_TEST_MARIADB_URL",
            Self::MySql => "OUTHAUL_TEST_MYSQL_URL",
            Self::Postgres => "OUTHAUL_TEST_POSTGRES_URL",
        }
    }
}

/// A fresh, empty database on the shared server, or a SQLite file that does not exist yet in a folder of its own.
///
/// # Panics
/// The server's environment variable is missing, or the server does not do as told.
pub async fn create(flavour: Flavour) -> TestDatabase {
    match flavour {
        Flavour::Sqlite => {
            let folder = scratch(&random_name());
            std::fs::create_dir_all(&folder).expect("a folder for the database");
            let url = format!("sqlite:{}", folder.join("outhaul.db").display());
            TestDatabase { url, flavour, leftover: Leftover::Folder(folder), users: Vec::new() }
        }
        server => {
            let url = variable(server.variable());
            let name = make_database(server, &url).await;
            let leftover = Leftover::Database { server_url: url.clone(), name: name.clone() };
            TestDatabase { url: with_database(&url, &name), flavour, leftover, users: Vec::new() }
        }
    }
}

/// A database that goes away with this value.
#[derive(Debug)]
pub struct TestDatabase {
    /// For [`StoreOptions`](outhaul_store::StoreOptions), with all rights.
    pub url: String,
    /// What it is.
    pub flavour: Flavour,
    leftover: Leftover,
    users: Vec<String>,
}

#[derive(Debug)]
enum Leftover {
    /// Goes away with its server.
    Nothing,
    Folder(PathBuf),
    Database {
        server_url: String,
        name: String,
    },
}

impl TestDatabase {
    /// The database's name, or the file's path.
    pub fn name(&self) -> &str {
        match self.flavour {
            Flavour::Sqlite => self.url.trim_start_matches("sqlite:"),
            _ => self.url.rsplit('/').next().unwrap_or_default(),
        }
    }

    /// The same database as another user.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        let (scheme, address, name) = split(&self.url);
        format!("{scheme}://{user}:{password}@{address}/{name}")
    }

    /// The same database by way of another address, for instance a [`Proxy`](crate::proxy::Proxy)'s.
    pub fn url_at(&self, address: SocketAddr) -> String {
        at_address(&self.url, address)
    }

    /// Where the server listens.
    pub fn address(&self) -> SocketAddr {
        address_of(&self.url)
    }

    /// An open connection, for a transaction that stays open and the like.
    pub async fn session(&self) -> Session {
        Session::open(self.flavour, &self.url)
            .await
            .unwrap_or_else(|error| panic!("connecting to {}: {error}", self.flavour.name()))
    }

    /// Runs statements, several with `;` between them, on a connection of its own: how many rows the last one changed.
    pub async fn execute(&self, sql: &str) -> u64 {
        self.session().await.execute(sql).await
    }

    /// The first column of the first row of a query, as a number.
    pub async fn query_u64(&self, sql: &str) -> u64 {
        self.session().await.query_u64(sql).await
    }

    /// The first column of the first row of a query, as text.
    pub async fn query_text(&self, sql: &str) -> String {
        self.session().await.query_text(sql).await
    }

    /// All rows of a query, as the server writes values as text (PostgreSQL: bytes as `\x…`).
    pub async fn query(&self, sql: &str) -> Vec<Vec<Option<String>>> {
        self.session().await.query(sql).await
    }

    /// Makes a user with these rights and none else, and returns the URL to connect with. A grant is what stands
    /// between GRANT and TO: `"SELECT, INSERT ON outbox"`. On MySQL and MariaDB, a user without any right in the
    /// database cannot enter it.
    ///
    /// # Panics
    /// On SQLite, which knows no users.
    pub async fn restricted_user(&mut self, grants: &[&str]) -> String {
        let user = format!("u{}", &Uuid::new_v4().simple().to_string()[..12]);
        let (create, grantee) = match self.flavour {
            Flavour::Sqlite => panic!("SQLite knows no users"),
            Flavour::Postgres => (format!("CREATE ROLE {user} LOGIN PASSWORD 'narrow'"), user.clone()),
            Flavour::MariaDb | Flavour::MySql => {
                (format!("CREATE USER '{user}'@'%' IDENTIFIED BY 'narrow'"), format!("'{user}'@'%'"))
            }
        };
        let mut session = self.session().await;
        session.execute(&create).await;
        self.users.push(user.clone());
        for grant in grants {
            session.execute(&format!("GRANT {grant} TO {grantee}")).await;
        }
        self.url_as(&user, "narrow")
    }
}

impl Drop for TestDatabase {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.leftover, Leftover::Nothing) {
            Leftover::Nothing => {}
            Leftover::Folder(folder) => _ = std::fs::remove_dir_all(folder),
            Leftover::Database { server_url, name } => {
                let (flavour, users) = (self.flavour, std::mem::take(&mut self.users));
                // A runtime of its own: the test's may be gone, or be the thread that waits here.
                let tidying = std::thread::spawn(move || {
                    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
                        return;
                    };
                    runtime.block_on(async {
                        _ = tokio::time::timeout(DROP_LIMIT, drop_database(flavour, &server_url, &name, &users)).await;
                    });
                });
                _ = tidying.join();
            }
        }
    }
}

async fn make_database(flavour: Flavour, server_url: &str) -> String {
    let name = random_name();
    let mut session = Session::open(flavour, server_url).await.unwrap_or_else(|error| {
        panic!("connecting to {}: {error}; run `./dev test`, which starts the servers", flavour.name())
    });
    // PostgreSQL copies template0 while others may be connected to template1.
    let template = if flavour == Flavour::Postgres { " TEMPLATE template0" } else { "" };
    session.execute(&format!("CREATE DATABASE {name}{template}")).await;
    name
}

/// Drops it although connections may be left, which would be waited for otherwise.
async fn drop_database(flavour: Flavour, server_url: &str, name: &str, users: &[String]) -> Result<(), String> {
    let mut session = Session::open(flavour, server_url).await?;
    if flavour == Flavour::Postgres {
        session.try_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await?;
        for user in users {
            session.try_execute(&format!("DROP ROLE IF EXISTS {user}")).await?;
        }
    } else {
        for row in
            session.try_query(&format!("SELECT id FROM information_schema.processlist WHERE db = '{name}'")).await?
        {
            if let Some(Some(id)) = row.first() {
                _ = session.try_execute(&format!("KILL {id}")).await; // it may have left by itself
            }
        }
        session.try_execute(&format!("DROP DATABASE IF EXISTS {name}")).await?;
        for user in users {
            session.try_execute(&format!("DROP USER IF EXISTS '{user}'@'%'")).await?;
        }
    }
    Ok(())
}

/// Scheme, host and port, database name.
fn split(url: &str) -> (&str, &str, &str) {
    let parts = url.split_once("://").and_then(|(scheme, rest)| {
        let (address, name) = rest.rsplit_once('@')?.1.split_once('/')?;
        Some((scheme, address, name))
    });
    parts.unwrap_or_else(|| panic!("not the URL of a server's database"))
}

fn address_of(url: &str) -> SocketAddr {
    split(url).1.parse().expect("an address of digits")
}

fn at_address(url: &str, address: SocketAddr) -> String {
    url.replacen(&format!("@{}/", split(url).1), &format!("@{address}/"), 1)
}

fn with_database(server_url: &str, name: &str) -> String {
    let (front, _) = server_url.rsplit_once('/').expect("the URL of a server's database");
    format!("{front}/{name}")
}
