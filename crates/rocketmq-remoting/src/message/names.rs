//! Names of topics and groups. Source: `Validators`, `TopicValidator` of RocketMQ 4.9.4.

use super::MessageError;

/// The longest topic, in bytes: its stored length is one signed byte.
pub const MAX_TOPIC_BYTES: usize = 127;
/// The longest producer or consumer group, in bytes.
pub const MAX_GROUP_BYTES: usize = 255;

/// Topics into which only the broker writes.
const SYSTEM_TOPICS: [&str; 7] = [
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "SELF_TEST_TOPIC",
    "OFFSET_MOVED_EVENT",
];

fn is_legal(name: &str, limit_bytes: usize) -> bool {
    (1..=limit_bytes).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'%' | b'|' | b'_' | b'-'))
}

/// Checks a topic's name.
///
/// # Errors
/// [`MessageError::Topic`].
pub fn check_topic(topic: &str) -> Result<(), MessageError> {
    if is_legal(topic, MAX_TOPIC_BYTES) { Ok(()) } else { Err(MessageError::Topic(topic.to_owned())) }
}

/// Checks that a topic has a legal name and is not one of the broker's own.
///
/// # Errors
/// [`MessageError::Topic`], [`MessageError::SystemTopic`].
pub fn check_topic_for_sending(topic: &str) -> Result<(), MessageError> {
    check_topic(topic)?;
    if SYSTEM_TOPICS.contains(&topic) { Err(MessageError::SystemTopic(topic.to_owned())) } else { Ok(()) }
}

/// Checks a group's name.
///
/// # Errors
/// [`MessageError::Group`].
pub fn check_group(group: &str) -> Result<(), MessageError> {
    if is_legal(group, MAX_GROUP_BYTES) { Ok(()) } else { Err(MessageError::Group(group.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_java_accepts() {
        for good in ["a", "%RETRY%group-1_x", "a|b", &"t".repeat(127)] {
            assert_eq!(check_topic(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "a.b", "töpic", "a/b", "a\u{1}", &"t".repeat(128)] {
            assert_eq!(check_topic(bad), Err(MessageError::Topic(bad.into())), "{bad}");
        }
        assert_eq!(check_group(&"g".repeat(255)), Ok(()));
        assert!(check_group(&"g".repeat(256)).is_err());
        assert!(matches!(check_topic_for_sending("RMQ_SYS_TRANS_HALF_TOPIC"), Err(MessageError::SystemTopic(_))));
    }
}
