//! DDL: what `init` makes and `init --print` prints. The same for MariaDB and MySQL.

use super::MySqlStore;
use super::catalogue::Layout;
use super::link::Link;
use super::refusal::Failure;
use super::statement::Statement;
use super::upgrade::meta_of;
use super::values::{literal, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{InitPlan, PayloadType, StoreOptions};
use crate::store::{SCHEMA_LEVEL, SCHEMA_VERSION, StoreResult};
use crate::version::{LEVEL, ORIGIN};

/// The shard number of the lease under which pruning and merging run.
pub(super) const MAINTENANCE: i32 = -1;
/// Shards that a plan may name.
pub(super) const MAX_SHARDS: u16 = 1024;
/// DYNAMIC: what is large lies outside of the row. Text that is not said to be bytes compares by code point.
pub(super) const TABLE_END: &str = "ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin";
/// Seconds that one run of `init` waits for another one.
const INIT_WAIT_SECONDS: u32 = 10;

/// One of the relay's own tables.
pub(super) struct Table {
    /// Its name, not quoted.
    pub(super) name: String,
    about: &'static str,
    /// Columns with their types.
    pub(super) columns: &'static [(&'static str, &'static str)],
    keys: &'static str,
}

impl Table {
    pub(super) fn ddl(&self) -> String {
        let columns: Vec<String> =
            self.columns.iter().map(|(name, ty)| format!("  {} {ty},\n", quoted(name))).collect();
        format!(
            "CREATE TABLE IF NOT EXISTS {} (\n{}  {}\n) {TABLE_END}",
            quoted(&self.name),
            columns.concat(),
            self.keys
        )
    }
}

/// The outbox table. Ids and keys are bytes: case, accents and spaces at the end make another one. Times are TIMESTAMP,
/// which means the same moment whatever an application's time zone is.
fn outbox(options: &StoreOptions, plan: &InitPlan) -> String {
    let c = &options.columns;
    let (seq, id, topic, payload) = (quoted(&c.seq), quoted(&c.id), quoted(&c.topic), quoted(&c.payload));
    let key = c.key.as_deref().map(quoted);
    let mut lines = vec![
        format!("{seq} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT"),
        format!("{id} VARBINARY(64) NOT NULL DEFAULT (UUID())"),
        format!("{topic} VARCHAR(255) NOT NULL"),
    ];
    lines.extend(key.iter().map(|key| format!("{key} VARBINARY(255) NULL")));
    lines.extend(c.headers.as_deref().map(|h| format!("{} JSON NULL", quoted(h))));
    let payload_type = match plan.payload {
        PayloadType::Bytes => "LONGBLOB",
        PayloadType::Text => "LONGTEXT",
        PayloadType::Json => "JSON",
    };
    lines.push(format!("{payload} {payload_type} NOT NULL"));
    lines.extend(
        c.created_at.as_deref().map(|t| format!("{} TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)", quoted(t))),
    );
    lines.extend(c.available_at.as_deref().map(|t| format!("{} TIMESTAMP(6) NULL DEFAULT NULL", quoted(t))));
    match c.shard.as_deref().filter(|_| plan.shards > 1).map(quoted) {
        Some(shard) => {
            // A DEFAULT, since MariaDB takes no generated column into a primary key. It stands behind the columns that it
            // looks at.
            let of = shard_of(options, plan.shard_by_key);
            lines.push(format!("{shard} SMALLINT UNSIGNED NOT NULL DEFAULT ({of} % {})", plan.shards));
            lines.push(format!("PRIMARY KEY ({shard}, {seq})"));
            lines.push(format!("KEY {seq} ({seq})"));
            // An application may name a shard, and a DEFAULT cannot keep it from one that nobody delivers. MySQL heeds it
            // from 8.0.16 on.
            lines.push(format!("CHECK ({shard} < {})", plan.shards));
        }
        None => lines.push(format!("PRIMARY KEY ({seq})")),
    }
    format!("CREATE TABLE IF NOT EXISTS {} (\n  {}\n) {TABLE_END}", quoted(&options.outbox()), lines.join(",\n  "))
}

/// The number whose remainder is a row's shard: CRC-32 of the bytes, the same for ever.
pub(super) fn shard_of(options: &StoreOptions, by_key: bool) -> String {
    let c = &options.columns;
    let of = match &c.key {
        _ if !by_key => quoted(&c.topic),
        Some(key) => format!("COALESCE({}, {})", quoted(key), quoted(&c.id)),
        None => quoted(&c.id),
    };
    format!("CRC32({of})")
}

/// The tables of the relay.
pub(super) fn relay_tables(options: &StoreOptions) -> Vec<Table> {
    let table = |name: &str, about, columns, keys| Table { name: options.table(name), about, columns, keys };
    vec![
        table(
            "outbox_log",
            "what was moved: chunks of messages",
            &[
                ("shard", "SMALLINT UNSIGNED NOT NULL"),
                ("base_position", "BIGINT UNSIGNED NOT NULL"),
                ("count", "INT UNSIGNED NOT NULL"),
                ("first_created_at", "DATETIME(6) NOT NULL"),
                ("last_created_at", "DATETIME(6) NOT NULL"),
                ("moved_at", "DATETIME(6) NOT NULL"),
                ("codec", "TINYINT UNSIGNED NOT NULL"),
                ("id_filter", "LONGBLOB NOT NULL"),
                ("chunk", "LONGBLOB NOT NULL"),
            ],
            "PRIMARY KEY (shard, base_position)",
        ),
        table(
            "outbox_receipt",
            "what destinations answered, and where the lanes stand",
            &[
                ("shard", "SMALLINT UNSIGNED NOT NULL"),
                ("number", "BIGINT UNSIGNED NOT NULL"),
                ("epoch", "BIGINT UNSIGNED NOT NULL"),
                ("log_end", "BIGINT UNSIGNED NOT NULL"),
                ("from_position", "BIGINT UNSIGNED NULL"),
                ("to_position", "BIGINT UNSIGNED NULL"),
                ("created_at", "DATETIME(6) NOT NULL"),
                ("lanes", "LONGBLOB NOT NULL"),
            ],
            "PRIMARY KEY (shard, `number`)",
        ),
        table(
            "outbox_parked",
            "messages set aside with their reason",
            &[
                ("destination", "VARBINARY(255) NOT NULL"),
                ("shard", "SMALLINT UNSIGNED NOT NULL"),
                ("position", "BIGINT UNSIGNED NOT NULL"),
                ("id", "BLOB NOT NULL"),
                ("msg_key", "BLOB NULL"),
                ("state", "VARCHAR(16) NOT NULL"),
                ("attempts", "INT UNSIGNED NOT NULL"),
                ("due_at", "BIGINT NOT NULL"),
                ("error_code", "VARCHAR(64) NOT NULL"),
                ("error_text", "MEDIUMTEXT NOT NULL"),
                ("first_failed_at", "BIGINT NOT NULL"),
                ("last_failed_at", "BIGINT NOT NULL"),
                ("codec", "TINYINT UNSIGNED NOT NULL"),
                ("message", "LONGBLOB NOT NULL"),
                ("oversize_payload", "LONGBLOB NULL"),
            ],
            "PRIMARY KEY (destination, shard, `position`),\n  KEY by_position (shard, `position`),\n  \
             KEY by_key (msg_key(64)),\n  KEY by_reason (destination, shard, error_code, `position`, state)",
        ),
        table(
            "outbox_act",
            "what operators ordered: who, when, why, and how far it has got",
            &[
                ("act_number", "BIGINT UNSIGNED NOT NULL"),
                ("shard", "SMALLINT UNSIGNED NOT NULL"),
                ("created_at", "BIGINT NOT NULL"),
                ("actor", "VARCHAR(255) NOT NULL"),
                ("why", "VARCHAR(1000) NOT NULL"),
                ("verb", "VARCHAR(16) NOT NULL"),
                ("destination", "VARBINARY(255) NULL"),
                ("message_id", "BLOB NULL"),
                ("selector", "TEXT NOT NULL"),
                ("content", "LONGBLOB NULL"),
                ("state", "VARCHAR(16) NOT NULL"),
                ("next_position", "BIGINT UNSIGNED NOT NULL DEFAULT 0"),
                ("messages_changed", "BIGINT UNSIGNED NOT NULL DEFAULT 0"),
                ("messages_left", "BIGINT UNSIGNED NOT NULL DEFAULT 0"),
                ("note", "VARCHAR(1000) NOT NULL DEFAULT ''"),
                ("finished_at", "BIGINT NULL"),
                ("original", "LONGBLOB NULL"),
                ("original_payload", "LONGBLOB NULL"),
            ],
            "PRIMARY KEY (act_number, shard),\n  KEY by_state (state, shard, verb)",
        ),
        table(
            "outbox_pause",
            "what is paused; an empty destination is all of the shard",
            &[
                ("shard", "SMALLINT UNSIGNED NOT NULL"),
                ("destination", "VARBINARY(255) NOT NULL"),
                ("act_number", "BIGINT UNSIGNED NOT NULL"),
                ("since", "BIGINT NOT NULL"),
                ("actor", "VARCHAR(255) NOT NULL"),
                ("why", "VARCHAR(1000) NOT NULL"),
            ],
            "PRIMARY KEY (shard, destination)",
        ),
        table(
            "outbox_transaction",
            "transactional messages: the application inserts, first of all in its transaction",
            &[
                ("id", "VARBINARY(64) NOT NULL"),
                ("message_id", "VARBINARY(64) NULL"),
                ("topic", "VARCHAR(255) NULL"),
                ("msg_key", "VARBINARY(255) NULL"),
                ("headers", "JSON NULL"),
                ("payload", "LONGBLOB NULL"),
                ("state", "VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'committed'"),
                ("receipt", "VARCHAR(255) NULL"),
                ("created_at", "TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"),
                ("since_at", "DATETIME(6) NULL"),
            ],
            "PRIMARY KEY (id),\n  KEY by_state (state, since_at)",
        ),
        table(
            "outbox_lease",
            "who owns which shard; shard -1 is maintenance",
            &[
                ("shard", "SMALLINT NOT NULL"),
                ("owner", "VARBINARY(255) NULL"),
                ("epoch", "BIGINT UNSIGNED NOT NULL"),
                ("expires_at", "DATETIME(6) NULL"),
            ],
            "PRIMARY KEY (shard)",
        ),
        table(
            "outbox_instance",
            "relay processes and their heartbeats",
            &[
                ("owner", "VARBINARY(255) NOT NULL"),
                ("version", "VARCHAR(64) NOT NULL"),
                ("draining", "BOOLEAN NOT NULL"),
                ("heartbeat", "DATETIME(6) NOT NULL"),
                ("troubles", "MEDIUMTEXT NULL"),
                ("config", "VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT ''"),
            ],
            "PRIMARY KEY (owner)",
        ),
        table(
            "outbox_meta",
            "what these tables are, and what destinations remember",
            &[("name", "VARCHAR(300) NOT NULL"), ("value", "MEDIUMTEXT NOT NULL")],
            "PRIMARY KEY (name)",
        ),
    ]
}

/// A lease for each shard, and that of maintenance.
pub(super) fn lease_rows(options: &StoreOptions, shards: u16) -> String {
    let leases: Vec<String> = (MAINTENANCE..i32::from(shards)).map(|shard| format!("({shard}, 0)")).collect();
    format!(
        "INSERT INTO {} (shard, epoch) VALUES {} ON DUPLICATE KEY UPDATE shard = shard",
        quoted(&options.table("outbox_lease")),
        leases.join(", ")
    )
}

/// The rows that the relay expects. What is there already is left as it is.
fn rows(options: &StoreOptions, plan: &InitPlan) -> [String; 3] {
    let shard_by = if plan.shard_by_key { "key" } else { "topic" };
    [
        lease_rows(options, plan.shards),
        format!(
            "INSERT INTO {} (name, value) VALUES ('schema_version', '{SCHEMA_VERSION}'), ('{LEVEL}', '{SCHEMA_LEVEL}'), \
             ('shards', '{}'), ('mode', 'move'), ('shard_by', '{shard_by}') ON DUPLICATE KEY UPDATE name = name",
            quoted(&options.table("outbox_meta")),
            plan.shards
        ),
        origin_row(options),
    ]
}

/// What names this outbox to others, the same for ever.
pub(super) fn origin_row(options: &StoreOptions) -> String {
    format!(
        "INSERT INTO {} (name, value) VALUES ('{ORIGIN}', UUID()) ON DUPLICATE KEY UPDATE name = name",
        quoted(&options.table("outbox_meta"))
    )
}

/// The DDL for a DBA, in order, with the GRANTs as comments in front of the rows: a script may not end in a comment.
pub(super) fn print(options: &StoreOptions, plan: &InitPlan) -> String {
    let mut out = format!("-- Outhaul, schema version {SCHEMA_VERSION}, for MariaDB 10.6, MySQL 8.0.13, and later.\n");
    let name = options.outbox();
    out += &format!(
        "\n-- {name}: the hot table: applications INSERT, the relay takes rows away\n{};\n",
        outbox(options, plan)
    );
    for table in relay_tables(options) {
        out += &format!("\n-- {}: {}\n{};\n", table.name, table.about, table.ddl());
    }
    out += &grants(options);
    out += "\n-- Rows that the relay expects.\n";
    rows(options, plan).iter().for_each(|s| out += &format!("{s};\n"));
    out
}

fn grants(options: &StoreOptions) -> String {
    let outbox = quoted(&options.outbox());
    let t = |name: &str| quoted(&options.table(name));
    format!(
        "
-- The application's user needs this and nothing else:
--   GRANT INSERT ON {outbox} TO application;
-- One that sends transactional messages of RocketMQ needs these, and so does `outhaul checkback`, and nothing else:
--   GRANT SELECT, INSERT, UPDATE ON {transaction} TO transactional;
--   GRANT SELECT ON {meta} TO transactional;
-- The relay's user:
--   GRANT SELECT, INSERT, UPDATE, DELETE ON {outbox} TO relay;
--   GRANT SELECT, INSERT, DELETE ON {log} TO relay;
--   GRANT SELECT, INSERT, DELETE ON {receipt} TO relay;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON {parked} TO relay;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON {instance} TO relay;
--   GRANT SELECT, UPDATE ON {lease} TO relay;
--   GRANT SELECT, INSERT, UPDATE ON {meta} TO relay;
--   GRANT SELECT, INSERT, UPDATE ON {act} TO relay;
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

/// Statements that change nothing and fail where the relay's user may not do what the relay will do, or where the
/// server does not let anybody write.
pub(super) fn probes(options: &StoreOptions, layout: &Layout) -> Vec<String> {
    let t = |name: &str| quoted(&options.table(name));
    let insert = |table: &str| {
        let table = t(table);
        format!("INSERT INTO {table} SELECT * FROM {table} WHERE 1 = 0")
    };
    let delete = |table: &str| format!("DELETE FROM {} WHERE 1 = 0", t(table));
    let update = |table: &str, column: &str| format!("UPDATE {} SET {column} = {column} WHERE 1 = 0", t(table));
    vec![
        format!("SELECT {} FROM {} WHERE 1 = 0", layout.seq, layout.table),
        format!("DELETE FROM {} WHERE 1 = 0", layout.table),
        insert("outbox_log"),
        delete("outbox_log"),
        insert("outbox_receipt"),
        delete("outbox_receipt"),
        insert("outbox_parked"),
        update("outbox_parked", "state"),
        delete("outbox_parked"),
        insert("outbox_instance"),
        update("outbox_instance", "version"),
        delete("outbox_instance"),
        update("outbox_lease", "epoch"),
        insert("outbox_meta"),
        update("outbox_meta", "value"),
        insert("outbox_act"),
        update("outbox_act", "state"),
        insert("outbox_pause"),
        delete("outbox_pause"),
        update("outbox_transaction", "state"),
        delete("outbox_transaction"),
    ]
}

/// The same for what only scheduled messages need.
pub(super) fn scheduled_probe(layout: &Layout, available_at: &str) -> String {
    format!("UPDATE {} SET {available_at} = {available_at} WHERE 1 = 0", layout.table)
}

/// The statement that would add a missing `seq` column to a table that was made for something else.
pub(super) fn adopt(options: &StoreOptions) -> String {
    let (table, seq) = (quoted(&options.outbox()), quoted(&options.columns.seq));
    format!("ALTER TABLE {table} ADD COLUMN {seq} BIGINT UNSIGNED NOT NULL AUTO_INCREMENT, ADD UNIQUE KEY ({seq})")
}

fn check_plan(options: &StoreOptions, plan: &InitPlan) -> StoreResult<()> {
    let refuse = |what: String| Err(StoreError::new(StoreErrorKind::Configuration, what));
    if plan.shards == 0 || plan.shards > MAX_SHARDS {
        return refuse(format!("a plan has 1 to {MAX_SHARDS} shards, not {}", plan.shards));
    }
    if plan.shards > 1 && options.columns.shard.is_none() {
        return refuse("several shards need a shard column, and the column names say that there is none".into());
    }
    Ok(())
}

impl MySqlStore {
    /// DDL is not undone when something fails behind it; each statement may be repeated. A lock of a name keeps two runs
    /// apart; it goes away with the connection.
    pub(super) async fn make_tables(&self, plan: &InitPlan) -> StoreResult<()> {
        check_plan(&self.options, plan)?;
        let mut held = self.other.take(&self.dialer).await?;
        let result = self.make_missing(&mut held.link, plan).await;
        let unlocked = held.link.run(&[Statement::new(format!("DO RELEASE_LOCK({})", init_lock()))]).await;
        self.forget_layout();
        let result = match (result, unlocked) {
            (Ok(_), Err(failure)) => Err(failure),
            (result, _) => result,
        };
        held.give_back(result)?
    }

    /// The outer result is about the connection, the inner one about the tables.
    async fn make_missing(&self, link: &mut Link, plan: &InitPlan) -> Result<StoreResult<()>, Failure> {
        let meta = self.options.table("outbox_meta");
        let look = [
            format!("DO GET_LOCK({}, {INIT_WAIT_SECONDS})", init_lock()),
            format!(
                "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {}",
                literal(&meta)
            ),
        ];
        let answers = link.run(&look.map(Statement::new)).await?;
        if answers.last().is_some_and(|a| !a.rows.is_empty()) {
            let sql = format!("SELECT name, value FROM {}", quoted(&meta));
            let answer = link.run(&[Statement::new(sql)]).await?.into_iter().next().unwrap_or_default();
            // An empty one is what an earlier run left that did not get to its end.
            if !answer.rows.is_empty()
                && let Err(error) = meta_of(answer)?.check(Some(plan.shards))
            {
                return Ok(Err(error));
            }
        }
        let mut statements = vec![outbox(&self.options, plan)];
        statements.extend(relay_tables(&self.options).iter().map(Table::ddl));
        statements.extend(rows(&self.options, plan));
        let statements: Vec<Statement> = statements.into_iter().map(Statement::new).collect();
        link.run(&statements).await.map(|_| Ok(()))
    }
}

/// One for each database of the server: its name has at most 64 characters.
pub(super) fn init_lock() -> &'static str {
    "CONCAT('outhaul.init.', CRC32(DATABASE()))"
}
