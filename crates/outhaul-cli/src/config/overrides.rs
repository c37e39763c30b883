//! `OUTHAUL__SECTION__KEY` in the environment: every key can be set without touching the file.
//!
//! | form | sets |
//! |---|---|
//! | `OUTHAUL__RELAY__LEASE_TTL=5s` | `lease_ttl` of `[relay]` |
//! | `OUTHAUL__OUTBOX__ORDERS__URL=…` | `url` of the `[[outbox]]` named `orders` |
//! | `OUTHAUL__DESTINATION__0__PATH=…` | `path` of the first `[[destination]]` |
//! | `OUTHAUL__OUTBOX__0__COLUMNS__SEQ=…` | `columns.seq` of the first `[[outbox]]` |
//! | `OUTHAUL__ROUTE__1__TO=mq,points` | `to` of the second `[[route]]`; lists are separated by commas |
//!
//! Names are compared without case, with `_` for every character that is neither letter nor digit. A number one above
//! the last begins a new entry, so that a configuration can consist of variables alone.

use outhaul_sink::settings::suggest;

use super::keys::{SECTIONS, Section, section};
use super::value::{Node, Origin, Value};

/// What every override's name begins with.
pub const PREFIX: &str = "OUTHAUL__";

/// A variable that names nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The variable.
    pub variable: String,
    /// What is wrong with it.
    pub message: String,
}

/// Applies the variables, in order of their names, to the tree. Whether the keys exist is looked at with those of the
/// file.
pub fn apply(tree: &mut Vec<(String, Node)>, mut variables: Vec<(String, String)>) -> Vec<Stray> {
    variables.retain(|(name, _)| name.starts_with(PREFIX));
    // Numbers by value and before names: new entries follow each other, and can then be named.
    variables.sort_by_cached_key(|(name, _)| {
        name.split("__").map(|part| (part.parse::<u64>().unwrap_or(u64::MAX), part.to_owned())).collect::<Vec<_>>()
    });
    variables
        .into_iter()
        .filter_map(|(name, text)| set(tree, &name, text).err().map(|message| Stray { variable: name, message }))
        .collect()
}

fn set(tree: &mut Vec<(String, Node)>, variable: &str, text: String) -> Result<(), String> {
    let parts: Vec<String> = variable.trim_start_matches(PREFIX).split("__").map(str::to_ascii_lowercase).collect();
    let (first, rest) = parts.split_first().ok_or("it names no section")?;
    let Some(section) = section(first) else {
        let near = suggest(first, SECTIONS.iter().map(|s| s.name));
        return Err(format!(
            "there is no section {first}{}",
            near.map(|n| format!("; did you mean {}?", n.to_uppercase())).unwrap_or_default()
        ));
    };
    let origin = || Origin::Variable(variable.to_owned());
    let (entry, key) = if section.repeated {
        let (which, key) = rest.split_first().ok_or_else(|| shape_of(section))?;
        (entry_of(tree, section, which, origin())?, key)
    } else {
        (table_of(child(tree, section.name, || Node::new(Value::Table(vec![]), origin())))?, rest)
    };
    if key.is_empty() || key.iter().any(String::is_empty) {
        return Err(shape_of(section));
    }
    put(entry, key, Node::new(Value::Text(text), origin()))
}

fn shape_of(section: &Section) -> String {
    let which = if section.repeated { "__NAME_OR_NUMBER" } else { "" };
    format!("its form is {PREFIX}{}{which}__KEY", section.name.to_uppercase())
}

/// Sets the value at a path of keys, through tables that are made where they are missing.
fn put(entries: &mut Vec<(String, Node)>, key: &[String], node: Node) -> Result<(), String> {
    match key {
        [] => Ok(()),
        [last] => {
            match entries.iter_mut().find(|(name, _)| name == last) {
                Some((_, old)) => *old = node,
                None => entries.push((last.clone(), node)),
            }
            Ok(())
        }
        [first, rest @ ..] => {
            let origin = node.origin.clone();
            put(table_of(child(entries, first, || Node::new(Value::Table(vec![]), origin)))?, rest, node)
        }
    }
}

fn child<'a>(entries: &'a mut Vec<(String, Node)>, name: &str, new: impl FnOnce() -> Node) -> &'a mut Node {
    let at = entries.iter().position(|(n, _)| n == name).unwrap_or_else(|| {
        entries.push((name.to_owned(), new()));
        entries.len() - 1
    });
    &mut entries[at].1
}

fn table_of(node: &mut Node) -> Result<&mut Vec<(String, Node)>, String> {
    match &mut node.value {
        Value::Table(entries) => Ok(entries),
        _ => Err("what it names is not a table in the file".into()),
    }
}

/// The entry of an array of tables, by number or name; a number one above the last makes a new one.
fn entry_of<'a>(
    tree: &'a mut Vec<(String, Node)>,
    section: &Section,
    which: &str,
    origin: Origin,
) -> Result<&'a mut Vec<(String, Node)>, String> {
    let list = child(tree, section.name, || Node::new(Value::List(vec![]), origin.clone()));
    let Value::List(items) = &mut list.value else {
        return Err("what it names is not an array of tables in the file".into());
    };
    let at = match which.parse::<usize>() {
        Ok(n) if n < items.len() => n,
        Ok(n) if n == items.len() => {
            items.push(Node::new(Value::Table(vec![]), origin));
            n
        }
        Ok(n) => {
            return Err(format!(
                "there are {} entries of {}, counted from 0, and {n} is beyond the next",
                items.len(),
                section.name
            ));
        }
        Err(_) => {
            let names: Vec<String> = items.iter().map(name_of).collect();
            let known = || names.iter().map(String::as_str).filter(|n| !n.is_empty());
            match names.iter().position(|n| n == which) {
                Some(at) => at,
                None => {
                    let near = suggest(which, known())
                        .map(|n| format!("; did you mean {}?", n.to_uppercase()))
                        .unwrap_or_default();
                    return Err(format!("no {} is named {which}{near}", section.name));
                }
            }
        }
    };
    items.get_mut(at).ok_or_else(|| "it names no entry".into()).and_then(table_of)
}

/// The name of an entry as it stands in a variable.
fn name_of(item: &Node) -> String {
    let Value::Table(entries) = &item.value else { return String::new() };
    let Some((_, Node { value: Value::Text(name), .. })) = entries.iter().find(|(key, _)| key == "name") else {
        return String::new();
    };
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree;
    use super::*;

    fn applied(file: &str, variables: &[(&str, &str)]) -> (Vec<(String, Node)>, Vec<Stray>) {
        let mut tree = tree::parse(file).unwrap();
        let strays = apply(&mut tree, variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect());
        (tree, strays)
    }

    fn at<'a>(entries: &'a [(String, Node)], path: &[&str]) -> &'a Node {
        let node = &entries.iter().find(|(n, _)| n == path[0]).unwrap().1;
        match (&node.value, &path[1..]) {
            (_, []) => node,
            (Value::Table(inner), rest) => at(inner, rest),
            (Value::List(items), rest) => {
                let Value::Table(inner) = &items[rest[0].parse::<usize>().unwrap()].value else { panic!() };
                at(inner, &rest[1..])
            }
            _ => panic!(),
        }
    }

    #[test]
    fn by_section_name_and_number() {
        let file = "[[destination]]\nname = \"my-mq.a\"\npath = \"old\"\n[[destination]]\nname = \"b\"\n";
        let (tree, strays) = applied(
            file,
            &[
                ("OUTHAUL__RELAY__LEASE_TTL", "5s"),
                ("OUTHAUL__DESTINATION__MY_MQ_A__PATH", "new"),
                ("OUTHAUL__DESTINATION__1__PATH", "second"),
                ("OUTHAUL__OUTBOX__0__COLUMNS__SEQ", "nr"),
                ("OUTHAUL__OUTBOX__1__URL", "u"),
                ("OUTHAUL__DESTINATION__2__NAME", "c"),
                ("OUTHAUL__DESTINATION__C__PATH", "third"),
                ("HOME", "x"),
            ],
        );
        assert_eq!(strays, []);
        for (path, text) in [
            (&["relay", "lease_ttl"][..], "5s"),
            (&["destination", "0", "path"], "new"),
            (&["destination", "1", "path"], "second"),
            (&["outbox", "0", "columns", "seq"], "nr"),
            (&["outbox", "1", "url"], "u"),
            (&["destination", "2", "path"], "third"),
        ] {
            assert_eq!(at(&tree, path).value, Value::Text(text.into()), "{path:?}");
        }
    }

    #[test]
    fn what_names_nothing_is_told() {
        let (_, strays) = applied(
            "[[destination]]\nname = \"points\"\n",
            &[
                ("OUTHAUL__RELAI__X", ""),
                ("OUTHAUL__RELAY", ""),
                ("OUTHAUL__DESTINATION__7__PATH", ""),
                ("OUTHAUL__DESTINATION__POINT__PATH", ""),
                ("OUTHAUL__DESTINATION__POINTS", ""),
            ],
        );
        let all = strays.iter().map(|s| s.message.as_str()).collect::<Vec<_>>().join("\n");
        assert_eq!(strays.len(), 5, "{all}");
        assert!(all.contains("did you mean RELAY?") && all.contains("did you mean POINTS?"), "{all}");
    }
}
