//! `docs/configuration.md`, written from the list of keys.

use std::fmt::Write;

use outhaul_sink::registry;

use super::keys::{Absent, SECTIONS, Section, Shape};
use crate::measure;

const HEAD: &str = "\
# Configuration

<!-- Written by `outhaul reference`. Change crates/outhaul-cli/src/config/keys.rs, or the keys of a destination's kind,
     and run it again: a test compares. -->

One TOML file: `outhaul.toml` in the current folder, or the one that `-c FILE` names. Unknown keys are refused with the
nearest known one. All mistakes are told together, each with its line, its code and what to do; `outhaul validate` looks
at the databases and destinations too.

Without a file: `--db URL` stands for one `[[outbox]]` named `main`, and `relay --to file:PATH` (or `stdout:`,
`inbox:URL`, `rocketmq://HOST:PORT`) for a `[[destination]]` with a `[[route]]` for every topic.

```toml
[[outbox]]
name = \"orders\"
url = \"mysql://relay:${DB_PASSWORD}@127.0.0.1:3306/shop\"

[[destination]]
name = \"points\"
kind = \"inbox\"
url = \"postgres://relay:${file:/run/secrets/points}@127.0.0.1:5432/points\"
consumer = \"points\"

[[destination]]
name = \"trail\"
kind = \"file\"
path = \"trail.jsonl\"

[[route]]
topic = \"order-*\"
to = [\"points\", \"trail\"]
```

## Secrets

| in a value | stands for |
|---|---|
| `${NAME}` | the environment variable; not set: an error (OUT-3006) |
| `${file:PATH}` | the file's content without line breaks at its end, at most 64 KiB |
| `$${` | the characters `${` |

What is put in is not looked at again, and such a value is never shown.

## Overrides

Every key can be set by an environment variable, which wins over the file:

| variable | sets |
|---|---|
| `OUTHAUL__RELAY__LEASE_TTL=5s` | `lease_ttl` of `[relay]` |
| `OUTHAUL__OUTBOX__ORDERS__URL=…` | `url` of the `[[outbox]]` named `orders` |
| `OUTHAUL__DESTINATION__0__PATH=…` | `path` of the first `[[destination]]` |
| `OUTHAUL__OUTBOX__ORDERS__COLUMNS__SEQ=nr` | `columns.seq` of that outbox |
| `OUTHAUL__ROUTE__1__TO=mq,points` | `to` of the second `[[route]]`; commas separate the items of a list |

Names are compared without case, with `_` for every character that is neither letter nor digit: `my-mq` is `MY_MQ`.
Numbers count from 0. A number one above the last begins a new entry, so that variables alone can be a whole
configuration. A variable that begins with `OUTHAUL__` and names nothing is an error (OUT-3016).

## Values

Lengths of time have a unit: `\"250ms\"`, `\"3s\"`, `\"10m\"`, `\"1h30m\"`, `\"7d\"`. Sizes are bytes, or have a unit:
`65536`, `\"512KiB\"`, `\"4MiB\"`, `\"1GiB\"`. Rates may have a fraction: `500`, `0.5`, `\"500/s\"`. Paths are relative to the current
folder.
";

/// The page.
pub fn page() -> String {
    let mut out = HEAD.to_owned();
    for section in SECTIONS {
        let brackets = if section.repeated { ("[[", "]]") } else { ("[", "]") };
        // Writing to a string cannot fail.
        let _ = write!(out, "\n## `{}{}{}`\n\n{}\n\n", brackets.0, section.name, brackets.1, section.doc);
        out.push_str("| key | value | if left out | what it does |\n|---|---|---|---|\n");
        rows_of(section, &mut out);
        if section.name == "destination" {
            for kind in registry::built() {
                kind_keys(kind, &mut out);
            }
        }
    }
    out
}

fn rows_of(section: &Section, out: &mut String) {
    for key in section.keys {
        let absent = match key.absent {
            Absent::Default(text) => match key.shape {
                Shape::Whole(..) | Shape::Switch => format!("`{text}`"),
                _ => format!("`\"{text}\"`"),
            },
            Absent::Means(words) => words.to_owned(),
            Absent::Required => "must be given".to_owned(),
        };
        let _ = writeln!(out, "| `{}` | {} | {absent} | {} |", key.name, cell(&short(key.shape)), cell(key.doc));
    }
}

/// What a key takes, for a narrow column.
fn short(shape: Shape) -> String {
    let from = |text: String, least: u64| if least > 0 { format!(", at least {text}") } else { String::new() };
    match shape {
        Shape::Text => "text".into(),
        Shape::Path => "file name".into(),
        Shape::Url => "URL".into(),
        Shape::Whole(least, most) => format!("number, {least} to {most}"),
        Shape::Switch => "`true` or `false`".into(),
        Shape::Span(least) => format!("time{}", from(measure::span_text(least), least)),
        Shape::Size(least) => format!("size{}", from(format!("{least} bytes"), least)),
        Shape::SizeWithin(least, most) => {
            format!("{}, at most {}", short(Shape::Size(least)), format_args!("{}MiB", most >> 20))
        }
        Shape::Rate => "number a second, 0.001 to 1000000".into(),
        Shape::Word(words) => words.iter().map(|w| format!("`\"{w}\"`")).collect::<Vec<_>>().join(", "),
        Shape::List => "list of texts".into(),
    }
}

fn kind_keys(kind: &str, out: &mut String) {
    let keys = registry::keys(kind).unwrap_or(&[]);
    let _ = write!(out, "\n### Keys of kind `{kind}`\n\n");
    if keys.is_empty() {
        out.push_str("None of its own.\n");
        return;
    }
    out.push_str("| key | if left out | what it does |\n|---|---|---|\n");
    for key in keys {
        let absent = key.default.map_or_else(|| "must be given".to_owned(), |d| format!("`{d}`"));
        let _ = writeln!(out, "| `{}` | {absent} | {} |", key.name, cell(key.help));
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
