//! Which queue a key belongs to, so that Java producers agree.

use std::cmp::Ordering;

/// One queue of a topic on one broker. Ordered as Java orders them: topic, broker name, number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageQueue {
    /// The topic.
    pub topic: String,
    /// The broker's name, which master and slaves share.
    pub broker_name: String,
    /// The queue's number on that broker, from 0.
    pub queue_id: i32,
}

impl std::fmt::Display for MessageQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.topic, self.broker_name, self.queue_id)
    }
}

/// Java's `String.hashCode`: over UTF-16 units, wrapping.
#[must_use]
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0_i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// The place that Java's `SelectMessageQueueByHash` chooses in a list of `queues` for a key that is a `String`; `None`
/// for an empty list. The list's order matters: by broker name, then queue number (or as `orderTopicConf` lists them).
#[must_use]
pub fn queue_by_hash(key: &str, queues: usize) -> Option<usize> {
    let queues = i32::try_from(queues).ok().filter(|n| n.cmp(&0) == Ordering::Greater)?;
    // A remainder is smaller than the divisor, so that its absolute value exists.
    usize::try_from(java_hash(key).wrapping_rem(queues).wrapping_abs()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hashes_are_javas() {
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("hello"), 99_162_322);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        assert_eq!(java_hash("ä"), 228);
        assert_eq!(java_hash("😀"), 1_772_899); // 0xD83D * 31 + 0xDE00
    }

    #[test]
    fn queues_are_javas() {
        assert_eq!(queue_by_hash("hello", 8), Some(2));
        // Math.abs of the remainder, not of the hash: -2147483648 % 7 is -2.
        assert_eq!(queue_by_hash("polygenelubricants", 7), Some(2));
        assert_eq!(queue_by_hash("polygenelubricants", 8), Some(0));
        assert_eq!(queue_by_hash("any", 1), Some(0));
        assert_eq!(queue_by_hash("any", 0), None);
    }

    proptest! {
        #[test]
        fn a_queue_is_always_in_the_list(key in "\\PC{0,40}", queues in 1usize..5_000) {
            prop_assert!(queue_by_hash(&key, queues).unwrap() < queues);
        }
    }
}
