//! From an outbox message to a RocketMQ message.
//!
//! | of the message | becomes |
//! |---|---|
//! | id | `UNIQ_KEY` (32 hexadecimal digits, the same on every sending), a word of `KEYS`, property `outhaul-id` |
//! | key | a word of `KEYS`, property `outhaul-key` |
//! | shard and position | property `outhaul-position` |
//! | header `tags`, or the configured tag | `TAGS` |
//! | header `delay-level` | `DELAY` |
//! | header `deliver-at-ms`, or `delay-ms` after `created_at` | `TIMER_DELIVER_MS` (5.x) |
//! | any other header | a property of its name |
//! | what cannot be a property (an empty name or value, 0x01 or 0x02, a name that RocketMQ or Outhaul uses) | a member of the JSON object in property `outhaul-json` |

use outhaul_core::message::Message as OutboxMessage;
use outhaul_core::receipt::Reason;
use rocketmq_remoting::message::{MAX_PROPERTIES_BYTES, Message, MessageError, is_reserved};
use serde_json::{Map, Value};

use super::broker::Facts;
use super::half::{ORIGIN, TRANSACTION};
use crate::codes::SinkCode;

pub(super) const ID: &str = "outhaul-id";
pub(super) const KEY: &str = "outhaul-key";
pub(super) const POSITION: &str = "outhaul-position";
/// What cannot be a property: `{"id"?, "key"?, "headers"?: {…}}`.
pub(super) const JSON: &str = "outhaul-json";

/// The id that consumers see: a UUID in its canonical form without its dashes, in capitals; one that looks like that, as
/// Java's unique keys do, as it is; of any other id a hash.
pub(super) fn unique_key(id: &str) -> String {
    let dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let canonical = id.len() == 36
        && id
            .bytes()
            .enumerate()
            .all(|(at, b)| if dash(at) { b == b'-' } else { matches!(b, b'0'..=b'9' | b'a'..=b'f') });
    let unique = id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'A'..=b'F'));
    if unique {
        id.to_owned()
    } else if canonical {
        id.chars().filter(|c| *c != '-').map(|c| c.to_ascii_uppercase()).collect()
    } else {
        format!("{:032X}", xxhash_rust::xxh3::xxh3_128(id.as_bytes()))
    }
}

/// A word of `KEYS`, which spaces separate: white space and control characters are written as `%XX` of their bytes, and
/// then `%` too.
fn word(text: &str) -> String {
    let awkward = |c: char| c.is_whitespace() || c.is_control();
    if !text.contains(awkward) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if awkward(c) || c == '%' {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                out.push_str(&format!("%{byte:02X}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

fn defect(text: impl Into<String>) -> Reason {
    Reason::new(SinkCode::MessageDefect.code(), text)
}

/// When a message is to be delivered.
#[derive(Default)]
struct Delay {
    level: Option<i32>,
    at_ms: Option<u64>,
}

/// Makes the message that is sent.
///
/// # Errors
/// Why RocketMQ would not take it, or not keep all of it.
pub(super) fn seal(from: &OutboxMessage, topic: &str, tag: &str, broker: &Facts) -> Result<Message, Reason> {
    let message = unplaced(from, topic, tag, broker)?;
    let place = format!("{}:{}", from.shard, from.position);
    let message = message.with_property(POSITION, &place).map_err(|e| refused(&e))?;
    check_size(&message, broker)?;
    Ok(message)
}

/// The message without a place in the log.
pub(super) fn unplaced(from: &OutboxMessage, topic: &str, tag: &str, broker: &Facts) -> Result<Message, Reason> {
    if let Some(defect) = &from.defect {
        return Err(Reason::new(SinkCode::MessageDefect.code(), defect.to_string()));
    }
    let mut message = Message::new(topic, from.payload.clone()).map_err(|e| refused(&e))?;
    let key = from.key.as_deref();
    let words = std::iter::once(&*from.id).chain(key).filter(|text| !text.is_empty()).map(word);
    message = message.with_unique_key(&unique_key(&from.id)).map_err(|e| refused(&e))?;
    message = message.with_keys(words).map_err(|e| refused(&e))?;
    let mut left_over = Map::new();
    message = put(message, ID, &from.id, "id", &mut left_over)?;
    if let Some(key) = key {
        message = put(message, KEY, key, "key", &mut left_over)?;
    }
    let (mut delay, mut tagged, mut odd_headers) = (Delay::default(), false, Map::new());
    for (name, value) in from.header_pairs() {
        match name.as_str() {
            "tags" if !value.is_empty() => {
                message = message.with_tag(&value).map_err(|_| {
                    defect("header `tags` must be one word without `||`: a RocketMQ message has one tag")
                })?;
                tagged = true;
            }
            "delay-level" => delay.level = Some(level(&value, broker)?),
            "deliver-at-ms" => delay.at_ms = Some(timer(&name, &value, 0, broker)?),
            "delay-ms" => {
                let created_ms = u64::try_from(from.created_at_us / 1_000).unwrap_or_default();
                delay.at_ms = Some(timer(&name, &value, created_ms, broker)?);
            }
            ID | KEY | POSITION | JSON | TRANSACTION | ORIGIN => drop(odd_headers.insert(name, Value::String(value))),
            _ if !fits(&name, &value) => drop(odd_headers.insert(name, Value::String(value))),
            _ => message = message.with_property(&name, &value).map_err(|e| refused(&e))?,
        }
    }
    if !tagged && !tag.is_empty() {
        message = message.with_tag(tag).map_err(|e| refused(&e))?;
    }
    if !odd_headers.is_empty() {
        left_over.insert("headers".into(), Value::Object(odd_headers));
    }
    if !left_over.is_empty() {
        let text = Value::Object(left_over).to_string();
        message = message.with_property(JSON, &text).map_err(|e| refused(&e))?;
    }
    delayed(message, &delay)
}

/// Whether a header can be a property as it is.
fn fits(name: &str, value: &str) -> bool {
    let separates = |text: &str| text.contains(['\u{1}', '\u{2}']);
    !name.is_empty() && !value.is_empty() && !is_reserved(name) && !separates(name) && !separates(value)
}

fn put(
    to: Message,
    name: &str,
    value: &str,
    member: &str,
    left_over: &mut Map<String, Value>,
) -> Result<Message, Reason> {
    if fits(name, value) {
        return to.with_property(name, value).map_err(|e| refused(&e));
    }
    left_over.insert(member.into(), Value::String(value.to_owned()));
    Ok(to)
}

fn delayed(message: Message, delay: &Delay) -> Result<Message, Reason> {
    match (delay.level, delay.at_ms) {
        (Some(_), Some(_)) => Err(defect("headers `delay-level` and `deliver-at-ms` or `delay-ms` exclude each other")),
        (Some(level), None) => message.with_delay_level(level).map_err(|e| refused(&e)),
        (None, Some(at_ms)) => Ok(message.with_deliver_at_ms(at_ms)),
        (None, None) => Ok(message),
    }
}

/// A delay level that the broker has; it would cut a higher one to its last.
fn level(value: &str, broker: &Facts) -> Result<i32, Reason> {
    let most = broker.delay_levels;
    value.parse().ok().filter(|level| (1..=most).contains(level)).ok_or_else(|| {
        Reason::new(
            SinkCode::RocketMqDelay.code(),
            format!(
                "header `delay-level` must be 1 to {most}, the levels in messageDelayLevel of broker {}",
                broker.name
            ),
        )
    })
}

/// A time that the broker's timer takes. 4.9 would ignore it and deliver at once.
fn timer(name: &str, value: &str, from_ms: u64, broker: &Facts) -> Result<u64, Reason> {
    let no = |text: String| Reason::new(SinkCode::RocketMqDelay.code(), text);
    let number: u64 =
        value.parse().map_err(|_| no(format!("header `{name}` must be a whole number of milliseconds")))?;
    if !broker.version.is_some_and(|version| version.is_5()) {
        let version = broker.version_words();
        return Err(no(format!(
            "header `{name}` needs the timer of RocketMQ 5; broker {} is {version} and would deliver at once",
            broker.name
        )));
    }
    if broker.timer_off {
        return Err(no(format!("header `{name}` needs timerWheelEnable=true on broker {}", broker.name)));
    }
    let at_ms = from_ms.saturating_add(number);
    let now_ms = u64::try_from(crate::clock::now_us() / 1_000).unwrap_or_default();
    let most_ms = broker.timer_max_delay_seconds.saturating_mul(1_000);
    if at_ms.saturating_sub(now_ms) > most_ms {
        let seconds = broker.timer_max_delay_seconds;
        return Err(no(format!(
            "header `{name}` is further ahead than timerMaxDelaySec={seconds} of broker {}",
            broker.name
        )));
    }
    Ok(at_ms)
}

pub(super) fn check_size(message: &Message, broker: &Facts) -> Result<(), Reason> {
    message.check_size(broker.max_message_bytes).map_err(|error| match error {
        MessageError::BodyTooLarge { bytes, .. } => too_large(bytes, broker),
        error => refused(&error),
    })
}

/// The payload is above what the broker takes.
pub(super) fn too_large(bytes: usize, broker: &Facts) -> Reason {
    let (limit, name) = (broker.max_message_bytes, &broker.name);
    Reason::new(
        SinkCode::RocketMqTooLarge.code(),
        format!("a payload of {bytes} bytes is above maxMessageSize={limit} of broker {name}"),
    )
}

/// A rule of the protocol, without values.
pub(super) fn refused(error: &MessageError) -> Reason {
    match error {
        MessageError::BodyEmpty => defect("RocketMQ takes no empty payload"),
        MessageError::PropertiesTooLarge { bytes } => Reason::new(
            SinkCode::RocketMqTooLarge.code(),
            format!("headers, id and key take {bytes} bytes as properties; RocketMQ's limit is {MAX_PROPERTIES_BYTES}"),
        ),
        error => defect(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use outhaul_core::destination::DestinationSet;
    use outhaul_core::message::{Position, Row, Seq, ShardId};
    use rocketmq_remoting::command::Version;

    use super::*;

    fn message(change: impl FnOnce(&mut Row)) -> OutboxMessage {
        let mut row = Row {
            seq: Seq(1),
            shard: ShardId(3),
            id: "a1".into(),
            topic: "orders".into(),
            key: Some("user 7".into()),
            headers: None,
            payload: Bytes::from_static(b"{}"),
            created_at_us: 1_700_000_000_000_000,
            defect: None,
        };
        change(&mut row);
        OutboxMessage::from_row(row, Position(9), DestinationSet::EMPTY)
    }

    fn headers(text: &str) -> OutboxMessage {
        message(|row| row.headers = Some(text.into()))
    }

    fn facts(version: Version) -> Facts {
        Facts { version: Some(version), ..Facts::unknown("broker-a") }
    }

    fn sealed(from: &OutboxMessage) -> Message {
        seal(from, "orders", "", &facts(Version::V4_9_4)).unwrap()
    }

    fn reason(from: &OutboxMessage, version: Version) -> String {
        let reason = seal(from, "orders", "", &facts(version)).unwrap_err();
        format!("{} {}", reason.code, reason.text)
    }

    #[test]
    fn the_unique_key_is_the_ids() {
        assert_eq!(unique_key("018c2f0e-7a44-7c3b-9f00-0123456789ab"), "018C2F0E7A447C3B9F000123456789AB");
        // Ids compare by bytes: another spelling is another id.
        for other in ["018C2F0E-7A44-7C3B-9F00-0123456789AB", "018c2f0e7a447c3b9f000123456789ab", "order-1", ""] {
            let key = unique_key(other);
            assert_ne!(key, "018C2F0E7A447C3B9F000123456789AB");
            assert!(key.len() == 32 && key.bytes().all(|b| b.is_ascii_hexdigit()), "{key}");
            assert_eq!(key, unique_key(other));
        }
    }

    #[test]
    fn id_key_and_place_travel() {
        let sealed = sealed(&message(|_| ()));
        let get = |name| sealed.properties().get(name);
        assert_eq!(get("KEYS"), Some("a1 user%207"));
        assert_eq!((get(ID), get(KEY), get(POSITION)), (Some("a1"), Some("user 7"), Some("3:9")));
        assert_eq!(sealed.unique_key(), Some(&*unique_key("a1")));
        assert_eq!((get(JSON), get("TAGS")), (None, None));
        assert_eq!(word("100%"), "100%");
        assert_eq!(word("100% x\u{1}\u{2028}"), "100%25%20x%01%E2%80%A8");
    }

    #[test]
    fn headers_are_properties_and_what_cannot_be_one_is_kept() {
        let sealed = sealed(&headers(
            r#"{"trace":"x","KEYS":"k","":"e","empty":"","sep":"a\u0001b","outhaul-id":"fake","TIMER_X":"t"}"#,
        ));
        assert_eq!(sealed.properties().get("trace"), Some("x"));
        assert_eq!(sealed.properties().get(ID), Some("a1"));
        let kept: Value = serde_json::from_str(sealed.properties().get(JSON).unwrap()).unwrap();
        let expected = serde_json::json!({"headers": {
            "": "e", "KEYS": "k", "empty": "", "outhaul-id": "fake", "sep": "a\u{1}b", "TIMER_X": "t"
        }});
        assert_eq!(kept, expected);
        let empty_key = super::tests::sealed(&message(|row| row.key = Some(String::new())));
        assert_eq!(empty_key.properties().get(JSON), Some(r#"{"key":""}"#));
        assert_eq!(empty_key.properties().get("KEYS"), Some("a1"));
    }

    #[test]
    fn tags_come_from_the_header_or_the_configuration() {
        let of = |m: &OutboxMessage, tag| {
            seal(m, "orders", tag, &facts(Version::V4_9_4)).unwrap().properties().get("TAGS").map(str::to_owned)
        };
        assert_eq!(of(&headers(r#"{"tags":"paid"}"#), "all").as_deref(), Some("paid"));
        assert_eq!(of(&message(|_| ()), "all").as_deref(), Some("all"));
        assert_eq!(of(&headers(r#"{"tags":""}"#), "").as_deref(), None);
        for bad in [r#"{"tags":"a b"}"#, r#"{"tags":"a||b"}"#] {
            assert!(reason(&headers(bad), Version::V4_9_4).starts_with("OUT-2010"), "{bad}");
        }
    }

    #[test]
    fn delays_are_refused_where_they_would_be_ignored() {
        let five = Version::V5_1_1;
        let delay = |text: &str, version| seal(&headers(text), "orders", "", &facts(version)).map(|m| m.is_delayed());
        assert_eq!(delay(r#"{"delay-level":"3"}"#, Version::V4_9_4), Ok(true));
        assert!(delay(r#"{"deliver-at-ms":"18000000000000"}"#, five).is_err());
        assert_eq!(delay(r#"{"delay-ms":"1000"}"#, five), Ok(true));
        for (text, version) in [
            (r#"{"delay-level":"19"}"#, five),
            (r#"{"delay-level":"0"}"#, five),
            (r#"{"delay-level":"x"}"#, five),
            (r#"{"delay-ms":"-1"}"#, five),
            (r#"{"delay-ms":"1000"}"#, Version::V4_9_4),
            (r#"{"deliver-at-ms":"1000"}"#, Version::V4_9_4),
            (r#"{"deliver-at-ms":"99999999999999"}"#, five),
        ] {
            assert!(reason(&headers(text), version).starts_with("OUT-2035"), "{text}");
        }
        let both = headers(r#"{"delay-level":"1","delay-ms":"5"}"#);
        assert!(reason(&both, five).contains("exclude each other"));
        let off = Facts { timer_off: true, ..facts(five) };
        assert!(seal(&headers(r#"{"delay-ms":"5"}"#), "t", "", &off).unwrap_err().text.contains("timerWheelEnable"));
    }

    #[test]
    fn limits_are_named() {
        let large = message(|row| row.payload = Bytes::from(vec![0; (4 << 20) + 1]));
        assert_eq!(
            reason(&large, Version::V4_9_4),
            "OUT-2034 a payload of 4194305 bytes is above maxMessageSize=4194304 of broker broker-a"
        );
        let wide = headers(&format!("{{\"h\":\"{}\"}}", "x".repeat(40_000)));
        assert!(reason(&wide, Version::V4_9_4).contains("limit is 31743"));
        assert!(reason(&message(|row| row.payload = Bytes::new()), Version::V4_9_4).contains("empty payload"));
        let topic = seal(&message(|_| ()), "a.b", "", &facts(Version::V4_9_4)).unwrap_err();
        assert!(topic.text.contains("a.b"), "{}", topic.text);
    }
}
