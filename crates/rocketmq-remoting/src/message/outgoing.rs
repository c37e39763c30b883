//! A message to be sent.

use bytes::Bytes;

use super::{MessageError, Properties, check_topic_for_sending, name};

/// What brokers take by default, in bytes of the body: 4 MiB (`maxMessageSize`).
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// Room for properties that most messages do with.
const USUAL_PROPERTIES_BYTES: usize = 256;

/// A message to be sent. Whatever it holds obeys the protocol's rules: what breaks one is refused when it is set.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    topic: String,
    flag: i32,
    properties: Properties,
    body: Bytes,
}

impl Message {
    /// A message with a body and nothing else.
    ///
    /// # Errors
    /// [`MessageError::Topic`], [`MessageError::SystemTopic`], [`MessageError::BodyEmpty`].
    pub fn new(topic: impl Into<String>, body: impl Into<Bytes>) -> Result<Self, MessageError> {
        let (topic, body) = (topic.into(), body.into());
        check_topic_for_sending(&topic)?;
        if body.is_empty() {
            return Err(MessageError::BodyEmpty);
        }
        let mut properties = Properties::default();
        properties.reserve(USUAL_PROPERTIES_BYTES);
        Ok(Self { topic, flag: 0, properties, body })
    }

    /// With a number of the application's.
    #[must_use]
    pub const fn with_flag(mut self, flag: i32) -> Self {
        self.flag = flag;
        self
    }

    /// With keys under which it can be found (`KEYS`). Without any, it has none.
    ///
    /// # Errors
    /// [`MessageError::Separator`] if a key has white space, [`MessageError::PropertySeparator`].
    pub fn with_keys<K: AsRef<str>>(mut self, keys: impl IntoIterator<Item = K>) -> Result<Self, MessageError> {
        let mut all = String::new();
        for key in keys {
            let key = one("key", key.as_ref())?;
            if !all.is_empty() {
                all.push(' ');
            }
            all.push_str(key);
        }
        if all.is_empty() {
            self.properties.remove(name::KEYS);
        } else {
            self.properties.set(name::KEYS, &all)?;
        }
        Ok(self)
    }

    /// With a tag, by which consumers choose (`TAGS`).
    ///
    /// # Errors
    /// [`MessageError::Separator`] if it has white space or `||`, which no subscription could name;
    /// [`MessageError::PropertySeparator`].
    pub fn with_tag(mut self, tag: &str) -> Result<Self, MessageError> {
        let tag = one("tag", tag)?;
        if tag.contains("||") {
            return Err(MessageError::Separator { what: "tag", value: tag.to_owned() });
        }
        self.properties.set(name::TAGS, tag)?;
        Ok(self)
    }

    /// With the id that consumers see (`UNIQ_KEY`). Any text without white space; 32 hexadecimal digits suit tools best.
    /// Send a message again under the same one, so that consumers can tell.
    ///
    /// # Errors
    /// [`MessageError::Separator`], [`MessageError::PropertySeparator`].
    pub fn with_unique_key(mut self, key: &str) -> Result<Self, MessageError> {
        self.properties.set(name::UNIQUE_KEY, one("unique key", key)?)?;
        Ok(self)
    }

    /// With a property of the application's.
    ///
    /// # Errors
    /// [`MessageError::PropertyReserved`], [`MessageError::PropertyEmpty`], [`MessageError::PropertySeparator`].
    pub fn with_property(mut self, name: &str, value: &str) -> Result<Self, MessageError> {
        self.properties.set_user(name, value)?;
        Ok(self)
    }

    /// With the key that decides on its queue (`__SHARDINGKEY`); brokers only keep it.
    ///
    /// # Errors
    /// [`MessageError::PropertyEmpty`], [`MessageError::PropertySeparator`].
    pub fn with_sharding_key(mut self, key: &str) -> Result<Self, MessageError> {
        self.properties.set(name::SHARDING_KEY, key)?;
        Ok(self)
    }

    /// Delivered later: by one of the delays in the broker's `messageDelayLevel`, from 1. A level above the table's end
    /// means its last one.
    ///
    /// # Errors
    /// [`MessageError::DelayLevel`].
    pub fn with_delay_level(mut self, level: i32) -> Result<Self, MessageError> {
        if level < 1 {
            return Err(MessageError::DelayLevel(level));
        }
        self.properties.set(name::DELAY, &level.to_string())?;
        Ok(self)
    }

    /// Delivered not before this time, in milliseconds since 1970 (`TIMER_DELIVER_MS`). Only 5.x does so; 4.9 ignores it
    /// and delivers at once, so look at the broker's version first.
    #[must_use]
    pub fn with_deliver_at_ms(mut self, at_ms: u64) -> Self {
        // A number is neither empty nor has separators.
        let _ = self.properties.set(name::TIMER_DELIVER_MS, &at_ms.to_string());
        self
    }

    /// Whether the broker's answer waits for flush and replica, as it is configured (`WAIT`). Default true.
    #[must_use]
    pub fn with_wait_stored(mut self, wait: bool) -> Self {
        if wait {
            self.properties.remove(name::WAIT);
        } else {
            let _ = self.properties.set(name::WAIT, "false");
        }
        self
    }

    /// For a half message: not checked back before this many seconds have passed since it was sent. Keep it far below
    /// the broker's transactionCheckInterval × transactionCheckMax: the checks are counted all the same.
    #[must_use]
    pub fn with_check_immunity_seconds(mut self, seconds: u32) -> Self {
        let _ = self.properties.set(name::CHECK_IMMUNITY_SECONDS, &seconds.to_string());
        self
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The application's number.
    #[must_use]
    pub const fn flag(&self) -> i32 {
        self.flag
    }

    /// All properties.
    #[must_use]
    pub const fn properties(&self) -> &Properties {
        &self.properties
    }

    /// The body.
    #[must_use]
    pub const fn body(&self) -> &Bytes {
        &self.body
    }

    /// The id that consumers see.
    #[must_use]
    pub fn unique_key(&self) -> Option<&str> {
        self.properties.get(name::UNIQUE_KEY)
    }

    /// True unless [`Self::with_wait_stored`] said no.
    #[must_use]
    pub fn waits_stored(&self) -> bool {
        self.properties.get(name::WAIT) != Some("false")
    }

    /// True if it is to be delivered later, by level or by time.
    #[must_use]
    pub fn is_delayed(&self) -> bool {
        self.properties.get(name::DELAY).is_some() || self.needs_timer()
    }

    /// True if it asks for 5.x's timer, which 4.9 ignores.
    #[must_use]
    pub fn needs_timer(&self) -> bool {
        self.properties.iter().any(|(name, _)| name.starts_with("TIMER_"))
    }

    /// Checks what only the broker's settings tell: `limit_bytes` is its `maxMessageSize`.
    ///
    /// # Errors
    /// [`MessageError::BodyTooLarge`], [`MessageError::PropertiesTooLarge`].
    pub fn check_size(&self, limit_bytes: usize) -> Result<(), MessageError> {
        let bytes = self.body.len();
        if bytes > limit_bytes {
            return Err(MessageError::BodyTooLarge { bytes, limit_bytes });
        }
        let bytes = self.properties.encoded_bytes();
        if bytes > super::MAX_PROPERTIES_BYTES {
            return Err(MessageError::PropertiesTooLarge { bytes });
        }
        Ok(())
    }
}

/// A key or tag that stays one when it is split at white space.
fn one<'a>(what: &'static str, value: &'a str) -> Result<&'a str, MessageError> {
    if value.is_empty() {
        Err(MessageError::PropertyEmpty(what.to_owned()))
    } else if value.contains(char::is_whitespace) {
        Err(MessageError::Separator { what, value: value.to_owned() })
    } else {
        Ok(value)
    }
}

/// Without body and values: they are payload.
impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("topic", &self.topic)
            .field("unique_key", &self.unique_key())
            .field("properties", &self.properties)
            .field("body_bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::new("Orders", "body").unwrap()
    }

    #[test]
    fn properties_are_those_of_message_const() {
        let message = message()
            .with_keys(["42", "user-7"])
            .and_then(|m| m.with_tag("paid"))
            .and_then(|m| m.with_unique_key("0A"))
            .and_then(|m| m.with_property("source", "till"))
            .and_then(|m| m.with_delay_level(3))
            .unwrap()
            .with_wait_stored(false);
        assert_eq!(
            message.properties().encode().unwrap(),
            "KEYS\u{1}42 user-7\u{2}TAGS\u{1}paid\u{2}UNIQ_KEY\u{1}0A\u{2}source\u{1}till\u{2}DELAY\u{1}3\u{2}WAIT\u{1}false\u{2}"
        );
        assert!(message.is_delayed() && !message.needs_timer() && !message.waits_stored());
        assert!(message.with_wait_stored(true).waits_stored());
    }

    #[test]
    fn what_breaks_a_rule_is_refused() {
        assert_eq!(Message::new("Orders", "").unwrap_err(), MessageError::BodyEmpty);
        assert!(matches!(Message::new("a b", "x").unwrap_err(), MessageError::Topic(_)));
        assert!(matches!(message().with_keys(["a b"]).unwrap_err(), MessageError::Separator { what: "key", .. }));
        assert!(matches!(message().with_keys([""]).unwrap_err(), MessageError::PropertyEmpty(_)));
        assert!(matches!(message().with_keys(["a\u{1}"]).unwrap_err(), MessageError::PropertySeparator(_)));
        assert!(matches!(message().with_tag("a||b").unwrap_err(), MessageError::Separator { what: "tag", .. }));
        assert!(matches!(message().with_unique_key("").unwrap_err(), MessageError::PropertyEmpty(_)));
        assert!(matches!(message().with_delay_level(0).unwrap_err(), MessageError::DelayLevel(0)));
        assert!(matches!(message().with_property("DELAY", "1").unwrap_err(), MessageError::PropertyReserved(_)));
        assert_eq!(message().check_size(4), Ok(()));
        assert_eq!(message().check_size(3), Err(MessageError::BodyTooLarge { bytes: 4, limit_bytes: 3 }));
    }

    #[test]
    fn debug_shows_no_payload() {
        let text = format!("{:?}", message().with_property("name", "secret").unwrap());
        assert!(text.contains("Orders") && text.contains("name"), "{text}");
        assert!(!text.contains("secret") && !text.contains("\"body\""), "{text}");
    }
}
