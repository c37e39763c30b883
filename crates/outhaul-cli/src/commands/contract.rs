//! `outhaul contract`: what the consumers of a destination, or the handlers of an inbox, must know.

use outhaul_sink::inbox::InboxConfig;
use outhaul_store::{DatabaseKind, StoreOptions};
use serde_json::{Map, Value, json};

use super::handler_sql::Handler;
use crate::arguments::Contract;
use crate::config::{Config, Destination, Inbox, Sources};
use crate::failure::{Exit, Failure, Outcome};
use crate::{codes, config, measure, output};

/// Statements for one database. `:id` stands for the id of the message.
struct Statements {
    database: DatabaseKind,
    /// Name and text, in the order in which they are used.
    steps: Vec<(&'static str, String)>,
    /// What is to be known about them.
    note: String,
}

/// Where a message's parts are in a destination of a kind.
struct Places {
    id: &'static str,
    key: &'static str,
    rest: &'static str,
}

/// Prints it. Nothing is connected to.
///
/// # Errors
/// The configuration's, or it has no such destination.
pub async fn run(a: &Contract, json: bool) -> Outcome {
    let config = config::load(Sources { inbox: a.inbox.is_some(), ..a.source.sources() })?;
    let page = match &a.inbox {
        Some(name) => of_inbox(config.inbox(Some(name))?)?,
        None => of_destination(&config, a)?,
    };
    if json {
        output::json(&page.as_json())?;
        return Ok(Exit::Fine);
    }
    let mut lines = vec![
        format!("# {} ({})", page.name, page.kind),
        String::new(),
        format!("Topics: {}", page.topics.join(", ")),
        format!("Id: {}", page.places.id),
        format!("Key: {}", page.places.key),
        page.places.rest.to_owned(),
        String::new(),
    ];
    lines.extend(page.promises.iter().map(|promise| format!("- {promise}")));
    for s in &page.statements {
        lines.push(String::new());
        lines.push(format!("-- {}", title(s.database)));
        lines.extend(s.note.lines().map(|line| format!("-- {line}")));
        for (name, sql) in &s.steps {
            lines.push(format!("-- {name}"));
            lines.extend(sql.lines().map(str::to_owned));
        }
    }
    output::lines(lines)?;
    Ok(Exit::Fine)
}

/// All that is printed.
struct Page {
    name: String,
    kind: String,
    topics: Vec<String>,
    places: Places,
    promises: Vec<String>,
    statements: Vec<Statements>,
}

impl Page {
    fn as_json(&self) -> Value {
        let sql: Map<String, Value> = self
            .statements
            .iter()
            .map(|s| {
                let steps: Map<String, Value> =
                    s.steps.iter().map(|(name, sql)| ((*name).to_owned(), Value::from(sql.as_str()))).collect();
                (s.database.to_string(), Value::Object(steps))
            })
            .collect();
        json!({
            "destination": self.name, "kind": self.kind, "topics": self.topics, "id": self.places.id,
            "key": self.places.key, "content": self.places.rest, "promises": self.promises, "sql": sql,
        })
    }
}

fn of_destination(config: &Config, a: &Contract) -> Result<Page, Failure> {
    let named = a.destination.as_deref().unwrap_or_default();
    let Some(destination) = config.destinations.iter().find(|d| d.name == named) else {
        let names: Vec<&str> = config.destinations.iter().map(|d| d.name.as_str()).collect();
        let what = format!("no destination is named {named}; there are: {}", names.join(", "));
        return Err(Failure::new(&codes::UNKNOWN_DESTINATION, what));
    };
    Ok(Page {
        name: destination.name.clone(),
        kind: destination.kind.clone(),
        topics: topics(config, destination),
        places: places(&destination.kind),
        promises: promises(config, destination),
        statements: statements(destination, a.consumer.as_deref().unwrap_or(&destination.name))?,
    })
}

fn of_inbox(inbox: &Inbox) -> Result<Page, Failure> {
    let dead = if inbox.block_key {
        "A message that is dead keeps later ones of its key waiting, until it is redriven or skipped."
    } else {
        "A message that is dead lets later ones of its key go on; one that is redriven comes after them."
    };
    let table = format!("{}inbox_message", inbox.store.table_prefix);
    Ok(Page {
        name: inbox.name.clone(),
        kind: "outhaul inbox".into(),
        topics: inbox.topics.clone(),
        places: Places {
            id: "column `id`: Outhaul's id, of other messages their unique key (UNIQ_KEY)",
            key: "column `msg_key`: Outhaul's key, of other messages their sharding key; NULL: no key",
            rest: "The other columns: topic, headers (a JSON object of strings, or NULL), payload, position (SHARD:POSITION, of \
                   other messages QUEUE:OFFSET), received_at, attempts.",
        },
        promises: vec![
            "Once in the table, in the order of its queue; applied once by these statements, for effects in this database."
                .into(),
            "Messages of one key are taken one after the other, in the order of their queue. Without a key no order is \
             promised."
                .into(),
            dead.into(),
        ],
        statements: vec![take(inbox.store.kind()?, &table, &inbox.consumer, inbox.block_key)],
    })
}

fn topics(config: &Config, destination: &Destination) -> Vec<String> {
    let routes = config.routes.iter().filter(|route| route.goes_to(&destination.name));
    routes
        .map(|route| match &route.rename {
            Some(renamed) => format!("{} as {renamed}", route.topic),
            None => route.topic.clone(),
        })
        .collect()
}

fn places(kind: &str) -> Places {
    match kind {
        "rocketmq" => Places {
            id: "property `outhaul-id`, or member `id` of the JSON object in property `outhaul-json` where that has one",
            key: "property `outhaul-key`, or member `key` of `outhaul-json`; missing: no key",
            rest: "The payload is the body; headers are properties of their names, or members of `headers` in \
                   `outhaul-json`; `outhaul-position` is SHARD:POSITION.",
        },
        "inbox" => Places {
            id: "column `id` of `inbox_message`, unique for each consumer",
            key: "column `msg_key`; NULL: no key",
            rest: "The other columns: topic, headers (a JSON object of strings, or NULL), payload, position \
                   (SHARD:POSITION), received_at.",
        },
        _ => Places {
            id: "member `id` of each line, which is one JSON object",
            key: "member `key`; null: no key",
            rest: "The other members: topic, headers (an object of strings), payload (JSON) or payload_base64 (any \
                   other bytes), shard, position, created_at. A line without its newline is not finished yet.",
        },
    }
}

/// What holds for every message that comes.
fn promises(config: &Config, destination: &Destination) -> Vec<String> {
    let window = measure::span_text(config.relay.retention_ms);
    let dead = if destination.limits.block_key {
        "What this destination cannot take keeps later messages of its key waiting, until an operator decides."
    } else {
        "What this destination cannot take is set aside, and later messages of its key go on."
    };
    let again = if destination.kind == "inbox" {
        format!(
            "At least once, and once in the table: a copy of what `inbox_message` still has is not stored again. A replay \
             may bring what is up to {window} old, or older where exported files are enqueued again: keep rows as long \
             as that."
        )
    } else {
        format!(
            "At least once: any message may come again, with the same id, after a crash or a lost answer; a replay may \
             bring what is up to {window} old, or older where exported files are enqueued again. Keep what you have \
             applied as long as that."
        )
    };
    vec![
        again,
        "Messages of one key come in the order in which they were committed; a copy may come late. Without a key no \
         order is promised."
            .to_owned(),
        dead.to_owned(),
        "Ids compare by bytes: case, accents and spaces at the end make another one.".to_owned(),
    ]
}

fn statements(destination: &Destination, consumer: &str) -> Result<Vec<Statements>, Failure> {
    if destination.kind != "inbox" {
        let all = [DatabaseKind::Postgres, DatabaseKind::MySql, DatabaseKind::Sqlite];
        return Ok(all.into_iter().map(|database| once(database, consumer)).collect());
    }
    let inbox = InboxConfig::read(&destination.name, &destination.settings)?;
    let database = StoreOptions::new(inbox.url.clone()).kind()?;
    let table = format!("{}inbox_message", inbox.table_prefix);
    Ok(vec![take(database, &table, &inbox.consumer, destination.limits.block_key)])
}

/// A message comes from elsewhere; what was applied is remembered in a table `inbox`.
fn once(database: DatabaseKind, consumer: &str) -> Statements {
    let consumer = literal(database, consumer);
    let insert = format!("INSERT INTO inbox (consumer, id) VALUES ({consumer}, :id)");
    let (claim, note) = match database {
        DatabaseKind::MySql => (
            format!("{insert};"),
            "Error 1062 (duplicate key): it was applied, acknowledge it. MySQL takes back this one statement only: end \
             the\ntransaction, without the effect. Never INSERT IGNORE, which hides other failures."
                .to_owned(),
        ),
        DatabaseKind::Postgres | DatabaseKind::Sqlite => (
            format!("{insert} ON CONFLICT (consumer, id) DO NOTHING;"),
            "1 row: apply it. 0 rows: it was applied, acknowledge it.".to_owned(),
        ),
    };
    let note = format!(
        "`outhaul init --inbox` makes the table. In one transaction: this, then the effect, then COMMIT; acknowledge \
         after.\n{note}"
    );
    Statements {
        database,
        steps: vec![("begin", begin(database)), ("claim", claim), ("commit", "COMMIT;".into())],
        note,
    }
}

/// A message is in the table already; what was applied is marked there.
fn take(database: DatabaseKind, table: &str, consumer: &str, block_key: bool) -> Statements {
    let handler = Handler { database, table, consumer: literal(database, consumer), block_key };
    Statements { database, steps: handler.steps(), note: handler.note() }
}

fn begin(database: DatabaseKind) -> String {
    match database {
        DatabaseKind::Sqlite => "BEGIN IMMEDIATE;".into(),
        DatabaseKind::MySql | DatabaseKind::Postgres => "BEGIN;".into(),
    }
}

fn title(database: DatabaseKind) -> &'static str {
    match database {
        DatabaseKind::Sqlite => "SQLite",
        DatabaseKind::MySql => "MySQL, MariaDB",
        DatabaseKind::Postgres => "PostgreSQL",
    }
}

/// A name in SQL.
fn literal(database: DatabaseKind, text: &str) -> String {
    let text = if database == DatabaseKind::MySql { text.replace('\\', "\\\\") } else { text.to_owned() };
    format!("'{}'", text.replace('\'', "''"))
}
