//! What the catalogue and the meta table say: which columns there are and of which kind, and whether this build can
//! work with them.

use std::sync::{Arc, PoisonError};

use super::MySqlStore;
use super::link::{Answer, Link, Slot};
use super::refusal::Failure;
use super::schema::{self, adopt};
use super::statement::Statement;
use super::upgrade::meta_of;
use super::values::{literal, number, number_opt, quoted, text, text_opt};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{PayloadType, StoreOptions};
use crate::shards::{LOOKED_AT, check_leases, stray};
use crate::store::{SCHEMA_VERSION, SchemaInfo, StoreResult};
use crate::version::{Known, Meta, no_scheduled};

/// A text column of the outbox, whose bytes have to be compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextColumn {
    /// Name in backticks.
    pub(super) name: String,
    /// It holds bytes: no character set stands in between.
    binary: bool,
}

impl TextColumn {
    /// SQL for its bytes as a client in utf8mb4 gets them. `of` is the table's alias with its dot.
    pub(super) fn bytes(&self, of: &str) -> String {
        let Self { name, binary } = self;
        if *binary { format!("{of}{name}") } else { format!("CAST(CONVERT({of}{name} USING utf8mb4) AS BINARY)") }
    }
}

/// The outbox table as the catalogue shows it, names in backticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) shards: u16,
    pub(super) table: String,
    pub(super) seq: String,
    /// None: everything is shard 0.
    pub(super) shard: Option<String>,
    pub(super) id: TextColumn,
    pub(super) topic: String,
    pub(super) key: Option<String>,
    pub(super) headers: Option<String>,
    pub(super) payload: String,
    pub(super) payload_type: PayloadType,
    /// The payload's column has a character set.
    pub(super) payload_is_text: bool,
    /// And it is another one than UTF-8.
    pub(super) payload_is_foreign: bool,
    pub(super) created_at: Option<String>,
    pub(super) available_at: Option<String>,
    /// The index that begins with `seq`, if there is one.
    pub(super) seq_index: Option<String>,
    /// An index that begins with the shard.
    pub(super) shard_index: Option<String>,
    /// The index that finds a row by shard and `seq`.
    pub(super) row_index: Option<String>,
    /// Columns of time without a time zone.
    unzoned: Vec<String>,
}

impl Layout {
    /// A hint to take the rows in the order of `seq`: without it the server may read and sort all that is there.
    pub(super) fn by_seq(&self) -> String {
        self.seq_index.as_ref().map_or_else(String::new, |index| format!(" FORCE INDEX ({index})"))
    }

    /// A hint to find single rows.
    pub(super) fn by_row(&self) -> String {
        self.row_index.as_ref().map_or_else(String::new, |index| format!(" FORCE INDEX ({index})"))
    }
}

/// A column as the catalogue shows it.
struct Column {
    table: String,
    name: String,
    data_type: String,
    charset: String,
}

/// What was looked up in one go.
struct Catalogue {
    columns: Vec<Column>,
    /// Tables with their storage engine.
    tables: Vec<(String, String)>,
    /// Index, place in it, column: of the outbox table.
    indexes: Vec<(String, u64, String)>,
    /// Whether a constraint keeps the payload JSON, where JSON is no type of its own (MariaDB).
    payload_is_json: bool,
}

impl Catalogue {
    fn has_table(&self, name: &str) -> bool {
        self.tables.iter().any(|(t, _)| same(t, name))
    }

    fn type_of(&self, table: &str, column: &str) -> Option<&str> {
        self.columns.iter().find(|c| same(&c.table, table) && same(&c.name, column)).map(|c| c.data_type.as_str())
    }

    fn is_utf8(&self, table: &str, column: &str) -> bool {
        let found = self.columns.iter().find(|c| same(&c.table, table) && same(&c.name, column));
        found.is_some_and(|c| matches!(c.charset.as_str(), "" | "utf8mb4" | "utf8mb3" | "utf8" | "ascii"))
    }

    /// An index that begins with these columns.
    fn index(&self, begins_with: &[&str]) -> Option<String> {
        let has = |index: &str, place: usize, column: &str| {
            self.indexes.iter().any(|(n, p, c)| n == index && *p == place as u64 + 1 && same(c, column))
        };
        let fits = |index: &&str| begins_with.iter().enumerate().all(|(place, column)| has(index, place, column));
        self.indexes.iter().map(|(n, _, _)| n.as_str()).find(fits).map(quoted)
    }
}

/// Names of columns do not differ by case alone; names of tables may, on some file systems, but not in one database that
/// works with this store.
fn same(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}

fn is_binary(data_type: &str) -> bool {
    data_type.ends_with("blob") || data_type.ends_with("binary")
}

fn is_text(data_type: &str) -> bool {
    data_type.ends_with("text") || data_type.ends_with("char") || matches!(data_type, "enum" | "set" | "uuid")
}

fn missing(what: String) -> StoreError {
    StoreError::new(StoreErrorKind::NotInitialised, what)
}

fn wrong(what: String) -> StoreError {
    StoreError::new(StoreErrorKind::WrongSchema, what)
}

fn layout_of(o: &StoreOptions, catalogue: &Catalogue, shards: u16) -> StoreResult<Layout> {
    let c = &o.columns;
    let table = o.outbox();
    let wanted = |name: &str| {
        catalogue.type_of(&table, name).ok_or_else(|| {
            let remedy = if name == c.seq { format!("; {}", adopt(o)) } else { String::new() };
            missing(format!("table {table} has no column {name}{remedy}"))
        })
    };
    let unusable = |name: &str, data_type: &str, needed: &str| {
        wrong(format!("column {name} of table {table} is {data_type}, not {needed}"))
    };
    let seq_type = wanted(&c.seq)?;
    if !seq_type.ends_with("int") {
        return Err(unusable(&c.seq, seq_type, "BIGINT"));
    }
    let shard = match (&c.shard, shards) {
        (_, 1) => None,
        (Some(name), _) => Some(name.as_str()),
        (None, _) => {
            return Err(wrong(format!(
                "the meta table says {shards} shards, but the column names say that there is no shard column"
            )));
        }
    };
    if let Some(name) = shard {
        wanted(name)?;
    }
    let payload_data = wanted(&c.payload)?;
    let payload_type = match payload_data {
        "json" => PayloadType::Json,
        t if is_text(t) && catalogue.payload_is_json => PayloadType::Json,
        t if is_text(t) => PayloadType::Text,
        t if is_binary(t) => PayloadType::Bytes,
        t => return Err(unusable(&c.payload, t, "BLOB, TEXT or JSON")),
    };
    let payload_is_text = !is_binary(payload_data);
    let mut unzoned = Vec::new();
    let mut time = |name: &Option<String>| -> StoreResult<Option<String>> {
        let Some(name) = name else { return Ok(None) };
        match wanted(name)? {
            "timestamp" => {}
            "datetime" => unzoned.push(name.clone()),
            t => return Err(unusable(name, t, "TIMESTAMP or DATETIME")),
        }
        Ok(Some(quoted(name)))
    };
    let (created_at, available_at) = (time(&c.created_at)?, time(&c.available_at)?);
    let id_type = wanted(&c.id)?;
    wanted(&c.topic)?;
    for name in [&c.key, &c.headers].into_iter().flatten() {
        wanted(name)?;
    }
    let seq_index = catalogue.index(&[&c.seq]);
    Ok(Layout {
        shards,
        table: quoted(&table),
        seq: quoted(&c.seq),
        shard: shard.map(quoted),
        id: TextColumn { name: quoted(&c.id), binary: is_binary(id_type) },
        topic: quoted(&c.topic),
        key: c.key.as_deref().map(quoted),
        headers: c.headers.as_deref().map(quoted),
        payload: quoted(&c.payload),
        payload_type,
        payload_is_text,
        payload_is_foreign: payload_is_text && !catalogue.is_utf8(&table, &c.payload),
        created_at,
        available_at,
        shard_index: shard.and_then(|s| catalogue.index(&[s])),
        row_index: shard.and_then(|s| catalogue.index(&[s, &c.seq])).or_else(|| seq_index.clone()),
        seq_index,
        unzoned,
    })
}

impl MySqlStore {
    /// The layout, looked up where it is not known.
    pub(super) async fn layout(&self, slot: &Slot) -> StoreResult<Arc<Layout>> {
        let known = self.layout.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(layout) = known {
            return Ok(layout);
        }
        let mut held = slot.take(&self.dialer).await?;
        let result = self.look_up(&mut held.link).await;
        let layout = Arc::new(held.give_back(result)??.0);
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

    /// The outer result is about the connection, the inner one about the tables.
    async fn look_up(&self, link: &mut Link) -> Result<StoreResult<(Layout, Known)>, Failure> {
        let o = &self.options;
        let names: Vec<String> = schema::relay_tables(o).into_iter().map(|t| t.name).chain([o.outbox()]).collect();
        let list = names.iter().map(|n| literal(n)).collect::<Vec<_>>().join(", ");
        let outbox = literal(&o.outbox());
        let of = "table_schema = DATABASE() AND table_name";
        // MariaDB has no type JSON: a constraint on LONGTEXT stands for it. MySQL has no such view of constraints.
        let json = if link.server.mariadb {
            format!(
                "SELECT COUNT(*) FROM information_schema.check_constraints WHERE constraint_schema = DATABASE() \
                 AND table_name = {outbox} AND check_clause = {}",
                literal(&format!("json_valid({})", quoted(&o.columns.payload)))
            )
        } else {
            "SELECT 0".into()
        };
        let statements = [
            format!("SELECT table_name, COALESCE(engine, '') FROM information_schema.tables WHERE {of} IN ({list})"),
            format!(
                "SELECT table_name, column_name, data_type, COALESCE(character_set_name, '') FROM information_schema.columns WHERE {of} IN ({list})"
            ),
            format!(
                "SELECT index_name, seq_in_index, column_name FROM information_schema.statistics WHERE {of} = {outbox} ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index"
            ),
            json,
        ];
        let mut answers = link.run(&statements.map(Statement::new)).await?.into_iter();
        let mut next = || answers.next().unwrap_or_default();
        let catalogue = match catalogue_of([next(), next(), next(), next()]) {
            Ok(catalogue) => catalogue,
            Err(error) => return Ok(Err(error)),
        };
        let meta = match self.meta_on(link, &catalogue).await? {
            Ok(meta) => meta,
            Err(error) => return Ok(Err(error)),
        };
        // Of an earlier version, before of what such tables lack.
        let known = match meta.filter(Meta::is_made).map(|meta| meta.check(None)).transpose() {
            Ok(known) => known,
            Err(error) => return Ok(Err(error)),
        };
        Ok(check_tables(o, &catalogue, &names)
            .and_then(|()| known.ok_or_else(|| missing("the meta table has no schema_version: run init".into())))
            .and_then(|known| Ok((layout_of(o, &catalogue, known.shards)?, known))))
    }

    /// The meta table. None: there is none.
    async fn meta_on(&self, link: &mut Link, catalogue: &Catalogue) -> Result<StoreResult<Option<Meta>>, Failure> {
        let table = self.options.table("outbox_meta");
        if !catalogue.has_table(&table) {
            return Ok(Ok(None));
        }
        let sql = format!("SELECT name, value FROM {}", quoted(&table));
        let answer = link.run(&[Statement::new(sql)]).await?.into_iter().next().unwrap_or_default();
        Ok(meta_of(answer).map(Some))
    }

    pub(super) async fn look(&self) -> StoreResult<SchemaInfo> {
        self.forget_layout();
        let mut held = self.other.take(&self.dialer).await?;
        let result = self.look_up(&mut held.link).await;
        let found = match result {
            Ok(found) => found,
            Err(failure) => return held.give_back(Err(failure)),
        };
        let server = held.link.server.clone();
        let usable = |(layout, known): (Layout, Known)| -> StoreResult<(Layout, Known)> {
            known.whole.clone()?;
            server.check_binlog()?;
            Ok((layout, known))
        };
        let (layout, known) = match found.and_then(usable) {
            Ok(found) => found,
            Err(error) => {
                held.give_back(Ok(()))?;
                return Err(error);
            }
        };
        let (leases, warning, stray) = match look_at_shards(&mut held.link, &self.options, &layout, known.had).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                held.give_back(Ok(()))?;
                return Err(error);
            }
            Err(failure) => return held.give_back(Err(failure)),
        };
        let probes: Vec<Statement> = schema::probes(&self.options, &layout).into_iter().map(Statement::new).collect();
        let result = held.link.run(&probes).await;
        let scheduled = match (&result, &layout.available_at) {
            (Ok(_), Some(column)) => held.link.run(&[Statement::new(schema::scheduled_probe(&layout, column))]).await,
            _ => Ok(vec![]),
        };
        let may_not = matches!(&scheduled, Err(failure) if failure.error.kind == StoreErrorKind::Permission);
        held.give_back(if may_not { result } else { result.and(scheduled) })?;
        let mut warnings = server.warnings();
        if may_not {
            warnings.push(no_scheduled(&self.options.outbox()));
        }
        warnings.extend(warning);
        let table = self.options.outbox();
        if layout.seq_index.is_none() {
            warnings.push(format!(
                "table {table} has no index that begins with {}: every poll reads all of it",
                layout.seq
            ));
        }
        for column in &layout.unzoned {
            warnings.push(format!("column {column} has no time zone: its values are taken as UTC"));
        }
        Ok(SchemaInfo {
            server: server.name(),
            version: SCHEMA_VERSION,
            shards: layout.shards,
            leases,
            mode: known.mode,
            payload: layout.payload_type,
            warnings,
            stray,
        })
    }
}

/// Whether leases and rows match the number of shards: how many leases, a warning, and what is said of rows. The outer
/// result is about the connection, the inner one about the tables.
async fn look_at_shards(
    link: &mut Link,
    o: &StoreOptions,
    layout: &Layout,
    had: u16,
) -> Result<StoreResult<(usize, Option<String>, Option<StoreError>)>, Failure> {
    let mut statements =
        vec![format!("SELECT shard FROM {} WHERE shard >= 0 ORDER BY shard", quoted(&o.table("outbox_lease")))];
    if let Some(shard) = &layout.shard {
        let table = &layout.table;
        statements.extend(match &layout.shard_index {
            // The ends of the index: NULL stands at its beginning.
            Some(index) => ["", " DESC"]
                .map(|way| format!("SELECT {shard} FROM {table} FORCE INDEX ({index}) ORDER BY {shard}{way} LIMIT 1"))
                .to_vec(),
            None => vec![format!(
                "SELECT DISTINCT {shard} FROM (SELECT {shard} FROM {table}{} ORDER BY {} LIMIT {LOOKED_AT}) oldest",
                layout.by_seq(),
                layout.seq
            )],
        });
    }
    let statements: Vec<Statement> = statements.into_iter().map(Statement::new).collect();
    let mut answers = link.run(&statements).await?.into_iter();
    let mut numbers = Vec::new();
    for row in answers.next().unwrap_or_default().rows {
        numbers.push(number(&row, 0)?);
    }
    let mut rows = Vec::new();
    for row in answers.flat_map(|answer| answer.rows) {
        rows.push(number_opt(&row, 0)?.map(|n| i64::try_from(n).unwrap_or(i64::MAX)));
    }
    let leases = numbers.len();
    Ok(check_leases(o, &numbers, layout.shards, had).map(|warning| (leases, warning, stray(o, &rows, layout.shards))))
}

fn catalogue_of([tables, columns, indexes, json]: [Answer; 4]) -> StoreResult<Catalogue> {
    let mut catalogue = Catalogue { columns: vec![], tables: vec![], indexes: vec![], payload_is_json: false };
    for mut row in tables.rows {
        catalogue.tables.push((text(&mut row, 0)?, text(&mut row, 1)?));
    }
    for mut row in columns.rows {
        let (table, name, data_type) = (text(&mut row, 0)?, text(&mut row, 1)?, text(&mut row, 2)?);
        let charset = text(&mut row, 3)?;
        catalogue.columns.push(Column { table, name, data_type: data_type.to_ascii_lowercase(), charset });
    }
    for mut row in indexes.rows {
        let place = number_opt(&row, 1)?.and_then(|n| u64::try_from(n).ok()).unwrap_or_default();
        // An index on an expression has no column.
        catalogue.indexes.push((text(&mut row, 0)?, place, text_opt(&mut row, 2)?.unwrap_or_default()));
    }
    catalogue.payload_is_json =
        json.rows.first().map(|row| number_opt(row, 0)).transpose()?.flatten().is_some_and(|n| n > 0);
    Ok(catalogue)
}

fn check_tables(o: &StoreOptions, catalogue: &Catalogue, names: &[String]) -> StoreResult<()> {
    if let Some(name) = names.iter().find(|name| !catalogue.has_table(name)) {
        return Err(missing(format!("there is no table {name}")));
    }
    if let Some((name, engine)) = catalogue.tables.iter().find(|(_, engine)| !engine.eq_ignore_ascii_case("InnoDB")) {
        return Err(wrong(format!("table {name} is kept by {engine}: transactions need InnoDB")));
    }
    for table in schema::relay_tables(o) {
        if let Some((column, _)) =
            table.columns.iter().find(|(column, _)| catalogue.type_of(&table.name, column).is_none())
        {
            return Err(missing(format!("table {} has no column {column}", table.name)));
        }
    }
    Ok(())
}
