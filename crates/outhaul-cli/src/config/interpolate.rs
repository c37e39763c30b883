//! `${NAME}` and `${file:PATH}` in values.

use super::value::{Node, Value};

/// Where variables and files come from: the process's own, or a test's.
pub struct Surroundings<'a> {
    /// An environment variable.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// A file's content; the error is one line.
    pub file: &'a dyn Fn(&str) -> Result<String, String>,
}

/// Most bytes of a file that stands for a value.
pub const MAX_FILE_BYTES: u64 = 64 << 10;

/// Replaces every `${…}` in a value and what it holds; what cannot be replaced is told to `complain`.
pub fn interpolate(node: &mut Node, around: &Surroundings<'_>, complain: &mut dyn FnMut(&Node, String)) {
    match &mut node.value {
        Value::Text(text) => match expand(text, around) {
            Ok(Some(new)) => {
                *text = new;
                node.secret = true;
            }
            Ok(None) => {}
            Err(why) => complain(node, why),
        },
        Value::List(items) => items.iter_mut().for_each(|item| interpolate(item, around, complain)),
        Value::Table(entries) => entries.iter_mut().for_each(|(_, item)| interpolate(item, around, complain)),
        Value::Whole(_) | Value::Switch(_) | Value::Fraction(_) | Value::Other(_) => {}
    }
}

/// The text with every `${…}` replaced; None if there is none. `$${` stands for `${` itself. What is put in is not
/// looked at again.
fn expand(text: &str, around: &Surroundings<'_>) -> Result<Option<String>, String> {
    if !text.contains("${") {
        return Ok(None);
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if let Some(before) = before.strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = after;
            continue;
        }
        out.push_str(before);
        let (name, after) =
            after.split_once('}').ok_or("`${` without its `}` (write `$${` for the characters themselves)")?;
        if let Some(path) = name.strip_prefix("file:") {
            let content = (around.file)(path).map_err(|why| format!("file {path} of `${{file:…}}`: {why}"))?;
            out.push_str(content.trim_end_matches(['\n', '\r']));
        } else {
            let value = (around.variable)(name).ok_or_else(|| format!("environment variable {name} is not set"))?;
            out.push_str(&value);
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(Some(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<Option<String>, String> {
        let variable = |name: &str| (name == "PW").then(|| "s${PW}t".to_owned());
        let file = |path: &str| if path == "/k" { Ok("key\n".into()) } else { Err("no such file".into()) };
        expand(text, &Surroundings { variable: &variable, file: &file })
    }

    #[test]
    fn replaces_once_and_only_what_is_asked() {
        assert_eq!(expanded("plain $ {} $x"), Ok(None));
        assert_eq!(expanded("a${PW}b${file:/k}c").unwrap().unwrap(), "as${PW}tbkeyc");
        assert_eq!(expanded("$${PW}").unwrap().unwrap(), "${PW}");
        assert_eq!(expanded("${NO}"), Err("environment variable NO is not set".into()));
        assert!(expanded("${file:/none}").unwrap_err().contains("/none"));
        assert!(expanded("${PW").is_err());
    }
}
