//! What destinations keep for the next process: rows of the meta table.

use tokio_postgres::types::Type;

use super::PostgresStore;
use super::link::{Statement, get};
use super::values::{clean, quoted};
use crate::store::{StoreResult, memory_name};

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
}
