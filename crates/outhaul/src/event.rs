//! An event, as the application describes it.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use uuid::Uuid;

use crate::error::Error;

/// What is to be delivered: a topic and a payload, and whatever else a consumer needs.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    pub(crate) id: Option<String>,
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) payload: Vec<u8>,
    pub(crate) available_at: Option<SystemTime>,
}

impl std::fmt::Debug for Event {
    /// Without payload, key and headers: they do not belong into a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl Event {
    /// An event with bytes that are delivered as they are.
    pub fn bytes(topic: impl Into<String>, payload: impl Into<Vec<u8>>) -> Self {
        Self {
            id: None,
            topic: topic.into(),
            key: None,
            headers: Vec::new(),
            payload: payload.into(),
            available_at: None,
        }
    }

    /// An event whose payload is the value as JSON.
    ///
    /// # Errors
    /// [`Error::Json`]: serde cannot write it.
    pub fn json<T: Serialize + ?Sized>(topic: impl Into<String>, payload: &T) -> Result<Self, Error> {
        let payload = serde_json::to_vec(payload)
            .map_err(|source| Error::Json { what: "the payload cannot be written as JSON", source })?;
        Ok(Self::bytes(topic, payload))
    }

    /// The id that the message has on every delivery, at most 64 bytes; consumers dedupe by it. Default: a UUIDv7, whose
    /// time makes `outhaul audit` quick.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The key, at most 255 bytes: messages with the same key are delivered in order. Without one no order is promised.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// A header. One name twice: the last value counts.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let (name, value) = (name.into(), value.into());
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value));
        self
    }

    /// Not to be delivered before this time, by the database's clock. A time that has passed is no time at all.
    #[must_use]
    pub fn available_at(mut self, at: SystemTime) -> Self {
        self.available_at = Some(at);
        self
    }
}

/// An event that was looked at, as it goes into the table.
pub(crate) struct Checked {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    /// The text of a JSON object of strings.
    pub(crate) headers: Option<String>,
    pub(crate) payload: Vec<u8>,
    /// Microseconds since 1970-01-01 UTC.
    pub(crate) available_at_us: Option<i64>,
}

impl Checked {
    /// What it takes in a statement, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.payload.len() + self.headers.as_ref().map_or(0, String::len) + 1_000
    }
}

/// A new id.
pub(crate) fn fresh_id() -> String {
    Uuid::now_v7().to_string()
}

/// Microseconds since 1970-01-01 UTC, rounded up: never before the time that was asked for.
pub(crate) fn micros(at: SystemTime) -> Option<i64> {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos().div_ceil(1_000)).ok(),
        Err(before) => i64::try_from(before.duration().as_micros()).ok().map(|us| -us),
    }
}

/// Headers as text: a JSON object of strings, spaced as MySQL gives it back, so that its size is what the relay will see.
pub(crate) fn header_text(headers: &[(String, String)]) -> Option<String> {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let pairs: Vec<String> =
        headers.iter().map(|(name, value)| format!("{}: {}", quoted(name), quoted(value))).collect();
    (!pairs.is_empty()).then(|| format!("{{{}}}", pairs.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn headers_become_an_object_of_strings_in_their_order() {
        let event = Event::bytes("t", "").header("b", "1\"\n").header("a", "2").header("b", "3\u{1}");
        let text = header_text(&event.headers).unwrap();
        assert_eq!(text, r#"{"a": "2", "b": "3\u0001"}"#);
        assert_eq!(outhaul_core::message::parse_headers(&text).unwrap().len(), 2);
        assert_eq!(header_text(&[]), None);
    }

    #[test]
    fn a_time_is_never_made_earlier() {
        assert_eq!(micros(UNIX_EPOCH + Duration::from_nanos(1_001)), Some(2));
        assert_eq!(micros(UNIX_EPOCH - Duration::from_nanos(1_001)), Some(-1));
        assert_eq!(micros(UNIX_EPOCH), Some(0));
    }

    #[test]
    fn a_log_does_not_show_what_is_in_it() {
        let event = Event::bytes("t", "s3cret").key("s3cret").header("s3cret", "s3cret").id("i");
        assert!(!format!("{event:?}").contains("s3cret"));
    }
}
