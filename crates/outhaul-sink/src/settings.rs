//! Keys of a destination: from a JSON value to a configuration structure, with errors that name the key.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::codes::SinkCode;
use crate::sink::SinkError;

/// One key of a kind of destination, as the reference pages show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name in the configuration.
    pub name: &'static str,
    /// Default as it would stand in TOML; None: the key must be given.
    pub default: Option<&'static str>,
    /// What it does, its unit and limits.
    pub help: &'static str,
}

/// Reads the keys of a destination called `name`.
///
/// # Errors
/// [`SinkCode::Settings`]: names the destination and the key; never shows the value of `url`.
pub fn read<T: DeserializeOwned>(name: &str, settings: &Value, keys: &[Key]) -> Result<T, SinkError> {
    let Value::Object(given) = settings else {
        return Err(refuse(name, "its settings must be a table of keys"));
    };
    if let Some(unknown) = given.keys().find(|k| keys.iter().all(|key| key.name != k.as_str())) {
        let names = || keys.iter().map(|k| k.name);
        let listed = names().collect::<Vec<_>>().join(", ");
        let guess = suggest(unknown, names()).map(|k| format!("did you mean `{k}`? ")).unwrap_or_default();
        return Err(refuse(name, &format!("there is no key `{unknown}`; {guess}the keys are {listed}")));
    }
    if let Some(missing) = keys.iter().find(|k| k.default.is_none() && !given.contains_key(k.name)) {
        return Err(refuse(name, &format!("the key `{}` must be given: {}", missing.name, missing.help)));
    }
    parse::<T>(given).map_err(|error| match offender::<T>(given, &error) {
        Some("url") => refuse(name, "`url` must be a text"),
        Some(key) => refuse(name, &format!("`{key}`: {error}")),
        None => refuse(name, &error),
    })
}

/// A refusal of a destination's settings.
pub(crate) fn refuse(name: &str, what: &str) -> SinkError {
    SinkError::of(SinkCode::Settings, format!("destination {name:?}: {what}"))
}

fn parse<T: DeserializeOwned>(given: &Map<String, Value>) -> Result<T, String> {
    serde_json::from_value(Value::Object(given.clone())).map_err(|e| e.to_string())
}

/// The key that an error is about: the one without which the error is another or none.
fn offender<'a, T: DeserializeOwned>(given: &'a Map<String, Value>, error: &str) -> Option<&'a str> {
    given.keys().map(String::as_str).find(|key| {
        let mut rest = given.clone();
        rest.remove(*key);
        parse::<T>(&rest).err().is_none_or(|other| other != error)
    })
}

/// The one of `words` that somebody who wrote `word` most likely meant, if any is near.
pub fn suggest<'a>(word: &str, words: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    words
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(d, candidate)| *d <= 1 + candidate.chars().count() / 3)
        .min_by_key(|(d, _)| *d)
        .map(|(_, candidate)| candidate)
}

/// How many characters have to be put in, taken out or changed to get from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut next = vec![i + 1];
        for ((y, pair), left) in b.iter().zip(row.windows(2)).zip(0..) {
            let change = pair[0] + usize::from(x != *y);
            next.push(change.min(pair[1] + 1).min(next[left] + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_are_not() {
        let kinds = ["file", "kafka", "inbox", "rocketmq"];
        for (word, guess) in [
            ("fil", Some("file")),
            ("File", Some("file")),
            ("kafak", Some("kafka")),
            ("rocket", Some("rocketmq")),
            ("x", None),
            ("", None),
            ("pigeon", None),
        ] {
            assert_eq!(suggest(word, kinds), guess, "{word}");
        }
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
