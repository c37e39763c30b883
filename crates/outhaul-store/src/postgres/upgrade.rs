//! Tables of an earlier version, brought to this one.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Dialer, Slot, Statement, get};
use super::schema::{self, INIT_LOCK};
use super::values::quoted;
use crate::error::{StoreError, StoreErrorKind};
use crate::options::{InitPlan, StoreOptions};
use crate::store::{SCHEMA_LEVEL, StoreResult, Upgrade};
use crate::version::{Addition, LEVEL, Meta, Part, Patience, additions, left_to_do};

/// What a change of tables waits for a lock: meanwhile others wait behind it.
const LOCK_LIMIT: Duration = Duration::from_millis(500);
/// Limit of a statement that changes tables: an index on many parked rows is made in it.
const CHANGE_LIMIT: Duration = Duration::from_secs(600);

/// Connections for statements that change tables.
pub(super) fn changing(options: &StoreOptions) -> StoreResult<Dialer> {
    Dialer::new(&StoreOptions { lock_timeout: LOCK_LIMIT, statement_timeout: CHANGE_LIMIT, ..options.clone() })
}

/// The rows of the meta table as they came.
pub(super) fn meta_of(rows: &[Row]) -> StoreResult<Meta> {
    rows.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?))).collect::<StoreResult<_>>().map(Meta::new)
}

fn sql_of(o: &StoreOptions, table: &'static str, part: Part) -> Vec<String> {
    let name = o.table(table);
    let made = schema::tables(o, &InitPlan::default(), 0).into_iter().find(|t| t.name == name);
    let statements = made.map(|t| t.statements).unwrap_or_default();
    match part {
        Part::Table => statements.into_iter().filter(|s| !s.starts_with("CREATE INDEX")).collect(),
        Part::Column(_) => {
            vec![format!("ALTER TABLE {} ADD COLUMN IF NOT EXISTS config text NOT NULL DEFAULT ''", quoted(&name))]
        }
        Part::Index(about) => {
            let index = quoted(&format!("{name}_{about}"));
            statements.into_iter().filter(|s| s.starts_with("CREATE INDEX") && s.contains(&index)).collect()
        }
    }
}

/// The relation, and the column of it, that an addition makes.
fn made_by(o: &StoreOptions, addition: &Addition) -> (String, Option<&'static str>) {
    let name = o.table(addition.table);
    match addition.part {
        Part::Table => (quoted(&name), None),
        Part::Column(column) => (quoted(&name), Some(column)),
        Part::Index(about) => (quoted(&format!("{name}_{about}")), None),
    }
}

impl PostgresStore {
    /// The meta table. None: there is none that says anything.
    pub(super) async fn meta(&self, slot: &Slot) -> StoreResult<Option<Meta>> {
        let table = quoted(&self.options.table("outbox_meta"));
        let is_there = "SELECT to_regclass($1) IS NOT NULL";
        let there = self.select(slot, Statement::new(is_there).with(&table, Type::TEXT)).await?;
        if !there.first().map_or(Ok(false), |row| get(row, 0))? {
            return Ok(None);
        }
        let sql = format!("SELECT name, value FROM {table}");
        Ok(Some(meta_of(&self.select(slot, Statement::new(&sql)).await?)?).filter(Meta::is_made))
    }

    pub(super) async fn plan_upgrade(&self) -> StoreResult<Upgrade> {
        let o = &self.options;
        let table = o.table("outbox_meta");
        let Some(meta) = self.meta(&self.other).await? else {
            return Err(StoreError::new(StoreErrorKind::NotInitialised, format!("there is no table {table}")));
        };
        let additions = additions(|table, part| sql_of(o, table, part));
        let (names, columns): (Vec<String>, Vec<Option<&str>>) = additions.iter().map(|a| made_by(o, a)).unzip();
        let sql = "SELECT EXISTS (SELECT FROM pg_class r WHERE r.oid = to_regclass(n) AND (c IS NULL OR EXISTS (SELECT FROM pg_attribute a \
                     WHERE a.attrelid = r.oid AND a.attname = c AND NOT a.attisdropped))) \
                   FROM unnest($1::text[], $2::text[]) WITH ORDINALITY t(n, c, place) ORDER BY place";
        let asked = Statement::new(sql).with(&names, Type::TEXT_ARRAY).with(&columns, Type::TEXT_ARRAY);
        let rows = self.select(&self.other, asked).await?;
        let there: Vec<bool> = rows.iter().map(|row| get(row, 0)).collect::<StoreResult<_>>()?;
        let missing = additions.into_iter().zip(there).filter(|(_, there)| !there).map(|(a, _)| a).collect();
        let row = format!(
            "INSERT INTO {} (name, value) VALUES ('{LEVEL}', '{SCHEMA_LEVEL}') ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            quoted(&table)
        );
        left_to_do(&meta, missing, [schema::origin_row(o), row], schema::new_grants(o))
    }

    /// Statement by statement, each a transaction of its own, so that no lock is held longer than its own change takes.
    pub(super) async fn bring_up(&self) -> StoreResult<Upgrade> {
        let found = self.plan_upgrade().await?;
        let (dialer, slot, patience) = (changing(&self.options)?, Slot::new(), Patience::begins());
        for sql in &found.statements {
            loop {
                let held = slot.take(&dialer).await?;
                let step = [Statement::new(INIT_LOCK), Statement::new(sql)];
                let result = held.link.write(&dialer.begin_write, &step).await;
                match held.give_back(result) {
                    Ok(_) => break,
                    Err(e) if patience.lasts(&e).await => {}
                    Err(e) => return Err(e),
                }
            }
        }
        slot.clear().await;
        self.forget_layout();
        Ok(found)
    }

    pub(super) async fn look_at_version(&self) -> StoreResult<Option<String>> {
        match self.meta(&self.other).await {
            Ok(meta) => meta.map_or(Ok(None), |meta| meta.look()),
            Err(e) if matches!(e.kind, StoreErrorKind::NotInitialised | StoreErrorKind::Permission) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
