//! One table of the configuration, read key by key.

use outhaul_sink::settings::suggest;

use super::keys::{Absent, Key, Section, names};
use super::problems::Problems;
use super::value::{Node, Origin, Read, Value, check, expectation};
use crate::codes;

/// A table with its place.
#[derive(Debug)]
pub struct Table {
    /// What it is.
    pub section: &'static Section,
    /// Its keys, dotted.
    pub entries: Vec<(String, Node)>,
    /// Where it begins.
    pub origin: Origin,
}

impl Table {
    /// The tables of a section; what is not one is told.
    pub fn all(section: &'static Section, tree: &[(String, Node)], problems: &mut Problems) -> Vec<Self> {
        let mut tables = vec![];
        for (_, node) in tree.iter().filter(|(name, _)| name == section.name) {
            let brackets = if section.repeated { ("[[", "]]") } else { ("[", "]") };
            let wrong = |problems: &mut Problems, node: &Node| {
                let what = format!(
                    "{} is {} here; it is written as {}{}{}",
                    section.name,
                    node.kind(),
                    brackets.0,
                    section.name,
                    brackets.1
                );
                problems.at(&node.origin, &codes::BAD_VALUE, what);
            };
            match (&node.value, section.repeated) {
                (Value::Table(entries), false) => tables.push(Self::new(section, entries, &node.origin)),
                (Value::List(items), true) => {
                    for item in items {
                        match &item.value {
                            Value::Table(entries) => tables.push(Self::new(section, entries, &item.origin)),
                            _ => wrong(problems, item),
                        }
                    }
                }
                _ => wrong(problems, node),
            }
        }
        tables
    }

    fn new(section: &'static Section, entries: &[(String, Node)], origin: &Origin) -> Self {
        let mut flat = vec![];
        for (name, node) in entries {
            let inner = format!("{name}.");
            match &node.value {
                Value::Table(inside) if section.keys.iter().any(|k| k.name.starts_with(&inner)) => {
                    flat.extend(inside.iter().map(|(key, node)| (format!("{inner}{key}"), node.clone())));
                }
                _ => flat.push((name.clone(), node.clone())),
            }
        }
        Self { section, entries: flat, origin: origin.clone() }
    }

    /// Tells every key that is not known. `kind` is that of a destination; its keys are known then too.
    pub fn refuse_unknown(&self, kind: Option<&str>, problems: &mut Problems) {
        let known = names(self.section, kind);
        for (name, node) in self.entries.iter().filter(|(name, _)| !known.contains(&name.as_str())) {
            let near = suggest(name, known.iter().copied()).map(|n| format!("; did you mean {n}?")).unwrap_or_default();
            let of_kind = kind.map(|k| format!(" of kind {k}")).unwrap_or_default();
            problems.at(
                &node.origin,
                &codes::UNKNOWN_KEY,
                format!("there is no key {name} in {}{of_kind}{near}", self.section.name),
            );
        }
    }

    /// Where a key stands, or the table itself.
    pub fn place(&self, key: &str) -> &Origin {
        self.node(key).map_or(&self.origin, |n| &n.origin)
    }

    /// The value of a key as it was written.
    pub fn node(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// A text, path, URL or word. None: not given and without a default, or wrong (and told).
    pub fn text(&self, key: &str, problems: &mut Problems) -> Option<String> {
        match self.read(key, problems) {
            Some(Read::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// A number; milliseconds or bytes where the key is a length of time or a size, thousandths where it is a rate.
    pub fn whole(&self, key: &str, problems: &mut Problems) -> Option<u64> {
        match self.read(key, problems) {
            Some(Read::Whole(n)) => Some(n),
            _ => None,
        }
    }

    /// A switch.
    pub fn switch(&self, key: &str, problems: &mut Problems) -> bool {
        self.read(key, problems) == Some(Read::Switch(true))
    }

    /// A list. Empty: not given, or wrong (and told).
    pub fn list(&self, key: &str, problems: &mut Problems) -> Vec<String> {
        match self.read(key, problems) {
            Some(Read::List(items)) => items,
            _ => vec![],
        }
    }

    fn read(&self, key: &str, problems: &mut Problems) -> Option<Read> {
        let key = self.section.keys.iter().find(|k| k.name == key)?;
        let Some(node) = self.node(key.name) else { return self.absent(key, problems) };
        let result = match &node.value {
            Value::List(items) if key.shape == super::keys::Shape::List => list_of(items),
            _ => node.scalar(key.shape).map(|text| (check(key.shape, &text), text)).map_or_else(
                || Err(format!("it is {}", node.kind())),
                |(read, text)| {
                    // A URL, and what came out of `${…}`, is never shown.
                    let shown = if node.secret || key.shape == super::keys::Shape::Url {
                        "it".to_owned()
                    } else {
                        format!("{text:?}")
                    };
                    read.map_err(|_| format!("{shown} is not"))
                },
            ),
        };
        result
            .map_err(|why| {
                let what = format!("{} of {} takes {}; {why}", key.name, self.section.name, expectation(key.shape));
                problems.at(&node.origin, &codes::BAD_VALUE, what);
            })
            .ok()
    }

    fn absent(&self, key: &Key, problems: &mut Problems) -> Option<Read> {
        match key.absent {
            Absent::Default(text) => check(key.shape, text).ok(),
            Absent::Means(_) => None,
            Absent::Required => {
                problems.at(&self.origin, &codes::MISSING_KEY, format!("{} has no {}", self.section.name, key.name));
                None
            }
        }
    }
}

fn list_of(items: &[Node]) -> Result<Read, String> {
    let texts: Option<Vec<String>> = items
        .iter()
        .map(|item| match &item.value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        })
        .collect();
    match texts {
        Some(texts) if !texts.is_empty() => Ok(Read::List(texts)),
        Some(_) => Err("it is empty".into()),
        None => Err("one of its items is not a text".into()),
    }
}
