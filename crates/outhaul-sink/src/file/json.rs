//! Whether bytes can stand inside a line of JSON as they are.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// How deep arrays and objects may be nested. Common parsers give up at 128, and the line adds a level.
const MAX_DEPTH: u8 = 100;

/// The text to put into a line for a payload, without white space around it; None: not JSON that every parser reads.
/// It may still have newlines between its parts.
///
/// More is asked than the grammar does: a lone surrogate (`"\ud800"`), a number that no double holds (`1e999`) or deep
/// nesting would make the whole line unreadable for a consumer, so such payloads are not embedded.
pub fn embeddable(payload: &[u8]) -> Option<&[u8]> {
    let text = payload.trim_ascii();
    // A form feed is white space to `trim_ascii` and not to JSON: then the bytes as a whole are not JSON.
    let trimmed = payload.len() - text.len();
    if trimmed > 0 && payload.contains(&0x0c) {
        return None;
    }
    let mut parser = serde_json::Deserializer::from_slice(text);
    Sound { depth: MAX_DEPTH }.deserialize(&mut parser).ok()?;
    parser.end().ok()?;
    Some(text)
}

/// Whether a text is a JSON object whose values are all strings.
pub fn is_map_of_strings(text: &str) -> bool {
    let mut parser = serde_json::Deserializer::from_str(text);
    parser.deserialize_map(Strings).is_ok() && parser.end().is_ok()
}

/// Appends sound JSON without newlines: as it is if it has none, else without the white space between its parts.
pub fn push_on_one_line(out: &mut Vec<u8>, json: &[u8]) {
    if !json.iter().any(|b| matches!(b, b'\n' | b'\r')) {
        out.extend_from_slice(json);
        return;
    }
    let (mut in_string, mut escaped) = (false, false);
    for &b in json {
        if in_string {
            in_string = escaped || b != b'"';
            escaped = !escaped && b == b'\\';
        } else if b.is_ascii_whitespace() {
            continue;
        } else {
            in_string = b == b'"';
        }
        out.push(b);
    }
}

/// Accepts any value and keeps nothing of it.
#[derive(Clone, Copy)]
struct Sound {
    /// How many levels more.
    depth: u8,
}

impl Sound {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        self.depth.checked_sub(1).map(|depth| Self { depth }).ok_or_else(|| E::custom("nested too deep"))
    }
}

impl<'de> DeserializeSeed<'de> for Sound {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Sound {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while map.next_key_seed(inner)?.is_some() {
            map.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// Accepts an object of strings.
struct Strings;

impl<'de> Visitor<'de> for Strings {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_key_seed(Text)?.is_some() {
            map.next_value_seed(Text)?;
        }
        Ok(())
    }
}

/// Accepts a string and keeps nothing of it.
struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Text {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(json: &str) -> String {
        let mut out = Vec::new();
        push_on_one_line(&mut out, json.as_bytes());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn what_every_parser_reads_is_embedded() {
        for (payload, text) in [
            ("{}", "{}"),
            (" [1, 2]\r\n", "[1, 2]"),
            ("\"\\u00e9\"", "\"\\u00e9\""),
            ("18446744073709551616", "18446744073709551616"),
            ("{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":2}"),
            ("null", "null"),
        ] {
            assert_eq!(embeddable(payload.as_bytes()), Some(text.as_bytes()), "{payload}");
        }
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        assert!(embeddable(deep(100).as_bytes()).is_some());
        let bad: [&[u8]; 13] = [
            b"",
            b" ",
            b"{",
            b"{} {}",
            b"nul",
            b"'a'",
            b"\x0c{}",
            b"\"\\ud800\"",
            b"1e999",
            b"\"\xff\"",
            b"\xef\xbb\xbf{}",
            b"[1,]",
            b"\"a\nb\"",
        ];
        for bad in bad {
            assert_eq!(embeddable(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(embeddable(deep(101).as_bytes()), None);
        assert_eq!(embeddable(deep(1_000_000).as_bytes()), None);
    }

    #[test]
    fn only_white_space_between_parts_goes() {
        assert_eq!(line("{ \"a\": 1 }"), "{ \"a\": 1 }");
        assert_eq!(
            line("{\n \"a b\": \"c\\\"  d\\\\\",\r\n\t\"e\" : [1 , 2]\n}"),
            "{\"a b\":\"c\\\"  d\\\\\",\"e\":[1,2]}"
        );
    }

    #[test]
    fn headers_are_an_object_of_strings() {
        for good in ["{}", "{\"a\":\"b\",\"a\":\"\\n\"}", " {\n} "] {
            assert!(is_map_of_strings(good), "{good}");
        }
        for bad in ["", "[]", "{\"a\":1}", "{\"a\":null}", "{} x", "\"a\"", "{\"a\":{}}", "{\"a\":\"\\ud800\"}"] {
            assert!(!is_map_of_strings(bad), "{bad}");
        }
    }
}
