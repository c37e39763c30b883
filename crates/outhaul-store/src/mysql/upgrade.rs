//! Tables of an earlier version, brought to this one. The same for MariaDB and MySQL.

use std::time::Duration;

use super::MySqlStore;
use super::link::{Answer, Dialer, Link, Slot};
use super::refusal::Failure;
use super::schema::{self, init_lock};
use super::statement::Statement;
use super::values::{literal, number, quoted, text};
use crate::error::{StoreError, StoreErrorKind};
use crate::options::StoreOptions;
use crate::store::{SCHEMA_LEVEL, StoreResult, Upgrade};
use crate::version::{Addition, LEVEL, Meta, Part, Patience, additions, left_to_do};

/// What a change of tables waits for a lock: meanwhile others wait behind it.
const LOCK_LIMIT: Duration = Duration::from_secs(1);
/// Limit of a statement that changes tables: an index on many parked rows is made in it.
const CHANGE_LIMIT: Duration = Duration::from_secs(600);

/// Connections for statements that change tables.
pub(super) fn changing(options: &StoreOptions) -> StoreResult<Dialer> {
    Dialer::new(&StoreOptions { lock_timeout: LOCK_LIMIT, statement_timeout: CHANGE_LIMIT, ..options.clone() })
}

/// The rows of the meta table as they came.
pub(super) fn meta_of(answer: Answer) -> StoreResult<Meta> {
    let mut rows = Vec::with_capacity(answer.rows.len());
    for mut row in answer.rows {
        rows.push((text(&mut row, 0)?, text(&mut row, 1)?));
    }
    Ok(Meta::new(rows))
}

/// A column at its end is added without touching a row, indexes while others write. Where the server can do neither in
/// this way it refuses, and nothing has changed.
fn sql_of(o: &StoreOptions, table: &'static str, part: Part) -> Vec<String> {
    let name = o.table(table);
    let made = schema::relay_tables(o).into_iter().find(|t| t.name == name);
    let name = quoted(&name);
    let index = |about: &str, columns: &str| {
        vec![format!("ALTER TABLE {name} ADD KEY {about} ({columns}), ALGORITHM=INPLACE, LOCK=NONE")]
    };
    match part {
        Part::Table => made.map(|t| t.ddl()).into_iter().collect(),
        Part::Column(column) => {
            let found = made.and_then(|t| t.columns.iter().find(|(c, _)| *c == column));
            let add =
                |(c, ty): &(&str, &str)| format!("ALTER TABLE {name} ADD COLUMN {} {ty}, ALGORITHM=INSTANT", quoted(c));
            found.map(add).into_iter().collect()
        }
        Part::Index("by_state") => vec![], // made with its table
        Part::Index("by_key") => index("by_key", "msg_key(64)"),
        Part::Index(about) => index(about, "destination, shard, error_code, `position`, state"),
    }
}

/// What there is of the tables: whether an addition is.
fn presence(o: &StoreOptions, addition: &Addition) -> String {
    let of = format!("table_schema = DATABASE() AND table_name = {}", literal(&o.table(addition.table)));
    match addition.part {
        Part::Table => format!("SELECT COUNT(*) FROM information_schema.tables WHERE {of}"),
        Part::Column(column) => {
            format!("SELECT COUNT(*) FROM information_schema.columns WHERE {of} AND column_name = {}", literal(column))
        }
        Part::Index(about) => {
            format!("SELECT COUNT(*) FROM information_schema.statistics WHERE {of} AND index_name = {}", literal(about))
        }
    }
}

impl MySqlStore {
    /// The outer result is about the connection, the inner one about the tables.
    async fn plan_on(&self, link: &mut Link) -> Result<StoreResult<Upgrade>, Failure> {
        let o = &self.options;
        let table = o.table("outbox_meta");
        let is_there = format!(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = {}",
            literal(&table)
        );
        let additions = additions(|table, part| sql_of(o, table, part));
        let questions = std::iter::once(is_there).chain(additions.iter().map(|a| presence(o, a)));
        let answers = link.run(&questions.map(Statement::new).collect::<Vec<_>>()).await?;
        let mut counts = Vec::with_capacity(answers.len());
        for answer in &answers {
            counts.push(answer.rows.first().map(|row| number::<u64>(row, 0)).transpose()?.unwrap_or_default());
        }
        let nothing = || Ok(Err(StoreError::new(StoreErrorKind::NotInitialised, format!("there is no table {table}"))));
        let Some((_, there)) = counts.split_first().filter(|(meta, _)| **meta > 0) else { return nothing() };
        let sql = format!("SELECT name, value FROM {}", quoted(&table));
        let meta = meta_of(link.run(&[Statement::new(sql)]).await?.into_iter().next().unwrap_or_default())?;
        if !meta.is_made() {
            return nothing();
        }
        let missing = additions.into_iter().zip(there).filter(|(_, n)| **n == 0).map(|(a, _)| a).collect();
        let row = format!(
            "INSERT INTO {} (name, value) VALUES ('{LEVEL}', '{SCHEMA_LEVEL}') ON DUPLICATE KEY UPDATE value = '{SCHEMA_LEVEL}'",
            quoted(&table)
        );
        Ok(left_to_do(&meta, missing, [schema::origin_row(o), row], schema::new_grants(o)))
    }

    pub(super) async fn plan_upgrade(&self) -> StoreResult<Upgrade> {
        let mut held = self.other.take(&self.dialer).await?;
        let result = self.plan_on(&mut held.link).await;
        held.give_back(result)?
    }

    /// Statement by statement, looking anew before each: what was done stays done, whatever becomes of this process.
    pub(super) async fn bring_up(&self) -> StoreResult<Upgrade> {
        let found = self.plan_upgrade().await?;
        let (dialer, slot, patience) = (changing(&self.options)?, Slot::new(), Patience::begins());
        loop {
            let mut held = slot.take(&dialer).await?;
            let result = self.next_step(&mut held.link).await;
            match held.give_back(result).and_then(|step| step) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) if patience.lasts(&e).await => {}
                Err(e) => return Err(e),
            }
        }
        slot.clear().await;
        self.forget_layout();
        Ok(found)
    }

    /// Makes the first thing that is missing. False: nothing is.
    async fn next_step(&self, link: &mut Link) -> Result<StoreResult<bool>, Failure> {
        let lock = link.run(&[Statement::new(format!("SELECT GET_LOCK({}, 1)", init_lock()))]).await?;
        let granted = lock.first().and_then(|a| a.rows.first()).map(|row| number::<u8>(row, 0)).transpose()? == Some(1);
        if !granted {
            let what = "another run of init changes the tables";
            return Ok(Err(StoreError::new(StoreErrorKind::Timeout, what)));
        }
        let result = match self.plan_on(link).await? {
            Err(error) => Ok(Err(error)),
            Ok(plan) => match plan.statements.first() {
                None => Ok(Ok(false)),
                Some(sql) => link.run(&[Statement::new(sql)]).await.map(|_| Ok(true)),
            },
        };
        link.run(&[Statement::new(format!("DO RELEASE_LOCK({})", init_lock()))]).await?;
        result
    }

    pub(super) async fn look_at_version(&self) -> StoreResult<Option<String>> {
        let sql = format!("SELECT name, value FROM {}", quoted(&self.options.table("outbox_meta")));
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&[Statement::new(sql)]).await;
        match held.give_back(result) {
            Ok(answers) => meta_of(answers.into_iter().next().unwrap_or_default())?.look(),
            Err(e) if matches!(e.kind, StoreErrorKind::NotInitialised | StoreErrorKind::Permission) => Ok(None),
            Err(e) => Err(e),
        }
    }
}
