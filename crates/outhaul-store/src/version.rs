//! For which builds tables are: what the meta table says, and what is added to the tables of an earlier version.

use std::time::{Duration, Instant};

use crate::error::{StoreError, StoreErrorKind};
#[cfg(any(feature = "mysql", feature = "postgres"))]
use crate::options::StoreOptions;
use crate::store::{SCHEMA_LEVEL, SCHEMA_VERSION, StoreResult, Upgrade};

/// The row of the meta table that names the level. Tables without it are of the first.
pub(crate) const LEVEL: &str = "schema_level";
/// The row of the meta table that names this outbox to others.
pub(crate) const ORIGIN: &str = "origin";
/// The row of the meta table that is there while the number of shards is changed, and says to which.
pub(crate) const RESHARD: &str = "reshard";

/// The row of the meta table that says how many shards there were at most: those above `shards` have a log and a lease
/// still.
pub(crate) const HAD: &str = "shards_had";

/// The rows of the meta table.
pub(crate) struct Meta(Vec<(String, String)>);

/// What the rows say, all of which this build can work with.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) version: u32,
    pub(crate) shards: u16,
    /// How many shards there were at most.
    pub(crate) had: u16,
    pub(crate) mode: String,
    /// Not so, if the number of shards is being changed.
    pub(crate) whole: StoreResult<()>,
}

impl Meta {
    pub(crate) const fn new(rows: Vec<(String, String)>) -> Self {
        Self(rows)
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// Whether `init` came to its end, so that the rows say something.
    pub(crate) fn is_made(&self) -> bool {
        self.value("schema_version").is_some()
    }

    fn wanted(&self, name: &str) -> StoreResult<&str> {
        let missing =
            || StoreError::new(StoreErrorKind::NotInitialised, format!("the meta table has no {name}: run init"));
        self.value(name).ok_or_else(missing)
    }

    /// The lowest version of a build that may use the tables.
    ///
    /// # Errors
    /// `WrongSchema`: a later one than this. `NotInitialised`: none.
    pub(crate) fn version(&self) -> StoreResult<u32> {
        if self.resharding().is_some() {
            return Ok(SCHEMA_VERSION); // what stands there keeps builds away that do not know of it
        }
        let version = self.wanted("schema_version")?;
        version.parse().ok().filter(|n| *n == SCHEMA_VERSION).ok_or_else(|| {
            let what = format!(
                "the tables have schema version {version}, this build knows {SCHEMA_VERSION}: use a newer build of outhaul"
            );
            StoreError::new(StoreErrorKind::WrongSchema, what)
        })
    }

    /// Up to which level the tables were brought.
    pub(crate) fn level(&self) -> u32 {
        self.value(LEVEL).and_then(|n| n.parse().ok()).unwrap_or(1)
    }

    /// To how many shards the tables are just being changed.
    pub(crate) fn resharding(&self) -> Option<&str> {
        self.value(RESHARD)
    }

    /// # Errors
    /// `WrongSchema`, `NotInitialised`.
    pub(crate) fn shards(&self) -> StoreResult<u16> {
        let wrong =
            |n: &str| StoreError::new(StoreErrorKind::WrongSchema, format!("the meta table's shard count is {n:?}"));
        let shards = self.wanted("shards")?;
        shards.parse().map_err(|_| wrong(shards))
    }

    /// Whether this build can work with such tables.
    ///
    /// # Errors
    /// `WrongSchema`: they are of a later version. `Outdated`: they are of an earlier one.
    pub(crate) fn check_version(&self) -> StoreResult<()> {
        self.version()?;
        let level = self.level();
        if level >= SCHEMA_LEVEL {
            return Ok(());
        }
        let what = format!(
            "the tables are those of an earlier version of outhaul (level {level}, this build needs {SCHEMA_LEVEL})"
        );
        Err(StoreError::new(StoreErrorKind::Outdated, what))
    }

    /// For [`crate::Store::check_version`].
    pub(crate) fn look(&self) -> StoreResult<Option<String>> {
        if self.is_made() {
            self.check_version()?;
        }
        Ok(self.resharding().map(str::to_owned))
    }

    /// Refuses what this build does not know, and, where one is wanted, another shard count.
    ///
    /// # Errors
    /// `WrongSchema`, `Outdated`, `NotInitialised`.
    pub(crate) fn check(&self, wanted_shards: Option<u16>) -> StoreResult<Known> {
        let wrong = |what: String| Err(StoreError::new(StoreErrorKind::WrongSchema, what));
        self.check_version()?;
        let shards = self.shards()?;
        if let Some(wanted) = wanted_shards.filter(|wanted| *wanted != shards) {
            return wrong(format!("the tables were made with {shards} shards, not {wanted}"));
        }
        let mode = self.wanted("mode")?;
        if mode != "move" {
            return wrong(format!("the tables are in mode {mode:?}, this store works in mode \"move\""));
        }
        let had = self.value(HAD).and_then(|n| n.parse().ok()).unwrap_or(shards);
        Ok(Known { version: SCHEMA_VERSION, shards, had, mode: mode.to_owned(), whole: self.check_whole() })
    }

    /// # Errors
    /// `Resharding`: the number of shards is being changed, or a change was broken off.
    pub(crate) fn check_whole(&self) -> StoreResult<()> {
        let Some(shards) = self.resharding() else { return Ok(()) };
        let what = format!("the tables are being changed to {shards} shards, and that has not come to its end");
        Err(StoreError::new(StoreErrorKind::Resharding, what))
    }
}

/// How long a change of tables is tried again while others hold locks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    until: Instant,
    rest: Duration,
}

/// How long one.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries: those who waited behind the last one go first. Where these are relays, and where applications.
const REST: Duration = Duration::from_millis(500);
const REST_OF_APPLICATIONS: Duration = Duration::from_secs(3);

impl Patience {
    pub(crate) fn begins() -> Self {
        Self { until: Instant::now() + PATIENCE, rest: REST }
    }

    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn for_applications() -> Self {
        Self { rest: REST_OF_APPLICATIONS, ..Self::begins() }
    }

    /// Whether to try again, after a rest.
    pub(crate) async fn lasts(&self, error: &StoreError) -> bool {
        use StoreErrorKind::{Conflict, Timeout, Unavailable};
        let again = matches!(error.kind, Timeout | Conflict | Unavailable) && Instant::now() < self.until;
        if again {
            tokio::time::sleep(self.rest).await;
        }
        again
    }
}

/// The shard column, where there may be so many shards.
///
/// # Errors
/// `Configuration`.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn check_new_count(o: &StoreOptions, shards: u16, most: u16) -> StoreResult<&str> {
    let refuse = |what: String| Err(StoreError::new(StoreErrorKind::Configuration, what));
    if !(2..=most).contains(&shards) {
        return refuse(format!("the number of shards can be changed to 2 to {most}, not to {shards}"));
    }
    match &o.columns.shard {
        Some(column) => Ok(column),
        None => refuse("several shards need a shard column, and the column names say that there is none".into()),
    }
}

/// What is warned of where the relay's user may not make ordinary rows of scheduled ones.
pub(crate) fn no_scheduled(table: &str) -> String {
    format!("no right to UPDATE {table}: scheduled messages wait until the relay has it; GRANT UPDATE ON {table} TO …")
}

/// A lease that the caller does not hold, or no more.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn not_ours(shard: i64) -> StoreError {
    StoreError::new(StoreErrorKind::Other, format!("the lease of shard {shard} is not held any more"))
}

/// What an addition makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Table,
    Column(&'static str),
    Index(&'static str),
}

/// One thing that a level has added to what the level before had.
pub(crate) struct Addition {
    /// Name of the table, as `outbox_log`, without the prefix.
    pub(crate) table: &'static str,
    pub(crate) part: Part,
    /// The statements that make it, in order.
    pub(crate) sql: Vec<String>,
}

/// What the second level and the third have added, for a database that says each in its own way.
pub(crate) fn additions(sql: impl Fn(&'static str, Part) -> Vec<String>) -> Vec<Addition> {
    let all = [
        ("outbox_act", Part::Table),
        ("outbox_act", Part::Index("by_state")),
        ("outbox_pause", Part::Table),
        ("outbox_instance", Part::Column("config")),
        ("outbox_parked", Part::Index("by_key")),
        ("outbox_parked", Part::Index("by_reason")),
        ("outbox_transaction", Part::Table),
        ("outbox_transaction", Part::Index("by_state")),
    ];
    all.map(|(table, part)| Addition { table, part, sql: sql(table, part) }).into()
}

/// What is left to do: the additions that are missing, the row that names the outbox, and last the row that says that
/// nothing is.
///
/// # Errors
/// `WrongSchema`: the tables are of a later version. `Resharding`.
pub(crate) fn left_to_do(
    meta: &Meta,
    missing: Vec<Addition>,
    [origin_row, level_row]: [String; 2],
    grants: Vec<String>,
) -> StoreResult<Upgrade> {
    meta.version()?;
    meta.check_whole()?;
    let (from, to) = (meta.level(), SCHEMA_LEVEL);
    if from >= to {
        return Ok(Upgrade { from, to, ..Upgrade::default() });
    }
    let mut statements: Vec<String> = missing.into_iter().flat_map(|a| a.sql).collect();
    statements.extend(meta.value(ORIGIN).is_none().then_some(origin_row));
    statements.push(level_row);
    Ok(Upgrade { from, to, statements, grants })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(rows: &[(&str, &str)]) -> Meta {
        Meta::new(rows.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn an_earlier_and_a_later_version_are_told_apart() {
        let rows = |version, level| {
            meta(&[("schema_version", version), ("schema_level", level), ("shards", "4"), ("mode", "move")])
        };
        assert_eq!(rows("1", "3").check(None).unwrap().shards, 4);
        assert_eq!(rows("1", "4").check(Some(4)).unwrap().shards, 4, "a later level only adds");
        let kind = |meta: Meta| meta.check(None).unwrap_err().kind;
        assert_eq!(kind(rows("1", "1")), StoreErrorKind::Outdated);
        assert_eq!(kind(rows("1", "2")), StoreErrorKind::Outdated);
        assert_eq!(kind(meta(&[("schema_version", "1"), ("shards", "4"), ("mode", "move")])), StoreErrorKind::Outdated);
        for version in ["2", "0", "x"] {
            assert_eq!(kind(rows(version, "3")), StoreErrorKind::WrongSchema, "{version}");
        }
        assert_eq!(kind(meta(&[])), StoreErrorKind::NotInitialised);
        assert_eq!(rows("1", "3").check(Some(5)).unwrap_err().kind, StoreErrorKind::WrongSchema);
    }

    #[test]
    fn a_change_of_shards_that_was_broken_off_is_told() {
        let meta = meta(&[
            ("schema_version", "none"),
            ("schema_level", "3"),
            ("shards", "4"),
            ("mode", "move"),
            ("reshard", "16"),
        ]);
        assert_eq!(meta.check(None).unwrap().shards, 4);
        assert_eq!(meta.check_whole().unwrap_err().kind, StoreErrorKind::Resharding);
    }
}
