//! DDL: what `init` makes and `init --print` prints.

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Held, Statement};
use super::upgrade::meta_of;
use super::values::{literal, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{InitPlan, PayloadType, StoreOptions};
use crate::store::{SCHEMA_LEVEL, SCHEMA_VERSION, StoreResult};
use crate::version::{LEVEL, ORIGIN};

/// The shard number of the lease under which pruning and merging run.
pub(super) const MAINTENANCE: i16 = -1;
/// Shards that a plan may name.
pub(super) const MAX_SHARDS: u16 = 1024;
/// Keys of the advisory lock that keeps two runs of `init` apart, for the length of the transaction.
pub(super) const INIT_LOCK: &str = "SELECT pg_advisory_xact_lock(1869968492, 1)";

/// A table with the statements that make it.
pub(super) struct Table {
    /// Its name, not quoted.
    pub(super) name: String,
    about: &'static str,
    pub(super) statements: Vec<String>,
    /// Its columns; none for the outbox, whose columns may be mapped.
    columns: Vec<String>,
}

impl Table {
    fn with_index(mut self, about: &str, columns: &str) -> Self {
        let index = quoted(&format!("{}_{about}", self.name));
        self.statements.push(format!("CREATE INDEX IF NOT EXISTS {index} ON {} ({columns})", quoted(&self.name)));
        self
    }
}

fn outbox(options: &StoreOptions, plan: &InitPlan, version: i32) -> Table {
    let c = &options.columns;
    let (seq, id, topic, payload) = (quoted(&c.seq), quoted(&c.id), quoted(&c.topic), quoted(&c.payload));
    let key = c.key.as_deref().map(quoted);
    let mut columns = vec![format!("{seq} bigint GENERATED ALWAYS AS IDENTITY")];
    let shard = c.shard.as_deref().filter(|_| plan.shards > 1);
    if let Some(shard) = shard {
        columns.push(shard_column(options, plan.shard_by_key, plan.shards, shard));
    }
    // gen_random_uuid() came with PostgreSQL 13.
    let uuid = if version >= 130_000 {
        "gen_random_uuid()::text"
    } else {
        "md5(random()::text || clock_timestamp()::text)::uuid::text"
    };
    columns.push(format!("{id} varchar(64) COLLATE \"C\" NOT NULL DEFAULT {uuid}"));
    columns.push(format!("{topic} varchar(255) COLLATE \"C\" NOT NULL"));
    columns.extend(key.map(|key| format!("{key} varchar(255) COLLATE \"C\"")));
    columns.extend(c.headers.as_deref().map(|h| format!("{} json", quoted(h))));
    let payload_type = match plan.payload {
        PayloadType::Bytes => "bytea",
        PayloadType::Text => "text",
        PayloadType::Json => "jsonb",
    };
    columns.push(format!("{payload} {payload_type} NOT NULL"));
    columns.extend(
        c.created_at.as_deref().map(|t| format!("{} timestamptz(6) NOT NULL DEFAULT clock_timestamp()", quoted(t))),
    );
    columns.extend(c.available_at.as_deref().map(|t| format!("{} timestamptz(6)", quoted(t))));
    let key_columns = shard.map(quoted).map_or_else(|| seq.clone(), |shard| format!("{shard}, {seq}"));
    columns.push(format!("PRIMARY KEY ({key_columns})"));
    // The table is nearly always empty and every row in it dies young: vacuum by the number of dead rows alone, at full
    // speed, and keep the pages for the next rows (giving them back takes a lock that stops everybody).
    let insert_threshold = if version >= 130_000 { "\n  autovacuum_vacuum_insert_threshold = -1," } else { "" };
    let storage = format!(
        "  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,{insert_threshold}
  autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, vacuum_truncate = false,
  toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 5000,
  toast.autovacuum_vacuum_cost_delay = 0, toast.vacuum_truncate = false"
    );
    let name = options.outbox();
    let create =
        format!("CREATE TABLE IF NOT EXISTS {} (\n  {}\n) WITH (\n{storage}\n)", quoted(&name), columns.join(",\n  "));
    Table {
        name,
        about: "the hot table: applications INSERT, the relay takes rows away",
        statements: vec![create],
        columns: Vec::new(),
    }
}

/// The shard column with its expression: md5 of the bytes, the same for ever, whatever the server's version or machine.
pub(super) fn shard_column(options: &StoreOptions, by_key: bool, shards: u16, name: &str) -> String {
    let c = &options.columns;
    let of = match &c.key {
        _ if !by_key => quoted(&c.topic),
        Some(key) => format!("coalesce({}, {})", quoted(key), quoted(&c.id)),
        None => quoted(&c.id),
    };
    let hash = format!("('x' || substr(md5({of}), 1, 8))::bit(32)::bigint");
    format!("{} smallint NOT NULL GENERATED ALWAYS AS (({hash} % {shards})::smallint) STORED", quoted(name))
}

/// The tables of the relay. Values that are compressed already are stored as they are: EXTERNAL.
pub(super) fn tables(options: &StoreOptions, plan: &InitPlan, version: i32) -> Vec<Table> {
    let table = |name: &str, about, columns: &str, with: &str, external: &[&str]| {
        let name = options.table(name);
        let mut statements = vec![format!("CREATE TABLE IF NOT EXISTS {} (\n{columns}\n){with}", quoted(&name))];
        statements.extend(
            external.iter().map(|c| format!("ALTER TABLE {} ALTER COLUMN {c} SET STORAGE EXTERNAL", quoted(&name))),
        );
        // One column a line, its name first.
        let first_word = |line: &str| line.split_whitespace().next().filter(|w| *w != "PRIMARY").map(str::to_owned);
        Table { name, about, statements, columns: columns.lines().filter_map(first_word).collect() }
    };
    // Few rows that are updated all the time: room for HOT updates, vacuumed often.
    let busy = " WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)";
    vec![
        outbox(options, plan, version),
        table(
            "outbox_log",
            "what was moved: chunks of messages",
            "  shard smallint NOT NULL,
  base_position bigint NOT NULL,
  count integer NOT NULL,
  first_created_at timestamptz(6) NOT NULL,
  last_created_at timestamptz(6) NOT NULL,
  moved_at timestamptz(6) NOT NULL,
  codec smallint NOT NULL,
  id_filter bytea NOT NULL,
  chunk bytea NOT NULL,
  PRIMARY KEY (shard, base_position)",
            "",
            &["id_filter", "chunk"],
        ),
        table(
            "outbox_receipt",
            "what destinations answered, and where the lanes stand",
            "  shard smallint NOT NULL,
  number bigint NOT NULL,
  epoch bigint NOT NULL,
  log_end bigint NOT NULL,
  from_position bigint,
  to_position bigint,
  created_at timestamptz(6) NOT NULL,
  lanes bytea NOT NULL,
  PRIMARY KEY (shard, number)",
            "",
            &["lanes"],
        ),
        table(
            "outbox_parked",
            "messages set aside with their reason",
            "  destination varchar(255) COLLATE \"C\" NOT NULL,
  shard smallint NOT NULL,
  position bigint NOT NULL,
  id text COLLATE \"C\" NOT NULL,
  msg_key text COLLATE \"C\",
  state varchar(16) NOT NULL,
  attempts bigint NOT NULL,
  due_at bigint NOT NULL,
  error_code varchar(64) NOT NULL,
  error_text text NOT NULL,
  first_failed_at bigint NOT NULL,
  last_failed_at bigint NOT NULL,
  codec smallint NOT NULL,
  message bytea NOT NULL,
  oversize_payload bytea,
  PRIMARY KEY (destination, shard, position)",
            "",
            &["message"],
        )
        .with_index("by_key", "msg_key")
        .with_index("by_reason", "destination, shard, error_code, position, state"),
        table(
            "outbox_act",
            "what operators ordered: who, when, why, and how far it has got",
            "  act_number bigint NOT NULL,
  shard smallint NOT NULL,
  created_at bigint NOT NULL,
  actor varchar(255) NOT NULL,
  why varchar(1000) NOT NULL,
  verb varchar(16) NOT NULL,
  destination varchar(255) COLLATE \"C\",
  message_id text COLLATE \"C\",
  selector text NOT NULL,
  content bytea,
  state varchar(16) NOT NULL,
  next_position bigint NOT NULL DEFAULT 0,
  messages_changed bigint NOT NULL DEFAULT 0,
  messages_left bigint NOT NULL DEFAULT 0,
  note varchar(1000) NOT NULL DEFAULT '',
  finished_at bigint,
  original bytea,
  original_payload bytea,
  PRIMARY KEY (act_number, shard)",
            "",
            &[],
        )
        .with_index("by_state", "state, shard, verb"),
        table(
            "outbox_pause",
            "what is paused; an empty destination is all of the shard",
            "  shard smallint NOT NULL,
  destination varchar(255) COLLATE \"C\" NOT NULL,
  act_number bigint NOT NULL,
  since bigint NOT NULL,
  actor varchar(255) NOT NULL,
  why varchar(1000) NOT NULL,
  PRIMARY KEY (shard, destination)",
            "",
            &[],
        ),
        table(
            "outbox_transaction",
            "transactional messages: the application inserts, first of all in its transaction",
            "  id varchar(64) COLLATE \"C\" NOT NULL PRIMARY KEY,
  message_id varchar(64) COLLATE \"C\",
  topic varchar(255) COLLATE \"C\",
  msg_key varchar(255) COLLATE \"C\",
  headers json,
  payload bytea,
  state varchar(16) COLLATE \"C\" NOT NULL DEFAULT 'committed',
  receipt varchar(255),
  created_at timestamptz(6) NOT NULL DEFAULT clock_timestamp(),
  since_at timestamptz(6)",
            "",
            &[],
        )
        .with_index("by_state", "state, since_at"),
        table(
            "outbox_lease",
            "who owns which shard; shard -1 is maintenance",
            "  shard smallint NOT NULL PRIMARY KEY,
  owner varchar(255) COLLATE \"C\",
  epoch bigint NOT NULL,
  expires_at timestamptz(6)",
            busy,
            &[],
        ),
        table(
            "outbox_instance",
            "relay processes and their heartbeats",
            "  owner varchar(255) COLLATE \"C\" NOT NULL PRIMARY KEY,
  version varchar(64) NOT NULL,
  draining boolean NOT NULL,
  heartbeat timestamptz(6) NOT NULL,
  troubles text NOT NULL DEFAULT '',
  config text NOT NULL DEFAULT ''",
            busy,
            &[],
        ),
        table(
            "outbox_meta",
            "what these tables are, and what destinations remember",
            "  name varchar(300) COLLATE \"C\" NOT NULL PRIMARY KEY,\n  value text NOT NULL",
            "",
            &[],
        ),
    ]
}

/// Tables and columns that a relay needs besides the outbox: names, side by side.
pub(super) fn needed(options: &StoreOptions) -> (Vec<String>, Vec<String>) {
    let tables = tables(options, &InitPlan::default(), 0);
    tables.iter().flat_map(|t| t.columns.iter().map(|c| (t.name.clone(), c.clone()))).unzip()
}

/// A lease for each shard, and that of maintenance.
pub(super) fn lease_rows(options: &StoreOptions, shards: u16) -> String {
    format!(
        "INSERT INTO {} (shard, epoch) SELECT n, 0 FROM generate_series({MAINTENANCE}, {}) n ON CONFLICT (shard) DO NOTHING",
        quoted(&options.table("outbox_lease")),
        i32::from(shards) - 1
    )
}

fn rows(options: &StoreOptions, plan: &InitPlan) -> [String; 3] {
    let shard_by = if plan.shard_by_key { "key" } else { "topic" };
    [
        lease_rows(options, plan.shards),
        format!(
            "INSERT INTO {} (name, value) VALUES ('schema_version', '{SCHEMA_VERSION}'), ('{LEVEL}', '{SCHEMA_LEVEL}'), \
             ('shards', '{}'), ('mode', 'move'), ('shard_by', '{shard_by}') ON CONFLICT (name) DO NOTHING",
            quoted(&options.table("outbox_meta")),
            plan.shards
        ),
        origin_row(options),
    ]
}

/// What names this outbox to others, the same for ever.
pub(super) fn origin_row(options: &StoreOptions) -> String {
    format!(
        "INSERT INTO {} (name, value) VALUES ('{ORIGIN}', md5(random()::text || clock_timestamp()::text)::uuid::text) \
         ON CONFLICT (name) DO NOTHING",
        quoted(&options.table("outbox_meta"))
    )
}

/// The DDL for a DBA, in order, then the GRANTs as comments.
pub(super) fn print(options: &StoreOptions, plan: &InitPlan, version: i32) -> String {
    let mut out = format!(
        "-- Outhaul, schema version {SCHEMA_VERSION}, for PostgreSQL {}.\n",
        if version >= 130_000 { "13 and later" } else { "12 and later" }
    );
    for table in tables(options, plan, version) {
        out += &format!("\n-- {}: {}\n", table.name, table.about);
        table.statements.iter().for_each(|s| out += &format!("{s};\n"));
    }
    out += "\n-- Rows that the relay expects.\n";
    rows(options, plan).iter().for_each(|s| out += &format!("{s};\n"));
    out += &grants(options);
    out
}

fn grants(options: &StoreOptions) -> String {
    let outbox = quoted(&options.outbox());
    let t = |name: &str| quoted(&options.table(name));
    // The name that PostgreSQL gives to an identity column's sequence, where it is not too long.
    let sequence = quoted(&format!("{}_{}_seq", options.outbox(), options.columns.seq));
    format!(
        "
-- The application's user needs this and nothing else (no right on the sequence of an identity column):
--   GRANT INSERT ON {outbox} TO application;
-- One that sends transactional messages of RocketMQ needs these, and so does `outhaul checkback`, and nothing else:
--   GRANT SELECT, INSERT, UPDATE ON {transaction} TO transactional;
--   GRANT SELECT ON {meta} TO transactional;
-- The relay's user:
--   GRANT SELECT, INSERT, UPDATE, DELETE ON {outbox} TO relay;
--   GRANT SELECT, INSERT, DELETE ON {log}, {receipt} TO relay;
--   GRANT SELECT ON SEQUENCE {sequence} TO relay;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON {parked}, {instance} TO relay;
--   GRANT SELECT, UPDATE ON {lease} TO relay;
--   GRANT SELECT, INSERT, UPDATE ON {meta}, {act} TO relay;
--   GRANT SELECT, INSERT, DELETE ON {pause} TO relay;
--   GRANT SELECT, UPDATE, DELETE ON {transaction} TO relay;
-- (INSERT on {outbox} is for `outhaul enqueue`, and for transactional messages that the broker did not deliver.)
",
        log = t("outbox_log"),
        receipt = t("outbox_receipt"),
        parked = t("outbox_parked"),
        instance = t("outbox_instance"),
        lease = t("outbox_lease"),
        meta = t("outbox_meta"),
        act = t("outbox_act"),
        pause = t("outbox_pause"),
        transaction = t("outbox_transaction"),
    )
}

/// Rights that the first level did not need: on what was added, to make scheduled rows ordinary ones, and to put
/// transactional messages into the outbox.
pub(super) fn new_grants(options: &StoreOptions) -> Vec<String> {
    let t = |name: &str| quoted(&options.table(name));
    vec![
        format!("GRANT INSERT, UPDATE ON {} TO relay", quoted(&options.outbox())),
        format!("GRANT SELECT, INSERT, UPDATE ON {} TO relay", t("outbox_act")),
        format!("GRANT SELECT, INSERT, DELETE ON {} TO relay", t("outbox_pause")),
        format!("GRANT SELECT, UPDATE, DELETE ON {} TO relay", t("outbox_transaction")),
    ]
}

impl PostgresStore {
    pub(super) async fn make_tables(&self, plan: &InitPlan) -> StoreResult<()> {
        if plan.shards == 0 || plan.shards > MAX_SHARDS {
            let what = format!("a plan has 1 to {MAX_SHARDS} shards, not {}", plan.shards);
            return Err(StoreError::new(StoreErrorKind::Configuration, what));
        }
        if plan.shards > 1 && self.options.columns.shard.is_none() {
            let what = "several shards need a shard column, and the column names say that there is none";
            return Err(StoreError::new(StoreErrorKind::Configuration, what));
        }
        let held = self.other.take(&self.dialer).await?;
        let result = self.make_missing(&held, plan).await;
        self.forget_layout();
        match result {
            Ok(statements) => {
                let statements: Vec<Statement<'_>> = statements.iter().map(|s| Statement::new(s)).collect();
                let result = held.link.run_and_commit(&statements).await;
                held.give_back(result).map(|_| ())
            }
            Err(error) => {
                let result = held.link.rollback().await;
                held.give_back(result)?;
                Err(error)
            }
        }
    }

    /// Begins the transaction and returns what is left to run in it.
    async fn make_missing(&self, held: &Held<'_>, plan: &InitPlan) -> StoreResult<Vec<String>> {
        let tables = tables(&self.options, plan, self.dialer.version());
        let names: Vec<String> = tables.iter().map(|t| quoted(&t.name)).collect();
        let there =
            "SELECT to_regclass(n) IS NOT NULL FROM unnest($1::text[]) WITH ORDINALITY t(n, place) ORDER BY place";
        let statements = [Statement::new(INIT_LOCK), Statement::new(there).with(&names, Type::TEXT_ARRAY)];
        let answers = held.link.begin(&self.dialer.begin_write, &statements).await.map_err(|f| f.error)?;
        let there: Vec<bool> =
            answers.get(1).into_iter().flatten().map(|row| super::link::get(row, 0)).collect::<StoreResult<_>>()?;
        if there.last() == Some(&true) {
            let sql = format!("SELECT name, value FROM {}", quoted(&self.options.table("outbox_meta")));
            let answers = held.link.run(&[Statement::new(&sql)]).await.map_err(|f| f.error)?;
            let rows = answers.into_iter().next().unwrap_or_default();
            meta_of(&rows)?.check(Some(plan.shards))?;
        }
        let missing = tables.iter().zip(there).filter(|(_, there)| !there);
        let mut statements: Vec<String> = missing.flat_map(|(t, _)| t.statements.iter().cloned()).collect();
        statements.extend(rows(&self.options, plan));
        Ok(statements)
    }
}

/// The statement that would add a missing `seq` column to a table that was made for something else.
pub(super) fn adopt(options: &StoreOptions) -> String {
    let (table, seq) = (quoted(&options.outbox()), quoted(&options.columns.seq));
    format!("ALTER TABLE {table} ADD COLUMN {seq} bigint GENERATED BY DEFAULT AS IDENTITY, ADD UNIQUE ({seq})")
}

/// A table's name as a literal that is looked up with the search path.
pub(super) fn regclass(name: &str) -> String {
    format!("to_regclass({})", literal(&quoted(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_12_gets_no_function_or_setting_of_a_later_one() {
        let options = StoreOptions::new("postgres://u@h/d");
        let plan = InitPlan { shards: 4, ..InitPlan::default() };
        for (version, later) in [(120_000, false), (130_000, true), (170_002, true)] {
            let ddl = print(&options, &plan, version);
            assert_eq!(ddl.contains("gen_random_uuid"), later, "{version}");
            assert_eq!(ddl.contains("autovacuum_vacuum_insert_threshold"), later, "{version}");
        }
    }

    #[test]
    fn columns_are_those_of_the_ddl() {
        let (tables, columns) = needed(&StoreOptions::new("postgres://u@h/d"));
        let of = |table: &str| -> Vec<&str> {
            tables.iter().zip(&columns).filter(|(t, _)| *t == table).map(|(_, c)| c.as_str()).collect()
        };
        assert_eq!(of("outbox_meta"), ["name", "value"]);
        assert_eq!(of("outbox_lease"), ["shard", "owner", "epoch", "expires_at"]);
        assert!(of("outbox").is_empty());
    }
}
