//! From a TOML file to values that know their line.

use toml::de::{DeTable, DeValue};

use super::value::{Node, Origin, Value};

/// A place where the file is not TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// Reads a file's text.
///
/// # Errors
/// All places where it is not TOML.
pub fn parse(text: &str) -> Result<Vec<(String, Node)>, Vec<SyntaxError>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let at = |e: &toml::de::Error| line_at(text, e.span().map_or(0, |s| s.start));
        let mut errors: Vec<SyntaxError> =
            errors.iter().map(|e| SyntaxError { line: at(e), message: e.message().to_owned() }).collect();
        errors.sort_by_key(|e| e.line);
        // What follows the first mistake of a line is mostly its consequence.
        errors.dedup_by_key(|e| e.line);
        return Err(errors);
    }
    Ok(entries(text, table.get_ref()))
}

fn entries(text: &str, table: &DeTable<'_>) -> Vec<(String, Node)> {
    // The parser sorts tables by name; people read a file from top to bottom.
    let mut in_order: Vec<_> = table.iter().collect();
    in_order.sort_by_key(|(key, _)| key.span().start);
    in_order
        .into_iter()
        .map(|(key, value)| (key.get_ref().to_string(), node(text, value.get_ref(), key.span().start)))
        .collect()
}

fn node(text: &str, value: &DeValue<'_>, at: usize) -> Node {
    let value = match value {
        DeValue::String(s) => Value::Text(s.to_string()),
        DeValue::Integer(n) => {
            i64::from_str_radix(n.as_str(), n.radix()).map_or(Value::Other("a number that is too large"), Value::Whole)
        }
        DeValue::Boolean(b) => Value::Switch(*b),
        DeValue::Array(items) => {
            Value::List(items.iter().map(|item| node(text, item.get_ref(), item.span().start)).collect())
        }
        DeValue::Table(table) => Value::Table(entries(text, table)),
        DeValue::Float(f) => Value::Fraction(f.as_str().to_owned()),
        DeValue::Datetime(_) => Value::Other("a date"),
    };
    Node::new(value, Origin::Line(line_at(text, at)))
}

fn line_at(text: &str, byte: usize) -> usize {
    text.bytes().take(byte).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_know_their_line() {
        let tree = parse("[relay]\nlease_ttl = \"1s\"\n\n[[outbox]]\nurl = \"sqlite:x\"\n[[outbox]]\n\nurl = \"y\"\n")
            .unwrap();
        assert_eq!(tree.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["relay", "outbox"]);
        let Value::List(outboxes) = &tree[1].1.value else { panic!() };
        let Value::Table(second) = &outboxes[1].value else { panic!() };
        assert_eq!(second[0].1.origin, Origin::Line(8));
    }

    #[test]
    fn all_syntax_errors_with_their_lines() {
        let errors = parse("a = \nb = 1\nc = = 2\n").unwrap_err();
        assert_eq!(errors.iter().map(|e| e.line).collect::<Vec<_>>(), [1, 3]);
    }
}
