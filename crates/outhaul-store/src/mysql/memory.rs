//! What destinations keep for the next process: rows of the meta table.

use super::MySqlStore;
use super::statement::Statement;
use super::values::{literal, quoted, text};
use crate::store::{StoreResult, memory_name};

impl MySqlStore {
    pub(super) async fn kept(&self, destination: &str) -> StoreResult<Option<String>> {
        let table = quoted(&self.options.table("outbox_meta"));
        let name = literal(&memory_name(destination));
        let rows = self.select(&self.other, format!("SELECT value FROM {table} WHERE name = {name}")).await?;
        rows.into_iter().next().map(|mut row| text(&mut row, 0)).transpose()
    }

    pub(super) async fn keep(&self, destination: &str, value: &str) -> StoreResult<()> {
        let table = quoted(&self.options.table("outbox_meta"));
        let mut s = Statement::new(format!("INSERT INTO {table} (name, value) VALUES ("));
        s.push_text(memory_name(destination)).push(", ").push_text(value);
        s.push(") ON DUPLICATE KEY UPDATE value = VALUES(value)");
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&[s]).await;
        held.give_back(result).map(drop)
    }
}
