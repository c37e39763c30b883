//! Values as they were written, with where they stand.

use std::fmt;

use super::keys::Shape;
use crate::measure::{parse_rate, parse_size, parse_span};

/// Where a value was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Line of the file, from 1.
    Line(usize),
    /// An environment variable.
    Variable(String),
    /// A command-line argument.
    Argument(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Variable(name) => write!(f, "variable {name}"),
            Self::Argument(name) => write!(f, "{name}"),
        }
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Text; may hold `${…}` until it was interpolated.
    Text(String),
    /// Whole number.
    Whole(i64),
    /// `true` or `false`.
    Switch(bool),
    /// A list.
    List(Vec<Node>),
    /// A table, in the order of the file.
    Table(Vec<(String, Node)>),
    /// A number with a fraction, or one that is none (`nan`, `inf`), as it was written.
    Fraction(String),
    /// Something that no key takes, such as a date. Its kind.
    Other(&'static str),
}

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Where.
    pub origin: Origin,
    /// Whether a part of it came from `${…}`: then it is never shown.
    pub secret: bool,
}

impl Node {
    /// A value that is no secret.
    pub const fn new(value: Value, origin: Origin) -> Self {
        Self { value, origin, secret: false }
    }

    /// What kind of value it is, for messages.
    pub const fn kind(&self) -> &'static str {
        match &self.value {
            Value::Text(_) => "a text",
            Value::Whole(_) => "a number",
            Value::Switch(_) => "true or false",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
            Value::Fraction(_) => "a fraction",
            Value::Other(kind) => kind,
        }
    }

    /// The value as text, if it is a single one that a key of this shape takes.
    pub fn scalar(&self, shape: Shape) -> Option<String> {
        match (&self.value, shape) {
            (Value::Text(text), _) => Some(text.clone()),
            (Value::Whole(n), Shape::Whole(..) | Shape::Size(_) | Shape::SizeWithin(..) | Shape::Rate) => {
                Some(n.to_string())
            }
            (Value::Fraction(text), Shape::Rate) => Some(text.clone()),
            (Value::Switch(b), Shape::Switch) => Some(b.to_string()),
            _ => None,
        }
    }
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Text, path, URL or word.
    Text(String),
    /// Number, milliseconds, bytes, or a rate in thousandths.
    Whole(u64),
    /// Switch.
    Switch(bool),
    /// List.
    List(Vec<String>),
}

/// Reads a value of a shape.
///
/// # Errors
/// What was expected, in words.
pub fn check(shape: Shape, text: &str) -> Result<Read, String> {
    let expected = || expectation(shape);
    match shape {
        Shape::Text | Shape::Path | Shape::Url if text.is_empty() => Err(expected()),
        Shape::Text | Shape::Path | Shape::Url => Ok(Read::Text(text.into())),
        Shape::Whole(least, most) => {
            text.parse().ok().filter(|n| (least..=most).contains(n)).map(Read::Whole).ok_or_else(expected)
        }
        Shape::Switch => text.parse().map(Read::Switch).map_err(|_| expected()),
        Shape::Span(least) => parse_span(text).filter(|n| *n >= least).map(Read::Whole).ok_or_else(expected),
        Shape::Size(least) => parse_size(text).filter(|n| *n >= least).map(Read::Whole).ok_or_else(expected),
        Shape::SizeWithin(least, most) => {
            parse_size(text).filter(|n| (least..=most).contains(n)).map(Read::Whole).ok_or_else(expected)
        }
        Shape::Rate => parse_rate(text).map(Read::Whole).ok_or_else(expected),
        Shape::Word(words) if words.contains(&text) => Ok(Read::Text(text.into())),
        Shape::Word(_) => Err(expected()),
        Shape::List => {
            let items: Vec<String> = text.split(',').map(|item| item.trim().to_owned()).collect();
            if items.iter().any(String::is_empty) { Err(expected()) } else { Ok(Read::List(items)) }
        }
    }
}

/// What a key of this shape takes, in words.
pub fn expectation(shape: Shape) -> String {
    match shape {
        Shape::Text => "a text that is not empty".into(),
        Shape::Path => "a file name".into(),
        Shape::Url => "a URL".into(),
        Shape::Whole(least, most) => format!("a whole number from {least} to {most}"),
        Shape::Switch => "true or false".into(),
        Shape::Span(least) => {
            format!(
                "a length of time with its unit, such as \"500ms\", \"3s\" or \"7d\"{}",
                at_least(&crate::measure::span_text(least), least)
            )
        }
        Shape::Size(least) => {
            format!("a number of bytes, such as 65536 or \"4MiB\"{}", at_least(&format!("{least} bytes"), least))
        }
        Shape::SizeWithin(least, most) => {
            format!("{}, at most {}", expectation(Shape::Size(least)), format_args!("{}MiB", most >> 20))
        }
        Shape::Rate => "a number of messages a second, such as 500 or 0.5, from 0.001 to 1000000".into(),
        Shape::Word(words) => format!("one of \"{}\"", words.join("\", \"")),
        Shape::List => "a list of texts, at least one".into(),
    }
}

fn at_least(text: &str, least: u64) -> String {
    if least > 1 { format!(", at least {text}") } else { String::new() }
}
