//! A stored message as a row of `inbox_message`.

use bytes::Bytes;
use outhaul_sink::rocketmq::{Received, short_id};
use outhaul_store::inbox::{Arrival, InboxMessage};
use rocketmq_remoting::message::{MessageQueue, Properties, StoredMessage};
use serde_json::{Map, Value};

/// The longest `position`, in bytes.
const MAX_POSITION_BYTES: usize = 32;
/// What every database's columns take, in bytes.
const MAX_ID_BYTES: usize = 64;
const MAX_KEY_BYTES: usize = 255;
/// The longest reason, in bytes.
const MAX_REASON_BYTES: usize = 1_000;
/// What a decoder puts in the place of bytes that are no text.
const NOT_TEXT: char = char::REPLACEMENT_CHARACTER;

/// The rows of a stored message: one, or those of a batch that a broker of 5.x keeps as one.
pub(crate) fn arrivals(queue: &MessageQueue, stored: &StoredMessage) -> Vec<Arrival> {
    match stored.unwrap_batch() {
        Ok(None) => match stored.body() {
            Ok(body) => vec![arrival(queue, stored, &stored.properties, body, 0)],
            Err(e) => {
                let whole = arrival(queue, stored, &stored.properties, stored.stored_body.clone(), 0);
                vec![Arrival { dead: Some(reason(&format!("its body cannot be read: {e}"))), ..whole }]
            }
        },
        Ok(Some(inner)) => {
            let each = inner.into_iter().zip(0..);
            each.map(|(m, n)| arrival(queue, stored, &m.properties, m.body, n)).collect()
        }
        Err(e) => {
            let whole = arrival(queue, stored, &stored.properties, stored.stored_body.clone(), 0);
            vec![Arrival { dead: Some(reason(&format!("its batch cannot be read: {e}"))), ..whole }]
        }
    }
}

fn arrival(queue: &MessageQueue, stored: &StoredMessage, properties: &Properties, body: Bytes, nth: i64) -> Arrival {
    let Received { id, key, headers, position } = Received::read(properties);
    let offset = stored.queue_offset + nth;
    // The one name that every message has.
    let place = format!("{queue}/{offset}");
    let id = id.filter(|id| !id.is_empty());
    let mut dead = None;
    // Two ids whose bytes are no text would look the same.
    let id = match id {
        Some(id) if id.contains(NOT_TEXT) => {
            dead = Some(reason("its id is no UTF-8"));
            short_id(&place)
        }
        Some(id) => id,
        None => short_id(&place),
    };
    if key.as_ref().is_some_and(|key| key.contains(NOT_TEXT)) {
        dead = Some(reason("its key is no UTF-8"));
    }
    let message = InboxMessage {
        id,
        topic: queue.topic.clone(),
        key,
        headers: (!headers.is_empty()).then(|| Value::Object(headers).to_string()),
        payload: body,
        position: position
            .filter(|p| p.len() <= MAX_POSITION_BYTES && p.is_ascii())
            .unwrap_or_else(|| format!("{}:{offset}", stored.queue_id)),
    };
    Arrival { message, dead }
}

/// A message that the table does not take, as a row that it takes: dead, what does not fit by its hash, and what it was
/// in its headers. With `bare` neither headers nor payload, which the broker still has.
pub(crate) fn aside(queue: &MessageQueue, arrival: &Arrival, why: &str, offset: i64, bare: bool) -> Arrival {
    let m = &arrival.message;
    let fits = |text: &str, limit: usize| text.len() <= limit && !text.contains('\0');
    let mut headers: Map<String, Value> =
        m.headers.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let mut message = m.clone();
    if !fits(&m.id, MAX_ID_BYTES) {
        headers.insert("outhaul-id".into(), Value::from(m.id.as_str()));
        message.id = short_id(&m.id);
    }
    if let Some(key) = m.key.as_deref().filter(|key| !fits(key, MAX_KEY_BYTES)) {
        headers.insert("outhaul-key".into(), Value::from(key));
        message.key = Some(short_id(key));
    }
    message.headers = (!headers.is_empty() && !bare).then(|| Value::Object(headers).to_string());
    if bare {
        message.payload = Bytes::new();
    }
    let without = if bare { "; without headers and payload" } else { "" };
    let text = format!("OUT-5054 {queue} offset {offset}: {why}{without}");
    Arrival { message, dead: Some(reason(&text)) }
}

fn reason(text: &str) -> String {
    let text = if text.starts_with("OUT-") { text.to_owned() } else { format!("OUT-5054 {text}") };
    let mut end = text.len().min(MAX_REASON_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> MessageQueue {
        MessageQueue { topic: "Orders".into(), broker_name: "b".into(), queue_id: 3 }
    }

    fn of(properties: &[(&str, &str)], offset: i64, body: &'static [u8]) -> Arrival {
        let text: String = properties.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect();
        let stored = StoredMessage {
            topic: "Orders".into(),
            queue_id: 3,
            queue_offset: offset,
            commit_log_offset: 0,
            flag: 0,
            sys_flag: 0,
            born_at_ms: 0,
            born_host: "127.0.0.1:1".parse().unwrap(),
            stored_at_ms: 0,
            store_host: "127.0.0.1:1".parse().unwrap(),
            reconsume_times: 0,
            prepared_transaction_offset: 0,
            properties: Properties::parse(&text),
            body_checksum: 0,
            stored_body: Bytes::from_static(body),
        };
        arrivals(&queue(), &stored).remove(0)
    }

    #[test]
    fn a_message_without_an_id_is_named_by_its_place() {
        // An empty body has the checksum 0.
        let (one, other) = (of(&[], 7, b""), of(&[], 8, b""));
        assert_ne!(one.message.id, other.message.id);
        assert_eq!(one.message.id, of(&[], 7, b"").message.id);
        assert_eq!((one.message.id.len(), one.message.position.as_str(), one.dead), (32, "3:7", None));
    }

    #[test]
    fn what_cannot_be_read_is_dead_and_kept() {
        let damaged = of(&[("UNIQ_KEY", "7F")], 7, b"not what was stored");
        assert_eq!(&damaged.message.payload[..], b"not what was stored");
        assert!(damaged.dead.unwrap().starts_with("OUT-5054 its body cannot be read"));
        let (a, b) = (of(&[("UNIQ_KEY", "\u{fffd}")], 7, b""), of(&[("UNIQ_KEY", "\u{fffd}")], 8, b""));
        assert!(a.dead.is_some() && a.message.id != b.message.id);
    }

    #[test]
    fn aside_fits_every_table() {
        let (id, key) = ("i".repeat(65), format!("k\0{}", "k".repeat(300)));
        let odd = format!("{{\"id\":\"{id}\",\"key\":\"k\\u0000{}\"}}", "k".repeat(300));
        let arrival = of(&[("outhaul-json", &odd), ("a", "b")], 7, b"");
        assert_eq!((arrival.message.id.as_str(), arrival.message.key.as_deref()), (id.as_str(), Some(key.as_str())));
        let kept = aside(&queue(), &arrival, &"why".repeat(1_000), 7, false);
        assert!(kept.message.id.len() <= 64 && kept.message.key.unwrap().len() <= 255);
        let headers: Value = serde_json::from_str(&kept.message.headers.unwrap()).unwrap();
        assert_eq!((headers["outhaul-id"].as_str(), headers["a"].as_str()), (Some(id.as_str()), Some("b")));
        assert!(kept.dead.unwrap().len() <= 1_000);
        let bare = aside(&queue(), &arrival, "too large", 7, true);
        assert!(bare.message.payload.is_empty() && bare.message.headers.is_none());
    }
}
