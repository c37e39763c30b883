//! Who this client is.

use std::hash::{BuildHasher, RandomState};

/// 8 random hexadecimal digits.
pub(super) fn random_name() -> String {
    format!("{:08x}", RandomState::new().hash_one(std::process::id()) & 0xFFFF_FFFF)
}

/// `host@process@instance`: containers share addresses and process numbers, so that none of these alone will do
/// (apache/rocketmq#3480).
pub(super) fn client_id(instance: &str) -> String {
    format!("{}@{}@{instance}", host_name(), std::process::id())
}

fn host_name() -> String {
    let from_system = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = from_system().or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let name: String =
        name.trim().chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).collect();
    if name.is_empty() { "localhost".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_clients_of_a_process_differ() {
        let (a, b) = (client_id(&random_name()), client_id(&random_name()));
        assert_ne!(a, b);
        assert_eq!(a.split('@').count(), 3);
    }
}
