//! Settings of a client.

use std::sync::Arc;
use std::time::Duration;

use crate::acl::Credentials;
use crate::codec::Serialization;
use crate::connection::{Address, AddressError, ConnectionOptions};
use crate::tls::Tls;

/// Settings of a [`super::Client`]. Start with [`ClientOptions::new`] and change what must differ.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Name servers. All of them know the same; the first that answers is asked until it fails.
    pub name_servers: Vec<Address>,
    /// Distinguishes clients of one process on one machine; part of [`Self::client_id`]. Default: random.
    pub instance_name: String,
    /// What brokers know this client by. Two clients with one id would take each other's place in a group. Default:
    /// `host@process@instance`.
    pub client_id: Option<String>,
    /// Limit of a request, everything included, where the caller gives none. Default 3 s, as Java's
    /// `sendMsgTimeout`.
    pub request_limit: Duration,
    /// Limit of a look-up at the name servers, all of them together. Default 3 s.
    pub route_limit: Duration,
    /// A route older than this is fetched again, behind the back of who uses it. Default 30 s, as Java's
    /// `pollNameServerInterval`.
    pub route_refresh: Duration,
    /// A route is fetched no more often than this, whatever fails. Default 200 ms.
    pub route_pause: Duration,
    /// Routes that are remembered. Above it the one that was not used for longest is forgotten. Default 4,096.
    pub max_topics: usize,
    /// Check-backs that wait to be read. More are dropped, and counted; the broker repeats them. Default 4,096.
    pub max_check_backs: usize,
    /// Bodies of the check-backs that wait, together. Default 16 MiB.
    pub max_check_back_bytes: usize,
    /// Limits of connections, signature and TLS. Greeting, pushes and counters are the client's own, whatever is set
    /// here.
    pub connection: ConnectionOptions,
}

impl ClientOptions {
    /// Defaults, with these name servers: `host:port`, several with `;` or `,` between them.
    ///
    /// # Errors
    /// [`AddressError`] for what is no address, also for an empty list.
    pub fn new(name_servers: &str) -> Result<Self, AddressError> {
        let name_servers = name_servers
            .split([';', ','])
            .map(str::trim)
            .filter(|one| !one.is_empty())
            .map(str::parse)
            .collect::<Result<Vec<Address>, _>>()?;
        if name_servers.is_empty() {
            "".parse::<Address>()?;
        }
        Ok(Self {
            name_servers,
            instance_name: super::identity::random_name(),
            client_id: None,
            request_limit: Duration::from_secs(3),
            route_limit: Duration::from_secs(3),
            route_refresh: Duration::from_secs(30),
            route_pause: Duration::from_millis(200),
            max_topics: 4_096,
            max_check_backs: 4_096,
            max_check_back_bytes: 16 * 1024 * 1024,
            connection: ConnectionOptions::default(),
        })
    }

    /// Signs every request.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.connection.credentials = Some(credentials);
        self
    }

    /// TLS to name servers and brokers.
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.connection.tls = Some(tls);
        self
    }

    /// Form of the headers that are sent.
    #[must_use]
    pub const fn serialization(mut self, serialization: Serialization) -> Self {
        self.connection.serialization = serialization;
        self
    }

    /// Requests in flight on each connection.
    #[must_use]
    pub const fn window(mut self, requests: usize) -> Self {
        self.connection.window = requests;
        self
    }

    /// Limit of a request where the caller gives none.
    #[must_use]
    pub const fn request_limit(mut self, limit: Duration) -> Self {
        self.request_limit = limit;
        self
    }

    /// Part of the client id.
    #[must_use]
    pub fn instance_name(mut self, name: impl Into<String>) -> Self {
        self.instance_name = name.into();
        self
    }

    pub(super) fn make_client_id(&self) -> Arc<str> {
        match &self.client_id {
            Some(id) => id.as_str().into(),
            None => super::identity::client_id(&self.instance_name).into(),
        }
    }
}
