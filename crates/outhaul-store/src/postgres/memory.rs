//! What destinations keep for the next process, and whose turn it is: rows of the meta table.

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Statement, get};
use super::values::{clean, quoted};
use crate::store::{StoreResult, another_has_it, memory_name, turn_name};

impl PostgresStore {
    pub(super) async fn kept(&self, destination: &str) -> StoreResult<Option<String>> {
        let sql = format!("SELECT value FROM {} WHERE name = $1", quoted(&self.options.table("outbox_meta")));
        let name = clean(&memory_name(destination));
        let rows = self.select(&self.other, Statement::new(&sql).with(&name, Type::TEXT)).await?;
        rows.first().map(|row| get(row, 0)).transpose()
    }

    pub(super) async fn keep(&self, destination: &str, value: &str) -> StoreResult<()> {
        let sql = format!(
            "INSERT INTO {} (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value",
            quoted(&self.options.table("outbox_meta"))
        );
        let (name, value) = (clean(&memory_name(destination)), clean(value));
        let statement = Statement::new(&sql).with(&name, Type::TEXT).with(&value, Type::TEXT);
        let held = self.other.take(&self.dialer).await?;
        let result = held.link.write(&self.dialer.begin_write, &[statement]).await;
        held.give_back(result).map(drop)
    }

    pub(super) async fn take_turn(&self, name: &str, owner: &str, ttl_ms: u64) -> StoreResult<Option<String>> {
        const NOW_US: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let table = quoted(&self.options.table("outbox_meta"));
        let take = format!(
            "INSERT INTO {table} AS t (name, value) VALUES ($1, ({NOW_US} + $3)::text || ' ' || $2) \
             ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value \
             WHERE split_part(t.value, ' ', 1)::bigint <= {NOW_US} OR substr(t.value, strpos(t.value, ' ') + 1) = $2"
        );
        let seen = format!("SELECT value FROM {table} WHERE name = $1");
        let (name, owner) = (clean(&turn_name(name)), clean(owner));
        let ttl_us = i64::try_from(ttl_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
        let statements = [
            Statement::new(&take).with(&name, Type::TEXT).with(&owner, Type::TEXT).with(&ttl_us, Type::INT8),
            Statement::new(&seen).with(&name, Type::TEXT),
        ];
        let held = self.other.take(&self.dialer).await?;
        let result = held.link.write(&self.dialer.begin_write, &statements).await;
        let row = held.give_back(result)?.into_iter().flatten().last();
        let text: Option<String> = row.map(|row| get(&row, 0)).transpose()?;
        Ok(another_has_it(text.as_deref(), &owner))
    }
}
