//! What destinations keep for the next process, and whose turn it is: rows of the meta table.

use super::MySqlStore;
use super::statement::Statement;
use super::values::{literal, quoted, text};
use crate::store::{StoreResult, another_has_it, memory_name, turn_name};

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

    pub(super) async fn take_turn(&self, name: &str, owner: &str, ttl_ms: u64) -> StoreResult<Option<String>> {
        const NOW_US: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
        let table = quoted(&self.options.table("outbox_meta"));
        let name = turn_name(name);
        let mut take = Statement::new(format!("INSERT INTO {table} (name, value) VALUES ("));
        take.push_text(name.as_str());
        take.push(&format!(", CONCAT({NOW_US} + {ttl_us}, ' ', ", ttl_us = ttl_ms.saturating_mul(1_000)));
        take.push_text(owner).push(&format!(
            ")) ON DUPLICATE KEY UPDATE value = IF(CAST(SUBSTRING_INDEX(value, ' ', 1) AS SIGNED) <= {NOW_US} \
             OR CAST(SUBSTRING(value, LOCATE(' ', value) + 1) AS BINARY) = CAST("
        ));
        take.push_text(owner).push(" AS BINARY), VALUES(value), value)");
        let seen = Statement::new(format!("SELECT value FROM {table} WHERE name = {}", literal(&name)));
        let mut held = self.other.take(&self.dialer).await?;
        let result = held.link.run(&[take, seen]).await;
        let rows = held.give_back(result)?.into_iter().flat_map(|answer| answer.rows).last();
        let text = rows.map(|mut row| text(&mut row, 0)).transpose()?;
        Ok(another_has_it(text.as_deref(), owner))
    }
}
