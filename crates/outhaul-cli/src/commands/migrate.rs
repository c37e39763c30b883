//! `outhaul migrate`: how far the way from a status table to native mode is, and its two ends.

use std::sync::Arc;

use outhaul_core::adopted::{Marks, Migration, Stage};
use outhaul_store::{MARKS, MIGRATION, ShardStatus, StatusTable, Store, StoreOptions};
use serde_json::json;

use super::{of_outbox, open_as_it_is};
use crate::arguments::Migrate;
use crate::config::{self, Outbox};
use crate::failure::{Exit, Failure, Outcome};
use crate::{codes, measure, output};

/// An instance that has said something since counts as alive, milliseconds.
const ALIVE_MS: u64 = 30_000;

/// Shows it, ends it, or undoes it.
///
/// # Errors
/// The outbox has no status table; something stands in the way of the end; the database's, or the configuration's.
pub async fn run(a: &Migrate, json: bool) -> Outcome {
    let config = config::load(a.source.sources())?;
    let outbox = config.outbox(a.which.outbox.as_deref())?;
    let Some(table) = &outbox.store.status else {
        let what = format!("outbox {} has no table with a status column: there is nothing to migrate", outbox.name);
        return Err(Failure::new(&codes::NO_MIGRATION, what).into());
    };
    let both = Both::open(outbox, table).await?;
    let result = both.run(a, json).await;
    both.close().await;
    Ok(result.map(|()| Exit::Fine).map_err(|f| of_outbox(f, outbox))?)
}

/// The table with a status column, and the outbox table beside it.
struct Both<'a> {
    outbox: &'a Outbox,
    table: &'a StatusTable,
    of_table: Arc<dyn Store>,
    of_outbox: Arc<dyn Store>,
}

/// What is there.
struct Seen {
    migration: Option<Migration>,
    in_table: ShardStatus,
    in_outbox: ShardStatus,
}

impl<'a> Both<'a> {
    async fn open(outbox: &'a Outbox, table: &'a StatusTable) -> Result<Self, Failure> {
        let with = |status| Outbox { store: StoreOptions { status, ..outbox.store.clone() }, ..outbox.clone() };
        let of_outbox = super::open(&with(None)).await?;
        let marked = StatusTable { migrate: false, ..table.clone() };
        match open_as_it_is(&with(Some(marked))).await {
            Ok(of_table) => Ok(Self { outbox, table, of_table, of_outbox }),
            Err(e) => {
                of_outbox.close().await;
                Err(e)
            }
        }
    }

    async fn close(&self) {
        self.of_outbox.close().await;
        self.of_table.close().await;
    }

    async fn look(&self) -> Result<Seen, Failure> {
        let kept = self.of_outbox.memory(MIGRATION).await?.and_then(|text| Migration::decode(&text));
        let first = |shards: Vec<ShardStatus>| {
            let none = || Failure::new(&codes::NO_MIGRATION, "the tables have no shard 0");
            shards.into_iter().next().ok_or_else(none)
        };
        Ok(Seen {
            migration: kept.filter(|m| m.table == self.table.table),
            in_table: first(self.of_table.status().await?)?,
            in_outbox: first(self.of_outbox.status().await?)?,
        })
    }

    async fn run(&self, a: &Migrate, json: bool) -> Result<(), Failure> {
        let mut seen = self.look().await?;
        if a.finish {
            self.finish(&mut seen).await?;
        } else if a.back {
            self.back(&mut seen).await?;
        }
        self.show(&seen, a.back, json)
    }

    async fn finish(&self, seen: &mut Seen) -> Result<(), Failure> {
        let table = &self.table.table;
        let refused = |what: String| Err(Failure::new(&codes::NO_MIGRATION, what));
        let Some(migration) = &mut seen.migration else {
            return refused(format!("table {table} is not being migrated: no relay has run with mode = \"migrate\""));
        };
        if migration.stage == Stage::Marking {
            return refused(format!("what was sent from table {table} before is still being marked: let a relay run"));
        }
        if seen.in_table.hot_rows > 0 {
            return refused(format!(
                "{} rows wait in table {table}: let a relay run until none does, and nothing inserts there any more",
                seen.in_table.hot_rows
            ));
        }
        migration.stage = Stage::Finished;
        self.of_outbox.keep_memory(MIGRATION, &migration.encode()).await?;
        Ok(())
    }

    async fn back(&self, seen: &mut Seen) -> Result<(), Failure> {
        let refused = |what: String| Err(Failure::new(&codes::NO_MIGRATION, what));
        let Some(migration) = seen.migration.clone() else {
            return refused(format!("table {} is not being migrated: there is nothing to undo", self.table.table));
        };
        let alive = self.of_outbox.instances().await?.into_iter().find(|i| i.heartbeat_ms < ALIVE_MS);
        if let Some(relay) = alive {
            let said = relay.heartbeat_ms / 1_000;
            return refused(format!(
                "relay {} said something {said} s ago: stop every relay first (one that was killed counts for 30 s)",
                relay.owner
            ));
        }
        if seen.in_outbox.hot_rows > 0 {
            return refused(format!(
                "{} rows wait in table {}, at which nobody would look: let a relay run until none does, and nothing inserts there any more",
                seen.in_outbox.hot_rows,
                self.outbox.store.outbox()
            ));
        }
        // Of what the log holds nothing waits in the table. Before the marks are complete it is as it was.
        if migration.stage != Stage::Marking {
            let mut marks = Marks::decode(&self.of_outbox.memory(MARKS).await?.unwrap_or_default());
            for (lane, _) in &seen.in_outbox.lanes.lanes {
                marks.set(&lane.destination, seen.in_outbox.log_end);
            }
            self.of_outbox.keep_memory(MARKS, &marks.encode()).await?;
        }
        self.of_outbox.keep_memory(MIGRATION, "").await?;
        seen.migration = None;
        Ok(())
    }

    fn show(&self, seen: &Seen, is_back: bool, json: bool) -> Result<(), Failure> {
        let (table, outbox) = (&self.table.table, self.outbox.store.outbox());
        let stage = seen.migration.as_ref().map_or("not begun", |m| m.stage.word());
        let native = &self.outbox.store.outbox_table;
        let next = match seen.migration.as_ref().map(|m| m.stage) {
            None if is_back => "set mode = \"status\" and start the relays".to_owned(),
            None => "set mode = \"migrate\" and restart the relays".to_owned(),
            Some(Stage::Marking) => "let a relay run: what was sent before is being marked".to_owned(),
            Some(Stage::Feeding) if seen.in_table.hot_rows > 0 => {
                format!("let a relay run until nothing waits in {table}")
            }
            Some(Stage::Feeding) => format!(
                "let applications insert into {outbox}; once none inserts into {table} any more: outhaul migrate --finish"
            ),
            Some(Stage::Finished) => format!("set mode = \"move\" and table = \"{native}\", and restart the relays"),
        };
        if json {
            return output::json(&json!({
                "outbox": self.outbox.name,
                "table": table,
                "outbox_table": outbox,
                "stage": stage,
                "waiting_in_table": seen.in_table.hot_rows,
                "waiting_in_outbox": seen.in_outbox.hot_rows,
                "next": next,
            }));
        }
        let oldest = |shard: &ShardStatus| {
            shard.oldest_hot_ms.map_or_else(String::new, |ms| format!(", the oldest for {}", measure::span_text(ms)))
        };
        output::lines([
            format!("outbox {}: from table {table} to {outbox}: {stage}", self.outbox.name),
            format!("  {table}: {} waiting{}", seen.in_table.hot_rows, oldest(&seen.in_table)),
            format!("  {outbox}: {} waiting{}", seen.in_outbox.hot_rows, oldest(&seen.in_outbox)),
            format!("next: {next}"),
        ])
    }
}
