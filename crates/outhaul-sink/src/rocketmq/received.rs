//! What an envelope holds, read by a consumer: the way back.

use rocketmq_remoting::message::{Properties, is_reserved, name};
use serde_json::{Map, Value};

use super::envelope::{ID, JSON, KEY, POSITION, unique_key};
use super::half::{ORIGIN, TRANSACTION};

/// A message's parts as its properties tell them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Its id: `outhaul-id`, or that of `outhaul-json`; of a message that Outhaul did not send its unique key.
    pub id: Option<String>,
    /// Its key: `outhaul-key`, or that of `outhaul-json`; of a message that Outhaul did not send its sharding key.
    pub key: Option<String>,
    /// Its headers: properties that are neither RocketMQ's nor Outhaul's, and `tags` with its tag.
    pub headers: Map<String, Value>,
    /// `SHARD:POSITION`, if Outhaul's relay sent it.
    pub position: Option<String>,
}

impl Received {
    /// Reads properties. Nothing is an error: what is not there is not told.
    pub fn read(properties: &Properties) -> Self {
        let json = properties.get(JSON).and_then(|text| serde_json::from_str::<Value>(text).ok());
        let member = |name: &str| Some(json.as_ref()?.get(name)?.as_str()?.to_owned());
        let own = |name: &str| properties.get(name).map(str::to_owned);
        let outhauls = properties.get(ID).is_some() || member("id").is_some();
        let mut headers = Map::new();
        for (name, value) in properties.iter() {
            let of_outhaul = matches!(name, ID | KEY | POSITION | JSON | TRANSACTION | ORIGIN);
            if !of_outhaul && !is_reserved(name) {
                headers.insert(name.to_owned(), Value::from(value));
            }
        }
        if let Some(tag) = properties.get(name::TAGS) {
            headers.insert("tags".into(), Value::from(tag));
        }
        if let Some(Value::Object(odd)) = json.as_ref().and_then(|json| json.get("headers")) {
            headers.extend(odd.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        let sharding_key = || own(SHARDING_KEY).filter(|_| !outhauls);
        Self {
            id: member("id").or_else(|| own(ID)).or_else(|| own(name::UNIQUE_KEY)),
            key: member("key").or_else(|| own(KEY)).or_else(sharding_key),
            headers,
            position: own(POSITION),
        }
    }
}

/// What Java's clients call the key by which they choose a queue (`MessageConst.PROPERTY_SHARDING_KEY`).
const SHARDING_KEY: &str = "__SHARDINGKEY";

/// 32 hexadecimal digits for an id of any length: as relays make unique keys of ids.
pub fn short_id(id: &str) -> String {
    unique_key(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Received {
        let text: String = pairs.iter().map(|(name, value)| format!("{name}\u{1}{value}\u{2}")).collect();
        Received::read(&Properties::parse(&text))
    }

    #[test]
    fn outhauls_own_are_read_back() {
        let plain = read(&[
            ("UNIQ_KEY", "A0"),
            ("KEYS", "a k"),
            ("outhaul-id", "a"),
            ("outhaul-key", "k"),
            ("outhaul-position", "3:9"),
            ("TAGS", "paid"),
            ("trace", "t1"),
            ("WAIT", "true"),
        ]);
        assert_eq!((plain.id.as_deref(), plain.key.as_deref()), (Some("a"), Some("k")));
        assert_eq!(plain.position.as_deref(), Some("3:9"));
        assert_eq!(Value::Object(plain.headers).to_string(), r#"{"tags":"paid","trace":"t1"}"#);
        let odd = read(&[
            ("UNIQ_KEY", "A0"),
            ("outhaul-json", r#"{"id":"a\u0001","key":"","headers":{"KEYS":"x","empty":""}}"#),
        ]);
        assert_eq!((odd.id.as_deref(), odd.key.as_deref()), (Some("a\u{1}"), Some("")));
        assert_eq!(Value::Object(odd.headers).to_string(), r#"{"KEYS":"x","empty":""}"#);
    }

    #[test]
    fn others_have_their_unique_key() {
        let other = read(&[("UNIQ_KEY", "7F"), ("__SHARDINGKEY", "user 7"), ("KEYS", "a b"), ("color", "red")]);
        assert_eq!((other.id.as_deref(), other.key.as_deref()), (Some("7F"), Some("user 7")));
        assert_eq!(Value::Object(other.headers).to_string(), r#"{"color":"red"}"#);
        assert_eq!(read(&[]), Received::default());
        assert_eq!(read(&[("outhaul-json", "{")]), Received::default());
    }
}
