//! A server that a test may kill.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Flavour, Leftover, TestDatabase, address_of, make_database, with_database};
use crate::servers::script::Script;

/// A database server of this test alone, with its data on disk and every commit made durable. It is killed and deleted
/// when dropped.
#[derive(Debug)]
pub struct OwnServer {
    script: Script,
    flavour: Flavour,
    url: String,
}

impl OwnServer {
    /// Starts a server and waits until it serves. Settings are in the server's own spelling, `"max_allowed_packet=1M"`
    /// or `"default_transaction_isolation=serializable"`; `"tls"` lets it offer TLS, see [`ca_file`](Self::ca_file).
    ///
    /// # Panics
    /// `OUTHAUL_TEST_SERVICES` is missing, the flavour is SQLite, or the server does not start.
    pub async fn start(flavour: Flavour, settings: &[&str]) -> Self {
        assert!(flavour != Flavour::Sqlite, "SQLite has no server");
        let script = Script::new("OUTHAUL_TEST_SERVICES", flavour.name());
        let url = script.run(&["start", flavour.name()], settings).await;
        Self { script, flavour, url }
    }

    /// What it is.
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Its database `outhaul`, with all rights. The same over restarts.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it listens. The same over restarts.
    pub fn address(&self) -> SocketAddr {
        address_of(&self.url)
    }

    /// Where all of it is: its log is the file `log`.
    pub fn folder(&self) -> &Path {
        self.script.folder()
    }

    /// The authority that signed the certificate of a server started with `"tls"`: good for 127.0.0.1 and localhost.
    /// The tests' MySQL (8.0.15) offers no key exchange that rustls knows; for TLS in MySQL's protocol take MariaDB.
    pub fn ca_file(&self) -> PathBuf {
        self.folder().join("ca.pem")
    }

    /// A fresh database on this server. It goes away with the server, not before.
    pub async fn database(&self) -> TestDatabase {
        let name = make_database(self.flavour, &self.url).await;
        TestDatabase {
            url: with_database(&self.url, &name),
            flavour: self.flavour,
            leftover: Leftover::Nothing,
            users: Vec::new(),
        }
    }

    /// Kills every process of it with SIGKILL, and waits until they are gone.
    pub async fn kill9(&self) {
        self.act("kill").await;
    }

    /// Shuts it down as an operator would: open transactions are rolled back, connections ended.
    pub async fn stop(&self) {
        self.act("stop").await;
    }

    /// Starts it again on the same data and port (stops it first if it runs), and waits until it serves.
    pub async fn restart(&self) {
        self.act("restart").await;
    }

    /// Stops every process of it with SIGSTOP: it hangs, its sockets stay open.
    pub async fn pause(&self) {
        self.act("pause").await;
    }

    /// Lets a paused one go on.
    pub async fn resume(&self) {
        self.act("resume").await;
    }

    async fn act(&self, verb: &str) {
        self.script.run(&[verb], &[]).await;
    }
}
