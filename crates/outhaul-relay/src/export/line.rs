//! A message as one line of an exported file.

use std::io::Write as _;

use outhaul_core::chunk::DestinationNames as _;
use outhaul_core::message::Message;
use outhaul_sink::file::{embeddable, is_map_of_strings, push_base64, push_on_one_line, push_rfc3339, push_string};

/// Appends a message, with its newline: what `outhaul enqueue` takes, and where the message stood.
///
/// The payload comes back byte for byte. Which member it is says how: `payload` (JSON, as it stands), `payload_text`
/// (any other text) or `payload_base64`. Headers that are no object of strings are `headers_text`. `defect` says why
/// nobody could deliver the message as it was.
pub(super) fn push_line(out: &mut Vec<u8>, message: &Message, names: &[String]) {
    out.extend_from_slice(b"{\"id\":");
    push_string(out, &message.id);
    out.extend_from_slice(b",\"topic\":");
    push_string(out, &message.topic);
    out.extend_from_slice(b",\"key\":");
    match &message.key {
        Some(key) => push_string(out, key),
        None => out.extend_from_slice(b"null"),
    }
    match message.headers.as_deref() {
        None => out.extend_from_slice(b",\"headers\":null"),
        Some(headers) if is_map_of_strings(headers) => {
            out.extend_from_slice(b",\"headers\":");
            push_on_one_line(out, headers.trim_ascii().as_bytes());
        }
        Some(headers) => {
            out.extend_from_slice(b",\"headers_text\":");
            push_string(out, headers);
        }
    }
    push_payload(out, &message.payload);
    out.extend_from_slice(b",\"created_at\":\"");
    push_rfc3339(out, message.created_at_us);
    // Writing to a Vec cannot fail.
    let _ = write!(out, "\",\"shard\":{},\"position\":{},\"destinations\":[", message.shard, message.position);
    for (n, destination) in message.destinations.iter().enumerate() {
        if n > 0 {
            out.push(b',');
        }
        push_string(out, names.name(destination));
    }
    out.push(b']');
    if let Some(defect) = &message.defect {
        out.extend_from_slice(b",\"defect\":");
        push_string(out, &defect.to_string());
    }
    out.extend_from_slice(b"}\n");
}

fn push_payload(out: &mut Vec<u8>, payload: &[u8]) {
    let stands = |json: &&[u8]| json.len() == payload.len() && !json.iter().any(|b| matches!(b, b'\n' | b'\r'));
    if let Some(json) = embeddable(payload).filter(stands) {
        out.extend_from_slice(b",\"payload\":");
        out.extend_from_slice(json);
    } else if let Ok(text) = std::str::from_utf8(payload) {
        out.extend_from_slice(b",\"payload_text\":");
        push_string(out, text);
    } else {
        out.extend_from_slice(b",\"payload_base64\":\"");
        push_base64(out, payload);
        out.push(b'"');
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use outhaul_core::destination::DestinationIndex;
    use outhaul_core::message::{Defect, Position, Row, Seq, ShardId};
    use serde_json::Value;

    use super::*;

    fn message(payload: &'static [u8]) -> Message {
        let row = Row {
            seq: Seq(9),
            shard: ShardId(3),
            id: "id-1".into(),
            topic: "order-created".into(),
            key: None,
            headers: Some("{\n\"a\": \"b\"}".into()),
            payload: Bytes::from_static(payload),
            created_at_us: 1_709_251_199_123_456,
            defect: None,
        };
        Message::from_row(row, Position(7), [0, 2].map(DestinationIndex).into_iter().collect())
    }

    fn line(message: &Message) -> String {
        let mut out = Vec::new();
        push_line(&mut out, message, &["mq", "x", "trail"].map(String::from));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line() {
        assert_eq!(
            line(&message(b"{\"total\": 1.50}")),
            "{\"id\":\"id-1\",\"topic\":\"order-created\",\"key\":null,\"headers\":{\"a\":\"b\"},\
             \"payload\":{\"total\": 1.50},\"created_at\":\"2024-02-29T23:59:59.123456Z\",\"shard\":3,\"position\":7,\
             \"destinations\":[\"mq\",\"trail\"]}\n"
        );
    }

    #[test]
    fn every_payload_comes_back_byte_for_byte() {
        for (payload, member) in [
            (&b"1"[..], "payload"),
            (b" {}", "payload_text"),
            (b"{\n}", "payload_text"),
            (b"<a>\x00\xc3\xa9</a>\n", "payload_text"),
            (b"", "payload_text"),
            (b"\xff\x00", "payload_base64"),
        ] {
            let text = line(&message(payload));
            assert_eq!(text.matches('\n').count(), 1, "{text}");
            let value: Value = serde_json::from_str(&text).unwrap();
            let found = match member {
                "payload" => value[member].to_string().into_bytes(),
                "payload_text" => value[member].as_str().unwrap().as_bytes().to_vec(),
                _ => {
                    assert_eq!(value[member], "/wA=");
                    continue;
                }
            };
            assert_eq!(found, payload, "{text}");
        }
    }

    #[test]
    fn what_nobody_could_read_says_so() {
        let mut m = message(b"1");
        (m.headers, m.defect) = (Some("[1]".into()), Some(Defect::BadHeaders("not an object".into())));
        let value: Value = serde_json::from_str(&line(&m)).unwrap();
        assert_eq!(value["headers_text"], "[1]");
        assert_eq!(value["defect"], "the headers cannot be used: not an object");
    }
}
