//! Another number of shards, while applications insert.
//!
//! No relay may run, and the caller holds all leases. One transaction: the table is locked, which waits until every
//! transaction has ended that inserted into it, the column is made anew for the rows that are there, and the meta table
//! says how many shards there are. A run that is killed has changed nothing.

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Dialer, Slot, Statement, get};
use super::schema::{self, MAX_SHARDS, regclass};
use super::upgrade::changing;
use super::values::{literal, quoted};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::{Resharded, StoreResult};
use crate::version::{HAD, Meta, Patience, check_new_count, not_ours};

impl PostgresStore {
    pub(super) async fn change_shards(&self, owner: &str, shards: u16) -> StoreResult<Resharded> {
        let column = check_new_count(&self.options, shards, MAX_SHARDS)?.to_owned();
        let not_there = || StoreError::new(StoreErrorKind::NotInitialised, "there are no tables");
        let meta = self.meta(&self.other).await?.ok_or_else(not_there)?;
        let before = meta.check(None)?.shards;
        let alter = self.alter(&column, &meta, shards).await?;
        let had = meta.value(HAD).and_then(|n| n.parse().ok()).unwrap_or(0).max(before).max(shards);
        let table = quoted(&self.options.table("outbox_meta"));
        let statements = [
            alter,
            schema::lease_rows(&self.options, shards),
            format!(
                "INSERT INTO {table} (name, value) VALUES ('shards', '{shards}'), ('{HAD}', '{had}') \
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value"
            ),
        ];
        let (dialer, slot, patience) = (changing(&self.options)?, Slot::new(), Patience::for_applications());
        loop {
            match self.change_on(&slot, &dialer, owner, &statements).await {
                Ok(()) => break,
                Err(e) if e.kind == StoreErrorKind::CommitUnknown => {
                    let now = self.meta(&self.other).await?.ok_or_else(not_there)?.shards()?;
                    if now == shards {
                        break;
                    }
                    return Err(e);
                }
                Err(e) if patience.lasts(&e).await => {}
                Err(e) => return Err(e),
            }
        }
        slot.clear().await;
        self.forget_layout();
        Ok(Resharded { before, after: shards, moved: None, unguarded: None })
    }

    async fn change_on(&self, slot: &Slot, dialer: &Dialer, owner: &str, statements: &[String]) -> StoreResult<()> {
        let leases = format!(
            "SELECT shard::bigint, coalesce(owner = $1 AND expires_at > clock_timestamp(), false) FROM {} WHERE shard >= 0 \
             ORDER BY shard FOR UPDATE",
            quoted(&self.options.table("outbox_lease"))
        );
        let held = slot.take(dialer).await?;
        let begun = held.link.begin(&dialer.begin_write, &[Statement::new(&leases).with(&owner, Type::TEXT)]).await;
        let rows = match begun {
            Ok(answers) => answers.into_iter().next().unwrap_or_default(),
            Err(failure) => return held.give_back(Err(failure)),
        };
        for row in &rows {
            if !get::<bool>(row, 1)? {
                let shard: i64 = get(row, 0)?;
                let result = held.link.rollback().await;
                held.give_back(result)?;
                return Err(not_ours(shard));
            }
        }
        let statements: Vec<Statement<'_>> = statements.iter().map(|s| Statement::new(s)).collect();
        let result = held.link.run_and_commit(&statements).await;
        held.give_back(result).map(drop)
    }

    /// The statement that makes the column anew.
    async fn alter(&self, column: &str, meta: &Meta, shards: u16) -> StoreResult<String> {
        let o = &self.options;
        let table = regclass(&o.outbox());
        let sql = format!(
            "SELECT (SELECT a.attgenerated = 's' FROM pg_attribute a WHERE a.attrelid = {table} AND a.attname = {} AND NOT a.attisdropped), \
               (SELECT c.conname::text FROM pg_constraint c WHERE c.conrelid = {table} AND c.contype = 'p'), \
               (SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_constraint c, unnest(c.conkey) WITH ORDINALITY k(n, place), \
                  pg_attribute a WHERE c.conrelid = {table} AND c.contype = 'p' AND a.attrelid = c.conrelid AND a.attnum = k.n)",
            literal(column)
        );
        let rows = self.select(&self.other, Statement::new(&sql)).await?;
        let row =
            rows.first().ok_or_else(|| StoreError::new(StoreErrorKind::Other, "the catalogue does not answer"))?;
        let (generated, name): (Option<bool>, Option<String>) = (get(row, 0)?, get(row, 1)?);
        let key: Vec<String> = get::<Option<Vec<String>>>(row, 2)?.unwrap_or_default();
        let key: Vec<&str> = key.iter().map(String::as_str).collect();
        let seq = o.columns.seq.as_str();
        let drop_old = match (generated, key.as_slice(), name) {
            (Some(true), [first, second], _) if *first == column && *second == seq => {
                format!("DROP COLUMN {}", quoted(column))
            }
            (None, [only], Some(name)) if *only == seq => format!("DROP CONSTRAINT {}", quoted(&name)),
            _ => {
                let what = format!(
                    "table {} is not as `init` makes it: its shard or its primary key is another one",
                    o.outbox()
                );
                return Err(StoreError::new(StoreErrorKind::WrongSchema, what));
            }
        };
        let by_key = meta.value("shard_by") != Some("topic");
        Ok(format!(
            "ALTER TABLE {} {drop_old}, ADD COLUMN {}, ADD PRIMARY KEY ({}, {})",
            quoted(&o.outbox()),
            schema::shard_column(o, by_key, shards, column),
            quoted(column),
            quoted(seq)
        ))
    }
}
