//! Offset ids: which broker, and where in its commit log. Source: `MessageDecoder` of RocketMQ 4.9.4.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// The id that a broker gives to a stored message: the address under which it knows itself, and the physical offset in
/// its commit log. As text 32 hexadecimal digits (IPv4) or 56 (IPv6), upper case. Duplicates of a message differ in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetId {
    /// The broker.
    pub store_host: SocketAddr,
    /// Bytes from the beginning of the commit log.
    pub commit_log_offset: i64,
}

/// A text that is no offset id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an offset id is 32 or 56 hexadecimal digits")]
pub struct OffsetIdError;

impl fmt::Display for OffsetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written for every message that is acknowledged: `{:016X}` would take several times as long.
        let mut digits = [0; 56];
        let mut used = 0;
        let mut put = |bytes: &[u8]| {
            for byte in bytes {
                for half in [byte >> 4, byte & 15] {
                    if let Some(digit) = digits.get_mut(used) {
                        *digit = if half < 10 { b'0' + half } else { b'A' + half - 10 };
                    }
                    used += 1;
                }
            }
        };
        match self.store_host.ip() {
            IpAddr::V4(ip) => put(&ip.octets()),
            IpAddr::V6(ip) => put(&ip.octets()),
        }
        put(&u32::from(self.store_host.port()).to_be_bytes());
        put(&self.commit_log_offset.to_be_bytes());
        f.write_str(digits.get(..used).and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or_default())
    }
}

impl FromStr for OffsetId {
    type Err = OffsetIdError;

    fn from_str(text: &str) -> Result<Self, OffsetIdError> {
        // `from_str_radix` would accept a sign.
        if !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(OffsetIdError);
        }
        let number = |from: usize, to: usize| -> Result<u128, OffsetIdError> {
            u128::from_str_radix(text.get(from..to).ok_or(OffsetIdError)?, 16).map_err(|_| OffsetIdError)
        };
        let address_digits = match text.len() {
            32 => 8,
            56 => 32,
            _ => return Err(OffsetIdError),
        };
        let address = number(0, address_digits)?;
        let ip = match u32::try_from(address) {
            Ok(address) if address_digits == 8 => IpAddr::V4(Ipv4Addr::from_bits(address)),
            _ => IpAddr::V6(Ipv6Addr::from_bits(address)),
        };
        let port = u16::try_from(number(address_digits, address_digits + 8)?).map_err(|_| OffsetIdError)?;
        let offset = u64::try_from(number(address_digits + 8, address_digits + 24)?).map_err(|_| OffsetIdError)?;
        Ok(Self { store_host: SocketAddr::new(ip, port), commit_log_offset: offset.cast_signed() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_read_as_java_writes_them() {
        let id: OffsetId = "7F00000100002A9F00000000000003E8".parse().unwrap();
        assert_eq!(id, OffsetId { store_host: "127.0.0.1:10911".parse().unwrap(), commit_log_offset: 1_000 });
        assert_eq!(id.to_string(), "7F00000100002A9F00000000000003E8");
        let v6 = OffsetId { store_host: "[2001:db8::1]:10911".parse().unwrap(), commit_log_offset: -1 };
        assert_eq!(v6.to_string(), "20010DB800000000000000000000000100002A9FFFFFFFFFFFFFFFFF");
        assert_eq!(v6.to_string().parse(), Ok(v6));
        // An IPv6 address that would fit into 4 bytes stays one.
        let small = OffsetId { store_host: "[::1]:1".parse().unwrap(), commit_log_offset: 0 };
        assert_eq!(small.to_string().parse(), Ok(small));
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in ["", "7F00000100002A9F", "7F00000100002A9F00000000000003EG", "+F00000100002A9F00000000000003E8"] {
            assert_eq!(bad.parse::<OffsetId>(), Err(OffsetIdError), "{bad}");
        }
        // A port above 65,535.
        assert!("7F00000101002A9F00000000000003E8".parse::<OffsetId>().is_err());
        assert!("é".repeat(16).parse::<OffsetId>().is_err());
    }

    proptest! {
        #[test]
        fn round_trip(ip: IpAddr, port: u16, offset: i64) {
            let id = OffsetId { store_host: SocketAddr::new(ip, port), commit_log_offset: offset };
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn any_text_never_panics(text in "\\PC{0,60}") {
            let _ = text.parse::<OffsetId>();
        }
    }
}
