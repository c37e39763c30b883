//! Properties: named texts beside a message's body.
//!
//! Written as name, 0x01, value, and 0x02 between two of them. Source: `MessageDecoder`, `MessageConst` of RocketMQ
//! 4.9.4 and 5.3.3.

use std::collections::HashMap;

use super::MessageError;

/// Names with a meaning of their own.
#[allow(missing_docs)]
pub mod name {
    pub const KEYS: &str = "KEYS";
    pub const TAGS: &str = "TAGS";
    pub const WAIT: &str = "WAIT";
    pub const DELAY: &str = "DELAY";
    pub const REAL_TOPIC: &str = "REAL_TOPIC";
    pub const REAL_QUEUE_ID: &str = "REAL_QID";
    pub const TRANSACTION: &str = "TRAN_MSG";
    pub const PRODUCER_GROUP: &str = "PGROUP";
    pub const UNIQUE_KEY: &str = "UNIQ_KEY";
    pub const TRANSACTION_CHECK_TIMES: &str = "TRANSACTION_CHECK_TIMES";
    pub const CHECK_IMMUNITY_SECONDS: &str = "CHECK_IMMUNITY_TIME_IN_SECONDS";
    pub const SHARDING_KEY: &str = "__SHARDINGKEY";
    pub const TIMER_DELAY_SECONDS: &str = "TIMER_DELAY_SEC";
    pub const TIMER_DELAY_MS: &str = "TIMER_DELAY_MS";
    pub const TIMER_DELIVER_MS: &str = "TIMER_DELIVER_MS";
}

/// Every name that `MessageConst` of 4.9.4 or 5.3.3 has, but for those that start with a reserved prefix.
const RESERVED: &[&str] = &[
    "1ST_POP_TIME",
    "ARRIVE_TIME",
    "BORN_TIMESTAMP",
    "BUYER_ID",
    "CHECK_IMMUNITY_TIME_IN_SECONDS",
    "CLUSTER",
    "CONSUME_START_TIME",
    "CORRECTION_FLAG",
    "CORRELATION_ID",
    "DELAY",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INNER_BASE",
    "INNER_MULTI_DISPATCH",
    "INNER_MULTI_QUEUE_OFFSET",
    "INNER_NUM",
    "INSTANCE_ID",
    "KEYS",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MQ2_FLAG",
    "MSG_REGION",
    "MSG_TYPE",
    "ORIGIN_MESSAGE_ID",
    "PGROUP",
    "POP_CK",
    "POP_CK_OFFSET",
    "PROPERTY_FORWARD_QUEUE_ID",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REDIRECT",
    "REPLY_TO_CLIENT",
    "RETRY_TOPIC",
    "TAGS",
    "TRACE_CONTEXT",
    "TRACE_ON",
    "TRANSACTION_CHECK_TIMES",
    "TRANSFER_FLAG",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TTL",
    "UNIQ_KEY",
    "WAIT",
    "__BORNHOST",
    "__CRC32#",
    "__SHARDINGKEY",
    "__transactionId__",
];

/// Prefixes of names that belong to the broker: its timer, and what 5.x hands from one of its parts to another.
const RESERVED_PREFIXES: &[&str] = &["TIMER_", "__RMQ."];

const NAME_VALUE: char = '\u{1}';
const PROPERTY: char = '\u{2}';

/// The most bytes that all properties of a message may have, encoded.
///
/// The stored length is a signed number of 16 bits, so 32,767 would be the end of it; 1 KiB is left for what brokers add
/// (region, cluster, a half message's real topic). In a batch a broker of 4.9 does not check the sum: it would write a
/// negative length.
pub const MAX_PROPERTIES_BYTES: usize = 32_767 - 1_024;

/// True for a name that user properties must not have.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED.binary_search(&name).is_ok() || RESERVED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// A message's properties, each name once, in the order in which they were set or read.
///
/// Kept as they are sent: no name or value is empty, no name has a separator, and no value a 0x02.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Properties(String);

impl Properties {
    /// Reads the encoded form, as lenient as Java: with or without the last separator; an entry without a name or value
    /// is skipped; of several with one name the last one counts.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let entries = text
            .split(PROPERTY)
            .filter_map(|entry| entry.split_once(NAME_VALUE))
            .filter(|(name, value)| !name.is_empty() && !value.is_empty());
        let mut list: Vec<(&str, &str)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (name, value) in entries {
            match places.get(name).and_then(|place| list.get_mut(*place)) {
                Some((_, old)) => *old = value,
                None => {
                    places.insert(name, list.len());
                    list.push((name, value));
                }
            }
        }
        let mut properties = Self(String::with_capacity(text.len() + 1));
        list.into_iter().for_each(|(name, value)| properties.push(name, value));
        properties
    }

    /// The value of a property.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.split_terminator(PROPERTY).filter_map(|entry| entry.split_once(NAME_VALUE))
    }

    /// True without any.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets a property of the user's.
    ///
    /// # Errors
    /// [`MessageError::PropertyReserved`], [`MessageError::PropertyEmpty`], [`MessageError::PropertySeparator`].
    pub fn set_user(&mut self, name: &str, value: &str) -> Result<(), MessageError> {
        if is_reserved(name) {
            return Err(MessageError::PropertyReserved(name.to_owned()));
        }
        self.set(name, value)
    }

    /// Sets any property, also one with a meaning.
    ///
    /// # Errors
    /// [`MessageError::PropertyEmpty`], [`MessageError::PropertySeparator`].
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), MessageError> {
        if name.is_empty() || value.is_empty() {
            return Err(MessageError::PropertyEmpty(name.to_owned()));
        }
        if [name, value].iter().any(|text| text.bytes().any(|b| matches!(b, 1 | 2))) {
            return Err(MessageError::PropertySeparator(name.to_owned()));
        }
        if self.get(name).is_some() {
            let old = std::mem::take(self);
            old.iter().for_each(|(n, v)| self.push(n, if n == name { value } else { v }));
        } else {
            self.push(name, value);
        }
        Ok(())
    }

    /// Takes a property out.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some() {
            let old = std::mem::take(self);
            old.iter().filter(|(n, _)| *n != name).for_each(|(n, v)| self.push(n, v));
        }
    }

    /// Makes room for so many bytes of the encoded form.
    pub(super) fn reserve(&mut self, bytes: usize) {
        self.0.reserve(bytes);
    }

    fn push(&mut self, name: &str, value: &str) {
        self.0.push_str(name);
        self.0.push(NAME_VALUE);
        self.0.push_str(value);
        self.0.push(PROPERTY);
    }

    /// Length of the encoded form.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        self.0.len()
    }

    /// The encoded form, with a separator after the last one too, as 5.x writes it and 4.9 reads it.
    ///
    /// # Errors
    /// [`MessageError::PropertiesTooLarge`].
    pub fn encode(&self) -> Result<&str, MessageError> {
        let bytes = self.encoded_bytes();
        if bytes > MAX_PROPERTIES_BYTES {
            return Err(MessageError::PropertiesTooLarge { bytes });
        }
        Ok(&self.0)
    }
}

/// Names of the properties only: values are payload.
impl std::fmt::Debug for Properties {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        Properties::parse(text).iter().map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn the_reserved_list_is_sorted() {
        assert!(RESERVED.is_sorted());
        for name in
            ["KEYS", "WAIT", "UNIQ_KEY", "TIMER_DELIVER_MS", "__SHARDINGKEY", "__RMQ.TRANSIENT.x", "1ST_POP_TIME"]
        {
            assert!(is_reserved(name), "{name}");
        }
        assert!(!is_reserved("keys") && !is_reserved("outhaul-id"));
    }

    #[test]
    fn both_forms_of_the_end_are_read() {
        let expected = pairs(&[("a", "1"), ("b", "2")]);
        assert_eq!(read("a\u{1}1\u{2}b\u{1}2"), expected);
        assert_eq!(read("a\u{1}1\u{2}b\u{1}2\u{2}"), expected);
    }

    #[test]
    fn entries_are_read_as_java_reads_them() {
        assert_eq!(read(""), []);
        assert_eq!(read("\u{2}\u{2}\u{1}\u{2}"), []);
        assert_eq!(read("noValue\u{2}empty\u{1}\u{2}\u{1}noName\u{2}x\u{1}y"), pairs(&[("x", "y")]));
        assert_eq!(read("a\u{1}1\u{2}b\u{1}2\u{2}a\u{1}3"), pairs(&[("a", "3"), ("b", "2")]));
        // Only the first 0x01 of an entry separates.
        assert_eq!(read("a\u{1}1\u{1}2"), pairs(&[("a", "1\u{1}2")]));
    }

    #[test]
    fn what_the_broker_would_mangle_is_refused() {
        let mut properties = Properties::default();
        assert_eq!(properties.set_user("KEYS", "x"), Err(MessageError::PropertyReserved("KEYS".into())));
        assert_eq!(properties.set_user("TIMER_NEW", "x"), Err(MessageError::PropertyReserved("TIMER_NEW".into())));
        assert_eq!(properties.set_user("a", ""), Err(MessageError::PropertyEmpty("a".into())));
        assert_eq!(properties.set_user("", "x"), Err(MessageError::PropertyEmpty(String::new())));
        for (name, value) in [("a\u{1}", "x"), ("a\u{2}", "x"), ("a", "\u{1}"), ("a", "x\u{2}")] {
            assert_eq!(properties.set_user(name, value), Err(MessageError::PropertySeparator(name.into())));
        }
        assert!(properties.is_empty());
    }

    #[test]
    fn the_limit_counts_bytes() {
        let mut properties = Properties::default();
        properties.set_user("ä", &"x".repeat(MAX_PROPERTIES_BYTES - 4)).unwrap();
        assert_eq!(properties.encode().unwrap().len(), MAX_PROPERTIES_BYTES);
        properties.set_user("ä", &"x".repeat(MAX_PROPERTIES_BYTES - 3)).unwrap();
        assert_eq!(properties.encode(), Err(MessageError::PropertiesTooLarge { bytes: MAX_PROPERTIES_BYTES + 1 }));
    }

    proptest! {
        #[test]
        fn round_trip(list in prop::collection::vec(("[^\u{1}\u{2}]{1,9}", "[^\u{1}\u{2}]{1,20}"), 0..10)) {
            let mut properties = Properties::default();
            for (name, value) in &list {
                properties.set(name, value).unwrap();
            }
            let text = properties.encode().unwrap();
            prop_assert_eq!(text.len(), properties.encoded_bytes());
            prop_assert_eq!(Properties::parse(text), properties.clone());
            prop_assert_eq!(Properties::parse(text.trim_end_matches('\u{2}')), properties.clone());
            for (name, _) in &list {
                let last = list.iter().rfind(|(n, _)| n == name).map(|(_, v)| v.as_str());
                prop_assert_eq!(properties.get(name), last);
            }
            for (name, _) in list {
                properties.remove(&name);
                prop_assert_eq!(properties.get(&name), None);
            }
            prop_assert!(properties.is_empty());
        }

        #[test]
        fn any_text_never_panics(text in "[\u{1}\u{2}a-b\\PC]{0,60}") {
            let _ = Properties::parse(&text);
        }
    }
}
