//! JSON as fastjson writes it: keys of a map may be bare integers (`{0:"host:port"}`), unless a name server is asked
//! for standard JSON, which it does since 4.9.4.

use std::borrow::Cow;

/// Puts quotes around integers in the place of a key; borrows if there are none. Never fails: what is not JSON comes out
/// as something else that is not JSON.
pub(super) fn quote_integer_keys(json: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Vec<u8> = Vec::new();
    let mut copied = 0;
    let mut at = 0;
    let mut in_text = false;
    while let Some(&byte) = json.get(at) {
        at += 1;
        match byte {
            b'\\' if in_text => at += 1,
            b'"' => in_text = !in_text,
            // In an array a number follows too, but never with a colon after it.
            b'{' | b',' if !in_text => {
                let Some((start, end)) = integer_key(json, at) else { continue };
                out.extend_from_slice(json.get(copied..start).unwrap_or_default());
                out.push(b'"');
                out.extend_from_slice(json.get(start..end).unwrap_or_default());
                out.push(b'"');
                (copied, at) = (end, end);
            }
            _ => {}
        }
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    out.extend_from_slice(json.get(copied..).unwrap_or_default());
    Cow::Owned(out)
}

/// Where the integer stands that begins at `at` (after white space) and has a colon behind it.
fn integer_key(json: &[u8], at: usize) -> Option<(usize, usize)> {
    let skip_space = |from: usize| {
        let rest = json.get(from..)?;
        Some(from + rest.iter().take_while(|b| b.is_ascii_whitespace()).count())
    };
    let start = skip_space(at)?;
    let digits_at = if json.get(start) == Some(&b'-') { start + 1 } else { start };
    let digits = json.get(digits_at..)?.iter().take_while(|b| b.is_ascii_digit()).count();
    let end = digits_at + digits;
    (digits > 0 && json.get(skip_space(end)?) == Some(&b':')).then_some((start, end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quoted(json: &str) -> String {
        String::from_utf8(quote_integer_keys(json.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn integer_keys_get_quotes() {
        assert_eq!(quoted(r#"{0:"a",1:{-2 : [1,2]},"3":4}"#), r#"{"0":"a","1":{"-2" : [1,2]},"3":4}"#);
        assert_eq!(quoted("{ 0:1,\n 22 :2}"), "{ \"0\":1,\n \"22\" :2}");
    }

    #[test]
    fn everything_else_stays() {
        for json in [r#"{"a":"{0:1","b\"":",1:2\\","c":[0,1,{"d":2}]}"#, "", "{", "[1,2]", r#"{"a"#, "{0", "{-:1}"] {
            assert!(matches!(quote_integer_keys(json.as_bytes()), Cow::Borrowed(_)), "{json}");
        }
    }

    proptest! {
        #[test]
        fn standard_json_stays(texts in prop::collection::vec("[\\\\\"{},:0-9a-]{0,12}", 0..6), numbers: Vec<i32>) {
            let json = serde_json::json!({"texts": texts.clone(), "numbers": numbers, "map": {"1": texts}}).to_string();
            prop_assert_eq!(quoted(&json), json);
        }

        #[test]
        fn any_bytes_never_panic(bytes in prop::collection::vec(prop::sample::select(b"{},:\"\\0-1 a\xFF".to_vec()), 0..60)) {
            let _ = quote_integer_keys(&bytes);
        }
    }
}
