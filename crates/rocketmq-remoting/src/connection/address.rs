//! Where a name server or broker listens.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// `host:port`, as name servers give it. The last colon separates, so that an IPv6 address may stand with or without
/// brackets. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    text: Arc<str>,
    host_end: usize,
    port: u16,
}

impl Address {
    /// The host without brackets: a name or an IP address.
    #[must_use]
    pub fn host(&self) -> &str {
        let host = self.text.get(..self.host_end).unwrap_or_default();
        host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host)
    }

    /// The TCP port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// As it was given.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an address of the form host:port")]
pub struct AddressError(String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        let wrong = || AddressError(text.chars().take(200).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        let port = port.parse().ok().filter(|p| *p != 0).ok_or_else(wrong)?;
        if host.is_empty() || host == "[]" || host.len() > 253 || host.contains(|c: char| c.is_whitespace() || c == '/')
        {
            return Err(wrong());
        }
        Ok(Self { host_end: host.len(), port, text: text.into() })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_colon_separates() {
        for (text, host, port) in [
            ("10.0.0.1:10911", "10.0.0.1", 10911),
            (" broker-a.example:10911 ", "broker-a.example", 10911),
            ("[fe80::1]:9876", "fe80::1", 9876),
            ("fe80::1:9876", "fe80::1", 9876),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.host(), address.port()), (host, port));
        }
        for text in ["", "host", "host:", "host:0", "host:65536", ":10911", "http://host:80", "[]:1", "a b:1"] {
            assert!(text.parse::<Address>().is_err(), "{text:?}");
        }
    }
}
