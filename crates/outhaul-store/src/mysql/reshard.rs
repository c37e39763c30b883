//! Another number of shards, while applications insert. The same for MariaDB and MySQL.
//!
//! No relay may run, and the caller holds all leases. The DEFAULT of the shard column is changed first, which touches no
//! row and waits until every transaction has ended that inserted under the old one; from then on new rows are right, and
//! those that are there already follow one by one. A row of the meta table keeps relays away until all is done, so that a
//! run which is killed is only to be repeated.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::MySqlStore;
use super::link::{Answer, Dialer, Link, Slot};
use super::refusal::Failure;
use super::schema::{self, MAX_SHARDS};
use super::statement::Statement;
use super::upgrade::{changing, meta_of};
use super::values::{NOW, hex, literal, number, quoted, text, text_opt};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Resharded, SCHEMA_VERSION, StoreResult};
use crate::version::{HAD, Meta, Patience, RESHARD, check_new_count, not_ours};

/// Rows that are given their new shard in one statement. The leases are locked meanwhile, and their renewal waits.
const ROWS_AT_ONCE: u32 = 1_000;

/// The outbox table as the catalogue shows it.
struct Shape {
    has_shard: bool,
    /// The shard column has an expression as its DEFAULT.
    computes: bool,
    primary: Vec<String>,
    /// Constraints that keep rows out of shards that there are not.
    checks: Vec<String>,
}

impl MySqlStore {
    pub(super) async fn change_shards(&self, owner: &str, shards: u16) -> StoreResult<Resharded> {
        let column = check_new_count(&self.options, shards, MAX_SHARDS)?.to_owned();
        let (dialer, slot) = (changing(&self.options)?, Slot::new());
        let patience = Patience::for_applications();
        let run = Run { store: self, dialer: &dialer, slot: &slot, owner, patience, in_doubt: AtomicBool::new(false) };
        let meta = run.announce(shards).await?;
        let (before, fresh) = (meta.shards()?, meta.resharding().is_none());
        let of = schema::shard_of(&self.options, meta.value("shard_by") != Some("topic"));
        let shard = format!("{of} % {shards}");
        if let Err(error) = run.change_default(&column, &shard).await {
            if fresh && !run.in_doubt.load(Ordering::Relaxed) {
                // Nothing has changed yet: relays may start again.
                run.finish(before, meta.value(HAD)).await.map_err(half_done)?;
                return Err(error);
            }
            return Err(half_done(error));
        }
        let moved = run.move_rows(&column, &shard).await.map_err(half_done)?;
        let unguarded = run.guard(&column, shards).await.err();
        let had = meta.value(HAD).and_then(|n| n.parse().ok()).unwrap_or(0).max(before).max(shards);
        run.finish(shards, Some(&had.to_string())).await.map_err(half_done)?;
        slot.clear().await;
        self.forget_layout();
        Ok(Resharded { before, after: shards, moved: Some(moved), unguarded })
    }
}

/// One run.
struct Run<'a> {
    store: &'a MySqlStore,
    dialer: &'a Dialer,
    slot: &'a Slot,
    owner: &'a str,
    patience: Patience,
    /// A statement that changes the table was not answered: it may have been carried out.
    in_doubt: AtomicBool,
}

impl Run<'_> {
    fn table(&self, name: &str) -> String {
        quoted(&self.store.options.table(name))
    }

    async fn sql(&self, sql: String) -> StoreResult<Answer> {
        let mut held = self.slot.take(self.dialer).await?;
        let result = held.link.run(&[Statement::new(sql)]).await;
        Ok(held.give_back(result)?.into_iter().next().unwrap_or_default())
    }

    /// A statement that changes the table, for which it waits for applications. It is tried again, with a rest in which
    /// those go on that wait behind it.
    async fn patiently(&self, sql: String) -> StoreResult<()> {
        loop {
            match self.changes(sql.clone()).await {
                Ok(()) => return Ok(()),
                Err(e) if self.patience.lasts(&e).await => {}
                Err(e) => return Err(e),
            }
        }
    }

    async fn changes(&self, sql: String) -> StoreResult<()> {
        self.as_owner(vec![]).await?; // A run that was held up does not change what another has begun since.
        let mut held = self.slot.take(self.dialer).await?;
        let result = held.link.run(&[Statement::new(sql)]).await;
        if result.as_ref().is_err_and(|failure| failure.session_over) {
            self.in_doubt.store(true, Ordering::Relaxed);
        }
        held.give_back(result).map(drop)
    }

    /// Locks all leases, which must be the owner's, and runs what follows in the same transaction.
    async fn as_owner(&self, rest: Vec<String>) -> StoreResult<Vec<Answer>> {
        let mut held = self.slot.take(self.dialer).await?;
        let result = self.transaction(&mut held.link, rest).await;
        held.give_back(result)?
    }

    async fn transaction(&self, link: &mut Link, rest: Vec<String>) -> Result<StoreResult<Vec<Answer>>, Failure> {
        let leases = format!(
            "SELECT shard, COALESCE(owner = {} AND expires_at > {NOW}, 0) FROM {} FORCE INDEX (PRIMARY) WHERE shard >= 0 ORDER BY shard FOR UPDATE",
            hex(self.owner.as_bytes()),
            self.table("outbox_lease")
        );
        let begun = link.run_inside(&["START TRANSACTION".to_owned(), leases].map(Statement::new)).await?;
        for row in begun.last().into_iter().flat_map(|a| &a.rows) {
            if number::<u8>(row, 1)? != 1 {
                link.rollback().await?;
                return Ok(Err(not_ours(number(row, 0)?)));
            }
        }
        let answers = link.run_inside(&rest.into_iter().map(Statement::new).collect::<Vec<_>>()).await?;
        link.commit().await?;
        Ok(Ok(answers))
    }

    /// Keeps relays away, also those of builds that know nothing of this. Returns the meta table as it was.
    async fn announce(&self, shards: u16) -> StoreResult<Meta> {
        let table = self.table("outbox_meta");
        let meta = meta_of(self.sql(format!("SELECT name, value FROM {table}")).await?)?;
        meta.check(None)?;
        self.as_owner(vec![format!(
            "INSERT INTO {table} (name, value) VALUES ('{RESHARD}', '{shards}'), ('schema_version', 'none: run outhaul reshard again') \
             ON DUPLICATE KEY UPDATE value = VALUES(value)"
        )])
        .await?;
        Ok(meta)
    }

    /// Makes leases for the shards that are new, says how many there are, and lets relays in.
    async fn finish(&self, shards: u16, had: Option<&str>) -> StoreResult<()> {
        let meta = self.table("outbox_meta");
        let mut statements = vec![
            schema::lease_rows(&self.store.options, shards),
            format!(
                "INSERT INTO {meta} (name, value) VALUES ('shards', '{shards}'), ('schema_version', '{SCHEMA_VERSION}') \
                 ON DUPLICATE KEY UPDATE value = VALUES(value)"
            ),
            format!("DELETE FROM {meta} WHERE name = '{RESHARD}'"),
        ];
        statements.extend(had.map(|had| {
            format!("INSERT INTO {meta} (name, value) VALUES ('{HAD}', '{had}') ON DUPLICATE KEY UPDATE value = VALUES(value)")
        }));
        self.as_owner(statements).await.map(drop)
    }

    async fn shape(&self, column: &str) -> StoreResult<Shape> {
        let of = format!("table_schema = DATABASE() AND table_name = {}", literal(&self.store.options.outbox()));
        let column = literal(column);
        let mut held = self.slot.take(self.dialer).await?;
        let checks = match held.link.server.check_constraints() {
            // MariaDB names the table beside the constraint, MySQL in another view.
            Some(true) => format!(
                "SELECT constraint_name, check_clause FROM information_schema.check_constraints \
                 WHERE constraint_schema = DATABASE() AND table_name = {}",
                literal(&self.store.options.outbox())
            ),
            Some(false) => format!(
                "SELECT c.constraint_name, c.check_clause FROM information_schema.check_constraints c \
                 JOIN information_schema.table_constraints t USING (constraint_schema, constraint_name) \
                 WHERE t.constraint_schema = DATABASE() AND t.table_name = {}",
                literal(&self.store.options.outbox())
            ),
            None => "SELECT '', '' FROM DUAL WHERE 1 = 0".into(),
        };
        let statements = [
            format!(
                "SELECT extra, column_default FROM information_schema.columns WHERE {of} AND column_name = {column}"
            ),
            format!(
                "SELECT column_name FROM information_schema.statistics WHERE {of} AND index_name = 'PRIMARY' ORDER BY seq_in_index"
            ),
            checks,
        ];
        let result = held.link.run(&statements.map(Statement::new)).await;
        let mut answers = held.give_back(result)?.into_iter();
        let mut next = || answers.next().unwrap_or_default().rows.into_iter();
        let mut shape = Shape { has_shard: false, computes: false, primary: vec![], checks: vec![] };
        for mut row in next() {
            // MySQL says of an expression only that it is one, MariaDB which.
            let (extra, default) =
                (text_opt(&mut row, 0)?.unwrap_or_default(), text_opt(&mut row, 1)?.unwrap_or_default());
            shape.has_shard = true;
            shape.computes = extra.contains("DEFAULT_GENERATED") || default.to_ascii_lowercase().contains("crc32");
            // A run that was broken off has left the column with a plain DEFAULT.
            shape.computes |= default.trim_matches('\'') == "0";
        }
        for mut row in next() {
            shape.primary.push(text(&mut row, 0)?);
        }
        let named = quoted(self.store.options.columns.shard.as_deref().unwrap_or_default());
        for mut row in next() {
            let (name, clause) = (text(&mut row, 0)?, text(&mut row, 1)?);
            if clause.trim_matches(['(', ')']).starts_with(&format!("{named} < ")) {
                shape.checks.push(quoted(&name));
            }
        }
        Ok(shape)
    }

    /// From here on new rows have their new shard.
    async fn change_default(&self, column: &str, shard: &str) -> StoreResult<()> {
        let o = &self.store.options;
        let shape = self.shape(column).await?;
        let (table, seq, name) = (quoted(&o.outbox()), quoted(&o.columns.seq), quoted(column));
        let primary: Vec<&str> = shape.primary.iter().map(String::as_str).collect();
        let as_made = match (shape.has_shard, primary.as_slice()) {
            (true, [first, second]) => shape.computes && same(first, column) && same(second, &o.columns.seq),
            (false, [only]) => same(only, &o.columns.seq),
            _ => false,
        };
        if !as_made {
            let what =
                format!("table {} is not as `init` makes it: its shard or its primary key is another one", o.outbox());
            return Err(StoreError::new(StoreErrorKind::WrongSchema, what));
        }
        if !shape.has_shard {
            self.patiently(format!(
                "ALTER TABLE {table} ADD COLUMN {name} SMALLINT UNSIGNED NOT NULL DEFAULT 0, DROP PRIMARY KEY, \
                 ADD PRIMARY KEY ({name}, {seq}), ADD KEY {seq} ({seq})"
            ))
            .await?;
        }
        let word = if self.is_mariadb().await? { "CONSTRAINT" } else { "CHECK" };
        let dropped: String = shape.checks.iter().map(|check| format!("DROP {word} {check}, ")).collect();
        self.patiently(format!(
            "ALTER TABLE {table} {dropped}ALTER COLUMN {name} SET DEFAULT ({shard}), ALGORITHM=INPLACE"
        ))
        .await
    }

    async fn is_mariadb(&self) -> StoreResult<bool> {
        let held = self.slot.take(self.dialer).await?;
        let mariadb = held.link.server.mariadb;
        held.give_back(Ok(()))?;
        Ok(mariadb)
    }

    /// Gives every row that is there its new shard. Rows that are not committed are of the new DEFAULT, and are not waited
    /// for: single points are changed, never a range.
    async fn move_rows(&self, column: &str, shard: &str) -> StoreResult<u64> {
        let o = &self.store.options;
        let (table, seq, name) = (quoted(&o.outbox()), quoted(&o.columns.seq), quoted(column));
        let mut moved = 0;
        loop {
            let wrong = self
                .sql(format!("SELECT {name}, {seq} FROM {table} WHERE {name} <> {shard} LIMIT {ROWS_AT_ONCE}"))
                .await?;
            if wrong.rows.is_empty() {
                return Ok(moved);
            }
            let mut of_shards: BTreeMap<u64, Vec<String>> = BTreeMap::new();
            for row in &wrong.rows {
                of_shards.entry(number(row, 0)?).or_default().push(number::<u64>(row, 1)?.to_string());
            }
            // One statement a shard: what MariaDB thinks about a thousand pairs joined by OR takes it seconds.
            let update = |(shard_before, seqs): (&u64, &Vec<String>)| {
                let seqs = seqs.join(", ");
                format!("UPDATE {table} SET {name} = {shard} WHERE {name} = {shard_before} AND {seq} IN ({seqs})")
            };
            let updates: Vec<String> = of_shards.iter().map(update).collect();
            moved += loop {
                match self.as_owner(updates.clone()).await {
                    Ok(answers) => break answers.iter().map(|answer| answer.affected).sum::<u64>(),
                    Err(e) if self.patience.lasts(&e).await => {}
                    Err(e) => return Err(e),
                }
            };
        }
    }

    /// What keeps rows out of shards that there are not. It copies the table.
    async fn guard(&self, column: &str, shards: u16) -> StoreResult<()> {
        let o = &self.store.options;
        let guarded = {
            let held = self.slot.take(self.dialer).await?;
            let guarded = held.link.server.check_constraints().is_some();
            held.give_back(Ok(()))?;
            guarded
        };
        if !guarded || !self.shape(column).await?.checks.is_empty() {
            return Ok(());
        }
        let (table, check) = (quoted(&o.outbox()), quoted(&format!("{}_shards", o.outbox())));
        self.patiently(format!("ALTER TABLE {table} ADD CONSTRAINT {check} CHECK ({} < {shards})", quoted(column)))
            .await
    }
}

/// From the new DEFAULT on there is no way but forward: relays stay away until the change has come to its end.
fn half_done(error: StoreError) -> StoreError {
    let what = format!("the change of the number of shards was broken off: {} ({})", error.message, error.kind.code());
    StoreError::new(StoreErrorKind::Resharding, what)
}

fn same(a: &str, b: &str) -> bool {
    a.eq_ignore_ascii_case(b)
}
