//! What keeps an instance from delivering: written with its heartbeat, so that whoever can read the database can tell.

use serde_json::{Value, json};

use crate::message::ShardId;

/// Troubles that are told at a time.
const MOST: usize = 64;
/// Characters of a text that are told.
const TEXT_CHARS: usize = 300;

/// A destination that an instance does not get on with, or other work of its that does not get on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Destination by name. Empty: it is the instance's own, and keeps nothing from being delivered.
    pub destination: String,
    /// Shards whose lanes are held up, in whole or in part; rising.
    pub shards: Vec<ShardId>,
    /// Since when, microseconds since 1970-01-01 UTC, relay's clock.
    pub since_us: i64,
    /// `OUT-nnnn`.
    pub code: String,
    /// One line, without payload, key values or secrets.
    pub text: String,
}

/// As the heartbeat stores them: compact JSON, or nothing at all where there are none. At most 64, texts up to 300
/// characters.
pub fn encode(troubles: &[Trouble]) -> String {
    if troubles.is_empty() {
        return String::new();
    }
    let one = |t: &Trouble| {
        let shards: Vec<u16> = t.shards.iter().map(|s| s.0).collect();
        // A text column of PostgreSQL takes no NUL.
        let text: String = t.text.chars().filter(|c| *c != '\0').take(TEXT_CHARS).collect();
        json!({ "destination": t.destination, "shards": shards, "since": t.since_us, "code": t.code, "text": text })
    };
    Value::Array(troubles.iter().take(MOST).map(one).collect()).to_string()
}

/// Reads [`encode`]. What cannot be read is left out: it is shown, nothing depends on it.
pub fn decode(text: &str) -> Vec<Trouble> {
    let Ok(Value::Array(list)) = serde_json::from_str(text) else { return Vec::new() };
    let one = |v: &Value| {
        let text = |name: &str| v[name].as_str().map(str::to_owned);
        let shards = v["shards"].as_array()?.iter().filter_map(Value::as_u64);
        Some(Trouble {
            destination: text("destination")?,
            shards: shards.filter_map(|n| u16::try_from(n).ok()).map(ShardId).collect(),
            since_us: v["since"].as_i64()?,
            code: text("code")?,
            text: text("text")?,
        })
    };
    list.iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_back_as_it_was_written() {
        let trouble = Trouble {
            destination: "mq".into(),
            shards: vec![ShardId(0), ShardId(7)],
            since_us: 1_796_000_000_000_000,
            code: "OUT-2030".into(),
            text: "broker \"a\"\nis not there".into(),
        };
        let one = vec![trouble.clone()];
        assert_eq!(decode(&encode(&one)), one);
        assert_eq!(encode(&[]), "");
        assert_eq!(decode(""), []);
        assert_eq!(decode("[{\"destination\":1},{}]"), []);
        let long = Trouble { text: "\0".to_owned() + &"ä".repeat(5_000), ..trouble };
        let read = decode(&encode(&vec![long; 100]));
        assert_eq!((read.len(), read[0].text.chars().count()), (MOST, TEXT_CHARS));
    }
}
