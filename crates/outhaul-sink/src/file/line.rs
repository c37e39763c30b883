//! One message as one line of JSON.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use outhaul_core::message::Message;

use super::date::push_rfc3339;
use super::json::{embeddable, is_map_of_strings, push_on_one_line};

/// Appends a message as one line, with its newline. False: its headers are not an object of strings, nothing is
/// appended.
///
/// The members: `id`, `topic`, `key` (null without one), `headers` (an object, empty without any), `payload` (the JSON
/// that it holds, as written by the application) or `payload_base64` (any other bytes), `shard`, `position`,
/// `created_at`.
pub(super) fn push_line(out: &mut Vec<u8>, message: &Message) -> bool {
    let headers = message.headers.as_deref().unwrap_or("{}");
    if message.headers.is_some() && !is_map_of_strings(headers) {
        return false;
    }
    out.extend_from_slice(b"{\"id\":");
    push_string(out, &message.id);
    out.extend_from_slice(b",\"topic\":");
    push_string(out, &message.topic);
    out.extend_from_slice(b",\"key\":");
    match &message.key {
        Some(key) => push_string(out, key),
        None => out.extend_from_slice(b"null"),
    }
    out.extend_from_slice(b",\"headers\":");
    push_on_one_line(out, headers.trim_ascii().as_bytes());
    match embeddable(&message.payload) {
        Some(json) => {
            out.extend_from_slice(b",\"payload\":");
            push_on_one_line(out, json);
        }
        None => {
            out.extend_from_slice(b",\"payload_base64\":\"");
            push_base64(out, &message.payload);
            out.push(b'"');
        }
    }
    // Writing to a Vec cannot fail.
    let _ = write!(out, ",\"shard\":{},\"position\":{},\"created_at\":\"", message.shard, message.position);
    push_rfc3339(out, message.created_at_us);
    out.extend_from_slice(b"\"}\n");
    true
}

/// Appends a JSON string. Control characters, quotes and backslashes are escaped, all else stands as it is.
pub fn push_string(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (at, &b) in bytes.iter().enumerate() {
        if b >= 0x20 && b != b'"' && b != b'\\' {
            continue;
        }
        out.extend_from_slice(bytes.get(copied..at).unwrap_or_default());
        match b {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', b]),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            _ => {
                let _ = write!(out, "\\u{b:04x}");
            }
        }
        copied = at + 1;
    }
    out.extend_from_slice(bytes.get(copied..).unwrap_or_default());
    out.push(b'"');
}

/// Appends bytes as base64, with padding.
pub fn push_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    let written = out.get_mut(start..).and_then(|space| STANDARD.encode_slice(bytes, space).ok());
    out.truncate(start + written.unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use outhaul_core::destination::DestinationSet;
    use outhaul_core::message::{Position, Row, Seq, ShardId};

    use super::*;

    fn message(payload: &'static [u8]) -> Message {
        let row = Row {
            seq: Seq(9),
            shard: ShardId(3),
            id: "id-1".into(),
            topic: "order-created".into(),
            key: Some("k".into()),
            headers: Some("{\"a\": \"b\"}".into()),
            payload: Bytes::from_static(payload),
            created_at_us: 1_709_251_199_123_456,
            defect: None,
        };
        Message::from_row(row, Position(7), DestinationSet::EMPTY)
    }

    fn line(message: &Message) -> String {
        let mut out = Vec::new();
        assert!(push_line(&mut out, message));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_json_payload_is_embedded_as_written() {
        assert_eq!(
            line(&message(b" {\"total\": 1.50}\n")),
            "{\"id\":\"id-1\",\"topic\":\"order-created\",\"key\":\"k\",\"headers\":{\"a\": \"b\"},\
             \"payload\":{\"total\": 1.50},\"shard\":3,\"position\":7,\"created_at\":\"2024-02-29T23:59:59.123456Z\"}\n"
        );
        assert!(line(&message(b"{\n\"a\":\n1}")).contains(",\"payload\":{\"a\":1},"));
    }

    #[test]
    fn other_bytes_are_base64() {
        let mut m = message(b"\xff\x00plain");
        (m.key, m.headers) = (None, None);
        assert!(
            line(&m).contains(",\"key\":null,\"headers\":{},\"payload_base64\":\"/wBwbGFpbg==\",\"shard\""),
            "{}",
            line(&m)
        );
        assert!(line(&message(b"")).contains(",\"payload_base64\":\"\","));
    }

    #[test]
    fn text_is_escaped() {
        let mut m = message(b"1");
        let nasty: String = (0..0x80u8).map(char::from).chain("é\u{2028}\u{1f600}".chars()).collect();
        (m.id, m.topic, m.key) = (nasty.clone(), nasty.clone(), Some(nasty.clone()));
        let text = line(&m);
        assert_eq!(text.matches('\n').count(), 1);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for name in ["id", "topic", "key"] {
            assert_eq!(value[name], nasty);
        }
    }

    #[test]
    fn bad_headers_write_nothing() {
        let mut m = message(b"1");
        m.headers = Some("{\"a\":1}".into());
        let mut out = b"before".to_vec();
        assert!(!push_line(&mut out, &m));
        assert_eq!(out, b"before");
    }
}
