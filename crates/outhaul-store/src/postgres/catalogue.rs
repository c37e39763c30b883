//! What the catalogue says of the tables: columns and their types, the sequence, rights, and settings to warn about.

use std::sync::{Arc, PoisonError};

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Slot, Statement, get};
use super::schema::{adopt, needed, regclass};
use super::values::{literal, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{PayloadType, StoreOptions};
use crate::shards::{LOOKED_AT, check_leases, stray};
use crate::store::{SchemaInfo, StoreResult};
use crate::version::{Known, no_scheduled};

/// A time column of the outbox table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TimeColumn {
    /// Its name, quoted.
    pub(super) name: String,
    /// Whether it has a time zone. One without is taken as UTC.
    pub(super) zoned: bool,
}

impl TimeColumn {
    /// The column of `o` with its time zone.
    pub(super) fn of_o(&self) -> String {
        if self.zoned { format!("o.{}", self.name) } else { format!("(o.{} AT TIME ZONE 'UTC')", self.name) }
    }
}

/// The sequence that gives `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    /// Its name as SQL, quoted where needed.
    pub(super) name: String,
    increment: i64,
}

/// The outbox table as it is. Looked up once, and again after an error that says it has changed.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Shard count in the meta table.
    pub(super) shards: u16,
    /// The table, quoted.
    pub(super) table: String,
    pub(super) seq: String,
    /// Column names, quoted.
    pub(super) shard: Option<String>,
    pub(super) id: String,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) headers: Option<String>,
    pub(super) payload: String,
    pub(super) payload_type: PayloadType,
    pub(super) created_at: Option<TimeColumn>,
    pub(super) available_at: Option<TimeColumn>,
    /// Types of id, topic, key, headers and payload without their lengths, for casts of what is inserted.
    pub(super) types: [String; 5],
    /// The database is SQL_ASCII: the server does not know what its texts are and refuses to send those that are not
    /// valid in the client's encoding, so that they are fetched as bytes.
    pub(super) opaque_text: bool,
    /// None: `seq` comes from no sequence that only counts up.
    pub(super) sequence: Option<Sequence>,
}

/// A column of the catalogue: name and base type.
struct Columns(Vec<(String, String)>);

impl Columns {
    fn of(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, ty)| ty.as_str())
    }

    fn wanted(&self, options: &StoreOptions, name: &str) -> StoreResult<&str> {
        self.of(name).ok_or_else(|| {
            let mut what = format!("table {} has no column {name}", options.outbox());
            if name == options.columns.seq {
                what += &format!("; add it: {}", adopt(options));
            }
            StoreError::new(StoreErrorKind::NotInitialised, what)
        })
    }

    fn time(&self, options: &StoreOptions, name: Option<&String>) -> StoreResult<Option<TimeColumn>> {
        let Some(name) = name else { return Ok(None) };
        let zoned = match self.wanted(options, name)? {
            "timestamp with time zone" => true,
            "timestamp without time zone" => false,
            ty => return Err(wrong_type(options, name, ty, "timestamptz or timestamp")),
        };
        Ok(Some(TimeColumn { name: quoted(name), zoned }))
    }
}

fn wrong_type(options: &StoreOptions, column: &str, ty: &str, wanted: &str) -> StoreError {
    let what = format!("column {column} of table {} has type {ty}; it must be {wanted}", options.outbox());
    StoreError::new(StoreErrorKind::WrongSchema, what)
}

impl PostgresStore {
    /// The layout, looked up where it is not known.
    pub(super) async fn layout(&self, slot: &Slot) -> StoreResult<Arc<Layout>> {
        let known = self.layout.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(layout) = known {
            return Ok(layout);
        }
        let layout = Arc::new(self.look_up(slot).await?.0);
        *self.layout.lock().unwrap_or_else(PoisonError::into_inner) = Some(layout.clone());
        Ok(layout)
    }

    pub(super) fn forget_layout(&self) {
        *self.layout.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Passes a result on; after an error that may come of a table that has changed, the layout is looked up anew.
    pub(super) fn checked<T>(&self, result: StoreResult<T>) -> StoreResult<T> {
        if let Err(error) = &result
            && matches!(
                error.kind,
                StoreErrorKind::NotInitialised | StoreErrorKind::WrongSchema | StoreErrorKind::Other
            )
        {
            self.forget_layout();
        }
        result
    }

    async fn look_up(&self, slot: &Slot) -> StoreResult<(Layout, Known)> {
        let o = &self.options;
        let (tables, columns_of) = needed(o);
        let (outbox, in_quotes) = (quoted(&o.outbox()), tables.iter().map(|n| quoted(n)).collect::<Vec<_>>());
        // What is not there: a table (without a column), or a column of one.
        let missing = "SELECT t, CASE WHEN to_regclass(q) IS NOT NULL THEN c END \
             FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY n(t, q, c, place) \
             WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = to_regclass(q) AND a.attname = c \
               AND a.attnum > 0 AND NOT a.attisdropped) ORDER BY place LIMIT 1";
        let outbox_is_there = "SELECT to_regclass($1) IS NOT NULL";
        let table = regclass(&o.outbox());
        let columns = format!(
            "SELECT a.attname::text, format_type(coalesce(nullif(t.typbasetype, 0), t.oid), NULL) \
             FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid \
             WHERE a.attrelid = {table} AND a.attnum > 0 AND NOT a.attisdropped"
        );
        // The sequence of an identity or serial column, or the one that the column's DEFAULT calls.
        let sequence = format!(
            "SELECT s.seqrelid::regclass::text, s.seqincrement FROM pg_attribute a, LATERAL ( \
               SELECT d.objid AS seq FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass \
                 AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype IN ('a', 'i') \
               UNION ALL \
               SELECT d.refobjid FROM pg_attrdef f JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid \
                 AND d.refclassid = 'pg_class'::regclass WHERE f.adrelid = a.attrelid AND f.adnum = a.attnum \
             ) x JOIN pg_sequence s ON s.seqrelid = x.seq \
             WHERE a.attrelid = {table} AND a.attname = {} AND NOT a.attisdropped LIMIT 1",
            literal(&o.columns.seq)
        );
        let encoding = "SELECT current_setting('server_encoding')";
        let statements = [
            Statement::new(outbox_is_there).with(&outbox, Type::TEXT),
            Statement::new(&columns),
            Statement::new(&sequence),
            Statement::new(encoding),
            Statement::new(missing)
                .with(&tables, Type::TEXT_ARRAY)
                .with(&in_quotes, Type::TEXT_ARRAY)
                .with(&columns_of, Type::TEXT_ARRAY),
        ];
        let held = slot.take(&self.dialer).await?;
        let answers = held.link.read(&self.dialer.begin_read, &statements).await;
        let answers = held.give_back(answers)?;
        let answer = |n: usize| answers.get(n).map_or(&[][..], Vec::as_slice);
        let not_there = |what: String| Err(StoreError::new(StoreErrorKind::NotInitialised, what));
        if !answer(0).first().map_or(Ok(false), |row| get(row, 0))? {
            return not_there(format!("there is no table {}", o.outbox()));
        }
        // Of an earlier version, before of what such tables lack.
        let known = self.meta(slot).await?.map(|meta| meta.check(None)).transpose()?;
        if let Some(row) = answer(4).first() {
            let table: &str = get(row, 0)?;
            return not_there(match get::<Option<&str>>(row, 1)? {
                Some(column) => format!("table {table} has no column {column}"),
                None => format!("there is no table {table}"),
            });
        }
        let Some(known) = known else {
            return not_there("the meta table has no schema_version: run init".into());
        };
        let columns = answer(1).iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<StoreResult<_>>()?;
        let sequence = match answer(2).first() {
            Some(row) => Some(Sequence { name: get(row, 0)?, increment: get(row, 1)? }),
            None => None,
        };
        let encoding: String = answer(3).first().map_or(Ok(String::new()), |row| get(row, 0))?;
        let layout = layout_of(o, &Columns(columns), known.shards, sequence, encoding == "SQL_ASCII")?;
        Ok((layout, known))
    }

    pub(super) async fn look(&self) -> StoreResult<SchemaInfo> {
        self.forget_layout();
        let (layout, known) = self.look_up(&self.other).await?;
        known.whole?;
        self.check_rights(&layout).await?;
        let (server, mut warnings) = self.warnings(&layout).await?;
        let (leases, warning, stray) = self.look_at_shards(&layout, known.had).await?;
        warnings.extend(warning);
        Ok(SchemaInfo {
            server,
            version: known.version,
            shards: layout.shards,
            leases,
            mode: known.mode,
            payload: layout.payload_type,
            warnings,
            stray,
        })
    }

    /// Whether leases and rows match the number of shards: how many leases, a warning, and what is said of rows.
    async fn look_at_shards(
        &self,
        layout: &Layout,
        had: u16,
    ) -> StoreResult<(usize, Option<String>, Option<StoreError>)> {
        let o = &self.options;
        let leases =
            format!("SELECT shard::bigint FROM {} WHERE shard >= 0 ORDER BY shard", quoted(&o.table("outbox_lease")));
        let has_index = format!(
            "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = {} \
               AND a.attnum = i.indkey[0] WHERE i.indrelid = {} AND i.indisvalid AND i.indpred IS NULL)",
            literal(o.columns.shard.as_deref().unwrap_or_default()),
            regclass(&o.outbox())
        );
        let held = self.other.take(&self.dialer).await?;
        let statements = [Statement::new(&leases), Statement::new(&has_index)];
        let answers = held.link.read(&self.dialer.begin_read, &statements).await;
        let answers = held.give_back(answers)?;
        let mut numbers = Vec::new();
        for row in answers.first().into_iter().flatten() {
            numbers.push(get(row, 0)?);
        }
        let (leases, warning) = (numbers.len(), check_leases(o, &numbers, layout.shards, had)?);
        let Some(shard) = &layout.shard else { return Ok((leases, warning, None)) };
        let table = &layout.table;
        let sql = match answers.get(1).and_then(|rows| rows.first()).map_or(Ok(false), |row| get(row, 0))? {
            // The ends of the index: NULL stands at its end.
            true => format!(
                "(SELECT {shard}::bigint FROM {table} ORDER BY {shard} LIMIT 1) \
                 UNION ALL (SELECT {shard}::bigint FROM {table} ORDER BY {shard} DESC LIMIT 1)"
            ),
            false => format!(
                "SELECT DISTINCT {shard}::bigint FROM (SELECT {shard} FROM {table} ORDER BY {} LIMIT {LOOKED_AT}) oldest",
                layout.seq
            ),
        };
        let mut rows = Vec::new();
        for row in &self.select(&self.other, Statement::new(&sql)).await? {
            rows.push(get(row, 0)?);
        }
        Ok((leases, warning, stray(o, &rows, layout.shards)))
    }

    async fn check_rights(&self, layout: &Layout) -> StoreResult<()> {
        let o = &self.options;
        let t = |name: &str| quoted(&o.table(name));
        let mut tables = vec![(layout.table.clone(), "SELECT"), (layout.table.clone(), "DELETE")];
        for name in ["outbox_log", "outbox_receipt"] {
            tables.extend(["SELECT", "INSERT", "DELETE"].map(|right| (t(name), right)));
        }
        for name in ["outbox_parked", "outbox_instance"] {
            tables.extend(["SELECT", "INSERT", "UPDATE", "DELETE"].map(|right| (t(name), right)));
        }
        tables.extend(["SELECT", "UPDATE"].map(|right| (t("outbox_lease"), right)));
        for name in ["outbox_meta", "outbox_act"] {
            tables.extend(["SELECT", "INSERT", "UPDATE"].map(|right| (t(name), right)));
        }
        tables.extend(["SELECT", "INSERT", "DELETE"].map(|right| (t("outbox_pause"), right)));
        tables.extend(["SELECT", "UPDATE", "DELETE"].map(|right| (t("outbox_transaction"), right)));
        let (names, rights): (Vec<String>, Vec<&str>) = tables.into_iter().unzip();
        let sql = "SELECT n, r FROM unnest($1::text[], $2::text[]) WITH ORDINALITY t(n, r, place) \
                   WHERE NOT has_table_privilege(to_regclass(n), r) ORDER BY place LIMIT 1";
        let sequence = layout.sequence.as_ref().map(|s| literal(&s.name)).unwrap_or("NULL".into());
        let on_sequence = format!("SELECT has_sequence_privilege({sequence}::regclass, 'SELECT')");
        let statements = [
            Statement::new(sql).with(&names, Type::TEXT_ARRAY).with(&rights, Type::TEXT_ARRAY),
            Statement::new(&on_sequence),
        ];
        let held = self.other.take(&self.dialer).await?;
        let answers = held.link.read(&self.dialer.begin_read, &statements).await;
        let answers = held.give_back(answers)?;
        let missing = |what: String| Err(StoreError::new(StoreErrorKind::Permission, what));
        if let Some(row) = answers.first().and_then(|rows| rows.first()) {
            return missing(format!("no right to {} on {}", get::<&str>(row, 1)?, get::<&str>(row, 0)?));
        }
        match (answers.get(1).and_then(|rows| rows.first()), &layout.sequence) {
            (Some(row), Some(s)) if get::<Option<bool>>(row, 0)? == Some(false) => {
                missing(format!("no right to SELECT on sequence {}", s.name))
            }
            _ => Ok(()),
        }
    }

    /// Name and version of the server, and sentences about what promises less than usual.
    async fn warnings(&self, layout: &Layout) -> StoreResult<(String, Vec<String>)> {
        let table = regclass(&self.options.outbox());
        let settings = "SELECT current_setting('server_version'), current_setting('synchronous_commit'), \
                        current_setting('fsync'), current_setting('full_page_writes'), current_setting('autovacuum'), \
                        current_setting('server_encoding')";
        // An index that can serve `seq > low ORDER BY seq`, after the shard where there is one.
        let leading = i32::from(layout.shard.is_some());
        let about_table = format!(
            "SELECT c.relpersistence = 'u', row_security_active(c.oid), EXISTS (SELECT FROM pg_index i JOIN pg_attribute a \
               ON a.attrelid = c.oid AND a.attname = {} AND a.attnum = i.indkey[{leading}] \
               WHERE i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL) \
             FROM pg_class c WHERE c.oid = {table}",
            literal(&self.options.columns.seq)
        );
        let sequence = layout.sequence.as_ref().map(|s| literal(&s.name)).unwrap_or("NULL".into());
        let cache = format!("SELECT seqcache, seqcycle FROM pg_sequence WHERE seqrelid = {sequence}::regclass");
        let available_at = layout.available_at.as_ref().and(self.options.columns.available_at.as_deref());
        let may_take_up = format!(
            "SELECT has_column_privilege(c.oid, a.attnum, 'UPDATE') FROM pg_class c \
             JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = {} WHERE c.oid = {table}",
            literal(available_at.unwrap_or_default())
        );
        let statements = [settings, &about_table, &cache, &may_take_up].map(Statement::new);
        let held = self.other.take(&self.dialer).await?;
        let answers = held.link.read(&self.dialer.begin_read, &statements).await;
        let answers = held.give_back(answers)?;
        let first = |n: usize| answers.get(n).and_then(|rows| rows.first());
        let mut warnings = Vec::new();
        let mut server = String::from("PostgreSQL");
        if let Some(row) = first(0) {
            server = format!("PostgreSQL {}", get::<&str>(row, 0)?);
            if matches!(get::<&str>(row, 1)?, "off") {
                warnings.push(
                    "synchronous_commit is off: a row can be sent although a crash of the server takes its transaction back".into(),
                );
            }
            for (column, setting) in [(2, "fsync"), (3, "full_page_writes")] {
                if get::<&str>(row, column)? == "off" {
                    warnings
                        .push(format!("{setting} is off: a crash of the machine can lose or damage committed rows"));
                }
            }
            if get::<&str>(row, 4)? == "off" {
                warnings.push("autovacuum is off: dead rows pile up in the outbox table".into());
            }
            let encoding: &str = get(row, 5)?;
            if encoding != "UTF8" {
                warnings.push(format!("the database's encoding is {encoding}: texts that are not UTF-8 are parked"));
            }
        }
        let name = self.options.outbox();
        if let Some(row) = first(1) {
            if get(row, 0)? {
                warnings.push(format!("table {name} is UNLOGGED: a crash of the server empties it"));
            }
            if get(row, 1)? {
                warnings
                    .push(format!("row level security hides rows of table {name} from this user: they are never sent"));
            }
            if !get::<bool>(row, 2)? {
                let columns = layout.shard.iter().chain([&layout.seq]).cloned().collect::<Vec<_>>().join(", ");
                warnings.push(format!("table {name} has no index on ({columns}): every poll reads all of it"));
            }
        }
        match first(2) {
            Some(row) => {
                let cache: i64 = get(row, 0)?;
                if cache > 1 {
                    warnings.push(format!(
                        "the sequence of {name} has CACHE {cache}: numbers are not given in the order of the INSERTs, so order is not kept between sessions; ALTER SEQUENCE … CACHE 1"
                    ));
                }
                if get(row, 1)? {
                    warnings.push(format!("the sequence of {name} has CYCLE: order is lost when it starts again"));
                }
            }
            None => warnings.push(format!("column {} of {name} comes from no sequence: order is not kept", layout.seq)),
        }
        if let Some(row) = first(3)
            && !get::<bool>(row, 0)?
        {
            warnings.push(no_scheduled(&name));
        }
        for column in [&layout.created_at, &layout.available_at].into_iter().flatten().filter(|c| !c.zoned) {
            warnings.push(format!("column {} has no time zone: its values are taken as UTC", column.name));
        }
        Ok((server, warnings))
    }
}

fn layout_of(
    o: &StoreOptions,
    columns: &Columns,
    shards: u16,
    sequence: Option<Sequence>,
    opaque_text: bool,
) -> StoreResult<Layout> {
    let c = &o.columns;
    if !matches!(columns.wanted(o, &c.seq)?, "bigint" | "integer" | "smallint") {
        return Err(wrong_type(o, &c.seq, columns.wanted(o, &c.seq)?, "bigint"));
    }
    let shard = match (&c.shard, shards) {
        (_, 1) => None,
        (Some(name), _) => Some(name),
        (None, _) => {
            let what =
                format!("the meta table says {shards} shards, but the column names say that there is no shard column");
            return Err(StoreError::new(StoreErrorKind::WrongSchema, what));
        }
    };
    if let Some(name) = shard {
        columns.wanted(o, name)?;
    }
    let payload = columns.wanted(o, &c.payload)?;
    let payload_type = match payload {
        "bytea" => PayloadType::Bytes,
        "text" | "character varying" | "character" => PayloadType::Text,
        "json" | "jsonb" => PayloadType::Json,
        ty => return Err(wrong_type(o, &c.payload, ty, "bytea, text, json or jsonb")),
    };
    let optional = |name: &Option<String>| -> StoreResult<String> {
        name.as_deref().map_or(Ok("text".into()), |name| columns.wanted(o, name).map(str::to_owned))
    };
    let types = [
        columns.wanted(o, &c.id)?.to_owned(),
        columns.wanted(o, &c.topic)?.to_owned(),
        optional(&c.key)?,
        optional(&c.headers)?,
        payload.to_owned(),
    ];
    Ok(Layout {
        shards,
        table: quoted(&o.outbox()),
        seq: quoted(&c.seq),
        shard: shard.map(|s| quoted(s)),
        id: quoted(&c.id),
        topic: quoted(&c.topic),
        key: c.key.as_deref().map(quoted),
        headers: c.headers.as_deref().map(quoted),
        payload: quoted(&c.payload),
        payload_type,
        created_at: columns.time(o, c.created_at.as_ref())?,
        available_at: columns.time(o, c.available_at.as_ref())?,
        types,
        opaque_text,
        sequence: sequence.filter(|s| s.increment > 0),
    })
}
