//! DDL, and what the catalogue and the meta table say.

use rusqlite::{Connection, MAIN_DB, OptionalExtension as _, Transaction};

use super::maintain::MAINTENANCE;
use super::names::{NOW_US, Names, quoted};
use super::refusal::refusal;
use super::upgrade;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{InitPlan, PayloadType};
use crate::shards::check_leases;
use crate::store::{SCHEMA_LEVEL, SCHEMA_VERSION, SchemaInfo, StoreResult};
use crate::version::{Known, LEVEL, Meta, ORIGIN};

/// A UUID of version 4 in SQL that every SQLite knows.
const UUID: &str = "(lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-' \
                    || substr('89ab', (random() & 3) + 1, 1) || substr(hex(randomblob(2)), 2) || '-' \
                    || hex(randomblob(6))))";

const MODE: &str = "move";

/// # Errors
/// `Configuration`: SQLite has one shard.
pub(super) fn check_plan(plan: &InitPlan) -> StoreResult<()> {
    if plan.shards == 1 {
        return Ok(());
    }
    let why = format!(
        "SQLite has one shard, {} were asked for: writers are serial in it, more shards gain nothing",
        plan.shards
    );
    Err(StoreError::new(StoreErrorKind::Configuration, why))
}

pub(super) struct Table {
    pub(super) name: String,
    about: &'static str,
    pub(super) columns: Vec<String>,
    /// Keys of several columns.
    rest: &'static str,
}

impl Table {
    fn new(name: String, about: &'static str, columns: &[&str], rest: &'static str) -> Self {
        Self { name, about, columns: columns.iter().map(|c| (*c).to_owned()).collect(), rest }
    }

    pub(super) fn ddl(&self) -> String {
        let rest = if self.rest.is_empty() { String::new() } else { format!(",\n  {}", self.rest) };
        format!("CREATE TABLE IF NOT EXISTS {} (\n  {}{rest}\n)", quoted(&self.name), self.columns.join(",\n  "))
    }
}

fn outbox(names: &Names, plan: &InitPlan) -> Table {
    let Names { seq, id, topic, payload, .. } = names;
    let payload_type = match plan.payload {
        PayloadType::Bytes => "BLOB",
        PayloadType::Text | PayloadType::Json => "TEXT",
    };
    let mut columns = vec![
        format!("{seq} INTEGER PRIMARY KEY AUTOINCREMENT"),
        format!("{id} TEXT NOT NULL DEFAULT {UUID} CHECK (length({id}) <= 64)"),
        format!("{topic} TEXT NOT NULL CHECK (length({topic}) <= 255)"),
    ];
    columns.extend(names.key.as_ref().map(|key| format!("{key} TEXT CHECK (length({key}) <= 255)")));
    columns.extend(names.headers.as_ref().map(|headers| format!("{headers} TEXT")));
    columns.push(format!("{payload} {payload_type} NOT NULL"));
    columns.extend(names.created_at.as_ref().map(|at| format!("{at} INTEGER NOT NULL DEFAULT {NOW_US}")));
    columns.extend(names.available_at.as_ref().map(|at| format!("{at} INTEGER")));
    let about = "the hot table: the application inserts into it, the relay takes rows out of it";
    Table { name: names.options.outbox(), about, columns, rest: "" }
}

/// All tables of the relay. With one shard, its log's key is the position alone, which makes it the row's own number.
pub(super) fn tables(names: &Names, plan: &InitPlan) -> Vec<Table> {
    let table = |name: &str| names.options.table(name);
    vec![
        outbox(names, plan),
        Table::new(
            table("outbox_log"),
            "what was moved: chunks of messages",
            &[
                "shard INTEGER NOT NULL",
                "base_position INTEGER PRIMARY KEY",
                "count INTEGER NOT NULL",
                "first_created_at INTEGER NOT NULL",
                "last_created_at INTEGER NOT NULL",
                "moved_at INTEGER NOT NULL",
                "codec INTEGER NOT NULL",
                "id_filter BLOB NOT NULL",
                "chunk BLOB NOT NULL",
            ],
            "",
        ),
        Table::new(
            table("outbox_receipt"),
            "receipts, and where the lanes stand",
            &[
                "shard INTEGER NOT NULL",
                "number INTEGER PRIMARY KEY",
                "epoch INTEGER NOT NULL",
                "log_end INTEGER NOT NULL",
                "from_position INTEGER",
                "to_position INTEGER",
                "created_at INTEGER NOT NULL",
                "lanes BLOB NOT NULL",
            ],
            "",
        ),
        Table::new(
            table("outbox_parked"),
            "messages set aside with their reason",
            &[
                "destination TEXT NOT NULL",
                "shard INTEGER NOT NULL",
                "position INTEGER NOT NULL",
                "id TEXT NOT NULL",
                "msg_key TEXT",
                "state TEXT NOT NULL",
                "attempts INTEGER NOT NULL",
                "due_at INTEGER NOT NULL",
                "error_code TEXT NOT NULL",
                "error_text TEXT NOT NULL",
                "first_failed_at INTEGER NOT NULL",
                "last_failed_at INTEGER NOT NULL",
                "codec INTEGER NOT NULL",
                "message BLOB NOT NULL",
                "oversize_payload BLOB",
            ],
            "PRIMARY KEY (destination, shard, position)",
        ),
        Table::new(
            table("outbox_transaction"),
            "transactional messages: the application inserts, first of all in its transaction",
            &[
                "id TEXT NOT NULL PRIMARY KEY CHECK (length(id) <= 64)",
                "message_id TEXT CHECK (length(message_id) <= 64)",
                "topic TEXT CHECK (length(topic) <= 255)",
                "msg_key TEXT CHECK (length(msg_key) <= 255)",
                "headers TEXT",
                "payload BLOB",
                "state TEXT NOT NULL DEFAULT 'committed'",
                "receipt TEXT",
                &format!("created_at INTEGER NOT NULL DEFAULT {NOW_US}"),
                "since_at INTEGER",
            ],
            "",
        ),
        Table::new(
            table("outbox_lease"),
            "who owns a shard",
            &[
                "shard INTEGER PRIMARY KEY",
                "owner TEXT",
                "epoch INTEGER NOT NULL DEFAULT 0",
                "expires_at INTEGER NOT NULL DEFAULT 0",
            ],
            "",
        ),
        Table::new(
            table("outbox_instance"),
            "relays that are alive",
            &[
                "owner TEXT NOT NULL PRIMARY KEY",
                "version TEXT NOT NULL",
                "draining INTEGER NOT NULL",
                "heartbeat INTEGER NOT NULL",
                "troubles TEXT NOT NULL DEFAULT ''",
                "config TEXT NOT NULL DEFAULT ''",
            ],
            "",
        ),
        Table::new(
            table("outbox_act"),
            "what operators ordered: who, when, why, and how far it has got",
            &[
                "act_number INTEGER NOT NULL",
                "shard INTEGER NOT NULL",
                "created_at INTEGER NOT NULL",
                "actor TEXT NOT NULL",
                "why TEXT NOT NULL",
                "verb TEXT NOT NULL",
                "destination TEXT",
                "message_id TEXT",
                "selector TEXT NOT NULL",
                "content BLOB",
                "state TEXT NOT NULL",
                "next_position INTEGER NOT NULL DEFAULT 0",
                "messages_changed INTEGER NOT NULL DEFAULT 0",
                "messages_left INTEGER NOT NULL DEFAULT 0",
                "note TEXT NOT NULL DEFAULT ''",
                "finished_at INTEGER",
                "original BLOB",
                "original_payload BLOB",
            ],
            "PRIMARY KEY (act_number, shard)",
        ),
        Table::new(
            table("outbox_pause"),
            "what is paused; an empty destination is all of the shard",
            &[
                "shard INTEGER NOT NULL",
                "destination TEXT NOT NULL",
                "act_number INTEGER NOT NULL",
                "since INTEGER NOT NULL",
                "actor TEXT NOT NULL",
                "why TEXT NOT NULL",
            ],
            "PRIMARY KEY (shard, destination)",
        ),
        Table::new(
            table("outbox_meta"),
            "schema version and the like",
            &["name TEXT NOT NULL PRIMARY KEY", "value TEXT NOT NULL"],
            "",
        ),
    ]
}

/// Parked rows are listed by key and by reason, acts by whether they are open.
pub(super) fn indexes(names: &Names) -> Vec<String> {
    let index = |table: &str, about: &str, columns: &str| {
        let name = quoted(&names.options.table(&format!("{table}_{about}")));
        format!("CREATE INDEX IF NOT EXISTS {name} ON {} ({columns})", quoted(&names.options.table(table)))
    };
    vec![
        index("outbox_parked", "by_key", "msg_key"),
        index("outbox_parked", "by_reason", "destination, shard, error_code, position, state"),
        index("outbox_act", "by_state", "state, shard, verb"),
        index("outbox_transaction", "by_state", "state, since_at"),
    ]
}

/// What `init` writes into the tables that it made.
fn first_rows(names: &Names, plan: &InitPlan) -> Vec<String> {
    let shard_by = if plan.shard_by_key { "key" } else { "topic" };
    let meta = [
        ("schema_version", SCHEMA_VERSION.to_string()),
        (LEVEL, SCHEMA_LEVEL.to_string()),
        ("shards", plan.shards.to_string()),
        ("mode", MODE.to_owned()),
        ("shard_by", shard_by.to_owned()),
    ];
    let meta = meta.map(|(name, value)| format!("('{name}', '{value}')")).join(", ");
    let leases: Vec<String> = [MAINTENANCE, 0].map(|shard| format!("({shard})")).into();
    vec![
        format!("INSERT INTO {} (name, value) VALUES {meta} ON CONFLICT (name) DO NOTHING", names.meta),
        format!("INSERT INTO {} (shard) VALUES {} ON CONFLICT (shard) DO NOTHING", names.lease, leases.join(", ")),
        origin_row(names),
    ]
}

/// What names this outbox to others, the same for ever.
pub(super) fn origin_row(names: &Names) -> String {
    format!("INSERT INTO {} (name, value) VALUES ('{ORIGIN}', {UUID}) ON CONFLICT (name) DO NOTHING", names.meta)
}

pub(super) fn ddl(names: &Names, plan: &InitPlan) -> String {
    let mut text = String::from("-- SQLite. The database should be in WAL mode.\nPRAGMA journal_mode = WAL;\n");
    for table in tables(names, plan) {
        text += &format!("\n-- {}\n{};\n", table.about, table.ddl());
    }
    for statement in indexes(names).into_iter().chain(first_rows(names, plan)) {
        text += &format!("\n{statement};\n");
    }
    text + "\n-- GRANTs: SQLite has none. Application and relay need the right to read and write the file and its folder.\n"
}

pub(super) fn init(tx: &Transaction<'_>, names: &Names, plan: &InitPlan) -> StoreResult<()> {
    if let Some(meta) = upgrade::meta(tx, names)?.filter(Meta::is_made) {
        meta.check(Some(plan.shards))?;
    }
    for table in tables(names, plan) {
        tx.execute_batch(&table.ddl()).map_err(|e| refusal(e).while_doing(&format!("making {}", table.name)))?;
    }
    for statement in indexes(names).into_iter().chain(first_rows(names, plan)) {
        tx.execute_batch(&statement).map_err(refusal)?;
    }
    known(tx, names).map(drop)
}

/// What the meta table says.
///
/// # Errors
/// `NotInitialised`: nothing. `WrongSchema`, `Outdated`.
fn known(connection: &Connection, names: &Names) -> StoreResult<Known> {
    let meta = upgrade::meta(connection, names)?;
    meta.unwrap_or_else(|| Meta::new(vec![])).check(Some(1))
}

/// A value of the meta table.
pub(super) fn meta(connection: &Connection, names: &Names, name: &str) -> StoreResult<Option<String>> {
    let sql = format!("SELECT value FROM {} WHERE name = ?", names.meta);
    connection.query_row(&sql, [name], |row| row.get(0)).optional().map_err(refusal)
}

pub(super) fn inspect(connection: &Connection, names: &Names) -> StoreResult<SchemaInfo> {
    if connection.is_readonly(MAIN_DB).map_err(refusal)? {
        return Err(StoreError::new(StoreErrorKind::ReadOnly, "the database file cannot be written"));
    }
    // Of an earlier version, before of what such tables lack.
    if let Some(meta) = upgrade::meta(connection, names)?.filter(Meta::is_made) {
        meta.check(Some(1))?;
    }
    let plan = InitPlan::default();
    let mut payload = PayloadType::Bytes;
    for table in tables(names, &plan) {
        let there = columns_of(connection, &table.name)?;
        if there.is_empty() {
            return Err(missing(&format!("there is no table {}", table.name), Some(&table.ddl())));
        }
        for column in &table.columns {
            let name = column.split(' ').next().unwrap_or_default();
            let Some((_, declared)) =
                there.iter().find(|(n, _)| quoted(n).eq_ignore_ascii_case(&quoted(name.trim_matches('"'))))
            else {
                let ddl = format!("ALTER TABLE {} ADD COLUMN {column}", quoted(&table.name));
                return Err(missing(&format!("table {} has no column {name}", table.name), Some(&ddl)));
            };
            if table.name == names.options.outbox() && name == names.payload {
                payload = payload_type(declared);
            }
        }
    }
    let Known { version, shards, had, mode, .. } = known(connection, names)?;
    let sql = format!("SELECT shard FROM {} WHERE shard >= 0 ORDER BY shard", names.lease);
    let leases: Vec<i64> = connection
        .prepare(&sql)
        .and_then(|mut s| s.query_map([], |row| row.get(0)).and_then(Iterator::collect))
        .map_err(refusal)?;
    let mut warnings = warnings(connection, names)?;
    warnings.extend(check_leases(&names.options, &leases, shards, had)?);
    Ok(SchemaInfo {
        server: format!("SQLite {}", rusqlite::version()),
        version,
        shards,
        leases: leases.len(),
        mode,
        payload,
        warnings,
        stray: None,
    })
}

/// The columns of a table with their declared types. None: there is no such table.
pub(super) fn columns_of(connection: &Connection, table: &str) -> StoreResult<Vec<(String, String)>> {
    let mut statement = connection.prepare_cached("SELECT name, type FROM pragma_table_info(?)").map_err(refusal)?;
    let rows = statement.query_map([table], |row| Ok((row.get(0)?, row.get(1)?))).map_err(refusal)?;
    rows.collect::<rusqlite::Result<_>>().map_err(refusal)
}

/// The type of the payload, by SQLite's own rule of affinity: JSON is text that is called so.
fn payload_type(declared: &str) -> PayloadType {
    let declared = declared.to_ascii_uppercase();
    if declared.contains("JSON") {
        PayloadType::Json
    } else if holds_bytes(&declared) {
        PayloadType::Bytes
    } else {
        PayloadType::Text
    }
}

/// Whether a column of this declared type is meant for bytes.
pub(super) fn holds_bytes(declared: &str) -> bool {
    let declared = declared.to_ascii_uppercase();
    declared.is_empty() || declared.contains("BLOB") || declared.contains("BINARY")
}

fn warnings(connection: &Connection, names: &Names) -> StoreResult<Vec<String>> {
    let mut warnings = Vec::new();
    let table = names.options.outbox();
    let sql: Option<String> = connection
        .query_row("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", [&table], |row| row.get(0))
        .optional()
        .map_err(refusal)?;
    if !sql.is_some_and(|sql| sql.to_ascii_uppercase().contains("AUTOINCREMENT")) {
        warnings.push(format!(
            "{table}.{} is not AUTOINCREMENT: SQLite gives the numbers of deleted rows again, so that order is not promised",
            names.options.columns.seq
        ));
    }
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).map_err(refusal)?;
    if !mode.eq_ignore_ascii_case("wal") {
        warnings.push(format!("journal_mode is {mode}, not wal: readers and writers wait for each other"));
    }
    Ok(warnings)
}

fn missing(what: &str, ddl: Option<&str>) -> StoreError {
    let ddl = ddl.map(|ddl| ddl.split_whitespace().collect::<Vec<_>>().join(" "));
    let message = ddl.map_or_else(|| what.to_owned(), |ddl| format!("{what}; it is made by: {ddl}"));
    StoreError::new(StoreErrorKind::NotInitialised, message)
}
