//! One line of `outhaul enqueue`: a JSON object that describes a message.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outhaul_core::message::parse_headers;
use outhaul_core::outbox::{HEADERS_MAX_BYTES, ID_MAX_BYTES, KEY_MAX_BYTES, TOPIC_MAX_BYTES};
use outhaul_sink::settings::suggest;
use outhaul_store::NewRow;
use serde_json::value::RawValue;

use crate::timestamp;

const KEYS: [&str; 8] = ["id", "topic", "key", "headers", "payload", "payload_text", "payload_base64", "available_at"];
/// What exported lines have besides: it is not read.
const EXPORTED: [&str; 6] = ["created_at", "shard", "position", "destinations", "defect", "headers_text"];

/// Reads a line. The payload is stored as it stands, the very characters of its JSON; `payload_text` is for other text,
/// `payload_base64` for bytes. Without an id it gets a UUIDv7, whose time makes `audit` quick. None: an exported line of a
/// message that nobody could deliver as it was.
///
/// # Errors
/// One line of what is wrong, without any value of the message.
pub fn read(line: &[u8], limit_bytes: u64) -> Result<Option<NewRow>, String> {
    let text = std::str::from_utf8(line).map_err(|e| format!("it is not UTF-8 (byte {})", e.valid_up_to() + 1))?;
    let mut fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(|e| {
        if e.is_data() {
            "it is not a JSON object".to_owned()
        } else {
            format!("it is not JSON (column {})", e.column())
        }
    })?;
    if let Some(unknown) = fields.keys().find(|k| !KEYS.contains(&k.as_str()) && !EXPORTED.contains(&k.as_str())) {
        let near = suggest(unknown, KEYS).map(|n| format!("; did you mean {n}?")).unwrap_or_default();
        return Err(format!("there is no key {unknown:?}{near}"));
    }
    if fields.contains_key("defect") {
        return Ok(None);
    }
    let payloads = ["payload", "payload_text", "payload_base64"].map(|name| (name, fields.remove(name)));
    let mut payloads = payloads.into_iter().filter_map(|(name, raw)| Some((name, raw?)));
    let payload = match (payloads.next(), payloads.next()) {
        (None, _) => return Err("it has no payload".into()),
        (Some((one, _)), Some((other, _))) => return Err(format!("it has both {one} and {other}")),
        (Some(("payload", json)), None) => Bytes::copy_from_slice(json.get().as_bytes()),
        (Some((name @ "payload_text", text)), None) => Bytes::from(text_of(name, text)?),
        (Some((name, base64)), None) => {
            let decoded = STANDARD.decode(text_of(name, base64)?);
            decoded.map(Bytes::from).map_err(|_| format!("{name} is not base64"))?
        }
    };
    if payload.len() as u64 > limit_bytes {
        return Err(format!("the payload has {} bytes, max_message_bytes is {limit_bytes}", payload.len()));
    }
    // The application may have written a key without a character, and means one key by it.
    let exported = fields.contains_key("position");
    let mut short = |name: &str, most: usize| -> Result<Option<String>, String> {
        let Some(text) = optional(name, &mut fields)? else { return Ok(None) };
        if text.is_empty() && !(exported && name != "topic") {
            return Err(format!("{name} is empty"));
        }
        if text.len() > most {
            return Err(format!("{name} has {} bytes, it may have {most}", text.len()));
        }
        Ok(Some(text))
    };
    let (id, topic, key) = (short("id", ID_MAX_BYTES)?, short("topic", TOPIC_MAX_BYTES)?, short("key", KEY_MAX_BYTES)?);
    let headers = fields.remove("headers").map(RawValue::get).filter(|h| *h != "null");
    if let Some(headers) = headers {
        if headers.len() as u64 > HEADERS_MAX_BYTES {
            return Err(format!("headers have {} bytes, they may have {HEADERS_MAX_BYTES}", headers.len()));
        }
        parse_headers(headers).map_err(|why| format!("headers: {why}"))?;
    }
    let available_at_us = optional("available_at", &mut fields)?
        .map(|at| {
            timestamp::parse(&at).ok_or("available_at is not a moment with its offset, such as 2026-03-01T12:30:00Z")
        })
        .transpose()?;
    Ok(Some(NewRow {
        id_is_made: id.is_none(),
        id: Some(id.unwrap_or_else(|| uuid::Uuid::now_v7().to_string())),
        topic: topic.ok_or("it has no topic")?,
        key,
        headers: headers.map(str::to_owned),
        payload,
        available_at_us,
    }))
}

/// A text; None where it is missing or null.
fn optional(name: &str, fields: &mut BTreeMap<String, &RawValue>) -> Result<Option<String>, String> {
    match fields.remove(name) {
        None => Ok(None),
        Some(raw) if raw.get() == "null" => Ok(None),
        Some(raw) => text_of(name, raw).map(Some),
    }
}

fn text_of(name: &str, raw: &RawValue) -> Result<String, String> {
    serde_json::from_str(raw.get()).map_err(|_| format!("{name} is not a text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> String {
        read(line.as_bytes(), 100).unwrap_err()
    }

    #[test]
    fn a_line() {
        let row = read(
            br#"{"id":"a","topic":"t","key":null,"headers":{"h":"1"},"payload":{"b": 1.50},"available_at":"2026-03-01T12:30:05Z"}"#,
            100,
        )
        .unwrap()
        .unwrap();
        assert_eq!((row.id.as_deref(), row.topic.as_str(), row.key), (Some("a"), "t", None));
        assert_eq!((row.headers.as_deref(), &row.payload[..]), (Some(r#"{"h":"1"}"#), &br#"{"b": 1.50}"#[..]));
        assert_eq!(row.available_at_us, Some(1_772_368_205_000_000));
        let row = read(br#"{"topic":"t","payload_base64":"AP8="}"#, 100).unwrap().unwrap();
        assert_eq!(&row.payload[..], [0, 255]);
        assert_eq!(uuid::Uuid::parse_str(&row.id.unwrap()).unwrap().get_version_num(), 7);
    }

    #[test]
    fn an_exported_line() {
        let row = read(
            br#"{"id":"a","topic":"t","key":"","headers":null,"payload_text":"<a/>\n","created_at":"x","shard":1,"position":7,"destinations":["mq"]}"#,
            100,
        )
        .unwrap()
        .unwrap();
        assert_eq!((row.key.as_deref(), row.headers, &row.payload[..]), (Some(""), None, &b"<a/>\n"[..]));
        let defect = br#"{"id":"a","topic":"","key":null,"headers_text":"[1]","payload":1,"position":7,"defect":"the row has no topic"}"#;
        assert!(read(defect, 100).unwrap().is_none());
    }

    #[test]
    fn what_is_wrong_without_showing_values() {
        for (line, why) in [
            ("[]", "not a JSON object"),
            ("{", "not JSON (column"),
            (r#"{"topic":"t"}"#, "no payload"),
            (r#"{"payload":1}"#, "no topic"),
            (r#"{"topic":"","payload":1}"#, "topic is empty"),
            (r#"{"topic":5,"payload":1}"#, "topic is not a text"),
            (r#"{"topic":"t","payload":1,"hedaers":{}}"#, "did you mean headers?"),
            (r#"{"topic":"t","payload":1,"headers":{"a":5}}"#, "not a string"),
            (r#"{"topic":"t","payload":1,"payload_base64":"AA=="}"#, "both"),
            (r#"{"topic":"t","payload_base64":"s3cret!"}"#, "not base64"),
            (r#"{"topic":"t","payload":1,"available_at":"s3cret"}"#, "available_at is not"),
        ] {
            let said = refused(line);
            assert!(said.contains(why) && !said.contains("s3cret"), "{line}: {said}");
        }
        assert!(
            refused(&format!(r#"{{"topic":"t","payload":"{}"}}"#, "x".repeat(99))).contains("max_message_bytes is 100")
        );
        assert!(
            refused(&format!(r#"{{"id":"{}","topic":"t","payload":1}}"#, "x".repeat(65))).contains("it may have 64")
        );
        let headers = "x".repeat(1 << 20);
        assert!(refused(&format!(r#"{{"topic":"t","payload":1,"headers":{{"h":"{headers}"}}}}"#)).contains("1048576"));
        assert!(read(b"{\"topic\":\"\xff\"}", 9).unwrap_err().contains("not UTF-8"));
    }
}
